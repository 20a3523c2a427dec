r"""Text files; documents are what stands between separators.

Law: the documents are `text.split(separator)`, byte for byte, wherever the file is cut. A unit ends

- inside a document, where a cut changes no pre-token, splits no special token and touches no
  separator: then both sides have text of that document; or
- just behind a separator, one that is certain to be a separator even where separators could overlap
  ("\n\n" in "\n\n\n"); or
- at the end of the file.

A stretch without such a place is one unit, however long. Where something must be known of a whole
document before any part of it can be used (validation, leaving out what is not UTF-8), units hold
whole documents, and one that is longer than a unit is looked at while planning, part by part.

Files are read, not mapped: into memory that is used again that costs less than to map a file, page
by page, and to give the map back; and where a mapped file is truncated, or the disk cannot read it,
the process is killed with SIGBUS, and nothing can catch that. Each file's size and time are
compared before and after whatever is read of it, and when a unit is done with.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from preprocess.documents import (
    Bytes,
    ChangedError,
    CorpusError,
    DocumentBatch,
    InValidation,
    Reading,
    UnavailableError,
    between,
    prepare,
    replace_invalid,
)
from preprocess.reused_memory import ReusedMemory

# How far is looked at a time for a place to cut; a signal waits for no longer than this takes.
_WINDOW_BYTES = 64 * 1024
# How far is looked at a time for the end of a long document.
_STRIDE_BYTES = 1024 * 1024
# No character has more bytes.
_CHARACTER_BYTES = 4


class Ends(Enum):
    """Where a unit ends."""

    INSIDE = "inside a document"
    BETWEEN = "just behind a separator"
    FILE = "at the end of the file"


@dataclass(frozen=True)
class TextUnit:
    """Bytes [start, stop) of a text file.

    Attributes:
        source: The file.
        memory: For what is read of it; it lives as long as a unit needs it.
        start: Where it starts: at the start of the file, behind a separator or inside a document.
        stop: Where it stops.
        begins_inside: Whether it starts inside a document.
        ends: Where it ends.
        in_validation: For a part of a long document: whether the document belongs to validation.
        skipped: For a part of a long document: whether the document is left out.
    """

    source: TextSource
    memory: ReusedMemory
    start: int
    stop: int
    begins_inside: bool
    ends: Ends
    in_validation: bool | None = None
    skipped: bool = False
    # What was read, until its content is asked for: [] or [uint8[n_bytes]].
    _read: list[Bytes] = field(default_factory=list, repr=False, compare=False)

    @property
    def n_bytes(self) -> int:
        """Bytes of the file that it stands for."""
        return self.stop - self.start

    @property
    def where(self) -> str:
        """The file and the bytes."""
        return f"{self.source.path}, bytes {self.start:,} to {self.stop:,}"

    @property
    def after(self) -> list[Any] | None:
        """Where the next unit starts; where that is inside a document, what is decided about it."""
        if self.ends is Ends.FILE:
            return None
        inside = self.ends is Ends.INSIDE
        decided = (self.in_validation, self.skipped) if inside else (None, False)
        return [int(self.stop), inside, *decided]

    def content(self) -> Bytes:
        """Bytes [start, stop) of the file: what `read` has read, if it has."""
        # The last unit of a file is followed by no look at it but this.
        self.source.check_unchanged()
        return self._read.pop() if self._read else self._content()

    def _content(self) -> Bytes:
        return self.source.read(self.start, self.stop, self.memory)

    def read(self) -> DocumentBatch:
        """Its documents, or parts of documents."""
        content = self._content()
        self._read[:] = [content]
        starts, ends = between(content, self.source.separator)
        if self.ends is Ends.BETWEEN:
            # What follows the last separator belongs to the next unit.
            starts, ends = starts[:-1], ends[:-1]
        continued = self.ends is Ends.INSIDE
        if self.skipped:
            # Behind the long document's end there can only be the empty document at the end of the
            # file.
            nothing = DocumentBatch(content[:0], np.zeros(0, np.int64))
            if continued:
                return nothing
            return DocumentBatch(
                nothing.buffer, nothing.bounds, n_skipped=1, n_empty=len(starts) - 1
            )
        return prepare(
            content,
            starts,
            ends,
            self.source.reading,
            lambda position: f"{self.source.path}: byte {self.start + position:,}",
            continues=self.begins_inside,
            continued=continued,
            in_validation=self.in_validation,
        )


class TextSource:
    """One text file.

    Args:
        path: The file.
        name: What the manifest calls it.
        reading: How it is read.

    Raises:
        CorpusError: There is no such file, or it cannot be read.
    """

    def __init__(self, path: Path, name: str, reading: Reading) -> None:
        self.path = path
        self.name = name
        self.reading = reading
        self.separator = reading.separator
        try:
            state = os.stat(path)
            if not stat.S_ISREG(state.st_mode):
                raise CorpusError(
                    f"{path}: a text file or a directory is expected, and this is neither (pipes"
                    " and devices cannot be read twice); save the text to a file"
                )
            with open(path, "rb"):
                pass
        except FileNotFoundError:
            raise CorpusError(f"{path}: no such file or directory; check the path") from None
        except OSError as error:
            raise CorpusError(
                f"{path}: cannot be read: {error.strerror}; make it readable or leave it out"
            ) from error
        self._state = _identity(state)
        self.n_bytes = state.st_size
        self.stamp = f"modified {state.st_mtime_ns}"
        self.location = os.path.realpath(path)

    def __repr__(self) -> str:
        return f"TextSource({str(self.path)!r}: {self.n_bytes:,} bytes)"

    def check_unchanged(self) -> None:
        """Compare the file's size, time and identity with those it was found with.

        Raises:
            ChangedError: They differ.
            UnavailableError: They cannot be found out.
        """
        with self._being_there():
            unchanged = _identity(os.stat(self.path)) == self._state
        if not unchanged:
            raise self._changed()

    def _changed(self) -> ChangedError:
        return ChangedError(
            f"{self.path}: was changed, replaced or removed while it was being read; run the"
            " command again when nothing writes to it"
        )

    def units(self, after: list[Any] | None = None) -> Iterator[TextUnit]:
        """Cut the file into units; a file of zero bytes is one unit of zero bytes."""
        start, *decided = after or [0, False, None, False]
        if self.reading.decides_by_document:
            return self._units_of_whole_documents(start, *decided)
        return self._units_anywhere(start, decided[0])

    def content_before(self, place: list[Any]) -> Iterator[Bytes]:
        """The bytes of the file before a place."""
        memory = _memory()
        for start in range(0, place[0], _STRIDE_BYTES):
            yield self.read(start, min(start + _STRIDE_BYTES, place[0]), memory)

    def read(self, start: int, stop: int, memory: ReusedMemory) -> Bytes:
        """uint8[stop - start], read-only, in this memory: bytes [start, stop) of the file.

        Raises:
            ChangedError: The file is not as it was found, before they were read or afterwards.
            UnavailableError: They cannot be read.
        """
        content = memory.array(stop - start)
        left = content.data
        file = self._open()
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
        # Before anybody finds fault with it: what was written meanwhile is no text of this file.
        self.check_unchanged()
        if left:
            raise self._changed()
        content.flags.writeable = False
        return content

    def _open(self) -> io.FileIO:
        # A pipe that stands there now would be waited for.
        self.check_unchanged()
        with self._being_there():
            return open(self.path, "rb", buffering=0)

    @contextmanager
    def _being_there(self) -> Iterator[None]:
        """Turn a failure to find the file, where it was before, into an error that says so."""
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise self._changed() from None
        except OSError as error:
            raise UnavailableError(
                f"{self.path}: cannot be opened any more: {error.strerror}; see to that and run the"
                " same command again"
            ) from error

    def _units_anywhere(self, start: int, begins_inside: bool) -> Iterator[TextUnit]:
        """Units that may end inside documents: little is read but the places to cut at."""
        memory = _memory()
        cutter = _Cutter(self, memory)
        while True:
            stop, ends = cutter.cut(start + self.reading.unit_size)
            yield TextUnit(self, memory, start, stop, begins_inside, ends)
            if ends is Ends.FILE:
                return
            start, begins_inside = stop, ends is Ends.INSIDE

    def _units_of_whole_documents(
        self,
        start: int,
        begins_inside: bool,
        in_validation: bool | None,
        skipped: bool,
    ) -> Iterator[TextUnit]:
        """Units of whole documents, and parts of those that are longer than a unit."""
        memory = _memory()
        cutter = _Cutter(self, memory)
        unit_size, n = self.reading.unit_size, self.n_bytes
        if begins_inside:
            start = yield from self._parts(cutter, memory, start, (in_validation, skipped))
            if start == n:
                return
        while start + unit_size < n:
            # A document starts at `start`, so separators found from there are the true ones.
            starts, _ = between(self.read(start, start + unit_size, memory), self.separator)
            if len(starts) > 1:
                stop = start + int(starts[-1])
                yield TextUnit(self, memory, start, stop, False, Ends.BETWEEN)
            else:
                stop = yield from self._parts(cutter, memory, start)
                if stop == n:
                    return
            start = stop
        yield TextUnit(self, memory, start, n, False, Ends.FILE)

    def _parts(
        self,
        cutter: _Cutter,
        memory: ReusedMemory,
        start: int,
        decided: tuple[bool | None, bool] | None = None,
    ) -> Generator[TextUnit, None, int]:
        """The parts of a long document from `start` on; returns where the next document starts.

        `start` is where the document starts, or where an earlier run cut it; then it is `decided`.
        """
        end, stop = cutter.end_of_document(start)
        cuts = [start]
        while (cut := cutter.cut_inside(cuts[-1] + self.reading.unit_size, end)) < end:
            cuts.append(cut)
        in_validation, skipped = decided or self._decide([*cuts, end], memory)
        for place, (part_start, part_stop) in enumerate(pairwise([*cuts, stop])):
            if part_stop < end:
                ends = Ends.INSIDE
            else:
                ends = Ends.FILE if stop == self.n_bytes else Ends.BETWEEN
            yield TextUnit(
                self,
                memory,
                part_start,
                part_stop,
                place > 0 or decided is not None,
                ends,
                in_validation,
                skipped,
            )
        return stop

    def _decide(self, cuts: list[int], memory: ReusedMemory) -> tuple[bool | None, bool]:
        """(in_validation, skipped) of a document, of which one part is looked at at a time."""
        from bpe.pretokenize import is_utf8

        reading = self.reading
        in_validation = InValidation(reading.validation_fraction)
        for start, stop in pairwise(cuts):
            part = self.read(start, stop, memory)
            if reading.on_invalid_utf8 != "error" and not is_utf8(part):
                if reading.on_invalid_utf8 == "skip":
                    return None, True
                part = np.frombuffer(replace_invalid(part.tobytes())[0], np.uint8)
            in_validation.add_part(part)
        return in_validation.of_parts(), False


def _memory() -> ReusedMemory:
    """For the units of one file: those that are under way, with many workers, or large ones."""
    return ReusedMemory(limit=256, largest=1 << 26)


def _identity(state: os.stat_result) -> tuple[int, int, int]:
    return state.st_size, state.st_mtime_ns, state.st_ino


class _Cutter:
    """Finds places to cut a file at; see the module's law."""

    def __init__(self, source: TextSource, memory: ReusedMemory) -> None:
        from bpe.pretokenize import Pretokenizer

        self._source, self._memory = source, memory
        self._separator = source.separator
        self._uncut = [needle for needle in source.reading.uncut if len(needle) > 1]
        self._safe_cut = source.reading.safe_cut or Pretokenizer("gpt2").safe_cut
        # What stands around a place may have to be known as well: a separator that ends there, and
        # one that runs into that.
        longest = max(map(len, [self._separator, *self._uncut]))
        self._around = 2 * longest + _CHARACTER_BYTES
        # What was read last, and where it begins.
        self._window_start, self._window = 0, np.empty(0, np.uint8)

    def cut(self, position: int) -> tuple[int, Ends]:
        """A place at or behind `position`, the first found: in a document or behind a separator."""
        n = self._source.n_bytes
        while position < n:
            stop = min(position + _WINDOW_BYTES, n)
            place = self._safe_place(position, stop)
            if place < stop:
                touching = self._separator_that_touches(place)
                if touching < 0 and not self._splits_special_token(place):
                    return place, Ends.INSIDE
                candidates: Iterable[int] = [touching] if touching >= 0 else []
                position = place + 1
            else:
                candidates = self._occurrences(self._separator, position, stop)
                position = stop
            for candidate in candidates:
                behind = candidate + len(self._separator)
                if behind < n and self._is_separator(candidate):
                    return behind, Ends.BETWEEN
        return n, Ends.FILE

    def cut_inside(self, position: int, stop: int) -> int:
        """A place at or behind `position` inside the document that ends at `stop`; else `stop`."""
        while position < stop:
            window_stop = min(position + _WINDOW_BYTES, stop)
            place = self._safe_place(position, window_stop)
            if place == window_stop:
                position = window_stop
                continue
            if self._separator_that_touches(place) < 0 and not self._splits_special_token(place):
                return place
            position = place + 1
        return stop

    def end_of_document(self, start: int) -> tuple[int, int]:
        """(end, start of the next) of the document that starts at `start`."""
        n = self._source.n_bytes
        overlap = max(len(self._separator) - 1, 0)
        position = start
        while position < n and self._separator:
            stride = self._bytes(position, position + _STRIDE_BYTES + overlap)
            _, ends = between(stride, self._separator)
            if len(ends) > 1:
                end = position + int(ends[0])
                return end, end + len(self._separator)
            position += _STRIDE_BYTES
        return n, n

    def _safe_place(self, position: int, stop: int) -> int:
        """The first place in [position, stop) where a cut changes no pre-token; else `stop`."""
        first = max(position - _CHARACTER_BYTES, 0)
        return first + self._safe_cut(self._bytes(first, stop), position - first, stop - first)

    def _bytes(self, start: int, stop: int) -> Bytes:
        """uint8: bytes [start, stop) of the file, those that it has."""
        start, stop = max(start, 0), min(stop, self._source.n_bytes)
        if not self._window_start <= start <= stop <= self._window_start + len(self._window):
            first = max(start - self._around, 0)
            # And a window more: behind a place that is none to cut at, the next is often near.
            end = min(stop + self._around + _WINDOW_BYTES, self._source.n_bytes)
            self._window = self._source.read(first, end, self._memory)
            self._window_start = first
        return self._window[start - self._window_start : stop - self._window_start]

    def _occurrences(self, needle: bytes, start: int, stop: int) -> Iterator[int]:
        """Every place in [start, stop) where `needle` begins, overlapping or not."""
        if not needle:
            return
        start = max(start, 0)
        data = self._bytes(start, stop + len(needle) - 1).tobytes()
        found = data.find(needle)
        while found >= 0:
            yield start + found
            found = data.find(needle, found + 1)

    def _separator_that_touches(self, place: int) -> int:
        """Where a separator begins that ends at, begins at or runs through `place`; else -1."""
        return next(self._occurrences(self._separator, place - len(self._separator), place + 1), -1)

    def _is_separator(self, candidate: int) -> bool:
        """Whether a scan from the left takes the occurrence at `candidate`: none runs into it."""
        before = self._occurrences(self._separator, candidate - len(self._separator) + 1, candidate)
        return next(before, -1) < 0

    def _splits_special_token(self, place: int) -> bool:
        return any(
            next(self._occurrences(needle, place - len(needle) + 1, place), -1) >= 0
            for needle in self._uncut
        )
