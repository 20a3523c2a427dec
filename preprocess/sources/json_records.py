r"""JSON Lines, and JSON files that are one array of objects.

A unit of lines is a range of whole lines; blank ones are ignored, and so is a byte order mark. A
unit of an array is a range of whole elements and the comma after them; the first one has the
bracket before them, too, and the last one the bracket after them. So documents are never divided.

Only the fields that are read are decoded; of a repeated key the last value counts.
"""

from __future__ import annotations

import functools
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from itertools import chain, islice
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
from msgspec import structs

from bpe.errors import CorpusError, listed
from preprocess.documents.batch import ReadOptions, invalid_text_error, replace_invalid
from preprocess.sources.base import ResumePoint, Source, WorkUnit
from preprocess.sources.records import (
    BadRecordError,
    Record,
    RecordSource,
    RecordUnit,
    Tally,
    Texts,
    Values,
    join_preset,
    join_texts,
)
from preprocess.sources.remote import read_ahead
from preprocess.sources.text_file import Array, Bytes, InputFile

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
WHITE_SPACE = b" \t\r\n"

_LINE_STRIDE = 64 * 1024  # read at a time to find the end of a line
_ELEMENT_STRIDE = 1024 * 1024  # read at a time to find the end of an element
_MAX_UNITS = 16  # read to find the first object

Decoded = TypeVar("Decoded")
Decoder = msgspec.json.Decoder[Any]
_decode_object: Callable[[Any], dict[str, Any]] = msgspec.json.Decoder(dict[str, Any]).decode
_decode_text: Callable[[Any], str] = msgspec.json.Decoder(str).decode
_decode_names: Callable[[Any], dict[str, Any]] = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class JsonUnit(RecordUnit, frozen=True):
    """Whole records of a file of JSON."""

    noun: ClassVar[str]  # for messages

    @abstractmethod
    def _split(self, content: Bytes) -> Iterator[tuple[int, int, memoryview]]:
        """Yield (its number, from 1, its position, record) of each record; raise CorpusError."""

    @abstractmethod
    def _n_before(self) -> int:
        """Return the number of records before the unit."""

    def records(self, content: Bytes, tally: Tally) -> Iterator[Record]:
        from bpe.text.utf8 import is_utf8

        policy = "" if is_utf8(content) else self.reading.on_invalid_utf8
        for number, position, record in self._split(content):
            data, n = replace_invalid(bytes(record)) if policy else (bytes(record), 0)
            if n and policy == "error":
                raise invalid_text_error(content, self.byte)  # the first of the unit
            if n and policy == "skip":
                tally.n_skipped += 1
                continue
            tally.n_replaced += n
            yield Record(data, number, self.start + position)

    def place(self, record: Record) -> str:
        return f"{self.noun} {self._n_before() + record.number:,} (byte {record.byte:,})"

    def values(self, data: bytes) -> Values:
        is_preset = bool(self.reading.text_preset)
        # Of a repeated key only the last value has to be text, as in `_texts`.
        decoder, fields = _decoder(self.fields, str | None if is_preset else msgspec.Raw)
        found = self._decoded(data, decoder.decode)
        values = [get(found) for get in fields]
        if not is_preset:
            named = zip(self.fields, values, strict=True)
            values = [self._decoded(bytes(y), _decode_text, f" - at `$.{x}`") for x, y in named]
        return [value if value is None else value.encode() for value in values]

    def _texts(
        self, content: Bytes, array: Array, decode: Callable[[Decoder], list[Any]]
    ) -> Texts | None:
        """Return the texts of the records that `decode` decodes; None: some may be bad."""
        from bpe.text.utf8 import is_utf8
        from preprocess.sources.json_kernels import decode_strings, is_nested_deeper

        # The depth is right if all records are good; of others decoding fails.
        if not is_utf8(content) or is_nested_deeper(content.data):
            return None
        is_preset = bool(self.reading.text_preset)
        decoder, fields = _decoder(self.fields, str | None if is_preset else msgspec.Raw)
        try:
            found = decode(decoder)
            rows = zip(*(map(get, found) for get in fields), strict=True)
            if is_preset:
                return join_texts([join_preset(row).encode() for row in rows])
        except (msgspec.DecodeError, RecursionError):
            return None
        return decode_strings(chain.from_iterable(rows), len(fields), array)

    def conversation(self, data: bytes) -> Mapping[str, Any]:
        found = self._decoded(data, _decode_object)
        if missing := [field for field in self.fields if field not in found]:
            raise BadRecordError(
                f"has no field {missing[0]!r}, its fields are {listed(found)}; choose another with"
                f" --content-field, or remove the {self.noun}"
            )
        return found

    def _decoded(self, data: bytes, decode: Callable[[Any], Decoded], where: str = "") -> Decoded:
        """Decode a record, or the value in it that is `where`; raise BadRecordError."""
        from preprocess.sources.json_kernels import is_nested_deeper

        remedy = f"correct or remove the {self.noun}"
        # Each by itself: where one ends is not known of a bad one.
        if is_nested_deeper(data):
            raise BadRecordError(f"its values are nested too deep; {remedy}")
        try:
            return decode(data)
        except msgspec.ValidationError as error:
            if self.noun == "line" and not where and data[:1] == b"[":
                remedy += " (--format json reads a file that is one array)"
            names = _names_in(data) if "missing" in str(error) else ""
            raise BadRecordError(
                f"lacks the field that is read ({error}{where}{names}); choose another with"
                f" --content-field, or {remedy}"
            ) from error
        except msgspec.DecodeError as error:
            found = str(error)
            if data[: len(BYTE_ORDER_MARK)] == BYTE_ORDER_MARK:
                found = f"begins with a byte order mark; remove the mark, or the {self.noun}"
                raise BadRecordError(found) from error
            if rb"\u" in data:
                found += ", which may be the escape of a lone surrogate"
            elif self.noun == "line" and "truncated" in found:
                remedy += "; a value must be in one line (jq -c . writes it so)"
            raise BadRecordError(f"is not JSON ({found}); {remedy}") from error


