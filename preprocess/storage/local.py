"""Storage of a run in a local directory, and what every storage does.

    DIRECTORY/.tokenmill.lock    names the writer; a lock of the system, released with its process
    DIRECTORY/.NAME.partial/    work files of the run NAME
    DIRECTORY/.NAME.lock        instead of the first, of a run that others write beside
    DIRECTORY/.tokenmill.lock.N    instead of it, where the file system has no locks
    DIRECTORY/.tokenmill.removal    names, sizes and times of files that are being removed

A failed write raises an `OutputError` that names the file; earlier writes are kept.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from bpe.files.atomic_write import sync, sync_directory, write_all, write_atomically
from bpe.parallel import Lock
from preprocess.storage.errors import (
    OUTPUTS_KEPT,
    PUBLISHED_KEPT,
    DamagedStateError,
    OutputError,
    writing,
)
from preprocess.storage.files import Files, LocalFiles, free_space
from preprocess.storage.lock import ObjectLock, SystemLock, acquire_lock

JOURNAL_FILE = "journal.jsonl"
# Run name of a repair; names of other runs do not begin with a dot.
REPAIR = ".repair"
# End of the names of token files that are read again by the same run, and never published.
IN_ORDER = "-in-order"
LOCK_FILE = ".tokenmill.lock"
REMOVAL_FILE = ".tokenmill.removal"
PARTIAL = ".partial"
# To make a directory; each fails because of another run, or all do, because of the place.
_ATTEMPTS = 100
# Errors of file systems, or of places on two of them, where a file cannot have a second name.
_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)

logger = logging.getLogger("preprocess")


class Stream:
    """An append-only file, truncated to `n_bytes`; methods raise `OutputError` if writing fails.

    Attributes:
        n_bytes: Length, including bytes that are not durable yet.
    """

    def __init__(
        self, path: Path, n_bytes: int, check: Callable[[], None] = lambda: None
    ) -> None:
        self.n_bytes, self._path, self._check = n_bytes, path, check
        self._n_begun = n_bytes  # that the disk has or writes
        self._descriptor: int | None = None
        self._lock = Lock()  # held while the descriptor is synced or closed
        try:
            with writing(path):
                is_new = not path.exists()
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
                found = os.fstat(self._descriptor).st_size
                check_length(str(path), n_bytes, found)
                os.ftruncate(self._descriptor, n_bytes)
                os.lseek(self._descriptor, n_bytes, os.SEEK_SET)
                if is_new:
                    sync_directory(path.parent)
        except BaseException:
            self.close()
            raise

    def append(self, data: memoryview) -> None:
        """Append bytes."""
        assert self._descriptor is not None
        self._check()
        with writing(self._path, position=self.n_bytes):
            write_all(self._descriptor, data)
        self.n_bytes += len(data)

    def begin_sync(self) -> None:
        """Let the disk begin to write appended bytes, without waiting for it."""
        assert self._descriptor is not None
        if hasattr(os, "posix_fadvise"):  # not on macOS
            start, self._n_begun = self._n_begun, self.n_bytes
            # Linux writes pages that are not needed; it keeps those that are not written yet.
            advice = os.POSIX_FADV_DONTNEED
            with writing(self._path):
                os.posix_fadvise(self._descriptor, start, self.n_bytes - start, advice)

    def sync(self) -> None:
        """Make appended bytes durable; another thread may append meanwhile.

        Does nothing on a closed stream, so sync before closing.
        """
        with self._lock, writing(self._path):
            if self._descriptor is not None:
                sync(self._descriptor, data_only=True)

    def finish(self, n_bytes: int) -> None:
        """Sync and close a file that is complete, and of which the first `n_bytes` remain.

        The others are kept until the file is opened with that length. The storage may return before
        the bytes are durable, if they are so before an entry of the journal that is written later.
        """
        self.sync()
        self.close()

    def close(self) -> None:
        """Close the file, also while another thread syncs; may be called more than once."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def check_length(where: str, n_bytes: int, found: int) -> None:
    """Raise DamagedStateError if a work file is shorter than a journal says."""
    if found < n_bytes:
        raise DamagedStateError(
            f"{where}: expected at least {n_bytes:,} bytes, as in the journal, found {found:,}; it"
            " was damaged: start over (--overwrite)"
        )


