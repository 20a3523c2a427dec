"""Where a byte string occurs: a separator of documents, the text of a special token."""

from __future__ import annotations

import numpy as np

from bpe.kernels.runtime.jit import kernel
from bpe.kernels.runtime.machine import range_mask, trailing_zeros


@kernel
def find_all(buffer, needle, position, found):
    """Fill `found` with places where `needle` occurs at or after `position`, as `bytes.split` cuts.

    They are the leftmost ones, not overlapping. No byte outside the buffer is read.

    Args:
        buffer: uint8[n_bytes].
        needle: uint8[m], m >= 1.
        position: where to begin.
        found: int64[capacity], modified in place.

    Returns:
        (number of places found, where to go on): the second is n_bytes once there are no more.

    Example: "aaaa" and needle "aa" from 0 on -> places 0 and 2, (2, 4).
    """
    n, m, one = buffer.size, needle.size, np.uint64(1)
    n_found, at = 0, position
    first, last = needle[0], needle[m - 1]
    while at + m <= n:
        # Candidates, 64 places at once: the first and the last byte of the needle match.
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
