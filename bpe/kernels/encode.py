"""Pre-tokens -> token ids, as `reference.encode` gives them: looked up if known, else merged.

Most pre-tokens are one token of up to eight bytes. They are in a table that all threads share (see
`token_hash`), with 8 bytes for each token. The others, misses, are looked up in a small cache of
the thread, whose rows have up to four ids to be copied; then in the cache of all threads
(`bpe.kernels.words`); else they are merged.

Pre-tokens are handled in groups, in passes that hardly ever wait for memory or mispredict: the ids
of tokens, and a list of misses; their keys, with a prefetch of their rows in the thread cache; the
ids of those found, and a prefetch of the buckets of the others; then all ids in order. A single
pass waited for memory at every miss and was three times slower.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.kernels.apply_merges import SCRATCH_BYTES, merge_pretoken
from bpe.kernels.jit import kernel
from bpe.kernels.machine import (
    add,
    always_inline,
    copy_16_ids,
    leading_zeros,
    load_u64,
    multiply,
    noinline,
    noinline_cold,
    popcount,
    prefetch,
    rotate,
    store_four_ids,
    store_halves_of_two,
    trailing_zeros,
)
from bpe.kernels.vectors import (
    WINDOW,
    all_eight,
    chosen_above,
    from_byte,
    gather_eight,
    has_eight,
    larger_of,
    lengths_listed,
    load_eight,
    pairs_listed,
    rotate_eight,
    store_chosen,
    store_eight,
    store_halves,
    store_positions,
    which_above,
    which_differ,
    without,
    words_at,
    words_in_window,
    words_listed,
)
from bpe.kernels.words import (
    MOST_LONG,
    PretokenCache,
    add_long_row,
    add_row,
    find_long_row,
    find_row,
    hash_bytes,
    is_full,
    long_bucket,
    publish_counts,
    recall,
    remember,
    row_bucket,
    still_free,
)

TOKEN_BYTES = 8  # bytes of the longest token in the table of tokens
TOKEN_BITS = 15  # of the places in that table, and of an id in it: 256 KiB stay near the processor
SHORT = 15  # bytes of the longest pre-token that is its own key
GROUP = 1024  # pre-tokens that are handled together; with few, the passes get in the way
LONGEST_CACHED = 1024  # bytes; longer pre-tokens are hardly ever seen twice
COPIED = 16  # ids that are copied at once

_NONE = np.uint64(0xFFFFFFFFFFFFFFFF)
FACTOR, _OTHER_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
IDS = _NONE >> np.uint64(3)  # of the last word of a row, without the number of ids


class Documents(NamedTuple):
    """Which bytes and which ids belong to which document.

    Every second document can be a gap: the bytes between two documents, which have no ids.
    """

    offsets: NDArray[np.int64]  # int64[n_documents + 1], of bytes
    token_offsets: NDArray[np.int64]  # int64[n_documents + 1], of ids; replaced
    # int64[4]: id before and after each (-1: none), 1 if the last one continues in a later call, 1
    # if there are gaps
    around: NDArray[np.int64]


class Scratch(NamedTuple):
    """Memory for one group; its content means nothing between calls.

    From `symbols` on it is that of `bpe.kernels.apply_merges`, with its constants and functions.
    """

    positions: NDArray[np.int64]  # int64[GROUP + 80]
    # uint32[MISSES + 2 * (GROUP + 80)]: the id of each token; from MISSES on the numbers of misses,
    # and END_OF_DOCUMENT with the number of the first pre-token of the next document
    group: NDArray[np.uint32]
    # uint64[4 * KEYS], for each miss: the first word of its key; from HIGH on the second, LONG for
    # the end of a document and for a long pre-token, whose hash is the first; from AT on its place
    # in the thread cache; from PLACE on, if it is not there, its place in the cache, the answer of
    # `find_row`, or _NONE: it has none. For counting see `bpe.kernels.count.compute_keys`
    keys: NDArray[np.uint64]
    # uint64[2 * KEYS], the first word of ids in the thread cache; from HIGH on the second, or 0
    found: NDArray[np.uint64]
    # uint32[KEYS], the misses that are not in the thread cache; then those not in the cache either
    unseen: NDArray[np.uint32]
    new_ids: NDArray[np.uint32]  # uint32[LONGEST_CACHED + 1]
    # uint8[TAIL], the last 16 bytes of the text, or all if it has fewer, then zeros
    tail: NDArray[np.uint8]
    tail_text: NDArray[np.uint8]  # the same, read-only like text, so that one kernel serves both
    symbols: NDArray[np.uint32]  # uint32[MAX_SHORT]
    packed: NDArray[np.uint32]  # uint32[BLOCKED], see `pack`
    least: NDArray[np.uint32]  # uint32[BLOCKED // 16], the smallest of every 16 of those
    begins: NDArray[np.uint32]  # uint32[OVERLAP + 1], for `merge_windows`
    # For those of more than MAX_SHORT bytes; n is the number of bytes of the longest.
    rows: NDArray[np.uint32]  # uint32[4 * n], see _SYMBOL
    heap: NDArray[np.uint64]  # uint64[2 * n + 3], the root at _ROOT
    # For `merge_bucketed`; empty if n is below MIN_BUCKETED.
    buckets: NDArray[np.uint32]  # uint32[2 * n_ranks]: first and last entry of each rank
    entries: NDArray[np.uint32]  # uint32[6 * n]: position, next entry


END_OF_DOCUMENT = np.uint32(1 << 31)
MISSES = np.uint64(GROUP + 80 + COPIED)  # where in `Scratch.group` the list of misses begins
TAIL = 48  # bytes of `Scratch.tail`: a key is loaded from its last bytes of text, too
KEYS = 2 * (GROUP + 80)  # for which there is room in `Scratch.keys`
# Where in `Scratch.keys` and `Scratch.found` the second words begin; in `Scratch.keys` the places
# in the thread cache, and those in the cache.
HIGH, AT, PLACE = np.uint64(KEYS), np.uint64(2 * KEYS), np.uint64(3 * KEYS)
LONG = np.uint64(0xFF << 56)  # the second word of a key that no row has

KEY_PARTS = np.array(
    [
        word
        for n in range(SHORT + 1)
        for word in ((1 << 8 * min(n, 8)) - 1, (1 << 8 * max(n - 8, 0)) - 1, 0, n << 56)
    ]
    + [0, 0, 0, LONG],
    np.uint64,
)
"""At 4 * n, two masks of the key of a pre-token of n bytes, then two words to set in it; at the end
those for pre-tokens that are too long for a key."""

PADDING = np.array([2**64 - (1 << 8 * n) for n in range(TOKEN_BYTES + 1)] + [2**64 - 1], np.uint64)
"""uint64[TOKEN_BYTES + 2], at n the padding of a token of n bytes to 8: 0xFF, which is in no UTF-8.
The last entry replaces all bytes, for longer tokens."""


@kernel
def token_hash(word):
    """A hash of the 8 bytes of a short pre-token that can be undone: no two have the same.

    The lowest TOKEN_BITS are its place in `Tables.tokens`. The row there has the other bits, which
    identify the pre-token, above the exclusive or of its place and its id.
    """
    # The upper bits of a product depend on all bits of the word.
    return rotate(multiply(word, FACTOR), np.uint64(TOKEN_BITS))


@kernel
def token_hashes(words):
    """`token_hash` of eight words."""
    return rotate_eight(words * all_eight(FACTOR), np.uint64(TOKEN_BITS))


@kernel
def merge_new(tables, cache, scratch, buffer, n_new):
    """Merge the misses that `scratch.unseen` lists, and add them to the cache.

    One call for all: it hands over some thirty arrays, which takes longer than a look-up.
    """
    noinline_cold()
    keys, ids = scratch.keys, scratch.new_ids
    for number in range(n_new):
        row = np.uint64(scratch.unseen[np.uint64(number)])
        low, high, at = keys[row], keys[HIGH + row], np.int64(keys[PLACE + row])
        is_long = high == LONG
        # The same pre-token may be in this group twice.
        if not still_free(cache.long_rows if is_long else cache.rows, at):
            at = find_in_cache(cache, scratch, buffer, row)
        if at < 0:
            start, stop = span_of(scratch, row)
            n = merge_pretoken(tables, scratch, buffer, start, stop, ids, 0)
            if is_long or n > tables.packing[2]:
                length = stop - start if is_long else np.int64(0)
                place = remember(cache, ids, n, buffer, start, length)
                if place < 0:
                    at = np.int64(-1)
                elif is_long:
                    entry = np.uint64(place << 22 | n << 11 | length)
                    at = add_long_row(cache, at, low, entry)
                else:
                    at = add_row(cache, at, low, high, np.uint64(place << 16 | n), np.uint64(0))
            else:
                first_ids, second_ids = pack_ids(tables, ids, n)
                at = add_row(cache, at, low, high, first_ids, second_ids)
        keys[PLACE + row] = np.uint64(np.int64(at))


@kernel
def pack_ids(tables, ids, n):
    """The last two words of a row of `PretokenCache.rows`, for n ids that fit into them."""
    bits, n_first = np.uint64(tables.packing[0]), tables.packing[1]
    first_ids, second_ids = np.uint64(0), np.uint64(n) << np.uint64(61)
    for j in range(min(n, n_first)):
        first_ids |= np.uint64(ids[j]) << (bits * np.uint64(j))
    for j in range(n_first, n):
        second_ids |= np.uint64(ids[j]) << (bits * np.uint64(j - n_first))
    return first_ids, second_ids


@kernel
def span_of(scratch, row):
    """Return the start and the end of the pre-token of a miss, in bytes."""
    always_inline()
    i = np.uint64(scratch.group[MISSES + row])
    return scratch.positions[i], scratch.positions[i + np.uint64(1)]


@kernel
def find_in_cache(cache, scratch, buffer, row):
    """Find a miss in the rows, or the long rows, of the cache; returns as `find_row`."""
    always_inline()
    low, high = scratch.keys[row], scratch.keys[HIGH + row]
    if high == LONG:
        start, stop = span_of(scratch, row)
        return find_long_row(cache, low, buffer, start, stop - start)
    return find_row(cache.rows, np.int64(row_bucket(low, high, cache.rows)), low, high)


@kernel
def emit_uncached(tables, scratch, buffer, row, ids, n_ids):
    """Append the ids of a miss that is too long for the cache, or found no room in it."""
    noinline_cold()
    start, stop = span_of(scratch, row)
    return merge_pretoken(tables, scratch, buffer, start, stop, ids, n_ids)


@kernel
def emit_unseen(tables, thread_cache, cache, scratch, buffer, row, ids, n_ids):
    """Append the ids of a miss and add it to the thread cache; returns the number of ids now."""
    always_inline()
    low, high, found = scratch.keys[row], scratch.keys[HIGH + row], scratch.keys[PLACE + row]
    if found == _NONE:
        return emit_uncached(tables, scratch, buffer, row, ids, n_ids)
    at = np.int64(found)
    if high == LONG:
        entry = cache.long_rows[at + 1]
        place, n = np.int64(entry >> np.uint64(22)), np.int64((entry >> np.uint64(11)) & MOST_LONG)
        return recall(cache.arena, place, n, ids, n_ids)
    first_ids, second_ids = cache.rows[at + 2], cache.rows[at + 3]
    if second_ids != 0:
        bits, n_first = tables.packing[0], tables.packing[1]
        store_four_ids(ids, n_ids, first_ids, bits)
        store_four_ids(ids, n_ids + n_first, second_ids, bits)
        after = n_ids + np.int64(second_ids >> np.uint64(61))
    else:
        place, n = np.int64(first_ids >> np.uint64(16)), np.int64(first_ids & np.uint64(0xFFFF))
        after = recall(cache.arena, place, n, ids, n_ids)
    n = after - n_ids
    if n <= 4:
        to = np.int64(scratch.keys[AT + row])
        thread_cache[to] = low
        thread_cache[to + 1] = high
        thread_cache[to + 2] = two_ids(np.uint64(ids[n_ids]), np.uint64(ids[n_ids + 1]))
        # Ids after the last mean nothing, but must leave the bits of the number free.
        third, fourth = np.uint64(ids[n_ids + 2]), np.uint64(ids[n_ids + 3])
        thread_cache[to + 3] = (two_ids(third, fourth) & IDS) | (np.uint64(n) << np.uint64(61))
    return after


@kernel
def two_ids(first, second):
    """Two numbers of 32 bits in one word."""
    return first | (second << np.uint64(32))


@kernel
def fill_tail(buffer, n, tail):
    """Fill `Scratch.tail` from `buffer[:n]`; returns where in the text it begins.

    Keys of 16 bytes are loaded from the buffer before that place, and from `tail` after it.
    """
    start = n - 16 if n > 16 else np.int64(0)
    for j in range(tail.size):
        tail[j] = buffer[start + j] if start + j < n else 0
    return start


@kernel
def take_positions(starts, cursor, positions):
    """Read set bits, whole words at a time, until a group is full or the set is empty.

    Args:
        starts: uint64[n_words], bit set.
        cursor: int64[2]: the next word to read; the last position taken, or -1. Modified in place.
        positions: int64[GROUP + 80]; replaced by the last position taken and those that follow it.

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
        following = n + popcount(word)
        if has_eight():
            store_positions(word, base, positions, n)
            word = np.uint64(0)
        # Eight at a time, even if there are fewer: the number differs from word to word, so that
        # the end of a loop over single bits would be mispredicted.
        while word:
            at = np.uint64(n)
            for j in range(8):
                positions[at + np.uint64(j)] = base + trailing_zeros(word)
                word &= add(word, _NONE)
            n += 8
        n = following
        k += 1
    cursor[0] = k
    if n > 0:
        cursor[1] = positions[n - 1]
    return n


