r"""Scanner of the family of cl100k: find the boundaries of pre-tokens, 64 bytes at a time.

`split_cl100k` sets bit i of `starts` exactly where `reference.split` begins a pre-token, for all
documents of the buffer at once and any sum of the flags of `bpe.split.sets`. The flags of each
pattern are in `bpe.split.pretokenizer`.

As in `split_gpt2` boundaries are shifts and masks of bit sets, one for each class of characters.
These are too many for registers, so they are in memory (`sets`), and each step is a loop over a
group of blocks that uses few of them:

1. the classes of characters (`classify`, `classify_rest`);
2. sets that depend on the block before (`_take_lines`, `_end_words`, `_find_indents`);
3. boundaries (`_combine`): blocks are independent, so the compiler overlaps several;
4. rare boundaries, in the blocks that have some (`mend`).

Steps are skipped if a group has none of their characters. Unlike gpt2, these patterns have parts
that depend on distant text:

- `[\r\n]*` after punctuation takes line ends (and slashes), which then are not white space. A run
  is followed from its start by the carry of an addition.
- `\s*[\r\n]+` reaches to the *last* line end of its white space. Blanks after a line end begin a
  piece at first; that boundary, perhaps in an earlier block, is removed if they end at a line end.
- `\p{N}{1,3}` counts. Runs of up to three digits need no counting.
- o200k cuts words between a small letter and a capital. Letters without case and marks continue
  the case before them; that is one more addition.
- o200k's marks are letters, except in punctuation, which is decided from left to right; it is rare.
- A contraction after a word (o200k) ends it: its letters are removed from the letters.
"""

from __future__ import annotations

import functools

import numpy as np

from bpe.runtime.jit import kernel
from bpe.runtime.machine import add, noinline, noinline_cold
from bpe.split import sets as of
from bpe.split.classes import contractions, white_follows
from bpe.split.mend import mend, mend_indents, mend_words
from bpe.split.sets import behind, classify, classify_rest, clear, is_empty, run, shift


@kernel
def _first_characters(first_bytes, rests, last):
    """Return all bits of the characters at `first_bytes`, and of one that `last` ends with.

    Example: first bytes 0b1, rests 0b10 -> 0b11.
    """
    if rests != np.uint64(0):
        first_bytes |= (last >> np.uint64(63)) & rests
        for _ in range(3):
            first_bytes |= (first_bytes << np.uint64(1)) & rests
    return first_bytes


@kernel
def _alternate(short, long):
    """Return which contractions end a word: not one directly after another that does.

    `short` and `long` are the apostrophes of those with one byte of letters, and with two.

    Example: "a's's's", short 0b101010 -> 0b100010.
    """
    zero, two, three = np.uint64(0), np.uint64(2), np.uint64(3)
    waiting = ((short << two) | (long << three)) & (short | long)
    ending = (short | long) ^ waiting
    if waiting != zero and long == zero:
        # They are two bytes apart: in a run, every second one counts.
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
def _punctuation(flags, sets, i, others, last):
    r"""Return punctuation in block i, its lines, its starts, and its first characters.

    `others` are candidates, `last` punctuation, lines and first characters of the last block.

    Example: "a!!\n" -> (0b110, 0b1000, 0b10, 0b10).
    """
    last_other, last_taken, last_single = last
    same = ~sets[of.DOCUMENTS + i]  # positions in the same document as the one before
    line_ends = sets[of.LINE_ENDS + i]
    lines = (sets[of.LINES + i] if flags & of.SLASHES else line_ends) & same
    behind_other = shift(last_other, others, 1) & same
    taken = run(lines, (line_ends & behind_other) | (lines & (last_taken >> np.uint64(63))))
    if flags & of.SLASHES:
        others &= ~taken
        behind_other = shift(last_other, others, 1) & same
    pieces = others & ~(behind_other | (behind(sets, of.BLANKS, i, 1) & same))
    single = _first_characters(pieces, sets[of.RESTS + i], last_single)
    return others, taken, pieces, single


@kernel
def _settle_marks(flags, sets, i):
    """Make marks of block i in punctuation punctuation: "!!" and a mark -> OTHERS 0b111."""
    noinline_cold()
    one, zero = np.uint64(1), np.uint64(0)
    others, marks, rests = sets[of.OTHERS + i], sets[of.MARKS + i], sets[of.RESTS + i]
    last_other, last_single = sets[of.OTHERS + i - 1], sets[of.SINGLE + i - 1]
    # The first bytes may continue such a mark.
    taken_marks = zero
    if (last_other >> np.uint64(63)) & rests & marks != zero:
        taken_marks = rests & ~add(rests, one)
    while True:
        found, _, _, single = _punctuation(
            flags, sets, i, others | taken_marks, (last_other, sets[of.TAKEN + i - 1], last_single)
        )
        wrong = marks & shift(last_other, found, 1) & ~shift(last_single, single, 1)
        wrong &= ~(taken_marks | rests | sets[of.DOCUMENTS + i])
        if wrong == zero:
            break
        # From left to right, as each mark depends on the one before.
        taken_marks |= _first_characters(wrong & (~wrong + one), rests, zero)
    sets[of.OTHERS + i] = others | taken_marks
    sets[of.LETTERS + i] &= ~taken_marks


