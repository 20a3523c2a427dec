"""Documents in one buffer, with separators or anything else between them.

Documents are those of `bytes.split`, given as offsets, not copied.
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

_LOOK_AHEAD = 1 << 14  # bytes first searched for the end of a part, past its size
_PLACES = 1 << 12  # that are Python integers at a time: each takes 150 bytes


class SeparatedPart(NamedTuple):
    """Some documents, of which the first may have begun in the part before."""

    start: int  # the text is `buffer[start:stop]`
    stop: int
    bounds: NDArray[np.int64]  # int64[2 * n_documents]: where each begins and ends, from `start` on
    ends_mid_document: bool  # the last document continues in the next part


def separated_parts(
    buffer: Bytes, separator: bytes, part_size: Callable[[int], int],
    safe_cut: Callable[[Bytes, int, int], int],
) -> Iterator[SeparatedPart]:
    """Cut a buffer into parts that can be encoded one by one with the same ids.

    Args:
        buffer: uint8[n_bytes].
        separator: Between two documents, at least one byte.
        part_size: Bytes of the next part, from the number of bytes left; the last part has fewer,
            and one without a place to cut has more.
        safe_cut: As `Pretokenizer.safe_cut`.
    """
    n, m, start = len(buffer), len(separator), 0
    while True:
        target = min(start + part_size(n - start), n)
        # Separators that begin before the target, of which one may end after it.
        found = start + find_all(buffer[start : target + m - 1], separator)
        stop, following, ends_mid_document = n, n, False
        if target < n:
            opened = int(found[-1]) + m if len(found) else start
            begin, size = max(target, opened), _LOOK_AHEAD
            while True:
                limit = min(begin + size, n)
                separators = find_all(buffer[begin : limit + m - 1], separator)
                end = begin + int(separators[0]) if len(separators) else limit
                # At the beginning of a document a cut would depend on what precedes it.
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


def between(buffer: Bytes, separator: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts and ends of pieces of `uint8[n_bytes]`, as `bytes.split` cuts them.

    They are int64[n_separators + 1] each; with the separator b"" the buffer is one piece.
    """
    found = find_all(buffer, separator) if separator else np.empty(0, np.int64)
    return np.append(0, found + len(separator)), np.append(found, len(buffer))


def joined(buffer: Bytes, bounds: NDArray[np.int64]) -> tuple[Bytes, NDArray[np.int64]]:
    """Return documents without the bytes between them, copied only if there are any.

    Args:
        buffer: uint8[n_bytes].
        bounds: int64[2 * n_documents], the start and end of each; ascending.

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
    slices, filled = (buffer[start:end] for start, end in places(bounds)), 0
    while some := list(islice(slices, _PLACES)):
        size = sum(map(len, some))
        np.concatenate(some, out=text[filled : filled + size])
        filled += size
    return text, offsets


def places(bounds: NDArray[np.int64]) -> Iterator[list[int]]:
    """Yield [start, end] of each range of `bounds`, int64[2 * n]; few lists exist at a time."""
    for first in range(0, len(bounds), 2 * _PLACES):
        yield from bounds[first : first + 2 * _PLACES].reshape(-1, 2).tolist()


def check_utf8(part: Bytes, start: int) -> None:
    """Raise EncodingError unless uint8[n_bytes], from byte `start` of the data on, is UTF-8."""
    if not is_utf8(part):
        place, what = invalid_utf8(part)
        raise EncodingError(
            f"byte {start + place:,} is not valid UTF-8 ({what}): expected UTF-8; decode the text"
            " as what it is, and encode it"
        )
