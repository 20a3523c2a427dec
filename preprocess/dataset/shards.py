"""View of the shards of a token file as one array."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.unsignedinteger[Any]]
Positions = npt.NDArray[np.int64]
FindSpans = Callable[[], tuple[Positions, Positions]]


class ShardView:
    """A read-only view of the concatenation of arrays of ids.

    >>> view = ShardView([np.array([5, 7], np.uint16), np.array([8, 9, 2], np.uint16)])
    >>> len(view), view[2], view[1:4].tolist(), view[np.array([0, -1])].tolist()
    (5, 8, [7, 8, 9], [5, 2])

    A slice inside one array shares its memory; any other index copies the ids that it selects.
    `np.asarray(view)` copies everything.

    Args:
        arrays: uint16[n] or uint32[n], all of one dtype.

    Attributes:
        arrays: As given; of a remote dataset, a view of each shard.
        starts: int64[n_arrays + 1], the position of the first id of each array, and the length.
        dtype: dtype of all arrays.
    """

    def __init__(self, arrays: Sequence[Ids]) -> None:
        self.arrays: tuple[Any, ...] = tuple(arrays)
        self.starts = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        self.dtype = self.arrays[0].dtype

    def __len__(self) -> int:
        return int(self.starts[-1])

    def at(self, find_spans: FindSpans) -> AbstractContextManager[ShardView]:
        """Have spans in memory inside the `with`, which yields a view of plain arrays.

        Its arrays may have other values outside of the spans, and afterwards. Inside the `with`,
        no other view of the dataset may be read.

        Args:
            find_spans: Returns int64[n], where spans begin, inside the view, and int64[n], where
                they end, each at least one value later. It is not called if all is in memory.
        """
        return nullcontext(self)

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice | npt.NDArray[np.integer[Any]]) -> Ids: ...
    def __getitem__(self, key: int | slice | npt.NDArray[np.integer[Any]]) -> int | Ids:
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            if step == 1:
                return self._between(start, max(start, stop))
            key = np.arange(start, stop, step)
        elif not isinstance(key, np.ndarray):
            return int(self[np.array([operator.index(key)])][0])
        if len(key) and not -len(self) <= key.min() <= key.max() < len(self):
            raise IndexError(f"positions of {len(self):,} ids are from 0 to {len(self) - 1:,}")
        places = np.where(key < 0, key + len(self), key).astype(np.int64)
        found = np.empty(len(places), self.dtype)
        for array, begins, chosen in self.spans(places, places + 1):
            found[chosen] = array[begins]
        return found

    def _between(self, start: int, stop: int) -> Ids:
        first = max(int(np.searchsorted(self.starts, start, "right")) - 1, 0)
        pieces: list[Ids] = []
        while start < stop:
            place = int(self.starts[first])
            piece = self.arrays[first][start - place : stop - place]
            pieces.append(piece)
            start += len(piece)
            first += 1
        return pieces[0] if len(pieces) == 1 else np.concatenate([self.arrays[0][:0], *pieces])

    def windows(self, starts: npt.NDArray[np.int64], length: int) -> Ids:
        """Copy windows of `length` ids, which may cross arrays.

        Args:
            starts: int64[n], each in [0, len(self) - length].
            length: At least 1.

        Returns:
            uint16|uint32[n, length].
        """
        found = np.empty((len(starts), length), self.dtype)
        for array, begins, chosen in self.spans(starts, starts + length):
            found[chosen] = windows_of(array, length)[begins]
        return found

    def spans(
        self, starts: Positions, stops: Positions
    ) -> Iterator[tuple[Any, Positions, Positions | slice]]:
        """Yield (an array, where spans begin in it, an index of these spans) for all spans.

        One that crosses arrays has an array of its own. Each array is valid until the next one.

        Args:
            starts: int64[n], where spans begin, inside the view.
            stops: int64[n], where they end, each at least one value later.
        """
        with self.at(lambda: (starts, stops)) as here:
            if len(here.arrays) == 1:
                yield here.arrays[0], starts, slice(None)
                return
            of = np.searchsorted(self.starts, starts, "right") - 1
            is_inside = stops <= self.starts[of + 1]
            for number in distinct(of[is_inside]).tolist():
                chosen = np.flatnonzero(is_inside & (of == number))
                yield here.arrays[number], starts[chosen] - self.starts[number], chosen
            for i in np.flatnonzero(~is_inside).tolist():
                yield here[int(starts[i]) : int(stops[i])], np.zeros(1, np.int64), np.array([i])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("shards cannot become one array without a copy")
        return self[:].astype(dtype or self.dtype, copy=False)


def distinct(values: Positions) -> Positions:
    """Return the distinct values, sorted.

    `np.unique` imports a module when it is first called: a process that is forked meanwhile would
    wait for it.
    """
    found, is_first = np.sort(values), np.ones(len(values), np.bool_)
    np.not_equal(found[1:], found[:-1], out=is_first[1:])
    return found[is_first]


def windows_of(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """Return a view of all windows of an array, to read from: [n - length + 1, length]."""
    (stride,) = array.strides
    shape, strides = (len(array) - length + 1, length), (stride, stride)
    if not array.flags.c_contiguous:
        return np.lib.stride_tricks.as_strided(array, shape, strides)
    # A tenth of the time of as_strided, which matters for small batches.
    return np.ndarray(shape, array.dtype, array, 0, strides)
