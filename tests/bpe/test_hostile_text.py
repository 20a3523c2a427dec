"""Text that was written to collide in hash tables takes no longer than other text."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from bpe import PretokenCounts

FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
LOW = np.uint64(2**32 - 1)


def fold(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the exclusive or of both halves of products."""
    halves = [(each & LOW, each >> np.uint64(32)) for each in (a, b)]
    parts = [x * y for x in halves[0] for y in halves[1]]
    middle = (parts[0] >> np.uint64(32)) + (parts[1] & LOW) + (parts[2] & LOW)
    high = parts[3] + (parts[1] >> np.uint64(32)) + (parts[2] >> np.uint64(32))
    return (high + (middle >> np.uint64(32))) ^ (middle << np.uint64(32) | parts[0] & LOW)


def words_of(n: int, seed: int) -> NDArray[np.uint8]:
    """Random pre-tokens of 16 bytes."""
    words = np.random.default_rng(seed).integers(97, 123, (n, 16), np.uint8)
    words[:, 0] = 32
    return words


def colliding_short(words: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pre-tokens of 15 bytes that had one of two places in a table of 2**14 rows."""
    words[:, 15] = 15
    low, high = words.view(np.uint64).T
    hashed = fold(low ^ FACTORS[0], high ^ FACTORS[1]) >> np.uint64(32)
    return words[hashed & np.uint64(2**13 - 1) == 0, :15]


def colliding_long(words: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pre-tokens of 16 bytes that had one place in a table of 2**13 rows."""
    mixed = np.full(len(words), 16, np.uint64)
    for word in words.view(np.uint64).T:
        mixed = (mixed ^ word) * FACTORS[0]
        mixed ^= mixed >> np.uint64(29)
    return words[mixed * np.uint64(0xD6E8FEB86659FD93) >> np.uint64(51) == 0]


def seconds_of(words: NDArray[np.uint8]) -> float:
    text = words[np.random.default_rng(0).permutation(np.repeat(np.arange(len(words)), 300))]
    seconds = []
    for _ in range(3):
        counts, began = PretokenCounts(), time.process_time()
        counts.add(text.reshape(-1), np.array([0, text.size]))
        seconds.append(time.process_time() - began)
        assert (len(counts), counts.total) == (len(words), len(text))
    return min(seconds)


@pytest.mark.parametrize("colliding", [colliding_short, colliding_long])
def test_pre_tokens_that_collided(
    colliding: Callable[[NDArray[np.uint8]], NDArray[np.uint8]],
) -> None:
    words = np.concatenate([colliding(words_of(1 << 21, seed)) for seed in range(4)])
    assert len(words) > 900
    others = np.ascontiguousarray(words_of(len(words), 9)[:, : words.shape[1]])
    assert seconds_of(words) < 4 * seconds_of(others)


def test_counts_are_pickled_without_their_tables() -> None:
    counts = PretokenCounts(special_tokens=["<a>"])
    text = np.frombuffer(b"low low<a>a muchlongerwordthanthat", np.uint8)
    counts.add(text, np.array([0, len(text)]))
    restored = pickle.loads(pickle.dumps(counts))
    assert [*restored.items()] == [*counts.items()]
    assert (restored.total, restored.special_tokens) == (counts.total, counts.special_tokens)
