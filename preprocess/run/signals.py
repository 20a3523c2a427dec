"""Exit a command after a signal, or when a worker hangs.

A signal ends the process within about a second. The main thread raises `Stopped` and closes files
in order, unless it is inside a kernel, compiling, or waiting for a worker. A watcher thread
therefore receives each signal, too, and exits the process after a short delay. Journal entries are
durable by then; later work is lost as in a power cut: see `preprocess.run.journal`.

Python cannot end a single thread. If a worker exceeds the time that any text needs for a unit (in a
kernel, a library, or a read without an answer from the disk), the process reports the text and
exits. If another program called `build`, the text is only reported.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from bpe.parallel import Task, start_thread

SECONDS = 0.8
PATIENCE = 600.0  # seconds allowed for any unit: compiling kernels, a busy machine
BYTES_A_SECOND = 10_000  # bytes of a unit per further second, far below the slowest tokenizer
TICK = 5.0
HUNG_CODE = 4

logger = logging.getLogger("preprocess")
_is_command = False


class Stopped(BaseException):
    """Raised by signal `number`; like KeyboardInterrupt not an Exception."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.number = number


@contextmanager
def stopping() -> Iterator[None]:
    """Let SIGINT, SIGTERM and hanging workers end the process inside the `with`.

    Raises:
        Stopped: One of the signals was received.
    """
    global _is_command
    numbers = [signal.SIGINT, signal.SIGTERM]
    # A shell starts background processes with SIGINT ignored; keep that.
    numbers = [each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN]
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    over = threading.Event()
    start_thread(_watch, reading, over, set(numbers))
    before = {number: signal.signal(number, _stop) for number in numbers}
    fd_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _is_command = True
    try:
        yield
    finally:
        _is_command = False
        over.set()
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writing)  # ends the watcher, which closes the reading end


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _watch(reading: int, over: threading.Event, numbers: set[int]) -> None:
    """Exit the process `SECONDS` after a signal unless `over` is set; runs on its own thread."""
    with os.fdopen(reading, "rb", buffering=0) as signals:
        while received := signals.read(1):
            number = received[0]
            if number in numbers and not over.wait(SECONDS):
                _exit(
                    "an unfinished unit was abandoned; earlier progress is saved: rerun the same"
                    " command to resume",
                    f"stopped ({signal.strsignal(number)})",
                    128 + number,
                )


def _exit(state: str, error: str, code: int) -> NoReturn:
    print(f"tokenmill: {state}\ntokenmill: error: {error}", file=sys.stderr, flush=True)
    os._exit(code)


class Watch:
    """Detector of hanging units, each of which it reports once, or exits.

    Time is counted in ticks, so it stands still while the process or the machine is suspended.
    """

    def __init__(self) -> None:
        # Without a lock: a signal may raise anywhere in the main thread, and would leave it locked.
        self._units: dict[tuple[str, int, int], list[float]] = {}  # -> [seconds]

    @contextmanager
    def over(self, where: str, n_bytes: int) -> Iterator[None]:
        """Watch a unit of `n_bytes` of text at `where` inside the `with`."""
        key = where, n_bytes, threading.get_ident()
        self._units[key] = [0.0]
        try:
            yield
        finally:
            self._units.pop(key, None)

    def tick(self) -> None:
        """Add `TICK` seconds to every unit, and report those over their limit."""
        for key, seconds in self._units.copy().items():
            where, n_bytes, _ = key
            seconds[0] += TICK
            if seconds[0] > PATIENCE + n_bytes / BYTES_A_SECOND:
                self._units.pop(key, None)
                _report_or_exit(where, seconds[0])


@contextmanager
def watching() -> Iterator[Watch]:
    """Return a `Watch` that ticks inside the `with`."""
    watch = Watch()
    with repeating(watch.tick, TICK):
        yield watch


@contextmanager
def repeating(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `action` every `seconds` on another thread inside the `with`."""
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(seconds):
            action()

    task = Task(repeat)
    start_thread(task.run)
    try:
        yield
    finally:
        is_over.set()
        task.result()


def _report_or_exit(where: str, seconds: float) -> None:
    hung = f"a worker hangs: for {seconds / 60:,.0f} minutes it has not come back from {where}"
    logger.error("%s", hung, extra={"only_file": _is_command})
    if _is_command:
        _exit(
            "earlier progress is saved: rerun the same command to resume; if a worker hangs at the"
            " same place again, check the disk, or leave that text out and report it",
            hung,
            HUNG_CODE,
        )
