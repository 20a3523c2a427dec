"""Pre-tokens that are not in the table of tokens: look-up in two caches, and merging."""

from __future__ import annotations

import numpy as np

from bpe.encode import cache_rows as rows
from bpe.encode import work as layout
from bpe.encode.merge import merge_pretoken
from bpe.encode.work import span_of
from bpe.runtime import machine
from bpe.runtime.jit import kernel

_IDS = layout.NONE >> np.uint64(3)  # of the last word of a row, without the number of ids
FACTOR, _OTHER_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


@kernel
def thread_hash(low, high):
    """Return a hash of a 16-byte key, its highest bits well mixed."""
    mixed = machine.rotate(machine.multiply(low, FACTOR), np.uint64(32)) ^ high
    return machine.multiply(mixed, _OTHER_FACTOR)


@kernel
def keys_of_misses(work, source, source_start, first, stop):
    """Compute the keys of misses `first` to `stop`, and prefetch their rows in the thread cache.

    `source[0]` is byte `source_start` of the text.
    """
    machine.noinline()
    group, positions, keys, thread_cache = (
        work.group, work.positions, work.keys, work.thread_cache
    )
    # The highest bits of the hash are the row, of four words.
    mask = np.uint64(thread_cache.size - 4)
    to_row = np.uint64(63 - machine.leading_zeros(np.uint64(thread_cache.size)))
    for number in range(first, stop):
        row = np.uint64(number)
        miss = group[layout.MISSES + row]
        high, at = layout.LONG, np.uint64(0)
        if miss < layout.END_OF_SPAN:
            i = np.uint64(miss)
            length = positions[i + np.uint64(1)] - positions[i]
            length = min(length, np.int64(layout.KEY_BYTES + 1))
            part, place = np.uint64(length) << np.uint64(2), positions[i] - source_start
            low = machine.load_u64(source, place) & layout.KEY_PARTS[part]
            high = machine.load_u64(source, place + 8) & layout.KEY_PARTS[part + np.uint64(1)]
            high |= layout.KEY_PARTS[part + np.uint64(3)]
            at = machine.rotate(thread_hash(low, high), to_row) & mask
            machine.prefetch(thread_cache, at)
            keys[row] = low
        keys[layout.HIGH + row], keys[layout.AT + row] = high, at


@kernel
def find_in_thread_cache(work, n_misses):
    """Copy the ids of cached misses to `work.found`; list the others in `work.unseen`.

    Returns the number of the others.
    """
    machine.noinline()
    thread_cache, keys, found = work.thread_cache, work.keys, work.found
    n, two = np.uint64(0), np.uint64(2)
    for number in range(n_misses):
        row = np.uint64(number)
        at, high = keys[layout.AT + row], keys[layout.HIGH + row]
        differing = (thread_cache[at] ^ keys[row]) | (thread_cache[at + np.uint64(1)] ^ high)
        is_missing, second_ids = differing != 0, thread_cache[at + np.uint64(3)]
        found[row] = thread_cache[at + two]
        # Without branches, which would be mispredicted.
        found[layout.HIGH + row] = np.uint64(0) if is_missing else second_ids
        work.unseen[n] = np.uint32(row)
        n += np.uint64(is_missing)
    return n


@kernel
def look_up_misses(cache, model, work, text, tail_start, n_misses):
    """Put the ids of the misses that are in the thread cache into `work.found`.

    The others are looked up in the cache, or merged and added to it; `work.keys` then has their
    places there.
    """
    machine.always_inline()
    group, keys, unseen = work.group, work.keys, work.unseen
    inside = n_misses
    while inside > 0:
        i = group[layout.MISSES + np.uint64(inside - 1)] & ~layout.END_OF_SPAN
        if work.positions[i] < tail_start:
            break
        inside -= 1
    keys_of_misses(work, text.buffer, 0, 0, inside)
    keys_of_misses(work, work.tail_text, tail_start, inside, n_misses)
    n_unseen = find_in_thread_cache(work, n_misses)
    n_looked_up = np.uint64(0)
    for number in range(n_unseen):
        row = np.uint64(unseen[np.uint64(number)])
        if keys[layout.HIGH + row] != layout.LONG:
            bucket = rows.row_bucket(keys[row], keys[layout.HIGH + row], cache.rows)
            machine.prefetch(cache.rows, bucket)
            machine.prefetch(cache.rows, bucket + np.uint64(8))
        else:
            keys[layout.PLACE + row] = layout.NONE
            if group[layout.MISSES + row] >= layout.END_OF_SPAN:
                continue
            start, stop = span_of(work, row)
            if stop - start > layout.LONGEST_CACHED:
                continue
            keys[row] = rows.hash_bytes(text.buffer, start, stop, FACTOR)
            machine.prefetch(cache.long_rows, rows.long_bucket(keys[row], cache.long_rows))
        unseen[n_looked_up] = np.uint32(row)
        n_looked_up += np.uint64(1)
    n_new = np.uint64(0)
    for number in range(n_looked_up):
        row = np.uint64(unseen[np.uint64(number)])
        place = find_in_cache(cache, work, text, row)
        keys[layout.PLACE + row] = np.uint64(np.int64(place))
        unseen[n_new] = np.uint32(row)
        n_new += np.uint64(place < 0)
    if n_new:
        merge_new(cache, model, work, text, np.int64(n_new))


