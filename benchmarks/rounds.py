"""Processes that take turns: seconds, memory, equality, ratios.

Law: ours and the peer alternate, and a ratio is of two neighbours. Memory is the resident anonymous
memory (RssAnon: what the process holds itself, not the pages of mapped files), read from outside
every few milliseconds while the clock of the figure runs.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.job import OURS, SIDES, Job, digest_of_file, warm_memory

_POLL_SECONDS = 0.005
# The packages that are measured are those beside this one, wherever the command is run.
_ROOT = str(Path(__file__).parent.parent)

# Work -> the module that has its sides.
MODULES = {
    "train": "benchmarks.training",
    "count": "benchmarks.splitting",
    "split": "benchmarks.splitting",
    "encode": "benchmarks.encoding",
    "encode-texts": "benchmarks.encoding",
    "encode-one-thread": "benchmarks.encoding",
    "to-bin": "benchmarks.token_files",
    "first-batch": "benchmarks.token_files",
    "build-first": "benchmarks.token_files",
    "steady": "benchmarks.token_files",
    "jsonl-to-bin": "benchmarks.formats",
    "decompress": "benchmarks.formats",
    "get-batch": "benchmarks.sampling",
    "loaders": "benchmarks.loaders",
    "loaders-random": "benchmarks.loaders",
    "loaders-packed": "benchmarks.loaders",
    "packing": "benchmarks.packing",
    "chats": "benchmarks.chats",
    "jsonl-to-rows": "benchmarks.rows",
    "pure-compute": "benchmarks.studies",
    "breakdown": "benchmarks.studies",
}
# What is measured beside others, in the order in which it is shown.
WORK = [
    "train",
    "count",
    "split",
    "encode",
    "encode-texts",
    "encode-one-thread",
    "to-bin",
    "jsonl-to-bin",
    "first-batch",
    "get-batch",
    "loaders",
    "loaders-random",
    "loaders-packed",
    "chats",
    "jsonl-to-rows",
]


class MeasurementError(Exception):
    """A measurement could not be done."""


@dataclass
class Measured:
    """One measurement.

    Attributes:
        seconds: Of each figure.
        cpu_seconds: The same, of all processors together.
        memory: Peak RssAnon in bytes of each figure; empty where the system does not tell.
        clocked: The figures that a clock ran for, in their order; others are sums.
        n_bytes: Text that was worked on.
        digest: Of the result; None where there is nothing to compare.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    clocked: list[str] = field(default_factory=list)
    n_bytes: int = 0
    digest: str | None = None


