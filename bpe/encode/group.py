"""Memory for one group of pre-tokens, their positions, and what their keys are made of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.runtime.jit import kernel
from bpe.runtime.machine import add, always_inline, popcount, trailing_zeros

SHORT = 15  # bytes of the longest pre-token that is its own key
GROUP = 1024  # pre-tokens that are handled together; with few, the passes get in the way
LONGEST_CACHED = 1024  # bytes; longer pre-tokens are hardly ever seen twice
COPIED = 16  # ids that are copied at once
END_OF_DOCUMENT = np.uint32(1 << 31)
MISSES = np.uint64(GROUP + 80 + COPIED)  # where in `Scratch.group` the list of misses begins
TAIL = 48  # bytes of `Scratch.tail`: a key is loaded from its last bytes of text, too
KEYS = 2 * (GROUP + 80)  # for which there is room in `Scratch.keys`
# Where in `Scratch.keys` and `Scratch.found` the second words begin; in `Scratch.keys` the places
# in the thread cache, and those in the cache.
HIGH, AT, PLACE = np.uint64(KEYS), np.uint64(2 * KEYS), np.uint64(3 * KEYS)
LONG = np.uint64(0xFF << 56)  # the second word of a key that no row has
NONE = np.uint64(0xFFFFFFFFFFFFFFFF)

KEY_PARTS = np.array(
    [
        word
        for n in range(SHORT + 1)
        for word in ((1 << 8 * min(n, 8)) - 1, (1 << 8 * max(n - 8, 0)) - 1, 0, n << 56)
    ]
    + [0, 0, 0, LONG],
    np.uint64,
)
"""At 4 * n, two masks of the key of a pre-token of n bytes, then two words to set in it; at the end
those for pre-tokens that are too long for a key."""


class Scratch(NamedTuple):
    """Memory for one group; its content means nothing between calls.

    From `symbols` on it is that of `bpe.encode.apply_merges`.
    """

    positions: NDArray[np.int64]  # int64[GROUP + 80]
    # uint32[MISSES + 2 * (GROUP + 80)]: the id of each token; from MISSES on the numbers of misses,
    # and END_OF_DOCUMENT with the number of the first pre-token of the next document
    group: NDArray[np.uint32]
    # uint64[4 * KEYS], for each miss: the first word of its key; from HIGH on the second, LONG for
    # the end of a document and for a long pre-token, whose hash is the first; from AT on its place
    # in the thread cache; from PLACE on, if it is not there, its place in the cache, the answer of
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
    symbols: NDArray[np.uint32]  # uint32[MAX_SHORT]
    packed: NDArray[np.uint32]  # uint32[MAX_SHORT], see `pack`
    # For those of more than MAX_SHORT bytes; n is the number of bytes of the longest.
    rows: NDArray[np.uint32]  # uint32[4 * n], see _SYMBOL
    heap: NDArray[np.uint64]  # uint64[2 * n + 3], the root at _ROOT


@kernel
def span_of(scratch, row):
    """Return the byte offsets of a miss, start and end: positions 0 3 7, pre-token 1 -> 3, 7."""
    always_inline()
    i = np.uint64(scratch.group[MISSES + row])
    return scratch.positions[i], scratch.positions[i + np.uint64(1)]


@kernel
def fill_tail(buffer, n, tail):
    """Fill `Scratch.tail` with the end of `buffer[:n]`, for its keys; return where that begins.

    >>> tail = np.zeros(TAIL, np.uint8)
    >>> int(fill_tail(np.arange(20, dtype=np.uint8), 20, tail)), tail[14:18].tolist()
    (4, [18, 19, 0, 0])
    """
    start = n - 16 if n > 16 else np.int64(0)
    for j in range(tail.size):
        tail[j] = buffer[start + j] if start + j < n else 0
    return start


@kernel
def take_positions(starts, cursor, positions):
    """Read set bits, whole words at a time, until a group is full or the set is empty.

    >>> to = np.zeros(GROUP + 80, np.int64)
    >>> int(take_positions(np.array([9], np.uint64), np.array([0, -1]), to)), to[:2].tolist()
    (2, [0, 3])

    Args:
        starts: uint64[n_words], bit set.
        cursor: int64[2]: the next word to read; the last position taken, or -1. Modified in place.
        positions: int64[GROUP + 80]; replaced by the last position taken and those that follow it.

    Returns the number of positions: one more than there are pre-tokens between them, or 0.
    """
    n, k = 0, cursor[0]
    if cursor[1] >= 0:
        positions[0] = cursor[1]
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
    cursor[0] = k
    if n > 0:
        cursor[1] = positions[n - 1]
    return n
