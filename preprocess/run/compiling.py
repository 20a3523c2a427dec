"""Compile kernels in separate stages, the encoding kernels in a child process.

Compiling takes several seconds once per machine, and is reported at least every two seconds. While
this process compiles the training kernels, reads and counts, the child compiles the encoding
kernels into the cache. If the child fails, this process compiles the missing kernels.
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

    from bpe.text_tokenizer import AnyTokenizer
    from preprocess.run.compile_ahead import Kernels

_STAGE = "compiling kernels"
_SECONDS_BETWEEN_LINES = 1.5
_SECONDS_TO_WAIT = 120.0  # several times the need of the child on a shared processor
_SECONDS_BETWEEN_LOOKS = 0.25
_PROGRAM = (
    "import sys; from preprocess.run import compile_ahead as ahead;"
    " ahead.compile_encoding(sys.argv[1])"
)


class KernelCompiler:
    """Compiler of the kernels of a run, in stages of `progress`; a context manager."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> KernelCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def compile_training(self, pattern: str, encodes: bool) -> None:
        """Compile the training kernels; start a child for the encoding kernels if `encodes`."""
        from preprocess.run import compile_ahead as ahead

        # Without a cache, this process could not load the kernels of the child.
        if encodes and ahead.is_kept() and ahead.missing(ahead.encoding_kernels()):
            with suppress(OSError):  # without a child, this process compiles
                self._child = _start_child(pattern)
        needed = ahead.training_kernels(pattern)
        if ahead.missing(needed):
            with self._stage(needed):
                ahead.compile_training(pattern)

    def compile_encoding(self, tokenizer: AnyTokenizer) -> None:
        """Compile the encoding kernels, or wait for the child to compile them."""
        from bpe import Tokenizer
        from preprocess.run import compile_ahead as ahead

        if not isinstance(tokenizer, Tokenizer):
            return  # it encodes without kernels
        needed = ahead.reading_kernels(tokenizer.pattern) | ahead.encoding_kernels()
        if ahead.missing(needed):
            with self._stage(needed):
                if self._child is not None:
                    import subprocess

                    with suppress(subprocess.TimeoutExpired):  # then this process compiles
                        self._child.wait(_SECONDS_TO_WAIT)
                    self._child.kill()
                if ahead.missing(needed):
                    ahead.compile_reading(tokenizer.pattern)
                    ahead.compile_encoding(tokenizer.pattern)

    @contextmanager
    def _stage(self, needed: Kernels) -> Iterator[None]:
        """Time and show the compiling of kernels inside the `with`."""
        from bpe.runtime import jit
        from preprocess.run import compile_ahead as ahead

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


def _start_child(pattern: str) -> subprocess.Popen[bytes]:
    import subprocess

    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    environment = os.environ | {"PYTHONPATH": paths}
    # -P: do not import a bpe.py of the current directory.
    command = [sys.executable, "-P", "-c", _PROGRAM, pattern]
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=null, stdout=null, stderr=null, env=environment)
