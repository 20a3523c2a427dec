"""Parts put in any order, on one thread or several, come out in the order of their numbers."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bpe.encode.parallel_encoder import PartCollector


@pytest.mark.parametrize("n_threads", [1, 2, 5])
@pytest.mark.parametrize("seed", range(5))
def test_parts_in_any_order(seed: int, n_threads: int) -> None:
    random_source = random.Random(seed)
    # Small ones first, so that the memory must grow while others copy.
    lengths = sorted(random_source.choice([0, 1, 7, 1000, 100_000]) for _ in range(60))
    parts = [np.full(length, number, np.uint32) for number, length in enumerate(lengths)]
    offsets = [np.array([0, length // 2, length]) for length in lengths]
    collector = PartCollector(len(parts))
    order = list(range(len(parts)))
    random_source.shuffle(order)

    def put(number: int) -> None:
        memory = parts[number].copy()
        collector.put(number, memory, offsets[number])
        # What was handed over can be used again at once.
        memory[:] = 12345

    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(put, order))
    ids, ends = collector.result()
    assert ids.tolist() == np.concatenate(parts).tolist()
    starts = np.cumsum([0, *lengths])
    expected = [0]
    for start, cuts in zip(starts, offsets, strict=False):
        expected += (cuts[1:] + start).tolist()
    assert ends.tolist() == expected


def test_no_part() -> None:
    ids, offsets = PartCollector(0).result()
    assert ids.tolist() == []
    assert offsets.tolist() == [0]


@pytest.mark.parametrize("expected", [0, 1, 60, 600, 10**6])
def test_sizes_are_no_more_than_a_guess(expected: int) -> None:
    # Sizes that say nothing of the number of ids, and are not what was said of all of them.
    collector = PartCollector(expected)
    parts = [np.full(length, number, np.uint32) for number, length in enumerate([9, 0, 300, 1, 50])]
    for number, (part, size) in enumerate(zip(parts, [1, 200, 3, 7, 1], strict=True)):
        collector.put(number, part, np.array([0, len(part)]), size)
    ids, ends = collector.result()
    assert ids.tolist() == np.concatenate(parts).tolist()
    assert ends.tolist() == [0, 9, 9, 309, 310, 360]


def test_memory_for_all_parts_is_there_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    empty = np.empty

    def noted(length: int, *of: type) -> object:
        made.append(length)
        return empty(length, *of)

    collector = PartCollector(1000)
    monkeypatch.setattr(np, "empty", noted)
    for number, size in enumerate([100, 300, 600]):
        collector.put(number, np.zeros(size // 2, np.uint32), np.array([0, size // 2]), size)
    assert made == [600]
    assert len(collector.result()[0]) == 500
