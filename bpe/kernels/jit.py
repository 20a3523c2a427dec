"""Kernels: functions that are compiled for the arguments they are called with.

Law: a kernel is never given what it was not compiled for. The first instructions of its machine
code look whether every argument has the type, the number of dimensions and the order in memory that
it takes; where one has not, other machine code is looked for, in the process, in the cache, and by
compiling it, which is said. `bpe.kernels.machine_code` says what else can never run.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bpe.cache import say_once
from bpe.kernels import machine_code
from bpe.kernels.machine_code import (
    ERROR,
    MISMATCH,
    MachineCode,
    kind_of,
    name_of_class,
    plain,
    spelled,
)

# Whether kernels are run as they are written, by Python.
DISABLE_JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")

_lock = threading.RLock()
_linker = functools.cache(machine_code.Linker)
if hasattr(os, "register_at_fork"):
    # A child has no thread that would let go what another one held at that moment.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )

_C_TYPES = {"int": ctypes.c_int64, "uint": ctypes.c_uint64, "bool": ctypes.c_int64}
# Kind of a number -> the class that stands for it, and its range.
_NUMBERS: dict[str, tuple[type, int, int]] = {
    "int": (int, -(2**63), 2**63 - 1),
    "uint": (np.uint64, 0, 2**64 - 1),
    "bool": (bool, False, True),
}
_READ: dict[str, Callable[[int], Any]] = {
    "int": int,
    "uint": lambda word: word & (2**64 - 1),
    "bool": bool,
}


class _Specialization:
    """A kernel for one kind of arguments, linked into the process.

    Args:
        code: What was compiled.
        kinds: Of its arguments.
    """

    def __init__(self, code: MachineCode, kinds: tuple[Any, ...]) -> None:
        self.kinds = kinds
        classes: dict[str, type] = {}
        _collect_classes(kinds, classes)
        # Numbers are handed over as such; of all else the machine code looks at the object.
        types = [_C_TYPES.get(kind, ctypes.py_object) for kind in kinds]
        prototype = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, *types)
        self._entry = prototype(_linker().address(code, classes))
        self._numbers: list[tuple[int, Any, int, int]] = [
            (place, *_NUMBERS[kind]) for place, kind in enumerate(kinds) if kind in _NUMBERS
        ]
        # A place for what was raised, at least.
        self._results = ctypes.c_int64 * max(1, len(code.results))
        self._read = [_READ[kind] for kind in code.results]
        self._many = code.many

    def call(self, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        """(whether the arguments are of its kinds, what the kernel returned).

        Raises:
            Whatever the kernel raises.
        """
        if len(arguments) != len(self.kinds):
            return False, None
        for place, cls, low, high in self._numbers:
            value = arguments[place]
            if type(value) is not cls or not low <= value <= high:
                return False, None
        results = self._results()
        status = self._entry(results, *arguments)
        if status == MISMATCH:
            return False, None
        if status == ERROR:
            raise _raised(results[0])
        if self._many:
            return True, tuple([read(word) for read, word in zip(self._read, results, strict=True)])
        return True, self._read[0](results[0]) if self._read else None


def _collect_classes(kinds: tuple[Any, ...], classes: dict[str, type]) -> None:
    """The classes of tuples, under the names by which machine code asks for them."""
    for kind in kinds:
        if kind[0] == "tuple":
            classes[name_of_class(kind[1])] = kind[1]
            _collect_classes(kind[2], classes)


class _Raised(ctypes.Structure):
    """Where numba keeps what a kernel raises, pickled."""

    _fields_ = (("pickled", ctypes.c_void_p), ("n_bytes", ctypes.c_int32))


def _raised(address: int) -> Exception:
    at = _Raised.from_address(address)
    cls, arguments, *_ = pickle.loads(ctypes.string_at(at.pickled, at.n_bytes))
    error: Exception = cls(*arguments or ())
    return error


class Kernel:
    """A function that is compiled for the arguments it is called with, and runs without the GIL.

    Args:
        function: What it does. It sees arrays, numbers and tuples of arrays, allocates nothing and
            returns numbers.

    Attributes:
        name: Of the module and of the function.
        py_func: The function.
        dispatcher: What numba knows it as, where it has been compiled in this process.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        self.__doc__ = function.__doc__
        self.py_func = function
        self.dispatcher: Any = None
        # As it is now: who edits the module later runs what was imported.
        self._source = _source_of(function)
        self._specializations: tuple[_Specialization, ...] = ()

    def __call__(self, *arguments: Any) -> Any:
        """Run it.

        Raises:
            TypeError: It takes no such arguments.
            Whatever it raises.
        """
        for specialization in self._specializations:
            fits, result = specialization.call(arguments)
            if fits:
                return result
        # None that is there, or none that recognises them as they are.
        kinds = tuple(map(kind_of, arguments))
        fits, result = self._specialization(kinds).call(tuple(map(plain, arguments)))
        if not fits:
            raise TypeError(
                f"{self.name}: its machine code refuses ({', '.join(map(spelled, kinds))}), for"
                " which it was compiled; Python's or NumPy's objects do not lie in memory as they"
                " did then: remove the kernels in the cache"
            )
        return result

    def _specialization(self, kinds: tuple[Any, ...]) -> _Specialization:
        """The one for these kinds of arguments, loaded or compiled if it is not there yet."""
        with _lock:
            for specialization in self._specializations:
                if specialization.kinds == kinds:
                    return specialization
            specialization = _Specialization(self._machine_code(kinds), kinds)
            self._specializations += (specialization,)
            return specialization

    def _machine_code(self, kinds: tuple[Any, ...]) -> MachineCode:
        arguments = ", ".join(map(spelled, kinds))
        about = [_linker().processor, machine_code.numba_settings(), self._source]
        what = f"{self.name}({arguments}) {about}"
        digest = hashlib.sha256(what.encode()).hexdigest()[:32]
        name = f"{self.name}-{digest}.o"
        if self._source and (found := machine_code.load(name, what)) is not None:
            return found
        say_once("compiling kernels for this machine; this happens once and takes up to a minute")
        from bpe.kernels.compiler import compiled

        code = compiled(self, kinds, what, f"tokenbin_{digest}")
        if self._source:
            machine_code.save(name, code)
        return code


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
