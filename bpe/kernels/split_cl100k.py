r"""Bytes -> boundaries of pre-tokens for the patterns that descend from cl100k, 64 bytes at a time.

Law: `split_cl100k` sets bit i of `starts` exactly where `reference.split` begins a
pre-token, for every document of the buffer at once and for every sum of the flags below. Which
flags a pattern has is told in `bpe.pretokenize`; one more of this family is one more line there.

As in `split_gpt2` a block becomes bit sets, one for each class of characters, and boundaries are
shifts and masks of them. There are too many sets for the registers of a machine. So they lie in
memory, the words of a group of blocks side by side, and each step is a loop over the group that
needs few of them:

1. the classes of characters (`classify`, `classify_rest`);
2. what is settled from left to right (`take_lines`, `end_words`, `find_indents`);
3. the boundaries (`combine`). A block finds in memory what it must know of its neighbours and waits
   for none of them, so that the compiler works on several at once;
4. what is rare, in the blocks that have some of it (`mend_*`).

What a group has nothing of (punctuation, apostrophes, line ends) is passed over.

What these patterns add to gpt2's is that one thing can depend on another far away:

- `[\r\n]*` after punctuation takes line ends (and slashes), which then belong to no white space. A
  run is followed from where it begins by the carry of an addition.
- `\s*[\r\n]+` reaches to the *last* line end of its white space. The blanks after a line end are
  taken for a new piece at first; where they turn out to end at another line end, that boundary is
  taken back, in an earlier block if need be.
- `\p{N}{1,3}` counts. Runs of up to three digits need no counting.
- o200k's words are cut where a small letter is followed by a capital. A letter that is neither
  (and a mark) goes with what is before it; that is one more addition.
- o200k's marks are letters, except after punctuation that takes them. That decides what the next
  mark is, so it is settled from left to right; it is rare.
- A contraction behind a word (o200k) ends it: its letters count as no letters, so that whatever
  follows begins anew.
"""

from __future__ import annotations

import functools

import numpy as np

from bpe.kernels.jit import kernel
from bpe.kernels.machine import (
    add,
    always_inline,
    leading_zeros,
    noinline,
    noinline_cold,
    popcount,
    range_mask,
    trailing_zeros,
)
from bpe.kernels.split import MANY, character, page_classifier, sure_letters

# Flags of bpe.unicode_classes, as constants that the compiler can fold.
_LETTER, _NUMBER, _WHITE_SPACE, _MARK, _UPPER, _LOWER = 1, 2, 4, 8, 16, 32

CASED = 1
"""Words are o200k's: marks are letters, a capital after a small letter begins a new word."""
SUFFIXES = 2
"""A contraction goes with the word before it (o200k), else it stands alone (cl100k)."""
SLASHES = 4
"""Line ends after punctuation take slashes with them."""
SINGLE_DIGITS = 8
"""Each number stands alone, else up to three go together."""
WHOLE_END = 16
"""White space that ends the text is one piece (tiktoken's `\\s++$`)."""

GROUP = 64
"""Blocks that go through one step together: their sets fit into the nearest cache."""

# The sets of a group. Each is a row of words: the first is of the block before the group, then come
# those of its blocks, and the last has what must be known of the block behind it.
_WIDTH = GROUP + 2
_N_SETS = 20
(
    _DOCUMENTS,  # where documents begin
    _LETTERS,  # CASED: with marks; without those of contractions
    _UPPERS,
    _LOWERS,  # and the letters without case that go on with them
    _MARKS,
    _NUMBERS,
    _BLANKS,  # U+0020
    _WHITE,  # white space but ends of lines
    _LINE_ENDS,
    _LINES,  # SLASHES: what line ends after punctuation go on with
    _QUOTES,  # apostrophes
    _OTHERS,  # punctuation: none of letters, marks, numbers and white space
    _RESTS,  # bytes of a character behind its first
    _TAKEN,  # lines that punctuation takes
    _PIECES,  # where punctuation begins
    _SINGLE,  # the characters that begin there
    _INDENTS,  # white space behind a line end of white space
    _ENDS,  # line ends directly behind it; WHOLE_END: and ends of documents
    _FOUND,  # boundaries
    _MENDS,  # places that `mend` must look at
) = range(0, _N_SETS * _WIDTH, _WIDTH)

