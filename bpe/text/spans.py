"""Documents in one buffer: their offsets, the pieces between separators, gaps between them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from bpe.errors import EncodingError
from bpe.runtime.arrays import Bytes, Offsets, check_array
from bpe.text.search import find_all

_RANGES = 1 << 12  # ranges converted to Python integers at a time, 150 bytes each


def find_pieces(buffer: Bytes, separator: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts and ends of the pieces of `bytes.split`, int64[n_separators + 1] each.

    With the separator b"" the buffer is one piece.
    """
    found = find_all(buffer, separator) if separator else np.empty(0, np.int64)
    return np.append(0, found + len(separator)), np.append(found, len(buffer))


def spans_of(offsets: Offsets) -> NDArray[np.int64]:
    """Return the spans int64[n, 2] of documents with the offsets int64[n + 1]."""
    return np.stack([offsets[:-1], offsets[1:]], axis=1)


def close_gaps(buffer: Bytes, spans: NDArray[np.int64]) -> tuple[Bytes, NDArray[np.int64]]:
    """Return documents without the bytes between them; copied only if there are such bytes.

    Args:
        buffer: uint8[n_bytes].
        spans: int64[n_documents, 2], start and end of each, ascending; or the same, flat.

    Returns:
        (text, offsets): uint8[n_bytes without gaps], int64[n_documents + 1].
    """
    bounds = spans.ravel()
    starts, ends = bounds[::2], bounds[1::2]
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(ends - starts, out=offsets[1:])
    if not len(starts):
        return buffer[:0], offsets
    after = np.flatnonzero(starts[1:] != ends[:-1])  # documents with a gap after them
    if not len(after):
        return buffer[starts[0] : ends[-1]], offsets
    bounds = np.stack([starts[[0, *after + 1]], ends[[*after, -1]]], axis=1).ravel()
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


def check_documents(buffer: Bytes, offsets: Offsets) -> None:
    """Raise EncodingError unless `offsets` are those of documents in `buffer`, uint8[n_bytes].

    They are int64[n_documents + 1], ascending from 0 to n_bytes.
    """
    check_array("buffer", buffer, np.uint8)
    check_array("offsets", offsets, np.int64)
    if not len(offsets):
        raise EncodingError("there are 0 offsets: expected one for each document and another one")
    _check_ascending("offset", offsets, len(buffer))


def check_spans(buffer: Bytes, spans: NDArray[np.int64]) -> None:
    """Raise EncodingError unless `spans` are those of documents in `buffer`, uint8[n_bytes].

    They are int64[n_documents, 2], ascending from 0 to n_bytes, or none.
    """
    check_array("buffer", buffer, np.uint8)
    check_array("spans", spans, np.int64, "[n, 2]")
    if len(spans):
        _check_ascending("bound", spans.ravel(), len(buffer))


def _check_ascending(name: str, bounds: NDArray[np.int64], n: int) -> None:
    is_wrong = bounds < np.append(0, bounds[:-1])
    is_wrong[0], is_wrong[-1] = bounds[0] != 0, is_wrong[-1] or bounds[-1] != n
    if is_wrong.any():
        is_wrong |= bounds > n
        first = int(is_wrong.argmax())
        raise EncodingError(
            f"{name} {first:,} is {int(bounds[first]):,}: expected {name}s that ascend from 0"
            f" to {n:,}, the size of the buffer"
        )
