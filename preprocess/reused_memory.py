"""A pool of memory for arrays.

Memory is released when the last array, view or memoryview made of it is gone. An array shares
memory with no other that is alive, and keeps at most twice what it needs. When memory is mapped,
little more stays free than is in use.

Fresh memory costs more than filling it: the system maps it page by page at the first touch.
"""

from __future__ import annotations

import itertools
import mmap
import weakref
from collections import deque
from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

# Sizes are multiples of this, so that a slightly larger array fits, too; smaller ones are cheap.
_STEP = 1 << 16
_SPARE = 1 << 25  # bytes that may be free besides as many as are in use


def _mapped(n_bytes: int) -> mmap.mmap:
    """Map memory of which a page is resident when it has been written to."""
    # Private, so that a forked process has its own; Windows has no flags, and does not fork.
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return mmap.mmap(-1, n_bytes, **flags)


class ReusedMemory:
    """Pool of at most `limit` free pieces of memory, each of at most `largest` bytes.

    Nothing here locks: a signal may interrupt a thread anywhere, and a fork has no other threads.
    """

    def __init__(self, limit: int, largest: int) -> None:
        self._largest = largest
        # What was in use last, and is in the processor's cache, comes last.
        self._free: deque[mmap.mmap] = deque(maxlen=limit)
        # The sizes of those in use, and references that report when they are gone.
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
        # NumPy makes this the base of every array made of it.
        whole = np.frombuffer(memory, np.uint8)
        number = next(self._numbers)
        release = partial(self._release, number, memory)
        self._used[number] = len(memory), weakref.ref(whole, release)
        return whole[:n_bytes]

    def _acquire(self, n_bytes: int, rounded: int) -> mmap.mmap:
        # Not a far larger one: the array may be kept.
        most = max(rounded, n_bytes + n_bytes // 2)
        others: list[mmap.mmap] = []
        with suppress(IndexError):  # none is left, or another thread took it
            while not n_bytes <= len(memory := self._free.pop()) <= most:
                others.append(memory)
            self._free.extend(reversed(others))
            return memory
        # Those that are too small are dropped.
        others = [memory for memory in others if len(memory) >= n_bytes]
        room = rounded + sum(size for size, _ in list(self._used.values())) + _SPARE
        sizes = itertools.accumulate(map(len, others))
        kept = [memory for memory, size in zip(others, sizes, strict=True) if size <= room]
        self._free.extend(reversed(kept))
        return _mapped(rounded)

    def _release(self, number: int, memory: mmap.mmap, _: object) -> None:
        del self._used[number]
        self._free.append(memory)
