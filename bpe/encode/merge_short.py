"""A pre-token of at most MAX_SHORT symbols -> token ids: the ranks of all pairs are compared.

In text that begins with a character of several bytes, such a character is a symbol from the start
if no merge with its neighbours has a lower rank than the merges that produce the character: see
`bpe.encode.merge_tables`.

`scratch` is a `bpe.encode.group.Scratch` everywhere.
"""

from __future__ import annotations

import numpy as np

from bpe.encode.merge_tables import (
    FLAGS,
    ID_BITS,
    N_BEFORE,
    NO_LIMITS,
    NO_RANK,
    NONE,
    UNRANKED,
    continues,
    kind_before,
    kind_behind,
    known_rank,
    may_be_merged,
    merged_id,
    pair_rank,
    place_of_three,
    place_of_two,
)
from bpe.runtime import machine
from bpe.runtime.jit import kernel

MAX_SHORT = 64  # symbols up to which the ranks of all pairs are compared


@kernel
def pack(rank, at):
    """Pack a rank and a place, smaller for an earlier merge: rank 3 at 5 -> 3 * MAX_SHORT + 5."""
    return NO_RANK if rank == NO_RANK else rank * np.uint32(MAX_SHORT) | np.uint32(at)


@kernel
def byte_rank(entry):
    """Return the rank in an entry of `byte_pairs`, as `pair_rank`: 7 -> 7, UNRANKED -> NO_RANK."""
    rank = entry & UNRANKED
    return NO_RANK if rank == UNRANKED else np.uint32(rank)


@kernel
def lay_out_bytes(tables, scratch, buffer, start, n):
    """Fill `symbols` and `packed`, one symbol for each of n bytes: a b -> ids; rank of (a, b)."""
    machine.always_inline()
    one = np.uint64(1)
    symbols, packed = scratch.symbols, scratch.packed
    here = np.uint64(start)
    byte = np.uint64(buffer[here])
    for i in range(n - 1):
        place = np.uint64(i)
        symbols[place] = np.uint32(tables.byte_ids[byte])
        following = np.uint64(buffer[here + place + one])
        rank = byte_rank(tables.byte_pairs[byte << np.uint64(8) | following])
        packed[place] = pack(rank, place)
        byte = following
    symbols[np.uint64(n - 1)] = np.uint32(tables.byte_ids[byte])
    for i in range(n - 1, (n + 15) & ~15):
        packed[np.uint64(i)] = NO_RANK


@kernel
def lay_out_characters(tables, scratch, buffer, start, stop):
    """Fill `symbols` and `packed` for `buffer[start:stop]`, with characters as symbols.

    A character is one symbol if its merges precede all others of its bytes, or of what they become,
    with both neighbours, and all of its own. Else its bytes are the symbols.
    Returns the number of symbols (C3 A9 61 with merge (C3, A9) -> 2); 0 above MAX_SHORT.
    """
    machine.always_inline()
    one, bits = np.uint64(1), np.uint64(ID_BITS)
    symbols, packed = scratch.symbols, scratch.packed
    byte_pairs, characters = tables.byte_pairs, tables.characters
    at, end = np.uint64(start), np.uint64(stop)
    n = np.uint64(0)
    # Entry of the bytes on both sides of this place; kind of the byte before it.
    limits, kind = NO_LIMITS, np.uint32(0)
    while at < end:
        byte = np.uint64(buffer[at])
        symbol, last, after = np.uint32(tables.byte_ids[byte]), byte, at + one
        if byte >= np.uint64(0xC0) and byte < np.uint64(0xF0):
            behind = after + one + np.uint64(byte >= np.uint64(0xE0))
            if behind <= end:
                second, final = np.uint64(buffer[after]), np.uint64(buffer[behind - one])
                place = place_of_two(byte, second)
                if byte >= np.uint64(0xE0):
                    place = place_of_three(byte, second, final)
                entry = characters[place]
                rank = np.uint64(entry) & UNRANKED
                following_kind, limits_behind = np.uint32(0), NO_LIMITS
                if behind < end:
                    following = np.uint64(buffer[behind])
                    following_kind = kind_behind(following)
                    limits_behind = byte_pairs[final << np.uint64(8) | following]
                needed = np.uint32(1) << kind | np.uint32(1 << N_BEFORE) << following_kind
                if (
                    rank < (limits >> bits) & UNRANKED
                    and rank < (limits_behind >> bits >> bits) & UNRANKED
                    and (entry >> FLAGS) & needed == needed
                    and continues(second)
                    and continues(final)
                ):
                    symbol, last, after = merged_id(tables, np.uint32(rank)), final, behind
        if n == np.uint64(MAX_SHORT):
            return 0
        symbols[n] = symbol
        n += one
        at = after
        if at < end:
            limits = byte_pairs[last << np.uint64(8) | np.uint64(buffer[at])]
            kind = kind_before(last)
    for i in range((np.int64(n) + 15) & ~15):
        packed[np.uint64(i)] = NO_RANK
    # Without a branch for each, which would be mispredicted.
    mergeable, symbol = np.uint64(0), symbols[np.uint64(0)]
    for i in range(np.int64(n) - 1):
        place = np.uint64(i)
        following = symbols[place + one]
        mergeable |= may_be_merged(tables, symbol, following) << place
        symbol = following
    while mergeable != 0:
        place = np.uint64(machine.trailing_zeros(mergeable))
        mergeable &= mergeable - one
        rank = known_rank(tables, symbols[place], symbols[place + one])
        packed[place] = pack(rank, place)
    return np.int64(n)


