"""What pre-tokens became: tables that all threads read, and add to, at the same time.

Law: what is found is what merging gave for exactly these bytes. Nothing that was put in is ever
changed or taken out, so nobody waits for anybody: who adds a row claims a free one, fills it, and
publishes it by the word that says whose it is, after all others. Who reads that word first finds
all of it. Tables that are full are replaced by larger or by empty ones (`bpe.encode`).

A pre-token of up to 15 bytes is its own key: 16 bytes, of which the last is the length. A row has
32 bytes: the key, and up to seven ids in as few bits as the vocabulary needs. Rows stand in buckets
of four, two cache lines, and go on in the next bucket where one is full; behind an empty row there
are only empty ones. What is longer, or has more ids, is in the arena, which is only added to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.kernels.jit import kernel
from bpe.kernels.machine import (
    add_atomically,
    always_inline,
    compare_exchange,
    leading_zeros,
    load_acquire,
    load_u64,
    multiply,
    multiply_and_fold,
    store_release,
)

MOST_BUCKETS = 8  # that are looked through for a row; what finds none free there is not kept

ARENA_USED, ROWS_TAKEN, ROWS_LIMIT, LONG_TAKEN, LONG_LIMIT = 0, 1, 2, 3, 4
"""Places in `Words.used`."""

PIECE, PIECE_END, ROWS_ADDED, LONG_ADDED = 0, 1, 2, 3
"""Places in `Words.own`."""

# Words of the arena that a thread takes at once, and rows after which it says how many it added:
# what one thread has written, another waits for longer than for memory.
_PIECE_SIZE, _MANY = 4096, 512

MOST_LONG = np.uint64(0x7FF)
"""Bits of the length of a long pre-token, and of the number of its ids."""

_NONE = np.uint64(0xFFFFFFFFFFFFFFFF)
# In place of the word that says whose a row is: somebody fills it. No short key has the length 0,
# and no long pre-token the length 1.
_CLAIMED = np.uint64(1)


class Words(NamedTuple):
    """What the encoders of one tokenizer have merged so far; every array is modified in place."""

    # uint64[16 * n_buckets]: key, key, ids, ids with their number in the top three bits.  Number 0:
    # they are in the arena, and the first word of ids is their place << 16 | number.  The second
    # word of the key is 0: there is none
    rows: NDArray[np.uint64]
    # uint64[8 * n_buckets]: four times hash, then place in the arena << 22 | number of ids << 11 |
    # length, or 0: there is none
    long_rows: NDArray[np.uint64]
    # uint64[n]: ids, two to a word, and the bytes of long pre-tokens
    arena: NDArray[np.uint64]
    # int64[5]: words of the arena that are used, or were asked for; rows that are taken, and after
    # how many they are to be replaced; the same for `long_rows`.  Larger tables have it in common
    # with those that they replace: rows that were added to these meanwhile are counted, too
    used: NDArray[np.int64]
    # int64[4], of one thread: where a piece of the arena that it took is free, and where it ends;
    # what it put into `rows` and `long_rows` and has not added to `used` yet
    own: NDArray[np.int64]


@kernel
def hash_key(low, high):
    """A hash of a 16-byte key; all of its bits are good ones."""
    return multiply_and_fold(
        low ^ np.uint64(0x9E3779B97F4A7C15), high ^ np.uint64(0xC2B2AE3D27D4EB4F)
    )


@kernel
def hash_word(mixed, word):
    """One more word of what is hashed."""
    mixed = multiply(mixed ^ word, np.uint64(0x9E3779B97F4A7C15))
    return mixed ^ (mixed >> np.uint64(29))


@kernel
def hash_bytes(data, start, stop):
    """A hash of `data[start:stop]`, at least one byte; never the number that marks a free place."""
    length = stop - start
    mixed = np.uint64(length)
    if length >= 8:
        for at in range(start, stop - 8, 8):
            mixed = hash_word(mixed, load_u64(data, at))
        # The last eight, of which some were there before.
        mixed = hash_word(mixed, load_u64(data, stop - 8))
    else:
        for at in range(start, stop):
            mixed = hash_word(mixed, np.uint64(data[at]))
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
def is_full(words):
    """Whether something is to be replaced."""
    used = words.used
    return (
        used[ROWS_TAKEN] > used[ROWS_LIMIT]
        or used[LONG_TAKEN] > used[LONG_LIMIT]
        or used[ARENA_USED] > words.arena.size
    )


@kernel
def publish_counts(words):
    """Add to `used` what this thread has added, if it is much."""
    used, own = words.used, words.own
    if own[ROWS_ADDED] + own[LONG_ADDED] > min(_MANY, used[LONG_LIMIT] // 8):
        add_atomically(used, ROWS_TAKEN, own[ROWS_ADDED])
        add_atomically(used, LONG_TAKEN, own[LONG_ADDED])
        own[ROWS_ADDED] = own[LONG_ADDED] = 0


@kernel
def row_bucket(low, high, rows):
    """Where in `rows` the bucket of a key begins.

    The highest bits of the hash say it: what is moved to a larger table in the order of its places
    goes there in the same order.
    """
    # In two steps, because nothing can be shifted by 64 places, as a single bucket would need.
    unused = np.uint64(leading_zeros(np.uint64(rows.size)) + 4)
    return ((hash_key(low, high) >> np.uint64(1)) >> unused) << np.uint64(4)


@kernel
def find_row(rows, bucket, low, high):
    """Where in `rows` a key has its row.

    If there is none: -2 less the place of the first free one that it could have, or -1.
    """
    always_inline()
    for _ in range(MOST_BUCKETS):
        for at in range(bucket, bucket + 16, 4):
            whose = load_acquire(rows, at + 1)
            if whose == high and rows[at] == low:
                return at
            if whose == 0:
                return -2 - at
        bucket = (bucket + 16) & (rows.size - 1)
    return -1


@kernel
def still_free(rows, found):
    """Whether what was not found in `rows`, of either kind, has not been added since either.

    Of -1, for which there was no free place, it says anything: adding it finds none either.
    """
    always_inline()
    return load_acquire(rows, -1 - found) == 0


@kernel
def add_row(words, low, high, first_ids, second_ids):
    """Put a row into `rows`, unless it is there. Returns its place; -1 if there is no room."""
    rows = words.rows
    bucket = np.int64(row_bucket(low, high, rows))
    for _ in range(MOST_BUCKETS):
        for at in range(bucket, bucket + 16, 4):
            whose = load_acquire(rows, at + 1)
            if whose == high and rows[at] == low:
                return at
            # If another thread is faster, it may add the same: then there are two, and one is used.
            if whose == 0 and compare_exchange(rows, at + 1, _CLAIMED):
                fill_row(words, at, low, high, first_ids, second_ids)
                return at
        bucket = (bucket + 16) & (rows.size - 1)
    return -1


@kernel
def add_row_at(words, found, low, high, first_ids, second_ids):
    """`add_row` of what `find_row` did not find: at the place that it says, if it is still free.

    To look for that again takes as long as a merge.
    """
    always_inline()
    at = -2 - found
    if at >= 0 and compare_exchange(words.rows, at + 1, _CLAIMED):
        fill_row(words, at, low, high, first_ids, second_ids)
        return at
    return add_row(words, low, high, first_ids, second_ids)


@kernel
def fill_row(words, at, low, high, first_ids, second_ids):
    """Fill and publish a row that this thread has claimed."""
    always_inline()
    rows = words.rows
    rows[at] = low
    rows[at + 2] = first_ids
    rows[at + 3] = second_ids
    store_release(rows, at + 1, high)
    words.own[ROWS_ADDED] += 1


@kernel
def move_rows(rows, larger):
    """Put all that is in `rows` into the `Words.rows` of `larger`, which nobody else has."""
    for at in range(0, rows.size, 4):
        high = load_acquire(rows, at + 1)
        if high > _CLAIMED:
            add_row(larger, rows[at], high, rows[at + 2], rows[at + 3])


@kernel
def long_bucket(hashed, long_rows):
    """Where in `long_rows` a long pre-token has its four places, as `row_bucket` says it."""
    unused = np.uint64(leading_zeros(np.uint64(long_rows.size)) + 3)
    return ((hashed >> np.uint64(1)) >> unused) << np.uint64(3)


@kernel
def find_long_row(words, hashed, buffer, start, length):
    """Where in `long_rows` a long pre-token has its row; a negative number as of `find_row`."""
    always_inline()
    rows = words.long_rows
    bucket = np.int64(long_bucket(hashed, rows))
    for _ in range(MOST_BUCKETS):
        for at in range(bucket, bucket + 8, 2):
            entry = load_acquire(rows, at + 1)
            if entry == 0:
                return -2 - at
            if rows[at] == hashed and np.int64(entry & MOST_LONG) == length:
                place = np.int64(entry >> np.uint64(22))
                n = np.int64((entry >> np.uint64(11)) & MOST_LONG)
                if is_remembered(words.arena, place + (n + 1) // 2, buffer, start, length):
                    return at
        bucket = (bucket + 8) & (rows.size - 1)
    return -1


@kernel
def add_long_row(words, hashed, entry):
    """Put a row into `long_rows`. Returns its place; -1 if there is no room."""
    rows = words.long_rows
    bucket = np.int64(long_bucket(hashed, rows))
    for _ in range(MOST_BUCKETS):
        for at in range(bucket, bucket + 8, 2):
            if load_acquire(rows, at + 1) == 0 and compare_exchange(rows, at + 1, _CLAIMED):
                fill_long_row(words, at, hashed, entry)
                return at
        bucket = (bucket + 8) & (rows.size - 1)
    return -1


@kernel
def add_long_row_at(words, found, hashed, entry):
    """`add_long_row` of what `find_long_row` did not find, as `add_row_at`."""
    always_inline()
    at = -2 - found
    if at >= 0 and compare_exchange(words.long_rows, at + 1, _CLAIMED):
        fill_long_row(words, at, hashed, entry)
        return at
    return add_long_row(words, hashed, entry)


@kernel
def fill_long_row(words, at, hashed, entry):
    """Fill and publish a long row that this thread has claimed."""
    always_inline()
    words.long_rows[at] = hashed
    store_release(words.long_rows, at + 1, entry)
    words.own[LONG_ADDED] += 1


@kernel
def move_long_rows(rows, larger):
    """The same for `Words.long_rows`; the arena is the same."""
    for at in range(0, rows.size, 2):
        entry = load_acquire(rows, at + 1)
        if entry > _CLAIMED:
            add_long_row(larger, rows[at], entry)


@kernel
def remember(words, ids, n, buffer, start, length):
    """Put `ids[:n]`, and bytes behind them, into the arena.

    Returns their place there, or -1: there is no room.
    """
    arena, own = words.arena, words.own
    n_words = (n + 1) // 2
    needed = n_words + (length + 7) // 8
    if own[PIECE] + needed > own[PIECE_END]:
        size = max(needed, min(_PIECE_SIZE, arena.size // 16))
        own[PIECE] = add_atomically(words.used, ARENA_USED, size)
        own[PIECE_END] = min(own[PIECE] + size, arena.size)
        if own[PIECE] + needed > own[PIECE_END]:
            return np.int64(-1)
    place = own[PIECE]
    own[PIECE] += needed
    at = place
    for i in range(n_words):
        # What stands behind the last id is written over, before it is read.
        arena[at + i] = np.uint64(ids[2 * i]) | (np.uint64(ids[2 * i + 1]) << np.uint64(32))
    at += n_words
    for i in range(start, start + length - 7, 8):
        arena[at] = load_u64(buffer, i)
        at += 1
    if length & 7:
        arena[at] = last_bytes(buffer, start + length, length)
    return place


@kernel
def last_bytes(buffer, stop, length):
    """The last `length & 7` bytes before `stop`, not none; there are eight at least."""
    return load_u64(buffer, stop - 8) >> np.uint64(64 - 8 * (length & 7))


@kernel
def recall(arena, at, n, ids, n_ids):
    """Copy n ids from word `at` of the arena; one more may be written. Returns the number now."""
    for i in range((n + 1) // 2):
        word = arena[at + i]
        ids[n_ids + 2 * i] = np.uint32(word & np.uint64(0xFFFFFFFF))
        ids[n_ids + 2 * i + 1] = np.uint32(word >> np.uint64(32))
    return n_ids + n


@kernel
def is_remembered(arena, at, buffer, start, length):
    """Whether the arena has the bytes `buffer[start : start + length]` from word `at` on."""
    for i in range(start, start + length - 7, 8):
        if arena[at] != load_u64(buffer, i):
            return False
        at += 1
    return length & 7 == 0 or arena[at] == last_bytes(buffer, start + length, length)
