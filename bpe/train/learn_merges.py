"""Counts -> merges, without a hash table.

Every step merges the pair that `reference.train` merges: the highest count, ties by the tie-break.
Counts are 64 bits; a position is a byte of the unique pre-tokens, or a token of a tokenizer that is
extended, fewer than 2**31.

There is a row of 8 bytes per position: the symbol that begins there, with the count of its word,
and the pair that it begins. A symbol has as many rows as positions; the first has all of this, the
last the way back. Merging (a, b) into c makes only pairs (x, c) and (c, y), so two arrays indexed
by symbol find them. After the step that made it a pair's count only falls and its places are final:
those of new pairs are collected in scratch, then laid out contiguously, first in the space of the
merged pair's, so that rows can be prefetched (linked lists took four times as long). A pair that is
too rare or too long when its step ends is dropped. Counts in the heap may be too high: the top is
refreshed before it is used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.runtime.jit import kernel
from bpe.runtime.machine import always_inline, prefetch

# Prefetch distances, in places: of a place's rows, of the first row of the symbol before it, which
# may be far, and of the counts that these rows lead to.
_AHEAD, _LINK_AHEAD, _COUNTS_AHEAD = 32, 20, 8

HEAD, PAIR = 0, 1
"""Columns of a row.

HEAD, where a symbol begins: the symbol in the lowest SYMBOL_BITS bits, above it the
count of its word, or 0 where that does not fit, and BEGINS. In the last row of a longer symbol:
minus the positions to its first.