def was_lost(where: str, work: str) -> DamagedStateError:
    """Return the error for a file that was complete, and has neither of its names now."""
    return DamagedStateError(
        f"{where}: was complete, and is missing now, also in {work}; start over (--overwrite)"
    )


class LocalStorage(LocalFiles):
    """Work files of one run, and finished files of its location; writes create both places.

    As a context manager it locks the location, and raises `OutputError` if another process holds
    the lock or nothing can be written there; at the end it removes directories that it made, if
    they are empty. All methods that write raise `OutputError` on failure.
    A bucket is a `BucketStorage`, which has the same methods. Arguments are as of `open_storage`.

    Attributes:
        final: Files under their final names.
        keeps_finished: True if finished files of streams take local space until they are published.
        seconds_between_syncs: Streams are synced no more often, unless a stage of the run ends.
    """

    seconds_between_syncs = 0.0  # as often as the journal wants
    keeps_finished = True

    def __init__(
        self, location: str | os.PathLike[str], run: str, own_lock: bool = False
    ) -> None:
        self._location = Path(location)
        self._lock_file = f".{run}.lock" if own_lock else LOCK_FILE
        super().__init__(self._location / f".{run}{PARTIAL}")
        self.final: Files = LocalFiles(self._location)
        self._lock: SystemLock | ObjectLock | None = None
        self._made = list[Path]()  # directories that were not there, inner ones first

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.push(self)
            with writing(self._location):
                self._lock = self._make_location()
            if (listed := self._location / REMOVAL_FILE).exists():
                logger.info("%s: completing the removal of an interrupted run", listed)
                self._complete_removal()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            lock, self._lock = self._lock, None
            with writing(self._location / self._lock_file, OUTPUTS_KEPT):
                lock.release()
        made, self._made = self._made, []
        with suppress(OSError):  # a directory with files stays
            for path in made:
                path.rmdir()

    def _make_location(self) -> SystemLock | ObjectLock:
        """Make the location and lock it; again, if another run makes or removes it meanwhile."""
        attempts = 0
        while True:
            try:
                for path in reversed((self._location, *self._location.parents)):
                    # Of a file in the place of the location, mkdir says that it exists.
                    if not (path.is_dir() if path is self._location else path.exists()):
                        path.mkdir()
                        self._made.insert(0, path)
                return acquire_lock(self._location / self._lock_file)
            except (FileExistsError, FileNotFoundError):
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise

    def _check_lock(self) -> None:
        if isinstance(self._lock, ObjectLock):
            with writing(self._location / self._lock_file):
                self._lock.check()

    @property
    def has_system_lock(self) -> bool:
        """True if a lock of the system is held, which ends with the process."""
        return isinstance(self._lock, SystemLock)

    # --- work files ---

    def runs(self) -> list[str]:
        """Return the names of runs with work files in this location, sorted."""
        return [
            name[1 : -len(PARTIAL)]
            for name in self.final.names()
            if name[0] == "." and name.endswith(PARTIAL) and self.final.path(name).is_dir()
        ]

    def _make(self) -> None:
        self._check_lock()
        if not self.directory.is_dir():
            with writing(self.directory):
                os.mkdir(self.directory)
                sync_directory(self._location)

    def stream(self, name: str, n_bytes: int = 0) -> Stream:
        """Open a stream truncated to `n_bytes`; raise DamagedStateError if it is shorter."""
        self._make()
        return Stream(self.directory / name, n_bytes, self._check_lock)

    def put(self, name: str, data: bytes) -> None:
        """Write a whole file durably and atomically."""
        self._make()
        path = self.directory / name
        with writing(path):
            write_atomically(path, data, temporary=self.directory / f"{name}.new")

    def adopt(self, files: Files, name: str, target: str) -> None:
        """Make a complete file a work file, too, by a hard link, or a copy where there are none.

        Args:
            files: Where the file is: a directory; for a storage in a bucket, the same bucket, in
                which the server copies it.
            name: Its name there.
            target: Name of the work file, which is replaced if it exists.
        """
        self._make()
        path = self.directory / target
        with writing(path):
            path.unlink(missing_ok=True)
            try:
                os.link(files.path(name), path)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                shutil.copyfile(files.path(name), path)
                with open(path, "rb") as file:
                    sync(file.fileno())
            sync_directory(self.directory)

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with writing(self.directory / name):
            (self.directory / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all work files, the journal last, so an interrupted removal can be repeated."""
        if self.directory.is_dir():
            with writing(self.directory, OUTPUTS_KEPT):
                for name in sorted(self.names(), key=lambda name: name == JOURNAL_FILE):
                    os.unlink(self.directory / name)
                os.rmdir(self.directory)

    def space(self) -> tuple[float, int]:
        """Return (free bytes of the local disk, bytes of the work files there)."""
        return free_space(self._location), sum(self.sizes().values())

    # --- files under their final names ---

    def publish(
        self, names: Sequence[str], last: Sequence[str] = (), gone: Sequence[str] = (),
        replaces: bool = False,
    ) -> None:
        """Give files their final names: `names`, then `last`, which describe the others.

        Finished files in `last` are removed first, unless the new ones just replace them
        (`replaces`), then those in `gone`. After an interruption it may be called again with the
        same names.
        """
        with writing(self._location, PUBLISHED_KEPT):
            self._check_lock()
            for name in () if replaces else last:
                # Without a work file, an interrupted attempt has published the new one.
                if (self.directory / name).exists():
                    (self._location / name).unlink(missing_ok=True)
            sync_directory(self._location)
            for name in gone:
                (self._location / name).unlink(missing_ok=True)
            for group in (names, last):
                for name in group:
                    try:
                        os.replace(self.directory / name, self._location / name)
                    except FileNotFoundError:
                        if not (self._location / name).exists():
                            where = str(self._location / name)
                            raise was_lost(where, str(self.directory)) from None
                sync_directory(self._location)

    def remove_finished(self, names: Sequence[str]) -> None:
        """Remove files under their final names, in this order.

        Whoever locks the location next completes a removal that was interrupted.
        """
        listed = self._location / REMOVAL_FILE
        with writing(listed, OUTPUTS_KEPT):
            found = {name: self._facts(name) for name in names}
            data, temporary = json.dumps(found).encode(), listed.with_suffix(".new")
            write_atomically(listed, data, temporary=temporary)
        self._complete_removal()

    def _complete_removal(self) -> None:
        listed = self._location / REMOVAL_FILE
        with writing(self._location, OUTPUTS_KEPT):
            for name, facts in names_to_remove(listed.read_bytes(), str(listed)).items():
                if facts == self._facts(name):  # else it was written since
                    (self._location / name).unlink(missing_ok=True)
            sync_directory(self._location)
            listed.unlink(missing_ok=True)

    def _facts(self, name: str) -> list[int] | None:
        """Return size and time of the last change, in ns, of a finished file, None without it."""
        with suppress(FileNotFoundError):
            state = os.stat(self._location / name)
            return [state.st_size, state.st_mtime_ns]
        return None


def names_to_remove(content: bytes, where: str) -> dict[str, Any]:
    """Return name -> facts of the list of a removal; `where` names it."""
    try:
        return {Path(name).name: facts for name, facts in json.loads(content).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise OutputError(
            f"{where}: does not list the files of a removal; remove this file"
        ) from error
