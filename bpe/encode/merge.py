"""Merge one pre-token to token ids, as `reference.encode` does: lowest rank first, then leftmost.

Up to MAX_SYMBOLS symbols, the ranks of all pairs are compared; above, a tree of minima has the
lowest.

In text that begins with a character of several bytes, such a character is a symbol from the start
if no merge with its neighbours has a lower rank than the merges that produce the character: see
`bpe.encode.model`.
"""

from __future__ import annotations

import numpy as np

from bpe.encode.model import (
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
    whole_token,
)
from bpe.runtime import machine
from bpe.runtime.jit import kernel

MAX_SYMBOLS = 64  # up to which the ranks of all pairs are compared
SCRATCH_BYTES = 2112  # of a pre-token for which there is memory; for longer ones more is allocated
# In a row of `Work.links`, for the symbol at each place: its id, and the places of the next symbol
# and of the one before.
_SYMBOL, _FOLLOWING, _PRECEDING = 0, 1, 2


@kernel
def merge_pretoken(model, work, buffer, start, stop, ids):
    """Write the ids of the pre-token `buffer[start:stop]` to `ids`; return their number."""
    machine.always_inline()
    known = whole_token(model, buffer, start, stop)
    if known >= 0:
        ids[0] = known
        return np.int64(1)
    if stop - start <= MAX_SYMBOLS:
        return merge_short(model, work, buffer, start, stop, ids)
    return merge_long(model, work, buffer, start, stop, ids)


@kernel
def merge_short(model, work, buffer, start, stop, ids):
    """Merge at most MAX_SYMBOLS bytes as `merge_pretoken` does."""
    machine.always_inline()
    if begins_beyond_ascii(buffer, start, stop):
        n = lay_out_characters(model, work, buffer, start, stop)
    else:
        n = stop - start
        lay_out_bytes(model, work, buffer, start, n)
    return merge_symbols(model, work, n, ids)


@kernel
def merge_long(model, work, buffer, start, stop, ids):
    """Merge more than MAX_SYMBOLS bytes as `merge_pretoken` does."""
    machine.noinline_cold()
    n = stop - start
    if n <= 3 * MAX_SYMBOLS and begins_beyond_ascii(buffer, start, stop):
        n_symbols = lay_out_characters(model, work, buffer, start, stop)
        if n_symbols > 0:
            return merge_symbols(model, work, n_symbols, ids)
    return merge_by_tree(model, work, buffer, start, stop, ids)


@kernel
def rank_at(rank, at):
    """Pack a rank and a place, smaller for an earlier merge: rank 3 at 5 -> 3 * MAX_SYMBOLS + 5."""
    return NO_RANK if rank == NO_RANK else rank * np.uint32(MAX_SYMBOLS) | np.uint32(at)


@kernel
def byte_rank(entry):
    """Return the rank in an entry of `byte_pairs`, as `pair_rank`: 7 -> 7, UNRANKED -> NO_RANK."""
    rank = entry & UNRANKED
    return NO_RANK if rank == UNRANKED else np.uint32(rank)


@kernel
def lay_out_bytes(model, work, buffer, start, n):
    """Fill `symbols` and `ranks`, one symbol for each of n bytes: a b -> ids; rank of (a, b)."""
    machine.always_inline()
    one = np.uint64(1)
    symbols, ranks = work.symbols, work.ranks
    here = np.uint64(start)
    byte = np.uint64(buffer[here])
    for i in range(n - 1):
        place = np.uint64(i)
        symbols[place] = np.uint32(model.byte_ids[byte])
        following = np.uint64(buffer[here + place + one])
        rank = byte_rank(model.byte_pairs[byte << np.uint64(8) | following])
        ranks[place] = rank_at(rank, place)
        byte = following
    symbols[np.uint64(n - 1)] = np.uint32(model.byte_ids[byte])
    for i in range(n - 1, (n + 15) & ~15):
        ranks[np.uint64(i)] = NO_RANK


