"""Map a function over units on several threads, or run a generator ahead on one.

Results of `run_in_order` are in the order of the units:

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
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from bpe.errors import TokenmillError

Unit = TypeVar("Unit")
Result = TypeVar("Result")

_LOOK_SECONDS = 1.0  # between looks whether the other side is still there


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
    pool = ThreadPoolExecutor(workers - 1, thread_name_prefix="tokenmill")
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


def run_ahead(items: Generator[Unit], n_ahead: int) -> Generator[Unit]:
    """Yield what a generator yields; a thread runs it up to `n_ahead` items ahead.

    Close it (`contextlib.closing`) if it may not be exhausted: this waits until the generator has
    yielded the item that it is working on, and closes the generator.

    Raises:
        TokenmillError: This is a fork of the process that has the thread.
        Exceptions of the generator, unchanged.
    """
    ready: queue.SimpleQueue[tuple[Unit] | BaseException | None] = queue.SimpleQueue()
    free = threading.Semaphore(n_ahead)
    is_left = threading.Event()

    def run() -> None:
        last: BaseException | None = None
        try:
            with contextlib.closing(items):
                while free.acquire() and not is_left.is_set():
                    ready.put((next(items),))
        except StopIteration:
            pass
        except BaseException as error:  # noqa: BLE001 (raised by the iteration)
            last = error
        ready.put(last)

    # A daemon thread, so that an abandoned iterator does not keep the process alive.
    thread = threading.Thread(target=run, name="tokenmill-ahead", daemon=True)
    thread.start()
    try:
        while True:
            try:
                item = ready.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if not thread.is_alive() and ready.empty():
                    raise TokenmillError(
                        "the thread that runs ahead is not in this process; begin the"
                        " iteration after the process was forked"
                    ) from None
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            free.release()
            yield item[0]
            del item
    finally:
        is_left.set()
        free.release()
        thread.join()
