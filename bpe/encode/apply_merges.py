"""Merge one pre-token to token ids, as `reference.encode` does: lowest rank first, then leftmost.

Up to MAX_SHORT symbols, the ranks of all pairs are compared (`bpe.encode.merge_short`);
above, a heap has the pairs that can be merged.

`scratch` is a `bpe.encode.group.Scratch` everywhere.
"""

from __future__ import annotations

import numpy as np

from bpe.encode import merge_short as short
from bpe.encode.merge_tables import NO_RANK, merged_id, pair_rank, whole_token
from bpe.runtime.jit import kernel
from bpe.runtime.machine import always_inline, noinline_cold

SCRATCH_BYTES = 2112  # of a pre-token for which there is memory; for longer ones more is allocated
_ROOT = 3  # the children of 3 are 4 to 7, of 4 are 8 to 11: four, which share a cache line
# In a row of `Scratch.rows`, for the symbol at each position: its id, the rank of the pair that it
# begins, and the positions of the next symbol and of the one before.
_SYMBOL, _RANK, _FOLLOWING, _PRECEDING = 0, 1, 2, 3


@kernel
def lay_out(tables, rows, buffer, start, n):
    """Fill `rows`, one symbol for each of n bytes: b"ab" -> a, b; the rank of (a, b), NO_RANK."""
    for i in range(n):
        row = 4 * i
        byte, rank = np.int64(buffer[start + i]), NO_RANK
        if i + 1 < n:
            rank = short.byte_rank(tables.byte_pairs[byte << 8 | np.int64(buffer[start + i + 1])])
        rows[row + _SYMBOL] = np.uint32(tables.byte_ids[byte])
        rows[row + _RANK] = rank
        rows[row + _FOLLOWING] = np.uint32(i + 1)
        # That of the first is never used.
        rows[row + _PRECEDING] = np.uint32(max(i - 1, 0))


@kernel
def merge_at(tables, rows, n, at):
    """Merge the pair at `at`; return the position before it, and the ranks of the two new pairs.

    Example: merging (a, b) at 1 of x a b y -> 0, the ranks of (x, ab) and of (ab, y).
    """
    row = 4 * at
    right = np.int64(rows[row + _FOLLOWING])
    symbol = merged_id(tables, rows[row + _RANK])
    rows[row + _SYMBOL] = symbol
    rows[4 * right + _RANK] = NO_RANK
    after = np.int64(rows[4 * right + _FOLLOWING])
    rows[row + _FOLLOWING] = np.uint32(after)
    rank = NO_RANK
    if after < n:
        rows[4 * after + _PRECEDING] = np.uint32(at)
        rank = pair_rank(tables, symbol, rows[4 * after + _SYMBOL])
    rows[row + _RANK] = rank
    before, rank_before = np.int64(0), NO_RANK
    if at > 0:
        before = np.int64(rows[row + _PRECEDING])
        rank_before = pair_rank(tables, rows[4 * before + _SYMBOL], symbol)
        rows[4 * before + _RANK] = rank_before
    return before, rank_before, rank


@kernel
def read_rows(rows, n, ids, n_ids):
    """Append the ids of the remaining symbols; return the number of ids: ab c after 5 ids -> 7."""
    at = 0
    while at < n:
        ids[n_ids] = rows[4 * at + _SYMBOL]
        n_ids += 1
        at = np.int64(rows[4 * at + _FOLLOWING])
    return n_ids


@kernel
def merge_heap(tables, scratch, buffer, start, stop):
    """Merge `buffer[start:stop]` in O(n log n) time: a b a b with merge (a, b) -> ab ab in `rows`.

    The heap holds `rank << 32 | position`; an entry whose pair has changed since is dropped. There
    are n - 1 at first, and each of n - 1 merges takes one out and puts at most two in.
    """
    n = stop - start
    rows, heap = scratch.rows, scratch.heap
    size = 0
    lay_out(tables, rows, buffer, start, n)
    for i in range(n - 1):
        size = _push(heap, size, rows[4 * i + _RANK], i)
    while size > 0:
        entry = heap[_ROOT]
        size = _pop(heap, size)
        at = np.int64(entry & np.uint64(0xFFFFFFFF))
        if np.uint64(rows[4 * at + _RANK]) == entry >> np.uint64(32):
            before, rank_before, rank = merge_at(tables, rows, n, at)
            size = _push(heap, size, rank, at)
            size = _push(heap, size, rank_before, before)


@kernel
def _push(heap, size, rank, position):
    """Add `rank << 32 | position` to the heap, unless NO_RANK; return the size: 2 entries -> 3."""
    if rank == NO_RANK:
        return size
    _sift_up(heap, size + _ROOT, (np.uint64(rank) << np.uint64(32)) | np.uint64(position))
    return size + 1


@kernel
def _pop(heap, size):
    """Remove the smallest entry, at _ROOT, and return how many remain: 2 5 9 -> 5 9, and 2."""
    size -= 1
    stop = size + _ROOT
    at = _ROOT
    # The gap moves down to the end, and the last entry up from there: it belongs down there.
    while True:
        child = 4 * at - 8
        if child >= stop:
            break
        least = child
        for other in range(child + 1, min(child + 4, stop)):
            if heap[other] < heap[least]:
                least = other
        heap[at] = heap[least]
        at = least
    _sift_up(heap, at, heap[stop])
    return size


@kernel
def _sift_up(heap, at, entry):
    """Put an entry into the gap `at`, moving larger parents down: 2 below 5 -> 2 above 5."""
    while at > _ROOT:
        parent = (at >> 2) + 2
        if heap[parent] <= entry:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = entry


@kernel
def merge_pretoken(tables, scratch, buffer, start, stop, ids, n_ids):
    """Append the ids of a pre-token; return the number of ids: a b, merge (a, b) -> ab, 1 more."""
    always_inline()
    known = whole_token(tables, buffer, start, stop)
    if known >= 0:
        ids[n_ids] = known
        return n_ids + 1
    if stop - start <= short.MAX_SHORT:
        return short.merge_short(tables, scratch, buffer, start, stop, ids, n_ids)
    return merge_long(tables, scratch, buffer, start, stop, ids, n_ids)


@kernel
def merge_long(tables, scratch, buffer, start, stop, ids, n_ids):
    """Merge more than MAX_SHORT bytes as `merge_pretoken` does: 50 x ab, merge (a, b) -> 50 ids."""
    noinline_cold()
    n = stop - start
    if n <= 3 * short.MAX_SHORT and short.begins_beyond_ascii(buffer, start, stop):
        n_symbols = short.lay_out_characters(tables, scratch, buffer, start, stop)
        if n_symbols > 0:
            return short.merge_symbols(tables, scratch, n_symbols, ids, n_ids)
    merge_heap(tables, scratch, buffer, start, stop)
    return read_rows(scratch.rows, n, ids, n_ids)
