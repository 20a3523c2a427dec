"""Filters of documents: white space at their ends, and their length in characters."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]


def strip_bounds(buffer: Bytes, bounds: Offsets) -> Offsets:
    """Return bounds without the white space at both ends of documents, as `str.strip` removes it.

    Args:
        buffer: uint8[n_bytes], documents in UTF-8, none of them empty.
        bounds: int64[2 * n_documents], see `DocumentBatch`.

    Returns:
        int64[2 * n_documents]; documents of white space become empty.
    """
    stripped = bounds.reshape(-1, 2).copy()
    if not len(stripped):
        return bounds
    # White space of ASCII is below "!"; other white space has bytes from 0x80 on.
    ends = buffer[stripped - [0, 1]]
    for number in np.flatnonzero(((ends <= 0x20) | (ends >= 0x80)).any(axis=1)).tolist():
        start, stop = stripped[number].tolist()
        text = buffer[start:stop].tobytes().decode()
        left = text.lstrip()
        start += len(text[: len(text) - len(left)].encode())
        stripped[number] = start, start + len(left.rstrip().encode())
    return stripped.ravel()


def count_characters(buffer: Bytes, bounds: Offsets) -> NDArray[np.int64]:
    """Count the characters of documents: int64[n_documents]; arguments as of `strip_bounds`."""
    if not len(bounds):
        return np.zeros(0, np.int64)
    begins = (buffer & 0xC0) != 0x80
    # Sums from each bound to the next: of documents, and of the gaps between them.
    return np.add.reduceat(begins, bounds[:-1], dtype=np.int64)[::2]
