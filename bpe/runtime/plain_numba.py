"""Compile kernels with `numba.njit(cache=True)`, where `bpe.runtime.compiler` cannot.

Numba's cache ignores callees in other files; it is kept in the directory of the state of all
sources (`bpe.runtime.machine_code`), where none is stale.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import numba

from bpe.runtime import intrinsics  # noqa: F401  (registers them)
from bpe.runtime.machine_code import kept_code


@functools.cache
def dispatcher(kernel: Any) -> Any:
    """Return numba's dispatcher of a `jit.Kernel`, which calls those of its callees."""
    function = kernel.py_func

    def replaced(value: Any) -> Any:
        if isinstance(value, types.ModuleType) and value.__name__.startswith("bpe."):
            module = types.ModuleType(value.__name__)
            vars(module).update(namespace_of(vars(value)))
            return module
        return dispatcher(value) if isinstance(value, type(kernel)) else value

    def namespace_of(values: dict[str, Any]) -> dict[str, Any]:
        names = function.__code__.co_names
        return {name: replaced(x) if name in names else x for name, x in values.items()}

    namespace = namespace_of(function.__globals__)
    cells = tuple(
        types.CellType(replaced(cell.cell_contents)) for cell in function.__closure__ or ()
    )
    copy = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, cells
    )
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    directory = kept_code().directory
    # Numba's key of a function that closes over others differs in every process.
    is_cached = directory is not None and bool(kernel.source) and not cells
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(directory)
    try:
        # Kernels allocate nothing, so they need no reference counts.
        return numba.njit(nogil=True, cache=is_cached, _nrt=False)(copy)
    finally:
        numba.config.CACHE_DIR = before
