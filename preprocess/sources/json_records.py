"""Records of JSON: decode the fields with the text, and describe bad records.

Base of the units of JSON formats. Only the fields with the text are decoded; of a repeated key the
last value counts. A bad record is an error that names file, record, byte and reason.
"""

from __future__ import annotations

import functools
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import isinf
from operator import attrgetter
from typing import Any, ClassVar

import msgspec
import numpy as np
from msgspec import structs

from bpe.errors import CorpusError, listed
from bpe.text_file import InputFile, new_array
from preprocess.documents.batch import (
    Bytes,
    DocumentBatch,
    Offsets,
    ReadOptions,
    Rejected,
    invalid_text_error,
    prepare,
    replace_invalid,
)
from preprocess.documents.conversations import KINDS, BadConversationError
from preprocess.sources.base import DECOMPRESSED, Array, FileUnit
from preprocess.sources.fields import PRESETS, join_documents

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
WHITE_SPACE = b" \t\r\n"

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_TEXT, _TEXT_OR_NULL = (b'"',), (b'"', b"n")  # first bytes of values

Decoder = msgspec.json.Decoder[Any]


class _BadRecordError(Exception):
    """Some record of a unit is bad."""


@dataclass(frozen=True)
class JsonUnit(FileUnit):
    """Whole records of a file; `fields` are the dotted names of the fields with the text."""

    fields: tuple[str, ...]

    record: ClassVar[str]  # noun, for messages
    separator: ClassVar[bytes]  # of records

    @property
    def is_rendered(self) -> bool:
        return self.reading.chat != "off"

    @abstractmethod
    def _body(self, content: Bytes) -> tuple[int, int]:
        """Return [begin, end) of the records in the content; raise CorpusError."""

    @abstractmethod
    def _groups(self, body: memoryview) -> Iterator[memoryview]:
        """Yield the records in groups, which are decoded at a time."""

    @abstractmethod
    def _records(self, body: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (position, record) of each record."""

    @abstractmethod
    def _n_records(self, group: memoryview, n_found: int) -> int:
        """Return the number of records in a group, of which `n_found` values were decoded."""

    @abstractmethod
    def _n_places(self, body: memoryview, n_records: int) -> int:
        """Return by how much the numbers of records rise from this unit to the next."""

    @abstractmethod
    def _n_before(self) -> int:
        """Return the number of records before the unit."""

    @abstractmethod
    def _decode(self, decoder: Decoder, group: Any) -> list[Any]:
        """Decode a group of records."""

    def read(self, array: Array = new_array) -> DocumentBatch:
        content = self.content(array)
        begin, end = self._body(content)
        body, rejected = content[begin:end].data, list[Rejected]()
        if self.is_rendered:
            return self._read_chats(body.tobytes(), begin, content)
        try:
            values, n_skipped, n_replaced = self._decode_all(body, content)
            buffer, offsets = self._join(values, array)
        except _BadRecordError:
            values, n_skipped, n_replaced = self._decode_each(body.tobytes(), begin, rejected)
            buffer, offsets = self._join(values, array)
        batch = DocumentBatch(buffer, np.repeat(offsets, 2)[1:-1], content=content)
        prepared = prepare(batch, self.reading, self.byte)
        n_records = 0
        if self.reading.skip_bad_records:
            n_records = self._n_places(body, len(offsets) - 1 + n_skipped + len(rejected))
        return structs.replace(
            prepared, n_skipped=n_skipped, n_replaced=n_replaced, rejected=tuple(rejected),
            n_records=n_records,
        )

    def _read_chats(self, body: bytes, begin: int, content: Bytes) -> DocumentBatch:
        """Return the conversations of all records; `body` begins at byte `begin` of the unit."""
        from bpe.text.utf8 import is_utf8
        from preprocess.sources.chats import batch_of

        rejected, rendered, reading = list[Rejected](), list[Any](), self.reading
        n_skipped = n_replaced = number = 0
        all_valid = is_utf8(np.frombuffer(body, np.uint8))
        for number, (position, record) in enumerate(self._records(body), start=1):
            if self.separator == b"\n" and not record.strip():
                continue
            byte = self.start + begin + position
            valid, n = (record, 0) if all_valid else replace_invalid(record)
            if n and reading.on_invalid_utf8 == "error":
                within = np.frombuffer(record, np.uint8)
                raise invalid_text_error(within, partial(self._byte_after, byte))
            if n and reading.on_invalid_utf8 == "skip":
                n_skipped += 1
                continue
            n_replaced += n
            try:
                rendered.append(self._render(valid))
            except BadConversationError as error:
                if not reading.skip_bad_records:
                    place = f"{self.record} {self._n_before() + number:,} (byte {byte:,})"
                    raise CorpusError(f"{self.file.path}: {place}: {error}") from error
                rejected.append(Rejected(shown_path(self.file), number, byte, str(error)))
        batch = batch_of(rendered, content)
        # White space around messages is theirs.
        prepared = prepare(batch, structs.replace(reading, strip=False), self.byte)
        n_records = self._n_places(memoryview(body), number) if reading.skip_bad_records else 0
        return structs.replace(
            prepared, n_skipped=n_skipped, n_replaced=n_replaced, rejected=tuple(rejected),
            n_records=n_records,
        )

    def _render(self, record: bytes) -> Any:
        """Render the conversation in a record, which is UTF-8; raise BadConversationError."""
        from preprocess.sources.chats import render_record
        from preprocess.sources.json_strings import is_nested_deeper

        fields = KINDS[self.reading.chat]
        try:
            found = msgspec.json.decode(record)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadConversationError(_describe(record, (), self.record)) from error
        if not isinstance(found, dict) or not found.keys() >= {*fields} or is_nested_deeper(record):
            raise BadConversationError(_describe(record, fields, self.record))
        return render_record(found, self.reading)

    def _decode_all(self, body: memoryview, content: Bytes) -> tuple[list[Any], int, int]:
        """Return (JSON of the fields of all records, n_skipped, n_replaced).

        Raises:
            _BadRecordError: Some record is bad.
        """
        from bpe.text.utf8 import is_utf8
        from preprocess.sources.json_strings import is_nested_deeper

        decoder, values_of = _decoder(self.fields, bool(self.reading.text_preset))
        values: list[Any] = []
        n_skipped = n_replaced = 0
        for group in self._groups(body):
            # The kernel releases the GIL, which lets other threads go on between two groups.
            if not is_utf8(np.frombuffer(group, np.uint8)):
                group, skipped, replaced = self._clean(group, content)
                n_skipped, n_replaced = n_skipped + skipped, n_replaced + replaced
            try:
                found = self._decode(decoder, group)
            except (msgspec.DecodeError, RecursionError) as error:
                raise _BadRecordError from error
            if len(found) != self._n_records(memoryview(group), len(found)):
                raise _BadRecordError  # several values in a line, or one in several lines
            if is_nested_deeper(group):
                raise _BadRecordError
            values += values_of(found)
        return values, n_skipped, n_replaced

    def _join(self, values: list[Any], array: Array) -> tuple[Bytes, Offsets]:
        """Return the texts of all records, and their offsets; raise _BadRecordError."""
        from preprocess.sources.json_strings import decode_strings

        n = len(self.fields)
        if not self.reading.text_preset:
            buffer, offsets = decode_strings(values, n, array)
            if len(values) != (len(offsets) - 1) * n:
                raise _BadRecordError
            return buffer, offsets
        join = PRESETS[self.reading.text_preset].join
        try:
            texts = [msgspec.json.decode(value, type=str | None) for value in values]
        except msgspec.ValidationError as error:
            raise _BadRecordError from error
        return join_documents(join(texts[i : i + n]) for i in range(0, len(texts), n))

    def _byte_after(self, begin: int, position: int) -> str:
        return f"{self.file.path}: byte {begin + position:,}"

    def _decode_each(
        self, body: bytes, begin: int, rejected: list[Rejected]
    ) -> tuple[list[Any], int, int]:
        """Decode one record after another, as `_decode_all`; bad ones are added to `rejected`.

        `body` begins at byte `begin` of the unit.

        Raises:
            CorpusError: A record is bad, and bad records are errors.
        """
        from preprocess.sources.json_strings import is_nested_deeper

        has_preset = bool(self.reading.text_preset)
        decoder, values_of = _decoder(self.fields, has_preset)
        kinds = _TEXT_OR_NULL if has_preset else _TEXT
        values: list[Any] = []
        n_skipped = n_replaced = 0
        for number, (position, record) in enumerate(self._records(body), start=1):
            valid, n = replace_invalid(record)
            byte = self.start + begin + position
            if n and self.reading.on_invalid_utf8 == "error":
                within = np.frombuffer(record, np.uint8)
                raise invalid_text_error(within, partial(self._byte_after, byte))
            if n and self.reading.on_invalid_utf8 == "skip":
                n_skipped += 1
                continue
            n_replaced += n
            try:
                found = self._decode(decoder, valid)
                own = [bytes(value) for value in values_of(found)]
                is_bad = any(value[:1] not in kinds for value in own)
                # Lines may be blank.
                is_bad |= len(found) > 1 or (not found and self.separator == b",")
                is_bad |= is_nested_deeper(valid)
            except (msgspec.DecodeError, RecursionError):
                is_bad = True
            if not is_bad:
                values += own
                continue
            reason = _describe(valid, self.fields, self.record, has_preset)
            if not self.reading.skip_bad_records:
                place = f"{self.record} {self._n_before() + number:,} (byte {byte:,})"
                raise CorpusError(f"{self.file.path}: {place}: {reason}")
            rejected.append(Rejected(shown_path(self.file), number, byte, reason))
        return values, n_skipped, n_replaced

    def _clean(self, group: memoryview, content: Bytes) -> tuple[Any, int, int]:
        """Return (records with invalid UTF-8 replaced or left out, n_skipped, n_replaced)."""
        from bpe.text.utf8 import is_utf8

        if self.reading.on_invalid_utf8 == "error":
            raise invalid_text_error(content, self.byte)
        data = group.tobytes()
        if self.reading.on_invalid_utf8 == "replace":
            replaced, n_replaced = replace_invalid(data)
            return replaced, 0, n_replaced
        given = [record for _, record in self._records(data)]
        valid = [record for record in given if is_utf8(np.frombuffer(record, np.uint8))]
        return self.separator.join(valid), len(given) - len(valid), 0


def choose_json_fields(
    file: InputFile, record: bytes, reading: ReadOptions
) -> tuple[ReadOptions, tuple[str, ...]] | None:
    """Choose what is read, as `chats.choose_fields`; None if a record is no object with fields."""
    from preprocess.sources.chats import choose_fields

    try:
        value = msgspec.json.decode(record)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return choose_fields(file.path, value, reading) if isinstance(value, dict) and value else None


def shown_path(file: InputFile) -> str:
    """Return the path of a file as text, also if it is not UTF-8."""
    path = str(file.path).removesuffix(DECOMPRESSED)
    return os.fsencode(path).decode("utf-8", "backslashreplace")


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
