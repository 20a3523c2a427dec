"""How a command ends when a signal asks it to, within about a second and whatever it is doing.

Law: the main thread is asked first: it raises `Stopped`, and everything is closed in order. It may
be far away: inside a kernel that works on one huge unit, while kernels are compiled, or waiting for
a worker that is. So a thread of its own sees every signal as the system delivers it, waits a
little, and then ends the process where it stands. What the journal has said is on the disk then,
and the rest is what a power cut would take: see `preprocess.journal`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SECONDS = 0.8


class Stopped(BaseException):
    """A signal asks us to end. As KeyboardInterrupt it is no Exception: nothing takes it for one.

    It stands for SIGINT, too, because typer turns KeyboardInterrupt into an exit without a word.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.number = number


@contextmanager
def stopping() -> Iterator[None]:
    """Let SIGINT and SIGTERM end what happens inside the `with`, unless they are ignored.

    Raises:
        Stopped: One of them came.
    """
    # A process that was started in the background ignores SIGINT, and shall go on doing so.
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    ]
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(reading, over, set(numbers)), daemon=True)
    watcher.start()
    before = {number: signal.signal(number, _stop) for number in numbers}
    fd_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writing)  # ends the watcher, which closes the other end


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _watch(reading: int, over: threading.Event, numbers: set[int]) -> None:
    """End the process if it does not end by itself; runs in a thread of its own."""
    with os.fdopen(reading, "rb", buffering=0) as signals:
        while received := signals.read(1):
            number = received[0]
            if number in numbers and not over.wait(SECONDS):
                print(
                    "tokenbin: something was in the middle of a unit and not waited for; what was"
                    " done before is kept: the same command goes on there\n"
                    f"tokenbin: error: stopped ({signal.strsignal(number)})",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(128 + number)
