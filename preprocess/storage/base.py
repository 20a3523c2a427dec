"""Protocols of a storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

from preprocess.storage.files import Files

JOURNAL_FILE = "journal.jsonl"
# Run name of a repair; names of other runs do not begin with a dot.
REPAIR = ".repair"

# End of the names of token files that are read again by the same run, and never published.
IN_ORDER = "-in-order"

LARGEST_OBJECT = 5 * 10**9  # bytes that a bucket takes in one request, of all services


class Stream(Protocol):
    """An append-only file; methods raise `OutputError` if writing fails.

    Attributes:
        n_bytes: Length, including bytes that are not durable yet.
    """

    n_bytes: int

    def append(self, data: memoryview) -> None:
        """Append bytes."""

    def begin_sync(self) -> None:
        """Let the disk begin to write appended bytes, without waiting for it."""

    def sync(self) -> None:
        """Make appended bytes durable; another thread may append meanwhile.

        Does nothing on a closed stream, so sync before closing.
        """

    def finish(self, n_bytes: int) -> None:
        """Sync and close a file that is complete, and of which the first `n_bytes` remain.

        The others are kept until the file is opened with that length. The storage may return before
        the bytes are durable, if they are so before an entry of the journal that is written later.
        """

    def close(self) -> None:
        """Close the file, also while another thread syncs; may be called more than once."""


class Storage(Files, Protocol):
    """Work files of one run, and finished files of its location; writes create both places.

    The context manager locks the location, and raises `OutputError` if another process holds the
    lock. All methods that write raise `OutputError` on failure.

    Attributes:
        final: Files under their final names.
        keeps_finished: True if finished files of streams take local space until they are published.
    """

    final: Files
    keeps_finished: bool

    @property
    def seconds_between_syncs(self) -> float:
        """Streams are synced no more often, unless a stage of the run ends."""

    def __enter__(self) -> Self:
        """Take the lock."""

    def __exit__(self, kind: object, error: object, traceback: object, /) -> None:
        """Release the lock."""

    def check_writable(self) -> None:
        """Raise `OutputError` if the location cannot be written; called before a run begins."""

    def runs(self) -> list[str]:
        """Return the names of runs with work files in this location, sorted."""

    def stream(self, name: str, n_bytes: int = 0) -> Stream:
        """Open a stream truncated to `n_bytes`; raise DamagedStateError if it is shorter."""

    def put(self, name: str, data: bytes) -> None:
        """Write a whole file durably and atomically."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""

    def publish(
        self, names: Sequence[str], last: Sequence[str] = (), gone: Sequence[str] = ()
    ) -> None:
        """Give files their final names: `names`, then `last`, which describe the others.

        Finished files in `last` are removed first, then those in `gone`. After an interruption it
        may be called again with the same names.
        """

    def remove_finished(self, names: Sequence[str]) -> None:
        """Remove files under their final names, in this order: manifests first.

        Whoever locks the location next completes a removal that was interrupted.
        """

    def clear(self) -> None:
        """Remove all work files, the journal last, so an interrupted removal can be repeated."""

    def space(self) -> tuple[int, int]:
        """Return (free bytes of the local disk, bytes of the work files there)."""
