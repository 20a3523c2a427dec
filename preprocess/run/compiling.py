"""Compile kernels in stages of their own, those of encoding in another process.

Compiling takes several seconds once per machine, and is reported at least every two seconds. While
this process compiles the kernels of training, reads and counts, another one compiles those of
encoding into the cache. If that process fails, this one compiles the missing kernels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from preprocess.report.progress import Progress, Stage, duration
from preprocess.run.signals import repeating

if TYPE_CHECKING:
    import subprocess

    from bpe.compile_ahead import Kernels
    from bpe.text_tokenizer import AnyTokenizer

_STAGE = "compiling kernels"
_SECONDS_BETWEEN_LINES = 1.5
_SECONDS_TO_WAIT = 120.0  # several times what the other process needs on a shared processor
_SECONDS_BETWEEN_LOOKS = 0.25
_PROGRAM = "import sys; from bpe import compile_ahead; compile_ahead.compile_encoding(sys.argv[1])"


class KernelCompiler:
    """Compiles the kernels of a run in stages of `progress`; a context manager."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._other: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> KernelCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        if self._other is not None:
            self._other.kill()
            self._other.wait()

    def training(self, pattern: str, encodes: bool) -> None:
        """Compile the kernels of training; a process compiles those of encoding if `encodes`."""
        from bpe import compile_ahead as ahead

        # Without a cache, this process could not load what another one compiles.
        if encodes and ahead.is_kept() and ahead.missing(ahead.encoding_kernels()):
            with suppress(OSError):  # without that process, this one compiles
                self._other = _compiling_process(pattern)
        needed = ahead.training_kernels(pattern)
        if ahead.missing(needed):
            with self._stage(needed):
                ahead.compile_training(pattern)

    def encoding(self, tokenizer: AnyTokenizer) -> None:
        """Compile the kernels of encoding, or wait for the process that does."""
        from bpe import Tokenizer
        from bpe import compile_ahead as ahead

        if not isinstance(tokenizer, Tokenizer):
            return  # it encodes without kernels
        needed = ahead.reading_kernels(tokenizer.pattern) | ahead.encoding_kernels()
        if ahead.missing(needed):
            with self._stage(needed):
                if self._other is not None:
                    import subprocess

                    with suppress(subprocess.TimeoutExpired):  # then this process compiles
                        self._other.wait(_SECONDS_TO_WAIT)
                    self._other.kill()
                if ahead.missing(needed):
                    ahead.compile_reading(tokenizer.pattern)
                    ahead.compile_encoding(tokenizer.pattern)

    @contextmanager
    def _stage(self, needed: Kernels) -> Iterator[None]:
        """Time and show the compiling of kernels inside the `with`."""
        from bpe import compile_ahead as ahead
        from bpe.kernels.runtime import jit

        missing = ahead.missing(needed)
        n_missing = len(missing)
        total = left = sum(missing.values())
        took = 0.0  # seconds when the last kernel was ready

        def line(stage: Stage, seconds: float) -> str:
            nonlocal left, took
            left_now = sum(ahead.missing(needed).values())
            if left_now < left:
                left, took = left_now, seconds
            rate = took / (total - left) if took > 0 else 1.0
            rest = max(1.0, rate * left - (seconds - took))
            return (
                f"{stage.name}, once per machine: {stage.done} of {stage.total},"
                f" about {duration(round(rest))} left"
            )

        stage = self.progress.stage(
            _STAGE, n_missing, "kernels", line=line, seconds_between_lines=_SECONDS_BETWEEN_LINES
        )
        with jit.reported_elsewhere(), stage as shown:

            def look() -> None:
                shown.advance(n_missing - len(ahead.missing(needed)) - shown.done)

            with repeating(look, _SECONDS_BETWEEN_LOOKS):
                yield
            shown.advance(n_missing - shown.done)


def _compiling_process(pattern: str) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    environment = os.environ | {"PYTHONPATH": paths}
    # -P: a bpe.py in the current directory is not ours.
    command = [sys.executable, "-P", "-c", _PROGRAM, pattern]
    import subprocess

    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=null, stdout=null, stderr=null, env=environment)
