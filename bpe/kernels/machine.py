"""Single machine instructions that neither Python nor numba has a word for.

Law: each intrinsic has a plain twin (`_plain_*`) that gives the same bits; with
`NUMBA_DISABLE_JIT=1` the public name *is* the twin. None of them checks bounds: the caller
guarantees that the bytes named in the docstring lie inside the array. The vectors are written as
LLVM's own `<64 x i8>`, so one source becomes AVX-512, AVX2 or NEON, whatever the machine has.

All integers are `uint64`; bit j of a mask speaks of byte `i + j`. Words are little-endian.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_MASK64 = (1 << 64) - 1
_ONE_AT_A_TIME = threading.Lock()  # for the twins of what is one step to all threads


def _element_pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    """Pointer to `array[index]` of a flat array, as a pointer to bytes."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), cgutils.voidptr_t)


def _at(kind: Any, context: Any, builder: Any, signature: Any, arguments: Any, number: int) -> Any:
    """Pointer to the value of this kind at `array[index]`, arguments `number` and the next."""
    array_type, array, index = signature.args[number], arguments[number], arguments[number + 1]
    pointer = _element_pointer(context, builder, array_type, array, index)
    return builder.bitcast(pointer, kind.as_pointer())


def _plain_range_mask(array: Any, i: int, low: int, high: int) -> np.uint64:
    mask = 0
    for j in range(64):
        if low <= array[i + j] <= high:
            mask |= 1 << j
    return np.uint64(mask)


@intrinsic
def _range_mask(typing_context: Any, array: Any, i: Any, low: Any, high: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I8, 64)
        pointer = _at(vector, context, builder, signature, arguments, 0)
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


def _plain_member_mask(array: Any, i: int, word: int) -> np.uint64:
    mask = 0
    for j in range(64):
        mask |= (int(word) >> (int(array[i + j]) & 63) & 1) << j
    return np.uint64(mask)


