"""Rows as pickled lists of lists of ids: `dump-N.pkl`.

Only ids are written. Where rows are padded, a second pickle follows in the same file, which those
who load one do not see: the list of numbers of tokens of the rows, negative for padding on the
left. Reading runs nothing: before it is loaded, each opcode of a pickle is checked, and one with
anything but lists and numbers is refused; names of NumPy's arrays stand for classes here.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import IO, Any

import numpy as np

from preprocess.locations import how_to_repair
from preprocess.rows.formats import Batches, Record, RecordFile, RowsError

# Protocol 2 has no frames, so the pickle of a list is that of its elements with a few bytes around.
_PROTOCOL = 2
# Numbers of 8, 16 and 32 bits, lists, frames, and places in the memo, which nothing reads; these
# below 2^24, for a greater one makes the memo large.
_OPCODES = rb"(?s:K.|M..|J....|[\](ae\x94]|q.|r...\x00|\x95........)*+"
_PLAIN = re.compile(rb"\x80[\x02-\x05]" + _OPCODES)
_DTYPE = re.compile("[<>=|][iu][1248]")
_NAMES = re.compile(  # of arrays, in NumPy 1 and 2
    r"numpy\.(ndarray|dtype|_?core\.(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer))"
    r"|_codecs\.encode"
)


class PickledFile(RecordFile):
    """A pickled list of rows; those that were padded here have a mask."""

    @staticmethod
    def write(
        file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int, batches: Batches
    ) -> None:
        """Write the ids of all batches as one list, without having it in memory."""
        file.write(pickle.PROTO + bytes([_PROTOCOL]) + pickle.EMPTY_LIST)
        counts = list[int]()
        for batch in batches():
            numbers = batch.values["input_ids"].tolist()
            file.write(pickle.MARK)
            for start, stop in pairwise(batch.offsets.tolist()):
                # Without the protocol in front, and STOP at the end.
                file.write(pickle.dumps(numbers[start:stop], _PROTOCOL)[2:-1])
            file.write(pickle.APPENDS)
            if "attention_mask" in columns:
                mask, starts = batch.values["attention_mask"], batch.offsets[:-1]
                n_tokens = np.add.reduceat(mask, starts)
                counts += np.where(mask[starts] > 0, n_tokens, -n_tokens).tolist()
        file.write(pickle.STOP)
        if counts:
            file.write(pickle.dumps(counts, _PROTOCOL))

    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the rows from a number on."""
        try:
            with self.open() as file:
                rows, counts = _load(file.read())
        except _RefusedError as error:
            repair = how_to_repair(str(self.path))
            raise RowsError(
                f"{self.path}: {error}; if it should be rows, make it again, or run tokenmill"
                f" {repair}"
            ) from None
        except Exception as error:
            raise self.damaged("a pickle", error) from error
        for ids, n_tokens in zip(rows[first:], counts[first:], strict=True):
            record = {"input_ids": ids}
            if n_tokens is not None:
                mask = record["attention_mask"] = np.zeros(len(ids), np.int32)
                mask[:n_tokens], mask[len(ids) + n_tokens :] = n_tokens > 0, n_tokens < 0
            yield record


class _RefusedError(Exception):
    """A pickle has something else than rows; the message says what."""


def _load(data: bytes) -> tuple[list[Any], list[int | None]]:
    """Load rows; anything else is refused, and nothing of it runs.

    Returns:
        (ids of each row: integer[n], the number of tokens in each, negative if padding is before
        them, None if rows are not padded).
    """
    found, end = _load_one(data, 0)
    is_array = isinstance(found, np.ndarray) and found.ndim == 2
    if not is_array and not isinstance(found, list):
        raise _not_rows(f"a {type(found).__name__}")
    rows = [*map(_ids_of, found)]
    if end == len(data):
        return rows, [None] * len(rows)
    counts, last = _load_one(data, end)
    is_list = isinstance(counts, list) and {*map(type, counts)} == {int} and last == len(data)
    if not is_list or len(counts) != len(rows) or any(
        abs(count) > len(row) for count, row in zip(counts, rows, strict=True)
    ):
        raise ValueError("the list of padding is of other rows")
    return rows, counts


def _ids_of(row: Any) -> Any:
    """Return a row as integer[n]."""
    if isinstance(row, list) and {*map(type, row)} <= {int}:
        return np.array(row, np.int64)
    if not isinstance(row, np.ndarray) or row.ndim != 1:
        raise _not_rows(f"{type(row).__name__}, or something else, inside of rows")
    return row


def _load_one(data: bytes, begin: int) -> tuple[Any, int]:
    """Return (content of the pickle that begins at a byte, where it ends)."""
    match = _PLAIN.match(data, begin)
    place = begin if match is None else match.end()
    if data[place : place + 1] == pickle.STOP:
        return pickle.loads(memoryview(data)[begin : place + 1]), place + 1
    if b"numpy" in data:
        stream = io.BytesIO(data)
        stream.seek(begin)
        return _plain(_Reader(stream).load()), stream.tell()
    raise _RefusedError(
        f"byte {place:,} is {data[place : place + 1]!r}, which is in no pickle of lists of numbers;"
        " it is refused, for a pickle may run any program when it is loaded"
    )


class _Noted:
    """A call that a pickle asks for: noted, not made; `state` is what it gives to the result."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name, self.arguments, self.state = name, arguments, [None] * 5

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle._Unpickler):
    """The one in Python, for places in the memo take no memory there."""

    def find_class(self, module: str, name: str) -> Any:
        if not _NAMES.fullmatch(f"{module}.{name}"):
            raise _RefusedError(
                f"names {module}.{name}, which is in no pickle of rows; it is refused, for a pickle"
                " may run any program when it is loaded"
            )
        return partial(_Noted, name)


def _plain(value: Any) -> Any:
    """Return what a noted call would make, if it is an array or a number of NumPy."""
    if isinstance(value, list):
        return [*map(_plain, value)]
    if not isinstance(value, _Noted):
        return value
    shape: Any = ()
    order: Any = "C"
    if value.name == "scalar":
        kind, content = value.arguments
    elif value.name == "_frombuffer":
        content, kind, shape, order = value.arguments
    else:
        _, shape, kind, is_fortran, content = value.state
        order = "F" if is_fortran else "C"
    dtype = f"{kind.state[1] or '='}{kind.arguments[0]}"
    if not _DTYPE.fullmatch(dtype):
        raise _not_rows(f"arrays of {dtype}")
    if isinstance(content, _Noted):  # bytes, in protocol 2
        content = content.arguments[0].encode("latin1")
    found = np.frombuffer(content, dtype).reshape(shape, order=order)
    return found if found.ndim else int(found)


def _not_rows(found: str) -> _RefusedError:
    return _RefusedError(f"has {found}, expected a pickled list of lists of token ids")
