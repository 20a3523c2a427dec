"""Samplers that continue after documents were appended: each window once, counted."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from functools import cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import END, write

from preprocess import Mixture, Sampler, SamplingError, TokenFile
from preprocess.dataset.manifest import APPENDED

LENGTH = 4


def grown(root: Path, sizes: list[list[int]]) -> list[TokenFile]:
    """A dataset, and what becomes of it as documents are appended; its ids are all different."""
    files: list[TokenFile] = []
    sources: list[dict[str, Any]] = []
    for number in range(len(sizes)):
        own = [x for each in sizes[: number + 1] for x in each]
        sources.append({"name": str(number), "bytes": 1, "digest": ""})
        if files:
            before = files[-1].manifest
            sources[-1][APPENDED] = {
                "digest": before.digest, "n_tokens": before.n_tokens,
                "n_documents": before.n_documents,
            }
        ends = np.cumsum(own)
        ids = np.arange(sum(own)) + END + 1
        ids[ends - 1] = END
        files.append(write(root / f"{number}", ids, ends, vocab_size=2**20,
                           fields={"sources": sources}))  # fmt: skip
    return files


def given_in(sampler: Any, n_steps: int | None = None) -> Counter[tuple[int, ...]]:
    """The windows of some batches, or of all that are left in the epoch."""
    found: Counter[tuple[int, ...]] = Counter()
    for step in islice(sampler.steps(), n_steps):
        batch = sampler.batch(step)
        rows = zip(batch["inputs"].tolist(), batch["targets"].tolist(), strict=True)
        found.update((*inputs, *targets) for inputs, targets in rows)
        sampler.step = step + 1
    return found


def once(sampler: Sampler) -> Counter[tuple[int, ...]]:
    """Every window of a dataset, by plain order."""
    layout = sampler.layout | {"order": "sequential", "global_batch_size": 1}
    layout["continue_from"] = None
    return given_in(Sampler(sampler.dataset, **layout))


SIZES = st.lists(st.lists(st.integers(4, 14), min_size=6, max_size=9), min_size=2, max_size=4)


@given(
    sizes=SIZES, windows=st.sampled_from(["stride", "documents"]),
    order=st.sampled_from(["epoch", "sequential"]), batch=st.sampled_from([1, 2, 3]),
    other=st.sampled_from([1, 2, 5]), taken=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    seed=st.integers(0, 3),
)
@settings(max_examples=50)
def test_each_window_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[list[int]], windows: Any, order: Any,
    batch: int, other: int, taken: list[int], seed: int,
) -> None:
    """Also after several changes, with batches of other sizes."""
    files = grown(tmp_path_factory.mktemp("x"), sizes)
    options: dict[str, Any] = {"windows": windows, "order": order, "seed": seed}
    sampler = Sampler(files[0], 1, LENGTH, **options)
    found = given_in(sampler, taken[0])
    is_over = sampler.step == len(sampler)
    for file, n_steps in zip(files[1:], [*taken[1:], None], strict=False):
        if is_over:
            found.clear()  # a new epoch begins, with all windows
        state = json.loads(json.dumps(sampler.state_dict()))
        size = batch if file is not files[-1] else other
        sampler = Sampler(file, size, LENGTH, **options, drop_last=windows == "stride",
                          continue_from=state)  # fmt: skip
        n_before = len(found)
        assert sampler.n_first == len(once(sampler)) - n_before
        if file is files[-1]:
            break
        found += given_in(sampler, n_steps)
        is_over = len(found) == len(once(sampler))
        if sampler.layout["drop_last"] and sampler.step == sampler.n_first // size:
            is_over = True
    left = given_in(sampler)
    assert not found & left
    assert max((*left.values(), 0)) <= 1
    missing = once(sampler) - (found + left)
    if sampler.layout["drop_last"]:
        assert len(missing) == sampler.n_first % other
    else:
        assert not missing
    # Later epochs have all windows.
    assert given_in(sampler) <= once(sampler)
    resumed = Sampler(sampler.dataset, **sampler.layout)
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert resumed.step == sampler.step
    copy = pickle.loads(pickle.dumps(sampler))
    for step in range(4):
        for each in (resumed, copy):
            assert each.batch(step)["inputs"].tolist() == sampler.batch(step)["inputs"].tolist()


@cache
def options_of_mixtures() -> dict[str, Any]:
    return {"global_batch_size": 4, "context_length": LENGTH, "order": "epoch", "seed": 2}


def test_mixtures_whose_weights_and_members_change(tmp_path: Path) -> None:
    a = grown(tmp_path / "a", [[9] * 40, [9] * 60])
    b, c = (write_one(tmp_path / x, first) for x, first in (("b", 2**18), ("c", 2**19)))
    options = options_of_mixtures()

    def members(**files: Any) -> dict[str, Sampler]:
        return {name: Sampler(file, **options) for name, file in files.items()}

    first = Mixture(members(a=a[0], b=b), {"a": 1, "b": 1}, unit="windows", seed=5)
    found = given_in(first, 12)
    # Other weights; `a` has grown, and `c` is new.
    second = Mixture(members(c=c, a=a[1], b=b), {"a": 3, "b": 1, "c": 2}, unit="windows",
                     continue_from=json.loads(json.dumps(first.state_dict())))  # fmt: skip
    found += given_in(second, 9)
    more: dict[str, Any] = {
        "weights": [(0, {"a": 1, "c": 1}), (2, {"a": 2, "c": 1})], "unit": "windows",
        "continue_from": second.state_dict(), "exhausted": "stop",
    }
    third = Mixture(members(a=a[1], c=c), **more)
    found += given_in(third)
    assert set(found.values()) == {1}
    windows = {name: once(Sampler(x, **options)) for name, x in (("a", a[1]), ("b", b), ("c", c))}
    of = {name: len(each & found) for name, each in windows.items()}
    assert sum(of.values()) == len(found)
    # One of them has given all windows but for those of less than a batch.
    assert min(len(windows[x]) - of[x] for x in "ac") < 4
    assert first.counts(12)["a"] + second.counts(9)["a"] + third.counts(third.step)["a"] == of["a"]
    again = pickle.loads(pickle.dumps(third))
    fresh = Mixture(members(a=a[1], c=c), **more)
    fresh.load_state_dict(json.loads(json.dumps(third.state_dict())))
    for each in (again, fresh):
        assert each.batch(3)["inputs"].tolist() == third.batch(3)["inputs"].tolist()
    plain = Mixture(members(a=a[1], c=c), **more | {"continue_from": None})
    with pytest.raises(SamplingError, match="the state is of another mixture: its continue_from"):
        plain.load_state_dict(third.state_dict())


def test_a_dataset_that_returns_to_a_mixture(tmp_path: Path) -> None:
    files = {x: write_one(tmp_path / x, first) for x, first in (("a", 2**18), ("b", 2**19))}
    found: Counter[tuple[int, ...]] = Counter()
    state = None
    for names, n_steps in (("ab", 6), ("b", 2), ("b", 1), ("ab", None)):
        samplers = {name: Sampler(files[name], **options_of_mixtures()) for name in names}
        mixture = Mixture(samplers, dict.fromkeys(names, 1), unit="windows", continue_from=state,
                          exhausted="stop")  # fmt: skip
        found += given_in(mixture, n_steps)
        state = json.loads(json.dumps(mixture.state_dict()))
    assert set(found.values()) == {1}
    assert found.total() > 36 + 40


def write_one(directory: Path, first: int) -> TokenFile:
    sizes = [9] * 50
    ends = np.cumsum(sizes)
    ids = np.arange(sum(sizes)) + first
    ids[ends - 1] = END
    return write(directory, ids, ends, vocab_size=2**20)


def test_the_same_dataset_goes_on_in_its_order(tmp_path: Path) -> None:
    file = write_one(tmp_path, 2**18)
    whole = Sampler(file, 3, LENGTH, order="epoch")
    rest = Sampler(file, 3, LENGTH, order="epoch", continue_from=whole.state_dict() | {"step": 7})
    assert [rest.batch(i)["inputs"].tolist() for i in range(9)] == [
        whole.batch(i + 7)["inputs"].tolist() for i in range(9)
    ]
    packed = Sampler(file, 3, 12, order="epoch", windows="packed")
    rest = Sampler(file, 3, 12, order="epoch", windows="packed", continue_from=packed.state_dict())
    assert rest.batch(0)["inputs"].tolist() == packed.batch(0)["inputs"].tolist()


def test_states_that_do_not_fit(tmp_path: Path) -> None:
    old, new = grown(tmp_path, [[9] * 20, [9] * 5])
    other = write_one(tmp_path / "other", 2**18)
    options: dict[str, Any] = {"global_batch_size": 2, "context_length": LENGTH, "order": "epoch"}
    state = Sampler(old, **options).state_dict()
    for file, more, message in [
        (other, {}, "continue_from: .* of another dataset than .*, and of none to which documents"),
        (new, {"seed": 1}, "continue_from: .* another sampler than this of .*: its seed is 0, and"),
        (new, {"order": "random"}, "continue_from: in order 'random' windows are drawn again and"),
        (new, {"continue_from": state | {"order": "random"}}, "so none are left to continue with"),
        (new, {"continue_from": {}}, "continue_from: the state of a sampler has no 'order'"),
        (new, {"continue_from": {"order": "epoch"}}, "continue_from: the state .* has no 'step'"),
        (new, {"continue_from": []}, "continue_from: .* should be a dictionary, .*; got list"),
        (new, {"continue_from": "x"}, "continue_from: .* should be a dictionary, .*; got str"),
        (new, {"continue_from": state | {"global_batch_size": 0}},
         "the global_batch_size of a state should be at least 1; got 0"),
    ]:
        with pytest.raises(SamplingError, match=message):
            Sampler(file, **options | {"continue_from": state} | more)
    for more in ({"windows": "packed"}, {"drop_last": False}):
        state = Sampler(old, **options | more).state_dict()
        with pytest.raises(SamplingError, match="after documents were appended, windows that the"):
            Sampler(new, **options | more, continue_from=state)
    sampler = Sampler(new, **options, continue_from=Sampler(old, **options).state_dict())
    with pytest.raises(SamplingError, match="its continue_from is"):
        Sampler(new, **options).load_state_dict(sampler.state_dict())


@pytest.mark.parametrize(("changes", "message"), [
    ({"shares": 5}, "the state of a mixture should have the shares of all of its samplers"),
    ({"shares": []}, "the shares of all of its samplers"),
    ({"shares": [[0, "x"]]}, "the shares of all of its samplers"),
    ({"shares": [[0, "1", "2"]]}, "the shares of all of its samplers"),
    ({"seed": "x"}, "the seed of a state should be an integer; got 'x'"),
    ({"step": -1}, "the step of a state should be at least 0; got -1"),
    ({"continue_from": 5}, "the state of a mixture should be a dictionary"),
    ({"samplers": {"a": 5}}, "the state of a sampler should be a dictionary"),
])  # fmt: skip
def test_states_of_mixtures_that_are_damaged(changes: dict[str, Any], message: str) -> None:
    samplers = {"a": Sampler(np.arange(99), 2, LENGTH, order="epoch")}
    state = Mixture(samplers, {"a": 1}).state_dict() | changes
    with pytest.raises(SamplingError, match=f"continue_from, for the sampler 'a': .*{message}"):
        Mixture(samplers, {"a": 1}, continue_from=state)


@pytest.mark.parametrize("given", [[], {}, "x", {"step": 1}])
def test_what_is_no_state_of_a_mixture(given: Any) -> None:
    samplers = {"a": Sampler(np.arange(99), 2, LENGTH, order="epoch")}
    expected = "continue_from, for the sampler 'a': .* of a mixture (has no|should be a dictionary)"
    with pytest.raises(SamplingError, match=expected):
        Mixture(samplers, {"a": 1}, continue_from=given)


def test_a_mixture_with_a_member_in_random_order_names_it() -> None:
    samplers = {
        "a": Sampler(np.arange(99), 2, LENGTH, order="epoch"),
        "b": Sampler(np.arange(99), 2, LENGTH, order="random"),
    }
    state = Mixture(samplers, {"a": 1, "b": 1}).state_dict()
    with pytest.raises(SamplingError, match="for the sampler 'b': in order 'random' windows are"):
        Mixture(samplers, {"a": 1, "b": 1}, continue_from=state)


def test_states_may_be_any_mappings() -> None:
    """A continued sampler can be pickled, and its state saved as JSON, whatever mapping it got."""
    sampler = Sampler(np.arange(99), 2, LENGTH, order="epoch")
    state = MappingProxyType(sampler.state_dict())
    after = Sampler(np.arange(99), 2, LENGTH, order="epoch", continue_from=state)
    mixture = Mixture({"a": sampler}, {"a": 1})
    state = MappingProxyType(mixture.state_dict())
    for each in (after, Mixture({"a": sampler}, {"a": 1}, continue_from=state)):
        assert json.loads(json.dumps(each.state_dict())) == each.state_dict()
        assert pickle.loads(pickle.dumps(each)).state_dict() == each.state_dict()
