"""Compile kernels to machine code with numba's front end and one LLVM optimisation per entry.

The entry of a kernel is a C function that takes the address of a block of 64-bit words, laid out
by `machine_code`, and returns a status. Kernels that it calls are lowered to LLVM IR without
wrappers or dispatchers, linked into its module and optimised there, once.

This is the only module that relies on internals of numba and llvmlite, so their versions have upper
bounds: those that were tested. Where compiling a kernel fails, `bpe.runtime.jit` uses plain
`numba.njit(cache=True)`. Only this module, `plain_numba` and the intrinsics import numba.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler import Compiler, Flags, compile_extra
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys
from numba.core.types.containers import BaseTuple
from numba.core.types.misc import unliteral
from numba.core.typing import make_concrete_template
from numba.extending import typeof_impl
from numba.np import numpy_support

from bpe.runtime import intrinsics  # noqa: F401  (registers them)
from bpe.runtime.machine_code import ERROR, OK, KernelError, MachineCode

_I32, _I64 = ir.IntType(32), ir.IntType(64)

# What LLVM makes of loops; every process has it.
_C_LIBRARY = {"memcpy", "memmove", "memset", "memcmp", "bcmp"} | {
    f"memset_pattern{n}" for n in (4, 8, 16)  # macOS
}

# Kernels allocate nothing, so they need no reference counts (`_nrt`): several atomic instructions
# whenever an array is passed on or renamed took half of the time of splitting.
_OPTIONS = {"nopython": True, "nogil": True, "_nrt": False, "boundscheck": None}


class _Library(JITCodeLibrary):
    """LLVM IR of one function, unoptimised; `_optimized` links and optimises it in its entry."""

    def add_llvm_module(self, ll_module: Any) -> None:
        self._final_module.link_in(ll_module)

    def finalize(self) -> None:
        self._finalized = True


class _Codegen(JITCPUCodegen):
    _library_class = _Library


@functools.cache
def _context() -> Any:
    """Return numba's target context, with `_Codegen`."""
    cpu_target.target_context.refresh()
    return cpu_target.target_context.subtarget(_internal_codegen=_Codegen("kernels"))


class _Callee:
    """A kernel that another one calls, as `types.Dispatcher` expects it."""

    is_compiling = False  # kernels do not call themselves

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._lowered: dict[Any, tuple[Any, Any]] = {}

    def lowered(self, argument_types: tuple[Any, ...]) -> tuple[Any, Any]:
        """Return (numba's key of the function, the result of lowering it to LLVM IR)."""
        if argument_types not in self._lowered:
            context, flags = _context(), Flags()
            cpu_target.options.parse_as_flags(flags, _OPTIONS)
            flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
            result = compile_extra(
                cpu_target.typing_context, context, self._kernel.py_func, argument_types, None,
                flags, {}, library=context.codegen().create_library(self._kernel.name),
                pipeline_class=Compiler,
            )
            key = object()
            context.insert_user_function(key, result.fndesc, [result.library])
            self._lowered[argument_types] = key, result
        return self._lowered[argument_types]

    def get_call_template(self, arguments: Any, keywords: Any) -> Any:
        name = self._kernel.name
        if keywords:
            raise KernelError(f"{name}: kernels call kernels without keywords")
        # One specialization for all constants.
        plain = tuple(map(unliteral, arguments))
        _, result = self.lowered(plain)
        return make_concrete_template(name, name, [result.signature]), None, plain, {}

    def get_overload(self, arguments: Any) -> Any:
        return self.lowered(tuple(arguments))[0]


_callee = functools.cache(_Callee)


def _type_of_kernel(kernel: Any, context: Any) -> Any:
    callee: Any = _callee(kernel)
    return types.Dispatcher(callee)


def numba_type(kind: Any) -> Any:
    """Return numba's type of an argument of a kind, see `machine_code.append`."""
    if isinstance(kind, str):
        return {"int": types.int64, "uint": types.uint64, "bool": types.boolean}[kind]
    if kind[0] == "tuple":
        return BaseTuple.from_types(tuple(map(numba_type, kind[2])), kind[1])
    _, dtype, n_dimensions, writable = kind
    of_elements = numpy_support.from_dtype(np.dtype(dtype))
    return types.Array(of_elements, n_dimensions, "C", readonly=not writable)


def compiled(kernel: Any, kinds: tuple[Any, ...], what: str, entry: str) -> MachineCode:
    """Compile a `bpe.runtime.jit.Kernel` for arguments of these kinds; see `MachineCode`.

    Raises:
        KernelError: The kernel returns other things than numbers.
        NotImplementedError: It needs functions of numba.
    """
    with global_compiler_lock:
        module, results, is_tuple = linked(kernel, kinds, entry)
        object_file = bytes(_context().codegen()._tm.emit_object(module))
        return MachineCode(what, entry, results, is_tuple, object_file)


