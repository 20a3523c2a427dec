"""Concatenate the token ids of parts in their order, whatever the order they are finished in."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from bpe.runtime.arrays import zeros

_LOOK_SECONDS = 1.0  # between looks whether other threads still copy


class PartCollector:
    """Concatenates the ids of parts 0 to n - 1; threads put parts in any order, in parallel.

    Args:
        size: Sum of the sizes of all parts, in any unit; used to estimate memory.
    """

    def __init__(self, size: int) -> None:
        self._changed = threading.Condition()
        self._size = size
        self._size_so_far = 0
        self._ids = np.empty(0, np.uint32)
        self._n_ids = 0
        self._copying = 0
        self._offsets = [np.zeros(1, np.int64)]
        self._waiting: dict[int, tuple[NDArray[np.uint32], NDArray[np.int64], int]] = {}
        self._next = 0

    def put(
        self, number: int, ids: NDArray[np.uint32], offsets: NDArray[np.int64], size: int = 1
    ) -> None:
        """Copy the ids of part `number`; `offsets` is int64[n_documents + 1], `size` its size."""
        with self._changed:
            if number != self._next:
                # Mapped, for an allocator keeps what a thread frees.
                kept = zeros(len(ids), np.uint32)
                kept[:] = ids
                self._waiting[number] = kept, offsets, size
                return
        while True:
            with self._changed:
                # Wait until no thread copies: the array may be enlarged. A thread that is short of
                # memory may not be able to notify.
                while self._copying and self._n_ids + len(ids) > len(self._ids):
                    self._changed.wait(_LOOK_SECONDS)
                target = self._place(ids, offsets, size)
            try:
                target[:] = ids
            finally:
                with self._changed:
                    self._copying -= 1
                    self._changed.notify_all()
            with self._changed:
                if self._next not in self._waiting:
                    return
                ids, offsets, size = self._waiting.pop(self._next)

    def _place(
        self, ids: NDArray[np.uint32], offsets: NDArray[np.int64], size: int
    ) -> NDArray[np.uint32]:
        """Return the slice for the ids of the next part."""
        place, end = self._n_ids, self._n_ids + len(ids)
        self._size_so_far += size
        if end > len(self._ids):
            # From the ids per size so far; pages that are not needed are never touched.
            expected = int(end / self._size_so_far * self._size * 1.2)
            larger = np.empty(max(expected, end, 2 * len(self._ids)), np.uint32)
            larger[:place] = self._ids[:place]
            self._ids = larger
        self._offsets.append(offsets[1:] + place)
        self._n_ids = end
        self._next += 1
        self._copying += 1
        return self._ids[place:end]

    def result(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return `uint32[n_ids]` and `int64[n_documents + 1]`, after all parts were put."""
        self._ids.resize(self._n_ids, refcheck=False)
        return self._ids, np.concatenate(self._offsets)
