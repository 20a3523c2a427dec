"""Scanner of gpt2: find the boundaries of pre-tokens, 64 bytes at a time.

`split_gpt2` sets bit i of `starts` exactly where `reference.split` begins a pre-token, for all
documents of the buffer at once. The 64 bytes of a block are classified into one bit set per class
(letter, number, white space, space, apostrophe); boundaries are shifts and masks of those sets,
with the last bit of the block before and the first of the block after.

The bit set of document starts is replaced by that of boundaries; a document start is a boundary for
all masks, so short documents cost no more than long ones.

Example: b"a  b's", the first byte on the left; a shift by one moves bits to the right.

    bytes                                       a _ _ b ' s
    letters                                     1 0 0 1 0 1
    spaces                                      0 1 1 0 0 0
    change of class: letters ^ letters << 1,
        or spaces ^ spaces << 1                 1 1 0 1 1 1
    & ~(blanks << 1): " b" is one pre-token     1 1 0 0 1 1
    | last white space before something else    1 1 1 0 1 1
    contraction 's: s begins nothing            1 1 1 0 1 0   and the end of the text, bit 6

The pattern `superwords` has phrases in place of words: a blank or an apostrophe between two letters
joins them. It has no contractions.
"""

from __future__ import annotations

import functools

import numpy as np

from bpe.runtime.jit import kernel
from bpe.runtime.machine import noinline, range_mask
from bpe.split.classes import classify_characters, mark_wide

STATE_WORDS = 14


@kernel
def split_gpt2(superwords, text, characters, starts, blocks, state):
    """Find the boundaries of `gpt2` or `superwords` (see `bpe.split.patterns`) in some blocks.

    Block k is finished when block k + 1 is classified, because its boundaries depend on the text
    after it; block `starts.size`, which is empty, finishes the last one. `state` is that of the
    last block classified, so a text may be split by several calls.

    Args:
        superwords: Which of the two patterns.
        text, characters: See `Source` and `Characters` of `bpe.split.documents`.
        starts: uint64[n // 64 + 1], bit set of starts of documents, and of n; replaced, block by
            block, by that of starts of pre-tokens, and of n.
        blocks: The first to classify, and the one after the last, at most `starts.size + 1`.
        state: uint64[STATE_WORDS], zeros before the first call; modified in place.

    Example: "a  b's" -> boundaries at 0 (a), 1 and 2 (blanks; the second goes with b), 4 ('s), 6;
        of `superwords` at 0, 1, 2, 6.
    """
    noinline()
    source, source_start, n = text
    first, last = blocks
    one, zero, top = np.uint64(1), np.uint64(0), np.uint64(63)
    # Sets of the block classified last, which is finished next.
    letters, numbers, spaces, blanks = state[0], state[1], state[2], state[3]
    apostrophes, documents = state[4], state[5]
    # The last bits of the block before it.
    last_letter, last_number, last_space, last_blank = state[6], state[7], state[8], state[9]
    # Class flags of a character that ends in the next block, and its bytes there.
    spill_class, spill = np.int64(state[10]), state[11]
    # Boundaries that a contraction in the block before it drops, and adds.
    drop, add = state[12], state[13]
    for k in range(first, last):
        next_letters = next_numbers = next_spaces = next_blanks = next_apostrophes = zero
        next_documents = zero
        if k < starts.size:
            next_documents = starts[k]
            base = (np.int64(k) << 6) - source_start
            next_letters = range_mask(source, base, 97, 122) | range_mask(source, base, 65, 90)
            next_numbers = range_mask(source, base, 48, 57)
            next_blanks = range_mask(source, base, 32, 32)
            next_spaces = range_mask(source, base, 9, 13) | next_blanks
            next_apostrophes = range_mask(source, base, 39, 39)
            if range_mask(source, base, 0xC2, 0xF4) | spill != zero:
                more_letters, more_numbers, more_spaces, _, _, _, spill_class, spill = (
                    classify_characters(source, base, characters, False, spill_class, spill)
                )
                next_letters |= more_letters
                next_numbers |= more_numbers
                next_spaces |= more_spaces
        if k > 0:
            # Both neighbours of block k - 1 are classified now.
            at = np.int64(k - 1) << 6
            base = at - source_start
            change = letters ^ ((letters << one) | last_letter)
            change |= numbers ^ ((numbers << one) | last_number)
            change |= spaces ^ ((spaces << one) | last_space)
            # A change of class is a boundary, unless the space before it belongs to the pre-token.
            found = (change & ~((blanks << one) | last_blank)) | documents
            # The last white space before other text is a pre-token, or belongs to the next one.
            followed = ((spaces | documents) >> one) | ((next_spaces | next_documents) << top)
            last_white = spaces & ~followed
            found = (found & ~drop) | add
            drop = add = zero
            # Of white space of several bytes this is the last byte.
            wide = zero
            if last_white != zero:
                wide = last_white & range_mask(source, base, 0x80, 0xBF)
                found |= last_white ^ wide
            quotes = apostrophes & found
            if superwords:
                inside = (letters << one) | last_letter
                inside &= (letters >> one) | (next_letters << top)
                inside &= ~(documents | (documents >> one) | (next_documents << top))
                # The start of a word after a blank is that of the blank.
                found &= ~((blanks | apostrophes) & inside)
                found &= ~((apostrophes & inside) << one)
                drop = (apostrophes & inside) >> top
            elif quotes != zero:
                # Letters one and two bytes later; `same_*`: no document begins there.
                same_1 = ~((documents >> one) | (next_documents << top))
                same_2 = ~((documents >> np.uint64(2)) | (next_documents << np.uint64(62)))
                short = range_mask(source, base + 1, 115, 116)  # s, t, d, m
                short |= range_mask(source, base + 1, 100, 100)
                short |= range_mask(source, base + 1, 109, 109)
                long = range_mask(source, base + 1, 118, 118)  # ve, re, ll
                long |= range_mask(source, base + 1, 114, 114)
                long &= range_mask(source, base + 2, 101, 101)
                ll = range_mask(source, base + 1, 108, 108) & range_mask(source, base + 2, 108, 108)
                two = quotes & short & same_1
                three = quotes & (long | ll) & same_1 & same_2
                both = two | three
                found &= ~(both << one)
                found |= (two << np.uint64(2)) | (three << np.uint64(3))
                drop = both >> top
                add = (two >> np.uint64(62)) | (three >> np.uint64(61))
            if k == starts.size:
                # Zeros after the text look like characters: remove them, and keep the end.
                end = one << np.uint64(n & 63)
                found = (found & (end - one)) | end
            starts[k - 1] = found
            mark_wide(source, base, k - 1, wide, starts)
            last_letter, last_number = letters >> top, numbers >> top
            last_space, last_blank = spaces >> top, blanks >> top
        letters, numbers, spaces = next_letters, next_numbers, next_spaces
        blanks, apostrophes, documents = next_blanks, next_apostrophes, next_documents
    state[0], state[1], state[2], state[3] = letters, numbers, spaces, blanks
    state[4], state[5] = apostrophes, documents
    state[6], state[7], state[8], state[9] = last_letter, last_number, last_space, last_blank
    state[10], state[11], state[12], state[13] = np.uint64(spill_class), spill, drop, add


@functools.cache
def scanner(superwords):
    """Return `split_gpt2` compiled for one of its patterns."""

    def scan(text, characters, starts, blocks, state):
        """Run `split_gpt2` for this pattern."""
        split_gpt2(superwords, text, characters, starts, blocks, state)

    return kernel(scan, f"_{superwords}")
