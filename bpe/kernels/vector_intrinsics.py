"""What the compiler makes of the functions in `bpe.kernels.vectors`: a few instructions each.

Law: each gives the same bits as the function that it stands for. What only some processors can do
is asked of LLVM by the names of their instructions, and only if it compiles for such a processor.
"""

from __future__ import annotations

import operator
from typing import Any, ClassVar

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models, register_default
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import lower_builtin

from bpe.kernels import vectors
from bpe.kernels.intrinsics import element_at, instead_of

_I1, _I8, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_WORDS, _HALVES, _BYTES = ir.VectorType(_I64, 8), ir.VectorType(_I32, 8), ir.VectorType(_I8, 64)
_NEEDED = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi", "avx512vbmi2")
# Positions that are written whether there are so many or not: three of four blocks of 64 bytes of
# source code have no more, nearly all of other text.
_ALWAYS = 32


class _EightWords(types.Type):
    """The type of eight words."""

    def __init__(self) -> None:
        super().__init__(name="eight words")


_EIGHT = _EightWords()


@register_default(_EightWords)
class _EightWordsModel(models.PrimitiveModel):
    """They are a value of LLVM's own."""

    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, _WORDS)


def _can(context: Any) -> bool:
    """Whether the processor that is compiled for has what is needed."""
    _, _, features = context.codegen().magic_tuple()
    return {f"+{name}" for name in _NEEDED} <= set(features.split(","))


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """One of LLVM's functions that stand for an instruction."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, function_type, name)
    return builder.call(function, arguments)


def _splat(builder: Any, word: Any) -> Any:
    undefined = ir.Constant(_WORDS, ir.Undefined)
    first = builder.insert_element(undefined, word, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_HALVES, [0] * 8))


def _bits(builder: Any, lanes: Any) -> Any:
    """Truth values of eight lanes as the lowest bits of a word."""
    return builder.zext(builder.bitcast(lanes, _I8), _I64)


@instead_of(vectors.has_eight)
def _has_eight(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.Constant(_I1, int(_can(context)))

    return types.boolean(), generate


def _define(of_two: Any, name: str) -> None:
    """An operator of Python between eight words and eight others."""

    class Template(ConcreteTemplate):
        key = of_two
        cases: ClassVar = [signature(_EIGHT, _EIGHT, _EIGHT)]

    infer_global(of_two)(Template)

    @lower_builtin(of_two, _EightWords, _EightWords)
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, name)(*arguments)


_define(operator.add, "add")
_define(operator.sub, "sub")
_define(operator.mul, "mul")
_define(operator.and_, "and_")
_define(operator.or_, "or_")
_define(operator.xor, "xor")


@instead_of(vectors.all_eight)
def _all_eight(typing_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _splat(builder, arguments[0])

    return _EIGHT(types.uint64), generate


@instead_of(vectors.load_eight)
def _load_eight(typing_context: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(element_at(_WORDS, context, builder, signature, arguments, 0), align=8)

    return _EIGHT(array, types.uint64), generate


def _gathered(builder: Any, pointers: list[Any]) -> Any:
    """The words at eight places; processors' own gathers take longer."""
    words = ir.Constant(_WORDS, ir.Undefined)
    for lane, pointer in enumerate(pointers):
        word = builder.load(builder.bitcast(pointer, _I64.as_pointer()), align=1)
        words = builder.insert_element(words, word, ir.Constant(_I32, lane))
    return words


