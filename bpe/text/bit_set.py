"""Bit sets of byte positions, uint64[n]: position i is bit i % 64 of word i // 64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def set_bits(words: NDArray[np.uint64], positions: NDArray[np.int64]) -> None:
    """Set the bits of positions, in place."""
    np.bitwise_or.at(words, positions >> 6, np.uint64(1) << (positions & 63).astype(np.uint64))


def bits_between(words: NDArray[np.uint64], first: int, stop: int) -> NDArray[np.int64]:
    """Return the positions in [first, stop) whose bits are set, ascending."""
    low = first // 64
    bytes_ = words[low : -(-stop // 64)].view(np.uint8)
    positions = np.flatnonzero(np.unpackbits(bytes_, bitorder="little")) + low * 64
    return positions[(positions >= first) & (positions < stop)]
