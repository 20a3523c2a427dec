"""Find byte strings in the text of tokens, exactly, however the text was divided into tokens.

Blocks of tokens are decoded into a buffer that stays in the cache of the processor. Of each pattern
some window of `2 * width - 1` bytes is chosen: wherever the pattern occurs, the window has exactly
one word of `width` bytes at a multiple of `width` in the buffer. So looking up these words in a bit
set, and comparing where one is found, finds each occurrence once. The time hardly depends on the
number of patterns.

A special token, and an id without a token, is a byte 0xFF, which is in no text in UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.runtime import machine
from bpe.runtime.jit import kernel, pack

Numbers = NDArray[np.int64]

WIDTHS = (8, 4, 2, 1)  # of words, in bytes; patterns of 2 * width - 1 bytes and more can have it
NOTHING = b"\xff"
_PADDING = 64  # bytes copied at a time
BLOCK_BYTES = 1 << 16  # decoded at a time, and the overlap
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_TO_START, _TO_LENGTH = np.uint64(26), np.uint64(2)  # in entries of tokens
_LENGTH, _SPACE = np.uint64(0xFFFFFF), np.uint64(1)
_ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)
_SAMPLE_BITS = 16  # of the hashes whose occurrences in a sample are counted
_HITS = 1 << 12  # of one call, more if a block has more


class TokenBytes(NamedTuple):
    """Bytes of tokens, for kernels.

    Attributes:
        entries: uint64[vocab_size]. Bit 0 is set if the token ends with a space, bit 1 if it begins
            with one, so that spaces of neighbours become one; neither is set if they should not.
            Then 24 bits of its length, and 38 of where it begins in `data`.
        data: uint8[n + padding].
        joins_spaces: If bits 0 and 1 are set anywhere.
    """

    entries: NDArray[np.uint64]
    data: NDArray[np.uint8]
    joins_spaces: bool


class Words(NamedTuple):
    """Patterns and the words by which they are found.

    Attributes:
        data: uint8[n + padding], the patterns, joined.
        starts: int64[n_patterns + 1], where each begins.
        bits: uint64[n], bit set of hashes of words.
        heads: int64[n + 1], the first of the following entries of each hash.
        words: uint64[n_entries], words, sorted by hash.
        patterns: int64[n_entries], the pattern of each.
        offsets: int64[n_entries], its position there.
        sizes: int64[6]: width, shifts of a product for `bits` and `heads`, length of the longest
            pattern, bytes at both ends of patterns that do not count as part of a hit, bytes that
            are decoded at a time.
    """

    data: NDArray[np.uint8]
    starts: Numbers
    bits: NDArray[np.uint64]
    heads: Numbers
    words: NDArray[np.uint64]
    patterns: Numbers
    offsets: Numbers
    sizes: Numbers


class Work(NamedTuple):
    """Memory of a search: the text of a block, where its tokens end in it, and hits."""

    text: NDArray[np.uint8]
    ends: NDArray[np.int32]
    hits: Numbers  # int64[3 * n]: pattern, first token, token after the last


# --- tables ---


def make_token_bytes(tokens: Mapping[int, bytes], vocab_size: int, joins_spaces: bool) -> Any:
    """Return `TokenBytes`; ids that `tokens` lacks are `NOTHING`."""
    contents = [tokens.get(i, NOTHING) for i in range(vocab_size)]
    lengths = np.fromiter(map(len, contents), np.uint64, vocab_size)
    entries = (np.cumsum(lengths) - lengths) << _TO_START | lengths << _TO_LENGTH
    if joins_spaces:
        spaces = [x.endswith(b" ") + 2 * x.startswith(b" ") for x in contents]
        entries |= np.array(spaces, np.uint64)
    data = np.frombuffer(b"".join([*contents, bytes(_PADDING)]), np.uint8)
    return TokenBytes(entries, data, joins_spaces)


def ids_as_bytes(ids: Iterable[int], vocab_size: int) -> list[bytes]:
    """Return bytes for ids, which are found only where an id begins: the first is above 127."""
    n = max(-(-(vocab_size - 1).bit_length() // 7), 1)
    return [
        bytes([i >> 7 * k & 0x7F | (0x80 if k == n - 1 else 0) for k in reversed(range(n))])
        for i in ids
    ]


def make_words(
    patterns: Sequence[bytes], width: int, margin: int, sample: NDArray[np.uint8]
) -> Words:
    """Return the words of patterns, chosen to be rare in a sample of the text and among patterns.

    Args:
        patterns: Each of at least `2 * width - 1` bytes, all different.
        width: One of `WIDTHS`.
        margin: Bytes at both ends of patterns that do not count as part of a hit.
        sample: Text.
    """
    lengths = np.fromiter(map(len, patterns), np.int64, len(patterns))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    data = np.frombuffer(b"".join([*patterns, bytes(_PADDING)]), np.uint8)
    all_words = _words_of(data[: starts[-1] + 8], width)
    seen = np.bincount(_hashes(_words_of(sample, width), _SAMPLE_BITS), minlength=2**_SAMPLE_BITS)
    hashes = _hashes(all_words, _SAMPLE_BITS)
    cost = (seen + np.bincount(hashes, minlength=2**_SAMPLE_BITS))[hashes]
    sums = np.concatenate([[0], np.cumsum(cost)])
    windows = sums[width:] - sums[:-width]  # the cost of the words of a window, by its start
    firsts = [
        start + int(windows[start : stop - 2 * width + 2].argmin())
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    ]
    places = (np.array(firsts)[:, None] + np.arange(width)).ravel()
    of = np.repeat(np.arange(len(patterns)), width)
    n_bits = max((len(places) - 1).bit_length(), 1)
    order = np.argsort(_hashes(all_words[places], n_bits), kind="stable")
    places, of = places[order], of[order]
    words, n_filter = all_words[places], min(max(n_bits + 5, 12), 28)
    heads = np.searchsorted(_hashes(words, n_bits), np.arange(2**n_bits + 1))
    marked = np.zeros(2**n_filter, np.bool_)
    marked[_hashes(words, n_filter)] = True
    bits = np.packbits(marked, bitorder="little").view("<u8")
    sizes = [width, 64 - n_filter, 64 - n_bits, lengths.max(), margin, BLOCK_BYTES]
    return Words(
        data, starts, bits, heads, words, of, places - starts[of], np.array(sizes, np.int64)
    )


def _words_of(data: NDArray[np.uint8], width: int) -> NDArray[np.uint64]:
    """Return the word at each byte: uint64[n - 7]."""
    n = max(len(data) - 7, 0)
    found = np.zeros(n, np.uint64)
    for i in range(width):
        found |= data[i : i + n].astype(np.uint64) << np.uint64(8 * i)
    return found


def _hashes(words: NDArray[np.uint64], n_bits: int) -> Numbers:
    return ((words * _FACTOR) >> np.uint64(64 - n_bits)).astype(np.int64)


def _lengths(entries: NDArray[np.uint64]) -> Numbers:
    return (entries >> _TO_LENGTH & _LENGTH).astype(np.int64)


class Matcher:
    """Finds patterns in ids, on any number of threads; each has a work memory of its own.

    Args:
        patterns: Byte strings, all different, none empty.
        token_bytes: Of the ids.
        margin: As of `make_words`.
        sample: Ids of the dataset.
    """

    def __init__(
        self, patterns: Sequence[bytes], token_bytes: TokenBytes, margin: int, sample: Any
    ) -> None:
        self.token_bytes, self._packed = token_bytes, pack(token_bytes)
        self.longest = max(map(len, patterns))
        text = np.zeros(0, np.uint8)
        if len(sample):
            work = self._memory(len(sample))
            place = np.zeros(3, np.int64)
            n = int(decode(sample, place, self._packed, work, len(sample), BLOCK_BYTES))
            text = work.text[:n].copy()
        least = [2 * width - 1 for width in WIDTHS]
        of_width: list[list[int]] = [[] for _ in WIDTHS]
        for number, pattern in enumerate(patterns):
            of_width[next(i for i, n in enumerate(least) if len(pattern) >= n)].append(number)
        self._groups = [
            (np.array(numbers), pack(make_words([patterns[i] for i in numbers], w, margin, text)))
            for w, numbers in zip(WIDTHS, of_width, strict=True) if numbers
        ]

    def _memory(self, n_ids: int) -> Work:
        longest_token = int(_lengths(self.token_bytes.entries).max(initial=0))
        n_text = BLOCK_BYTES + self.longest + 2 * longest_token + 2 * _PADDING
        return Work(np.zeros(n_text, np.uint8), np.empty(n_ids + 1, np.int32),
                    np.empty(3 * _HITS, np.int64))  # fmt: skip

    def n_bytes(self, ids: Any) -> int:
        """Return how many bytes ids have at least, those of spaces that may be joined left out."""
        entries = self.token_bytes.entries[ids]
        return int((_lengths(entries) - (entries >> _SPACE & _SPACE).astype(np.int64)).sum())

    def find(self, ids: Any, first: int, stop: int) -> Numbers:
        """Return hits that begin in ids [first, stop).

        Args:
            ids: uint16|uint32[n]; those after `stop` end hits; one before `first` tells whether
                text begins with a space where spaces are joined.
            first: At most 1.
            stop: At most n.

        Returns:
            int64[n_hits, 3]: pattern, first token, token after the last; sorted.
        """
        found = []
        for numbers, words in self._groups:
            work, place = self._memory(len(ids)), np.array([first, stop, 0], np.int64)
            while place[0] < stop:
                before = int(place[0])
                n = int(search_tokens(ids, place, self._packed, words, work))
                hits = work.hits[: 3 * n].reshape(n, 3).copy()
                hits[:, 0] = numbers[hits[:, 0]]
                found.append(hits)
                if place[0] == before:
                    work = work._replace(hits=np.empty(2 * len(work.hits), np.int64))
        all_hits = np.concatenate([np.zeros((0, 3), np.int64), *found])
        return all_hits[np.lexsort((all_hits[:, 2], all_hits[:, 1], all_hits[:, 0]))]


# --- kernels ---


@kernel
def decode(ids, place, table, work, stop, limit):
    """Decode tokens [place[2], stop) until a block has `limit` bytes; return how many it has.

    The block begins with token `place[0]`. `place[2]` becomes the token after the last that was
    decoded, and `work.ends` gets where each ends in `work.text`.
    """
    entries, data, text, ends = table.entries, table.data, work.text, work.ends
    first, i, at = place[0], place[2], np.int64(0)
    before = np.uint64(0)  # bit 0: the text ends with a space, which the next token would repeat
    if i > 0:
        before = entries[np.uint64(ids[np.uint64(i - 1)])]
    if i > first:
        at = np.int64(ends[np.uint64(i - first - 1)])
    while not table.joins_spaces and i < stop and at < limit:
        at = append_token(entries[np.uint64(ids[np.uint64(i)])], np.int64(0), data, text, at)
        ends[np.uint64(i - first)] = at
        i += 1
    while i < stop and at < limit:
        entry = entries[np.uint64(ids[np.uint64(i)])]
        skipped = np.int64(before & (entry >> _SPACE) & _SPACE)
        at = append_token(entry, skipped, data, text, at)
        ends[np.uint64(i - first)] = at
        before = entry
        i += 1
    place[2] = i
    return at


@kernel
def append_token(entry, skipped, data, text, at):
    """Append a token without its first `skipped` bytes at byte `at`; return the end of the text."""
    machine.always_inline()
    begin = np.int64(entry >> _TO_START) + skipped
    length = np.int64(entry >> _TO_LENGTH & _LENGTH) - skipped
    machine.copy_16_bytes(data, begin, text, at)
    if length > 16:
        for more in range(16, length, 16):
            machine.copy_16_bytes(data, begin + more, text, at + more)
    return at + length


@kernel
def search_tokens(ids, place, table, words, work):
    """Find patterns that begin in ids [place[0], place[1]); return the number of hits.

    `place[0]` becomes that of the first token of a block that was not searched; if no block was,
    its hits need more room.
    """
    sizes = words.sizes
    width, longest = sizes[0], sizes[3]
    mask = _ALL_BITS >> np.uint64(64 - 8 * width)
    to_bit, n_hits, stop = np.uint64(sizes[1]), np.int64(0), place[1]
    while place[0] < stop:
        place[2] = place[0]
        own = decode(ids, place, table, work, stop, sizes[5])
        after = place[2]
        used = decode(ids, place, table, work, ids.size, own + longest - 1)
        found = n_hits
        for at in range(0, used - width + 1, width):
            word = machine.load_u64(work.text, at) & mask
            bit = machine.multiply(word, _FACTOR) >> to_bit
            if (words.bits[bit >> np.uint64(6)] >> (bit & np.uint64(63))) & np.uint64(1):
                found = compare(place, words, work, word, at, own, used, found)
                if found < 0:
                    return n_hits
        n_hits, place[0] = found, after
    return n_hits


@kernel
def compare(place, words, work, word, at, own, used, n_hits):
    """Add the patterns that occur where a word is found at byte `at`; return the number of hits.

    It is -1 if there is no room for them.
    """
    machine.noinline()
    margin, first, n_ends = words.sizes[4], place[0], place[2] - place[0]
    head = machine.multiply(word, _FACTOR) >> np.uint64(words.sizes[2])
    for number in range(words.heads[head], words.heads[head + np.uint64(1)]):
        entry = np.uint64(number)
        pattern = np.uint64(words.patterns[entry])
        begin, start = at - words.offsets[entry], words.starts[pattern]
        length = words.starts[pattern + np.uint64(1)] - start
        if words.words[entry] != word or begin < 0 or begin >= own or begin + length > used:
            continue
        same = True
        for i in range(length):
            if work.text[begin + i] != words.data[start + i]:
                same = False
                break
        if not same:
            continue
        if 3 * n_hits + 3 > work.hits.size:
            return np.int64(-1)
        work.hits[3 * n_hits] = np.int64(pattern)
        work.hits[3 * n_hits + 1] = first + token_at(work.ends, n_ends, begin + margin)
        last = token_at(work.ends, n_ends, begin + length - 1 - margin)
        work.hits[3 * n_hits + 2] = first + last + 1
        n_hits += 1
    return n_hits


@kernel
def token_at(ends, n, byte):
    """Return the first of `n` tokens that ends after a byte: ends 2 2 5, byte 2 -> 2."""
    low, high = np.int64(0), n
    while low < high:
        middle = (low + high) >> 1
        if ends[np.uint64(middle)] > byte:
            high = middle
        else:
            low = middle + 1
    return low
