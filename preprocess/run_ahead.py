"""Run a generator ahead on a thread of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator
from typing import TypeVar

from bpe.parallel import Threads

Unit = TypeVar("Unit")


def run_ahead(items: Generator[Unit], n_ahead: int) -> Generator[Unit]:
    """Yield what a generator yields; a thread runs it up to `n_ahead` items ahead.

    Close it (`contextlib.closing`) if it may not be exhausted: this waits until the generator has
    yielded the item that it is working on, and closes the generator.

    Raises:
        TokenmillError: This is a fork of the process that has the thread.
        Exceptions of the generator, unchanged.
    """
    turn = threading.Lock()
    ready: deque[tuple[Unit] | Exception] = deque()
    is_over = False

    def produce() -> None:
        nonlocal is_over
        with turn:
            if not is_over:
                try:
                    ready.append((next(items),))
                except StopIteration:
                    is_over = True
                except Exception as error:  # noqa: BLE001 (raised by the iteration)
                    is_over = True
                    ready.append(error)

    threads = Threads(1)
    try:
        tasks = deque([threads.submit(produce) for _ in range(n_ahead)])
        while True:
            tasks.popleft().result()
            if not ready:
                return
            if isinstance(ready[0], Exception):
                raise ready.popleft()  # type: ignore[misc]
            tasks.append(threads.submit(produce))
            yield ready.popleft()[0]  # type: ignore[index]
    finally:
        if threads.close():
            items.close()
