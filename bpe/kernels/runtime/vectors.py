"""Eight words at a time, for processors that can.

These run where kernels are not compiled; `vector_intrinsics` has the LLVM code, which gives the
same bits. None checks bounds: the caller guarantees that what is named lies inside the arrays.

Eight words are `uint64[8]` here, and one register in a kernel, which knows `+ - * & | ^` of two of
them, modulo 2**64. A kernel asks `has_eight` first, whose answer the compiler knows: for other
processors what would follow is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bpe.kernels.runtime.machine import load_u64

_NUMBER = 2**31 - 1  # the bits of a number that is listed

WINDOW = 128  # bytes that `words_in_window` reads


def has_eight() -> bool:
    """Return True if the processor has all instructions used here (AVX-512 with VBMI2)."""
    return True


def all_eight(word: int) -> Any:
    """Return eight equal words: 5 -> 5 5 5 5 5 5 5 5."""
    return np.full(8, int(word), np.uint64)


def load_eight(array: Any, i: int) -> Any:
    """Return `array[i : i + 8]`, of 64 bits each, as eight words: 0..9, i = 2 -> 2..9."""
    return array[i : i + np.uint64(8)].astype(np.uint64)


def gather_u64(source: Any, i: int, places: Any) -> Any:
    """Return the eight bytes from each `source[i + place]`, `uint8`, as `load_u64` does for one."""
    return np.array([load_u64(source, int(i) + int(place)) for place in places])


def words_in_window(source: Any, i: int, places: Any) -> Any:
    """Return `gather_u64` for places below WINDOW; reads exactly `source[i : i + WINDOW]`.

    Bytes of a word beyond the window mean nothing: place 126 -> two bytes that count.
    """
    return gather_u64(source[i : i + WINDOW], 0, places)


def gather_eight(array: Any, places: Any) -> Any:
    """Return `array[place]`, `uint64`, for each place: 5 6 7, places 2 0 ... -> 7 5 ..."""
    return array[places]


def lengths_listed(positions: Any, numbers: Any, i: int) -> Any:
    """Return the lengths of the pre-tokens whose numbers are `numbers[i : i + 8]`, `uint32`.

    That is `positions[number + 1] - positions[number]`, `int64`; 2**60 where the highest bit of a
    number is set, which does not count as one of its bits here and in `words_listed`.
    >>> numbers = np.array([0, 1, 2**31] + [0] * 5, np.uint32)
    >>> lengths_listed(np.array([0, 3, 7]), numbers, np.uint64(0))[:3].tolist() == [3, 4, 2**60]
    True
    """
    listed = numbers[i : i + np.uint64(8)]
    places = listed & _NUMBER
    lengths = np.where(listed > _NUMBER, 2**60, positions[places + 1] - positions[places])
    return lengths.astype(np.uint64)


def words_listed(source: Any, start: int, positions: Any, numbers: Any, i: int) -> tuple[Any, Any]:
    """Return 8 bytes from each `source[positions[number] - start]`, and the next 8: 3 -> 3, 11."""
    places = positions[numbers[i : i + np.uint64(8)] & _NUMBER]
    return gather_u64(source, -int(start), places), gather_u64(source, 8 - int(start), places)


def pairs_listed(array: Any, places: Any, i: int, behind: int) -> tuple[Any, Any]:
    """Return `array[place + behind]`, and the next, of `places[i : i + 8]`: 4, behind 2 -> 6, 7."""
    first = places[i : i + np.uint64(8)] + np.uint64(behind)
    return array[first], array[first + np.uint64(1)]


def rotate_eight(words: Any, bits: int) -> Any:
    """Rotate each word to the left by 0 < bits < 64: 2**63 | 1 by 1 -> 3."""
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - int(bits)))


def from_byte(numbers: Any) -> Any:
    """Return a word for each number, below 2**61: bytes from that one on are 0xFF, the others 0.

    >>> [hex(word) for word in from_byte(np.array([0, 7, 8]))]
    ['0xffffffffffffffff', '0xff00000000000000', '0x0']
    """
    return np.array([-(1 << 8 * min(int(n), 8)) & (2**64 - 1) for n in numbers], np.uint64)


def maximum(words: Any, others: Any) -> Any:
    """Return the larger of each two words: 5 2 ..., 3 4 ... -> 5 4 ..."""
    return np.maximum(words, others)


def select_gt(words: Any, limits: Any, chosen: Any, others: Any) -> Any:
    """Return words of `chosen` where words exceed limits, else of `others`: 5, 3 -> chosen."""
    return np.where(words > limits, chosen, others)


def ne_mask(words: Any, others: Any) -> np.uint64:
    """Return a mask, bit j set where words j differ: 5 6 7 ..., 5 0 0 ... -> 0b110."""
    return np.uint64(sum(int(differ) << j for j, differ in enumerate(words != others)))


def zero_lanes(words: Any, chosen: int) -> Any:
    """Return the words, with 0 where bit j of `chosen` is set: 5 6 7 ..., 0b10 -> 5 0 7 ..."""
    kept = [0 if int(chosen) >> j & 1 else word for j, word in enumerate(words)]
    return np.array(kept, np.uint64)


def gt_mask(words: Any, limits: Any) -> np.uint64:
    """Return a mask, bit j set where word j is above limit j: 5 6 7 ..., 5 5 5 ... -> 0b110."""
    return np.uint64(sum(int(above) << j for j, above in enumerate(words > limits)))


def store_eight(words: Any, array: Any, i: int) -> None:
    """Write eight words to `array[i : i + 8]`, `uint64`: i = 1, words 5 6 ... -> 0 5 6 ..."""
    array[i : i + np.uint64(8)] = words


def store_halves(words: Any, array: Any, i: int) -> None:
    """Write the lower halves of eight words to `array[i : i + 8]`, `uint32`: 5 | 6 << 32 -> 5."""
    array[i : i + np.uint64(8)] = words.astype(np.uint32)


def compress_store(chosen: int, first: int, array: Any, i: int) -> None:
    """Write `first + j` for every set bit j of eight, ascending, to `array[i : i + 8]`, `uint32`.

    Entries after these mean nothing. Example: 0b101, first 10 -> 10 12.
    """
    store_positions(int(chosen) & 0xFF, first, array, int(i))


def store_positions(word: int, base: int, array: Any, i: int) -> None:
    """Write `base + j` for every set bit j of a word, ascending, to `array[i:]`, `int64`.

    Up to 64 are written; entries after the last bit's mean nothing.
    >>> array = np.zeros(4, np.int64)
    >>> store_positions(0b1001, 64, array, 1); array.tolist()
    [0, 64, 67, 0]
    """
    places = [int(base) + j for j in range(64) if int(word) >> j & 1]
    array[i : i + len(places)] = places
