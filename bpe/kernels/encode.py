"""Pre-tokens -> token ids: look-up of what is known, and merging of what is not.

Law: the ids are those of `reference.encode` for every pre-token; what is remembered changes the
time, never the result.

Most pre-tokens are one token of up to eight bytes. A table of such tokens, the same for all threads
and never changed, has 8 bytes for each: a hash that can be undone, of which the place says the
lower bits, and the id. So it is small enough to stay near the processor.

The others are looked for in the front, which each thread has for itself: one row for each hash, of
a key of 16 bytes and up to four ids that need only be copied. It is small: the processor's table of
pages reaches no further than a few megabytes. What is not there is looked up among all words that
any thread has merged (`bpe.kernels.words`), or merged.

Pre-tokens are handled in groups, in passes that hardly ever have to wait or to guess: the ids of
those that are tokens, and a list of the others; their keys, with a prefetch of the rows in front;
the ids of those that are in front, and a prefetch of the buckets of those that are not; then all
ids in order. A single pass waited for memory at every word and was three times slower.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.kernels.apply_merges import SELDOM_LONGER, merge_pretoken
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
    Words,
    add_long_row_at,
    add_row_at,
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
LONGEST_CACHED = 1024  # bytes; what is longer is hardly ever seen twice
COPIED = 16  # ids that are copied at once

_NONE = np.uint64(0xFFFFFFFFFFFFFFFF)
FACTOR, _OTHER_FACTOR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
IDS = _NONE >> np.uint64(3)
"""The bits of a row's last word that are ids, not their number."""


class Documents(NamedTuple):
    """Which bytes and which ids belong to which document.

    Every second of them can be a gap, what stands between two documents: it has no ids.
    """

    offsets: NDArray[np.int64]  # int64[n_documents + 1], of bytes
    token_offsets: NDArray[np.int64]  # int64[n_documents + 1], of ids; replaced
    # int64[4]: id before and after each (-1: none), 1 if the last one goes on elsewhere, 1 if there
    # are gaps
    around: NDArray[np.int64]


class Scratch(NamedTuple):
    """Memory for one group; its content means nothing between calls.

    From `symbols` on it is that of `bpe.kernels.apply_merges`, with its constants and functions.
    """

    positions: NDArray[np.int64]  # int64[GROUP + 80]
    # uint32[OTHERS + 2 * (GROUP + 80)]: the id of each that is in `Tables.tokens`; from OTHERS on
    # what is not there: the number of a pre-token, or END_OF_DOCUMENT and that of the one that is
    # the first of another
    group: NDArray[np.uint32]
    # uint64[4 * KEYS], for each of those: the first word of the key; from HIGH on the second, which
    # is LONG if a pre-token is, of which the hash is the first, or if it is none; from AT on its
    # row in front; from PLACE on, if it is not there, its row among the words, a free place for it
    # (see `find_row`), or _NONE: it has none. For counting see `bpe.kernels.count.compute_keys`
    keys: NDArray[np.uint64]
    # uint64[2 * KEYS], the first word of ids in front; from HIGH on the second, 0: it is not there
    found: NDArray[np.uint64]
    # uint32[2 * KEYS], which of the others are not there; then which of these are new; from
    # LONG_ONES on those that are long
    missing: NDArray[np.uint32]
    new_ids: NDArray[np.uint32]  # uint32[LONGEST_CACHED + 1]
    # uint8[TAIL], the last 16 bytes of the text, or all if it has fewer, then zeros
    tail: NDArray[np.uint8]
    tail_text: NDArray[
        np.uint8
    ]  # the same, read-only, as text is: what reads both is compiled once
    symbols: NDArray[np.uint32]  # uint32[FEW]
    packed: NDArray[np.uint32]  # uint32[BLOCKED], see `pack`
    least: NDArray[np.uint32]  # uint32[BLOCKED // 16], the smallest of every 16 of those
    begins: NDArray[np.uint32]  # uint32[OVERLAP + 1], for `merge_windows`
    # For those of more than FEW bytes; n is the number of bytes of the longest.
    rows: NDArray[np.uint32]  # uint32[4 * n], see _SYMBOL
    heap: NDArray[np.uint64]  # uint64[2 * n + 3], the root at _ROOT
    # For `merge_lists`; empty if n is below LISTED.
    # uint32[2 * n_ranks]: first and last entry of each rank's list
    lists: NDArray[np.uint32]
    entries: NDArray[np.uint32]  # uint32[6 * n]: position, next entry


