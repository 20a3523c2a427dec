"""Lock files, for file systems without locks of the system: what an `ObjectLock` replaces.

Version N of a lock is the file LOCK.N. It is made by an exclusive open, so one process alone makes
it; and it holds only if it is the last, and if version N - 1 was there until then, or none for the
first, whose number is the time: numbers are not used again. Whoever replaces a version that was
being written sees whether it was completed meanwhile: a version is a number and a size.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bpe.errors import ChangedError
from bpe.files.atomic_write import write_all
from preprocess.storage.object_lock import pause
from preprocess.storage.remote import ANY, ObjectInfo, RemoteError

_PAUSE = 0.05  # seconds; lists of network file systems are late


class LockFiles:
    """Files as `Versions`; keys are paths."""

    def info(self, key: str) -> ObjectInfo | None:
        """Return the last version; it has no size, for `read` reads all of it."""
        if not (versions := self._versions(key)):
            return None
        return ObjectInfo(0, 0, f"{versions[-1]}.{_size(f'{key}.{versions[-1]}')}")

    def read(self, key: str, start: int, stop: int, version: str = "") -> memoryview:
        """Read a version; raise ChangedError if it is gone."""
        try:
            return memoryview(Path(f"{key}.{version.partition('.')[0]}").read_bytes())
        except FileNotFoundError:
            pause(_PAUSE)
            raise ChangedError(f"{key}.{version}: was replaced while it was being read") from None

    def put(self, key: str, data: bytes | memoryview, version: str | None = ANY) -> str | None:
        """Replace a version ("": none), and return the new one; None if it is another."""
        named, _, size = (version or "0").partition(".")
        before = int(named)
        number = before + 1 if before else time.time_ns()
        path = f"{key}.{number}"
        with _remote_errors(path):
            if not before and self._versions(key):
                return None
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                return None
            try:
                try:
                    write_all(descriptor, memoryview(data))
                finally:
                    os.close(descriptor)
            except OSError:  # a full disk; its owner would take the file for that of another
                Path(path).unlink(missing_ok=True)
                raise
            found = self._versions(key)
            is_last = found[-2:] == ([before, number] if before else [number])
            if not is_last or (before and _size(f"{key}.{before}") != int(size)):
                Path(path).unlink(missing_ok=True)
                return None
            Path(f"{key}.{before}").unlink(missing_ok=True)
        return f"{number}.{len(data)}"

    def remove(self, key: str) -> None:
        """Remove all versions, the last one last."""
        with _remote_errors(key):
            for version in self._versions(key):
                Path(f"{key}.{version}").unlink(missing_ok=True)

    def _versions(self, key: str) -> list[int]:
        directory, name = os.path.split(key)
        pattern, before, found = rf"{re.escape(name)}\.(\d+)", [-1], [-2]
        while found != before:  # a list may lack both a file and the one that replaces it meanwhile
            matches = (re.fullmatch(pattern, each) for each in os.listdir(directory))
            before, found = found, sorted(int(match[1]) for match in matches if match)
        return found


def _size(path: str) -> int:
    """Return the size of a file in bytes, -1 if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return -1


@contextmanager
def _remote_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RemoteError(f"{path}: the lock file cannot be written: {error.strerror}") from error