@kernel
def lay_out_characters(model, work, buffer, start, stop):
    """Fill `symbols` and `ranks` for `buffer[start:stop]`, with characters as symbols.

    A character is one symbol if its merges precede all others of its bytes, or of what they become,
    with both neighbours, and all of its own. Else its bytes are the symbols.
    Returns the number of symbols; 0 above MAX_SYMBOLS.
    """
    machine.always_inline()
    one, bits = np.uint64(1), np.uint64(ID_BITS)
    symbols, ranks = work.symbols, work.ranks
    byte_pairs, characters = model.byte_pairs, model.characters
    at, end = np.uint64(start), np.uint64(stop)
    n = np.uint64(0)
    # Entry of the bytes on both sides of this place; kind of the byte before it.
    limits, kind = NO_LIMITS, np.uint32(0)
    while at < end:
        byte = np.uint64(buffer[at])
        symbol, last, after = np.uint32(model.byte_ids[byte]), byte, at + one
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
                    symbol, last, after = merged_id(model, np.uint32(rank)), final, behind
        if n == np.uint64(MAX_SYMBOLS):
            return 0
        symbols[n] = symbol
        n += one
        at = after
        if at < end:
            limits = byte_pairs[last << np.uint64(8) | np.uint64(buffer[at])]
            kind = kind_before(last)
    for i in range((np.int64(n) + 15) & ~15):
        ranks[np.uint64(i)] = NO_RANK
    # Without a branch for each, which would be mispredicted.
    mergeable, symbol = np.uint64(0), symbols[np.uint64(0)]
    for i in range(np.int64(n) - 1):
        place = np.uint64(i)
        following = symbols[place + one]
        mergeable |= may_be_merged(model, symbol, following) << place
        symbol = following
    while mergeable != 0:
        place = np.uint64(machine.trailing_zeros(mergeable))
        mergeable &= mergeable - one
        rank = known_rank(model, symbols[place], symbols[place + one])
        ranks[place] = rank_at(rank, place)
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
def merge_symbols(model, work, n, ids):
    """Merge the first n of `work.symbols`; write their ids to `ids`, and return their number.

    `left` has a bit for each symbol that is left, at the place of its first part.
    """
    machine.always_inline()
    left = NONE >> np.uint64(64 - n)
    one = np.uint64(1)
    symbols, ranks = work.symbols, work.ranks
    n_places = (n + 15) & ~15
    best = machine.minimum_of_16(ranks, 0)
    for i in range(16, n_places, 16):
        best = min(best, machine.minimum_of_16(ranks, i))
    while best != NO_RANK:
        # The leftmost of the lowest rank.
        at = np.uint64(best & np.uint32(63))
        symbol = merged_id(model, best >> np.uint32(6))
        after = (left >> at) >> one
        joined = at + one + np.uint64(machine.trailing_zeros(after))
        before = left & ((one << at) - one)
        preceding = np.uint64(63 - machine.leading_zeros(before | one))
        # The smallest of the others, while the ranks of the two new pairs are looked up.
        best = machine.minimum_of_others(ranks, 0, machine.ONE_PLACE, at, joined, preceding)
        for i in range(16, n_places, 16):
            others = machine.minimum_of_others(ranks, i, machine.ONE_PLACE, at, joined, preceding)
            best = min(best, others)
        symbols[at] = symbol
        ranks[joined] = NO_RANK
        left ^= one << joined
        after &= after - one
        new = NO_RANK
        if after != 0:
            following = at + one + np.uint64(machine.trailing_zeros(after))
            new = rank_at(pair_rank(model, symbol, symbols[following]), at)
        ranks[at] = new
        best = min(best, new)
        if before != 0:
            new = rank_at(pair_rank(model, symbols[preceding], symbol), preceding)
            ranks[preceding] = new
            best = min(best, new)
    n_ids = np.int64(0)
    while left != 0:
        ids[n_ids] = symbols[machine.trailing_zeros(left)]
        left &= left - one
        n_ids += 1
    return n_ids