def _names_in(data: bytes) -> str:
    """Return a part of a message that says which fields a record has, if it is an object."""
    try:
        names = [*_decode_names(data)]
    except msgspec.DecodeError:
        return ""
    hint = ", where a dot divides the names of levels" * any("." in name for name in names)
    return f"; its fields are {listed(names)}{hint}"


class JsonSource(RecordSource):
    """One file of JSON; subclasses define `units`."""

    def first_names(self) -> list[str]:
        probe = copy(self)
        probe.fields, probe.reading = (), structs.replace(self.reading, unit_size=_LINE_STRIDE)
        for unit in islice(probe.units(), _MAX_UNITS):
            assert isinstance(unit, JsonUnit)
            for _, _, record in unit._split(unit.content()):
                try:
                    if names := [*_decode_names(record)]:
                        return names
                except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                    continue
        return []


# Lines.


class JsonLinesUnit(JsonUnit, frozen=True):
    """Whole lines of a file."""

    noun, mark = "line", b"\n"

    def _split(self, content: Bytes) -> Iterator[tuple[int, int, memoryview]]:
        from bpe.text.search import find_all

        start, data = self._begin(content), content.data
        for number, end in enumerate([*find_all(content, b"\n").tolist(), len(data)], start=1):
            line = data[start:end]
            if end > start and not (line[0] <= ord(" ") and bytes(line).isspace()):
                yield number, start, line
            start = end + 1

    def texts(self, content: Bytes, array: Array) -> Texts | None:
        from bpe.text.search import find_all

        body = content[self._begin(content) :]
        ends = find_all(body, b"\n")
        if len(body) and body[-1] != ord("\n"):
            ends = np.append(ends, len(body))
        begins = np.append(0, ends + 1)[:-1]
        if (body[begins] != ord("{")).any():
            return None
        # A brace after the brace at the end of a line begins a value.
        last = np.where(body[ends - 1] == ord("\r"), body[ends - 2], body[ends - 1])
        if (last != ord("}")).any():
            return None
        found = self._texts(body, array, lambda decoder: decoder.decode_lines(body.data))
        return None if found is None or len(found[1]) != len(ends) + 1 else found

    def n_numbers(self, content: Bytes) -> int:
        return content.tobytes().count(b"\n")

    def _begin(self, content: Bytes) -> int:
        mark = len(BYTE_ORDER_MARK)
        return mark if self.start == 0 and content.data[:mark] == BYTE_ORDER_MARK else 0

    def _n_before(self) -> int:
        pieces = self.file.pieces(0, self.start, _LINE_STRIDE)
        return sum(piece.tobytes().count(self.mark) for _, piece in pieces)


class JsonLinesSource(JsonSource):
    """One file of JSON Lines; of a subclass, of other records that end with a mark."""

    end_mark = b"\n"

    def unit(self, start: int, stop: int) -> WorkUnit:
        """Return the unit of bytes [start, stop)."""
        return JsonLinesUnit(self.file, self.reading_of_units, start, stop, self.fields)

    def units(self, after: ResumePoint | None = None) -> Iterator[WorkUnit]:
        # A file of zero bytes is one unit of zero bytes.
        start = after[0] if after else self.begin
        while True:
            stop = self._end_of_line(start + self.reading.unit_size)
            yield self.unit(start, stop)
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
        for start, piece in self.file.pieces(position - 1, sys.maxsize, _LINE_STRIDE):
            if (found := piece.tobytes().find(self.end_mark)) >= 0:
                return start + found + 1
        return self.file.clip(sys.maxsize)


# Arrays.


def open_json(file: InputFile, name: str, reading: ReadOptions) -> Source:
    """Return the source of a file that is an array, or else of JSON Lines."""
    _, bracket = _first_byte(file)
    return (JsonArraySource if bracket == b"[" else JsonLinesSource)(file, name, reading)


