"""Counts -> merges, without a hash table.

Law: every step merges the pair that `reference.train` merges: the highest count, and among equals
the one that the tie-break names. Counts are 64 bits; a position is a byte of the unique pre-tokens,
of which there may be 2**31.

One row of 8 bytes per position: the symbol that begins there, with the count of its word, and the
pair that it begins. A symbol is as many rows as it has bytes; the first holds all of this, the last
the way back. Merging (a, b) into c makes only pairs (x, c) and (c, y), so two arrays indexed by
symbol find them. After the step that made it a pair's count only falls and its list of places is
final: so the places of all new pairs are collected in scratch, and then each pair's are laid out
one after the other, where the list of the pair that was merged stood as far as there is room. Such
lists let the loop fetch rows before it needs them; linked lists took four times as long. A pair
that is too rare or too long when its step ends can never be merged, and is forgotten.

The queue is a heap whose counts may be out of date, on the high side: the top is brought up to date
before it is believed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.kernels.jit import kernel
from bpe.kernels.machine import prefetch

_AHEAD = 32  # places between that whose rows are fetched and that which is merged
_LINK_AHEAD = 20  # the same where the first row of the symbol before it is, which may be far
_COUNTS_AHEAD = 8  # the same where all these rows are there, and lead to counts

HEAD, PAIR = 0, 1
"""Columns of a row.

HEAD, where a symbol begins: the symbol in the lowest `MergeState.symbol_bits` bits, above it the
count of its word, or 0 where that does not fit, and BEGINS. In the last row of a longer symbol:
minus the bytes to its first.

