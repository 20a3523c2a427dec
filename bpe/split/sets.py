"""Bit sets of a group of blocks, for the scanner of the family of cl100k.

`sets` is an array of words with WIDTH for each kind below: the word of the block before the group,
of its blocks, and of the block after it, which is set as far as needed. Block i of a group, from 1
on, is word `kind + i`.
"""

from __future__ import annotations

import numpy as np

from bpe.runtime.jit import kernel
from bpe.runtime.machine import add, noinline_cold, range_mask
from bpe.split.classes import classify_characters

# Flags of a pattern.
CASED = 1  # words are o200k's: marks are letters, a capital after a small letter begins a new word
SUFFIXES = 2  # a contraction belongs to the word before it (o200k), else it is a piece (cl100k)
SLASHES = 4  # slashes belong to line ends after punctuation
SINGLE_DIGITS = 8  # a number is a piece, else up to three
WHOLE_END = 16  # white space at the end of the text is one piece (tiktoken's `\s++$`)

BLOCKS = 64  # blocks that a step processes together: their sets fit into the L1 cache
WIDTH, N_SETS = BLOCKS + 2, 20
(
    DOCUMENTS,  # where documents begin
    LETTERS,  # CASED: with marks; without those of contractions
    UPPERS,
    LOWERS,  # and letters without case after them
    MARKS,
    NUMBERS,
    BLANKS,  # U+0020
    WHITE,  # white space except line ends
    LINE_ENDS,
    LINES,  # SLASHES: line ends and slashes
    QUOTES,  # apostrophes
    OTHERS,  # punctuation: no letters, marks, numbers or white space
    RESTS,  # continuation bytes of characters
    TAKEN,  # lines that belong to punctuation
    PIECES,  # starts of punctuation
    SINGLE,  # the characters there
    INDENTS,  # white space after a line end of white space
    ENDS,  # line ends directly after it; WHOLE_END: and ends of documents
    FOUND,  # boundaries
    MENDS,  # positions for `mend.mend`
) = range(0, N_SETS * WIDTH, WIDTH)

# Other state for the next block: the class of a character that ends there and its bytes there,
# letters of a contraction there, letters without case, and 1 + the position of a possible boundary.
SPILL_CLASS, SPILL, SPENT, CASELESS, OPEN_CAPITALS = range(N_SETS * WIDTH, N_SETS * WIDTH + 5)
STATE_WORDS = N_SETS * WIDTH + 5


@kernel
def run(members, seeds):
    """Return the bits of `members` from each seed to the end of its run, towards higher bits.

    `seeds` are members; a run may have several.

    Example: members 0b11101, seeds 0b01000 -> 0b11000.
    """
    return (members & ~add(members, seeds)) | seeds


@kernel
def below(bit):
    """Return all bits below bit number `bit`, 0 to 63; 3 -> 0b111."""
    return (np.uint64(1) << np.uint64(bit)) - np.uint64(1)


@kernel
def shift(before, word, n):
    """Shift a word to the left by n, 1 to 63, with bits of `before`: (1 << 63, 1, 1) -> 0b11."""
    return (word << np.uint64(n)) | (before >> np.uint64(64 - n))


@kernel
def behind(sets, kind, i, n):
    """Return the positions of block i that are n after a member of a set."""
    return shift(sets[kind + i - 1], sets[kind + i], n)


@kernel
def is_empty(sets, kind):
    """Return True if a set has no member in the group."""
    members = np.uint64(0)
    for i in range(1, BLOCKS + 1):
        members |= sets[kind + i]
    return members == np.uint64(0)


@kernel
def clear(sets, kind):
    """Remove the members of a set in the group."""
    for i in range(1, BLOCKS + 1):
        sets[kind + i] = np.uint64(0)


@kernel
def classify(flags, source, base, sets, count):
    """Set the classes of ASCII, and other bytes in `RESTS`; return True if there are any.

    Example: "a1 " -> LETTERS 0b1, NUMBERS 0b10, BLANKS and WHITE 0b100.
    """
    beyond = sets[SPILL]
    # Not `range(1, count + 1)`, so that the compiler knows that indices are not negative.
    for i in range(1, BLOCKS + 1):
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
def classify_rest(flags, source, base, characters, sets, count):
    """Set the classes of other characters, and `RESTS`."""
    noinline_cold()
    cased = flags & CASED != 0
    spill_class, spill = np.int64(sets[SPILL_CLASS]), sets[SPILL]
    for i in range(1, count + 1):
        if sets[RESTS + i] | spill != np.uint64(0):
            letters, numbers, white, marks, uppers, lowers, spill_class, spill = (
                classify_characters(source, base, characters, cased, spill_class, spill)
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
            # Differs only in invalid UTF-8, where a character may include a line end.
            sets[WHITE + i] = white & ~sets[LINE_ENDS + i]
            sets[OTHERS + i] = ~(letters | numbers | white | sets[LINE_ENDS + i])
            sets[RESTS + i] = range_mask(source, base, 0x80, 0xBF)
        base += 64
    sets[SPILL_CLASS], sets[SPILL] = np.uint64(spill_class), spill
