"""Results in order, bounded memory, one error, a prompt end."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

import pytest
import threads

from bpe.errors import TokenmillError
from bpe.parallel import available_workers, for_each, run_in_order
from preprocess.run_ahead import run_ahead

WORKERS = [1, 2, 7]
pytestmark = pytest.mark.usefixtures("threads_end")


def squaring() -> Callable[[int], int]:
    lock = threading.Lock()

    def work(unit: int) -> int:
        assert lock.acquire(blocking=False), "used by two threads at a time"
        lock.release()
        return unit * unit

    return work


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("n_units", [0, 1, 5, 200])
def test_results_come_in_the_order_of_the_units_and_few_are_under_way(
    workers: int, n_units: int
) -> None:
    taken = 0

    def units() -> Iterator[int]:
        nonlocal taken
        for unit in range(n_units):
            taken += 1
            yield unit

    with closing(run_in_order(units(), squaring, workers)) as results:
        for done, result in enumerate(results):
            assert result == done * done
            assert taken <= done + (2 * workers + 2 if workers > 1 else 1)
    assert taken == n_units


class OddError(Exception):
    pass


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize(
    ("fails", "error", "results"),
    [
        ("work", "unit 1", [0]),
        ("making work", "no work", []),
        ("planning", "no plan", [*range(5)]),
        ("work and planning", "unit 1", [0]),
        ("consumer", "consumer", [0]),
    ],
)
def test_the_first_error_in_order_is_raised(
    workers: int, fails: str, error: str, results: list[int]
) -> None:
    """After the results before it; and keeps nothing in memory, for there may be much text."""

    class Text:
        def __init__(self, number: int) -> None:
            self.number = number

    alive: list[weakref.ref[Text]] = []
    found: list[int] = []

    def units() -> Iterator[Text]:
        for number in range(5):
            text = Text(number)
            alive.append(weakref.ref(text))
            yield text
        if "planning" in fails:
            raise OddError("no plan")

    def make_work() -> Callable[[Text], Text]:
        if fails == "making work":
            raise OddError("no work")

        def work(unit: Text) -> Text:
            # With what comes later under way.
            if fails.startswith("work") and unit.number > 0:
                raise OddError(f"unit {unit.number}")
            return unit

        return work

    def consume() -> None:
        with closing(run_in_order(units(), make_work, workers)) as texts:
            for text in texts:
                found.append(text.number)
                del text
                if fails == "consumer":
                    raise OddError("consumer")

    gc.collect()
    gc.disable()
    try:
        with pytest.raises(OddError, match=error) as raised:
            consume()
        del raised
        assert [text() for text in alive] == [None] * len(alive)
    finally:
        gc.enable()
    assert found == results


@pytest.mark.filterwarnings("ignore:.*use of fork.. may lead to deadlocks:DeprecationWarning")
@pytest.mark.parametrize("kind", ["in order", "ahead"])
def test_a_fork_in_mid_iteration_gets_an_error_and_closes(kind: str) -> None:
    go_on, caller = threading.Event(), threading.get_ident()

    def items() -> Generator[int]:
        yield 0
        yield work(1)

    def work(unit: int) -> int:
        assert unit == 0 or threading.get_ident() == caller or go_on.wait(60)
        return unit

    results = run_ahead(items(), 1) if kind == "ahead" else run_in_order(range(9), lambda: work, 2)
    assert next(results) == 0
    pid = os.fork()
    if not pid:
        try:
            with closing(results):
                deque(results, maxlen=0)
        except TokenmillError as error:
            os._exit(7 if "after the process was forked" in str(error) else 1)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    go_on.set()
    assert os.waitstatus_to_exitcode(status) == 7
    assert list(results) == ([1] if kind == "ahead" else [*range(1, 9)])


@pytest.mark.parametrize("workers", [2, 7])
def test_so_many_threads_work_as_there_are_workers_and_the_caller_is_one(workers: int) -> None:
    """All meet: with one thread less, they would wait in vain; with one more, it is seen."""
    before, meeting = threads.count(), threading.Barrier(workers)
    met: list[int] = []

    def make_work() -> Callable[[int], int]:
        def work(unit: int) -> int:
            if unit < workers:
                meeting.wait(60)
            met.append(threading.get_ident())
            return unit

        return work

    with closing(run_in_order(range(100), make_work, workers)) as results:
        assert next(results) == 0
        assert threads.count() - before == workers - 1
        assert list(results) == list(range(1, 100))
    assert threading.get_ident() in met
    assert len(set(met)) == workers


@pytest.mark.parametrize("workers", [1, 2])
def test_work_that_finds_an_iterator_at_its_end_is_not_the_end_of_the_units(workers: int) -> None:
    results = run_in_order(range(5), lambda: lambda unit: next(iter([unit] * (unit != 2))), workers)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(results)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinities on this system")
def test_workers_are_the_processors_that_this_process_may_use() -> None:
    usable = os.sched_getaffinity(0)
    assert available_workers() == len(usable)
    try:
        os.sched_setaffinity(0, [min(usable)])
        assert available_workers() == 1
    finally:
        os.sched_setaffinity(0, usable)


@pytest.mark.parametrize("workers", WORKERS)
def test_for_each_raises_the_first_error_and_ends(workers: int) -> None:
    def work(number: int, _: int) -> None:
        raise OddError(f"item {number}")

    with pytest.raises(OddError, match="item 0"):
        for_each(range(10**9), work, workers)
