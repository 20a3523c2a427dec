"""What a measurement is told, how it tells what it measured, and the table of all sides.

Law: only what stands inside `Clock.time` counts. Its begin and its end are told to the parent,
which watches the memory of the process from outside, so that watching costs the measured side
nothing.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import mmap
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

T = TypeVar("T")

END_OF_TEXT = "<|endoftext|>"
OURS = "tokenmill"


@dataclass(frozen=True)
class Job:
    """One measurement.

    Attributes:
        work: What is done.
        side: Who does it.
        corpus: A text file in UTF-8; documents stand between `END_OF_TEXT`.
        tokenizer: A tokenizer.json.
        vocab_size: Of a tokenizer that is trained.
        pattern: The same.
        threads: Processors that the process may use.
        directory: For files; shared by all measurements of a run.
    """

    work: str
    side: str
    corpus: Path
    tokenizer: Path
    vocab_size: int
    pattern: str
    threads: int
    directory: Path

    def to_json(self) -> str:
        """The job as one argument of a command."""
        return json.dumps(vars(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Undo `to_json`."""
        values = json.loads(text)
        paths = {name: Path(values[name]) for name in ("corpus", "tokenizer", "directory")}
        return cls(**(values | paths))


class Result(NamedTuple):
    """What a measurement worked on and what came out.

    Attributes:
        n_bytes: Text that was worked on.
        digest: Of the result; None where it cannot equal ours (another tie-break).
        output: A file whose digest the parent takes, where the end of the process is the end of
            the work; it has a directory of its own, which is removed then.
    """

    n_bytes: int
    digest: str | None
    output: Path | None = None


def warm_memory(corpus: Path) -> None:
    """Write to more memory than a side will take for this text, and give it back.

    The host of a virtual machine may take back what has been free for two seconds (free page
    reporting). The next page there takes 14 us, not 0.3: more than encoding the text that it is
    for. What is not covered here is paid by the side that takes more.
    """
    import numpy as np

    # At most 1.0 GB were seen for 59 MB, in training, and 1.9 for 877 MB.
    files = sorted(corpus.iterdir()) if corpus.is_dir() else [corpus]
    size = sum(file.stat().st_size for file in files)
    n_bytes = max(min(2**26 + 16 * size, 2**30), 4 * size)
    np.empty(n_bytes, np.uint8)[:: mmap.PAGESIZE] = 1


class Clock:
    """Times parts of the work and says to the parent when they begin and end."""

    def __init__(self, stream: IO[str], corpus: Path) -> None:
        self._stream = stream
        self._corpus = corpus
        self._taken: dict[str, tuple[float, float]] = {}

    def time(self, figure: str, work: Callable[[], T]) -> T:
        """Call `work`; its seconds on the clock become the figure of this name.

        So do the seconds of all processors: on a machine that others use as well they change less.
        """
        warm_memory(self._corpus)
        self.tell("begin", figure)
        # A sign to what counts instructions; see `studies.instructions`.
        os.getppid()
        start, cpu_start = time.perf_counter(), sum(os.times()[:4])  # of ended children as well
        result = work()
        seconds, cpu_seconds = time.perf_counter() - start, sum(os.times()[:4]) - cpu_start
        os.getppid()
        self._taken[figure] = seconds, cpu_seconds
        self.tell("end", figure, seconds, cpu_seconds)
        return result

    def add_up(self, figure: str, parts: list[str]) -> None:
        """The sum of figures becomes one more."""
        seconds, cpu_seconds = zip(*(self._taken[part] for part in parts), strict=True)
        self.tell("end", figure, sum(seconds), sum(cpu_seconds))

    def tell(self, *message: object) -> None:
        """Write one line of JSON to the parent."""
        print(json.dumps(message, default=str), file=self._stream, flush=True)


@dataclass(frozen=True)
class Side:
    """One way to do some work.

    Attributes:
        run: Does and times it.
        at_most: Bytes of text that are bearable.
        patterns: The split patterns that it has; None: all.
        threads: Processors that it may use; None: what the command says.
        whole: The process is measured from its start to its end.
        package: Whose version is told and without which it is left out.
    """

    run: Callable[[Job, Clock], Result]
    at_most: int | None
    patterns: tuple[str, ...] | None
    threads: int | None
    whole: bool
    package: str


# work -> side -> how
SIDES: dict[str, dict[str, Side]] = {}


def side(
    work: str,
    name: str,
    *,
    at_most: int | None = None,
    patterns: tuple[str, ...] | None = None,
    threads: int | None = None,
    whole: bool = False,
    package: str | None = None,
) -> Callable[[Callable[[Job, Clock], Result]], Callable[[Job, Clock], Result]]:
    """Put a function into `SIDES`; see `Side`."""

    def add(run: Callable[[Job, Clock], Result]) -> Callable[[Job, Clock], Result]:
        described = Side(run, at_most, patterns, threads, whole, package or name)
        SIDES.setdefault(work, {})[name] = described
        return run

    return add


def import_ours() -> None:
    """Import what ours imports when it is first used: on no side do imports count."""
    for name in ("bpe.encode.encoder", "bpe.train.trainer", "llvmlite.binding"):
        importlib.import_module(name)


def installed(package: str, python: Path | None = None) -> str | None:
    """The version of a package, None if it is not there.

    Args:
        package: Its name.
        python: The interpreter that is asked; None: the one that runs this.
    """
    from importlib.metadata import PackageNotFoundError, version

    if python is not None:
        ask = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
        command = [str(python), "-c", ask, package]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        return answer.stdout.strip() if answer.returncode == 0 else None
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def documents(corpus: Path) -> list[str]:
    """The documents of a corpus; empty ones are left out, as every side does."""
    text = corpus.read_bytes().decode()
    return [document for document in text.split(END_OF_TEXT) if document]


def digest_of(*parts: Any) -> str:
    """A digest of arrays or byte strings, one after the other."""
    import numpy as np

    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part)
    return digest.hexdigest()


def digest_of_file(path: Path) -> str:
    """A digest of the bytes of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