@kernel
def longest_pretoken(starts):
    """The number of bytes of the longest pre-token; SCRATCH_BYTES if none is longer."""
    longest, k = np.int64(SCRATCH_BYTES), np.int64(0)
    while k < starts.size:
        if starts[k] == 0:
            # The first word and the last one have a bit.
            before = k
            while before > 0 and starts[before] == 0:
                before -= 1
            while k < starts.size - 1 and starts[k] == 0:
                k += 1
            start = 64 * before + 63 - leading_zeros(starts[before])
            longest = max(longest, 64 * k + trailing_zeros(starts[k]) - start)
        # A longer one has so many words without a bit that one of them is looked at.
        k += SCRATCH_BYTES // 64 - 1
    return longest


@kernel
def tokens_between(tokens, source, source_start, positions, first, stop, group, n_misses):
    """Put the ids of tokens among pre-tokens `first` to `stop` into `group`, and list the misses.

    `source[0]` is byte `source_start` of the text. Returns the number of misses now.
    """
    noinline()
    most = np.uint64(2**TOKEN_BITS - 1)
    # Unsigned numbers need no test for places counted from the end.
    i, n, one = np.uint64(first), np.uint64(n_misses), np.uint64(1)
    start, last = positions[i], positions[np.uint64(stop)]
    eight = np.uint64(8)
    # A loop whose end cannot be counted is not unrolled: registers are just enough.
    while start != last:
        if has_eight() and np.int64(i) + 8 <= stop:
            # Eight at a time. If they are near together, all bytes come from two registers, and the
            # bytes behind these are padded.
            starts = load_eight(positions, i)
            lengths = load_eight(positions, i + one) - starts
            at = start - source_start
            words = starts - all_eight(np.uint64(start))
            if positions[i + eight] - start <= WINDOW and at + WINDOW <= source.size:
                words = words_in_window(source, at, words)
            else:
                words = words_at(source, at, words)
            hashed = token_hashes(words | from_byte(lengths))
            differing = gather_eight(tokens, hashed & all_eight(most)) ^ hashed
            others = which_above(differing, all_eight(most))
            others |= which_above(lengths, all_eight(np.uint64(TOKEN_BYTES)))
            store_halves(differing, group, i)
            store_chosen(others, i, group, n + MISSES)
            n += np.uint64(popcount(others))
            i += eight
            start = positions[i]
            continue
        end = positions[i + one]
        length = np.uint64(min(end - start, np.int64(TOKEN_BYTES + 1)))
        hashed = token_hash(load_u64(source, start - source_start) | PADDING[length])
        differing = tokens[hashed & most] ^ hashed
        # Without a branch, which would be mispredicted.
        group[i] = np.uint32(differing)
        group[n + MISSES] = np.uint32(i)
        n += np.uint64(differing > most)
        i += one
        start = end
    return np.int64(n)


