"""A storage in a local directory.

DIRECTORY/.tokenbin.lock      who is at work here; a lock of the system, gone with its process
DIRECTORY/.NAME.partial/      the work files of the run NAME
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from bpe.files import sync_directory, write_all, write_atomically
from preprocess.storage.base import JOURNAL_FILE, DamagedStateError, Files, OutputError

LOCK_FILE = ".tokenbin.lock"
_PARTIAL = ".partial"
# Errors that end when somebody has made space.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


# What a failure leaves behind, for messages.
_WORK_KEPT = "nothing was put under a final name, and what was done so far is kept"
_PUBLISHED_KEPT = "what has its final name is complete, and the rest is kept"
_MENDED_KEPT = "what was rebuilt before is kept"
_OUTPUTS_KEPT = "outputs are not affected"


def _refusal(
    path: Path, error: OSError, position: int | None = None, kept: str = _WORK_KEPT
) -> OutputError:
    place = "" if position is None else f" at byte {position:,}"
    advice = "free the space" if error.errno in _NO_SPACE else "see to the disk and its permissions"
    return OutputError(
        f"{path}: could not be written{place}: {error.strerror or error}; {kept}: {advice} and run"
        " the same command again"
        f"{', or choose another directory' if kept is _WORK_KEPT else ''}"
    )


@contextmanager
def writing(path: Path, kept: str = _WORK_KEPT) -> Iterator[None]:
    """Turn a failure of the system inside the `with` into one that says what was not written."""
    try:
        yield
    except OSError as error:
        raise _refusal(path, error, kept=kept) from error


def _remove(path: Path) -> None:
    # It may have gone when this was done the first time.
    with suppress(FileNotFoundError):
        os.unlink(path)


class LocalStream:
    """A stream in a local file."""

    def __init__(self, path: Path, n_bytes: int) -> None:
        self.n_bytes = n_bytes
        self._path = path
        self._descriptor: int | None = None
        # Held while the descriptor is synced or closed, so that neither meets the other.
        self._lock = threading.Lock()
        with writing(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            found = os.fstat(self._descriptor).st_size
            if found < n_bytes:
                self.close()
                raise DamagedStateError(
                    f"{path}: the journal says that {n_bytes:,} bytes were written and {found:,}"
                    " are there; it was damaged: start anew (--overwrite)"
                )
            os.ftruncate(self._descriptor, n_bytes)
            os.lseek(self._descriptor, n_bytes, os.SEEK_SET)

    def append(self, data: memoryview) -> None:
        """See `Stream`."""
        assert self._descriptor is not None
        try:
            write_all(self._descriptor, data)
        except OSError as error:
            raise _refusal(self._path, error, self.n_bytes) from error
        self.n_bytes += len(data)

    def sync(self) -> None:
        """See `Stream`."""
        with self._lock, writing(self._path):
            if self._descriptor is not None:
                # macOS has no fdatasync.
                getattr(os, "fdatasync", os.fsync)(self._descriptor)

    def close(self) -> None:
        """See `Stream`."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None


class LocalFiles:
    """The files of a local directory, which need not exist."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def names(self) -> list[str]:
        """See `Files`."""
        return sorted(os.listdir(self.directory)) if self.directory.is_dir() else []

    def size(self, name: str) -> int | None:
        """See `Files`."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.stat(self.directory / name).st_size
        return None

    def get(self, name: str) -> bytes | None:
        """See `Files`."""
        path = self.directory / name
        try:
            if path.is_fifo():  # reading it would wait for somebody who writes to it
                raise OutputError(f"{path}: expected a file, found a pipe; remove it")
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OutputError(
                f"{path}: could not be read: {error.strerror}; see to the disk and its permissions"
                " and run the same command again"
            ) from error

    def read(self, name: str, start: int, stop: int) -> bytes:
        """See `Files`."""
        try:
            with open(self.directory / name, "rb") as file:
                file.seek(start)
                return file.read(stop - start)
        except FileNotFoundError:
            return b""

    def where(self, name: str = "") -> str:
        """See `Files`."""
        return str(self.directory / name)

    def path(self, name: str = "") -> Path:
        """See `Files`."""
        return self.directory / name


