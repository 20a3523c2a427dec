"""Extending a tokenizer: ids keep their meaning, new merges are those of the reference."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpe import (
    PatternError,
    PretokenCounts,
    Tokenizer,
    TrainingError,
    Vocabulary,
    VocabularyError,
    load_tokenizer,
    reference,
    train_bpe,
)
from bpe.train.counts import FrozenCounts
from bpe.train.trainer import train_from_counts

END = "<|endoftext|>"
PATTERNS = ["gpt2", "cl100k", "o200k", "llama3", "superwords"]
texts = st.sampled_from(["ab", "abc ", "aab  é", "abcde \n'1", "日本a ", "a<|>x "]).flatmap(
    lambda alphabet: st.lists(st.text(alphabet, max_size=80), min_size=1, max_size=4)
)


def with_unmade(tokenizer: Tokenizer, tokens: list[bytes], ignore_merges: bool) -> Tokenizer:
    """Return a tokenizer with tokens that no merge makes, after a gap in the ids."""
    old = tokenizer.vocabulary
    known = dict(old.tokens)
    new = [token for token in tokens if token not in known.values()]
    known |= {tokenizer.vocab_size + 2 * i: token for i, token in enumerate(new)}
    vocabulary = Vocabulary(known, old.merges, old.special_tokens, ignore_merges=ignore_merges)
    return Tokenizer.from_vocabulary(vocabulary, pattern=tokenizer.pattern)


def reference_encoding(tokenizer: Tokenizer, merges: list[reference.Pair], text: str) -> list[int]:
    vocabulary = tokenizer.vocabulary
    ids = {token: number for number, token in vocabulary.tokens.items()}
    whole = ids if vocabulary.ignore_merges else ()
    rank = reference.rank_by_merges(merges)
    pretokens = reference.split(text, tokenizer.pattern)
    return [ids[x] for each in pretokens for x in reference.encode(each.encode(), rank, whole)]


@settings(max_examples=60)
@given(
    texts, texts, st.sampled_from(reference.TIE_BREAKS), st.sampled_from(PATTERNS),
    st.sampled_from([None, 3, 5]), st.integers(0, 15), st.integers(0, 15),
    st.lists(st.sampled_from([b"aab", b"ba", b"bab", b"aa"]), unique=True, max_size=2),
    st.booleans(), st.sampled_from([[], ["<x>"]]),
)  # fmt: skip
def test_merges_and_ids_are_those_of_the_reference(
    before: list[str], more: list[str], tie_break: str, pattern: str, max_token_length: int | None,
    n_before: int, n_more: int, unmade: list[bytes], ignore_merges: bool, special: list[str],
) -> None:  # fmt: skip
    options: dict[str, Any] = {"tie_break": tie_break}
    old = train_bpe([*before, "aba"], 257 + n_before, [END], pattern=pattern, workers=1, **options)
    if unmade:
        old = with_unmade(old, unmade, ignore_merges)
    options |= {"max_token_length": max_token_length, "min_frequency": 1}
    size = old.vocab_size + n_more + len(special)
    new = train_bpe([*more, "abab"], size, special, extend=old, workers=1, **options)

    vocabulary = old.vocabulary
    longer = [token for _, token in sorted(vocabulary.tokens.items()) if len(token) > 1]
    rank = reference.rank_by_merges(vocabulary.merges)
    whole = {*vocabulary.tokens.values()} if vocabulary.ignore_merges else set()
    merges = reference.train_from_counts(
        reference.count([*more, "abab"], [END, "<x>"], pattern),
        256 + len(longer) + n_more + len(special), special, extended=longer,
        encoded=lambda pretoken: reference.encode(pretoken, rank, whole), **options,
    )
    assert new.merges == vocabulary.merges + merges
    assert {number: new.vocab[number] for number in old.vocab} == old.vocab
    made = {left + right for left, right in merges} - {*longer}
    assert new.vocab_size == old.vocab_size + len(made) + len(special)
    for text in [*before, *more]:
        ids = new.encode_ordinary(text)
        assert ids == reference_encoding(new, vocabulary.merges + merges, text)


def test_a_token_whose_merge_is_never_reached_keeps_its_id() -> None:
    tokens = {i: bytes([i]) for i in range(256)} | {256: b"bc", 257: b"ab", 258: b"abc"}
    merges = [(b"b", b"c"), (b"a", b"b"), (b"ab", b"c")]
    old = Tokenizer.from_vocabulary(Vocabulary(tokens, merges, {}))
    assert old.encode("abc") == [97, 256]
    new = train_bpe(["abc abcd abcd"], 261, extend=old)
    assert new.merges[3:] == [(b"a", b"bc"), (b"abc", b"d"), (b" ", b"abcd")]
    assert (new.encode("abc"), new.encode("abcd abcd")) == ([258], [259, 260])


def test_ties_are_of_symbols_in_the_order_of_their_merges() -> None:
    text = ["xy"] * 5 + ["abc"] * 3 + ["bxy", "babc"] * 2
    old = with_unmade(train_bpe(["-"], 256), [b"abc"], ignore_merges=False)
    new = train_bpe(text, old.vocab_size + 4, extend=old, tie_break="huggingface")
    merges = reference.train_from_counts(
        reference.count(text), 256 + 1 + 4, tie_break="huggingface", extended=[b"abc"]
    )
    assert new.merges == merges
    assert merges[3:] == [(b"b", b"xy"), (b"b", b"abc")]  # xy was made first


@pytest.mark.parametrize("tie_break", reference.TIE_BREAKS)
def test_extending_on_the_same_text_is_one_training(tie_break: str) -> None:
    chosen = random.Random(5)
    words = ["".join(chosen.choices("abcdefg", k=chosen.randrange(2, 9))) for _ in range(300)]
    text = [" ".join(chosen.choices(words, k=4000))]
    small = train_bpe(text, 300, tie_break=tie_break)
    large = train_bpe(text, 700, tie_break=tie_break)
    assert train_bpe(text, 700, tie_break=tie_break, extend=small) == large


def test_memory_of_the_layout_is_little_more_than_that_of_sorting() -> None:
    n = 1_000_000
    buffer = np.random.default_rng(3).integers(97, 123, n, np.uint8)
    counts = FrozenCounts("gpt2", (), buffer, np.arange(0, n + 1, 10), np.ones(n // 10, np.int64))
    old = train_bpe(["-"], 256)
    train_from_counts(counts, 257, extend=old, workers=1)
    tracemalloc.start()
    train_from_counts(counts, 257, extend=old, workers=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 42 * n


def test_ranks_of_tiktoken_are_continued(tmp_path: Path) -> None:
    text = ["low low lower lowest newest newer wider"] * 3
    train_bpe(text, 265).save_tiktoken(tmp_path / "ranks.tiktoken")
    ranks = Tokenizer.from_tiktoken(
        tmp_path / "ranks.tiktoken", pattern="cl100k", special_tokens=[END]
    )
    new = train_bpe(text, ranks.vocab_size + 5, extend=ranks)
    assert new.merges[: ranks.vocabulary.n_merges] == ranks.merges
    assert len(new.encode(text[0])) < len(ranks.encode(text[0]))
    assert new.special_tokens == ranks.special_tokens
    new.save(tmp_path / "tokenizer.json")
    assert load_tokenizer(tmp_path / "tokenizer.json") == new


def test_settings_of_the_files_are_kept(tmp_path: Path) -> None:
    train_bpe(["aba abab"], 258, [END]).save(tmp_path / "tokenizer.json")
    config = '{"model_max_length": 7, "eos_token": "<|endoftext|>"}'
    (tmp_path / "tokenizer_config.json").write_text(config)
    old = Tokenizer.from_file(tmp_path / "tokenizer.json")
    new = train_bpe(["abab abab"], 260, ["<x>"], extend=old)
    assert (new.eos_token, new.special_tokens) == (END, {END: 257, "<x>": 259})
    assert '"model_max_length": 7' in new.to_config_json()


def test_refusals(caplog: pytest.LogCaptureFixture) -> None:
    old = train_bpe(["aba abab abab"], 260, [END])
    with pytest.raises(TrainingError, match="counts the 260 ids of the tokenizer to extend and 1"):
        train_bpe(["aba"], 260, [END, "<x>"], extend=old)
    with pytest.raises(TrainingError, match="that is extended would be one in tokenizer"):
        train_bpe(["zz"], 300, ["ab"], extend=old)
    counts = PretokenCounts("o200k")
    counts.add(np.frombuffer(b"aba", np.uint8), np.array([0, 3]))
    with pytest.raises(TrainingError, match="count it with that of the tokenizer that is extended"):
        train_from_counts(counts, 300, extend=old)
    # Its ranks merge what a list of merges could not.
    ranks = Vocabulary.from_ranks(
        {**{bytes([i]): i for i in range(256)}, b"abc": 256, b"bc": 257, b"ab": 258}, {}
    )
    with pytest.raises(VocabularyError, match="cannot be written as a list of merges"):
        train_bpe(["abc"], 300, extend=Tokenizer.from_vocabulary(ranks))
    of_tiktoken = train_bpe(["aba abab"], 258, pattern="tiktoken:[a-z]+|[^a-z]+")
    with pytest.raises(PatternError, match="was written for tiktoken"):
        train_bpe(map(pytest.fail, ["read"]), 300, extend=of_tiktoken)  # before text is read
    assert train_bpe(["aba"], 300, extend=old).vocab_size == 260
    assert "training stopped early" in caplog.text
