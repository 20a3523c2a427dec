"""The kernel that scans tokens: the same sums as plain lists, wherever blocks end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpe.runtime.arrays import read_only
from preprocess.check import scan_kernels as kernels

SIZES = [1, 2, -1, 0, 3]  # bytes of ids
SEEDS = np.random.default_rng(0).integers(1 << 63, 1 << 64, 3, np.uint64)


def sums_by_hand(ids: list[int], part: int) -> tuple[int, int, int]:
    ordinary = [i for i in ids if SIZES[i] >= 0]
    repeats = 0
    for start in range(0, len(ids), part):
        here = ids[start : start + part]
        windows = [tuple(here[i : i + 4]) for i in range(len(here) - 3)]
        repeats += len(windows) - len({*windows})
    return len(ordinary), sum(SIZES[i] for i in ordinary), repeats


def scan(
    documents: list[list[int]], cuts: list[int], dtype: Any, n_seen: int
) -> tuple[list[int], list[int], list[list[int]]]:
    """Counts, hashes and sums of documents in blocks that end at `cuts`."""
    tables = kernels.Tables(
        np.zeros(len(SIZES), np.int64), np.array(SIZES), np.zeros(n_seen, np.uint64),
        read_only(SEEDS),
    )
    ids = np.array([i for each in documents for i in each], dtype)
    ends, carried = np.cumsum([*map(len, documents)]), np.zeros(kernels.N_CARRIED, np.uint64)
    all_hashes, all_sums = list[int](), list[list[int]]()
    for start, stop in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        here = ends[(ends > start) & (ends <= stop)] - start
        hashes, sums = np.zeros(len(here), np.uint64), np.zeros((len(here), 3), np.int64)
        block = read_only(ids[start:stop])
        kernels.scan_tokens(tables, block, here, carried, hashes, sums)
        all_hashes, all_sums = all_hashes + hashes.tolist(), all_sums + sums.tolist()
    return tables.counts.tolist(), all_hashes, all_sums


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@given(st.data())
def test_blocks_change_nothing(dtype: Any, data: Any) -> None:
    token = st.integers(0, len(SIZES) - 1)
    documents = data.draw(st.lists(st.lists(token, min_size=1, max_size=40), max_size=8))
    n = sum(map(len, documents))
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    n_seen = data.draw(st.sampled_from([16, 64]))
    counts, hashes, sums = scan(documents, cuts, dtype, n_seen)
    flat = [i for each in documents for i in each]
    assert counts == [flat.count(i) for i in range(len(SIZES))]
    assert sums == [[*sums_by_hand(each, n_seen // 2)] for each in documents]
    for i, one in enumerate(documents):
        for j, other in enumerate(documents):
            assert (hashes[i] == hashes[j]) == (one == other)


def test_without_sizes_and_memory_all_ids_are_tokens() -> None:
    ids = read_only(np.array([1, 1, 1, 1, 1, 0], np.uint16))
    tables = kernels.Tables(
        np.zeros(2, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint64), read_only(SEEDS),
    )
    hashes, sums = np.zeros(2, np.uint64), np.zeros((2, 3), np.int64)
    kernels.scan_tokens(
        tables, ids, np.array([5, 6]), np.zeros(kernels.N_CARRIED, np.uint64), hashes, sums
    )
    assert sums.tolist() == [[5, 0, 0], [1, 0, 0]]
    assert tables.counts.tolist() == [1, 5]
