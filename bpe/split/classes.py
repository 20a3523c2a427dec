"""Classify the characters of 64 bytes as bit sets, for the scanners of all patterns.

All bytes of a character have its class, so a class changes at first bytes only. Classes of bytes
that are not UTF-8 are undefined, but tables are not read out of bounds.
"""

from __future__ import annotations

import numpy as np

from bpe.runtime import machine
from bpe.runtime.jit import kernel
from bpe.runtime.machine import popcount, range_mask, trailing_zeros

# Flags of bpe.unicode_classes, as constants that the compiler can fold.
LETTER, NUMBER, WHITE_SPACE, MARK, UPPER, LOWER = 1, 2, 4, 8, 16, 32

# Characters of several bytes in a block, and of those on one page, to classify them by pages.
_MANY, _MANY_OF_A_PAGE = 16, 6


@kernel
def character(source, at):
    """Return the code point whose first byte is `source[at]`, and its number of bytes.

    The byte is 0xC2 to 0xF4; up to three bytes after it are read. The result is undefined if the
    bytes are not UTF-8, but at most 0x10FFFF, so that it can index tables.

    Example: bytes C3 A9 -> (0xE9, 2).
    """
    first = np.int64(source[at])
    second = np.int64(source[at + 1]) & 0x3F
    if first < 0xE0:
        return ((first & 0x1F) << 6) | second, np.uint64(2)
    third = np.int64(source[at + 2]) & 0x3F
    if first < 0xF0:
        return ((first & 0x0F) << 12) | (second << 6) | third, np.uint64(3)
    fourth = np.int64(source[at + 3]) & 0x3F
    code_point = ((first & 0x07) << 18) | (second << 12) | (third << 6) | fourth
    return min(code_point, np.int64(0x10FFFF)), np.uint64(4)


@kernel
def sure_letters(source, base):
    """Return first bytes, of 64 from `source[base]`, of which all characters are letters: E5 -> 1.

    They are most of Chinese and Korean, three bytes long, without case. Only characters that end
    within the 64 bytes are included.
    """
    sure = range_mask(source, base, 0xE5, 0xE9) | range_mask(source, base, 0xEB, 0xEC)
    return sure & ((np.uint64(1) << np.uint64(62)) - np.uint64(1))


@kernel
def _members(source, last, same, members):
    """Return which of the characters `same`, ending at `source[last + j]`, are `members` of a page.

    `members` has bit n for code point n of 64. Example: é is C3 A9; members 1 << 0x29 -> same.
    """
    if members == np.uint64(0) or members == ~np.uint64(0):
        return same & members
    return same & machine.member_mask(source, last, members)


@kernel
def _all_bytes(first_bytes, of_three, of_four):
    """Return the bits of all bytes of characters of two bytes or more.

    Example: 0b1, with no character of three or four bytes -> 0b11.
    """
    rest = (first_bytes << np.uint64(1)) | ((first_bytes & of_three) << np.uint64(2))
    return first_bytes | rest | ((first_bytes & of_four) << np.uint64(3))


@kernel
def classify_pages(source, base, leads, pages, cased):
    """Classify characters by pages, if several of the block are on the same page.

    Most scripts use few pages of 64 code points. The characters of a page differ in the last byte
    only, so they are found by comparisons, and classified 64 bytes at once by the page's members.

    Arguments as of `classify_characters`; `leads` are first bytes of characters. Returns (leads,
    letters, numbers, white, marks, uppers, lowers): the first bytes of characters not classified,
    and the bytes of each class. Example: 20 times C3 A9 -> leads 0, 40 bits of letters, ...
    """
    machine.noinline_cold()
    one = np.uint64(1)
    letters = numbers = white = marks = uppers = lowers = np.uint64(0)
    # The caller classifies characters that reach into the next block.
    left = leads & ((one << np.uint64(61)) - one)
    leads ^= left
    while popcount(left) >= _MANY_OF_A_PAGE:
        place = base + trailing_zeros(left)
        first = source[place]
        same = range_mask(source, base, first, first) & left
        last = base + 1
        page = np.uint64(first) & np.uint64(0x1F)
        if first >= 0xE0:
            second = source[place + 1]
            same &= range_mask(source, last, second, second)
            last += 1
            page = (page & np.uint64(15)) << np.uint64(6) | np.uint64(second) & np.uint64(63)
            if first >= 0xF0:
                third = source[place + 2]
                same &= range_mask(source, last, third, third)
                last += 1
                page = page << np.uint64(6) | np.uint64(third) & np.uint64(63)
        if popcount(same) < _MANY_OF_A_PAGE:
            break
        left ^= same
        page <<= np.uint64(3)
        letters |= _members(source, last, same, pages[page])
        numbers |= _members(source, last, same, pages[page + np.uint64(1)])
        white |= _members(source, last, same, pages[page + np.uint64(2)])
        if cased:
            marks |= _members(source, last, same, pages[page + np.uint64(3)])
            uppers |= _members(source, last, same, pages[page + np.uint64(4)])
            lowers |= _members(source, last, same, pages[page + np.uint64(5)])
    of_three = range_mask(source, base, 0xE0, 0xF4)
    of_four = range_mask(source, base, 0xF0, 0xF4)
    letters = _all_bytes(letters, of_three, of_four)
    numbers = _all_bytes(numbers, of_three, of_four)
    white, marks = _all_bytes(white, of_three, of_four), _all_bytes(marks, of_three, of_four)
    uppers, lowers = _all_bytes(uppers, of_three, of_four), _all_bytes(lowers, of_three, of_four)
    return leads | left, letters, numbers, white, marks, uppers, lowers