class LocalStorage(LocalFiles):
    """See `Storage`.

    Args:
        location: Where the outputs get their final names.
        run: The name of the run.
    """

    def __init__(self, location: str | os.PathLike[str], run: str) -> None:
        self._location = Path(location)
        super().__init__(self._location / f".{run}{_PARTIAL}")
        self.finished: Files = LocalFiles(self._location)
        self._lock: int | None = None

    def __enter__(self) -> Self:
        with writing(self._location):
            self._location.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self._location / LOCK_FILE)
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            try:
                with writing(self._location / LOCK_FILE, _OUTPUTS_KEPT):
                    _remove(self._location / LOCK_FILE)
            finally:
                os.close(self._lock)
                self._lock = None

    def check_writable(self) -> None:
        """See `Storage`."""
        place = self._location
        while not place.exists() and place != place.parent:
            place = place.parent
        if not place.is_dir():
            raise OutputError(
                f"{self._location}: {place} is not a directory; choose another output directory"
            )
        if not os.access(place, os.W_OK | os.X_OK):
            raise OutputError(
                f"{self._location}: {place} cannot be written to by this user; choose another"
                " output directory or change its permissions"
            )

    def runs(self) -> list[str]:
        """See `Storage`."""
        return [
            name[1 : -len(_PARTIAL)]
            for name in self.finished.names()
            if name[0] == "." and name.endswith(_PARTIAL) and self.finished.path(name).is_dir()
        ]

    def stream(self, name: str, n_bytes: int = 0) -> LocalStream:
        """See `Storage`."""
        self._make()
        path = self.directory / name
        is_new = not path.exists()
        stream = LocalStream(path, n_bytes)
        try:
            if is_new:
                with writing(path):
                    sync_directory(self.directory)
        except BaseException:
            stream.close()
            raise
        return stream

    def put(self, name: str, data: bytes) -> None:
        """See `Storage`."""
        self._make()
        path = self.directory / name
        with writing(path):
            write_atomically(path, data, temporary=self.directory / f"{name}.new")

    def remove(self, name: str) -> None:
        """See `Storage`."""
        with writing(self.directory / name):
            _remove(self.directory / name)

    def publish(
        self, names: Sequence[str], last: Sequence[str] = (), gone: Sequence[str] = ()
    ) -> None:
        """See `Storage`."""
        with writing(self._location, _PUBLISHED_KEPT):
            for name in last:
                # One that is here no more is in place already, and the final one is the new one.
                if (self.directory / name).exists():
                    _remove(self._location / name)
            sync_directory(self._location)
            for name in gone:
                _remove(self._location / name)
            for group in (names, last):
                for name in group:
                    self._put_in_place(name)
                sync_directory(self._location)

    def _put_in_place(self, name: str) -> None:
        try:
            os.replace(self.directory / name, self._location / name)
        except FileNotFoundError:
            if not (self._location / name).exists():
                raise OutputError(
                    f"{self._location / name}: was complete, and is now neither there nor in"
                    f" {self.directory}; start anew (--overwrite)"
                ) from None

    def mend(self, name: str, start: int, data: bytes, *, cut: bool = False) -> None:
        """See `Storage`."""
        path = self._location / name
        with writing(path, _MENDED_KEPT):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                os.lseek(descriptor, start, os.SEEK_SET)
                write_all(descriptor, memoryview(data))
                if cut:
                    os.ftruncate(descriptor, start + len(data))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def clear(self) -> None:
        """See `Storage`."""
        if not self.directory.is_dir():
            return
        with writing(self.directory, _OUTPUTS_KEPT):
            for name in sorted(self.names(), key=lambda name: name == JOURNAL_FILE):
                os.unlink(self.directory / name)
            os.rmdir(self.directory)

    def space(self) -> tuple[int, int]:
        """See `Storage`."""
        state = os.statvfs(self._location)
        used = sum(os.stat(self.directory / name).st_size for name in self.names())
        return state.f_bavail * state.f_frsize, used

    def _make(self) -> None:
        if not self.directory.is_dir():
            with writing(self.directory):
                os.mkdir(self.directory)
                sync_directory(self._location)


def _locked(path: Path) -> int:
    """Take the lock of a directory; the system gives it up when the process ends, however it ends.

    Raises:
        OutputError: Another process has it.
    """
    while True:
        # What a link points to is somebody else's, and would be written over.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 1000, 0).decode("utf-8", "replace")
            os.close(descriptor)
            raise OutputError(
                f"{path.parent}: {_named(holder)} is writing in this directory; wait until it is"
                " done, end it, or choose another directory"
            ) from None
        except BaseException:
            os.close(descriptor)
            raise
        try:
            # Whoever had it may have removed the file between our opening and our locking it.
            if _is_at(descriptor, path):
                os.ftruncate(descriptor, 0)
                me = {"pid": os.getpid(), "host": socket.gethostname()}
                os.pwrite(descriptor, json.dumps(me).encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _named(holder: str) -> str:
    try:
        found = json.loads(holder)
        return f"process {int(found['pid'])} on {found['host']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
