"""Batches that a thread prepares: the same, in order, with errors, and no thread left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from bpe import TokenmillError
from preprocess import AsyncDataLoader, Mixture, Sampler
from preprocess.sampling.data import SamplingError

pytestmark = pytest.mark.usefixtures("threads_end")


def records(n: int) -> list[dict[str, Any]]:
    return [{"ids": np.arange(i, i + 3), "number": i} for i in range(n)]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("ahead", [1, 4, 100])
def test_batches_are_those_of_the_sampler(enabled: bool, ahead: int) -> None:
    sampler = Sampler(np.arange(200), 3, 4, order="epoch", seed=1)
    expected = [batch["inputs"] for _ in range(2) for batch in sampler]
    sampler.step = 0
    loader = AsyncDataLoader(sampler, prefetch_enabled=enabled, prefetch_buffer_size=ahead)
    found = [batch["inputs"] for _ in range(2) for batch in loader]
    assert len(loader) == len(sampler)
    assert all((a == b).all() for a, b in zip(found, expected, strict=True))


def test_a_mixture_and_a_sampler_without_end() -> None:
    parts = {name: Sampler(np.arange(n, n + 50), 4, 4) for name, n in (("a", 0), ("b", 90))}
    mixture = Mixture(parts, {"a": 1, "b": 1})
    found = [batch["inputs"] for batch in islice(AsyncDataLoader(mixture), 3)]
    assert all((found[step] == mixture.batch(step)["inputs"]).all() for step in range(3))
    assert mixture.step == 3
    with pytest.raises(TypeError, match="has no length"):
        len(AsyncDataLoader(parts["a"]))


def test_records_are_stacked() -> None:
    loader = AsyncDataLoader(records(5), batch_size=2)
    found = list(loader)
    assert [batch["number"].tolist() for batch in found] == [[0, 1], [2, 3], [4]]
    assert found[1]["ids"].tolist() == [[2, 3, 4], [3, 4, 5]]
    assert len(loader) == 3
    assert not list(AsyncDataLoader([], batch_size=2))
    with pytest.raises(TypeError):
        len(AsyncDataLoader(iter(records(5)), batch_size=2))


def test_no_more_is_prepared_than_asked_for() -> None:
    taken: list[int] = []
    reached = threading.Event()

    def source() -> Iterator[dict[str, Any]]:
        for record in records(50):
            taken.append(record["number"])
            if len(taken) == 4:
                reached.set()
            yield record

    found = iter(AsyncDataLoader(source(), batch_size=1, prefetch_buffer_size=3))
    next(found)  # of the four that were taken then, three are ahead
    assert reached.wait(60)
    assert taken == [0, 1, 2, 3]
    found.close()  # type: ignore[attr-defined]


def test_an_error_comes_after_the_batches_before_it() -> None:
    def source() -> Iterator[dict[str, Any]]:
        yield from records(3)
        raise KeyError("of the source")

    found: list[Any] = []
    with pytest.raises(KeyError, match="of the source"):
        found.extend(AsyncDataLoader(source(), batch_size=1))
    assert len(found) == 3


def test_leaving_early_closes_the_source() -> None:
    closed = threading.Event()

    def source() -> Iterator[dict[str, Any]]:
        try:
            yield from records(1000)
        finally:
            closed.set()

    for batch in AsyncDataLoader(source(), batch_size=1):
        assert batch["number"].tolist() == [0]
        break
    assert closed.is_set()


def test_an_iterator_of_another_process_raises() -> None:
    """And does not wait for a thread that is not there."""
    found = iter(AsyncDataLoader(records(99), batch_size=1, prefetch_buffer_size=1))
    next(found)
    process = os.fork()
    if not process:
        code = 1
        try:
            list(found)
        except TokenmillError as error:
            code = 0 if "begin the iteration after the process was forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert len(list(found)) == 98


@pytest.mark.parametrize(("source", "more", "message"), [
    (records(3), {}, "records are stacked to batches; give a batch_size"),
    (Sampler(np.arange(9), 1, 4), {"batch_size": 2}, "a sampler has a global_batch_size of it"),
    ("train.bin", {}, "source should be a Sampler, a Mixture or an iterable of records; got s"),
    (3, {}, "the source should be a Sampler, a Mixture or an iterable of records; got i"),
    (records(3), {"batch_size": 0}, "batch_size should be at least 1; got 0"),
    (records(3), {"batch_size": 1, "prefetch_buffer_size": 0},
     "prefetch_buffer_size should be at least 1; got 0"),
])  # fmt: skip
def test_wrong_arguments(source: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        AsyncDataLoader(source, **more)


@pytest.mark.parametrize(("second", "message"), [
    ({"other": 1}, "records of a batch should have the same names; one has input_ids, number"),
    ([1, 2], "a record should be a dictionary of arrays and numbers; got list"),
    *(({"input_ids": ids, "number": 3}, "arrays of a batch should have one shape; 'input_ids'")
      for ids in ("a", 3, [[1, 2]])),
    ({"input_ids": [1], "number": [3, 4]}, "arrays of a batch should have one shape; 'number'"),
])  # fmt: skip
def test_records_that_differ(second: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        list(AsyncDataLoader([{"input_ids": [1, 2], "number": 3}, second], batch_size=2))
