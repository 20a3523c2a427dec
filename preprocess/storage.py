"""Where a run keeps what it has written: streams that grow, small files that are whole or absent.

Law: what `Stream.sync` or `put` returned from is on the disk. Everything lies in a work directory
until `publish` gives it its final name; `publish` may be interrupted anywhere and called again. A
write that fails says so, names the file and the place, and takes nothing back that was done before.

`Storage` is all that the rest of the package knows: a store of objects would offer the same, with
the parts of an upload as its streams. `LocalStorage` is a directory:

    DIRECTORY/.tokenbin.lock      who is at work here; a lock of the system, gone with its process
    DIRECTORY/.NAME.partial/      the work directory of the run NAME
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
from types import TracebackType
from typing import Protocol, Self

from bpe.errors import TokenbinError
from bpe.files import sync_directory, write_all, write_atomically

LOCK_FILE = ".tokenbin.lock"
JOURNAL_FILE = "journal.jsonl"
_PARTIAL = ".partial"
# The name of a repair; no run has a name that begins with a dot.
REPAIR = ".repair"
# Errors that end when somebody has made space.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class OutputError(TokenbinError):
    """Outputs exist already, cannot be written, or are being written by another process."""


class DamagedStateError(OutputError):
    """What an earlier run left is not what it was, so nothing can go on with it."""


class Stream(Protocol):
    """A file that grows at its end.

    Attributes:
        n_bytes: Its length, what is not yet on the disk included.
    """

    n_bytes: int

    def append(self, data: memoryview) -> None:
        """Write `data`, bytes, behind what is there.

        Raises:
            OutputError: That failed.
        """

    def sync(self) -> None:
        """Bring what was appended to the disk; may be called while another thread appends.

        Who closes it first has to sync it before; then this does nothing.

        Raises:
            OutputError: That failed.
        """

    def close(self) -> None:
        """Let go of the file, also while another thread syncs; it may be called more than once."""


class Storage(Protocol):
    """The files of one run before they have their final names."""

    def stream(self, name: str, n_bytes: int = 0) -> Stream:
        """Go on with a stream behind its first `n_bytes` bytes; what follows them is cut off.

        Raises:
            OutputError: It cannot be written.
            DamagedStateError: It is shorter than that.
        """

    def put(self, name: str, data: bytes) -> None:
        """Write a whole file and bring it to the disk; until then what had the name has it still.

        Raises:
            OutputError: That failed.
        """

    def get(self, name: str) -> bytes | None:
        """The content of a file, or None where there is none.

        Raises:
            OutputError: It is there and cannot be read.
        """

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a file, fewer where it ends before; none where there is none."""

    def names(self) -> list[str]:
        """The files that have no final name, sorted."""

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""

    def publish(
        self, names: Sequence[str], last: Sequence[str] = (), gone: Sequence[str] = ()
    ) -> None:
        """Give files their final names; those in `last` vouch for the others and come behind them.

        What had the names in `last` before goes first, then what has the names in `gone`. It may be
        called again after an interruption, with the same names.

        Raises:
            OutputError: That failed, or a file is neither here nor under its final name.
        """

    def clear(self) -> None:
        """Remove everything that has no final name."""

    def space(self) -> tuple[int, int]:
        """(bytes that are free, bytes that lie here without a final name)."""


