"""Read text files in pieces, and find safe cuts.

Files are read, not mapped: reading into reused memory is faster, and accessing a mapped file after
truncation raises SIGBUS. Size, time and inode are compared before and after each read.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bpe.errors import ChangedError, CorpusError, UnavailableError

Bytes = NDArray[np.uint8]
SafeCut = Callable[[Bytes, int, int], int]

_WINDOW_BYTES = 64 * 1024  # bytes searched for a cut at a time, so that signals are handled
_STRIDE_BYTES = 1024 * 1024  # bytes searched at a time for the end of a document
_CHARACTER_BYTES = 4  # maximum length of a character in UTF-8


def new_array(n_bytes: int) -> Bytes:
    """Return uint8[n_bytes], uninitialized."""
    return np.empty(n_bytes, np.uint8)


class InputFile(Protocol):
    """Bytes that are read in ranges: a file, or what a compressed file decompresses to."""

    @property
    def path(self) -> Path | str:
        """Path or URL, for messages."""

    @property
    def n_bytes(self) -> int:
        """Number of bytes; of a stream whose end is not known yet, more than any file has."""

    @property
    def modified(self) -> int:
        """Time of the last modification, in ns."""

    def clip(self, position: int) -> int:
        """Return `position`, or the number of bytes if it is less."""

    def read(self, start: int, stop: int, array: Callable[[int], Bytes]) -> Bytes:
        """Read bytes [start, stop): uint8, read-only; into `array(stop - start)`, or a view."""

    def check_unchanged(self) -> None:
        """Raise ChangedError if the file has changed since it was opened."""


class FilePart:
    """The first `n_bytes` bytes of a file, as an `InputFile`: it ends where a part of it does."""

    def __init__(self, file: InputFile, n_bytes: int) -> None:
        self._file, self.n_bytes = file, n_bytes
        self.path, self.modified = file.path, file.modified

    def clip(self, position: int) -> int:
        """Return `position`, or the number of bytes if it is less."""
        return min(position, self.n_bytes)

    def read(self, start: int, stop: int, array: Callable[[int], Bytes] = new_array) -> Bytes:
        """Read bytes [start, stop), as the file does."""
        return self._file.read(start, stop, array)

    def check_unchanged(self) -> None:
        """Raise ChangedError if the file has changed since it was opened."""
        self._file.check_unchanged()


class TextFile:
    """A regular file that must not change; has its `path`, `n_bytes`, and mtime `modified` in ns.

    Raises:
        OSError: The file does not exist or cannot be read.
        CorpusError: It is a pipe or a device.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # Another process, which may have another directory and other descriptors, can open it.
        self._place = os.path.realpath(path)
        state = os.stat(path)
        if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
            raise CorpusError(
                f"{path}: a text file or a directory is expected, and this is neither (pipes"
                " and devices cannot be read twice); save the text to a file"
            )
        open(path, "rb").close()  # raises OSError if unreadable
        self._state = _identity(state)
        self.n_bytes = state.st_size
        self.modified = state.st_mtime_ns

    def check_unchanged(self) -> None:
        """Raise ChangedError if size, time or inode have changed since construction."""
        with self._corpus_errors():
            state = os.stat(self._place)
        if _identity(state) != self._state:
            raise self._changed(f"{state.st_size:,} bytes of another time or file")

    def clip(self, position: int) -> int:
        """Return `position`, or the size of the file if it is less."""
        return min(position, self.n_bytes)

    def _changed(self, found: str) -> ChangedError:
        return ChangedError(
            f"{self.path}: was changed, replaced or removed while it was being read; run the"
            f" command again when nothing writes to it (expected {self.n_bytes:,} bytes as they"
            f" were at first, found {found})"
        )

    def read(self, start: int, stop: int, array: Callable[[int], Bytes] = new_array) -> Bytes:
        """Read bytes [start, stop) of the file into `array(stop - start)`: uint8, read-only.

        Raises:
            ChangedError: The file has changed since construction.
            UnavailableError: The bytes cannot be read.
        """
        content = array(stop - start)
        left = content.data
        self.check_unchanged()  # opening a pipe would block
        with self._corpus_errors():
            file = open(self._place, "rb", buffering=0)  # noqa: SIM115 (closed below)
        try:
            with file:
                file.seek(start)
                while left and (n := file.readinto(left)):
                    left = left[n:]
        except OSError as error:
            place = stop - len(left)
            raise UnavailableError(
                f"{self.path}: byte {place:,} and on cannot be read: {error.strerror}; check the"
                " disk and rerun the same command, or leave the file out"
            ) from error
        self.check_unchanged()
        if left:
            raise self._changed(f"{stop - len(left):,} bytes")
        content.flags.writeable = False
        return content

    @contextmanager
    def _corpus_errors(self) -> Iterator[None]:
        """Convert errors of the operating system to `CorpusError`s."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise self._changed("no such file") from None
        except OSError as error:
            raise UnavailableError(
                f"{self.path}: cannot be opened any more: {error.strerror}; remove the cause and"
                " rerun the same command"
            ) from error


def _identity(state: os.stat_result) -> tuple[int, int, int]:
    return state.st_size, state.st_mtime_ns, state.st_ino


class Ends(Enum):
    """Kinds of the end of a unit."""

    INSIDE = "inside a document"
    BETWEEN = "just after a separator"
    FILE = "at the end of the file"
    PART = "just after a separator, where a part of the file ends"


class Cutter:
    """Finds positions to cut a file, and reads little more than the text around them.

    Args:
        file: The file.
        separator: Separator of documents; with b"" the file is one document.
        atomic: Byte strings that no cut may divide.
        safe_cut: As `Pretokenizer.safe_cut`; that of gpt2 if None.
    """

    def __init__(
        self, file: InputFile, separator: bytes, atomic: Sequence[bytes], safe_cut: SafeCut | None
    ) -> None:
        from bpe.split.pretokenizer import Pretokenizer

        self._file, self._separator = file, separator
        self._atomic = [needle for needle in atomic if len(needle) > 1]
        self._safe_cut = safe_cut or Pretokenizer("gpt2").safe_cut
        # Bytes around a position: a separator that ends there, and one that overlaps it.
        longest = max(map(len, [separator, *self._atomic]))
        self._around = 2 * longest + _CHARACTER_BYTES
        self._window_start, self._window = 0, np.empty(0, np.uint8)  # last bytes read

    def cut(self, position: int) -> tuple[int, Ends]:
        """Return the first cut from `position` on, in a document or after a separator."""
        clip = self._file.clip
        while (stop := clip(position + _WINDOW_BYTES)) > position:
            place = self._safe_place(position, stop)
            if place < stop:
                touching = self._separator_at(place)
                if touching < 0 and not self._splits_atomic(place):
                    return place, Ends.INSIDE
                candidates: Iterable[int] = [touching] if touching >= 0 else []
                position = place + 1
            else:
                candidates = self._occurrences(self._separator, position, stop)
                position = stop
            for candidate in candidates:
                after = candidate + len(self._separator)
                if clip(after + 1) > after and self._overlaps_none_before(candidate):
                    return after, Ends.BETWEEN
        return clip(position), Ends.FILE

    def cut_inside(self, position: int, stop: int) -> int:
        """Return the first cut from `position` on in a document that ends at `stop`, or `stop`."""
        while position < stop:
            window_stop = min(position + _WINDOW_BYTES, stop)
            place = self._safe_place(position, window_stop)
            is_inside = place < window_stop
            if is_inside and self._separator_at(place) < 0 and not self._splits_atomic(place):
                return place
            position = place + is_inside
        return stop

    def start_of_document(self, position: int) -> int:
        """Return the first start of a document at `position` or later; the end if there is none."""
        if position <= 0:
            return 0
        size = len(self._separator)
        start = position - size
        while size and (stop := self._file.clip(start + _STRIDE_BYTES)) > start:
            for candidate in self._occurrences(self._separator, start, stop):
                if self._overlaps_none_before(candidate):
                    return candidate + size
            start = stop
        return self._file.clip(sys.maxsize)

    def last_separator_end(self, start: int, stop: int) -> int:
        """Return the last end of a separator in (start, stop]; `start` if there is none.

        A document starts at `start`. Searches backwards, so little is read if documents are short.
        """
        from bpe.text.spans import find_pieces

        size = _WINDOW_BYTES
        while size < stop - start:
            end = stop - len(self._separator) + 1
            for candidate in reversed([*self._occurrences(self._separator, stop - size, end)]):
                if self._overlaps_none_before(candidate):
                    return candidate + len(self._separator)
            size *= 8
        # A scan from the start of a document finds the separators that count.
        starts, _ = find_pieces(self._file.read(start, stop, new_array), self._separator)
        return start + int(starts[-1])

    def end_of_document(self, start: int) -> tuple[int, int]:
        """Return the end of the document that starts at `start`, and the start of the next."""
        from bpe.text.spans import find_pieces

        size, position = len(self._separator), start
        if not size:
            position = self._file.clip(sys.maxsize)
        while (stop := self._file.clip(position + _STRIDE_BYTES)) > position:
            stride = self._bytes(position, stop + size - 1)
            _, ends = find_pieces(stride, self._separator)
            if len(ends) > 1:
                end = position + int(ends[0])
                return end, end + size
            position = stop
        return position, position

    def _safe_place(self, position: int, stop: int) -> int:
        """Return the first safe cut in [position, stop), or `stop`."""
        first = max(position - _CHARACTER_BYTES, 0)
        return first + self._safe_cut(self._bytes(first, stop), position - first, stop - first)

    def _bytes(self, start: int, stop: int) -> Bytes:
        """Return bytes [start, stop) of the file, clipped to its size."""
        start, stop = max(start, 0), self._file.clip(stop)
        if not self._window_start <= start <= stop <= self._window_start + len(self._window):
            first = max(start - self._around, 0)
            # One window more: the cut after a rejected one is often near.
            end = self._file.clip(stop + self._around + _WINDOW_BYTES)
            self._window = self._file.read(first, end, new_array)
            self._window_start = first
        return self._window[start - self._window_start : stop - self._window_start]

    def _occurrences(self, needle: bytes, start: int, stop: int) -> Iterator[int]:
        """Yield all positions in [start, stop) where `needle` begins, overlapping ones, too."""
        if not needle:
            return
        start = max(start, 0)
        data = self._bytes(start, stop + len(needle) - 1).tobytes()
        found = data.find(needle)
        while found >= 0:
            yield start + found
            found = data.find(needle, found + 1)

    def _separator_at(self, place: int) -> int:
        """Return the start of a separator that touches `place`, -1 if there is none."""
        return next(self._occurrences(self._separator, place - len(self._separator), place + 1), -1)

    def _overlaps_none_before(self, candidate: int) -> bool:
        """Return True if no earlier occurrence overlaps this one: then a scan finds it."""
        before = self._occurrences(self._separator, candidate - len(self._separator) + 1, candidate)
        return next(before, -1) < 0

    def _splits_atomic(self, place: int) -> bool:
        return any(
            next(self._occurrences(needle, place - len(needle) + 1, place), -1) >= 0
            for needle in self._atomic
        )
