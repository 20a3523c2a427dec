"""Compile kernels with `numba.njit(cache=True)`, where `bpe.runtime.compiler` cannot.

Numba's cache ignores callees in other files; it is kept in the directory of the state of all
sources (`bpe.runtime.machine_code`), where none is stale.
"""

from __future__ import annotations

import functools
from typing import Any

import numba
from numba.extending import typeof_impl

from bpe.runtime import intrinsics  # noqa: F401  (registers them)
from bpe.runtime.machine_code import kept_code


def _type_of_kernel(kernel: Any, context: Any) -> Any:
    return numba.types.Dispatcher(dispatcher(kernel))


@functools.cache
def dispatcher(kernel: Any) -> Any:
    """Return numba's dispatcher of a `jit.Kernel`; kernels that it calls are compiled alike."""
    typeof_impl.register(type(kernel), _type_of_kernel)
    directory = kept_code().directory
    # Numba's key of a function that closes over others differs in every process.
    is_cached = directory is not None and bool(kernel.source) and not kernel.py_func.__closure__
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(directory)
    try:
        # Kernels allocate nothing, so they need no reference counts.
        return numba.njit(nogil=True, cache=is_cached, _nrt=False)(kernel.py_func)
    finally:
        numba.config.CACHE_DIR = before
