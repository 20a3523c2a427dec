"""LLVM code for the functions of `bpe.kernels.runtime.vectors`: a few instructions each.

Each gives the same bits as the function that it replaces. Instructions that only some processors
have are called by LLVM's names for them, and only if code is compiled for such a processor.
"""

from __future__ import annotations

import operator
from typing import Any, ClassVar

from llvmlite import ir
from numba import types
from numba.core.datamodel import models, register_default
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import lower_builtin

from bpe.kernels.runtime import vectors
from bpe.kernels.runtime.intrinsics import ANY, I1, I8, I32, I64, Call, instead_of

_WORDS, _HALVES, _BYTES = ir.VectorType(I64, 8), ir.VectorType(I32, 8), ir.VectorType(I8, 64)
_NEEDED = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vbmi", "avx512vbmi2")
# Positions that are written whether there are so many or not: three of four blocks of 64 bytes of
# source code have no more, nearly all of other text.
_ALWAYS = 32


class _EightWords(types.Type):
    """Numba's type of eight words."""

    def __init__(self) -> None:
        super().__init__(name="eight words")


@register_default(_EightWords)
class _EightWordsModel(models.PrimitiveModel):
    """Eight words are one vector of LLVM's."""

    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, _WORDS)


_EIGHT, _WORD, _INT, _VOID = _EightWords(), types.uint64, types.int64, types.void
_TWO_OF_EIGHT = types.UniTuple(_EIGHT, 2)


def _define_operator(of_two: Any, name: str) -> None:
    """Define an operator of Python between eight words and eight others."""

    class Template(ConcreteTemplate):
        key = of_two
        cases: ClassVar = [signature(_EIGHT, _EIGHT, _EIGHT)]

    infer_global(of_two)(Template)

    @lower_builtin(of_two, _EightWords, _EightWords)
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, name)(*arguments)


for _name in ("add", "sub", "mul", "and_", "or_", "xor"):
    _define_operator(getattr(operator, _name), _name)


def _has_instructions(call: Call) -> bool:
    """Return True if the processor that is compiled for has all of `_NEEDED`."""
    _, _, features = call.context.codegen().magic_tuple()
    return {f"+{name}" for name in _NEEDED} <= set(features.split(","))


def _all(number: int) -> Any:
    """Return eight words that are one number."""
    return ir.Constant(_WORDS, [number] * 8)


def _bits(call: Call, lanes: Any) -> Any:
    """Return truth values of eight lanes as the lowest bits of a word."""
    return call.builder.zext(call.builder.bitcast(lanes, I8), I64)


def _lanes(call: Call, bits: Any) -> Any:
    """Return the lowest bits of a word as truth values of eight lanes."""
    return call.builder.bitcast(call.builder.trunc(bits, I8), ir.VectorType(I1, 8))


def _gather(call: Call, start: Any, places: Any) -> Any:
    """Return the words at `start + place` for eight places; a gather instruction takes longer."""
    builder, words = call.builder, ir.Constant(_WORDS, ir.Undefined)
    pointers = [builder.gep(start, [builder.extract_element(places, I32(j))]) for j in range(8)]
    for lane, pointer in enumerate(pointers):
        word = builder.load(builder.bitcast(pointer, I64.as_pointer()), align=1)
        words = builder.insert_element(words, word, I32(lane))
    return words


def _listed(call: Call, number: int) -> list[Any]:
    """Return the elements of `array[i : i + 8]`: argument `number` and the next."""
    builder, data, i = call.builder, call.data(number), call.arguments[number + 1]
    return [builder.load(builder.gep(data, [builder.add(i, I64(lane))])) for lane in range(8)]


def _numbers(call: Call, number: int) -> list[Any]:
    """Return `array[i : i + 8]`, int32, without their sign bits and as 64-bit integers."""
    builder = call.builder
    listed = _listed(call, number)
    return [builder.zext(builder.and_(each, I32(2**31 - 1)), I64) for each in listed]


