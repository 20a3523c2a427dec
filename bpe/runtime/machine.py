"""Single machine instructions that Python has no word for.

These run where kernels are not compiled; `bpe.runtime.intrinsics` has the LLVM code for the
same bits. None checks bounds: the caller guarantees that what the docstring names lies inside the
array. All integers are `uint64`; bit j of a mask is that of byte `i + j`. Words are little-endian.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bpe.parallel import Lock

_MASK64 = (1 << 64) - 1
_ONE_AT_A_TIME = Lock()  # for what is one step to all threads


def range_mask(array: Any, i: int, low: int, high: int) -> np.uint64:
    """Return which of `array[i : i + 64]`, `uint8`, are in low..high, inclusive.

    >>> bin(range_mask(np.arange(64, dtype=np.uint8), 0, 1, 3))
    '0b1110'
    """
    return np.uint64(sum(1 << j for j in range(64) if low <= array[i + j] <= high))


def member_mask(array: Any, i: int, word: int) -> np.uint64:
    """Return which of `array[i : i + 64]`, `uint8`, have the number of a set bit in six bits.

    >>> bin(member_mask(np.arange(64, 128, dtype=np.uint8), 0, 0b1010))
    '0b1010'
    """
    return np.uint64(sum((int(word) >> (int(array[i + j]) & 63) & 1) << j for j in range(64)))


def load_u64(array: Any, i: int) -> np.uint64:
    """Return the 8 bytes from `array[i]` of a `uint8` array as one word.

    >>> hex(load_u64(np.arange(9, dtype=np.uint8), 1))
    '0x807060504030201'
    """
    return np.uint64(int.from_bytes(bytes(array[i : i + 8]), "little"))


def load_acquire(array: Any, i: int) -> np.uint64:
    """Return `array[i]`, `uint64`, read before all later reads: 5 6, i = 1 -> 6."""
    return np.uint64(array[i])


def store_release(array: Any, i: int, value: int) -> None:
    """Write `array[i]`, `uint64`, after all earlier writes, for `load_acquire`: 1, 7 -> 7 at 1."""
    array[i] = value


def compare_exchange(array: Any, i: int, value: int) -> bool:
    """Put `value` at `array[i]`, `uint64`, if it is 0; return True if so: 0 -> True, 7 -> False."""
    with _ONE_AT_A_TIME:
        free = array[i] == 0
        if free:
            array[i] = value
    return bool(free)


def add_atomically(array: Any, i: int, value: int) -> np.int64:
    """Add to `array[i]`, `int64`, atomically; return its previous value: 7, add 2 -> 9; 7."""
    with _ONE_AT_A_TIME:
        before = np.int64(array[i])
        array[i] += value
    return before


def store_halves_of_two(first: int, second: int, target: Any, j: int) -> None:
    """Write two words, less the 3 top bits, as `target[j : j + 4]`: 5 | 6 << 32, 7 -> 5 6 7 0."""
    words = np.array([first, int(second) & _MASK64 >> 3], "<u8")
    target[j : j + 4] = words.view("<u4")


def copy_16_ids(source: Any, i: int, target: Any, j: int) -> None:
    """Copy 16 ids, `uint32`, to `target[j : j + 16]`, `uint16` or `uint32`: 0..15 -> 0..15."""
    target[j : j + 16] = source[i : i + 16]


def copy_16_bytes(source: Any, i: int, target: Any, j: int) -> None:
    """Copy `source[i : i + 16]`, `uint8`, to `target[j : j + 16]`, `uint8`: 0..15 -> 0..15."""
    target[j : j + 16] = source[i : i + 16]


def copy_64_bytes(source: Any, i: int, target: Any, j: int) -> None:
    """Copy `source[i : i + 64]`, `uint8`, to `target[j : j + 64]`, `uint8`: 0..63 -> 0..63."""
    target[j : j + 64] = source[i : i + 64]


def store_four_ids(array: Any, i: int, word: int, bits: int) -> None:
    """Write the lowest four numbers of `bits` bits of `word` to `array[i : i + 4]`.

    They are `uint16` or `uint32`, and fit. Those for which the word has too few bits mean nothing.
    >>> ids = np.zeros(4, np.uint32)
    >>> store_four_ids(ids, 0, 0x04030201, 8); ids.tolist()
    [1, 2, 3, 4]
    """
    for lane in range(4):
        array[i + lane] = (int(word) >> (int(bits) * lane & 63)) & ((1 << int(bits)) - 1)


def minimum_of_16(array: Any, i: int) -> np.uint32:
    """Return the smallest of `array[i : i + 16]`, `uint32`: 9, 8, then 15 to 28 -> 8."""
    return np.uint32(array[i : i + 16].min())


def minimum_of_others(array: Any, i: int, one_place: Any, a: int, b: int, c: int) -> np.uint32:
    """Return the smallest of `array[i : i + 16]`, `uint32`, but for the places `a`, `b` and `c`.

    These are less than 64 from each of the 16; `one_place` is `ONE_PLACE`. No others: 2**32 - 1.
    >>> int(minimum_of_others(np.arange(16, dtype=np.uint32), 0, ONE_PLACE, 0, 1, 3))
    2
    """
    values = array[i : i + 16].copy()
    for place in (a, b, c):
        values |= one_place[63 + int(i) - int(place) :][:16]
    return np.uint32(values.min())


def trailing_zeros(word: int) -> np.int64:
    """Return the number of the lowest set bit, `int64`: 0b1000 -> 3; 0 -> 64."""
    return np.int64((int(word) & -int(word)).bit_length() - 1 if word else 64)


def leading_zeros(word: int) -> np.int64:
    """Return the number of zeros above the highest set bit, `int64`: 1 -> 63; undefined for 0."""
    return np.int64(64 - int(word).bit_length())


def popcount(word: int) -> np.int64:
    """Return the number of set bits, `int64`: 0b1011 -> 3."""
    return np.int64(int(word).bit_count())


def multiply(a: int, b: int) -> np.uint64:
    """Return the product modulo 2**64 (without NumPy's warning of overflow): 2**63 + 1, 2 -> 2."""
    return np.uint64((int(a) * int(b)) & _MASK64)


def multiply_and_fold(a: int, b: int) -> np.uint64:
    """Return the exclusive or of both halves of the product of 128 bits: 2**63 * 6 -> 3."""
    product = int(a) * int(b)
    return np.uint64((product & _MASK64) ^ (product >> 64))


def add(a: int, b: int) -> np.uint64:
    """Return the sum modulo 2**64 (without NumPy's warning of overflow): 2**64 - 1 + 3 -> 2."""
    return np.uint64((int(a) + int(b)) & _MASK64)


def rotate(word: int, bits: int) -> np.uint64:
    """Rotate a word to the left by 0 < bits < 64: 2**63 | 1 by 1 -> 3."""
    return np.uint64((int(word) << int(bits) | int(word) >> 64 - int(bits)) & _MASK64)


def noinline_cold() -> None:
    """Mark the calling kernel as called, seldom: loops around it keep no registers for it."""


def noinline() -> None:
    """Mark the calling kernel as called, never inlined: its loop has all registers for itself."""


def always_inline() -> None:
    """Mark the calling kernel for inlining: a call passes arrays, of seven words, on the stack."""


def prefetch(array: Any, i: int) -> None:
    """Fetch the cache line of `array[i]`, which changes no result; no value is returned."""
    array[i]  # notices a wrong index


ONE_PLACE = np.zeros(63 + 64 + 15, np.uint32)
"""For `minimum_of_others`: all bits of entry 63 are set."""
ONE_PLACE[63] = 0xFFFFFFFF
