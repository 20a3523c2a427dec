"""Kernel of `preprocess.check.scan`: occurrences of ids, and hashes and sums of documents."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.runtime.jit import kernel
from bpe.runtime.machine import multiply_and_fold

WINDOW = 4  # tokens that are compared with those before them
# Indices of `carried`: hash, last four ids, number of the part, tokens so far, and the sums.
_HASH, _HIGH, _LOW, _PART, _N, _TOKENS, _BYTES, _REPEATS = range(8)
N_CARRIED = 8


class Tables(NamedTuple):
    """What is known of ids, and memory; `counts` and `seen` are modified in place."""

    counts: NDArray[np.int64]  # int64[vocab_size], occurrences of each id
    sizes: NDArray[np.int64]  # int64[vocab_size], bytes of each id, -1 for special ones; or empty
    # uint64[2^n], number of a part << 32 | bits of the hash of a window; or empty: no repeats
    seen: NDArray[np.uint64]
    seeds: NDArray[np.uint64]  # uint64[3], random numbers: nobody can write documents of one hash


@kernel
def scan_tokens(tables, ids, ends, carried, hashes, sums):
    """Scan a block of tokens, whose first document may have begun in the block before.

    Args:
        tables: See `Tables`.
        ids: uint16|uint32[n], each below the size of `counts`.
        ends: int64[k], ascending, at most n: where documents end.
        carried: uint64[8], state of the open document: zeros before the first block.
        hashes: uint64[k], filled: hash of all ids of each document.
        sums: int64[k, 3], filled: tokens without special ones, their bytes, and windows of 4 ids
            that occurred before in the document, in its same part of `seen.size / 2` tokens.

    Example: ids 5 5 5 5 5 9, ends 5 6, `sizes` 1 for each -> sums 5 5 1, 1 1 0; counts of 5 and 1.
    """
    counts, sizes, seen, seeds = tables.counts, tables.sizes, tables.seen, tables.seeds
    half, one = np.uint64(32), np.uint64(1)
    mask, part_tokens = np.uint64(max(seen.size, 1) - 1), max(seen.size // 2, 1)
    hashed, high, low, part = carried[_HASH], carried[_HIGH], carried[_LOW], carried[_PART]
    n, n_tokens = np.int64(carried[_N]), np.int64(carried[_TOKENS])
    n_bytes, n_repeats = np.int64(carried[_BYTES]), np.int64(carried[_REPEATS])
    at = 0
    for number in range(ends.size + 1):
        stop = ends[number] if number < ends.size else ids.size
        for i in range(at, stop):
            token = np.int64(ids[i])
            counts[token] += 1
            hashed = multiply_and_fold(hashed ^ np.uint64(token) ^ seeds[0], seeds[1])
            if sizes.size:
                size = sizes[token]
                if size >= 0:
                    n_tokens += 1
                    n_bytes += size
            else:
                n_tokens += 1
            if seen.size:
                if n % part_tokens == 0:
                    part += one
                high, low = (high << half) | (low >> half), (low << half) | np.uint64(token)
                if n % part_tokens >= WINDOW - 1:
                    window = multiply_and_fold(high ^ seeds[1], low ^ seeds[2])
                    entry, slot = (part << half) | (window >> half), window & mask
                    while seen[slot] >> half == entry >> half and seen[slot] != entry:
                        slot = (slot + one) & mask
                    n_repeats += seen[slot] == entry
                    seen[slot] = entry
            n += 1
        at = stop
        if number < ends.size:
            hashes[number] = hashed
            sums[number, 0], sums[number, 1], sums[number, 2] = n_tokens, n_bytes, n_repeats
            hashed, n, n_tokens, n_bytes, n_repeats = np.uint64(0), 0, 0, 0, 0
    carried[_HASH], carried[_HIGH], carried[_LOW], carried[_PART] = hashed, high, low, part
    carried[_N], carried[_TOKENS] = np.uint64(n), np.uint64(n_tokens)
    carried[_BYTES], carried[_REPEATS] = np.uint64(n_bytes), np.uint64(n_repeats)
