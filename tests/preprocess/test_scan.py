"""One pass over a token file: numbers and copies equal those of documents one by one."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import dataset, write

from preprocess import TokenFile
from preprocess.check import scan
from preprocess.check.scan import Scan

DOCUMENTS = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), min_size=1, max_size=30
)


def make(directory: Path, documents: list[tuple[int, ...]], **more: Any) -> TokenFile:
    ids = [i for each in documents for i in each]
    return write(directory, ids, np.cumsum([*map(len, documents)]), **more)


def copies_by_hand(documents: list[tuple[int, ...]]) -> set[tuple[int, int]]:
    first = {x: len(documents) - 1 - i for i, x in enumerate(reversed(documents))}
    return {(i, first[x]) for i, x in enumerate(documents) if first[x] != i}


@pytest.mark.parametrize("hashes", ["good", "equal"])
@settings(max_examples=25)
@given(DOCUMENTS, st.integers(1, 9), st.sampled_from([None, 5]))
def test_numbers_are_those_of_documents(
    hashes: str, documents: list[tuple[int, ...]], block: int, shard: int | None
) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        file = make(Path(place), documents, **({} if shard is None else {"shard_tokens": shard}))
        if hashes == "equal":
            patch.setattr(scan, "_SEEDS", np.zeros(3, np.uint64))
        patch.setattr(scan, "_BLOCK", block)
        patch.setattr(scan, "_SHORT", 3)
        found, told = Scan(file), list[int]()
        assert found.run(told.append) is found
        assert sum(told) == found.done == len(file)
        assert found.counts.tolist() == np.bincount(file[:], minlength=301).tolist()
        assert {*zip(*found.copies.tolist(), strict=True)} == copies_by_hand(documents)
        lengths, sizes = found.lengths, [*map(len, documents)]
        assert (lengths.counts.sum(), lengths.values @ lengths.counts) == (len(sizes), sum(sizes))
        counts = zip(lengths.values.tolist(), lengths.counts.tolist(), strict=True)
        assert dict(counts) == Counter(sizes)
        assert lengths.values.tolist() == sorted({*sizes})
        assert lengths.percentiles(range(101)) == [
            np.percentile(sizes, share, method="nearest") for share in range(101)
        ]


@pytest.mark.parametrize("hashes", ["good", "equal"])
@settings(max_examples=15)
@given(DOCUMENTS, DOCUMENTS, st.integers(1, 9))
def test_documents_of_another_dataset_are_counted(
    hashes: str, documents: list[tuple[int, ...]], others: list[tuple[int, ...]], block: int
) -> None:
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_BLOCK", block)
        if hashes == "equal":
            patch.setattr(scan, "_SEEDS", np.zeros(3, np.uint64))
        first, second = make(Path(place), documents), make(Path(place), others, name="other")
        found = Scan(first).run().count_in(Scan(second).run())
    assert found == sum(each in others for each in documents)


def test_repeats_do_not_reach_from_one_part_to_the_next(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(scan, "_SEEN", 32)  # parts of 16 tokens
    ids = [*range(10, 26), *range(10, 26), *[*range(50, 58)] * 2]
    found = Scan(make(tmp_path, [(*ids,), (*ids[16:],)]), repeats=True).run()
    assert found.repetitive.rows.tolist() == [[1, 32, 0, 5], [0, 48, 0, 5]]


def test_files_without_tokens(tmp_path: Path) -> None:
    found = Scan(write(tmp_path, [], [])).run()
    assert (found.copies.shape[1], found.lengths.counts.sum(), found.done) == (0, 0, 0)
    assert found.count_in(Scan(dataset(tmp_path, [5, 30], name="other")).run()) == 0
