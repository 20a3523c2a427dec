"""Reference implementation of the tokenizer in plain Python: split, count, train, encode.

If the fast code and this file disagree, the fast code is wrong. Every choice, ties above all, is
defined here. Written to be read; slow.

    >>> split("Don't stop  at 42!")
    ['Don', "'t", ' stop', ' ', ' at', ' 42', '!']
    >>> merges = train(["low low low lower lowest"], vocab_size=256 + 3)
    >>> merges
    [(b'o', b'w'), (b'l', b'ow'), (b' ', b'low')]
    >>> encode(b" lowest", rank_by_merges(merges))
    [b' low', b'e', b's', b't']
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from bpe.errors import TrainingError
from bpe.split.patterns import PATTERNS
from bpe.unicode_classes import WHITE_SPACES, in_regex, runs_of

Pair = tuple[bytes, bytes]

TIE_BREAKS: Final = ("greatest-bytes", "huggingface")


def _byte_level_alphabet() -> str:
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in shown else next(hidden)) for byte in range(256))


# GPT-2's spelling of bytes as printable characters: `BYTE_LEVEL_ALPHABET[byte]`. Printable
# characters of Latin-1 spell themselves, U+0100 and following the other 68 bytes. Hugging Face's
# files use it, and its trainer orders bytes by these code points.
BYTE_LEVEL_ALPHABET: Final = _byte_level_alphabet()


def split(text: str, pattern: str = "gpt2") -> list[str]:
    """Split text into pre-tokens by a pattern of `PATTERNS`; their concatenation is the text."""
    return _compiled(pattern).findall(text)


@functools.lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern, with classes as ranges of the pinned Unicode table."""
    return re.compile(re.sub(r"\[[^]]*]|\\p\{\w+}|\\[sS]|\$", _in_ranges, PATTERNS[pattern]))


def _in_ranges(found: re.Match[str]) -> str:
    r"""Translate a set, `\p{category}`, `\s`, `\S` or `$` for `re`, independent of its version."""
    written = found.group()
    if written == "$":
        return r"\Z"  # in `re`, `$` matches before a final newline, too
    if written == r"\S":
        return f"[^{WHITE_SPACES}]"
    if written[0] != "[":
        written = f"[{written}]"
    written = written.replace(r"\s", WHITE_SPACES)
    return re.sub(r"\\p\{(\w+)}", lambda category: in_regex(runs_of(category[1])), written)


def split_special(text: str, special_tokens: Collection[str]) -> Iterator[tuple[str, bool]]:
    """Split text at special tokens, leftmost first, then longest: yield `(piece, is_special)`.

    >>> list(split_special("a<|x|>>b", ["<|x|>", "<|x|>>"]))
    [('a', False), ('<|x|>>', True), ('b', False)]
    """
    longest_first = sorted(special_tokens, key=len, reverse=True)
    any_of_them = "|".join(map(re.escape, longest_first)) or r"(?!)"  # matches nothing
    # With a group in the pattern, `re.split` returns separators as every second piece.
    for index, piece in enumerate(re.split(f"({any_of_them})", text)):
        if piece:
            yield piece, index % 2 == 1


def count(
    documents: Iterable[str], special_tokens: Collection[str] = (), pattern: str = "gpt2"
) -> Counter[bytes]:
    """Count the pre-tokens of documents between special tokens."""
    counts: Counter[bytes] = Counter()
    for document in documents:
        for piece, is_special in split_special(document, special_tokens):
            if not is_special:
                counts.update(pretoken.encode() for pretoken in split(piece, pattern))
    return counts


def train(
    documents: Iterable[str], vocab_size: int, special_tokens: Collection[str] = (), **options: Any
) -> list[Pair]:
    """Learn merges from documents; `options` are the other arguments of `train_from_counts`."""
    counts = count(documents, special_tokens)
    return train_from_counts(counts, vocab_size, special_tokens, **options)


