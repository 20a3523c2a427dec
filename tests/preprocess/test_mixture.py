"""Mixtures: exact proportions, each dataset's own stream, ranks, schedules, resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import dataset

from preprocess import Mixture, Sampler
from preprocess.sampling.data import SamplingError


def samplers(batch_size: int = 6, **options: Any) -> dict[str, Sampler]:
    """Three datasets; the windows of each are told by the hundreds of their first ids."""
    options = {"order": "epoch", "seed": 2} | options
    return {
        name: Sampler(np.arange(first, first + n), batch_size, 4, **options)
        for name, first, n in (("a", 0, 90), ("b", 1000, 401), ("c", 2000, 55))
    }


def stream(sampler: Sampler, n: int) -> list[int]:
    """The first ids of the first windows of a sampler, over epochs."""
    return sampler.read(np.arange(n)).inputs[:, 0].tolist()


def drawn(mixture: Mixture, steps: range) -> dict[str, list[int]]:
    first = np.concatenate([mixture.batch(step)["inputs"][:, 0] for step in steps])
    return {
        name: first[first // 1000 == number].tolist()
        for number, name in enumerate(mixture.samplers)
    }


@settings(max_examples=25)
@given(
    st.tuples(*[st.floats(0, 9) for _ in range(3)]).filter(lambda x: sum(x) > 0.01),
    st.integers(0, 5), st.integers(1, 9),
)
def test_every_dataset_gives_its_own_stream(
    weights: tuple[float, ...], seed: int, batch_size: int
) -> None:
    parts = samplers(batch_size)
    shares = dict(zip(parts, weights, strict=True))
    mixture = Mixture(parts, shares, seed=seed)
    n_steps = 30
    found = drawn(mixture, range(n_steps))
    assert {name: len(values) for name, values in found.items()} == mixture.counts(n_steps)
    for name, values in found.items():
        assert values == stream(parts[name], len(values))
        expected = n_steps * batch_size * shares[name] / sum(weights)
        assert abs(len(values) - expected) < 4
    # Of any stretch.
    for start in range(0, n_steps, 7):
        before, after = mixture.counts(start), mixture.counts(start + 8)
        for name, weight in shares.items():
            expected = 8 * batch_size * weight / sum(weights)
            assert abs(after[name] - before[name] - expected) < 4


def test_proportions_far_away() -> None:
    mixture = Mixture(samplers(), {"a": 1, "b": 2, "c": 7})
    counts = mixture.counts(10**12)
    for name, share in (("a", 0.1), ("b", 0.2), ("c", 0.7)):
        assert abs(counts[name] - 6e12 * share) < 1e-3 * 6e12 * share
        assert abs(counts[name] - round(6e12 * share)) < 2000  # of the rounding of shares
    assert mixture.batch(10**12)["inputs"].shape == (6, 4)


def test_a_schedule() -> None:
    parts = samplers()
    starts = np.array([0, 5, 9])
    shares = [{"a": 1, "b": 0, "c": 0}, {"a": 0, "b": 1, "c": 1}, {"a": 0, "b": 0, "c": 2}]
    mixture = Mixture(parts, [*zip(starts, shares, strict=True)])
    mixture.load_state_dict(json.loads(json.dumps(mixture.state_dict())))
    for step in range(14):
        first = mixture.batch(step)["inputs"][:, 0] // 1000
        assert set(first.tolist()) <= ({0} if step < 5 else {1, 2} if step < 9 else {2})
    found = drawn(mixture, range(14))
    for name, values in found.items():
        assert values == stream(parts[name], len(values))
        assert len(values) == mixture.counts(14)[name]
    assert mixture.counts(5) == {"a": 30, "b": 0, "c": 0}


def test_a_mixture_resumes_with_other_ranks() -> None:
    weights = {"a": 1, "b": 2, "c": 3}
    whole = Mixture(samplers(), weights, seed=4)
    batches = iter(whole)
    for _ in range(5):
        next(batches)
    state = json.loads(json.dumps(whole.state_dict()))
    expected = whole.batch(5)["inputs"]
    resumed = [Mixture(samplers(rank=r, world_size=2), weights, seed=4) for r in range(2)]
    for each in resumed:
        each.load_state_dict(state)
    joined = np.concatenate([next(iter(each))["inputs"] for each in resumed])
    assert np.array_equal(joined, expected)
    for other, message in (
        (Mixture(samplers(), weights, seed=5), "another mixture: its seed differ; make the mix"),
        (Mixture(samplers(), weights | {"a": 9}, seed=4), "another mixture: its shares differ"),
        (Mixture(samplers(batch_size=7), weights, seed=4), "its global_batch_size is 6, and here"),
    ):
        with pytest.raises(SamplingError, match=message):
            other.load_state_dict(state)
    names = dict(zip("xbc", samplers().values(), strict=True))
    other = Mixture(names, {"x": 1, "b": 2, "c": 3}, seed=4)
    with pytest.raises(SamplingError, match="the samplers a, b, c, and here they are x, b, c"):
        other.load_state_dict(state)


def test_a_dataset_that_runs_out() -> None:
    weights = {"a": 1, "b": 1, "c": 1}
    mixture = Mixture(samplers(drop_last=False), weights, exhausted="stop")
    n = len(mixture)
    assert n == len(list(mixture)) == mixture.step
    assert mixture.counts(n)["c"] <= mixture.samplers["c"].n_windows < mixture.counts(n + 1)["c"]
    assert list(mixture) == []
    with pytest.raises(TypeError, match="the mixture has no length: it repeats its datasets"):
        len(Mixture(samplers(), weights))
    parts = samplers() | {"a": Sampler(np.arange(99), 6, 4, order="random")}
    endless = Mixture(parts, {"a": 1, "b": 0, "c": 0}, exhausted="stop")
    with pytest.raises(TypeError, match="the mixture has no length: it repeats its datasets"):
        len(endless)
    assert next(iter(endless))["inputs"].shape == (6, 4)


def test_weights_in_tokens_documents_and_windows(tmp_path: Path) -> None:
    """Short documents are padded to windows; four of the one are as long as one of the other."""
    fields = "inputs", "targets", "attention_mask", "segment_ids"
    parts = {
        name: Sampler(dataset(tmp_path / name, [length] * 200), 50, 32, windows="documents",
                      order="epoch", fields=fields)
        for name, length in (("short", 8), ("long", 32))
    }  # fmt: skip
    shares = {}
    for unit in ("tokens", "documents", "windows"):
        mixture = Mixture(parts, {"short": 1, "long": 1}, unit=unit)  # type: ignore[arg-type]
        sizes = np.concatenate([mixture.batch(i)["attention_mask"].sum(axis=1) for i in range(8)])
        assert set(sizes.tolist()) == {8, 32}
        shares[unit] = (sizes == 8).mean()
    assert shares["windows"] == shares["documents"] == pytest.approx(0.5, abs=0.01)
    assert shares["tokens"] == pytest.approx(0.8, abs=0.01)
    batch = mixture.batch(0)
    assert np.array_equal(batch["segment_ids"], batch["attention_mask"])


@pytest.mark.parametrize(("weights", "message"), [
    ({"a": 1, "b": 1}, "weights should be of the samplers a, b, c, each once; check 'c'"),
    ({"a": 1, "b": 1, "c": 1, "d": 1}, "weights should be of the samplers .* check 'd'"),
    ({"a": -1, "b": 1, "c": 1}, "weights should be at least 0, and finite; got"),
    ({"a": float("nan"), "b": 1, "c": 1}, "weights should be at least 0, and finite; got"),
    ({"a": "1", "b": 1, "c": 1}, "weights should be at least 0, and finite; got"),
    ({"a": 0, "b": 0, "c": 0}, "weights should have a sum above 0; got"),
    ([], "the steps of a schedule should ascend from 0; got $"),
    ([(1, {"a": 1, "b": 1, "c": 1})], "the steps of a schedule should ascend from 0; got 1"),
    ([0.5, 0.5], r"weights should be a dictionary, name of a dataset -> weight, or a.*got 0.5"),
    (0.5, "weights should be a dictionary, name of a dataset -> weight, or a list .*; got 0.5"),
    ([("0", {"a": 1})], "the first step of weights should be an integer; got '0'"),
])  # fmt: skip
def test_wrong_weights(weights: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        Mixture(samplers(), weights)


def test_wrong_uses() -> None:
    weights = {"a": 1, "b": 1, "c": 1}
    of_wrong_types: list[tuple[Any, str]] = [
        ({}, "samplers should be a dictionary, name of a dataset -> its sampler, .*; got none"),
        ([*samplers().values()], "samplers should be a dictionary, .*; got list"),
        ({"a": "a/train.bin"}, "'a' should be a Sampler, not str; make one of each dataset first"),
    ]
    for given_samplers, message in of_wrong_types:
        with pytest.raises(SamplingError, match=message):
            Mixture(given_samplers, weights)
    parts = samplers() | {"b": samplers(batch_size=3)["b"]}
    with pytest.raises(SamplingError, match="'a' and 'b' differ in global_batch_size, 6 and 3; "):
        Mixture(parts, weights)
    given: dict[str, Any]
    for given, message in (
        ({"exhausted": "end"}, "exhausted should be one of repeat, stop; got 'end'"),
        ({"unit": "bytes"}, "unit should be one of tokens, documents, windows; got 'bytes'"),
        ({"unit": "documents"}, "'a' reads an array, which has no documents; choose unit="),
    ):
        with pytest.raises(SamplingError, match=message):
            Mixture(samplers(), weights, **given)
    with pytest.raises(SamplingError, match="step should be at least 0; got -1"):
        Mixture(samplers(), weights).batch(-1)


def test_wrong_states_change_nothing() -> None:
    mixture = Mixture(samplers(), {"a": 1, "b": 1, "c": 1})
    before = mixture.state_dict()
    for name in before:
        with pytest.raises(SamplingError, match=f"the state of a mixture has no '{name}'; give"):
            mixture.load_state_dict({x: y for x, y in before.items() if x != name})
    with pytest.raises(SamplingError, match="the state of the samplers of a mixture should be a d"):
        mixture.load_state_dict(before | {"samplers": ["a", "b", "c"]})
    states = {name: state | {"step": 9} for name, state in before["samplers"].items()}
    wrong = before | {"step": 9, "samplers": states | {"c": states["c"] | {"step": -1}}}
    with pytest.raises(SamplingError, match="the step of a state should be at least 0; got -1"):
        mixture.load_state_dict(wrong)
    assert mixture.state_dict() == before
    mixture.load_state_dict(before | {"step": 9, "samplers": states})
    assert {mixture.step, *(each.step for each in mixture.samplers.values())} == {9}