@kernel
def begins_beyond_ascii(buffer, start, stop):
    """Return True if the first character, after a space if any, is not ASCII: " é" -> True."""
    machine.always_inline()
    at = np.uint64(start)
    if buffer[at] == 0x20 and start + 1 < stop:
        at += np.uint64(1)
    return buffer[at] >= 0xC0


@kernel
def merge_short(tables, scratch, buffer, start, stop, ids, n_ids):
    """Merge at most MAX_SHORT bytes as `merge_pretoken` does: a b a b, merge (a, b) -> ab ab."""
    machine.always_inline()
    if begins_beyond_ascii(buffer, start, stop):
        n = lay_out_characters(tables, scratch, buffer, start, stop)
    else:
        n = stop - start
        lay_out_bytes(tables, scratch, buffer, start, n)
    return merge_symbols(tables, scratch, n, ids, n_ids)


@kernel
def merge_symbols(tables, scratch, n, ids, n_ids):
    """Merge the first n symbols; append their ids and return the number of ids.

    Of a merge the first place is left: a b c with merges (b, c), (a, bc) -> 0b111, 0b011, 0b001.
    """
    machine.always_inline()
    left = NONE >> np.uint64(64 - n)
    one = np.uint64(1)
    symbols, packed = scratch.symbols, scratch.packed
    n_places = (n + 15) & ~15
    best = machine.minimum_of_16(packed, 0)
    for i in range(16, n_places, 16):
        best = min(best, machine.minimum_of_16(packed, i))
    while best != NO_RANK:
        # The leftmost of the lowest rank.
        at = np.uint64(best & np.uint32(63))
        symbol = merged_id(tables, best >> np.uint32(6))
        after = (left >> at) >> one
        joined = at + one + np.uint64(machine.trailing_zeros(after))
        before = left & ((one << at) - one)
        preceding = np.uint64(63 - machine.leading_zeros(before | one))
        # The smallest of the others, while the ranks of the two new pairs are looked up.
        best = machine.minimum_of_others(packed, 0, machine.ONE_PLACE, at, joined, preceding)
        for i in range(16, n_places, 16):
            others = machine.minimum_of_others(packed, i, machine.ONE_PLACE, at, joined, preceding)
            best = min(best, others)
        symbols[at] = symbol
        packed[joined] = NO_RANK
        left ^= one << joined
        after &= after - one
        new = NO_RANK
        if after != 0:
            following = at + one + np.uint64(machine.trailing_zeros(after))
            new = pack(pair_rank(tables, symbol, symbols[following]), at)
        packed[at] = new
        best = min(best, new)
        if before != 0:
            new = pack(pair_rank(tables, symbols[preceding], symbol), preceding)
            packed[preceding] = new
            best = min(best, new)
    while left != 0:
        ids[n_ids] = symbols[machine.trailing_zeros(left)]
        left &= left - one
        n_ids += 1
    return n_ids