def _first_byte(file: InputFile, start: int = 0) -> tuple[int, bytes]:
    """Return (position after the first byte that is no white space, that byte) from `start` on.

    A byte order mark at the start is none, either. (the end of the file, b"") if there is none.
    """
    for begin, piece in file.pieces(start, sys.maxsize, _LINE_STRIDE):
        data = piece.tobytes()
        data = data.removeprefix(BYTE_ORDER_MARK) if begin == 0 else data
        if left := data.lstrip(WHITE_SPACE):
            return begin + len(piece) - len(left) + 1, left[:1]
    return file.clip(sys.maxsize), b""


class JsonArrayUnit(JsonUnit, frozen=True):
    """Whole elements of an array, with what is around them."""

    noun = "element"

    def texts(self, content: Bytes, array: Array) -> Texts | None:
        begin = _first_byte(self.file)[0] if self.start == 0 else 0
        body = content[begin:].tobytes().rstrip(WHITE_SPACE)[:-1]  # without comma or bracket
        if not body.strip(WHITE_SPACE):
            return None

        def decode(decoder: Decoder) -> list[Any]:
            # A type that is made when the fields are known.
            kind = list[decoder.type]  # type: ignore[name-defined]
            return msgspec.json.decode(b"[%b]" % body, type=kind)

        return self._texts(np.frombuffer(body, np.uint8), array, decode)

    def _split(self, content: Bytes) -> Iterator[tuple[int, int, memoryview]]:
        from preprocess.sources.json_kernels import find_end, new_state

        start, number = _first_byte(self.file)[0] if self.start == 0 else 0, 1
        end = len(content) - 1  # without the comma
        if self.after is None:
            end = len(content.tobytes().rstrip(WHITE_SPACE)) - 1  # without the bracket
            elements = content[start:end].tobytes().rstrip(WHITE_SPACE)
            if elements.endswith(b",") or (self.start and not elements):
                raise CorpusError(
                    f"{self.byte(end)}: no element between the last comma and the end of the"
                    " array; remove the comma"
                )
            if not elements:
                return
        while start <= end:
            n = find_end(content[start:end], 0, new_state())
            stop = end if n < 0 else start + n
            yield number, start, content.data[start:stop]
            start, number = stop + 1, number + 1

    def n_numbers(self, content: Bytes) -> int:
        return sum(1 for _ in self._split(content))

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
            yield JsonArrayUnit(self.file, self.reading_of_units, start, stop, self.fields)
            start = stop


def _end_of_element(file: InputFile, begin: int, least: int) -> tuple[int, bool]:
    """Return (position after the first comma between elements at `least` or later, False).

    If the array ends before: (the end of the file, True). `begin` is the start of an element.

    Raises:
        CorpusError: The array is not closed, or something follows it.
    """
    from preprocess.sources.json_kernels import find_end, new_state

    state = new_state()
    for start, part in file.pieces(begin, sys.maxsize, _ELEMENT_STRIDE):
        found = find_end(part, least - start, state)
        place = start + found
        if found < 0:
            continue
        if part[found] == ord(","):
            return place + 1, False
        if part[found] == ord("}"):
            raise CorpusError(
                f"{file.path}: byte {place:,}: this brace closes nothing; correct it"
            )
        after, following = _first_byte(file, place + 1)
        if following:
            raise CorpusError(
                f"{file.path}: byte {after - 1:,}: the array has ended before; expected one"
                " array in a file, remove what follows"
            )
        return after, True
    raise CorpusError(
        f"{file.path}: the array is not closed at byte {file.clip(sys.maxsize):,}, the end of the"
        f" file, so it is truncated, or an element from byte {begin:,} on is not closed; get the"
        " file again, or correct it"
    )


# Decoding.


@functools.lru_cache(maxsize=64)
def _decoder(
    fields: tuple[str, ...], kind: Any
) -> tuple[Decoder, list[Callable[[Any], Any]]]:
    """Return a decoder of records, and for each field what returns it of a decoded record.

    Fields of the kind `str | None` may be missing, or null.
    """
    default = () if kind is msgspec.Raw else (None,)
    tree: dict[str, Any] = {}
    for field in fields:
        *parents, last = field.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = kind
    names: dict[str, str] = {}  # key -> attribute, for keys that are no identifiers

    def struct_of(node: dict[str, Any]) -> Any:
        attributes = {key: names.setdefault(key, f"f{len(names)}") for key in node}
        types = [
            (attributes[key], struct_of(each)) if isinstance(each, dict)
            else (attributes[key], kind, *default)
            for key, each in node.items()
        ]
        keys = {attribute: key for key, attribute in attributes.items()}
        return msgspec.defstruct("Record", types, rename=keys, gc=False)

    decoder: Decoder = msgspec.json.Decoder(struct_of(tree))
    return decoder, [attrgetter(".".join(names[x] for x in field.split("."))) for field in fields]
