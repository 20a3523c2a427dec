"""Results in order, bounded memory, one error, a prompt end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from preprocess.engine import available_workers, run_in_order

WORKERS = [1, 2, 7]


def squaring() -> Callable[[int], int]:
    return lambda unit: unit * unit


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("n_units", [0, 1, 5, 200])
def test_results_come_in_the_order_of_the_units(workers: int, n_units: int) -> None:
    assert list(run_in_order(range(n_units), squaring, workers)) == [i * i for i in range(n_units)]


def test_a_slow_unit_holds_back_the_others_results_but_not_their_work() -> None:
    others_done = threading.Semaphore(0)

    def make_work() -> Callable[[int], int]:
        def work(unit: int) -> int:
            if unit == 0:
                for _ in range(3):
                    assert others_done.acquire(timeout=60)
            else:
                others_done.release()
            return unit

        return work

    assert list(run_in_order(range(10), make_work, 2)) == list(range(10))


@pytest.mark.parametrize("workers", [2, 7])
def test_few_units_are_under_way(workers: int) -> None:
    taken = 0

    def units() -> Iterator[int]:
        nonlocal taken
        for unit in range(100):
            taken += 1
            yield unit

    with closing(run_in_order(units(), squaring, workers)) as results:
        for done, _ in enumerate(results):
            assert taken <= done + 2 * workers + 2


@pytest.mark.parametrize("workers", WORKERS)
def test_each_worker_has_work_of_its_own(workers: int) -> None:
    made: list[set[int]] = []

    def make_work() -> Callable[[int], int]:
        lock = threading.Lock()
        threads: set[int] = set()
        made.append(threads)

        def work(unit: int) -> int:
            assert lock.acquire(blocking=False), "used by two threads at a time"
            threads.add(threading.get_ident())
            lock.release()
            return unit

        return work

    assert len(list(run_in_order(range(100), make_work, workers))) == 100
    assert 1 <= len(made) <= workers
    if workers == 1:
        assert made == [{threading.get_ident()}]


def our_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("tokenbin")]


class OddError(Exception):
    pass


@pytest.mark.parametrize("workers", WORKERS)
def test_the_first_error_in_order_is_raised_as_it_was(workers: int) -> None:
    done: list[int] = []
    error = OddError("unit 3")

    def make_work() -> Callable[[int], int]:
        def work(unit: int) -> int:
            done.append(unit)
            if unit == 3:
                raise error
            if unit > 3:
                raise OddError(f"unit {unit}")
            return unit

        return work

    results = []
    with pytest.raises(OddError) as raised:
        results.extend(run_in_order(range(1000), make_work, workers))
    assert raised.value is error
    assert len(done) <= 4 + 2 * workers + 2
    assert not our_threads()


@pytest.mark.parametrize("workers", WORKERS)
def test_errors_of_making_work_and_of_planning_are_raised(workers: int) -> None:
    def no_work() -> Callable[[int], int]:
        raise OddError("no work")

    with pytest.raises(OddError, match="no work"):
        list(run_in_order(range(5), no_work, workers))

    def units() -> Iterator[int]:
        yield 1
        raise OddError("no plan")

    with pytest.raises(OddError, match="no plan"):
        list(run_in_order(units(), squaring, workers))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_consumer_that_stops_ends_everything(workers: int) -> None:
    def interrupted() -> None:
        with closing(run_in_order(range(10**9), squaring, workers)) as results:
            next(results)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not our_threads()


def test_there_is_at_least_one_worker() -> None:
    assert available_workers() >= 1