@kernel
def _if_in(char_class, flag, bits):
    """Return `bits` if a class has a flag, else 0, without a branch: (3, 1, 0b11) -> 0b11."""
    return bits if char_class & flag else np.uint64(0)


@kernel
def classify_characters(source, base, characters, cased, spill_class, spill):
    """Classify the characters of a block that are not ASCII.

    Args:
        source, base: The block is `source[base : base + 64]`; three more bytes are read.
        characters: See `documents.Characters`.
        cased: Whether marks and case are needed.
        spill_class, spill: Class flags of a character that began in the last block, and its bytes
            in this one.

    Returns (letters, numbers, white, marks, uppers, lowers, spill_class, spill): the bytes of each
    class, and the spill of the next block.

    Example: bytes C3 A9 20 ... -> letters 0b11, if `cased` also lowers 0b11, and nothing else.
    """
    machine.always_inline()
    one, zero = np.uint64(1), np.uint64(0)
    sure = sure_letters(source, base)
    leads = range_mask(source, base, 0xC2, 0xF4) ^ sure
    letters = sure | (sure << one) | (sure << np.uint64(2)) | _if_in(spill_class, LETTER, spill)
    numbers = _if_in(spill_class, NUMBER, spill)
    white = _if_in(spill_class, WHITE_SPACE, spill)
    marks = uppers = lowers = zero
    if cased:
        marks = _if_in(spill_class, MARK, spill)
        uppers = _if_in(spill_class, UPPER, spill)
        lowers = _if_in(spill_class, LOWER, spill)
    if popcount(leads) >= _MANY:
        found = classify_pages(source, base, leads, characters.pages, cased)
        leads = found[0]
        letters, numbers, white = letters | found[1], numbers | found[2], white | found[3]
        if cased:
            marks, uppers, lowers = marks | found[4], uppers | found[5], lowers | found[6]
    spill = zero
    while leads != zero:
        j = trailing_zeros(leads)
        leads &= leads - one
        code_point, width = character(source, base + j)
        char_class = np.int64(characters.classes[code_point])
        bits = ((one << width) - one) << np.uint64(j)
        if char_class & LETTER:
            letters |= bits
            if cased:
                if char_class & UPPER:
                    uppers |= bits
                elif char_class & LOWER:
                    lowers |= bits
        elif char_class & NUMBER:
            numbers |= bits
        elif char_class & WHITE_SPACE:
            white |= bits
        elif cased and char_class & MARK:
            marks |= bits
        if j > 60:
            spill, spill_class = ((one << width) - one) >> np.uint64(64 - j), char_class
    return letters, numbers, white, marks, uppers, lowers, spill_class, spill


@kernel
def _letter_mask(source, at, letter):
    """Return which of `source[at : at + 64]` are a letter in either case: "Tot", t -> 0b101."""
    return range_mask(source, at, letter, letter) | range_mask(source, at, letter - 32, letter - 32)


@kernel
def contractions(source, base, apostrophes):
    """Return which apostrophes of a block begin contractions of one letter byte, and of two.

    The letters are s, t, m, d, re, ve or ll in any case, or U+017F, which folds to s. Two bytes
    after the block are read.

    Example: "'s 'll x'y" with apostrophes 0b1_0000_1001 -> (0b1, 0b1000).
    """
    one_letter = range_mask(source, base + 1, 115, 116) | range_mask(source, base + 1, 83, 84)
    one_letter |= _letter_mask(source, base + 1, 100) | _letter_mask(source, base + 1, 109)
    two = _letter_mask(source, base + 1, 114) | _letter_mask(source, base + 1, 118)
    two &= _letter_mask(source, base + 2, 101)
    two |= _letter_mask(source, base + 1, 108) & _letter_mask(source, base + 2, 108)
    two |= range_mask(source, base + 1, 0xC5, 0xC5) & range_mask(source, base + 2, 0xBF, 0xBF)
    return apostrophes & one_letter, apostrophes & two


@kernel
def mark_wide(source, base, k, lasts, starts):
    """Mark the starts of white space with last bytes `lasts` in block k: E3 80 80, 0b100 -> 0b1."""
    one = np.uint64(1)
    while lasts != np.uint64(0):
        # Back to the first byte: U+0085 and U+00A0 have two bytes, the others three.
        j = trailing_zeros(lasts) - 1
        lasts &= lasts - one
        if source[base + j] & 0xC0 == 0x80:
            j -= 1
        if j >= 0:
            starts[k] |= one << np.uint64(j)
        else:
            starts[k - 1] |= one << np.uint64(64 + j)


@kernel
def white_follows(source, at, classes):
    """Return True if `source[at]`, not ASCII, continues white space: E3 80 80 -> True."""
    machine.noinline_cold()
    if source[at] < 0xC2:
        return True
    code_point, _ = character(source, at)
    return classes[code_point] & WHITE_SPACE != 0
