r"""JSON Lines, and JSON files that are one array of objects.

A unit of lines is a range of whole lines; blank ones are ignored, and so is a byte order mark. A
unit of an array is a range of whole elements and the comma after them; the first one has the
bracket before them, too, and the last one the bracket after them. So documents are never divided.

Only the fields that are read are decoded; of a repeated key the last value counts.
"""

from __future__ import annotations

import functools
import re
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import isinf
from operator import attrgetter
from typing import Any, ClassVar

import msgspec
import numpy as np

from bpe.errors import CorpusError, listed
from preprocess.documents.batch import (
    Bytes,
    Offsets,
    ReadOptions,
    invalid_text_error,
    replace_invalid,
)
from preprocess.sources.base import Array, ResumePoint, Source
from preprocess.sources.records import (
    BadRecordError,
    Record,
    RecordSource,
    RecordUnit,
    Tally,
    Values,
)
from preprocess.sources.remote import read_ahead
from preprocess.sources.text_file import InputFile, new_array

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
WHITE_SPACE = b" \t\r\n"

_STRIDE_BYTES = 64 * 1024  # read at a time to find the end of a line
_MAX_LINES = 1000  # read to find the first object
_GROUP_BYTES = 256 * 1024  # of lines decoded at a time
_STRIDE_OF_ARRAY = 1024 * 1024  # read at a time to find the end of an element
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')

Decoder = msgspec.json.Decoder[Any]


