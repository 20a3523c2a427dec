"""Rows as pickled lists of lists of ids: `dump-N.pkl`.

Only ids are written. Where rows are padded, a second pickle follows in the same file, which those
who load one do not see: the list of [begin, end) of the tokens of each row. Reading runs nothing:
before it is loaded, each opcode of a pickle is checked, and one with anything but lists and numbers
is refused; names of NumPy's arrays stand for classes here.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np

from preprocess.rows.arrow import as_int32
from preprocess.rows.columns import Numbers, RowBatch, Values
from preprocess.rows.formats import RowsError

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
    spans = list[Numbers]()

    def ids() -> Iterator[tuple[Values, Numbers]]:
        for batch in batches():
            yield batch.values["input_ids"], batch.offsets
            if "attention_mask" in columns:
                spans.append(_spans_of(batch))

    _write_lists(file, ids())
    if spans:
        bounds = np.concatenate(spans)
        _write_lists(file, [(bounds.reshape(-1), 2 * np.arange(len(bounds) + 1))])


def _write_lists(file: IO[bytes], parts: Iterable[tuple[Numbers | Values, Numbers]]) -> None:
    """Write the pickle of a list of lists; parts are (values, offsets) of some lists."""
    file.write(pickle.PROTO + bytes([_PROTOCOL]) + pickle.EMPTY_LIST)
    for values, offsets in parts:
        numbers = values.tolist()
        file.write(pickle.MARK)
        for start, stop in pairwise(offsets.tolist()):
            # Without the protocol in front, and STOP at the end.
            file.write(pickle.dumps(numbers[start:stop], _PROTOCOL)[2:-1])
        file.write(pickle.APPENDS)
    file.write(pickle.STOP)


def _spans_of(batch: RowBatch) -> Numbers:
    """Return [begin, end) of the tokens in each padded row: int64[n_rows, 2]."""
    mask, starts = batch.values["attention_mask"], batch.offsets[:-1]
    counts = np.add.reduceat(mask, starts, dtype=np.int64)
    begins = np.where(mask[starts] > 0, 0, np.diff(batch.offsets) - counts)
    return np.stack([begins, begins + counts], axis=1)


def read_shard(path: Path) -> Iterator[RowBatch]:
    """Yield the rows of a file in batches; padded ones that were written here have a mask."""
    rows, spans = load(path)
    for first in range(0, len(rows), _ROWS):
        some = rows[first : first + _ROWS]
        try:
            parts = [np.asarray(row) if len(row) else np.empty(0, np.int32) for row in some]
            if any(part.ndim != 1 or part.dtype.kind not in "iu" for part in parts):
                raise ValueError(len(parts))
        except (ValueError, TypeError) as error:
            raise _not_rows(path, "something else inside of rows") from error
        offsets = np.append(0, np.cumsum([*map(len, parts)])).astype(np.int64)
        parts = [as_int32(path, "input_ids", part) for part in parts]
        values = {"input_ids": np.concatenate([np.empty(0, np.int32), *parts])}
        if spans is not None:
            bounds = spans[first : first + _ROWS] + offsets[:-1, None]
            places = np.arange(offsets[-1])
            begins, ends = np.repeat(bounds, np.diff(offsets), axis=0).T
            values["attention_mask"] = ((begins <= places) & (places < ends)).astype(np.int32)
        yield RowBatch(offsets, values)


def load(path: Path) -> tuple[list[Any] | Any, Numbers | None]:
    """Load rows; anything else is refused, and nothing of it runs.

    Returns:
        (list of lists of ids, or of arrays, or an array of two dimensions;
        [begin, end) of the tokens in each row, int64[n_rows, 2], None if rows are not padded).

    Raises:
        RowsError: It is no such file, or damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RowsError(f"{path}: cannot be read: {error.strerror}; check the path") from error
    rows, end = _load(path, data, 0)
    if end == len(data):
        return rows, None
    found, last = _load(path, data, end)
    lengths = np.array([*map(len, rows)], np.int64)
    try:
        spans = np.array(found, np.int64).reshape(len(rows), 2)
    except (ValueError, TypeError) as error:
        raise _damaged(path, error) from error
    begins, ends = spans.T
    if last != len(data) or not ((begins >= 0) & (begins <= ends) & (ends <= lengths)).all():
        raise _damaged(path, "the list of padding is of other rows")
    return rows, spans


def _load(path: Path, data: bytes, begin: int) -> tuple[Any, int]:
    """Return (content of the pickle that begins at a byte, where it ends)."""
    match = _PLAIN.match(data, begin)
    place = begin if match is None else match.end()
    try:
        if data[place : place + 1] == pickle.STOP:
            found = pickle.loads(memoryview(data)[begin : place + 1])
        elif b"numpy" in data:
            found, place = _load_arrays(path, data, begin)
        else:
            raise _refused(path, data, place)
    except RowsError:
        raise
    except Exception as error:
        raise _damaged(path, error) from error
    is_array = isinstance(found, np.ndarray) and found.ndim == 2
    if not is_array and not (
        isinstance(found, list) and all(isinstance(row, list | np.ndarray) for row in found)
    ):
        raise _not_rows(path, f"a {type(found).__name__}")
    return found, place + 1


def _load_arrays(path: Path, data: bytes, begin: int) -> tuple[Any, int]:
    """Return (content of a pickle with arrays, the place of its STOP).

    What it calls is noted, not called, and what is noted is read if it is an array of NumPy.
    """

    class Noted:
        def __init__(self, name: str, arguments: Any) -> None:
            self.name, self.arguments, self.state = name, arguments, [None] * 5

        def __setstate__(self, state: Any) -> None:
            self.state = state

    # The one in Python, for places in the memo take no memory there.
    class Reader(pickle._Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if not _NAMES.fullmatch(f"{module}.{name}"):
                raise RowsError(
                    f"{path}: names {module}.{name}, which is in no pickle of rows; it is refused,"
                    " for a pickle may run any program when it is loaded"
                )
            return lambda *arguments: Noted(name, arguments)

    def values_of(kind: Noted, content: Any) -> Any:
        name = f"{kind.state[1] or '='}{kind.arguments[0]}"
        if not _DTYPE.fullmatch(name):
            raise _not_rows(path, f"arrays of {name}")
        if isinstance(content, Noted):  # bytes, in protocol 2
            content = content.arguments[0].encode("latin1")
        return np.frombuffer(content, np.dtype(name))

    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [*map(plain, value)]
        if not isinstance(value, Noted):
            return value
        if value.name == "scalar":
            return int(values_of(*value.arguments)[0])
        if value.name == "_frombuffer":
            content, kind, shape, order = value.arguments
        else:
            _, shape, kind, is_fortran, content = value.state
            order = "F" if is_fortran else "C"
        return values_of(kind, content).reshape(shape, order=order)

    stream = io.BytesIO(data)
    stream.seek(begin)
    return plain(Reader(stream).load()), stream.tell() - 1


def _refused(path: Path, data: bytes, place: int) -> RowsError:
    return RowsError(
        f"{path}: byte {place:,} is {data[place : place + 1]!r}, which is in no pickle of lists of"
        " numbers; it is refused, for a pickle may run any program when it is loaded. If it should"
        " be rows, make it again, or run tokenmill verify --repair"
    )


def _damaged(path: Path, error: Exception | str) -> RowsError:
    what = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return RowsError(
        f"{path}: is a damaged pickle ({what}); make it again, or run tokenmill verify --repair"
    )


def _not_rows(path: Path, found: str) -> RowsError:
    return RowsError(f"{path}: has {found}, expected a pickled list of lists of token ids")
