"""Pre-tokens that are not in the table of tokens: look-up in two caches, and merging.

The thread cache is uint64[4 * power of two], what one thread has seen last: a row is a key of two
words, two ids of 32 bits, and two ids with the number of ids in the top three bits.
"""

from __future__ import annotations

import numpy as np

from bpe.encode import cache_rows as rows
from bpe.encode import group as layout
from bpe.encode.apply_merges import merge_pretoken
from bpe.encode.group import span_of
from bpe.runtime import machine
from bpe.runtime.jit import kernel

_IDS = layout.NONE >> np.uint64(3)  # of the last word of a row, without the number of ids
FACTOR, _OTHER_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


@kernel
def thread_hash(low, high):
    """Return a hash of a 16-byte key, its highest bits well mixed: (0, 0) -> 0."""
    mixed = machine.rotate(machine.multiply(low, FACTOR), np.uint64(32)) ^ high
    return machine.multiply(mixed, _OTHER_FACTOR)


@kernel
def keys_of_misses(group, positions, keys, source, source_start, first, stop, thread_cache):
    """Compute keys of misses `first` to `stop` (b"ab" -> 0x6261, 2 << 56); prefetch their rows.

    `source[0]` is byte `source_start` of the text.
    """
    machine.noinline()
    # The highest bits of the hash are the row, of four words.
    mask = np.uint64(thread_cache.size - 4)
    to_row = np.uint64(63 - machine.leading_zeros(np.uint64(thread_cache.size)))
    for number in range(first, stop):
        row = np.uint64(number)
        miss = group[layout.MISSES + row]
        high, at = layout.LONG, np.uint64(0)
        if miss < layout.END_OF_DOCUMENT:
            i = np.uint64(miss)
            length = min(positions[i + np.uint64(1)] - positions[i], np.int64(layout.SHORT + 1))
            part, place = np.uint64(length) << np.uint64(2), positions[i] - source_start
            low = machine.load_u64(source, place) & layout.KEY_PARTS[part]
            high = machine.load_u64(source, place + 8) & layout.KEY_PARTS[part + np.uint64(1)]
            high |= layout.KEY_PARTS[part + np.uint64(3)]
            at = machine.rotate(thread_hash(low, high), to_row) & mask
            machine.prefetch(thread_cache, at)
            keys[row] = low
        keys[layout.HIGH + row], keys[layout.AT + row] = high, at


@kernel
def find_in_thread_cache(thread_cache, keys, found, unseen, n_misses):
    """Copy ids of cached misses to `found`, list others in `unseen`: cached, not -> [1], 1."""
    machine.noinline()
    n, two = np.uint64(0), np.uint64(2)
    for number in range(n_misses):
        row = np.uint64(number)
        at, high = keys[layout.AT + row], keys[layout.HIGH + row]
        differing = (thread_cache[at] ^ keys[row]) | (thread_cache[at + np.uint64(1)] ^ high)
        is_missing, second_ids = differing != 0, thread_cache[at + np.uint64(3)]
        found[row] = thread_cache[at + two]
        # Without branches, which would be mispredicted.
        found[layout.HIGH + row] = np.uint64(0) if is_missing else second_ids
        unseen[n] = np.uint32(row)
        n += np.uint64(is_missing)
    return n


@kernel
def look_up_misses(tables, thread_cache, cache, scratch, buffer, tail_start, n_misses):
    """Put the ids of the misses that are in the thread cache into `scratch.found`.

    The others are looked up in the cache, or merged and added to it; `scratch.keys` then has their
    places there.
    """
    machine.always_inline()
    group, keys, positions = scratch.group, scratch.keys, scratch.positions
    inside, tail = n_misses, scratch.tail_text
    while inside > 0:
        i = group[layout.MISSES + np.uint64(inside - 1)] & ~layout.END_OF_DOCUMENT
        if positions[i] < tail_start:
            break
        inside -= 1
    keys_of_misses(group, positions, keys, buffer, 0, 0, inside, thread_cache)
    keys_of_misses(group, positions, keys, tail, tail_start, inside, n_misses, thread_cache)
    unseen = scratch.unseen
    n_unseen = find_in_thread_cache(thread_cache, keys, scratch.found, unseen, n_misses)
    n_looked_up = np.uint64(0)
    for number in range(n_unseen):
        row = np.uint64(unseen[np.uint64(number)])
        if keys[layout.HIGH + row] != layout.LONG:
            bucket = rows.row_bucket(keys[row], keys[layout.HIGH + row], cache.rows)
            machine.prefetch(cache.rows, bucket)
            machine.prefetch(cache.rows, bucket + np.uint64(8))
        else:
            keys[layout.PLACE + row] = layout.NONE
            if group[layout.MISSES + row] >= layout.END_OF_DOCUMENT:
                continue
            start, stop = span_of(scratch, row)
            if stop - start > layout.LONGEST_CACHED:
                continue
            keys[row] = rows.hash_bytes(buffer, start, stop, FACTOR)
            machine.prefetch(cache.long_rows, rows.long_bucket(keys[row], cache.long_rows))
        unseen[n_looked_up] = np.uint32(row)
        n_looked_up += np.uint64(1)
    n_new = np.uint64(0)
    for number in range(n_looked_up):
        row = np.uint64(unseen[np.uint64(number)])
        place = find_in_cache(cache, scratch, buffer, row)
        keys[layout.PLACE + row] = np.uint64(np.int64(place))
        unseen[n_new] = np.uint32(row)
        n_new += np.uint64(place < 0)
    if n_new:
        merge_new(tables, cache, scratch, buffer, np.int64(n_new))


