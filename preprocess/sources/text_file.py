"""Files that are read in ranges, and must not change while they are.

Files are read, not mapped: reading into reused memory is faster, and accessing a mapped file after
truncation raises SIGBUS. Size, time and inode are compared before and after each read.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bpe.errors import ChangedError, CorpusError, UnavailableError

Bytes = NDArray[np.uint8]
Array = Callable[[int], Bytes]  # returns an array uint8[n] to read n bytes into


def new_array(n_bytes: int) -> Bytes:
    """Return uint8[n_bytes], uninitialized."""
    return np.empty(n_bytes, np.uint8)


class InputFile(ABC):
    """Bytes that are read in ranges: a file, an object, or what a compressed file has.

    Attributes:
        path: Path or URL, for messages.
        n_bytes: Number of bytes; of a stream whose end is not known yet, more than any file has.
        modified: Time of the last modification, in ns.
    """

    path: Path | str
    n_bytes: int
    modified: int

    def clip(self, position: int) -> int:
        """Return `position`, or the number of bytes if it is less."""
        return min(position, self.n_bytes)

    def begins(self, n_bytes: int) -> bytes:
        """Return the first `n_bytes` bytes; all if there are less."""
        return self.read(0, self.clip(n_bytes)).tobytes()

    def pieces(self, start: int, stop: int, size: int) -> Iterator[tuple[int, Bytes]]:
        """Yield bytes [start, stop) in pieces, with their places; less if the file ends before."""
        while (end := self.clip(min(start + size, stop))) > start:
            yield start, self.read(start, end)
            start = end

    @abstractmethod
    def read(self, start: int, stop: int, array: Array = new_array) -> Bytes:
        """Read bytes [start, stop): uint8, read-only; into `array(stop - start)`, or a view.

        Raises:
            ChangedError: The file has changed since it was opened.
            UnavailableError: The bytes cannot be read.
        """

    @abstractmethod
    def check_unchanged(self) -> None:
        """Raise ChangedError if the file has changed since it was opened, as far as is known."""


class FilePart(InputFile):
    """The first `n_bytes` bytes of a file: it ends where a part of it does."""

    def __init__(self, file: InputFile, n_bytes: int) -> None:
        self._file, self.n_bytes = file, n_bytes
        self.path, self.modified = file.path, file.modified

    def read(self, start: int, stop: int, array: Array = new_array) -> Bytes:
        return self._file.read(start, stop, array)

    def check_unchanged(self) -> None:
        self._file.check_unchanged()


class HeldFile(InputFile):
    """Bytes in memory, as the last ones of a file; the first of them has the position `start`."""

    modified = 0

    def __init__(self, name: str, start: int = 0, content: bytes = b"") -> None:
        self.path, self.n_bytes, self._start = name, start + len(content), start
        self._content = np.frombuffer(content, np.uint8)

    def read(self, start: int, stop: int, array: Array = new_array) -> Bytes:
        return self._content[start - self._start : stop - self._start]

    def check_unchanged(self) -> None:
        pass  # it is in memory


class TextFile(InputFile):
    """A regular file that must not change.

    Raises:
        OSError: The file does not exist or cannot be read.
        CorpusError: It is a pipe or a device.
    """

    path: Path

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
        with self._corpus_errors():
            state = os.stat(self._place)
        if _identity(state) != self._state:
            raise self._changed(f"{state.st_size:,} bytes of another time or file")

    def read(self, start: int, stop: int, array: Array = new_array) -> Bytes:
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

    def _changed(self, found: str) -> ChangedError:
        return ChangedError(
            f"{self.path}: was changed, replaced or removed while it was being read; run the"
            f" command again when nothing writes to it (expected {self.n_bytes:,} bytes as they"
            f" were at first, found {found})"
        )

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


def open_file(path: Path) -> TextFile:
    """Open a file; raise CorpusError if it is missing or cannot be read."""
    try:
        return TextFile(path)
    except FileNotFoundError:
        raise CorpusError(f"{path}: no such file or directory; check the path") from None
    except OSError as error:
        raise CorpusError(
            f"{path}: cannot be read: {error.strerror}; make it readable or leave it out"
        ) from error
