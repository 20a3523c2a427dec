"""Machine code of kernels: the cache on disk, how it is loaded without numba, how it is called.

What numba compiles (`bpe.kernels.compiler`) is kept as one object file for each kernel and kind of
arguments, which LLVM (llvmlite) loads into the process: importing numba takes 0.3 s and 65 MB,
which a process that only runs kernels does not spend.

Machine code is called with the address of a block of 64-bit words. An integer or truth value is one
word; an array is its address and its sizes; a tuple of arrays is the address of a block of its own.
The words of the results follow. Machine code cannot see what it is given, so the kind of every
argument is determined in Python, and code is chosen by these kinds.

A stale kernel never runs: every state of the sources and of numba has a directory of its own
(`bpe.cache`), and a file is used only for the kernel, kinds and processor that it names.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import pickle
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bpe.cache import Cache, digest_of

_PACKAGE = Path(__file__).resolve().parent.parent


def sources() -> list[Path]:
    """The files whose content decides what the kernels do, in a fixed order: code and tables."""
    return [*sorted((_PACKAGE / "kernels").glob("*.py")), *sorted(_PACKAGE.glob("unicode_*"))]


def source_digest() -> str:
    """Hexadecimal digest of all kernel sources and tables, and of what compiles them."""
    # The file in which a package says its version, read without importing the package.
    versions = [
        Path(spec.origin).with_name("_version.py")
        for name in ("numba", "llvmlite")
        if (spec := find_spec(name)) is not None and spec.origin is not None
    ]
    about = f"{sys.implementation.cache_tag} {sys.byteorder} numpy {np.__version__}"
    return digest_of(about, [*versions, *sources()])


# Of the sources as they are now, before they are imported: who edits them later runs the old ones.
_DIGEST = source_digest()


@functools.cache
def kept_code() -> Cache:
    """Where machine code is kept."""
    return Cache(f"kernels-{_DIGEST}", "kernels are compiled anew")


def numba_settings() -> list[str]:
    """What numba is told by its settings, to check bounds for one: that makes other code."""
    settings = [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR"
    ]
    # Numba takes it from where it is imported.
    file = Path(".numba_config.yaml")
    return [*settings, repr(file.read_bytes())] if file.is_file() else settings


class KernelError(TypeError):
    """A kernel does what kernels cannot, or is called with what no kernel takes."""


class MachineCode(NamedTuple):
    """A compiled kernel, as it is kept.

    Attributes:
        what: Which kernel, for which arguments and which processor.
        entry: Name of the C function.
        results: The kind of each number that it returns: "int", "uint" or "bool".
        is_tuple: Whether those are returned as a tuple.
        object_file: What LLVM made.
    """

    what: str
    entry: str
    results: tuple[str, ...]
    is_tuple: bool
    object_file: bytes


def load(name: str, what: str) -> MachineCode | None:
    """Return what was kept under a name; None if there is nothing, or it is for something else."""
    content = kept_code().read(name)
    if content is None:
        return None
    head, _, object_file = bytes(content).partition(b"\n")
    found_what, entry, results, is_tuple = json.loads(head)
    if found_what != what:
        return None
    return MachineCode(what, entry, tuple(results), is_tuple, object_file)


def save(name: str, code: MachineCode) -> None:
    """Keep it for other processes."""
    kept_code().write(name, json.dumps(code[:-1]).encode() + b"\n" + code.object_file)


class Linker:
    """Loads machine code into the process.

    Attributes:
        processor: What machine code is compiled for.
    """

    def __init__(self) -> None:
        from llvmlite import binding

        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        self._binding = binding
        self.processor = " ".join(
            [
                binding.get_process_triple(),
                binding.get_host_cpu_name(),
                binding.get_host_cpu_features().flatten(),
            ]
        )
        machine = binding.Target.from_default_triple().create_target_machine()
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
        self._addresses: dict[str, int] = {}

    def address(self, code: MachineCode) -> int:
        """Return the address of a kernel's entry."""
        if code.entry not in self._addresses:
            object_file = self._binding.ObjectFileRef.from_data(code.object_file)
            self._engine.add_object_file(object_file)
            self._engine.finalize_object()
            self._addresses[code.entry] = self._engine.get_function_address(code.entry)
        return self._addresses[code.entry]


OK, ERROR = range(2)
"""Status that an entry returns: it ran; it raised."""

_READ: dict[str, Callable[[int], Any]] = {
    "int": int,
    "uint": lambda word: word & (2**64 - 1),
    "bool": bool,
}


