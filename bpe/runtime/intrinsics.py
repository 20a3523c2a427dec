"""LLVM code for the functions of `machine`, and how such code is registered with numba.

Each gives the same bits as the function that it replaces. Vectors are LLVM's own `<64 x i8>`, so
that one source becomes AVX-512, AVX2 or NEON, whatever the processor has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import lower_builtin, type_callable

from bpe.runtime import machine

I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_BYTES, _IDS = ir.VectorType(I8, 64), ir.VectorType(I32, 16)
_WORD, _INT, _BOOL = types.uint64, types.int64, types.boolean
ANY = None
"""In a signature: whatever is given, an array."""


class Call(NamedTuple):
    """A call in a kernel, for which code is generated.

    Attributes:
        context: Numba's target context.
        builder: LLVM's builder, where the call stands.
        signature: Numba's types of the result and of the arguments.
        arguments: LLVM's values of the arguments.
    """

    context: Any
    builder: Any
    signature: Any
    arguments: Any

    def data(self, number: int) -> Any:
        """Return the pointer to the first element of an array, argument `number`."""
        array_type, array = self.signature.args[number], self.arguments[number]
        return self.context.make_array(array_type)(self.context, self.builder, array).data

    def pointer(self, number: int, kind: Any) -> Any:
        """Return a pointer to a value of `kind` at `array[index]`: argument `number` and the next.

        The array is flat, and the value may be longer than an element.
        """
        at = self.builder.gep(self.data(number), [self.arguments[number + 1]])
        return self.builder.bitcast(at, kind.as_pointer())

    def load(self, number: int, kind: Any, align: int) -> Any:
        """Load such a value."""
        return self.builder.load(self.pointer(number, kind), align=align)

    def store(self, value: Any, number: int, align: int) -> None:
        """Store a value to `array[index]`: argument `number` and the next."""
        self.builder.store(value, self.pointer(number, value.type), align=align)

    def splat(self, value: Any, lanes: int) -> Any:
        """Return a vector that has one value in all its lanes."""
        undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, value, I32(0))
        zeros = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def llvm(self, name: str, result: Any, *arguments: Any) -> Any:
        """Call one of LLVM's own functions."""
        kind, module = ir.FunctionType(result, [x.type for x in arguments]), self.builder.module
        function = module.globals.get(name) or ir.Function(module, kind, name)
        return self.builder.call(function, arguments)


def instead_of(plain: Callable[..., Any], result: Any, *parameters: Any) -> Callable[[Any], Any]:
    """Decorator: where a kernel calls `plain`, what the decorated function generates is compiled.

    That is called with the `Call` and the values of its arguments, and returns that of its result.

    Args:
        plain: The Python function.
        result: Numba's type of its result.
        parameters: Numba's types of its arguments, or `ANY`.
    """

    def signature_of(*given: Any) -> Any:
        pairs = zip(parameters, given, strict=True)
        return result(*[of_given if of is ANY else of for of, of_given in pairs])

    signature_of.pysig = inspect.signature(plain)  # type: ignore[attr-defined]
    type_callable(plain)(lambda typing_context: signature_of)

    def register(generate: Callable[..., Any]) -> Any:
        @lower_builtin(plain, types.VarArg(types.Any))
        def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            value = generate(Call(context, builder, signature, arguments), *arguments)
            return context.get_dummy_value() if result == types.void else value

        return generate

    return register


instead_of(machine.load_u64, _WORD, ANY, _INT)(lambda call, *_: call.load(0, I64, 1))
instead_of(machine.load_acquire, _WORD, ANY, _INT)(
    lambda call, *_: call.builder.load_atomic(call.pointer(0, I64), "acquire", 8)
)
instead_of(machine.store_release, types.void, ANY, _INT, _WORD)(
    lambda call, *given: call.builder.store_atomic(given[2], call.pointer(0, I64), "release", 8)
)
instead_of(machine.add_atomically, _INT, ANY, _INT, _INT)(
    lambda call, *given: call.builder.atomic_rmw("add", call.pointer(0, I64), given[2], "monotonic")
)
instead_of(machine.trailing_zeros, _INT, _WORD)(lambda call, word: call.builder.cttz(word, I1(0)))
instead_of(machine.leading_zeros, _INT, _WORD)(lambda call, word: call.builder.ctlz(word, I1(1)))
instead_of(machine.popcount, _INT, _WORD)(lambda call, word: call.builder.ctpop(word))
instead_of(machine.add, _WORD, _WORD, _WORD)(lambda call, a, b: call.builder.add(a, b))
instead_of(machine.multiply, _WORD, _WORD, _WORD)(lambda call, a, b: call.builder.mul(a, b))
# Of two shifts and an `or` the compiler makes two multiplications instead.
instead_of(machine.rotate, _WORD, _WORD, _WORD)(
    lambda call, word, bits: call.llvm("llvm.fshl.i64", I64, word, word, bits)
)


@instead_of(machine.range_mask, _WORD, ANY, _INT, types.uint8, types.uint8)
def _range_mask(call: Call, array: Any, i: Any, low: Any, high: Any) -> Any:
    builder, loaded = call.builder, call.load(0, _BYTES, 1)
    low_bytes = call.splat(low, 64)
    # low <= x <= high is one unsigned comparison: x - low <= high - low.
    distance = builder.sub(loaded, low_bytes)
    width = builder.sub(call.splat(high, 64), low_bytes)
    return builder.bitcast(builder.icmp_unsigned("<=", distance, width), I64)


