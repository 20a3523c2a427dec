"""Map work over units on several threads, with results in the order of the units.

- Results come in the order of the units, whatever finished first. So the first error in that order
  is the one that is raised, as it was, after all results before it; whether it is an error of the
  work or of the iterator of units.
- Units are handed out one by one to whichever thread is free. At most `2 * workers + 2` of them are
  in flight or waiting to be taken, so memory does not grow with the number of units.
- When the consumer stops, by an error, an interrupt or `close()`, no further unit is started, and
  the running ones are waited for: units are short.
- The thread that takes the results is one of the workers. It works on a unit whenever the next
  result is not ready: one more thread would compete for processors with the others, and would need
  what these have just written in caches of its own.

Work is a callable that keeps what it needs (an encoder, counts) and is used by one thread at a
time. An executor of another kind (processes, a cluster) offers `run_in_order` with the same
promises.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

Unit = TypeVar("Unit")
Result = TypeVar("Result")


def available_workers() -> int:
    """The number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinities
        return os.cpu_count() or 1


def for_each(items: Iterable[Unit], work: Callable[[int, Unit], object], workers: int) -> None:
    """Call `work(number, item)` for each item; numbers begin at 0.

    Args:
        items: Taken from lazily, in the calling thread.
        work: Called by several threads at the same time.
        workers: As in `run_in_order`.
    """
    done = run_in_order(enumerate(items), lambda: lambda unit: work(*unit), workers)
    with contextlib.closing(done):
        deque(done, maxlen=0)


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
    units: Iterator[Unit], make_work: Callable[[], Callable[[Unit], Result]], workers: int
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
    under_way: deque[tuple[Callable[[], Result], Future[Result]]] = deque()

    def take(n: int) -> None:
        try:
            for unit in itertools.islice(units, n):
                task = partial(work_on, unit)
                under_way.append((task, pool.submit(task)))
        except Exception as error:  # noqa: BLE001 (raised when it is its turn)
            under_way.append(_failed(error))

    try:
        take(2 * workers + 2)
        while under_way:
            if not under_way[0][1].done():
                place = _taken_back(under_way)
                if place is not None:
                    under_way[place] = under_way[place][0], Future()
                    _do(*under_way[place])
                    continue
            # An error knows the frames that it went through: a name in one of them for what holds
            # the error would keep all, and the text of units, until the garbage collector comes.
            yield under_way.popleft()[1].result()
            take(1)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        under_way.clear()


def _taken_back(under_way: Iterable[tuple[object, Future[Result]]]) -> int | None:
    """The place of the first that nobody has begun with, which is for the calling thread now."""
    for place, (_, future) in enumerate(under_way):
        if future.cancel():
            return place
    return None


def _do(task: Callable[[], Result], future: Future[Result]) -> None:
    """Set what comes of a task; an error is raised when it is its turn."""
    try:
        future.set_result(task())
    except Exception as error:  # noqa: BLE001 (raised when it is its turn)
        future.set_exception(error)
        del task, future


def _failed(error: Exception) -> tuple[Callable[[], Any], Future[Any]]:
    """What stands for units that could not be handed out; it is done, so nobody calls the task."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future.result, future