def _pairs(call: Call, data: Any, places: list[Any], align: int) -> tuple[Any, Any]:
    """Return the words at eight places, and those behind them."""
    builder, pair = call.builder, ir.VectorType(I64, 2).as_pointer()
    found = [
        builder.load(builder.bitcast(builder.gep(data, [place]), pair), align=align)
        for place in places
    ]

    def together(first: Any, second: Any) -> Any:
        n_lanes = 2 * first.type.count
        lanes = ir.Constant(ir.VectorType(I32, n_lanes), list(range(n_lanes)))
        return builder.shuffle_vector(first, second, lanes)

    # Every second one in one register: so the two words of all come apart by one instruction each.
    even, odd = (
        together(together(*found[first:4:2]), together(*found[first + 4 :: 2])) for first in (0, 1)
    )
    lanes = [[at + part + of for at in range(0, 8, 2) for of in (0, 8)] for part in (0, 1)]
    return tuple(builder.shuffle_vector(even, odd, ir.Constant(_HALVES, which)) for which in lanes)


instead_of(vectors.has_eight, types.boolean)(lambda call: I1(_has_instructions(call)))
instead_of(vectors.all_eight, _EIGHT, _WORD)(lambda call, word: call.splat(word, 8))
instead_of(vectors.load_eight, _EIGHT, ANY, _WORD)(lambda call, *_: call.load(0, _WORDS, 8))
instead_of(vectors.gather_u64, _EIGHT, ANY, _INT, _EIGHT)(
    lambda call, source, i, places: _gather(call, call.pointer(0, I8), places)
)
instead_of(vectors.gather_eight, _EIGHT, ANY, _EIGHT)(
    lambda call, array, places: _gather(call, call.data(0), places)
)
instead_of(vectors.ne_mask, _WORD, _EIGHT, _EIGHT)(
    lambda call, words, others: _bits(call, call.builder.icmp_unsigned("!=", words, others))
)
instead_of(vectors.gt_mask, _WORD, _EIGHT, _EIGHT)(
    lambda call, words, limits: _bits(call, call.builder.icmp_unsigned(">", words, limits))
)
instead_of(vectors.maximum, _EIGHT, _EIGHT, _EIGHT)(
    lambda call, a, b: call.builder.select(call.builder.icmp_unsigned(">", a, b), a, b)
)
instead_of(vectors.select_gt, _EIGHT, _EIGHT, _EIGHT, _EIGHT, _EIGHT)(
    lambda call, a, b, *each: call.builder.select(call.builder.icmp_unsigned(">", a, b), *each)
)
instead_of(vectors.rotate_eight, _EIGHT, _EIGHT, _WORD)(
    lambda call, words, n: call.llvm("llvm.fshl.v8i64", _WORDS, words, words, call.splat(n, 8))
)
instead_of(vectors.zero_lanes, _EIGHT, _EIGHT, _WORD)(
    lambda call, words, chosen: call.builder.select(_lanes(call, chosen), _all(0), words)
)
instead_of(vectors.store_eight, _VOID, _EIGHT, ANY, _WORD)(
    lambda call, words, *_: call.store(words, 1, 8)
)
instead_of(vectors.store_halves, _VOID, _EIGHT, ANY, _WORD)(
    lambda call, words, *_: call.store(call.builder.trunc(words, _HALVES), 1, 4)
)


@instead_of(vectors.words_in_window, _EIGHT, ANY, _INT, _EIGHT)
def _words_in_window(call: Call, source: Any, i: Any, places: Any) -> Any:
    if not _has_instructions(call):
        return ir.Constant(_WORDS, ir.Undefined)
    builder, pointer = call.builder, call.pointer(0, _BYTES)
    first = builder.load(pointer, align=1)
    second = builder.load(builder.gep(pointer, [I64(1)]), align=1)
    # The place of each byte: that of its word, and its own there.
    of_word = ir.Constant(ir.VectorType(I32, 64), [j & ~7 for j in range(64)])
    of_word = builder.shuffle_vector(
        builder.bitcast(places, _BYTES), ir.Constant(_BYTES, ir.Undefined), of_word
    )
    picked = builder.add(of_word, ir.Constant(_BYTES, [j & 7 for j in range(64)]))
    found = call.llvm("llvm.x86.avx512.vpermi2var.qi.512", _BYTES, first, picked, second)
    return builder.bitcast(found, _WORDS)


