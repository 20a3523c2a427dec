"""The definition of the tokenizer in plain Python: split, count, train, encode.

The law here: where the fast code and this file disagree, the fast code is wrong.  Everything that
could be decided either way (ties above all) is decided here, in the open.  It is written to be read
and to be slow.

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
from typing import Final

from bpe.errors import TrainingError
from bpe.unicode_classes import LETTER, LOWER, MARK, NUMBER, UPPER, WHITE_SPACE, class_table

Pair = tuple[bytes, bytes]

TIE_BREAKS: Final = ("greatest-bytes", "huggingface")

CONTRACTIONS: Final = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


def _byte_level_alphabet() -> str:
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in shown else next(hidden)) for byte in range(256))


# GPT-2's way to show bytes as printable characters: character `BYTE_LEVEL_ALPHABET[byte]` stands
# for `byte`.  The printable characters of Latin-1 stand for themselves, the other 68 bytes, in
# order, for U+0100 onwards.  Hugging Face's files are written in it, and its trainer numbers the
# bytes in the order of these code points.
BYTE_LEVEL_ALPHABET: Final = _byte_level_alphabet()


def split(text: str, pattern: str = "gpt2") -> list[str]:
    """Cut text into pre-tokens as a pattern of `bpe.patterns` does; joined they are the text.

    Args:
        text: Any text.
        pattern: The name of a pattern that has a scanner.
    """
    end_of_pretoken = _ENDS[pattern]
    pretokens = []
    start = 0
    while start < len(text):
        stop = end_of_pretoken(text, start)
        pretokens.append(text[start:stop])
        start = stop
    return pretokens


def _end_gpt2(text: str, start: int) -> int:
    """Where the pre-token ends that begins at `start`: the first of these that fits.

    1. An apostrophe with `s`, `t`, `re`, `ve`, `m`, `ll` or `d` (small letters only);
    2. letters, or numbers, or characters that are none of letter, number and white space; one
       U+0020 before them joins in;
    3. white space.  It leaves its last character to what follows, unless that was all there was, or
       nothing follows.
    """
    for contraction in CONTRACTIONS:
        if text.startswith(contraction, start):
            return start + len(contraction)
    first = start + 1 if text[start] == " " else start
    if first < len(text) and _kind(text[first]) != WHITE_SPACE:
        return _end_of_run(text, first, _kind(text[first]))
    return _end_of_white_space(text, start)


def _end_cl100k(
    text: str, start: int, *, digits: int = 3, cased: bool = False, whole_end: bool = False
) -> int:
    """Where the pre-token ends that begins at `start`: the first of these that fits.

    1. A contraction, as in gpt2 but in capitals as well, and with U+017F for an s (not o200k);
    2. letters; one character before them joins in, unless it is a letter, a number or the end of a
       line.  In o200k: first `_end_of_small_word`, then `_end_of_capitals`, and a contraction
       after either;
    3. up to `digits` numbers;
    4. characters that are none of letter, number and white space; one U+0020 before them joins in,
       and so do ends of lines after them (in o200k: and slashes);
    5. white space to the end of the text (`whole_end`: tiktoken's cl100k);
    6. white space up to its last end of a line;
    7. white space, as in gpt2.
    """
    if not cased and (stop := _end_of_contraction(text, start)) > start:
        return stop
    joins = text[start] not in "\r\n" and _kind(text[start]) not in (LETTER, NUMBER)
    words = (_end_of_small_word, _end_of_capitals) if cased else (_end_of_letters,)
    for end_of_word in words:
        for first in (start + 1, start) if joins else (start,):
            stop = end_of_word(text, first)
            if stop > first:
                return _end_of_contraction(text, stop) if cased else stop
    if _kind(text[start]) == NUMBER:
        return min(_end_of_run(text, start, NUMBER), start + digits)
    first = start + 1 if text[start] == " " else start
    stop = _end_of_run(text, first, 0)
    if stop > first:
        while stop < len(text) and text[stop] in ("\r\n/" if cased else "\r\n"):
            stop += 1
        return stop
    stop = _end_of_run(text, start, WHITE_SPACE)
    if whole_end and stop == len(text):
        return stop
    for last in range(stop - 1, start - 1, -1):
        if text[last] in "\r\n":
            return last + 1
    return _end_of_white_space(text, start)


def _end_of_contraction(text: str, start: int) -> int:
    for contraction in CONTRACTIONS:
        stop = start + len(contraction)
        if text[start:stop].lower().replace("\u017f", "s") == contraction:
            return stop
    return start


def _end_of_letters(text: str, start: int) -> int:
    return _end_of_run(text, start, LETTER)


def _end_of_small_word(text: str, start: int) -> int:
    """Where capitals and then at least one small letter end; `start` if there are none.

    Letters without case and marks count as both.  The capitals are as many as can be, but give
    characters back so that one is left for the small letters.
    """
    for small_start in range(_end_of_cased(text, start, LOWER), start - 1, -1):
        stop = _end_of_cased(text, small_start, UPPER)
        if stop > small_start:
            return stop
    return start


def _end_of_capitals(text: str, start: int) -> int:
    """Where capitals end and then small letters, if there are any; `start` if none begin here."""
    capitals_end = _end_of_cased(text, start, LOWER)
    return _end_of_cased(text, capitals_end, UPPER) if capitals_end > start else start


def _end_of_cased(text: str, start: int, unwanted: int) -> int:
    stop = start
    while stop < len(text) and _is_letter_or_mark(text[stop], unwanted):
        stop += 1
    return stop


def _is_letter_or_mark(character: str, unwanted: int) -> bool:
    flags = int(class_table()[ord(character)])
    return bool(flags & (LETTER | MARK)) and not flags & unwanted


def _end_of_white_space(text: str, start: int) -> int:
    stop = _end_of_run(text, start, WHITE_SPACE)
    return stop if stop == len(text) or stop == start + 1 else stop - 1


def _end_of_run(text: str, start: int, kind: int) -> int:
    stop = start
    while stop < len(text) and _kind(text[stop]) == kind:
        stop += 1
    return stop


def _kind(character: str) -> int:
    return int(class_table()[ord(character)]) & (LETTER | NUMBER | WHITE_SPACE)


_ENDS: Final[dict[str, Callable[[str, int], int]]] = {
    "gpt2": _end_gpt2,
    "cl100k": functools.partial(_end_cl100k, whole_end=True),
    "o200k": functools.partial(_end_cl100k, cased=True),
    "llama3": _end_cl100k,
    "qwen2": functools.partial(_end_cl100k, digits=1),
}


def split_special(text: str, special_tokens: Collection[str]) -> Iterator[tuple[str, bool]]:
    """Cut text at special tokens: yield `(piece, is_special)`, no piece empty.

    Occurrences are taken from the left; of several that start at one place the longest is taken.

    >>> list(split_special("a<|x|>>b", ["<|x|>", "<|x|>>"]))
    [('a', False), ('<|x|>>', True), ('b', False)]
    """
    if not special_tokens:
        if text:
            yield text, False
        return
    longest_first = sorted(special_tokens, key=len, reverse=True)
    start = 0
    for found in re.finditer("|".join(map(re.escape, longest_first)), text):
        if start < found.start():
            yield text[start : found.start()], False
        yield found.group(), True
        start = found.end()
    if start < len(text):
        yield text[start:], False


def count(
    documents: Iterable[str], special_tokens: Collection[str] = (), pattern: str = "gpt2"
) -> Counter[bytes]:
    """Count the pre-tokens of documents.

    The text of special tokens is cut out: nothing is learnt from it, nor across it.
    """
    counts: Counter[bytes] = Counter()
    for document in documents:
        for piece, is_special in split_special(document, special_tokens):
            if not is_special:
                counts.update(pretoken.encode() for pretoken in split(piece, pattern))
    return counts


def train(
    documents: Iterable[str],
    vocab_size: int,
    special_tokens: Collection[str] = (),
    tie_break: str = "greatest-bytes",
    min_frequency: int = 2,
    max_token_length: int | None = None,
) -> list[Pair]:
    """Learn merges from documents: `train_from_counts(count(documents, special_tokens), ...)`."""
    counts = count(documents, special_tokens)
    return train_from_counts(
        counts, vocab_size, special_tokens, tie_break, min_frequency, max_token_length
    )


def train_from_counts(
    counts: Mapping[bytes, int],
    vocab_size: int,
    special_tokens: Collection[str] = (),
    tie_break: str = "greatest-bytes",
    min_frequency: int = 2,
    max_token_length: int | None = None,
) -> list[Pair]:
    """Learn merges from counted pre-tokens.

    Each step merges the pair with the highest count, everywhere.  A pair is counted at every place
    where it stands, so `aaa` holds `(a, a)` twice, and merged from left to right, so `aaa` becomes
    `aa a`.  Among pairs of equal count:

    - `greatest-bytes` takes the greatest `(left, right)`, compared as bytes: Stanford's CS336;
    - `huggingface` takes the least `(id of left, id of right)`, where the bytes are numbered in the
      order of their characters in the byte-level alphabet and merges follow in the order they were
      made: Hugging Face's BpeTrainer.

    No two merges make the same token.  A pre-token that holds the token's bytes between two
    boundaries has had no merge across either of them, so inside the same merges happened as
    wherever the token was first made, and it is there already.

    Args:
        counts: Pre-token -> how often it occurs.
        vocab_size: Number of tokens wanted, the 256 bytes and the special tokens among them.
        special_tokens: Only their number matters here.
        tie_break: One of `TIE_BREAKS`.
        min_frequency: Stop when no pair occurs this often.  A pair that does not occur is never
            merged.
        max_token_length: A pair that would be longer than so many bytes is passed over.

    Returns:
        The merges in the order they were made; fewer than asked for if training stopped early.

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
    numbers = {bytes([byte]): number for number, byte in enumerate(_bytes_in_huggingface_order())}
    words = {pretoken: [bytes([byte]) for byte in pretoken] for pretoken in counts}
    merges: list[Pair] = []
    while len(merges) < vocab_size - 256 - len(special_tokens):
        pair_counts: Counter[Pair] = Counter()
        for pretoken, word in words.items():
            for pair in pairwise(word):
                pair_counts[pair] += counts[pretoken]
        if max_token_length is not None:
            for left, right in list(pair_counts):
                if len(left) + len(right) > max_token_length:
                    del pair_counts[left, right]
        if not pair_counts:
            break
        highest = max(pair_counts.values())
        if highest < max(min_frequency, 1):
            break
        tied = [pair for pair, pair_count in pair_counts.items() if pair_count == highest]
        if tie_break == "greatest-bytes":
            best = max(tied)
        else:
            best = min(tied, key=lambda pair: (numbers[pair[0]], numbers[pair[1]]))
        merges.append(best)
        numbers[best[0] + best[1]] = len(numbers)
        words = {pretoken: merge(word, best) for pretoken, word in words.items()}
    return merges


def _bytes_in_huggingface_order() -> list[int]:
    return sorted(range(256), key=BYTE_LEVEL_ALPHABET.__getitem__)


def merge(word: Sequence[bytes], pair: Pair) -> list[bytes]:
    """Join every occurrence of a pair, from left to right.

    >>> merge([b"a", b"a", b"a", b"b"], (b"a", b"a"))
    [b'aa', b'a', b'b']
    """
    merged: list[bytes] = []
    index = 0
    while index < len(word):
        if index + 1 < len(word) and (word[index], word[index + 1]) == pair:
            merged.append(word[index] + word[index + 1])
            index += 2
        else:
            merged.append(word[index])
            index += 1
    return merged


def rank_by_merges(merges: Sequence[Pair]) -> Callable[[bytes, bytes], int | None]:
    """Rank pairs as Hugging Face does: by their place in the list of merges."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    return lambda left, right: ranks.get((left, right))


def rank_by_bytes(ranks: Mapping[bytes, int]) -> Callable[[bytes, bytes], int | None]:
    """Rank pairs as tiktoken does: by the rank of the token that they would make."""
    return lambda left, right: ranks.get(left + right)


def encode(
    pretoken: bytes, rank: Callable[[bytes, bytes], int | None], whole_first: Collection[bytes] = ()
) -> list[bytes]:
    """Cut one pre-token into tokens.

    The pair of lowest rank, the leftmost of equals, is joined until no pair has a rank.

    Args:
        pretoken: The bytes of one pre-token.
        rank: The rank of a pair, None if it is never joined.
        whole_first: Tokens that are taken at once when they are the whole pre-token: all of them in
            tiktoken and in a Hugging Face file with `ignore_merges`, else none.
    """
    if pretoken in whole_first:
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