def linked(
    kernel: Any, kinds: tuple[Any, ...], entry: str
) -> tuple[Any, tuple[str, ...], bool]:
    """Return (optimized module of LLVM, `results` and `is_tuple` of `MachineCode`)."""
    with global_compiler_lock:
        kernels: Any = type(kernel)
        if kernels not in typeof_impl.registry:
            typeof_impl.register(kernels, _type_of_kernel)
        _, result = _callee(kernel).lowered(tuple(map(numba_type, kinds)))
        library = _context().codegen().create_library(entry)
        module = library.create_ir_module(entry)
        results = _write_entry(module, entry, kinds, result.fndesc, kernel.name)
        library.add_ir_module(module)
        library.add_linking_library(result.library)
        is_tuple = isinstance(result.fndesc.restype, BaseTuple)
        return _linked(library, entry, kernel.name), results, is_tuple


def _linked(library: Any, entry: str, name: str) -> Any:
    """Return one module of all functions that `entry` reaches, `entry` alone exported."""
    module, found, left = library._final_module, {library}, [library]
    while left:
        for each in left.pop()._linking_libraries:
            # Numba links its runtime everywhere; kernels use none of it.
            if each is not rtsys.library and each not in found:
                found.add(each)
                left.append(each)
                # Numba compiles its own functions, such as `max`, with its own code generation.
                is_ours = isinstance(each, _Library)
                part = each._final_module if is_ours else each._get_module_for_linking()
                module.link_in(part, preserve=True)
    for each in [*module.functions, *module.global_variables]:
        if not each.is_declaration and each.name != entry:
            each.linkage = "internal"
    library._optimize_functions(module)
    library._optimize_final_module()
    module = library._final_module
    module.verify()
    for each in [*module.functions, *module.global_variables]:
        own = each.name.startswith("llvm.") or each.name in _C_LIBRARY
        if each.is_declaration and not own:
            # A process that finds it in the cache may not have it.
            raise NotImplementedError(f"{name} needs {each.name}, which is outside of it")
    return module


def _write_entry(
    module: Any, entry: str, kinds: tuple[Any, ...], description: Any, name: str
) -> tuple[str, ...]:
    """Write the C function; return the kinds of its results."""
    context = _context()
    function = ir.Function(module, ir.FunctionType(_I32, [_I64.as_pointer()]), entry)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    (block,) = function.args
    returned, argument_types = description.restype, description.argtypes
    values = _arguments(context, builder, _words(builder, block), kinds, argument_types)
    convention = context.call_conv
    kernel_type = convention.get_function_type(returned, argument_types)
    callee = ir.Function(module, kernel_type, description.llvm_func_name)
    status, result = convention.call_function(builder, callee, returned, argument_types, values)
    n_words = sum(1 + kind[2] if kind[0] == "array" else 1 for kind in kinds)
    place = builder.gep(block, [_I64(n_words)])
    with builder.if_then(status.is_error, likely=False):
        builder.store(builder.ptrtoint(status.excinfoptr, _I64), place)
        builder.ret(_I32(ERROR))
    if isinstance(returned, BaseTuple):
        results = list(zip(returned.types, cgutils.unpack_tuple(builder, result), strict=True))
    else:
        results = [] if returned == types.none else [(returned, result)]
    kinds_of_results = []
    for number, (of, value) in enumerate(results):
        of = getattr(of, "literal_type", of)  # a constant has a type of its own
        if of == types.boolean:
            kind, word = "bool", builder.zext(value, _I64)
        elif of not in types.integer_domain:
            raise KernelError(f"{name} returns {of}: kernels return integers and truth values")
        elif of.bitwidth == 64:
            kind, word = ("int" if of.signed else "uint"), value
        else:
            kind, word = "int", (builder.sext if of.signed else builder.zext)(value, _I64)
        kinds_of_results.append(kind)
        builder.store(word, builder.gep(place, [_I64(number)]))
    builder.ret(_I32(OK))
    return tuple(kinds_of_results)


def _words(builder: Any, block: Any) -> Iterator[Any]:
    """Load the words of a block, one after the other."""
    for place in itertools.count():
        yield builder.load(builder.gep(block, [_I64(place)]))


def _arguments(context: Any, builder: Any, words: Iterator[Any], kinds: Any, of: Any) -> list[Any]:
    """Return the next arguments as numba represents them; `of` are their types."""
    return [_argument(context, builder, words, *each) for each in zip(kinds, of, strict=True)]


def _argument(context: Any, builder: Any, words: Iterator[Any], kind: Any, of: Any) -> Any:
    """Return the next argument; see `_arguments`."""
    word = next(words)
    if kind == "bool":
        return builder.trunc(word, ir.IntType(1))
    if isinstance(kind, str):
        return word
    if kind[0] == "tuple":
        inner = _words(builder, builder.inttoptr(word, _I64.as_pointer()))
        values = _arguments(context, builder, inner, kind[2], of.types)
        return context.make_tuple(builder, of, values)
    _, dtype, n_dimensions, _ = kind
    array = context.make_array(of)(context, builder)
    shape = list(itertools.islice(words, n_dimensions))
    strides: list[Any] = []
    n_items, step = _I64(1), _I64(np.dtype(dtype).itemsize)
    array.itemsize = step
    for size in reversed(shape):
        strides.insert(0, step)
        n_items, step = builder.mul(n_items, size), builder.mul(step, size)
    array.meminfo = array.parent = ir.Constant(cgutils.voidptr_t, None)
    array.nitems = n_items
    array.data = builder.inttoptr(word, array.data.type)
    array.shape = cgutils.pack_array(builder, shape, _I64)
    array.strides = cgutils.pack_array(builder, strides, _I64)
    return array._getvalue()
