"""Eight words at a time, for processors that can.

These run where kernels are not compiled; `vector_intrinsics` has the LLVM code, which gives the
same bits. None checks bounds: the caller guarantees that what the docstring names lies
inside the arrays.

Eight words are `uint64[8]` here, and one register in a kernel, which knows `+ - * & | ^` of two of
them, modulo 2**64. A kernel asks `has_eight` first, whose answer the compiler knows: for other
processors what would follow is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bpe.kernels.runtime.machine import load_u64

_NUMBER = 2**31 - 1  # the bits of a number that is listed

WINDOW = 128
"""Bytes that `words_in_window` reads."""


def has_eight() -> bool:
    """Whether the processor has instructions for all that stands here (AVX-512 with VBMI2)."""
    return True


def all_eight(word: int) -> Any:
    """Eight times the same."""
    return np.full(8, int(word), np.uint64)


def load_eight(array: Any, i: int) -> Any:
    """`array[i : i + 8]`, of 64 bits each."""
    return array[i : i + np.uint64(8)].astype(np.uint64)


def gather_u64(source: Any, i: int, places: Any) -> Any:
    """The eight bytes from each `source[i + place]`, `uint8`, as one word."""
    return np.array([load_u64(source, int(i) + int(place)) for place in places])


def words_in_window(source: Any, i: int, places: Any) -> Any:
    """The same, of places below WINDOW; all of `source[i : i + WINDOW]` is read, and no more.

    Bytes that lie behind it mean nothing.
    """
    return gather_u64(source[i : i + WINDOW], 0, places)


def gather_eight(array: Any, places: Any) -> Any:
    """`array[place]`, `uint64`, for each place."""
    return array[places]


def lengths_listed(positions: Any, numbers: Any, i: int) -> Any:
    """How long those are whose numbers are `numbers[i : i + 8]`, `uint32`.

    That is `positions[number + 1] - positions[number]`, `int64`; 2**60 where the highest bit of a
    number is set, which does not count as one of its bits here and in `words_listed`.
    """
    listed = numbers[i : i + np.uint64(8)]
    places = listed & _NUMBER
    lengths = np.where(listed > _NUMBER, 2**60, positions[places + 1] - positions[places])
    return lengths.astype(np.uint64)


def words_listed(source: Any, start: int, positions: Any, numbers: Any, i: int) -> tuple[Any, Any]:
    """The eight bytes from each `source[positions[number] - start]`, and the next eight."""
    places = positions[numbers[i : i + np.uint64(8)] & _NUMBER]
    return gather_u64(source, -int(start), places), gather_u64(source, 8 - int(start), places)


def pairs_listed(array: Any, places: Any, i: int, behind: int) -> tuple[Any, Any]:
    """The words `array[place + behind]`, and the next ones, for `places[i : i + 8]`, `uint64`."""
    first = places[i : i + np.uint64(8)] + np.uint64(behind)
    return array[first], array[first + np.uint64(1)]


def rotate_eight(words: Any, bits: int) -> Any:
    """Each word with its so many upper bits as the lowest ones; 0 < bits < 64."""
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - int(bits)))


def from_byte(numbers: Any) -> Any:
    """For each number, below 2**61, a word: its bytes from that one on are 0xFF, the others 0."""
    return np.array([-(1 << 8 * min(int(n), 8)) & (2**64 - 1) for n in numbers], np.uint64)


def maximum(words: Any, others: Any) -> Any:
    """The larger one of each two words."""
    return np.maximum(words, others)


def select_gt(words: Any, limits: Any, chosen: Any, others: Any) -> Any:
    """Of `chosen` where a word is above its limit, else of `others`."""
    return np.where(words > limits, chosen, others)


def ne_mask(words: Any, others: Any) -> np.uint64:
    """Bit j: words j are not the same."""
    return np.uint64(sum(int(differ) << j for j, differ in enumerate(words != others)))


def without(words: Any, chosen: int) -> Any:
    """The words; 0 where bit j of `chosen` is set."""
    kept = [0 if int(chosen) >> j & 1 else word for j, word in enumerate(words)]
    return np.array(kept, np.uint64)


def gt_mask(words: Any, limits: Any) -> np.uint64:
    """Bit j: word j is above limit j."""
    return np.uint64(sum(int(above) << j for j, above in enumerate(words > limits)))


def store_eight(words: Any, array: Any, i: int) -> None:
    """Eight words to `array[i : i + 8]`, `uint64`."""
    array[i : i + np.uint64(8)] = words


def store_halves(words: Any, array: Any, i: int) -> None:
    """The lower halves of eight words to `array[i : i + 8]`, `uint32`."""
    array[i : i + np.uint64(8)] = words.astype(np.uint32)


def compress_store(chosen: int, first: int, array: Any, i: int) -> None:
    """`first + j` for every set bit j of eight, ascending, to `array[i : i + 8]`, `uint32`.

    What is behind them there means nothing.
    """
    store_positions(int(chosen) & 0xFF, first, array, int(i))


def store_positions(word: int, base: int, array: Any, i: int) -> None:
    """`base + j` for every set bit j of a word, ascending, to `array[i:]`, `int64`.

    Up to 64 are written: what is behind them means nothing.
    """
    places = [int(base) + j for j in range(64) if int(word) >> j & 1]
    array[i : i + len(places)] = places
