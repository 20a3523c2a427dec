"""Compile kernels in stages of their own, those of encoding in another process.

Compiling is needed once per machine and takes several seconds. It is reported at least every two
seconds and timed like any other stage. While this process compiles the kernels of training, reads
and counts, another one compiles those of encoding into the cache. If that process fails or is
killed, this one compiles what is missing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from preprocess.progress import Progress, Stage, duration
from preprocess.stopping import repeating

if TYPE_CHECKING:
    from bpe.compile_ahead import Kernels
    from bpe.text_tokenizer import AnyTokenizer

_STAGE = "compiling kernels"
_SECONDS_BETWEEN_LINES = 1.5
# Several times what the other process needs where it shares a processor.
_SECONDS_TO_WAIT = 120.0
_SECONDS_BETWEEN_LOOKS = 0.25
_PROGRAM = (
    "import sys; from bpe.compile_ahead import compile_encoding; compile_encoding(sys.argv[1])"
)


class KernelCompiler:
    """Compiles the kernels of a run when they are needed; a context manager.

    Args:
        progress: Shows and times it.

    Attributes:
        progress: The same.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._other: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> KernelCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_other()

    def _end_other(self) -> None:
        if self._other is not None:
            self._other.kill()
            self._other.wait()
            self._other = None

    def training(self, pattern: str, encodes: bool) -> None:
        """Compile what training needs.

        Args:
            pattern: The split pattern.
            encodes: Whether text is encoded afterwards; another process compiles for that.
        """
        from bpe import compile_ahead as ahead

        needed = ahead.training_kernels(pattern)
        # Without a cache, what another process compiles could not be loaded here.
        if encodes and ahead.is_kept() and ahead.missing(ahead.encoding_kernels()):
            with suppress(OSError):  # without that process, this one compiles
                self._other = _compiling_process(pattern)
        if ahead.missing(needed):
            with self._stage(needed):
                ahead.compile_training(pattern)

    def encoding(self, tokenizer: AnyTokenizer) -> None:
        """Compile what encoding needs, or wait for the process that does."""
        from bpe import Tokenizer
        from bpe import compile_ahead as ahead

        if not isinstance(tokenizer, Tokenizer):
            return  # it encodes without kernels
        needed = ahead.reading_kernels(tokenizer.pattern) | ahead.encoding_kernels()
        if ahead.missing(needed):
            with self._stage(needed):
                if self._other is not None:
                    with suppress(subprocess.TimeoutExpired):  # then this process compiles
                        self._other.wait(_SECONDS_TO_WAIT)
                    self._end_other()
                if ahead.missing(needed):
                    ahead.compile_reading(tokenizer.pattern)
                    ahead.compile_encoding(tokenizer.pattern)

    @contextmanager
    def _stage(self, needed: Kernels) -> Iterator[None]:
        """Time and show what compiles kernels inside the `with`."""
        from bpe import compile_ahead as ahead
        from bpe.kernels import jit

        n_missing = len(ahead.missing(needed))
        stage = self.progress.stage(
            _STAGE,
            n_missing,
            "kernels",
            line=_lines(needed),
            seconds_between_lines=_SECONDS_BETWEEN_LINES,
        )
        with jit.reported_elsewhere(), stage as shown:

            def look() -> None:
                shown.advance(n_missing - len(ahead.missing(needed)) - shown.done)

            with repeating(look, _SECONDS_BETWEEN_LOOKS):
                yield
            shown.advance(n_missing - shown.done)


def _lines(needed: Kernels) -> Callable[[Stage, float], str]:
    """Return what writes the lines of the stage, with the time that is left."""
    from bpe import compile_ahead as ahead

    before = ahead.missing(needed)
    last, since = len(before), time.perf_counter()

    def line(stage: Stage, seconds: float) -> str:
        nonlocal last, since
        left = ahead.missing(needed)
        if len(left) != last:
            last, since = len(left), time.perf_counter()
        done = sum(before.values()) - sum(left.values())
        took = seconds - (time.perf_counter() - since)
        # As fast as those that are done were compiled, less what the one at hand took so far.
        rate = took / done if done and took > 0 else 1.0
        rest = max(1.0, rate * sum(left.values()) - (time.perf_counter() - since))
        return (
            f"{stage.name}, once per machine: {stage.done} of {stage.total},"
            f" about {duration(round(rest))} left"
        )

    return line


def _compiling_process(pattern: str) -> subprocess.Popen[bytes]:
    paths = [path or os.getcwd() for path in sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(
        # -P: a bpe.py in the current directory is not ours.
        [sys.executable, "-P", "-c", _PROGRAM, pattern],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