@instead_of(vectors.lengths_listed, _EIGHT, ANY, ANY, _WORD)
def _lengths_listed(call: Call, positions: Any, numbers: Any, i: Any) -> Any:
    starts, stops = _pairs(call, call.data(0), _numbers(call, 1), 8)
    zeros = ir.Constant(_HALVES, [0] * 8)
    marked = call.builder.icmp_signed("<", call.load(1, _HALVES, 4), zeros)
    return call.builder.select(marked, _all(2**60), call.builder.sub(stops, starts))


@instead_of(vectors.words_listed, _TWO_OF_EIGHT, ANY, _INT, ANY, ANY, _WORD)
def _words_listed(call: Call, source: Any, start: Any, *_: Any) -> Any:
    builder, positions = call.builder, call.data(2)
    places = [
        builder.sub(builder.load(builder.gep(positions, [number])), start)
        for number in _numbers(call, 3)
    ]
    return call.tuple(_pairs(call, call.data(0), places, 1))


@instead_of(vectors.pairs_listed, _TWO_OF_EIGHT, ANY, ANY, _WORD, _WORD)
def _pairs_listed(call: Call, array: Any, places: Any, i: Any, behind: Any) -> Any:
    listed = [call.builder.add(place, behind) for place in _listed(call, 1)]
    return call.tuple(_pairs(call, call.data(0), listed, 8))


@instead_of(vectors.from_byte, _EIGHT, _EIGHT)
def _from_byte(call: Call, numbers: Any) -> Any:
    # LLVM's shifts say nothing of 64 bits and more; the instruction that it finds here does.
    bits = call.builder.shl(numbers, _all(3))
    inside = call.builder.icmp_unsigned("<", bits, _all(64))
    return call.builder.select(inside, call.builder.shl(_all(2**64 - 1), bits), _all(0))


@instead_of(vectors.compress_store, _VOID, _WORD, _WORD, ANY, _WORD)
def _store_chosen(call: Call, chosen: Any, first: Any, array: Any, i: Any) -> None:
    if not _has_instructions(call):
        return
    numbers, nothing = ir.Constant(_HALVES, list(range(8))), ir.Constant(_HALVES, [0] * 8)
    name = "llvm.x86.avx512.mask.compress.v8i32"
    found = call.llvm(name, _HALVES, numbers, nothing, _lanes(call, chosen))
    firsts = call.builder.trunc(call.splat(first, 8), _HALVES)
    call.store(call.builder.add(found, firsts), 2, 4)


@instead_of(vectors.store_positions, _VOID, _WORD, _INT, ANY, _INT)
def _store_positions(call: Call, word: Any, base: Any, array: Any, i: Any) -> None:
    if not _has_instructions(call):
        return
    builder, lanes = call.builder, call.builder.bitcast(word, ir.VectorType(I1, 64))
    numbers, nothing = ir.Constant(_BYTES, list(range(64))), ir.Constant(_BYTES, [0] * 64)
    found = call.llvm("llvm.x86.avx512.mask.compress.v64i8", _BYTES, numbers, nothing, lanes)
    bases, pointer = call.splat(base, 8), call.pointer(2, _WORDS)

    def store(first: int, stop: int) -> None:
        for at in range(first, stop, 8):
            lanes_of = ir.Constant(_HALVES, list(range(at, at + 8)))
            bits = builder.shuffle_vector(found, ir.Constant(_BYTES, ir.Undefined), lanes_of)
            positions = builder.add(builder.zext(bits, _WORDS), bases)
            builder.store(positions, builder.gep(pointer, [I64(at // 8)]), align=8)

    store(0, _ALWAYS)
    many = builder.icmp_unsigned(">", builder.ctpop(word), I64(_ALWAYS))
    with builder.if_then(many, likely=False):
        store(_ALWAYS, 64)