@kernel
def merge_by_tree(model, work, buffer, start, stop, ids):
    """Merge `buffer[start:stop]`, one symbol for each byte at first, in O(n log n) time.

    `work.least` is a tree: an entry for each place, the smallest of every 16 entries, the smallest
    of every 16 of those, and so on. Write the ids to `ids`; return their number.
    """
    n = stop - start
    links, least = work.links, work.least
    lay_out(model, links, least, buffer, start, n)
    best = fill_tree(least, n)
    while best >> np.uint64(32) != NO_RANK:
        at = np.int64(best & np.uint64(0xFFFFFFFF))
        right = np.int64(links[3 * at + _FOLLOWING])
        after = np.int64(links[3 * right + _FOLLOWING])
        symbol = merged_id(model, np.uint32(best >> np.uint64(32)))
        links[3 * at + _SYMBOL] = symbol
        links[3 * at + _FOLLOWING] = np.uint32(after)
        rank = NO_RANK
        if after < n:
            links[3 * after + _PRECEDING] = np.uint32(at)
            rank = pair_rank(model, symbol, links[3 * after + _SYMBOL])
        least[at], least[right] = entry_of(rank, at), NONE
        before = at
        if at > 0:
            before = np.int64(links[3 * at + _PRECEDING])
            rank = pair_rank(model, links[3 * before + _SYMBOL], symbol)
            least[before] = entry_of(rank, before)
        if before >> 4 != right >> 4:
            update_tree(least, n, before)
            update_tree(least, n, at)
        best = update_tree(least, n, right)
    at, n_ids = 0, np.int64(0)
    while at < n:
        ids[n_ids] = links[3 * at + _SYMBOL]
        n_ids += 1
        at = np.int64(links[3 * at + _FOLLOWING])
    return n_ids


@kernel
def entry_of(rank, at):
    """Return the rank of the pair at a place with that place, smaller for an earlier merge."""
    return np.uint64(rank) << np.uint64(32) | np.uint64(at)


@kernel
def lay_out(model, links, least, buffer, start, n):
    """Fill `links`, one symbol for each of n bytes, and the entry of each place."""
    for i in range(n):
        row = 3 * i
        byte, rank = np.int64(buffer[start + i]), NO_RANK
        if i + 1 < n:
            rank = byte_rank(model.byte_pairs[byte << 8 | np.int64(buffer[start + i + 1])])
        least[i] = entry_of(rank, i)
        links[row + _SYMBOL] = np.uint32(model.byte_ids[byte])
        links[row + _FOLLOWING] = np.uint32(i + 1)
        # That of the first is never used.
        links[row + _PRECEDING] = np.uint32(max(i - 1, 0))


@kernel
def fill_tree(least, n):
    """Fill the tree above the first n entries; return the smallest.

    Each level is padded to a multiple of 16 and follows the one below; the last has 16 entries.
    """
    begin, size = 0, (n + 15) & ~15
    least[n:size] = NONE
    while size > 16:
        above, n_above = begin + size, size >> 4
        for i in range(n_above):
            least[above + i] = least_of_16(least, begin + 16 * i)
        size = (n_above + 15) & ~15
        least[above + n_above : above + size] = NONE
        begin = above
    return least_of_16(least, begin)


@kernel
def update_tree(least, n, at):
    """Update the tree above the entry of a place, which has changed; return the smallest of all."""
    begin, size = 0, (n + 15) & ~15
    while size > 16:
        above = begin + size + ((at - begin) >> 4)
        least[above] = least_of_16(least, at & ~15)
        begin, size, at = begin + size, ((size >> 4) + 15) & ~15, above
    return least_of_16(least, begin)


@kernel
def least_of_16(least, first):
    """Return the smallest of the 16 entries from `first` on."""
    machine.always_inline()
    smallest = least[first]
    for i in range(first + 1, first + 16):
        smallest = min(smallest, least[i])
    return smallest
