"""Boundaries of cl100k-style patterns that are rare or depend on distant text.

They are corrected in the blocks that have them, after `cl100k._combine` has found all others.
"""

from __future__ import annotations

import numpy as np

from bpe.runtime.jit import kernel
from bpe.runtime.machine import leading_zeros, noinline_cold, popcount, trailing_zeros
from bpe.split import sets as of
from bpe.split.classes import mark_wide
from bpe.split.sets import behind, below, run, shift

_EVERY_THIRD = np.uint64(0x9249249249249249)


@kernel
def _take_back(starts, k, end):
    """Remove the last boundary before bit `end` of block k, the start of an indent: 0b101 -> 0b1.

    There is one, perhaps in an earlier block: each indent has one boundary and one end.
    """
    before_end = starts[k] & below(end)
    while before_end == np.uint64(0):
        k -= 1
        before_end = starts[k]
    starts[k] ^= np.uint64(1) << np.uint64(63 - leading_zeros(before_end))


@kernel
def mend_indents(first, sets, count, starts):
    r"""Remove the boundaries before indents that end at a line end, in `ENDS`.

    Example: "x\n  \n" has boundaries at 0, 1 and 2 before, at 0 and 1 after.
    """
    noinline_cold()
    for i in range(1, count + 1):
        ends = sets[of.ENDS + i]
        while ends != np.uint64(0):
            _take_back(starts, first + i - 1, trailing_zeros(ends))
            ends &= ends - np.uint64(1)


@kernel
def _count_to_three(firsts, begins, before):
    """Return the `firsts` that are the first, fourth, seventh ... since the last of `begins`.

    Source: the prefix sum of Hillis and Steele, "Data parallel algorithms" (1986), here segmented
    and modulo three: positions whose sum is 1 are in `once`, 2 in `twice`. In every step spans of
    1, 2, 4 ... positions are added to the spans after them, unless counting restarts in between.

    Args:
        firsts: First bytes of numbers.
        begins: Those where counting restarts.
        before: Count at the end of the last block.

    Example: firsts 0b11111, begins 0b1 -> 0b01001.
    """
    one = np.uint64(1)
    once, twice = firsts, np.uint64(0)
    if not begins & one:
        counted = (before + np.int64(firsts & one)) % 3
        once = (firsts & ~one) | np.uint64(counted == 1)
        twice = np.uint64(counted == 2)
    for step in (1, 2, 4, 8, 16, 32):
        more_once = (once << np.uint64(step)) & ~begins
        more_twice = (twice << np.uint64(step)) & ~begins
        # Sums of two bits in three: 7 operations for 64 of them.
        either = (once | more_twice) ^ (twice | more_once)
        once, twice = (twice | more_twice) ^ either, (once | more_once) ^ either
        begins |= begins << np.uint64(step)
    return firsts & once


@kernel
def _mend_numbers(k, sets, i, starts):
    """Mark the boundaries in runs of numbers in block k, block i of the group: up to three a piece.

    Example: "12345 67" -> boundaries at 0, 3 and 6.
    """
    one, zero = np.uint64(1), np.uint64(0)
    numbers, rests = sets[of.NUMBERS + i], sets[of.RESTS + i]
    inner = numbers & behind(sets, of.NUMBERS, i, 1) & ~sets[of.DOCUMENTS + i]
    pieces = numbers ^ inner
    # In the last block, boundaries among its last numbers are those of pieces.
    last = starts[k - 1] if k > 0 else zero
    if (numbers & rests) | (sets[of.RESTS + i - 1] >> np.uint64(61)) == zero:
        # A piece begins three digits after another, unless one begins in between.
        third = inner & behind(sets, of.NUMBERS, i, 2) & behind(sets, of.NUMBERS, i, 3)
        third &= ~(shift(last, pieces, 1) | shift(last, pieces, 2))
        pieces |= third & shift(last, pieces, 3)
        for step in (3, 6, 12, 24, 48):
            pieces |= third & (pieces << np.uint64(step))
            third &= third << np.uint64(step)
    else:
        in_last_piece = ~below(63 - leading_zeros(last | one))
        last_numbers = sets[of.NUMBERS + i - 1] & ~sets[of.RESTS + i - 1] & in_last_piece
        pieces |= _count_to_three(numbers & ~rests, pieces, popcount(last_numbers))
    starts[k] |= pieces


@kernel
def mend_words(first, sets, count, starts):
    """Mark the boundaries in words that have letters without case, or marks.

    Example (U+02B0, a letter without case, as m): "amB" -> boundaries at a and B.
    """
    noinline_cold()
    one, zero = np.uint64(1), np.uint64(0)
    open_capitals = np.int64(sets[of.OPEN_CAPITALS])
    last_caseless = sets[of.LETTERS] ^ (sets[of.UPPERS] | sets[of.LOWERS])
    for i in range(1, count + 1):
        same = ~sets[of.DOCUMENTS + i]
        letters, uppers, lowers = sets[of.LETTERS + i], sets[of.UPPERS + i], sets[of.LOWERS + i]
        caseless = letters ^ (uppers | lowers)
        # Letters without case continue the case before them.
        small = lowers | run(caseless & same, caseless & behind(sets, of.LOWERS, i, 1) & same)
        caseless &= ~small
        found = uppers & shift(sets[of.LOWERS + i - 1], small, 1)
        # A capital after letters without case begins a word if no small letter follows it.
        goes_on = uppers & same
        if open_capitals != 0 and ~goes_on != zero:
            if not (letters & same) >> np.uint64(trailing_zeros(~goes_on)) & one:
                place = open_capitals - 1
                starts[place >> 6] |= one << np.uint64(place & 63)
            open_capitals = np.int64(0)
        capitals = goes_on & shift(last_caseless, caseless, 1)
        while capitals != zero:
            j = trailing_zeros(capitals)
            capitals &= capitals - one
            outside = ~goes_on & ~below(j) & ~(one << np.uint64(j))
            if outside == zero:
                open_capitals = (np.int64(first + i - 1) << 6) + j + 1
            elif not (letters & same) >> np.uint64(trailing_zeros(outside)) & one:
                found |= one << np.uint64(j)
        starts[first + i - 1] |= found
        sets[of.LOWERS + i] = small
        last_caseless = caseless
    sets[of.OPEN_CAPITALS] = np.uint64(open_capitals)
    sets[of.CASELESS] = last_caseless | np.uint64(open_capitals)


@kernel
def mend(flags, source, base, sets, blocks, starts):
    """Mark the boundaries at `MENDS`: wide white space, long numbers ("1234" -> also at 3).

    `blocks`: the first block of the group, and their number.
    """
    noinline_cold()
    first, count = blocks
    for i in range(1, count + 1):
        places = sets[of.MENDS + i]
        k = first + i - 1
        if places & sets[of.WHITE + i] != np.uint64(0):
            mark_wide(source, base, k, places & sets[of.WHITE + i], starts)
        if not flags & of.SINGLE_DIGITS and places & sets[of.NUMBERS + i] != np.uint64(0):
            rests = sets[of.RESTS + i] | (sets[of.RESTS + i - 1] >> np.uint64(61))
            before = np.int64(3)
            if places == ~np.uint64(0) and rests == np.uint64(0):
                before = leading_zeros(starts[k - 1] | np.uint64(1))
            # Invalid UTF-8 may have no boundary among the three bytes before.
            if before < 3:
                # Only digits: every third, from three after the last.
                starts[k] = _EVERY_THIRD << np.uint64(2 - before)
            else:
                _mend_numbers(k, sets, i, starts)
        base += 64
