"""Progress of a run: stages with bars or lines, and times and memory for statistics.

On a terminal, a stage of more than a second has a bar, elsewhere a line every 30 seconds; the log
file has all lines. Lines are logged by "bpe" and "preprocess", so a program that calls `build` can
redirect them.
"""

from __future__ import annotations

import logging
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from bpe.arguments import checked
from bpe.errors import TokenmillError, spelled

logger = logging.getLogger("preprocess")


def _with_arguments(record: logging.LogRecord) -> bool:
    record.msg, record.args = spelled(record.getMessage()), ()
    return True


logger.addFilter(_with_arguments)

SECONDS_BETWEEN_LINES = 30.0
_SECONDS_BEFORE_BAR = 1.0
_SECONDS_BETWEEN_LOOKS = 1.0  # between updates of the machine use in a bar
_SECONDS_BETWEEN_NOTES = 0.05  # measuring the memory takes almost a millisecond

Show = Literal["bars", "lines", "nothing"]


@dataclass(repr=False, eq=False)
class Stage:
    """A timed part of a run, such as "encoding train"."""

    name: str
    total: int
    unit: str  # "B" for bytes of sources, else a noun
    done: int = 0  # including `done_before`
    seconds: float = 0.0  # until the last report, including `seconds_before`
    done_before: int = 0  # in earlier runs
    seconds_before: float = 0.0
    _shown: Callable[[int], None] = lambda done: None

    def facts(self) -> dict[str, Any]:
        """Describe the stage for stats.json and the journal."""
        return {"name": self.name, "seconds": self.seconds, "done": self.done, "unit": self.unit}

    def advance(self, amount: int) -> None:
        """Add `amount` to `done`, and report it."""
        self.done += amount
        self._shown(self.done)


class OutOfTimeError(TokenmillError):
    """The time limit of a run is reached; progress is saved."""


@checked
class Progress:
    """The stages and the peak memory of a run.

    Args:
        show: "bars" (for a terminal), "lines" or "nothing".
        stream: Stream for bars; None: stderr.
        clock: Returns seconds, from any start.
        verbose: True to report the use of the machine in bars and lines.

    Attributes:
        stages: Stages in the order of their start.
        peak_memory: Maximum of the anonymous memory in stages so far, in bytes. What was taken and
            freed between two notes is estimated from the system's maximum of resident memory.
    """

    def __init__(
        self, show: Show = "nothing", stream: IO[str] | None = None,
        clock: Callable[[], float] = time.perf_counter, verbose: bool = False,
    ) -> None:
        self.stages: list[Stage] = []
        self.peak_memory, self._noted = 0, -math.inf
        self._mapped = self._most_resident = 0
        self._show, self._stream, self._clock, self._verbose = show, stream, clock, verbose
        self._started, self._deadline = 0.0, math.inf

    def begin(self, max_minutes: float | None) -> None:
        """Start the clock of the run, which may take `max_minutes` (None: any time)."""
        self._started = self._clock()
        self._deadline = self._started + 60 * (math.inf if max_minutes is None else max_minutes)

    def part(self) -> Progress:
        """Return the progress of one of several runs that share the time limit."""
        part = Progress(self._show, self._stream, self._clock, self._verbose)
        part._started, part._deadline = self._clock(), self._deadline
        return part

    def out_of_time(self) -> bool:
        """Return True if the time limit is reached."""
        return self._clock() >= self._deadline

    def minutes_left(self) -> float | None:
        """Return the minutes until the time limit, at least a little; None: there is no limit."""
        left = (self._deadline - self._clock()) / 60
        return None if math.isinf(left) else max(left, 1e-9)

    def seconds(self) -> float:
        """Return the time of the run, plus that of earlier runs in the same stages."""
        return self._clock() - self._started + sum(each.seconds_before for each in self.stages)

    def add_stage_before(self, name: str, seconds: float, done: int, unit: str) -> None:
        """Add a stage that an earlier run finished."""
        self.stages.append(Stage(name, done, unit, done, seconds, done, seconds))

    @contextmanager
    def stage(
        self, name: str, total: int, unit: str = "B", done_before: int = 0,
        seconds_before: float = 0.0,
    ) -> Iterator[Stage]:
        """Time and show a stage inside the `with`; the arguments are as in `Stage`."""
        stage = Stage(name, total, unit, done_before, seconds_before, done_before, seconds_before)
        self.stages.append(stage)
        reported = started = self._clock()
        in_line, in_bar = _MachineUse(started), _MachineUse(started)
        bar = self._bar(stage) if self._show == "bars" else None

        def shown(done: int) -> None:
            nonlocal reported
            self.note_memory()
            now = self._clock()
            stage.seconds = seconds_before + now - started
            if bar is not None:
                if self._verbose and now - in_bar.seconds >= _SECONDS_BETWEEN_LOOKS:
                    bar.set_postfix_str(in_bar.text(now), refresh=False)
                if done == bar.n and now - started >= _SECONDS_BEFORE_BAR:
                    bar.refresh()  # updates the elapsed time
                bar.update(done - bar.n)
            if now - reported >= SECONDS_BETWEEN_LINES:
                reported = now
                text = line_of(stage, now - started)
                text += f"; {in_line.text(now)}" if self._verbose else ""
                # With bars, lines are for the log file only.
                logger.info(text, extra={"only_file": self._show != "lines"})

        stage._shown = shown
        _, self._mapped, self._most_resident = resident_memory()
        try:
            yield stage
        finally:
            stage.seconds = seconds_before + self._clock() - started
            self._noted = -math.inf
            self.note_memory()
            if bar is not None:
                bar.close()

    def _bar(self, stage: Stage) -> Any:
        from tqdm import tqdm

        class Bar(tqdm):  # type: ignore[misc]
            monitor_interval = 0  # no thread, for whose beginning it would wait

        return Bar(
            desc=stage.name, total=stage.total or None, initial=stage.done_before, unit=stage.unit,
            unit_scale=True, delay=_SECONDS_BEFORE_BAR, dynamic_ncols=True,
            file=self._stream or sys.stderr,
        )

    def note_memory(self) -> None:
        """Update `peak_memory`, at most 20 times a second."""
        now = self._clock()
        if now - self._noted >= _SECONDS_BETWEEN_NOTES:
            self._noted = now
            anonymous, mapped, most = resident_memory()
            if most > self._most_resident:
                # Assumes that mapped files took as much as now or at the last note.
                anonymous = max(anonymous, most - max(mapped, self._mapped))
            self._mapped, self._most_resident = mapped, most
            self.peak_memory = max(self.peak_memory, anonymous)


