"""Large arrays of zeros, on huge pages if available.

Pages of 2 MiB instead of 4 KiB need fewer page faults and page table walks. NumPy requests huge
pages, too, but does not align arrays: up to half of a few megabytes is on small pages.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEAST = 2**20  # bytes; smaller arrays are from np.zeros


def zeros(n: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Return a new writable array `dtype[n]` of zeros; raise MemoryError if that is impossible."""
    n_bytes = n * np.dtype(dtype).itemsize
    if n_bytes >= _LEAST and hasattr(mmap, "MADV_HUGEPAGE"):
        # Fails on systems without huge pages, or without memory.
        with contextlib.suppress(OSError):
            # Shared mappings, the default, get no huge pages.
            memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory.madvise(mmap.MADV_HUGEPAGE)
            return np.frombuffer(memory, dtype)
    return np.zeros(n, dtype)
