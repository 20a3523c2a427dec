"""Memory of arrays that nobody holds any more, for those that come.

Law: an array shares memory with no other that is alive, and keeps no more than twice what it needs;
what it contains at first means nothing. When memory for another one is made, little more stays free
than is in use.

Fresh memory costs more than to fill it again: the system hands it out page by page, full of zeros,
at the first touch, and takes it back as soon as the arrays are gone.
"""

from __future__ import annotations

import mmap
import sys
import threading

import numpy as np
from numpy.typing import NDArray

# Sizes are rounded up to a multiple of this, so that the next one, a little larger, fits too. Less
# than this is quick to come by, and would keep as much.
_STEP = 1 << 16
# Bytes that may be free beside as many as are in use: arrays may become smaller for good.
_SPARE = 1 << 25


def _mapped(n_bytes: int) -> mmap.mmap:
    """Memory of which a page is resident when it has been written to."""
    # Private, so that a process that is forked has its own; Windows, which knows no other, does not
    # fork.
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return mmap.mmap(-1, n_bytes, **flags)


class ReusedMemory:
    """Hands out arrays, and sees by itself when all that was made of one is gone.

    Args:
        limit: How many are known of, most of them of arrays that are alive.
        largest: Bytes of the largest that is.
    """

    def __init__(self, limit: int, largest: int) -> None:
        self._limit, self._largest = limit, largest
        self._lock = threading.Lock()
        # No arrays, so that nobody can change their shape or make them read-only for others; and no
        # `bytearray`, which is written to as soon as it is made: much may never be used.
        self._memory = [_mapped(mmap.PAGESIZE)]
        # As this Python counts them.
        self._free = self._holders(0)

    def array(self, n_bytes: int) -> NDArray[np.uint8]:
        """uint8[n_bytes], writable, of any content."""
        # Nobody waits: who holds the lock may be the thread that was interrupted by a signal, or
        # one that a forked process does not have.
        if not _STEP <= n_bytes <= self._largest or not self._lock.acquire(blocking=False):
            return np.empty(n_bytes, np.uint8)
        try:
            # Every array made of it, views of views too, holds the memory. What was in use last is
            # near the processor.
            free = [
                place
                for place in reversed(range(len(self._memory)))
                if self._holders(place) == self._free
            ]
            rounded = -(-n_bytes // _STEP) * _STEP
            # Not a far larger one: somebody may keep this array.
            fitting = range(n_bytes, max(rounded, n_bytes + n_bytes // 2) + 1)
            for place in free:
                if len(self._memory[place]) in fitting:
                    self._memory.append(self._memory.pop(place))
                    break
            else:
                # What is too small for this is for the others that come.
                for place in free:
                    if len(self._memory[place]) < n_bytes:
                        del self._memory[place]
                self._let_go(rounded)
                try:
                    self._memory.append(_mapped(rounded))
                except OSError:
                    return np.empty(n_bytes, np.uint8)  # or its error that memory is used up
                del self._memory[: -self._limit]
            return np.frombuffer(self._memory[-1], np.uint8, n_bytes)
        finally:
            self._lock.release()

    def _let_go(self, n_bytes: int) -> None:
        """Keep little that is free when so much more comes into use; what was in use last stays."""
        free = {place for place in range(len(self._memory)) if self._holders(place) == self._free}
        used = (len(memory) for place, memory in enumerate(self._memory) if place not in free)
        room = n_bytes + sum(used) + _SPARE
        for place in sorted(free, reverse=True):
            room -= len(self._memory[place])
            if room < 0:
                del self._memory[place]

    def _holders(self, place: int) -> int:
        return sys.getrefcount(self._memory[place])
