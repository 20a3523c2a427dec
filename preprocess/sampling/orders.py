"""Orders of windows: which window is at a position of an endless stream.

A position of the stream is a number from 0 on; epoch e has the positions from e * n to (e + 1) * n,
if n is the number of windows. The window at a position depends on the seed and the position alone.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from preprocess.dataset.shards import distinct
from preprocess.split_mix import key_of, mix

Numbers = npt.NDArray[np.int64]

_ROUNDS = 8
_ROUNDS_OF_SMALL = 16  # until the permutations of few numbers are equally frequent
_SMALL = 64  # side of a small grid
_U64 = np.uint64


def sequential(positions: Numbers, n: int, seed: int) -> Numbers:
    """Return windows in their order, again in every epoch: int64[n_positions]."""
    return positions % n


def random(positions: Numbers, n: int, seed: int) -> Numbers:
    """Return independent windows, each with the same probability: int64[n_positions]."""
    return (mix(positions.astype(np.uint64) + key_of(seed)) % _U64(n)).astype(np.int64)


def epoch(positions: Numbers, n: int, seed: int) -> Numbers:
    """Return each window once per epoch, in a new random order each: int64[n_positions]."""
    epochs, places = positions // n, positions % n
    found = np.empty(len(positions), np.int64)
    for number in distinct(epochs).tolist():
        of_epoch = epochs == number
        found[of_epoch] = permute(places[of_epoch], n, seed, number)
    return found


def permute(
    places: Numbers, n: int, seed: int, epoch: int, inverse: bool = False
) -> Numbers:
    """Return the images of places in a random permutation of range(n), without memory for it.

    A Feistel network on pairs (high, low) of a grid that has at least n cells, and not many more:
    each round adds a hash of one of them to the other. Cells outside of range(n) are mapped again
    (cycle walking). J. Black and P. Rogaway, Ciphers with Arbitrary Finite Domains, 2002.

    Args:
        places: int64[n_places], each in range(n).
        n: At least 1.
        seed: Of the permutation, with `epoch`.
        epoch: See `seed`.
        inverse: True for the places that have these images.
    """
    n_low = math.isqrt(n - 1) + 1
    n_high = -(-n // n_low)
    sizes = _U64(n_low), _U64(n_high)
    n_rounds = _ROUNDS if n_low > _SMALL else _ROUNDS_OF_SMALL
    rounds = [*enumerate(_keys(seed, epoch, n_rounds))][:: -1 if inverse else 1]
    found, left = places.astype(np.uint64), np.arange(len(places))
    while len(left):
        high, low = np.divmod(found[left], sizes[0])
        for number, key in rounds:
            if number % 2:
                high = _add(high, mix(low ^ key), sizes[1], inverse)
            else:
                low = _add(low, mix(high ^ key), sizes[0], inverse)
        values = high * sizes[0] + low
        found[left] = values
        left = left[values >= _U64(n)]
    return found.astype(np.int64)


def _add(values: Any, moves: Any, size: np.uint64, inverse: bool) -> Any:
    """Return (values + moves) % size, or the values of which these are that."""
    return (values + (size - moves % size if inverse else moves)) % size


@functools.lru_cache(maxsize=16)
def _keys(seed: int, epoch: int, n_rounds: int) -> list[npt.NDArray[np.uint64]]:
    return [key_of(seed, epoch, number) for number in range(n_rounds)]


ORDERS = {"random": random, "epoch": epoch, "sequential": sequential}