@kernel
def _take_lines(flags, sets, count):
    r"""Set starts of punctuation, its lines and marks: "a!!\n" -> PIECES 0b10, TAKEN 0b1000."""
    last_other, last_taken, last_single = sets[of.OTHERS], sets[of.TAKEN], sets[of.SINGLE]
    for i in range(1, count + 1):
        if flags & of.CASED and sets[of.MARKS + i] != np.uint64(0):
            _settle_marks(flags, sets, i)
        last_other, last_taken, pieces, last_single = _punctuation(
            flags, sets, i, sets[of.OTHERS + i], (last_other, last_taken, last_single)
        )
        sets[of.OTHERS + i], sets[of.TAKEN + i] = last_other, last_taken
        sets[of.PIECES + i], sets[of.SINGLE + i] = pieces, last_single


@kernel
def _spend(flags, sets, i, letters):
    """Remove letters of contractions in block i: LETTERS 0b1011, letters 0b1000 -> 0b11."""
    sets[of.LETTERS + i] &= ~letters
    if flags & of.CASED:
        sets[of.UPPERS + i] &= ~letters
        sets[of.LOWERS + i] &= ~letters


@kernel
def _end_words(flags, source, base, sets, count):
    """Find contractions, which end a word or, without SUFFIXES, are a piece.

    Example (SUFFIXES): "it's" -> the apostrophe is not in PIECES, and s not in LETTERS.
    """
    one, two, top = np.uint64(1), np.uint64(2), np.uint64(63)
    spent = sets[of.SPENT]
    for i in range(1, count + 1):
        apostrophes = sets[of.PIECES + i] & sets[of.QUOTES + i]
        if apostrophes | spent != np.uint64(0):
            _spend(flags, sets, i, spent)
            documents, next_documents = sets[of.DOCUMENTS + i], sets[of.DOCUMENTS + i + 1]
            if flags & of.SUFFIXES:
                apostrophes &= behind(sets, of.LETTERS, i, 1) & ~documents
            short, long = contractions(source, base, apostrophes)
            # Not if a document begins among the letters.
            begins = (documents >> one) | (next_documents << top)
            short &= ~begins
            long &= ~(begins | (documents >> two) | (next_documents << np.uint64(62)))
            if flags & of.SUFFIXES:
                ending = _alternate(short, long)
                short &= ending
                long &= ending
                sets[of.PIECES + i] ^= ending
            _spend(flags, sets, i, ((short | long) << one) | (long << two))
            spent = ((short | long) >> top) | (long >> np.uint64(62))
        base += 64
    sets[of.SPENT] = spent


@kernel
def _find_indents(sets, count):
    r"""Set the blanks after a line end of white space: "\n  a" -> INDENTS 0b110."""
    top = np.uint64(63)
    last_indent = sets[of.INDENTS]
    last_line_end = sets[of.LINE_ENDS] & ~sets[of.TAKEN]
    for i in range(1, count + 1):
        white = sets[of.WHITE + i] & ~sets[of.DOCUMENTS + i]
        line_end = sets[of.LINE_ENDS + i] & ~sets[of.TAKEN + i]
        seeds = shift(last_line_end, line_end, 1) | (last_indent >> top)
        last_indent = run(white, white & seeds)
        last_line_end = line_end
        sets[of.INDENTS + i] = last_indent


