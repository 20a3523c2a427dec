"""File formats, and the sources in given paths.

A format is one module in this package and one line in `FORMATS`. A file of a known format without a
reader is an error; it is never read as text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from bpe.errors import CorpusError
from bpe.files.locations import local_path
from preprocess.documents.batch import ReadOptions
from preprocess.sources.base import Source
from preprocess.sources.text import TextSource


class Format(NamedTuple):
    """A file format.

    `open` makes a source from (path, name in the manifest, options); None: there is no reader.
    A file with an unknown suffix has this format if it begins with `magic`, which no text does.
    """

    name: str
    suffixes: tuple[str, ...]
    open: Callable[[Path, str, ReadOptions], Source] | None = None
    magic: bytes = b""


TEXT = Format("plain text", (".txt",), TextSource)
FORMATS = [  # files of no other format are plain text
    TEXT,
    Format("JSON Lines", (".jsonl", ".ndjson")),
    Format("JSON", (".json",)),
    Format("Parquet", (".parquet",)),
    Format("Arrow", (".arrow", ".feather")),
    Format("CSV", (".csv",)),
    Format("TSV", (".tsv",)),
    Format("gzip-compressed", (".gz",), magic=b"\x1f\x8b"),
    Format("Zstandard-compressed", (".zst",), magic=b"\x28\xb5\x2f\xfd"),
    Format("bzip2-compressed", (".bz2",)),
    Format("xz-compressed", (".xz",), magic=b"\xfd7zXZ\0"),
    Format("zip", (".zip",)),
    Format("token", (".bin",)),
    Format("document-end", (".docs",)),
]
_MAGIC_BYTES = max(len(form.magic) for form in FORMATS)


def find_sources(paths: Iterable[str | os.PathLike[str]], reading: ReadOptions) -> list[Source]:
    """Find the sources in files and directories, in order.

    A file is one source. A directory is searched recursively: entries are sorted by name (files and
    directories together, on any file system), names that begin with a dot are skipped, and links
    are followed.

    Raises:
        CorpusError: A path does not exist, cannot be read or has a format without a reader; a
            directory has no files.
        LocationError: A path is a URL.
    """
    sources: list[Source] = []
    for given in paths:
        path = Path(local_path(given))
        if path.is_dir():
            files = list(_files_below(path, (path.resolve(),)))
            if not files:
                raise CorpusError(
                    f"{path}: no text files in this directory or below it (names that begin with a"
                    " dot are skipped); give another directory"
                )
            sources += [open_source(x, x.relative_to(path).as_posix(), reading) for x in files]
        else:
            sources.append(open_source(path, path.name, reading))
    return sources


def open_source(path: Path, name: str, reading: ReadOptions) -> Source:
    """Open a file as a source that manifests list as `name`; suffix or first bytes tell its format.

    Raises:
        CorpusError: The file is missing or cannot be read, or its format has no reader.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        # The manifest is UTF-8 and names its sources.
        shown = repr(os.fsencode(path))
        raise CorpusError(f"{shown}: the name of this file is not UTF-8; rename it") from None
    suffix = path.suffix.lower()
    form = next((form for form in FORMATS if suffix in form.suffixes), TEXT)
    if form is TEXT or not path.exists():
        text = TextSource(path, name, reading)  # raises if there is no such file
        begins = text.file.read(0, min(_MAGIC_BYTES, text.n_bytes)).tobytes()
        by_content = (form for form in FORMATS if form.magic and begins.startswith(form.magic))
        form = next(by_content, TEXT)
        if form is TEXT:
            return text
    if form.open is not None:
        return form.open(path, name, reading)
    how = suffix if suffix in form.suffixes else "by their content"
    readable = " and ".join(form.name for form in FORMATS if form.open)
    raise CorpusError(
        f"{path}: {form.name} files ({how}) cannot be read, only {readable}; convert it to a text"
        " file with the separator (--separator) between documents"
    )


def _files_below(directory: Path, seen: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the files below a directory; `seen` are its ancestors, to detect loops of links."""
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