@kernel
def thread_hash(low, high):
    """Return a hash of a 16-byte key; its highest bits are well mixed."""
    mixed = rotate(multiply(low, FACTOR), np.uint64(32)) ^ high
    return multiply(mixed, _OTHER_FACTOR)


@kernel
def thread_hashes(lows, highs):
    """`thread_hash` of eight keys."""
    mixed = rotate_eight(lows * all_eight(FACTOR), np.uint64(32)) ^ highs
    return mixed * all_eight(_OTHER_FACTOR)


@kernel
def keys_of_misses(group, positions, keys, source, source_start, first, stop, thread_cache):
    """Compute the keys of the misses `first` to `stop`, and prefetch their rows in `thread_cache`.

    `source[0]` is byte `source_start` of the text.
    """
    noinline()
    # The highest bits of the hash are the row, of four words.
    mask = np.uint64(thread_cache.size - 4)
    to_row = np.uint64(63 - leading_zeros(np.uint64(thread_cache.size)))
    number = first
    while has_eight() and number + 8 <= stop:
        row = np.uint64(number)
        eight, every = all_eight(np.uint64(8)), all_eight(_NONE)
        lengths = lengths_listed(positions, group, MISSES + row)
        lows, highs = words_listed(source, source_start, positions, group, MISSES + row)
        lows = lows & (from_byte(lengths) ^ every)
        highs = highs & (from_byte(larger_of(lengths, eight) - eight) ^ every)
        highs = highs | rotate_eight(lengths, np.uint64(56))
        highs = chosen_above(lengths, all_eight(np.uint64(SHORT)), all_eight(LONG), highs)
        store_eight(lows, keys, row)
        store_eight(highs, keys, HIGH + row)
        places = rotate_eight(thread_hashes(lows, highs), to_row) & all_eight(mask)
        store_eight(places, keys, AT + row)
        for j in range(8):
            prefetch(thread_cache, keys[AT + row + np.uint64(j)])
        number += 8
    while number < stop:
        row = np.uint64(number)
        miss = group[MISSES + row]
        high, at = LONG, np.uint64(0)
        if miss < END_OF_DOCUMENT:
            i = np.uint64(miss)
            start = positions[i]
            length = min(positions[i + np.uint64(1)] - start, np.int64(SHORT + 1))
            part = np.uint64(length) << np.uint64(2)
            low = load_u64(source, start - source_start) & KEY_PARTS[part]
            high = load_u64(source, start - source_start + 8) & KEY_PARTS[part + np.uint64(1)]
            high |= KEY_PARTS[part + np.uint64(3)]
            at = rotate(thread_hash(low, high), to_row) & mask
            prefetch(thread_cache, at)
            keys[row] = low
        keys[HIGH + row], keys[AT + row] = high, at
        number += 1


