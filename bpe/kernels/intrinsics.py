"""What the compiler makes of the functions in `bpe.kernels.machine`: single machine instructions.

Law: each gives the same bits as the function that it stands for. The vectors are written as LLVM's
own `<64 x i8>`, so one source becomes AVX-512, AVX2 or NEON, whatever the machine has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import lower_builtin, type_callable

from bpe.kernels import machine

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_MASK64 = (1 << 64) - 1


def instead_of(plain: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: where a kernel calls `plain`, this is generated."""

    def register(define: Callable[..., Any]) -> Any:
        @type_callable(plain)
        def type_of_call(typing_context: Any) -> Any:
            def signature_of(*arguments: Any) -> Any:
                return define(typing_context, *arguments)[0]

            signature_of.pysig = inspect.signature(plain)  # type: ignore[attr-defined]
            return signature_of

        @lower_builtin(plain, types.VarArg(types.Any))
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return define(None, *signature.args)[1](context, builder, signature, arguments)

        return define

    return register


def _element_pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Pointer to `array[index]` of a flat array, as a pointer to bytes."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), cgutils.voidptr_t)


def element_at(
    kind: Any, context: Any, builder: Any, signature: Any, arguments: Any, number: int
) -> Any:
    """Pointer to the value of this kind at `array[index]`, arguments `number` and the next."""
    array_type, array, index = signature.args[number], arguments[number], arguments[number + 1]
    pointer = _element_pointer(context, builder, array_type, array, index)
    return builder.bitcast(pointer, kind.as_pointer())


@instead_of(machine.range_mask)
def _range_mask(typing_context: Any, array: Any, i: Any, low: Any, high: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I8, 64)
        pointer = element_at(vector, context, builder, signature, arguments, 0)
        loaded = builder.load(pointer, align=1)
        undefined = ir.Constant(vector, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(_I32, 64), [0] * 64)

        def splat(byte: Any) -> Any:
            first = builder.insert_element(undefined, byte, ir.Constant(_I32, 0))
            return builder.shuffle_vector(first, undefined, zeros)

        low_bytes = splat(arguments[2])
        # low <= x <= high is one unsigned comparison: x - low <= high - low.
        distance = builder.sub(loaded, low_bytes)
        width = builder.sub(splat(arguments[3]), low_bytes)
        return builder.bitcast(builder.icmp_unsigned("<=", distance, width), _I64)

    return types.uint64(array, types.int64, types.uint8, types.uint8), generate


