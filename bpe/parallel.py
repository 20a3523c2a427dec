"""Map a function over units on several threads; results are in the order of the units.

- The first error in that order, of the function or of the iterator of units, is raised unchanged,
  after all results before it.
- At most `2 * workers + 2` units or results exist at a time: memory is bounded.
- When the consumer stops (an error, an interrupt, `close()`), no further unit is started, and
  running ones, which are short, are completed.
- The consuming thread is one of the workers, and works while the next result is not ready.

The function keeps state (an encoder, counts) and is used by one thread at a time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Unit = TypeVar("Unit")
Result = TypeVar("Result")


def available_workers() -> int:
    """Return the number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinities
        return os.cpu_count() or 1


def for_each(items: Iterable[Unit], work: Callable[[int, Unit], object], workers: int) -> None:
    """Call `work(number, item)` for each item, on several threads; see `run_in_order`."""
    done = run_in_order(enumerate(items), lambda: lambda unit: work(*unit), workers)
    with contextlib.closing(done):
        deque(done, maxlen=0)


def run_in_order(
    units: Iterable[Unit], make_work: Callable[[], Callable[[Unit], Result]], workers: int
) -> Generator[Result, None, None]:
    """Yield the results of units, in their order.

    Close the generator (`contextlib.closing`) if it may not be exhausted.

    Args:
        units: Consumed lazily, in the calling thread.
        make_work: Called at most once per worker; returns the function.
        workers: Number of threads, including the calling one.

    Raises:
        Exceptions of `units`, `make_work` and the function, unchanged.
    """
    if workers == 1:
        work = make_work()
        for unit in units:  # not `map`, which ends where the work raises StopIteration
            yield work(unit)
        return
    remaining = iter(units)
    idle: deque[Callable[[Unit], Result]] = deque()
    pool = ThreadPoolExecutor(workers - 1, thread_name_prefix="tokenbin")
    # Units and results. An error keeps the frames it passed: with a local name there for its future
    # or a unit, they would live until a garbage collection.
    under_way: deque[tuple[Any, Future[Result]]] = deque()

    def work_on(unit: Unit) -> Result:
        # The function that was used last has warm caches.
        try:
            work = idle.pop()
        except IndexError:
            work = make_work()
        try:
            return work(unit)
        finally:
            idle.append(work)

    def take(n: int) -> None:
        try:
            for unit in itertools.islice(remaining, n):
                under_way.append((unit, pool.submit(work_on, unit)))
        except Exception as error:  # noqa: BLE001 (raised when it is its turn)
            under_way.append((None, Future()))
            under_way[-1][1].set_exception(error)

    def work_here(place: int) -> None:
        try:
            under_way[place][1].set_result(work_on(under_way[place][0]))
        except Exception as error:  # noqa: BLE001 (raised when it is its turn)
            under_way[place][1].set_exception(error)

    try:
        take(2 * workers + 2)
        while under_way:
            if not under_way[0][1].done():
                # The calling thread takes the first unit that no thread has started.
                place = next((i for i, each in enumerate(under_way) if each[1].cancel()), None)
                if place is not None:
                    under_way[place] = under_way[place][0], Future()
                    work_here(place)
                    continue
            yield under_way.popleft()[1].result()
            take(1)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        under_way.clear()