@intrinsic
def _member_mask(typing_context: Any, array: Any, i: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # Lanes of 16 bits: each takes its quarter of the word and shifts it. There are no shifts
        # by lane of less, and wider lanes take twice as many instructions and more.
        i16, vector = ir.IntType(16), ir.VectorType(_I8, 64)
        lanes = ir.VectorType(i16, 64)
        loaded = builder.load(_at(vector, context, builder, signature, arguments, 0), align=1)
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


def _plain_load_u64(array: Any, i: int) -> np.uint64:
    return np.uint64(int.from_bytes(bytes(array[i : i + 8]), "little"))


@intrinsic
def _load_u64(typing_context: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_at(_I64, context, builder, signature, arguments, 0), align=1)

    return types.uint64(array, types.int64), generate


def _plain_load_acquire(array: Any, i: int) -> np.uint64:
    return np.uint64(array[i])


@intrinsic
def _load_acquire(typing_context: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _at(_I64, context, builder, signature, arguments, 0)
        return builder.load_atomic(pointer, "acquire", 8)

    return types.uint64(array, types.int64), generate


def _plain_store_release(array: Any, i: int, value: int) -> None:
    array[i] = value


@intrinsic
def _store_release(typing_context: Any, array: Any, i: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _at(_I64, context, builder, signature, arguments, 0)
        builder.store_atomic(arguments[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), generate


def _plain_claim(array: Any, i: int, value: int) -> bool:
    with _ONE_AT_A_TIME:
        free = array[i] == 0
        if free:
            array[i] = value
    return bool(free)


@intrinsic
def _claim(typing_context: Any, array: Any, i: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _at(_I64, context, builder, signature, arguments, 0)
        nothing = ir.Constant(_I64, 0)
        found = builder.cmpxchg(pointer, nothing, arguments[2], "acq_rel", "acquire")
        return builder.extract_value(found, 1)

    return types.boolean(array, types.int64, types.uint64), generate


def _plain_add_atomically(array: Any, i: int, value: int) -> np.int64:
    with _ONE_AT_A_TIME:
        before = np.int64(array[i])
        array[i] += value
    return before


@intrinsic
def _add_atomically(typing_context: Any, array: Any, i: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _at(_I64, context, builder, signature, arguments, 0)
        return builder.atomic_rmw("add", pointer, arguments[2], "monotonic")

    return types.int64(array, types.int64, types.int64), generate


def _plain_take_key(source: Any, i: int, parts: Any, j: int, target: Any, k: int) -> None:
    for word in range(2):
        found = int(_plain_load_u64(source, i + 8 * word)) & int(parts[j + word])
        target[k + word] = np.uint64(found | int(parts[j + 2 + word]))


@intrinsic
def _take_key(
    typing_context: Any, source: Any, i: Any, parts: Any, j: Any, target: Any, k: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I64, 2)
        text, mask, to = (
            _at(vector, context, builder, signature, arguments, number) for number in (0, 2, 4)
        )
        top = builder.gep(mask, [ir.Constant(_I64, 1)])
        kept = builder.and_(builder.load(text, align=1), builder.load(mask, align=8))
        builder.store(builder.or_(kept, builder.load(top, align=8)), to, align=8)
        return context.get_dummy_value()

    words = (source, types.int64, parts, types.uint64, target, types.uint64)
    return types.void(*words), generate


def _plain_same_two_words(a: Any, i: int, b: Any, j: int) -> bool:
    return bool(a[i] == b[j] and a[i + np.uint64(1)] == b[j + np.uint64(1)])


@intrinsic
def _same_two_words(typing_context: Any, a: Any, i: Any, b: Any, j: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, wide = ir.VectorType(_I64, 2), ir.IntType(128)
        first, second = (
            builder.load(_at(vector, context, builder, signature, arguments, number), align=8)
            for number in (0, 2)
        )
        differing = builder.bitcast(builder.xor(first, second), wide)
        return builder.icmp_unsigned("==", differing, ir.Constant(wide, 0))

    return types.boolean(a, types.uint64, b, types.uint64), generate


def _plain_copy_four_ids(source: Any, i: int, target: Any, j: int) -> None:
    words = int(source[i]), int(source[i + np.uint64(1)]) & _MASK64 >> 3
    for place, word in zip((j, j + 2), words, strict=True):
        target[place], target[place + 1] = word & 0xFFFFFFFF, word >> 32


@intrinsic
def _copy_four_ids(typing_context: Any, source: Any, i: Any, target: Any, j: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I64, 2)
        from_, to = (
            _at(vector, context, builder, signature, arguments, number) for number in (0, 2)
        )
        kept = ir.Constant(vector, [_MASK64, _MASK64 >> 3])
        builder.store(builder.and_(builder.load(from_, align=8), kept), to, align=4)
        return context.get_dummy_value()

    return types.void(source, types.uint64, target, types.int64), generate


def _plain_copy_16_ids(source: Any, i: int, target: Any, j: int) -> None:
    target[j : j + 16] = source[i : i + 16]


@intrinsic
def _copy_16_ids(typing_context: Any, source: Any, i: Any, target: Any, j: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I32, 16)
        from_, to = (
            _at(vector, context, builder, signature, arguments, number) for number in (0, 2)
        )
        builder.store(builder.load(from_, align=4), to, align=4)
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), generate


def _plain_store_four_ids(array: Any, i: int, word: int, bits: int) -> None:
    for lane in range(4):
        array[i + lane] = (int(word) >> (int(bits) * lane & 63)) & ((1 << int(bits)) - 1)


@intrinsic
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
        ids = builder.trunc(fields, ir.VectorType(_I32, 4))
        pointer = _at(ids.type, context, builder, signature, arguments, 0)
        builder.store(ids, pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64, types.int64), generate


def _plain_minimum_of_16(array: Any, i: int) -> np.uint32:
    return np.uint32(min(int(value) for value in array[i : i + 16]))


def _minimum(builder: Any, values: Any) -> Any:
    """The smallest lane of a vector."""
    function_type = ir.FunctionType(_I32, [values.type])
    name = "llvm.vector.reduce.umin.v16i32"
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, [values])


@intrinsic
def _minimum_of_16(typing_context: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I32, 16)
        pointer = _at(vector, context, builder, signature, arguments, 0)
        return _minimum(builder, builder.load(pointer, align=4))

    return types.uint32(array, types.int64), generate


def _plain_minimum_of_others(
    array: Any, i: int, one_place: Any, a: int, b: int, c: int
) -> np.uint32:
    least = 2**32 - 1
    for j in range(int(i), int(i) + 16):
        left_out = 0
        for place in (a, b, c):
            left_out |= int(one_place[63 + j - int(place)])
        least = min(least, int(array[j]) | left_out)
    return np.uint32(least)


@intrinsic
def _minimum_of_others(
    typing_context: Any, array: Any, i: Any, one_place: Any, a: Any, b: Any, c: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I32, 16)
        pointer = _at(vector, context, builder, signature, arguments, 0)
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


def _plain_trailing_zeros(word: int) -> np.int64:
    return np.int64((int(word) & -int(word)).bit_length() - 1 if word else 64)


@intrinsic
def _trailing_zeros(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


def _plain_leading_zeros(word: int) -> np.int64:
    return np.int64(64 - int(word).bit_length())


@intrinsic
def _leading_zeros(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


def _plain_ones(word: int) -> np.int64:
    return np.int64(int(word).bit_count())


@intrinsic
def _ones(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), generate


def _plain_multiply(a: int, b: int) -> np.uint64:
    return np.uint64((int(a) * int(b)) & _MASK64)


@intrinsic
def _multiply(typing_context: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.mul(*arguments)

    return types.uint64(types.uint64, types.uint64), generate


def _plain_multiply_and_fold(a: int, b: int) -> np.uint64:
    product = int(a) * int(b)
    return np.uint64((product & _MASK64) ^ (product >> 64))


@intrinsic
def _multiply_and_fold(typing_context: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        upper = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), _I64)
        return builder.xor(builder.trunc(product, _I64), upper)

    return types.uint64(types.uint64, types.uint64), generate


def _plain_add(a: int, b: int) -> np.uint64:
    return np.uint64((int(a) + int(b)) & _MASK64)


@intrinsic
def _add(typing_context: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.add(*arguments)

    return types.uint64(types.uint64, types.uint64), generate


def _plain_rotate(word: int, bits: int) -> np.uint64:
    return np.uint64((int(word) << int(bits) | int(word) >> 64 - int(bits)) & _MASK64)


@intrinsic
def _rotate(typing_context: Any, word: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # Shifts that are written down, the compiler takes apart: it multiplies twice instead.
        word, bits = arguments
        function_type = ir.FunctionType(_I64, [_I64, _I64, _I64])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.fshl.i64")
        return builder.call(function, [word, word, bits])

    return types.uint64(types.uint64, types.uint64), generate


def _plain_hint() -> None:
    # Only a hint to the compiler: there is nothing to do.
    pass


@intrinsic
def _out_of_line(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        builder.function.attributes.add("cold")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _apart(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _in_line(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("alwaysinline")
        return context.get_dummy_value()

    return types.void(), generate


def _plain_prefetch(array: Any, i: int) -> None:
    # Only a hint: there is nothing to do. The twin still touches the place, to notice a wrong
    # index.
    array[i]


@intrinsic
def _prefetch(typing_context: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _element_pointer(context, builder, signature.args[0], arguments[0], arguments[1])
        function_type = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        for_read, keep_near, data = ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)
        builder.call(function, [pointer, for_read, keep_near, data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


range_mask = _plain_range_mask if config.DISABLE_JIT else _range_mask
"""`range_mask(array, i, low, high)`: which of the 64 bytes from `array[i]` are in low..high,
inclusive.

Reads `array[i : i + 64]` of a `uint8` array.
"""

member_mask = _plain_member_mask if config.DISABLE_JIT else _member_mask
"""`member_mask(array, i, word)`: which of the 64 bytes from `array[i]` have lowest six bits that
are the number of a set bit of `word`.

Reads `array[i : i + 64]` of a `uint8` array.
"""

load_u64 = _plain_load_u64 if config.DISABLE_JIT else _load_u64
"""`load_u64(array, i)`: the 8 bytes from `array[i]` of a `uint8` array as one word."""

load_acquire = _plain_load_acquire if config.DISABLE_JIT else _load_acquire
"""`load_acquire(array, i)`: `array[i]`, `uint64`, read before all that is read after it."""

store_release = _plain_store_release if config.DISABLE_JIT else _store_release
"""`store_release(array, i, value)`: to `array[i]`, `uint64`, after all that was written before it:
who reads it by `load_acquire` finds that, too."""

claim = _plain_claim if config.DISABLE_JIT else _claim
"""`claim(array, i, value)`: put it there if `array[i]`, `uint64`, is 0. Returns whether it was: of
threads that try at the same time for one only."""

add_atomically = _plain_add_atomically if config.DISABLE_JIT else _add_atomically
"""`add_atomically(array, i, value)`: add to `array[i]`, `int64`; what other threads add at the same
time is not lost. Returns what was there before."""

take_key = _plain_take_key if config.DISABLE_JIT else _take_key
"""`take_key(source, i, parts, j, target, k)`: the 16 bytes from `source[i]`, but for the bits that
`parts[j : j + 2]` has not, and those of `parts[j + 2 : j + 4]` on top, to `target[k : k + 2]`."""

same_two_words = _plain_same_two_words if config.DISABLE_JIT else _same_two_words
"""`same_two_words(a, i, b, j)`: whether `a[i : i + 2]` and `b[j : j + 2]`, `uint64`, are equal."""

copy_four_ids = _plain_copy_four_ids if config.DISABLE_JIT else _copy_four_ids
"""`copy_four_ids(source, i, target, j)`: the halves of the words `source[i : i + 2]`, but for the
three highest bits, to `target[j : j + 4]`, `uint32`."""

copy_16_ids = _plain_copy_16_ids if config.DISABLE_JIT else _copy_16_ids
"""`copy_16_ids(source, i, target, j)`: `source[i : i + 16]` to `target[j : j + 16]`, `uint32`; two
arrays that share no memory."""

store_four_ids = _plain_store_four_ids if config.DISABLE_JIT else _store_four_ids
"""`store_four_ids(array, i, word, bits)`: the lowest four numbers of so many bits each to
`array[i : i + 4]`, `uint32`; those for which the word has too few bits mean nothing."""

minimum_of_16 = _plain_minimum_of_16 if config.DISABLE_JIT else _minimum_of_16
"""`minimum_of_16(array, i)`: the smallest of `array[i : i + 16]`, `uint32`."""

minimum_of_others = _plain_minimum_of_others if config.DISABLE_JIT else _minimum_of_others
"""`minimum_of_others(array, i, ONE_PLACE, a, b, c)`: the smallest of `array[i : i + 16]`, `uint32`,
but for places `a`, `b` and `c`, which are less than 64 from each of those; 2**32 - 1 if there are
no others."""

ONE_PLACE = np.zeros(63 + 64 + 15, np.uint32)
"""For `minimum_of_others`: all bits of entry 63 are set."""
ONE_PLACE[63] = 0xFFFFFFFF

trailing_zeros = _plain_trailing_zeros if config.DISABLE_JIT else _trailing_zeros
"""`trailing_zeros(word)`: the number of the lowest set bit, `int64`; 64 for 0."""

leading_zeros = _plain_leading_zeros if config.DISABLE_JIT else _leading_zeros
"""`leading_zeros(word)`: zeros above the highest set bit, `int64`; undefined for 0."""

ones = _plain_ones if config.DISABLE_JIT else _ones
"""`ones(word)`: how many bits are set, `int64`."""

multiply = _plain_multiply if config.DISABLE_JIT else _multiply
"""`multiply(a, b)`: the product modulo 2**64 (NumPy's scalars would warn of the overflow)."""

multiply_and_fold = _plain_multiply_and_fold if config.DISABLE_JIT else _multiply_and_fold
"""`multiply_and_fold(a, b)`: both halves of the product of 128 bits, combined by exclusive or."""

add = _plain_add if config.DISABLE_JIT else _add
"""`add(a, b)`: the sum modulo 2**64 (NumPy's scalars would warn of the overflow)."""

rotate = _plain_rotate if config.DISABLE_JIT else _rotate
"""`rotate(word, bits)`: the word with its so many upper bits as the lowest ones; 0 < bits < 64."""

out_of_line = _plain_hint if config.DISABLE_JIT else _out_of_line
"""`out_of_line()`: the function that says so is called, never inlined, and seldom: the registers of
the loop around it are not kept free for it."""

apart = _plain_hint if config.DISABLE_JIT else _apart
"""`apart()`: the function that says so is called, never inlined: the loop in it has all registers
for itself."""

in_line = _plain_hint if config.DISABLE_JIT else _in_line
"""`in_line()`: the function that says so becomes a part of those that call it. A call hands over
every array of the arguments, of seven words each, on the stack: with ours that takes longer than a
look-up."""

prefetch = _plain_prefetch if config.DISABLE_JIT else _prefetch
"""`prefetch(array, i)`: have the cache line of `array[i]` fetched; it changes no result."""
