"""A disk that fails, or a process that dies, at the n-th call that changes the disk.

Everything that a build keeps goes through `preprocess.storage` and `bpe.files.atomic_write`, whose
`os` is replaced here.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bpe.files import atomic_write as files
from preprocess.report.progress import Progress
from preprocess.storage import OutputError, local, lock

CHANGING = {
    "open", "write", "ftruncate", "fsync", "fdatasync", "replace", "unlink", "mkdir", "rmdir",
}  # fmt: skip


class CutOff(Exception):  # noqa: N818 - no error, but what a kill leaves
    """Stands for the end of the process."""


class System:
    """Stands in for the module `os`.

    Args:
        at: The number of the call, from 1, that `act` is asked about; 0: none.
        act: Called in place of that call with the name and the arguments; the real function
            follows if it returns.

    Attributes:
        calls: The names of the calls so far.
    """

    def __init__(self, at: int = 0, act: Callable[[str, Any], None] | None = None) -> None:
        self.calls: list[str] = []
        self._at, self._act = at, act
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in CHANGING:
            return real

        def call(*arguments: Any) -> Any:
            with self._lock:
                self.calls.append(name)
                now = len(self.calls) == self._at
            if now and self._act is not None:
                self._act(name, arguments)
            return real(*arguments)

        return call


def fail(number: int) -> Callable[[str, Any], None]:
    """Fail with this error; a write writes half of its data before that."""

    def act(name: str, arguments: Any) -> None:
        _half(name, arguments)
        raise OSError(number, os.strerror(number))

    return act


def die(name: str, arguments: Any) -> None:
    """End the process as kill -9 does; a write writes half of its data before that."""
    _half(name, arguments)
    os.kill(os.getpid(), signal.SIGKILL)


def _half(name: str, arguments: Any) -> None:
    if name == "write":
        descriptor, data = arguments
        os.write(descriptor, data[: len(data) // 2])


ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


Check = Callable[[Path, dict[str, bytes], OutputError | None], None]


def install(system: object, patch: pytest.MonkeyPatch | None = None) -> None:
    """Put a system in the place of the real one, until `patch` is undone or the process ends."""
    for module in (local, lock, files):
        if patch is None:
            module.os = system  # type: ignore[attr-defined]  # that module's own name for `os`
        else:
            patch.setattr(module, "os", system)


def fail_each_call(
    work: Callable[[Path], object], root: Path, contents: Callable[[Path], dict[str, bytes]],
    errors: Sequence[int] = ERRORS, check: Check = lambda out, peace, error: None, step: int = 1,
) -> None:
    """Let each call that changes the disk fail in turn; the same work again ends in all its bytes.

    Args:
        work: Writes into a directory.
        root: Where it is given directories.
        contents: Name -> content of what it wrote.
        errors: The failures, by turns.
        check: Looks at what a run that failed left, what one without failures makes, and how it
            failed.
        step: So many calls are between two that fail.
    """
    work(root / "peace")
    peace = contents(root / "peace")
    for at in count(1, step):
        out, error = root / f"out{at}", None
        system = System(at, fail(errors[at % len(errors)]))
        with pytest.MonkeyPatch.context() as patched:
            install(system, patched)
            try:
                work(out)
            except OutputError as found:
                error = found
                assert "could not be written" in str(error) or "lock" in str(error)
            else:
                assert len(system.calls) <= at or contents(out) == peace
        check(out, peace, error)
        work(out)
        assert contents(out) == peace
        if len(system.calls) < at:
            break
    assert at > 10


class Stopping(Progress):
    """Ends a run in a stage, when so many units of it are done."""

    def __init__(self, stage: str, units: int = 3) -> None:
        super().__init__()
        self._stage, self._units = stage, units

    def note_memory(self) -> None:
        if self.stages[-1].name == self._stage and self.stages[-1].done:
            self._units -= 1
            if self._units < 0:
                raise CutOff


class Ending(Progress):
    """Ends a run at the n-th look at the memory, in whatever stage or part that is."""

    def __init__(self, looks: list[int]) -> None:
        super().__init__()
        self._looks = looks  # that are left, of all parts together

    def part(self) -> Progress:
        part = Ending(self._looks)
        part.begin(None)
        return part

    def note_memory(self) -> None:
        self._looks[0] -= 1
        if self._looks[0] < 0:
            raise CutOff


def end_and_resume(work: Callable[[Progress], Any], looks: Sequence[int]) -> int:
    """Do `work` until all is done, each time for so many looks; return how often it was ended."""
    n_ended = 0
    for n in looks:
        with suppress(CutOff):
            work(Ending([n]))
            return n_ended
        n_ended += 1
    return n_ended


def each_cut(work: Callable[[], Any], step: int = 1) -> Iterator[int]:
    """Yield each time that `work` ended before its n-th change of a name, until it does all."""
    for at in count(1, step):
        calls: list[str] = []

        def dies(real: Any, at: int = at, calls: list[str] = calls) -> Any:
            def call(*arguments: Any, **more: Any) -> Any:
                calls.append(real.__name__)
                if len(calls) >= at:
                    raise CutOff
                return real(*arguments, **more)

            return call

        with pytest.MonkeyPatch.context() as patched:
            for name in ("unlink", "remove", "replace", "rename", "rmdir"):
                patched.setattr(os, name, dies(getattr(os, name)))
            with suppress(CutOff):
                work()
        if len(calls) < at:
            return
        yield at
