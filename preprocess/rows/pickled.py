"""Rows as pickled lists of lists of ids: `dump-N.pkl`.

Only ids are written. Reading runs nothing: before it is loaded, each opcode of a pickle is checked,
and one with anything but lists and numbers is refused.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import IO

import numpy as np

from preprocess.rows.columns import RowBatch
from preprocess.rows.formats import RowsError
from preprocess.rows.places import AnyPath

NEEDS_PADDING = False
_ROWS = 1 << 10  # that are returned at a time
# Protocol 2 has no frames, so the pickle of a list is that of its elements with a few bytes around.
_PROTOCOL = 2
# Numbers of 8, 16 and 32 bits, lists, frames, and places in the memo, which nothing reads; these
# below 2^24, for a greater one makes the memo large.
_OPCODES = rb"(?s:K.|M..|J....|[\](ae\x94]|q.|r...\x00|\x95........)*+"
_PLAIN = re.compile(rb"\x80[\x02-\x05]" + _OPCODES)


def write_shard(
    file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int,
    batches: Callable[[], Iterable[RowBatch]],
) -> None:
    """Write the ids of all batches as one list, without having it in memory."""
    file.write(pickle.PROTO + bytes([_PROTOCOL]) + pickle.EMPTY_LIST)
    for batch in batches():
        ids, bounds = batch.values["input_ids"].tolist(), batch.offsets.tolist()
        file.write(pickle.MARK)
        for start, stop in pairwise(bounds):
            # Without the protocol in front, and STOP at the end.
            file.write(pickle.dumps(ids[start:stop], _PROTOCOL)[2:-1])
        file.write(pickle.APPENDS)
    file.write(pickle.STOP)


def read_shard(path: AnyPath) -> Iterator[RowBatch]:
    """Yield the rows of a file in batches."""
    rows = load(path)
    for first in range(0, len(rows), _ROWS):
        some = rows[first : first + _ROWS]
        try:
            parts = [np.array(row, np.int32) for row in some]
            if any(part.ndim != 1 for part in parts):
                raise ValueError(len(parts))
        except (ValueError, TypeError) as error:
            raise _not_rows(path, "lists inside of rows") from error
        offsets = np.append(0, np.cumsum([*map(len, parts)])).astype(np.int64)
        yield RowBatch(offsets, {"input_ids": np.concatenate([np.empty(0, np.int32), *parts])})


def load(path: AnyPath) -> list[list[int]]:
    """Load a list of lists of ids; anything else is refused, and nothing of it runs.

    Raises:
        RowsError: It is no such list, or damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RowsError(f"{path}: cannot be read: {error.strerror}; check the path") from error
    match = _PLAIN.match(data)
    place = 0 if match is None else match.end()
    if place + 1 != len(data) or data[place:] != pickle.STOP:
        raise RowsError(
            f"{path}: byte {place:,} is {data[place : place + 1]!r}, which is in no pickle of lists"
            " of numbers; it is refused, for a pickle may run any program when it is loaded. If it"
            " should be rows, make it again, or run tokenmill verify --repair"
        )
    try:
        found = pickle.loads(data)
    except Exception as error:
        raise RowsError(
            f"{path}: is a damaged pickle ({type(error).__name__}: {error}); make it again, or run"
            " tokenmill verify --repair"
        ) from error
    if not isinstance(found, list) or not all(isinstance(row, list) for row in found):
        raise _not_rows(path, f"a {type(found).__name__}")
    return found


def _not_rows(path: AnyPath, found: str) -> RowsError:
    return RowsError(f"{path}: has {found}, expected a pickled list of lists of token ids")