def measure(job: Job, prefix: list[str] | None = None, python: Path | None = None) -> Measured:
    """Run one measurement in a process of its own.

    Args:
        job: What is measured.
        prefix: A command that runs the process, such as valgrind.
        python: The interpreter; None: the one that runs this.

    Raises:
        MeasurementError: It failed; the message holds what it said.
    """
    how = SIDES[job.work][job.side]
    command = [str(python or sys.executable), "-m", "benchmarks.child"]
    command += [MODULES[job.work], job.to_json()]
    measured, result = Measured(), None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([_ROOT, *_python_path()])}
    # pip has left the bytecode of peers; what stands in a checkout is parsed anew in every process
    # if nobody may leave that of ours.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryFile() as said:
        if how.whole:
            # Nobody shall wait for the disk because of what another left in the page cache.
            os.sync()
            warm_memory(job.corpus)
        started, cpu_started = time.perf_counter(), _cpu_seconds_of_children()
        with subprocess.Popen(
            [*(prefix or []), *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=said,
            bufsize=0,
        ) as process:
            for kind, *values in _messages(process, measured, how.whole):
                if kind == "begin":
                    measured.clocked += values
                elif kind == "end":
                    figure, measured.seconds[figure], measured.cpu_seconds[figure] = values
                elif kind == "result":
                    result = values
            status = process.wait()
        if how.whole:
            measured.seconds["process"] = time.perf_counter() - started
            measured.cpu_seconds["process"] = _cpu_seconds_of_children() - cpu_started
        if status or result is None:
            said.seek(0)
            text = said.read().decode("utf-8", "replace")
            raise MeasurementError(f"{job.work} / {job.side} ended with {status}:\n{text}")
    measured.n_bytes, measured.digest, output = result
    if output is not None:
        measured.digest = digest_of_file(Path(output))
        if Path(output).parent.parent == job.directory:
            shutil.rmtree(Path(output).parent)
    return measured


def _messages(
    process: subprocess.Popen[bytes], measured: Measured, whole: bool
) -> Iterator[list[Any]]:
    """What a process tells, while the memory of the figure that runs is read."""
    assert process.stdout is not None
    figure = "process" if whole else None
    pending = b""

    def look() -> None:
        if figure and (memory := _anonymous_memory(process.pid)):
            measured.memory[figure] = max(measured.memory.get(figure, 0), memory)

    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            ready = selector.select(_POLL_SECONDS if figure else None)
            look()
            if not ready:
                continue
            received = os.read(process.stdout.fileno(), 1 << 16)
            if not received:
                return
            *lines, pending = (pending + received).split(b"\n")
            for message in map(json.loads, lines):
                if not whole and message[0] == "begin":
                    figure = message[1]
                    look()
                elif not whole and message[0] == "end":
                    figure = None
                yield message


def _cpu_seconds_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _python_path() -> list[str]:
    return [path for path in [os.environ.get("PYTHONPATH")] if path]


def _anonymous_memory(pid: int) -> int | None:
    """RssAnon in bytes; None where there is no /proc or the process is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None


@dataclass
class Comparison:
    """Ours beside one peer, one figure.

    Attributes:
        work, figure, peer: What was compared.
        text, vocabulary, pattern, n_bytes: On what.
        ours, theirs: Seconds of each round.
        our_cpu, their_cpu: The same, of all processors together.
        our_memory, their_memory: Peak bytes of each round.
        equal: Whether the results were; None: they cannot be, for ties fall otherwise.
    """

    work: str
    figure: str
    peer: str
    text: str
    vocabulary: str
    pattern: str
    n_bytes: int
    ours: list[float]
    theirs: list[float]
    our_cpu: list[float]
    their_cpu: list[float]
    our_memory: list[int]
    their_memory: list[int]
    equal: bool | None

    @property
    def ratios(self) -> list[float]:
        """How many times as fast ours is, in each round."""
        return [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of them."""
        return statistics.median(self.ratios)

    @property
    def cpu_ratio(self) -> float:
        """How many times the seconds of all processors the peer takes, the median."""
        pairs = zip(self.our_cpu, self.their_cpu, strict=True)
        return statistics.median(theirs / max(ours, 1e-6) for ours, theirs in pairs)

    def to_json(self) -> dict[str, Any]:
        """Everything; a figure whose results differ has no ratio."""
        counts = (
            {}
            if self.equal is False
            else {
                "ratio": self.ratio,
                "ratios": self.ratios,
                "cpu_ratio": self.cpu_ratio,
            }
        )
        return vars(self) | counts


def compare(
    ours: Job, theirs: Job, rounds: int, names: tuple[str, str], python: Path | None = None
) -> list[Comparison]:
    """Measure ours and a peer's in turn.

    Args:
        ours: Our side; it runs once more before, so that kernels are compiled and the text is in
            the page cache.
        theirs: The peer's.
        rounds: How often.
        names: What the text and the vocabulary are called.
        python: The interpreter of the peer; None: the one that runs this.

    Returns:
        One for each figure that both sides have.

    Raises:
        MeasurementError: A side failed.
    """
    measure(ours)
    pairs = [(measure(ours), measure(theirs, python=python)) for _ in range(rounds)]
    digests = {measured.digest for pair in pairs for measured in pair}
    # Two results of our own that differ are a fault, whatever the peer's are.
    comparable = all(peer.digest is not None for _, peer in pairs)
    equal = len(digests) == 1 if comparable else None
    if not comparable and len({own.digest for own, _ in pairs}) > 1:
        equal = False
    figures = [figure for figure in pairs[0][0].seconds if figure in pairs[0][1].seconds]
    return [
        Comparison(
            work=ours.work,
            figure=figure,
            peer=theirs.side,
            text=names[0],
            vocabulary=names[1],
            pattern=ours.pattern,
            n_bytes=pairs[0][0].n_bytes,
            ours=[own.seconds[figure] for own, _ in pairs],
            theirs=[peer.seconds[figure] for _, peer in pairs],
            our_cpu=[own.cpu_seconds[figure] for own, _ in pairs],
            their_cpu=[peer.cpu_seconds[figure] for _, peer in pairs],
            our_memory=[own.memory[figure] for own, _ in pairs if figure in own.memory],
            their_memory=[peer.memory[figure] for _, peer in pairs if figure in peer.memory],
            equal=equal,
        )
        for figure in figures
    ]


def peers_of(work: str, pattern: str) -> list[str]:
    """The peers that can do some work."""
    return [
        name
        for name, how in SIDES[work].items()
        if name != OURS and (how.patterns is None or pattern in how.patterns)
    ]
