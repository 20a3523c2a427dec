"""The protocol of a storage, and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

from bpe.errors import TokenbinError

JOURNAL_FILE = "journal.jsonl"
# The run name of a repair; no other run has a name that begins with a dot.
REPAIR = ".repair"


class OutputError(TokenbinError):
    """Outputs exist already, cannot be written, or are being written by another process."""


class DamagedStateError(OutputError):
    """The work files of an earlier run were damaged, so nothing can be resumed."""


class Stream(Protocol):
    """A file that grows at its end. Its methods raise `OutputError` where writing fails.

    Attributes:
        n_bytes: Its length, including bytes that are not durable yet.
    """

    n_bytes: int

    def append(self, data: memoryview) -> None:
        """Append bytes."""

    def sync(self) -> None:
        """Make appended bytes durable; another thread may append meanwhile.

        Does nothing once the stream is closed, so whoever closes it has to sync it first.
        """

    def close(self) -> None:
        """Close the file, also while another thread syncs; may be called more than once."""


class Files(Protocol):
    """Named, complete files: those of a run, or the finished ones of a location."""

    def names(self) -> list[str]:
        """Names of all files, sorted."""

    def size(self, name: str) -> int | None:
        """Size of a file in bytes, or None if there is none."""

    def get(self, name: str) -> bytes | None:
        """Return the content of a file, None if there is none; `OutputError` if unreadable."""

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Read bytes [start, stop) of a file; fewer if it is shorter or missing."""

    def where(self, name: str = "") -> str:
        """The place of a file, or of all, for messages."""

    def path(self, name: str = "") -> Path:
        """A local path to read or map a file and its siblings; a copy of files kept elsewhere."""


class Storage(Files, Protocol):
    """The work files of one run, and the finished files of its location. Writes create both.

    As a context manager it holds the lock of the location: one writer at a time, `OutputError` for
    any other. Every method that writes raises `OutputError` where that fails.

    Attributes:
        finished: Files under their final names.
    """

    finished: Files

    def __enter__(self) -> Self:
        """Take the lock."""

    def __exit__(self, *_: object) -> None:
        """Release the lock."""

    def check_writable(self) -> None:
        """Raise `OutputError`, before any work is done, if the location cannot be written."""

    def runs(self) -> list[str]:
        """Names of the runs in this location that left work files, sorted."""

    def stream(self, name: str, n_bytes: int = 0) -> Stream:
        """Begin a stream, or resume it after its first `n_bytes` bytes: the rest is cut off.

        Raises:
            DamagedStateError: It is shorter than `n_bytes`.
        """

    def put(self, name: str, data: bytes) -> None:
        """Write a whole file durably; until then the name has its previous content."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""

    def publish(
        self, names: Sequence[str], last: Sequence[str] = (), gone: Sequence[str] = ()
    ) -> None:
        """Give files their final names: `names`, then `last`, which vouch for the others.

        The finished files in `last` are removed first, then those in `gone`. After an interruption
        it may be called again with the same names.
        """

    def mend(self, name: str, start: int, data: bytes, *, cut: bool = False) -> None:
        """Overwrite bytes of a finished file durably, from `start`, at most its size, on.

        The file is created if it does not exist. With `cut` it ends after `data`.
        """

    def clear(self) -> None:
        """Remove all work files, the journal last: without it the others mean nothing."""

    def space(self) -> tuple[int, int]:
        """(free bytes, bytes of the work files)."""
