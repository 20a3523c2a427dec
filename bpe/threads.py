"""Work on items that come one after the other, on several threads.

Law: every item is taken once, in its order, by a thread that has nothing else to do. After a
failure, or Ctrl-C, no further one is taken; of several failures that of the first item is raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")


def for_each(items: Iterable[Item], work: Callable[[int, Item], None], n_threads: int) -> None:
    """Call `work(number, item)` for all items, of which the first has the number 0.

    A thread asks for an item when it is done with the one before: what finding it has brought into
    the caches of its processor is still there then.
    """
    numbered, lock = enumerate(items), threading.Lock()
    reached, n_taken, stopped = [0] * n_threads, 0, False

    def take_items(thread: int) -> None:
        nonlocal n_taken, stopped
        try:
            while True:
                with lock:
                    # The next one may be what fails to come.
                    reached[thread] = n_taken
                    taken = None if stopped else next(numbered, None)
                    n_taken += 1
                if taken is None:
                    return
                work(*taken)
        except BaseException:
            stopped = True
            raise

    running: list[Future[None]] = []
    with ThreadPoolExecutor(n_threads) as pool:
        try:
            running += [pool.submit(take_items, thread) for thread in range(n_threads)]
            wait(running)
        finally:
            stopped = True
    errors = [done.exception() for done in running]
    failed = {
        number: error for number, error in zip(reached, errors, strict=True) if error is not None
    }
    try:
        if failed:
            raise failed[min(failed)]
    finally:
        # Or the error would hold what holds it, and the data of the work, until a collection.
        del running, errors, failed