END_OF_DOCUMENT = np.uint32(1 << 31)
OTHERS = np.uint64(GROUP + 80 + COPIED)
"""Where in `Scratch.group` the list of others begins."""

TAIL = 48
"""Bytes of `Scratch.tail`: a key is loaded from its last bytes of text, too."""

KEYS = 2 * (GROUP + 80)
"""Of so many there is room in `Scratch.keys`."""

HIGH, AT, PLACE = np.uint64(KEYS), np.uint64(2 * KEYS), np.uint64(3 * KEYS)
"""Where in `Scratch.keys` the second words of keys begin, and in `Scratch.found` those of ids; the
rows in front; the rows among the words."""

LONG_ONES = np.uint64(KEYS)
"""Where in `Scratch.missing` the list of long pre-tokens begins."""

LONG = np.uint64(0xFF << 56)
"""The second word of a key that no row has."""

KEY_PARTS = np.array(
    [
        word
        for n in range(SHORT + 1)
        for word in ((1 << 8 * min(n, 8)) - 1, (1 << 8 * max(n - 8, 0)) - 1, 0, n << 56)
    ]
    + [0, 0, 0, LONG],
    np.uint64,
)
"""Which bits of its 16 bytes are the key of a pre-token of n bytes, and what is put on top of them,
at 4 * n; at the end for those that are too long."""

PADDING = np.array([2**64 - (1 << 8 * n) for n in range(TOKEN_BYTES + 1)] + [2**64 - 1], np.uint64)
"""What fills the 8 bytes of a token of n bytes: 0xFF, which no character has. Of what is longer
nothing is left but that."""


@kernel
def token_hash(word):
    """The 8 bytes of a short pre-token, mixed so that no two get the same.

    The lowest TOKEN_BITS are its place in `Tables.tokens`; the others are kept there, so that what
    is found equal is the pre-token itself. The exclusive or of both is the id.
    """
    # The upper bits of a product depend on all bits of the word.
    return rotate(multiply(word, FACTOR), np.uint64(TOKEN_BITS))


@kernel
def token_hashes(words):
    """`token_hash` of eight words."""
    return rotate_eight(words * all_eight(FACTOR), np.uint64(TOKEN_BITS))


@kernel
def merge_new(tables, words, scratch, buffer, n_short, n_long):
    """Merge those of the others that `scratch.missing` says are new, and put them among the words.

    A call for each would take longer than to look it up: it hands over some thirty arrays.
    """
    noinline_cold()
    keys = scratch.keys
    for number in range(n_short):
        row = np.uint64(scratch.missing[np.uint64(number)])
        place = np.int64(keys[PLACE + row])
        # It may stand in this group twice.
        if still_free(words.rows, place):
            place = merge_new_short(tables, words, scratch, buffer, row, place)
        else:
            place = find_short(words, scratch, row)
            if place < 0:
                place = merge_new_short(tables, words, scratch, buffer, row, place)
        keys[PLACE + row] = _NONE if place < 0 else np.uint64(place)
    for number in range(n_long):
        row = np.uint64(scratch.missing[LONG_ONES + np.uint64(number)])
        place = np.int64(keys[PLACE + row])
        if still_free(words.long_rows, place):
            place = merge_new_long(tables, words, scratch, buffer, row, place)
        else:
            place = find_long(words, scratch, buffer, row)
            if place < 0:
                place = merge_new_long(tables, words, scratch, buffer, row, place)
        keys[PLACE + row] = _NONE if place < 0 else np.uint64(place)


@kernel
def find_short(words, scratch, row):
    """The row that one of the others has in `Words.rows`, or a negative number, see `find_row`."""
    always_inline()
    low, high = scratch.keys[row], scratch.keys[HIGH + row]
    return find_row(words.rows, np.int64(row_bucket(low, high, words.rows)), low, high)