PAIR, where a symbol begins: the pair of it and the next, NO_PAIR where that can never be merged, or
ENDS. Elsewhere NO_PAIR.
"""

BEGINS = 1 << 30  # with it a symbol begins its word
NO_PAIR, ENDS = -1, -2

FINISHED, GROW_PAIRS, PAUSED = 0, 1, 2

N_PAIRS, N_QUEUED, N_MERGES, N_PLACES = 0, 1, 2, 3
"""Places in `MergeState.used`."""


class Words(NamedTuple):
    """The unique pre-tokens, behind 256 bytes 0, 1, ... 255; never changed."""

    text: NDArray[np.uint8]  # uint8[n_positions]
    offsets: NDArray[np.int64]  # int64[n_words + 1], positions in `text`
    counts: NDArray[np.int64]  # int64[n_words]
    # Those whose counts do not fit into a row, in order: int64[n], places in `text`, and counts.
    frequent_places: NDArray[np.int64]
    frequent_counts: NDArray[np.int64]


class Symbols(NamedTuple):
    """What is known of each symbol: bytes are 0..255, merge i makes 256 + i."""

    lengths: NDArray[np.int32]  # int32[n], bytes
    places: NDArray[np.int64]  # int64[n], a place in `Words.text` where the symbol's bytes stand
    # uint64[n], what ties are decided by, larger first: the first eight bytes, as a number (symbols
    # that have them in common are compared byte by byte), or a number that no two symbols share.
    order: NDArray[np.uint64]
    # int32[n], scratch: the pair (symbol, newest symbol), -1 outside its step
    pair_before: NDArray[np.int32]
    pair_after: NDArray[np.int32]  # int32[n], scratch: the pair (newest symbol, symbol)
    merges: NDArray[np.int32]  # int32[2 * n], the parts of merge i at 2 * i and 2 * i + 1


class Pairs(NamedTuple):
    """What is known of each pair. Grown by the wrapper."""

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    counts: NDArray[np.int64]
    first_place: NDArray[np.int64]  # where its places begin in `MergeState.places`
    n_places: NDArray[np.int32]
    # the heap: a pair, and in queue_counts its count when it was put there
    queue: NDArray[np.int32]
    queue_counts: NDArray[np.int64]


class MergeState(NamedTuple):
    """The rest; modified in place."""

    rows: NDArray[np.int32]  # int32[2 * (n_positions + 1)]; the last is only fetched
    symbol_bits: NDArray[np.int64]  # int64[1], those of a row's HEAD, at most 30; never changed
    places: NDArray[np.int32]  # int32[3 * n_positions], of which only what is used becomes resident
    new_pairs: NDArray[np.int32]  # int32, scratch: for each new place its pair,
    new_places: NDArray[np.int32]  # int32, and the place
    used: NDArray[np.int64]  # int64[4]


@kernel
def first_of_equals(words, symbols, pairs, p, q):
    """Whether pair p comes before pair q of the same count: greater parts come first.

    Parts are compared by `symbols.order`, and where that is equal by their bytes.
    """
    for side in range(2):
        a = np.int64(pairs.left[p]) if side == 0 else np.int64(pairs.right[p])
        b = np.int64(pairs.left[q]) if side == 0 else np.int64(pairs.right[q])
        if a == b:
            continue
        if symbols.order[a] != symbols.order[b]:
            return symbols.order[a] > symbols.order[b]
        n_a, n_b = np.int64(symbols.lengths[a]), np.int64(symbols.lengths[b])
        i, j = symbols.places[a], symbols.places[b]
        for k in range(min(n_a, n_b)):
            if words.text[i + k] != words.text[j + k]:
                return words.text[i + k] > words.text[j + k]
        if n_a != n_b:
            return n_a > n_b
    return False


@kernel
def sift_down(words, symbols, pairs, at, size):
    """Restore the heap after the entry at `at` has become smaller."""
    queue, counts = pairs.queue, pairs.queue_counts
    pair, count = queue[at], counts[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and (
            counts[child + 1] > counts[child]
            or (
                counts[child + 1] == counts[child]
                and first_of_equals(words, symbols, pairs, queue[child + 1], queue[child])
            )
        ):
            child += 1
        if count > counts[child] or (
            count == counts[child] and first_of_equals(words, symbols, pairs, pair, queue[child])
        ):
            break
        queue[at], counts[at] = queue[child], counts[child]
        at = child
    queue[at], counts[at] = pair, count


@kernel
def sift_up(words, symbols, pairs, at):
    """Restore the heap after the entry at `at` was put at its end."""
    queue, counts = pairs.queue, pairs.queue_counts
    pair, count = queue[at], counts[at]
    while at > 0:
        parent = (at - 1) >> 1
        if counts[parent] > count or (
            counts[parent] == count
            and not first_of_equals(words, symbols, pairs, pair, queue[parent])
        ):
            break
        queue[at], counts[at] = queue[parent], counts[parent]
        at = parent
    queue[at], counts[at] = pair, count


@kernel
def count_byte_pairs(words, first, stop, counts, occurrences):
    """For every pair of bytes (a, b) at a << 8 | b: its count, and in how many places it stands.

    Args:
        words: see `Words`; only the words `first` to `stop` are looked at.
        counts: int64[65536], zeros; occurrences: int64[65536], zeros. Both modified in place.
    """
    for w in range(first, stop):
        for at in range(words.offsets[w], words.offsets[w + 1] - 1):
            code = np.int64(words.text[at]) << 8 | np.int64(words.text[at + 1])
            counts[code] += words.counts[w]
            occurrences[code] += 1


@kernel
def words_of_counts(words, longest, of_count):
    """How many pre-tokens of two to `longest` bytes have each count.

    Args:
        of_count: int64[n], zeros; at its end those of n - 1 or more. Modified in place.
    """
    for w in range(words.counts.size):
        if 2 <= words.offsets[w + 1] - words.offsets[w] <= longest:
            of_count[min(words.counts[w], np.int64(of_count.size - 1))] += 1


@kernel
def fill_rows(words, first, stop, state, pair_of_code, next_places):
    """Lay out the rows of the words `first` to `stop`, and the places of pairs of bytes in them.

    Args:
        pair_of_code: int32[65536], the pair of bytes (a, b) at a << 8 | b, NO_PAIR where it can
            never be merged.
        next_places: int64[n_pairs], where in `state.places` those of each pair begin; moved on.
    """
    rows, symbol_bits = state.rows, state.symbol_bits[0]
    for w in range(first, stop):
        begin, end = words.offsets[w], words.offsets[w + 1]
        count = words.counts[w]
        if count >= BEGINS >> symbol_bits:
            count = np.int64(0)
        head = count << symbol_bits
        for at in range(begin, end):
            pair = np.int32(ENDS)
            if at + 1 < end:
                pair = pair_of_code[np.int64(words.text[at]) << 8 | np.int64(words.text[at + 1])]
                if pair >= 0:
                    state.places[next_places[pair]] = at
                    next_places[pair] += 1
            rows[2 * at + HEAD] = head | np.int64(words.text[at])
            rows[2 * at + PAIR] = pair
        rows[2 * begin + HEAD] |= BEGINS


@kernel
def queue_pairs(words, symbols, pairs, state):
    """Queue all pairs, when nothing is queued."""
    for pair in range(state.used[N_PAIRS]):
        pairs.queue[pair] = pair
        pairs.queue_counts[pair] = pairs.counts[pair]
        sift_up(words, symbols, pairs, pair)
    state.used[N_QUEUED] = state.used[N_PAIRS]


@kernel
def new_pair(pairs, state, left, right):
    """A pair that nothing is known of yet."""
    pair = state.used[N_PAIRS]
    pairs.left[pair] = left
    pairs.right[pair] = right
    pairs.counts[pair] = 0
    pairs.n_places[pair] = 0
    state.used[N_PAIRS] = pair + 1
    return pair


@kernel
def count_of_frequent(words, at):
    """The count of the word around a place in `Words.text`, which is one of the frequent ones."""
    first, stop = 0, words.frequent_places.size
    while stop - first > 1:
        middle = (first + stop) >> 1
        if words.frequent_places[middle] <= at:
            first = middle
        else:
            stop = middle
    return words.frequent_counts[first]


@kernel
def merge_pair(words, symbols, pairs, state, pair, symbol):
    """Merge a pair into `symbol` at all its places, from left to right.

    Returns the number of new places in scratch.
    """
    rows, symbol_bits = state.rows, state.symbol_bits[0]
    symbol_of = np.int64((1 << symbol_bits) - 1)
    left, right = np.int64(pairs.left[pair]), np.int64(pairs.right[pair])
    n_left, n_right = np.int64(symbols.lengths[left]), np.int64(symbols.lengths[right])
    n_both = n_left + n_right
    first = pairs.first_place[pair]
    stop = first + pairs.n_places[pair]
    n_new = 0
    for i in range(first, stop):
        if i + _AHEAD < stop:
            # From the row before the pair to the one behind it: the ends of two lines, at times.
            far = 2 * np.int64(state.places[i + _AHEAD])
            prefetch(rows, far - 2)
            prefetch(rows, far + 2 * n_both)
            row = 2 * np.int64(state.places[i + _LINK_AHEAD]) - 2
            link = np.int64(rows[row + HEAD])
            prefetch(rows, row + 2 * min(link, 0))
            near = 2 * np.int64(state.places[i + _COUNTS_AHEAD])
            # Guesses: they may be of another word, or of symbols that are merged by then.
            link = np.int64(rows[near - 2 + HEAD])
            pair_before = np.int64(rows[near - 2 + 2 * min(link, 0) + PAIR])
            pair_after = np.int64(rows[near + 2 * n_left + PAIR])
            prefetch(pairs.counts, max(pair_before, 0))
            prefetch(pairs.counts, max(pair_after, 0))
        at = np.int64(state.places[i])
        if rows[2 * at + PAIR] != pair:
            # One of its symbols has become part of another since: "aaa" has two places of (a, a).
            continue
        if symbols.places[symbol] < 0:
            symbols.places[symbol] = at
        head = np.int64(rows[2 * at + HEAD])
        count = (head & (BEGINS - 1)) >> symbol_bits
        if count == 0:
            count = count_of_frequent(words, at)
        if head < BEGINS:
            link = np.int64(rows[2 * (at - 1) + HEAD])
            before = at - 1 + min(link, 0)
            old = rows[2 * before + PAIR]
            if old >= 0:
                pairs.counts[old] -= count
            other = np.int64(rows[2 * before + HEAD]) & symbol_of
            made = np.int64(symbols.pair_before[other])
            if made < 0:
                made = new_pair(pairs, state, other, symbol)
                symbols.pair_before[other] = made
            pairs.counts[made] += count
            rows[2 * before + PAIR] = made
            state.new_pairs[n_new] = made
            state.new_places[n_new] = before
            n_new += 1
        middle = at + n_left
        after = at + n_both
        old = rows[2 * middle + PAIR]
        if old != ENDS:
            if old >= 0:
                pairs.counts[old] -= count
            other = np.int64(rows[2 * after + HEAD]) & symbol_of
            made = np.int64(symbols.pair_after[other])
            if made < 0:
                made = new_pair(pairs, state, symbol, other)
                symbols.pair_after[other] = made
            pairs.counts[made] += count
            rows[2 * at + PAIR] = made
            state.new_pairs[n_new] = made
            state.new_places[n_new] = at
            n_new += 1
        else:
            rows[2 * at + PAIR] = ENDS
        rows[2 * middle + PAIR] = NO_PAIR
        rows[2 * at + HEAD] = head - left + symbol
        rows[2 * (after - 1) + HEAD] = 1 - n_both
    pairs.counts[pair] = 0
    return n_new


@kernel
def settle_new_pairs(words, symbols, pairs, state, merged, n_new, first_pair, least, longest):
    """Lay out the places of new pairs and queue them; forget those that can never be merged.

    Args:
        merged: the pair that was merged in this step; its places are no longer needed.
        n_new: places in scratch.
        first_pair: the first pair that was made in this step.
        least: a pair of a smaller count is never merged.
        longest: nor is one of more bytes.
    """
    rows = state.rows
    kept = first_pair
    for pair in range(first_pair, state.used[N_PAIRS]):
        left, right = np.int64(pairs.left[pair]), np.int64(pairs.right[pair])
        symbols.pair_before[left] = -1
        symbols.pair_after[right] = -1
        n_bytes = np.int64(symbols.lengths[left]) + np.int64(symbols.lengths[right])
        number = NO_PAIR
        if pairs.counts[pair] >= least and n_bytes <= longest:
            pairs.left[kept], pairs.right[kept] = left, right
            pairs.counts[kept] = pairs.counts[pair]
            number = kept
            kept += 1
        # Until places are laid out, this is where a pair's new number stands.
        pairs.first_place[pair] = number
    for i in range(n_new):
        if i + _AHEAD < n_new:
            prefetch(rows, 2 * np.int64(state.new_places[i + _AHEAD]))
        row = 2 * np.int64(state.new_places[i]) + PAIR
        pair = state.new_pairs[i]
        number = NO_PAIR
        # A place that was part of a later merge of this step has another pair by now, or none.
        if rows[row] == pair:
            number = np.int32(pairs.first_place[pair])
            rows[row] = number
            if number >= 0:
                pairs.n_places[number] += 1
        state.new_pairs[i] = number
    free = pairs.first_place[merged]
    stop = free + pairs.n_places[merged]
    for pair in range(first_pair, kept):
        if free + pairs.n_places[pair] <= stop:
            pairs.first_place[pair] = free
            free += pairs.n_places[pair]
        else:
            pairs.first_place[pair] = state.used[N_PLACES]
            state.used[N_PLACES] += pairs.n_places[pair]
        pairs.n_places[pair] = 0
    for i in range(n_new):
        pair = state.new_pairs[i]
        if pair >= 0:
            state.places[pairs.first_place[pair] + pairs.n_places[pair]] = state.new_places[i]
            pairs.n_places[pair] += 1
    state.used[N_PAIRS] = kept
    for pair in range(first_pair, kept):
        at = state.used[N_QUEUED]
        pairs.queue[at] = pair
        pairs.queue_counts[at] = pairs.counts[pair]
        state.used[N_QUEUED] = at + 1
        sift_up(words, symbols, pairs, at)


@kernel
def merge_steps(words, symbols, pairs, state, by_bytes, least, longest, n_wanted, most_places):
    """Make merges until there are enough or none is left, or it is time to come back.

    Args:
        words, symbols, pairs, state: see there.
        by_bytes: `symbols.order` holds first bytes, to be filled in for every new symbol; otherwise
            it is complete.
        least: a pair of a smaller count is not merged; 1 or more.
        longest: nor is one of more bytes.
        n_wanted: merges in all.
        most_places: come back after about so many places, so that signals are seen.

    Returns:
        FINISHED, GROW_PAIRS or PAUSED; `state.used[N_MERGES]` merges stand in `symbols.merges`.
    """
    while state.used[N_MERGES] < n_wanted and state.used[N_QUEUED] > 0:
        pair = np.int64(pairs.queue[0])
        count = pairs.counts[pair]
        if count < least:
            # It can only fall further.
            size = state.used[N_QUEUED] - 1
            pairs.queue[0], pairs.queue_counts[0] = pairs.queue[size], pairs.queue_counts[size]
            state.used[N_QUEUED] = size
            if size > 0:
                sift_down(words, symbols, pairs, 0, size)
            continue
        if count < pairs.queue_counts[0]:
            pairs.queue_counts[0] = count
            sift_down(words, symbols, pairs, 0, state.used[N_QUEUED])
            continue
        n_merges = state.used[N_MERGES]
        n_places = np.int64(pairs.n_places[pair])
        # Each place makes at most two new pairs, and so does each symbol.
        n_new = min(2 * n_places, 2 * (256 + n_merges + 1))
        if state.used[N_PAIRS] + n_new > pairs.left.size:
            return GROW_PAIRS
        if most_places <= 0:
            return PAUSED
        most_places -= n_places + 100
        size = state.used[N_QUEUED] - 1
        pairs.queue[0], pairs.queue_counts[0] = pairs.queue[size], pairs.queue_counts[size]
        state.used[N_QUEUED] = size
        if size > 0:
            sift_down(words, symbols, pairs, 0, size)
        symbol = 256 + n_merges
        left, right = np.int64(pairs.left[pair]), np.int64(pairs.right[pair])
        symbols.merges[2 * n_merges] = left
        symbols.merges[2 * n_merges + 1] = right
        symbols.lengths[symbol] = symbols.lengths[left] + symbols.lengths[right]
        first_pair = state.used[N_PAIRS]
        n_new = merge_pair(words, symbols, pairs, state, pair, symbol)
        if by_bytes:
            order = np.uint64(0)
            for i in range(8):
                order <<= np.uint64(8)
                if i < symbols.lengths[symbol]:
                    order |= np.uint64(words.text[symbols.places[symbol] + i])
            symbols.order[symbol] = order
        state.used[N_MERGES] = n_merges + 1
        settle_new_pairs(words, symbols, pairs, state, pair, n_new, first_pair, least, longest)
    return FINISHED
