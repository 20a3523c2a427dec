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
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from msgspec import structs

from preprocess.documents.batch import (
    DocumentBatch,
    ReadOptions,
    prepare,
    replace_invalid,
    validation_limit,
)
from preprocess.sources.base import Array, ResumePoint, Source, WorkUnit
from preprocess.sources.text_file import Cutter, Ends, InputFile, new_array

_BEGIN_BYTES = 64 * 1024  # of a file, read to find how lines end


@dataclass(frozen=True)
class TextUnit(WorkUnit):
    """Bytes [start, stop) of a text file, starting after a separator or inside a document.

    `in_validation` and `skipped` are the decisions for the document of which the unit is a part.
    """

    begins_inside: bool
    ends: Ends
    in_validation: bool | None = None
    skipped: bool = False

    @property
    def after(self) -> ResumePoint | None:
        if self.ends in (Ends.FILE, Ends.PART):
            return None
        inside = self.ends is Ends.INSIDE
        decided = (self.in_validation, self.skipped) if inside else (None, False)
        return [int(self.stop), inside, *decided]

    def read(self, array: Array = new_array) -> DocumentBatch:
        from bpe.text.spans import find_pieces

        content = self.content(array)
        starts, ends = find_pieces(content, self.reading.separator)
        if self.ends in (Ends.BETWEEN, Ends.PART):
            # Text after the last separator belongs to the next unit.
            starts, ends = starts[:-1], ends[:-1]
        ends_mid_document = self.ends is Ends.INSIDE
        if self.skipped:
            # Only an empty document at the end of the file can follow the long one.
            n_skipped, n_empty = (0, 0) if ends_mid_document else (1, len(starts) - 1)
            nothing = DocumentBatch(content[:0], np.zeros(0, np.int64), content=content)
            return structs.replace(nothing, n_empty=n_empty, n_skipped=n_skipped)
        bounds = np.stack([starts, ends], axis=1).ravel()
        begins_inside = self.begins_inside
        batch = DocumentBatch(content, bounds, begins_inside, ends_mid_document, content=content)
        return prepare(batch, self.reading, self.byte, self.in_validation)


class TextSource(Source):
    """One text file."""

    has_fields = False

    def __init__(self, file: InputFile, name: str, reading: ReadOptions) -> None:
        if reading.separator in (b"\n", b"\n\n"):
            begins = file.read(0, file.clip(_BEGIN_BYTES), new_array).tobytes()
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
        in_validation: bool | None = None, skipped: bool = False,
    ) -> TextUnit:
        if ends is Ends.FILE and self.ends_early:
            ends = Ends.PART
        unit = self.file, self.reading_of_units, start, stop
        return TextUnit(*unit, begins_inside, ends, in_validation, skipped)

    def _units_of_whole_documents(self, start: int, decided: list[Any]) -> Iterator[TextUnit]:
        """Yield units of whole documents, and parts of documents longer than a unit.

        Args:
            start: The start of a document, or with `decided` the cut where a run stopped.
            decided: The decisions for the document of that cut.
        """
        cutter, clip = self._cutter(), self.file.clip
        while decided or clip(start + self.reading.unit_size + 1) > start + self.reading.unit_size:
            limit = start + self.reading.unit_size
            stop = start if decided else cutter.last_separator_end(start, limit)
            if stop > start:
                yield self._unit(start, stop, Ends.BETWEEN)
            else:
                stop = yield from self._parts(cutter, start, decided)
                if clip(stop + 1) == stop:
                    return
            start, decided = stop, []
        yield self._unit(start, clip(start + self.reading.unit_size), Ends.FILE)

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
        while (cut := cutter.cut_inside(cuts[-1] + self.reading.unit_size, end)) < end:
            cuts.append(cut)
        of_document = decided or self._decide([*cuts, end])
        for part_start, part_stop in pairwise([*cuts, stop]):
            begins_inside = part_start > start or bool(decided)
            ends = Ends.INSIDE if part_stop < end else last
            yield self._unit(part_start, part_stop, ends, begins_inside, *of_document)
        return stop

    def _decide(self, cuts: list[int]) -> list[bool | None]:
        """Return [in_validation, skipped] for a document between the first and the last cut."""
        from bpe.text.utf8 import is_utf8

        reading = self.reading
        digest = xxhash.xxh3_64()
        for start, stop in pairwise(cuts):
            part = self.file.read(start, stop, new_array)
            if reading.on_invalid_utf8 != "error" and not is_utf8(part):
                if reading.on_invalid_utf8 == "skip":
                    return [None, True]
                part = np.frombuffer(replace_invalid(part.tobytes())[0], np.uint8)
            digest.update(part.data)
        return [digest.intdigest() < validation_limit(reading.validation_fraction), False]
