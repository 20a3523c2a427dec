"""Kernels: functions that are compiled just in time, once for each signature.

The signature is the kinds of the arguments, such as `("array", "uint8", 1)`. Machine code is
looked up in memory, then in the cache on disk (`bpe.runtime.machine_code`); otherwise it is
compiled, with a warning.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import threading
import warnings
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bpe.runtime import machine_code
from bpe.runtime.machine_code import (
    MOST_RESULTS,
    Entry,
    KernelError,
    MachineCode,
    Packed,
    append,
    new_block,
)
from bpe.runtime.user_cache import warn_once

# True if Python runs kernels as they are written.
DISABLE_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")
if DISABLE_JIT:
    # In hashes and masks it is meant.
    warnings.filterwarnings("ignore", "overflow encountered in scalar", RuntimeWarning)

_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    # A child has no thread that would release a lock that another one held at that moment.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )

_n_reporting = 0  # callers that report compiling themselves
_is_left_to_numba = False  # compiling a kernel has failed: later ones are not tried


@contextlib.contextmanager
def reported_elsewhere() -> Iterator[None]:
    """Do not report compiling inside the `with`."""
    global _n_reporting
    _n_reporting += 1
    try:
        yield
    finally:
        _n_reporting -= 1


class Kernel:
    """A function that is compiled for the arguments it is called with, and runs without the GIL.

    It takes arrays, numbers and tuples of these, allocates nothing and returns numbers.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        self.__doc__ = function.__doc__
        self.py_func = function
        # As of now: after an edit, this process runs what was imported.
        self.source = _source_of(function)
        if function.__closure__:  # one function makes several
            self.name += f"_{self.source[:16]}"
        self._entries: dict[tuple[Any, ...], Entry] = {}
        self._by_numba: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run it; raise KernelError if no kernel takes such arguments."""
        block = new_block()
        entry = self._entry(arguments, block)
        if entry is not None:
            return entry.run(block, block.buffer_info()[0])
        assert self._by_numba is not None
        return self._by_numba(*(x.values if isinstance(x, Packed) else x for x in arguments))

    def bind(self, first: Packed, *others: Any) -> Callable[[Packed], Any]:
        """Return a function of `first`, or others of its kind; `others` are fixed. One thread."""
        block = new_block()
        entry = self._entry((first, *others), block)
        if entry is None:
            return lambda first: self(first, *others)
        run, kind, words, address = entry.run, first.kind, first.words, block.buffer_info()[0]

        def call(first: Packed, _kept: Any = others) -> Any:  # the block has their addresses
            nonlocal words
            if first.words is not words:
                if first.kind is not kind:
                    raise KernelError(f"{self.name} is bound to arguments of another kind")
                words = first.words
                block[MOST_RESULTS : MOST_RESULTS + len(words)] = words
            return run(block, address)

        return call

    @property
    def is_loaded(self) -> bool:
        """True if it has been compiled, or loaded, for some arguments."""
        return bool(self._entries) or self._by_numba is not None

    def _entry(self, arguments: tuple[Any, ...], block: array[int]) -> Entry | None:
        """Append arguments to a block; return the machine code for them, None if numba runs it."""
        kinds = tuple([append(each, block) for each in arguments])
        entry = self._entries.get(kinds)
        if entry is not None or self._by_numba is not None:
            return entry
        with _lock:
            if kinds not in self._entries:
                code = self._machine_code(kinds, arguments)
                if code is None:
                    return None
                self._entries[kinds] = Entry(code)
            return self._entries[kinds]

    def _machine_code(
        self, kinds: tuple[Any, ...], arguments: tuple[Any, ...]
    ) -> MachineCode | None:
        """Load it, or compile it; None if that must be left to `numba.njit`, which is reported."""
        global _is_left_to_numba
        what = f"{self.name} {kinds} {machine_code.target()} {self.source}"
        digest = hashlib.sha256(what.encode()).hexdigest()[:32]
        name, cache = f"{self.name}-{digest}.o", machine_code.kept_code()
        if self.source and (content := cache.read(name)) is not None:
            return MachineCode(*pickle.loads(content))
        if not _n_reporting:
            warn_once("compiling kernels for this machine; this happens once and takes seconds")
        try:
            if not _is_left_to_numba:
                from bpe.runtime import compiler

                code = compiler.compiled(self, arguments, f"tokenmill_{digest}")
                if self.source:
                    cache.write(name, pickle.dumps(tuple(code)))
                return code
        except KernelError:
            raise
        except Exception as error:  # noqa: BLE001 (reported; numba says what is wrong with a kernel)
            import numba

            _is_left_to_numba = True
            warning = (
                "kernels run as numba.njit compiles them, which takes longer to compile and to run:"
                " compiling with numba %s as tokenmill does it failed (%s: %s)"
            )
            warn_once(warning, numba.__version__, type(error).__name__, error)
        from bpe.runtime import plain_numba

        self._by_numba = plain_numba.dispatcher(self)
        return None


def pack(values: Any) -> Any:
    """Return a tuple of arrays, packed for many calls of kernels."""
    return values if DISABLE_JIT else Packed(values)


def bind(function: Any, first: Any, *others: Any) -> Any:
    """Return a function of the first argument of a kernel, see `Kernel.bind`."""
    if DISABLE_JIT:
        return lambda first: function(first, *others)
    return function.bind(first, *others)


def _source_of(function: Callable[..., Any]) -> str:
    """Return a digest of a kernel, its module, and the numbers and kernels that it closes over.

    It may use other kernels and constants of its module. Without a file, as with `python -c`, the
    digest is "", and machine code is not kept.
    """
    code = function.__code__
    path = Path(code.co_filename)
    if not path.is_file():
        return ""
    of_file = _digest_of_file(path, path.stat().st_mtime_ns)
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    closed_over = [getattr(value, "source", value) for value in values]
    what = f"{of_file} {code.co_firstlineno} {code.co_code.hex()} {closed_over}"
    return hashlib.sha256(what.encode()).hexdigest()


@functools.cache
def _digest_of_file(path: Path, mtime_ns: int) -> str:
    """Return a digest of a file, which is read again when `mtime_ns` has changed."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def kernel(function: Callable[..., Any]) -> Any:
    """Decorator: compile `function` at its first call, and keep the machine code."""
    if DISABLE_JIT:
        return function
    return Kernel(function)
