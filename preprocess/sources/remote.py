"""Objects at URLs as input files: read in ranges, of one version, with few requests.

- Every range is requested on the condition that the object still has the version that it had when
  it was found, so that a change is noticed by the read itself. Where requests have no conditions
  (`ObjectStore.is_conditional`) the object is compared when its end has been read, and every
  `_COMPARE_SECONDS`.
- Of small reads, such as those around cuts, more than is asked for is fetched. What is read
  forwards (`read_ahead`), such as compressed text, is fetched in pieces, the next while one is
  used; its units, which are read again to be digested, are served from these.
- What was fetched so last is kept for all files of the process, at most 56 MiB; each reader holds
its last two pieces, so that many files can be read in turns.
"""

from __future__ import annotations

import io
import itertools
import os
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bpe.errors import ChangedError, CorpusError, UnavailableError
from bpe.files.locations import shown_url
from bpe.parallel import Lock, Task, start_thread
from preprocess.sources.text_file import Array, Bytes, InputFile, new_array
from preprocess.storage.forked import open_anywhere
from preprocess.storage.remote import ObjectInfo, ObjectStore, RemoteError, split_url

_STEP_BYTES = 64 * 1024  # the first ones tell the format of a file; other small reads
_WINDOW_BYTES = 4 * _STEP_BYTES  # fetch these, from a multiple of a step on
_SMALL_BYTES = 3 * _STEP_BYTES  # longer reads are requests of their own
_PIECE_BYTES = 4 * 1024 * 1024  # fetched ahead at a time
_FOLLOWED = 8  # reads that may be followed by another one
_KEPT_PIECES, _KEPT_WINDOWS = 10, 64
_HELD_PIECES = 2  # by a reader: the one that is used, and the next
_COMPARE_SECONDS = 10.0
_THIS_PROCESS = uuid.uuid4().hex
_numbers = itertools.count()


@contextmanager
def corpus_errors() -> Iterator[None]:
    """Convert RemoteError inside the `with` to CorpusError: a text cannot be found."""
    try:
        yield
    except RemoteError as error:
        raise CorpusError(str(error)) from None


class RemoteFile(InputFile):
    """An object at a URL that must not change; for several threads.

    It can be pickled: URL, size and version.

    Attributes:
        url: The URL as it was given, perhaps with a secret query.
        path: The URL for messages, without it.
        version: Changes with the content, as far as the server tells; "": it does not.
    """

    path: str

    def __init__(self, url: str, key: str, info: ObjectInfo) -> None:
        self.url, self.path = url, shown_url(url)
        self._key, self._info = key, info
        self.n_bytes, self.modified, self.version = info.n_bytes, info.modified, info.version
        self._root = split_url(url)[0]
        self._compared = time.monotonic()
        self.number = next(_numbers)  # blocks that are shared are never of another version

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFile, (self.url, self._key, self._info)

    @property
    def _objects(self) -> ObjectStore:
        return open_anywhere(self._root)  # a forked process cannot use those of its parent

    @property
    def stamp(self) -> str:
        """Version of the object or, without one, the time of its last change."""
        if not self.version:
            return f"unknown in {_THIS_PROCESS}"  # so that digests are compared
        is_tag = not self.version.startswith("modified ")
        return f"version {self.version}" if is_tag else f"modified {self.modified}"

    def read(self, start: int, stop: int, array: Array = new_array) -> Bytes:
        self._note_end(stop)
        if _kept.has_pieces(self, start, stop):
            return _kept.read_pieces(self, start, stop, array)
        is_small = stop - start <= _SMALL_BYTES
        return _kept.read_window(self, start, stop) if is_small else self.fetch(start, stop)

    def fetch(self, start: int, stop: int) -> Bytes:
        """Read bytes [start, stop) by one request."""
        try:
            data = self._objects.read(self._key, start, stop, self.version)
        except RemoteError as error:
            raise UnavailableError(str(error)) from None
        self._note_end(stop)
        return np.frombuffer(data, np.uint8)

    def _note_end(self, stop: int) -> None:
        """Let the next `check_unchanged` compare if the end of the file is read."""
        if stop == self.n_bytes:
            self._compared = -_COMPARE_SECONDS

    def check_unchanged(self) -> None:
        if self._objects.is_conditional:
            return
        now = time.monotonic()
        if now - self._compared < _COMPARE_SECONDS:
            return
        try:
            found = self._objects.info(self._key)
        except RemoteError as error:
            raise UnavailableError(str(error)) from None
        if found != self._info:
            raise ChangedError(
                f"{self.path}: was changed, replaced or removed while it was being read; run the"
                f" command again when nothing writes to it (expected {self.n_bytes:,} bytes of the"
                f" version {self.version or 'of before'}, found"
                f" {'no object' if found is None else f'{found.n_bytes:,} bytes of another'})"
            )
        self._compared = now


def find_object(url: str) -> RemoteFile | None:
    """Open the object at a URL, None if there is none.

    Raises:
        RemoteError: The URL cannot be used, or the server does not answer or refuses.
    """
    root, key = split_url(url)
    objects = open_anywhere(root)
    key = objects.pinned(key)
    info = objects.info(key)
    return None if info is None else RemoteFile(url, key, info)


