"""The structures that the encoding kernels take, and how groups of pre-tokens are read.

    Model         tables of one vocabulary (`bpe.encode.model`)
    PretokenCache encoded pre-tokens of all threads (`bpe.encode.cache_rows`)
    Work          memory of one thread: its cache, and scratch for one group of pre-tokens
    Text          bytes, spans and boundaries of pre-tokens
    Output        ids and their offsets

The state between two calls is an int64 array, of the fields NEXT_WORD and following.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.runtime.jit import kernel
from bpe.runtime.machine import add, always_inline, popcount, trailing_zeros

KEY_BYTES = 15  # of the longest pre-token that is its own key
GROUP = 1024  # pre-tokens that are handled together; with few, the passes get in the way
LONGEST_CACHED = 1024  # bytes; longer pre-tokens are hardly ever seen twice
COPIED = 16  # ids that are copied at once
END_OF_SPAN = np.uint32(1 << 31)
N_POSITIONS = GROUP + 80  # the last word of a bit set has up to 64 more, written eight at a time
MISSES = np.uint64(N_POSITIONS + COPIED)  # where in `Work.group` the list of misses begins
TAIL = 48  # bytes of `Work.tail`: a key is loaded from its last bytes of text, too
KEYS = 2 * N_POSITIONS  # for which there is room in `Work.keys`
# Where in `Work.keys` and `Work.found` the second words begin; in `Work.keys` the places in the
# thread cache, and those in the cache.
HIGH, AT, PLACE = np.uint64(KEYS), np.uint64(2 * KEYS), np.uint64(3 * KEYS)
LONG = np.uint64(0xFF << 56)  # the second word of a key that no row has
NONE = np.uint64(0xFFFFFFFFFFFFFFFF)

KEY_PARTS = np.array(
    [
        word
        for n in range(KEY_BYTES + 1)
        for word in ((1 << 8 * min(n, 8)) - 1, (1 << 8 * max(n - 8, 0)) - 1, 0, n << 56)
    ]
    + [0, 0, 0, LONG],
    np.uint64,
)
"""At 4 * n, two masks of the key of a pre-token of n bytes, then two words to set in it; at the end
those for pre-tokens that are too long for a key."""

STATE_WORDS = 7
# Fields of the state: the next word of the bit set to read; the last position read, -1 before the
# first; the open range of `Text.bounds`; bytes of the longest pre-token, 0 before the first call;
# ids written; groups after which the kernel returns, so that signals are seen; 1 to go on with a
# full cache.
NEXT_WORD, LAST_POSITION, OPEN_RANGE, LONGEST, N_IDS, GROUPS_LEFT, IGNORES_FULL = range(STATE_WORDS)


class Text(NamedTuple):
    """Text of one call, read-only."""

    buffer: NDArray[np.uint8]  # uint8[n_bytes or more]
    # int64[2 * n_spans], from 0 to n_bytes, start and end of each: range d, from bound d to the
    # next, is a span if d is even, and without ids if it is odd
    bounds: NDArray[np.int64]
    starts: NDArray[np.uint64]  # uint64[n_bytes // 64 + 1 or more], where pre-tokens begin; the end
    # int64[3]: the ids before and after each span (-1: none); 1 if the last one continues in a
    # later call
    around: NDArray[np.int64]


class Output(NamedTuple):
    """Ids of one call; every array is replaced."""

    ids: NDArray[np.uint32]  # uint32, room for one id per byte, those around spans, COPIED more
    narrow: NDArray[np.uint16]  # uint16, the same memory for ids of 16 bits; else uint16[0]
    offsets: NDArray[np.int64]  # int64[n_spans + 1], the offsets of spans in the ids


class Work(NamedTuple):
    """Memory of one thread; its content means nothing between calls, but for the first two."""

    # uint64[4 * power of two], what this thread has seen last: a row is a key of two words, two
    # ids of 32 bits, and two ids with the number of ids in the top three bits
    thread_cache: NDArray[np.uint64]
    own: NDArray[np.int64]  # int64[4], see `PretokenCache.own`
    positions: NDArray[np.int64]  # int64[N_POSITIONS]
    # uint32[MISSES + 2 * N_POSITIONS]: the id of each token; from MISSES on the numbers of misses,
    # and END_OF_SPAN with the number of the first pre-token of the next span
    group: NDArray[np.uint32]
    # uint64[4 * KEYS], for each miss: the first word of its key; from HIGH on the second, LONG for
    # the end of a span and for a long pre-token, whose hash is the first; from AT on its place in
    # the thread cache; from PLACE on, if it is not there, its place in the cache, the answer of
    # `find_row`, or NONE: it has none. For counting see `compute_keys` of
    # `bpe.train.count_pretokens`
    keys: NDArray[np.uint64]
    # uint64[2 * KEYS], the first word of ids in the thread cache; from HIGH on the second, or 0
    found: NDArray[np.uint64]
    # uint32[KEYS], the misses that are not in the thread cache; then those not in the cache either
    unseen: NDArray[np.uint32]
    new_ids: NDArray[np.uint32]  # uint32[LONGEST_CACHED + 1]
    # uint8[TAIL], the last 16 bytes of the text, or all if it has fewer, then zeros
    tail: NDArray[np.uint8]
    tail_text: NDArray[np.uint8]  # the same, read-only as text is
    # For merging, see `bpe.encode.merge`.
    symbols: NDArray[np.uint32]  # uint32[MAX_SYMBOLS]
    ranks: NDArray[np.uint32]  # uint32[MAX_SYMBOLS]
    # For pre-tokens of more than MAX_SYMBOLS symbols; n is the number of bytes of the longest.
    links: NDArray[np.uint32]  # uint32[3 * n]
    least: NDArray[np.uint64]  # uint64[n + n // 8 + 256], see `merge_by_tree`


@kernel
def span_of(work, row):
    """Return the byte offsets of the pre-token of a miss, start and end."""
    always_inline()
    i = np.uint64(work.group[MISSES + row])
    return work.positions[i], work.positions[i + np.uint64(1)]


@kernel
def fill_tail(buffer, n, tail):
    """Fill `Work.tail` with the end of `buffer[:n]`, for its keys; return where that begins.

    >>> tail = np.zeros(TAIL, np.uint8)
    >>> int(fill_tail(np.arange(20, dtype=np.uint8), 20, tail)), tail[14:18].tolist()
    (4, [18, 19, 0, 0])
    """
    start = n - 16 if n > 16 else np.int64(0)
    for j in range(tail.size):
        tail[j] = buffer[start + j] if start + j < n else 0
    return start


@kernel
def take_positions(starts, state, positions):
    """Read set bits, whole words at a time, until a group is full or the set is empty.

    >>> to = np.zeros(N_POSITIONS, np.int64)
    >>> int(take_positions(np.array([9], np.uint64), np.array([0, -1]), to)), to[:2].tolist()
    (2, [0, 3])

    Args:
        starts: uint64[n_words], bit set.
        state: int64, NEXT_WORD and LAST_POSITION are used. Modified in place.
        positions: int64[N_POSITIONS]. Set to the last position of the call before, if there is one,
            followed by the positions found.

    Returns the number of positions: one more than there are pre-tokens between them, or 0.
    """
    n, k = 0, state[NEXT_WORD]
    if state[LAST_POSITION] >= 0:
        positions[0] = state[LAST_POSITION]
        n = 1
    while k < starts.size and n <= GROUP:
        word = starts[k]
        base = np.int64(k) << 6
        following = n + popcount(word)
        # Eight at a time, even if there are fewer: the end of a loop over single bits would be
        # mispredicted, because their number differs from word to word.
        while word:
            at = np.uint64(n)
            for j in range(8):
                positions[at + np.uint64(j)] = base + trailing_zeros(word)
                word &= add(word, NONE)
            n += 8
        n = following
        k += 1
    state[NEXT_WORD] = k
    if n > 0:
        state[LAST_POSITION] = positions[n - 1]
    return n
