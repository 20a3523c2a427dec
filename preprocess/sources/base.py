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
from preprocess.documents.batch import Bytes, DocumentBatch, ReadOptions

# How much of a file is read at a time for its digest.
_STRIDE_BYTES = 1024 * 1024

# A position between two units of a source, as its units give it; JSON. Valid for units of any size.
ResumePoint = list[Any]
# Gives uint8[n] for n bytes, to read them to.
Array = Callable[[int], Bytes]


class WorkUnit(Protocol):
    """Part of a source that is worked on by itself; a source's units follow without gaps.

    All methods raise CorpusError if the source changed since it was found.

    Attributes:
        n_bytes: Bytes of the source in the unit; those of all units add up to the source.
        where: Description of the text of the unit, for messages.
        after: The place after the unit, where a later run may begin; None after a source's last.
    """

    @property
    def n_bytes(self) -> int: ...

    @property
    def where(self) -> str: ...

    @property
    def after(self) -> ResumePoint | None: ...

    def read(self, array: Array = new_array) -> DocumentBatch:
        """Read the documents of the unit, on any thread; `DocumentBatch.content` is optional.

        Raises:
            CorpusError: The text is not UTF-8, and `ReadOptions.on_invalid_utf8` is "error".
        """

    def content(self, array: Array = new_array) -> Bytes:
        """Read the bytes of the source in the unit: uint8[n_bytes]."""

    def check_unchanged(self) -> None:
        """Check that the source has not changed, so that what was read is not damaged."""


class Source(Protocol):
    """Documents in a fixed order: a file, or the default corpus."""

    name: str  # for the manifest: says nothing of the machine
    n_bytes: int
    separator: bytes  # between documents, which do not contain it; b"" if there is none
    stamp: str  # changes if the content does, as far as that is known without reading it all
    location: str  # distinguishes sources with equal attributes; "" if there can be no others

    def units(self, after: ResumePoint | None = None) -> Iterator[WorkUnit]:
        """Cut the source into work units, lazily, from a place on (None: the start).

        May be called again, for another pass. A source that cannot begin anywhere reads from its
        start and leaves out what lies before the place.
        """

    def content(self, before: ResumePoint | None = None) -> Iterator[Bytes]:
        """Read the bytes of the source, piece by piece: those of the units before a place, or all.

        Raises:
            CorpusError: The source changed.
        """


def digest_of(source: Source, before: ResumePoint | None = None) -> xxhash.xxh3_128:
    """Return the xxh3_128 of a source's bytes: of those before a place, or of all."""
    digest = xxhash.xxh3_128()
    for piece in source.content(before):
        digest.update(piece.data)
    return digest


@dataclass(frozen=True)
class FileUnit:
    """Bytes [start, stop) of a file. A format derives from it and adds `read`."""

    file: TextFile
    reading: ReadOptions
    start: int
    stop: int

    @property
    def n_bytes(self) -> int:
        return self.stop - self.start

    @property
    def where(self) -> str:
        return f"{self.file.path}, bytes {self.start:,} to {self.stop:,}"

    @property
    def after(self) -> ResumePoint | None:
        return None if self.stop == self.file.n_bytes else [int(self.stop)]

    def content(self, array: Array = new_array) -> Bytes:
        return self.file.read(self.start, self.stop, array)

    def check_unchanged(self) -> None:
        self.file.check_unchanged()

    def byte(self, position: int) -> str:
        """Describe where byte `position` of the unit is, for messages."""
        return f"{self.file.path}: byte {self.start + position:,}"


class FileSource:
    """One file as a source, called `name` in manifests. A format derives from it and adds `units`.

    A place in the file is a list that begins with the number of bytes before it.

    Raises:
        CorpusError: There is no such file, or it cannot be read.
    """

    separator = b""

    def __init__(self, path: Path, name: str, reading: ReadOptions) -> None:
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

    def content(self, before: ResumePoint | None = None) -> Iterator[Bytes]:
        stop = self.n_bytes if before is None else before[0]
        # One piece after the other: none is kept by those that take a digest.
        for start in range(0, stop, _STRIDE_BYTES):
            yield self.file.read(start, min(start + _STRIDE_BYTES, stop))
