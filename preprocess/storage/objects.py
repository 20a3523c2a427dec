"""`preprocess.storage.base.Storage` in a bucket, whose objects can neither be appended nor renamed.

    PREFIX/.tokenmill.lock           names the writer; see `object_lock`; of a part: .NAME.lock
    PREFIX/.NAME.partial/ATTEMPT/FILE        a work file of the run NAME that is complete
    PREFIX/.NAME.partial/ATTEMPT/FILE/START  its bytes from START on, as appended between two syncs

What is appended goes to a local file first (`spool`), and each sync puts the new bytes as an object
that is never changed. The first bytes of a file that is finished are put again as one object, which
`publish` copies to the final name on the server; then the local file and the pieces are removed.
The entries of the journal are such pieces, each of which must not exist before.

The same run appends the same bytes at the same place, so pieces that overlap agree. A run that
starts over has another attempt: a request of its predecessor that arrives late, after the lock was
lost, changes nothing of it. Only the first
object of a journal makes the others a journal: it is removed before them.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Self

from msgspec import Struct

from bpe.files.locations import join_location
from bpe.parallel import Lock, Task, Threads, for_each, run_in_order
from preprocess.storage.base import JOURNAL_FILE, LARGEST_OBJECT, Stream
from preprocess.storage.errors import (
    OUTPUTS_KEPT,
    PUBLISHED_KEPT,
    WORK_KEPT,
    DamagedStateError,
    OutputError,
    writing,
)
from preprocess.storage.files import Files
from preprocess.storage.local import LOCK_FILE, REMOVAL_FILE, names_to_remove
from preprocess.storage.object_files import READ_AT_ONCE, ObjectFiles, translated
from preprocess.storage.object_lock import ObjectLock
from preprocess.storage.object_streams import JournalStream, SpooledStream
from preprocess.storage.remote import ANY, RemoteError
from preprocess.storage.spool import map_bytes

# A sync is a request for each file, which takes time and costs money.
SECONDS_BETWEEN_SYNCS = 10.0

_PARTIAL = ".partial"
_REQUESTS_AT_ONCE = 8
_UPLOADS_AT_ONCE = 2  # of finished files, while the run goes on
_MOST_WAITING = 6  # finished files with local copies: two shards


class _Piece(Struct, frozen=True, order=True):
    """Bytes [start, stop) of a work file."""

    start: int
    stop: int
    key: str


def _end_of(pieces: Sequence[_Piece]) -> int:
    """Return how many bytes of the beginning of a file its pieces, sorted, have."""
    end = 0
    for piece in pieces:
        if piece.start <= end:
            end = max(end, piece.stop)
    return end


class ObjectStorage(ObjectFiles):
    """A `Storage` at the URL `location`, for the run `run`."""

    keeps_finished = False

    def __init__(self, location: str, run: str, own_lock: bool = False) -> None:
        super().__init__(join_location(location, f".{run}{_PARTIAL}"))
        self._attempt = ""  # "": not known yet
        self._final = ObjectFiles(location)
        self.final: Files = self._final
        self.seconds_between_syncs = SECONDS_BETWEEN_SYNCS
        lock_file = f".{run}.lock" if own_lock else LOCK_FILE
        self._lock = ObjectLock(self.objects, self._final.key(lock_file), self.final.where())
        self._is_cut_off = False
        self._guard = Lock()  # of `_index`
        self._index: dict[str, list[_Piece]] | None = None  # None: not listed yet
        self._local = set[str]()  # names of files whose content is in the spool
        self._uploads: Threads | None = None
        self._waiting: dict[str, Task[None]] = {}  # name of a finished file -> its upload

    # --- the lock, and requests under it ---

    def __enter__(self) -> Self:
        with self._requests(OUTPUTS_KEPT):
            self._lock.acquire()
        self._index, self._attempt = None, ""
        with ExitStack() as stack:
            stack.push(self)
            self._complete_removal()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_uploads()
        try:
            with self._requests(OUTPUTS_KEPT):
                self._lock.release(self._is_cut_off)
        finally:
            self.spool.close()
            self._final.spool.close()
            self._local.clear()

    def _end_uploads(self) -> None:
        """Wait until nothing is uploaded any more; what has not begun is left out."""
        if self._uploads is not None:
            self._uploads.close()
            self._uploads, self._waiting = None, {}

    @contextmanager
    def _requests(self, kept: str = WORK_KEPT) -> Iterator[None]:
        """Convert errors inside the `with` to OutputError, and note that the server is away."""
        try:
            with translated(kept):
                yield
        except OutputError as error:
            self._is_cut_off |= isinstance(error.__cause__, RemoteError)
            raise

    def check_writable(self) -> None:
        """Do nothing: taking the lock is the first write."""

    def _remove_keys(self, keys: Iterable[str]) -> None:
        with self._requests():
            for key in keys:
                self._lock.check()
                self.objects.remove(key)

    # --- work files ---

    @property
    def index(self) -> dict[str, list[_Piece]]:
        """The objects of each work file; changed with `_guard` held."""
        with self._guard:
            if self._index is None:
                found: dict[str, dict[str, list[_Piece]]] = {}
                with translated():
                    for key, info in self.objects.keys(self.prefix):
                        attempt, _, file = key[len(self.prefix) :].partition("/")
                        name, _, start = file.partition("/")
                        if name and (start.isdecimal() or not start):
                            place = int(start or 0)
                            piece = _Piece(place, place + info.n_bytes, key)
                            found.setdefault(attempt, {}).setdefault(name, []).append(piece)
                if not self._attempt:
                    begun = [
                        attempt for attempt, files in found.items()
                        if any(not piece.start for piece in files.get(JOURNAL_FILE, ()))
                    ]  # fmt: skip
                    self._attempt = min(begun) if begun else uuid.uuid4().hex[:16]
                self._index = found.get(self._attempt, {})
            return self._index

    @property
    def attempt(self) -> str:
        """Name of this attempt of the run, in the keys of its work files."""
        if not self._attempt:
            _ = self.index
        return self._attempt

    def key(self, name: str) -> str:
        return f"{self.prefix}{self.attempt}/{name}"

    def _pieces(self, name: str) -> list[_Piece]:
        index = self.index
        with self._guard:
            return sorted(index.get(name, ()))

    def _note(self, name: str, piece: _Piece) -> None:
        index = self.index
        with self._guard:
            others = [each for each in index.get(name, ()) if each.key != piece.key]
            index[name] = [*others, piece]

    def _forget(self, name: str, pieces: Sequence[_Piece]) -> None:
        """Remove objects of a file, the last bytes first: what is left begins at its start."""
        for piece in sorted(pieces, reverse=True):
            self._remove_keys([piece.key])
            index = self.index
            with self._guard:
                left = [each for each in index.get(name, ()) if each.key != piece.key]
                index[name] = left
                if not left:
                    del index[name]

    def _cover(self, name: str, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """Yield (key, first byte of the object, end there) that make up [start, stop) of a file."""
        for piece in self._pieces(name):
            if piece.start > start or start >= stop:
                return
            if piece.stop > start:
                end = min(stop, piece.stop)
                yield piece.key, start - piece.start, end - piece.start
                start = end

    def names(self) -> list[str]:
        index = self.index
        with self._guard:
            return sorted({*index, *self._local})

    def size(self, name: str) -> int | None:
        if name in self._local:
            return self.spool.path(name).stat().st_size
        pieces = self._pieces(name)
        return _end_of(pieces) if pieces and not pieces[0].start else None

    def sizes(self) -> dict[str, int]:
        return {name: self.size(name) or 0 for name in self.names()}

    def get(self, name: str) -> bytes | None:
        size = self.size(name)
        return None if size is None else self.read(name, 0, size)

    def read(self, name: str, start: int, stop: int) -> bytes:
        if name in self._local:
            try:
                with open(self.spool.path(name), "rb") as file:
                    file.seek(start)
                    return file.read(stop - start)
            except FileNotFoundError:
                pass  # its upload was completed meanwhile
        parts = list(self._cover(name, start, stop))
        workers = min(len(parts), _REQUESTS_AT_ONCE) or 1
        with translated(), closing(run_in_order(parts, lambda: self._read, workers)) as found:
            return b"".join(found)

    def _read(self, part: tuple[str, int, int]) -> memoryview:
        return self.objects.read(*part)

    def path(self, name: str = "") -> Path:
        return self.spool.path(name) if name in self._local else super().path(name)

    def put(self, name: str, data: bytes) -> None:
        self._settle(name)
        self._put_object(name, _Piece(0, len(data), self.key(name)), data)
        self._forget(name, [x for x in self._pieces(name) if x.key != self.key(name)])

    def _put_object(
        self, name: str, piece: _Piece, data: bytes | memoryview, must_be_new: bool = False
    ) -> None:
        with self._requests():
            self._lock.check()
            put = self.objects.put(piece.key, data, "" if must_be_new else ANY)
            # A request whose answer was lost was repeated, and found our own object.
            if put is None and self.objects.get(piece.key) != bytes(data):
                raise OutputError(
                    f"{self.where(name)}: another process writes to the journal of this run; let it"
                    " finish, or stop it and run the same command again"
                )
        self._note(name, piece)

    def remove(self, name: str) -> None:
        self._settle(name)
        self._forget(name, self._pieces(name))
        self._drop(name)

    def _drop(self, name: str) -> None:
        self._local.discard(name)
        self.spool.remove(name)

    # --- streams ---

    def stream(self, name: str, n_bytes: int = 0) -> Stream:
        self._settle(name)
        found = sum(stop - start for _, start, stop in self._cover(name, 0, n_bytes))
        if found < n_bytes and name not in self._local:
            raise DamagedStateError(
                f"{self.where(name)}: expected at least {n_bytes:,} bytes, as in the journal, found"
                f" {found:,}; it was damaged: start over (--overwrite)"
            )
        pieces = self._pieces(name)
        if name == JOURNAL_FILE:
            self._forget(name, [piece for piece in pieces if piece.start >= n_bytes])
            return JournalStream(self, n_bytes)
        kept = _end_of([piece for piece in pieces if piece.stop <= n_bytes])
        if kept < n_bytes:  # an object has bytes before and after the new end
            self._fill(name, n_bytes)
            self.put_piece(name, kept, n_bytes)
        self._forget(name, [piece for piece in self._pieces(name) if piece.stop > n_bytes])
        return SpooledStream(self, name, n_bytes)

    def put_entry(self, start: int, data: bytes) -> None:
        name = JOURNAL_FILE
        for waiting in list(self._waiting):
            self._settle(waiting)
        piece = _Piece(start, start + len(data), self._piece_key(name, start))
        self._put_object(name, piece, data, must_be_new=True)

    def _piece_key(self, name: str, start: int) -> str:
        return f"{self.key(name)}/{start:016d}"

    def put_piece(self, name: str, start: int, stop: int) -> None:
        piece = _Piece(start, stop, self._piece_key(name, start))
        self._put_object(name, piece, map_bytes(self.spool.path(name), start, stop))

    def open_spooled(self, name: str, n_bytes: int) -> int:
        self._fill(name, n_bytes)
        path = self.spool.path(name)
        with writing(path):
            descriptor = os.open(path, os.O_RDWR)
            os.lseek(descriptor, n_bytes, os.SEEK_SET)
        return descriptor

    def _fill(self, name: str, n_bytes: int) -> None:
        """Have the first bytes of a file, and no others, in the spool."""
        path = self.spool.path(name)
        with writing(path), open(path, "r+b" if name in self._local else "wb") as file:
            if name not in self._local:
                with translated():
                    for key, start, stop in self._cover(name, 0, n_bytes):
                        for place in range(start, stop, READ_AT_ONCE):
                            end = min(place + READ_AT_ONCE, stop)
                            file.write(self.objects.read(key, place, end))
            file.truncate(n_bytes)
        self._local.add(name)

    def put_finished(self, name: str, n_bytes: int, end: int) -> None:
        if n_bytes > LARGEST_OBJECT:
            raise OutputError(
                f"{self.where(name)}: {n_bytes:,} bytes, and an object has at most"
                f" {LARGEST_OBJECT:,}; write smaller shards (--shard-tokens, of rows"
                " --max-shard-size), and divide documents that are larger (--split-documents)"
            )
        with self._guard:
            if self._uploads is None:
                self._uploads = Threads(_UPLOADS_AT_ONCE)
        waiting = list(self._waiting)
        for other in waiting[: max(len(waiting) - _MOST_WAITING + 1, 0)]:
            self._settle(other)
        self._waiting[name] = self._uploads.submit(self._put_whole, name, n_bytes, end)

    def _settle(self, name: str) -> None:
        """Wait until a finished file is durable, and raise if that failed."""
        if (upload := self._waiting.get(name)) is not None:
            upload.result()
            self._waiting.pop(name, None)

    def _put_whole(self, name: str, n_bytes: int, end: int) -> None:
        whole = _Piece(0, n_bytes, self.key(name))
        if name not in self._local:
            if whole in self._pieces(name):
                return  # an earlier run did it
            self._fill(name, end)
        if end > n_bytes:
            self.put_piece(name, n_bytes, end)
        self._put_object(name, whole, map_bytes(self.spool.path(name), 0, n_bytes))
        kept = whole.key, self._piece_key(name, n_bytes) if end > n_bytes else ""
        self._forget(name, [each for each in self._pieces(name) if each.key not in kept])
        self._drop(name)

    # --- the end of a run ---

    def publish(
        self, names: Sequence[str], last: Sequence[str] = (), gone: Sequence[str] = ()
    ) -> None:
        for name in list(self._waiting):
            self._settle(name)
        with self._requests(PUBLISHED_KEPT):
            is_over = self._is_published(names, last)
            # Without a work file, an interrupted attempt has published the new one.
            again = [name for name in last if self._is_whole(name)]
            self._remove_keys(map(self._final.key, (*again, *gone)))
            for_each(names, lambda _, name: self._publish(name), _REQUESTS_AT_ONCE)
            sizes = self._final.sizes()
            for name in names:
                self._check_published(name, sizes.get(name), is_over)
            for name in last:
                self._publish(name)

    def _is_published(self, names: Sequence[str], last: Sequence[str]) -> bool:
        """Return True if work files are missing because all files have their final names.

        They are removed only after the last of them, the manifests, were published.
        """
        if all(map(self._is_whole, names)):
            return False
        finals = {name: self._final.get(name) for name in last}
        return all(
            content is not None and (not self._is_whole(name) or content == self.get(name))
            for name, content in finals.items()
        )

    def _is_whole(self, name: str) -> bool:
        return any(piece.key == self.key(name) for piece in self._pieces(name))

    def _publish(self, name: str) -> None:
        if self._is_whole(name):
            self._lock.check()
            self.objects.copy(self.key(name), self._final.key(name))
        else:
            self._check_published(name, self._final.size(name), True)

    def _check_published(self, name: str, size: int | None, is_over: bool) -> None:
        is_complete = size == self.size(name) if self._is_whole(name) else is_over
        if size is None or not is_complete:
            raise DamagedStateError(
                f"{self.final.where(name)}: expected the file that the run had in {self.where()},"
                f" found {'none' if size is None else f'one of {size:,} bytes'}; start over"
                " (--overwrite)"
            )

    def remove_finished(self, names: Sequence[str]) -> None:
        with self._requests(OUTPUTS_KEPT):
            self._lock.check()
            listed = json.dumps(dict.fromkeys(names)).encode()
            self.objects.put(self._final.key(REMOVAL_FILE), listed)
            self._complete_removal()

    def _complete_removal(self) -> None:
        if (listed := self._final.get(REMOVAL_FILE)) is not None:
            names = names_to_remove(listed, self._final.where(REMOVAL_FILE))
            self._remove_keys(map(self._final.key, (*names, REMOVAL_FILE)))

    def clear(self) -> None:
        self._end_uploads()
        with self._requests(OUTPUTS_KEPT):
            keys = [key for key, _ in self.objects.keys(self.prefix)]
            journal = [key for key in keys if key.startswith(f"{self.key(JOURNAL_FILE)}/")]
            others = sorted({*keys} - {*journal})
            for group in (others, journal[:1], journal[1:]):
                for_each(group, lambda _, key: self._remove_keys([key]), _REQUESTS_AT_ONCE)
        with self._guard:
            self._index, self._attempt = None, ""
        for name in list(self._local):
            self._drop(name)

    def runs(self) -> list[str]:
        prefix = self._final.prefix
        with translated():
            parts = [key[len(prefix) :].partition("/") for key, _ in self.objects.keys(prefix)]
        found = {place for place, slash, _ in parts if slash and place.endswith(_PARTIAL)}
        return sorted(place[1 : -len(_PARTIAL)] for place in found if place[0] == ".")

    def space(self) -> tuple[int, int]:
        return self.spool.space()