@kernel
def find_in_thread_cache(thread_cache, keys, found, unseen, n_misses):
    """Put the ids of misses that are in `thread_cache` into `found`; returns the number of others.

    The others are listed in `unseen`.
    """
    noinline()
    n, two = np.uint64(0), np.uint64(2)
    number = 0
    while has_eight() and number + 8 <= n_misses:
        row = np.uint64(number)
        lows, highs = pairs_listed(thread_cache, keys, AT + row, np.uint64(0))
        first_ids, last_ids = pairs_listed(thread_cache, keys, AT + row, two)
        others = which_differ(lows, load_eight(keys, row))
        others |= which_differ(highs, load_eight(keys, HIGH + row))
        store_eight(first_ids, found, row)
        store_eight(without(last_ids, others), found, HIGH + row)
        store_chosen(others, row, unseen, n)
        n += np.uint64(popcount(others))
        number += 8
    while number < n_misses:
        row = np.uint64(number)
        at, high = keys[AT + row], keys[HIGH + row]
        differing = (thread_cache[at] ^ keys[row]) | (thread_cache[at + np.uint64(1)] ^ high)
        is_missing, second_ids = differing != 0, thread_cache[at + np.uint64(3)]
        found[row] = thread_cache[at + two]
        # Without branches, which would be mispredicted.
        found[HIGH + row] = np.uint64(0) if is_missing else second_ids
        unseen[n] = np.uint32(row)
        n += np.uint64(is_missing)
        number += 1
    return n


