"""Where a byte string occurs: separators between documents, text that looks like a special token.

Law: the same places as `bytes.split` cuts at, leftmost first and not overlapping; no byte outside
the buffer is read.
"""

from __future__ import annotations

import numpy as np

from bpe.kernels.jit import kernel
from bpe.kernels.machine import range_mask, trailing_zeros


@kernel
def find_all(buffer, needle, position, found):
    """Fill `found` with places where `needle` occurs at or after `position`.

    Args:
        buffer: uint8[n_bytes].
        needle: uint8[m], m >= 1.
        position: where to begin.
        found: int64[capacity], modified in place.

    Returns:
        (number of places found, where to go on): the second is n_bytes once there are no more.
    """
    n = buffer.size
    m = needle.size
    one = np.uint64(1)
    n_found = 0
    first = needle[0]
    last = needle[m - 1]
    at = position
    while at + m <= n:
        # Candidates: the first byte and the last byte of the needle both match, for 64 places at
        # once.
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
                # Places inside this occurrence are taken; look again from its end.
                if place + m < at + width or n_found == found.size:
                    next_at = place + m
                break
        at = next_at
        if n_found == found.size:
            return n_found, at
    return n_found, n
