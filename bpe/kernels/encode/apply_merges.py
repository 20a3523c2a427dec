"""Merge one pre-token to token ids, as `reference.encode` does: lowest rank first, then leftmost.

The way depends on the length:

- up to MAX_SHORT symbols: the ranks of all pairs are compared (`bpe.kernels.encode.merge_short`);
- up to BLOCKED bytes: the smallest ranks of every 16 pairs are compared;
- above: windows that begin and end where the whole pre-token has a boundary, too, each by blocks
  or, where many merges are to be expected, by a bucket for each rank;
- where windows do not meet: the whole pre-token, by a bucket for each rank or by a heap.

`scratch` is a `bpe.kernels.encode.group.Scratch` everywhere.
"""

from __future__ import annotations

import numpy as np

from bpe.kernels.encode import merge_short as short
from bpe.kernels.encode.merge_tables import NO_RANK, NONE, merged_id, pair_rank, whole_token
from bpe.kernels.runtime.jit import kernel
from bpe.kernels.runtime.machine import always_inline, minimum_of_16, noinline_cold, prefetch

BLOCKED = 2048  # bytes up to which the smallest ranks of blocks are compared
SCRATCH_BYTES = 2112  # of a pre-token for which there is memory; for longer ones more is allocated
MIN_BUCKETED = 4096  # bytes from which on pairs are in buckets by their ranks
MAX_BUCKETED = 2**29  # bytes up to which they are: three entries for a byte, below _NO_ENTRY
WINDOW = 65536  # bytes of such a pre-token that are merged together
OVERLAP = 1024  # the next window begins at a token that begins in so many of the last bytes
_NO_ENTRY = np.uint32(0x7FFFFFFF)
_UNORDERED = np.uint32(0x80000000)  # a bit of the last entry of a bucket
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
def merge_blocks(tables, scratch, buffer, start, stop):
    """Merge up to BLOCKED bytes as `merge_heap`, by the smallest rank of 16 places: abab -> ab ab.

    A merge, as of (a, b) in x a b y, changes three places, whose blocks are searched again.
    """
    n = stop - start
    rows, packed, least = scratch.rows, scratch.packed, scratch.least
    lay_out(tables, rows, buffer, start, n)
    n_blocks = (n + 15) >> 4
    packed[: 16 * n_blocks] = NO_RANK
    least[:] = NO_RANK
    for i in range(n - 1):
        packed[i] = short.pack(rows[4 * i + _RANK], i, BLOCKED)
    for block in range(n_blocks):
        least[block] = minimum_of_16(packed, 16 * block)
    while True:
        best = minimum_of_16(least, 0)
        for block in range(16, n_blocks, 16):
            best = min(best, minimum_of_16(least, block))
        if best == NO_RANK:
            break
        at = np.int64(best & np.uint32(BLOCKED - 1))
        right = np.int64(rows[4 * at + _FOLLOWING])
        before, rank_before, rank = merge_at(tables, rows, n, at)
        packed[right] = NO_RANK
        packed[at] = short.pack(rank, at, BLOCKED)
        if at > 0:
            packed[before] = short.pack(rank_before, before, BLOCKED)
            least[before >> 4] = minimum_of_16(packed, before & ~15)
        least[at >> 4] = minimum_of_16(packed, at & ~15)
        least[right >> 4] = minimum_of_16(packed, right & ~15)


