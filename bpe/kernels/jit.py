"""Kernels: functions that are compiled for the arguments they are called with.

Machine code is chosen by the kinds of the arguments (`bpe.kernels.machine_code`): what is in the
process, else what is in the cache, else it is compiled, which is reported.
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

import numpy as np

from bpe.cache import say_once
from bpe.kernels import machine_code
from bpe.kernels.machine_code import Entry, KernelError, MachineCode, Packed, append, spelled

# Whether kernels are run as they are written, by Python.
DISABLE_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")

_lock = threading.RLock()
_linker = functools.cache(machine_code.Linker)
if hasattr(os, "register_at_fork"):
    # A child has no thread that would release what another one held at that moment.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


# Not empty while somebody else reports that kernels are compiled.
_reported_elsewhere: list[None] = []


@contextlib.contextmanager
def reported_elsewhere() -> Iterator[None]:
    """Say nothing of compiling inside the `with`."""
    _reported_elsewhere.append(None)
    try:
        yield
    finally:
        _reported_elsewhere.pop()


class Kernel:
    """A function that is compiled for the arguments it is called with, and runs without the GIL.

    Args:
        function: What it does. It sees arrays, numbers and tuples of these, allocates nothing and
            returns numbers.

    Attributes:
        name: Of the module and of the function.
        py_func: The function.
        callee: What the compiler knows it as, where it has been compiled in this process.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        self.__doc__ = function.__doc__
        self.py_func = function
        self.callee: Any = None
        # As it is now: who edits the module later runs what was imported.
        self._source = _source_of(function)
        self.has_source = bool(self._source)
        self._entries: dict[tuple[Any, ...], Entry] = {}
        self._by_numba: Callable[..., Any] | None = None

    def __call__(self, *arguments: Any) -> Any:
        """Run it.

        Raises:
            KernelError: It takes no such arguments.
            Whatever it raises.
        """
        words: list[int] = []
        keep: list[Packed] = []
        entry = self._entry(arguments, words, keep)
        if entry is None:
            return self._run_by_numba(*arguments)
        return entry.run(entry.block(words))

    def bind(self, first: Packed, *others: Any) -> Callable[[Any], Any]:
        """Return a function of the first argument, which has the others packed.

        It is for one thread at a time, and for first arguments of the kind of this one.
        """
        words: list[int] = []
        keep: list[Packed] = []
        entry = self._entry((first, *others), words, keep)
        if entry is None:
            return lambda first: self._run_by_numba(first, *others)
        block, run, kind = entry.block(words), entry.run, first.kind
        block.keep = others, keep

        def call(first: Packed) -> Any:
            if first.kind is not kind:
                raise KernelError(f"{self.name} is bound to first arguments of another kind")
            block[0] = first.address
            return run(block)

        return call

    @property
    def is_loaded(self) -> bool:
        """True if it has been compiled, or loaded, for some arguments."""
        return bool(self._entries) or self._by_numba is not None

    def _entry(
        self, arguments: tuple[Any, ...], words: list[int], keep: list[Packed]
    ) -> Entry | None:
        """Return the machine code for arguments, which are appended as words; None: numba's way."""
        kinds = tuple([append(each, words, keep) for each in arguments])
        entry = self._entries.get(kinds)
        if entry is not None or self._by_numba is not None:
            return entry
        with _lock:
            if kinds not in self._entries:
                code = self._machine_code(kinds)
                if code is None:
                    return None
                self._entries[kinds] = Entry(code, _linker().address(code), len(words))
            return self._entries[kinds]

    def _run_by_numba(self, *arguments: Any) -> Any:
        assert self._by_numba is not None
        return self._by_numba(
            *[each.values if isinstance(each, Packed) else each for each in arguments]
        )

    def _machine_code(self, kinds: tuple[Any, ...]) -> MachineCode | None:
        arguments = ", ".join(map(spelled, kinds))
        about = [_linker().processor, machine_code.numba_settings(), self._source]
        what = f"{self.name}({arguments}) {about}"
        digest = hashlib.sha256(what.encode()).hexdigest()[:32]
        name = f"{self.name}-{digest}.o"
        if self._source and (found := machine_code.load(name, what)) is not None:
            return found
        if not _reported_elsewhere:
            say_once("compiling kernels for this machine; this happens once and takes 20 seconds")
        code = self._compiled(kinds, what, f"tokenbin_{digest}")
        if self._source and code is not None:
            machine_code.save(name, code)
        return code

    def _compiled(self, kinds: tuple[Any, ...], what: str, entry: str) -> MachineCode | None:
        """Compile it; None if that must be left to `numba.njit`, which is reported."""
        try:
            code: MachineCode = _checked_compiler().compiled(self, kinds, what, entry)
            return code
        except KernelError:
            raise
        except Exception as error:  # noqa: BLE001 (reported; numba says what is wrong with a kernel)
            import numba

            from bpe.kernels import plain_numba

            say_once(
                "kernels run as numba.njit compiles them, which takes longer to compile and to run:"
                " compiling with numba %s as tokenbin does it failed (%s: %s)",
                numba.__version__,
                type(error).__name__,
                error,
            )
            self._by_numba = plain_numba.dispatcher(self, Kernel)
            return None


