"""Compiling a kernel: numba's code for it, and a way in from Python that checks what it is given.

Law: the machine code depends on the kernel's source, the kinds of its arguments, the processor and
numba's settings, and on nothing else in the process. Its entry reads the fields of an object of
Python's only after it has seen that the object's type is the one expected.

Only this module and `bpe.kernels.intrinsics` import numba, and only where there is something to be
compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher
from numba.core.types.containers import BaseTuple
from numba.extending import typeof_impl
from numba.np import numpy_support

from bpe.kernels import intrinsics, vector_intrinsics  # noqa: F401  (registers them)
from bpe.kernels.machine_code import ERROR, MISMATCH, OK, MachineCode, name_of_class

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_POINTER = _I8.as_pointer()

# Where the fields of an object are. That of its type ends every object's header, with and without
# a global lock. Behind that a tuple has the number of its items, which follow its own header; an
# array has its fields, in the order that NumPy's C interface has had since its first version.
_TYPE = object.__basicsize__ - 8
_N_ITEMS, _ITEMS = object.__basicsize__, tuple.__basicsize__
_DATA, _N_DIMENSIONS, _SHAPE, _STRIDES, _DTYPE, _FLAGS = (
    object.__basicsize__ + offset for offset in (0, 8, 16, 24, 40, 48)
)
# In the flags of an array.
_C_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400

# Kernels do without numba's reference counts (`_nrt`): these are atomic instructions, several for
# each array that is passed on, put under another name or taken out of a tuple, and were half of the
# time of splitting. A kernel can therefore allocate nothing; outputs and scratch come from the
# caller.
_OPTIONS = {"nopython": True, "nogil": True, "_nrt": False, "boundscheck": None}


class _Dispatcher(CPUDispatcher):
    """Numba's dispatcher, without extensions of numba that other packages bring.

    They take as long to load as all else, and our kernels have arrays and numbers.
    """

    def _compilation_chain_init_hook(self) -> None:
        pass


def _dispatcher(kernel: Any) -> Any:
    """What numba knows a kernel as."""
    if kernel.dispatcher is None:
        kernel.dispatcher = _Dispatcher(kernel.py_func, targetoptions=_OPTIONS)
    return kernel.dispatcher


_known: set[type] = set()


def make_known(kernels: type) -> None:
    """Tell numba what objects of the class of kernels are where a kernel calls them."""
    if kernels not in _known:

        @typeof_impl.register(kernels)
        def type_of_kernel(kernel: Any, context: Any) -> Any:
            return types.Dispatcher(_dispatcher(kernel))

        _known.add(kernels)


def numba_type(kind: Any) -> Any:
    """What numba takes an argument of this kind for; see `bpe.kernels.machine_code.kind_of`."""
    if kind == "int":
        return types.int64
    if kind == "uint":
        return types.uint64
    if kind == "bool":
        return types.boolean
    if kind[0] == "tuple":
        return BaseTuple.from_types(tuple(map(numba_type, kind[2])), kind[1])
    _, dtype, n_dimensions, writable = kind
    of_elements = numpy_support.from_dtype(np.dtype(dtype))
    return types.Array(of_elements, n_dimensions, "C", readonly=not writable)


def compiled(kernel: Any, kinds: tuple[Any, ...], what: str, entry: str) -> MachineCode:
    """Compile a kernel for arguments of these kinds.

    Args:
        kernel: A `bpe.kernels.jit.Kernel`.
        kinds: See `bpe.kernels.machine_code.kind_of`.
        what, entry: See `MachineCode`.
    """
    with global_compiler_lock:
        make_known(type(kernel))
        dispatcher = _dispatcher(kernel)
        argument_types = tuple(map(numba_type, kinds))
        dispatcher.compile(argument_types)
        result = dispatcher.overloads[argument_types]
        context = result.target_context
        library = context.codegen().create_library(entry)
        module = library.create_ir_module(entry)
        way_in = _Entry(context, module, kinds, argument_types, result.fndesc, entry)
        library.add_ir_module(module)
        return MachineCode(
            what,
            entry,
            way_in.results,
            way_in.many,
            tuple(sorted(way_in.dtypes)),
            _object_file(library, result.library, entry, kernel.name),
        )


def _object_file(library: Any, kernel_library: Any, entry: str, name: str) -> bytes:
    """One file with all that is called, of which the entry alone has a name for others."""
    module = library._final_module
    module.link_in(kernel_library._get_module_for_linking(), preserve=True)
    for each in [*module.functions, *module.global_variables]:
        if not each.is_declaration and each.name != entry:
            each.linkage = "internal"
    library._optimize_final_module()
    module = library._final_module
    module.verify()
    # What numba's own runtime would have to bring, nobody has where numba is not imported.
    for each in [*module.functions, *module.global_variables]:
        if each.is_declaration and not each.name.startswith(("tokenbin ", "llvm.")):
            raise TypeError(
                f"{name}: its machine code needs {each.name}; kernels do without what is outside of"
                " them"
            )
    return bytes(library.codegen._tm.emit_object(module))


class _Entry:
    """Writes the function that Python calls: it looks at the arguments and calls the kernel.

    Attributes:
        results, many, dtypes: See `MachineCode`.
    """

    def __init__(
        self,
        context: Any,
        module: Any,
        kinds: tuple[Any, ...],
        argument_types: tuple[Any, ...],
        description: Any,
        entry: str,
    ) -> None:
        self._context, self._module = context, module
        self.dtypes: set[str] = set()
        parameters = [_I64 if isinstance(kind, str) else _POINTER for kind in kinds]
        function_type = ir.FunctionType(_I32, [_I64.as_pointer(), *parameters])
        function = ir.Function(module, function_type, entry)
        self._builder = builder = ir.IRBuilder(function.append_basic_block("entry"))
        self._mismatch = function.append_basic_block("mismatch")
        results_at, *given = function.args
        values = [self._value(*each) for each in zip(kinds, argument_types, given, strict=True)]
        kernel_type = context.call_conv.get_function_type(description.restype, description.argtypes)
        callee = ir.Function(module, kernel_type, description.llvm_func_name)
        status, result = context.call_conv.call_function(
            builder, callee, description.restype, description.argtypes, values
        )
        with builder.if_then(status.is_error, likely=False):
            raised = builder.ptrtoint(status.excinfoptr, _I64)
            builder.store(raised, results_at)
            builder.ret(_I32(ERROR))
        returned: Any = description.restype
        self.many = isinstance(returned, BaseTuple)
        if self.many:
            pairs = list(zip(returned.types, cgutils.unpack_tuple(builder, result), strict=True))
        else:
            pairs = [] if returned == types.none else [(returned, result)]
        results = []
        for place, (of, value) in enumerate(pairs):
            kind, word = self._word(of, value)
            results.append(kind)
            builder.store(word, builder.gep(results_at, [_I64(place)]))
        self.results = tuple(results)
        builder.ret(_I32(OK))
        builder.position_at_end(self._mismatch)
        builder.ret(_I32(MISMATCH))

    def _word(self, of: Any, value: Any) -> tuple[str, Any]:
        """(the kind of a result, its 64 bits)."""
        of = getattr(of, "literal_type", of)  # a constant has a type of its own
        if of == types.boolean:
            return "bool", self._builder.zext(value, _I64)
        if of not in types.integer_domain:
            raise TypeError(f"a kernel returns {of}: expected integers and truth values")
        if of.bitwidth == 64:
            return ("int" if of.signed else "uint"), value
        extend = self._builder.sext if of.signed else self._builder.zext
        return "int", extend(value, _I64)

    def _field(self, of: Any, offset: int, kind: Any) -> Any:
        at = self._builder.gep(of, [_I64(offset)])
        return self._builder.load(self._builder.bitcast(at, kind.as_pointer()))

    def _require(self, holds: Any) -> None:
        """Go on if that holds; else the argument is not what it should be."""
        go_on = self._builder.append_basic_block()
        self._builder.cbranch(holds, go_on, self._mismatch)
        self._builder.position_at_end(go_on)

    def _require_same(self, found: Any, name: str) -> None:
        """Of two objects: that they are one. Its address comes when the code is linked."""
        name = f"tokenbin {name}"
        known = self._module.globals.get(name) or ir.GlobalVariable(self._module, _I8, name)
        self._require(self._builder.icmp_unsigned("==", found, known))

    def _value(self, kind: Any, of: Any, given: Any) -> Any:
        """What numba has an argument as."""
        builder = self._builder
        if kind == "bool":
            return builder.trunc(given, ir.IntType(1))
        if isinstance(kind, str):
            return given
        found_type = self._field(given, _TYPE, _POINTER)
        if kind[0] == "tuple":
            self._require_same(found_type, name_of_class(kind[1]))
            n = self._field(given, _N_ITEMS, _I64)
            self._require(builder.icmp_signed("==", n, _I64(len(kind[2]))))
            values = [
                self._value(each, of_each, self._field(given, _ITEMS + 8 * place, _POINTER))
                for place, (each, of_each) in enumerate(zip(kind[2], of.types, strict=True))
            ]
            return self._context.make_tuple(builder, of, values)
        return self._array(kind, of, given, found_type)

    def _array(self, kind: Any, of: Any, given: Any, found_type: Any) -> Any:
        builder = self._builder
        _, dtype, n_dimensions, writable = kind
        self.dtypes.add(dtype)
        self._require_same(found_type, "numpy.ndarray")
        self._require_same(self._field(given, _DTYPE, _POINTER), f"dtype {dtype}")
        found = self._field(given, _N_DIMENSIONS, _I32)
        self._require(builder.icmp_signed("==", found, _I32(n_dimensions)))
        mask = _C_CONTIGUOUS | _ALIGNED | _WRITEABLE
        wanted = mask if writable else mask & ~_WRITEABLE
        flags = builder.and_(self._field(given, _FLAGS, _I32), _I32(mask))
        self._require(builder.icmp_signed("==", flags, _I32(wanted)))
        array = self._context.make_array(of)(self._context, builder)
        shape, strides = (
            [
                self._field(self._field(given, field, _POINTER), 8 * axis, _I64)
                for axis in range(n_dimensions)
            ]
            for field in (_SHAPE, _STRIDES)
        )
        n_items = _I64(1)
        for size in shape:
            n_items = builder.mul(n_items, size)
        nothing = ir.Constant(_POINTER, None)
        array.meminfo, array.parent = nothing, nothing
        array.nitems = n_items
        array.itemsize = _I64(np.dtype(dtype).itemsize)
        data = self._field(given, _DATA, _POINTER)
        array.data = builder.bitcast(data, array.data.type)
        array.shape = cgutils.pack_array(builder, shape, _I64)
        array.strides = cgutils.pack_array(builder, strides, _I64)
        return array._getvalue()
