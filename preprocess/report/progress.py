"""Progress of a run: stages, bars and lines while it works, times and memory for its statistics.

A stage of more than a second has a bar on a terminal, elsewhere a line every 30 seconds; the log
file gets every line. Lines go through the loggers "bpe" and "preprocess", so a program that calls
`build` decides where they go.
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

from bpe.errors import TokenbinError

logger = logging.getLogger("preprocess")

SECONDS_BETWEEN_LINES = 30.0
_SECONDS_BEFORE_BAR = 1.0
_SECONDS_BETWEEN_LOOKS = 1.0  # of a bar at the use of the machine
_SECONDS_BETWEEN_NOTES = 0.05  # to measure the memory takes a good part of a millisecond

Show = Literal["bars", "lines", "nothing"]


@dataclass(repr=False, eq=False)
class Stage:
    """A part of a run that is timed and shown, as "encoding train"."""

    name: str
    total: int
    unit: str  # "B" for bytes of sources, else a noun
    done: int = 0  # `done_before` included
    seconds: float = 0.0  # until the last report, `seconds_before` included
    done_before: int = 0  # by earlier runs
    seconds_before: float = 0.0
    _shown: Callable[[int], None] = lambda done: None

    def facts(self) -> dict[str, Any]:
        """Describe the stage for stats.json and the journal."""
        return {"name": self.name, "seconds": self.seconds, "done": self.done, "unit": self.unit}

    def advance(self, amount: int) -> None:
        """Report that `amount` more is done."""
        self.done += amount
        self._shown(self.done)


class OutOfTimeError(TokenbinError):
    """The time limit of a run is reached; progress is saved."""


class Progress:
    """The stages of a run, in order, and the memory that it took.

    Args:
        show: Bars (for a terminal), lines, or nothing.
        stream: Where bars go; None: stderr.
        clock: Seconds, from any start.
        verbose: Whether bars and lines report the use of the machine.

    Attributes:
        stages: Those that were begun.
        peak_memory: Greatest `anonymous_memory` seen, in bytes.
    """

    def __init__(
        self,
        show: Show = "nothing",
        stream: IO[str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        verbose: bool = False,
    ) -> None:
        self.stages: list[Stage] = []
        self.peak_memory, self._noted = 0, -math.inf
        self._show, self._stream, self._clock, self._verbose = show, stream, clock, verbose
        self._started, self._deadline = 0.0, math.inf

    def begin(self, max_minutes: float | None) -> None:
        """Begin to count the time of the run, which may take `max_minutes`."""
        self._started = self._clock()
        self._deadline = self._started + 60 * (math.inf if max_minutes is None else max_minutes)

    def out_of_time(self) -> bool:
        """Return True if the time limit is reached."""
        return self._clock() >= self._deadline

    def seconds(self) -> float:
        """Return the time of the run and of earlier runs for its stages."""
        return self._clock() - self._started + sum(each.seconds_before for each in self.stages)

    def add_stage_before(self, name: str, seconds: float, done: int, unit: str) -> None:
        """Add a stage that an earlier run finished."""
        self.stages.append(Stage(name, done, unit, done, seconds, done, seconds))

    @contextmanager
    def stage(
        self,
        name: str,
        total: int,
        unit: str = "B",
        done_before: int = 0,
        seconds_before: float = 0.0,
        line: Callable[[Stage, float], str] | None = None,
        seconds_between_lines: float | None = None,
    ) -> Iterator[Stage]:
        """Time and show what happens inside the `with`; most arguments are as in `Stage`.

        `line` (None: `line_of`) makes a line every `seconds_between_lines` (None: 30), the first at
        once if it is given.
        """
        stage = Stage(name, total, unit, done_before, seconds_before, done_before, seconds_before)
        self.stages.append(stage)
        pause = seconds_between_lines or SECONDS_BETWEEN_LINES
        started = self._clock()
        reported = started if line is None else started - pause
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
                    bar.refresh()  # with the time that has passed
                bar.update(done - bar.n)
            if now - reported >= pause:
                reported = now
                text = (line or line_of)(stage, now - started)
                text += f"; {in_line.text(now)}" if self._verbose else ""
                # Where there are bars, the line is for the log file alone.
                logger.info(text, extra={"only_file": self._show != "lines"})

        stage._shown = shown
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

        return tqdm(
            desc=stage.name, total=stage.total, initial=stage.done_before, unit=stage.unit,
            unit_scale=True, delay=_SECONDS_BEFORE_BAR, dynamic_ncols=True,
            file=self._stream or sys.stderr,
        )

    def note_memory(self) -> None:
        """Measure the memory in use, unless that was just done."""
        now = self._clock()
        if now - self._noted >= _SECONDS_BETWEEN_NOTES:
            self._noted = now
            self.peak_memory = max(self.peak_memory, anonymous_memory())


def line_of(stage: Stage, seconds: float) -> str:
    """Describe an unfinished stage in a line.

    >>> line_of(Stage("encoding", 200_000_000, "B", done=50_000_000), 10.0)
    'encoding: 25 %, 50.0 of 200.0 MB, 5.0 MB/s, about 30 s left'
    """
    rate = (stage.done - stage.done_before) / seconds if seconds > 0 else 0.0
    left = "time left unknown"
    if rate:
        left = f"about {duration((stage.total - stage.done) / rate)} left"
    share = percent(stage.done / stage.total if stage.total else 1.0)
    scale, digits, unit = (1e6, 1, " MB") if stage.unit == "B" else (1, 0, "")
    done, total, speed = (f"{n / scale:,.{digits}f}" for n in (stage.done, stage.total, rate))
    noun = unit or f" {stage.unit}"
    return f"{stage.name}: {share}, {done} of {total}{noun}, {speed}{unit}/s, {left}"


class _MachineUse:
    """Describes the use of the machine since the last description, at `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._used = used_resources()

    def text(self, now: float) -> str:
        """Return the memory in use and the rates since then."""
        passed, used = max(now - self.seconds, 1e-9), used_resources()
        rates = {name: (used[name] - before) / passed for name, before in self._used.items()}
        self.seconds, self._used = now, used
        text = f"memory {anonymous_memory() / 1e6:,.0f} MB, {rates['cpu_seconds']:.1f} processors"
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


def used_resources() -> dict[str, float]:
    """Measure "cpu_seconds" so far, and on Linux "disk_read_bytes" and "disk_write_bytes"."""
    times, counters = os.times(), system_values(Path("/proc/self/io"))
    used: dict[str, float] = {"cpu_seconds": times.user + times.system}
    for name in ("read_bytes", "write_bytes"):
        if name in counters:
            used[f"disk_{name}"] = int(counters[name])
    return used


def anonymous_memory() -> int:
    """Measure resident memory without mapped files, in bytes; elsewhere than Linux the peak."""
    if anonymous := system_values(Path("/proc/self/status")).get("RssAnon"):
        return int(anonymous.split()[0]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def system_values(path: Path) -> dict[str, str]:
    """Read a file of lines "NAME: VALUE"; {} if it cannot be read. The first of a name counts."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in reversed(lines))
    return {name.strip(): value.strip() for name, _, value in pairs}
