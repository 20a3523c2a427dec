"""A vocabulary that exists is consistent; ranks and special tokens mean what their source means."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import trained
from hypothesis import given
from hypothesis import strategies as st

from bpe.byte_level import from_byte_level, to_byte_level
from bpe.errors import ArgumentError, EncodingError, VocabularyError
from bpe.vocabulary import AddedToken, Vocabulary, merges_of_ranks

BYTES = {byte: bytes([byte]) for byte in range(256)}


def ranks_of(*tokens: bytes) -> dict[bytes, int]:
    return {token: rank for rank, token in enumerate([*BYTES.values(), *tokens])}


def test_ids_may_be_in_any_order_and_leave_gaps() -> None:
    tokens = {1000 - byte: bytes([byte]) for byte in range(256)} | {5000: b"ab"}
    vocabulary = Vocabulary(tokens, [(b"a", b"b")], {"<|late|>": 9000, "<|early|>": 3})
    assert vocabulary.size == 9001
    assert list(vocabulary.special_tokens) == ["<|early|>", "<|late|>"]
    assert next(iter(vocabulary.bytes_of_id)) == 3
    assert [column.tolist() for column in vocabulary.pair_table()] == [[903], [902], [0], [5000]]
    with pytest.raises(EncodingError, match=r"token id 4 is not in the vocabulary.*0 to 9000"):
        vocabulary.token_bytes(4)


def test_a_token_of_a_quarter_megabyte_is_taken_in_its_stride() -> None:
    # Whoever tries every way to cut it, or looks for the next pair from its start, is not back in
    # a day.
    long = b"ab" * (1 << 17)
    vocabulary = Vocabulary.from_ranks(ranks_of(b"ab", b"abab", long), {})
    assert vocabulary.pair_table().merged_ids.tolist() == [256, 257]
    assert vocabulary.merges == [(b"a", b"b"), (b"ab", b"ab")]
    vocabulary.check_expressible_as_merges()


def test_ranks_that_no_list_of_merges_can_say_are_refused() -> None:
    # "abc" comes before "ab", so its own bytes never make it, but text that has "ab" can.
    vocabulary = Vocabulary.from_ranks(ranks_of(b"abc", b"ab"), {})
    message = r"b'abc' has the rank 256, below one of its parts b'ab'"
    with pytest.raises(VocabularyError, match=message):
        vocabulary.check_expressible_as_merges()
    Vocabulary.from_ranks(ranks_of(b"ab", b"abcd"), {}).check_expressible_as_merges()


def test_a_trained_vocabulary_is_ranks_and_its_merges_come_back() -> None:
    vocabulary = Vocabulary.from_merges(trained.merges(), ["<|x|>"])
    ranks = vocabulary.ranks()
    assert list(ranks.values()) == list(range(856))
    assert merges_of_ranks(ranks) == list(trained.merges())
    assert Vocabulary.from_ranks(ranks, vocabulary.special_tokens).merges == vocabulary.merges


@pytest.mark.parametrize(
    ("tokens", "merges"),
    [
        # The ids are not in the order of the merges.
        ({256: b"bc", 257: b"ab"}, [(b"a", b"b"), (b"b", b"c")]),
        # No merge makes "abc".
        ({256: b"ab", 257: b"abc"}, [(b"a", b"b")]),
        # Two merges make "abc".
        (
            {256: b"ab", 257: b"bc", 258: b"abc"},
            [(b"a", b"b"), (b"b", b"c"), (b"ab", b"c"), (b"a", b"bc")],
        ),
    ],
)
def test_a_vocabulary_that_is_not_ranks_says_so(
    tokens: dict[int, bytes], merges: list[tuple[bytes, bytes]]
) -> None:
    with pytest.raises(VocabularyError, match=r"cannot be written as tiktoken ranks"):
        Vocabulary(BYTES | tokens, merges, {}).ranks()


@pytest.mark.parametrize(
    ("tokens", "merges", "special_tokens", "message"),
    [
        ({256: "ab"}, [], {}, r"token 256 is 'ab': expected bytes"),
        ({-1: b"ab"}, [], {}, r"token b'ab' has the id -1: expected a whole number from 0"),
        ({"7": b"ab"}, [], {}, r"token b'ab' has the id '7'"),
        ({2**31: b"ab"}, [], {}, r"token b'ab' has the id 2147483648"),
        ({256: b"a"}, [], {}, r"token b'a' has two ids, 97 and 256"),
        ({10: b"ab", 13: b"cd"}, [], {}, r"2 of the bytes in UTF-8 have no token, .* b'\\n'"),
        ({}, [(b"a", b"bc")], {}, r"b'bc', which is not in the vocabulary: expected tokens"),
        ({}, [(b"a", b"b")], {}, r"a merge makes b'ab', which is not in the vocabulary"),
        ({}, [], {"": 256}, r"special token '': expected text of one character or more"),
        ({}, [], {"\ud800": 256}, r"is not valid Unicode: character 0 is a surrogate"),
        ({}, [], {"<x>": -5}, r"special token '<x>' has the id -5"),
        ({}, [], {"<x>": 98}, r"special token '<x>' has the id 98, which b'b' has already"),
        ({}, [], {"<x>": 256, "<y>": 256}, r"'<y>' has the id 256, which '<x>' has already"),
        ({}, [], [AddedToken("<x>", 256), AddedToken("<x>", 257)], r"has two ids: expected one"),
        ({}, [], [AddedToken("x", 98, special=False)], r"added token 'x' has the id 98, which"),
    ],
)
def test_contradictions_are_refused(
    tokens: dict[int, bytes], merges: Any, special_tokens: Any, message: str
) -> None:
    with pytest.raises(VocabularyError, match=message):
        Vocabulary(BYTES | tokens, merges, special_tokens)


def test_doubled_names_and_shared_ranks_are_refused() -> None:
    no_text: Any = iter([b"x"])  # a list is checked by its type before
    with pytest.raises(ArgumentError, match=r"text: should be text; got b'x'"):
        Vocabulary.from_merges([], no_text)
    with pytest.raises(VocabularyError, match=r"special token '<x>' is named twice"):
        Vocabulary.from_merges([], ["<x>", "<x>"])
    wrong: Any
    for wrong in ("ab", [b"abc"], {"<x>": 5}):
        with pytest.raises(ArgumentError, match="merges: should be a list of list of bytes or an"):
            Vocabulary(BYTES, wrong, {})
    with pytest.raises(VocabularyError, match=r"tokens b'b' and b'ab' share the rank 98"):
        Vocabulary.from_ranks(ranks_of() | {b"ab": 98}, {})


def test_equality_is_of_contents_and_pickling_keeps_it() -> None:
    vocabulary = Vocabulary.from_merges([(b"a", b"b")], ["<x>"])
    assert vocabulary.size == 258
    assert vocabulary.bytes_of_id[256] == b"ab"
    copy = pickle.loads(pickle.dumps(vocabulary))
    assert "bytes_of_id" not in vars(copy)
    assert copy == vocabulary
    assert copy != Vocabulary.from_merges([(b"a", b"b")], ["<y>"])
    assert copy != Vocabulary.from_ranks(ranks_of(b"ab"), {"<x>": 257})
    assert copy != "vocabulary"
    assert repr(copy) == "Vocabulary(size=258, tokens=257, special_tokens=['<x>'])"


@given(st.binary(max_size=40))
def test_byte_level_spelling_goes_there_and_back(token: bytes) -> None:
    assert from_byte_level(to_byte_level(token)) == token
    assert [from_byte_level(text) for text in (" ", "a b", "日", "\n", "\xad", "ń")] == [None] * 6


def test_merges_as_ids_are_those_as_bytes() -> None:
    ids = np.array([[97, 98], [256, 99], [100, 257]], np.int32)
    vocabulary = Vocabulary.from_merges(ids, ["<|end|>"])
    same = Vocabulary.from_merges([(b"a", b"b"), (b"ab", b"c"), (b"d", b"abc")], ["<|end|>"])
    for made, wanted in zip(vocabulary.pair_table(), same.pair_table(), strict=True):
        assert made.dtype == wanted.dtype == np.int32
        assert made.tolist() == wanted.tolist()
    assert pickle.loads(pickle.dumps(vocabulary)) == vocabulary == same
    assert vocabulary.merges == same.merges
    assert Vocabulary.from_merges(ids[:0]) == Vocabulary.from_merges([])
    with pytest.raises(VocabularyError, match="b'ab' has two ids, 256 and 257"):
        Vocabulary.from_merges(np.array([[97, 98], [97, 98]], np.int32))
