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
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.kernels.runtime.jit import kernel
from bpe.kernels.runtime.machine import noinline, range_mask
from bpe.kernels.split.classes import LETTER, MARK, WHITE_SPACE, classify_characters, mark_wide

BLOCK_NEEDS = 68  # bytes read for a block: its last character may have three more
TAIL = 8 * 64  # bytes of `Scratch.tail`: two blocks before the first one read from it, and more
STATE_WORDS = 14


class Characters(NamedTuple):
    """Unicode class tables, see `bpe.unicode_classes`."""

    classes: NDArray[np.uint8]  # uint8[0x110000], `class_table`
    pages: NDArray[np.uint64]  # uint64[0x5000 * 8], the same by pages, `class_pages`


class Scratch(NamedTuple):
    """Scratch arrays for splitting one text, undefined between calls."""

    tail: NDArray[np.uint8]  # uint8[TAIL]
    tail_text: NDArray[np.uint8]  # the same, read-only as text, so that a scanner is compiled once
    state: NDArray[np.uint64]  # uint64, state of a scanner between blocks


@functools.cache
def splitter(scan, behind):
    """Return the kernel that splits whole texts with a scanner, a kernel such as `split_gpt2`.

    The scanner is called for so many blocks `behind` the last one, too.
    """

    @kernel
    def split_documents(characters, scratch, buffer, offsets, is_marked, starts):
        """Split documents into pre-tokens.

        Args:
            characters, scratch: `Characters` and `Scratch`, the second modified in place.
            buffer: uint8[n_bytes] or more, zeros after the documents.
            offsets: int64[n_documents + 1], from 0 to n_bytes.
            is_marked: Whether `starts` has the documents; then only the last offset is used.
            starts: uint64[n_bytes // 64 + 1 or more], replaced by the bit set of starts of
                pre-tokens, and of n_bytes.

        Example: for gpt2, b"Hi you" with offsets [0, 6] -> starts[0] == 0b1000101.
        """
        n = offsets[offsets.size - 1]
        n_blocks = (n >> 6) + 1
        starts = starts[:n_blocks]
        if not is_marked:
            starts[:] = np.uint64(0)
            for d in range(offsets.size):
                at = offsets[d]
                starts[at >> 6] |= np.uint64(1) << np.uint64(at & 63)
        state, tail = scratch.state, scratch.tail
        classes, pages = characters.classes, characters.pages
        state[:] = np.uint64(0)
        n_scanned = n_blocks + behind
        # Blocks are read from the buffer if all bytes they need are inside, else from `tail`.
        whole = (buffer.size - BLOCK_NEEDS + 64) >> 6
        whole = n_scanned if whole >= n_blocks else max(0, whole)
        if whole:
            scan(buffer, 0, n, classes, pages, starts, 0, whole, state)
        if whole < n_scanned:
            tail_start = max(0, whole - 2) << 6
            for j in range((n_blocks + 2 << 6) - tail_start):
                tail[j] = buffer[tail_start + j] if tail_start + j < n else 0
            scan(scratch.tail_text, tail_start, n, classes, pages, starts, whole, n_scanned, state)

    return split_documents


@kernel
def split_gpt2(source, source_start, n, classes, pages, starts, first, last, state):
    """Find the boundaries of the pattern `gpt2` (see `bpe.pretokenize.patterns`) in some blocks.

    Block k is finished when block k + 1 is classified, because its boundaries depend on the text
    after it; block `starts.size`, which is empty, finishes the last one. `state` is that of the
    last block classified, so a text may be split by several calls.

    Args:
        source: uint8, the bytes of the text from `source_start`, a multiple of 64, on: from two
            blocks before `first` to 67 bytes past the start of the last block, with zeros after
            the text.
        n: Number of bytes of the text.
        classes, pages: See `Characters`.
        starts: uint64[n // 64 + 1], bit set of starts of documents, and of n; replaced, block by
            block, by that of starts of pre-tokens, and of n.
        first, last: The blocks to classify, [first, last), `last` at most `starts.size + 1`.
        state: uint64[STATE_WORDS], zeros before the first call; modified in place.

    Example: "a  b's" -> boundaries at 0 (a), 1 and 2 (blanks; the second goes with b), 4 ('s), 6.
    """
    noinline()
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
                    classify_characters(source, base, classes, pages, False, spill_class, spill)
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
            if quotes != zero:
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


@kernel
def checked_character(source, at, stop):
    """Return a code point at `source[at]` and its bytes: C3 A9 -> (0xE9, 2); not UTF-8 -> (-1, 1).

    Bytes from `stop` on are not read.
    """
    first = np.int64(source[at])
    if first < 0x80:
        return first, 1
    if first < 0xC2 or first > 0xF4:
        return -1, 1
    n = 2 if first < 0xE0 else (3 if first < 0xF0 else 4)
    if at + n > stop:
        return -1, 1
    code_point = first & (0x7F >> n)
    for j in range(1, n):
        byte = np.int64(source[at + j])
        if byte & 0xC0 != 0x80:
            return -1, 1
        code_point = (code_point << 6) | (byte & 0x3F)
    if (n == 3 and (code_point < 0x800 or 0xD800 <= code_point <= 0xDFFF)) or (
        n == 4 and (code_point < 0x10000 or code_point > 0x10FFFF)
    ):
        return -1, 1
    return code_point, n


@kernel
def safe_cut(buffer, position, stop, classes, after_letters_only):
    """Return the first position from `position` on where a cut changes no pre-token, else `stop`.

    It is before white space after a letter (any character but white space if not
    `after_letters_only`), or after a letter and before anything but a letter, mark or apostrophe.
    Both characters must be valid UTF-8, so that replacing invalid bytes does not cross the cut.
    `buffer` is uint8[>= stop]; `classes`: see `Characters`.

    Example: in "ab cd" from 0 on -> 2.
    """
    at = max(position, 1)
    while at < stop:
        if np.int64(buffer[at]) & 0xC0 == 0x80:
            at += 1
            continue
        code_point, _ = checked_character(buffer, at, stop)
        before = at - 1
        while before > 0 and at - before < 4 and np.int64(buffer[before]) & 0xC0 == 0x80:
            before -= 1
        code_point_before, width_before = checked_character(buffer, before, at)
        if code_point >= 0 and code_point_before >= 0 and before + width_before == at:
            flags, flags_before = classes[code_point], classes[code_point_before]
            if flags & WHITE_SPACE and not flags_before & WHITE_SPACE and not after_letters_only:
                return at
            if flags_before & LETTER and not flags & (LETTER | MARK) and code_point != 39:
                return at
        at += 1
    return stop
