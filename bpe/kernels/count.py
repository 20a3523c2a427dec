"""Pre-tokens -> counts.

Law: every pre-token is counted exactly once, in 64 bits, whatever its length; tables are grown by
the wrapper before they can fill. A pre-token of up to 15 bytes is its own 16-byte key (see
`bpe.kernels.encode`); a longer one is a hash, and bytes in an arena that are compared before they
are believed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.kernels.encode import GROUP, KEY_PARTS, LONG, SHORT, fill_tail, take_positions
from bpe.kernels.jit import kernel
from bpe.kernels.machine import always_inline, prefetch, take_key
from bpe.kernels.words import hash_bytes, hash_key, long_bucket, same_bytes

_NONE = np.uint64(0xFFFFFFFFFFFFFFFF)
DONE, GROW_SHORT, GROW_LONG, GROW_ARENA, PAUSED = 0, 1, 2, 3, 4

SHORT_ENTRIES, LONG_ENTRIES, ARENA_USED, TOTAL = 0, 1, 2, 3
"""Places in `CountTable.used`."""

FIRST_LETTERS = 2**16
"""Beginnings that are told apart in `export`."""


class CountTable(NamedTuple):
    """Two hash tables of pre-tokens; every array is modified in place."""

    # uint64[4 * n]: key, key, count, unused; free where the key's second word is 0
    short_rows: NDArray[np.uint64]
    short_counts: NDArray[np.int64]  # int64[4 * n], the same memory, for the counts
    # uint64[4 * n]: hash, place in the arena, length, count; free where hash is _NONE
    long_rows: NDArray[np.uint64]
    long_counts: NDArray[np.int64]  # int64[4 * n], the same memory
    arena: NDArray[np.uint8]
    # int64[4]: short entries, long entries, bytes of the arena, pre-tokens counted
    used: NDArray[np.int64]


@kernel
def room(table, n_pretokens, n_bytes):
    """DONE if so many more pre-tokens and bytes fit at a good load, else what must grow."""
    if (table.used[SHORT_ENTRIES] + n_pretokens) * 2 > table.short_rows.size // 4:
        return GROW_SHORT
    if (table.used[LONG_ENTRIES] + n_pretokens) * 2 > table.long_rows.size // 4:
        return GROW_LONG
    if table.used[ARENA_USED] + n_bytes > table.arena.size:
        return GROW_ARENA
    return DONE


@kernel
def find_short(rows, slot, low, high):
    """The place in `rows`, from `slot` on, of a short pre-token, or the free place for it."""
    mask = np.uint64(rows.size - 1)
    while (rows[slot] != low or rows[slot + np.uint64(1)] != high) and rows[
        slot + np.uint64(1)
    ] != np.uint64(0):
        slot = (slot + np.uint64(4)) & mask
    return slot


@kernel
def short_slot(rows, low, high):
    """Where the search for a short pre-token begins in `rows`.

    A larger table has the same order, several times over: two tables are gone through side by side.
    """
    return ((hash_key(low, high) >> np.uint64(32)) << np.uint64(2)) & np.uint64(rows.size - 1)


@kernel
def find_long(rows, arena, hashed, buffer, start, length):
    """The place in `rows` of a long pre-token, or the free place where it belongs."""
    mask = rows.size - 1
    at = np.int64(long_bucket(hashed, rows))
    while rows[at] != _NONE:
        if (
            rows[at] == hashed
            and np.int64(rows[at + 2]) == length
            and same_bytes(arena, np.int64(rows[at + 1]), buffer, start, length)
        ):
            break
        at = (at + 4) & mask
    return at


@kernel
def compute_keys(buffer, tail_start, n_pretokens, scratch, rows):
    """The keys of a group, where the search for each begins, and a prefetch of that.

    Args:
        buffer: uint8[n_bytes].
        tail_start: where `scratch.tail` begins, from which the last keys are read.
        n_pretokens: `scratch.positions` has one more position than this.
        scratch: its keys are replaced: four words for each, of which the last means nothing.
        rows: see `CountTable.short_rows`.
    """
    n_inside = n_pretokens
    while n_inside > 0 and scratch.positions[n_inside - 1] >= tail_start:
        n_inside -= 1
    keys_between(buffer, 0, 0, n_inside, scratch, rows)
    keys_between(scratch.tail_text, tail_start, n_inside, n_pretokens, scratch, rows)


@kernel
def keys_between(source, source_start, first, last, scratch, rows):
    """`compute_keys` for some; `source[0]` is byte `source_start` of the text."""
    always_inline()
    positions, keys = scratch.positions, scratch.keys
    start = positions[first]
    # Unsigned numbers need no test for places counted from the end.
    for number in range(first, last):
        i = np.uint64(number)
        stop = positions[i + np.uint64(1)]
        part = np.uint64(min(stop - start, np.int64(SHORT + 1))) << np.uint64(2)
        k = i << np.uint64(2)
        take_key(source, start - source_start, KEY_PARTS, part, keys, k)
        slot = short_slot(rows, keys[k], keys[k + np.uint64(1)])
        prefetch(rows, slot)
        keys[k + np.uint64(2)] = slot
        start = stop


@kernel
def count_group(table, scratch, buffer, tail_start, n_pretokens, weights, first_weight):
    """Count the pre-tokens between `scratch.positions`; there must be room.

    Args:
        table, scratch: modified in place.
        buffer, tail_start: see `compute_keys`.
        n_pretokens: how many.
        weights: int64[n], what each counts for; int64[0]: one.
        first_weight: index of the first one's weight.
    """
    rows, counts = table.short_rows, table.short_counts
    positions, keys = scratch.positions, scratch.keys
    compute_keys(buffer, tail_start, n_pretokens, scratch, rows)
    weight = np.int64(1)
    for number in range(n_pretokens):
        i = np.uint64(number)
        if weights.size:
            weight = weights[first_weight + number]
        k = i << np.uint64(2)
        low, high = keys[k], keys[k + np.uint64(1)]
        slot = keys[k + np.uint64(2)]
        if high != LONG:
            slot = find_short(rows, slot, low, high)
            if rows[slot + np.uint64(1)] == np.uint64(0):
                rows[slot] = low
                rows[slot + np.uint64(1)] = high
                rows[slot + np.uint64(2)] = np.uint64(0)
                table.used[SHORT_ENTRIES] += 1
            counts[slot + np.uint64(2)] += weight
        else:
            start = positions[i]
            length = positions[i + np.uint64(1)] - start
            hashed = hash_bytes(buffer, start, start + length)
            at = find_long(table.long_rows, table.arena, hashed, buffer, start, length)
            if table.long_rows[at] == _NONE:
                place = table.used[ARENA_USED]
                for j in range(length):
                    table.arena[place + j] = buffer[start + j]
                table.used[ARENA_USED] += length
                table.long_rows[at] = hashed
                table.long_rows[at + 1] = np.uint64(place)
                table.long_rows[at + 2] = np.uint64(length)
                table.long_rows[at + 3] = np.uint64(0)
                table.used[LONG_ENTRIES] += 1
            table.long_counts[at + 3] += weight


@kernel
def count_pretokens(table, scratch, buffer, starts, cursor, most):
    """Count pre-tokens until the text is done, or `most` groups are, or a table is full.

    Args:
        starts, cursor: see `bpe.kernels.encode.take_positions`.

    Returns:
        DONE, PAUSED, or what must grow before the next call.
    """
    no_weights = table.used[:0]
    tail_start = fill_tail(buffer, buffer.size, scratch.tail)
    while cursor[0] < starts.size:
        if most == 0:
            return PAUSED
        most -= 1
        before = (cursor[0], cursor[1])
        n_pretokens = take_positions(starts, cursor, scratch.positions) - 1
        if n_pretokens > 0:
            n_bytes = scratch.positions[n_pretokens] - scratch.positions[0]
            status = room(table, n_pretokens, n_bytes)
            if status != DONE:
                cursor[0], cursor[1] = before
                return status
            count_group(table, scratch, buffer, tail_start, n_pretokens, no_weights, 0)
            table.used[TOTAL] += n_pretokens
    return DONE


@kernel
def count_words(table, scratch, buffer, offsets, weights, cursor):
    """Count given pre-tokens with given weights, from `cursor[0]` on, until a table is full.

    Args:
        offsets: int64[n + 1]; weights: int64[n]; cursor: int64[1], modified in place.

    Returns:
        DONE, or what must grow before the next call.
    """
    n = weights.size
    tail_start = fill_tail(buffer, buffer.size, scratch.tail)
    while cursor[0] < n:
        first = cursor[0]
        n_pretokens = min(np.int64(GROUP), n - first)
        status = room(table, n_pretokens, offsets[first + n_pretokens] - offsets[first])
        if status != DONE:
            return status
        for i in range(n_pretokens + 1):
            scratch.positions[i] = offsets[first + i]
        count_group(table, scratch, buffer, tail_start, n_pretokens, weights, first)
        for i in range(n_pretokens):
            table.used[TOTAL] += weights[first + i]
        cursor[0] = first + n_pretokens
    return DONE


@kernel
def move_short(old, new):
    """Put all entries of one table of short pre-tokens into a larger, empty one."""
    for at in range(0, old.size, 4):
        low, high = old[at], old[at + 1]
        if high != np.uint64(0):
            slot = find_short(new, short_slot(new, low, high), low, high)
            for j in range(3):
                new[np.int64(slot) + j] = old[at + j]


@kernel
def move_long(old, new):
    """Put all entries of one table of long pre-tokens into a larger one; `new` is filled here."""
    new[:] = _NONE
    mask = new.size - 1
    for at in range(0, old.size, 4):
        if old[at] != _NONE:
            slot = np.int64(long_bucket(old[at], new))
            while new[slot] != _NONE:
                slot = (slot + 4) & mask
            for j in range(4):
                new[slot + j] = old[at + j]


@kernel
def give(table, other, part, n_parts):
    """Add the counts of pre-tokens that `other` has counted, too, to its, and set them to 0 here.

    Args:
        part, n_parts: only those in this part of the table. Threads may do one part each, side by
            side: no two parts hold the same pre-token.
    """
    rows = table.short_rows
    n = rows.size // 4
    for at in range(4 * (n * part // n_parts), 4 * (n * (part + 1) // n_parts), 4):
        low, high = rows[at], rows[at + 1]
        if high != np.uint64(0) and rows[at + 2] != np.uint64(0):
            slot = short_slot(other.short_rows, low, high)
            slot = find_short(other.short_rows, slot, low, high)
            if other.short_rows[slot + np.uint64(1)] != np.uint64(0) and other.short_rows[
                slot + np.uint64(2)
            ] != np.uint64(0):
                other.short_counts[slot + np.uint64(2)] += table.short_counts[at + 2]
                rows[at + 2] = np.uint64(0)
    rows = table.long_rows
    n = rows.size // 4
    for at in range(4 * (n * part // n_parts), 4 * (n * (part + 1) // n_parts), 4):
        if rows[at] != _NONE and rows[at + 3] != np.uint64(0):
            start, length = np.int64(rows[at + 1]), np.int64(rows[at + 2])
            its = find_long(other.long_rows, other.arena, rows[at], table.arena, start, length)
            if other.long_rows[its] != _NONE and other.long_rows[its + 3] != np.uint64(0):
                other.long_counts[its + 3] += table.long_counts[at + 3]
                rows[at + 3] = np.uint64(0)


@kernel
def first_letters(low):
    """A number for how a pre-token begins, below FIRST_LETTERS: two bytes behind one space.

    `low` holds its first three bytes; zeros behind its end.
    """
    if low & np.uint64(255) == np.uint64(32):
        low >>= np.uint64(8)
    return np.int64((low & np.uint64(255)) << np.uint64(8) | (low >> np.uint64(8)) & np.uint64(255))


@kernel
def first_bytes(arena, begin):
    """The first three bytes of a long pre-token."""
    low = np.uint64(0)
    for j in range(3):
        low |= np.uint64(arena[begin + j]) << np.uint64(8 * j)
    return low


@kernel
def measure(table, sizes):
    """How many pre-tokens have a count that is not 0, and how many bytes.

    Args:
        sizes: int64[2 * FIRST_LETTERS], zeros; the number of pre-tokens that begin with letters i,
            and that of their bytes, are added at 2 * i and 2 * i + 1.
    """
    for at in range(0, table.short_rows.size, 4):
        if table.short_rows[at + 1] != np.uint64(0) and table.short_rows[at + 2] != np.uint64(0):
            i = 2 * first_letters(table.short_rows[at])
            sizes[i] += 1
            sizes[i + 1] += np.int64(table.short_rows[at + 1] >> np.uint64(56))
    for at in range(0, table.long_rows.size, 4):
        if table.long_rows[at] != _NONE and table.long_rows[at + 3] != np.uint64(0):
            i = 2 * first_letters(first_bytes(table.arena, np.int64(table.long_rows[at + 1])))
            sizes[i] += 1
            sizes[i + 1] += np.int64(table.long_rows[at + 2])


@kernel
def export(table, places, out_bytes, out_offsets, out_counts):
    """Write out all pre-tokens whose count is not 0, in the order of their first letters.

    Args:
        places: int64[2 * FIRST_LETTERS], the numbers of the first pre-token and of its first byte,
            for each beginning; moved on as they are taken.
        out_bytes: uint8[n_bytes]; out_offsets: int64[n + 1], of which the last is not written;
            out_counts: int64[n]; replaced.
    """
    for at in range(0, table.short_rows.size, 4):
        if table.short_rows[at + 1] != np.uint64(0) and table.short_rows[at + 2] != np.uint64(0):
            i = 2 * first_letters(table.short_rows[at])
            n, place = places[i], places[i + 1]
            length = np.int64(table.short_rows[at + 1] >> np.uint64(56))
            for j in range(length):
                word = table.short_rows[at + (j >> 3)]
                out_bytes[place + j] = (word >> np.uint64(8 * (j & 7))) & np.uint64(255)
            out_offsets[n] = place
            out_counts[n] = table.short_counts[at + 2]
            places[i] += 1
            places[i + 1] += length
    for at in range(0, table.long_rows.size, 4):
        if table.long_rows[at] != _NONE and table.long_rows[at + 3] != np.uint64(0):
            begin = np.int64(table.long_rows[at + 1])
            i = 2 * first_letters(first_bytes(table.arena, begin))
            n, place = places[i], places[i + 1]
            length = np.int64(table.long_rows[at + 2])
            for j in range(length):
                out_bytes[place + j] = table.arena[begin + j]
            out_offsets[n] = place
            out_counts[n] = table.long_counts[at + 3]
            places[i] += 1
            places[i + 1] += length
