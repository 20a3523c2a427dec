"""Arrays for kernels: large ones on huge pages, read-only views, checks.

Pages of 2 MiB instead of 4 KiB need fewer page faults and page table walks. NumPy requests huge
pages, too, but does not align arrays: up to half of a few megabytes is on small pages.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bpe.errors import EncodingError

Number = TypeVar("Number", bound=np.generic)

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]

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


def read_only(array: NDArray[Number]) -> NDArray[Number]:
    """Return a read-only view, for which alone kernels are compiled."""
    view = array.view()
    view.flags.writeable = False
    return view


def check_array(
    name: str, array: object, dtype: type[np.generic], shape: str = "[n]"
) -> None:
    """Raise EncodingError unless kernels can take an array of the shape [n] or [n, 2].

    They check neither types nor offsets, so public methods check what they hand to kernels.
    """
    expected, found = np.dtype(dtype), type(array).__name__
    if isinstance(array, np.ndarray):
        is_shaped = array.ndim == 1 if shape == "[n]" else array.ndim == 2 and array.shape[1] == 2
        if array.dtype == expected and is_shaped and array.flags.c_contiguous:
            return
        found = f"{array.dtype}{list(array.shape)}, strides {list(array.strides)}"
    raise EncodingError(
        f"{name} is {found}: expected {expected}{shape}, contiguous; use np.asarray or"
        " np.frombuffer"
    )


def check_ids(dtype: np.dtype[Any], **ids: int) -> None:
    """Raise EncodingError unless each id, given by its name, fits into a type, or is -1: none."""
    most = np.iinfo(dtype).max
    for name, each in ids.items():
        if not -1 <= each <= most:
            raise EncodingError(
                f"{name} is {each:,}: expected an id up to {most:,}, the largest of {dtype}, or -1"
                " for none; take a larger dtype, or another id"
            )
