r"""JSON Lines: one object per line, a document is the text in one or several of its fields.

A unit is a range of whole lines, so documents are never divided. Blank lines are ignored, and so is
a byte order mark.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec import structs

from bpe.text_file import InputFile, new_array
from preprocess.documents.batch import Bytes, ReadOptions
from preprocess.sources import json_records as records
from preprocess.sources.base import FileSource, ResumePoint
from preprocess.sources.fields import USUAL_FIELDS, given_fields

_STRIDE_BYTES = 64 * 1024  # read at a time to find the end of a line
_MAX_LINES = 1000  # read to find the first object
_GROUP_BYTES = 256 * 1024  # of lines decoded at a time


@dataclass(frozen=True)
class JsonLinesUnit(records.JsonUnit):
    """Whole lines of a file."""

    record = "line"
    separator = b"\n"

    def _body(self, content: Bytes) -> tuple[int, int]:
        is_marked = self.start == 0 and content[:3].tobytes() == records.BYTE_ORDER_MARK
        return 3 * is_marked, len(content)

    def _groups(self, body: memoryview) -> Iterator[memoryview]:
        start, n = 0, len(body)
        while start < n:
            stop = n
            for begin in range(start + _GROUP_BYTES, n, _STRIDE_BYTES):
                if (found := body[begin : begin + _STRIDE_BYTES].tobytes().find(b"\n")) >= 0:
                    stop = begin + found + 1
                    break
            yield body[start:stop]
            start = stop

    def _decode(self, decoder: records.Decoder, group: Any) -> list[Any]:
        return decoder.decode_lines(group)

    def _records(self, body: bytes) -> Iterator[tuple[int, bytes]]:
        position = 0
        for line in body.split(b"\n"):
            yield position, line
            position += len(line) + 1

    def _n_records(self, group: memoryview, n_found: int) -> int:
        from bpe.text.search import find_all

        data = np.frombuffer(group, np.uint8)
        n = len(find_all(data, b"\n")) + int((data[-1:] != 0x0A).sum())
        if n == n_found:
            return n
        # Blank lines are rare.
        return sum(bool(line.strip()) for line in group.tobytes().split(b"\n"))

    def _n_places(self, body: memoryview, n_records: int) -> int:
        return body.tobytes().count(b"\n")

    def _n_before(self) -> int:
        pieces = _iter_pieces(self.file, 0, self.start)
        return sum(piece.tobytes().count(b"\n") for piece in pieces)


class JsonLinesSource(FileSource):
    """One file of JSON Lines.

    Raises:
        CorpusError: No field is given and none can be chosen.
    """

    def __init__(self, file: InputFile, name: str, reading: ReadOptions) -> None:
        super().__init__(file, name, reading)
        reading, self.fields = self._choose_fields()
        self.has_spans = reading.chat != "off"
        self.reading_of_units = structs.replace(self.reading_of_units, chat=reading.chat)

    def units(self, after: ResumePoint | None = None) -> Iterator[JsonLinesUnit]:
        # A file of zero bytes is one unit of zero bytes.
        start = after[0] if after else self.begin
        while True:
            stop = self._end_of_line(start + self.reading.unit_size)
            yield JsonLinesUnit(self.file, self.reading_of_units, start, stop, self.fields)
            if self.file.clip(stop + 1) == stop:
                return
            start = stop

    def start_of_document(self, position: int) -> int:
        # Bad records that are left out are listed by their numbers, counted from the first line.
        if position <= 0 or self.reading.skip_bad_records:
            return super().start_of_document(position)
        return self._end_of_line(position)

    def _end_of_line(self, position: int) -> int:
        """Return the end of the line that has byte `position - 1`; the end of the file, if less."""
        start = position - 1
        for piece in _iter_pieces(self.file, start, sys.maxsize):
            if (found := piece.tobytes().find(b"\n")) >= 0:
                return start + found + 1
            start += len(piece)
        return self.file.clip(start)

    def _choose_fields(self) -> tuple[ReadOptions, tuple[str, ...]]:
        if fields := given_fields(self.reading):
            return structs.replace(self.reading, chat="off"), fields
        start = 0
        for _ in range(_MAX_LINES):
            stop = self._end_of_line(start + 1)
            if stop == start:
                break
            line = self.file.read(start, stop, new_array).tobytes()
            found = records.choose_json_fields(
                self.file, line.removeprefix(records.BYTE_ORDER_MARK), self.reading
            )
            if found is not None:
                return found
            start = stop
        # Reading reports the bad lines.
        return structs.replace(self.reading, chat="off"), USUAL_FIELDS[:1]


def _iter_pieces(file: InputFile, start: int, stop: int) -> Iterator[Bytes]:
    """Yield bytes [start, stop) of a file in pieces; less if it ends before."""
    while (end := file.clip(min(start + _STRIDE_BYTES, stop))) > start:
        yield file.read(start, end, new_array)
        start = end
