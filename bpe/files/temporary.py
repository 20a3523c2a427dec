"""Temporary directories that end with their process, even if it is killed.

A directory holds a lock of the system, which the system gives back when the process ends. So the
directories of processes that were killed are recognised, and removed when the next one is made.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX, _LOCK = "tokenmill-spool-", ".lock"


@contextmanager
def temporary_directory(prefix: str = _PREFIX, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new directory, which is removed afterwards; `parent` None: where TMPDIR says."""
    import tempfile  # a millisecond that most runs save

    parent = parent or Path(tempfile.gettempdir())
    _remove_abandoned(parent, prefix)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    unlocked = directory / f"{_LOCK}.new"
    descriptor = os.open(unlocked, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with suppress(OSError):  # without locks nobody else takes it for abandoned, either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.rename(unlocked, directory / _LOCK)  # under this name it is locked from the beginning
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # another program may have cleaned up
        os.close(descriptor)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the directories of processes of this user that have ended."""
    for directory in parent.glob(f"{prefix}*"):
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