@instead_of(vectors.words_at)
def _words_at(typing_context: Any, source: Any, i: Any, places: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_at(_I8, context, builder, signature, arguments, 0)
        places = [builder.extract_element(arguments[2], ir.Constant(_I32, j)) for j in range(8)]
        return _gathered(builder, [builder.gep(pointer, [place]) for place in places])

    return _EIGHT(source, types.int64, _EIGHT), generate


@instead_of(vectors.words_in_window)
def _words_in_window(typing_context: Any, source: Any, i: Any, places: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not _can(context):
            return ir.Constant(_WORDS, ir.Undefined)
        pointer = element_at(_BYTES, context, builder, signature, arguments, 0)
        first = builder.load(pointer, align=1)
        second = builder.load(builder.gep(pointer, [ir.Constant(_I64, 1)]), align=1)
        # The place of each byte: that of its word, and its own there.
        places = builder.bitcast(arguments[2], _BYTES)
        of_word = ir.Constant(ir.VectorType(_I32, 64), [j & ~7 for j in range(64)])
        of_word = builder.shuffle_vector(places, ir.Constant(_BYTES, ir.Undefined), of_word)
        picked = builder.add(of_word, ir.Constant(_BYTES, [j & 7 for j in range(64)]))
        name = "llvm.x86.avx512.vpermi2var.qi.512"
        return builder.bitcast(_call(builder, name, _BYTES, first, picked, second), _WORDS)

    return _EIGHT(source, types.int64, _EIGHT), generate


@instead_of(vectors.gather_eight)
def _gather_eight(typing_context: Any, array: Any, places: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        places = [builder.extract_element(arguments[1], ir.Constant(_I32, j)) for j in range(8)]
        return _gathered(builder, [builder.gep(data, [place]) for place in places])

    return _EIGHT(array, _EIGHT), generate


def _listed(context: Any, builder: Any, array_type: Any, array: Any, i: Any) -> list[Any]:
    """Eight numbers of a list, without their highest bits, as words."""
    data = context.make_array(array_type)(context, builder, array).data
    numbers = []
    for lane in range(8):
        number = builder.load(builder.gep(data, [builder.add(i, ir.Constant(_I64, lane))]))
        number = builder.and_(number, ir.Constant(_I32, 2**31 - 1))
        numbers.append(builder.zext(number, _I64))
    return numbers


def _pairs(builder: Any, pointers: list[Any], align: int) -> tuple[Any, Any]:
    """The words at eight places, and those behind them."""
    pair = ir.VectorType(_I64, 2)
    found = [
        builder.load(builder.bitcast(pointer, pair.as_pointer()), align=align)
        for pointer in pointers
    ]

    def together(first: Any, second: Any) -> Any:
        lanes = ir.Constant(
            ir.VectorType(_I32, 2 * first.type.count), [*range(2 * first.type.count)]
        )
        return builder.shuffle_vector(first, second, lanes)

    # Every second one in one register: so the two words of all come apart by one instruction each.
    even, odd = (
        together(
            together(found[first], found[first + 2]), together(found[first + 4], found[first + 6])
        )
        for first in (0, 1)
    )
    lanes = [[at + part + of for at in range(0, 8, 2) for of in (0, 8)] for part in (0, 1)]
    return tuple(builder.shuffle_vector(even, odd, ir.Constant(_HALVES, which)) for which in lanes)


@instead_of(vectors.lengths_listed)
def _lengths_listed(typing_context: Any, positions: Any, numbers: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        listed = _listed(context, builder, signature.args[1], arguments[1], arguments[2])
        starts, stops = _pairs(builder, [builder.gep(data, [number]) for number in listed], 8)
        pointer = element_at(_HALVES, context, builder, signature, arguments, 1)
        marked = builder.icmp_signed(
            "<", builder.load(pointer, align=4), ir.Constant(_HALVES, [0] * 8)
        )
        return builder.select(marked, ir.Constant(_WORDS, [2**60] * 8), builder.sub(stops, starts))

    return _EIGHT(positions, numbers, types.uint64), generate


@instead_of(vectors.words_listed)
def _words_listed(
    typing_context: Any, source: Any, start: Any, positions: Any, numbers: Any, i: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        text = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        data = context.make_array(signature.args[2])(context, builder, arguments[2]).data
        listed = _listed(context, builder, signature.args[3], arguments[3], arguments[4])
        places = [
            builder.sub(builder.load(builder.gep(data, [number])), arguments[1])
            for number in listed
        ]
        both = _pairs(builder, [builder.gep(text, [place]) for place in places], 1)
        return context.make_tuple(builder, signature.return_type, both)

    both = types.UniTuple(_EIGHT, 2)
    return both(source, types.int64, positions, numbers, types.uint64), generate


@instead_of(vectors.pairs_listed)
def _pairs_listed(typing_context: Any, array: Any, places: Any, i: Any, behind: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        listed = context.make_array(signature.args[1])(context, builder, arguments[1]).data
        pointers = []
        for lane in range(8):
            at = builder.add(arguments[2], ir.Constant(_I64, lane))
            place = builder.load(builder.gep(listed, [at]))
            pointers.append(builder.gep(data, [builder.add(place, arguments[3])]))
        both = _pairs(builder, pointers, 8)
        return context.make_tuple(builder, signature.return_type, both)

    both = types.UniTuple(_EIGHT, 2)
    return both(array, places, types.uint64, types.uint64), generate


@instead_of(vectors.rotate_eight)
def _rotate_eight(typing_context: Any, words: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, bits = arguments
        return _call(builder, "llvm.fshl.v8i64", _WORDS, words, words, _splat(builder, bits))

    return _EIGHT(_EIGHT, types.uint64), generate


@instead_of(vectors.from_byte)
def _from_byte(typing_context: Any, numbers: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # LLVM's shifts say nothing of 64 bits and more; the instruction that it finds here does.
        bits = builder.shl(arguments[0], ir.Constant(_WORDS, [3] * 8))
        inside = builder.icmp_unsigned("<", bits, ir.Constant(_WORDS, [64] * 8))
        ones = ir.Constant(_WORDS, [2**64 - 1] * 8)
        return builder.select(inside, builder.shl(ones, bits), ir.Constant(_WORDS, [0] * 8))

    return _EIGHT(_EIGHT), generate


@instead_of(vectors.larger_of)
def _larger_of(typing_context: Any, words: Any, others: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.icmp_unsigned(">", *arguments), *arguments)

    return _EIGHT(_EIGHT, _EIGHT), generate


@instead_of(vectors.chosen_above)
def _chosen_above(typing_context: Any, words: Any, limits: Any, chosen: Any, others: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words, limits, chosen, others = arguments
        return builder.select(builder.icmp_unsigned(">", words, limits), chosen, others)

    return _EIGHT(_EIGHT, _EIGHT, _EIGHT, _EIGHT), generate


@instead_of(vectors.which_differ)
def _which_differ(typing_context: Any, words: Any, others: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _bits(builder, builder.icmp_unsigned("!=", *arguments))

    return types.uint64(_EIGHT, _EIGHT), generate


@instead_of(vectors.without)
def _without(typing_context: Any, words: Any, chosen: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = builder.bitcast(builder.trunc(arguments[1], _I8), ir.VectorType(_I1, 8))
        return builder.select(lanes, ir.Constant(_WORDS, [0] * 8), arguments[0])

    return _EIGHT(_EIGHT, types.uint64), generate


@instead_of(vectors.which_above)
def _which_above(typing_context: Any, words: Any, limits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _bits(builder, builder.icmp_unsigned(">", *arguments))

    return types.uint64(_EIGHT, _EIGHT), generate


@instead_of(vectors.store_eight)
def _store_eight(typing_context: Any, words: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_at(_WORDS, context, builder, signature, arguments, 1)
        builder.store(arguments[0], pointer, align=8)
        return context.get_dummy_value()

    return types.void(_EIGHT, array, types.uint64), generate


@instead_of(vectors.store_halves)
def _store_halves(typing_context: Any, words: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = element_at(_HALVES, context, builder, signature, arguments, 1)
        builder.store(builder.trunc(arguments[0], _HALVES), pointer, align=4)
        return context.get_dummy_value()

    return types.void(_EIGHT, array, types.uint64), generate


@instead_of(vectors.store_chosen)
def _store_chosen(typing_context: Any, chosen: Any, first: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not _can(context):
            return context.get_dummy_value()
        lanes = builder.bitcast(builder.trunc(arguments[0], _I8), ir.VectorType(_I1, 8))
        numbers, nothing = ir.Constant(_HALVES, list(range(8))), ir.Constant(_HALVES, [0] * 8)
        name = "llvm.x86.avx512.mask.compress.v8i32"
        found = _call(builder, name, _HALVES, numbers, nothing, lanes)
        places = builder.add(found, builder.trunc(_splat(builder, arguments[1]), _HALVES))
        pointer = element_at(_HALVES, context, builder, signature, arguments, 2)
        builder.store(places, pointer, align=4)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, array, types.uint64), generate


@instead_of(vectors.store_positions)
def _store_positions(typing_context: Any, word: Any, base: Any, array: Any, i: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if not _can(context):
            return context.get_dummy_value()
        lanes = builder.bitcast(arguments[0], ir.VectorType(_I1, 64))
        numbers, nothing = ir.Constant(_BYTES, list(range(64))), ir.Constant(_BYTES, [0] * 64)
        name = "llvm.x86.avx512.mask.compress.v64i8"
        found = _call(builder, name, _BYTES, numbers, nothing, lanes)
        base = _splat(builder, arguments[1])
        pointer = element_at(_WORDS, context, builder, signature, arguments, 2)

        def store(first: int, stop: int) -> None:
            for at in range(first, stop, 8):
                lanes_of = ir.Constant(_HALVES, list(range(at, at + 8)))
                bits = builder.shuffle_vector(found, ir.Constant(_BYTES, ir.Undefined), lanes_of)
                positions = builder.add(builder.zext(bits, _WORDS), base)
                to = builder.gep(pointer, [ir.Constant(_I64, at // 8)])
                builder.store(positions, to, align=8)

        store(0, _ALWAYS)
        many = builder.icmp_unsigned(">", builder.ctpop(arguments[0]), ir.Constant(_I64, _ALWAYS))
        with builder.if_then(many, likely=False):
            store(_ALWAYS, 64)
        return context.get_dummy_value()

    return types.void(types.uint64, types.int64, array, types.int64), generate
