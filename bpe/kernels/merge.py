"""Counts -> merges, without a hash table.

Law: every step merges the pair that `reference.train` merges: the highest count, and among equals
the one that the tie-break names. Counts are 64 bits; a position is a byte of the unique pre-tokens,
of which there may be 2**31.

One row of 16 bytes per position: the symbol that begins there, the pair it begins, its word, and a
link. A symbol is as many rows as it has bytes; the first holds all of this, the last the way back.
Merging (a, b) into c makes only pairs (x, c) and (c, y), so two arrays indexed by symbol find them.
After the step that made it a pair's count only falls and its list of places is final: so the places
of all new pairs are collected in scratch, and then each pair's are laid out one after the other in
one flat array. Such lists let the loop fetch rows before it needs them; linked lists took four
times as long. A pair that is too rare or too long when its step ends can never be merged, and is
forgotten.

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

SYMBOL, PAIR, WORD, LINK = 0, 1, 2, 3
"""Columns of a row. LINK: bytes to the next symbol; in the last row of a longer symbol, minus the
bytes to its first."""

FINISHED, GROW_PAIRS, PAUSED = 0, 1, 2

N_PAIRS, N_QUEUED, N_MERGES, N_PLACES = 0, 1, 2, 3
"""Places in `MergeState.used`."""


class Words(NamedTuple):
    """The unique pre-tokens, behind 256 bytes 0, 1, ... 255; never changed."""

    text: NDArray[np.uint8]  # uint8[n_positions]
    offsets: NDArray[np.int64]  # int64[n_words + 1], positions in `text`
    counts: NDArray[np.int64]  # int64[n_words]


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

    rows: NDArray[np.int32]  # int32[4 * (n_positions + 1)]; the last is only fetched
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
def count_byte_pairs(words, counts, occurrences):
    """For every pair of bytes (a, b) at a << 8 | b: its count, and in how many places it stands.

    Args:
        words: see `Words`.
        counts: int64[65536], zeros; occurrences: int64[65536], zeros. Both modified in place.
    """
    for w in range(words.counts.size):
        for at in range(words.offsets[w], words.offsets[w + 1] - 1):
            code = np.int64(words.text[at]) << 8 | np.int64(words.text[at + 1])
            counts[code] += words.counts[w]
            occurrences[code] += 1


@kernel
def fill_rows(words, symbols, pairs, state, pair_of_code):
    """Lay out rows and places of the pairs of bytes, and queue the pairs.

    Args:
        pairs: left, right, counts and first_place are those of the first `used[N_PAIRS]` pairs;
            n_places are 0.
        pair_of_code: int32[65536], the pair of bytes (a, b) at a << 8 | b, -1 where it can never be
            merged.
    """
    rows = state.rows
    for w in range(words.counts.size):
        stop = words.offsets[w + 1]
        for at in range(words.offsets[w], stop):
            pair = np.int32(-1)
            if at + 1 < stop:
                pair = pair_of_code[np.int64(words.text[at]) << 8 | np.int64(words.text[at + 1])]
                if pair >= 0:
                    state.places[pairs.first_place[pair] + pairs.n_places[pair]] = at
                    pairs.n_places[pair] += 1
            rows[4 * at + SYMBOL] = words.text[at]
            rows[4 * at + PAIR] = pair
            rows[4 * at + WORD] = w
            rows[4 * at + LINK] = 1
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
def merge_pair(words, symbols, pairs, state, pair, symbol):
    """Merge a pair into `symbol` at all its places, from left to right.

    Returns the number of new places in scratch.
    """
    rows = state.rows
    n_positions = words.text.size
    left, right = np.int64(pairs.left[pair]), np.int64(pairs.right[pair])
    n_left, n_right = np.int64(symbols.lengths[left]), np.int64(symbols.lengths[right])
    n_both = n_left + n_right
    first = pairs.first_place[pair]
    stop = first + pairs.n_places[pair]
    n_new = 0
    for i in range(first, stop):
        if i + _AHEAD < stop:
            # From the row before the pair to the one behind it: the ends of two lines, mostly.
            far = 4 * np.int64(state.places[i + _AHEAD])
            prefetch(rows, far - 4)
            prefetch(rows, far + 4 * n_both)
            row = 4 * np.int64(state.places[i + _LINK_AHEAD]) - 4
            link = np.int64(rows[row + LINK])
            prefetch(rows, row + (0 if link > 0 else 4 * link))
            near = 4 * np.int64(state.places[i + _COUNTS_AHEAD])
            # A guess: what precedes is mostly one byte, or has its pair in the row of its first.
            link = np.int64(rows[near - 4 + LINK])
            pair_before = np.int64(rows[near - 4 + (PAIR if link > 0 else 4 * link + PAIR)])
            pair_after = np.int64(rows[near + 4 * n_left + PAIR])
            prefetch(pairs.counts, max(pair_before, 0))
            prefetch(pairs.counts, max(pair_after, 0))
            prefetch(words.counts, np.int64(rows[near + WORD]))
        at = np.int64(state.places[i])
        if rows[4 * at + PAIR] != pair:
            # One of its symbols has become part of another since: "aaa" has two places of (a, a).
            continue
        if symbols.places[symbol] < 0:
            symbols.places[symbol] = at
        word = rows[4 * at + WORD]
        count = words.counts[word]
        if rows[4 * (at - 1) + WORD] == word:
            link = np.int64(rows[4 * (at - 1) + LINK])
            before = at - 1 if link > 0 else at - 1 + link
            old = rows[4 * before + PAIR]
            if old >= 0:
                pairs.counts[old] -= count
            other = np.int64(rows[4 * before + SYMBOL])
            made = np.int64(symbols.pair_before[other])
            if made < 0:
                made = new_pair(pairs, state, other, symbol)
                symbols.pair_before[other] = made
            pairs.counts[made] += count
            rows[4 * before + PAIR] = made
            state.new_pairs[n_new] = made
            state.new_places[n_new] = before
            n_new += 1
        middle = at + n_left
        after = at + n_both
        if after < n_positions and rows[4 * after + WORD] == word:
            old = rows[4 * middle + PAIR]
            if old >= 0:
                pairs.counts[old] -= count
            other = np.int64(rows[4 * after + SYMBOL])
            made = np.int64(symbols.pair_after[other])
            if made < 0:
                made = new_pair(pairs, state, symbol, other)
                symbols.pair_after[other] = made
            pairs.counts[made] += count
            rows[4 * at + PAIR] = made
            state.new_pairs[n_new] = made
            state.new_places[n_new] = at
            n_new += 1
        else:
            rows[4 * at + PAIR] = -1
        rows[4 * middle + PAIR] = -1
        rows[4 * at + SYMBOL] = symbol
        rows[4 * at + LINK] = n_both
        rows[4 * (after - 1) + LINK] = 1 - n_both
    pairs.counts[pair] = 0
    return n_new


@kernel
def settle_new_pairs(words, symbols, pairs, state, n_new, first_pair, least, longest):
    """Lay out the places of new pairs and queue them; forget those that can never be merged.

    Args:
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
        number = -1
        if pairs.counts[pair] >= least and n_bytes <= longest:
            pairs.left[kept], pairs.right[kept] = left, right
            pairs.counts[kept] = pairs.counts[pair]
            number = kept
            kept += 1
        # Until places are laid out, this is where a pair's new number stands.
        pairs.first_place[pair] = number
    for i in range(n_new):
        if i + _AHEAD < n_new:
            prefetch(rows, 4 * np.int64(state.new_places[i + _AHEAD]))
        row = 4 * np.int64(state.new_places[i]) + PAIR
        pair = state.new_pairs[i]
        number = -1
        # A place that was part of a later merge of this step has another pair by now, or none.
        if rows[row] == pair:
            number = np.int32(pairs.first_place[pair])
            rows[row] = number
            if number >= 0:
                pairs.n_places[number] += 1
        state.new_pairs[i] = number
    for pair in range(first_pair, kept):
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
        settle_new_pairs(words, symbols, pairs, state, n_new, first_pair, least, longest)
    return FINISHED
