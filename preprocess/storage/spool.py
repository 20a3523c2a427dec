"""Local files of a storage of objects, in a temporary directory that ends with its process.

The directory holds a lock of the system, which the system gives back when the process ends. So the
directories of processes that were killed are recognised, and removed when the next one is made.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import weakref
from contextlib import suppress
from pathlib import Path

import numpy as np

_PREFIX, _LOCK = "tokenmill-spool-", ".lock"


class Spool:
    """A temporary directory, made when it is first used (TMPDIR says where), and its files."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._guard = threading.Lock()  # held while it is made

    @property
    def directory(self) -> Path:
        """The directory."""
        with self._guard:
            if self._directory is None:
                _remove_abandoned(Path(tempfile.gettempdir()))
                self._directory, descriptor = _make()
                self._end = weakref.finalize(self, _end, self._directory, descriptor)
            return self._directory

    def path(self, name: str) -> Path:
        """Return the path of a file, which need not exist."""
        return self.directory / name

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        self.path(name).unlink(missing_ok=True)

    def space(self) -> tuple[int, int]:
        """Return (free bytes of the disk, bytes of the files)."""
        state = os.statvfs(self.directory)
        used = sum(each.stat().st_size for each in os.scandir(self.directory))
        return state.f_bavail * state.f_frsize, used

    def close(self) -> None:
        """Remove all files; may be called more than once, and the spool used again."""
        if self._directory is not None:
            self._end()
            self._directory = None


def map_bytes(path: Path, start: int, stop: int) -> memoryview:
    """Map bytes [start, stop) of a file, read-only."""
    if start == stop:
        return memoryview(b"")
    return np.memmap(path, np.uint8, "r", start, (stop - start,)).data


def _make() -> tuple[Path, int]:
    """Make a directory with a lock that is held, and return it and the descriptor of the lock."""
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    unlocked = directory / f"{_LOCK}.new"
    descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(OSError):  # without locks nobody else takes it for abandoned, either
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.rename(unlocked, directory / _LOCK)  # under this name it is locked from the beginning
    return directory, descriptor


def _end(directory: Path, descriptor: int) -> None:
    shutil.rmtree(directory, ignore_errors=True)  # another program may have cleaned up
    os.close(descriptor)


def _remove_abandoned(temporary: Path) -> None:
    """Remove the directories of processes of this user that have ended."""
    for directory in temporary.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is being made, removed, or used
            state = directory.lstat()
            if state.st_uid != os.getuid() or directory.is_symlink():
                continue
            descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory)
            finally:
                os.close(descriptor)
