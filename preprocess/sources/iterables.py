"""Documents of a program as a source: texts, or records as lines of JSON, made when they are read.

A byte that no UTF-8 has ends each text, so that the digest of a source depends on where texts end.

Those that can be read again are read once in each pass. A pass that is resumed skips documents
before the position, and compares their digest with that of what it read before. Those that can be
read once are kept in a file, as standard input is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import xxhash
from msgspec import structs

from preprocess.documents.batch import DocumentBatch, ReadOptions, prepare
from preprocess.iterables import Documents
from preprocess.sources.base import ResumePoint, Source, WorkUnit
from preprocess.sources.json_records import JsonLinesSource, JsonLinesUnit
from preprocess.sources.standard_input import StandardInput
from preprocess.sources.text_file import Array, Bytes, InputFile, new_array
from preprocess.storage.errors import DamagedStateError

_PIECE_BYTES = 1 << 20
TEXT_END = b"\xff"  # which no UTF-8 has


class _Held(InputFile):
    """The bytes of a unit, in memory."""

    modified = 0

    def __init__(self, name: str, start: int = 0, content: bytes = b"") -> None:
        self.path, self.n_bytes, self._start = name, start + len(content), start
        self._content = np.frombuffer(content, np.uint8)

    def read(self, start: int, stop: int, array: Array = new_array) -> Bytes:
        return self._content[start - self._start : stop - self._start]

    def check_unchanged(self) -> None:
        pass  # it is in memory


class _Reader:
    """Reads documents forwards.

    Attributes:
        start, number: Bytes, and documents, that were read.
    """

    def __init__(self, documents: Documents) -> None:
        self._name, self._mark = documents.name, b"\n" if documents.are_records else TEXT_END
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
        self._next = following
        content = self._mark.join([*found, b""])
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


class TextsUnit(WorkUnit, frozen=True):
    """Texts, each of which ends with a mark."""

    n_before: int | None = None  # documents; None: to be counted

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
        before = self.n_before
        if before is None:
            pieces = self.file.pieces(0, self.start, _PIECE_BYTES)
            before = sum(piece.tobytes().count(TEXT_END) for _, piece in pieces)
        number = before + self.content()[:position].tobytes().count(TEXT_END)
        return f"{self.file.path}: document {number + 1:,}"


class HeldTextsUnit(TextsUnit, frozen=True):
    """Texts in memory."""

    point: ResumePoint | None = None

    @property
    def after(self) -> ResumePoint | None:
        return self.point


class HeldRecordsUnit(JsonLinesUnit, frozen=True):
    """Records in memory."""

    noun = "document"
    n_before: int
    point: ResumePoint | None

    @property
    def after(self) -> ResumePoint | None:
        return self.point

    def _n_before(self) -> int:
        return self.n_before


class TextsSource(JsonLinesSource):
    """A file of texts, each of which ends with a mark."""

    end_mark, has_fields = TEXT_END, False

    def __init__(self, file: InputFile, name: str, reading: ReadOptions) -> None:
        # Fields are of other sources.
        super().__init__(
            file, name, structs.replace(reading, content_field=("text",), text_preset="")
        )

    def unit(self, start: int, stop: int) -> WorkUnit:
        return TextsUnit(self.file, self.reading_of_units, start, stop)


class _Streamed(JsonLinesSource):
    """Documents that can be read again, of which neither number nor size is known before."""

    is_sized = False

    def __init__(self, documents: Documents, reading: ReadOptions) -> None:
        self._documents = documents
        self._reader: _Reader | None = None
        super().__init__(_Held(documents.name), documents.name, reading)
        self.location = ""

    def units(self, after: ResumePoint | None = None) -> Iterator[WorkUnit]:
        reader, self._reader = self._reader, None
        if reader is None or after is None or reader.point != after:
            reader = _Reader(self._documents)
            for _ in () if after is None else reader.pieces(after):
                pass
        while True:
            start, first = reader.start, reader.number
            held = _Held(self.name, start, reader.read(self.reading.unit_size))
            yield self.held_unit(held, start, first, reader.point)
            if reader.point is None:
                self._documents.check_whole(reader.number, reader.digest)
                self.n_bytes = reader.start  # for the progress of later passes
                return

    def held_unit(
        self, held: _Held, start: int, n_before: int, point: ResumePoint | None
    ) -> WorkUnit:
        """Return the unit of documents that were read."""
        return HeldRecordsUnit(
            held, self.reading_of_units, start, held.n_bytes, self.fields, n_before, point
        )

    def content(self, before: ResumePoint | None = None) -> Iterator[tuple[int, Bytes]]:
        reader = _Reader(self._documents)
        yield from reader.pieces(before)
        self._reader = reader  # `units` may go on


class _StreamedTexts(_Streamed, TextsSource):
    """The same, of texts."""

    def held_unit(
        self, held: _Held, start: int, n_before: int, point: ResumePoint | None
    ) -> WorkUnit:
        return HeldTextsUnit(held, self.reading_of_units, start, held.n_bytes, n_before, point)


class _OneShot(StandardInput):
    """Documents that can be read once, until they are in a file."""

    what = "the iterator"

    def __init__(self, documents: Documents, reading: ReadOptions) -> None:
        super().__init__(reading)
        self._documents, self.has_fields = documents, documents.are_records
        self.name, self.path = documents.name, str(documents)

    def pieces(self) -> Iterator[bytes]:
        reader = _Reader(self._documents)
        while piece := reader.read(_PIECE_BYTES):
            yield piece

    def kept_in(self, file: InputFile) -> Source:
        file.path = self.name  # for messages
        kind = JsonLinesSource if self.has_fields else TextsSource
        return kind(file, self.name, self.reading)


def open_documents(documents: Documents, reading: ReadOptions) -> Source:
    """Return the source of documents that a program gives."""
    if documents.is_one_shot:
        return _OneShot(documents, reading)
    return (_Streamed if documents.are_records else _StreamedTexts)(documents, reading)
