"""The protocol of a storage and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

from bpe.errors import TokenbinError

JOURNAL_FILE = "journal.jsonl"
# The name of a repair; no run has a name that begins with a dot.
REPAIR = ".repair"


class OutputError(TokenbinError):
    """Outputs exist already, cannot be written, or are being written by another process."""


class DamagedStateError(OutputError):
    """What an earlier run left is not what it was, so nothing can be resumed."""


class Stream(Protocol):
    """A file that grows at its end.

    Attributes:
        n_bytes: Its length, what is not yet durable included.
    """

    n_bytes: int

    def append(self, data: memoryview) -> None:
        """Append bytes.

        Raises:
            OutputError: That failed.
        """

    def sync(self) -> None:
        """Make what was appended durable; may be called while another thread appends.

        Who closes it first has to sync it before; then this does nothing.

        Raises:
            OutputError: That failed.
        """

    def close(self) -> None:
        """Let go of the file, also while another thread syncs; it may be called more than once."""


class Files(Protocol):
    """Named files that are whole: those of a run, or the finished ones of a location."""

    def names(self) -> list[str]:
        """Names of all files, sorted."""

    def size(self, name: str) -> int | None:
        """Size of a file in bytes, or None if there is none."""

    def get(self, name: str) -> bytes | None:
        """The content of a file, or None if there is none.

        Raises:
            OutputError: It is there and cannot be read.
        """

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Bytes [start, stop) of a file, fewer where it ends before; none where there is none."""

    def where(self, name: str = "") -> str:
        """The place of a file, or of all, for messages."""

    def path(self, name: str = "") -> Path:
        """A path on this machine for reading or memory-mapping a file and those next to it.

        Of files that are kept elsewhere, a copy.
        """


class Storage(Files, Protocol):
    """The work files of one run, and the finished files of its location.

    As a context manager it holds the lock of the location: one writer at a time.

    Attributes:
        finished: Files under their final names.
    """

    finished: Files

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            OutputError: The location cannot be written, or somebody else is at work there.
        """

    def __exit__(self, *_: object) -> None:
        """Release the lock."""

    def check_writable(self) -> None:
        """Check that the location can be created and written, before any work is done.

        Raises:
            OutputError: It cannot.
        """

    def runs(self) -> list[str]:
        """Names of the runs in this location that left work files, sorted."""

    def stream(self, name: str, n_bytes: int = 0) -> Stream:
        """Resume a stream after its first `n_bytes` bytes; what follows them is cut off.

        Raises:
            OutputError: It cannot be written.
            DamagedStateError: It is shorter than that.
        """

    def put(self, name: str, data: bytes) -> None:
        """Write a whole file durably; until then the name has its previous content.

        Raises:
            OutputError: That failed.
        """

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""

    def publish(
        self, names: Sequence[str], last: Sequence[str] = (), gone: Sequence[str] = ()
    ) -> None:
        """Give files their final names; those in `last` vouch for the others and come after them.

        The finished files in `last` are removed first, then those in `gone`. It may be called again
        after an interruption, with the same names.

        Raises:
            OutputError: That failed, or a file is neither here nor under its final name.
        """

    def mend(self, name: str, start: int, data: bytes, *, cut: bool = False) -> None:
        """Write bytes over those of a finished file from `start` on, durably.

        Args:
            name: The file; created if there is none.
            start: At most its size.
            data: What is written.
            cut: End the file after `data`.

        Raises:
            OutputError: That failed.
        """

    def clear(self) -> None:
        """Remove all work files; the journal goes last, for without it the others mean nothing."""

    def space(self) -> tuple[int, int]:
        """(bytes that are free, bytes of the work files)."""
