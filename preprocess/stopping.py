"""How a command ends when it does not come to its end: a signal asks it to, or a worker hangs.

Law: a signal ends it within about a second, whatever it is doing. The main thread is asked first:
it raises `Stopped`, and everything is closed in order. It may be far away: inside a kernel that
works on one huge unit, while kernels are compiled, or waiting for a worker that is. So a thread of
its own sees every signal as the system delivers it, waits a little, and then ends the process where
it stands. What the journal has said is on the disk then, and the rest is what a power cut would
take: see `preprocess.journal`.

A worker that does not come back from a unit in a time that no text needs (in a kernel, in a
library, in a read that the disk never answers) cannot be ended by itself, for it is a thread. So
the process says which text it is and ends where it stands, too. Where `build` was called by another
program, that is not ours to end, and it is only said.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

SECONDS = 0.8
# What a unit may take: ten minutes, for kernels may be compiled and the machine may be busy, and a
# second for so many of its bytes, many times what the slowest tokenizer needs.
PATIENCE = 600.0
BYTES_A_SECOND = 10_000
TICK = 5.0
HUNG_CODE = 4

logger = logging.getLogger("preprocess")
_is_command = False


class Stopped(BaseException):
    """A signal asks us to end. As KeyboardInterrupt it is no Exception: nothing takes it for one.

    It stands for SIGINT, too, so that both are told of, and kept apart from errors, in one way.

    Attributes:
        number: The signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.strsignal(number))
        self.number = number


@contextmanager
def stopping() -> Iterator[None]:
    """Let SIGINT and SIGTERM end what happens inside the `with`, unless they are ignored.

    A worker that hangs ends the process, too.

    Raises:
        Stopped: One of them came.
    """
    global _is_command
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
    _is_command = True
    try:
        yield
    finally:
        _is_command = False
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
                _end(
                    "something was in the middle of a unit and not waited for; what was done before"
                    " is kept: the same command goes on there",
                    f"stopped ({signal.strsignal(number)})",
                    128 + number,
                )


def _end(said: str, error: str, code: int) -> NoReturn:
    """End the process where it stands."""
    print(f"tokenbin: {said}\ntokenbin: error: {error}", file=sys.stderr, flush=True)
    os._exit(code)


@dataclass(eq=False)
class _UnderWay:
    """A unit that somebody works on: which text it is, its bytes, how long that takes so far."""

    where: str
    n_bytes: int
    seconds: float = 0.0
    is_said: bool = False


class Watch:
    """Notices a unit that does not come to its end.

    Time is counted in ticks: while the process is stopped or the machine sleeps, none of it passes.

    Args:
        hangs: Is called once for such a unit, with which text it is and for how long.
    """

    def __init__(self, hangs: Callable[[str, float], None]) -> None:
        self._hangs = hangs
        # Without a lock: a signal may raise anywhere in the main thread, and would leave it locked.
        self._under_way: set[_UnderWay] = set()

    @contextmanager
    def over(self, where: str, n_bytes: int) -> Iterator[None]:
        """Watch over a unit; the work on it is done inside the `with`, on any thread.

        Args:
            where: Which text it is.
            n_bytes: How much.
        """
        unit = _UnderWay(where, n_bytes)
        self._under_way.add(unit)
        try:
            yield
        finally:
            self._under_way.discard(unit)

    def tick(self) -> None:
        """Say that `TICK` seconds have passed."""
        for unit in tuple(self._under_way):
            unit.seconds += TICK
            allowed = PATIENCE + unit.n_bytes / BYTES_A_SECOND
            if unit.seconds > allowed and not unit.is_said:
                unit.is_said = True
                self._hangs(unit.where, unit.seconds)


@contextmanager
def watching() -> Iterator[Watch]:
    """A watch whose time passes while something happens inside the `with`."""
    watch, over = Watch(_say_or_end), threading.Event()

    def look() -> None:
        while not over.wait(TICK):
            watch.tick()

    thread = threading.Thread(target=look, name="tokenbin-watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


def _say_or_end(where: str, seconds: float) -> None:
    hung = f"a worker hangs: for {seconds / 60:,.0f} minutes it has not come back from {where}"
    logger.error("%s", hung, extra={"only_file": _is_command})
    if _is_command:
        _end(
            "what was done before is kept: the same command goes on there; if a worker hangs at the"
            " same place again, see to the disk, or leave that text out and report it",
            hung,
            HUNG_CODE,
        )