@kernel
def look_up_misses(tables, thread_cache, cache, scratch, buffer, tail_start, n_misses):
    """Put the ids of the misses that are in the thread cache into `scratch.found`.

    The others are looked up in the cache, or merged: `scratch.keys` has their places there.
    """
    always_inline()
    group, keys, positions = scratch.group, scratch.keys, scratch.positions
    inside, tail = n_misses, scratch.tail_text
    while inside > 0 and (
        positions[group[MISSES + np.uint64(inside - 1)] & ~END_OF_DOCUMENT] >= tail_start
    ):
        inside -= 1
    keys_of_misses(group, positions, keys, buffer, 0, 0, inside, thread_cache)
    keys_of_misses(group, positions, keys, tail, tail_start, inside, n_misses, thread_cache)
    unseen = scratch.unseen
    n_unseen = find_in_thread_cache(thread_cache, keys, scratch.found, unseen, n_misses)
    n_looked_up = np.uint64(0)
    for number in range(n_unseen):
        row = np.uint64(unseen[np.uint64(number)])
        if keys[HIGH + row] != LONG:
            bucket = row_bucket(keys[row], keys[HIGH + row], cache.rows)
            prefetch(cache.rows, bucket)
            prefetch(cache.rows, bucket + np.uint64(8))
        else:
            keys[PLACE + row] = _NONE
            if group[MISSES + row] >= END_OF_DOCUMENT:
                continue
            start, stop = span_of(scratch, row)
            if stop - start > LONGEST_CACHED:
                continue
            keys[row] = hash_bytes(buffer, start, stop)
            prefetch(cache.long_rows, long_bucket(keys[row], cache.long_rows))
        unseen[n_looked_up] = np.uint32(row)
        n_looked_up += np.uint64(1)
    n_new = np.uint64(0)
    for number in range(n_looked_up):
        row = np.uint64(unseen[np.uint64(number)])
        place = find_in_cache(cache, scratch, buffer, row)
        keys[PLACE + row] = np.uint64(np.int64(place))
        unseen[n_new] = np.uint32(row)
        n_new += np.uint64(place < 0)
    if n_new:
        merge_new(tables, cache, scratch, buffer, np.int64(n_new))


