"""Streams of a storage in a bucket: work files, and the journal."""

from __future__ import annotations

import os
from typing import Protocol

from bpe.files.atomic_write import write_all
from bpe.parallel import Lock
from preprocess.storage.errors import writing
from preprocess.storage.spool import Spool


class Objects(Protocol):
    """What a stream needs of its storage."""

    spool: Spool

    def open_spooled(self, name: str, n_bytes: int) -> int:
        """Return the descriptor of a file in the spool, with its first bytes, at their end."""

    def put_piece(self, name: str, start: int, stop: int) -> None:
        """Put bytes [start, stop) of a file in the spool as one object."""

    def put_entry(self, start: int, data: bytes) -> None:
        """Put bytes [start, ...) of the journal, which no other process may have put."""

    def put_finished(self, name: str, n_bytes: int, end: int) -> None:
        """Begin to put a file of `end` bytes in the spool, of which the first are complete."""


class SpooledStream:
    """A `Stream` of a work file, whose new bytes are in the spool."""

    def __init__(self, storage: Objects, name: str, n_bytes: int) -> None:
        self.n_bytes, self._storage, self._name = n_bytes, storage, name
        self._synced = n_bytes  # length that is durable
        self._descriptor: int | None = None
        self._is_open = True
        self._lock = Lock()  # held while the file is synced or closed
        if not n_bytes:
            self._descriptor = storage.open_spooled(name, 0)

    def append(self, data: memoryview) -> None:
        if self._descriptor is None:
            self._descriptor = self._storage.open_spooled(self._name, self.n_bytes)
        with writing(self._storage.spool.path(self._name), position=self.n_bytes):
            write_all(self._descriptor, data)
        self.n_bytes += len(data)

    def begin_sync(self) -> None: ...

    def sync(self) -> None:
        with self._lock:
            if self._is_open and self._synced < (n_bytes := self.n_bytes):
                self._storage.put_piece(self._name, self._synced, n_bytes)
                self._synced = n_bytes

    def finish(self, n_bytes: int) -> None:
        # A sync that comes meanwhile must find the stream open, or else the file on its way: an
        # entry of the journal follows it.
        with self._lock:
            self._close()
            self._storage.put_finished(self._name, n_bytes, self.n_bytes)
            self._is_open = False

    def close(self) -> None:
        with self._lock:
            self._close()
            self._is_open = False

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class JournalStream:
    """A `Stream` of the journal: each sync puts what was appended as an object of its own."""

    def __init__(self, storage: Objects, n_bytes: int) -> None:
        self.n_bytes, self._storage = n_bytes, storage
        self._new = bytearray()

    def append(self, data: memoryview) -> None:
        self._new += data
        self.n_bytes += len(data)

    def begin_sync(self) -> None: ...

    def sync(self) -> None:
        if self._new:
            start = self.n_bytes - len(self._new)
            self._storage.put_entry(start, bytes(self._new))
            self._new.clear()

    def finish(self, n_bytes: int) -> None:
        self.sync()

    def close(self) -> None:
        self._new.clear()