@checked
def progress_of(progress: Progress | bool | None) -> Progress:
    """Return the progress that a function is given.

    None: bars on a terminal and in notebooks, else nothing; True: lines in the log where there is
    no terminal; False: nothing.
    """
    if isinstance(progress, Progress):
        return progress
    # A notebook shows what is written to stderr.
    is_shown = sys.stderr is not None and (
        sys.stderr.isatty() or type(sys.stderr).__module__.startswith("ipykernel")
    )
    return Progress("nothing" if progress is False else "bars" if is_shown else
                    "lines" if progress else "nothing")


def line_of(stage: Stage, seconds: float) -> str:
    """Format an unfinished stage as a line.

    >>> line_of(Stage("encoding", 200_000_000, "B", done=50_000_000), 10.0)
    'encoding: 25 %, 50.0 of 200.0 MB, 5.0 MB/s, about 30 s left'
    """
    rate = (stage.done - stage.done_before) / seconds if seconds > 0 else 0.0
    left = "time left unknown"
    if rate and stage.total:
        left = f"about {duration((stage.total - stage.done) / rate)} left"
    share = percent(stage.done / stage.total if stage.total else 1.0)
    scale, digits, unit = (1e6, 1, " MB") if stage.unit == "B" else (1, 0, "")
    done, total, speed = (f"{n / scale:,.{digits}f}" for n in (stage.done, stage.total, rate))
    noun = unit or f" {stage.unit}"
    how_far = f"{share}, {done} of {total}" if stage.total else done
    return f"{stage.name}: {how_far}{noun}, {speed}{unit}/s, {left}"


class _MachineUse:
    """Formats the use of the machine since the previous call, at `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._used = used_resources()

    def text(self, now: float) -> str:
        """Format the memory in use, and the rates since the previous call."""
        passed, used = max(now - self.seconds, 1e-9), used_resources()
        rates = {name: (used[name] - before) / passed for name, before in self._used.items()}
        self.seconds, self._used = now, used
        memory = resident_memory()[0] / 1e6
        text = f"memory {memory:,.0f} MB, {rates['cpu_seconds']:.1f} processors"
        for what in ("read", "write"):
            if f"disk_{what}_bytes" in rates:
                text += f", disk {what} {rates[f'disk_{what}_bytes'] / 1e6:,.1f} MB/s"
        return text


def percent(share: float, digits: int = 0) -> str:
    """Format a share, as 0.25: '25 %'."""
    return f"{share:.{digits}%}".replace("%", " %")


def duration(seconds: float) -> str:
    """Format a time.

    >>> [duration(seconds) for seconds in (0.3, 59, 61, 7300)]
    ['0.3 s', '59 s', '1 min 1 s', '2 h 1 min']
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, whole_seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole_seconds} s" if minutes else f"{whole_seconds} s"


def amount(n_bytes: float) -> str:
    """Format a number of bytes.

    >>> [amount(n) for n in (999, 12_345_678, 5e9)]
    ['999 bytes', '12.3 MB', '5.0 GB']
    """
    if n_bytes == math.inf:
        return "an unknown number of bytes"
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    found = (f"{n_bytes / scale:,.1f} {unit}" for unit, scale in units if n_bytes >= scale)
    return next(found, f"{n_bytes:,.0f} bytes")


def used_resources() -> dict[str, float]:
    """Return "cpu_seconds" of the process, and on Linux its disk bytes read and written."""
    times, counters = os.times(), system_values(Path("/proc/self/io"))
    used: dict[str, float] = {"cpu_seconds": times.user + times.system}
    for name in ("read_bytes", "write_bytes"):
        if name in counters:
            used[f"disk_{name}"] = int(counters[name])
    return used


def resident_memory() -> tuple[int, int, int]:
    """Return (anonymous memory, mapped files and shared memory, maximum of their sum so far).

    All are resident bytes. A system that tells only the maximum: (maximum, 0, maximum).
    """
    values = system_values(Path("/proc/self/status"))
    if "RssAnon" in values and "VmHWM" in values:
        names = "RssAnon", "RssFile", "RssShmem", "VmHWM"
        anonymous, files, shared, most = (int(values[x].split()[0]) * 1024 for x in names)
        return anonymous, files + shared, most
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == "darwin" else 1024
    return peak, 0, peak


def system_values(path: Path) -> dict[str, str]:
    """Parse a file of lines "NAME: VALUE", {} if unreadable; the first of equal names counts."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in reversed(lines))
    return {name.strip(): value.strip() for name, _, value in pairs}
