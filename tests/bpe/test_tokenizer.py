"""The tokenizer: every way to encode gives the reference's ids; what it is, and refuses."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trained
from hypothesis import given, settings
from hypothesis import strategies as st
from nasty import nasty_text, nasty_texts

import bpe
import bpe.encode.parallel_encoder
import bpe.special
import bpe.vocabulary
from bpe import Tokenizer, reference
from bpe.errors import EncodingError, PatternError, VocabularyError
from bpe.vocabulary import Vocabulary

pytestmark = pytest.mark.usefixtures("few_ranges")

# They contain one another.
SPECIAL = ["<|endoftext|>", "<|end", "<|", "|>", "<|endoftext|><|endoftext|>", " \n", "x<"]
TOKENIZER = Tokenizer.from_vocabulary(Vocabulary.from_merges(trained.merges(), SPECIAL))
RANK = reference.rank_by_merges(trained.merges())
IDS = {token: token_id for token_id, token in TOKENIZER.vocabulary.tokens.items()}


# Nasty text in which special tokens occur whole, in parts, side by side and inside one another.
special_text = st.lists(
    st.one_of(
        nasty_text(4), st.sampled_from(SPECIAL), st.sampled_from(["<", "|", "end", "oftext", ">"])
    ),
    max_size=12,
).map("".join)


def expected_ids(text: str, special_tokens: dict[str, int]) -> list[int]:
    """Encode by the reference alone."""
    ids: list[int] = []
    for piece, is_special in reference.split_special(text, special_tokens):
        if is_special:
            ids.append(special_tokens[piece])
            continue
        for pretoken in reference.split(piece):
            ids += [IDS[token] for token in reference.encode(pretoken.encode(), RANK)]
    return ids


# --- text -> ids ---------------------------------------------------------------------------------


@settings(max_examples=300)
@given(special_text, st.just("all") | st.lists(st.sampled_from(SPECIAL), unique=True))
def test_encode_is_the_reference(text: str, allowed: str | list[str]) -> None:
    known = TOKENIZER.special_tokens
    expected = expected_ids(text, known if allowed == "all" else {x: known[x] for x in allowed})
    array = TOKENIZER.encode_to_numpy(text, allowed)
    assert (array.dtype, array.tolist()) == (np.uint32, expected)
    assert TOKENIZER.encode(text, allowed_special=allowed) == expected
    assert TOKENIZER.count_tokens(text, allowed) == len(expected)
    assert TOKENIZER.encode_ordinary(text) == expected_ids(text, {})
    assert TOKENIZER.decode(expected) == text


@pytest.mark.parametrize("n", [31, 32, 33, 1000])
def test_many_special_tokens_are_recognised_as_few(n: int) -> None:
    text = "x" + "ab<|endoftext|>" * n
    assert TOKENIZER.encode(text) == expected_ids(text, TOKENIZER.special_tokens)


@settings(max_examples=120)
@given(
    st.one_of(nasty_texts(30), st.lists(special_text, max_size=30)), st.sampled_from(["all", ()]),
    st.sampled_from([1, 7, 64, 500, 1 << 21]), st.integers(1, 5), st.sampled_from([0, 1 << 16]),
)
def test_a_batch_is_each_of_its_texts_in_any_parts_on_any_threads(
    texts: list[str], allowed: str | tuple[()], part_bytes: int, n_threads: int, large: int
) -> None:
    """Also where a kernel has first asked which special tokens there are."""
    expected = [TOKENIZER.encode(text, allowed) for text in texts]
    whole = TOKENIZER.encode("".join(texts), allowed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe.encode.parallel_encoder, "_PART_BYTES", part_bytes)
        patch.setattr(bpe.encode.parallel_encoder, "available_workers", lambda: n_threads)
        patch.setattr(bpe.encode.parallel_encoder, "_SHORT", 0)
        patch.setattr(bpe.special, "_LARGE", large)
        assert TOKENIZER.encode_batch(texts, allowed) == expected
        assert TOKENIZER.encode("".join(texts), allowed) == whole
        ids, offsets = TOKENIZER.encode_batch_to_numpy(tuple(texts), allowed)
    assert (ids.dtype, offsets.dtype) == (np.uint32, np.int64)
    assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == expected


SEPARATORS = ["<|endoftext|>", "a", "aa", "aba", " ", "\n\n", "é", "中"]


@settings(max_examples=120)
@given(st.data(), st.sampled_from(SEPARATORS), st.sampled_from([1, 7, 64, 500]))
def test_separated_documents_are_those_of_split(
    data: st.DataObject, separator: str, part_bytes: int
) -> None:
    pieces = st.one_of(special_text, st.just(separator), st.sampled_from("ab1 é中\n"))
    text = "".join(data.draw(st.lists(pieces, max_size=30)))
    expected = [TOKENIZER.encode_ordinary(document) for document in text.split(separator)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe.encode.parallel_encoder, "_PART_BYTES", part_bytes)
        patch.setattr(bpe.encode.parallel_encoder, "available_workers", lambda: 2)
        ids, offsets = TOKENIZER.encode_separated_to_numpy(text.encode(), separator)
    assert (ids.dtype, offsets.dtype) == (np.uint32, np.int64)
    assert [ids[a:b].tolist() for a, b in pairwise(offsets)] == expected


def test_separated_documents_of_a_tokenizer_with_a_normalizer(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    TOKENIZER.save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": {"type": "NFC"}}))
    normalized = Tokenizer.from_file(file)
    ids, offsets = normalized.encode_separated_to_numpy("e\u0301<|endoftext|>b".encode())
    assert [normalized.decode(ids[a:b]) for a, b in pairwise(offsets)] == ["é", "b"]
    data = np.frombuffer("e\u0301b".encode(), np.uint8)
    encoder = normalized.new_encoder(np.dtype(np.uint16))
    small, _ = encoder.encode(data, np.array([[0, 3], [3, 4]]))
    assert small.dtype == np.uint16
    assert small.tolist() == ids.tolist()
    # The accent between the two would go with either.
    data = np.frombuffer("e\u0301\u0301b".encode(), np.uint8)
    apart, _ = normalized.new_encoder().encode(data, np.array([[0, 3], [5, 6]]))
    assert apart.tolist() == ids.tolist()
    with pytest.raises(EncodingError, match=r"byte 1 is not valid UTF-8 \(0xff: "):
        normalized.encode_separated_to_numpy(b"a\xff")


def test_separated_documents_of_a_pattern_that_would_refuse_the_separator() -> None:
    vocabulary = TOKENIZER.vocabulary
    letters = Tokenizer.from_vocabulary(vocabulary, pattern=r"tiktoken:[a-z]+|\s+")
    ids, offsets = letters.encode_separated_to_numpy(b"abc def<|endoftext|>ghi<|endoftext|>")
    assert [letters.decode(ids[a:b]) for a, b in pairwise(offsets)] == ["abc def", "ghi", ""]
    data = np.frombuffer(b"abc def<|endoftext|>ghi", np.uint8)
    again, _ = letters.new_encoder().encode(data, np.array([[0, 7], [20, 23]]))
    assert again.tolist() == ids.tolist()


def test_separated_data_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="the separator is empty: expected at least one character"):
        TOKENIZER.encode_separated_to_numpy(b"a", "")
    with pytest.raises(EncodingError, match="lone surrogate"):
        TOKENIZER.encode_separated_to_numpy(b"a", "\ud800")
    monkeypatch.setattr(bpe.encode.parallel_encoder, "_PART_BYTES", 64)
    expected = r"byte 2,003 is not valid UTF-8 \(0x80: invalid start byte\): expected UTF-8; decode"
    with pytest.raises(EncodingError, match=expected):
        TOKENIZER.encode_separated_to_numpy(b"the " * 500 + b"abc\x80" + b" the" * 500)
    # A separator does not mend a character that it stands in.
    with pytest.raises(EncodingError, match=r"byte 1 is not valid UTF-8 .0xe4: invalid conti"):
        TOKENIZER.encode_separated_to_numpy(b"a\xe4 \xb8\xad", " ")


def test_empty_text_has_no_ids() -> None:
    assert TOKENIZER.encode("") == []
    assert TOKENIZER.encode_batch([]) == []
    assert TOKENIZER.encode_batch(["", ""]) == [[], []]
    ids = [[], TOKENIZER.encode("<|"), [], TOKENIZER.encode("|>")]
    assert TOKENIZER.encode_batch(["", "<|", "", "|>"]) == ids
    assert list(TOKENIZER.encode_iterable([])) == []
    assert list(TOKENIZER.encode_iterable(["", ""])) == []
    assert TOKENIZER.decode([]) == ""
    assert TOKENIZER.decode(np.array([])) == ""


# --- streams -------------------------------------------------------------------------------------


def pieces_of(text: str, seed: int) -> Iterator[str]:
    choose = random.Random(seed)
    start = 0
    while start < len(text):
        stop = start + choose.choice([0, 1, 1, 2, 3, 10, 100])
        yield text[start:stop]
        start = stop


@settings(max_examples=150)
@given(special_text, st.integers(0, 9), st.sampled_from([1, 2, 5, 30]), st.sampled_from([1, 3, 20]))
def test_a_stream_is_the_whole_however_it_is_cut(
    text: str, seed: int, stream_bytes: int, look_back: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe.encode.parallel_encoder, "_STREAM_BYTES", stream_bytes)
        patch.setattr(bpe.special, "_LOOK_BACK", look_back)
        assert list(TOKENIZER.encode_iterable(pieces_of(text, seed))) == TOKENIZER.encode(text)
        assert list(TOKENIZER.encode_iterable(text)) == TOKENIZER.encode(text)
        ordinary = list(TOKENIZER.encode_iterable(pieces_of(text, seed), allowed_special=()))
        assert ordinary == TOKENIZER.encode_ordinary(text)


def test_a_stream_is_lazy_and_holds_back_little() -> None:
    line = "All work and no play makes Jack a dull boy.\n"
    taken = 0

    def lines() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += len(line)
            yield line

    ids = TOKENIZER.encode_iterable(lines())
    assert taken == 0
    read: list[int] = [next(ids) for _ in range(200_000)]
    text = TOKENIZER.decode(read)
    assert text == (line * (len(text) // len(line) + 1))[: len(text)]
    assert taken - len(text) < 2 * bpe.encode.parallel_encoder._STREAM_BYTES


def test_a_stream_without_a_place_to_cut_is_looked_through_a_few_times_only() -> None:
    text = "a" * 300_000
    ids = list(TOKENIZER.encode_iterable(text[i : i + 100] for i in range(0, len(text), 100)))
    assert ids == TOKENIZER.encode(text)


# --- ids -> text ---------------------------------------------------------------------------------


def test_decode_takes_lists_iterators_and_arrays_of_any_whole_numbers() -> None:
    text = "naïve <|endoftext|>日本語"
    ids = TOKENIZER.encode(text)
    arrays = [np.array(ids, dtype) for dtype in ("<u2", "<u4", "i8", "u8")]
    for given_ids in (ids, tuple(ids), iter(ids), *arrays):
        assert TOKENIZER.decode(given_ids) == text
    assert TOKENIZER.decode_bytes(ids) == text.encode()
    ids = [0xE2, 0x82, 97]  # a part of a character
    assert TOKENIZER.decode(ids) == "\ufffda"
    assert TOKENIZER.decode(ids, errors="ignore") == "a"
    assert TOKENIZER.decode_bytes(np.array(ids)) == b"\xe2\x82a"
    with pytest.raises(UnicodeDecodeError):
        TOKENIZER.decode(ids, errors="strict")


@pytest.mark.parametrize("kind", [list, np.array])
def test_ids_without_a_token_are_refused(kind: type) -> None:
    n = TOKENIZER.vocab_size
    for bad in (-1, -n, -n - 1, -2 * n - 1, 50_000, 2**40):
        message = rf"token id {bad} is not in the vocabulary: expected an id from 0"
        with pytest.raises(EncodingError, match=message):
            TOKENIZER.decode(kind([97, bad]))
    for ids in (np.zeros((2, 2), int), np.array([1.0]), np.array(1)):
        with pytest.raises(EncodingError, match="expected one dimension of whole numbers"):
            TOKENIZER.decode(ids)


@settings(max_examples=50)
@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=50))
def test_any_ids_decode_alike_from_lists_and_arrays(ids: list[int]) -> None:
    expected = b"".join(TOKENIZER.vocab[token_id] for token_id in ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe.vocabulary, "_DECODE_IDS", 7)
        assert TOKENIZER.decode_bytes(ids) == expected
        assert TOKENIZER.decode_bytes(np.array(ids, dtype=np.int64)) == expected


# --- what is refused -----------------------------------------------------------------------------


def test_what_is_not_text_is_refused() -> None:
    calls: list[Callable[[Any], object]] = [
        TOKENIZER.encode, TOKENIZER.encode_ordinary, TOKENIZER.count_tokens,
        lambda text: TOKENIZER.encode_batch(["ok", text]),
        lambda text: TOKENIZER.encode_batch(["ok"] * 5000 + [text]),
        lambda text: [*TOKENIZER.encode_iterable([text])],
    ]
    surrogate = r"character 2 of the text is '\\ud800', a lone surrogate"
    for call in calls:
        with pytest.raises(EncodingError, match=surrogate):
            call("ab\ud800")
    for call in calls[:-1]:
        for value in (None, b"bytes", 5):
            with pytest.raises(TypeError, match=r"expected text, found|should be (text|a list)"):
                call(value)
    with pytest.raises(TypeError, match="texts: should be a list of texts; got"):
        TOKENIZER.encode_batch("text")


def test_unknown_special_tokens_and_settings_are_refused() -> None:
    message = r"names '<pad>', which is not a special token.*'<\|endoftext"
    with pytest.raises(VocabularyError, match=message):
        TOKENIZER.encode("a", allowed_special=["<pad>"])
    message = r"allowed_special is '<\|end': expected 'all' or a coll"
    with pytest.raises(VocabularyError, match=message):
        TOKENIZER.encode("a", allowed_special="<|end")
    message = r"eos_token '<pad>' is not a special token of this tokenizer: expected one of"
    with pytest.raises(VocabularyError, match=message):
        Tokenizer.from_vocabulary(TOKENIZER.vocabulary, eos_token="<pad>")
    with pytest.raises(VocabularyError, match=r"unknown tie_break 'dice': expected None or one of"):
        Tokenizer.from_vocabulary(TOKENIZER.vocabulary, tie_break="dice")
    with pytest.raises(PatternError, match="unknown split pattern 'x'"):
        Tokenizer.from_vocabulary(TOKENIZER.vocabulary, pattern="x")


# --- what it is ----------------------------------------------------------------------------------

BYTES = {byte: bytes([byte]) for byte in range(256)}


def test_special_tokens_take_the_ids_that_the_vocabulary_has_for_them() -> None:
    vocab = BYTES | {256: b"ab", 257: b"<|x|>", 258: b"cd"}
    tokenizer = Tokenizer(vocab, [(b"a", b"b"), (b"c", b"d")], ["<|x|>", "<|new|>"])
    assert tokenizer.special_tokens == {"<|x|>": 257, "<|new|>": 259}
    assert tokenizer.vocab == vocab | {259: b"<|new|>"}
    assert tokenizer.encode("ab<|x|>cd<|new|>") == [256, 257, 258, 259]
    assert Tokenizer(vocab, tokenizer.merges, {"<|x|>": 257, "<|new|>": 259}) == tokenizer
    # One that spells a byte is a token of its own.
    tokenizer = Tokenizer(BYTES, [], ["\n"])
    assert tokenizer.encode("a\nb") == [97, 256, 98]
    assert tokenizer.encode_ordinary("a\nb") == [97, 10, 98]


def test_what_it_is_can_be_asked() -> None:
    assert TOKENIZER.vocab_size == 256 + 600 + len(SPECIAL)
    assert TOKENIZER.vocab[97] == b"a"
    assert TOKENIZER.merges == list(trained.merges())
    assert (TOKENIZER.eos_token, TOKENIZER.pattern) == ("<|endoftext|>", "gpt2")
    assert (TOKENIZER.tie_break, TOKENIZER.unicode_version) == (None, "16.0.0")
    assert Tokenizer(BYTES, []).eos_token is None
    assert Tokenizer(BYTES, [], None) == Tokenizer(BYTES, [], special_tokens=None)  # as in CS336
    assert Tokenizer(BYTES, [], ["</s>"], eos_token="</s>").eos_token == "</s>"
    assert repr(Tokenizer(BYTES, [], ["</s>"])) == (
        "Tokenizer(vocab_size=257, pattern='gpt2', special_tokens=['</s>'])"
    )
    # These are copies.
    for copied in (TOKENIZER.vocab, TOKENIZER.special_tokens, TOKENIZER.merges):
        copied.clear()
    assert all([TOKENIZER.vocab, TOKENIZER.special_tokens, TOKENIZER.merges])


def test_the_fingerprint_is_of_the_file(tmp_path: Path) -> None:
    vocabulary = TOKENIZER.vocabulary
    tokenizer = Tokenizer.from_vocabulary(vocabulary, tie_break="huggingface", eos_token="|>")
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert (again, hash(again)) == (tokenizer, hash(tokenizer))
    assert (again.eos_token, again.tie_break) == ("|>", "huggingface")
    content = (tmp_path / "tokenizer.json").read_bytes()
    assert again.fingerprint == hashlib.sha256(content).hexdigest()
    assert tokenizer not in (TOKENIZER, "tokenizer")


def test_copies_and_pickles_carry_no_cache() -> None:
    TOKENIZER.encode("warm " * 1000)
    pickled = pickle.dumps(TOKENIZER)
    assert len(pickled) < 100_000
    for other in (pickle.loads(pickled), copy.copy(TOKENIZER), copy.deepcopy(TOKENIZER)):
        assert other == TOKENIZER
        assert other.encode("naïve <|endoftext|>") == TOKENIZER.encode("naïve <|endoftext|>")


def test_one_tokenizer_serves_several_threads() -> None:
    tokenizer = Tokenizer.from_vocabulary(TOKENIZER.vocabulary)
    texts = [f"{text} {number}" for number in range(10) for text in trained.documents()]
    expected = [TOKENIZER.encode(text) for text in texts]
    start = threading.Barrier(4)

    def encode_all(_: int) -> list[list[int]]:
        start.wait()
        return [tokenizer.encode(text) for text in texts]

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(encode_all, range(4))] == [expected] * 4


def test_a_name_that_the_package_has_not() -> None:
    with pytest.raises(AttributeError, match="module 'bpe' has no attribute 'nothing'"):
        bpe.nothing  # noqa: B018 - the access is what is tested
