"""What a run has done so far, so that the same command resumes it where it was interrupted.

An entry is written after everything that it speaks of is on the disk, so whatever the last sound
entry states is there. An entry that was being written when the power failed is passed over; any
other damage is an error, never a guess. Entries are JSON, one to the line:

    {"check": "0f...", "entry": {"kind": "encoded", ...}}

`check` is xxh3_64 of the entry's text after the check of the line before, so a line that is
changed, missing or in another place is noticed. The kinds of entries are defined where they are
written: `preprocess.outputs`, `preprocess.count_pass` and `preprocess.encode_pass`.

Policy: about once a second the streams are brought to the disk (fdatasync) by a thread of the
journal's own, and then an entry states how long they are. The work continues meanwhile, and waits
only if a second later the disk is still not ready. Ends of stages are waited for. So a run that is
killed loses about a second of work, and one that loses its power loses no more. A disk that is
ready gets its share 16 times as often in the first second, and ever less often up to the 16th; and
after every few megabytes when the end is near: it would be most of what is waited for there.
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
    """(the line of an entry, its check), where `before` is the check of the line before."""
    text = json.dumps(msgspec.to_builtins(entry, str_keys=True), separators=(",", ":"))
    check = xxhash.xxh3_64_hexdigest((before + text).encode())
    return f'{{"check": "{check}", "entry": {text}}}\n'.encode(), check


def read_entries(content: bytes, where: str) -> Iterator[tuple[Entry, str, int]]:
    """Yield the sound entries of a journal, each with its check and the end of its line.

    Args:
        content: The whole file.
        where: Its name in messages.

    Raises:
        JournalError: A line is damaged and is not the last.
    """
    check, start = "", 0
    for number, line in enumerate(io.BytesIO(content), 1):
        found, stop = _sound(line, check), start + len(line)
        if found is not None:
            entry, check = found
            yield entry, check, stop
        elif stop < len(content):
            raise JournalError(
                f"{where}: line {number} is damaged (byte {start:,}), so what was done before"
                " is not known for certain; start anew (--overwrite)"
            )
        start = stop


def _sound(line: bytes, before: str) -> tuple[Entry, str] | None:
    """(the entry of a line, its check), or None if the line is not as it was written."""
    try:
        entry = json.loads(line)["entry"]
        written, check = _line(entry, before)
        if isinstance(entry["kind"], str) and written == line:
            return dict(entry), check
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


@contextmanager
def understanding() -> Iterator[None]:
    """Turn what is raised over an entry of unknown content into a JournalError.

    Raises:
        JournalError: That happened inside the `with`.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise JournalError(
            f"{JOURNAL_FILE}: an entry says what this tokenbin does not write ({error!r}); start"
            " anew (--overwrite)"
        ) from error


class Journal:
    """The entries of one run, and the thread that brings them to the disk.

    Args:
        storage: Holds the journal and the streams that it speaks of.

    Attributes:
        storage: As given.
        entries: Those of earlier runs of the same command, in order.
        n_entries: How many there are, those of this run included.
        seconds: The longest time between two entries that need not be waited for.

    Raises:
        JournalError: It is damaged.
    """

    def __init__(self, storage: Storage) -> None:
        self.entries: list[Entry] = []
        self.seconds = SECONDS_BETWEEN_COMMITS
        self.storage = storage
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
        """Return the entries of a kind, a tagged struct, that earlier runs wrote.

        Raises:
            JournalError: An entry is not what the struct says.
        """
        tag = kind.__struct_config__.tag
        with understanding():
            found = [entry for entry in self.entries if entry["kind"] == tag]
            return [msgspec.convert(entry, kind, str_keys=True) for entry in found]

    def last(self, kind: type[Kind]) -> Kind | None:
        """Return the last entry of a kind that earlier runs wrote; raises as `of`."""
        return next(reversed(self.of(kind)), None)

    def due(self, ends_soon: bool = False) -> bool:
        """Return True if a checkpoint is due.

        Args:
            ends_soon: The stage ends soon, and its end waits for the disk: no pause then.
        """
        now = time.monotonic()
        pause = self.seconds
        if self._under_way is None or self._under_way.done():
            pause = 0.0 if ends_soon else min(pause, max(pause, now - self._began) / 16)
        return now - self._committed >= pause

    def commit(self, entry: Mapping[str, Any] | Struct, streams: Sequence[Stream] = ()) -> None:
        """Bring streams and then an entry to the disk, soon; return before that is done.

        What streams hold at this moment has to be what the entry says of them, or more.

        Raises:
            OutputError: This or the commit before failed.
        """
        self.wait()
        self._committed = time.monotonic()
        # Made here and now: what the entry is made of changes while the thread is at work.
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
        """Wait until nothing is being written, whatever becomes of it."""
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
        # An error that is being raised says more than one of this thread would.
        self._thread.shutdown(wait=True)
        if self._stream is not None:
            self._stream.close()
            self._stream = None
