"""What a run has done so far, so that the same command resumes it where it was interrupted.

An entry is written after everything that it describes is on the disk. A last line that is
incomplete is passed over; any other damage is an error. Entries are JSON, one per line:

    {"check": "0f...", "entry": {"kind": "encoded", ...}}

`check` is the xxh3_64 of the previous check and the entry's text, so a line that is changed,
missing or moved is noticed. The kinds of entries are defined where they are written:
`preprocess.run.outputs`, `preprocess.run.count_pass` and `preprocess.run.encode_pass`.

Policy: about once a second a thread of the journal syncs the streams (fdatasync) and then writes an
entry with their lengths. The work continues meanwhile, and waits only if the disk is not ready a
second later, and at ends of stages. So a killed process or a power cut loses about one second of
work. A disk that is ready is used 16 times as often in the first second, ever less often up to the
16th, and after every few megabytes near the end, where the rest would have to be waited for.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import msgspec
import xxhash
from msgspec import Struct

from preprocess.storage import JOURNAL_FILE, DamagedStateError, Storage, Stream

FORMAT_VERSION = 2
SECONDS_BETWEEN_COMMITS = 1.0

Entry = dict[str, Any]
Kind = TypeVar("Kind", bound=Struct)


class JournalError(DamagedStateError, ValueError):
    """A journal, or what it tells of, is damaged or from another version of tokenbin."""


def _line(entry: Mapping[str, Any] | Struct, before: str) -> tuple[bytes, str]:
    """Return (the line of an entry, its check); `before` is the check of the line before."""
    text = json.dumps(msgspec.to_builtins(entry, str_keys=True), separators=(",", ":"))
    check = xxhash.xxh3_64_hexdigest((before + text).encode())
    return f'{{"check": "{check}", "entry": {text}}}\n'.encode(), check


def read_entries(content: bytes, where: str) -> Iterator[tuple[Entry, str, int]]:
    """Yield the entries of a journal's content, each with its check and the end of its line.

    Raises:
        JournalError: A line is damaged and is not the last; `where` names the file.
    """
    check, start = "", 0
    for number, line in enumerate(io.BytesIO(content), 1):
        found, stop = _sound(line, check), start + len(line)
        if found is not None:
            entry, check = found
            yield entry, check, stop
        elif stop < len(content):
            raise JournalError(
                f"{where}: line {number} is damaged (byte {start:,}), so earlier progress"
                " is uncertain; start over (--overwrite)"
            )
        start = stop


def _sound(line: bytes, before: str) -> tuple[Entry, str] | None:
    """Return (the entry of a line, its check), or None if the line is damaged."""
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
    """Turn what an entry of unknown content raises inside the `with` into a JournalError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise JournalError(
            f"{JOURNAL_FILE}: an entry is not in the format of this version ({error!r}); start"
            " over (--overwrite)"
        ) from error


class Journal:
    """The entries of one run, and the thread that writes them to the disk.

    Attributes:
        storage: Holds the journal and the streams that it describes.
        entries: Those of earlier runs of the same command, in order.
        n_entries: Number of entries, those of this run included.
        seconds: The longest time between two entries that need not be waited for.

    Raises:
        JournalError: It is damaged.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage, self.seconds = storage, SECONDS_BETWEEN_COMMITS
        self.entries: list[Entry] = []
        self._stream: Stream | None = None
        self._check, self._n_bytes = "", 0
        content = storage.get(JOURNAL_FILE) or b""
        for entry, self._check, self._n_bytes in read_entries(content, JOURNAL_FILE):
            self.entries.append(entry)
        self.n_entries = len(self.entries)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenbin-journal")
        self._under_way: Future[None] | None = None
        self._began = self._committed = time.monotonic()

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Return the entries of a kind (a tagged struct) of earlier runs.

        Raises:
            JournalError: An entry is not what the struct says.
        """
        tag = kind.__struct_config__.tag
        with journal_errors():
            found = [entry for entry in self.entries if entry["kind"] == tag]
            return [msgspec.convert(entry, kind, str_keys=True) for entry in found]

    def last(self, kind: type[Kind]) -> Kind | None:
        """Return the last entry of a kind of earlier runs; raises as `of`."""
        return next(reversed(self.of(kind)), None)

    def due(self, ends_soon: bool = False) -> bool:
        """Return True if a checkpoint is due; without a pause if the stage ends soon."""
        now = time.monotonic()
        pause = self.seconds
        if self._under_way is None or self._under_way.done():
            pause = 0.0 if ends_soon else min(pause, max(pause, now - self._began) / 16)
        return now - self._committed >= pause

    def commit(self, entry: Mapping[str, Any] | Struct, streams: Sequence[Stream] = ()) -> None:
        """Sync streams, which hold at least what the entry states, and write it; do not wait.

        Raises:
            OutputError: The commit before failed.
        """
        self.wait()
        self._committed = time.monotonic()
        # The line is made here: the entry changes while the thread is at work.
        self._under_way = self._thread.submit(self._write, *_line(entry, self._check), streams)

    def wait(self) -> None:
        """Wait until what was committed is on the disk.

        Raises:
            OutputError: It could not be written.
        """
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def rest(self) -> None:
        """Wait until nothing is being written; ignore errors."""
        if self._under_way is not None:
            self._under_way.exception()

    def append(self, entry: Mapping[str, Any] | Struct, streams: Sequence[Stream] = ()) -> None:
        """Commit, and wait until that is done."""
        self.commit(entry, streams)
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
        # An error of the thread is dropped: there is another one, or nothing was waited for.
        self._thread.shutdown(wait=True)
        if self._stream is not None:
            self._stream.close()
            self._stream = None
