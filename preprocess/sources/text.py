r"""Text files: documents are `text.split(separator)`, independent of work units.

A unit ends

- inside a document, where a cut changes no pre-token, splits no special token and touches no
  separator;
- after a separator, unambiguous even if separators could overlap ("\n\n" in "\n\n\n");
- at the end of the file.

Text without such a position is one unit, of any length. If a decision depends on a whole document
(validation, skipping invalid UTF-8), units hold whole documents; a document longer than a unit is
read in parts for the decision before its units are yielded. If documents are filtered
or selected, none is divided.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Generator, Iterator, Sequence
from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from msgspec import structs

from preprocess.documents.batch import (
    DocumentBatch,
    ReadOptions,
    SafeCut,
    prepare,
    replace_invalid,
    validation_limit,
)
from preprocess.sources.base import ResumePoint, Source, WorkUnit
from preprocess.sources.text_file import Array, Bytes, InputFile, new_array

_WINDOW_BYTES = 64 * 1024  # searched for a cut at a time, so that signals are handled
_STRIDE_BYTES = 1024 * 1024  # searched at a time for a separator
_CHARACTER_BYTES = 4  # maximum length of a character in UTF-8


class Ends(Enum):
    """Kinds of the end of a unit."""

    INSIDE = "inside a document"
    BETWEEN = "just after a separator"
    FILE = "at the end of the file"


class TextUnit(WorkUnit, frozen=True):
    """Bytes [start, stop) of a text file, starting after a separator or inside a document.

    `in_validation` and `skipped` are the decisions for the document of which the unit is a part.
    """

    begins_inside: bool
    ends: Ends
    in_validation: bool | None = None
    skipped: bool = False

    @property
    def after(self) -> ResumePoint | None:
        if super().after is None:
            return None
        inside = self.ends is Ends.INSIDE
        decided = (self.in_validation, self.skipped) if inside else (None, False)
        return [int(self.stop), inside, *decided]

    def read(self, array: Array = new_array) -> DocumentBatch:
        from bpe.text.spans import find_pieces

        content = self.content(array)
        starts, ends = find_pieces(content, self.reading.separator)
        if self.ends is Ends.BETWEEN:
            # Text after the last separator belongs to the next unit.
            starts, ends = starts[:-1], ends[:-1]
        ends_inside = self.ends is Ends.INSIDE
        n_ended = len(starts) - (self.ends is not Ends.BETWEEN)  # by separators
        if self.skipped:
            # Only an empty document at the end of the file can follow the long one.
            n_skipped, n_empty = (0, 0) if ends_inside else (1, len(starts) - 1)
            nothing = DocumentBatch(content[:0], np.zeros(0, np.int64), content=content)
            return structs.replace(
                nothing, n_empty=n_empty, n_skipped=n_skipped, n_records=n_ended,
                numbers=nothing.bounds,
            )
        bounds = np.stack([starts, ends], axis=1).ravel()
        batch = DocumentBatch(
            content, bounds, self.begins_inside, ends_inside, n_records=n_ended, content=content
        )
        return prepare(batch, self.reading, self.byte, self.in_validation)


class TextSource(Source):
    """One text file."""

    has_fields = False

    def __init__(self, file: InputFile, name: str, reading: ReadOptions) -> None:
        if reading.separator in (b"\n", b"\n\n"):
            begins = file.begins(_WINDOW_BYTES)
            # Of Windows: all lines end so.
            if b"\r\n" in begins and not re.search(rb"(?<!\r)\n", begins):
                separator = reading.separator.replace(b"\n", b"\r\n")
                reading = structs.replace(reading, separator=separator)
        super().__init__(file, name, reading)
        self.separator = reading.separator

    def units(self, after: ResumePoint | None = None) -> Iterator[TextUnit]:
        # A file of zero bytes is one unit of zero bytes.
        start, begins_inside, *decided = after or [self.begin, False]
        reading = self.reading
        if reading.validation_fraction or reading.on_invalid_utf8 == "skip" or reading.keeps_whole:
            yield from self._units_of_whole_documents(start, decided if begins_inside else [])
            return
        cutter, ends = self._cutter(), Ends.BETWEEN
        while ends is not Ends.FILE:
            stop, ends = cutter.cut(start + reading.unit_size)
            yield self._unit(start, stop, ends, begins_inside)
            start, begins_inside = stop, ends is Ends.INSIDE

    def start_of_document(self, position: int) -> int:
        return self._cutter().start_of_document(position)

    def _cutter(self) -> Cutter:
        return Cutter(self.file, self.separator, self.reading.atomic, self.reading.safe_cut)

    def _unit(
        self, start: int, stop: int, ends: Ends, begins_inside: bool = False,
        decided: Sequence[Any] = (),
    ) -> TextUnit:
        if ends is Ends.FILE and self.has_next_part:
            ends = Ends.BETWEEN  # as all parts but the last
        unit = self.file, self.reading_of_units, start, stop
        return TextUnit(*unit, begins_inside, ends, *decided)

    def _units_of_whole_documents(self, start: int, decided: list[Any]) -> Iterator[TextUnit]:
        """Yield units of whole documents, and parts of documents longer than a unit.

        Args:
            start: The start of a document, or with `decided` the cut where a run stopped.
            decided: The decisions for the document of that cut.
        """
        cutter, clip, size = self._cutter(), self.file.clip, self.reading.unit_size
        while decided or clip(start + size + 1) > start + size:
            stop = start if decided else cutter.last_start(start, start + size)
            if stop > start:
                yield self._unit(start, stop, Ends.BETWEEN)
            else:
                stop = yield from self._parts(cutter, start, decided)
                if clip(stop + 1) == stop:
                    return
            start, decided = stop, []
        yield self._unit(start, clip(start + size), Ends.FILE)

    def _parts(
        self, cutter: Cutter, start: int, decided: list[Any]
    ) -> Generator[TextUnit, None, int]:
        """Yield a document that is longer than a unit, and return the start of the next one.

        It is divided, with the same decisions for all parts, unless no document may be.
        """
        end, stop = cutter.end_of_document(start)
        last = Ends.FILE if self.file.clip(stop + 1) == stop else Ends.BETWEEN
        if self.reading.keeps_whole:
            yield self._unit(start, stop, last)
            return stop
        cuts = [start]
        while (cut := cutter.cut(cuts[-1] + self.reading.unit_size)[0]) < end:
            cuts.append(cut)
        of_document = decided or self._decide([*cuts, end])
        for part_start, part_stop in pairwise([*cuts, stop]):
            begins_inside = part_start > start or bool(decided)
            ends = Ends.INSIDE if part_stop < end else last
            yield self._unit(part_start, part_stop, ends, begins_inside, of_document)
        return stop

    def _decide(self, cuts: list[int]) -> list[bool | None]:
        """Return [in_validation, skipped] for a document between the first and the last cut."""
        from bpe.text.utf8 import is_utf8

        reading, digest = self.reading, xxhash.xxh3_64()
        for start, stop in pairwise(cuts):
            part = self.file.read(start, stop)
            if reading.on_invalid_utf8 != "error" and not is_utf8(part):
                if reading.on_invalid_utf8 == "skip":
                    return [None, True]
                part = np.frombuffer(replace_invalid(part.tobytes())[0], np.uint8)
            digest.update(part.data)
        return [digest.intdigest() < validation_limit(reading.validation_fraction), False]


class Cutter:
    """Finds positions to cut a file, and reads little more than the text around them.

    Args:
        file: The file.
        separator: Separator of documents; with b"" the file is one document.
        atomic: Byte strings that no cut may divide.
        safe_cut: As `Pretokenizer.safe_cut`; that of gpt2 if None.
    """

    def __init__(
        self, file: InputFile, separator: bytes, atomic: Sequence[bytes],
        safe_cut: SafeCut | None,
    ) -> None:
        from bpe.split.pretokenizer import Pretokenizer

        self._file, self._separator = file, separator
        self._atomic = [needle for needle in atomic if len(needle) > 1]
        self._safe_cut = safe_cut or Pretokenizer("gpt2").safe_cut
        # Bytes around a position: a separator that ends there, and one that overlaps it.
        longest = max(map(len, [separator, *self._atomic]))
        self._around = 2 * longest + _CHARACTER_BYTES
        self._window_start, self._window = 0, np.empty(0, np.uint8)  # last bytes read

    def cut(self, position: int) -> tuple[int, Ends]:
        """Return the first cut from `position` on, in a document or after a separator."""
        clip, size = self._file.clip, len(self._separator)
        while (stop := clip(position + _WINDOW_BYTES)) > position:
            # Up to a separator, which may touch the position.
            found = next(self._occurrences(self._separator, position - size, stop), stop)
            place = self._safe_place(position, found) if found > position else found
            if place < found:
                if not self._splits_atomic(place):
                    return place, Ends.INSIDE
                position = place + 1
            elif found == stop:
                position = stop
            else:
                after = found + size
                if clip(after + 1) > after and self._counts(found):
                    return after, Ends.BETWEEN
                position = after + 1
        return clip(position), Ends.FILE

    def start_of_document(self, position: int) -> int:
        """Return the first start of a document at `position` or later; the end if there is none."""
        if position <= 0:
            return 0
        size = len(self._separator)
        counted = (x for x in self._separators(position - size) if self._counts(x))
        return next(counted, self._file.clip(sys.maxsize) - size) + size

    def end_of_document(self, start: int) -> tuple[int, int]:
        """Return the end of the document that starts at `start`, and the start of the next."""
        end = next(self._separators(start), None)
        if end is None:
            return (self._file.clip(sys.maxsize),) * 2
        return end, end + len(self._separator)

    def last_start(self, start: int, stop: int) -> int:
        """Return the last start of a document up to `stop`; one starts at `start`.

        The end of the text is searched first, so little is read if documents are short.
        """
        from bpe.text.spans import find_pieces

        tail = max(stop - _WINDOW_BYTES, start)
        last = tail + int(find_pieces(self._bytes(tail, stop), self._separator)[0][-1])
        if last > tail and self._counts(last - len(self._separator)):
            return last
        # A scan from the start of a document finds the separators that count.
        return start + int(find_pieces(self._file.read(start, stop), self._separator)[0][-1])

    def _safe_place(self, position: int, stop: int) -> int:
        """Return the first safe cut in [position, stop), or `stop`."""
        first = max(position - _CHARACTER_BYTES, 0)
        return first + self._safe_cut(self._bytes(first, stop), position - first, stop - first)

    def _bytes(self, start: int, stop: int) -> Bytes:
        """Return bytes [start, stop) of the file, clipped to its size."""
        start, stop = max(start, 0), self._file.clip(stop)
        if not self._window_start <= start <= stop <= self._window_start + len(self._window):
            first = max(start - self._around, 0)
            # One window more: the cut after a rejected one is often near.
            end = self._file.clip(stop + self._around + _WINDOW_BYTES)
            self._window = self._file.read(first, end)
            self._window_start = first
        return self._window[start - self._window_start : stop - self._window_start]

    def _separators(self, start: int) -> Iterator[int]:
        """Yield all positions from `start` on where a separator begins, overlapping ones, too."""
        while (stop := self._file.clip(start + _STRIDE_BYTES)) > start and self._separator:
            yield from self._occurrences(self._separator, start, stop)
            start = stop

    def _occurrences(self, needle: bytes, start: int, stop: int) -> Iterator[int]:
        """Yield all positions in [start, stop) where `needle` begins, overlapping ones, too."""
        if not needle:
            return
        start = max(start, 0)
        data = self._bytes(start, stop + len(needle) - 1).tobytes()
        found = data.find(needle)
        while found >= 0:
            yield start + found
            found = data.find(needle, found + 1)

    def _counts(self, separator: int) -> bool:
        """Return True if no earlier occurrence overlaps a separator: then a scan finds it."""
        first = separator - len(self._separator) + 1
        return next(self._occurrences(self._separator, first, separator), -1) < 0

    def _splits_atomic(self, place: int) -> bool:
        return any(
            next(self._occurrences(needle, place - len(needle) + 1, place), -1) >= 0
            for needle in self._atomic
        )
