"""Search a byte string: a separator of documents, the text of a special token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bpe.runtime.arrays import Bytes, read_only
from bpe.runtime.jit import kernel
from bpe.runtime.machine import range_mask, trailing_zeros


@kernel
def find_some(buffer, needle, position, found):
    """Find occurrences of `needle` from `position` on that do not overlap, as `bytes.split`.

    Args:
        buffer: uint8[n_bytes].
        needle: uint8[m], m >= 1.
        position: Start of the search.
        found: int64[capacity], filled with positions.

    Returns:
        (number of occurrences, position to continue from, n_bytes after the last).

    Example: "aaaa" and needle "aa" from 0 on -> found 0 2, (2, 4).
    """
    n, m, one = buffer.size, needle.size, np.uint64(1)
    n_found, at = 0, position
    first, last = needle[0], needle[m - 1]
    while at + m <= n:
        # Candidates, 64 at once: the first and the last byte of the needle match.
        if at + m - 1 + 64 <= n:
            candidates = range_mask(buffer, at, first, first)
            if candidates:
                candidates &= range_mask(buffer, at + m - 1, last, last)
            width = 64
        else:
            candidates = one if buffer[at] == first else np.uint64(0)
            width = 1
        next_at = at + width
        while candidates:
            place = at + trailing_zeros(candidates)
            candidates &= candidates - one
            if place + m > n:
                break
            j = 0
            while j < m and buffer[place + j] == needle[j]:
                j += 1
            if j == m:
                found[n_found] = place
                n_found += 1
                next_at = max(next_at, place + m)
                # Occurrences must not overlap: continue from the end of this one.
                if place + m < at + width or n_found == found.size:
                    next_at = place + m
                break
        at = next_at
        if n_found == found.size:
            return n_found, at
    return n_found, n


def find_all(buffer: Bytes, needle: bytes) -> NDArray[np.int64]:
    """Return the positions of `needle` (not empty) in `uint8[n_bytes]`: int64[n], ascending.

    Occurrences do not overlap, as in `bytes.split`.
    """
    if not needle:
        raise ValueError("an empty byte string occurs everywhere; find_all needs at least one byte")
    wanted, buffer = read_only(np.frombuffer(needle, np.uint8)), read_only(buffer)
    pieces, found, position = [np.empty(0, np.int64)], np.empty(4096, np.int64), 0
    while position < len(buffer):
        n_found, position = find_some(buffer, wanted, position, found)
        pieces.append(found[:n_found].copy())
    return np.concatenate(pieces)
