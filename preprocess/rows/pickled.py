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

from preprocess.rows.arrow import as_int32, check_ids
from preprocess.rows.columns import Numbers, RowBatch
from preprocess.rows.formats import RowsError
from preprocess.rows.places import AnyPath

_ROWS = 1 << 10  # that are returned at a time
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


def read_shard(path: AnyPath) -> Iterator[RowBatch]:
    """Yield the rows of a file in batches; padded ones that were written here have a mask."""
    rows, counts = load(path)
    for first in range(0, len(rows), _ROWS):
        some = rows[first : first + _ROWS]
        try:
            parts = [np.asarray(row) if len(row) else np.empty(0, np.int32) for row in some]
            if any(part.ndim != 1 or part.dtype.kind not in "iu" for part in parts):
                raise ValueError(len(parts))
        except (ValueError, TypeError) as error:
            raise _not_rows(path, "something else inside of rows") from error
        lengths = np.array([*map(len, parts)], np.int64)
        offsets = np.append(0, np.cumsum(lengths))
        parts = [as_int32(path, "input_ids", part) for part in parts]
        values = {"input_ids": np.concatenate([np.empty(0, np.int32), *parts])}
        check_ids(f"{path}:", values["input_ids"])
        if counts is not None:
            n_tokens = np.repeat(counts[first : first + _ROWS], lengths)
            places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
            is_token = np.where(
                n_tokens < 0, places >= np.repeat(lengths, lengths) + n_tokens, places < n_tokens
            )
            values["attention_mask"] = is_token.astype(np.int32)
        yield RowBatch(offsets, values)


def load(path: AnyPath) -> tuple[list[Any] | Any, Numbers | None]:
    """Load rows; anything else is refused, and nothing of it runs.

    Returns:
        (list of lists of ids, or of arrays, or an array of two dimensions;
        int64[n_rows], the number of tokens in each row, negative if padding is before them; None
        if rows are not padded).

    Raises:
        RowsError: It is no such file, or damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RowsError(f"{path}: cannot be read: {error.strerror}; check the path") from error
    rows, end = _load(path, data, 0)
    is_array = isinstance(rows, np.ndarray) and rows.ndim == 2
    if not is_array and not (
        isinstance(rows, list) and all(isinstance(row, list | np.ndarray) for row in rows)
    ):
        raise _not_rows(path, f"a {type(rows).__name__}")
    if end == len(data):
        return rows, None
    found, last = _load(path, data, end)
    lengths = np.array([*map(len, rows)], np.int64)
    is_counts = isinstance(found, list) and {*map(type, found)} == {int}
    counts = np.array(found if is_counts else [], np.int64)
    if last != len(data) or len(counts) != len(rows) or (np.abs(counts) > lengths).any():
        raise _damaged(path, "the list of padding is of other rows")
    return rows, counts


def _load(path: AnyPath, data: bytes, begin: int) -> tuple[Any, int]:
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
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
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


def _damaged(path: AnyPath, what: str) -> RowsError:
    return RowsError(
        f"{path}: is a damaged pickle ({what}); make it again, or run tokenmill verify --repair"
    )


def _not_rows(path: AnyPath, found: str) -> RowsError:
    return RowsError(f"{path}: has {found}, expected a pickled list of lists of token ids")
