"""Large arrays of zeros, on huge pages where the system has any.

Memory becomes resident when it is first written to, if possible in pages of 2 MiB instead of 4 KiB:
first touches and walks of the page table become fewer. NumPy asks for huge pages, too, but its
arrays do not begin at the edge of one: up to half of an array of a few megabytes has small pages.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEAST = 2**20  # bytes; smaller arrays are NumPy's own


def zeros(n: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Return `dtype[n]`, all zeros, writable, that shares memory with nothing.

    Raises:
        MemoryError: There is no room for it.
    """
    n_bytes = n * np.dtype(dtype).itemsize
    if n_bytes >= _LEAST and hasattr(mmap, "MADV_HUGEPAGE"):
        # A system that is built without huge pages refuses, and so does one without memory.
        with contextlib.suppress(OSError):
            # Private: a shared mapping, which is the default, gets no huge pages.
            memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE)
            return np.frombuffer(memory, dtype)
    return np.zeros(n, dtype)