@kernel
def find_long(words, scratch, buffer, row):
    """The same of one that is long in `Words.long_rows`."""
    always_inline()
    i = np.uint64(scratch.group[OTHERS + row])
    start, stop = scratch.positions[i], scratch.positions[i + np.uint64(1)]
    return find_long_row(words, scratch.keys[row], buffer, start, stop - start)


@kernel
def merge_new_short(tables, words, scratch, buffer, row, found):
    """`merge_new` for one that has a key; `found` is what `find_short` has said.

    Returns its row in `Words.rows`, or -1.
    """
    always_inline()
    i = np.uint64(scratch.group[OTHERS + row])
    start, stop = scratch.positions[i], scratch.positions[i + np.uint64(1)]
    ids = scratch.new_ids
    n = merge_pretoken(tables, scratch, buffer, start, stop, ids, 0)
    first_ids, second_ids = np.uint64(0), np.uint64(0)
    bits, n_first = np.uint64(tables.packing[0]), tables.packing[1]
    if n <= tables.packing[2]:
        for j in range(min(n, n_first)):
            first_ids |= np.uint64(ids[j]) << (bits * np.uint64(j))
        second_ids = np.uint64(n) << np.uint64(61)
        for j in range(n_first, n):
            second_ids |= np.uint64(ids[j]) << (bits * np.uint64(j - n_first))
    else:
        place = remember(words, ids, n, buffer, start, 0)
        if place < 0:
            return np.int64(-1)
        first_ids = np.uint64(place << 16 | n)
    low, high = scratch.keys[row], scratch.keys[HIGH + row]
    return add_row_at(words, found, low, high, first_ids, second_ids)


@kernel
def merge_new_long(tables, words, scratch, buffer, row, found):
    """`merge_new` for one of more than SHORT bytes; `found` is what `find_long` has said.

    Returns its row in `Words.long_rows`, or -1.
    """
    always_inline()
    i = np.uint64(scratch.group[OTHERS + row])
    start, stop = scratch.positions[i], scratch.positions[i + np.uint64(1)]
    n = merge_pretoken(tables, scratch, buffer, start, stop, scratch.new_ids, 0)
    place = remember(words, scratch.new_ids, n, buffer, start, stop - start)
    if place < 0:
        return np.int64(-1)
    entry = np.uint64(place << 22 | n << 11 | (stop - start))
    return add_long_row_at(words, found, scratch.keys[row], entry)


@kernel
def encode_unkept(tables, scratch, buffer, number, ids, n_ids):
    """`encode_missing` for one that is too long to be kept, or found no room."""
    noinline_cold()
    i = np.int64(scratch.group[OTHERS + np.uint64(number)])
    start, stop = scratch.positions[i], scratch.positions[i + 1]
    return merge_pretoken(tables, scratch, buffer, start, stop, ids, n_ids)


@kernel
def encode_missing(tables, front, words, scratch, buffer, number, ids, n_ids):
    """The ids of one of the others that is not in front and is put there.

    Returns the number of ids after it.
    """
    always_inline()
    row = np.uint64(number)
    low, high, found = scratch.keys[row], scratch.keys[HIGH + row], scratch.keys[PLACE + row]
    if found == _NONE:
        return encode_unkept(tables, scratch, buffer, number, ids, n_ids)
    at = np.int64(found)
    if high == LONG:
        entry = words.long_rows[at + 1]
        place, n = np.int64(entry >> np.uint64(22)), np.int64((entry >> np.uint64(11)) & MOST_LONG)
        return recall(words.arena, place, n, ids, n_ids)
    first_ids, second_ids = words.rows[at + 2], words.rows[at + 3]
    if second_ids != 0:
        bits, n_first = tables.packing[0], tables.packing[1]
        store_four_ids(ids, n_ids, first_ids, bits)
        store_four_ids(ids, n_ids + n_first, second_ids, bits)
        after = n_ids + np.int64(second_ids >> np.uint64(61))
    else:
        place, n = np.int64(first_ids >> np.uint64(16)), np.int64(first_ids & np.uint64(0xFFFF))
        after = recall(words.arena, place, n, ids, n_ids)
    n = after - n_ids
    if n <= 4:
        to = np.int64(scratch.keys[AT + row])
        front[to] = low
        front[to + 1] = high
        front[to + 2] = two_ids(np.uint64(ids[n_ids]), np.uint64(ids[n_ids + 1]))
        # What is behind the last id means nothing, but must leave the bits of the number free.
        third, fourth = np.uint64(ids[n_ids + 2]), np.uint64(ids[n_ids + 3])
        front[to + 3] = (two_ids(third, fourth) & IDS) | (np.uint64(n) << np.uint64(61))
    return after