class Entry:
    """Machine code in the process.

    Args:
        code: What was compiled.
        address: Where it is.
        n_words: Words of its arguments.
    """

    def __init__(self, code: MachineCode, address: int, n_words: int) -> None:
        self._function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(address)
        self._n_words = n_words
        # A word for what was raised, at least. Instances of a subclass can have attributes.
        words = ctypes.c_int64 * (n_words + max(1, len(code.results)))
        self._block_type = type("Block", (words,), {})
        self._read = [(_READ[kind], n_words + number) for number, kind in enumerate(code.results)]
        self._is_tuple = code.is_tuple

    def block(self, words: list[int]) -> Any:
        """Return a block with these words for the arguments, for one call at a time."""
        return self._block_type(*words)

    def run(self, block: Any) -> Any:
        """Return what the kernel returns.

        Raises:
            Whatever the kernel raises.
        """
        if self._function(block) != OK:
            raise _raised(block[self._n_words])
        if self._is_tuple:
            return tuple([read(block[place]) for read, place in self._read])
        return self._read[0][0](block[self._read[0][1]]) if self._read else None


class _Raised(ctypes.Structure):
    """Numba's record of an exception that a kernel raised: its address and size, pickled."""

    _fields_ = (("pickled", ctypes.c_void_p), ("n_bytes", ctypes.c_int32))


def _raised(address: int) -> Exception:
    at = _Raised.from_address(address)
    cls, arguments, *_ = pickle.loads(ctypes.string_at(at.pickled, at.n_bytes))
    error: Exception = cls(*arguments or ())
    return error


# Truth values, and the integers and floating numbers that every machine has.
_DTYPES = {np.dtype(character): np.dtype(character).name for character in "?bBhHiIlLqQfd"}


_kinds: dict[Any, Any] = {}


class Packed:
    """A tuple of arrays as a block of words, which any number of calls use.

    The arrays stay where they are as long as this object lives.

    Args:
        values: The tuple.

    Raises:
        KernelError: It holds something that no kernel takes.
    """

    def __init__(self, values: tuple[Any, ...]) -> None:
        words: list[int] = []
        self.values, self._keep = values, list[Packed]()
        kinds = tuple([append(value, words, self._keep) for value in values])
        # The same object for all of a kind.
        kind = "tuple", type(values), kinds
        self.kind = _kinds.setdefault(kind, kind)
        self._block = (ctypes.c_int64 * len(words))(*words)
        self.address = ctypes.addressof(self._block)

    def __reduce__(self) -> tuple[Any, ...]:
        return Packed, (self.values,)


def append(value: Any, words: list[int], keep: list[Packed]) -> Any:
    """Append the words of an argument, and what must live until the call is over to `keep`.

    Returns:
        Its kind, which decides what machine code it needs: "int", "uint" or "bool"; ("array", name
        of the element type, dimensions, whether it is writable); ("tuple", class, kinds).

    Raises:
        KernelError: No kernel takes such a value.
    """
    cls = type(value)
    # A map of a file is an array like others; what other classes hide is not for kernels.
    if cls is np.ndarray or cls is np.memmap:
        name, flags = _DTYPES.get(value.dtype), value.flags
        if name is not None and flags.c_contiguous and flags.aligned:
            words.append(value.ctypes.data)
            words.extend(value.shape)
            return "array", name, value.ndim, flags.writeable
    elif cls is Packed:
        words.append(value.address)
        return value.kind
    elif cls is bool or cls is np.bool_:
        words.append(bool(value))
        return "bool"
    elif cls is np.uint64 or (cls is int and 2**63 <= value < 2**64):
        words.append(int(value))
        return "uint"
    elif cls is np.int64 or (cls is int and -(2**63) <= value < 2**63):
        words.append(int(value))
        return "int"
    elif isinstance(value, tuple):
        packed = Packed(value)
        keep.append(packed)
        words.append(packed.address)
        return packed.kind
    raise KernelError(
        "kernels take integers of 64 bits, truth values, contiguous arrays of numbers, and tuples"
        f" of these; found {_described(value)}"
    )


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"a {type(value).__name__} of {value.dtype} with the strides {value.strides}"
    return f"{value!r} ({type(value).__name__})"


def spelled(kind: Any) -> str:
    """Return a kind of arguments as text, the same in every process."""
    if isinstance(kind, str):
        return kind
    if kind[0] == "tuple":
        fields = getattr(kind[1], "_fields", ())
        name = f"{kind[1].__module__}.{kind[1].__qualname__}"
        return f"{name}{fields}({', '.join(map(spelled, kind[2]))})"
    _, dtype, n_dimensions, writable = kind
    return f"{'' if writable else 'const '}{dtype}[{n_dimensions}]"
