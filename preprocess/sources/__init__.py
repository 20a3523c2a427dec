"""Where documents come from: paths become sources, sources work units, units batches.

Law: the order of documents is the order of the paths given, and inside a directory the order of
names, level by level; it never depends on the file system. A file that is not text is refused by
name, never read as text.

A source of another format is one more module here and one more line in `open_source`. What it has
to offer is `Source` and `WorkUnit`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from bpe.errors import CorpusError
from bpe.locations import local_path
from preprocess.documents import Bytes, DocumentBatch, Reading

# Suffixes that say "not plain text". Reading these as text would tokenize braces, tags or noise.
_NOT_TEXT = {
    ".jsonl": "JSON Lines",
    ".ndjson": "JSON Lines",
    ".json": "JSON",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
    ".feather": "Arrow",
    ".csv": "CSV",
    ".tsv": "TSV",
    ".gz": "gzip-compressed",
    ".zst": "Zstandard-compressed",
    ".bz2": "bzip2-compressed",
    ".xz": "xz-compressed",
    ".zip": "zip",
    ".bin": "token",
    ".docs": "document-end",
}


# A place between two units of a source, as its units say it; JSON. It holds whatever the size of
# units is then.
Place = list[Any]


class WorkUnit(Protocol):
    """A part of a source that is worked on by itself; a source's units follow without gaps."""

    @property
    def source(self) -> Source:
        """The source that it is a part of."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the source that it stands for; those of all units add up to the source's."""

    @property
    def where(self) -> str:
        """Which text it is, for messages."""

    @property
    def after(self) -> Place | None:
        """The place behind it, where a later run may begin; None behind the last of a source."""

    def read(self) -> DocumentBatch:
        """Its documents. Called once, on any thread.

        Raises:
            CorpusError: The text is not UTF-8 and the user wants that to be an error, or the source
                changed.
        """

    def content(self) -> Bytes:
        """The bytes of the source that it stands for: uint8[n_bytes], for the source's digest.

        Raises:
            CorpusError: The source changed since it was found, so what was read may be damaged.
        """


class Source(Protocol):
    """Documents in a fixed order: a file, or the default corpus.

    Attributes:
        name: Goes into the manifest: says nothing of the machine.
        n_bytes: Size of the source.
        separator: What stands between its documents and so cannot stand inside one; b"" if nothing
            does.
        stamp: Changes if the content does, as far as that can be told without reading it all.
        location: Tells apart sources that are alike in all of these; "" if there can be no others.
    """

    name: str
    n_bytes: int
    separator: bytes
    stamp: str
    location: str

    def units(self, after: Place | None = None) -> Iterator[WorkUnit]:
        """Cut the source into work units, lazily; may be called again, for another pass.

        Args:
            after: The place where they begin; None: the start. A source that cannot begin anywhere
                reads on from its start and leaves out what lies before the place.
        """

    def content_before(self, place: Place) -> Iterator[Bytes]:
        """The bytes of the source before a place, piece by piece: those of the units before it."""


def find_sources(paths: Iterable[str | os.PathLike[str]], reading: Reading) -> list[Source]:
    """The sources that paths stand for, in order.

    A file is one source. A directory stands for the files in it and below it: at each level sorted
    by name (files and directories together), names that begin with a dot left out, links followed.

    Raises:
        CorpusError: A path does not exist, cannot be read or is no text file; a directory has no
            files.
        LocationError: A path is a URL.
    """
    sources: list[Source] = []
    for given in paths:
        path = Path(local_path(given))
        if path.is_dir():
            files = list(_files_below(path, (path.resolve(),)))
            if not files:
                raise CorpusError(
                    f"{path}: no text file in this directory or below it (names that begin with a"
                    " dot do not count); give text files or a directory that has some"
                )
            sources += [
                open_source(file, file.relative_to(path).as_posix(), reading) for file in files
            ]
        else:
            sources.append(open_source(path, path.name, reading))
    return sources


def open_source(path: Path, name: str, reading: Reading) -> Source:
    """The source for one file; its suffix says which kind.

    Args:
        path: The file.
        name: What the manifest calls it.
        reading: How it is read.

    Raises:
        CorpusError: There is no such file, it cannot be read, or nothing here reads its format.
    """
    from preprocess.sources.text import TextSource

    try:
        name.encode()
    except UnicodeEncodeError:
        # The manifest is UTF-8 and names its sources.
        raise CorpusError(
            f"{os.fsencode(path)!r}: the name of this file is not UTF-8; rename it"
        ) from None
    suffix = path.suffix.lower()
    if suffix in _NOT_TEXT and path.exists():
        raise CorpusError(
            f"{path}: {_NOT_TEXT[suffix]} files ({suffix}) cannot be read, only plain text; convert"
            " it to a text file with the separator (--separator) between documents"
        )
    return TextSource(path, name, reading)


def _files_below(directory: Path, seen: tuple[Path, ...]) -> Iterator[Path]:
    """The files in and below a directory; `seen` are those above it, so that links cannot loop."""
    try:
        entries = sorted(directory.iterdir(), key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise CorpusError(
            f"{directory}: cannot be listed: {error.strerror}; make it readable or leave it out"
        ) from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if not entry.is_dir():
            yield entry
        elif (resolved := entry.resolve()) not in seen:
            yield from _files_below(entry, (*seen, resolved))
