"""What compiled kernels rely on is checked where it is handed in: offsets, types, sizes, ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bpe import (
    ArgumentError,
    EncodingError,
    PretokenCounts,
    Tokenizer,
    Vocabulary,
    VocabularyError,
    WordLevelTokenizer,
    train_bpe,
)

TEXT = np.frombuffer(b"hello world", np.uint8)
PLAIN = train_bpe(["hello world"] * 3, vocab_size=260)
SPECIAL = train_bpe(["hello world"] * 3, vocab_size=260, special_tokens=["<a>"])
WORDS = WordLevelTokenizer(["hello", "world"])
WRONG_OFFSETS = [
    ([0, 5000, 11], "offset 1 is 5,000: expected offsets that ascend from 0 to 11"),
    ([3, 11], "offset 0 is 3: expected"),
    ([], "there are 0 offsets: expected one for each document and another one"),
]
WRONG_SPANS = [
    ([[0, 5000], [5000, 11]], "bound 1 is 5,000: expected bounds that ascend from 0 to 11"),
    ([[0, -70], [-70, 11]], "bound 1 is -70: expected"),
    ([[0, 8], [4, 11]], "bound 2 is 4: expected"),
    ([[0, 4]], "bound 1 is 4: expected"),
    ([[0, 2**62], [2**62, 2**63 - 1]], "bound 1 is 4,611,686,018,427,387,904: expected"),
]
ENCODERS: dict[str, Callable[..., Any]] = {
    "uint32": PLAIN.new_encoder().encode,
    "uint16": SPECIAL.new_encoder(np.dtype(np.uint16)).encode,
    "word level": WORDS.new_encoder().encode,
}


@pytest.mark.parametrize(("offsets", "message"), WRONG_OFFSETS)
def test_wrong_offsets(offsets: list[int], message: str) -> None:
    with pytest.raises(EncodingError, match=message):
        PretokenCounts().add(TEXT, np.array(offsets, np.int64))


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize(("spans", "message"), WRONG_SPANS)
def test_wrong_spans(name: str, spans: list[list[int]], message: str) -> None:
    with pytest.raises(EncodingError, match=message):
        ENCODERS[name](TEXT, np.array(spans, np.int64))


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize(
    ("buffer", "spans", "message"),
    [
        (b"hello world", np.array([[0, 11]]), r"buffer is bytes: expected uint8\[n\], cont"),
        (TEXT.astype(np.uint16), np.array([[0, 11]]), r"buffer is uint16\[11\], strides \[2\]"),
        (TEXT[::2], np.array([[0, 6]]), r"buffer is uint8\[6\], strides \[2\]: expected"),
        (TEXT.reshape(1, 11), np.array([[0, 11]]), r"buffer is uint8\[1, 11\], strides"),
        (TEXT, [[0, 11]], r"spans is list: expected int64\[n, 2\]"),
        (TEXT, np.array([[0, 11]], np.int32), r"spans is int32\[1, 2\]"),
        (TEXT, np.array([[0.0, 11.0]]), r"spans is float64\[1, 2\]"),
    ],
)
def test_wrong_arrays(name: str, buffer: Any, spans: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}|should be an array of integers; got"):
        ENCODERS[name](buffer, spans)


@pytest.mark.parametrize("name", ENCODERS)
def test_wrong_arguments_around_documents(name: str) -> None:
    spans = np.array([[0, 11]], np.int64)
    for argument, wrong, expected in [
        *((x, y, "a whole number") for x in ("prefix_id", "suffix_id") for y in ("5", None, 2.5)),
        *((f"{x}_mid_document", None, "True or False") for x in ("starts", "ends")),
        *[("memory", 3, "a function")] * (name != "word level"),  # which does not use it
    ]:
        with pytest.raises(ArgumentError, match=f"^{argument}: should be {expected}.*; got "):
            ENCODERS[name](TEXT, spans, **{argument: wrong})
    for argument in ("prefix_id", "suffix_id"):
        for number in (-(2**70), -(2**63) - 1, -2, 2**32, 2**63, 2**64):
            with pytest.raises(EncodingError, match=f"^{argument} is {number:,}: expected an id"):
                ENCODERS[name](TEXT, spans, **{argument: number})
    ids, _ = ENCODERS[name](TEXT, spans, prefix_id=np.int64(3), suffix_id=4)
    assert (ids[0], ids[-1]) == (3, 4)


def test_bytes_between_spans_have_no_ids() -> None:
    encode = PLAIN.new_encoder().encode
    with pytest.raises(EncodingError, match=r"spans is int64\[3\], .*expected int64\[n, 2\], cont"):
        encode(TEXT, np.array([0, 5, 11]))
    ids, offsets = encode(TEXT, np.array([[0, 5], [6, 11]]))
    assert ids.tolist() == [*PLAIN.encode("hello"), *PLAIN.encode("world")]
    assert len(offsets) == 3
    ids, offsets = encode(TEXT[:0], np.empty((0, 2), np.int64))
    assert (ids.tolist(), offsets.tolist()) == ([], [0])


def test_memory_for_ids_that_is_too_small() -> None:
    small = np.empty(64, np.uint8)
    with pytest.raises(EncodingError, match="memory has room for 16 ids: expected 29, 4 bytes eac"):
        PLAIN.new_encoder().encode(TEXT, np.array([[0, 11]]), memory=lambda n: small)


@pytest.mark.parametrize("tokenizer", [PLAIN, SPECIAL], ids=["plain", "special"])
def test_safe_cut(tokenizer: Tokenizer) -> None:
    assert tokenizer.safe_cut(TEXT, 1, 11) == 5
    assert tokenizer.safe_cut(TEXT, -5, 11) == 5
    assert tokenizer.safe_cut(TEXT, np.uint64(1), np.int8(11)) == 5  # type: ignore[arg-type]
    assert tokenizer.safe_cut(TEXT, -(2**70), 11) == 5
    with pytest.raises(EncodingError, match=r"buffer is uint8\[6\], strides \[2\]"):
        tokenizer.safe_cut(TEXT[::2], 0, 6)


@pytest.mark.parametrize("tokenizer", [PLAIN, SPECIAL, WORDS], ids=["plain", "special", "words"])
def test_safe_cuts_outside_of_the_text(tokenizer: Any) -> None:
    for place in (12, 9000, 2**63, 2**70):
        message = f"is {place:,}: expected 0 to 11, the length of the text"
        with pytest.raises(EncodingError, match=f"position {message}"):
            tokenizer.safe_cut(TEXT, place, 11)
        with pytest.raises(EncodingError, match=f"stop {message}"):
            tokenizer.safe_cut(TEXT, 6, place)
    for place in (-1, -2, -(2**63) - 1):
        with pytest.raises(EncodingError, match=f"stop is {place:,}: expected 0 to 11"):
            tokenizer.safe_cut(TEXT, 0, place)


def test_data_that_is_not_contiguous() -> None:
    closed = memoryview(b"a text")
    closed.release()
    for data in (TEXT[::2], TEXT[::-1], memoryview(b"a text")[::2], closed):
        with pytest.raises(ArgumentError, match="data: should be bytes in memory, contiguous; got"):
            PLAIN.encode_separated_to_numpy(data)


def test_cuts_where_there_can_be_none() -> None:
    encode = ENCODERS["word level"]
    with pytest.raises(EncodingError, match="encodes whole documents only: expected no cut one"):
        encode(TEXT, np.array([[0, 11]]), ends_mid_document=True)


@pytest.mark.parametrize("merge", [[-1, 97], [97, 256], [300, 97]])
def test_ids_of_merges(merge: list[int]) -> None:
    with pytest.raises(VocabularyError, match="a merge joins an id that no merge before it makes"):
        Vocabulary.from_merges(np.array([merge], np.int32))


def test_merges_of_ids_without_tokens() -> None:
    tokens = PLAIN.vocabulary.tokens
    message = "a merge joins the id -1, which has no token: expected ids of tokens"
    with pytest.raises(VocabularyError, match=message):
        Vocabulary(tokens, np.array([[-1, 97]], np.int32), {})
    with pytest.raises(VocabularyError, match="is not in the vocabulary"):
        Vocabulary(tokens, np.array([[97, 1 + max(tokens)]], np.int32) - [[0, 1]], {})