# What else goes from block to block: the class of a character that goes on in the next one and the
# bytes that it has there, the letters that a contraction has there, whether there are letters
# without case, and one more than the place of a boundary that may be made.
_SPILL_FLAGS, _SPILL, _SPENT, _CASELESS, _OPEN_CAPITALS = range(
    _N_SETS * _WIDTH, _N_SETS * _WIDTH + 5
)
STATE_WORDS = _N_SETS * _WIDTH + 5


_EVERY_THIRD = np.uint64(0x9249249249249249)


_FEW_APOSTROPHES, _FEW_ENDS = 5, 40
"""So many apostrophes of a block, or ends of indents of a group, are looked at one by one."""


@kernel
def _run(members, seeds):
    """The bits of `members` from each seed to the end of its run, towards higher bits.

    `seeds` are members, and more than one may stand in a run.
    """
    return (members & ~add(members, seeds)) | seeds


@kernel
def _below(bit):
    """All bits below bit number `bit`, 0 to 63."""
    return (np.uint64(1) << np.uint64(bit)) - np.uint64(1)


@kernel
def _shift(before, word, n):
    """`word` moved up by `n` places, 1 to 63; `before` is the same set of the block before."""
    return (word << np.uint64(n)) | (before >> np.uint64(64 - n))


@kernel
def _behind(sets, row, i, n):
    """The places of block i that are `n` places behind a member of a set."""
    return _shift(sets[row + i - 1], sets[row + i], n)


@kernel
def _is_empty(sets, row):
    """Whether no block of the group has a member of this set."""
    members = np.uint64(0)
    for i in range(1, GROUP + 1):
        members |= sets[row + i]
    return members == np.uint64(0)


@kernel
def _clear(sets, row):
    """Leave the blocks of the group no member of this set."""
    for i in range(1, GROUP + 1):
        sets[row + i] = np.uint64(0)


@kernel
def _first_characters(first_bytes, rests, last):
    """The bits of the characters that begin at `first_bytes`, and of one that `last` ends with."""
    if rests != np.uint64(0):
        one = np.uint64(1)
        first_bytes |= (last >> np.uint64(63)) & rests
        first_bytes |= (first_bytes << one) & rests
        first_bytes |= (first_bytes << one) & rests
        first_bytes |= (first_bytes << one) & rests
    return first_bytes


@kernel
def contraction(source, at):
    """Bytes of the letters of a contraction behind the apostrophe `source[at]`, 0 if it is none.

    The letters are s, t, m, d, re, ve or ll, small or capital, or U+017F, which folds to s. Looks
    at two bytes behind the apostrophe.
    """
    second = np.int64(source[at + 1]) | 0x20
    if second == 115 or second == 116 or second == 109 or second == 100:
        return 1
    third = np.int64(source[at + 2])
    if second == 0xE5:
        return 2 if source[at + 1] == 0xC5 and third == 0xBF else 0
    third |= 0x20
    if second == 108:
        return 2 if third == 108 else 0
    if second == 118 or second == 114:
        return 2 if third == 101 else 0
    return 0


@kernel
def _letter_mask(source, at, letter):
    """Which of the 64 bytes from `source[at]` are this small letter, or the capital."""
    return range_mask(source, at, letter, letter) | range_mask(source, at, letter - 32, letter - 32)


@kernel
def contractions(source, base, apostrophes):
    """Which of these apostrophes of a block begin contractions of one letter byte, and of two.

    As `contraction` says it of one; looks at two bytes behind the block.
    """
    one_letter = range_mask(source, base + 1, 115, 116) | range_mask(source, base + 1, 83, 84)
    one_letter |= _letter_mask(source, base + 1, 100) | _letter_mask(source, base + 1, 109)
    two = _letter_mask(source, base + 1, 114) | _letter_mask(source, base + 1, 118)
    two &= _letter_mask(source, base + 2, 101)
    two |= _letter_mask(source, base + 1, 108) & _letter_mask(source, base + 2, 108)
    two |= range_mask(source, base + 1, 0xC5, 0xC5) & range_mask(source, base + 2, 0xBF, 0xBF)
    return apostrophes & one_letter, apostrophes & two


