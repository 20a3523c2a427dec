"""The cache of encoded pre-tokens, which all threads read and add to at the same time.

It is lock-free, because no row is changed or removed: a thread claims a free row, fills it, and
publishes it by writing the second word of its key last, which readers read first. Full tables are
replaced by larger or by empty ones (`bpe.encode.pretoken_cache`).

A pre-token of up to 15 bytes is its own key: 16 bytes, the last of which is the length. A row has
the key, and up to seven ids in as few bits as the vocabulary needs. Four rows are a bucket; the row
of a key is in the next bucket where its own is full, and free rows are last. Longer pre-tokens and
those of more ids are in the arena, which is only appended to.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.runtime import machine
from bpe.runtime.jit import kernel

MOST_BUCKETS = 8  # that are searched for a row; a pre-token that finds none free is not cached

ROWS_TAKEN, LONG_TAKEN, ARENA_USED = 0, 1, 2  # in `PretokenCache.used` and `limits`
PIECE, PIECE_END, ROWS_ADDED, LONG_ADDED = 0, 1, 2, 3  # in `PretokenCache.own`
# Words of the arena that a thread takes at once, and rows after which it publishes how many it
# added: a cache line that another thread has written is slower than memory.
_PIECE_SIZE, _MANY = 4096, 512

MOST_LONG = np.uint64(0x7FF)  # the bits of the length of a long pre-token, and of its n ids
_NONE = np.uint64(0xFFFFFFFFFFFFFFFF)
# Second word of a row that a thread is filling: no short key has length 0, no long one length 1.
_CLAIMED = np.uint64(1)


class PretokenCache(NamedTuple):
    """Pre-tokens that the encoders of one tokenizer merged; every array is modified in place."""

    # uint64[16 * n_buckets]: two words of key, two of ids with their number in the top three bits.
    # Number 0: the ids are in the arena, and the third word is their place << 16 | their number.
    # The second word is 0 in a free row
    rows: NDArray[np.uint64]
    # uint64[8 * n_buckets]: hash, then place in the arena << 22 | number of ids << 11 | length, or
    # 0 in a free row
    long_rows: NDArray[np.uint64]
    # uint64[n]: ids, two to a word, and the bytes of long pre-tokens
    arena: NDArray[np.uint64]
    arena_bytes: NDArray[np.uint8]  # uint8[8 * n], the same memory
    # int64[3]: rows and long rows that are taken, words of the arena that were asked for. Larger
    # tables share it with those that they replace, to which rows may still be added
    used: NDArray[np.int64]
    limits: NDArray[np.int64]  # int64[3], above which each of these is full
    # int64[4], of one thread: where its piece of the arena is free, and where that ends; rows and
    # long rows that it added and has not counted in `used` yet
    own: NDArray[np.int64]


@kernel
def hash_key(low, high):
    """Return a well mixed hash of a 16-byte key: (0x9E3779B97F4A7C15, any) -> 0."""
    low, high = low ^ np.uint64(0x9E3779B97F4A7C15), high ^ np.uint64(0xC2B2AE3D27D4EB4F)
    return machine.multiply_and_fold(low, high)


@kernel
def hash_bytes(data, start, stop, factor):
    """Return a hash of `data[start:stop]`, not empty; never _NONE: b"abab", 0, 2 -> as 2, 4.

    Nobody who does not know the factor, uint64, can write texts of one hash.
    """
    length = stop - start
    mixed = np.uint64(length) ^ factor
    if length >= 8:
        for at in range(start, stop - 8, 8):
            mixed = machine.multiply_and_fold(mixed ^ machine.load_u64(data, at), factor)
        # The last eight, some of which may have been mixed in before.
        mixed = machine.multiply_and_fold(mixed ^ machine.load_u64(data, stop - 8), factor)
    else:
        for at in range(start, stop):
            mixed = machine.multiply_and_fold(mixed ^ np.uint64(data[at]), factor)
    mixed = machine.multiply(mixed, np.uint64(0xD6E8FEB86659FD93))
    mixed ^= mixed >> np.uint64(32)
    return min(mixed, _NONE - np.uint64(1))


@kernel
def same_bytes(a, a_start, b, b_start, length):
    """Return True if `length` bytes from `a[a_start]` equal those from `b[b_start]`.

    >>> text = np.frombuffer(b"ab abc", np.uint8)
    >>> bool(same_bytes(text, 0, text, 3, 2)), bool(same_bytes(text, 0, text, 3, 3))
    (True, False)
    """
    if length < 8:
        same = True
        for at in range(length):
            same &= a[a_start + at] == b[b_start + at]
        return same
    for at in range(0, length - 8, 8):
        if machine.load_u64(a, a_start + at) != machine.load_u64(b, b_start + at):
            return False
    at = length - 8
    return machine.load_u64(a, a_start + at) == machine.load_u64(b, b_start + at)


@kernel
def is_full(cache):
    """Return True if a table must be replaced: used 3 0 0, limits 2 9 9 -> True."""
    used, limits = cache.used, cache.limits
    return used[0] > limits[0] or used[1] > limits[1] or used[2] > limits[2]


@kernel
def publish_counts(cache):
    """Add the rows that this thread added to `used`, if they are many: own 600, used 9 -> 609."""
    used, own = cache.used, cache.own
    if own[ROWS_ADDED] + own[LONG_ADDED] > min(_MANY, cache.limits[LONG_TAKEN] // 8):
        machine.add_atomically(used, ROWS_TAKEN, own[ROWS_ADDED])
        machine.add_atomically(used, LONG_TAKEN, own[LONG_ADDED])
        own[ROWS_ADDED] = own[LONG_ADDED] = 0


@kernel
def row_bucket(low, high, rows):
    """Return the start of a key's bucket in `rows`: the second of two buckets -> 16.

    It depends on the highest bits of the hash, so that rows keep their order in a larger table.
    """
    # In two steps, because a single bucket would need a shift by 64 bits.
    unused = np.uint64(machine.leading_zeros(np.uint64(rows.size)) + 4)
    return ((hash_key(low, high) >> np.uint64(1)) >> unused) << np.uint64(4)


@kernel
def find_row(rows, bucket, low, high):
    """Return the place of a key in `rows`; else -2 minus the first free place, -1 if none is.

    >>> rows = np.array([7, 8, 1, 2] + [0] * 12, np.uint64)
    >>> find_row(rows, 0, 7, 8), find_row(rows, 0, 9, 8)
    (0, -6)
    """
    machine.always_inline()
    for _ in range(MOST_BUCKETS):
        for at in range(bucket, bucket + 16, 4):
            whose = machine.load_acquire(rows, at + 1)
            if whose == high and rows[at] == low:
                return at
            if whose == 0:
                return -2 - at
        bucket = (bucket + 16) & (rows.size - 1)
    return -1


@kernel
def still_free(rows, found):
    """Return True if the row that `find_row` or `find_long_row` found free still is.

    Example: -6 is the row at 4, which is free while `rows[5]` is 0. Undefined for -1.
    """
    machine.always_inline()
    return machine.load_acquire(rows, -1 - found) == 0


@kernel
def claim_row(rows, width, bucket, found):
    """Claim a free row of `width` words in `rows` or `long_rows`; return its place, -1 without one.

    Example: found -6 -> 4; the next free row if another thread has claimed that one. If it added
    the same key, one row is never used: another search would take as long as a merge.
    """
    machine.always_inline()
    at = -2 - found
    if at >= 0 and machine.compare_exchange(rows, at + 1, _CLAIMED):
        return at
    for _ in range(MOST_BUCKETS):
        for at in range(bucket, bucket + 4 * width, width):
            is_free = machine.load_acquire(rows, at + 1) == 0
            if is_free and machine.compare_exchange(rows, at + 1, _CLAIMED):
                return at
        bucket = (bucket + 4 * width) & (rows.size - 1)
    return -1


@kernel
def add_row(cache, found, low, high, first_ids, second_ids):
    """Add a row for a key, `found` by `find_row`; return as `claim_row`: -6 -> rows[4:8], 4."""
    machine.always_inline()
    rows = cache.rows
    at = claim_row(rows, 4, np.int64(row_bucket(low, high, rows)), found)
    if at >= 0:
        rows[at] = low
        rows[at + 2] = first_ids
        rows[at + 3] = second_ids
        machine.store_release(rows, at + 1, high)
        cache.own[ROWS_ADDED] += 1
    return at


@kernel
def long_bucket(hashed, long_rows):
    """Return the start of a hash's bucket in `long_rows`: the second of two buckets -> 8."""
    unused = np.uint64(machine.leading_zeros(np.uint64(long_rows.size)) + 3)
    return ((hashed >> np.uint64(1)) >> unused) << np.uint64(3)


