"""SplitMix64 on arrays: random numbers that depend on a seed and a counter alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
_U64 = np.uint64


def mix(values: Words) -> Words:
    """Return the outputs of SplitMix64 for states uint64[n]."""
    values = values + _U64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> _U64(27))) * _U64(0x94D049BB133111EB)
    return values ^ (values >> _U64(31))


def key_of(*numbers: int) -> Words:
    """Hash integers to uint64[1]."""
    key = np.zeros(1, np.uint64)
    for number in numbers:
        key = mix(key ^ _U64(number % 2**64))
    return key
