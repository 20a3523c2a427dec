"""The reference against examples to check by hand; its split is compared in tests/kernels."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from bpe import reference
from bpe.errors import TrainingError
from bpe.split.patterns import PATTERNS


def test_special_tokens_are_taken_from_the_left_and_the_longest_first() -> None:
    tokens = ["<a>", "<a><b>", "<b><c>", ">"]
    pieces = [piece for piece, _ in reference.split_special("x<a><b><c>y>", tokens)]
    assert pieces == ["x", "<a><b>", "<c", ">", "y", ">"]
    assert list(reference.split_special("", tokens)) == []
    assert list(reference.split_special("plain", [])) == [("plain", False)]
    assert list(reference.split_special("a.b", ["a.b"])) == [("a.b", True)]


def test_nothing_is_counted_from_or_across_special_tokens() -> None:
    assert reference.count(["ab<|x|>ab ab"], ["<|x|>"]) == {b"ab": 2, b" ab": 1}
    assert reference.count(["a<|x|>b", "", "a"], ["<|x|>"]) == {b"a": 2, b"b": 1}


def test_greatest_bytes_decides_ties_by_the_bytes() -> None:
    # ab, cd and e\xcc\x81 occur twice each.
    counts = {b"ab": 2, b"cd": 2, "e\u0301".encode(): 2}
    merges = reference.train_from_counts(counts, 256 + 5)
    assert merges == [(b"\xcc", b"\x81"), (b"e", b"\xcc\x81"), (b"c", b"d"), (b"a", b"b")]
    # Left first, and a prefix is less.
    assert reference.train_from_counts({b"ab": 2, b"ac": 2}, 257) == [(b"a", b"c")]
    counts = {b"xyz": 9, b"xyb": 3, b"xa": 3}
    merges = reference.train_from_counts(counts, 256 + 4)
    assert merges == [(b"x", b"y"), (b"xy", b"z"), (b"xy", b"b"), (b"x", b"a")]


def test_huggingface_decides_ties_by_ids_in_the_order_of_the_byte_level_alphabet() -> None:
    # Byte 0x20 is shown as U+0120, so it comes after every byte that is shown as itself.
    counts = {b" a": 2, b"ab": 2, b"\xc3\xa9": 2}
    merges = reference.train_from_counts(counts, 256 + 3, tie_break="huggingface")
    assert merges == [(b"a", b"b"), (b"\xc3", b"\xa9"), (b" ", b"a")]


def test_a_pair_is_counted_at_every_place_and_merged_from_left_to_right() -> None:
    assert reference.train_from_counts({b"aaa": 1, b"bc": 1}, 257) == [(b"a", b"a")]
    assert reference.merge([b"a"] * 5, (b"a", b"a")) == [b"aa", b"aa", b"a"]
    assert reference.merge([], (b"a", b"a")) == []


def test_training_stops_when_no_pair_reaches_min_frequency() -> None:
    counts = {b"ab": 3, b"cd": 1}
    assert reference.train_from_counts(counts, 300) == [(b"a", b"b")]
    assert reference.train_from_counts(counts, 300, min_frequency=4) == []
    for least in (1, 0):
        assert len(reference.train_from_counts(counts, 300, min_frequency=least)) == 2
    assert reference.train_from_counts({}, 300, min_frequency=0) == []


def test_max_token_length_is_in_bytes_and_inclusive() -> None:
    counts = {"ééé".encode(): 5, b"abcd": 4}
    for length, longest in {1: 1, 2: 2, 3: 3, 4: 4, 5: 4, 6: 6, 7: 6}.items():
        merges = reference.train_from_counts(counts, 300, max_token_length=length)
        assert max((len(left + right) for left, right in merges), default=1) == longest
        assert (b"abcd" in {left + right for left, right in merges}) == (length >= 4)


def test_what_makes_no_sense_is_refused() -> None:
    message = "unknown tie_break 'first': expected one of 'greatest-bytes', 'huggingface'"
    with pytest.raises(TrainingError, match=message):
        reference.train(["a"], 300, tie_break="first")
    message = r"vocab_size 257 is too small: the 256 bytes and 2 special tokens need"
    with pytest.raises(TrainingError, match=message):
        reference.train(["banana"], 257, ["<|x|>", "<|y|>"])


@settings(max_examples=150)
@given(st.lists(st.text("ab ", max_size=40), max_size=6), st.text("ab ", max_size=60))
def test_both_kinds_of_rank_agree_with_tiktoken_on_a_trained_vocabulary(
    documents: list[str], text: str
) -> None:
    merges = reference.train(documents, 320)
    tokens = [bytes([byte]) for byte in range(256)] + [left + right for left, right in merges]
    ranks = {token: rank for rank, token in enumerate(tokens)}
    encoding = tiktoken.Encoding(
        "t", pat_str=PATTERNS["gpt2"], mergeable_ranks=ranks, special_tokens={}
    )
    def ids(rank: Any, whole: Collection[bytes] = ()) -> list[int]:
        words = (pretoken.encode() for pretoken in reference.split(text))
        return [ranks[token] for word in words for token in reference.encode(word, rank, whole)]

    by_merges = ids(reference.rank_by_merges(merges))
    by_bytes = ids(reference.rank_by_bytes(ranks), ranks)
    assert by_merges == by_bytes == encoding.encode_ordinary(text)


def test_what_a_rank_is_and_what_comes_first_matter_where_no_merge_reaches() -> None:
    # The token "abc" is in the vocabulary, but no merge makes it.
    merges = [(b"a", b"b")]
    ranks = {b"ab": 0, b"abc": 1}
    assert reference.encode(b"abc", reference.rank_by_merges(merges)) == [b"ab", b"c"]
    assert reference.encode(b"abc", reference.rank_by_merges(merges), ranks) == [b"abc"]
    assert reference.encode(b"abcd", reference.rank_by_bytes(ranks)) == [b"abc", b"d"]