@instead_of(machine.member_mask)
def _member_mask(typing_context: Any, array: Any, i: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # Lanes of 16 bits: each takes its quarter of the word and shifts it. There are no shifts
        # by lane of less, and wider lanes take twice as many instructions and more.
        i16, vector = ir.IntType(16), ir.VectorType(_I8, 64)
        lanes = ir.VectorType(i16, 64)
        loaded = builder.load(
            element_at(vector, context, builder, signature, arguments, 0), align=1
        )
        undefined = ir.Constant(lanes, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(_I32, 64), [0] * 64)

        def quarter(number: int) -> Any:
            shifted = builder.lshr(arguments[2], ir.Constant(_I64, 16 * number))
            first = builder.insert_element(
                undefined, builder.trunc(shifted, i16), ir.Constant(_I32, 0)
            )
            return builder.shuffle_vector(first, undefined, zeros)

        def has(bit: int) -> Any:
            kept = builder.and_(loaded, ir.Constant(vector, [bit] * 64))
            return builder.icmp_unsigned("!=", kept, ir.Constant(vector, [0] * 64))

        low = builder.select(has(16), quarter(1), quarter(0))
        high = builder.select(has(16), quarter(3), quarter(2))
        places = builder.and_(builder.zext(loaded, lanes), ir.Constant(lanes, [15] * 64))
        bits = builder.lshr(builder.select(has(32), high, low), places)
        return builder.bitcast(builder.trunc(bits, ir.VectorType(ir.IntType(1), 64)), _I64)

    return types.uint64(array, types.int64, types.uint64), generate


@instead_of(machine.load_u64)
def _load_u64(typing_context: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(element_at(_I64, context, builder, signature, arguments, 0), align=1)

    return types.uint64(array, types.int64), generate


@instead_of(machine.load_acquire)
def _load_acquire(typing_context: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_at(_I64, context, builder, signature, arguments, 0)
        return builder.load_atomic(pointer, "acquire", 8)

    return types.uint64(array, types.int64), generate


@instead_of(machine.store_release)
def _store_release(typing_context: Any, array: Any, i: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_at(_I64, context, builder, signature, arguments, 0)
        builder.store_atomic(arguments[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generate


@instead_of(machine.compare_exchange)
def _compare_exchange(typing_context: Any, array: Any, i: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_at(_I64, context, builder, signature, arguments, 0)
        nothing = ir.Constant(_I64, 0)
        found = builder.cmpxchg(pointer, nothing, arguments[2], "acq_rel", "acquire")
        return builder.extract_value(found, 1)

    return types.boolean(array, types.int64, types.uint64), generate


@instead_of(machine.add_atomically)
def _add_atomically(typing_context: Any, array: Any, i: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_at(_I64, context, builder, signature, arguments, 0)
        return builder.atomic_rmw("add", pointer, arguments[2], "monotonic")

    return types.int64(array, types.int64, types.int64), generate


@instead_of(machine.take_key)
def _take_key(
    typing_context: Any, source: Any, i: Any, parts: Any, j: Any, target: Any, k: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I64, 2)
        text, mask, to = (
            element_at(vector, context, builder, signature, arguments, number)
            for number in (0, 2, 4)
        )
        top = builder.gep(mask, [ir.Constant(_I64, 1)])
        kept = builder.and_(builder.load(text, align=1), builder.load(mask, align=8))
        builder.store(builder.or_(kept, builder.load(top, align=8)), to, align=8)
        return context.get_dummy_value()

    words = (source, types.int64, parts, types.uint64, target, types.uint64)
    return types.void(*words), generate


def _store_ids(
    context: Any, builder: Any, signature: Any, arguments: Any, number: int, ids: Any
) -> None:
    """Write a vector of ids to `array[index]`, arguments `number` and the next, as what it has."""
    element = context.get_value_type(signature.args[number].dtype)
    if element.width < ids.type.element.width:
        ids = builder.trunc(ids, ir.VectorType(element, ids.type.count))
    to = element_at(ids.type, context, builder, signature, arguments, number)
    builder.store(ids, to, align=element.width // 8)


@instead_of(machine.store_halves_of_two)
def _store_halves_of_two(typing_context: Any, first: Any, second: Any, target: Any, j: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I64, 2)
        kept = builder.and_(arguments[1], ir.Constant(_I64, _MASK64 >> 3))
        words = ir.Constant(vector, ir.Undefined)
        for lane, word in enumerate((arguments[0], kept)):
            words = builder.insert_element(words, word, ir.Constant(_I32, lane))
        halves = builder.bitcast(words, ir.VectorType(_I32, 4))
        _store_ids(context, builder, signature, arguments, 2, halves)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, target, types.int64), generate


@instead_of(machine.copy_16_ids)
def _copy_16_ids(typing_context: Any, source: Any, i: Any, target: Any, j: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I32, 16)
        from_ = element_at(vector, context, builder, signature, arguments, 0)
        _store_ids(context, builder, signature, arguments, 2, builder.load(from_, align=4))
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), generate


@instead_of(machine.store_four_ids)
def _store_four_ids(typing_context: Any, array: Any, i: Any, word: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I64, 4)
        undefined = ir.Constant(vector, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(_I32, 4), [0] * 4)

        def splat(value: Any) -> Any:
            first = builder.insert_element(undefined, value, ir.Constant(_I32, 0))
            return builder.shuffle_vector(first, undefined, zeros)

        _, _, word, bits = arguments
        one = ir.Constant(_I64, 1)
        lanes = ir.Constant(vector, [0, 1, 2, 3])
        shifts = builder.and_(builder.mul(splat(bits), lanes), ir.Constant(vector, [63] * 4))
        mask = splat(builder.sub(builder.shl(one, bits), one))
        fields = builder.and_(builder.lshr(splat(word), shifts), mask)
        _store_ids(context, builder, signature, arguments, 0, fields)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64, types.int64), generate


def _minimum(builder: Any, values: Any) -> Any:
    """The smallest lane of a vector."""
    function_type = ir.FunctionType(_I32, [values.type])
    name = "llvm.vector.reduce.umin.v16i32"
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, [values])


@instead_of(machine.minimum_of_16)
def _minimum_of_16(typing_context: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I32, 16)
        pointer = element_at(vector, context, builder, signature, arguments, 0)
        return _minimum(builder, builder.load(pointer, align=4))

    return types.uint32(array, types.int64), generate


@instead_of(machine.minimum_of_others)
def _minimum_of_others(
    typing_context: Any, array: Any, i: Any, one_place: Any, a: Any, b: Any, c: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I32, 16)
        pointer = element_at(vector, context, builder, signature, arguments, 0)
        values = builder.load(pointer, align=4)
        first = builder.add(arguments[1], ir.Constant(_I64, 63))
        for place in arguments[3:]:
            pointer = _element_pointer(
                context, builder, signature.args[2], arguments[2], builder.sub(first, place)
            )
            # Loaded, not compared: of comparisons the compiler makes vectors of single bits.
            left_out = builder.load(builder.bitcast(pointer, vector.as_pointer()), align=4)
            values = builder.or_(values, left_out)
        return _minimum(builder, values)

    int64 = types.int64
    return types.uint32(array, int64, one_place, int64, int64, int64), generate


@instead_of(machine.trailing_zeros)
def _trailing_zeros(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@instead_of(machine.leading_zeros)
def _leading_zeros(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@instead_of(machine.popcount)
def _popcount(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


@instead_of(machine.multiply)
def _multiply(typing_context: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.mul(*arguments)

    return types.uint64(types.uint64, types.uint64), generate


@instead_of(machine.multiply_and_fold)
def _multiply_and_fold(typing_context: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        upper = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), _I64)
        return builder.xor(builder.trunc(product, _I64), upper)

    return types.uint64(types.uint64, types.uint64), generate


@instead_of(machine.add)
def _add(typing_context: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.add(*arguments)

    return types.uint64(types.uint64, types.uint64), generate


@instead_of(machine.rotate)
def _rotate(typing_context: Any, word: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # Shifts that are written down, the compiler takes apart: it multiplies twice instead.
        word, bits = arguments
        function_type = ir.FunctionType(_I64, [_I64, _I64, _I64])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.fshl.i64")
        return builder.call(function, [word, word, bits])

    return types.uint64(types.uint64, types.uint64), generate


@instead_of(machine.noinline_cold)
def _noinline_cold(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        builder.function.attributes.add("cold")
        return context.get_dummy_value()

    return types.void(), generate


@instead_of(machine.noinline)
def _noinline(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


@instead_of(machine.always_inline)
def _always_inline(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("alwaysinline")
        return context.get_dummy_value()

    return types.void(), generate


@instead_of(machine.prefetch)
def _prefetch(typing_context: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _element_pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        function_type = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        for_read, keep_near, data = ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)
        builder.call(function, [pointer, for_read, keep_near, data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate
