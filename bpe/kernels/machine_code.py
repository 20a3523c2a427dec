"""Machine code of kernels: the cache on disk, and how it comes into the process without numba.

What numba compiles (`bpe.kernels.compiler`) is kept as one object file for each kernel and kind of
arguments, and LLVM links that into the process (llvmlite). To import numba takes a fifth of a
second and more, which a process that only runs kernels need not spend.

Law: a stale kernel can never run. Every state of the sources, of numba and of how Python and NumPy
lay out objects has a directory of its own (`bpe.cache`); a file says what it is for, and is taken
for nothing else.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bpe.cache import Cache, digest_of

_PACKAGE = Path(__file__).resolve().parent.parent


def sources() -> list[Path]:
    """The files whose content decides what the kernels do, in a fixed order: code and tables."""
    return [*sorted((_PACKAGE / "kernels").glob("*.py")), *sorted(_PACKAGE.glob("unicode_*"))]


def _layout() -> str:
    """What decides how an object of Python or NumPy lies in memory, and what code there is."""
    headers = [each.__basicsize__ for each in (object, tuple, np.ndarray)]
    return f"{sys.implementation.cache_tag} {sys.byteorder} {headers} numpy {np.__version__}"


def source_digest() -> str:
    """Hexadecimal digest of all kernel sources and tables, and of what compiles and calls them."""
    # The file in which a package says its version, read without importing the package.
    versions = [
        Path(spec.origin).with_name("_version.py")
        for name in ("numba", "llvmlite")
        if (spec := find_spec(name)) is not None and spec.origin is not None
    ]
    return digest_of(_layout(), [*versions, *sources()])


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


class MachineCode(NamedTuple):
    """A compiled kernel, as it is kept.

    Attributes:
        what: Which kernel, for which arguments and which processor.
        entry: The name of the function that is called.
        results: The kind of each number that it returns: "int", "uint" or "bool".
        many: Whether those are returned as a tuple.
        dtypes: The element types of the arrays that it looks for.
        object_file: What LLVM made.
    """

    what: str
    entry: str
    results: tuple[str, ...]
    many: bool
    dtypes: tuple[str, ...]
    object_file: bytes


def load(name: str, what: str) -> MachineCode | None:
    """What was kept under a name, or None: nothing, or it is damaged, or for something else."""
    content = kept_code().read(name)
    if content is None:
        return None
    head, _, object_file = bytes(content).partition(b"\n")
    found_what, entry, results, many, dtypes = json.loads(head)
    if found_what != what:
        return None
    return MachineCode(what, entry, tuple(results), many, tuple(dtypes), object_file)


def save(name: str, code: MachineCode) -> None:
    """Keep it for other processes."""
    kept_code().write(name, json.dumps(code[:-1]).encode() + b"\n" + code.object_file)


class Linker:
    """LLVM, as far as it is needed to bring machine code into the process."""

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
        self._known: dict[str, object] = {}
        self._addresses: dict[str, int] = {}

    def address(self, code: MachineCode, classes: dict[str, type]) -> int:
        """Where the entry of a kernel is, once it is linked with the types that it looks for.

        Args:
            code: What was compiled.
            classes: Those of tuples among its arguments, by `name_of_class`.
        """
        dtypes = {f"dtype {name}": np.dtype(name) for name in code.dtypes}
        for name, value in {"numpy.ndarray": np.ndarray, **classes, **dtypes}.items():
            # What has a name here stays for ever: its address is in the machine code.
            if self._known.setdefault(name, value) is not value:
                raise TypeError(
                    f"two classes are called {name}: kernels know tuples by the names of their"
                    " classes; give the second one another name, or start a new process"
                )
            self._binding.add_symbol(f"tokenbin {name}", id(value))
        if code.entry not in self._addresses:
            object_file = self._binding.ObjectFileRef.from_data(code.object_file)
            self._engine.add_object_file(object_file)
            self._engine.finalize_object()
            self._addresses[code.entry] = self._engine.get_function_address(code.entry)
        return self._addresses[code.entry]


OK, MISMATCH, ERROR = range(3)
"""What the entry of a kernel returns: it ran; an argument is not what it takes; it raised."""


# The characters by which NumPy knows truth values, and the integers and floating numbers that every
# machine has.
_ELEMENTS = "?bBhHiIlLqQfd"


def kind_of(value: Any) -> Any:
    """What decides which machine code is for an argument.

    Returns:
        "int", "uint" or "bool"; ("array", type of the elements, dimensions, whether it can be
        written); ("tuple", class, kinds of the values).

    Raises:
        TypeError: No kernel takes such a value.
    """
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, np.uint64) or (type(value) is int and 2**63 <= value < 2**64):
        return "uint"
    if isinstance(value, np.int64) or (type(value) is int and -(2**63) <= value < 2**63):
        return "int"
    if isinstance(value, tuple):
        kinds = tuple(map(kind_of, value))
        # A number inside of a tuple is an object whose layout Python does not promise.
        if not any(isinstance(kind, str) for kind in kinds):
            return "tuple", type(value), kinds
    # A map of a file is an array like others; what other classes hide is not for kernels.
    elif type(value) in (np.ndarray, np.memmap):
        is_plain = value.dtype.isnative and value.dtype.char in _ELEMENTS
        if is_plain and value.flags.c_contiguous and value.flags.aligned:
            return "array", value.dtype.name, value.ndim, bool(value.flags.writeable)
    raise TypeError(
        "kernels take integers of 64 bits, truth values, contiguous arrays of numbers, and tuples"
        f" of arrays; found {_described(value)}"
    )


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"a {type(value).__name__} of {value.dtype} with the strides {value.strides}"
    return f"{value!r} ({type(value).__name__})"


def spelled(kind: Any) -> str:
    """A kind of arguments as text, the same in every process."""
    if isinstance(kind, str):
        return kind
    if kind[0] == "tuple":
        fields = getattr(kind[1], "_fields", ())
        return f"{name_of_class(kind[1])}{fields}({', '.join(map(spelled, kind[2]))})"
    _, dtype, n_dimensions, writable = kind
    return f"{'' if writable else 'const '}{dtype}[{n_dimensions}]"


def name_of_class(cls: type) -> str:
    """What machine code calls a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def plain(value: Any) -> Any:
    """An argument as the machine code recognises it."""
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, np.int64):
        return int(value)
    if type(value) is int and value >= 2**63:
        return np.uint64(value)
    if isinstance(value, np.ndarray):
        # An equal type of elements may be another object.
        return np.asarray(value).view(np.dtype(value.dtype.name))
    if isinstance(value, tuple):
        values = map(plain, value)
        return type(value)(*values) if hasattr(value, "_fields") else tuple(values)
    return value
