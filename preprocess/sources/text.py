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
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bpe.errors import CorpusError
from bpe.text_file import Cutter, Ends, TextFile
from preprocess.documents import (
    Bytes,
    DocumentBatch,
    InValidation,
    Reading,
    prepare,
    replace_invalid,
)
from preprocess.reused_memory import ReusedMemory

# How much of a file is read at a time for its digest.
_STRIDE_BYTES = 1024 * 1024


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
        return self.source.read(self.start, self.stop, self.memory.array)

    def read(self) -> DocumentBatch:
        """Its documents, or parts of documents."""
        from bpe.separated import between

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


class TextSource(TextFile):
    """One text file.

    Args:
        path: The file.
        name: What the manifest calls it.
        reading: How it is read.

    Raises:
        CorpusError: There is no such file, or it cannot be read.
    """

    def __init__(self, path: Path, name: str, reading: Reading) -> None:
        self.name = name
        self.reading = reading
        self.separator = reading.separator
        try:
            super().__init__(path)
        except FileNotFoundError:
            raise CorpusError(f"{path}: no such file or directory; check the path") from None
        except OSError as error:
            raise CorpusError(
                f"{path}: cannot be read: {error.strerror}; make it readable or leave it out"
            ) from error
        self.stamp = f"modified {self.modified}"
        self.location = os.path.realpath(path)

    def __repr__(self) -> str:
        return f"TextSource({str(self.path)!r}: {self.n_bytes:,} bytes)"

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
            yield self.read(start, min(start + _STRIDE_BYTES, place[0]), memory.array)

    def _cutter(self, memory: ReusedMemory) -> Cutter:
        reading = self.reading
        return Cutter(self, self.separator, reading.uncut, reading.safe_cut, memory.array)

    def _units_anywhere(self, start: int, begins_inside: bool) -> Iterator[TextUnit]:
        """Units that may end inside documents: little is read but the places to cut at."""
        memory = _memory()
        cutter = self._cutter(memory)
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
        from bpe.separated import between

        memory = _memory()
        cutter = self._cutter(memory)
        unit_size, n = self.reading.unit_size, self.n_bytes
        if begins_inside:
            start = yield from self._parts(cutter, memory, start, (in_validation, skipped))
            if start == n:
                return
        while start + unit_size < n:
            # A document starts at `start`, so separators found from there are the true ones.
            starts, _ = between(self.read(start, start + unit_size, memory.array), self.separator)
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
        cutter: Cutter,
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
            part = self.read(start, stop, memory.array)
            if reading.on_invalid_utf8 != "error" and not is_utf8(part):
                if reading.on_invalid_utf8 == "skip":
                    return None, True
                part = np.frombuffer(replace_invalid(part.tobytes())[0], np.uint8)
            in_validation.add_part(part)
        return in_validation.of_parts(), False


def _memory() -> ReusedMemory:
    """For the units of one file: those that are under way, with many workers, or large ones."""
    return ReusedMemory(limit=256, largest=1 << 26)
