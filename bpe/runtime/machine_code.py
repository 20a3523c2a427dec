"""Machine code of kernels: the cache on disk, loading it without numba, calling it.

The code that `compiler` makes with numba is kept as one object file for each kernel and kind of
arguments, which LLVM (llvmlite) loads into the process: importing numba takes 0.3 s and 65 MB,
which a process that only runs kernels does not spend.

Machine code is called with the address of a block of 64-bit words. An integer or truth value is one
word; an array is its address and its sizes; a tuple of arrays is the address of a block of its own.
The words of the results follow. Machine code does not check its arguments: Python determines the
kind of each and chooses the code by these kinds.

A stale kernel never runs: every state of the sources and of numba has a directory of its own
(`bpe.runtime.user_cache`), and a file is used only for the kernel, kinds and processor it names.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import os
import pickle
import sys
from array import array
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bpe.runtime.user_cache import Cache

_SPARE_BYTES = 1 << 22  # more than LLVM needs to load a kernel, besides its code


def _source_digest() -> str:
    """Return the hexadecimal digest of kernel sources and tables, and of what compiles them."""
    package = Path(__file__).resolve().parents[1]
    sources = [path for path in sorted(package.rglob("*.py")) if b"\n@kernel" in path.read_bytes()]
    sources += [*sorted(Path(__file__).parent.glob("*.py")), *sorted(package.glob("unicode_*"))]
    # The file in which a package states its version, read without importing the package.
    versions = [
        Path(spec.origin).with_name("_version.py")
        for name in ("numba", "llvmlite")
        if (spec := find_spec(name)) is not None and spec.origin is not None
    ]
    about = f"{sys.implementation.cache_tag} {sys.byteorder} numpy {np.__version__}"
    digest = hashlib.sha256(about.encode())
    for path in [*versions, *sources]:
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"\0{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:32]


# Of the sources before they are imported: after an edit, this process runs the old ones.
_DIGEST = _source_digest()


@functools.cache
def kept_code() -> Cache:
    """Return the cache of machine code."""
    return Cache(f"kernels-{_DIGEST}")


def numba_settings() -> list[str]:
    """Return the settings of numba, such as bounds checks, which change the machine code."""
    settings = [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith("NUMBA_") and name != "NUMBA_CACHE_DIR"
    ]
    # Numba reads it from the current directory.
    file = Path(".numba_config.yaml")
    return [*settings, repr(file.read_bytes())] if file.is_file() else settings


class KernelError(TypeError):
    """A kernel uses something unsupported, or is called with unsupported arguments."""


class MachineCode(NamedTuple):
    """A compiled kernel, as it is kept."""

    what: str  # which kernel, for which arguments and which processor
    entry: str  # name of the C function
    results: tuple[str, ...]  # the kind of each number that it returns: "int", "uint" or "bool"
    is_tuple: bool  # whether those are returned as a tuple
    object_file: bytes  # the output of LLVM


def load(name: str, what: str) -> MachineCode | None:
    """Return what was kept under a name; None if there is nothing, or it is for something else."""
    content = kept_code().read(name)
    code: MachineCode | None = None if content is None else pickle.loads(content)
    return code if code is not None and code.what == what else None


def save(name: str, code: MachineCode) -> None:
    """Keep it for other processes."""
    kept_code().write(name, pickle.dumps(code))


@functools.cache
def processor() -> str:
    """Return what machine code is compiled for."""
    from llvmlite import binding

    features = binding.get_host_cpu_features().flatten()
    return f"{binding.get_process_triple()} {binding.get_host_cpu_name()} {features}"


@functools.cache
def _engine() -> Any:
    """Return LLVM's engine, which loads object files into the process."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine()
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


_addresses: dict[str, int] = {}


def _address(code: MachineCode) -> int:
    """Return the address of a kernel's entry, loaded once."""
    if code.entry not in _addresses:
        from llvmlite import binding

        try:
            mmap.mmap(-1, _SPARE_BYTES + 4 * len(code.object_file)).close()
        except OSError as error:
            # LLVM would end the process.
            raise MemoryError("there is no memory to load the machine code of a kernel") from error
        _engine().add_object_file(binding.ObjectFileRef.from_data(code.object_file))
        _engine().finalize_object()
        _addresses[code.entry] = _engine().get_function_address(code.entry)
    return _addresses[code.entry]


OK, ERROR = range(2)
"""Status that an entry returns: success; an exception was raised."""