PAIR, where a symbol begins: the pair of it and the next, NO_PAIR where that can never be merged, or
ENDS. Elsewhere NO_PAIR.
"""

BEGINS = 1 << 30  # flag: the symbol is the first of its word
NO_PAIR, ENDS = -1, -2
FINISHED, GROW_PAIRS, PAUSED = 0, 1, 2

# Indices of `MergeState.used`; N_NEW: new places of the pair that was merged last.
N_PAIRS, N_QUEUED, N_MERGES, N_PLACES, N_NEW = 0, 1, 2, 3, 4
# Indices of `MergeState.settings`: see HEAD, at most 30; minimum count of a pair, 1 or more; most
# bytes of a symbol; total number of merges; 1 if `Symbols.order` holds first bytes, which are
# filled in for every new symbol, else it is complete; number of symbols before the first merge.
SYMBOL_BITS, LEAST, LONGEST, N_WANTED, BY_BYTES, N_FIRST = 0, 1, 2, 3, 4, 5


class Pretokens(NamedTuple):
    """The unique pre-tokens, after the bytes of the first symbols; never changed."""

    text: NDArray[np.uint8]  # uint8[n_bytes]
    offsets: NDArray[np.int64]  # int64[n_pretokens + 1], positions
    counts: NDArray[np.int64]  # int64[n_pretokens]
    # Those whose counts do not fit into a row, in order: int64[n], positions, and counts.
    frequent_places: NDArray[np.int64]
    frequent_counts: NDArray[np.int64]
    starts: NDArray[np.uint32]  # uint32[n_positions], in `text`; none if position i is byte i of it


class Symbols(NamedTuple):
    """Properties of each symbol: bytes, or ids that are extended; merge i makes N_FIRST + i."""

    lengths: NDArray[np.int32]  # int32[n], positions
    n_bytes: NDArray[np.int32]  # int32[n], bytes; perhaps the same array
    places: NDArray[np.int64]  # int64[n], where its bytes are in `Pretokens.text`
    # uint64[n], the key of ties, larger first: the first eight bytes, big-endian (symbols with
    # equal keys are compared byte by byte), or a number of its own.
    order: NDArray[np.uint64]
    pair_before: NDArray[np.int32]  # int32[n], scratch: the pair (symbol, newest symbol), or -1
    pair_after: NDArray[np.int32]  # int32[n], scratch: the pair (newest symbol, symbol), or -1
    merges: NDArray[np.int32]  # int32[2 * n], the parts of merge i at 2 * i and 2 * i + 1


class Pairs(NamedTuple):
    """Properties of each pair. Grown by the wrapper."""

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    counts: NDArray[np.int64]
    first_place: NDArray[np.int64]  # offset of its places in `MergeState.places`
    n_places: NDArray[np.int32]
    queue: NDArray[np.int32]  # the heap: pairs,
    queue_counts: NDArray[np.int64]  # and their counts when they were queued


class MergeState(NamedTuple):
    """The state of merging; modified in place."""

    rows: NDArray[np.int32]  # int32[2 * (n_positions + 1)]; the last is only prefetched
    settings: NDArray[np.int64]  # int64[6], never changed
    places: NDArray[np.int32]  # int32[3 * n_positions], of which only what is used is resident
    new_pairs: NDArray[np.int32]  # int32, scratch: the pairs
    new_places: NDArray[np.int32]  # int32, and positions of new places
    used: NDArray[np.int64]  # int64[5]


@kernel
def tie_precedes(pretokens, symbols, pairs, p, q):
    """Return True if p precedes q of the same count, greater parts first: (b, a), (a, z) -> True.

    Parts are compared by `symbols.order`, then by their bytes: (b, a) precedes (a, z).
    """
    for side in range(2):
        a = np.int64(pairs.left[p]) if side == 0 else np.int64(pairs.right[p])
        b = np.int64(pairs.left[q]) if side == 0 else np.int64(pairs.right[q])
        if a == b:
            continue
        if symbols.order[a] != symbols.order[b]:
            return symbols.order[a] > symbols.order[b]
        n_a, n_b = np.int64(symbols.n_bytes[a]), np.int64(symbols.n_bytes[b])
        i, j = symbols.places[a], symbols.places[b]
        for k in range(min(n_a, n_b)):
            if pretokens.text[i + k] != pretokens.text[j + k]:
                return pretokens.text[i + k] > pretokens.text[j + k]
        if n_a != n_b:
            return n_a > n_b
    return False


@kernel
def precedes(pretokens, symbols, pairs, p, q):
    """Return True if p is queued before q, both (pair, count): a higher count, or the tie."""
    always_inline()
    if p[1] != q[1]:
        return p[1] > q[1]
    return tie_precedes(pretokens, symbols, pairs, p[0], q[0])


@kernel
def sift_down(pretokens, symbols, pairs, size):
    """Restore the heap of `size` entries, not empty, after its top was lowered: 1 5 3 -> 5 1 3."""
    queue, counts = pairs.queue, pairs.queue_counts
    at, pair, count = 0, queue[0], counts[0]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and precedes(
            pretokens, symbols, pairs, (queue[other], counts[other]), (queue[child], counts[child])
        ):
            child = other
        if precedes(pretokens, symbols, pairs, (pair, count), (queue[child], counts[child])):
            break
        queue[at], counts[at] = queue[child], counts[child]
        at = child
    queue[at], counts[at] = pair, count


@kernel
def drop_top(pretokens, symbols, pairs, state):
    """Remove the top of the heap: counts 5 3 1 -> 3 1."""
    size = state.used[N_QUEUED] - 1
    pairs.queue[0], pairs.queue_counts[0] = pairs.queue[size], pairs.queue_counts[size]
    state.used[N_QUEUED] = size
    if size > 0:
        sift_down(pretokens, symbols, pairs, size)


@kernel
def sift_up(pretokens, symbols, pairs, at):
    """Restore the heap after an entry was appended at `at`: counts 5 3 9 -> 9 3 5."""
    queue, counts = pairs.queue, pairs.queue_counts
    pair, count = queue[at], counts[at]
    while at > 0:
        parent = (at - 1) >> 1
        other = queue[parent], counts[parent]
        if not precedes(pretokens, symbols, pairs, (pair, count), other):
            break
        queue[at], counts[at] = queue[parent], counts[parent]
        at = parent
    queue[at], counts[at] = pair, count


@kernel
def count_byte_pairs(pretokens, first, stop, counts, occurrences):
    """Count every pair of bytes (a, b) of the pre-tokens [first, stop).

    `counts` and `occurrences` are int64[65536], zeros, modified in place: at a << 8 | b the count
    of the pair and its number of places.
    >>> pretokens = Pretokens(np.frombuffer(b"aaa", np.uint8), [0, 3], [5], None, None, None)
    >>> counts, occurrences = np.zeros((2, 65536), np.int64)
    >>> count_byte_pairs(pretokens, 0, 1, counts, occurrences)
    >>> int(counts[0x6161]), int(occurrences[0x6161])
    (10, 2)
    """
    for w in range(first, stop):
        for at in range(pretokens.offsets[w], pretokens.offsets[w + 1] - 1):
            code = np.int64(pretokens.text[at]) << 8 | np.int64(pretokens.text[at + 1])
            counts[code] += pretokens.counts[w]
            occurrences[code] += 1


@kernel
def fill_rows(pretokens, first, stop, state, pair_of_code, next_places):
    """Lay out the rows of the pre-tokens [first, stop), and the places of pairs of bytes in them.

    Example: ab, count 3, 8 symbol bits -> BEGINS | 3 << 8 | 97, pair (a, b); 3 << 8 | 98, ENDS.

    Args:
        pair_of_code: int32[65536], the pair of bytes (a, b) at a << 8 | b, NO_PAIR where it can
            never be merged.
        next_places: int64[n_pairs], index of each pair's next place in `state.places`; advanced.
    """
    rows, symbol_bits = state.rows, state.settings[SYMBOL_BITS]
    for w in range(first, stop):
        begin, end = pretokens.offsets[w], pretokens.offsets[w + 1]
        count = pretokens.counts[w]
        if count >= BEGINS >> symbol_bits:
            count = np.int64(0)
        head = count << symbol_bits
        for at in range(begin, end):
            pair = np.int32(ENDS)
            if at + 1 < end:
                second = np.int64(pretokens.text[at + 1])
                pair = pair_of_code[np.int64(pretokens.text[at]) << 8 | second]
                if pair >= 0:
                    state.places[next_places[pair]] = at
                    next_places[pair] += 1
            rows[2 * at + HEAD] = head | np.int64(pretokens.text[at])
            rows[2 * at + PAIR] = pair
        rows[2 * begin + HEAD] |= BEGINS


@kernel
def queue_pairs(pretokens, symbols, pairs, state, first):
    """Add the pairs from `first` on to the heap: counts 3, 7 -> 7 is the top."""
    for pair in range(first, state.used[N_PAIRS]):
        at = state.used[N_QUEUED]
        pairs.queue[at], pairs.queue_counts[at] = pair, pairs.counts[pair]
        state.used[N_QUEUED] = at + 1
        sift_up(pretokens, symbols, pairs, at)


@kernel
def new_pair(pairs, state, left, right):
    """Add the pair (left, right) of count 0 and return its number: 4 pairs so far -> 4."""
    pair = state.used[N_PAIRS]
    pairs.left[pair], pairs.right[pair] = left, right
    pairs.counts[pair] = pairs.n_places[pair] = 0
    state.used[N_PAIRS] = pair + 1
    return pair


@kernel
def count_of_frequent(pretokens, at):
    """Return the count of the frequent word at a position: places 0 5, counts 8 9, 7 -> 9."""
    first, stop = 0, pretokens.frequent_places.size
    while stop - first > 1:
        middle = (first + stop) >> 1
        if pretokens.frequent_places[middle] <= at:
            first = middle
        else:
            stop = middle
    return pretokens.frequent_counts[first]


@kernel
def merge_pair(pretokens, symbols, pairs, state, pair, symbol):
    """Merge a pair at all its places, left to right; N_NEW new places are then in scratch."""
    rows, symbol_bits = state.rows, state.settings[SYMBOL_BITS]
    symbol_of = np.int64((1 << symbol_bits) - 1)
    left, right = np.int64(pairs.left[pair]), np.int64(pairs.right[pair])
    n_left, n_right = np.int64(symbols.lengths[left]), np.int64(symbols.lengths[right])
    n_both = n_left + n_right
    first = pairs.first_place[pair]
    stop = first + pairs.n_places[pair]
    n_new = 0
    for i in range(first, stop):
        if i + _AHEAD < stop:
            # The rows before and after the pair may lie in two cache lines.
            far = 2 * np.int64(state.places[i + _AHEAD])
            prefetch(rows, far - 2)
            prefetch(rows, far + 2 * n_both)
            row = 2 * np.int64(state.places[i + _LINK_AHEAD]) - 2
            link = np.int64(rows[row + HEAD])
            prefetch(rows, row + 2 * min(link, 0))
            near = 2 * np.int64(state.places[i + _COUNTS_AHEAD])
            # Guesses: the pairs may be of another word, or of symbols that are merged by then.
            link = np.int64(rows[near - 2 + HEAD])
            pair_before = np.int64(rows[near - 2 + 2 * min(link, 0) + PAIR])
            pair_after = np.int64(rows[near + 2 * n_left + PAIR])
            prefetch(pairs.counts, max(pair_before, 0))
            prefetch(pairs.counts, max(pair_after, 0))
        at = np.int64(state.places[i])
        if rows[2 * at + PAIR] != pair:
            # A symbol of it was merged since: "aaa" has two places of (a, a).
            continue
        if symbols.places[symbol] < 0:
            starts = pretokens.starts
            symbols.places[symbol] = np.int64(starts[at]) if starts.size else at
        head = np.int64(rows[2 * at + HEAD])
        count = (head & (BEGINS - 1)) >> symbol_bits
        if count == 0:
            count = count_of_frequent(pretokens, at)
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
            state.new_pairs[n_new], state.new_places[n_new] = made, before
            n_new += 1
        middle, after = at + n_left, at + n_both
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
            state.new_pairs[n_new], state.new_places[n_new] = made, at
            n_new += 1
        else:
            rows[2 * at + PAIR] = ENDS
        rows[2 * middle + PAIR] = NO_PAIR
        rows[2 * at + HEAD] = head - left + symbol
        rows[2 * (after - 1) + HEAD] = 1 - n_both
    pairs.counts[pair] = 0
    state.used[N_NEW] = n_new


@kernel
def commit_new_pairs(pretokens, symbols, pairs, state, merged, first_pair):
    """Lay out the places of the pairs from `first_pair` on, and queue them.

    Pairs that are too rare or too long can never be merged, and are dropped. The places of `merged`
    are reused.
    """
    rows, n_new = state.rows, state.used[N_NEW]
    least, longest = state.settings[LEAST], state.settings[LONGEST]
    kept = first_pair
    for pair in range(first_pair, state.used[N_PAIRS]):
        left, right = np.int64(pairs.left[pair]), np.int64(pairs.right[pair])
        symbols.pair_before[left] = -1
        symbols.pair_after[right] = -1
        n_bytes = np.int64(symbols.n_bytes[left]) + np.int64(symbols.n_bytes[right])
        number = NO_PAIR
        if pairs.counts[pair] >= least and n_bytes <= longest:
            pairs.left[kept], pairs.right[kept] = left, right
            pairs.counts[kept] = pairs.counts[pair]
            number = kept
            kept += 1
        # Until places are laid out, this holds the pair's new number.
        pairs.first_place[pair] = number
    for i in range(n_new):
        if i + _AHEAD < n_new:
            prefetch(rows, 2 * np.int64(state.new_places[i + _AHEAD]))
        row = 2 * np.int64(state.new_places[i]) + PAIR
        pair = state.new_pairs[i]
        number = NO_PAIR
        # A later merge of this step may have replaced the pair.
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
    queue_pairs(pretokens, symbols, pairs, state, first_pair)


@kernel
def merge_steps(pretokens, symbols, pairs, state, most_places):
    """Merge until N_WANTED merges are made, no pair is left, or it is time to pause.

    `most_places`: pause after about so many places, so that signals are seen.

    Returns:
        FINISHED, GROW_PAIRS or PAUSED; `state.used[N_MERGES]` merges are in `symbols.merges`.
    """
    least, n_wanted = state.settings[LEAST], state.settings[N_WANTED]
    n_first = state.settings[N_FIRST]
    while state.used[N_MERGES] < n_wanted and state.used[N_QUEUED] > 0:
        pair = np.int64(pairs.queue[0])
        count = pairs.counts[pair]
        if count < least:
            # It can only fall further.
            drop_top(pretokens, symbols, pairs, state)
            continue
        if count < pairs.queue_counts[0]:
            pairs.queue_counts[0] = count
            sift_down(pretokens, symbols, pairs, state.used[N_QUEUED])
            continue
        n_merges = state.used[N_MERGES]
        n_places = np.int64(pairs.n_places[pair])
        # Each place makes at most two new pairs, and so does each symbol.
        n_new = min(2 * n_places, 2 * (n_first + n_merges + 1))
        if state.used[N_PAIRS] + n_new > pairs.left.size:
            return GROW_PAIRS
        if most_places <= 0:
            return PAUSED
        most_places -= n_places + 100
        drop_top(pretokens, symbols, pairs, state)
        symbol = n_first + n_merges
        left, right = np.int64(pairs.left[pair]), np.int64(pairs.right[pair])
        symbols.merges[2 * n_merges], symbols.merges[2 * n_merges + 1] = left, right
        length = symbols.lengths[left] + symbols.lengths[right]
        symbols.n_bytes[symbol] = symbols.n_bytes[left] + symbols.n_bytes[right]
        symbols.lengths[symbol] = length
        first_pair = state.used[N_PAIRS]
        merge_pair(pretokens, symbols, pairs, state, pair, symbol)
        if state.settings[BY_BYTES]:
            order = np.uint64(0)
            for i in range(8):
                order <<= np.uint64(8)
                if i < symbols.n_bytes[symbol]:
                    order |= np.uint64(pretokens.text[symbols.places[symbol] + i])
            symbols.order[symbol] = order
        state.used[N_MERGES] = n_merges + 1
        commit_new_pairs(pretokens, symbols, pairs, state, pair, first_pair)
    return FINISHED