@kernel
def find_in_cache(cache, work, text, row):
    """Find a miss in the rows or long rows of the cache; return as `find_row`."""
    machine.always_inline()
    low, high = work.keys[row], work.keys[layout.HIGH + row]
    if high == layout.LONG:
        start, stop = span_of(work, row)
        return rows.find_long_row(cache, low, text.buffer, start, stop - start)
    return rows.find_row(cache.rows, np.int64(rows.row_bucket(low, high, cache.rows)), low, high)


@kernel
def merge_new(cache, model, work, text, n_new):
    """Merge the misses that `work.unseen` lists, and add each to the cache once."""
    machine.noinline_cold()
    keys, ids = work.keys, work.new_ids
    for number in range(n_new):
        row = np.uint64(work.unseen[np.uint64(number)])
        low, high, at = keys[row], keys[layout.HIGH + row], np.int64(keys[layout.PLACE + row])
        is_long = high == layout.LONG
        # The same pre-token may be in this group twice.
        if not rows.still_free(cache.long_rows if is_long else cache.rows, at):
            at = find_in_cache(cache, work, text, row)
        if at < 0:
            start, stop = span_of(work, row)
            n = merge_pretoken(model, work, text.buffer, start, stop, ids)
            if is_long or n > model.packing[2]:
                length = stop - start if is_long else np.int64(0)
                place = rows.remember(cache, ids, n, text.buffer, start, length)
                if place < 0:
                    at = np.int64(-1)
                elif is_long:
                    entry = np.uint64(place << 22 | n << 11 | length)
                    at = rows.add_long_row(cache, at, low, entry)
                else:
                    entry = np.uint64(place << 16 | n)
                    at = rows.add_row(cache, at, low, high, entry, np.uint64(0))
            else:
                first_ids, second_ids = pack_ids(model, ids, n)
                at = rows.add_row(cache, at, low, high, first_ids, second_ids)
        keys[layout.PLACE + row] = np.uint64(np.int64(at))


@kernel
def pack_ids(model, ids, n):
    """Return n ids as the last two words of a row of the cache, see `PretokenCache.rows`."""
    bits, n_first = np.uint64(model.packing[0]), model.packing[1]
    first_ids, second_ids = np.uint64(0), np.uint64(n) << np.uint64(61)
    for j in range(min(n, n_first)):
        first_ids |= np.uint64(ids[j]) << (bits * np.uint64(j))
    for j in range(n_first, n):
        second_ids |= np.uint64(ids[j]) << (bits * np.uint64(j - n_first))
    return first_ids, second_ids


@kernel
def emit_unseen(cache, model, work, text, row, ids):
    """Write the ids of a miss to the start of `ids`, and to the thread cache; return their number.

    Its ids are in the cache, or it is merged; two more may be written.
    """
    machine.always_inline()
    low, high = work.keys[row], work.keys[layout.HIGH + row]
    found = work.keys[layout.PLACE + row]
    if found == layout.NONE:
        return emit_uncached(model, work, text, row, ids)
    at = np.int64(found)
    if high == layout.LONG:
        entry = cache.long_rows[at + 1]
        place, n = entry >> np.uint64(22), (entry >> np.uint64(11)) & rows.MOST_LONG
        return rows.recall(cache.arena, np.int64(place), np.int64(n), ids)
    first_ids, second_ids = cache.rows[at + 2], cache.rows[at + 3]
    if second_ids != 0:
        bits, n_first = model.packing[0], model.packing[1]
        machine.store_four_ids(ids, 0, first_ids, bits)
        machine.store_four_ids(ids, n_first, second_ids, bits)
        n = np.int64(second_ids >> np.uint64(61))
    else:
        place, n = np.int64(first_ids >> np.uint64(16)), np.int64(first_ids & np.uint64(0xFFFF))
        rows.recall(cache.arena, place, n, ids)
    if n <= 4:
        to = np.int64(work.keys[layout.AT + row])
        work.thread_cache[to] = low
        work.thread_cache[to + 1] = high
        work.thread_cache[to + 2] = two_ids(np.uint64(ids[0]), np.uint64(ids[1]))
        # Ids after the last mean nothing, but must leave the bits of the number free.
        last_ids = two_ids(np.uint64(ids[2]), np.uint64(ids[3])) & _IDS
        work.thread_cache[to + 3] = last_ids | (np.uint64(n) << np.uint64(61))
    return n


@kernel
def emit_uncached(model, work, text, row, ids):
    """Merge a miss that the cache has no room for; write its ids, and return their number."""
    machine.noinline_cold()
    start, stop = span_of(work, row)
    return merge_pretoken(model, work, text.buffer, start, stop, ids)


@kernel
def two_ids(first, second):
    """Return two numbers of 32 bits in one word, the first in the lower half."""
    return first | (second << np.uint64(32))
