"""A pool of memory for arrays: what is released by one is handed out for the next.

- An array shares memory with no other that is alive, and keeps no more than twice what it needs;
  its first content is undefined.
- Memory is released when the last array, view or memoryview made of it is gone.
- When memory for another one is made, little more stays free than is in use.

Fresh memory costs more than to fill it again: the system hands it out page by page, full of zeros,
at the first touch, and takes it back as soon as the arrays are gone.
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

# Sizes are rounded up to a multiple of this, so that the next one, a little larger, fits too. Less
# than this is quick to come by, and would keep as much.
_STEP = 1 << 16
# Bytes that may be free beside as many as are in use: arrays may become smaller for good.
_SPARE = 1 << 25


def _mapped(n_bytes: int) -> mmap.mmap:
    """Map memory of which a page is resident when it has been written to."""
    # Private, so that a process that is forked has its own; Windows, which knows no other, does not
    # fork.
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return mmap.mmap(-1, n_bytes, **flags)


class ReusedMemory:
    """Hands out arrays, and takes their memory back when they are gone.

    Nothing here locks: a thread may be interrupted by a signal anywhere, and a forked process lacks
    the other threads.

    Args:
        limit: How many may be free.
        largest: Bytes of the largest that is used again.
    """

    def __init__(self, limit: int, largest: int) -> None:
        self._largest = largest
        # What was in use last, and is near the processor, comes last.
        self._free: deque[mmap.mmap] = deque(maxlen=limit)
        # The size of what is in use, and what notices that it is no more.
        self._used: dict[int, tuple[int, weakref.ref[NDArray[np.uint8]]]] = {}
        self._numbers = itertools.count()

    def array(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return uint8[n_bytes], writable, of any content."""
        if not _STEP <= n_bytes <= self._largest:
            return np.empty(n_bytes, np.uint8)
        try:
            memory = self._acquire(n_bytes, -(-n_bytes // _STEP) * _STEP)
        except OSError:
            return np.empty(n_bytes, np.uint8)  # or its error that memory is used up
        # NumPy makes this the base of every array made of it.
        whole = np.frombuffer(memory, np.uint8)
        number = next(self._numbers)
        release = partial(self._release, number, memory)
        self._used[number] = len(memory), weakref.ref(whole, release)
        return whole[:n_bytes]

    def _acquire(self, n_bytes: int, rounded: int) -> mmap.mmap:
        # Not a far larger one: somebody may keep the array.
        most = max(rounded, n_bytes + n_bytes // 2)
        others: list[mmap.mmap] = []
        with suppress(IndexError):  # none is left, or another thread took it
            while not n_bytes <= len(memory := self._free.pop()) <= most:
                others.append(memory)
            self._free.extend(reversed(others))
            return memory
        # What is too small for this is for the others that come.
        others = [memory for memory in others if len(memory) >= n_bytes]
        room = rounded + sum(size for size, _ in list(self._used.values())) + _SPARE
        sizes = itertools.accumulate(map(len, others))
        kept = [memory for memory, size in zip(others, sizes, strict=True) if size <= room]
        self._free.extend(reversed(kept))
        return _mapped(rounded)

    def _release(self, number: int, memory: mmap.mmap, _: object) -> None:
        del self._used[number]
        self._free.append(memory)
