r"""Bytes -> boundaries of pre-tokens for the patterns that descend from cl100k, 64 bytes at a time.

`split_cl100k` sets bit i of `starts` exactly where `reference.split` begins a pre-token, for all
documents of the buffer at once and any sum of the flags of `split_rows`. The flags of each pattern
are in `bpe.pretokenize.pretokenizer`.

As in `split_gpt2` boundaries are shifts and masks of bit sets, one for each class of characters.
These are too many for the registers of a processor, so they are in memory (`split_rows`), and each
step is a loop over a group of blocks that needs few of them:

1. the classes of characters (`classify`, `classify_rest`);
2. what is settled from left to right (`_take_lines`, `_end_words`, `_find_indents`);
3. the boundaries (`_combine`): no block waits for another, so the compiler overlaps several;
4. what is rare, in the blocks that have some of it (`split_mend`).

A step is skipped where a group has none of its characters. Unlike gpt2's, these patterns have parts
that depend on places far away:

- `[\r\n]*` after punctuation takes line ends (and slashes), which then belong to no white space. A
  run is followed from its begin by the carry of an addition.
- `\s*[\r\n]+` reaches to the *last* line end of its white space. Blanks after a line end are taken
  for a new piece at first; that boundary is removed if they end at another line end, possibly in an
  earlier block.
- `\p{N}{1,3}` counts. Runs of up to three digits need no counting.
- o200k's words are cut where a small letter is followed by a capital. A letter that is neither
  (and a mark) goes with what is before it; that is one more addition.
- o200k's marks are letters, except after punctuation that takes them. That decides what the next
  mark is, so it is settled from left to right; it is rare.
- A contraction after a word (o200k) ends it: its letters count as no letters.
"""

from __future__ import annotations

import functools

import numpy as np

