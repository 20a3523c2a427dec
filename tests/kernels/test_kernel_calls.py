"""What kernels take from Python: the kinds of arguments, and that nothing else gets in."""

from __future__ import annotations

import math
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest
from llvmlite import ir
from numpy.typing import NDArray

from bpe.runtime import jit, user_cache
from bpe.runtime.jit import kernel
from bpe.runtime.machine_code import KernelError, append

pytestmark = pytest.mark.skipif(
    jit.DISABLE_JIT, reason="uncompiled, functions take whatever they are given"
)


def kind_of(value: Any) -> Any:
    """Return the kind of an argument."""
    return append(value, [], [])


class Pair(NamedTuple):
    first: NDArray[Any]
    second: NDArray[Any]


class Other(NamedTuple):
    first: NDArray[Any]
    second: NDArray[Any]


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


def arrays() -> list[NDArray[Any]]:
    return [
        *[np.arange(1, 4).astype(kind) for kind in "bBhHiIqQfd?"],
        np.arange(24, dtype=np.uint32).reshape(2, 3, 4),
        np.array(7, np.uint64),
        np.zeros((0, 3), np.int32),
        read_only(np.arange(5)),
    ]


@kernel
def _total(values):
    total = np.int64(0)
    for value in values.flat:
        total += np.int64(value)
    return total, values.size, values.ndim


@kernel
def _numbers(number, flag):
    return number, flag, np.uint8(200), np.int8(-3)


@kernel
def _of_pair(pair, factor):
    pair.first[0] = pair.second[1] * factor


@kernel
def _of_tuple(arrays):
    return arrays[0].size - arrays[1].size


@kernel
def _of_pair_and_array(pair, array):
    return pair.first.size + pair.second.size - 5 + array.size + array[0]


@kernel
def _raising(values, i):
    if i < 0:
        raise IndexError("nothing is there")
    return values[i] // (i - 1)


@pytest.mark.parametrize("array", arrays(), ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays(array: NDArray[Any]) -> None:
    assert _total(array) == (int(array.sum()), array.size, array.ndim)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        *[(number, number) for number in (1, -(2**63), 2**63, 2**64 - 1)],
        *[(np.int64(-5), -5), (np.uint64(2**64 - 1), 2**64 - 1), (np.uint64(3), 3)],
    ],
)
@pytest.mark.parametrize("flag", [True, False, np.True_])
def test_numbers(number: Any, expected: int, flag: Any) -> None:
    found = _numbers(number, flag)
    assert found == (expected, bool(flag), 200, -3)
    assert [type(value) for value in found] == [int, bool, int, int]


def test_tuples() -> None:
    pair = Pair(np.zeros(2, np.int64), np.array([3, 4], np.int64))
    assert _of_pair(pair, 5) is None
    assert pair.first.tolist() == [20, 0]
    other = Other(np.zeros(2, np.uint64), np.array([3, 4], np.uint64))
    _of_pair(other, np.uint64(6))
    assert other.first.tolist() == [24, 0]
    assert _of_tuple((pair.first, pair.second[1:])) == 1
    assert _of_tuple((pair.first[1:], pair.second, pair.second)) == -1


def test_arguments_that_are_packed_once() -> None:
    pair = jit.pack(Pair(np.zeros(2, np.int64), np.array([3, 4], np.int64)))
    other = jit.pack(Pair(np.zeros(1, np.int64), pair.values.second))
    call = jit.bind(_of_pair, pair, 5)
    for factor in (2, 3):
        pair.values.second[1] = factor
        call(pair)
        call(other)
        assert pair.values.first.tolist() == [5 * factor, 0]
        assert other.values.first.tolist() == [5 * factor]
    _of_pair(pair, 6)
    assert pair.values.first.tolist() == [18, 0]
    unlike = jit.pack(Pair(np.zeros(1, np.int64), np.zeros(2, np.int32)))
    with pytest.raises(KernelError, match="is bound to arguments of another kind"):
        call(unlike)


def test_what_is_bound_keeps_its_arguments() -> None:
    array, pair = np.full(1000, 7), jit.pack(Pair(np.zeros(2), np.zeros(3)))
    call = jit.bind(_of_pair_and_array, pair, array)
    alive = weakref.ref(array)
    del array
    assert alive() is not None
    assert call(pair) == 1007
    del call
    assert alive() is None


