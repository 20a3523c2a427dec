"""The tables of one vocabulary: which pairs are merged, at which rank, to what.

A pair has the rank that `reference.encode` gives it. Most pairs of tokens are never merged; a bit
set that fits into the second-level cache rules out nearly all of them, and only the others are
looked up in the table of pairs.

The bytes of a character can be merged at once if their merges precede all merges of these bytes, or
of what they become on the way, with a neighbour, and all of the result. Then no neighbour can take
one of them. Neighbours are known by the nearest byte, or its kind: all tokens
that end, or begin, with it count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.encode.cache_rows import hash_bytes, same_bytes
from bpe.runtime.jit import kernel
from bpe.runtime.machine import always_inline, multiply, prefetch

ID_BITS = 21  # of an id, and of a rank, in the tables; so ids are smaller than 2**21 - 1
NO_RANK = np.uint32(0xFFFFFFFF)
NONE = np.uint64(0xFFFFFFFFFFFFFFFF)

# In `Model.byte_pairs`.
UNRANKED = np.uint64((1 << ID_BITS) - 1)
NO_LIMITS = np.uint64((1 << 3 * ID_BITS) - (1 << ID_BITS))

CHARACTERS = 2**11 + 2**16  # of two bytes, and of three
FLAGS = np.uint32(ID_BITS)  # where the bits of kinds begin in `Model.characters`
# The number of kinds of what precedes a character (nothing, a space, another ASCII character, any
# other), and of all kinds, with those of what follows it (nothing, ASCII, any other).
N_BEFORE, KINDS = 4, 7


class Model(NamedTuple):
    """Lookup tables of one vocabulary, read-only and shared by all threads."""

    byte_ids: NDArray[np.int32]  # int32[256], the id of each byte
    # uint64[65536], for the bytes (a, b) at a << 8 | b, ID_BITS each, UNRANKED for none: their
    # rank; the lowest rank of b after a token that ends with a; the lowest of a before one that
    # begins with b
    byte_pairs: NDArray[np.uint64]
    # uint32[CHARACTERS], at `place_of_two` or `place_of_three`: the rank of the merge that makes a
    # character one token, ID_BITS, UNRANKED if there is none or a merge of that token precedes it;
    # then a bit for each kind of neighbour: no merge of it with two of the bytes precedes that one
    characters: NDArray[np.uint32]
    # uint64[capacity], open addressing: left id, right id and rank, ID_BITS each
    pairs: NDArray[np.uint64]
    # uint64[n]: bit set of hashes of pairs; a pair whose bit is not set is not in `pairs`
    pair_filter: NDArray[np.uint64]
    merged: NDArray[np.uint32]  # uint32[n_ranks], the id that the merge of each rank makes
    tokens: NDArray[np.uint64]  # uint64, see `bpe.encode.encode_pretokens.token_hash`
    # int64[5]: bits of an id in rows of `PretokenCache`, ids in the first word there, ids in both;
    # id minus rank of the merge that makes it, -1 if that differs between merges; a random odd
    # number: nobody can make a vocabulary whose pairs, or tokens, all have one place
    packing: NDArray[np.int64]
    # uint64[2 * capacity] or uint64[0]: hash of a token's bytes, its number
    whole: NDArray[np.uint64]
    whole_bytes: NDArray[np.uint8]  # uint8, the bytes of the tokens of `whole`, one after the other
    whole_offsets: NDArray[np.int64]  # int64[n + 1]
    whole_ids: NDArray[np.int32]  # int32[n]


@kernel
def pair_key(left, right):
    """Return both ids of a pair in one word: left << ID_BITS | right.

    >>> hex(pair_key(1, 2))
    '0x200002'
    """
    return (np.uint64(left) << np.uint64(ID_BITS)) | np.uint64(right)


@kernel
def hash_pair(model, key):
    """Return a hash of a pair's key, its high bits well mixed."""
    return multiply(key ^ (key >> np.uint64(17)), np.uint64(model.packing[4]))


@kernel
def filter_bit(hashed, pair_filter):
    """Return the number of a pair's bit in `pair_filter`."""
    return (hashed >> np.uint64(24)) & np.uint64(pair_filter.size * 64 - 1)


@kernel
def may_be_merged(model, left, right):
    """Return 1 for a pair with a merge, 0 for most others; prefetch its place."""
    always_inline()
    hashed = hash_pair(model, pair_key(left, right))
    prefetch(model.pairs, (hashed >> np.uint64(40)) & np.uint64(model.pairs.size - 1))
    bit = filter_bit(hashed, model.pair_filter)
    return (model.pair_filter[bit >> np.uint64(6)] >> (bit & np.uint64(63))) & np.uint64(1)


