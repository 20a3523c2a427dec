"""Compile kernels to machine code with numba's front end and one LLVM optimisation per entry.

The entry of a kernel is a C function that takes one address, that of a block of 64-bit words (see
`bpe.kernels.machine_code`), and returns a status. Kernels that it calls are lowered to LLVM
IR without wrappers or dispatchers, linked into its module and optimised there, once.

This is the only module that relies on internals of numba and llvmlite. Before it is used,
`bpe.kernels.jit` compiles a small kernel and runs it; where that or compiling a kernel fails, it
uses plain `numba.njit(cache=True)`. Only this module, `bpe.kernels.plain_numba` and the intrinsics
import numba.
"""

from __future__ import annotations

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

from bpe.kernels import intrinsics, vector_intrinsics  # noqa: F401  (registers them)
from bpe.kernels.machine_code import ERROR, OK, KernelError, MachineCode

_I32, _I64 = ir.IntType(32), ir.IntType(64)

# Reference counts (`_nrt`) are atomic instructions, several for each array that is passed on,
# renamed or taken out of a tuple: half of the time of splitting. Kernels allocate nothing.
_OPTIONS = {"nopython": True, "nogil": True, "_nrt": False, "boundscheck": None}


class _Library(JITCodeLibrary):
    """LLVM IR of one function, unoptimised; `_optimized` links and optimises it in its entry."""

    def add_llvm_module(self, ll_module: Any) -> None:
        self._final_module.link_in(ll_module)

    def finalize(self) -> None:
        self._finalized = True


class _Codegen(JITCPUCodegen):
    """Code generation for this processor, with libraries of IR."""

    _library_class = _Library


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
                cpu_target.typing_context,
                context,
                self._kernel.py_func,
                argument_types,
                None,
                flags,
                {},
                library=context.codegen().create_library(self._kernel.name),
                pipeline_class=Compiler,
            )
            key = object()
            context.insert_user_function(key, result.fndesc, [result.library])
            self._lowered[argument_types] = key, result
        return self._lowered[argument_types]

    def get_call_template(self, arguments: Any, keywords: Any) -> Any:
        if keywords:
            raise KernelError(f"{self._kernel.name}: kernels call kernels without keywords")
        # One specialization for all constants.
        plain = tuple(map(unliteral, arguments))
        _, result = self.lowered(plain)
        name = self._kernel.name
        return make_concrete_template(name, name, [result.signature]), None, plain, {}

    def get_overload(self, arguments: Any) -> Any:
        return self.lowered(tuple(arguments))[0]


_contexts: list[Any] = []
_known: set[type] = set()


def _context() -> Any:
    """Return numba's target context, with `_Codegen`."""
    if not _contexts:
        cpu_target.target_context.refresh()
        _contexts.append(cpu_target.target_context.subtarget(_internal_codegen=_Codegen("kernels")))
    return _contexts[0]


def _register(kernels: type) -> None:
    """Tell numba what objects of the class of kernels are where a kernel calls them."""
    if kernels not in _known:

        @typeof_impl.register(kernels)
        def type_of_kernel(kernel: Any, context: Any) -> Any:
            return types.Dispatcher(_callee(kernel))

        _known.add(kernels)


def _callee(kernel: Any) -> Any:
    if kernel.callee is None:
        kernel.callee = _Callee(kernel)
    return kernel.callee


def numba_type(kind: Any) -> Any:
    """Return numba's type of an argument; `kind` as of `bpe.kernels.machine_code.append`."""
    if isinstance(kind, str):
        return {"int": types.int64, "uint": types.uint64, "bool": types.boolean}[kind]
    if kind[0] == "tuple":
        return BaseTuple.from_types(tuple(map(numba_type, kind[2])), kind[1])
    _, dtype, n_dimensions, writable = kind
    of_elements = numpy_support.from_dtype(np.dtype(dtype))
    return types.Array(of_elements, n_dimensions, "C", readonly=not writable)


def compiled(kernel: Any, kinds: tuple[Any, ...], what: str, entry: str) -> MachineCode:
    """Compile a kernel.

    Args:
        kernel: A `bpe.kernels.jit.Kernel`.
        kinds: Those of its arguments, see `bpe.kernels.machine_code.append`.
        what: Which kernel, for which arguments and which processor.
        entry: Name of the C function.

    Raises:
        KernelError: The kernel returns something else than numbers, or its machine code needs
            functions outside of it.
    """
    with global_compiler_lock:
        _register(type(kernel))
        argument_types = tuple(map(numba_type, kinds))
        _, result = _callee(kernel).lowered(argument_types)
        context = _context()
        library = context.codegen().create_library(entry)
        module = library.create_ir_module(entry)
        results, is_tuple = _write_entry(
            context, module, entry, kinds, argument_types, result.fndesc, kernel.name
        )
        library.add_ir_module(module)
        library.add_linking_library(result.library)
        return MachineCode(what, entry, results, is_tuple, _object_file(library, entry, kernel))