@kernel
def copy_ids(source, first, stop, ids, n_ids):
    """Append `source[first:stop]` and up to COPIED more. Returns the number of ids now."""
    always_inline()
    copy_16_ids(source, first, ids, n_ids)
    for done in range(COPIED, stop - first, COPIED):
        copy_16_ids(source, first + done, ids, n_ids + done)
    return n_ids + stop - first


@kernel
def emit_ids(found, group, first, copied, n_misses, ids, n_ids):
    """Append the ids of pre-tokens from `copied` on, up to a miss that is not in the thread cache.

    Miss `first` is the first one not before `copied`. Returns (number of the miss reached, or of
    all; the first pre-token without ids; the number of ids).
    """
    noinline()
    number, n = np.uint64(first), np.uint64(n_misses)
    while number < n:
        second_ids = found[HIGH + number]
        n_found = np.int64(second_ids >> np.uint64(61))
        if n_found == 0:
            break
        i = np.int64(group[MISSES + number])
        n_ids = copy_ids(group, copied, i, ids, n_ids)
        # Always four; those past the number are overwritten by the next ones.
        store_halves_of_two(found[number], second_ids, ids, n_ids)
        n_ids += n_found
        copied = i + 1
        number += np.uint64(1)
    return np.int64(number), copied, n_ids


