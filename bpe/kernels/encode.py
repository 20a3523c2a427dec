"""Pre-tokens -> token ids: look-up in a cache of words, and merging where it misses.

Law: the ids are those of `reference.encode` for every pre-token; a cache changes the time, never
the result. The cache is bounded: rows are overwritten, and the arenas of long pre-tokens are
emptied when full.

A pre-token of up to 15 bytes is its own key: 16 bytes, of which the last is the length. A row of
the cache is 32 bytes: the key, up to four ids, and their number; a bucket is two rows, one cache
line. Pre-tokens are handled in groups of some hundred, in two passes: keys first, with a prefetch
of each bucket, then look-ups. A pass that did both waited for memory at every word and was three
times slower.

A pair of tokens is looked up as `rank << 32 | merged id`, so that the smallest value *is* the next
merge.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.kernels.jit import kernel
from bpe.kernels.machine import (
    leading_zeros,
    load_u64,
    multiply,
    prefetch,
    store_two_u32,
    trailing_zeros,
)

SHORT = 15  # bytes of the longest pre-token that is its own key
GROUP = 256  # pre-tokens whose keys are computed before the first is looked up
QUADRATIC = 40  # bytes up to which the smallest of all pairs is found by looking at each of them
LONGEST_CACHED = 1024  # bytes; what is longer is hardly ever seen twice

_NONE = np.uint64(0xFFFFFFFFFFFFFFFF)
_ID_BITS = np.uint64((1 << 61) - 1)
_IN_ARENA = np.uint64(7)


class Tables(NamedTuple):
    """What one vocabulary is to the kernels; shared by all threads, never changed."""

    byte_ids: NDArray[np.int32]  # int32[256], the id of each byte
    byte_pairs: NDArray[np.uint64]  # uint64[65536], value of the pair of bytes (a, b) at a << 8 | b
    pairs: NDArray[np.uint64]  # uint64[2 * capacity], open addressing: key `a << 32 | b`, value
    # uint64[2 * capacity] or uint64[0]: hash of a token's bytes, its number
    whole: NDArray[np.uint64]
    whole_bytes: NDArray[np.uint8]  # uint8, the bytes of the tokens of `whole`, one after the other
    whole_offsets: NDArray[np.int64]  # int64[n + 1]
    whole_ids: NDArray[np.int32]  # int32[n]


class Cache(NamedTuple):
    """What one thread remembers; every array is modified in place."""

    # uint64[8 * n_buckets]: key, key, ids 0 and 1, ids 2 and 3 with their number on top
    rows: NDArray[np.uint64]
    # uint64[4 * n]: hash, place in long_bytes, length, place in long_ids << 32 | number
    long_rows: NDArray[np.uint64]
    long_bytes: NDArray[np.uint8]
    long_ids: NDArray[np.uint32]
    # int64[3]: bytes and ids used of the arenas, and how often they were emptied
    used: NDArray[np.int64]


class Documents(NamedTuple):
    """Which bytes and which ids belong to which document."""

    offsets: NDArray[np.int64]  # int64[n_documents + 1], of bytes
    token_offsets: NDArray[np.int64]  # int64[n_documents + 1], of ids; replaced
    # int64[3]: id before and after each (-1: none), 1 if the last one goes on elsewhere
    around: NDArray[np.int64]


class Scratch(NamedTuple):
    """Memory for one group; its content means nothing between calls."""

    positions: NDArray[np.int64]  # int64[GROUP + 66]
    lows: NDArray[np.uint64]  # uint64[GROUP + 66], first word of the key
    highs: NDArray[np.uint64]  # uint64[GROUP + 66], second word
    # uint64[GROUP + 66], place of the bucket; _NONE: the pre-token is long
    slots: NDArray[np.uint64]
    symbols: NDArray[np.int64]  # int64[QUADRATIC + 1]
    values: NDArray[np.uint64]  # uint64[QUADRATIC + 1]
    # For `merge_many`; n is the number of bytes of the longest pre-token.
    links: NDArray[np.int32]  # int32[3 * n + 2]
    ranks: NDArray[np.uint32]  # uint32[n]
    heap: NDArray[np.uint64]  # uint64[2 * n]


LOW_MASKS = np.array([(1 << 8 * min(n, 8)) - 1 for n in range(16)], np.uint64)
HIGH_MASKS = np.array([(1 << 8 * max(n - 8, 0)) - 1 for n in range(16)], np.uint64)
"""Which bits of the two words a pre-token of n bytes has."""


@kernel
def hash_key(low, high):
    """A hash of a 16-byte key; its high bits are the good ones."""
    mixed = multiply(low, np.uint64(0x9E3779B97F4A7C15)) ^ multiply(
        high, np.uint64(0xC2B2AE3D27D4EB4F)
    )
    return multiply(mixed ^ (mixed >> np.uint64(32)), np.uint64(0xD6E8FEB86659FD93))


@kernel
def hash_bytes(data, start, stop):
    """A hash of `data[start:stop]`; never the number that marks a free place."""
    mixed = np.uint64(stop - start)
    at = start
    while at < stop:
        if at + 8 <= stop:
            word = load_u64(data, at)
        else:
            word = np.uint64(0)
            for j in range(stop - at):
                word |= np.uint64(data[at + j]) << np.uint64(8 * j)
        mixed = multiply(mixed ^ word, np.uint64(0x9E3779B97F4A7C15))
        mixed ^= mixed >> np.uint64(29)
        at += 8
    mixed = multiply(mixed, np.uint64(0xD6E8FEB86659FD93))
    mixed ^= mixed >> np.uint64(32)
    return min(mixed, _NONE - np.uint64(1))


@kernel
def same_bytes(a, a_start, b, b_start, length):
    """Whether two stretches of bytes are equal."""
    at = 0
    while at + 8 <= length:
        if load_u64(a, a_start + at) != load_u64(b, b_start + at):
            return False
        at += 8
    while at < length:
        if a[a_start + at] != b[b_start + at]:
            return False
        at += 1
    return True


@kernel
def pair_value(pairs, left, right):
    """`rank << 32 | merged id` of the pair, or the largest number if it is never merged."""
    mask = np.uint64(pairs.size // 2 - 1)
    key = (np.uint64(left) << np.uint64(32)) | np.uint64(right)
    at = (
        multiply(key ^ (key >> np.uint64(29)), np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
        & mask
    )
    while True:
        found = pairs[np.int64(at) * 2]
        if found == key:
            return pairs[np.int64(at) * 2 + 1]
        if found == _NONE:
            return _NONE
        at = (at + np.uint64(1)) & mask


@kernel
def fill_pairs(lefts, rights, ranks, merged_ids, byte_ids, pairs, byte_pairs):
    """Build the two tables of pairs.

    Args:
        lefts, rights, ranks, merged_ids: int32[n], ascending by rank; of equal pairs the first
            counts.
        byte_ids: int32[256].
        pairs: uint64[2 * capacity], the capacity a power of two of at least n + 1; replaced.
        byte_pairs: uint64[65536]; replaced.
    """
    pairs[:] = _NONE
    mask = np.uint64(pairs.size // 2 - 1)
    for i in range(lefts.size):
        key = (np.uint64(lefts[i]) << np.uint64(32)) | np.uint64(rights[i])
        at = (
            multiply(key ^ (key >> np.uint64(29)), np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
            & mask
        )
        while pairs[np.int64(at) * 2] != _NONE and pairs[np.int64(at) * 2] != key:
            at = (at + np.uint64(1)) & mask
        if pairs[np.int64(at) * 2] == _NONE:
            pairs[np.int64(at) * 2] = key
            pairs[np.int64(at) * 2 + 1] = (np.uint64(ranks[i]) << np.uint64(32)) | np.uint64(
                merged_ids[i]
            )
    for a in range(256):
        for b in range(256):
            byte_pairs[a << 8 | b] = pair_value(pairs, byte_ids[a], byte_ids[b])


@kernel
def fill_whole(token_bytes, token_offsets, whole):
    """Build the table from the hash of a token's bytes to its number.

    Args:
        token_bytes: uint8[n_bytes]; token_offsets: int64[n + 1].
        whole: uint64[2 * capacity], the capacity a power of two of at least n + 1; replaced.
    """
    whole[:] = _NONE
    mask = whole.size // 2 - 1
    for i in range(token_offsets.size - 1):
        hashed = hash_bytes(token_bytes, token_offsets[i], token_offsets[i + 1])
        at = np.int64(hashed & np.uint64(mask))
        while whole[at * 2] != _NONE:
            at = (at + 1) & mask
        whole[at * 2] = hashed
        whole[at * 2 + 1] = np.uint64(i)


@kernel
def whole_token(tables, buffer, start, stop):
    """The id of the token that is exactly `buffer[start:stop]`, or -1."""
    if tables.whole.size == 0:
        return -1
    mask = tables.whole.size // 2 - 1
    hashed = hash_bytes(buffer, start, stop)
    at = np.int64(hashed & np.uint64(mask))
    while tables.whole[at * 2] != _NONE:
        if tables.whole[at * 2] == hashed:
            i = np.int64(tables.whole[at * 2 + 1])
            begin = tables.whole_offsets[i]
            if tables.whole_offsets[i + 1] - begin == stop - start and same_bytes(
                tables.whole_bytes, begin, buffer, start, stop - start
            ):
                return np.int64(tables.whole_ids[i])
        at = (at + 1) & mask
    return -1


@kernel
def merge_few(tables, buffer, start, stop, symbols, values, ids, n_ids):
    """Merge a pre-token of at most QUADRATIC bytes, by looking at every pair for the smallest rank.

    Returns:
        The number of ids after this pre-token; they are written to `ids` from `n_ids` on.
    """
    n = stop - start
    for i in range(n):
        symbols[i] = tables.byte_ids[buffer[start + i]]
    for i in range(n - 1):
        values[i] = tables.byte_pairs[
            np.int64(buffer[start + i]) << 8 | np.int64(buffer[start + i + 1])
        ]
    while n > 1:
        # The leftmost of the lowest rank: equal pairs have equal values.
        best = 0
        value = values[0]
        for i in range(1, n - 1):
            if values[i] < value:
                value = values[i]
                best = i
        if value == _NONE:
            break
        symbols[best] = np.int64(value & np.uint64(0xFFFFFFFF))
        n -= 1
        for i in range(best + 1, n):
            symbols[i] = symbols[i + 1]
            values[i - 1] = values[i]
        # Only the pairs on both sides are new. values[best] is the pair with what follows.
        if best > 0:
            values[best - 1] = pair_value(tables.pairs, symbols[best - 1], symbols[best])
        if best < n - 1:
            values[best] = pair_value(tables.pairs, symbols[best], symbols[best + 1])
    for i in range(n):
        ids[n_ids + i] = symbols[i]
    return n_ids + n


@kernel
def merge_many(tables, scratch, buffer, start, stop, ids, n_ids):
    """Merge a pre-token of any length in O(n log n) time.

    A heap holds `rank << 32 | position`; links join the symbols that are left. An entry of the heap
    whose pair has changed since is dropped when it comes up.

    Returns:
        The number of ids after this pre-token; they are written to `ids` from `n_ids` on.
    """
    n = stop - start
    symbols = scratch.links[:n]
    following = scratch.links[n : 2 * n + 1]  # position of the next symbol; n: there is none
    preceding = scratch.links[2 * n + 1 : 3 * n + 2]
    ranks = scratch.ranks  # of the pair that begins here
    no_rank = np.uint32(0xFFFFFFFF)
    # n - 1 pairs at first; each merge takes its entry out before it puts at most two in, and there
    # are n - 1 merges.
    heap = scratch.heap
    size = 0
    for i in range(n):
        symbols[i] = tables.byte_ids[buffer[start + i]]
        following[i] = i + 1
        preceding[i] = i - 1
        ranks[i] = no_rank
        if i + 1 < n:
            value = tables.byte_pairs[
                np.int64(buffer[start + i]) << 8 | np.int64(buffer[start + i + 1])
            ]
            if value != _NONE:
                ranks[i] = np.uint32(value >> np.uint64(32))
                size = _push(heap, size, (value & ~np.uint64(0xFFFFFFFF)) | np.uint64(i))
    while size > 0:
        entry = heap[0]
        size = _pop(heap, size)
        at = np.int64(entry & np.uint64(0xFFFFFFFF))
        if np.uint64(ranks[at]) != entry >> np.uint64(32) or ranks[at] == no_rank:
            continue
        right = np.int64(following[at])
        value = pair_value(tables.pairs, symbols[at], symbols[right])
        symbols[at] = np.int32(value & np.uint64(0xFFFFFFFF))
        ranks[right] = no_rank
        after = np.int64(following[right])
        following[at] = after
        preceding[after] = at
        ranks[at] = no_rank
        if after < n:
            value = pair_value(tables.pairs, symbols[at], symbols[after])
            if value != _NONE:
                ranks[at] = np.uint32(value >> np.uint64(32))
                size = _push(heap, size, (value & ~np.uint64(0xFFFFFFFF)) | np.uint64(at))
        before = np.int64(preceding[at])
        if before >= 0:
            value = pair_value(tables.pairs, symbols[before], symbols[at])
            ranks[before] = no_rank
            if value != _NONE:
                ranks[before] = np.uint32(value >> np.uint64(32))
                size = _push(heap, size, (value & ~np.uint64(0xFFFFFFFF)) | np.uint64(before))
    at = 0
    while at < n:
        ids[n_ids] = symbols[at]
        n_ids += 1
        at = np.int64(following[at])
    return n_ids


@kernel
def _push(heap, size, entry):
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heap[parent] <= entry:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = entry
    return size + 1


@kernel
def _pop(heap, size):
    size -= 1
    entry = heap[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if entry <= heap[child]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = entry
    return size


@kernel
def merge_pretoken(tables, scratch, buffer, start, stop, ids, n_ids):
    """The ids of one pre-token, without any cache. Returns the number of ids after it."""
    known = whole_token(tables, buffer, start, stop)
    if known >= 0:
        ids[n_ids] = known
        return n_ids + 1
    if stop - start <= QUADRATIC:
        return merge_few(tables, buffer, start, stop, scratch.symbols, scratch.values, ids, n_ids)
    return merge_many(tables, scratch, buffer, start, stop, ids, n_ids)


@kernel
def remember_ids(cache, ids, first, n_ids):
    """Keep `ids[first:n_ids]` in the arena, which is emptied first if it is full.

    Returns their place there.
    """
    n = n_ids - first
    if cache.used[1] + n > cache.long_ids.size:
        empty_arenas(cache)
    place = cache.used[1]
    for i in range(n):
        cache.long_ids[place + i] = ids[first + i]
    cache.used[1] += n
    return place


@kernel
def empty_arenas(cache):
    """Forget all long pre-tokens.

    Rows that point into the arenas know by the third counter that they are old.
    """
    cache.long_rows[:] = _NONE
    cache.used[0] = 0
    cache.used[1] = 0
    cache.used[2] += 1


@kernel
def encode_long(tables, cache, scratch, buffer, start, stop, ids, n_ids):
    """The ids of a pre-token of more than SHORT bytes, through a cache of its own.

    Returns the number of ids after it.
    """
    length = stop - start
    if length > LONGEST_CACHED:
        return merge_pretoken(tables, scratch, buffer, start, stop, ids, n_ids)
    hashed = hash_bytes(buffer, start, stop)
    row = np.int64(hashed >> np.uint64(20)) & (cache.long_rows.size // 4 - 1)
    row *= 4
    if cache.long_rows[row] == hashed and np.int64(cache.long_rows[row + 2]) == length:
        begin = np.int64(cache.long_rows[row + 1])
        if same_bytes(cache.long_bytes, begin, buffer, start, length):
            place = np.int64(cache.long_rows[row + 3] >> np.uint64(32))
            n = np.int64(cache.long_rows[row + 3] & np.uint64(0xFFFFFFFF))
            for i in range(n):
                ids[n_ids + i] = cache.long_ids[place + i]
            return n_ids + n
    after = merge_pretoken(tables, scratch, buffer, start, stop, ids, n_ids)
    if cache.used[0] + length > cache.long_bytes.size:
        empty_arenas(cache)
    place = remember_ids(cache, ids, n_ids, after)
    begin = cache.used[0]
    for i in range(length):
        cache.long_bytes[begin + i] = buffer[start + i]
    cache.used[0] += length
    cache.long_rows[row] = hashed
    cache.long_rows[row + 1] = np.uint64(begin)
    cache.long_rows[row + 2] = np.uint64(length)
    cache.long_rows[row + 3] = (np.uint64(place) << np.uint64(32)) | np.uint64(after - n_ids)
    return after


@kernel
def encode_rare(tables, cache, scratch, buffer, i, ids, n_ids):
    """The ids of short pre-token i of the group; one that is not in the cache is put there.

    Returns the number of ids after it.
    """
    rows = cache.rows
    low, high = scratch.lows[i], scratch.highs[i]
    slot = np.int64(scratch.slots[i])
    for at in (slot, slot + 4):
        if (
            rows[at] == low
            and rows[at + 1] == high
            and rows[at + 3] == (_IN_ARENA << np.uint64(61)) | np.uint64(cache.used[2])
        ):
            place = np.int64(rows[at + 2] >> np.uint64(8))
            n = np.int64(rows[at + 2] & np.uint64(255))
            for j in range(n):
                ids[n_ids + j] = cache.long_ids[place + j]
            return n_ids + n
    start, stop = scratch.positions[i], scratch.positions[i + 1]
    after = merge_pretoken(tables, scratch, buffer, start, stop, ids, n_ids)
    n = after - n_ids
    # It goes into the first row; what was there moves to the second, whose content is lost.
    for j in range(4):
        rows[slot + 4 + j] = rows[slot + j]
    rows[slot] = low
    rows[slot + 1] = high
    if n <= 4:
        words = np.uint64(ids[n_ids])
        if n > 1:
            words |= np.uint64(ids[n_ids + 1]) << np.uint64(32)
        rows[slot + 2] = words
        words = np.uint64(n) << np.uint64(61)
        if n > 2:
            words |= np.uint64(ids[n_ids + 2])
        if n > 3:
            words |= np.uint64(ids[n_ids + 3]) << np.uint64(32)
        rows[slot + 3] = words
    else:
        place = remember_ids(cache, ids, n_ids, after)
        rows[slot + 2] = (np.uint64(place) << np.uint64(8)) | np.uint64(n)
        rows[slot + 3] = (_IN_ARENA << np.uint64(61)) | np.uint64(cache.used[2])
    return after


@kernel
def take_positions(starts, cursor, positions):
    """Read set bits, whole words at a time, until a group is full or the set is empty.

    Args:
        starts: uint64[n_words], bit set.
        cursor: int64[2]: the next word to read; the last position taken, or -1. Modified in place.
        positions: int64[GROUP + 66]; replaced by the last position taken and those that follow it.

    Returns:
        The number of positions: one more than there are pre-tokens between them, or 0.
    """
    n = 0
    if cursor[1] >= 0:
        positions[0] = cursor[1]
        n = 1
    k = cursor[0]
    while k < starts.size and n <= GROUP:
        word = starts[k]
        base = np.int64(k) << 6
        while word:
            positions[n] = base + trailing_zeros(word)
            word &= word - np.uint64(1)
            n += 1
        k += 1
    cursor[0] = k
    if n > 0:
        cursor[1] = positions[n - 1]
    return n


@kernel
def longest_pretoken(starts):
    """An upper bound of the length in bytes of a pre-token: at least 64, and exact beyond."""
    longest = np.int64(0)
    before = np.int64(0)
    for k in range(starts.size):
        word = starts[k]
        if word:
            # Whatever lies between two bits of one word is shorter than a word.
            base = np.int64(k) << 6
            longest = max(longest, base + trailing_zeros(word) - before)
            before = base + 63 - leading_zeros(word)
    return max(longest, np.int64(64))


@kernel
def compute_keys(buffer, tail, tail_start, n_pretokens, scratch, rows):
    """The key of every short pre-token of a group, and a prefetch of its bucket.

    Args:
        buffer: uint8[n_bytes]; tail: uint8, the bytes from `tail_start` on, then at least 16 zeros.
        tail_start: pre-tokens that begin there or later are read from `tail`; before it, 16 bytes
            can be read.
        n_pretokens: `scratch.positions` has one more position than this.
        scratch: its lows, highs and slots are replaced.
        rows: the cache's rows.
    """
    mask = np.uint64(rows.size // 8 - 1)
    positions, slots = scratch.positions, scratch.slots
    lows, highs = scratch.lows, scratch.highs
    for i in range(n_pretokens):
        at = positions[i]
        length = positions[i + 1] - at
        if length <= SHORT:
            if at < tail_start:
                low = load_u64(buffer, at)
                high = load_u64(buffer, at + 8)
            else:
                low = load_u64(tail, at - tail_start)
                high = load_u64(tail, at - tail_start + 8)
            low &= LOW_MASKS[length]
            high = (high & HIGH_MASKS[length]) | (np.uint64(length) << np.uint64(56))
            slot = ((hash_key(low, high) >> np.uint64(32)) & mask) << np.uint64(3)
            prefetch(rows, slot)
            lows[i] = low
            highs[i] = high
            slots[i] = slot
        else:
            slots[i] = _NONE


@kernel
def close_documents(documents, document, position, ids, n_ids):
    """Close every document that ends at or before `position`, and open the next.

    Returns:
        (the document that is open now, number of ids so far).
    """
    last = documents.offsets.size - 2
    while document <= last and documents.offsets[document + 1] <= position:
        if documents.around[1] >= 0 and not (document == last and documents.around[2]):
            ids[n_ids] = documents.around[1]
            n_ids += 1
        document += 1
        documents.token_offsets[document] = n_ids
        if document <= last and documents.around[0] >= 0:
            ids[n_ids] = documents.around[0]
            n_ids += 1
    return document, n_ids


@kernel
def encode_pretokens(
    tables, cache, scratch, documents, buffer, tail, tail_start, starts, cursor, ids, n_ids, most
):
    """Encode pre-tokens from where `cursor` stands until the text or `most` groups are done.

    Args:
        tables, cache, scratch, documents: see there.
        buffer, tail, tail_start: see `compute_keys`.
        starts: uint64[n_bytes // 64 + 1], where pre-tokens begin, and the end.
        cursor: int64[3]: see `take_positions`; then the open document. Modified in place.
        ids: uint32, with place for one id per byte, those around documents, and 4 more.
        n_ids: ids already written.
        most: groups after which to come back, so that signals are seen.

    Returns:
        The number of ids written so far. The text is done when `cursor[0]` is `starts.size`.
    """
    rows = cache.rows
    positions, slots = scratch.positions, scratch.slots
    lows, highs = scratch.lows, scratch.highs
    document = cursor[2]
    last = documents.offsets.size - 1
    document_end = documents.offsets[min(document + 1, last)]
    while most > 0 and cursor[0] < starts.size:
        most -= 1
        n_pretokens = take_positions(starts, cursor, positions) - 1
        compute_keys(buffer, tail, tail_start, n_pretokens, scratch, rows)
        i = 0
        while i < n_pretokens:
            # Words that are in the cache, one after the other; everything rare leaves this loop.
            while i < n_pretokens and positions[i] < document_end:
                slot = slots[i]
                if slot == _NONE:
                    break
                low, high = lows[i], highs[i]
                # Which row it is cannot be predicted: choose without a branch, then ask whether it
                # was right.
                first = (rows[slot] ^ low) | (rows[slot + np.uint64(1)] ^ high)
                at = slot if first == np.uint64(0) else slot + np.uint64(4)
                words = rows[at + np.uint64(3)]
                n = words >> np.uint64(61)
                if rows[at] != low or rows[at + np.uint64(1)] != high or n == _IN_ARENA:
                    break
                # Always four ids; those past the number are overwritten by what follows.
                store_two_u32(ids, n_ids, rows[at + np.uint64(2)])
                store_two_u32(ids, n_ids + 2, words & _ID_BITS)
                n_ids += np.int64(n)
                i += 1
            if i == n_pretokens:
                break
            start, stop = positions[i], positions[i + 1]
            if start >= document_end:
                document, n_ids = close_documents(documents, document, start, ids, n_ids)
                document_end = documents.offsets[min(document + 1, last)]
            elif slots[i] == _NONE:
                n_ids = encode_long(tables, cache, scratch, buffer, start, stop, ids, n_ids)
                i += 1
            else:
                n_ids = encode_rare(tables, cache, scratch, buffer, i, ids, n_ids)
                i += 1
    if cursor[0] == starts.size:
        document, n_ids = close_documents(documents, document, documents.offsets[last], ids, n_ids)
    cursor[2] = document
    return n_ids