def pack(values: Any) -> Any:
    """Return a tuple of arrays with the addresses of these, for many calls of kernels."""
    return values if DISABLE_JIT else Packed(values)


def bind(function: Any, first: Any, *others: Any) -> Callable[[Any], Any]:
    """Return a function of the first argument of a kernel, see `Kernel.bind`."""
    if DISABLE_JIT:
        return lambda first: function(first, *others)
    bound: Callable[[Any], Any] = function.bind(first, *others)
    return bound


def _source_of(function: Callable[..., Any]) -> str:
    """What decides what a kernel does, beside what the directory of the cache is named by.

    Kernels of one module call one another, and take numbers from it. It is "" of one that is in no
    file, as by `python -c`: its machine code is not kept.
    """
    code = function.__code__
    path = Path(code.co_filename)
    if not path.is_file():
        return ""
    state = path.stat()
    of_file = _digest_of_file(path, state.st_mtime_ns, state.st_size)
    return hashlib.sha256(
        f"{of_file} {code.co_firstlineno} {code.co_code.hex()}".encode()
    ).hexdigest()


@functools.cache
def _digest_of_file(path: Path, mtime_ns: int, size: int) -> str:
    """Of its content; the other two say which state of the file that is."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _own_name(function: Callable[..., Any]) -> str:
    """The qualified name of a kernel; of one made inside a function with a digest of what it is.

    Machine code of several processes comes together in one, from the cache, and there names decide
    what is what: two kernels of one name that close over different numbers, or that one function
    makes in two ways, must not meet.

    Raises:
        TypeError: It closes over something else than numbers and kernels that are there already.
    """
    name = function.__qualname__
    if "<locals>" not in name:
        return name
    code = function.__code__
    constants = [each for each in code.co_consts if not hasattr(each, "co_code")]
    what = [code.co_firstlineno, code.co_code.hex(), constants, function.__defaults__]
    for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # what Python says of one that is made further down
            value = None
        if isinstance(value, Kernel):
            what.append(f"{value.py_func.__module__}.{value.py_func.__qualname__}")
        elif isinstance(value, int | np.generic):
            what.append(f"{type(value).__name__} {value!r}")
        else:
            raise TypeError(
                f"{name} closes over {variable}, {type(value).__name__}; kernels may close over"
                " numbers, and over kernels that are made before them"
            )
    return f"{name}_{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}"


def kernel(function: Callable[..., Any]) -> Any:
    """Decorator: compile `function` at its first call, and keep the machine code."""
    if DISABLE_JIT:
        return function
    function.__qualname__ = _own_name(function)
    return Kernel(function)


@kernel
def _callee_of_check(values, i):
    return values[i] + np.uint64(i)


@kernel
def _check(arrays, i):
    return _callee_of_check(arrays[0], i), arrays[1].size


@functools.cache
def _checked_compiler() -> Any:
    """Return `bpe.kernels.compiler` after compiling and running a small kernel with it.

    Raises:
        Exception: Of any type, where internals of numba or llvmlite have changed.
    """
    from bpe.kernels import compiler

    words: list[int] = []
    arguments = Packed((np.array([5, 6], np.uint64), np.zeros((2, 3), np.uint8))), 1
    kinds = tuple([append(each, words, []) for each in arguments])
    try:
        code = compiler.compiled(_check, kinds, "", "tokenbin_check")
    except KernelError as error:  # the small kernel is sound: the compiler is not
        raise RuntimeError(str(error)) from error
    entry = Entry(code, _linker().address(code), len(words))
    found = entry.run(entry.block(words))
    if found != (7, 6):
        raise RuntimeError(f"a kernel for a check returned {found}: expected (7, 6)")
    return compiler
