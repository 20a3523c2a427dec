"""Divide sources among tasks that know nothing of one another.

Task i of n has the bytes of the sources from the i-th to the next n-th of all of them, moved to the
next start of a document, so documents are in one task each, and the tasks in order have all
documents in order. Files that are not divided (compressed, Parquet, Arrow, JSON arrays) belong to
the task in whose share they begin. Little more than the text around both ends is read.
"""

from __future__ import annotations

from collections.abc import Sequence

from preprocess.sources.base import Source

_PART_BYTES, _MOST_PARTS = 128 << 20, 1024


def count_parts(sources: Sequence[Source]) -> int:
    """Return the number of parts if none is given, which depends on the sources alone."""
    total = sum(source.n_bytes for source in sources)
    return min(max(-(-total // _PART_BYTES), 1), _MOST_PARTS)


def sources_of_task(sources: Sequence[Source], index: int, count: int) -> list[Source]:
    """Return the sources, and parts of sources, of task `index` of `count`; there may be none."""
    total = sum(source.n_bytes for source in sources)
    first, last = total * index // count, total * (index + 1) // count
    found: list[Source] = []
    begin = 0
    for source in sources:
        start, stop = (_start_at(source, place - begin) for place in (first, last))
        if not source.n_bytes:  # it is where the next one begins
            is_here = first <= begin < last or (begin == total and index == count - 1)
        else:
            is_here = start == 0 and stop == source.n_bytes
        if is_here:
            found.append(source)
        elif start < stop:
            found.append(source.part(start, stop))
        begin += source.n_bytes
    return found


def _start_at(source: Source, position: int) -> int:
    """Return the first start of a document of a source, if it is divided, from `position` on."""
    if position >= source.n_bytes:
        return source.n_bytes
    return source.start_of_document(max(position, 0))
