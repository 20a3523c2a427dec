"""Every kind of window in every order: once per epoch, ranks, resuming, uniformity."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import dataset

from preprocess import Sampler, SamplingError, TokenFile, TokenFileError, open_tokens

WINDOWS = st.sampled_from(["stride", "documents", "packed"])
ORDERS = st.sampled_from(["random", "epoch", "sequential"])
SIZES = st.lists(st.integers(2, 25), min_size=1, max_size=12)
Row = tuple[int, ...]


def sampler_of(file: TokenFile, **options: Any) -> Sampler:
    given: dict[str, Any] = {"drop_last": False, "global_batch_size": 3, "context_length": 4}
    return Sampler(file, **given | options)


def rows(batch: dict[str, Any]) -> list[Row]:
    """The inputs and targets of each window."""
    return [
        (*inputs, *targets)
        for inputs, targets in zip(
            batch["inputs"].tolist(), batch["targets"].tolist(), strict=True
        )
    ]


def windows_of(file: TokenFile, **options: Any) -> list[Row]:
    """All windows of an epoch, each once, in the order of the data."""
    return [row for batch in sampler_of(file, **options, order="sequential") for row in rows(batch)]


@settings(max_examples=30)
@given(SIZES, WINDOWS, st.sampled_from(["epoch", "sequential"]), st.integers(1, 7),
       st.integers(1, 9), st.integers(0, 9))  # fmt: skip
def test_every_window_once_per_epoch(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], windows: str, order: str,
    batch_size: int, context_length: int, seed: int,
) -> None:
    file = dataset(tmp_path_factory.mktemp("data"), sizes, seed=None)
    options: dict[str, Any] = {"windows": windows, "context_length": context_length}
    sampler = sampler_of(file, **options, order=order, seed=seed, global_batch_size=batch_size)
    expected = Counter(windows_of(file, **options))
    for _ in range(3):
        seen = [row for batch in sampler for row in rows(batch)]
        assert Counter(seen) == expected
    assert sampler.step == 3 * len(sampler)


@settings(max_examples=30)
@given(SIZES, WINDOWS, ORDERS, st.integers(1, 7), st.integers(1, 5), st.integers(1, 5),
       st.integers(0, 9), st.integers(0, 300))  # fmt: skip
def test_ranks_before_and_after_resuming_have_the_same_batches(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], windows: str, order: str,
    batch_size: int, n_before: int, n_after: int, seed: int, stop: int,
) -> None:
    """Whatever the step, and the numbers of processes before and after it."""
    sizes = [*sizes, 9]  # so that one window is whole
    file = dataset(tmp_path_factory.mktemp("data"), sizes, seed=None)
    options: dict[str, Any] = {
        "windows": windows, "order": order, "seed": seed, "global_batch_size": batch_size,
    }
    whole = sampler_of(file, **options)
    before = [
        sampler_of(file, **options, rank=rank, world_size=n_before) for rank in range(n_before)
    ]
    after = [sampler_of(file, **options, rank=rank, world_size=n_after) for rank in range(n_after)]
    for each in before:
        each.step = stop
    for each in after:
        each.load_state_dict(before[-1].state_dict())
    for ranks in (before, after):
        streams = [itertools.islice(iter(each), 2) for each in ranks]
        for step, parts in enumerate(zip(*streams, strict=True), stop):
            found = [rows(part) for part in parts]
            assert [row for part in found for row in part] == rows(whole.batch(step))
            assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("windows", ["stride", "documents", "packed"])
@pytest.mark.parametrize("n_documents", [1, 2, 7, 8, 9])
def test_random_windows_are_uniform(tmp_path: Path, windows: str, n_documents: int) -> None:
    """The first and the last, too; chi-squared, which passes once in 10,000 times."""
    file = dataset(tmp_path, [6] * n_documents, seed=None)
    sampler = sampler_of(file, windows=windows, order="random", seed=1, global_batch_size=100)
    all_windows = windows_of(file, windows=windows, stride=1 if windows == "stride" else None)
    if windows == "stride":  # only whole ones
        all_windows = [row for row in all_windows if -100 not in row]
    n = len(set(all_windows))
    assert n == len(all_windows) == sampler.n_windows
    counts = Counter(row for step in range(n) for row in rows(sampler.batch(step)))
    assert set(counts) == set(all_windows)
    chi = sum((count - 100) ** 2 / 100 for count in counts.values())
    freedom = n - 1
    assert chi <= freedom + 3.72 * (2 * freedom) ** 0.5 + 10


@settings(max_examples=30)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), WINDOWS, st.integers(1, 9),
       st.integers(1, 12))  # fmt: skip
def test_tokens_per_window_are_those_of_the_windows(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], windows: str, length: int,
    stride: int,
) -> None:
    """The mean number of inputs without padding, by which a mixture divides weights."""
    file = dataset(tmp_path_factory.mktemp("data"), [*sizes, 12], seed=None)
    options: dict[str, Any] = {"windows": windows, "context_length": length}
    options |= {"fields": ("inputs", "attention_mask"), "order": "sequential"}
    if windows != "packed":
        options["stride"] = stride
    if windows == "stride":
        options["drop_last"] = True
    sampler = sampler_of(file, **options, global_batch_size=1)
    masks = [sampler.batch(step)["attention_mask"].sum() for step in range(len(sampler))]
    assert sampler.tokens_per_window == pytest.approx(np.mean(masks))


def test_numbers_of_numpy_are_integers(tmp_path: Path) -> None:
    file = dataset(tmp_path, [30, 40, 7], seed=None)
    numbers: dict[str, Any] = {
        "global_batch_size": np.int8(2), "context_length": np.int8(16), "seed": np.int64(3),
        "rank": np.int8(1), "world_size": np.int8(2), "order": "epoch",
    }
    plain = {name: x if isinstance(x, str) else int(x) for name, x in numbers.items()}
    for windows in ("stride", "documents", "packed"):
        one, other = (sampler_of(file, windows=windows, **each) for each in (numbers, plain))
        assert json.loads(json.dumps(one.state_dict())) == other.state_dict()
        assert rows(one.batch(1)) == rows(other.batch(1))
    with pytest.raises(SamplingError, match="seed should be an integer; got 1"):
        sampler_of(file, seed=1.5)


def test_documents_without_a_target(tmp_path: Path) -> None:
    with pytest.raises(SamplingError, match="has no document of at least 2 tokens, inputs and"):
        sampler_of(dataset(tmp_path, [1, 1], seed=None), windows="documents")


@settings(max_examples=30)
@given(SIZES, st.integers(1, 9), st.integers(1, 9))
def test_windows_of_documents_that_are_not_short(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], length: int, stride: int
) -> None:
    file = dataset(tmp_path_factory.mktemp("data"), sizes, seed=None)
    options: dict[str, Any] = {"windows": "documents", "context_length": length, "stride": stride}
    expected = [row for row in windows_of(file, **options) if -100 not in row]
    if not expected:
        with pytest.raises(SamplingError, match=f"no document of at least {length + 1} tok"):
            sampler_of(file, drop_short=True, **options)
        return
    assert windows_of(file, drop_short=True, **options) == expected
    sampler = sampler_of(file, drop_short=True, **options)
    assert sampler.tokens_per_window == length
    for windows in ("stride", "packed"):
        with pytest.raises(SamplingError, match="drop_short is of windows='documents', not of '"):
            sampler_of(file, windows=windows, drop_short=True)
    earlier = {x: y for x, y in sampler.state_dict().items() if x != "drop_short"}
    sampler.load_state_dict(sampler.state_dict())
    with pytest.raises(SamplingError, match="its drop_short is False, and here it is True"):
        sampler.load_state_dict(earlier)
    sampler_of(file, **options).load_state_dict(earlier)


@pytest.mark.parametrize("field", ["segment_ids", "position_ids", "document_targets"])
def test_damaged_document_ends_are_named(tmp_path: Path, field: str) -> None:
    file = dataset(tmp_path, [3] * 8, seed=None)
    path = Path(file.path).with_suffix(".docs")
    ends = np.fromfile(path, np.uint64)
    ends[2] = 100
    path.write_bytes(ends.tobytes())
    sampler = sampler_of(open_tokens(file.path), fields=(field,), context_length=23)
    with pytest.raises(TokenFileError, match="positions are outside of the dataset, so its docu"):
        next(iter(sampler))
