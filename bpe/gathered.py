"""The ids of parts that are finished in any order, one behind the other in one array.

Law: the result is that of the parts in the order of their numbers. Threads copy side by side.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray


class Gathered:
    """Takes the parts 0 to n - 1, each once.

    Args:
        size: how much all parts are together, in whatever unit; for what memory is expected.
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
        """Take part `number`: its ids, which are copied, int64[n_documents + 1] offsets, size."""
        with self._changed:
            if number != self._next:
                self._waiting[number] = ids.copy(), offsets, size
                return
            while not self._can_place(len(ids)):
                self._changed.wait()
            target = self._place(ids, offsets, size)
        while True:
            target[:] = ids
            with self._changed:
                self._copying -= 1
                self._changed.notify_all()
                # Those that waited for this one; other threads may take them meanwhile.
                while self._next in self._waiting and not self._can_place(
                    len(self._waiting[self._next][0])
                ):
                    self._changed.wait()
                if self._next not in self._waiting:
                    return
                ids, offsets, size = self._waiting.pop(self._next)
                target = self._place(ids, offsets, size)

    def _can_place(self, n_ids: int) -> bool:
        """Whether there is room; else it is made, when nobody copies."""
        return self._copying == 0 or self._n_ids + n_ids <= len(self._ids)

    def _place(
        self, ids: NDArray[np.uint32], offsets: NDArray[np.int64], size: int
    ) -> NDArray[np.uint32]:
        """Where the ids of the next part are to be copied."""
        place, end = self._n_ids, self._n_ids + len(ids)
        self._size_so_far += size
        if end > len(self._ids):
            # As if those to come were as the average so far; memory that is not needed is never
            # touched.
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
        """All ids, `uint32[n_ids]`, and `int64[n_documents + 1]`; when all parts are there."""
        self._ids.resize(self._n_ids, refcheck=False)
        return self._ids, np.concatenate(self._offsets)
