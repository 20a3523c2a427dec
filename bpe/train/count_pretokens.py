"""Pre-tokens -> counts.

Counts are exact, of 64 bits; the wrapper grows tables before they can fill. A pre-token of up to 15
bytes is its own key (see `bpe.encode.work`); a longer one is a hash and bytes in an arena.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.encode.cache_rows import hash_bytes, long_bucket, same_bytes
from bpe.encode.work import KEY_BYTES, KEY_PARTS, LONG, fill_tail, take_positions
from bpe.runtime.jit import kernel
from bpe.runtime.machine import always_inline, load_u64, multiply_and_fold, prefetch

DONE, GROW_SHORT, GROW_LONG, GROW_ARENA, PAUSED = 0, 1, 2, 3, 4
# Fields of the cursor after those of `take_positions`: pre-tokens counted so far, groups to count
# before the kernel returns, so that signals are seen.
COUNTED, GROUPS = 2, 3

SHORT_ENTRIES, LONG_ENTRIES, ARENA_USED = 0, 1, 2  # indices of `CountTable.used`
FIRST_LETTERS = 2**16  # number of buckets by first letters, see `export`


class CountTable(NamedTuple):
    """Two hash tables of pre-tokens, of rows of four words; every array is modified in place.

    In each the second word is 0 in a free row, and the third is the count.
    """

    short_rows: NDArray[np.uint64]  # uint64[4 * n]: key, key, count, unused
    short_counts: NDArray[np.int64]  # int64[4 * n], the same memory, for the counts
    long_rows: NDArray[np.uint64]  # uint64[4 * n]: hash, length, count, index in the arena
    long_counts: NDArray[np.int64]  # int64[4 * n], the same memory, for the counts
    arena: NDArray[np.uint8]
    # uint64[2], random numbers: nobody can write text whose pre-tokens all have one place
    seeds: NDArray[np.uint64]
    used: NDArray[np.int64]  # int64[3]: short entries, long entries, bytes of the arena


@kernel
def room(table, n_pretokens, n_bytes):
    """Return DONE if so many fit at half load, else what must grow: 3 of 16, 5 more -> DONE."""
    if (table.used[SHORT_ENTRIES] + n_pretokens) * 2 > table.short_rows.size // 4:
        return GROW_SHORT
    if (table.used[LONG_ENTRIES] + n_pretokens) * 2 > table.long_rows.size // 4:
        return GROW_LONG
    if table.used[ARENA_USED] + n_bytes > table.arena.size:
        return GROW_ARENA
    return DONE


@kernel
def find_short(rows, slot, low, high):
    """Return the index of a key, or of its free row, from `slot` on: another key at 0 -> 4."""
    mask = np.uint64(rows.size - 1)
    one, zero = np.uint64(1), np.uint64(0)
    while (rows[slot] != low or rows[slot + one] != high) and rows[slot + one] != zero:
        slot = (slot + np.uint64(4)) & mask
    return slot


@kernel
def short_slot(rows, low, high, seeds):
    """Return where the search for a short pre-token begins in `rows`: 4 rows -> 0, 4, 8 or 12.

    A larger table has the same order, several times over, so two tables are traversed in parallel:
    slot 4 of 16 words is 4 or 20 of 32.
    """
    hashed = multiply_and_fold(low ^ seeds[0], high ^ seeds[1])
    return ((hashed >> np.uint64(32)) << np.uint64(2)) & np.uint64(rows.size - 1)


@kernel
def find_long(rows, arena, hashed, buffer, start, length):
    """Return the index of a long pre-token, or of its free row: another one at slot 0 -> 4."""
    mask = rows.size - 1
    at = np.int64(long_bucket(hashed, rows))
    while rows[at + 1] != np.uint64(0):
        if (
            rows[at] == hashed
            and np.int64(rows[at + 1]) == length
            and same_bytes(arena, np.int64(rows[at + 3]), buffer, start, length)
        ):
            break
        at = (at + 4) & mask
    return at


@kernel
def compute_keys(table, work, source, source_start, first, last):
    """Compute the keys of the pre-tokens [first, last) of a group, and prefetch their slots.

    `source[0]` is byte `source_start` of the text. `work.keys` is replaced: for each pre-token its
    key of two words, its slot in `table.short_rows`, unused.
    """
    always_inline()
    positions, keys, rows = work.positions, work.keys, table.short_rows
    start = positions[first]
    # Unsigned numbers need no test for places counted from the end.
    for number in range(first, last):
        i = np.uint64(number)
        stop = positions[i + np.uint64(1)]
        part = np.uint64(min(stop - start, np.int64(KEY_BYTES + 1))) << np.uint64(2)
        k = i << np.uint64(2)
        one, at = np.uint64(1), start - source_start
        keys[k] = load_u64(source, at) & KEY_PARTS[part]
        high = load_u64(source, at + 8) & KEY_PARTS[part + one]
        keys[k + one] = high | KEY_PARTS[part + np.uint64(3)]
        slot = short_slot(rows, keys[k], keys[k + np.uint64(1)], table.seeds)
        prefetch(rows, slot)
        keys[k + np.uint64(2)] = slot
        start = stop


@kernel
def count_group(table, work, buffer, tail_start, n_pretokens, weights):
    """Count the pre-tokens between `work.positions`; there must be room.

    The last keys are read from `work.tail`, which begins at `tail_start`. For `weights` see
    `count_pretokens`; the first is that of the first pre-token.
    """
    rows, counts = table.short_rows, table.short_counts
    positions, keys = work.positions, work.keys
    n_inside = n_pretokens
    while n_inside > 0 and positions[n_inside - 1] >= tail_start:
        n_inside -= 1
    compute_keys(table, work, buffer, 0, 0, n_inside)
    compute_keys(table, work, work.tail_text, tail_start, n_inside, n_pretokens)
    weight = np.int64(1)
    for number in range(n_pretokens):
        i = np.uint64(number)
        if weights.size:
            weight = weights[number]
        k = i << np.uint64(2)
        low, high, slot = keys[k], keys[k + np.uint64(1)], keys[k + np.uint64(2)]
        if high != LONG:
            slot = find_short(rows, slot, low, high)
            if rows[slot + np.uint64(1)] == np.uint64(0):
                rows[slot] = low
                rows[slot + np.uint64(1)] = high
                table.used[SHORT_ENTRIES] += 1
            counts[slot + np.uint64(2)] += weight
        else:
            start, length = positions[i], positions[i + np.uint64(1)] - positions[i]
            hashed = hash_bytes(buffer, start, start + length, table.seeds[0])
            at = find_long(table.long_rows, table.arena, hashed, buffer, start, length)
            if table.long_rows[at + 1] == np.uint64(0):
                place = table.used[ARENA_USED]
                for j in range(length):
                    table.arena[place + j] = buffer[start + j]
                table.used[ARENA_USED] += length
                table.long_rows[at] = hashed
                table.long_rows[at + 1] = np.uint64(length)
                table.long_rows[at + 3] = np.uint64(place)
                table.used[LONG_ENTRIES] += 1
            table.long_counts[at + 2] += weight


@kernel
def count_pretokens(table, work, buffer, starts, cursor, weights):
    """Count pre-tokens until the text is done, or cursor[GROUPS] groups are, or a table is full.

    Args:
        table, work: `CountTable` and `bpe.encode.work.Work`, modified in place.
        buffer: uint8[n_bytes].
        starts: see `bpe.encode.work.take_positions`.
        cursor: int64[4]: two as there; COUNTED and GROUPS. Modified in place.
        weights: int64[n_pretokens], the count to add for each pre-token; int64[0]: 1 for each.

    Returns:
        DONE, PAUSED, or what must grow before the next call.
    """
    tail_start = fill_tail(buffer, buffer.size, work.tail)
    while cursor[0] < starts.size:
        if cursor[GROUPS] == 0:
            return PAUSED
        cursor[GROUPS] -= 1
        before = (cursor[0], cursor[1])
        n_pretokens = take_positions(starts, cursor, work.positions) - 1
        if n_pretokens > 0:
            n_bytes = work.positions[n_pretokens] - work.positions[0]
            status = room(table, n_pretokens, n_bytes)
            if status != DONE:
                cursor[0], cursor[1] = before
                return status
            if weights.size:
                of_group = weights[cursor[COUNTED] :]
                count_group(table, work, buffer, tail_start, n_pretokens, of_group)
            else:  # the compiler sees that there are none, which makes a loop without weights
                count_group(table, work, buffer, tail_start, n_pretokens, weights[:0])
            cursor[COUNTED] += n_pretokens
    return DONE


@kernel
def move_rows(old, new, is_long, seeds):
    """Copy all entries of a short or long table into a larger, empty one: ab 2, c 1 -> the same."""
    mask = np.uint64(new.size - 1)
    for at in range(0, old.size, 4):
        if old[at + 1] != np.uint64(0):
            slot = short_slot(new, old[at], old[at + 1], seeds)
            if is_long:
                slot = np.uint64(long_bucket(old[at], new))
            while new[slot + np.uint64(1)] != np.uint64(0):
                slot = (slot + np.uint64(4)) & mask
            for j in range(4):
                new[slot + np.uint64(j)] = old[at + j]


@kernel
def merge_into(table, other, half):
    """Add the counts of pre-tokens that `other` has, too, to its counts, and set them to 0 here.

    Example: ab 2, c 1 and other ab 5 -> ab 0, c 1 and other ab 7. Two threads may do one half of
    the table each, 0 and 1: they share no pre-token. The tables have the same seeds.
    """
    for is_long in (False, True):
        rows = table.long_rows if is_long else table.short_rows
        counts = table.long_counts if is_long else table.short_counts
        other_rows = other.long_rows if is_long else other.short_rows
        other_counts = other.long_counts if is_long else other.short_counts
        n = rows.size // 2
        for at in range(half * n, (half + 1) * n, 4):
            if rows[at + 1] == np.uint64(0) or rows[at + 2] == np.uint64(0):
                continue
            if is_long:
                start, length = np.int64(rows[at + 3]), np.int64(rows[at + 1])
                its = find_long(other_rows, other.arena, rows[at], table.arena, start, length)
            else:
                slot = short_slot(other_rows, rows[at], rows[at + 1], table.seeds)
                its = np.int64(find_short(other_rows, slot, rows[at], rows[at + 1]))
            if other_rows[its + 1] != np.uint64(0) and other_rows[its + 2] != np.uint64(0):
                other_counts[its + 2] += counts[at + 2]
                rows[at + 2] = np.uint64(0)


@kernel
def first_letters(low):
    """Return the bucket of a pre-token: its first two bytes, after one space, as a number.

    `low` holds its first three bytes, zeros after its end.
    >>> hex(first_letters(np.uint64(int.from_bytes(b" ab", "little"))))
    '0x6162'
    """
    if low & np.uint64(255) == np.uint64(32):
        low >>= np.uint64(8)
    return np.int64((low & np.uint64(255)) << np.uint64(8) | (low >> np.uint64(8)) & np.uint64(255))


@kernel
def export(table, places, out_bytes, out_offsets, out_counts):
    """Write out all pre-tokens whose count is not 0, in the order of first letters: b, ab -> ab, b.

    Args:
        places: int64[2 * FIRST_LETTERS], at 2 * i and 2 * i + 1 the number of the next pre-token
            and of its first byte, for bucket i; advanced.
        out_bytes, out_offsets, out_counts: uint8[n_bytes], int64[n + 1] (but for the last) and
            int64[n], replaced. With int64[0] counts nothing is written, `places` alone advances.
    """
    writes = out_counts.size > 0
    arena = table.arena
    for is_long in (False, True):
        rows = table.long_rows if is_long else table.short_rows
        counts = table.long_counts if is_long else table.short_counts
        for at in range(0, rows.size, 4):
            if rows[at + 1] == np.uint64(0) or rows[at + 2] == np.uint64(0):
                continue
            low, length, begin = rows[at], np.int64(rows[at + 1] >> np.uint64(56)), np.int64(0)
            if is_long:
                length, begin = np.int64(rows[at + 1]), np.int64(rows[at + 3])
                low = np.uint64(0)
                for j in range(3):
                    low |= np.uint64(arena[begin + j]) << np.uint64(8 * j)
            i = 2 * first_letters(low)
            n, place = places[i], places[i + 1]
            if writes:
                for j in range(length):
                    if is_long:
                        out_bytes[place + j] = arena[begin + j]
                    else:
                        word = rows[at + (j >> 3)] >> np.uint64(8 * (j & 7))
                        out_bytes[place + j] = word & np.uint64(255)
                out_offsets[n], out_counts[n] = place, counts[at + 2]
            places[i] = n + 1
            places[i + 1] = place + length