def _refusal(path: Path, error: OSError, position: int | None = None) -> OutputError:
    place = "" if position is None else f" at byte {position:,}"
    advice = "free the space" if error.errno in _NO_SPACE else "see to the disk and its permissions"
    return OutputError(
        f"{path}: could not be written{place}: {error.strerror or error}; nothing was put under a"
        f" final name, and what was done so far is kept: {advice} and run the same command again,"
        " or choose another directory"
    )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure of the system inside the `with` into one that says what was not written."""
    try:
        yield
    except OSError as error:
        raise _refusal(path, error) from error


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


class LocalStorage:
    """The work directory of a run inside the directory of its outputs.

    As a context manager it holds the directory's lock: one builder at a time.

    Args:
        directory: Where the outputs get their final names; made if it does not exist.
        name: The name of the run.

    Raises:
        OutputError: The directory cannot be written, or somebody else is at work there.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.work = work_directory(directory, name)
        self._lock: int | None = None

    def __enter__(self) -> Self:
        with writing(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(self.directory / LOCK_FILE)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            try:
                with writing(self.directory / LOCK_FILE):
                    _remove(self.directory / LOCK_FILE)
            finally:
                os.close(self._lock)
                self._lock = None

    def exists(self) -> bool:
        """Whether there is a work directory."""
        return self.work.is_dir()

    def stream(self, name: str, n_bytes: int = 0) -> LocalStream:
        """See `Storage`."""
        self._make()
        path = self.work / name
        is_new = not path.exists()
        stream = LocalStream(path, n_bytes)
        try:
            if is_new:
                with writing(path):
                    sync_directory(self.work)
        except BaseException:
            stream.close()
            raise
        return stream

    def put(self, name: str, data: bytes) -> None:
        """See `Storage`."""
        self._make()
        path = self.work / name
        with writing(path):
            write_atomically(path, data, temporary=self.work / f"{name}.new")

    def get(self, name: str) -> bytes | None:
        """See `Storage`."""
        path = self.work / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OutputError(
                f"{path}: could not be read: {error.strerror}; see to the disk and its permissions"
                " and run the same command again"
            ) from error

    def read(self, name: str, start: int, stop: int) -> bytes:
        """See `Storage`."""
        try:
            with open(self.work / name, "rb") as file:
                file.seek(start)
                return file.read(stop - start)
        except FileNotFoundError:
            return b""

    def names(self) -> list[str]:
        """See `Storage`."""
        return sorted(path.name for path in self.work.iterdir()) if self.exists() else []

    def remove(self, name: str) -> None:
        """See `Storage`."""
        with writing(self.work / name):
            _remove(self.work / name)

    def publish(
        self, names: Sequence[str], last: Sequence[str] = (), gone: Sequence[str] = ()
    ) -> None:
        """See `Storage`."""
        with writing(self.directory):
            for name in last:
                # One that is here no more is in place already, and the final one is the new one.
                if (self.work / name).exists():
                    _remove(self.directory / name)
            sync_directory(self.directory)
            for name in gone:
                _remove(self.directory / name)
            for group in (names, last):
                for name in group:
                    self._put_in_place(name)
                sync_directory(self.directory)

    def _put_in_place(self, name: str) -> None:
        try:
            os.replace(self.work / name, self.directory / name)
        except FileNotFoundError:
            if not (self.directory / name).exists():
                raise OutputError(
                    f"{self.directory / name}: was complete, and is now neither there nor in"
                    f" {self.work}; start anew (--overwrite)"
                ) from None

    def clear(self) -> None:
        """See `Storage`; the journal goes last, for without it nothing here means anything."""
        if not self.exists():
            return
        with writing(self.work):
            there = sorted(self.work.iterdir(), key=lambda path: path.name == JOURNAL_FILE)
            for path in there:
                os.unlink(path)
            os.rmdir(self.work)

    def space(self) -> tuple[int, int]:
        """See `Storage`."""
        state = os.statvfs(self.directory)
        used = sum(path.stat().st_size for path in self.work.iterdir()) if self.exists() else 0
        return state.f_bavail * state.f_frsize, used

    def _make(self) -> None:
        if not self.exists():
            with writing(self.work):
                os.mkdir(self.work)
                sync_directory(self.directory)


def work_directory(directory: Path, name: str) -> Path:
    """Where the run NAME keeps what it has not finished."""
    return directory / f".{name}{_PARTIAL}"


def unfinished(directory: Path) -> list[Path]:
    """The work directories of runs that were not finished in a directory, sorted by name."""
    return sorted(path for path in directory.glob(f".*{_PARTIAL}") if path.is_dir())


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
