"""The bit sets of a group of blocks, for the patterns that descend from cl100k.

`sets` is one array of words: a row for each set below, with the word of the block before the group,
those of its blocks, and that of the block behind, of which only what is needed is set. Block i of a
group, from 1 on, is word `row + i`.
"""

from __future__ import annotations

import numpy as np

from bpe.kernels.runtime.jit import kernel
from bpe.kernels.runtime.machine import add, noinline_cold, range_mask
from bpe.kernels.split.classes import classify_characters

# Flags of a pattern.
CASED = 1  # words are o200k's: marks are letters, a capital after a small letter begins a new word
SUFFIXES = 2  # a contraction goes with the word before it (o200k), else it stands alone (cl100k)
SLASHES = 4  # line ends after punctuation take slashes with them
SINGLE_DIGITS = 8  # each number stands alone, else up to three go together
WHOLE_END = 16  # white space that ends the text is one piece (tiktoken's `\s++$`)

GROUP = 64  # blocks that go through one step together: their sets fit into the nearest cache
WIDTH, N_SETS = GROUP + 2, 20
(
    DOCUMENTS,  # where documents begin
    LETTERS,  # CASED: with marks; without those of contractions
    UPPERS,
    LOWERS,  # and the letters without case that go on with them
    MARKS,
    NUMBERS,
    BLANKS,  # U+0020
    WHITE,  # white space but ends of lines
    LINE_ENDS,
    LINES,  # SLASHES: what line ends after punctuation go on with
    QUOTES,  # apostrophes
    OTHERS,  # punctuation: none of letters, marks, numbers and white space
    RESTS,  # bytes of a character behind its first
    TAKEN,  # lines that punctuation takes
    PIECES,  # where punctuation begins
    SINGLE,  # the characters that begin there
    INDENTS,  # white space behind a line end of white space
    ENDS,  # line ends directly behind it; WHOLE_END: and ends of documents
    FOUND,  # boundaries
    MENDS,  # places that `split_mend.mend` must look at
) = range(0, N_SETS * WIDTH, WIDTH)

# What else is carried to the next block: the class of a character that ends there and its bytes
# there, letters of a contraction there, whether there are letters without case, and one more than
# the place of a boundary that may be made.
SPILL_CLASS, SPILL, SPENT, CASELESS, OPEN_CAPITALS = range(N_SETS * WIDTH, N_SETS * WIDTH + 5)
STATE_WORDS = N_SETS * WIDTH + 5


@kernel
def run(members, seeds):
    """Return the bits of `members` from each seed to the end of its run, towards higher bits.

    `seeds` are members, and more than one may stand in a run.

    Example: members 0b11101, seeds 0b01000 -> 0b11000.
    """
    return (members & ~add(members, seeds)) | seeds


@kernel
def below(bit):
    """Return all bits below bit number `bit`, 0 to 63; 3 -> 0b111."""
    return (np.uint64(1) << np.uint64(bit)) - np.uint64(1)


@kernel
def shift(before, word, n):
    """Return `word` moved up by `n` places, 1 to 63, with the top bits of the word before."""
    return (word << np.uint64(n)) | (before >> np.uint64(64 - n))


@kernel
def behind(sets, row, i, n):
    """Return the places of block i that are `n` places behind a member of a set."""
    return shift(sets[row + i - 1], sets[row + i], n)


@kernel
def is_empty(sets, row):
    """Return True if no block of the group has a member of this set."""
    members = np.uint64(0)
    for i in range(1, GROUP + 1):
        members |= sets[row + i]
    return members == np.uint64(0)


@kernel
def clear(sets, row):
    """Leave the blocks of the group no member of this set."""
    for i in range(1, GROUP + 1):
        sets[row + i] = np.uint64(0)


@kernel
def classify(flags, source, base, sets, count):
    """Set the classes of ASCII, and in `RESTS` the bytes beyond it; return whether there are any.

    Example: "a1 " -> LETTERS 0b1, NUMBERS 0b10, BLANKS and WHITE 0b100.
    """
    beyond = sets[SPILL]
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
        sets[LETTERS + i], sets[NUMBERS + i] = letters, numbers
        sets[BLANKS + i], sets[WHITE + i], sets[LINE_ENDS + i] = blanks, white, line_ends
        sets[QUOTES + i] = range_mask(source, base, 39, 39)
        sets[OTHERS + i] = ~(letters | numbers | white | line_ends)
        sets[RESTS + i] = rests
        if flags & SLASHES:
            sets[LINES + i] = line_ends | range_mask(source, base, 47, 47)
        if flags & CASED:
            sets[LOWERS + i], sets[UPPERS + i], sets[MARKS + i] = lowers, uppers, np.uint64(0)
        beyond |= rests
        base += 64
    return beyond != np.uint64(0)


@kernel
def classify_rest(flags, source, base, classes, pages, sets, count):
    """Set the classes of the characters that are not ASCII, and in `RESTS` what its name says."""
    noinline_cold()
    cased = flags & CASED != 0
    spill_class, spill = np.int64(sets[SPILL_CLASS]), sets[SPILL]
    for i in range(1, count + 1):
        if sets[RESTS + i] | spill != np.uint64(0):
            letters, numbers, white, marks, uppers, lowers, spill_class, spill = (
                classify_characters(source, base, classes, pages, cased, spill_class, spill)
            )
            letters |= sets[LETTERS + i]
            numbers |= sets[NUMBERS + i]
            white |= sets[WHITE + i]
            if cased:
                letters |= marks
                uppers |= sets[UPPERS + i]
                lowers |= sets[LOWERS + i]
                sets[UPPERS + i], sets[LOWERS + i], sets[MARKS + i] = uppers, lowers, marks
                sets[CASELESS] |= letters ^ (uppers | lowers)
            sets[LETTERS + i], sets[NUMBERS + i] = letters, numbers
            # Only in what is not UTF-8 can a character take an end of a line for its own.
            sets[WHITE + i] = white & ~sets[LINE_ENDS + i]
            sets[OTHERS + i] = ~(letters | numbers | white | sets[LINE_ENDS + i])
            sets[RESTS + i] = range_mask(source, base, 0x80, 0xBF)
        base += 64
    sets[SPILL_CLASS], sets[SPILL] = np.uint64(spill_class), spill
