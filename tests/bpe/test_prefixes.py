"""Smaller vocabularies of one training are those of separate trainings, and so are the tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trained
from hypothesis import given, settings
from hypothesis import strategies as st

from bpe import PretokenCounts, Tokenizer, reference, train_bpe
from bpe.train.prefixes import cut_vocabulary, tokens_of_prefixes
from bpe.train.trainer import train_from_counts

END = "<|endoftext|>"
texts = st.sampled_from(["ab", "abc ", "aab  é", "abcde \n'", "日本a ", "<|>a "]).flatmap(
    lambda alphabet: st.lists(st.text(alphabet, max_size=80), min_size=1, max_size=4)
)


def id_counts(tokenizer: Tokenizer, documents: list[str]) -> np.ndarray:
    ids = [token for text in documents for token in tokenizer.encode_ordinary(text)]
    return np.bincount(ids, minlength=tokenizer.vocab_size)


@settings(max_examples=100)
@given(
    texts, texts, st.sampled_from(reference.TIE_BREAKS), st.integers(0, 3),
    st.sampled_from([None, 2, 4]), st.sampled_from([[], [END], [END, "ab"]]),
)  # fmt: skip
def test_every_size_is_that_of_its_own_training(
    documents: list[str], held_out: list[str], tie_break: str, min_frequency: int,
    max_token_length: int | None, special_tokens: list[str],
) -> None:  # fmt: skip
    options: dict[str, Any] = {
        "tie_break": tie_break, "min_frequency": min_frequency,
        "max_token_length": max_token_length,
    }  # fmt: skip
    counts = PretokenCounts(special_tokens=special_tokens)
    for text in (x.encode() for x in [*documents, "aba"]):
        counts.add(np.frombuffer(text, np.uint8), np.array([0, len(text)]))
    least = 256 + len(special_tokens)
    largest = train_from_counts(counts, least + 12, special_tokens=special_tokens, **options)
    tokens = tokens_of_prefixes(largest, id_counts(largest, held_out))
    assert len(tokens) == len(largest.merges) + 1
    for n, n_tokens in enumerate(tokens.tolist()):
        own = train_from_counts(counts, least + n, special_tokens=special_tokens, **options)
        assert cut_vocabulary(largest, least + n).fingerprint == own.fingerprint
        assert n_tokens == sum(len(own.encode_ordinary(text)) for text in held_out)
        rank = reference.rank_by_merges(own.merges)
        pretokens = [x.encode() for text in held_out for x in reference.split(text)]
        assert n_tokens == sum(len(reference.encode(x, rank)) for x in pretokens)


@pytest.mark.parametrize(
    ("pattern", "tie_break"), [("gpt2", "greatest-bytes"), ("o200k", "huggingface")]
)
def test_text_of_every_script(pattern: str, tie_break: str) -> None:
    documents = trained.documents()
    options: dict[str, Any] = {"pattern": pattern, "tie_break": tie_break}
    largest = train_bpe(documents, 1256, [END], **options)
    held_out = [f"{END}{text[::-1]} {text[:500]}" for text in documents]
    tokens = tokens_of_prefixes(largest, id_counts(largest, held_out))
    for size in (257, 258, 400, 999, 1256):
        own = train_bpe(documents, size, [END], **options)
        assert tokens[size - 257] == sum(len(own.encode_ordinary(text)) for text in held_out)
        assert cut_vocabulary(largest, size).fingerprint == own.fingerprint


def test_special_ids_count_in_every_size() -> None:
    tokenizer = train_bpe(["abab abab"], 260, [END])
    counts = np.bincount(tokenizer.encode(f"abab{END}{END}"), minlength=260)
    assert tokens_of_prefixes(tokenizer, counts).tolist()[0] == 6
    assert cut_vocabulary(tokenizer, 257).vocab_size == 257