_READ: dict[str, Callable[[int], Any]] = {"int": int, "uint": lambda n: n % 2**64, "bool": bool}


class Entry:
    """Machine code in the process, called with arguments of `n_words` words.

    Not to be created on two threads at the same time.
    """

    def __init__(self, code: MachineCode, n_words: int) -> None:
        self._function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(_address(code))
        self._n_words = n_words
        self._no_results = [0] * max(1, len(code.results))  # at least a word for an exception
        self._read = [(_READ[kind], n_words + number) for number, kind in enumerate(code.results)]
        self._is_tuple = code.is_tuple

    def block(self, words: list[int]) -> array[int]:
        """Return a block with these argument words, for one call at a time."""
        return array("q", words + self._no_results)

    def run(self, block: array[int], address: int) -> Any:
        """Run the kernel with the block at an address: return or raise what it does."""
        if self._function(address) != OK:
            raise _raised(block[self._n_words])
        if self._is_tuple:
            return tuple([read(block[place]) for read, place in self._read])
        return self._read[0][0](block[self._read[0][1]]) if self._read else None


def _raised(address: int) -> Exception:
    """Return a kernel's exception from numba's record of it: address and size of a pickle."""
    pickled = ctypes.c_void_p.from_address(address).value
    n_bytes = ctypes.c_int32.from_address(address + ctypes.sizeof(ctypes.c_void_p)).value
    cls, arguments, *_ = pickle.loads(ctypes.string_at(pickled or 0, n_bytes))
    error: Exception = cls(*arguments or ())
    return error


# Truth values, and the integers and floating numbers that every machine has.
_DTYPES = {np.dtype(character): np.dtype(character).name for character in "?bBhHiIlLqQfd"}

_kinds: dict[Any, Any] = {}

_from_buffer, _addressof = ctypes.c_char.from_buffer, ctypes.addressof


class Packed:
    """A tuple of arrays as a block of words, for any number of calls; keeps the arrays alive.

    Raises:
        KernelError: No kernel takes one of the values.
    """

    def __init__(self, values: tuple[Any, ...]) -> None:
        words: list[int] = []
        self.values, self._keep = values, list[Packed]()
        kinds = tuple([append(value, words, self._keep) for value in values])
        # The same object for equal kinds, which `Kernel.bind` compares by identity.
        kind = "tuple", type(values), kinds
        self.kind = _kinds.setdefault(kind, kind)
        self._block = array("q", words)
        self.address, _ = self._block.buffer_info()

    def __reduce__(self) -> tuple[Any, ...]:
        return Packed, (self.values,)


def append(value: Any, words: list[int], keep: list[Packed]) -> Any:
    """Append the words of an argument to `words`, and what must outlive the call to `keep`.

    Returns:
        Its kind, by which machine code is chosen: "int", "uint" or "bool"; ("array", name of the
        element type, dimensions, whether it is writable); ("tuple", class, kinds).

    Raises:
        KernelError: No kernel takes such a value.
    """
    cls = type(value)
    # Other subclasses of arrays, as masked ones, mean more than their elements.
    if cls is np.ndarray or cls is np.memmap:
        name, flags, shape = _DTYPES.get(value.dtype), value.flags, value.shape
        if name is not None and flags.c_contiguous and flags.aligned:
            is_writable = flags.writeable
            if is_writable and 0 not in shape:  # a quarter of the time of `ctypes.data`
                words.append(_addressof(_from_buffer(value)))
            else:
                words.append(value.ctypes.data)
            words.extend(shape)
            return "array", name, len(shape), is_writable
    elif cls is int and -(2**63) <= value < 2**63:
        words.append(value)
        return "int"
    elif cls is Packed:
        words.append(value.address)
        return value.kind
    elif cls is bool or cls is np.bool_:
        words.append(bool(value))
        return "bool"
    elif cls is np.uint64 or (cls is int and 2**63 <= value < 2**64):
        words.append((int(value) ^ 1 << 63) - (1 << 63))  # the same 64 bits
        return "uint"
    elif cls is np.int64:
        words.append(int(value))
        return "int"
    elif isinstance(value, tuple):
        packed = Packed(value)
        keep.append(packed)
        words.append(packed.address)
        return packed.kind
    found = f"{value!r} ({cls.__name__})"
    if isinstance(value, np.ndarray):
        found = f"a {cls.__name__} of {value.dtype} with the strides {value.strides}"
    raise KernelError(
        "kernels take 64-bit integers, bools, aligned C-contiguous numeric arrays, and tuples of"
        f" these; found {found}"
    )


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
