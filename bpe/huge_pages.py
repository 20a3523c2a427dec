"""Large arrays of zeros, on huge pages where the system has any.

Law: they are those of `numpy.zeros`. What is not written to takes no memory, and what is comes, as
far as it can, in pages of 2 MiB instead of 4 KiB: a page costs time when it is first touched, and
every access to many small ones costs a walk through the table of pages. NumPy asks for huge pages,
too, but its arrays do not begin at the edge of one: up to half of an array of a few megabytes then
has small ones.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEAST = 2**20  # bytes; smaller arrays are NumPy's own


def zeros(n: int, dtype: type[np.generic]) -> NDArray[Any]:
    """Zeros.

    Args:
        n: how many, 0 or more.
        dtype: of each.

    Returns:
        dtype[n], writable, that shares memory with nothing.

    Raises:
        MemoryError: There is no room for it.
    """
    n_bytes = n * np.dtype(dtype).itemsize
    if n_bytes < _LEAST:
        return np.zeros(n, dtype)
    # Private, because a shared mapping, which is the default, gets no huge pages.
    flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        memory = mmap.mmap(-1, n_bytes, **flags)
    except OSError:
        return np.zeros(n, dtype)  # or its error that memory is used up
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A system built without huge pages refuses; small ones give the same result.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype)