@kernel
def merge_bucketed(tables, scratch, buffer, start, stop):
    """Merge at most MAX_BUCKETED bytes as `merge_heap` does, with one bucket of places per rank.

    Example: ranks 7, 3, 7 -> bucket 3 has place 1, bucket 7 has 0 and 2. Entries of an unsorted
    bucket move to the heap when its rank is reached. So do new pairs whose rank has passed already,
    which some vocabularies of tiktoken have.
    """
    n = stop - start
    rows, heap, buckets, entries = scratch.rows, scratch.heap, scratch.buckets, scratch.entries
    size, n_entries = 0, np.int64(0)
    buckets[:] = _NO_ENTRY
    lay_out(tables, rows, buffer, start, n)
    for i in range(n - 1):
        n_entries = _append(buckets, entries, n_entries, rows[4 * i + _RANK], i)
    for rank_now in range(buckets.size // 2):
        entry = np.int64(buckets[2 * rank_now])
        if entry != _NO_ENTRY and buckets[2 * rank_now + 1] & _UNORDERED:
            while entry != _NO_ENTRY:
                size = _push(heap, size, np.uint32(rank_now), np.int64(entries[2 * entry]))
                entry = np.int64(entries[2 * entry + 1])
        while entry != _NO_ENTRY or size > 0:
            first = NONE
            if entry != _NO_ENTRY:
                first = (np.uint64(rank_now) << np.uint64(32)) | np.uint64(entries[2 * entry])
            if size > 0 and heap[_ROOT] < first:
                first = heap[_ROOT]
                size = _pop(heap, size)
            else:
                entry = np.int64(entries[2 * entry + 1])
                if entry != _NO_ENTRY:
                    prefetch(rows, 4 * np.int64(entries[2 * entry]))
            at = np.int64(first & np.uint64(0xFFFFFFFF))
            if np.uint64(rows[4 * at + _RANK]) != first >> np.uint64(32):
                continue
            before, rank_before, rank = merge_at(tables, rows, n, at)
            if rank <= rank_now:
                size = _push(heap, size, rank, at)
            else:
                n_entries = _append(buckets, entries, n_entries, rank, at)
            if rank_before <= rank_now:
                size = _push(heap, size, rank_before, before)
            else:
                n_entries = _append(buckets, entries, n_entries, rank_before, before)


@kernel
def merge_windows(tables, scratch, buffer, start, stop, ids, n_ids, window, overlap, bucketed):
    """Merge a long pre-token window by window, in linear time, and append its ids.

    Example: tokens ab cd ef of a window, cd ef gh of the next, which share cd -> ab cd ef gh. No
    merge crosses the boundary of two tokens that are the encoding of their bytes alone. If that
    holds for any two neighbours, they are the tokens of the whole text: the first merge to differ
    would cross such a boundary. So up to a common token those of the first window count, then those
    of the second. (The encoder of GitHub's `bpe` crate, rust-gems, rests on this, too.)

    Args:
        window: Bytes that are merged together, at most BLOCKED, or WINDOW if `bucketed`.
        overlap: The next window begins at the first token that begins in the last `overlap` bytes
            of the one before it; less than `window`, at most OVERLAP.
        bucketed: Whether `merge_bucketed` merges them, or `merge_blocks`.

    Returns the number of ids now; -1 if two windows share no token, or none begins in `overlap`.
    """
    rows, begins = scratch.rows, scratch.begins
    # Where the tokens of the last window that this one may share begin, and where the last of them
    # ends, counted from the begin of this one.
    n_begins = 0
    begin = start
    while True:
        end = min(begin + window, stop)
        n = end - begin
        if bucketed:
            merge_bucketed(tables, scratch, buffer, begin, end)
        else:
            merge_blocks(tables, scratch, buffer, begin, end)
        at, i = np.int64(0), 0
        while i < n_begins:
            other, other_end = np.int64(begins[i]), np.int64(begins[i + 1])
            at_end = np.int64(rows[4 * at + _FOLLOWING])
            if at == other and at_end == other_end:
                break
            # The one that ends first is not in both.
            if other_end <= at_end:
                i += 1
            if at_end <= other_end:
                at = at_end
        if begin > start and i == n_begins:
            return -1
        # The ids of the last window from the common token on are overwritten.
        n_ids += i - n_begins
        n_begins, next_begin = 0, np.int64(0)
        while at < n:
            if end < stop and at >= n - overlap:
                if n_begins == 0:
                    next_begin = at
                begins[n_begins] = np.uint32(at - next_begin)
                n_begins += 1
            ids[n_ids] = rows[4 * at + _SYMBOL]
            n_ids += 1
            at = np.int64(rows[4 * at + _FOLLOWING])
        if end == stop:
            return n_ids
        if n_begins == 0:
            return -1
        begins[n_begins] = np.uint32(n - next_begin)
        begin += next_begin


@kernel
def _append(buckets, entries, n_entries, rank, at):
    """Append a position to its rank's bucket; return the number of entries: 4 of them -> 5."""
    if rank == NO_RANK:
        return n_entries
    place = 2 * np.int64(rank)
    entries[2 * n_entries] = np.uint32(at)
    entries[2 * n_entries + 1] = _NO_ENTRY
    if buckets[place] == _NO_ENTRY:
        buckets[place] = np.uint32(n_entries)
        buckets[place + 1] = np.uint32(n_entries)
    else:
        unordered = buckets[place + 1] & _UNORDERED
        last = 2 * np.int64(buckets[place + 1] ^ unordered)
        if entries[last] > np.uint32(at):
            unordered = _UNORDERED
        entries[last + 1] = np.uint32(n_entries)
        buckets[place + 1] = np.uint32(n_entries) | unordered
    return n_entries + 1


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
            left = NONE >> np.uint64(64 - n_symbols)
            return short.merge_symbols(tables, scratch, n_symbols, left, ids, n_ids)
    if n <= BLOCKED:
        merge_blocks(tables, scratch, buffer, start, stop)
    else:
        # In each window the buckets of all ranks are visited.
        bucketed = n >= max(MIN_BUCKETED, tables.merged.size // 16)
        window, overlap = (WINDOW, OVERLAP) if bucketed else (BLOCKED, BLOCKED // 4)
        after = merge_windows(
            tables, scratch, buffer, start, stop, ids, n_ids, window, overlap, bucketed
        )
        if after >= 0:
            return after
        if bucketed and n <= MAX_BUCKETED:
            merge_bucketed(tables, scratch, buffer, start, stop)
        else:
            merge_heap(tables, scratch, buffer, start, stop)
    return read_rows(scratch.rows, n, ids, n_ids)