@kernel
def _combine(flags, sets):
    """Set FOUND: "a b1" -> 0b1011; return whether `mend` and `mend_indents` are needed."""
    one, top = np.uint64(1), np.uint64(63)
    mends = all_ends = np.uint64(0)
    # Blocks after the text are processed, too, so that the number of rounds is constant.
    for i in range(1, of.BLOCKS + 1):
        documents, rests = sets[of.DOCUMENTS + i], sets[of.RESTS + i]
        letters, white = sets[of.LETTERS + i], sets[of.WHITE + i]
        line_ends = sets[of.LINE_ENDS + i]
        found = documents | sets[of.PIECES + i]
        # Words begin at letters, or with the one character before them.
        last_plain = sets[of.LETTERS + i - 1] | sets[of.WHITE + i - 1]
        behind_one = shift(last_plain, letters | white, 1)
        behind_one |= behind(sets, of.SINGLE, i, 1) & ~rests
        found |= letters & ~behind_one
        # White space begins after other text, without the line ends of punctuation. Blanks after a
        # line end begin a piece, unless another line end follows them.
        spaces = white | line_ends
        last_spaces = sets[of.WHITE + i - 1] | sets[of.LINE_ENDS + i - 1]
        found |= spaces & ~(shift(last_spaces, spaces, 1) | sets[of.TAKEN + i])
        found |= white & behind(sets, of.LINE_ENDS, i, 1)
        ends = line_ends & ~documents
        if flags & of.WHOLE_END:
            ends |= documents
        ends &= behind(sets, of.INDENTS, i, 1)
        sets[of.ENDS + i] = ends
        all_ends |= ends
        # The last white space before other text is a piece, or belongs to the text.
        next_ends = sets[of.WHITE + i + 1] | sets[of.LINE_ENDS + i + 1]
        next_ends |= sets[of.DOCUMENTS + i + 1]
        final = white & ~(((spaces | documents) >> one) | (next_ends << top))
        found |= final & ~rests
        mend = final & rests
        # Numbers.
        numbers = sets[of.NUMBERS + i]
        if flags & of.SINGLE_DIGITS:
            found |= numbers & ~rests
        else:
            inner = numbers & behind(sets, of.NUMBERS, i, 1) & ~documents
            found |= numbers ^ inner
            mend |= inner & behind(sets, of.NUMBERS, i, 2) & behind(sets, of.NUMBERS, i, 3)
            mend |= numbers & rests
        if flags & of.CASED:
            found |= sets[of.UPPERS + i] & behind(sets, of.LOWERS, i, 1)
        sets[of.FOUND + i] = found
        sets[of.MENDS + i] = mend
        mends |= mend
    return mends != np.uint64(0), all_ends != np.uint64(0)


@kernel
def split_cl100k(flags, text, characters, starts, blocks, sets):
    r"""Find the boundaries of one pattern of the family in some blocks.

    `flags` is a sum of those of `sets`, `sets` uint64[STATE_WORDS], zeros before the first call,
    modified in place. Others are as in `split_gpt2`.

    Example (llama3): "a1234!\n" -> boundaries at 0 (a), 1 (123), 4 (4), 5 (! and the line end), 7.
    """
    noinline()
    source, source_start, n = text
    first, last = blocks
    one, zero = np.uint64(1), np.uint64(0)
    while first < last:
        count = min(last - first, of.BLOCKS)
        base = (np.int64(first) << 6) - source_start
        for i in range(1, count + 1):
            sets[of.DOCUMENTS + i] = starts[np.uint64(first + i - 1)]
        if classify(flags, source, base, sets, count):
            classify_rest(flags, source, base, characters, sets, count)
        # Of the block after the group only the first byte is needed.
        next_base = base + (count << 6)
        byte = np.int64(source[next_base])
        white = byte == 32 or (byte >= 9 and byte <= 13)
        if byte >= 0x80:
            white = white_follows(source, next_base, characters.classes)
        sets[of.WHITE + count + 1] = np.uint64(white)
        sets[of.LINE_ENDS + count + 1] = zero
        sets[of.DOCUMENTS + count + 1] = starts[min(first + count, starts.size - 1)]
        # Steps without characters in the group are skipped.
        last_others = sets[of.OTHERS] | sets[of.TAKEN] | sets[of.SINGLE]
        if last_others >> np.uint64(63) != zero or not is_empty(sets, of.OTHERS):
            _take_lines(flags, sets, count)
        else:
            clear(sets, of.TAKEN)
            clear(sets, of.PIECES)
            clear(sets, of.SINGLE)
        if sets[of.SPENT] != zero or not is_empty(sets, of.QUOTES):
            _end_words(flags, source, base, sets, count)
        last_white = sets[of.INDENTS] | sets[of.LINE_ENDS]
        if last_white >> np.uint64(63) != zero or not is_empty(sets, of.LINE_ENDS):
            _find_indents(sets, count)
        else:
            clear(sets, of.INDENTS)
        mends, ends = _combine(flags, sets)
        for i in range(1, count + 1):
            starts[np.uint64(first + i - 1)] = sets[of.FOUND + i]
        if ends:
            mend_indents(first, sets, count, starts)
        if mends:
            mend(flags, source, base, sets, (first, count), starts)
        if flags & of.CASED and sets[of.CASELESS] != zero:
            mend_words(first, sets, count, starts)
        for begin in range(0, of.N_SETS * of.WIDTH, of.WIDTH):
            sets[begin] = sets[begin + count]
        first += count
    if last == starts.size:
        # Zeros after the text look like characters: remove them, and keep the end.
        end_bit = one << np.uint64(n & 63)
        starts[last - 1] = (starts[last - 1] & (end_bit - one)) | end_bit


@functools.cache
def scanner(flags):
    """Return `split_cl100k` compiled for constant flags, without code that they do not need."""

    def scan(text, characters, starts, blocks, sets):
        """Run `split_cl100k` with these flags."""
        split_cl100k(flags, text, characters, starts, blocks, sets)

    return kernel(scan, f"_{flags}")