@kernel
def find_long_row(cache, hashed, buffer, start, length):
    """Find a long pre-token in `long_rows`; return as `find_row`: none yet, bucket 8 -> -10."""
    machine.always_inline()
    rows = cache.long_rows
    bucket = np.int64(long_bucket(hashed, rows))
    for _ in range(MOST_BUCKETS):
        for at in range(bucket, bucket + 8, 2):
            entry = machine.load_acquire(rows, at + 1)
            if entry == 0:
                return -2 - at
            if rows[at] == hashed and np.int64(entry & MOST_LONG) == length:
                n = np.int64((entry >> np.uint64(11)) & MOST_LONG)
                place = 8 * (np.int64(entry >> np.uint64(22)) + (n + 1) // 2)
                if same_bytes(cache.arena_bytes, place, buffer, start, length):
                    return at
        bucket = (bucket + 8) & (rows.size - 1)
    return -1


@kernel
def add_long_row(cache, found, hashed, entry):
    """Add a row to `long_rows`, as `add_row`: found -10 -> rows[8:10] = hash entry, 8."""
    machine.always_inline()
    rows = cache.long_rows
    at = claim_row(rows, 2, np.int64(long_bucket(hashed, rows)), found)
    if at >= 0:
        rows[at] = hashed
        machine.store_release(rows, at + 1, entry)
        cache.own[LONG_ADDED] += 1
    return at


@kernel
def move_rows(rows, larger, is_long):
    """Copy all rows, or long rows, to the empty `larger`: keys ab, cd -> found in it, too."""
    for at in range(0, rows.size, 2 if is_long else 4):
        second = machine.load_acquire(rows, at + 1)
        if second > _CLAIMED and is_long:
            add_long_row(larger, -1, rows[at], second)
        elif second > _CLAIMED:
            add_row(larger, -1, rows[at], second, rows[at + 2], rows[at + 3])


@kernel
def remember(cache, ids, n, buffer, start, length):
    """Copy `ids[:n]`, then `length` bytes, to the arena; return where, or -1: free at 40 -> 40."""
    arena, own = cache.arena, cache.own
    n_words = (n + 1) // 2
    needed = n_words + (length + 7) // 8
    if own[PIECE] + needed > own[PIECE_END]:
        size = max(needed, min(_PIECE_SIZE, arena.size // 16))
        own[PIECE] = machine.add_atomically(cache.used, ARENA_USED, size)
        own[PIECE_END] = min(own[PIECE] + size, arena.size)
        if own[PIECE] + needed > own[PIECE_END]:
            return np.int64(-1)
    place = own[PIECE]
    own[PIECE] += needed
    for i in range(n_words):
        # Of an odd number of ids, the one after the last means nothing.
        arena[place + i] = np.uint64(ids[2 * i]) | (np.uint64(ids[2 * i + 1]) << np.uint64(32))
    first_byte = 8 * (place + n_words)
    for i in range(length):
        cache.arena_bytes[first_byte + i] = buffer[start + i]
    return place


@kernel
def recall(arena, at, n, ids):
    """Copy n ids from word `at` of the arena to `ids`; one more may be written. Returns n."""
    for i in range((n + 1) // 2):
        word = arena[at + i]
        ids[2 * i] = np.uint32(word & np.uint64(0xFFFFFFFF))
        ids[2 * i + 1] = np.uint32(word >> np.uint64(32))
    return n
