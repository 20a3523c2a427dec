"""Objects at URLs as input files: read in ranges, of one version, with few requests.

- Every range is requested on the condition that the object still has the version that it had when
  it was found, so that a change is noticed by the read itself. Where requests have no conditions
  (`ObjectStore.is_conditional`) the object is compared when its end has been read, and every
  `_COMPARE_SECONDS`.
- Small reads, such as those around cuts, are served from blocks that all files of the process
  share; `_SHARED_BYTES` bounds them.
- What is read forwards (`read_ahead`), such as compressed text, is fetched in larger pieces, the
  next while one is used.
"""

from __future__ import annotations

import io
import itertools
import os
import time
import uuid
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from bpe.errors import ChangedError, CorpusError, UnavailableError
from bpe.files.locations import shown_url
from bpe.parallel import Lock, Task, start_thread
from preprocess.sources.text_file import Bytes, InputFile, new_array
from preprocess.storage.forked import open_anywhere
from preprocess.storage.remote import ObjectInfo, ObjectStore, RemoteError, split_url

Array = Callable[[int], Bytes]

_BLOCK_BYTES = 64 * 1024  # of the shared blocks; the first one tells the format of a file
_BLOCKS_AT_ONCE = 4  # requested together, except at the start of a file
_SHARED_BYTES = 16 * 1024 * 1024
_SMALL_BYTES = 512 * 1024  # longer reads are requests of their own
_PIECE_BYTES = 4 * 1024 * 1024  # fetched ahead at a time
_FOLLOWED = 8  # reads that may be followed by another one
_KEPT_PIECES = 8  # of a file that is read ahead: its units are read again, to be digested
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


class RemoteFile:
    """An object at a URL that must not change, as an `InputFile`; for several threads.

    It can be pickled: URL, size and version.

    Attributes:
        url: The URL as it was given, perhaps with a secret query.
        path: The URL for messages, without it.
        version: Changes with the content, as far as the server tells; "": it does not.
        n_bytes: Size of the object.
        modified: Time of the last change, in ns.
    """

    def __init__(self, url: str, key: str, info: ObjectInfo) -> None:
        self.url, self.path = url, shown_url(url)
        self._key, self._info = key, info
        self.n_bytes, self.modified, self.version = info.n_bytes, info.modified, info.version
        self._root = split_url(url)[0]
        self._compared = time.monotonic()
        self.reader: weakref.ref[ReadAhead] | None = None  # that was made last
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

    def clip(self, position: int) -> int:
        """Return `position`, or the size of the object if it is less."""
        return min(position, self.n_bytes)

    def read(self, start: int, stop: int, array: Array = new_array) -> Bytes:
        """Read bytes [start, stop): uint8, read-only.

        Raises:
            ChangedError: The object has changed since it was found.
            UnavailableError: The server does not answer, or refuses the request.
        """
        self._note_end(stop)
        reader = None if self.reader is None else self.reader()
        held = None if reader is None else reader.held(start, stop)
        if held is not None:
            return held
        if stop - start > _SMALL_BYTES:
            return self.fetch(start, stop)
        return _shared.read(self, start, stop, array)

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
        """Raise ChangedError if the object has changed, where reading does not notice it."""
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


