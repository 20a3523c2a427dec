"""Samplers: each window once per epoch, ranks disjoint, resume anywhere, windows worked by hand."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from window_fields import check_fields

from preprocess import Sampler, TokenFileError, build, open_tokens
from preprocess.sampling.data import SamplingError
from preprocess.sampling.orders import permute
from preprocess.sampling.windows import DocumentWindows, StrideWindows

LETTERS = np.array([10, 11, 12, 13, 14, 15], np.uint16)  # A to F
NONE = -100
FIRST = [10, 11, 12, 13], [11, 12, 13, 14]


def windows_of(sampler: Sampler) -> list[tuple[list[int], list[int]]]:
    """(inputs, targets) of all windows of an epoch, in the order in which they come."""
    batches = (sampler.batch(step) for step in range(len(sampler)))
    return [
        (inputs, targets)
        for batch in batches
        for inputs, targets in zip(
            batch["inputs"].tolist(), batch["targets"].tolist(), strict=True
        )
    ]


# Windows, worked out by hand.


@pytest.mark.parametrize(("stride", "drop_last", "expected"), [
    (2, False, [FIRST, ([12, 13, 14, 15], [13, 14, 15, NONE])]),
    (2, True, [FIRST]),
    (1, True, [FIRST, ([11, 12, 13, 14], [12, 13, 14, 15])]),
    (1, False, [FIRST, ([11, 12, 13, 14], [12, 13, 14, 15])]),
    (3, False, [FIRST, ([13, 14, 15, 0], [14, 15, NONE, NONE])]),
    (4, False, [FIRST, ([14, 15, 0, 0], [15, NONE, NONE, NONE])]),
    (4, True, [FIRST]),
    (5, False, [FIRST]),
    (None, True, [FIRST]),
])  # fmt: skip
def test_windows_of_six_tokens(stride: int | None, drop_last: bool, expected: Any) -> None:
    sampler = Sampler(LETTERS, 1, 4, stride=stride, order="sequential", drop_last=drop_last)
    assert windows_of(sampler) == expected


@given(
    st.lists(st.integers(2, 30), min_size=1, max_size=40), st.integers(1, 9), st.integers(1, 9),
    st.integers(1, 5),
)
def test_no_window_crosses_a_document(
    sizes: list[int], context_length: int, stride: int, block: int
) -> None:
    ends = np.cumsum(sizes).astype(np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("preprocess.sampling.windows.DocumentSpans.BLOCK", block)
        windows = DocumentWindows(ends, context_length, stride)
        spans = windows.pieces(np.arange(len(windows)))
        shuffled = np.random.default_rng(0).permutation(len(windows))
        again = windows.pieces(shuffled)
    found = list(zip(*(each.tolist() for each in spans[:3]), strict=True))
    expected, begin = [], 0
    for size in sizes:
        alone = StrideWindows(size, context_length, stride, False)
        own = alone.pieces(np.arange(len(alone)))
        expected += [(begin + a, b, c) for a, b, c in zip(*own[:3].tolist(), strict=True)]
        begin += size
    assert found == expected
    assert (spans[:3, shuffled] == again[:3]).all()


# Orders.


def test_permutations_are_uniform() -> None:
    """Chi-squared of all permutations of four, and of positions and neighbours of eight."""
    counts = Counter(tuple(permute(np.arange(4), 4, seed, 0).tolist()) for seed in range(600))
    expected = 600 / 24
    chi = sum((counts[x] - expected) ** 2 / expected for x in itertools.permutations(range(4)))
    assert chi < 56  # 23 degrees of freedom, passed once in 10,000 times
    positions, following = np.zeros((8, 8)), np.zeros((8, 8))
    for epoch in range(500):
        found = permute(np.arange(8), 8, 7, epoch)
        positions[np.arange(8), found] += 1
        following[found[:-1], found[1:]] += 1
    assert ((positions - 62.5) ** 2 / 62.5).sum() < 95
    assert ((following[~np.eye(8, dtype=bool)] - 62.5) ** 2 / 62.5).sum() < 105


def test_epochs_and_seeds_differ() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = Sampler(np.arange(500), 7, 2, order="epoch", seed=seed)
        steps = range(epoch * len(sampler), (epoch + 1) * len(sampler))
        return [x for step in steps for x in sampler.batch(step)["inputs"][:, 0].tolist()]

    found = [order(seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(a != b for a, b in itertools.combinations(found, 2))
    assert order(0, 0) == found[0]


# Fields.


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("corpus")
    texts = ["abc", "d", "e" * 11, "fg", "hi jk"]
    (directory / "x.txt").write_text("<|endoftext|>".join(texts))
    build(train=directory / "x.txt", val_fraction=0, vocab_size=257, out=directory / "out")
    build(train=directory / "x.txt", val_fraction=0, vocab_size=257, out=directory / "shards",
          shard_tokens=9)  # fmt: skip
    return directory


@pytest.mark.parametrize("where", ["out", "shards"])
@pytest.mark.parametrize("windows", ["stride", "documents"])
@pytest.mark.parametrize("context_length", [1, 4, 6])
def test_fields(corpus: Path, where: str, windows: Any, context_length: int) -> None:
    tokens = open_tokens(corpus / where / "train.json")
    names = (
        "inputs", "targets", "attention_mask", "segment_ids", "position_ids", "cu_seqlens",
        "document_targets", "loss_mask",
    )  # fmt: skip
    sampler = Sampler(
        tokens, 3, context_length, windows=windows, order="epoch", drop_last=False, fields=names
    )
    end = tokens.manifest.end_of_text_id
    content = pickle.dumps(sampler)
    assert len(content) < 1500  # it has no tokens
    again = pickle.loads(content)
    assert again.state_dict() == sampler.state_dict()
    n_real = 0
    for step, batch in enumerate(sampler):
        assert all(np.array_equal(x, batch[name]) for name, x in again.batch(step).items())
        assert tuple(batch) == names
        check_fields(batch, end)
        is_end = batch["inputs"] == end
        assert (batch["document_targets"][is_end] == NONE).all()
        assert (batch["document_targets"] == batch["targets"])[~is_end].all()
        assert (batch["attention_mask"] >= batch["loss_mask"]).all()
        n_real += int(batch["loss_mask"].sum())
    if windows == "stride":
        assert n_real == len(tokens) - 1
    else:
        assert n_real == len(tokens) - tokens.n_documents  # no target is of another document


def test_paths_and_rebuilt_datasets(corpus: Path, tmp_path: Path) -> None:
    path = corpus / "out" / "train.bin"
    by_path = Sampler(path, 2, 3, order="epoch")
    by_file = Sampler(open_tokens(path), 2, 3, order="epoch")
    by_file.load_state_dict(by_path.state_dict())
    assert (by_path.batch(1)["inputs"] == by_file.batch(1)["inputs"]).all()
    (tmp_path / "y.txt").write_text("another text, of another dataset")
    build(train=tmp_path / "y.txt", val_fraction=0, vocab_size=257, out=tmp_path / "out")
    other = Sampler(tmp_path / "out" / "train.bin", 2, 3, order="epoch")
    with pytest.raises(SamplingError, match=r"its dataset is '.*; make the sampler with"):
        other.load_state_dict(by_path.state_dict())
    with pytest.raises(TokenFileError, match="no such file"):
        Sampler(tmp_path / "none.bin", 2, 3)


# Errors.


@pytest.mark.parametrize(("more", "message"), [
    ({"global_batch_size": 0}, "global_batch_size should be at least 1; got 0"),
    ({"stride": 0}, "stride should be at least 1; got 0"),
    ({"rank": 2, "world_size": 2}, r"rank should be in range\(world_size\), of 2; got 2"),
    ({"rank": -1}, "rank should be at least 0; got -1"),
    ({"order": "sorted"}, "order should be one of random, epoch, sequential; got 'sorted'"),
    ({"windows": "lines"}, "windows should be one of stride, documents, packed; got 'lines'"),
    ({"strategy": "best"}, "strategy should be one of greedy, pool, first_fit, best_fit; got"),
    ({"windows": "documents"}, "windows='documents' needs a dataset with documents"),
    ({"fields": ["mask"]}, "there is no field 'mask'; choose some of inputs, targets"),
    ({"fields": "inputs"}, "there is no field 'inputs'; choose some of inputs, targets"),
    ({"fields": ["segment_ids"]}, "the field 'segment_ids' needs a dataset with documents"),
    ({"fields": []}, "fields has no name; choose some of inputs, targets"),
    ({"context_length": 1.5}, "context_length should be an integer; got 1.5"),
    ({"context_length": 100}, r"length 100 needs one more than that; .* context_length, or mo"),
    ({"context_length": 100, "order": "epoch"},
     "context_length 100 needs one more than that; .* context_length, drop_last=False, or m"),
    ({"global_batch_size": 99, "order": "epoch"}, "has 24 windows, and a batch needs 99; choo"),
    ({"dataset": np.zeros(0, np.uint16)}, "has 0 tokens, and a window"),
    ({"dataset": [1, 2]}, "the dataset should be the result of open_tokens"),
])  # fmt: skip
def test_wrong_options(more: dict[str, Any], message: str) -> None:
    options: dict[str, Any] = {"dataset": np.arange(100), "global_batch_size": 2}
    options |= {"context_length": 4}
    with pytest.raises(SamplingError, match=message):
        Sampler(**options | more)


def test_wrong_uses() -> None:
    sampler = Sampler(np.arange(100), 2, 4)
    with pytest.raises(TypeError, match="order 'random' has no length: it yields batches without"):
        len(sampler)
    with pytest.raises(SamplingError, match="step should be at least 0; got -1"):
        sampler.batch(-1)
    state = sampler.state_dict()
    with pytest.raises(SamplingError, match="has no 'step'; give what its state_dict"):
        sampler.load_state_dict({x: y for x, y in state.items() if x != "step"})
    with pytest.raises(SamplingError, match="another sampler than this of the array: its seed is "):
        sampler.load_state_dict(state | {"seed": 1})
    for wrong in (None, ["step"]):
        with pytest.raises(SamplingError, match="the state of a sampler should be a dictionary, w"):
            sampler.load_state_dict(wrong)  # type: ignore[arg-type]
    with pytest.raises(SamplingError, match=r"step should be at most 1,099,511,627,776; got 4,611"):
        sampler.batch(2**62)
    for step, message in ((-3, "at least 0; got -3"), (None, "an integer; got None")):
        with pytest.raises(SamplingError, match=f"the step of a state should be {message}"):
            sampler.load_state_dict(state | {"step": step})
    with pytest.raises(SamplingError, match=r"its dataset is '100 int64 .*', and here it is '100 "):
        Sampler(np.arange(1, 101), 2, 4).load_state_dict(state)
    assert sampler.step == 0


# Reading a token file.


def test_threads_draw_the_same_batches() -> None:
    sampler = Sampler(np.arange(3000), 4, 5, order="epoch")
    steps = [step for i in range(150) for step in (i, 9999 - i, 64 * i)]
    expected = [sampler.batch(step)["inputs"].tolist() for step in steps]
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda step: sampler.batch(step)["inputs"].tolist(), steps)
    assert [*found] == expected
