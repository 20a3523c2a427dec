"""Storage of a run in a bucket, whose objects can neither be appended nor renamed.

    PREFIX/.tokenmill.lock       names the writer; see `lock`; of a part: .NAME.lock
    PREFIX/.NAME.partial/FILE    a work file of the run NAME, as it was at its last sync

Work files are local, in a temporary directory. A sync puts the whole file as an object, so syncs
are rare: files that are not finished take at most a fifth of the time to upload. A finished file is
put once more, while the run goes on, and its local copy is removed. `publish` copies objects to
their final names on the server.

An object is replaced only if it is as this run put or found it. So a process that lost its lock
changes nothing that another one has written since, not even by a request that arrives late. Of one
that is larger than a request, that is compared before it is uploaded, and not again at its end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import numpy as np

from bpe.errors import ChangedError
from bpe.parallel import Task, Threads, for_each
from preprocess.locations import join_location
from preprocess.storage.errors import (
    OUTPUTS_KEPT,
    PUBLISHED_KEPT,
    WORK_KEPT,
    OutputError,
)
from preprocess.storage.files import Files, LocalFiles, UrlFiles, copy_to, free_space
from preprocess.storage.local import (
    IN_ORDER,
    JOURNAL_FILE,
    LOCK_FILE,
    PARTIAL,
    REMOVAL_FILE,
    Stream,
    check_length,
    names_to_remove,
    was_lost,
)
from preprocess.storage.lock import ObjectLock
from preprocess.storage.remote import LARGEST_OBJECT, ObjectInfo, RemoteError

SECONDS_BETWEEN_SYNCS = 10.0  # at least
_SYNC_SHARE = 5  # one part of so many of the time
_REQUESTS_AT_ONCE = 8
_UPLOADS_AT_ONCE = 2  # of finished files, while the run goes on
_MOST_WAITING = 6  # finished files with local copies: two shards


class BucketStorage(UrlFiles):
    """As `LocalStorage`, at the URL `location`."""

    keeps_finished = False

    def __init__(self, location: str, run: str, own_lock: bool = False) -> None:
        self.final: Files = (final := UrlFiles(location))
        self._objects, self._prefix = final.object("")
        super().__init__(join_location(location, f".{run}{PARTIAL}"))
        self._work_prefix = f"{self._prefix}.{run}{PARTIAL}/"
        lock_file = f".{run}.lock" if own_lock else LOCK_FILE
        self._lock = ObjectLock(self._objects, f"{self._prefix}{lock_file}", final.where())
        self._known: dict[str, ObjectInfo] | None = None  # objects of work files; None: not listed
        self._uploads = Threads(_UPLOADS_AT_ONCE)
        self._waiting: dict[str, Task[None]] = {}  # name of a finished file -> its upload
        self._syncing = self._pause = 0.0  # seconds of syncs since the last entry of the journal

    @property
    def seconds_between_syncs(self) -> float:
        """Longer if files that are not finished take long to upload."""
        return max(SECONDS_BETWEEN_SYNCS, self._pause)

    # --- the lock ---

    def __enter__(self) -> Self:
        with _written(OUTPUTS_KEPT):
            self._lock.acquire()
        self._known = None
        with ExitStack() as stack:
            stack.push(self)
            self._complete_removal()
            stack.pop_all()
        return self

    def __exit__(self, kind: object, error: object, traceback: object, /) -> None:
        self._end_uploads()
        try:
            # A server that is away is not waited for again: the lock expires.
            cause = getattr(error, "__cause__", None)
            with _written(OUTPUTS_KEPT):
                self._lock.release(any(isinstance(x, RemoteError) for x in (error, cause)))
        finally:
            self.close()

    def _end_uploads(self) -> None:
        """Wait until nothing is uploaded any more; what has not begun is left out."""
        self._uploads.close()
        self._uploads, self._waiting = Threads(_UPLOADS_AT_ONCE), {}

    # --- work files ---

    @property
    def known(self) -> dict[str, ObjectInfo]:
        """What was put or found last as the object of each work file."""
        if self._known is None:
            prefix = self._work_prefix
            self._known = {key[len(prefix) :]: info for key, info in self._objects.keys(prefix)}
        return self._known

    @property
    def _here(self) -> LocalFiles:
        """The files whose content is in the temporary directory."""
        return LocalFiles(self.spool)

    def names(self) -> list[str]:
        # A copy, for uploads add names meanwhile. The directory itself has a hidden lock.
        local = (name for name in self._here.names() if name[0] != ".")
        return sorted({*list(self.known), *local})

    def size(self, name: str) -> int | None:
        if (found := self._here.size(name)) is not None:
            return found
        return self.known[name].n_bytes if name in self.known else None

    def sizes(self) -> dict[str, int]:
        return {name: self.size(name) or 0 for name in self.names()}

    def get(self, name: str) -> bytes | None:
        size = self.size(name)
        return None if size is None else self.read(name, 0, size)

    def read(self, name: str, start: int, stop: int) -> bytes:
        size = self.size(name) or 0
        found = self._here.read(name, start, stop)
        if found or start >= size:
            return found
        return super().read(name, start, min(stop, size))  # the local copy is not there any more

    def path(self, name: str = "") -> Path:
        if name and self._here.size(name) is None and name in self.known:
            return copy_to(self._here.path(name), UrlFiles(self.url("")), name)
        return self._here.path(name)

    def put(self, name: str, data: bytes) -> None:
        self._settle(name)
        self._put(name, data)
        self._drop(name)

    def _put(self, name: str, data: bytes | memoryview) -> None:
        # Standard input and rows of documents, which have no suffix, are not published either.
        if len(data) > LARGEST_OBJECT and IN_ORDER not in name and "." in name:
            raise OutputError(
                f"{self.where(name)}: {len(data):,} bytes, and an object has at most"
                f" {LARGEST_OBJECT:,}; write smaller shards (--shard-tokens, of rows"
                " --max-shard-size), and divide documents that are larger (--split-documents)"
            )
        if name == JOURNAL_FILE:  # after what it describes
            for waiting in list(self._waiting):
                self._settle(waiting)
        key, before = f"{self._work_prefix}{name}", self.known.get(name)
        with _written():
            self._lock.check()
            version = self._objects.put(key, data, "" if before is None else before.version)
            if version is None:
                # A request whose answer was lost was repeated, and found our own object.
                found = self._objects.info(key)
                if found is None or self._objects.get(key) != bytes(data):
                    raise OutputError(
                        f"{self.where(name)}: another process writes the files of this run; let it"
                        " finish, or stop it and run the same command again"
                    )
                version = found.version
        self.known[name] = ObjectInfo(len(data), 0, version)

    def adopt(self, files: Files, name: str, target: str) -> None:
        if files is self:
            self._settle(name)
        assert isinstance(files, UrlFiles)
        (_, source), key = files.object(name), f"{self._work_prefix}{target}"
        with _written():
            self._lock.check()
            self._objects.copy(source, key)
            info = self._objects.info(key)
        assert info is not None
        self.known[target] = info

    def remove(self, name: str) -> None:
        self._settle(name)
        if self.known.pop(name, None) is not None:
            self._remove_keys([f"{self._work_prefix}{name}"], WORK_KEPT)
        self._drop(name)

    def _remove_keys(self, keys: Iterable[str], kept: str) -> None:
        with _written(kept):
            for key in keys:
                self._lock.check()
                self._objects.remove(key)

    def _drop(self, name: str) -> None:
        self._here.path(name).unlink(missing_ok=True)

    # --- streams ---

    def stream(self, name: str, n_bytes: int = 0) -> Stream:
        self._settle(name)
        check_length(self.where(name), n_bytes, self.size(name) or 0)
        is_synced = name in self.known and self.known[name].n_bytes == n_bytes
        if n_bytes:
            self.path(name)
        return _BucketStream(self, self._here.path(name), n_bytes, is_synced)

    def sync(self, name: str, n_bytes: int) -> None:
        """Put the first bytes of a local file."""
        began = time.monotonic()
        self._put(name, _map(self._here.path(name), n_bytes))
        self._syncing += time.monotonic() - began
        if name == JOURNAL_FILE:
            self._pause, self._syncing = (_SYNC_SHARE - 1) * self._syncing, 0.0

    def finish(self, name: str, n_bytes: int) -> None:
        """Begin to put a local file that is complete, and to remove it here."""
        while len(self._waiting) >= _MOST_WAITING:
            self._settle(next(iter(self._waiting)))
        self._waiting[name] = self._uploads.submit(self._put_finished, name, n_bytes)

    def _put_finished(self, name: str, n_bytes: int) -> None:
        self._put(name, _map(self._here.path(name), n_bytes))
        if IN_ORDER not in name:
            self._drop(name)

    def _settle(self, name: str) -> None:
        """Wait until a finished file is durable, and raise if that failed."""
        if (upload := self._waiting.get(name)) is not None:
            upload.result()
            self._waiting.pop(name, None)

    # --- the end of a run ---

    def publish(
        self, names: Sequence[str], last: Sequence[str] = (), gone: Sequence[str] = (),
        replaces: bool = False,
    ) -> None:
        for name in list(self._waiting):
            self._settle(name)
        missing = [name for name in (*names, *last) if name not in self.known]
        if missing:
            # Work files are removed only after the last of them, the manifests, were published.
            finished = self.final.sizes()
            lost = [name for name in (*names, *last) if name not in finished]
            lost += [x for x in last if x in self.known and self.final.get(x) != self.get(x)]
            if lost:
                raise was_lost(self.final.where(lost[0]), self.where())
            return
        before = gone if replaces else (*last, *gone)
        self._remove_keys((f"{self._prefix}{name}" for name in before), PUBLISHED_KEPT)
        with _written(PUBLISHED_KEPT):
            for_each(names, lambda _, name: self._publish(name), _REQUESTS_AT_ONCE)
            for name in last:
                self._publish(name)

    def _publish(self, name: str) -> None:
        self._lock.check()
        self._objects.copy(f"{self._work_prefix}{name}", f"{self._prefix}{name}")

    def remove_finished(self, names: Sequence[str]) -> None:
        with _written(OUTPUTS_KEPT):
            self._lock.check()
            listed = json.dumps(dict.fromkeys(names)).encode()
            self._objects.put(f"{self._prefix}{REMOVAL_FILE}", listed)
        self._complete_removal()

    def _complete_removal(self) -> None:
        with _written(OUTPUTS_KEPT):
            listed = self.final.get(REMOVAL_FILE)
        if listed is not None:
            names = names_to_remove(listed, self.final.where(REMOVAL_FILE))
            keys = (f"{self._prefix}{name}" for name in (*names, REMOVAL_FILE))
            self._remove_keys(keys, OUTPUTS_KEPT)

    def clear(self) -> None:
        self._end_uploads()
        journal = f"{self._work_prefix}{JOURNAL_FILE}"
        with _written(OUTPUTS_KEPT):
            others = [key for key, _ in self._objects.keys(self._work_prefix) if key != journal]
        for_each(
            others, lambda _, key: self._remove_keys([key], OUTPUTS_KEPT), _REQUESTS_AT_ONCE
        )
        self._remove_keys([journal], OUTPUTS_KEPT)
        self._known = {}
        for name in self.names():
            self._drop(name)

    def runs(self) -> list[str]:
        keys = (key[len(self._prefix) :] for key, _ in self._objects.keys(self._prefix))
        places = {key.partition("/")[0] for key in keys if key[0] == "." and "/" in key}
        return sorted(x[1 : -len(PARTIAL)] for x in places if x.endswith(PARTIAL))

    def space(self) -> tuple[float, int]:
        return free_space(self.spool), sum(self._here.sizes().values())


class _BucketStream(Stream):
    """A `Stream` of a local file that its storage puts as a whole."""

    def __init__(self, storage: BucketStorage, path: Path, n_bytes: int, is_synced: bool) -> None:
        super().__init__(path, n_bytes)
        self._storage, self._name = storage, path.name
        self._synced = n_bytes if is_synced else -1

    def sync(self) -> None:
        with self._lock:
            if self._descriptor is not None and self._synced != (n_bytes := self.n_bytes):
                self._storage.sync(self._name, n_bytes)
                self._synced = n_bytes

    def finish(self, n_bytes: int) -> None:
        # A sync that comes meanwhile must find the stream open, or else the file on its way: an
        # entry of the journal follows it.
        with self._lock:
            self._storage.finish(self._name, self.n_bytes)
            self._close()


@contextmanager
def _written(kept: str = WORK_KEPT) -> Iterator[None]:
    """Convert errors of the server inside the `with` to OutputError."""
    try:
        yield
    except (RemoteError, ChangedError) as error:
        raise OutputError(f"{error}; {kept}") from error


def _map(path: Path, n_bytes: int) -> memoryview:
    """Map the first bytes of a file, read-only."""
    return np.memmap(path, np.uint8, "r", 0, (n_bytes,)).data if n_bytes else memoryview(b"")
