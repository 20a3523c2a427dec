"""Selected documents: the source of a run that chooses or orders documents, in its work files.

Document i is `text[bounds[i, 0] : bounds[i, 1]]`. The bytes of the source are those of its
documents, one after another; a resume point is [byte, document].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import structs

from bpe.text_file import TextFile, new_array
from preprocess.documents.batch import Bytes, DocumentBatch, Offsets, ReadOptions, prepare
from preprocess.sources.base import Array, ResumePoint, Source, WorkUnit

SELECTED = "selected documents"  # name of the source
_DOCUMENTS_AT_A_TIME = 1 << 16


@dataclass(frozen=True, eq=False)
class SelectedUnit(WorkUnit):
    """Bytes [start, stop) of the documents; `bounds`, int64[n, 2], are in the file."""

    bounds: Offsets
    first: int  # number of the first document
    is_last: bool

    @property
    def where(self) -> str:
        return f"{self.file.path}, documents {self.first:,} to {self.first + len(self.bounds):,}"

    @property
    def after(self) -> ResumePoint | None:
        return None if self.is_last else [self.stop, self.first + len(self.bounds)]

    def content(self, array: Array = new_array) -> Bytes:
        # Ranges of documents without a gap between them.
        ends = np.flatnonzero(self.bounds[1:, 0] != self.bounds[:-1, 1])
        starts = self.bounds[np.append(0, ends + 1), 0].tolist()
        ranges = zip(starts, self.bounds[np.append(ends, -1), 1].tolist(), strict=True)
        if not len(ends):
            return self.file.read(*next(ranges), array)
        content, place = array(self.n_bytes), 0
        for start, stop in ranges:
            content[place : place + stop - start] = self.file.read(start, stop, new_array)
            place += stop - start
        content.flags.writeable = False
        return content

    def read(self, array: Array = new_array) -> DocumentBatch:
        content = self.content(array)
        ends = np.cumsum(self.bounds[:, 1] - self.bounds[:, 0])
        bounds = np.append(0, np.repeat(ends, 2)[:-1])
        return prepare(DocumentBatch(content, bounds, content=content), self.reading, self.byte)


class SelectedSource(Source):
    """Documents in a file; `bounds` is a file of int64[n, 2], n at least 1."""

    has_fields = False

    def __init__(
        self, text: Path, bounds: Path, n_bytes: int, name: str, reading: ReadOptions
    ) -> None:
        # Documents are prepared already, and a cut one may be too short for the filters.
        prepared = structs.replace(reading, strip=False, min_length=0, max_length=None)
        super().__init__(TextFile(text), name, prepared)
        self.n_bytes = n_bytes
        self._bounds_file = bounds

    def units(self, after: ResumePoint | None = None) -> Iterator[SelectedUnit]:
        return self._units(self.reading.unit_size, after or [0, 0])

    def _units(self, unit_size: int, after: ResumePoint) -> Iterator[SelectedUnit]:
        all_bounds = np.memmap(self._bounds_file, "<i8", "r").reshape(-1, 2)
        start, first = after
        n = len(all_bounds)
        while first < n:
            bounds = np.array(all_bounds[first : first + _DOCUMENTS_AT_A_TIME])
            ends = np.cumsum(bounds[:, 1] - bounds[:, 0])
            count = max(int(np.searchsorted(ends, unit_size, side="right")), 1)
            stop, end = start + int(ends[count - 1]), first + count
            yield SelectedUnit(
                self.file, self.reading_of_units, start, stop, bounds[:count].copy(), first,
                end == n,
            )
            start, first = stop, end

    def content(self, before: ResumePoint | None = None) -> Iterator[tuple[int, Bytes]]:
        stop = self.n_bytes if before is None else before[0]
        for unit in self._units(1 << 20, [0, 0]):
            if unit.start < stop:
                yield unit.start, unit.content()[: stop - unit.start]