@kernel
def known_rank(model, left, right):
    """Return the `pair_rank` of a pair that `may_be_merged`."""
    always_inline()
    key = pair_key(left, right)
    mask = np.uint64(model.pairs.size - 1)
    at = (hash_pair(model, key) >> np.uint64(40)) & mask
    while True:
        found = model.pairs[at]
        if found >> np.uint64(ID_BITS) == key:
            return np.uint32(found & np.uint64((1 << ID_BITS) - 1))
        if found == NONE:
            return NO_RANK
        at = (at + np.uint64(1)) & mask


@kernel
def pair_rank(model, left, right):
    """Return the rank of a pair's merge, uint32; NO_RANK if there is none."""
    if may_be_merged(model, left, right) == 0:
        return NO_RANK
    return known_rank(model, left, right)


@kernel
def merged_id(model, rank):
    """Return the id that the merge of a rank makes, uint32."""
    always_inline()
    if model.packing[3] >= 0:
        return rank + np.uint32(model.packing[3])
    return model.merged[np.uint64(rank)]


@kernel
def fill_pairs(model, pairs, first_bytes, last_bytes, lowest):
    """Build the tables of pairs: all of `model.pairs`, pair_filter, merged and byte_pairs.

    Args:
        model: its byte_ids are filled. The capacity of pairs is a power of two of at least n + 1
            and at most 2**24, that of pair_filter a power of two; merged has a place for each rank.
        pairs: `bpe.vocabulary.PairTable`, by rank; the first of equal pairs counts.
        first_bytes, last_bytes: uint8[n_ids], of each token.
        lowest: uint32[KINDS * n_ids]; replaced by the lowest ranks of merges of each token, KINDS
            for each: with any token; with one that ends with a byte of each other `kind_before`;
            unused; with one that begins with a byte of each other `kind_behind`.
    """
    lefts, rights, ranks, merged_ids = pairs
    model.pairs[:] = NONE
    model.pair_filter[:] = np.uint64(0)
    byte_pairs = model.byte_pairs
    byte_pairs[:] = NO_LIMITS | UNRANKED
    mask = np.uint64(model.pairs.size - 1)
    for i in range(lefts.size):
        key = pair_key(lefts[i], rights[i])
        hashed = hash_pair(model, key)
        bit = filter_bit(hashed, model.pair_filter)
        model.pair_filter[bit >> np.uint64(6)] |= np.uint64(1) << (bit & np.uint64(63))
        at = (hashed >> np.uint64(40)) & mask
        while model.pairs[at] != NONE and model.pairs[at] >> np.uint64(ID_BITS) != key:
            at = (at + np.uint64(1)) & mask
        if model.pairs[at] == NONE:
            model.pairs[at] = (key << np.uint64(ID_BITS)) | np.uint64(ranks[i])
            model.merged[ranks[i]] = np.uint32(merged_ids[i])
            a, b = np.int64(first_bytes[lefts[i]]), np.int64(last_bytes[rights[i]])
            if model.byte_ids[a] == lefts[i] and model.byte_ids[b] == rights[i]:
                byte_pairs[a << 8 | b] = NO_LIMITS | min(np.uint64(ranks[i]), UNRANKED)
    lowest[:] = UNRANKED
    for i in range(lefts.size):
        left, right, rank = np.int64(lefts[i]), np.int64(rights[i]), np.uint32(ranks[i])
        before, behind = np.int64(last_bytes[left]), np.int64(first_bytes[right])
        at = KINDS * right + kind_before(before)
        lowest[at] = min(lowest[at], rank)
        at = KINDS * left + N_BEFORE + kind_behind(behind)
        lowest[at] = min(lowest[at], rank)
        for part in (left, right):
            lowest[KINDS * part] = min(lowest[KINDS * part], rank)
        if model.byte_ids[behind] == right:
            lower_limit(byte_pairs, before << 8 | behind, ID_BITS, np.uint64(rank))
        before = np.int64(first_bytes[left])
        if model.byte_ids[before] == left:
            lower_limit(byte_pairs, before << 8 | behind, 2 * ID_BITS, np.uint64(rank))
    fill_characters(model, lowest)


@kernel
def kind_before(byte):
    """Return the kind of a byte before a character: 1 for a space, 2 for other ASCII, 3."""
    always_inline()
    if byte >= 0x80:
        return np.uint32(3)
    return np.uint32(1) + np.uint32(byte != 0x20)


@kernel
def kind_behind(byte):
    """Return the kind of a byte after a character, less N_BEFORE: ASCII -> 1, others -> 2."""
    always_inline()
    return np.uint32(1) + np.uint32(byte >= 0x80)


@kernel
def continues(byte):
    """Return True for a continuation byte of UTF-8, 0x80 to 0xBF."""
    always_inline()
    return byte & np.uint64(0xC0) == np.uint64(0x80)


