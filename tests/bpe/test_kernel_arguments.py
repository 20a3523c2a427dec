"""What compiled kernels rely on is checked where it is handed in: offsets, types, sizes, ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bpe import (
    EncodingError,
    PretokenCounts,
    Tokenizer,
    Vocabulary,
    VocabularyError,
    WordLevelTokenizer,
    train_bpe,
)
from bpe.vocabulary import PairTable

TEXT = np.frombuffer(b"hello world", np.uint8)
PLAIN = train_bpe(["hello world"] * 3, vocab_size=260)
SPECIAL = train_bpe(["hello world"] * 3, vocab_size=260, special_tokens=["<a>"])
WRONG = [
    ([0, 5000, 11], "offset 1 is 5,000: expected offsets that ascend from 0 to 11"),
    ([0, 11, 90000], "offset 2 is 90,000: expected"),
    ([0, -70, 11], "offset 1 is -70: expected"),
    ([0, 8, 4, 11], "offset 2 is 4: expected"),
    ([3, 11], "offset 0 is 3: expected"),
    ([0, 4], "offset 1 is 4: expected"),
    ([0, 2**62, 2**63 - 1], "offset 1 is 4,611,686,018,427,387,904: expected"),
    ([-1], "offset 0 is -1: expected"),
    ([], "there are 0 offsets: expected one for each document and another one"),
]
ENCODERS: dict[str, Callable[..., Any]] = {
    "uint32": PLAIN.new_encoder().encode,
    "uint16": SPECIAL.new_encoder(np.dtype(np.uint16)).encode,
    "word level": WordLevelTokenizer(["hello", "world"]).new_encoder().encode,
    "counts": PretokenCounts().add,
}


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize(("offsets", "message"), WRONG)
def test_wrong_offsets(name: str, offsets: list[int], message: str) -> None:
    with pytest.raises(EncodingError, match=message):
        ENCODERS[name](TEXT, np.array(offsets, np.int64))


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize(
    ("buffer", "offsets", "message"),
    [
        (b"hello world", np.array([0, 11]), r"buffer is bytes: expected uint8\[n\], contiguous"),
        (TEXT.astype(np.uint16), np.array([0, 11]), r"buffer is uint16\[11\], strides \[2\]: exp"),
        (TEXT[::2], np.array([0, 6]), r"buffer is uint8\[6\], strides \[2\]: expected"),
        (TEXT.reshape(1, 11), np.array([0, 11]), r"buffer is uint8\[1, 11\], strides"),
        (TEXT, [0, 11], r"offsets is list: expected int64\[n\]"),
        (TEXT, np.array([0, 11], np.int32), r"offsets is int32\[2\]"),
        (TEXT, np.array([0.0, 11.0]), r"offsets is float64\[2\]"),
    ],
)
def test_wrong_arrays(name: str, buffer: Any, offsets: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}|should be an array of integers; got"):
        ENCODERS[name](buffer, offsets)


def test_gaps_are_pairs_of_offsets() -> None:
    encode = PLAIN.new_encoder().encode
    with pytest.raises(EncodingError, match=r"there are 3 offsets: expected .* with gaps two for"):
        encode(TEXT, np.array([0, 5, 11]), gaps=True)
    ids, offsets = encode(TEXT, np.array([0, 5, 6, 11]), gaps=True)
    assert ids.tolist() == [*PLAIN.encode("hello"), *PLAIN.encode("world")]
    assert len(offsets) == 3
    ids, offsets = encode(TEXT[:0], np.array([], np.int64), gaps=True)
    assert (ids.tolist(), offsets.tolist()) == ([], [0])


def test_memory_for_ids_that_is_too_small() -> None:
    small = np.empty(64, np.uint8)
    with pytest.raises(EncodingError, match="memory has room for 16 ids: expected 29, 4 bytes eac"):
        PLAIN.new_encoder().encode(TEXT, np.array([0, 11]), memory=lambda n: small)


@pytest.mark.parametrize("tokenizer", [PLAIN, SPECIAL], ids=["plain", "special"])
def test_safe_cut(tokenizer: Tokenizer) -> None:
    assert tokenizer.safe_cut(TEXT, 1, 11) == 5
    assert tokenizer.safe_cut(TEXT, -5, 11) == 5
    with pytest.raises(EncodingError, match="stop is 9,000: expected at most 11, the text"):
        tokenizer.safe_cut(TEXT, 6, 9000)
    with pytest.raises(EncodingError, match=r"buffer is uint8\[6\], strides \[2\]"):
        tokenizer.safe_cut(TEXT[::2], 0, 6)


def test_cuts_where_there_can_be_none() -> None:
    encode = ENCODERS["word level"]
    with pytest.raises(EncodingError, match="encodes whole documents only: expected no cut one"):
        encode(TEXT, np.array([0, 11]), ends_mid_document=True)


@pytest.mark.parametrize("merge", [[-1, 97], [97, 256], [300, 97]])
def test_ids_of_merges(merge: list[int]) -> None:
    with pytest.raises(VocabularyError, match="a merge joins an id that no merge before it makes"):
        Vocabulary.from_merge_ids(np.array([merge], np.int32))


@pytest.mark.parametrize("column", range(4))
@pytest.mark.parametrize("value", [-1, 2**31 - 1])
def test_pairs_of_a_restored_vocabulary(column: int, value: int) -> None:
    sound = PLAIN.vocabulary
    columns = [each.copy() for each in sound.pair_table()]
    columns[column][0] = value
    pairs = PairTable(*columns)
    damaged = Vocabulary.restore(sound.flat, pairs, (), ignore_merges=False, normal_forms=())
    tokenizer = Tokenizer.from_vocabulary(damaged)
    with pytest.raises(VocabularyError, match=r"a merge has an id without a token|there are 2,147"):
        tokenizer.encode("hello")