from bpe.kernels.runtime.jit import kernel
from bpe.kernels.runtime.machine import add, noinline, noinline_cold
from bpe.kernels.split import rows as row
from bpe.kernels.split.classes import contractions, white_follows
from bpe.kernels.split.mend import mend, mend_indents, mend_words
from bpe.kernels.split.rows import behind, classify, classify_rest, clear, is_empty, run, shift


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
    """Return which of these contractions end a word: one directly behind such a one does not.

    `short` and `long` are the apostrophes of those with one byte of letters, and with two.

    Example: "a's's's", short 0b101010 -> 0b100010.
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
def _punctuation(flags, sets, i, others, last_other, last_taken, last_single):
    r"""Return punctuation in block i, the lines it takes, where it begins, its first characters.

    `others` are the candidates, and `last_*` these sets in the block before.

    Example: "a!!\n" -> (0b110, 0b1000, 0b10, 0b10).
    """
    same = ~sets[row.DOCUMENTS + i]  # places whose character before them is of the same document
    line_ends = sets[row.LINE_ENDS + i]
    lines = (sets[row.LINES + i] if flags & row.SLASHES else line_ends) & same
    behind_other = shift(last_other, others, 1) & same
    taken = run(lines, (line_ends & behind_other) | (lines & (last_taken >> np.uint64(63))))
    if flags & row.SLASHES:
        others &= ~taken
        behind_other = shift(last_other, others, 1) & same
    pieces = others & ~(behind_other | (behind(sets, row.BLANKS, i, 1) & same))
    single = _first_characters(pieces, sets[row.RESTS + i], last_single)
    return others, taken, pieces, single


@kernel
def _settle_marks(flags, sets, i):
    """Make marks of block i punctuation: all behind it but those behind its first character."""
    noinline_cold()
    one, zero = np.uint64(1), np.uint64(0)
    others, marks, rests = sets[row.OTHERS + i], sets[row.MARKS + i], sets[row.RESTS + i]
    last_other, last_single = sets[row.OTHERS + i - 1], sets[row.SINGLE + i - 1]
    # The first bytes may be the rest of one that is.
    taken_marks = zero
    if (last_other >> np.uint64(63)) & rests & marks != zero:
        taken_marks = rests & ~add(rests, one)
    while True:
        found, _, _, single = _punctuation(
            flags, sets, i, others | taken_marks, last_other, sets[row.TAKEN + i - 1], last_single
        )
        wrong = marks & shift(last_other, found, 1) & ~shift(last_single, single, 1)
        wrong &= ~(taken_marks | rests | sets[row.DOCUMENTS + i])
        if wrong == zero:
            break
        # From left to right: this one decides what the next one is.
        taken_marks |= _first_characters(wrong & (~wrong + one), rests, zero)
    sets[row.OTHERS + i] = others | taken_marks
    sets[row.LETTERS + i] &= ~taken_marks


@kernel
def _take_lines(flags, sets, count):
    """Set where punctuation begins, and the lines and marks that it takes."""
    last_other, last_taken, last_single = sets[row.OTHERS], sets[row.TAKEN], sets[row.SINGLE]
    for i in range(1, count + 1):
        if flags & row.CASED and sets[row.MARKS + i] != np.uint64(0):
            _settle_marks(flags, sets, i)
        last_other, last_taken, pieces, last_single = _punctuation(
            flags, sets, i, sets[row.OTHERS + i], last_other, last_taken, last_single
        )
        sets[row.OTHERS + i], sets[row.TAKEN + i] = last_other, last_taken
        sets[row.PIECES + i], sets[row.SINGLE + i] = pieces, last_single


@kernel
def _spend(flags, sets, i, letters):
    """Have letters of contractions count as none, in block i."""
    sets[row.LETTERS + i] &= ~letters
    if flags & row.CASED:
        sets[row.UPPERS + i] &= ~letters
        sets[row.LOWERS + i] &= ~letters


@kernel
def _end_words(flags, source, base, sets, count):
    """Find the contractions: one ends the word, and the next needs a word.

    Example (SUFFIXES): "it's" -> the apostrophe begins no piece, and s is no letter.
    """
    one, two, top = np.uint64(1), np.uint64(2), np.uint64(63)
    spent = sets[row.SPENT]
    for i in range(1, count + 1):
        apostrophes = sets[row.PIECES + i] & sets[row.QUOTES + i]
        if apostrophes | spent != np.uint64(0):
            _spend(flags, sets, i, spent)
            documents, next_documents = sets[row.DOCUMENTS + i], sets[row.DOCUMENTS + i + 1]
            if flags & row.SUFFIXES:
                apostrophes &= behind(sets, row.LETTERS, i, 1) & ~documents
            short, long = contractions(source, base, apostrophes)
            # Where a document begins among the letters there is none.
            begins = (documents >> one) | (next_documents << top)
            short &= ~begins
            long &= ~(begins | (documents >> two) | (next_documents << np.uint64(62)))
            if flags & row.SUFFIXES:
                ending = _alternate(short, long)
                short &= ending
                long &= ending
                sets[row.PIECES + i] ^= ending
            _spend(flags, sets, i, ((short | long) << one) | (long << two))
            spent = ((short | long) >> top) | (long >> np.uint64(62))
        base += 64
    sets[row.SPENT] = spent


@kernel
def _find_indents(sets, count):
    r"""Set the blanks that go on from a line end of white space: in "\n  a" bits 1 and 2."""
    top = np.uint64(63)
    last_indent = sets[row.INDENTS]
    last_line_end = sets[row.LINE_ENDS] & ~sets[row.TAKEN]
    for i in range(1, count + 1):
        white = sets[row.WHITE + i] & ~sets[row.DOCUMENTS + i]
        line_end = sets[row.LINE_ENDS + i] & ~sets[row.TAKEN + i]
        seeds = shift(last_line_end, line_end, 1) | (last_indent >> top)
        last_indent = run(white, white & seeds)
        last_line_end = line_end
        sets[row.INDENTS + i] = last_indent


@kernel
def _combine(flags, sets):
    """Set all boundaries but the rare ones; return whether `mend` and `mend_indents` have work."""
    one, top = np.uint64(1), np.uint64(63)
    mends = all_ends = np.uint64(0)
    # Blocks behind the text are worked on, too: the number of rounds is known to the compiler.
    for i in range(1, row.GROUP + 1):
        documents, rests = sets[row.DOCUMENTS + i], sets[row.RESTS + i]
        letters, white = sets[row.LETTERS + i], sets[row.WHITE + i]
        line_ends = sets[row.LINE_ENDS + i]
        found = documents | sets[row.PIECES + i]
        # Words begin at letters, or with the one character before them.
        last_plain = sets[row.LETTERS + i - 1] | sets[row.WHITE + i - 1]
        behind_one = shift(last_plain, letters | white, 1)
        behind_one |= behind(sets, row.SINGLE, i, 1) & ~rests
        found |= letters & ~behind_one
        # White space begins after something else; line ends that are taken are not its own.
        # Blanks after a line end begin anew, unless another line end follows them.
        spaces = white | line_ends
        last_spaces = sets[row.WHITE + i - 1] | sets[row.LINE_ENDS + i - 1]
        found |= spaces & ~(shift(last_spaces, spaces, 1) | sets[row.TAKEN + i])
        found |= white & behind(sets, row.LINE_ENDS, i, 1)
        ends = line_ends & ~documents
        if flags & row.WHOLE_END:
            ends |= documents
        ends &= behind(sets, row.INDENTS, i, 1)
        sets[row.ENDS + i] = ends
        all_ends |= ends
        # The last white space before something else stands alone, or goes with what follows.
        next_ends = sets[row.WHITE + i + 1] | sets[row.LINE_ENDS + i + 1]
        next_ends |= sets[row.DOCUMENTS + i + 1]
        final = white & ~(((spaces | documents) >> one) | (next_ends << top))
        found |= final & ~rests
        mend = final & rests
        # Numbers.
        numbers = sets[row.NUMBERS + i]
        if flags & row.SINGLE_DIGITS:
            found |= numbers & ~rests
        else:
            inner = numbers & behind(sets, row.NUMBERS, i, 1) & ~documents
            found |= numbers ^ inner
            mend |= inner & behind(sets, row.NUMBERS, i, 2) & behind(sets, row.NUMBERS, i, 3)
            mend |= numbers & rests
        if flags & row.CASED:
            found |= sets[row.UPPERS + i] & behind(sets, row.LOWERS, i, 1)
        sets[row.FOUND + i] = found
        sets[row.MENDS + i] = mend
        mends |= mend
    return mends != np.uint64(0), all_ends != np.uint64(0)


@kernel
def split_cl100k(flags, source, source_start, n, classes, pages, starts, first, last, sets):
    r"""Find the boundaries of one pattern of the family in some blocks.

    `flags` is a sum of those of `split_rows`, `sets` uint64[STATE_WORDS], zeros before the first
    call, modified in place; `last` is at most `starts.size`. The others are as in `split_gpt2`.

    Example (llama3): "a1234!\n" -> boundaries at 0 (a), 1 (123), 4 (4), 5 (! and the line end), 7.
    """
    noinline()
    one, zero = np.uint64(1), np.uint64(0)
    while first < last:
        count = min(last - first, row.GROUP)
        base = (np.int64(first) << 6) - source_start
        for i in range(1, count + 1):
            sets[row.DOCUMENTS + i] = starts[np.uint64(first + i - 1)]
        if classify(flags, source, base, sets, count):
            classify_rest(flags, source, base, classes, pages, sets, count)
        # Of the block behind them only the first place must be known.
        next_base = base + (count << 6)
        byte = np.int64(source[next_base])
        white = byte == 32 or (byte >= 9 and byte <= 13)
        if byte >= 0x80:
            white = white_follows(source, next_base, classes)
        sets[row.WHITE + count + 1] = np.uint64(white)
        sets[row.LINE_ENDS + count + 1] = zero
        sets[row.DOCUMENTS + count + 1] = starts[min(first + count, starts.size - 1)]
        # What there is nothing of in a group takes no time.
        last_others = sets[row.OTHERS] | sets[row.TAKEN] | sets[row.SINGLE]
        if last_others >> np.uint64(63) != zero or not is_empty(sets, row.OTHERS):
            _take_lines(flags, sets, count)
        else:
            clear(sets, row.TAKEN)
            clear(sets, row.PIECES)
            clear(sets, row.SINGLE)
        if sets[row.SPENT] != zero or not is_empty(sets, row.QUOTES):
            _end_words(flags, source, base, sets, count)
        last_white = sets[row.INDENTS] | sets[row.LINE_ENDS]
        if last_white >> np.uint64(63) != zero or not is_empty(sets, row.LINE_ENDS):
            _find_indents(sets, count)
        else:
            clear(sets, row.INDENTS)
        mends, ends = _combine(flags, sets)
        for i in range(1, count + 1):
            starts[np.uint64(first + i - 1)] = sets[row.FOUND + i]
        if ends:
            mend_indents(first, sets, count, starts)
        if mends:
            mend(flags, source, base, first, sets, count, starts)
        if flags & row.CASED and sets[row.CASELESS] != zero:
            mend_words(first, sets, count, starts)
        for begin in range(0, row.N_SETS * row.WIDTH, row.WIDTH):
            sets[begin] = sets[begin + count]
        first += count
    if last == starts.size:
        # Zeros behind the text look like characters: cut them off, keep the end.
        end_bit = one << np.uint64(n & 63)
        starts[last - 1] = (starts[last - 1] & (end_bit - one)) | end_bit


@functools.cache
def scanner(flags):
    """Return `split_cl100k` for flags that the compiler knows: it drops what they do not need."""

    @kernel
    def scan(source, source_start, n, classes, pages, starts, first, last, sets):
        split_cl100k(flags, source, source_start, n, classes, pages, starts, first, last, sets)

    return scan
