"""Journal of a run: checkpoints, from which the same command resumes after an interruption.

An entry is written once everything it describes is durable. A last line that is incomplete or
damaged is ignored; damage before it is an error. Entries are JSON, one per line:

    {"check": "0f...", "entry": {"kind": "encoded", ...}}

`check` is the xxh3_64 of the previous check followed by the text of the entry, so it detects
changed, missing and moved lines. The modules that write entries define their kinds: `outputs`,
`select_pass`, `count_pass` and `encode_pass` of this package.

About once a second a journal thread syncs the streams (fdatasync) and then writes an entry with
their lengths. Work continues meanwhile, and waits only if the disk needs longer than a second, and
at ends of stages. So a killed process or a power cut loses about one second of encoding; counting
saves less often, see `CountPass`. While the disk is idle, checkpoints are more frequent: every 1/16
s in the first second, less often until the 16th, and every few megabytes near the end. In a bucket,
where each sync is a request, they are never closer than `Storage.seconds_between_syncs`.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import msgspec
import xxhash
from msgspec import Struct

from bpe.parallel import Task, Threads
from preprocess.storage import JOURNAL_FILE, DamagedStateError, OutputError, Storage, Stream

FORMAT_VERSION = 4
SECONDS_BETWEEN_COMMITS = 1.0

Entry = dict[str, Any]
Kind = TypeVar("Kind", bound=Struct)


class JournalError(DamagedStateError, ValueError):
    """A journal, or a file it describes, is damaged or from another version of tokenmill."""


def _line(entry: Mapping[str, Any] | Struct, before: str) -> tuple[bytes, str]:
    """Return (line of an entry, its check); `before` is the check of the previous line."""
    text = json.dumps(msgspec.to_builtins(entry, str_keys=True), separators=(",", ":"))
    check = xxhash.xxh3_64_hexdigest((before + text).encode())
    return f'{{"check": "{check}", "entry": {text}}}\n'.encode(), check


def read_entries(content: bytes, where: str) -> Iterator[tuple[Entry, str, int]]:
    """Yield (entry, its check, end offset of its line) for each entry of a journal.

    Raises:
        JournalError: A line other than the last is damaged; `where` names the file.
    """
    check, start = "", 0
    for number, line in enumerate(io.BytesIO(content), 1):
        found, stop = _parse_line(line, check), start + len(line)
        if found is not None:
            entry, check = found
            yield entry, check, stop
        elif stop < len(content):
            raise JournalError(
                f"{where}: line {number} is damaged (byte {start:,}), so earlier progress"
                " is uncertain; start over (--overwrite)"
            )
        start = stop


def _parse_line(line: bytes, before: str) -> tuple[Entry, str] | None:
    """Return (entry of a line, its check), or None if the line is damaged."""
    try:
        entry = json.loads(line)["entry"]
        written, check = _line(entry, before)
        if isinstance(entry["kind"], str) and written == line:
            return dict(entry), check
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


@contextmanager
def journal_errors() -> Iterator[None]:
    """Convert errors from an entry of unexpected content inside the `with` to JournalError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise JournalError(
            f"{JOURNAL_FILE}: an entry is not in the format of this version ({error!r}); start"
            " over (--overwrite)"
        ) from error


class Journal:
    """The entries of one run, and the thread that writes them.

    Attributes:
        storage: Storage of the journal and of the streams that it describes.
        entries: Entries of earlier runs of the same command, in order.
        n_entries: Number of entries, including those of this run.
        seconds: Time between checkpoints, unless the disk is idle or slower than that.

    Raises:
        JournalError: The journal is damaged.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.seconds = max(SECONDS_BETWEEN_COMMITS, storage.seconds_between_syncs)
        self.entries: list[Entry] = []
        self._stream: Stream | None = None
        self._check, self._n_bytes = "", 0
        content = storage.get(JOURNAL_FILE) or b""
        for entry, self._check, self._n_bytes in read_entries(content, JOURNAL_FILE):
            self.entries.append(entry)
        self.n_entries = len(self.entries)
        self._thread = Threads(1)
        self._under_way: Task[None] | None = None
        self._began = self._committed = time.monotonic()

    def entries_of(self, kind: type[Kind]) -> list[Kind]:
        """Return the entries of earlier runs with the tag of `kind`, decoded to it.

        Raises:
            JournalError: An entry cannot be decoded.
        """
        tag = kind.__struct_config__.tag
        with journal_errors():
            found = [entry for entry in self.entries if entry["kind"] == tag]
            return [msgspec.convert(entry, kind, str_keys=True) for entry in found]

    def last(self, kind: type[Kind]) -> Kind | None:
        """Return the last entry of one kind of earlier runs, or None; raises as `entries_of`."""
        return next(reversed(self.entries_of(kind)), None)

    def due(self, ends_soon: bool = False) -> bool:
        """Return True if a checkpoint is due: always if the disk is idle and `ends_soon`."""
        now = time.monotonic()
        pause = self.seconds
        if self._under_way is None or self._under_way.is_done:
            pause = 0.0 if ends_soon else min(pause, max(pause, now - self._began) / 16)
            pause = max(pause, self.storage.seconds_between_syncs)
        return now - self._committed >= pause

    def submit(self, entry: Mapping[str, Any] | Struct, streams: Sequence[Stream] = ()) -> None:
        """Start to sync streams, then to write their entry; raise if the last write failed."""
        self.wait()
        self._committed = time.monotonic()
        # Formatted here, for the caller changes the entry while the thread works.
        self._under_way = self._thread.submit(self._write, *_line(entry, self._check), streams)

    def wait(self) -> None:
        """Wait until the last entry is durable; raise OutputError if writing it failed."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def rest(self) -> None:
        """Wait until the last write has ended; ignore its error."""
        if self._under_way is not None:
            self._under_way.wait()

    def append(self, entry: Mapping[str, Any] | Struct, streams: Sequence[Stream] = ()) -> None:
        """Submit an entry, and wait until it is durable; raises as `wait`."""
        self.submit(entry, streams)
        self.wait()

    def _write(self, line: bytes, check: str, streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.sync()
        if self._stream is None:
            self._stream = self.storage.stream(JOURNAL_FILE, self._n_bytes)
        self._stream.append(memoryview(line))
        self._stream.sync()
        self._check = check
        self.n_entries += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # An error of the thread is dropped: another one is raised already, or nobody waited.
        self.rest()
        self._thread.close()
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def open_journal(storage: Storage, begun: Struct, what: str, overwrite: bool) -> Journal:
    """Open the journal of an unfinished run, or an empty one.

    Args:
        storage: Storage of the run.
        begun: First entry of the run, which has its inputs; the caller writes it.
        what: Outputs of the run, for messages.
        overwrite: True to discard an unfinished run with other inputs, or a damaged one.

    Raises:
        OutputError: There is an unfinished run with other inputs.
        JournalError: The journal is damaged.
    """
    try:
        journal = Journal(storage)
        if not journal.entries:
            storage.clear()  # what is left of an interrupted removal
            return journal
        if journal.last(type(begun)) == begun:
            return journal
    except JournalError:
        if not overwrite:
            raise
    if not overwrite:
        raise OutputError(
            f"{storage.where()}: an unfinished run of other {what} exists; run its command to"
            " finish it, choose another directory, or start over (--overwrite)"
        )
    storage.clear()
    return Journal(storage)
