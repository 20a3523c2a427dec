"""Find documents between separators in one buffer, and cut the buffer into parts.

Documents are those of `data.split(separator)`, as offsets; text is not copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.errors import EncodingError
from bpe.pretokenize.pretokenizer import find_all, invalid_utf8, is_utf8

Bytes = NDArray[np.uint8]

_LOOK_AHEAD = 1 << 14  # bytes after the size of a part that are first searched for its end
_RANGES = 1 << 12  # ranges converted to Python integers at a time, 150 bytes each


class SeparatedPart(NamedTuple):
    """Documents in `buffer[start:stop]`; the first may begin in the part before."""

    start: int
    stop: int
    bounds: NDArray[np.int64]  # int64[2 * n_documents], start and end of each, relative to `start`
    ends_mid_document: bool  # the last document continues in the next part


def separated_parts(
    buffer: Bytes, separator: bytes, part_size: Callable[[int], int],
    safe_cut: Callable[[Bytes, int, int], int],
) -> Iterator[SeparatedPart]:
    """Cut a buffer into parts whose ids are those of the whole; `text_file.Cutter` cuts files.

    Args:
        buffer: uint8[n_bytes].
        separator: Separator of documents, at least one byte.
        part_size: Returns the size of the next part from the number of bytes left; the last part is
            smaller, and a part without a safe cut is larger.
        safe_cut: As `Pretokenizer.safe_cut`.
    """
    n, m, start = len(buffer), len(separator), 0
    while True:
        target = min(start + part_size(n - start), n)
        # Separators that begin before the target; the last may end after it.
        found = start + find_all(buffer[start : target + m - 1], separator)
        stop, following, ends_mid_document = n, n, False
        if target < n:
            opened = int(found[-1]) + m if len(found) else start
            begin, size = max(target, opened), _LOOK_AHEAD
            while True:
                limit = min(begin + size, n)
                separators = find_all(buffer[begin : limit + m - 1], separator)
                end = begin + int(separators[0]) if len(separators) else limit
                # Not at the first byte of a document: a cut there depends on the text before it.
                cut = safe_cut(buffer, max(begin, opened + 1), end)
                if cut < end or len(separators) or end == n:
                    break
                size *= 2
            if cut < end:
                stop, following, ends_mid_document = cut, cut, True
            elif len(separators):
                stop, following = end, end + m
        bounds = np.empty(2 * len(found) + 2, np.int64)
        bounds[0], bounds[1:-1:2], bounds[2::2], bounds[-1] = start, found, found + m, stop
        yield SeparatedPart(start, stop, bounds - start, ends_mid_document)
        if following == stop == n:
            return
        start = following


def find_pieces(buffer: Bytes, separator: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts and ends of the pieces of `bytes.split`, int64[n_separators + 1] each.

    With the separator b"" the buffer is one piece.
    """
    found = find_all(buffer, separator) if separator else np.empty(0, np.int64)
    return np.append(0, found + len(separator)), np.append(found, len(buffer))


def close_gaps(buffer: Bytes, bounds: NDArray[np.int64]) -> tuple[Bytes, NDArray[np.int64]]:
    """Return documents without the bytes between them; copied only if there are such bytes.

    Args:
        buffer: uint8[n_bytes].
        bounds: int64[2 * n_documents], start and end of each, ascending.

    Returns:
        (text, offsets): uint8[n_bytes without gaps], int64[n_documents + 1].
    """
    starts, ends = bounds[::2], bounds[1::2]
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(ends - starts, out=offsets[1:])
    if not len(starts):
        return buffer[:0], offsets
    if (starts[1:] == ends[:-1]).all():
        return buffer[starts[0] : ends[-1]], offsets
    text = np.empty(offsets[-1], np.uint8)
    slices, filled = (buffer[start:end] for start, end in iter_ranges(bounds)), 0
    while some := list(islice(slices, _RANGES)):
        size = sum(map(len, some))
        np.concatenate(some, out=text[filled : filled + size])
        filled += size
    return text, offsets


def iter_ranges(bounds: NDArray[np.int64]) -> Iterator[list[int]]:
    """Yield [start, end] of each range of `bounds`, int64[2 * n], in bounded memory."""
    for first in range(0, len(bounds), 2 * _RANGES):
        yield from bounds[first : first + 2 * _RANGES].reshape(-1, 2).tolist()


def check_utf8(part: Bytes, start: int) -> None:
    """Raise EncodingError unless uint8[n_bytes] is UTF-8; `start` is its offset in the data."""
    if not is_utf8(part):
        place, what = invalid_utf8(part)
        raise EncodingError(
            f"byte {start + place:,} is not valid UTF-8 ({what}): expected UTF-8; decode the text"
            " as what it is, and encode it"
        )