def open_url(url: str) -> RemoteFile:
    """Open the object at a URL; raise CorpusError if it is missing or cannot be read."""
    with corpus_errors():
        found = find_object(url)
    if found is None:
        raise CorpusError(f"{shown_url(url)}: there is no such file; check the URL")
    return found


_Held = deque[tuple[int, Task[Bytes]]]  # first bytes of pieces of a file, and these


class _Kept:
    """What was fetched last of all files, beyond what was asked for; for several threads."""

    def __init__(self) -> None:
        # Number of the file, first byte, number of bytes.
        self._parts: OrderedDict[tuple[int, int, int], Task[Bytes]] = OrderedDict()
        self._lock = Lock()

    def read_window(self, file: RemoteFile, start: int, stop: int) -> Bytes:
        """Read bytes [start, stop), at most `_SMALL_BYTES`, of a window that has them."""
        begin, size = start - start % _STEP_BYTES, _WINDOW_BYTES
        if stop <= _STEP_BYTES:
            size = _STEP_BYTES
        for earlier in range(max(begin - _SMALL_BYTES, 0), begin, _STEP_BYTES):
            if stop <= earlier + size and (file.number, earlier, size) in self._parts:
                begin = earlier
        return self._fetch(file, begin, size).result()[start - begin : stop - begin]

    def read_pieces(
        self, file: RemoteFile, start: int, stop: int, array: Array, held: _Held | None = None
    ) -> Bytes:
        """Read bytes [start, stop) in pieces; for a reader, which holds some, begin the next."""
        content, size = array(stop - start), _PIECE_BYTES
        for place in range(start - start % size, stop, size):
            end = place + size * (1 if held is None else _HELD_PIECES)
            following = range(place, min(end, file.n_bytes), size)
            first, *_ = [self._fetch(file, each, size, held) for each in following]
            part = first.result()
            begin, end = max(start, place), min(stop, place + size)
            content[begin - start : end - start] = part[begin - place : end - place]
        content.flags.writeable = False
        return content

    def has_pieces(self, file: RemoteFile, start: int, stop: int) -> bool:
        """Return True if bytes [start, stop) were fetched in pieces, or are being fetched."""
        places = range(start - start % _PIECE_BYTES, stop, _PIECE_BYTES)
        with self._lock:
            found = [self._parts.get((file.number, each, _PIECE_BYTES)) for each in places]
        return all(x is not None and x.error is None for x in found)

    def _fetch(
        self, file: RemoteFile, begin: int, size: int, held: _Held | None = None
    ) -> Task[Bytes]:
        """Return a part that is there, or held by the reader, or being fetched."""
        key = file.number, begin, size
        with self._lock:
            part = self._parts.get(key) or dict(held or ()).get(begin)
            if part is None or part.error is not None:
                part = Task(file.fetch, begin, file.clip(begin + size))
                start_thread(part.run)
            self._parts[key] = part
            self._parts.move_to_end(key)
            if held is not None:
                held.append((begin, part))
            is_piece = size == _PIECE_BYTES
            alike = [each for each in self._parts if (each[2] == _PIECE_BYTES) == is_piece]
            for least_used in alike[: -(_KEPT_PIECES if is_piece else _KEPT_WINDOWS)]:
                del self._parts[least_used]
        return part


_kept = _Kept()
os.register_at_fork(after_in_child=_kept.__init__)  # type: ignore[misc]  # its lock may be held


class ReadAhead(InputFile):
    """A remote file that is read forwards: a piece is used, the next fetched.

    Several places may be read forwards at a time, such as the columns of a Parquet file. A read
    that follows none of the last ones is a read of the file.
    """

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self.path, self.n_bytes, self.modified = file.path, file.n_bytes, file.modified
        self._ends: deque[int] = deque(maxlen=_FOLLOWED)  # of the last reads
        self._held: _Held = deque(maxlen=_HELD_PIECES)

    def read(self, start: int, stop: int, array: Array = new_array) -> Bytes:
        follows = any(0 <= start - end < _PIECE_BYTES for end in self._ends)
        is_expected = follows or _kept.has_pieces(self._file, start, start + 1)
        self._ends.append(stop)
        if not is_expected:
            return self._file.read(start, stop, array)
        return _kept.read_pieces(self._file, start, stop, array, self._held)

    def check_unchanged(self) -> None:
        self._file.check_unchanged()


def read_ahead(file: InputFile) -> InputFile:
    """Return a file for reading it forwards by one thread; a local one is itself."""
    return ReadAhead(file) if isinstance(file, RemoteFile) else file


class Handle(io.RawIOBase):
    """A remote file for libraries that read from file objects."""

    def __init__(self, file: InputFile) -> None:
        self._file, self._position = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.n_bytes}
        self._position = max(base[whence] + offset, 0)
        return self._position

    def read(self, size: int = -1, /) -> Any:
        start = self._file.clip(self._position)
        stop = self._file.clip(start + size) if size >= 0 else self._file.n_bytes
        self._position = stop
        return self._file.read(start, stop, new_array).data

    def readall(self) -> bytes:
        return bytes(self.read())

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
