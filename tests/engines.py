"""How other engines split: tiktoken's, made to show its pieces, and Hugging Face's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import tiktoken


def differs_in_tiktoken(
    regex: str, texts: Sequence[str], split: Callable[[str], list[str]]
) -> str | None:
    """Return the first text that tiktoken splits otherwise by `regex` than `split` does.

    tiktoken shows no pieces, but it takes a piece that is in its vocabulary at once.  So the pieces
    to be expected are the vocabulary, and whatever two neighbours make: a cut too many gives other
    tokens, and one too few gives two in one.
    """
    expected = [[piece.encode() for piece in split(text)] for text in texts]
    ranks = {bytes([byte]): byte for byte in range(256)}
    for pieces in expected:
        for piece in pieces:
            ranks.setdefault(piece, len(ranks))
    for pieces in expected:
        for left, right in pairwise(pieces):
            ranks.setdefault(left + right, len(ranks))
    engine = tiktoken.Encoding("pieces", pat_str=regex, mergeable_ranks=ranks, special_tokens={})
    for text, pieces in zip(texts, expected, strict=True):
        if engine.encode_ordinary(text) != [ranks[piece] for piece in pieces]:
            return text
    return None


def differs_in_huggingface(
    regex: str, texts: Sequence[str], split: Callable[[str], list[str]]
) -> str | None:
    """Return the first text that Hugging Face's `Split` cuts otherwise than `split` does."""
    from tokenizers import Regex, pre_tokenizers

    engine = pre_tokenizers.Split(Regex(regex), "isolated")
    for text in texts:
        if [piece for piece, _ in engine.pre_tokenize_str(text)] != split(text):
            return text
    return None
