"""Find documents between separators in one buffer: those of `data.split(separator)`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from bpe.errors import EncodingError
from bpe.pretokenize.pretokenizer import find_all, invalid_utf8, is_utf8

Bytes = NDArray[np.uint8]

_RANGES = 1 << 12  # ranges converted to Python integers at a time, 150 bytes each


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
