"""Map files read-only without keeping them open: a dataset may have more files than may be open.

`mmap.mmap` keeps a descriptor for each map, until Python 3.13 always; macOS allows 256 of them.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

_FAILED = ctypes.c_void_p(-1).value
_FIXED = 0x10  # MAP_FIXED, of Linux and macOS


@functools.cache
def _c_library() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    size, number = ctypes.c_size_t, ctypes.c_int
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = ctypes.c_void_p, size, number, number, number, ctypes.c_int64
    library.munmap.argtypes = ctypes.c_void_p, size
    library.madvise.argtypes = ctypes.c_void_p, size, number
    return library


def _map(address: int | None, n_bytes: int, flags: int, descriptor: int) -> int:
    found = _c_library().mmap(address, n_bytes, mmap.PROT_READ, flags, descriptor, 0)
    if found == _FAILED:
        number = ctypes.get_errno() or errno.ENOMEM
        raise OSError(number, os.strerror(number))
    return int(found)


class FileMap:
    """The bytes of an open file, mapped as long as the object or any `view` lives.

    Args:
        descriptor: Of the file, which may be closed afterwards. -1: zeros that take no memory.
        n_bytes: Size of the file.

    Raises:
        OSError: The file cannot be mapped.
    """

    def __init__(self, descriptor: int, n_bytes: int) -> None:
        self._address, self._n_bytes = 0, n_bytes
        if n_bytes:  # nothing cannot be mapped
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANON if descriptor < 0 else mmap.MAP_SHARED
            self._address = _map(None, n_bytes, flags, descriptor)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the end of the process, threads may still read, and `sys` may be None here.
        if self._address and not is_finalizing():
            _c_library().munmap(self._address, self._n_bytes)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Tell NumPy where the bytes are, and that they are read-only."""
        address = self._address, True
        return {"version": 3, "shape": (self._n_bytes,), "typestr": "|u1", "data": address}

    def view(self, dtype: Any, count: int = -1, start: int = 0) -> npt.NDArray[Any]:
        """Return a read-only array of values from byte `start` on."""
        return np.frombuffer(np.asarray(self) if self._n_bytes else b"", dtype, count, start)

    def put(self, start: int, descriptor: int, n_bytes: int) -> None:
        """Map another file at byte `start`, which begins a page, in place of what was there."""
        _map(self._address + start, n_bytes, mmap.MAP_SHARED | _FIXED, descriptor)

    def remove(self, start: int, n_bytes: int) -> None:
        """Let bytes from `start` on, which begins a page, be zeros."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANON | _FIXED
        _map(self._address + start, n_bytes, flags, -1)

    def give_back(self) -> None:
        """Let the system take the pages, which are mapped again when they are read."""
        if self._n_bytes:
            _c_library().madvise(self._address, self._n_bytes, mmap.MADV_DONTNEED)