def _object_file(library: Any, entry: str, kernel: Any) -> bytes:
    """Return one object file of all functions that `entry` reaches, `entry` alone exported."""
    module, found, left = library._final_module, {library}, [library]
    while left:
        for each in left.pop()._linking_libraries:
            # Numba links its runtime everywhere; kernels use none of it.
            if each is not rtsys.library and each not in found:
                found.add(each)
                left.append(each)
                # Numba compiles its own functions, as `max`, with its own code generation.
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
        if each.is_declaration and not each.name.startswith("llvm."):
            raise KernelError(
                f"{kernel.name}: its machine code needs {each.name}; kernels do without what is"
                " outside of them"
            )
    return bytes(library.codegen._tm.emit_object(module))


def _write_entry(
    context: Any,
    module: Any,
    entry: str,
    kinds: tuple[Any, ...],
    argument_types: tuple[Any, ...],
    description: Any,
    name: str,
) -> tuple[tuple[str, ...], bool]:
    """Write the C function; return the kinds of its results, and whether they are a tuple."""
    function = ir.Function(module, ir.FunctionType(_I32, [_I64.as_pointer()]), entry)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    reader = _BlockReader(context, builder, function.args[0])
    values = [reader.value(*each) for each in zip(kinds, argument_types, strict=True)]
    kernel_type = context.call_conv.get_function_type(description.restype, description.argtypes)
    callee = ir.Function(module, kernel_type, description.llvm_func_name)
    status, result = context.call_conv.call_function(
        builder, callee, description.restype, description.argtypes, values
    )
    with builder.if_then(status.is_error, likely=False):
        reader.append(builder.ptrtoint(status.excinfoptr, _I64), 0)
        builder.ret(_I32(ERROR))
    returned: Any = description.restype
    if isinstance(returned, BaseTuple):
        pairs = list(zip(returned.types, cgutils.unpack_tuple(builder, result), strict=True))
    else:
        pairs = [] if returned == types.none else [(returned, result)]
    kinds_of_results = []
    for number, (of, value) in enumerate(pairs):
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
        reader.append(word, number)
    builder.ret(_I32(OK))
    return tuple(kinds_of_results), isinstance(returned, BaseTuple)


class _BlockReader:
    """Reads arguments from a block of words, one after the other, as numba represents them."""

    def __init__(self, context: Any, builder: Any, block: Any) -> None:
        self._context, self._builder, self._block = context, builder, block
        self._place = 0

    def append(self, word: Any, number: int) -> None:
        """Write a word to the block, `number` places behind the last one that was read."""
        at = self._builder.gep(self._block, [_I64(self._place + number)])
        self._builder.store(word, at)

    def _word(self) -> Any:
        at = self._builder.gep(self._block, [_I64(self._place)])
        self._place += 1
        return self._builder.load(at)

    def value(self, kind: Any, of: Any) -> Any:
        """Return the next argument."""
        builder, word = self._builder, self._word()
        if kind == "bool":
            return builder.trunc(word, ir.IntType(1))
        if isinstance(kind, str):
            return word
        if kind[0] == "tuple":
            block = builder.inttoptr(word, _I64.as_pointer())
            reader = _BlockReader(self._context, builder, block)
            values = [reader.value(*each) for each in zip(kind[2], of.types, strict=True)]
            return self._context.make_tuple(builder, of, values)
        _, dtype, n_dimensions, _ = kind
        item_size = _I64(np.dtype(dtype).itemsize)
        array = self._context.make_array(of)(self._context, builder)
        shape = [self._word() for _ in range(n_dimensions)]
        strides: list[Any] = []
        n_items, step = _I64(1), item_size
        for size in reversed(shape):
            strides.insert(0, step)
            n_items, step = builder.mul(n_items, size), builder.mul(step, size)
        array.meminfo = array.parent = ir.Constant(cgutils.voidptr_t, None)
        array.nitems, array.itemsize = n_items, item_size
        array.data = builder.inttoptr(word, array.data.type)
        array.shape = cgutils.pack_array(builder, shape, _I64)
        array.strides = cgutils.pack_array(builder, strides, _I64)
        return array._getvalue()