REFUSED = [
    np.zeros((4, 6))[:, ::2], np.zeros((4, 6)).T, np.zeros(1, ">u4"), np.zeros(1, np.longdouble),
    np.zeros(9, np.uint8)[1:].view(np.int64), np.zeros(1, [("a", np.uint8), ("b", np.int64)]),
    np.zeros(1, np.complex64), np.array(["text"]), np.array([{}], object), np.uint8(1), 2**64,
    np.ma.masked_array(np.zeros(2), [True, False]), -(2**63) - 1, 0.5, None, "text", b"bytes", [1],
    {}, (np.zeros(1), 0.5), (1, None),
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: f"{type(value).__name__} {value}")
def test_what_no_kernel_takes(value: Any) -> None:
    with pytest.raises(TypeError, match="kernels take 64-bit integers, bools, aligned C-contig"):
        _total(value)


@pytest.mark.parametrize("value", [*arrays(), 1, 2**63, True, np.int64(1), np.uint64(1)], ids=str)
def test_numba_takes_arguments_for_the_same(value: Any) -> None:
    from numba.core.typing.typeof import typeof

    from bpe.runtime.compiler import numba_type

    for each in (value, (value, value), Pair(value, value)):
        assert numba_type(kind_of(each)) == typeof(each)


def test_what_a_kernel_raises() -> None:
    values = np.array([4, 6, 8])
    assert _raising(values, 2) == 8
    with pytest.raises(IndexError, match="nothing is there"):
        _raising(values, -1)
    with pytest.raises(ZeroDivisionError):
        _raising(values, 1)
    assert _raising(values, 2) == 8


@kernel
def _half(number):
    return number / 2


def test_what_a_kernel_may_return() -> None:
    with pytest.raises(TypeError, match="_half returns float64: kernels return integers and truth"):
        _half(3)


@kernel
def _with_keyword(number):
    return _exponent(number=number)


def test_a_call_with_keywords_is_refused() -> None:
    with pytest.raises(KernelError, match="_exponent: kernels call kernels without keywords"):
        _with_keyword(3)


@kernel
def _exponent(number):
    return math.frexp(float(number))[1]


def test_what_is_outside_of_a_kernel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from bpe.runtime import compiler

    monkeypatch.setattr(user_cache, "_warned", set())
    # It would not be there in a process that finds the machine code in the cache.
    assert [_exponent(3), _exponent(8)] == [2, 4]
    assert "longer to compile and to run: compiling with numba" in caplog.text
    assert "_exponent needs numba_frexp, which is outside of it" in caplog.text
    caplog.clear()
    # On macOS, LLVM puts a call of the C library in place of a loop.
    library = compiler._context().codegen().create_library("filling")
    module = library.create_ir_module("filling")
    of_three = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 3)
    callee = ir.Function(module, of_three, "memset_pattern16")
    builder = ir.IRBuilder(ir.Function(module, of_three, "filling").append_basic_block())
    builder.call(callee, [ir.IntType(64)(8)] * 3)
    builder.ret_void()
    library.add_ir_module(module)
    assert "call void @memset_pattern16" in str(compiler._linked(library, "filling", "filling"))


def test_arguments_are_given_back() -> None:
    values, pair = np.arange(3), Pair(np.zeros(2, np.int64), np.zeros(2, np.int64))
    before = [sys.getrefcount(each) for each in (values, pair, pair.first, values.dtype)]
    for _ in range(1000):
        _total(values)
        _of_pair(pair, 1)
    after = [sys.getrefcount(each) for each in (values, pair, pair.first, values.dtype)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [0, 0, 0, 0]


def test_a_kernel_that_closes_over_something_needs_a_variant() -> None:
    """Else another one that the function makes would run its machine code."""
    step = 1

    def add_step(x: int) -> int:
        return x + step

    with pytest.raises(TypeError, match="add_step closes over step; tell it apart by a variant"):
        kernel(add_step)
    assert kernel(add_step, "_1")(2) == 3


def test_threads_that_come_first_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    def counted(name: str) -> None:
        compiled.append(name)

    @kernel
    def add(a, b):
        return a + b

    made = add._machine_code
    monkeypatch.setattr(add, "_machine_code", lambda kinds: (counted(kinds), made(kinds))[1])
    barrier = threading.Barrier(4)

    def call(number: int) -> int:
        barrier.wait()
        return add(number, 1) + add(np.uint64(number), np.uint64(1))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(call, range(4))) == [2, 4, 6, 8]
    assert sorted(compiled) == [("int", "int"), ("uint", "uint")]
