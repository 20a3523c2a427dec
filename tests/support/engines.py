"""How other engines split: tiktoken's, made to show its pieces, and Hugging Face's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import tiktoken

from bpe.split.regex_splitter import RegexSplitter


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


def pieces(splitter: RegexSplitter, texts: list[str]) -> list[list[str]]:
    """Return the pieces of each of several texts that stand one after the other."""
    encoded = [text.encode() for text in texts]
    data = b"".join(encoded)
    offsets = np.cumsum([0, *map(len, encoded)])
    bits = np.zeros((len(data) // 64 + 1) * 64, np.uint8)
    bits[offsets] = 1
    starts = np.packbits(bits, bitorder="little").view(np.uint64)
    splitter.refine(np.frombuffer(data, np.uint8), starts)
    places = np.flatnonzero(np.unpackbits(starts.view(np.uint8), bitorder="little"))
    result = []
    for first, stop in pairwise(offsets):
        inside = [*places[(places >= first) & (places < stop)].tolist(), int(stop)]
        cut = pairwise(inside)
        result.append([data[i:j].decode() for i, j in cut] if first < stop else [])
    return result


def splitting(splitter: RegexSplitter) -> Callable[[str], list[str]]:
    """Return a function that splits one text."""
    return lambda text: pieces(splitter, [text])[0]
