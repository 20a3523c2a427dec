"""Documents of a program as a source: texts, or records as lines of JSON, made when they are read.

A byte that no UTF-8 has ends each text, so that the digest of a source depends on where texts end.

Those that can be read again are read once in each pass. A pass that is resumed skips documents
before the position, and compares their digest with that of what it read before. Those that can be
read once are kept in a file, as standard input is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import numpy as np
import xxhash
from msgspec import structs

from preprocess.documents.batch import DocumentBatch, ReadOptions, prepare
from preprocess.iterables import TEXT_END, Documents
from preprocess.sources.base import ResumePoint, Source, WorkUnit
from preprocess.sources.json_records import JsonLinesSource, JsonLinesUnit
from preprocess.sources.standard_input import StandardInput
from preprocess.sources.text_file import Array, Bytes, HeldFile, InputFile, new_array
from preprocess.storage.errors import DamagedStateError

_PIECE_BYTES = 1 << 20


class _Reader:
    """Reads documents forwards.

    Attributes:
        start, number: Bytes, and documents, that were read.
    """

    def __init__(self, documents: Documents) -> None:
        self._name, self._mark = documents.name, documents.mark
        self._documents = documents.encoded()
        self._next = next(self._documents, None)
        self.start, self.number, self._digest = 0, 0, xxhash.xxh3_64()

    def read(self, n_bytes: int, n_documents: int = sys.maxsize) -> bytes:
        """Read documents of at least `n_bytes` together, and at most so many; b"": the end."""
        found, size, following = list[bytes](), 0, self._next
        while following is not None and size < n_bytes and len(found) < n_documents:
            found.append(following)
            size += len(following) + 1
            following = next(self._documents, None)
        self._next, content = following, self._mark.join([*found, b""])
        self.start, self.number = self.start + size, self.number + len(found)
        self._digest.update(content)
        return content

    @property
    def digest(self) -> str:
        """Digest of what was read."""
        return self._digest.hexdigest()

    @property
    def point(self) -> ResumePoint | None:
        """The position, as of `WorkUnit.after`."""
        return None if self._next is None else [self.start, self.number, self.digest]

    def pieces(self, before: ResumePoint | None) -> Iterator[tuple[int, Bytes]]:
        """Yield (its start, bytes) of pieces up to a position; raise if others are given there."""
        last = sys.maxsize if before is None else before[1]
        start = self.start
        while content := self.read(_PIECE_BYTES, last - self.number):
            yield start, np.frombuffer(content, np.uint8)
            start = self.start
        if before is not None and before != [self.start, self.number, self.digest]:
            raise DamagedStateError(
                f"{self._name}: gives other documents than before the interruption, among the first"
                f" {before[1]:,}; give the same again to resume, or start over (--overwrite)"
            )


class DocumentsUnit(JsonLinesUnit, frozen=True):
    """Records of a program, in memory or in a file."""

    noun = "document"
    n_before: int | None = None  # documents; None: it is in a file
    point: ResumePoint | None = None  # after it, unless it is in a file

    @property
    def after(self) -> ResumePoint | None:
        return super().after if self.n_before is None else self.point

    def _n_before(self) -> int:
        return super()._n_before() if self.n_before is None else self.n_before


class TextsUnit(DocumentsUnit, frozen=True):
    """Texts of a program."""

    mark = TEXT_END

    def read(self, array: Array = new_array) -> DocumentBatch:
        from bpe.text.search import find_all

        content = self.content(array)
        ends = find_all(content, TEXT_END)
        bounds = np.stack([np.append(0, ends + 1)[:-1], ends], 1).ravel()
        buffer = content[:-1].copy()
        buffer[ends[:-1]] = ord("\n")  # gaps are UTF-8
        batch = DocumentBatch(buffer, bounds, n_records=len(ends), content=content)
        return prepare(batch, self.reading, self.byte)

    def byte(self, position: int) -> str:
        """Name the document of a byte instead."""
        number = self._n_before() + self.content()[:position].tobytes().count(TEXT_END)
        return f"{self.file.path}: document {number + 1:,}"


class DocumentsSource(JsonLinesSource):
    """A file of documents of a program."""

    def __init__(self, file: InputFile, documents: Documents, reading: ReadOptions) -> None:
        self.documents, self.has_fields = documents, documents.are_records
        self.end_mark = documents.mark
        if not self.has_fields:  # fields are of other sources
            reading = structs.replace(reading, content_field=("text",), text_preset="")
        super().__init__(file, documents.name, reading)

    def unit(self, start: int, stop: int) -> DocumentsUnit:
        kind = DocumentsUnit if self.has_fields else TextsUnit
        return kind(self.file, self.reading_of_units, start, stop, self.fields)


class _Streamed(DocumentsSource):
    """Documents that can be read again, of which neither number nor size is known before."""

    is_sized = False

    def __init__(self, documents: Documents, reading: ReadOptions) -> None:
        self._reader: _Reader | None = None
        super().__init__(HeldFile(documents.name), documents, reading)
        self.location = ""

    def units(self, after: ResumePoint | None = None) -> Iterator[WorkUnit]:
        reader, self._reader = self._reader, None
        if reader is None or after is None or reader.point != after:
            reader = _Reader(self.documents)
            for _ in () if after is None else reader.pieces(after):
                pass
        while True:
            start, first = reader.start, reader.number
            held = HeldFile(self.name, start, reader.read(self.reading.unit_size))
            unit = self.unit(start, held.n_bytes)
            yield structs.replace(unit, file=held, n_before=first, point=reader.point)
            if reader.point is None:
                self.documents.check_whole(reader.number, reader.digest)
                self.n_bytes = reader.start  # for the progress of later passes
                return

    def content(self, before: ResumePoint | None = None) -> Iterator[tuple[int, Bytes]]:
        reader = _Reader(self.documents)
        yield from reader.pieces(before)
        self._reader = reader  # `units` may go on


class _OneShot(StandardInput):
    """Documents that can be read once, until they are in a file."""

    what = "the iterator"

    def __init__(self, documents: Documents, reading: ReadOptions) -> None:
        super().__init__(reading)
        self._documents, self.has_fields = documents, documents.are_records
        self.name, self.path = documents.name, str(documents)

    def pieces(self) -> Iterator[bytes]:
        return iter(partial(_Reader(self._documents).read, _PIECE_BYTES), b"")

    def kept_in(self, file: InputFile) -> Source:
        file.path = self.name  # for messages
        return DocumentsSource(file, self._documents, self.reading)


def open_documents(documents: Documents, reading: ReadOptions) -> Source:
    """Return the source of documents that a program gives."""
    return (_OneShot if documents.is_one_shot else _Streamed)(documents, reading)