def train_from_counts(
    counts: Mapping[bytes, int], vocab_size: int, special_tokens: Collection[str] = (),
    tie_break: str = "greatest-bytes", min_frequency: int = 2, max_token_length: int | None = None,
    extended: Sequence[bytes] = (), encoded: Callable[[bytes], Sequence[bytes]] | None = None,
) -> list[Pair]:
    """Learn merges from counted pre-tokens.

    Each step merges the pair with the highest count, everywhere. A pair is counted at every
    position, so `aaa` has `(a, a)` twice, and merged from left to right, so `aaa` becomes `aa a`.
    Ties are broken by `tie_break`:

    - `greatest-bytes`: the greatest `(left, right)`, compared as bytes (Stanford's CS336);
    - `huggingface`: the least `(id of left, id of right)`; ids are given to bytes, in the order of
      their characters in the byte-level alphabet, then to merges (Hugging Face's BpeTrainer).

    No two merges make the same token: if both ends of an occurrence of its bytes are boundaries, no
    merge has crossed an end, so the merges inside were those that first made the token.

    Args:
        counts: Pre-token -> how often it occurs.
        vocab_size: Number of tokens, including the 256 bytes and the special tokens.
        special_tokens: Only their number is used.
        tie_break: One of `TIE_BREAKS`.
        min_frequency: Minimum count of a merged pair, at least 1.
        max_token_length: Maximum length of a token in bytes, see `longest_token`.
        extended: Tokens of several bytes of a vocabulary that is extended, in the order of ids.
        encoded: Its encoding of a pre-token, which training begins with; None: bytes.

    Returns:
        The new merges in order; fewer than `vocab_size` needs if training stopped early.

    Raises:
        TrainingError: `tie_break` is unknown, or `vocab_size` leaves no room for the bytes and the
            special tokens.
    """
    if tie_break not in TIE_BREAKS:
        raise TrainingError(
            f"unknown tie_break {tie_break!r}: expected one of {', '.join(map(repr, TIE_BREAKS))}"
        )
    if vocab_size < 256 + len(special_tokens):
        raise TrainingError(
            f"vocab_size {vocab_size} is too small: the 256 bytes and {len(special_tokens)} "
            f"special tokens need at least {256 + len(special_tokens)}"
        )
    by_character = sorted(range(256), key=BYTE_LEVEL_ALPHABET.__getitem__)
    numbers = {bytes([byte]): number for number, byte in enumerate(by_character)}
    numbers |= {token: number for number, token in enumerate(extended, 256)}
    words: dict[bytes, Sequence[bytes]] = {
        pretoken: encoded(pretoken) if encoded else [bytes([byte]) for byte in pretoken]
        for pretoken in counts
    }
    longest = longest_token(max_token_length, tie_break)
    merges: list[Pair] = []
    while len(numbers) < vocab_size - len(special_tokens):
        pair_counts: Counter[Pair] = Counter()
        for pretoken, word in words.items():
            for left, right in pairwise(word):
                if longest is None or len(left + right) <= longest:
                    pair_counts[left, right] += counts[pretoken]
        highest = max(pair_counts.values(), default=0)
        if highest < max(min_frequency, 1):
            break
        tied = [pair for pair, pair_count in pair_counts.items() if pair_count == highest]
        if tie_break == "greatest-bytes":
            best = max(tied)
        else:
            best = min(tied, key=lambda pair: (numbers[pair[0]], numbers[pair[1]]))
        merges.append(best)
        # A token that is extended, and that its merges do not make, had a number before.
        numbers[best[0] + best[1]] = 255 + len(extended) + len(merges)
        words = {pretoken: merge(word, best) for pretoken, word in words.items()}
    return merges


def longest_token(max_token_length: int | None, tie_break: str) -> int | None:
    """Return the length in bytes of the longest token that training makes, None for no limit.

    `max_token_length`, but Hugging Face's BpeTrainer takes it for the first length that is too
    long, and merges every pair of bytes.

    >>> longest_token(3, "greatest-bytes"), longest_token(3, "huggingface")
    (3, 2)
    """
    if max_token_length is None or tie_break != "huggingface":
        return max_token_length
    return max(2, max_token_length - 1)


def merge(word: Sequence[bytes], pair: Pair) -> list[bytes]:
    """Merge every occurrence of a pair, from left to right.

    >>> merge([b"a", b"a", b"a", b"b"], (b"a", b"a"))
    [b'aa', b'a', b'b']
    """
    merged: list[bytes] = []
    index = 0
    while index < len(word):
        length = 2 if tuple(word[index : index + 2]) == pair else 1
        merged.append(b"".join(word[index : index + length]))
        index += length
    return merged


def rank_by_merges(merges: Sequence[Pair]) -> Callable[[bytes, bytes], int | None]:
    """Return a function that ranks pairs as Hugging Face: by position in the list of merges."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    return lambda left, right: ranks.get((left, right))


def rank_by_bytes(ranks: Mapping[bytes, int]) -> Callable[[bytes, bytes], int | None]:
    """Return a function that ranks pairs as tiktoken: by the rank of the merged token."""
    return lambda left, right: ranks.get(left + right)


def encode(
    pretoken: bytes, rank: Callable[[bytes, bytes], int | None], whole: Collection[bytes] = ()
) -> list[bytes]:
    """Encode a pre-token: merge the leftmost pair of the lowest rank until none has a rank.

    Args:
        pretoken: UTF-8 of one pre-token.
        rank: Returns the rank of a pair, None if it is never merged.
        whole: Tokens that a whole pre-token is compared with first: all tokens in tiktoken and with
            Hugging Face's `ignore_merges`, else none.
    """
    if pretoken in whole:
        return [pretoken]
    word = [bytes([byte]) for byte in pretoken]
    while True:
        ranked = [
            (pair_rank, index)
            for index in range(len(word) - 1)
            if (pair_rank := rank(word[index], word[index + 1])) is not None
        ]
        if not ranked:
            return word
        _, index = min(ranked)
        word[index : index + 2] = [word[index] + word[index + 1]]
