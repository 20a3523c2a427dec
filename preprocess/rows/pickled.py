"""Rows as pickled lists of lists of ids: `dump-N.pkl`.

Only ids are written. Reading runs nothing: a pickle with anything but lists and numbers is refused.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from preprocess.rows.columns import RowBatch
from preprocess.rows.formats import RowsError

NEEDS_PADDING = False
_ROWS = 1 << 10  # that are returned at a time
# Protocol 2 has no frames, so the pickle of a list is that of its elements with a few bytes around.
_PROTOCOL = 2


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


def read_shard(path: Path) -> Iterator[RowBatch]:
    """Yield the rows of a file in batches."""
    rows = load(path)
    for first in range(0, len(rows), _ROWS):
        some = rows[first : first + _ROWS]
        offsets = np.append(0, np.cumsum([*map(len, some)])).astype(np.int64)
        try:
            ids = np.array([token for row in some for token in row], np.int32)
        except (OverflowError, ValueError, TypeError) as error:
            raise _not_rows(path, "ids that are no int32") from error
        yield RowBatch(offsets, {"input_ids": ids})


def load(path: Path) -> list[list[int]]:
    """Load a list of lists of ids; anything else is refused, and nothing of it runs.

    Raises:
        RowsError: It is no such list, or damaged.
    """
    try:
        with open(path, "rb") as file:
            found = _Restricted(file).load()
    except RowsError as error:
        raise RowsError(f"{path}: {error}") from None
    except Exception as error:
        raise RowsError(
            f"{path}: is no pickle, or damaged ({type(error).__name__}: {error}); make it again, or"
            " run tokenbin verify --repair"
        ) from error
    if not isinstance(found, list) or not all(isinstance(row, list) for row in found):
        raise _not_rows(path, f"a {type(found).__name__}")
    if not all(type(token) is int for row in found for token in row):
        raise _not_rows(path, "elements that are no numbers")
    return found


def _not_rows(path: Path, found: str) -> RowsError:
    return RowsError(f"{path}: has {found}, expected a pickled list of lists of token ids")


class _Restricted(pickle.Unpickler):
    """An unpickler that looks nothing up, so nothing can be called."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise RowsError(
            f"the pickle names {module}.{name}, which it could run; rows are lists of numbers, so"
            " it is refused: do not load it in another way either"
        )

    def persistent_load(self, pid: Any) -> NoReturn:
        raise RowsError("the pickle refers to objects outside of it; rows are lists of numbers")
