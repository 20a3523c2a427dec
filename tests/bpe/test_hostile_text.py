"""Text that was written to collide in hash tables takes no longer than other text."""

from __future__ import annotations

import pickle
import random
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from bpe import PretokenCounts, train_bpe

FACTOR = np.uint64(0x9E3779B97F4A7C15)


def words_of(n: int, seed: int) -> NDArray[np.uint8]:
    """Random pre-tokens of 16 bytes."""
    words = np.random.default_rng(seed).integers(97, 123, (n, 16), np.uint8)
    words[:, 0] = 32
    return words


def colliding_long(words: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Pre-tokens of 16 bytes that had one place in a table of 2**13 rows."""
    mixed = np.full(len(words), 16, np.uint64)
    for word in words.view(np.uint64).T:
        mixed = (mixed ^ word) * FACTOR
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


def test_pre_tokens_that_collided() -> None:
    words = np.concatenate([colliding_long(words_of(1 << 21, seed)) for seed in range(4)])
    assert len(words) > 900
    others = np.ascontiguousarray(words_of(len(words), 9)[:, : words.shape[1]])
    assert seconds_of(words) < 4 * seconds_of(others)


@pytest.mark.parametrize("letters", ["a", "0123456789"])
def test_a_huge_pre_token_takes_time_in_proportion_to_its_size(letters: str) -> None:
    text = "".join(random.Random(2).choices(letters, k=1 << 19))
    tokenizer = train_bpe([text[:5000]], 300)

    def seconds_per_byte(n: int) -> float:
        seconds = []
        for _ in range(3):
            began = time.process_time()
            tokenizer.encode_to_numpy(text[:n])
            seconds.append(time.process_time() - began)
        return min(seconds) / n

    # A tree of 16 times as many pairs has one more level; a scan of all takes 16 times as long.
    assert seconds_per_byte(1 << 19) < 5 * seconds_per_byte(1 << 15)


def test_counts_are_pickled_without_their_tables() -> None:
    counts = PretokenCounts(special_tokens=["<a>"])
    text = np.frombuffer(b"low low<a>a muchlongerwordthanthat", np.uint8)
    counts.add(text, np.array([0, len(text)]))
    restored = pickle.loads(pickle.dumps(counts))
    assert [*restored.items()] == [*counts.items()]
    assert (restored.total, restored.special_tokens) == (counts.total, counts.special_tokens)