@kernel
def alternate(short, long):
    """Which of these contractions end a word, where one directly behind such a one does not.

    `short` and `long` are the apostrophes of those with one byte of letters, and with two.
    """
    zero, two, three = np.uint64(0), np.uint64(2), np.uint64(3)
    waiting = ((short << two) | (long << three)) & (short | long)
    ending = (short | long) ^ waiting
    if waiting != zero and long == zero:
        # They stand two places apart: of a run, those count that are four places apart.
        fourth = waiting & (waiting << two)
        for step in (4, 8, 16, 32):
            ending |= fourth & (ending << np.uint64(step))
            fourth &= fourth << np.uint64(step)
        return ending
    while waiting != zero:
        none = waiting & (((ending & short) << two) | ((ending & long) << three))
        waiting ^= none
        found = waiting & (((none & short) << two) | ((none & long) << three))
        waiting ^= found
        ending |= found
    return ending


@kernel
def white_follows(source, at, classes):
    """Whether white space, if it is before `source[at]`, goes on there; that is not ASCII.

    It does in the middle of a character. Looks at four bytes.
    """
    noinline_cold()
    if source[at] < 0xC2:
        return True
    code_point, _ = character(source, at)
    return classes[code_point] & _WHITE_SPACE != 0


@kernel
def take_back(starts, k, end):
    """Take back the last boundary before place `end` of block k: an indent begins there.

    There is one, in an earlier block if need be: each indent has a boundary and one end.
    """
    before_end = starts[k] & _below(end)
    while before_end == np.uint64(0):
        k -= 1
        before_end = starts[k]
    starts[k] ^= np.uint64(1) << np.uint64(63 - leading_zeros(before_end))


@kernel
def mend_many_indents(first, sets, count, starts):
    """What `mend_indents` does, for all indents of a group at once."""
    one, zero = np.uint64(1), np.uint64(0)
    # Within a block each end spreads down through its indent. The row of what was found is free:
    # that is in `starts` already.
    for i in range(1, GROUP + 1):
        indents = sets[_INDENTS + i]
        inner = indents & (sets[_ENDS + i] >> one)
        inner |= indents & (inner >> one)
        indents &= indents >> one
        inner |= indents & (inner >> np.uint64(2))
        indents &= indents >> np.uint64(2)
        inner |= indents & (inner >> np.uint64(4))
        indents &= indents >> np.uint64(4)
        inner |= indents & (inner >> np.uint64(8))
        indents &= indents >> np.uint64(8)
        inner |= indents & (inner >> np.uint64(16))
        indents &= indents >> np.uint64(16)
        sets[_FOUND + i] = inner | (indents & (inner >> np.uint64(32)))
    # From the last block to the first: an indent goes on in the next one.
    inner_follows = zero
    for i in range(count, 0, -1):
        indents = sets[_INDENTS + i]
        at_top = indents & ~(~zero >> np.uint64(leading_zeros(~indents | one)))
        if indents == ~zero:
            at_top = indents
        # Without a branch on what follows: nobody can guess it.
        inner = sets[_FOUND + i] | (at_top & add(~inner_follows, one))
        starts[np.uint64(first + i - 1)] &= ~inner | _behind(sets, _INDENTS, i, 1)
        inner_follows = (inner | sets[_ENDS + i]) & (sets[_INDENTS + i - 1] >> np.uint64(63))
    if inner_follows != zero:
        take_back(starts, first, 0)


@kernel
def mend_indents(first, sets, count, starts):
    """Take back the boundaries before indents that end at a line end, as `_ENDS` tells."""
    noinline_cold()
    n_ends = 0
    for i in range(1, count + 1):
        n_ends += popcount(sets[_ENDS + i])
    if n_ends > _FEW_ENDS:
        mend_many_indents(first, sets, count, starts)
        return
    for i in range(1, count + 1):
        ends = sets[_ENDS + i]
        while ends != np.uint64(0):
            take_back(starts, first + i - 1, trailing_zeros(ends))
            ends &= ends - np.uint64(1)


@kernel
def mend_wide(source, base, k, wide, starts):
    """Boundaries before characters of several bytes, white space, that end at `wide` in block k."""
    one = np.uint64(1)
    while wide != np.uint64(0):
        # Back to the first byte: U+0085 and U+00A0 have two bytes, the others three.
        j = trailing_zeros(wide) - 1
        wide &= wide - one
        if source[base + j] & 0xC0 == 0x80:
            j -= 1
        if j >= 0:
            starts[k] |= one << np.uint64(j)
        else:
            starts[k - 1] |= one << np.uint64(64 + j)