@kernel
def place_of_two(first, second):
    """Return the place of a character of two bytes in `Model.characters`: C3 A9 -> 0xE9."""
    always_inline()
    return (first & np.uint64(0x1F)) << np.uint64(6) | (second & np.uint64(0x3F))


@kernel
def place_of_three(first, second, third):
    """Return the place of a character of three bytes: E2 82 AC -> 2**11 + 0x20AC."""
    always_inline()
    above = (first & np.uint64(0xF)) << np.uint64(12) | (second & np.uint64(0x3F)) << np.uint64(6)
    return np.uint64(2**11) + (above | (third & np.uint64(0x3F)))


@kernel
def fill_characters(model, lowest):
    """Build `Model.characters`, see `fill_pairs` for `lowest`."""
    characters = model.characters
    characters[:] = np.uint32(UNRANKED)
    every = np.uint32((1 << KINDS) - 1) << FLAGS
    for first in range(0xC0, 0xF0):
        for second in range(0x80, 0xC0):
            front_rank, front = model.byte_pairs[first << 8 | second] & UNRANKED, np.int64(0)
            if front_rank != UNRANKED:
                front = np.int64(model.merged[front_rank])
            if first < 0xE0:
                if front_rank != UNRANKED and front_rank < lowest[KINDS * front]:
                    place = place_of_two(np.uint64(first), np.uint64(second))
                    characters[place] = np.uint32(front_rank) | every
                continue
            for third in range(0x80, 0xC0):
                back_rank = model.byte_pairs[second << 8 | third] & UNRANKED
                if front_rank == back_rank == UNRANKED:
                    continue
                # What the first merge makes may also be merged with a neighbour, which must not
                # happen at the rank of the last merge or before.
                if front_rank <= back_rank:
                    left, right = front, np.int64(model.byte_ids[third])
                    partial, first_kind, last_kind = front, 1, N_BEFORE
                else:
                    left = np.int64(model.byte_ids[first])
                    right = np.int64(model.merged[back_rank])
                    partial, first_kind, last_kind = right, N_BEFORE + 1, KINDS
                rank = np.uint64(pair_rank(model, left, right))
                # One rank is kept, that of the last merge: it has to be the highest.
                if rank >= UNRANKED or rank < min(front_rank, back_rank):
                    continue
                if lowest[KINDS * np.int64(model.merged[rank])] <= rank:
                    continue
                flags = every
                for kind in range(first_kind, last_kind):
                    if lowest[KINDS * partial + kind] <= rank:
                        flags &= ~(np.uint32(1) << (FLAGS + np.uint32(kind)))
                place = place_of_three(np.uint64(first), np.uint64(second), np.uint64(third))
                characters[place] = np.uint32(rank) | flags


@kernel
def lower_limit(byte_pairs, at, shift, rank):
    """Lower the number at bit `shift` of an entry to a rank, if it is higher."""
    if (byte_pairs[at] >> np.uint64(shift)) & UNRANKED > rank:
        byte_pairs[at] &= ~(UNRANKED << np.uint64(shift))
        byte_pairs[at] |= rank << np.uint64(shift)


@kernel
def fill_whole(token_bytes, token_offsets, whole, factor):
    """Build the table from the hash of a token's bytes to its number.

    Args:
        token_bytes: uint8[n_bytes]; token_offsets: int64[n + 1].
        factor: Of hashes, `Model.packing[4]`.
        whole: uint64[2 * capacity], the capacity a power of two of at least n + 1; replaced.
    """
    whole[:] = NONE
    mask = whole.size // 2 - 1
    for i in range(token_offsets.size - 1):
        hashed = hash_bytes(token_bytes, token_offsets[i], token_offsets[i + 1], np.uint64(factor))
        at = np.int64(hashed & np.uint64(mask))
        while whole[at * 2] != NONE:
            at = (at + 1) & mask
        whole[at * 2] = hashed
        whole[at * 2 + 1] = np.uint64(i)


@kernel
def whole_token(model, buffer, start, stop):
    """Return the id of the token that is exactly `buffer[start:stop]`, else -1."""
    if model.whole.size == 0:
        return -1
    mask = model.whole.size // 2 - 1
    hashed = hash_bytes(buffer, start, stop, np.uint64(model.packing[4]))
    at = np.int64(hashed & np.uint64(mask))
    while model.whole[at * 2] != NONE:
        if model.whole[at * 2] == hashed:
            i = np.int64(model.whole[at * 2 + 1])
            begin = model.whole_offsets[i]
            if model.whole_offsets[i + 1] - begin == stop - start and same_bytes(
                model.whole_bytes, begin, buffer, start, stop - start
            ):
                return np.int64(model.whole_ids[i])
        at = (at + 1) & mask
    return -1
