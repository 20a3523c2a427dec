"""Kernels: functions that are compiled just in time, once for each signature.

The signature is the kinds of the arguments, such as `("array", "uint8", 1, True)`. Machine code is
looked up in memory, then in the cache on disk (`bpe.runtime.machine_code`); otherwise it is
compiled, with a warning.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bpe.runtime import machine_code
from bpe.runtime.user_cache import warn_once

# True if Python runs kernels as they are written.
DISABLE_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")

_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    # A child has no thread that would release a lock that another one held at that moment.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )

_n_reporting = 0  # callers that report compiling themselves


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
        # Digest of the source as of now: after an edit, this process runs what was imported.
        self.source = _source_of(function)
        self._entries: dict[tuple[Any, ...], machine_code.Entry] = {}
        self._by_numba: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run it; raise KernelError if no kernel takes such arguments."""
        words: list[int] = []
        keep: list[machine_code.Packed] = []
        entry = self._entry(arguments, words, keep)
        if entry is None:
            return self._run_by_numba(*arguments)
        block = entry.block(words)
        return entry.run(block, block.buffer_info()[0])

    def bind(self, first: machine_code.Packed, *others: Any) -> Callable[[Any], Any]:
        """Return a function of `first`, or others of its kind; `others` are fixed. One thread."""
        words: list[int] = []
        keep: list[machine_code.Packed] = []
        entry = self._entry((first, *others), words, keep)
        if entry is None:
            return lambda first: self._run_by_numba(first, *others)
        block, run, kind = entry.block(words), entry.run, first.kind
        address, kept = block.buffer_info()[0], (others, keep)  # the block has their addresses

        def call(first: machine_code.Packed, _kept: Any = kept) -> Any:
            if first.kind is not kind:
                raise machine_code.KernelError(f"{self.name} is bound to arguments of another kind")
            block[0] = first.address
            return run(block, address)

        return call

    @property
    def is_loaded(self) -> bool:
        """True if it has been compiled, or loaded, for some arguments."""
        return bool(self._entries) or self._by_numba is not None

    def _entry(
        self, arguments: tuple[Any, ...], words: list[int], keep: list[machine_code.Packed]
    ) -> machine_code.Entry | None:
        """Return the machine code for arguments; None if numba runs it. See `append`."""
        kinds = tuple([machine_code.append(each, words, keep) for each in arguments])
        entry = self._entries.get(kinds)
        if entry is not None or self._by_numba is not None:
            return entry
        with _lock:
            if kinds not in self._entries:
                code = self._machine_code(kinds)
                if code is None:
                    return None
                self._entries[kinds] = machine_code.Entry(code, len(words))
            return self._entries[kinds]

    def _run_by_numba(self, *arguments: Any) -> Any:
        assert self._by_numba is not None
        packed = machine_code.Packed
        return self._by_numba(*(x.values if isinstance(x, packed) else x for x in arguments))

    def _machine_code(self, kinds: tuple[Any, ...]) -> machine_code.MachineCode | None:
        """Load it, or compile it; None if that must be left to `numba.njit`, which is reported."""
        about = [machine_code.processor(), machine_code.numba_settings(), self.source]
        what = f"{self.name}({', '.join(map(machine_code.spelled, kinds))}) {about}"
        digest = hashlib.sha256(what.encode()).hexdigest()[:32]
        name = f"{self.name}-{digest}.o"
        if self.source and (found := machine_code.load(name, what)) is not None:
            return found
        if not _n_reporting:
            warn_once("compiling kernels for this machine; this happens once and takes seconds")
        try:
            from bpe.runtime import compiler

            code = compiler.compiled(self, kinds, what, f"tokenmill_{digest}")
        except machine_code.KernelError:
            raise
        except Exception as error:  # noqa: BLE001 (reported; numba says what is wrong with a kernel)
            import numba

            from bpe.runtime import plain_numba

            warning = (
                "kernels run as numba.njit compiles them, which takes longer to compile and to run:"
                " compiling with numba %s as tokenmill does it failed (%s: %s)"
            )
            warn_once(warning, numba.__version__, type(error).__name__, error)
            self._by_numba = plain_numba.dispatcher(self)
            return None
        if self.source:
            machine_code.save(name, code)
        return code


def pack(values: Any) -> Any:
    """Return a tuple of arrays, packed for many calls of kernels."""
    return values if DISABLE_JIT else machine_code.Packed(values)


def bind(function: Any, first: Any, *others: Any) -> Any:
    """Return a function of the first argument of a kernel, see `Kernel.bind`."""
    if DISABLE_JIT:
        return lambda first: function(first, *others)
    return function.bind(first, *others)


def _source_of(function: Callable[..., Any]) -> str:
    """Return a digest of a kernel and its module, whose kernels and constants it may use.

    Without a file, as with `python -c`, the digest is "", and machine code is not kept.
    """
    code = function.__code__
    path = Path(code.co_filename)
    if not path.is_file():
        return ""
    of_file = _digest_of_file(path, path.stat().st_mtime_ns)
    what = f"{of_file} {code.co_firstlineno} {code.co_code.hex()}"
    return hashlib.sha256(what.encode()).hexdigest()


@functools.cache
def _digest_of_file(path: Path, mtime_ns: int) -> str:
    """Return a digest of a file, which is read again when `mtime_ns` has changed."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def kernel(function: Callable[..., Any], variant: str = "") -> Any:
    """Decorator: compile `function` at its first call, and keep the machine code.

    Its name identifies it in the cache; `variant` tells apart those that one function makes, which
    close over different numbers or kernels. Without it, raise TypeError if it closes over any.
    """
    if function.__closure__ and not variant:
        names = ", ".join(function.__code__.co_freevars)
        raise TypeError(f"{function.__qualname__} closes over {names}; tell it apart by a variant")
    if DISABLE_JIT:
        return function
    function.__qualname__ += variant
    return Kernel(function)
