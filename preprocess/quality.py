"""What a token file is like to train on: what occurs in it, how often, and what occurs twice.

Law: every token is looked at once, a part of the file at a time; nothing is guessed from a sample,
and what was not looked at is said. Memory is that of the vocabulary, and 8 bytes for a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from preprocess.token_file import TokenFile

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

_TOKENS_AT_A_TIME = 1 << 22
_SHOWN = 5
# Each document is hashed by itself, a million or two in a second; more are left alone.
_MOST_DOCUMENTS = 20_000_000
_SAMPLES = 3
_SAMPLE_TOKENS = 24


def occurrences(file: TokenFile) -> NDArray[np.int64]:
    """How often each id occurs: int64[vocab_size]. Ids outside of the vocabulary do not count."""
    counts = np.zeros(file.vocab_size, np.int64)
    for start in range(0, len(file), _TOKENS_AT_A_TIME):
        found = np.bincount(file.tokens[start : start + _TOKENS_AT_A_TIME])[: file.vocab_size]
        counts[: len(found)] += found
    return counts


def document_hashes(file: TokenFile) -> NDArray[np.uint64] | None:
    """xxh3_64 of the ids of each document: uint64[n_documents]; None if there are too many."""
    if file.n_documents > _MOST_DOCUMENTS:
        return None
    hashes = np.empty(file.n_documents, np.uint64)
    tokens = file.tokens
    for number, (start, stop) in enumerate(pairwise([0, *file.document_ends.tolist()])):
        hashes[number] = xxhash.xxh3_64_intdigest(tokens[start:stop].data)
    return hashes


def vocabulary_lines(counts: NDArray[np.int64], tokenizer: AnyTokenizer) -> list[str]:
    """What of the vocabulary occurs, how often, and what does not.

    Args:
        counts: As `occurrences` gives them.
        tokenizer: The one that the file was built with.
    """
    spelled = tokenizer.vocab
    special = set(tokenizer.special_tokens.values())
    total = max(int(counts.sum()), 1)
    ordinary = np.array([i for i in spelled if i not in special and i < len(counts)], np.int64)
    used = ordinary[counts[ordinary] > 0]
    unused = len(ordinary) - len(used)
    by_count = used[np.argsort(counts[used], kind="stable")]
    single = sum(int(counts[i]) for i in used.tolist() if len(spelled[i]) == 1)
    mark = "\ufffd".encode()
    replaced = sum(int(counts[i]) for i in used.tolist() if mark in spelled[i])

    def named(ids: Sequence[int]) -> str:
        return ", ".join(
            f"{spelled[i].decode('utf-8', 'replace')!r} {int(counts[i]):,}" for i in ids
        )

    lines = [
        f"  most frequent: {named(by_count[::-1][:_SHOWN].tolist())}",
        f"  rarest: {named(by_count[:_SHOWN].tolist())}; {unused:,} ordinary tokens do not occur",
        f"  single bytes: {single / total:.2%} of all tokens".replace("%", " %"),
    ]
    if replaced:
        lines.append(f"  tokens with the replacement character U+FFFD: {replaced:,}")
    return lines


def length_line(lengths: NDArray[np.int64]) -> str:
    """The distribution of the documents' lengths, in tokens."""
    shares = (0, 1, 10, 50, 90, 99, 100)
    values = np.percentile(lengths, shares, method="nearest")
    parts = (f"{share} % {int(value):,}" for share, value in zip(shares, values, strict=True))
    return f"  tokens per document, by share of documents: {', '.join(parts)}"


def duplicate_line(hashes: NDArray[np.uint64] | None) -> str:
    """How many documents occur more than once."""
    if hashes is None:
        return (
            f"  duplicates: not looked for, for there are more than {_MOST_DOCUMENTS:,} documents"
        )
    again = len(hashes) - len(np.unique(hashes))
    share = f"{again / max(len(hashes), 1):.1%}".replace("%", " %")
    return f"  duplicates: {again:,} documents are copies of others ({share})"


def shared_line(train: NDArray[np.uint64] | None, val: NDArray[np.uint64] | None) -> str:
    """How many documents of the validation are in the training text, too."""
    if train is None or val is None:
        return "val in train: not looked for, for there are too many documents"
    shared = int(np.isin(val, train).sum())
    return f"val in train: {shared:,} of {len(val):,} validation documents are in train as well"


def sample_lines(file: TokenFile, tokenizer: AnyTokenizer) -> list[str]:
    """How a few documents begin, from the first to the last."""
    chosen = np.unique(np.linspace(0, file.n_documents - 1, _SAMPLES).astype(np.int64))
    lines = []
    for number in chosen.tolist() if file.n_documents else []:
        start = int(file.document_ends[number - 1]) if number else 0
        stop = min(int(file.document_ends[number]), start + _SAMPLE_TOKENS)
        text = tokenizer.decode_bytes(file[start:stop]).decode("utf-8", "replace")
        lines.append(f"  document {number:,} begins: {text!r}")
    return lines


def look_alike_line(stats: dict[str, Any]) -> str:
    """Special tokens that documents spell, and empty documents, as stats.json counted them."""
    found = {token: n for token, n in stats.get("look_alikes", {}).items() if n}
    spelled = ", ".join(f"{token!r} {n:,} times" for token, n in found.items()) or "none"
    return (
        f"text that spells special tokens: {spelled}; empty documents that were dropped:"
        f" {stats.get('empty_documents', 0):,}"
    )
