r"""Bytes -> boundaries of pre-tokens for the patterns that descend from cl100k, 64 bytes at a time.

Law: `split_cl100k` sets bit i of `starts` exactly where `reference.split_cl100k` begins a
pre-token, for every document of the buffer at once and for every sum of the flags below. Which
flags a pattern has is told in `bpe.pretokenize`; one more of this family is one more line there.

As in `split_gpt2` a block becomes bit sets, one for each class of characters, and boundaries are
shifts and masks of them. What these patterns add is that one thing can depend on another far away:

- `[\r\n]*` after punctuation takes line ends (and slashes), which then belong to no white space. A
  run is followed from where it begins by the carry of an addition.
- `\s*[\r\n]+` reaches to the *last* line end of its white space. The blanks after a line end are
  taken for a new piece at first; where they turn out to end at another line end, that boundary is
  taken back, in an earlier block if need be.
- `\p{N}{1,3}` counts. Runs of up to three digits need no counting; others are counted one by one.
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
from bpe.kernels.machine import add, leading_zeros, out_of_line, range_mask, trailing_zeros
from bpe.kernels.split import character, sure_letters

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
_EASY = 32
"""Stop before a block that has what is rare and what CASED makes hard: see `scanner`."""

STATE_WORDS = 18
_LAST_CASELESS, _OPEN_CAPITALS = 10, 16  # places in the state
_HARD_BLOCKS = 8


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
def white_follows(source, at, classes):
    """Whether white space, if it is before `source[at]`, goes on there; that is not ASCII.

    It does in the middle of a character. Looks at four bytes.
    """
    out_of_line()
    if source[at] < 0xC2:
        return True
    code_point, _ = character(source, at)
    return classes[code_point] & _WHITE_SPACE != 0


@functools.cache
def scanner(flags):
    """The kernel for one pattern: `split_cl100k` with the flags as constants.

    What a pattern does not need is not compiled. Words that are cased are compiled twice: marks,
    letters without case, and slashes that punctuation takes need many more sets than there are
    registers, so blocks without any of them have a kernel that does without.

    Args:
        flags: a sum of the flags of this module.
    """
    if flags & CASED == 0:
        return _scanner(flags)
    split_easy, split_all = _scanner(flags | _EASY), _scanner(flags)

    @kernel
    def split_cased(source, source_start, n, classes, starts, first, last, state):
        """As `split_cl100k`."""
        while first < last:
            if state[_LAST_CASELESS] == 0 and state[_OPEN_CAPITALS] == 0:
                first = split_easy(source, source_start, n, classes, starts, first, last, state)
            if first < last:
                # Where one is hard, the next ones are.
                stop = min(first + _HARD_BLOCKS, last)
                first = split_all(source, source_start, n, classes, starts, first, stop, state)
        return last

    return split_cased


@functools.cache
def _scanner(flags):
    cased = flags & CASED != 0
    suffixes = flags & SUFFIXES != 0
    slashes_too = flags & SLASHES != 0
    single_digits = flags & SINGLE_DIGITS != 0
    whole_end = flags & WHOLE_END != 0
    easy = flags & _EASY != 0
    hard = cased and not easy

    @kernel
    def split_cl100k(source, source_start, n, classes, starts, first, last, state):
        """Boundaries of one pattern of the family, for some blocks.

        Args:
            source, source_start, n, classes, starts: as in `split.split_gpt2`.
            first: the first block.
            last: one past the last block, at most `starts.size`.
            state: uint64[STATE_WORDS], zeros before the first call; modified in place.

        Returns:
            `last`, or with _EASY the first block that is not easy.
        """
        one, zero, top = np.uint64(1), np.uint64(0), np.uint64(63)
        # The class of a character that goes on in the next block, and the bytes it has there.
        spill_flags, spill = np.int64(state[0]), state[1]
        # Sets of the block before.
        last_letter, last_white, last_blank, last_line_end = state[2], state[3], state[4], state[5]
        last_other, last_single, last_taken = state[6], state[7], state[8]
        last_small, last_caseless = state[9], state[10]
        # Letters of a contraction that began in it.
        spent = state[11]
        # All of its numbers that follow another, and where pieces of numbers began in it.
        last_number, last_inner, last_pieces = state[12], state[13], state[14]
        # One more than the place of a boundary that may be taken back, and of one that may be made.
        open_blanks, open_capitals = np.int64(state[15]), np.int64(state[16])
        last_plain = state[17]
        for k in range(first, last):
            at = np.int64(k) << 6
            base = at - source_start
            if easy:
                before = spill_flags, spill
            documents = starts[k]
            same = ~documents  # places whose character before them is of the same document
            # Classes.
            lowers = range_mask(source, base, 97, 122)
            uppers = range_mask(source, base, 65, 90)
            letters = lowers | uppers
            numbers = range_mask(source, base, 48, 57)
            blanks = range_mask(source, base, 32, 32)
            line_ends = range_mask(source, base, 10, 10) | range_mask(source, base, 13, 13)
            white = (range_mask(source, base, 9, 13) ^ line_ends) | blanks
            rests = range_mask(source, base, 0x80, 0xBF)
            marks = zero
            if spill != zero:
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
            if leads != zero:
                sure = sure_letters(source, base)
                letters |= sure | (sure << one) | (sure << np.uint64(2))
                leads ^= sure
            while leads != zero:
                j = trailing_zeros(leads)
                leads &= leads - one
                code_point, width = character(source, base + j)
                char_flags = np.int64(classes[code_point])
                bits = ((one << width) - one) << np.uint64(j)
                if char_flags & _LETTER:
                    letters |= bits
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
            if easy and marks | (letters ^ (uppers | lowers)) != zero:
                spill_flags, spill = before
                last = k
                break
            if easy:
                marks = zero
            letters |= marks
            others = ~(letters | numbers | white | line_ends)
            if spent != zero:
                letters &= ~spent
                uppers &= ~spent
                lowers &= ~spent
                spent = zero
            if hard and (last_other >> top) & rests & marks != zero:
                # The rest of a mark that punctuation has taken.
                taken_rest = rests & ~add(rests, one)
                letters &= ~taken_rest
                marks &= ~taken_rest
                others |= taken_rest
            lines = line_ends
            if slashes_too:
                lines = line_ends | range_mask(source, base, 47, 47)
            lines &= same
            before_blank = (blanks << one) | (last_blank >> top)
            before_other = ((others << one) | (last_other >> top)) & same
            piece_starts = others & ~(before_other | (before_blank & same))
            single = _first_characters(piece_starts, rests, last_single)
            after_single = ((single << one) | (last_single >> top)) & ~rests
            # Line ends that punctuation takes, and the slashes among them.
            taken = _run(lines, (line_ends & before_other) | (lines & (last_taken >> top)))
            if cased and marks | (taken & ~line_ends) != zero:
                # Settle, from left to right, which marks and slashes punctuation takes.
                while True:
                    slashes = taken & ~line_ends & others
                    wrong = slashes | (marks & before_other & ~after_single & ~rests)
                    if wrong == zero:
                        break
                    lowest = wrong & (~wrong + one)
                    if lowest & slashes:
                        others &= ~_run(taken, lowest)
                    else:
                        # One character: its first byte and the rest of it.
                        one_mark = _first_characters(lowest, rests, zero)
                        letters &= ~one_mark
                        marks &= ~one_mark
                        others |= one_mark
                    before_other = ((others << one) | (last_other >> top)) & same
                    piece_starts = others & ~(before_other | (before_blank & same))
                    single = _first_characters(piece_starts, rests, last_single)
                    after_single = ((single << one) | (last_single >> top)) & ~rests
                    taken = _run(lines, (line_ends & before_other) | (lines & (last_taken >> top)))
            # Contractions, from left to right: one ends the word, and the next needs a word.
            apostrophes = piece_starts & range_mask(source, base, 39, 39)
            if suffixes:
                apostrophes &= ((letters << one) | (last_letter >> top)) & same
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
                if documents & inside or (over != zero and starts[k + 1] & over):
                    continue
                letters &= ~inside
                spent = over
                if suffixes:
                    piece_starts ^= bit
                    uppers &= ~inside
                    lowers &= ~inside
                    apostrophes &= ~(inside << one)
            # Words begin at letters, or with the one character before them.
            plain = letters | white
            before_white = (white << one) | (last_white >> top)
            before_line_end = (line_ends << one) | (last_line_end >> top)
            found = documents | piece_starts
            found |= letters & ~(((plain << one) | (last_plain >> top)) | after_single)
            # White space begins after something else; line ends that are taken are not its own.
            # Blanks after a line end begin anew, unless another line end follows them.
            found |= (white | line_ends) & ~(before_white | before_line_end | taken)
            found |= white & before_line_end
            ends = line_ends & before_white & same
            if whole_end:
                ends |= documents & before_white
            while ends != zero:
                j = trailing_zeros(ends)
                ends &= ends - one
                outside = ~(white & before_white & same) & _below(j)
                if outside != zero:
                    place = np.int64(63 - leading_zeros(outside))
                    begin = one << np.uint64(place)
                    if begin & before_line_end & same & ~((taken << one) | (last_taken >> top)):
                        found &= ~begin
                elif open_blanks != 0:
                    place = open_blanks - 1
                    starts[place >> 6] &= ~(one << np.uint64(place & 63))
                    open_blanks = np.int64(0)
            maybe_open = np.uint64(open_blanks) | (white & before_line_end)
            if (white >> top) * maybe_open != zero:
                outside = ~(white & before_white & same)
                if outside != zero:
                    open_blanks = np.int64(0)
                    j = 63 - leading_zeros(outside)
                    begin = one << np.uint64(j)
                    if begin & before_line_end & same & ~((taken << one) | (last_taken >> top)):
                        open_blanks = at + j + 1
            else:
                open_blanks = np.int64(0)
            # The last white space before something else stands alone, or goes with what follows.
            byte = np.int64(source[base + 64])
            follows = np.uint64((byte == 32) | ((byte >= 9) & (byte <= 13)))
            follows |= starts[min(k + 1, starts.size - 1)]
            final = white & ~(((white | line_ends | documents) >> one) | (follows << top))
            if byte >= 0x80 and white_follows(source, base + 64, classes):
                final &= ~(one << top)
            wide = final & rests
            found |= final ^ wide
            while wide != zero:
                # Back to the first byte: U+0085 and U+00A0 have two bytes, the others three.
                j = trailing_zeros(wide) - 1
                wide &= wide - one
                if source[base + j] & 0xC0 == 0x80:
                    j -= 1
                if j >= 0:
                    found |= one << np.uint64(j)
                else:
                    starts[k - 1] |= one << np.uint64(64 + j)
            # Numbers.
            if single_digits:
                found |= numbers & ~rests
            else:
                inner = numbers & ((numbers << one) | (last_number >> top)) & same
                pieces = numbers ^ inner
                if numbers & rests:
                    # Characters of several bytes are counted one by one.
                    n_numbers = leading_zeros(last_pieces | one) + 1
                    left = numbers & ~rests
                    while left != zero:
                        bit = left & (~left + one)
                        left ^= bit
                        if bit & pieces:
                            n_numbers = np.int64(1)
                        elif n_numbers == 3:
                            pieces |= bit
                            n_numbers = np.int64(1)
                        else:
                            n_numbers += 1
                    # To the next block they are as many characters of one byte.
                    last_pieces = one << np.uint64(64 - n_numbers)
                    last_inner = ~zero
                else:
                    # A piece begins three places after another in the same run.
                    third = inner & ((inner << one) | (last_inner >> top))
                    third &= (inner << np.uint64(2)) | (last_inner >> np.uint64(62))
                    more = ((pieces << np.uint64(3)) | (last_pieces >> np.uint64(61))) & third
                    while more != zero:
                        pieces |= more
                        more = (more << np.uint64(3)) & third
                    last_pieces = pieces
                    last_inner = inner
                found |= pieces
                last_number = numbers
            if easy:
                found |= uppers & ((lowers << one) | (last_small >> top))
                last_small = lowers
            elif cased:
                caseless = letters ^ (uppers | lowers)
                small = lowers
                if caseless | (last_caseless >> top) | np.uint64(open_capitals) != zero:
                    # Letters without case go on with the case before them.
                    seeds = caseless & ((lowers << one) | (last_small >> top)) & same
                    small |= _run(caseless & same, seeds)
                    caseless &= ~small
                    # Capitals after such letters are a word of their own if they end it.
                    goes_on = uppers & same
                    if open_capitals != 0 and ~goes_on != zero:
                        if not (letters & same) >> np.uint64(trailing_zeros(~goes_on)) & one:
                            place = open_capitals - 1
                            starts[place >> 6] |= one << np.uint64(place & 63)
                        open_capitals = np.int64(0)
                    capitals = uppers & ((caseless << one) | (last_caseless >> top)) & same
                    while capitals != zero:
                        j = trailing_zeros(capitals)
                        capitals &= capitals - one
                        outside = ~goes_on & ~_below(j) & ~(one << np.uint64(j))
                        if outside == zero:
                            open_capitals = at + j + 1
                        elif not (letters & same) >> np.uint64(trailing_zeros(outside)) & one:
                            found |= one << np.uint64(j)
                found |= uppers & ((small << one) | (last_small >> top))
                last_small = small
                last_caseless = caseless
            if k == starts.size - 1:
                # Zeros behind the text look like characters: cut them off, keep the end.
                end_bit = one << np.uint64(n & 63)
                found = (found & (end_bit - one)) | end_bit
            starts[k] = found
            last_letter = letters
            last_plain = plain
            last_white = white
            last_blank = blanks
            last_line_end = line_ends
            last_other = others
            last_single = single
            last_taken = taken
        state[0], state[1] = np.uint64(spill_flags), spill
        state[2], state[3], state[4], state[5] = last_letter, last_white, last_blank, last_line_end
        state[6], state[7], state[8] = last_other, last_single, last_taken
        state[9], state[10], state[11] = last_small, last_caseless, spent
        state[12], state[13], state[14] = last_number, last_inner, last_pieces
        state[15], state[16] = np.uint64(open_blanks), np.uint64(open_capitals)
        state[17] = last_plain
        return last

    return split_cl100k
