"""Bit sets of places in text, uint64[n]: place i is bit i % 64 of word i // 64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def set_bits(words: NDArray[np.uint64], places: NDArray[np.int64]) -> None:
    """Set bits, in place."""
    np.bitwise_or.at(words, places >> 6, np.uint64(1) << (places & 63).astype(np.uint64))


def bits_between(words: NDArray[np.uint64], first: int, stop: int) -> NDArray[np.int64]:
    """Return the places of [first, stop) whose bits are set, ascending."""
    low = first // 64
    bytes_ = words[low : -(-stop // 64)].view(np.uint8)
    places = np.flatnonzero(np.unpackbits(bytes_, bitorder="little")) + low * 64
    return places[(places >= first) & (places < stop)]