class _SharedBlocks:
    """The blocks of all files that were used last; for several threads."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[int, int], Bytes] = OrderedDict()
        self._lock = Lock()

    def read(self, file: RemoteFile, start: int, stop: int, array: Array) -> Bytes:
        """Read bytes [start, stop) of a file; what is missing is requested at once."""
        numbers = range(start // _BLOCK_BYTES, -(-stop // _BLOCK_BYTES))
        with self._lock:
            found = {n: self._blocks.get((file.number, n)) for n in numbers}
        missing = [n for n, block in found.items() if block is None]
        if missing:
            first, last = missing[0], missing[-1] + 1
            if first:
                last = max(last, first + _BLOCKS_AT_ONCE)
            first_byte = first * _BLOCK_BYTES
            data = file.fetch(first_byte, file.clip(last * _BLOCK_BYTES))
            for n in range(first, first + -(-len(data) // _BLOCK_BYTES)):
                begin = n * _BLOCK_BYTES - first_byte
                # A copy: a view of one block would keep all of them.
                found[n] = data[begin : begin + _BLOCK_BYTES].copy()
        with self._lock:
            for n, block in found.items():
                assert block is not None
                self._blocks[file.number, n] = block
                self._blocks.move_to_end((file.number, n))
            while len(self._blocks) > _SHARED_BYTES // _BLOCK_BYTES:
                self._blocks.popitem(last=False)
        return _joined(((n * _BLOCK_BYTES, found[n]) for n in numbers), start, stop, array)


def _joined(parts: Iterable[tuple[int, Any]], start: int, stop: int, array: Array) -> Bytes:
    """Return bytes [start, stop) of parts in order, each with the position of its first byte."""
    content = array(stop - start)
    for place, part in parts:
        begin, end = max(start, place), min(stop, place + len(part))
        content[begin - start : end - start] = part[begin - place : end - place]
    content.flags.writeable = False
    return content


_shared = _SharedBlocks()
os.register_at_fork(after_in_child=_shared.__init__)  # type: ignore[misc]  # its lock may be held


class ReadAhead:
    """A remote file that is read forwards, as an `InputFile`: a piece is used, the next fetched.

    Several places may be read forwards at a time, such as the columns of a Parquet file. A read
    that follows none of the last ones is a read of the file.
    """

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self.path, self.n_bytes, self.modified = file.path, file.n_bytes, file.modified
        self.clip, self.check_unchanged = file.clip, file.check_unchanged
        self._pieces: OrderedDict[int, Task[Bytes]] = OrderedDict()
        self._ends: deque[int] = deque(maxlen=_FOLLOWED)  # of the last reads
        self._lock = Lock()
        file.reader = weakref.ref(self)

    def held(self, start: int, stop: int) -> Bytes | None:
        """Return bytes [start, stop) if all of them are there."""
        numbers = range(start // _PIECE_BYTES, -(-stop // _PIECE_BYTES))
        with self._lock:
            pieces = [(n, self._pieces.get(n)) for n in numbers]
        parts = []
        for n, piece in pieces:
            if piece is None or not piece.is_done or piece.error is not None:
                return None
            parts.append((n * _PIECE_BYTES, piece.result()))
        return _joined(parts, start, stop, new_array)

    def read(self, start: int, stop: int, array: Array = new_array) -> Bytes:
        """Read bytes [start, stop); as `RemoteFile.read`."""
        is_expected = start // _PIECE_BYTES in self._pieces or any(
            0 <= start - end < _PIECE_BYTES for end in self._ends
        )
        self._ends.append(stop)
        if not is_expected:
            return self._file.read(start, stop, array)
        numbers = range(start // _PIECE_BYTES, -(-stop // _PIECE_BYTES))
        parts = ((n * _PIECE_BYTES, self._used(n)) for n in numbers)
        return _joined(parts, start, stop, array)

    def _used(self, number: int) -> Bytes:
        """Return a piece, and fetch the next one."""
        with self._lock:
            piece = self._piece(number)
            if (number + 1) * _PIECE_BYTES < self.n_bytes:
                self._piece(number + 1)
        return piece.result()

    def _piece(self, number: int) -> Task[Bytes]:
        """Return a piece that is there, or being fetched."""
        piece = self._pieces.get(number)
        if piece is None:
            start = number * _PIECE_BYTES
            piece = Task(self._file.fetch, start, self.clip(start + _PIECE_BYTES))
            self._pieces[number] = piece
            start_thread(piece.run)
        self._pieces.move_to_end(number)
        while len(self._pieces) > _KEPT_PIECES:
            self._pieces.popitem(last=False)
        return piece


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
