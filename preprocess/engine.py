"""From work units to results, in order.

Law: results come in the order of the units, whatever finished first; so the first error, in that
order, is the one that is raised, as it was. Units are handed out one by one to whoever is free, and
at most `workers + 4` of them are under way or waiting to be taken, so memory does not grow with the
corpus. When the consumer stops, by an error, an interrupt or `close()`, nothing new is started and
what runs is waited for: units are short.

Work is a callable that keeps what it needs (an encoder, counts) and is used by one
thread at a time. An executor of another kind (processes, a cluster) would offer `run_in_order` with
the same promises.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Unit = TypeVar("Unit")
Result = TypeVar("Result")

# Finished results that may wait for an earlier unit, beyond one for each worker.
_WAITING = 4


def available_workers() -> int:
    """The number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinities
        return os.cpu_count() or 1


def run_in_order(
    units: Iterable[Unit], make_work: Callable[[], Callable[[Unit], Result]], workers: int
) -> Generator[Result, None, None]:
    """Work on every unit and yield the results in the order of the units.

    Close the generator (`contextlib.closing`) if it may not be exhausted.

    Args:
        units: Taken from lazily, in the calling thread.
        make_work: Called at most once for each worker, by its thread; gives the callable that does
            the work.
        workers: Number of threads; 1 works in the calling thread.

    Raises:
        Whatever `units`, `make_work` or the work raises, as it was.
    """
    if workers == 1:
        work = make_work()
        for unit in units:
            yield work(unit)
        return
    yield from _run_on_threads(iter(units), make_work, workers)


def _run_on_threads(
    units: Iterable[Unit], make_work: Callable[[], Callable[[Unit], Result]], workers: int
) -> Generator[Result, None, None]:
    idle: deque[Callable[[Unit], Result]] = deque()

    def work_on(unit: Unit) -> Result:
        # The one put back last has seen what is nearby. As many exist as threads ran at the same
        # time.
        try:
            work = idle.pop()
        except IndexError:
            work = make_work()
        try:
            return work(unit)
        finally:
            idle.append(work)

    pool = ThreadPoolExecutor(workers, thread_name_prefix="tokenbin")
    under_way: deque[Future[Result]] = deque()
    try:
        for unit in itertools.islice(units, workers + _WAITING):
            under_way.append(pool.submit(work_on, unit))
        while under_way:
            yield under_way.popleft().result()
            for unit in itertools.islice(units, 1):
                under_way.append(pool.submit(work_on, unit))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
