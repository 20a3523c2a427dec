"""Compile kernels to machine code with numba's front end and one LLVM optimisation per entry.

The entry of a kernel is a C function that takes the address of a block of 64-bit words, as
`machine_code` lays it out, and returns a status. Kernels that it calls are lowered to LLVM IR
without wrappers or dispatchers, linked into its module and optimised there, once.

This is the only module that relies on internals of numba and llvmlite, so their versions have upper
bounds: those that were tested.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

from llvmlite import ir
from numba import typeof
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
from numba.np.arrayobj import populate_array

from bpe.runtime import intrinsics  # noqa: F401  (registers them)
from bpe.runtime.machine_code import ERROR, MOST_RESULTS, OK, KernelError, MachineCode, Packed

_I32, _I64 = ir.IntType(32), ir.IntType(64)

# What LLVM makes of loops; every process has it.
_C_LIBRARY = {"memcpy", "memmove", "memset", "memcmp", "bcmp"} | {
    f"memset_pattern{n}" for n in (4, 8, 16)  # macOS
}

# Kernels allocate nothing, so they need no reference counts (`_nrt`): several atomic instructions
# whenever an array is passed on or renamed took half of the time of splitting.
_OPTIONS = {"nopython": True, "nogil": True, "_nrt": False, "boundscheck": None}


class _Library(JITCodeLibrary):
    """LLVM IR of one function, unoptimised; `_linked` links and optimises it in its entry."""

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


def _type_of(value: Any) -> Any:
    """Return numba's type of an argument. Arrays are writable, so that read-only ones are alike."""
    if isinstance(value, Packed):
        return _type_of(value.values)
    if isinstance(value, tuple):
        return BaseTuple.from_types(tuple(map(_type_of, value)), type(value))
    of = typeof(value)
    return of.copy(readonly=False) if isinstance(of, types.Array) else of


def compiled(kernel: Any, arguments: tuple[Any, ...], entry: str) -> MachineCode:
    """Compile a `bpe.runtime.jit.Kernel` for such arguments, to a C function of the name `entry`.

    Raises:
        KernelError: The kernel returns other things than numbers.
        NotImplementedError: It needs functions of numba.
    """
    with global_compiler_lock:
        module, results, is_tuple = linked(kernel, arguments, entry)
        object_file = bytes(_context().codegen()._tm.emit_object(module))
        return MachineCode(entry, results, is_tuple, object_file)


def linked(
    kernel: Any, arguments: tuple[Any, ...], entry: str
) -> tuple[Any, tuple[str, ...], bool]:
    """Return (optimized module of LLVM, `results` and `is_tuple` of `MachineCode`)."""
    with global_compiler_lock:
        kernels: Any = type(kernel)
        if kernels not in typeof_impl.registry:
            typeof_impl.register(kernels, _type_of_kernel)
        _, result = _callee(kernel).lowered(tuple(map(_type_of, arguments)))
        library = _context().codegen().create_library(entry)
        module = library.create_ir_module(entry)
        results = _write_entry(module, entry, result.fndesc, kernel.name)
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


def _write_entry(module: Any, entry: str, description: Any, name: str) -> tuple[str, ...]:
    """Write the C function; return the kinds of its results."""
    context = _context()
    function = ir.Function(module, ir.FunctionType(_I32, [_I64.as_pointer()]), entry)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    (block,) = function.args
    returned, argument_types = description.restype, description.argtypes
    places = (builder.gep(block, [_I64(place)]) for place in itertools.count(MOST_RESULTS))
    words = map(builder.load, places)
    values = [_argument(context, builder, words, each) for each in argument_types]
    convention = context.call_conv
    kernel_type = convention.get_function_type(returned, argument_types)
    callee = ir.Function(module, kernel_type, description.llvm_func_name)
    status, result = convention.call_function(builder, callee, returned, argument_types, values)
    with builder.if_then(status.is_error, likely=False):
        builder.store(builder.ptrtoint(status.excinfoptr, _I64), block)
        builder.ret(_I32(ERROR))
    if isinstance(returned, BaseTuple):
        results = list(zip(returned.types, cgutils.unpack_tuple(builder, result), strict=True))
    else:
        results = [] if returned == types.none else [(returned, result)]
    kinds = []
    for number, (of, value) in enumerate(results):
        of = unliteral(of)
        if number == MOST_RESULTS or not (of == types.boolean or of in types.integer_domain):
            raise KernelError(
                f"{name} returns {returned}: kernels return integers and truth values, up to"
                f" {MOST_RESULTS}"
            )
        kinds.append({types.boolean: "bool", types.uint64: "uint"}.get(of, "int"))
        if value.type != _I64:
            is_signed = of != types.boolean and of.signed
            value = (builder.sext if is_signed else builder.zext)(value, _I64)
        builder.store(value, builder.gep(block, [_I64(number)]))
    builder.ret(_I32(OK))
    return tuple(kinds)


def _argument(context: Any, builder: Any, words: Iterator[Any], of: Any) -> Any:
    """Return the argument at the next words, of a type, as numba represents it."""
    if isinstance(of, BaseTuple):
        values = [_argument(context, builder, words, each) for each in of.types]
        return context.make_tuple(builder, of, values)
    if not isinstance(of, types.Array):
        word = next(words)
        return builder.trunc(word, ir.IntType(1)) if of == types.boolean else word
    array = context.make_array(of)(context, builder)
    data = builder.inttoptr(next(words), array.data.type)
    shape = list(itertools.islice(words, of.ndim))
    itemsize = _I64(context.get_abi_sizeof(context.get_data_type(of.dtype)))
    strides = [*itertools.accumulate(shape[:0:-1], builder.mul, initial=itemsize)][::-1]
    return populate_array(array, data, shape, strides[: of.ndim], itemsize, None)._getvalue()
