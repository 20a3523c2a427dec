"""Journal of a run: values by key, from which the same command resumes after an interruption.

A value is written once everything it describes is durable. A last line that is incomplete or
damaged is ignored; damage before it is an error. Entries are JSON, one per line:

    {"check": "0f...", "entry": {"key": "encoded 0", "value": {...}, "adds": false, "stage": null}}

`check` is the xxh3_64 of the previous check followed by the text of the entry, so it detects
changed, missing and moved lines. An entry replaces those of its key, or adds to them. When most of
the file is replaced, it is written anew with what is left, in one piece.

About once a second a thread syncs the streams (fdatasync) and then writes an entry with their
lengths. Work continues meanwhile, and waits only if the disk needs longer than a second, and at
ends of stages. So a killed process or a power cut loses about one second of encoding; counting
saves less often, see `CountPass`. In a bucket, where each sync is a request, entries are never
closer than `Storage.seconds_between_syncs`.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

import msgspec
import xxhash

from bpe.parallel import Task, Threads
from preprocess.report.progress import Stage
from preprocess.storage import JOURNAL_FILE, DamagedStateError, Storage, Stream

FORMAT_VERSION = 7
SECONDS_BETWEEN_COMMITS = 1.0
_LONG_BYTES = 1 << 20  # a shorter file is not worth writing anew

Entry = dict[str, Any]  # "key", "value", "adds" and "stage"
Value = TypeVar("Value")


class JournalError(DamagedStateError, ValueError):
    """A journal, or a file it describes, is damaged or from another version of tokenmill."""


def _line(entry: Entry, before: str) -> tuple[bytes, str]:
    """Return (line of an entry, its check); `before` is the check of the previous line."""
    text = json.dumps(entry, separators=(",", ":"))
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
        if written == line:
            return dict(entry), check
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


@contextmanager
def journal_errors(where: str = JOURNAL_FILE) -> Iterator[None]:
    """Convert errors from an entry of unexpected content inside the `with` to JournalError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise JournalError(
            f"{where}: an entry is not in the format of this version ({error!r}); finish the run"
            " with the version that began it, or start over (--overwrite)"
        ) from error


class Journal:
    """The values of one run, and the thread that writes them.

    Values are structs of msgspec or JSON. A key should be unique in its run: "encoded 0".

    Attributes:
        storage: Storage of the journal and of the streams that it describes.
        stage: The last stage that was noted, as `Stage.facts` and its "total"; None: none was.

    Raises:
        JournalError: The journal is damaged.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.stage: Any = None
        self._entries: dict[str, list[Entry]] = {}
        self._stream: Stream | None = None
        self._check, self._n_bytes, self._n_anew = "", 0, 0
        self._where = where = storage.where(JOURNAL_FILE)
        content = storage.get(JOURNAL_FILE) or b""
        for entry, self._check, self._n_bytes in read_entries(content, where):
            with journal_errors(where):
                self._note(entry)
        self._thread = Threads(1)
        self._under_way: Task[None] | None = None
        self._committed = time.monotonic()

    def _note(self, entry: Entry) -> None:
        if not entry["adds"]:
            self._entries.pop(entry["key"], None)
        self._entries.setdefault(entry["key"], []).append(entry)
        self.stage = entry["stage"] or self.stage

    @property
    def seconds(self) -> float:
        """Time between checkpoints, unless the disk is slower than that."""
        return max(SECONDS_BETWEEN_COMMITS, self.storage.seconds_between_syncs)

    @property
    def keys(self) -> list[str]:
        """The keys that have a value, in the order in which they got their first."""
        return [*self._entries]

    def values(self, key: str, kind: type[Value]) -> list[Value]:
        """Return the values of a key, decoded to `kind`: the last one, or those that were added.

        Raises:
            JournalError: A value cannot be decoded.
        """
        with journal_errors(self._where):
            found = [entry["value"] for entry in self._entries.get(key, ())]
            return [msgspec.convert(value, kind, str_keys=True) for value in found]

    def value(self, key: str, kind: type[Value]) -> Value | None:
        """Return the last value of a key, or None; raises as `values`."""
        return next(reversed(self.values(key, kind)), None)

    @property
    def is_long(self) -> bool:
        """True if the next entry is written with all others: one that adds should replace them."""
        return self._n_bytes > max(_LONG_BYTES, 2 * self._n_anew)

    def due(self) -> bool:
        """Return True if a checkpoint is due."""
        return time.monotonic() - self._committed >= self.seconds

    def submit(
        self, key: str, value: Any, streams: Sequence[Stream] = (), *, adds: bool = False,
        stage: Stage | None = None,
    ) -> None:
        """Start to sync streams, then to write a value that describes them.

        It replaces the value of its key, or `adds` to its values. `stage` is the one that the run
        is in, for `tokenmill inspect`. Raises OutputError if the last write failed.
        """
        self.wait()
        self._committed = time.monotonic()
        # Converted here, for the caller changes the value while the thread works.
        value = msgspec.to_builtins(value, str_keys=True)
        shown = None if stage is None else stage.facts() | {"total": stage.total}
        entry = {"key": key, "value": value, "adds": adds, "stage": shown}
        self._note(entry)
        self._under_way = self._thread.submit(self._write, entry, streams)

    def wait(self) -> None:
        """Wait until the last entry is durable; raise OutputError if writing it failed."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def rest(self) -> None:
        """Wait until the last write has ended; ignore its error."""
        if self._under_way is not None:
            self._under_way.wait()

    def save(
        self, key: str, value: Any, streams: Sequence[Stream] = (), *, adds: bool = False,
        stage: Stage | None = None,
    ) -> None:
        """Submit a value, and wait until it is durable; arguments and errors as of `submit`."""
        self.submit(key, value, streams, adds=adds, stage=stage)
        self.wait()

    def _write(self, entry: Entry, streams: Sequence[Stream]) -> None:
        for stream in streams:
            stream.sync()
        if self.is_long:
            self._close()
            lines, self._check = bytearray(), ""
            for each in [x for of in self._entries.values() for x in of]:
                line, self._check = _line(each, self._check)
                lines += line
            self.storage.put(JOURNAL_FILE, bytes(lines))
            self._n_bytes = self._n_anew = len(lines)
            return
        line, self._check = _line(entry, self._check)
        if self._stream is None:
            self._stream = self.storage.stream(JOURNAL_FILE, self._n_bytes)
        self._stream.append(memoryview(line))
        self._stream.sync()
        self._n_bytes += len(line)

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # An error of the thread is dropped: another one is raised already, or nobody waited.
        self.rest()
        self._thread.close()
        self._close()
