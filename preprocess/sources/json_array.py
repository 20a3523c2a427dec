r"""JSON arrays: a file is one array of objects, a document is the text in fields of an element.

A unit is a range of whole elements and the comma after them. The first one has the bracket before
them, too, and the last one the bracket after them. `.json` files that do not begin with a bracket
are JSON Lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from bpe.errors import CorpusError
from bpe.text_file import InputFile, new_array
from preprocess.documents.batch import Bytes, ReadOptions
from preprocess.sources import json_records as records
from preprocess.sources.base import FileSource, ResumePoint
from preprocess.sources.fields import USUAL_FIELDS, given_fields
from preprocess.sources.json_lines import JsonLinesSource
from preprocess.sources.remote import read_ahead

_STRIDE_BYTES = 1024 * 1024  # read at a time to find the end of an element


def open_json(file: InputFile, name: str, reading: ReadOptions) -> FileSource:
    """Return the source of a JSON array, or of JSON Lines."""
    _, bracket = _first_byte(file)
    return (JsonArraySource if bracket == b"[" else JsonLinesSource)(file, name, reading)


def _first_byte(file: InputFile) -> tuple[int, bytes]:
    """Return (position after the first byte that is not white space or a mark, that byte)."""
    start = 0
    while (stop := file.clip(start + 64)) > start:
        data = file.read(start, stop, new_array).tobytes()
        data = data.removeprefix(records.BYTE_ORDER_MARK) if start == 0 else data
        if left := data.lstrip(records.WHITE_SPACE):
            return stop - len(left) + 1, left[:1]
        start = stop
    return start, b""


@dataclass(frozen=True)
class JsonArrayUnit(records.JsonUnit):
    """Whole elements of an array, with what is around them."""

    is_last: bool

    record = "element"
    separator = b","

    def _body(self, content: Bytes) -> tuple[int, int]:
        begin = 0 if self.start else _first_byte(self.file)[0]
        if not self.is_last:
            return begin, len(content) - 1  # without the comma
        end = len(content.tobytes().rstrip(records.WHITE_SPACE)) - 1  # without the bracket
        elements = content[begin:end].tobytes().rstrip(records.WHITE_SPACE)
        if elements.endswith(b",") or (self.start and not elements):
            raise CorpusError(
                f"{self.byte(end)}: no element between the last comma and the end of the array;"
                " remove the comma"
            )
        return begin, end

    def _groups(self, body: memoryview) -> Iterator[memoryview]:
        yield body

    def _decode(self, decoder: records.Decoder, group: Any) -> list[Any]:
        array = msgspec.json.Decoder(list[decoder.type])  # type: ignore[name-defined]
        found: list[Any] = array.decode(b"[%b]" % bytes(group))
        return found

    def _records(self, body: bytes) -> Iterator[tuple[int, bytes]]:
        from preprocess.sources.json_strings import ElementFinder

        data, start = np.frombuffer(body, np.uint8), 0
        while (n := ElementFinder().find_end(data[start:])) >= 0 and body[start + n] == ord(","):
            yield start, body[start : start + n]
            start += n + 1
        yield start, body[start:]

    def _n_records(self, group: memoryview, n_found: int) -> int:
        return n_found

    def _n_places(self, body: memoryview, n_records: int) -> int:
        return n_records

    def _n_before(self) -> int:
        number, start = 0, _first_byte(self.file)[0]
        while start < self.start:
            start, number = _end_of_element(self.file, start, start)[0], number + 1
        return number


class JsonArraySource(FileSource):
    """One file with an array of objects.

    Raises:
        CorpusError: No field is given and none can be chosen.
    """

    def __init__(self, file: InputFile, name: str, reading: ReadOptions) -> None:
        super().__init__(file, name, reading)
        reading, self.fields = self._choose_fields()
        self.has_spans = reading.chat != "off"
        self.reading_of_units = structs.replace(self.reading_of_units, chat=reading.chat)

    def units(self, after: ResumePoint | None = None) -> Iterator[JsonArrayUnit]:
        start, is_last = after[0] if after else 0, False
        file = read_ahead(self.file)
        while not is_last:
            begin = start or _first_byte(self.file)[0]
            stop, is_last = _end_of_element(file, begin, begin + self.reading.unit_size)
            unit = self.file, self.reading_of_units, start, stop, self.fields, is_last
            yield JsonArrayUnit(*unit)
            start = stop

    def _choose_fields(self) -> tuple[ReadOptions, tuple[str, ...]]:
        as_text = structs.replace(self.reading, chat="off")
        if fields := given_fields(self.reading):
            return as_text, fields
        begin = _first_byte(self.file)[0]
        end, _ = _end_of_element(self.file, begin, begin)
        first = self.file.read(begin, end, new_array).tobytes()
        first = first.rstrip(records.WHITE_SPACE)[:-1]  # without comma or bracket
        found = records.choose_json_fields(self.file, first, self.reading)
        return found or (as_text, USUAL_FIELDS[:1])


def _end_of_element(file: InputFile, begin: int, least: int) -> tuple[int, bool]:
    """Return (position after the first comma between elements at `least` or later, False).

    If the array ends before: (the end of the file, True). `begin` is the start of an element.

    Raises:
        CorpusError: The array is not closed, or something follows it.
    """
    from preprocess.sources.json_strings import ElementFinder

    finder, start = ElementFinder(), begin
    while (end := file.clip(start + _STRIDE_BYTES)) > start:
        part = file.read(start, end, new_array)
        if (found := finder.find_end(part, least - start)) >= 0:
            if part[found] == ord(","):
                return start + found + 1, False
            if part[found] == ord("}"):
                raise CorpusError(
                    f"{file.path}: byte {start + found:,}: this brace closes nothing; correct it"
                )
            return _end_after(file, start + found + 1), True
        start = end
    raise CorpusError(
        f"{file.path}: the array is not closed at byte {start:,}, the end of the file, so it is"
        f" truncated, or an element from byte {begin:,} on is not closed; get the file again, or"
        " correct it"
    )


def _end_after(file: InputFile, position: int) -> int:
    """Return the end of a file that has only white space from `position` on; else raise."""
    while (end := file.clip(position + _STRIDE_BYTES)) > position:
        rest = file.read(position, end, new_array).tobytes()
        if left := rest.lstrip(records.WHITE_SPACE):
            raise CorpusError(
                f"{file.path}: byte {end - len(left):,}: the array has ended before; expected one"
                " array in a file, remove what follows"
            )
        position = end
    return position