@instead_of(machine.member_mask, _WORD, ANY, _INT, _WORD)
def _member_mask(call: Call, array: Any, i: Any, word: Any) -> Any:
    # Lanes of 16 bits: each takes its quarter of the word and shifts it. There are no shifts by
    # lane of less, and wider lanes take twice as many instructions and more.
    builder, i16 = call.builder, ir.IntType(16)
    loaded = call.load(0, _BYTES, 1)

    def quarter(number: int) -> Any:
        return call.splat(builder.trunc(builder.lshr(word, I64(16 * number)), i16), 64)

    def has(bit: int) -> Any:
        kept = builder.and_(loaded, ir.Constant(_BYTES, [bit] * 64))
        return builder.icmp_unsigned("!=", kept, ir.Constant(_BYTES, [0] * 64))

    low = builder.select(has(16), quarter(1), quarter(0))
    high = builder.select(has(16), quarter(3), quarter(2))
    lanes = ir.VectorType(i16, 64)
    places = builder.and_(builder.zext(loaded, lanes), ir.Constant(lanes, [15] * 64))
    bits = builder.lshr(builder.select(has(32), high, low), places)
    return builder.bitcast(builder.trunc(bits, ir.VectorType(I1, 64)), I64)


@instead_of(machine.compare_exchange, _BOOL, ANY, _INT, _WORD)
def _compare_exchange(call: Call, array: Any, i: Any, value: Any) -> Any:
    found = call.builder.cmpxchg(call.pointer(0, I64), I64(0), value, "acq_rel", "acquire")
    return call.builder.extract_value(found, 1)


def _store_ids(call: Call, ids: Any, number: int) -> None:
    """Store a vector of ids to `array[index]`, in the width of the array's elements."""
    element = call.context.get_value_type(call.signature.args[number].dtype)
    if element.width < ids.type.element.width:
        ids = call.builder.trunc(ids, ir.VectorType(element, ids.type.count))
    call.store(ids, number, element.width // 8)


instead_of(machine.copy_16_ids, types.void, ANY, _INT, ANY, _INT)(
    lambda call, *_: _store_ids(call, call.load(0, _IDS, 4), 2)
)


instead_of(machine.copy_16_bytes, types.void, ANY, _INT, ANY, _INT)(
    lambda call, *_: call.store(call.load(0, ir.VectorType(I8, 16), 1), 2, 1)
)


instead_of(machine.copy_64_bytes, types.void, ANY, _INT, ANY, _INT)(
    lambda call, *_: call.store(call.load(0, _BYTES, 1), 2, 1)
)


@instead_of(machine.store_halves_of_two, types.void, _WORD, _WORD, ANY, _INT)
def _store_halves_of_two(call: Call, first: Any, second: Any, target: Any, j: Any) -> None:
    words = ir.Constant(ir.VectorType(I64, 2), ir.Undefined)
    kept = call.builder.and_(second, I64(2**61 - 1))
    for lane, word in enumerate((first, kept)):
        words = call.builder.insert_element(words, word, I32(lane))
    _store_ids(call, call.builder.bitcast(words, ir.VectorType(I32, 4)), 2)


@instead_of(machine.store_four_ids, types.void, ANY, _INT, _WORD, _INT)
def _store_four_ids(call: Call, array: Any, i: Any, word: Any, bits: Any) -> None:
    builder, vector = call.builder, ir.VectorType(I64, 4)
    shifts = builder.mul(call.splat(bits, 4), ir.Constant(vector, [0, 1, 2, 3]))
    shifts = builder.and_(shifts, ir.Constant(vector, [63] * 4))
    mask = call.splat(builder.sub(builder.shl(I64(1), bits), I64(1)), 4)
    _store_ids(call, builder.and_(builder.lshr(call.splat(word, 4), shifts), mask), 0)


def _minimum(call: Call, values: Any) -> Any:
    return call.llvm("llvm.vector.reduce.umin.v16i32", I32, values)


instead_of(machine.minimum_of_16, types.uint32, ANY, _INT)(
    lambda call, *_: _minimum(call, call.load(0, _IDS, 4))
)


@instead_of(machine.minimum_of_others, types.uint32, ANY, _INT, ANY, _INT, _INT, _INT)
def _minimum_of_others(call: Call, array: Any, i: Any, one_place: Any, *places: Any) -> Any:
    builder, values = call.builder, call.load(0, _IDS, 4)
    first = builder.add(i, I64(63))
    for place in places:
        at = builder.gep(call.data(2), [builder.sub(first, place)])
        # Loaded, not compared: of comparisons the compiler makes vectors of single bits.
        left_out = builder.load(builder.bitcast(at, _IDS.as_pointer()), align=4)
        values = builder.or_(values, left_out)
    return _minimum(call, values)


@instead_of(machine.multiply_and_fold, _WORD, _WORD, _WORD)
def _multiply_and_fold(call: Call, a: Any, b: Any) -> Any:
    builder, wide = call.builder, ir.IntType(128)
    product = builder.mul(builder.zext(a, wide), builder.zext(b, wide))
    upper = builder.trunc(builder.lshr(product, wide(64)), I64)
    return builder.xor(builder.trunc(product, I64), upper)


def _define_attributes(plain: Callable[[], None], *names: str) -> None:
    """Have a call of `plain` give LLVM attributes to the function in which it stands."""

    @instead_of(plain, types.void)
    def generate(call: Call) -> None:
        for name in names:
            call.builder.function.attributes.add(name)


_define_attributes(machine.noinline_cold, "noinline", "cold")
_define_attributes(machine.noinline, "noinline")
_define_attributes(machine.always_inline, "alwaysinline")


@instead_of(machine.prefetch, types.void, ANY, _INT)
def _prefetch(call: Call, array: Any, i: Any) -> None:
    for_read, keep_near, of_data = I32(0), I32(3), I32(1)
    at = call.pointer(0, I8)
    call.llvm("llvm.prefetch.p0", ir.VoidType(), at, for_read, keep_near, of_data)
