"""From work units to results, in order.

Law: results come in the order of the units, whatever finished first; so the first error, in that
order, is the one that is raised, as it was. Units are handed out one by one to whoever is free, and
at most `2 * workers + 2` of them are under way or waiting to be taken, so memory does not grow with
the corpus. When the consumer stops, by an error, an interrupt or `close()`, nothing new is started
and what runs is waited for: units are short.

The thread that takes the results is one of the workers. It works on a unit whenever the next result
is not there: one more thread would take processors from the others, and would need what these have
just written in caches of its own.

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
        make_work: Called at most once for each worker; gives the callable that does the work.
        workers: Number of threads, of which the calling one is the first.

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

    pool = ThreadPoolExecutor(workers - 1, thread_name_prefix="tokenbin")
    under_way: deque[tuple[Unit, Future[Result]]] = deque()

    def take(n: int) -> None:
        for unit in itertools.islice(units, n):
            under_way.append((unit, pool.submit(work_on, unit)))

    try:
        take(2 * workers + 2)
        while under_way:
            if not under_way[0][1].done():
                # The first that nobody has begun with is for this thread.
                begun = (not future.cancel() for _, future in under_way)
                place = next((place for place, is_begun in enumerate(begun) if not is_begun), None)
                if place is not None:
                    unit, _ = under_way[place]
                    under_way[place] = unit, _done_with(work_on, unit)
                    continue
            _, future = under_way.popleft()
            yield future.result()
            take(1)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _done_with(work: Callable[[Unit], Result], unit: Unit) -> Future[Result]:
    """A unit that is done, or its error, which is raised when it is its turn."""
    future: Future[Result] = Future()
    try:
        future.set_result(work(unit))
    except Exception as error:  # noqa: BLE001 (raised when it is its turn)
        future.set_exception(error)
    return future
