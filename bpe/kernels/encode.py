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

Most pairs of tokens are never merged. A set of bits that fits into the second-level cache says so
for nearly all of them; only the others are looked up in the table of pairs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.kernels.jit import kernel
from bpe.kernels.machine import (
    ONE_PLACE,
    add,
    apart,
    copy_16_ids,
    copy_four_ids,
    in_line,
    leading_zeros,
    load_u64,
    minimum_of_16,
    minimum_of_others,
    multiply,
    ones,
    out_of_line,
    prefetch,
    rotate,
    same_two_words,
    store_four_ids,
    take_key,
    trailing_zeros,
)
from bpe.kernels.words import (
    MOST_LONG,
    add_long_row,
    add_row,
    find_long_row,
    find_row,
    hash_bytes,
    hash_key,
    is_full,
    long_bucket,
    recall,
    remember,
    row_bucket,
    same_bytes,
    say_what_was_added,
)

TOKEN_BYTES = 8  # bytes of the longest token in the table of tokens
TOKEN_BITS = 15  # of the places in that table, and of an id in it: 256 KiB stay near the processor
SHORT = 15  # bytes of the longest pre-token that is its own key
GROUP = 1024  # pre-tokens that are handled together; with few, the passes get in the way
FEW = 64  # bytes up to which the smallest of all pairs is found by looking at each of them
SELDOM_LONGER = 2112  # bytes; for what is longer there is memory when it comes
BLOCKED = 2048  # bytes up to which it is found by looking at some blocks of them
LISTED = 4096  # bytes from which on pairs are in lists by their ranks
WINDOW = 65536  # bytes of a pre-token that are merged together by lists, if it is longer
OVERLAP = 1024  # the next window begins at a token that begins in so many of the last bytes
LISTED_MOST = 2**29  # three entries for a byte have numbers below _NO_ENTRY
LONGEST_CACHED = 1024  # bytes; what is longer is hardly ever seen twice
COPIED = 16  # ids that are copied at once

_NONE = np.uint64(0xFFFFFFFFFFFFFFFF)
_NO_RANK = np.uint32(0xFFFFFFFF)
_NO_ENTRY = np.uint32(0x7FFFFFFF)
_UNORDERED = np.uint32(0x80000000)  # a bit beside the last entry of a list
_ROOT = 3  # so the children of 3 are 4 to 7, those of 4 are 8 to 11, and so on
# In a row of `Scratch.rows`, for the symbol at each position: its id, the rank of the pair that it
# begins, and the positions of the symbols behind and before it.
_SYMBOL, _RANK, _FOLLOWING, _PRECEDING = 0, 1, 2, 3
IDS = _NONE >> np.uint64(3)
"""The bits of a row's last word that are ids, not their number."""
ID_BITS = 21
"""Bits of an id, and of a rank, in the tables; so ids are smaller than 2**21 - 1."""

# In `Tables.byte_pairs`.
_UNRANKED = np.uint64((1 << ID_BITS) - 1)
_NO_LIMITS = np.uint64((1 << 3 * ID_BITS) - (1 << ID_BITS))


class Tables(NamedTuple):
    """What one vocabulary is to the kernels; shared by all threads, never changed."""

    byte_ids: NDArray[np.int32]  # int32[256], the id of each byte
    # uint64[65536], for the bytes (a, b) at a << 8 | b, ID_BITS each, _UNRANKED for none: their
    # rank; the lowest rank that b has behind what ends with a; the lowest that a has before what
    # begins with b; on top 1 if what they become is merged with something at no higher rank
    byte_pairs: NDArray[np.uint64]
    # uint64[capacity], open addressing: left id, right id and rank, ID_BITS each
    pairs: NDArray[np.uint64]
    # uint64[n]: bit set of hashes of pairs; a pair whose bit is not set is not in `pairs`
    pair_filter: NDArray[np.uint64]
    merged: NDArray[np.uint32]  # uint32[n_ranks], the id that the merge of each rank makes
    tokens: NDArray[np.uint64]  # uint64[2**TOKEN_BITS], see `token_hash`
    # int64[4]: bits of an id in `Words.rows`, ids in the first word there, ids in both; what an
    # id is more than the rank of the merge that makes it, -1 if that differs
    packing: NDArray[np.int64]
    # uint64[2 * capacity] or uint64[0]: hash of a token's bytes, its number
    whole: NDArray[np.uint64]
    whole_bytes: NDArray[np.uint8]  # uint8, the bytes of the tokens of `whole`, one after the other
    whole_offsets: NDArray[np.int64]  # int64[n + 1]
    whole_ids: NDArray[np.int32]  # int32[n]


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
    """Memory for one group; its content means nothing between calls."""

    positions: NDArray[np.int64]  # int64[GROUP + 80]
    # uint32[OTHERS + 2 * (GROUP + 80)]: the id of each that is in `Tables.tokens`; from OTHERS on
    # what is not there: the number of a pre-token, or END_OF_DOCUMENT and that of the one that is
    # the first of another
    group: NDArray[np.uint32]
    # uint64[8 * (GROUP + 80)], for each of those: the two words of the key, of which the second is
    # LONG if a pre-token is, of which the hash is the first, or if it is none; its row in front; if
    # it is not there its row among the words, or _NONE: it has none.
    keys: NDArray[np.uint64]
    # uint64[4 * (GROUP + 80)], the two words of ids in front; the second is 0: it is not there
    found: NDArray[np.uint64]
    # uint64[2 * (GROUP + 80)], which of the others are not there; then which of these are new
    missing: NDArray[np.uint64]
    new_ids: NDArray[np.uint32]  # uint32[LONGEST_CACHED + 1]
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
def pair_key(left, right):
    """Both ids of a pair in the low bits of one word."""
    return (np.uint64(left) << np.uint64(ID_BITS)) | np.uint64(right)


@kernel
def hash_pair(key):
    """A hash of a pair; its high bits are the good ones."""
    return multiply(key ^ (key >> np.uint64(17)), np.uint64(0x9E3779B97F4A7C15))


