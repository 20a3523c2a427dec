"""Documents that lie in one buffer, with a separator or anything else between them.

Law: the documents are those of `bytes.split`, and encoded apart, the parts have their ids. Nothing
is copied: a part says where its documents begin and end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.errors import EncodingError
from bpe.pretokenize import find_all, invalid_utf8, is_utf8

Bytes = NDArray[np.uint8]

# So far behind its size the end of a part is looked for at first.
_LOOK_AHEAD = 1 << 14
# So many places are integers of Python at a time: each takes 150 bytes, and a document may be one.
_PLACES = 1 << 12


class SeparatedPart(NamedTuple):
    """Some documents, of which the first may have begun in the part before."""

    start: int  # of the buffer: the text is `buffer[start:stop]`
    stop: int
    bounds: NDArray[np.int64]  # int64[2 * n_documents]: where each begins and ends, from `start` on
    ends_mid_document: bool  # the last document continues in the next part


def separated_parts(
    buffer: Bytes,
    separator: bytes,
    part_size: Callable[[int], int],
    safe_cut: Callable[[Bytes, int, int], int],
) -> Iterator[SeparatedPart]:
    """Cut a buffer into parts that can be encoded apart; those at the front before all is seen.

    Args:
        buffer: uint8[n_bytes].
        separator: what stands between two documents, at least one byte.
        part_size: from the number of bytes that are left, those of the next part; the last one
            has fewer, and one without a place to cut has more.
        safe_cut: as `Pretokenizer.safe_cut`.
    """
    n, m, start = len(buffer), len(separator), 0
    while True:
        target = min(start + part_size(n - start), n)
        # Those that begin before the target; one of them may end behind it.
        found = start + find_all(buffer[start : target + m - 1], separator)
        opened = int(found[-1]) + m if len(found) else start
        stop, following, ends_mid_document = n, n, False
        if target < n:
            # At the beginning of a document the place would depend on what stands before it.
            begin = max(target, opened)
            end, ends_there = _end_of_document(buffer, separator, begin, _LOOK_AHEAD)
            cut = safe_cut(buffer, max(begin, opened + 1), end)
            while cut == end < n and not ends_there:
                end, ends_there = _end_of_document(buffer, separator, begin, 2 * (end - begin))
                cut = safe_cut(buffer, max(begin, opened + 1), end)
            if cut < end:
                stop, following, ends_mid_document = cut, cut, True
            elif ends_there:
                stop, following = end, end + m
        bounds = np.empty(2 * len(found) + 2, np.int64)
        bounds[0], bounds[1:-1:2], bounds[2::2], bounds[-1] = start, found, found + m, stop
        yield SeparatedPart(start, stop, bounds - start, ends_mid_document)
        if following == stop == n:
            return
        start = following


def between(buffer: Bytes, separator: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts and ends of the pieces between separators, as `bytes.split` cuts them.

    Args:
        buffer: uint8[n_bytes].
        separator: b"" means that the buffer is one piece.

    Returns:
        (starts, ends): int64[n_separators + 1] each.
    """
    found = find_all(buffer, separator) if separator else np.empty(0, np.int64)
    return np.append(0, found + len(separator)), np.append(found, len(buffer))


def joined(buffer: Bytes, bounds: NDArray[np.int64]) -> tuple[Bytes, NDArray[np.int64]]:
    """Documents without what stands between them, copied only if something does.

    Args:
        buffer: uint8[n_bytes].
        bounds: int64[2 * n_documents], where each begins and ends; ascending.

    Returns:
        uint8[n_bytes without gaps], and int64[n_documents + 1]: where each begins and ends in it.
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
    """[start, end] of each, as integers of Python, of which few are there at a time.

    Args:
        bounds: int64[2 * n], where each begins and ends.
    """
    for first in range(0, len(bounds), 2 * _PLACES):
        yield from bounds[first : first + 2 * _PLACES].reshape(-1, 2).tolist()


def _end_of_document(buffer: Bytes, separator: bytes, begin: int, size: int) -> tuple[int, bool]:
    """(where the next separator is, True), or (`size` further on or at the end, False)."""
    limit = min(begin + size, len(buffer))
    found = find_all(buffer[begin : limit + len(separator) - 1], separator)
    return (begin + int(found[0]), True) if len(found) else (limit, False)


def check_utf8(part: Bytes, start: int) -> None:
    """Refuse what no encoder takes.

    Args:
        part: uint8[n_bytes].
        start: where it begins, for the message.

    Raises:
        EncodingError: It is not UTF-8.
    """
    if not is_utf8(part):
        place, what = invalid_utf8(part)
        raise EncodingError(
            f"byte {start + place:,} is not valid UTF-8 ({what}): expected UTF-8; decode the text"
            " as what it is, and encode it"
        )
