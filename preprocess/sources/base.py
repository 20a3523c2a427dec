"""Sources of documents, and the work units that they are divided into."""

from __future__ import annotations

import importlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from typing import Any, Self

from msgspec import Struct, structs

from bpe.errors import CorpusError
from preprocess.documents.batch import DocumentBatch, Kept, ReadOptions
from preprocess.sources.digest import SourceDigest, digest_blocks
from preprocess.sources.remote import RemoteFile, read_ahead
from preprocess.sources.text_file import Array, Bytes, FilePart, InputFile, new_array

DECOMPRESSED = " (decompressed)"  # after the path of a compressed file in messages

# Bytes of a compressed file that are read to estimate its text, if they have not 16 times as many.
_SAMPLED_BYTES = 1024 * 1024

# Bytes of a file read at a time for its digest.
_STRIDE_BYTES = 1024 * 1024

# A position between two units of a source, from `WorkUnit.after`; JSON. Valid for any unit size.
ResumePoint = list[Any]


class WorkUnit(Struct, frozen=True, eq=False):
    """Bytes [start, stop) of a file, which are processed at a time.

    The units of a source are contiguous. A unit is a value, which can be pickled and read by
    another process. All methods raise CorpusError if the file changed since it was found.
    """

    file: InputFile
    reading: ReadOptions
    start: int
    stop: int

    @property
    def n_bytes(self) -> int:
        """Bytes of the source in the unit."""
        return self.stop - self.start

    @property
    def where(self) -> str:
        """Description of the range, for messages."""
        return f"{self.file.path}, bytes {self.start:,} to {self.stop:,}"

    @property
    def after(self) -> ResumePoint | None:
        """Position after the unit, where a later run may resume; None after the last unit.

        `resume_point_after` then names the next source: `Source.units` would begin again.
        """
        return None if self.stop == self.file.n_bytes else [int(self.stop)]

    @property
    def is_rendered(self) -> bool:
        """True if reading renders templates, which is done by Python code."""
        return self.reading.chat != "off"

    @abstractmethod
    def read(self, array: Array = new_array) -> DocumentBatch:
        """Read the documents of the unit, on any thread; `DocumentBatch.content` is optional.

        Raises:
            CorpusError: The text is not UTF-8, and `ReadOptions.on_invalid_utf8` is "error".
        """

    def content(self, array: Array = new_array) -> Bytes:
        """Read the bytes of the source in the unit: uint8[n_bytes]."""
        return self.file.read(self.start, self.stop, array)

    def check_unchanged(self) -> None:
        """Check that the source has not changed, so the bytes that were read are consistent."""
        self.file.check_unchanged()

    def byte(self, position: int) -> str:
        """Format the position of byte `position` of the unit, for messages."""
        return f"{self.file.path}: byte {self.start + position:,}"


class Source(ABC):
    """Documents of one file, in a fixed order; subclasses for formats define `units`.

    The first element of a `ResumePoint` is a byte offset.

    Attributes:
        file: The file.
        name: In the manifest: independent of the machine.
        n_bytes: Of the file, or of the part of it that is read.
        stamp: Changes with the content, as far as is known without reading it.
        location: Distinguishes sources with equal attributes; "": not needed.
    """

    separator = b""  # between documents, never inside one; b"": none
    is_compressed = False  # the text may be longer than the source
    has_fields = True  # documents are fields of records
    has_spans = False  # documents say what is trained on
    is_sized = True  # `n_bytes` is known before it is read
    begin = 0  # first byte of the file that is read; not 0 of a part
    has_next_part = False  # it is a part, and not the last
    kept: Kept | None = None  # which documents are selected, which are whole then; None: all

    def __init__(self, file: InputFile, name: str, reading: ReadOptions) -> None:
        self.file = file
        self.name = name
        self.reading = reading
        # Units are cut already, so they need no options for cutting. Text has no conversations.
        self.reading_of_units = structs.replace(reading, safe_cut=None, atomic=(), chat="off")
        self.n_bytes = file.n_bytes
        if isinstance(file, RemoteFile):
            self.stamp, self.location = file.stamp, file.path
        else:
            self.stamp = f"modified {file.modified}"
            self.location = os.path.realpath(file.path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.file.path)!r}: {self.n_bytes:,} bytes)"

    @abstractmethod
    def units(self, after: ResumePoint | None = None) -> Iterator[WorkUnit]:
        """Yield the work units after a position (None: the start).

        May be called again, for another pass. A source without random access reads from its start
        and skips units before the position.
        """

    def estimate_text(self) -> int:
        """Estimate the bytes of text; of a compressed source from its first units."""
        if not self.is_compressed:
            return self.n_bytes
        read = text = 0
        for unit in self.units():
            read, text = read + unit.n_bytes, text + unit.read().n_bytes
            if max(read, text / 16) >= _SAMPLED_BYTES:
                break
        return round(self.n_bytes * text / read) if read else self.n_bytes

    def start_of_document(self, position: int) -> int:
        """Return the first start of a document at byte `position` or later, where a part may begin.

        It is the end of the file if there is none, or if files of this format are not divided.
        """
        return self.file.n_bytes if position > 0 else 0

    def part(self, start: int, stop: int) -> Self:
        """Return the source of bytes [start, stop); both are starts of documents, or the end."""
        part = copy(self)
        part.file, part.begin, part.n_bytes = FilePart(self.file, stop), start, stop - start
        part.has_next_part = stop < self.file.n_bytes
        return part

    def content(self, before: ResumePoint | None = None) -> Iterator[tuple[int, Bytes]]:
        """Yield the bytes up to a position (None: the end), in pieces; raise if the file changed.

        Each piece is (position of its first byte, as `WorkUnit.start`; uint8[n]).
        """
        stop = self.file.n_bytes if before is None else before[0]
        # Small pieces, so that memory is bounded when a digest is computed.
        yield from read_ahead(self.file).pieces(self.begin, stop, _STRIDE_BYTES)


def digest_of(source: Source, before: ResumePoint | None = None) -> SourceDigest:
    """Compute the digest of the bytes of a source up to a position (None: the end)."""
    digest = SourceDigest()
    for start, piece in source.content(before):
        digest.update(digest_blocks(piece, start))
    return digest


def import_library(module: str, what: str) -> Any:
    """Import a library of the extra `formats`; raise CorpusError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CorpusError(
            f"{what} files are read with {module.split('.')[0]}, which is not installed; install"
            " it: pip install 'tokenmill[formats]'"
        ) from error


def import_zstandard() -> Any:
    """Import the Zstandard module; raise CorpusError if it is not installed."""
    is_standard = sys.version_info >= (3, 14)
    return import_library("compression.zstd" if is_standard else "backports.zstd", "Zstandard")