@kernel
def filter_bit(hashed, pair_filter):
    """The bit of `pair_filter` that a pair has."""
    return (hashed >> np.uint64(24)) & np.uint64(pair_filter.size * 64 - 1)


@kernel
def pair_rank(tables, left, right):
    """The rank of the merge of a pair, uint32; the largest number if it is never merged."""
    key = pair_key(left, right)
    hashed = hash_pair(key)
    bit = filter_bit(hashed, tables.pair_filter)
    mask = np.uint64(tables.pairs.size - 1)
    at = (hashed >> np.uint64(40)) & mask
    prefetch(tables.pairs, at)
    if (tables.pair_filter[bit >> np.uint64(6)] >> (bit & np.uint64(63))) & np.uint64(1) == 0:
        return _NO_RANK
    while True:
        found = tables.pairs[at]
        if found >> np.uint64(ID_BITS) == key:
            return np.uint32(found & np.uint64((1 << ID_BITS) - 1))
        if found == _NONE:
            return _NO_RANK
        at = (at + np.uint64(1)) & mask


@kernel
def merged_id(tables, rank):
    """The id that the merge of a rank makes, uint32."""
    in_line()
    if tables.packing[3] >= 0:
        return rank + np.uint32(tables.packing[3])
    return tables.merged[np.uint64(rank)]