@kernel
def close_documents(documents, document, position, ids, n_ids, n_before):
    """Close every document that ends at or before `position`, and open the next.

    `n_before` ids precede those in `ids`. Returns (the document that is open now, number of ids).
    """
    last = documents.offsets.size - 2
    before, after, ends_mid_document, gaps = documents.around
    while document <= last and documents.offsets[document + 1] <= position:
        is_gap = document & gaps
        if after >= 0 and not is_gap and not (document == last and ends_mid_document):
            ids[n_ids] = after
            n_ids += 1
        document += 1
        documents.token_offsets[document] = n_before + n_ids
        if before >= 0 and document <= last and not document & gaps:
            ids[n_ids] = before
            n_ids += 1
    return document, n_ids


@kernel
def narrow_ids(ids, first, narrow, to, n):
    """Write `ids[first : first + n]`, and up to COPIED more, to `narrow[to : to + n]`."""
    for done in range(0, n, COPIED):
        copy_16_ids(ids, first + done, narrow, to + done)


@kernel
def take_group(tables, scratch, documents, document, buffer, tail_start, n_pretokens):
    """Put the ids of the tokens of a group into `scratch.group`. Returns the number of misses.

    The ends of documents are put on the list of misses, too; `document` is the one that is open.
    """
    always_inline()
    positions, group, tail = scratch.positions, scratch.group, scratch.tail_text
    offsets, gaps = documents.offsets, documents.around[3]
    last = offsets.size - 1
    first, n_misses = 0, 0
    while True:
        # The pre-tokens of one document.
        stop = n_pretokens
        end = offsets[min(document + 1, last)]
        if positions[n_pretokens - 1] >= end:
            stop = first
            while positions[stop] < end:
                stop += 1
        if not document & gaps:
            inside = stop
            while inside > first and positions[inside - 1] >= tail_start:
                inside -= 1
            n_misses = tokens_between(
                tables.tokens, buffer, 0, positions, first, inside, group, n_misses
            )
            n_misses = tokens_between(
                tables.tokens, tail, tail_start, positions, inside, stop, group, n_misses
            )
        if stop == n_pretokens:
            return n_misses
        group[MISSES + np.uint64(n_misses)] = END_OF_DOCUMENT | np.uint32(stop)
        n_misses += 1
        first = stop
        while document < last and offsets[document + 1] <= positions[stop]:
            document += 1


