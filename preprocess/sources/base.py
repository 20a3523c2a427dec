"""What a source of documents offers, and what sources that are files have in common.

A work unit is a value: its source, a range of it, and how it is read. It pickles, so another
process can read it. What only this process has (the bytes that were read, memory that is used
again) is handed over beside it and never part of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import xxhash
from msgspec import structs

from bpe.errors import CorpusError
from bpe.text_file import TextFile, new_array
from preprocess.documents import Bytes, DocumentBatch, Reading

# How much of a file is read at a time for its digest.
_STRIDE_BYTES = 1024 * 1024

# A position between two units of a source, as its units give it; JSON. Valid for units of any size.
Place = list[Any]
# Gives uint8[n] for n bytes, to read them to.
Array = Callable[[int], Bytes]


class WorkUnit(Protocol):
    """Part of a source that is worked on by itself; a source's units follow without gaps."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the source that the unit stands for; those of all units add up to the source."""

    @property
    def where(self) -> str:
        """Which text the unit stands for, for messages."""

    @property
    def after(self) -> Place | None:
        """The place after the unit, where a later run may begin; None after a source's last."""

    def read(self, array: Array = new_array) -> DocumentBatch:
        """Read the documents of the unit, on any thread.

        The batch may carry the bytes of the source that were read, as `DocumentBatch.content`.

        Raises:
            CorpusError: The text is not UTF-8 and the user wants that to be an error, or the source
                changed.
        """

    def content(self, array: Array = new_array) -> Bytes:
        """Read the bytes of the source that the unit stands for: uint8[n_bytes].

        Raises:
            CorpusError: The source changed.
        """

    def check_unchanged(self) -> None:
        """Refuse a source that changed since it was found, so what was read may be damaged.

        Raises:
            CorpusError: The source changed.
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

    def content(self, before: Place | None = None) -> Iterator[Bytes]:
        """Read the bytes of the source, piece by piece: those of the units before a place, or all.

        Raises:
            CorpusError: The source changed.
        """


def digest_of(source: Source, before: Place | None = None) -> xxhash.xxh3_128:
    """Return the xxh3_128 of a source's bytes: of those before a place, or of all."""
    digest = xxhash.xxh3_128()
    for piece in source.content(before):
        digest.update(piece.data)
    return digest


@dataclass(frozen=True)
class FileUnit:
    """Bytes [start, stop) of a file. A format derives from it and adds `read`.

    Attributes:
        file: The file.
        reading: How its documents are read.
        start: The first byte.
        stop: The end.
    """

    file: TextFile
    reading: Reading
    start: int
    stop: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the file that the unit stands for."""
        return self.stop - self.start

    @property
    def where(self) -> str:
        """The file and the bytes."""
        return f"{self.file.path}, bytes {self.start:,} to {self.stop:,}"

    @property
    def after(self) -> Place | None:
        """Where the next unit starts."""
        return None if self.stop == self.file.n_bytes else [int(self.stop)]

    def content(self, array: Array = new_array) -> Bytes:
        """Read the bytes: uint8[n_bytes]."""
        return self.file.read(self.start, self.stop, array)

    def check_unchanged(self) -> None:
        """Refuse a file that changed since it was found."""
        self.file.check_unchanged()

    def byte(self, position: int) -> str:
        """Where byte `position` of the unit is, for messages."""
        return f"{self.file.path}: byte {self.start + position:,}"


class FileSource:
    """One file as a source. A format derives from it and adds `units`.

    A place in the file is a list that begins with the number of bytes before it.

    Args:
        path: The file.
        name: What the manifest calls it.
        reading: How it is read.

    Raises:
        CorpusError: There is no such file, or it cannot be read.
    """

    separator = b""

    def __init__(self, path: Path, name: str, reading: Reading) -> None:
        self.name = name
        self.reading = reading
        # Units are cut already, and need not carry what decides where.
        self.reading_of_units = structs.replace(reading, safe_cut=None, uncut=())
        try:
            self.file = TextFile(path)
        except FileNotFoundError:
            raise CorpusError(f"{path}: no such file or directory; check the path") from None
        except OSError as error:
            raise CorpusError(
                f"{path}: cannot be read: {error.strerror}; make it readable or leave it out"
            ) from error
        self.n_bytes = self.file.n_bytes
        self.stamp = f"modified {self.file.modified}"
        self.location = os.path.realpath(path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.file.path)!r}: {self.n_bytes:,} bytes)"

    def content(self, before: Place | None = None) -> Iterator[Bytes]:
        """Read the bytes of the file, piece by piece: those before a place, or all."""
        stop = self.n_bytes if before is None else before[0]
        # One piece after the other: none is kept by those that take a digest.
        for start in range(0, stop, _STRIDE_BYTES):
            yield self.file.read(start, min(start + _STRIDE_BYTES, stop))