@kernel
def fill_pairs(lefts, rights, ranks, merged_ids, first_bytes, last_bytes, lowest, tables):
    """Build the tables of pairs: all of `tables.pairs`, pair_filter, merged and byte_pairs.

    Args:
        lefts, rights, ranks, merged_ids: int32[n], ascending by rank; of equal pairs the first
            counts.
        first_bytes, last_bytes: uint8[n_ids], of each token.
        lowest: uint64[n_ids]; replaced by the lowest rank that each is merged at.
        tables: its byte_ids are filled. The capacity of pairs is a power of two of at least n + 1
            and at most 2**24, that of pair_filter a power of two; merged has a place for each rank.
    """
    tables.pairs[:] = _NONE
    tables.pair_filter[:] = np.uint64(0)
    mask = np.uint64(tables.pairs.size - 1)
    for i in range(lefts.size):
        key = pair_key(lefts[i], rights[i])
        hashed = hash_pair(key)
        bit = filter_bit(hashed, tables.pair_filter)
        tables.pair_filter[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
        at = (hashed >> np.uint64(40)) & mask
        while tables.pairs[at] != _NONE and tables.pairs[at] >> np.uint64(ID_BITS) != key:
            at = (at + np.uint64(1)) & mask
        if tables.pairs[at] == _NONE:
            tables.pairs[at] = (key << np.uint64(ID_BITS)) | np.uint64(ranks[i])
            tables.merged[ranks[i]] = np.uint32(merged_ids[i])
    byte_pairs = tables.byte_pairs
    for a in range(256):
        for b in range(256):
            rank = np.uint64(pair_rank(tables, tables.byte_ids[a], tables.byte_ids[b]))
            byte_pairs[a << 8 | b] = _NO_LIMITS | min(rank, _UNRANKED)
    fill_limits(lefts, rights, ranks, first_bytes, last_bytes, tables)
    lowest[:] = _UNRANKED
    for i in range(lefts.size):
        for part in (lefts[i], rights[i]):
            lowest[part] = min(lowest[part], np.uint64(ranks[i]))
    for i in range(byte_pairs.size):
        rank = byte_pairs[i] & _UNRANKED
        if rank != _UNRANKED and lowest[tables.merged[rank]] <= rank:
            byte_pairs[i] |= np.uint64(1 << 63)


@kernel
def fill_limits(lefts, rights, ranks, first_bytes, last_bytes, tables):
    """The second and the third number of `byte_pairs`; see `fill_pairs`."""
    byte_ids, byte_pairs = tables.byte_ids, tables.byte_pairs
    for i in range(lefts.size):
        left, right, rank = lefts[i], rights[i], np.uint64(ranks[i])
        a, b = np.int64(last_bytes[left]), np.int64(first_bytes[right])
        if byte_ids[b] == right:
            lower_limit(byte_pairs, a << 8 | b, ID_BITS, rank)
        a = np.int64(first_bytes[left])
        if byte_ids[a] == left:
            lower_limit(byte_pairs, a << 8 | b, 2 * ID_BITS, rank)


@kernel
def lower_limit(byte_pairs, at, shift, rank):
    """Make the number of an entry that begins at bit `shift` a rank, if that is lower."""
    if (byte_pairs[at] >> np.uint64(shift)) & _UNRANKED > rank:
        byte_pairs[at] &= ~(_UNRANKED << np.uint64(shift))
        byte_pairs[at] |= rank << np.uint64(shift)


@kernel
def fill_whole(token_bytes, token_offsets, whole):
    """Build the table from the hash of a token's bytes to its number.

    Args:
        token_bytes: uint8[n_bytes]; token_offsets: int64[n + 1].
        whole: uint64[2 * capacity], the capacity a power of two of at least n + 1; replaced.
    """
    whole[:] = _NONE
    mask = whole.size // 2 - 1
    for i in range(token_offsets.size - 1):
        hashed = hash_bytes(token_bytes, token_offsets[i], token_offsets[i + 1])
        at = np.int64(hashed & np.uint64(mask))
        while whole[at * 2] != _NONE:
            at = (at + 1) & mask
        whole[at * 2] = hashed
        whole[at * 2 + 1] = np.uint64(i)


@kernel
def whole_token(tables, buffer, start, stop):
    """The id of the token that is exactly `buffer[start:stop]`, or -1."""
    if tables.whole.size == 0:
        return -1
    mask = tables.whole.size // 2 - 1
    hashed = hash_bytes(buffer, start, stop)
    at = np.int64(hashed & np.uint64(mask))
    while tables.whole[at * 2] != _NONE:
        if tables.whole[at * 2] == hashed:
            i = np.int64(tables.whole[at * 2 + 1])
            begin = tables.whole_offsets[i]
            if tables.whole_offsets[i + 1] - begin == stop - start and same_bytes(
                tables.whole_bytes, begin, buffer, start, stop - start
            ):
                return np.int64(tables.whole_ids[i])
        at = (at + 1) & mask
    return -1


@kernel
def pack(rank, at, most):
    """A rank and a place below `most` in one word, smaller where the merge comes earlier."""
    return _NO_RANK if rank == _NO_RANK else rank * np.uint32(most) | np.uint32(at)


@kernel
def byte_rank(entry):
    """The rank of a pair of bytes, as `pair_rank` gives it, from its entry in `byte_pairs`."""
    rank = entry & _UNRANKED
    return _NO_RANK if rank == _UNRANKED else np.uint32(rank)


@kernel
def lay_out_few(tables, scratch, buffer, start, n):
    """Fill `symbols` and `packed` for `buffer[start : start + n]`, each byte of which is a symbol.

    Returns:
        The places of pairs that can be merged before all others: of whatever may become of what is
        around them, nothing is merged with a byte of theirs at their rank or a lower one, nor with
        what they become. So they are merged in the end, and nothing else asks when.
    """
    in_line()
    one, bits = np.uint64(1), np.uint64(ID_BITS)
    symbols, packed = scratch.symbols, scratch.packed
    here = np.uint64(start)
    byte = np.uint64(buffer[here])
    first = np.uint64(0)
    # Of the pair before, the rank if nothing on its left can be sooner; and at which rank its
    # second byte may be merged with something on the left.
    waiting = limit = _UNRANKED
    for i in range(n - 1):
        place = np.uint64(i)
        symbols[place] = np.uint32(tables.byte_ids[byte])
        following = np.uint64(buffer[here + place + one])
        entry = tables.byte_pairs[byte << np.uint64(8) | following]
        packed[place] = pack(byte_rank(entry), place, FEW)
        first |= np.uint64(waiting < (entry >> bits >> bits) & _UNRANKED) << place
        # A rank that is marked on top is larger than any limit.
        rank = entry & (_UNRANKED | np.uint64(1 << 63))
        waiting = rank if rank < limit else _UNRANKED
        limit = (entry >> bits) & _UNRANKED
        byte = following
    symbols[np.uint64(n - 1)] = np.uint32(tables.byte_ids[byte])
    for i in range(n - 1, (n + 15) & ~15):
        packed[np.uint64(i)] = _NO_RANK
    first |= np.uint64(waiting < _UNRANKED) << np.uint64(n - 1)
    return first >> one


@kernel
def merge_first(tables, symbols, packed, first, left):
    """Merge the pairs at the places `first` of `left`. Returns the places that are left then."""
    in_line()
    one = np.uint64(1)
    left ^= first << one
    places = first
    while places != 0:
        at = np.uint64(trailing_zeros(places))
        places &= places - one
        symbols[at] = merged_id(tables, packed[at] >> np.uint32(6))
        packed[at + one] = _NO_RANK
    # The pairs before them have changed, too; what is no place any more belongs to another of them.
    places = first | ((first >> one) & left)
    while places != 0:
        at = np.uint64(trailing_zeros(places))
        places &= places - one
        after = (left >> at) >> one
        new = _NO_RANK
        if after != 0:
            following = at + one + np.uint64(trailing_zeros(after))
            new = pack(pair_rank(tables, symbols[at], symbols[following]), at, FEW)
        packed[at] = new
    return left


@kernel
def merge_few(tables, scratch, buffer, start, stop, ids, n_ids):
    """Merge a pre-token of at most FEW bytes, by looking at every pair for the smallest rank.

    The first symbols of pairs stay where they are; a bit set tells which are left.

    Returns:
        The number of ids after this pre-token; they are written to `ids` from `n_ids` on.
    """
    in_line()
    one = np.uint64(1)
    symbols, packed = scratch.symbols, scratch.packed
    n = stop - start
    n_places = (n + 15) & ~15
    left = _NONE >> np.uint64(64 - n)
    first = lay_out_few(tables, scratch, buffer, start, n)
    if first != 0:
        left = merge_first(tables, symbols, packed, first, left)
    best = minimum_of_16(packed, 0)
    for i in range(16, n_places, 16):
        best = min(best, minimum_of_16(packed, i))
    while best != _NO_RANK:
        # The leftmost of the lowest rank.
        at = np.uint64(best & np.uint32(63))
        symbol = merged_id(tables, best >> np.uint32(6))
        after = (left >> at) >> one
        joined = at + one + np.uint64(trailing_zeros(after))
        before = left & ((one << at) - one)
        preceding = np.uint64(63 - leading_zeros(before | one))
        # While the ranks of the two new pairs are looked up: the smallest of the others.
        best = minimum_of_others(packed, 0, ONE_PLACE, at, joined, preceding)
        for i in range(16, n_places, 16):
            best = min(best, minimum_of_others(packed, i, ONE_PLACE, at, joined, preceding))
        symbols[at] = symbol
        packed[joined] = _NO_RANK
        left ^= one << joined
        after &= after - one
        new = _NO_RANK
        if after != 0:
            following = at + one + np.uint64(trailing_zeros(after))
            new = pack(pair_rank(tables, symbol, symbols[following]), at, FEW)
        packed[at] = new
        best = min(best, new)
        if before != 0:
            new = pack(pair_rank(tables, symbols[preceding], symbol), preceding, FEW)
            packed[preceding] = new
            best = min(best, new)
    while left != 0:
        ids[n_ids] = symbols[trailing_zeros(left)]
        left &= left - one
        n_ids += 1
    return n_ids


@kernel
def lay_out(tables, rows, buffer, start, n):
    """Fill `rows` for the bytes `buffer[start : start + n]`, each of which is a symbol."""
    for i in range(n):
        row = 4 * i
        byte = buffer[start + i]
        rank = _NO_RANK
        if i + 1 < n:
            rank = byte_rank(
                tables.byte_pairs[np.int64(byte) << 8 | np.int64(buffer[start + i + 1])]
            )
        rows[row + _SYMBOL] = np.uint32(tables.byte_ids[byte])
        rows[row + _RANK] = rank
        rows[row + _FOLLOWING] = np.uint32(i + 1)
        # None is before the first: the number there is never used.
        rows[row + _PRECEDING] = np.uint32(max(i - 1, 0))


@kernel
def merge_at(tables, rows, n, at):
    """Merge the pair that begins at a position.

    Returns:
        The position before it, and the ranks of the pairs that begin there and at `at` now: those
        are the new ones.
    """
    row = 4 * at
    right = np.int64(rows[row + _FOLLOWING])
    symbol = merged_id(tables, rows[row + _RANK])
    rows[row + _SYMBOL] = symbol
    rows[4 * right + _RANK] = _NO_RANK
    after = np.int64(rows[4 * right + _FOLLOWING])
    rows[row + _FOLLOWING] = np.uint32(after)
    rank = _NO_RANK
    if after < n:
        rows[4 * after + _PRECEDING] = np.uint32(at)
        rank = pair_rank(tables, symbol, rows[4 * after + _SYMBOL])
    rows[row + _RANK] = rank
    before, rank_before = np.int64(0), _NO_RANK
    if at > 0:
        before = np.int64(rows[row + _PRECEDING])
        rank_before = pair_rank(tables, rows[4 * before + _SYMBOL], symbol)
        rows[4 * before + _RANK] = rank_before
    return before, rank_before, rank


@kernel
def read_rows(rows, n, ids, n_ids):
    """Append the symbols that are left. Returns the number of ids now."""
    at = 0
    while at < n:
        ids[n_ids] = rows[4 * at + _SYMBOL]
        n_ids += 1
        at = np.int64(rows[4 * at + _FOLLOWING])
    return n_ids


@kernel
def merge_many(tables, scratch, buffer, start, stop, ids, n_ids):
    """Merge a pre-token of any length in O(n log n) time.

    A heap holds `rank << 32 | position`; links join the symbols that are left. An entry of the heap
    whose pair has changed since is dropped when it comes up.

    Returns:
        The number of ids after this pre-token; they are written to `ids` from `n_ids` on.
    """
    n = stop - start
    # n - 1 pairs at first; each merge takes its entry out before it puts at most two in, and there
    # are n - 1 merges.
    rows, heap = scratch.rows, scratch.heap
    size = 0
    lay_out(tables, rows, buffer, start, n)
    for i in range(n - 1):
        size = _push(heap, size, rows[4 * i + _RANK], i)
    while size > 0:
        entry = heap[_ROOT]
        size = _pop(heap, size)
        at = np.int64(entry & np.uint64(0xFFFFFFFF))
        if np.uint64(rows[4 * at + _RANK]) == entry >> np.uint64(32):
            before, rank_before, rank = merge_at(tables, rows, n, at)
            size = _push(heap, size, rank, at)
            size = _push(heap, size, rank_before, before)
    return read_rows(rows, n, ids, n_ids)


@kernel
def merge_blocks(tables, scratch, buffer, start, stop):
    """Merge at most BLOCKED bytes, `buffer[start:stop]`; `scratch.rows` has what is left.

    The pairs are in blocks of 16 places. The smallest of all blocks is merged, and then the blocks
    of the three places that it changes are looked through.
    """
    n = stop - start
    rows, packed, least = scratch.rows, scratch.packed, scratch.least
    lay_out(tables, rows, buffer, start, n)
    n_blocks = (n + 15) >> 4
    packed[: 16 * n_blocks] = _NO_RANK
    least[:] = _NO_RANK
    for i in range(n - 1):
        packed[i] = pack(rows[4 * i + _RANK], i, BLOCKED)
    for block in range(n_blocks):
        least[block] = minimum_of_16(packed, 16 * block)
    while True:
        best = minimum_of_16(least, 0)
        for block in range(16, n_blocks, 16):
            best = min(best, minimum_of_16(least, block))
        if best == _NO_RANK:
            break
        at = np.int64(best & np.uint32(BLOCKED - 1))
        right = np.int64(rows[4 * at + _FOLLOWING])
        before, rank_before, rank = merge_at(tables, rows, n, at)
        packed[right] = _NO_RANK
        packed[at] = pack(rank, at, BLOCKED)
        if at > 0:
            packed[before] = pack(rank_before, before, BLOCKED)
            least[before >> 4] = minimum_of_16(packed, before & ~15)
        least[at >> 4] = minimum_of_16(packed, at & ~15)
        least[right >> 4] = minimum_of_16(packed, right & ~15)


@kernel
def merge_lists(tables, scratch, buffer, start, stop):
    """Merge `buffer[start:stop]` in the order of ranks; `scratch.rows` has what is left.

    The positions of the pairs of each rank are a list, to whose end new ones are added: most come
    in order, and what does not is put in order when its rank comes up. Only pairs of a rank that
    has come up already, which some vocabularies of tiktoken have, go into the heap before.
    """
    n = stop - start
    rows, heap, lists, entries = scratch.rows, scratch.heap, scratch.lists, scratch.entries
    size, n_entries = 0, np.int64(0)
    lists[:] = _NO_ENTRY
    lay_out(tables, rows, buffer, start, n)
    for i in range(n - 1):
        n_entries = _append(lists, entries, n_entries, rows[4 * i + _RANK], i)
    for rank_now in range(lists.size // 2):
        entry = np.int64(lists[2 * rank_now])
        if entry == _NO_ENTRY:
            continue
        in_order = lists[2 * rank_now + 1] & _UNORDERED == 0
        while True:
            if entry != _NO_ENTRY and not in_order:
                at = np.int64(entries[2 * entry])
                entry = np.int64(entries[2 * entry + 1])
                size = _push(heap, size, np.uint32(rank_now), at)
                continue
            first = _NONE
            if entry != _NO_ENTRY:
                first = (np.uint64(rank_now) << np.uint64(32)) | np.uint64(entries[2 * entry])
            if size > 0 and heap[_ROOT] < first:
                first = heap[_ROOT]
                size = _pop(heap, size)
            elif entry != _NO_ENTRY:
                entry = np.int64(entries[2 * entry + 1])
                if entry != _NO_ENTRY:
                    prefetch(rows, 4 * np.int64(entries[2 * entry]))
            else:
                break
            at = np.int64(first & np.uint64(0xFFFFFFFF))
            if np.uint64(rows[4 * at + _RANK]) != first >> np.uint64(32):
                continue
            before, rank_before, rank = merge_at(tables, rows, n, at)
            if rank <= rank_now:
                size = _push(heap, size, rank, at)
            else:
                n_entries = _append(lists, entries, n_entries, rank, at)
            if rank_before <= rank_now:
                size = _push(heap, size, rank_before, before)
            else:
                n_entries = _append(lists, entries, n_entries, rank_before, before)


@kernel
def merge_windows(tables, scratch, buffer, start, stop, ids, n_ids, window, overlap, listed):
    """Merge a long pre-token window by window, in time that grows with its length alone.

    Two tokens that are neighbours in a text are what their bytes alone become, too: nothing was
    merged across their ends. And tokens of which that holds of any two neighbours are those of the
    whole text: the first merge that differed would cross an end between two of them, and it would
    have come up for these two alone. So where a token of a window is one of the next window as
    well, all up to it from the one and all behind it from the other are the tokens of both. (That
    neighbours decide it is what the encoder of GitHub's `bpe` crate, rust-gems, rests on.)

    Args:
        window: bytes that are merged together, at most BLOCKED if not `listed`.
        overlap: the next window begins at the first token that begins in the last `overlap` bytes
            of the one before it; less than `window`, at most OVERLAP.
        listed: merge them by lists, not by blocks.

    Returns:
        The number of ids after this pre-token; they are written to `ids` from `n_ids` on. Or -1:
        two windows have no token in common, or no token begins in the last `overlap` bytes of one.
    """
    rows, begins = scratch.rows, scratch.begins
    # Where the tokens of the window before begin that this one may have, too, and where the last of
    # them ends: from where this one begins.
    n_begins = 0
    begin = start
    while True:
        end = min(begin + window, stop)
        n = end - begin
        if listed:
            merge_lists(tables, scratch, buffer, begin, end)
        else:
            merge_blocks(tables, scratch, buffer, begin, end)
        at, i = np.int64(0), 0
        while i < n_begins:
            other, other_end = np.int64(begins[i]), np.int64(begins[i + 1])
            at_end = np.int64(rows[4 * at + _FOLLOWING])
            if at == other and at_end == other_end:
                break
            # What ends first is none that both have.
            if other_end <= at_end:
                i += 1
            if at_end <= other_end:
                at = at_end
        if begin > start and i == n_begins:
            return -1
        # Those of the window before from the common one on are written over.
        n_ids += i - n_begins
        n_begins, next_begin = 0, np.int64(0)
        while at < n:
            if end < stop and at >= n - overlap:
                if n_begins == 0:
                    next_begin = at
                begins[n_begins] = np.uint32(at - next_begin)
                n_begins += 1
            ids[n_ids] = rows[4 * at + _SYMBOL]
            n_ids += 1
            at = np.int64(rows[4 * at + _FOLLOWING])
        if end == stop:
            return n_ids
        if n_begins == 0:
            return -1
        begins[n_begins] = np.uint32(n - next_begin)
        begin += next_begin


@kernel
def _append(lists, entries, n_entries, rank, at):
    """Add a position to the end of the list of a rank, if there is a rank."""
    if rank == _NO_RANK:
        return n_entries
    place = 2 * np.int64(rank)
    entries[2 * n_entries] = np.uint32(at)
    entries[2 * n_entries + 1] = _NO_ENTRY
    if lists[place] == _NO_ENTRY:
        lists[place] = np.uint32(n_entries)
        lists[place + 1] = np.uint32(n_entries)
    else:
        unordered = lists[place + 1] & _UNORDERED
        last = 2 * np.int64(lists[place + 1] ^ unordered)
        if entries[last] > np.uint32(at):
            unordered = _UNORDERED
        entries[last + 1] = np.uint32(n_entries)
        lists[place + 1] = np.uint32(n_entries) | unordered
    return n_entries + 1


@kernel
def _push(heap, size, rank, position):
    """Add an entry to the heap, if there is a rank. Returns how many there are now."""
    if rank == _NO_RANK:
        return size
    entry = (np.uint64(rank) << np.uint64(32)) | np.uint64(position)
    at = size + _ROOT
    while at > _ROOT:
        parent = (at >> 2) + 2
        if heap[parent] <= entry:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = entry
    return size + 1


@kernel
def _pop(heap, size):
    """Take out the smallest entry. Of four children each, which lie in one cache line."""
    size -= 1
    stop = size + _ROOT
    entry = heap[stop]
    at = _ROOT
    # The gap goes down to the end, and what was last goes up from there: it belongs down there.
    while True:
        child = 4 * at - 8
        if child >= stop:
            break
        least = child
        for other in range(child + 1, min(child + 4, stop)):
            if heap[other] < heap[least]:
                least = other
        heap[at] = heap[least]
        at = least
    while at > _ROOT:
        parent = (at >> 2) + 2
        if heap[parent] <= entry:
            break
        heap[at] = heap[parent]
        at = parent
    heap[at] = entry
    return size


@kernel
def merge_pretoken(tables, scratch, buffer, start, stop, ids, n_ids):
    """The ids of one pre-token, merged. Returns the number of ids after it."""
    in_line()
    known = whole_token(tables, buffer, start, stop)
    if known >= 0:
        ids[n_ids] = known
        return n_ids + 1
    if stop - start <= FEW:
        return merge_few(tables, scratch, buffer, start, stop, ids, n_ids)
    return merge_long(tables, scratch, buffer, start, stop, ids, n_ids)


@kernel
def merge_long(tables, scratch, buffer, start, stop, ids, n_ids):
    """`merge_pretoken` for more than FEW bytes."""
    out_of_line()
    n = stop - start
    if n <= BLOCKED:
        merge_blocks(tables, scratch, buffer, start, stop)
        return read_rows(scratch.rows, n, ids, n_ids)
    # The lists of all ranks are looked at in each window.
    listed = n >= max(LISTED, tables.merged.size // 16)
    window, overlap = (WINDOW, OVERLAP) if listed else (BLOCKED, BLOCKED // 4)
    after = merge_windows(tables, scratch, buffer, start, stop, ids, n_ids, window, overlap, listed)
    if after >= 0:
        return after
    if listed and n <= LISTED_MOST:
        merge_lists(tables, scratch, buffer, start, stop)
        return read_rows(scratch.rows, n, ids, n_ids)
    return merge_many(tables, scratch, buffer, start, stop, ids, n_ids)


@kernel
def token_hash(word):
    """The 8 bytes of a short pre-token, mixed so that no two get the same.

    The lowest TOKEN_BITS are its place in `Tables.tokens`; the others are kept there, so that what
    is found equal is the pre-token itself. The exclusive or of both is the id.
    """
    # The upper bits of a product depend on all bits of the word.
    return rotate(multiply(word, np.uint64(0x9E3779B97F4A7C15)), np.uint64(TOKEN_BITS))


@kernel
def fill_tokens(tables, scratch, token_bytes, token_offsets):
    """Fill `Tables.tokens`; of two tokens with one place the one that is given first stays.

    Args:
        tables: see there; all but this is there.
        scratch: see `Scratch`.
        token_bytes, token_offsets: uint8 and int64[n + 1]: the tokens. Left out are those of more
            than TOKEN_BYTES bytes or with an id of more than TOKEN_BITS, and those that are not
            encoded as themselves.
    """
    tokens, ids = tables.tokens, scratch.group
    bits, most = np.uint64(TOKEN_BITS), np.uint64(2**TOKEN_BITS - 1)
    # What is free looks like a pre-token of which the first byte is 0xFF: there is none. That byte
    # alone gives the lowest byte of the product.
    free = (token_hash(np.uint64(0xFF)) >> bits) & np.uint64(0xFF)
    for place in range(tokens.size):
        tokens[place] = free << bits | np.uint64(place)
    for i in range(token_offsets.size - 1):
        start, stop = token_offsets[i], token_offsets[i + 1]
        # Its end could not be told from what fills it up.
        if not 0 < stop - start <= TOKEN_BYTES or token_bytes[stop - 1] == 0xFF:
            continue
        word = PADDING[stop - start]
        for j in range(stop - start):
            word |= np.uint64(token_bytes[start + j]) << np.uint64(8 * j)
        hashed = token_hash(word)
        place = hashed & most
        if tokens[place] >> bits != free:
            continue
        n = merge_pretoken(tables, scratch, token_bytes, start, stop, ids, 0)
        if n == 1 and ids[0] <= most:
            tokens[place] = hashed ^ np.uint64(ids[0])


@kernel
def merge_new(tables, words, scratch, buffer, n_new):
    """Merge those of the others that `scratch.missing` says are new, and put them among the words.

    A call for each would take longer than to look it up: it hands over some thirty arrays.
    """
    out_of_line()
    for number in range(n_new):
        row = scratch.missing[np.uint64(number)]
        # It may stand in this group twice.
        place = find_missing(words, scratch, buffer, row)
        if place < 0:
            if scratch.keys[row << np.uint64(2) | np.uint64(1)] == LONG:
                place = merge_new_long(tables, words, scratch, buffer, row)
            else:
                place = merge_new_short(tables, words, scratch, buffer, row)
        scratch.keys[row << np.uint64(2) | np.uint64(3)] = _NONE if place < 0 else np.uint64(place)


@kernel
def find_missing(words, scratch, buffer, row):
    """The row that one of the others has among the words, or -1."""
    in_line()
    k = row << np.uint64(2)
    low, high = scratch.keys[k], scratch.keys[k + np.uint64(1)]
    if high != LONG:
        return find_row(words.rows, np.int64(row_bucket(low, high, words.rows)), low, high)
    i = np.uint64(scratch.group[OTHERS + row])
    start, stop = scratch.positions[i], scratch.positions[i + np.uint64(1)]
    return find_long_row(words, low, buffer, start, stop - start)


@kernel
def merge_new_short(tables, words, scratch, buffer, row):
    """`merge_new` for one that has a key. Returns its row in `Words.rows`, or -1."""
    in_line()
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
    k = row << np.uint64(2)
    low, high = scratch.keys[k], scratch.keys[k + np.uint64(1)]
    return add_row(words, low, high, first_ids, second_ids)


@kernel
def merge_new_long(tables, words, scratch, buffer, row):
    """`merge_new` for one of more than SHORT bytes. Returns its row in `Words.long_rows`, or -1."""
    in_line()
    i = np.uint64(scratch.group[OTHERS + row])
    start, stop = scratch.positions[i], scratch.positions[i + np.uint64(1)]
    n = merge_pretoken(tables, scratch, buffer, start, stop, scratch.new_ids, 0)
    place = remember(words, scratch.new_ids, n, buffer, start, stop - start)
    if place < 0:
        return np.int64(-1)
    entry = np.uint64(place << 22 | n << 11 | (stop - start))
    return add_long_row(words, scratch.keys[row << np.uint64(2)], entry)


@kernel
def encode_unkept(tables, scratch, buffer, number, ids, n_ids):
    """`encode_missing` for one that is too long to be kept, or found no room."""
    out_of_line()
    i = np.int64(scratch.group[OTHERS + np.uint64(number)])
    start, stop = scratch.positions[i], scratch.positions[i + 1]
    return merge_pretoken(tables, scratch, buffer, start, stop, ids, n_ids)


@kernel
def encode_missing(tables, front, words, scratch, buffer, number, ids, n_ids):
    """The ids of one of the others that is not in front and is put there.

    Returns the number of ids after it.
    """
    in_line()
    k = 4 * number
    low, high = scratch.keys[k], scratch.keys[k + 1]
    if scratch.keys[k + 3] == _NONE:
        return encode_unkept(tables, scratch, buffer, number, ids, n_ids)
    at = np.int64(scratch.keys[k + 3])
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
        row = np.int64(scratch.keys[k + 2])
        front[row] = low
        front[row + 1] = high
        front[row + 2] = two_ids(np.uint64(ids[n_ids]), np.uint64(ids[n_ids + 1]))
        # What is behind the last id means nothing, but must leave the bits of the number free.
        third, fourth = np.uint64(ids[n_ids + 2]), np.uint64(ids[n_ids + 3])
        front[row + 3] = (two_ids(third, fourth) & IDS) | (np.uint64(n) << np.uint64(61))
    return after


@kernel
def two_ids(first, second):
    """Two numbers of 32 bits in one word."""
    return first | (second << np.uint64(32))


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
        # Eight at a time, whether there are as many or not, and then the place is taken back: the
        # number is different in every word, and an end of a loop at each could only be guessed.
        following = n + ones(word)
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
    """An upper bound of the length in bytes of a pre-token: at least SELDOM_LONGER."""
    longest, before = np.int64(SELDOM_LONGER), np.int64(0)
    # What is longer has so many words without a bit that one of these is among them.
    k = 0
    while k < starts.size and starts[k] != 0:
        k += SELDOM_LONGER // 64 - 1
    if k >= starts.size:
        return longest
    for k in range(starts.size):
        word = starts[k]
        if word:
            # Whatever lies between two bits of one word is shorter than a word.
            base = np.int64(k) << 6
            longest = max(longest, base + trailing_zeros(word) - before)
            before = base + 63 - leading_zeros(word)
    return longest


@kernel
def compute_keys(buffer, tail, tail_start, n_pretokens, scratch, front):
    """The keys of a group, and a prefetch of the row of each in `front`.

    Args:
        buffer: uint8[n_bytes]; tail: uint8, the bytes from `tail_start` on, then at least 16 zeros.
        tail_start: pre-tokens that begin there or later are read from `tail`; before it, 16 bytes
            can be read.
        n_pretokens: `scratch.positions` has one more position than this.
        scratch: its keys are replaced, but for the last word of each.
        front: uint64[4 * power of two], rows.
    """
    n_inside = n_pretokens
    while n_inside > 0 and scratch.positions[n_inside - 1] >= tail_start:
        n_inside -= 1
    keys_between(buffer, 0, 0, n_inside, scratch, front)
    keys_between(tail, tail_start, n_inside, n_pretokens, scratch, front)


@kernel
def keys_between(source, source_start, first, last, scratch, front):
    """`compute_keys` for some; `source[0]` is byte `source_start` of the text."""
    in_line()
    mask = np.uint64(front.size - 4)
    positions, keys = scratch.positions, scratch.keys
    start = positions[first]
    # Unsigned numbers need no test for places counted from the end.
    for number in range(first, last):
        i = np.uint64(number)
        stop = positions[i + np.uint64(1)]
        compute_key(source, start - source_start, stop - start, keys, i, front, mask)
        start = stop


@kernel
def compute_key(source, start, length, keys, i, front, mask):
    """The key of one pre-token, to row i of `keys`, and a prefetch of its row in `front`."""
    in_line()
    part = np.uint64(min(length, np.int64(SHORT + 1))) << np.uint64(2)
    k = i << np.uint64(2)
    take_key(source, start, KEY_PARTS, part, keys, k)
    at = (hash_key(keys[k], keys[k + np.uint64(1)]) >> np.uint64(30)) & mask
    prefetch(front, at)
    keys[k + np.uint64(2)] = at


@kernel
def take_tokens(tables, scratch, buffer, tail, tail_start, first, stop, n_others):
    """The ids of those of the pre-tokens `first` to `stop` that are tokens, to `scratch.group`.

    The others are put on the list. Returns how many are there now. `buffer`, `tail` and
    `tail_start` as for `compute_keys`.
    """
    in_line()
    tokens, positions, group = tables.tokens, scratch.positions, scratch.group
    inside = stop
    while inside > first and positions[inside - 1] >= tail_start:
        inside -= 1
    n_others = tokens_between(tokens, buffer, 0, positions, first, inside, group, n_others)
    return tokens_between(tokens, tail, tail_start, positions, inside, stop, group, n_others)


@kernel
def tokens_between(tokens, source, source_start, positions, first, stop, group, n_others):
    """`take_tokens` for some; `source[0]` is byte `source_start` of the text."""
    apart()
    most = np.uint64(2**TOKEN_BITS - 1)
    # Unsigned numbers need no test for places counted from the end.
    i, n, one = np.uint64(first), np.uint64(n_others), np.uint64(1)
    start, last = positions[i], positions[np.uint64(stop)]
    # A loop whose end cannot be counted is not unrolled: registers are just enough.
    while start != last:
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
def keys_of_others(scratch, source, source_start, first, stop, front):
    """The keys of the others `first` to `stop`; `source[0]` is byte `source_start` of the text."""
    in_line()
    group, positions, keys = scratch.group, scratch.positions, scratch.keys
    mask = np.uint64(front.size - 4)
    for number in range(first, stop):
        row = np.uint64(number)
        other = group[OTHERS + row]
        if other < END_OF_DOCUMENT:
            i = np.uint64(other)
            start = positions[i]
            length = positions[i + np.uint64(1)] - start
            compute_key(source, start - source_start, length, keys, row, front, mask)
        else:
            # The key of what is long, and of no row.
            k = row << np.uint64(2)
            keys[k + np.uint64(1)], keys[k + np.uint64(2)] = LONG, np.uint64(0)


@kernel
def take_from_front(tables, front, words, scratch, buffer, tail, tail_start, n_others):
    """The ids of those of the others that are in front, to `scratch.found`.

    Those that are not are found among the words, or merged: `scratch.keys` has their rows.
    """
    in_line()
    group, keys = scratch.group, scratch.keys
    positions, found = scratch.positions, scratch.found
    inside = n_others
    while inside > 0 and (
        positions[group[OTHERS + np.uint64(inside - 1)] & ~END_OF_DOCUMENT] >= tail_start
    ):
        inside -= 1
    keys_of_others(scratch, buffer, 0, 0, inside, front)
    keys_of_others(scratch, tail, tail_start, inside, n_others, front)
    missing, n_missing = scratch.missing, np.uint64(0)
    for number in range(n_others):
        row = np.uint64(number)
        k, to = row << np.uint64(2), row << np.uint64(1)
        at = keys[k + np.uint64(2)]
        is_missing = not same_two_words(front, at, keys, k)
        second_ids = front[at + np.uint64(3)]
        found[to] = front[at + np.uint64(2)]
        # Without a branch, which the processor could only guess.
        found[to + np.uint64(1)] = np.uint64(0) if is_missing else second_ids
        missing[n_missing] = row
        n_missing += np.uint64(is_missing)
    for number in range(n_missing):
        row = missing[np.uint64(number)]
        k = row << np.uint64(2)
        low, high = keys[k], keys[k + np.uint64(1)]
        keys[k + np.uint64(3)] = np.uint64(0)
        if high != LONG:
            bucket = row_bucket(low, high, words.rows)
            prefetch(words.rows, bucket)
            prefetch(words.rows, bucket + np.uint64(8))
        elif group[OTHERS + row] >= END_OF_DOCUMENT:
            keys[k + np.uint64(3)] = _NONE
        else:
            i = np.uint64(group[OTHERS + row])
            start, stop = positions[i], positions[i + np.uint64(1)]
            if stop - start > LONGEST_CACHED:
                keys[k + np.uint64(3)] = _NONE
            else:
                keys[k] = hash_bytes(buffer, start, stop)
                prefetch(words.long_rows, long_bucket(keys[k], words.long_rows))
    n_new = np.uint64(0)
    for number in range(n_missing):
        row = missing[np.uint64(number)]
        k = row << np.uint64(2)
        if keys[k + np.uint64(3)] != _NONE:
            place = find_missing(words, scratch, buffer, row)
            keys[k + np.uint64(3)] = _NONE if place < 0 else np.uint64(place)
            missing[n_new] = row
            n_new += np.uint64(place < 0)
    if n_new:
        merge_new(tables, words, scratch, buffer, np.int64(n_new))


@kernel
def copy_ids(source, first, stop, ids, n_ids):
    """Append `source[first:stop]`; up to COPIED more are written. Returns the number of ids now."""
    in_line()
    copy_16_ids(source, first, ids, n_ids)
    for done in range(COPIED, stop - first, COPIED):
        copy_16_ids(source, first + done, ids, n_ids + done)
    return n_ids + stop - first


@kernel
def put_together(scratch, first, copied, n_others, ids, n_ids):
    """Append the ids of pre-tokens from `copied` on, until one of the others is not in front.

    Args:
        first: the first of the others behind `copied`.

    Returns:
        (which of the others that is, or how many there are; up to which pre-token ids are
        appended, the number of ids).
    """
    in_line()
    found, group = scratch.found, scratch.group
    number, n = np.uint64(first), np.uint64(n_others)
    while number < n:
        at = number << np.uint64(1)
        n_found = np.int64(found[at + np.uint64(1)] >> np.uint64(61))
        if n_found == 0:
            break
        i = np.int64(group[OTHERS + number])
        n_ids = copy_ids(group, copied, i, ids, n_ids)
        # Always four; those past the number are overwritten by what follows.
        copy_four_ids(found, at, ids, n_ids)
        n_ids += n_found
        copied = i + 1
        number += np.uint64(1)
    return np.int64(number), copied, n_ids


@kernel
def close_documents(documents, document, position, ids, n_ids):
    """Close every document that ends at or before `position`, and open the next.

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
        documents.token_offsets[document] = n_ids
        if before >= 0 and document <= last and not document & gaps:
            ids[n_ids] = before
            n_ids += 1
    return document, n_ids


@kernel
def encode_pretokens(
    tables,
    front,
    words,
    scratch,
    documents,
    buffer,
    tail,
    tail_start,
    starts,
    cursor,
    ids,
    n_ids,
    most,
    though_full,
):
    """Encode pre-tokens until the text or `most` groups are done, or `words` are full.

    It begins where `cursor` stands.

    Args:
        tables, words, scratch, documents: see there.
        front: uint64[4 * power of two], what one thread has seen last: key, key, two ids of 32
            bits, two ids with their number in the top three bits. Modified in place.
        buffer, tail, tail_start: see `compute_keys`.
        starts: uint64[n_bytes // 64 + 1], where pre-tokens begin, and the end.
        cursor: int64[3]: see `take_positions`; then the open document. Modified in place.
        ids: uint32, with place for one id per byte, those around documents, and COPIED more.
        n_ids: ids already written.
        most: groups after which to come back, so that signals are seen.
        though_full: go on with `words` that are full.

    Returns:
        The number of ids written so far. The text is done when `cursor[0]` is `starts.size`.
    """
    positions, group = scratch.positions, scratch.group
    document = cursor[2]
    offsets, gaps = documents.offsets, documents.around[3]
    last = offsets.size - 1
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
        number, copied = 0, 0
        while True:
            number, copied, n_ids = put_together(scratch, number, copied, n_others, ids, n_ids)
            if number == n_others:
                break
            other = group[OTHERS + np.uint64(number)]
            i = np.int64(other & ~END_OF_DOCUMENT)
            if not document & gaps:
                n_ids = copy_ids(group, copied, i, ids, n_ids)
            copied = i
            if other >= END_OF_DOCUMENT:
                document, n_ids = close_documents(documents, document, positions[i], ids, n_ids)
            else:
                n_ids = encode_missing(tables, front, words, scratch, buffer, number, ids, n_ids)
                copied += 1
            number += 1
        if not document & gaps:
            n_ids = copy_ids(group, copied, n_pretokens, ids, n_ids)
        say_what_was_added(words)
    if cursor[0] == starts.size:
        document, n_ids = close_documents(documents, document, documents.offsets[last], ids, n_ids)
    cursor[2] = document
    return n_ids
