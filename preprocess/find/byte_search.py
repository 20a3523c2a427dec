"""Find byte strings in the text of tokens, exactly, however the text was divided into tokens.

Blocks of tokens are decoded into a buffer that stays in the cache of the processor. Of each pattern
some window of `2 * width - 1` bytes is chosen: wherever the pattern occurs, the window has exactly
one word of `width` bytes at a multiple of `width` in the buffer. So looking up these words in a bit
set, and comparing where one is found, finds each occurrence once. The time hardly depends on the
number of patterns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.runtime import machine
from bpe.runtime.jit import kernel

Numbers = NDArray[np.int64]

BLOCK_BYTES = 1 << 16
_PADDING = 64  # bytes after a text, for reads and copies of whole words
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_TO_START, _LENGTH = np.uint64(24), np.uint64(0xFFFFFF)  # in `Tables.tokens`
_ALL_BITS, _SPACE = np.uint64(0xFFFFFFFFFFFFFFFF), 32
_COUNTED_BITS = 16  # of the hashes of words that are counted


class Tables(NamedTuple):
    """Tokens, and patterns whose words have the same width.

    Attributes:
        tokens: uint64[vocab_size], where each begins in `contents`; the 24 lowest bits are its
            length.
        contents: uint8[n + padding], the bytes of tokens.
        patterns: uint8[n + padding], the bytes of patterns.
        starts: int64[n_patterns + 1], where each begins.
        bits: uint64[n], bit set of hashes of words.
        heads: int32[n + 1], the first of the following entries of each hash.
        entries: int64[3 * n_words]: a word, its position in its pattern, and the number of this;
            sorted by hash.
        width: Bytes of a word; one of 16 bytes is mixed into 8.
        to_bit: Shift of a product to the number of a bit in `bits`.
        to_head: Shift of a product to a number in `heads`.
        longest: Length of the longest pattern.
        block: Bytes of text that are searched at a time, at least those of any two tokens.
        margin: 1 if spaces of neighbours are one, and those at both ends of patterns do not count
            as part of a hit, else 0.
    """

    tokens: NDArray[np.uint64]
    contents: NDArray[np.uint8]
    patterns: NDArray[np.uint8]
    starts: Numbers
    bits: NDArray[np.uint64]
    heads: NDArray[np.int32]
    entries: Numbers
    width: int
    to_bit: np.uint64
    to_head: np.uint64
    longest: int
    block: int
    margin: int

    @property
    def n_text(self) -> int:
        """Bytes of memory for a block and what is decoded after it."""
        return 2 * self.block + self.longest + _PADDING


def make_tables(
    contents: Sequence[bytes], patterns: Sequence[bytes], margin: int
) -> Iterator[Tables]:
    """Yield the tables of patterns, none empty, in tokens of these bytes."""
    token_starts, token_bytes = _join(contents)
    starts, joined = _join(patterns)
    sizes, lengths = np.diff(token_starts), np.diff(starts)
    tokens = token_starts[:-1].astype(np.uint64) << _TO_START | sizes.astype(np.uint64)
    block = max(BLOCK_BYTES, 2 * int(sizes.max()))
    widths = 1 << np.clip(np.log2(lengths + 1).astype(np.int64) - 1, 0, 4)
    for width in {*widths.tolist()}:
        numbers = np.flatnonzero(widths == width)
        places, words = _choose_words(joined, starts, numbers, width)
        of = np.repeat(numbers, width)
        n_heads = len(words).bit_length()
        n_bits = min(max(n_heads + 5, 12), 28)
        marked = np.zeros(2**n_bits, np.bool_)
        marked[_hashes(words, n_bits)] = True
        order = np.argsort(_hashes(words, n_heads), kind="stable")
        hashes = _hashes(words, n_heads)[order]
        heads = np.searchsorted(hashes, np.arange(2**n_heads + 1)).astype(np.int32)
        entries = np.stack([words.view(np.int64), places - starts[of], of], axis=1)[order]
        yield Tables(
            tokens, token_bytes, joined, starts, np.packbits(marked, bitorder="little").view("<u8"),
            heads, entries.ravel(), width, np.uint64(64 - n_bits), np.uint64(64 - n_heads),
            int(lengths.max()), block, margin,
        )  # fmt: skip


def _join(texts: Sequence[bytes]) -> tuple[Numbers, NDArray[np.uint8]]:
    """Return (where each text begins, and the end: int64[n + 1]; all of them, and padding)."""
    starts = np.cumsum(np.fromiter(map(len, [b"", *texts]), np.int64, len(texts) + 1))
    return starts, np.frombuffer(b"".join([*texts, bytes(_PADDING)]), np.uint8)


def _choose_words(
    joined: NDArray[np.uint8], starts: Numbers, numbers: Numbers, width: int
) -> tuple[Numbers, NDArray[np.uint64]]:
    """Return where the words of patterns are, which are rare among all, and the words."""
    n = len(joined) - 8
    at_each = np.zeros(n, np.uint64)
    for i in range(min(width, 8)):
        at_each |= joined[i : i + n].astype(np.uint64) << np.uint64(8 * i)
    if width == 16:
        at_each = at_each[:-8] * _FACTOR ^ at_each[8:]
    hashes = _hashes(at_each, _COUNTED_BITS)
    counts = np.cumsum(np.append(0, np.bincount(hashes)[hashes]))
    cost = counts[width:] - counts[:-width]  # of the window at each byte
    firsts = [
        start + int(cost[start : stop - 2 * width + 2].argmin())
        for start, stop in zip(starts[numbers].tolist(), starts[numbers + 1].tolist(), strict=True)
    ]
    places = (np.array(firsts)[:, None] + np.arange(width)).ravel()
    return places, at_each[places]


def _hashes(words: NDArray[np.uint64], n_bits: int) -> Numbers:
    return ((words * _FACTOR) >> np.uint64(64 - n_bits)).astype(np.int64)


# --- kernels ---


@kernel
def search_tokens(ids, place, tables, text, ends, hits):
    """Find patterns that begin in ids [place[0], place[1]); return the number of hits.

    Args:
        ids: uint16|uint32[n]; there is one before `place[0]` if the margin is 1.
        place: int64[3]. `place[0]` becomes the first id that was not searched: hits, or, if
            `place[2]` is 1, ids need more room.
        tables: `Tables`.
        text: uint8[tables.n_text], modified.
        ends: int32[n], modified: where each token of a block ends.
        hits: int64[3 * n], modified: pattern, first token, token after the last.
    """
    n_hits, mask = np.int64(0), _ALL_BITS >> np.uint64(64 - 8 * min(tables.width, 8))
    second, factor = np.uint64(0), np.uint64(1)
    if tables.width == 16:
        second, factor = _ALL_BITS, _FACTOR
    while place[0] < place[1]:
        first = place[0] - tables.margin
        n = decode(ids, first, tables, text, ends)
        n_own, used = min(n, place[1] - first), np.int64(ends[np.uint64(n - 1)])
        while ends[np.uint64(n_own - 1)] > tables.block:
            n_own -= 1
        own = np.int64(ends[np.uint64(n_own - 1)])
        if place[2] and used < own + tables.longest:
            return n_hits
        block = first, n, tables.margin * np.int64(ends[np.uint64(0)]), own, used
        found = n_hits
        for at in range(0, used - tables.width + 1, tables.width):
            word = machine.load_u64(text, at) & mask
            word = machine.multiply(word, factor) ^ machine.load_u64(text, at + 8) & second
            bit = machine.multiply(word, _FACTOR) >> tables.to_bit
            if (tables.bits[bit >> np.uint64(6)] >> (bit & np.uint64(63))) & np.uint64(1):
                found = compare(word, at, block, tables, text, ends, hits, found)
                if found < 0:
                    return n_hits
        n_hits, place[0] = found, first + n_own
    return n_hits


@kernel
def decode(ids, first, tables, text, ends):
    """Decode tokens from `first` on, those of a block and after it; return how many they are."""
    i, at, limit = first, np.int64(0), tables.block + tables.longest
    while i < ids.size and at < limit:
        token = tables.tokens[np.uint64(ids[np.uint64(i)])]
        begin, length = np.int64(token >> _TO_START), np.int64(token & _LENGTH)
        if tables.margin and at > 0:
            joins = np.int64(text[at - 1] == _SPACE and tables.contents[begin] == _SPACE)
            begin, length = begin + joins, length - joins
        machine.copy_16_bytes(tables.contents, begin, text, at)
        for more in range(16, length, 16):
            machine.copy_16_bytes(tables.contents, begin + more, text, at + more)
        at += length
        ends[np.uint64(i - first)] = at
        i += 1
    return i - first


@kernel
def compare(word, at, block, tables, text, ends, hits, n_hits):
    """Add the patterns that occur where a word is found at byte `at`; return the number of hits.

    It is -1 if there is no room for them. `block` is the first token, the number of tokens, and the
    bytes from which and before which patterns begin, and before which they end.
    """
    machine.noinline()
    first, n, lower, own, used = block
    head = machine.multiply(word, _FACTOR) >> tables.to_head
    for number in range(tables.heads[head], tables.heads[head + np.uint64(1)]):
        entry = np.uint64(3 * number)
        pattern = np.uint64(tables.entries[entry + np.uint64(2)])
        begin, start = at - tables.entries[entry + np.uint64(1)], tables.starts[pattern]
        length, i = tables.starts[pattern + np.uint64(1)] - start, np.int64(0)
        same = np.uint64(tables.entries[entry]) == word and begin >= 0 and begin + length <= used
        same = same and begin + tables.margin >= lower and begin + tables.margin < own
        while same and i < length:
            same = text[np.uint64(begin + i)] == tables.patterns[np.uint64(start + i)]
            i += 1
        if same:
            if 3 * n_hits + 3 > hits.size:
                return np.int64(-1)
            bounds, last = ends[:n], begin + length - 1 - tables.margin
            hits[np.uint64(3 * n_hits)] = np.int64(pattern)
            hits[np.uint64(3 * n_hits + 1)] = first + np.searchsorted(
                bounds, begin + tables.margin, "right"
            )
            hits[np.uint64(3 * n_hits + 2)] = first + np.searchsorted(bounds, last, "right") + 1
            n_hits += 1
    return n_hits