@kernel
def find_in_cache(cache, scratch, buffer, row):
    """Find a miss in the rows or long rows of the cache; return as `find_row`."""
    machine.always_inline()
    low, high = scratch.keys[row], scratch.keys[layout.HIGH + row]
    if high == layout.LONG:
        start, stop = span_of(scratch, row)
        return rows.find_long_row(cache, low, buffer, start, stop - start)
    return rows.find_row(cache.rows, np.int64(rows.row_bucket(low, high, cache.rows)), low, high)


@kernel
def merge_new(tables, cache, scratch, buffer, n_new):
    """Merge the misses that `scratch.unseen` lists, and add each to the cache once.

    One call for all, because passing some thirty arrays takes longer than a look-up.
    """
    machine.noinline_cold()
    keys, ids = scratch.keys, scratch.new_ids
    for number in range(n_new):
        row = np.uint64(scratch.unseen[np.uint64(number)])
        low, high, at = keys[row], keys[layout.HIGH + row], np.int64(keys[layout.PLACE + row])
        is_long = high == layout.LONG
        # The same pre-token may be in this group twice.
        if not rows.still_free(cache.long_rows if is_long else cache.rows, at):
            at = find_in_cache(cache, scratch, buffer, row)
        if at < 0:
            start, stop = span_of(scratch, row)
            n = merge_pretoken(tables, scratch, buffer, start, stop, ids, 0)
            if is_long or n > tables.packing[2]:
                length = stop - start if is_long else np.int64(0)
                place = rows.remember(cache, ids, n, buffer, start, length)
                if place < 0:
                    at = np.int64(-1)
                elif is_long:
                    entry = np.uint64(place << 22 | n << 11 | length)
                    at = rows.add_long_row(cache, at, low, entry)
                else:
                    entry = np.uint64(place << 16 | n)
                    at = rows.add_row(cache, at, low, high, entry, np.uint64(0))
            else:
                first_ids, second_ids = pack_ids(tables, ids, n)
                at = rows.add_row(cache, at, low, high, first_ids, second_ids)
        keys[layout.PLACE + row] = np.uint64(np.int64(at))


@kernel
def pack_ids(tables, ids, n):
    """Return n ids as the last two words of a row: 5 6 of 16 bits -> 5 | 6 << 16, 2 << 61."""
    bits, n_first = np.uint64(tables.packing[0]), tables.packing[1]
    first_ids, second_ids = np.uint64(0), np.uint64(n) << np.uint64(61)
    for j in range(min(n, n_first)):
        first_ids |= np.uint64(ids[j]) << (bits * np.uint64(j))
    for j in range(n_first, n):
        second_ids |= np.uint64(ids[j]) << (bits * np.uint64(j - n_first))
    return first_ids, second_ids


@kernel
def emit_unseen(tables, thread_cache, cache, scratch, buffer, row, ids, n_ids):
    """Append a miss's ids, put them into the thread cache; return n_ids: ids 7 8, n_ids 5 -> 7."""
    machine.always_inline()
    low, high = scratch.keys[row], scratch.keys[layout.HIGH + row]
    found = scratch.keys[layout.PLACE + row]
    if found == layout.NONE:
        return emit_uncached(tables, scratch, buffer, row, ids, n_ids)
    at = np.int64(found)
    if high == layout.LONG:
        entry = cache.long_rows[at + 1]
        place, n = entry >> np.uint64(22), (entry >> np.uint64(11)) & rows.MOST_LONG
        return rows.recall(cache.arena, np.int64(place), np.int64(n), ids, n_ids)
    first_ids, second_ids = cache.rows[at + 2], cache.rows[at + 3]
    if second_ids != 0:
        bits, n_first = tables.packing[0], tables.packing[1]
        machine.store_four_ids(ids, n_ids, first_ids, bits)
        machine.store_four_ids(ids, n_ids + n_first, second_ids, bits)
        after = n_ids + np.int64(second_ids >> np.uint64(61))
    else:
        place, n = np.int64(first_ids >> np.uint64(16)), np.int64(first_ids & np.uint64(0xFFFF))
        after = rows.recall(cache.arena, place, n, ids, n_ids)
    n = after - n_ids
    if n <= 4:
        to = np.int64(scratch.keys[layout.AT + row])
        thread_cache[to] = low
        thread_cache[to + 1] = high
        thread_cache[to + 2] = two_ids(np.uint64(ids[n_ids]), np.uint64(ids[n_ids + 1]))
        # Ids after the last mean nothing, but must leave the bits of the number free.
        third, fourth = np.uint64(ids[n_ids + 2]), np.uint64(ids[n_ids + 3])
        thread_cache[to + 3] = (two_ids(third, fourth) & _IDS) | (np.uint64(n) << np.uint64(61))
    return after


@kernel
def emit_uncached(tables, scratch, buffer, row, ids, n_ids):
    """Append the ids of a miss that is not in the cache, by merging: a b, merge (a, b) -> ab."""
    machine.noinline_cold()
    start, stop = span_of(scratch, row)
    return merge_pretoken(tables, scratch, buffer, start, stop, ids, n_ids)


@kernel
def two_ids(first, second):
    """Return two numbers of 32 bits in one word: 5, 6 -> 5 | 6 << 32."""
    return first | (second << np.uint64(32))
