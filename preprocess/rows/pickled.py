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
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from preprocess.rows.columns import RowBatch
from preprocess.rows.formats import Record, RowsError, WholeFile, damaged
from preprocess.rows.places import AnyPath

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


def write_shard(
    file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int,
    batches: Callable[[], Iterable[RowBatch]],
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


class File(WholeFile):
    """A pickled list of rows; those that were padded here have a mask."""

    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the rows from a number on."""
        rows, counts = _load(self.path)
        for index in range(first, len(rows)):
            ids = _ids_of(self.path, rows[index])
            record = {"input_ids": ids}
            if counts:
                n_tokens, n = counts[index], len(ids)
                record["attention_mask"] = np.zeros(n, np.int32)
                record["attention_mask"][: n_tokens] = n_tokens > 0
                record["attention_mask"][n + n_tokens :] = n_tokens < 0
            yield record


def _ids_of(path: AnyPath, row: Any) -> npt.NDArray[np.integer[Any]]:
    """Return the ids of a row; raise RowsError if they are none."""
    try:
        ids = np.asarray(row) if len(row) else np.empty(0, np.int32)
    except (ValueError, TypeError):
        ids = np.empty((0, 0))
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise _not_rows(path, "something else inside of rows")
    return ids


def _load(path: AnyPath) -> tuple[list[Any] | Any, list[int]]:
    """Load rows; anything else is refused, and nothing of it runs.

    Returns:
        (list of lists of ids, or of arrays, or an array of two dimensions;
        the number of tokens in each row, negative if padding is before them; none if rows are not
        padded).

    Raises:
        RowsError: It is no such file, or damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise damaged(path, "a pickle", error) from error
    rows, end = _load_one(path, data, 0)
    is_array = isinstance(rows, np.ndarray) and rows.ndim == 2
    is_list = isinstance(rows, list) and all(isinstance(row, list | np.ndarray) for row in rows)
    if not is_array and not is_list:
        raise _not_rows(path, f"a {type(rows).__name__}")
    if end == len(data):
        return rows, []
    counts, last = _load_one(path, data, end)
    is_of_rows = isinstance(counts, list) and {*map(type, counts)} == {int} and last == len(data)
    if not is_of_rows or len(counts) != len(rows) or any(
        abs(count) > len(row) for count, row in zip(counts, rows, strict=True)
    ):
        raise damaged(path, "a pickle", "the list of padding is of other rows")
    return rows, counts


def _load_one(path: AnyPath, data: bytes, begin: int) -> tuple[Any, int]:
    """Return (content of the pickle that begins at a byte, where it ends)."""
    match = _PLAIN.match(data, begin)
    place = begin if match is None else match.end()
    try:
        if data[place : place + 1] == pickle.STOP:
            return pickle.loads(memoryview(data)[begin : place + 1]), place + 1
        if b"numpy" in data:
            return _load_arrays(path, data, begin)
    except RowsError:
        raise
    except Exception as error:
        raise damaged(path, "a pickle", error) from error
    raise RowsError(
        f"{path}: byte {place:,} is {data[place : place + 1]!r}, which is in no pickle of lists of"
        " numbers; it is refused, for a pickle may run any program when it is loaded. If it should"
        " be rows, make it again, or run tokenmill verify --repair"
    )


class _Noted:
    """A call that a pickle asks for: noted, not made; `state` is what it gives to the result."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name, self.arguments, self.state = name, arguments, [None] * 5

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _load_arrays(path: AnyPath, data: bytes, begin: int) -> tuple[Any, int]:
    """Return (content of a pickle with arrays, where it ends)."""

    # The one in Python, for places in the memo take no memory there.
    class Reader(pickle._Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if not _NAMES.fullmatch(f"{module}.{name}"):
                raise RowsError(
                    f"{path}: names {module}.{name}, which is in no pickle of rows; it is refused,"
                    " for a pickle may run any program when it is loaded"
                )
            return partial(_Noted, name)

    def plain(value: Any) -> Any:
        """Return what a noted call would make, if it is an array or a number of NumPy."""
        if isinstance(value, list):
            return [*map(plain, value)]
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
            raise _not_rows(path, f"arrays of {dtype}")
        if isinstance(content, _Noted):  # bytes, in protocol 2
            content = content.arguments[0].encode("latin1")
        found = np.frombuffer(content, dtype).reshape(shape, order=order)
        return found if found.ndim else int(found)

    stream = io.BytesIO(data)
    stream.seek(begin)
    return plain(Reader(stream).load()), stream.tell()


def _not_rows(path: AnyPath, found: str) -> RowsError:
    return RowsError(f"{path}: has {found}, expected a pickled list of lists of token ids")
