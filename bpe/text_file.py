"""Text files: read piece by piece, and cut where a cut changes nothing.

Files are read, not mapped: reading into reused memory is faster, and a truncated mapped file kills
the process with SIGBUS. Size, time and inode are compared before and after each read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bpe.errors import ChangedError, CorpusError, UnavailableError

Bytes = NDArray[np.uint8]
SafeCut = Callable[[Bytes, int, int], int]

_WINDOW_BYTES = 64 * 1024  # searched for a cut between two checks for signals
_STRIDE_BYTES = 1024 * 1024  # searched at a time for the end of a document
_CHARACTER_BYTES = 4  # of the longest character


def new_array(n_bytes: int) -> Bytes:
    """Return uint8[n_bytes], of any content."""
    return np.empty(n_bytes, np.uint8)


class TextFile:
    """A regular file that does not change: its `path`, `n_bytes`, and time `modified` in ns.

    Raises:
        OSError: The file does not exist or cannot be read.
        CorpusError: It is a pipe or a device.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
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
        """Raise ChangedError if size, time or inode are not those at first; see `read`."""
        with self._being_there():
            state = os.stat(self.path)
        if _identity(state) != self._state:
            raise self._changed(f"{state.st_size:,} bytes of another time or file")

    def _changed(self, found: str) -> ChangedError:
        return ChangedError(
            f"{self.path}: was changed, replaced or removed while it was being read; run the"
            f" command again when nothing writes to it (expected {self.n_bytes:,} bytes as they"
            f" were at first, found {found})"
        )

    def read(self, start: int, stop: int, array: Callable[[int], Bytes] = new_array) -> Bytes:
        """Read bytes [start, stop) of the file into `array(stop - start)`: uint8, read-only.

        Raises:
            ChangedError: The file is not as it was at first, before or after reading.
            UnavailableError: The bytes cannot be read.
        """
        content = array(stop - start)
        left = content.data
        self.check_unchanged()  # opening a pipe would block
        with self._being_there():
            file = open(self.path, "rb", buffering=0)  # noqa: SIM115 (closed below)
        try:
            with file:
                file.seek(start)
                while left and (n := file.readinto(left)):
                    left = left[n:]
        except OSError as error:
            place = stop - len(left)
            raise UnavailableError(
                f"{self.path}: byte {place:,} and on cannot be read: {error.strerror}; see to the"
                " disk and run the same command again, or leave the file out"
            ) from error
        self.check_unchanged()
        if left:
            raise self._changed(f"{stop - len(left):,} bytes")
        content.flags.writeable = False
        return content

    @contextmanager
    def _being_there(self) -> Iterator[None]:
        """Turn errors of the system, about a file that was there, into errors of the corpus."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise self._changed("no such file") from None
        except OSError as error:
            raise UnavailableError(
                f"{self.path}: cannot be opened any more: {error.strerror}; see to that and run the"
                " same command again"
            ) from error


def _identity(state: os.stat_result) -> tuple[int, int, int]:
    return state.st_size, state.st_mtime_ns, state.st_ino


class Ends(Enum):
    """Where a unit ends."""

    INSIDE = "inside a document"
    BETWEEN = "just behind a separator"
    FILE = "at the end of the file"


class Cutter:
    """Finds places to cut a file, reading little but the text around them.

    Args:
        file: The file.
        separator: Separates documents; b"": the file is one document.
        uncut: Byte strings that no cut may split.
        safe_cut: As `Pretokenizer.safe_cut`; None: that of gpt2.
    """

    def __init__(
        self, file: TextFile, separator: bytes, uncut: Sequence[bytes], safe_cut: SafeCut | None
    ) -> None:
        from bpe.pretokenize.pretokenizer import Pretokenizer

        self._file, self._separator = file, separator
        self._uncut = [needle for needle in uncut if len(needle) > 1]
        self._safe_cut = safe_cut or Pretokenizer("gpt2").safe_cut
        # Room for a separator that ends at a place, and one that overlaps its beginning.
        longest = max(map(len, [separator, *self._uncut]))
        self._around = 2 * longest + _CHARACTER_BYTES
        self._window_start, self._window = 0, np.empty(0, np.uint8)  # what was read last

    def cut(self, position: int) -> tuple[int, Ends]:
        """Return the first place from `position` on: in a document or just after a separator."""
        n = self._file.n_bytes
        while position < n:
            stop = min(position + _WINDOW_BYTES, n)
            place = self._safe_place(position, stop)
            if place < stop:
                touching = self._separator_at(place)
                if touching < 0 and not self._splits_uncut(place):
                    return place, Ends.INSIDE
                candidates: Iterable[int] = [touching] if touching >= 0 else []
                position = place + 1
            else:
                candidates = self._occurrences(self._separator, position, stop)
                position = stop
            for candidate in candidates:
                after = candidate + len(self._separator)
                if after < n and self._is_separator(candidate):
                    return after, Ends.BETWEEN
        return n, Ends.FILE

    def cut_inside(self, position: int, stop: int) -> int:
        """Return a place from `position` on in the document that ends at `stop`; else `stop`."""
        while position < stop:
            window_stop = min(position + _WINDOW_BYTES, stop)
            place = self._safe_place(position, window_stop)
            is_inside = place < window_stop
            if is_inside and self._separator_at(place) < 0 and not self._splits_uncut(place):
                return place
            position = place + is_inside
        return stop

    def last_between(self, start: int, stop: int) -> int:
        """Return the last place in (start, stop] just after a separator; `start` if there is none.

        A document starts at `start`. Short documents are found by reading little but the end.
        """
        from bpe.separated import between

        size = _WINDOW_BYTES
        while size < stop - start:
            end = stop - len(self._separator) + 1
            for candidate in reversed([*self._occurrences(self._separator, stop - size, end)]):
                if self._is_separator(candidate):
                    return candidate + len(self._separator)
            size *= 8
        # Scanning from the start of a document finds the true separators.
        starts, _ = between(self._file.read(start, stop), self._separator)
        return start + int(starts[-1])

    def end_of_document(self, start: int) -> tuple[int, int]:
        """Return (end, start of the next) of the document that starts at `start`."""
        from bpe.separated import between

        n, size = self._file.n_bytes, len(self._separator)
        position = start
        while position < n and size:
            stride = self._bytes(position, position + _STRIDE_BYTES + size - 1)
            _, ends = between(stride, self._separator)
            if len(ends) > 1:
                end = position + int(ends[0])
                return end, end + size
            position += _STRIDE_BYTES
        return n, n

    def _safe_place(self, position: int, stop: int) -> int:
        """Return the first place in [position, stop) where a cut is safe; else `stop`."""
        first = max(position - _CHARACTER_BYTES, 0)
        return first + self._safe_cut(self._bytes(first, stop), position - first, stop - first)

    def _bytes(self, start: int, stop: int) -> Bytes:
        """Return bytes [start, stop) of the file, as far as there are any."""
        start, stop = max(start, 0), min(stop, self._file.n_bytes)
        if not self._window_start <= start <= stop <= self._window_start + len(self._window):
            first = max(start - self._around, 0)
            # One window more: after a rejected place the next is often near.
            end = min(stop + self._around + _WINDOW_BYTES, self._file.n_bytes)
            self._window = self._file.read(first, end)
            self._window_start = first
        return self._window[start - self._window_start : stop - self._window_start]

    def _occurrences(self, needle: bytes, start: int, stop: int) -> Iterator[int]:
        """Yield every place in [start, stop) where `needle` begins, overlapping or not."""
        if not needle:
            return
        start = max(start, 0)
        data = self._bytes(start, stop + len(needle) - 1).tobytes()
        found = data.find(needle)
        while found >= 0:
            yield start + found
            found = data.find(needle, found + 1)

    def _separator_at(self, place: int) -> int:
        """Return where a separator begins that ends at, begins at or spans `place`; else -1."""
        return next(self._occurrences(self._separator, place - len(self._separator), place + 1), -1)

    def _is_separator(self, candidate: int) -> bool:
        """Return True if a scan from the left takes this occurrence: none runs into it."""
        before = self._occurrences(self._separator, candidate - len(self._separator) + 1, candidate)
        return next(before, -1) < 0

    def _splits_uncut(self, place: int) -> bool:
        return any(
            next(self._occurrences(needle, place - len(needle) + 1, place), -1) >= 0
            for needle in self._uncut
        )