@kernel
def two_ids(first, second):
    """Two numbers of 32 bits in one word."""
    return first | (second << np.uint64(32))


@kernel
def fill_tail(buffer, n, tail):
    """Fill `Scratch.tail` from `buffer[:n]`; returns where in the text it begins.

    Keys of 16 bytes are loaded from the buffer before that place, and from the copy after it.
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
        # Eight at a time, whether there are as many or not, and then the place is taken back: the
        # number is different in every word, and an end of a loop at each could only be guessed.
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
    """How many bytes the longest pre-token has; SELDOM_LONGER if none is longer."""
    longest, k = np.int64(SELDOM_LONGER), np.int64(0)
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
        # What is longer has so many words without a bit that one of those looked at is among them.
        k += SELDOM_LONGER // 64 - 1
    return longest


@kernel
def take_tokens(tables, scratch, buffer, tail, tail_start, first, stop, n_others):
    """The ids of those of the pre-tokens `first` to `stop` that are tokens, to `scratch.group`.

    The others are put on the list. Returns how many are there now. `buffer`, `tail` and
    `tail_start` as for `encode_pretokens`.
    """
    always_inline()
    tokens, positions, group = tables.tokens, scratch.positions, scratch.group
    inside = stop
    while inside > first and positions[inside - 1] >= tail_start:
        inside -= 1
    n_others = tokens_between(tokens, buffer, 0, positions, first, inside, group, n_others)
    return tokens_between(tokens, tail, tail_start, positions, inside, stop, group, n_others)


@kernel
def tokens_between(tokens, source, source_start, positions, first, stop, group, n_others):
    """`take_tokens` for some; `source[0]` is byte `source_start` of the text."""
    noinline()
    most = np.uint64(2**TOKEN_BITS - 1)
    # Unsigned numbers need no test for places counted from the end.
    i, n, one = np.uint64(first), np.uint64(n_others), np.uint64(1)
    start, last = positions[i], positions[np.uint64(stop)]
    eight = np.uint64(8)
    # A loop whose end cannot be counted is not unrolled: registers are just enough.
    while start != last:
        if has_eight() and np.int64(i) + 8 <= stop:
            # Eight at a time. Where they lie near together, all bytes come from two registers, and
            # what reaches out of these is padded.
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
            store_chosen(others, i, group, n + OTHERS)
            n += np.uint64(popcount(others))
            i += eight
            start = positions[i]
            continue
        end = positions[i + one]
        length = np.uint64(min(end - start, np.int64(TOKEN_BYTES + 1)))
        hashed = token_hash(load_u64(source, start - source_start) | PADDING[length])
        differing = tokens[hashed & most] ^ hashed
        # Without a branch, which the processor could only guess.
        group[i] = np.uint32(differing)
        group[n + OTHERS] = np.uint32(i)
        n += np.uint64(differing > most)
        i += one
        start = end
    return np.int64(n)


@kernel
def front_hash(low, high):
    """A hash of a key of 16 bytes, of which the highest bits are good ones."""
    mixed = rotate(multiply(low, FACTOR), np.uint64(32)) ^ high
    return multiply(mixed, _OTHER_FACTOR)


@kernel
def front_hashes(lows, highs):
    """`front_hash` of eight keys."""
    mixed = rotate_eight(lows * all_eight(FACTOR), np.uint64(32)) ^ highs
    return mixed * all_eight(_OTHER_FACTOR)


@kernel
def keys_of_others(group, positions, keys, source, source_start, first, stop, front):
    """The keys of the others `first` to `stop`, and a prefetch of the row of each in `front`.

    `source[0]` is byte `source_start` of the text.
    """
    noinline()
    # The highest bits of the hash are the row, of four words.
    mask = np.uint64(front.size - 4)
    to_row = np.uint64(63 - leading_zeros(np.uint64(front.size)))
    number = first
    while has_eight() and number + 8 <= stop:
        row = np.uint64(number)
        eight, every = all_eight(np.uint64(8)), all_eight(_NONE)
        lengths = lengths_listed(positions, group, OTHERS + row)
        lows, highs = words_listed(source, source_start, positions, group, OTHERS + row)
        lows = lows & (from_byte(lengths) ^ every)
        highs = highs & (from_byte(larger_of(lengths, eight) - eight) ^ every)
        highs = highs | rotate_eight(lengths, np.uint64(56))
        highs = chosen_above(lengths, all_eight(np.uint64(SHORT)), all_eight(LONG), highs)
        store_eight(lows, keys, row)
        store_eight(highs, keys, HIGH + row)
        places = rotate_eight(front_hashes(lows, highs), to_row) & all_eight(mask)
        store_eight(places, keys, AT + row)
        for j in range(8):
            prefetch(front, keys[AT + row + np.uint64(j)])
        number += 8
    while number < stop:
        row = np.uint64(number)
        other = group[OTHERS + row]
        high, at = LONG, np.uint64(0)
        if other < END_OF_DOCUMENT:
            i = np.uint64(other)
            start = positions[i]
            length = min(positions[i + np.uint64(1)] - start, np.int64(SHORT + 1))
            part = np.uint64(length) << np.uint64(2)
            low = load_u64(source, start - source_start) & KEY_PARTS[part]
            high = load_u64(source, start - source_start + 8) & KEY_PARTS[part + np.uint64(1)]
            high |= KEY_PARTS[part + np.uint64(3)]
            at = rotate(front_hash(low, high), to_row) & mask
            prefetch(front, at)
            keys[row] = low
        keys[HIGH + row], keys[AT + row] = high, at
        number += 1


@kernel
def look_in_front(front, keys, found, missing, n_others):
    """The ids of those of the others that are in front, to `found`.

    Returns how many of those that are not are short, and where in `missing` the long ones end.
    """
    noinline()
    n_short, n_long, two = np.uint64(0), LONG_ONES, np.uint64(2)
    number = 0
    while has_eight() and number + 8 <= n_others:
        row = np.uint64(number)
        lows, highs = pairs_listed(front, keys, AT + row, np.uint64(0))
        first_ids, last_ids = pairs_listed(front, keys, AT + row, two)
        wanted = load_eight(keys, HIGH + row)
        others = which_differ(lows, load_eight(keys, row)) | which_differ(highs, wanted)
        store_eight(first_ids, found, row)
        store_eight(without(last_ids, others), found, HIGH + row)
        short = others & which_differ(wanted, all_eight(LONG))
        store_chosen(short, row, missing, n_short)
        store_chosen(others ^ short, row, missing, n_long)
        n_short += np.uint64(popcount(short))
        n_long += np.uint64(popcount(others ^ short))
        number += 8
    while number < n_others:
        row = np.uint64(number)
        at, high = keys[AT + row], keys[HIGH + row]
        differing = (front[at] ^ keys[row]) | (front[at + np.uint64(1)] ^ high)
        is_missing, second_ids = differing != 0, front[at + np.uint64(3)]
        found[row] = front[at + two]
        # Without branches, which the processor could only guess.
        found[HIGH + row] = np.uint64(0) if is_missing else second_ids
        is_long = np.uint64(high == LONG)
        missing[n_short] = missing[n_long] = np.uint32(row)
        n_short += np.uint64(is_missing) & ~is_long
        n_long += is_long
        number += 1
    return n_short, n_long


@kernel
def take_from_front(tables, front, words, scratch, buffer, tail, tail_start, n_others):
    """The ids of those of the others that are in front, to `scratch.found`.

    Those that are not are found among the words, or merged: `scratch.keys` has their rows.
    """
    always_inline()
    group, keys, positions = scratch.group, scratch.keys, scratch.positions
    inside = n_others
    while inside > 0 and (
        positions[group[OTHERS + np.uint64(inside - 1)] & ~END_OF_DOCUMENT] >= tail_start
    ):
        inside -= 1
    keys_of_others(group, positions, keys, buffer, 0, 0, inside, front)
    keys_of_others(group, positions, keys, tail, tail_start, inside, n_others, front)
    missing = scratch.missing
    n_short, n_long = look_in_front(front, keys, scratch.found, missing, n_others)
    for number in range(n_short):
        row = np.uint64(missing[np.uint64(number)])
        bucket = row_bucket(keys[row], keys[HIGH + row], words.rows)
        prefetch(words.rows, bucket)
        prefetch(words.rows, bucket + np.uint64(8))
    n_kept = LONG_ONES
    for number in range(LONG_ONES, n_long):
        row = np.uint64(missing[np.uint64(number)])
        keys[PLACE + row] = _NONE
        if group[OTHERS + row] < END_OF_DOCUMENT:
            i = np.uint64(group[OTHERS + row])
            start, stop = positions[i], positions[i + np.uint64(1)]
            if stop - start <= LONGEST_CACHED:
                keys[row] = hash_bytes(buffer, start, stop)
                prefetch(words.long_rows, long_bucket(keys[row], words.long_rows))
                missing[n_kept] = np.uint32(row)
                n_kept += np.uint64(1)
    n_new_short, n_new_long = np.uint64(0), LONG_ONES
    for number in range(n_short):
        row = np.uint64(missing[np.uint64(number)])
        place = find_short(words, scratch, row)
        keys[PLACE + row] = np.uint64(np.int64(place))
        missing[n_new_short] = np.uint32(row)
        n_new_short += np.uint64(place < 0)
    for number in range(LONG_ONES, n_kept):
        row = np.uint64(missing[np.uint64(number)])
        place = find_long(words, scratch, buffer, row)
        keys[PLACE + row] = np.uint64(np.int64(place))
        missing[n_new_long] = np.uint32(row)
        n_new_long += np.uint64(place < 0)
    n_new_long -= LONG_ONES
    if n_new_short | n_new_long:
        merge_new(tables, words, scratch, buffer, np.int64(n_new_short), np.int64(n_new_long))


@kernel
def copy_ids(source, first, stop, ids, n_ids):
    """Append `source[first:stop]`; up to COPIED more are written. Returns the number of ids now."""
    always_inline()
    copy_16_ids(source, first, ids, n_ids)
    for done in range(COPIED, stop - first, COPIED):
        copy_16_ids(source, first + done, ids, n_ids + done)
    return n_ids + stop - first


@kernel
def emit_ids(found, group, first, copied, n_others, ids, n_ids):
    """Append the ids of pre-tokens from `copied` on, until one of the others is not in front.

    Args:
        first: the first of the others behind `copied`.

    Returns:
        (which of the others that is, or how many there are; up to which pre-token ids are
        appended, the number of ids).
    """
    noinline()
    number, n = np.uint64(first), np.uint64(n_others)
    while number < n:
        second_ids = found[HIGH + number]
        n_found = np.int64(second_ids >> np.uint64(61))
        if n_found == 0:
            break
        i = np.int64(group[OTHERS + number])
        n_ids = copy_ids(group, copied, i, ids, n_ids)
        # Always four; those past the number are overwritten by what follows.
        store_halves_of_two(found[number], second_ids, ids, n_ids)
        n_ids += n_found
        copied = i + 1
        number += np.uint64(1)
    return np.int64(number), copied, n_ids


@kernel
def close_documents(documents, document, position, ids, n_ids, n_before):
    """Close every document that ends at or before `position`, and open the next.

    `n_before` ids were written before those in `ids`.

    Returns:
        (the document that is open now, number of ids so far).
    """
    last = documents.offsets.size - 2
    before, after, continued, gaps = documents.around
    while document <= last and documents.offsets[document + 1] <= position:
        is_gap = document & gaps
        if after >= 0 and not is_gap and not (document == last and continued):
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
    """Write `ids[first : first + n]` to `narrow[to : to + n]`, up to COPIED more are written.

    Both may be the same memory, where `narrow[to]` is not behind `ids[first]`.
    """
    for done in range(0, n, COPIED):
        copy_16_ids(ids, first + done, narrow, to + done)


@kernel
def encode_pretokens(
    words,
    tables,
    scratch,
    documents,
    front,
    own,
    buffer,
    starts,
    cursor,
    ids,
    narrow,
    n_ids,
    most,
    though_full,
):
    """Encode pre-tokens until the text or `most` groups are done, or `words` are full.

    It begins where `cursor` stands.

    Args:
        words, tables, scratch, documents: see there; `own` stands for that of `words`.
        front: uint64[4 * power of two], what one thread has seen last: key, key, two ids of 32
            bits, two ids with their number in the top three bits. Modified in place.
        buffer: uint8[n_bytes or more].
        starts: uint64[n_bytes // 64 + 1 or more], where pre-tokens begin, and the end.
        cursor: int64[4]: see `take_positions`; the open document; bytes of the longest pre-token,
            0 before the first call. Modified in place.
        ids: uint32, with place for one id per byte, those around documents, and COPIED more.
        narrow: uint16, the same memory, where the ids are written as such; else uint16[0].
        n_ids: ids already written.
        most: groups after which to come back, so that signals are seen.
        though_full: go on with `words` that are full.

    Returns:
        The number of ids written so far. The text is done when `cursor[0]` is n_bytes // 64 + 1.
        It is not begun if `scratch` has no room for the longest pre-token.
    """
    positions, group = scratch.positions, scratch.group
    document = cursor[2]
    offsets, gaps = documents.offsets, documents.around[3]
    last = offsets.size - 1
    n_bytes = offsets[last]
    starts = starts[: (n_bytes >> 6) + 1]
    words = Words(words.rows, words.long_rows, words.arena, words.used, own)
    if cursor[3] == 0:
        cursor[3] = longest_pretoken(starts)
    if 4 * cursor[3] > scratch.rows.size:
        return n_ids
    tail = scratch.tail_text
    tail_start = fill_tail(buffer, n_bytes, scratch.tail)
    while most > 0 and cursor[0] < starts.size and (though_full or not is_full(words)):
        most -= 1
        n_pretokens = take_positions(starts, cursor, positions) - 1
        if n_pretokens <= 0:
            continue
        first, n_others, ahead = 0, 0, document
        while True:
            # Those of one document.
            stop = n_pretokens
            end = offsets[min(ahead + 1, last)]
            if positions[n_pretokens - 1] >= end:
                stop = first
                while positions[stop] < end:
                    stop += 1
            if not ahead & gaps:
                n_others = take_tokens(
                    tables, scratch, buffer, tail, tail_start, first, stop, n_others
                )
            if stop == n_pretokens:
                break
            group[OTHERS + np.uint64(n_others)] = END_OF_DOCUMENT | np.uint32(stop)
            n_others += 1
            first = stop
            while ahead < last and offsets[ahead + 1] <= positions[stop]:
                ahead += 1
        take_from_front(tables, front, words, scratch, buffer, tail, tail_start, n_others)
        # Narrow ids are written over those of 32 bits of the group, which begin behind all others.
        n_before = n_ids >> 1 if narrow.size else np.int64(0)
        n_ids -= n_before
        first_id = n_ids
        number, copied = 0, 0
        while True:
            number, copied, n_ids = emit_ids(
                scratch.found, group, number, copied, n_others, ids, n_ids
            )
            if number == n_others:
                break
            other = group[OTHERS + np.uint64(number)]
            i = np.int64(other & ~END_OF_DOCUMENT)
            if not document & gaps:
                n_ids = copy_ids(group, copied, i, ids, n_ids)
            copied = i
            if other >= END_OF_DOCUMENT:
                document, n_ids = close_documents(
                    documents, document, positions[i], ids, n_ids, n_before
                )
            else:
                n_ids = encode_missing(tables, front, words, scratch, buffer, number, ids, n_ids)
                copied += 1
            number += 1
        if not document & gaps:
            n_ids = copy_ids(group, copied, n_pretokens, ids, n_ids)
        if narrow.size:
            narrow_ids(ids, first_id, narrow, n_before + first_id, n_ids - first_id)
        n_ids += n_before
        publish_counts(words)
    if cursor[0] == starts.size:
        n_before = n_ids >> 1 if narrow.size else np.int64(0)
        first_id = n_ids - n_before
        document, n_ids = close_documents(documents, document, n_bytes, ids, first_id, n_before)
        if narrow.size:
            narrow_ids(ids, first_id, narrow, n_before + first_id, n_ids - first_id)
        n_ids += n_before
    cursor[2] = document
    return n_ids