@kernel
def emit_group(
    tables, thread_cache, cache, scratch, documents, document, buffer, n_pretokens, n_misses, ids,
    n_ids, n_before,
):
    """Append the ids of a group, after `look_up_misses`; returns as `close_documents`."""
    always_inline()
    group, gaps = scratch.group, documents.around[3]
    number, copied = 0, 0
    while True:
        number, copied, n_ids = emit_ids(scratch.found, group, number, copied, n_misses, ids, n_ids)
        if number == n_misses:
            break
        miss = group[MISSES + np.uint64(number)]
        i = np.int64(miss & ~END_OF_DOCUMENT)
        if not document & gaps:
            n_ids = copy_ids(group, copied, i, ids, n_ids)
        copied = i
        if miss >= END_OF_DOCUMENT:
            document, n_ids = close_documents(
                documents, document, scratch.positions[i], ids, n_ids, n_before
            )
        else:
            row = np.uint64(number)
            n_ids = emit_unseen(tables, thread_cache, cache, scratch, buffer, row, ids, n_ids)
            copied += 1
        number += 1
    if not document & gaps:
        n_ids = copy_ids(group, copied, n_pretokens, ids, n_ids)
    return document, n_ids


@kernel
def encode_pretokens(
    cache, tables, scratch, documents, thread_cache, own, buffer, starts, cursor, ids, narrow,
    n_ids, most, though_full,
):
    """Encode pre-tokens from `cursor` on until the text or `most` groups are done, or a full cache.

    Args:
        cache, tables, scratch, documents: See there; `own` replaces that of `cache`.
        thread_cache: uint64[4 * power of two], what one thread has seen last: key, key, two ids of
            32 bits, two ids with their number in the top three bits. Modified in place.
        buffer: uint8[n_bytes or more].
        starts: uint64[n_bytes // 64 + 1 or more], where pre-tokens begin, and the end.
        cursor: int64[4]: see `take_positions`; the open document; bytes of the longest pre-token,
            0 before the first call. Modified in place.
        ids: uint32, with room for one id per byte, those around documents, and COPIED more.
        narrow: uint16, the same memory, if ids of 16 bits are to be written; else uint16[0].
        n_ids: The number of ids that are written already.
        most: Groups after which the kernel returns, so that signals are seen.
        though_full: Go on with a full cache.

    Returns:
        The number of ids written so far. The text is done when `cursor[0]` is n_bytes // 64 + 1.
        No group is begun if `scratch` has no room for the longest pre-token.
    """
    n_bytes = documents.offsets[documents.offsets.size - 1]
    starts = starts[: (n_bytes >> 6) + 1]
    cache = PretokenCache(
        cache.rows, cache.long_rows, cache.arena, cache.arena_bytes, cache.used, cache.limits, own
    )
    if cursor[3] == 0:
        cursor[3] = longest_pretoken(starts)
    if 4 * cursor[3] > scratch.rows.size:
        return n_ids
    tail_start = fill_tail(buffer, n_bytes, scratch.tail)
    document = cursor[2]
    while most > 0 and cursor[0] < starts.size and (though_full or not is_full(cache)):
        most -= 1
        n_pretokens = max(take_positions(starts, cursor, scratch.positions) - 1, 0)
        n_misses = 0
        if n_pretokens > 0:
            n_misses = take_group(
                tables, scratch, documents, document, buffer, tail_start, n_pretokens
            )
            look_up_misses(tables, thread_cache, cache, scratch, buffer, tail_start, n_misses)
        # Ids of 16 bits are written over those of 32 bits of a group, which begin after all others.
        n_before = n_ids >> 1 if narrow.size else np.int64(0)
        first_id = n_ids - n_before
        document, n_ids = emit_group(
            tables, thread_cache, cache, scratch, documents, document, buffer,
            n_pretokens, n_misses, ids, first_id, n_before,
        )
        if cursor[0] == starts.size:
            document, n_ids = close_documents(documents, document, n_bytes, ids, n_ids, n_before)
        if narrow.size:
            narrow_ids(ids, first_id, narrow, n_before + first_id, n_ids - first_id)
        n_ids += n_before
        publish_counts(cache)
    cursor[2] = document
    return n_ids
