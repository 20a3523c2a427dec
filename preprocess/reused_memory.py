"""A pool of memory for arrays.

Memory returns to the pool when its last array, view or memoryview is gone. Live arrays never share
memory, and have at most twice the memory that they need. When new memory is mapped, free memory is
limited to about the memory in use.

Fresh memory costs more than filling it, for the system maps each page at its first write.
"""

from __future__ import annotations

import itertools
import mmap
import weakref
from collections import deque
from functools import partial

import numpy as np
from numpy.typing import NDArray

# Sizes are multiples of this, so that slightly larger arrays fit, too; smaller ones are not pooled.
_STEP = 1 << 16
_SPARE = 1 << 25  # free bytes allowed in addition to the bytes in use


def _mapped(n_bytes: int) -> mmap.mmap:
    """Map memory; a page becomes resident at its first write."""
    # Private, so that a forked process has its own.
    return mmap.mmap(-1, n_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class ReusedMemory:
    """Pool of at most `limit` free pieces of memory, each of at most `largest` bytes.

    Lock-free: a signal may interrupt a thread anywhere, and a fork has no other threads.
    """

    def __init__(self, limit: int, largest: int) -> None:
        self._largest = largest
        # Most recently used last: it is in the processor's cache.
        self._free: deque[mmap.mmap] = deque(maxlen=limit)
        # Sizes of pieces in use, and references with a callback for their end.
        self._used: dict[int, tuple[int, weakref.ref[NDArray[np.uint8]]]] = {}
        self._numbers = itertools.count()

    def array(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return uint8[n_bytes], writable, of any content."""
        if not _STEP <= n_bytes <= self._largest:
            return np.empty(n_bytes, np.uint8)
        try:
            memory = self._acquire(n_bytes, -(-n_bytes // _STEP) * _STEP)
        except OSError:
            return np.empty(n_bytes, np.uint8)  # or raise its MemoryError
        # NumPy makes this the base of all views.
        whole = np.frombuffer(memory, np.uint8)
        number = next(self._numbers)
        release = partial(self._release, number, memory)
        self._used[number] = len(memory), weakref.ref(whole, release)
        return whole[:n_bytes]

    def _acquire(self, n_bytes: int, rounded: int) -> mmap.mmap:
        # Not a much larger one: the caller may keep the array.
        most = max(rounded, n_bytes + n_bytes // 2)
        others: list[mmap.mmap] = []
        try:
            while not n_bytes <= len(memory := self._free.pop()) <= most:
                others.append(memory)
        except IndexError:  # the pool is empty
            pass
        else:
            self._free.extend(reversed(others))
            return memory
        room = rounded + sum(size for size, _ in list(self._used.values())) + _SPARE
        sizes = itertools.accumulate(map(len, others))
        kept = [memory for memory, size in zip(others, sizes, strict=True) if size <= room]
        self._free.extend(reversed(kept))
        return _mapped(rounded)

    def _release(self, number: int, memory: mmap.mmap, _: object) -> None:
        del self._used[number]
        self._free.append(memory)