@kernel
def _count_to_three(firsts, begins, before):
    """The `firsts` that are the first, fourth, seventh ... since the last of `begins`.

    Each place has the number of those up to it modulo three: it is in `once`, in `twice`, or in
    neither. In every step spans of 1, 2, 4 ... places are added to the spans after them, unless
    something begins in between.

    Source: the prefix sum of Hillis and Steele, "Data parallel algorithms" (1986), here segmented,
    modulo three and in the bits of two words.

    Args:
        firsts: first bytes of numbers.
        begins: where counting begins anew; firsts, too.
        before: how many have been counted at the end of the block before.
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
def mend_numbers(k, sets, i, starts):
    """Boundaries in runs of numbers in block k, word i of the sets: three go together."""
    always_inline()
    one, zero = np.uint64(1), np.uint64(0)
    numbers, rests = sets[_NUMBERS + i], sets[_RESTS + i]
    inner = numbers & _behind(sets, _NUMBERS, i, 1) & ~sets[_DOCUMENTS + i]
    pieces = numbers ^ inner
    # Of the block before, the boundaries among its last numbers are their pieces.
    last = starts[k - 1] if k > 0 else zero
    if (numbers & rests) | (sets[_RESTS + i - 1] >> np.uint64(61)) == zero:
        # A piece begins three places after another, if none has begun in between.
        third = inner & _behind(sets, _NUMBERS, i, 2) & _behind(sets, _NUMBERS, i, 3)
        third &= ~(_shift(last, pieces, 1) | _shift(last, pieces, 2))
        pieces |= third & _shift(last, pieces, 3)
        for step in (3, 6, 12, 24, 48):
            pieces |= third & (pieces << np.uint64(step))
            third &= third << np.uint64(step)
    else:
        in_last_piece = ~_below(63 - leading_zeros(last | one))
        last_numbers = sets[_NUMBERS + i - 1] & ~sets[_RESTS + i - 1] & in_last_piece
        pieces |= _count_to_three(numbers & ~rests, pieces, popcount(last_numbers))
    starts[k] |= pieces


@kernel
def mend_words(first, sets, count, starts):
    """Boundaries in words that have letters without case, or marks."""
    noinline_cold()
    one, zero = np.uint64(1), np.uint64(0)
    open_capitals = np.int64(sets[_OPEN_CAPITALS])
    last_caseless = sets[_LETTERS] ^ (sets[_UPPERS] | sets[_LOWERS])
    for i in range(1, count + 1):
        same = ~sets[_DOCUMENTS + i]
        letters, uppers, lowers = sets[_LETTERS + i], sets[_UPPERS + i], sets[_LOWERS + i]
        caseless = letters ^ (uppers | lowers)
        # Letters without case go on with the case before them.
        small = lowers | _run(caseless & same, caseless & _behind(sets, _LOWERS, i, 1) & same)
        caseless &= ~small
        found = uppers & _shift(sets[_LOWERS + i - 1], small, 1)
        # Capitals after those that have none before them are a word of their own if they end it.
        goes_on = uppers & same
        if open_capitals != 0 and ~goes_on != zero:
            if not (letters & same) >> np.uint64(trailing_zeros(~goes_on)) & one:
                place = open_capitals - 1
                starts[place >> 6] |= one << np.uint64(place & 63)
            open_capitals = np.int64(0)
        capitals = goes_on & _shift(last_caseless, caseless, 1)
        while capitals != zero:
            j = trailing_zeros(capitals)
            capitals &= capitals - one
            outside = ~goes_on & ~_below(j) & ~(one << np.uint64(j))
            if outside == zero:
                open_capitals = (np.int64(first + i - 1) << 6) + j + 1
            elif not (letters & same) >> np.uint64(trailing_zeros(outside)) & one:
                found |= one << np.uint64(j)
        starts[first + i - 1] |= found
        sets[_LOWERS + i] = small
        last_caseless = caseless
    sets[_OPEN_CAPITALS] = np.uint64(open_capitals)
    sets[_CASELESS] = last_caseless | np.uint64(open_capitals)


@functools.cache
def scanner(flags):
    """The kernel for one pattern: `split_cl100k` with the flags as constants.

    What a pattern does not need is not compiled.

    Args:
        flags: a sum of the flags of this module.
    """
    cased = flags & CASED != 0
    suffixes = flags & SUFFIXES != 0
    slashes_too = flags & SLASHES != 0
    single_digits = flags & SINGLE_DIGITS != 0
    whole_end = flags & WHOLE_END != 0
    classify_pages = page_classifier(cased)

    @kernel
    def classify(source, base, sets, count):
        """The classes of ASCII, and in `_RESTS` the bytes beyond it; whether there are any."""
        beyond = sets[_SPILL]
        # No `range(1, count + 1)`: so the compiler knows that no place is negative.
        for i in range(1, GROUP + 1):
            if i > count:
                break
            lowers = range_mask(source, base, 97, 122)
            uppers = range_mask(source, base, 65, 90)
            letters = lowers | uppers
            numbers = range_mask(source, base, 48, 57)
            blanks = range_mask(source, base, 32, 32)
            line_ends = range_mask(source, base, 10, 10) | range_mask(source, base, 13, 13)
            white = (range_mask(source, base, 9, 13) ^ line_ends) | blanks
            rests = range_mask(source, base, 0x80, 0xFF)
            sets[_LETTERS + i] = letters
            sets[_NUMBERS + i] = numbers
            sets[_BLANKS + i] = blanks
            sets[_WHITE + i] = white
            sets[_LINE_ENDS + i] = line_ends
            sets[_QUOTES + i] = range_mask(source, base, 39, 39)
            sets[_OTHERS + i] = ~(letters | numbers | white | line_ends)
            sets[_RESTS + i] = rests
            if slashes_too:
                sets[_LINES + i] = line_ends | range_mask(source, base, 47, 47)
            if cased:
                sets[_LOWERS + i] = lowers
                sets[_UPPERS + i] = uppers
                sets[_MARKS + i] = np.uint64(0)
            beyond |= rests
            base += 64
        return beyond != np.uint64(0)

    @kernel
    def classify_rest(source, base, classes, pages, sets, count):
        """The classes of the characters that are not ASCII."""
        noinline_cold()
        one, zero = np.uint64(1), np.uint64(0)
        spill_flags, spill = np.int64(sets[_SPILL_FLAGS]), sets[_SPILL]
        caseless = zero
        for i in range(1, count + 1):
            if sets[_RESTS + i] | spill == zero:
                base += 64
                continue
            letters, numbers, white = sets[_LETTERS + i], sets[_NUMBERS + i], sets[_WHITE + i]
            uppers = lowers = marks = zero
            if spill_flags & _LETTER:
                letters |= spill
                if spill_flags & _UPPER:
                    uppers |= spill
                elif spill_flags & _LOWER:
                    lowers |= spill
            elif spill_flags & _NUMBER:
                numbers |= spill
            elif spill_flags & _WHITE_SPACE:
                white |= spill
            elif cased and spill_flags & _MARK:
                marks |= spill
            spill = zero
            leads = range_mask(source, base, 0xC2, 0xF4)
            sure = sure_letters(source, base)
            letters |= sure | (sure << one) | (sure << np.uint64(2))
            leads ^= sure
            if popcount(leads) >= MANY:
                found = classify_pages(source, base, leads, pages)
                leads = found[0]
                letters |= found[1]
                numbers |= found[2]
                white |= found[3]
                if cased:
                    marks |= found[4]
                    uppers |= found[5]
                    lowers |= found[6]
            while leads != zero:
                j = trailing_zeros(leads)
                leads &= leads - one
                code_point, width = character(source, base + j)
                char_flags = np.int64(classes[code_point])
                bits = ((one << width) - one) << np.uint64(j)
                if char_flags & _LETTER:
                    letters |= bits
                    if cased:
                        if char_flags & _UPPER:
                            uppers |= bits
                        elif char_flags & _LOWER:
                            lowers |= bits
                elif char_flags & _NUMBER:
                    numbers |= bits
                elif char_flags & _WHITE_SPACE:
                    white |= bits
                elif cased and char_flags & _MARK:
                    marks |= bits
                if j > 60:
                    spill = ((one << width) - one) >> np.uint64(64 - j)
                    spill_flags = char_flags
            if cased:
                letters |= marks
                uppers |= sets[_UPPERS + i]
                lowers |= sets[_LOWERS + i]
                sets[_UPPERS + i] = uppers
                sets[_LOWERS + i] = lowers
                sets[_MARKS + i] = marks
                caseless |= letters ^ (uppers | lowers)
            sets[_LETTERS + i] = letters
            sets[_NUMBERS + i] = numbers
            # Only in what is not UTF-8 can a character take an end of a line for its own.
            sets[_WHITE + i] = white & ~sets[_LINE_ENDS + i]
            sets[_OTHERS + i] = ~(letters | numbers | white | sets[_LINE_ENDS + i])
            sets[_RESTS + i] = range_mask(source, base, 0x80, 0xBF)
            base += 64
        sets[_SPILL_FLAGS], sets[_SPILL] = np.uint64(spill_flags), spill
        sets[_CASELESS] |= caseless

    @kernel
    def punctuation(sets, i, others, last_other, last_taken, last_single):
        """What is punctuation in block i, the lines it takes, where it begins, what it begins with.

        `others` are the candidates, and `last_*` these sets in the block before.
        """
        same = ~sets[_DOCUMENTS + i]  # places whose character before them is of the same document
        line_ends = sets[_LINE_ENDS + i]
        lines = (sets[_LINES + i] if slashes_too else line_ends) & same
        behind_other = _shift(last_other, others, 1) & same
        taken = _run(lines, (line_ends & behind_other) | (lines & (last_taken >> np.uint64(63))))
        if slashes_too:
            others &= ~taken
            behind_other = _shift(last_other, others, 1) & same
        pieces = others & ~(behind_other | (_behind(sets, _BLANKS, i, 1) & same))
        single = _first_characters(pieces, sets[_RESTS + i], last_single)
        return others, taken, pieces, single

    @kernel
    def settle_marks(sets, i):
        """Which marks of block i are punctuation: all behind it but those behind its first one."""
        noinline_cold()
        one, zero = np.uint64(1), np.uint64(0)
        others, marks, rests = sets[_OTHERS + i], sets[_MARKS + i], sets[_RESTS + i]
        last_other, last_single = sets[_OTHERS + i - 1], sets[_SINGLE + i - 1]
        # The first bytes may be the rest of one that is.
        taken_marks = zero
        if (last_other >> np.uint64(63)) & rests & marks != zero:
            taken_marks = rests & ~add(rests, one)
        while True:
            found, _, _, single = punctuation(
                sets, i, others | taken_marks, last_other, sets[_TAKEN + i - 1], last_single
            )
            wrong = marks & _shift(last_other, found, 1) & ~_shift(last_single, single, 1)
            wrong &= ~(taken_marks | rests | sets[_DOCUMENTS + i])
            if wrong == zero:
                break
            # From left to right: this one decides what the next one is.
            taken_marks |= _first_characters(wrong & (~wrong + one), rests, zero)
        sets[_OTHERS + i] = others | taken_marks
        sets[_LETTERS + i] &= ~taken_marks

    @kernel
    def take_lines(sets, count):
        """Where punctuation begins, and the lines and marks that it takes."""
        last_other, last_taken, last_single = sets[_OTHERS], sets[_TAKEN], sets[_SINGLE]
        for i in range(1, count + 1):
            if cased and sets[_MARKS + i] != np.uint64(0):
                settle_marks(sets, i)
            last_other, last_taken, pieces, last_single = punctuation(
                sets, i, sets[_OTHERS + i], last_other, last_taken, last_single
            )
            sets[_OTHERS + i] = last_other
            sets[_TAKEN + i] = last_taken
            sets[_PIECES + i] = pieces
            sets[_SINGLE + i] = last_single

    @kernel
    def spend(sets, i, letters):
        """Have letters of contractions count as none, in block i."""
        sets[_LETTERS + i] &= ~letters
        if cased:
            sets[_UPPERS + i] &= ~letters
            sets[_LOWERS + i] &= ~letters

    @kernel
    def end_many_words(source, base, sets, begin, count, spent):
        """What `end_words` does, for all contractions of a block at once, from block `begin`."""
        noinline_cold()
        one, two, top = np.uint64(1), np.uint64(2), np.uint64(63)
        last_letters = sets[_LETTERS + begin - 1]
        for i in range(begin, count + 1):
            letters = sets[_LETTERS + i] & ~spent
            apostrophes = sets[_PIECES + i] & sets[_QUOTES + i]
            documents, next_documents = sets[_DOCUMENTS + i], sets[_DOCUMENTS + i + 1]
            if suffixes:
                apostrophes &= _shift(last_letters, letters, 1) & ~documents
            short, long = contractions(source, base, apostrophes)
            # Where a document begins among the letters there is none.
            begins = (documents >> one) | (next_documents << top)
            short &= ~begins
            long &= ~(begins | (documents >> two) | (next_documents << np.uint64(62)))
            if suffixes:
                ending = alternate(short, long)
                short &= ending
                long &= ending
                sets[_PIECES + i] ^= ending
            spent |= ((short | long) << one) | (long << two)
            spend(sets, i, spent)
            last_letters = letters & ~spent
            spent = ((short | long) >> top) | (long >> np.uint64(62))
            base += 64
        return spent

    @kernel
    def end_words(source, base, sets, count):
        """Contractions, from left to right: one ends the word, and the next needs a word."""
        one, zero = np.uint64(1), np.uint64(0)
        spent = sets[_SPENT]
        for i in range(1, count + 1):
            apostrophes = sets[_PIECES + i] & sets[_QUOTES + i]
            if popcount(apostrophes) > _FEW_APOSTROPHES:
                spent = end_many_words(source, base, sets, i, count, spent)
                break
            if spent != zero:
                spend(sets, i, spent)
                spent = zero
            if suffixes:
                apostrophes &= _behind(sets, _LETTERS, i, 1) & ~sets[_DOCUMENTS + i]
            while apostrophes != zero:
                j = trailing_zeros(apostrophes)
                bit = one << np.uint64(j)
                apostrophes ^= bit
                length = contraction(source, base + j)
                if length == 0:
                    continue
                # Its letters; where a document begins among them it is none.
                inside = (_below(length) << np.uint64(j)) << one
                over = _below(length) >> np.uint64(63 - j)
                if (sets[_DOCUMENTS + i] & inside) | (sets[_DOCUMENTS + i + 1] & over):
                    continue
                spent = over
                spend(sets, i, inside)
                if suffixes:
                    sets[_PIECES + i] ^= bit
                    apostrophes &= ~(inside << one)
            base += 64
        sets[_SPENT] = spent

    @kernel
    def find_indents(sets, count):
        """Blanks that go on from a line end of white space."""
        top = np.uint64(63)
        last_indent = sets[_INDENTS]
        last_line_end = sets[_LINE_ENDS] & ~sets[_TAKEN]
        for i in range(1, count + 1):
            white = sets[_WHITE + i] & ~sets[_DOCUMENTS + i]
            line_end = sets[_LINE_ENDS + i] & ~sets[_TAKEN + i]
            seeds = _shift(last_line_end, line_end, 1) | (last_indent >> top)
            last_indent = _run(white, white & seeds)
            last_line_end = line_end
            sets[_INDENTS + i] = last_indent

    @kernel
    def combine(sets):
        """All boundaries but the rare ones; whether `mend` and `mend_indents` have work."""
        one, top = np.uint64(1), np.uint64(63)
        mends = all_ends = np.uint64(0)
        # Blocks behind the text are worked on, too: the number of rounds is known to the compiler.
        for i in range(1, GROUP + 1):
            documents, rests = sets[_DOCUMENTS + i], sets[_RESTS + i]
            letters, white, line_ends = sets[_LETTERS + i], sets[_WHITE + i], sets[_LINE_ENDS + i]
            found = documents | sets[_PIECES + i]
            # Words begin at letters, or with the one character before them.
            last_plain = sets[_LETTERS + i - 1] | sets[_WHITE + i - 1]
            behind_one = _shift(last_plain, letters | white, 1)
            behind_one |= _behind(sets, _SINGLE, i, 1) & ~rests
            found |= letters & ~behind_one
            # White space begins after something else; line ends that are taken are not its own.
            # Blanks after a line end begin anew, unless another line end follows them.
            spaces = white | line_ends
            last_spaces = sets[_WHITE + i - 1] | sets[_LINE_ENDS + i - 1]
            found |= spaces & ~(_shift(last_spaces, spaces, 1) | sets[_TAKEN + i])
            found |= white & _behind(sets, _LINE_ENDS, i, 1)
            ends = line_ends & ~documents
            if whole_end:
                ends |= documents
            ends &= _behind(sets, _INDENTS, i, 1)
            sets[_ENDS + i] = ends
            all_ends |= ends
            # The last white space before something else stands alone, or goes with what follows.
            next_ends = sets[_WHITE + i + 1] | sets[_LINE_ENDS + i + 1] | sets[_DOCUMENTS + i + 1]
            final = white & ~(((spaces | documents) >> one) | (next_ends << top))
            found |= final & ~rests
            mend = final & rests
            # Numbers.
            numbers = sets[_NUMBERS + i]
            if single_digits:
                found |= numbers & ~rests
            else:
                inner = numbers & _behind(sets, _NUMBERS, i, 1) & ~documents
                found |= numbers ^ inner
                mend |= inner & _behind(sets, _NUMBERS, i, 2) & _behind(sets, _NUMBERS, i, 3)
                mend |= numbers & rests
            if cased:
                found |= sets[_UPPERS + i] & _behind(sets, _LOWERS, i, 1)
            sets[_FOUND + i] = found
            sets[_MENDS + i] = mend
            mends |= mend
        return mends != np.uint64(0), all_ends != np.uint64(0)

    @kernel
    def mend(source, base, first, sets, count, starts):
        """Boundaries at `_MENDS`, from left to right: wide white space and runs of numbers."""
        noinline_cold()
        one, zero = np.uint64(1), np.uint64(0)
        for i in range(1, count + 1):
            places = sets[_MENDS + i]
            if places == zero:
                base += 64
                continue
            k = first + i - 1
            if places & sets[_WHITE + i] != zero:
                mend_wide(source, base, k, places & sets[_WHITE + i], starts)
            if not single_digits and places & sets[_NUMBERS + i] != zero:
                rests = sets[_RESTS + i] | (sets[_RESTS + i - 1] >> np.uint64(61))
                before = np.int64(3)
                if places == ~zero and rests == zero:
                    before = leading_zeros(starts[k - 1] | one)
                # In what is not UTF-8 there may be no boundary among the three places before.
                if before < 3:
                    # Nothing but digits: every third from three places behind the last.
                    starts[k] = _EVERY_THIRD << np.uint64(2 - before)
                else:
                    mend_numbers(k, sets, i, starts)
            base += 64

    @kernel
    def split_cl100k(source, source_start, n, classes, pages, starts, first, last, sets):
        """Boundaries of one pattern of the family, for some blocks.

        Args:
            source, source_start, n, classes, pages, starts: as in `split.split_gpt2`.
            first: the first block.
            last: one past the last block, at most `starts.size`.
            sets: uint64[STATE_WORDS], zeros before the first call; modified in place.
        """
        noinline()
        one, zero = np.uint64(1), np.uint64(0)
        while first < last:
            count = min(last - first, GROUP)
            base = (np.int64(first) << 6) - source_start
            for i in range(1, count + 1):
                sets[_DOCUMENTS + i] = starts[np.uint64(first + i - 1)]
            if classify(source, base, sets, count):
                classify_rest(source, base, classes, pages, sets, count)
            # Of the block behind them only the first place must be known.
            behind = base + (count << 6)
            byte = np.int64(source[behind])
            white = byte == 32 or (byte >= 9 and byte <= 13)
            if byte >= 0x80:
                white = white_follows(source, behind, classes)
            sets[_WHITE + count + 1] = np.uint64(white)
            sets[_LINE_ENDS + count + 1] = zero
            sets[_DOCUMENTS + count + 1] = starts[min(first + count, starts.size - 1)]
            # What there is nothing of in a group takes no time.
            last_others = sets[_OTHERS] | sets[_TAKEN] | sets[_SINGLE]
            if last_others >> np.uint64(63) != zero or not _is_empty(sets, _OTHERS):
                take_lines(sets, count)
            else:
                _clear(sets, _TAKEN)
                _clear(sets, _PIECES)
                _clear(sets, _SINGLE)
            if sets[_SPENT] != zero or not _is_empty(sets, _QUOTES):
                end_words(source, base, sets, count)
            last_white = sets[_INDENTS] | sets[_LINE_ENDS]
            if last_white >> np.uint64(63) != zero or not _is_empty(sets, _LINE_ENDS):
                find_indents(sets, count)
            else:
                _clear(sets, _INDENTS)
            mends, ends = combine(sets)
            for i in range(1, count + 1):
                starts[np.uint64(first + i - 1)] = sets[_FOUND + i]
            if ends:
                mend_indents(first, sets, count, starts)
            if mends:
                mend(source, base, first, sets, count, starts)
            if cased and sets[_CASELESS] != zero:
                mend_words(first, sets, count, starts)
            for row in range(0, _N_SETS * _WIDTH, _WIDTH):
                sets[row] = sets[row + count]
            first += count
        if last == starts.size:
            # Zeros behind the text look like characters: cut them off, keep the end.
            end_bit = one << np.uint64(n & 63)
            starts[last - 1] = (starts[last - 1] & (end_bit - one)) | end_bit

    return split_cl100k