@dataclass(frozen=True)
class JsonUnit(RecordUnit):
    """Whole records of a file of JSON."""

    noun: ClassVar[str]  # for messages

    @abstractmethod
    def _body(self, content: Bytes) -> tuple[int, int]:
        """Return [begin, end) of the records in the content; raise CorpusError."""

    @abstractmethod
    def _split(self, body: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield (its number, from 1, its position, record) of each record."""

    @abstractmethod
    def _decode_all(self, body: memoryview, decoder: Decoder) -> Iterator[list[Any]]:
        """Yield the records as `decoder` decodes them, some at a time.

        Raises:
            BadRecordError: Some record is not UTF-8, is nested too deep, or is not one JSON value.
            msgspec.DecodeError, RecursionError: Some record is no JSON, or has not the fields.
        """

    @abstractmethod
    def _n_before(self) -> int:
        """Return the number of records before the unit."""

    def texts(self, content: Bytes, array: Array) -> tuple[Bytes, Offsets]:
        from preprocess.sources.json_strings import decode_strings

        begin, end = self._body(content)
        if self.reading.text_preset:
            raise BadRecordError  # the presets are functions of Python
        decoder, values_of = _decoder(self.fields, False)
        values: list[Any] = []
        try:
            for found in self._decode_all(content[begin:end].data, decoder):
                values += values_of(found)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRecordError from error
        n = len(self.fields)
        buffer, offsets = decode_strings(values, n, array)
        if len(values) != (len(offsets) - 1) * n:
            raise BadRecordError
        return buffer, offsets

    def records(self, content: Bytes, tally: Tally) -> Iterator[Record]:
        from bpe.text.utf8 import is_utf8

        begin, end = self._body(content)
        body, policy = content[begin:end].tobytes(), self.reading.on_invalid_utf8
        all_valid = is_utf8(content[begin:end])
        for number, position, record in self._split(body):
            place = begin + position
            tally.n_records = number
            valid, n = (record, 0) if all_valid else replace_invalid(record)
            if n and policy == "error":
                raise invalid_text_error(np.frombuffer(record, np.uint8), partial(self._at, place))
            if n and policy == "skip":
                tally.n_skipped += 1
                continue
            tally.n_replaced += n
            yield Record(valid, number, self.start + place)

    def _at(self, begin: int, position: int) -> str:
        return self.byte(begin + position)

    def place(self, record: Record) -> str:
        return f"{self.noun} {self._n_before() + record.number:,} (byte {record.byte:,})"

    def values(self, data: bytes) -> Values:
        is_optional = bool(self.reading.text_preset)
        decoder, values_of = _decoder(self.fields, is_optional)
        kind = str | None if is_optional else str
        try:
            found = [*chain.from_iterable(self._decode_all(memoryview(data), decoder))]
            if len(found) != 1:
                raise BadRecordError
            return [msgspec.json.decode(value, type=kind) for value in values_of(found)]
        except (msgspec.DecodeError, RecursionError, BadRecordError) as error:
            raise BadRecordError(_describe(data, self.fields, self.noun, is_optional)) from error

    def conversation(self, data: bytes) -> Mapping[str, Any]:
        from preprocess.sources.json_strings import is_nested_deeper

        try:
            found = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadRecordError(_describe(data, (), self.noun)) from error
        is_whole = isinstance(found, dict) and found.keys() >= {*self.fields}
        if not is_whole or is_nested_deeper(data):
            raise BadRecordError(_describe(data, self.fields, self.noun))
        whole: Mapping[str, Any] = found
        return whole


class JsonSource(RecordSource):
    """One file of JSON; subclasses define `units` and `_first_records`."""

    @abstractmethod
    def _first_records(self) -> Iterator[bytes]:
        """Yield the first records, until one is an object with fields."""

    def first_names(self) -> list[str]:
        for record in self._first_records():
            try:
                value = msgspec.json.decode(record)
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                continue
            if isinstance(value, dict) and value:
                return [*value]
        return []


# Lines.


@dataclass(frozen=True)
class JsonLinesUnit(JsonUnit):
    """Whole lines of a file."""

    noun = "line"

    def n_numbers(self, content: Bytes, n_records: int) -> int:
        return content.tobytes().count(b"\n")

    def _body(self, content: Bytes) -> tuple[int, int]:
        is_marked = self.start == 0 and content[:3].tobytes() == BYTE_ORDER_MARK
        return 3 * is_marked, len(content)

    def _split(self, body: bytes) -> Iterator[tuple[int, int, bytes]]:
        position = 0
        for number, line in enumerate(body.split(b"\n"), start=1):
            if line.strip():
                yield number, position, line
            position += len(line) + 1

    def _decode_all(self, body: memoryview, decoder: Decoder) -> Iterator[list[Any]]:
        for group in _groups(body):
            _check_text(group)
            found = decoder.decode_lines(group)
            if len(found) != _n_lines(group, len(found)):
                raise BadRecordError  # several values in a line, or one in several lines
            yield found

    def _n_before(self) -> int:
        pieces = _iter_pieces(self.file, 0, self.start)
        return sum(piece.tobytes().count(b"\n") for piece in pieces)


class JsonLinesSource(JsonSource):
    """One file of JSON Lines."""

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

    def _first_records(self) -> Iterator[bytes]:
        start = 0
        for _ in range(_MAX_LINES):
            stop = self._end_of_line(start + 1)
            if stop == start:
                return
            line = self.file.read(start, stop, new_array).tobytes()
            yield line.removeprefix(BYTE_ORDER_MARK)
            start = stop


def _groups(body: memoryview) -> Iterator[memoryview]:
    """Yield lines in groups, which are decoded at a time."""
    start, n = 0, len(body)
    while start < n:
        stop = n
        for begin in range(start + _GROUP_BYTES, n, _STRIDE_BYTES):
            if (found := body[begin : begin + _STRIDE_BYTES].tobytes().find(b"\n")) >= 0:
                stop = begin + found + 1
                break
        yield body[start:stop]
        start = stop


def _n_lines(group: memoryview, n_found: int) -> int:
    """Return the number of lines with a value, of which there were `n_found`."""
    from bpe.text.search import find_all

    data = np.frombuffer(group, np.uint8)
    n = len(find_all(data, b"\n")) + int((data[-1:] != 0x0A).sum())
    if n == n_found:
        return n
    return sum(bool(line.strip()) for line in group.tobytes().split(b"\n"))  # some are blank


def _iter_pieces(file: InputFile, start: int, stop: int) -> Iterator[Bytes]:
    """Yield bytes [start, stop) of a file in pieces; less if it ends before."""
    while (end := file.clip(min(start + _STRIDE_BYTES, stop))) > start:
        yield file.read(start, end, new_array)
        start = end


# Arrays.


def open_json(file: InputFile, name: str, reading: ReadOptions) -> Source:
    """Return the source of a file that is an array, or else of JSON Lines."""
    _, bracket = _first_byte(file)
    return (JsonArraySource if bracket == b"[" else JsonLinesSource)(file, name, reading)


def _first_byte(file: InputFile) -> tuple[int, bytes]:
    """Return (position after the first byte that is not white space or a mark, that byte)."""
    start = 0
    while (stop := file.clip(start + 64)) > start:
        data = file.read(start, stop, new_array).tobytes()
        data = data.removeprefix(BYTE_ORDER_MARK) if start == 0 else data
        if left := data.lstrip(WHITE_SPACE):
            return stop - len(left) + 1, left[:1]
        start = stop
    return start, b""


@dataclass(frozen=True)
class JsonArrayUnit(JsonUnit):
    """Whole elements of an array, with what is around them."""

    is_last: bool

    noun = "element"

    def _body(self, content: Bytes) -> tuple[int, int]:
        begin = 0 if self.start else _first_byte(self.file)[0]
        if not self.is_last:
            return begin, len(content) - 1  # without the comma
        end = len(content.tobytes().rstrip(WHITE_SPACE)) - 1  # without the bracket
        elements = content[begin:end].tobytes().rstrip(WHITE_SPACE)
        if elements.endswith(b",") or (self.start and not elements):
            raise CorpusError(
                f"{self.byte(end)}: no element between the last comma and the end of the array;"
                " remove the comma"
            )
        return begin, end

    def _split(self, body: bytes) -> Iterator[tuple[int, int, bytes]]:
        from preprocess.sources.json_strings import ElementFinder

        if self.is_last and not body.strip(WHITE_SPACE):
            return  # of an array without elements
        data, start, number = np.frombuffer(body, np.uint8), 0, 1
        while (n := ElementFinder().find_end(data[start:])) >= 0 and body[start + n] == ord(","):
            yield number, start, body[start : start + n]
            start, number = start + n + 1, number + 1
        yield number, start, body[start:]

    def _decode_all(self, body: memoryview, decoder: Decoder) -> Iterator[list[Any]]:
        _check_text(body)
        if not (self.is_last or bytes(body).strip(WHITE_SPACE)):
            raise BadRecordError  # nothing before a comma
        array = msgspec.json.Decoder(list[decoder.type])  # type: ignore[name-defined]
        yield array.decode(b"[%b]" % bytes(body))

    def _n_before(self) -> int:
        number, start = 0, _first_byte(self.file)[0]
        while start < self.start:
            start, number = _end_of_element(self.file, start, start)[0], number + 1
        return number


class JsonArraySource(JsonSource):
    """One file with an array of objects."""

    def units(self, after: ResumePoint | None = None) -> Iterator[JsonArrayUnit]:
        start, is_last = after[0] if after else 0, False
        file = read_ahead(self.file)
        while not is_last:
            begin = start or _first_byte(self.file)[0]
            stop, is_last = _end_of_element(file, begin, begin + self.reading.unit_size)
            unit = self.file, self.reading_of_units, start, stop, self.fields, is_last
            yield JsonArrayUnit(*unit)
            start = stop

    def _first_records(self) -> Iterator[bytes]:
        begin = _first_byte(self.file)[0]
        end, _ = _end_of_element(self.file, begin, begin)
        first = self.file.read(begin, end, new_array).tobytes()
        yield first.rstrip(WHITE_SPACE)[:-1]  # without comma or bracket


def _end_of_element(file: InputFile, begin: int, least: int) -> tuple[int, bool]:
    """Return (position after the first comma between elements at `least` or later, False).

    If the array ends before: (the end of the file, True). `begin` is the start of an element.

    Raises:
        CorpusError: The array is not closed, or something follows it.
    """
    from preprocess.sources.json_strings import ElementFinder

    finder, start = ElementFinder(), begin
    while (end := file.clip(start + _STRIDE_OF_ARRAY)) > start:
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
    while (end := file.clip(position + _STRIDE_OF_ARRAY)) > position:
        rest = file.read(position, end, new_array).tobytes()
        if left := rest.lstrip(WHITE_SPACE):
            raise CorpusError(
                f"{file.path}: byte {end - len(left):,}: the array has ended before; expected one"
                " array in a file, remove what follows"
            )
        position = end
    return position


# Decoding.


def _check_text(body: memoryview) -> None:
    """Raise BadRecordError if records are not UTF-8, or are nested too deep for some parsers."""
    from bpe.text.utf8 import is_utf8
    from preprocess.sources.json_strings import is_nested_deeper

    # The kernels release the GIL, which lets other threads go on between groups of lines.
    if not is_utf8(np.frombuffer(body, np.uint8)) or is_nested_deeper(body):
        raise BadRecordError


@functools.lru_cache(maxsize=64)
def _decoder(
    fields: tuple[str, ...], are_optional: bool
) -> tuple[Decoder, Callable[[list[Any]], Iterable[Any]]]:
    """Return a decoder of objects, and a function that returns the JSON of the fields of all.

    The JSON of an optional field that is missing is null.
    """
    missing = (msgspec.Raw(b"null"),) if are_optional else ()
    tree: dict[str, Any] = {}
    for field in fields:
        *parents, last = field.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = msgspec.Raw
    names: dict[str, str] = {}  # key -> attribute, for keys that are no identifiers

    def struct_of(node: dict[str, Any]) -> Any:
        attributes = {key: names.setdefault(key, f"f{len(names)}") for key in node}
        types = [
            (attributes[key], kind, *missing) if kind is msgspec.Raw
            else (attributes[key], struct_of(kind))
            for key, kind in node.items()
        ]
        keys = {attribute: key for key, attribute in attributes.items()}
        return msgspec.defstruct("Record", types, rename=keys, gc=False)

    decoder = msgspec.json.Decoder(struct_of(tree))
    get = attrgetter(*(".".join(names[key] for key in field.split(".")) for field in fields))
    if len(fields) == 1:
        return decoder, functools.partial(map, get)
    return decoder, lambda records: chain.from_iterable(map(get, records))


def _describe(
    record: bytes, fields: tuple[str, ...], noun: str, are_optional: bool = False
) -> str:
    """Describe what is wrong with a record, with a remedy."""
    import json

    from preprocess.sources.json_strings import MAX_NESTING, is_nested_deeper

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    if is_nested_deeper(record):
        what = f"its values are nested too deep, more than {MAX_NESTING} levels"
        return f"{what}; correct or remove the {noun}"
    try:
        found = json.loads(record, parse_constant=refuse)
    except json.JSONDecodeError as error:
        ends = noun == "line" and error.pos >= len(error.doc.rstrip())
        hint = "; a value must be in one line (jq -c . writes it so)" * ends
        what = f"is not JSON ({error.msg} at its character {error.pos:,})"
        return f"{what}; correct or remove the {noun}{hint}"
    except ValueError as error:
        return f"is not JSON ({error}); correct or remove the {noun}"
    if not isinstance(found, dict):
        is_array = noun == "line" and isinstance(found, list)
        hint = " (--format json reads a file that is one array)" * is_array
        return f"is {_KINDS[type(found)]}, expected an object; correct or remove the {noun}{hint}"
    if record.startswith(BYTE_ORDER_MARK):
        return f"begins with a byte order mark; remove the mark, or the {noun}"
    for field in fields:
        if are_optional and found.get(field) is None:
            continue
        value: Any = found
        if "." in field and field in found:
            return f"the name {field!r} has a dot, which divides names of levels; rename the field"
        for key in field.split("."):
            if not isinstance(value, dict) or key not in value:
                why = f"its fields are {listed(found)}"
                if not isinstance(value, dict):
                    why = f"for what should have {key!r} is {_KINDS[type(value)]}"
                return (
                    f"has no field {field!r}, {why}; choose another with --content-field, or remove"
                    f" the {noun}"
                )
            value = value[key]
        if not isinstance(value, str):
            return f"field {field!r} is {_KINDS[type(value)]}, expected text; correct or remove it"
    for number in re.findall(rb"-?\d[\d.]*[eE]\+?\d+", _STRINGS.sub(b"", record)):
        if isinf(float(number)):
            return f"has the number {number.decode()}, which no float can be; correct or remove it"
    return "has the escape of a lone surrogate, which is no character; correct or remove it"


_KINDS = {
    type(None): "null", bool: "a truth value", int: "a number", float: "a number", str: "a string",
    list: "an array", dict: "an object",
}
