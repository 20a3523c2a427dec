"""The encoder: documents and ids around them, caches that fill up, threads, short texts."""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
from kernel_cases import as_spans, documents, filled_tables, trained, with_small_tables
from numpy.typing import NDArray

from bpe.encode import cache_rows as word_kernels
from bpe.encode import pretoken_cache
from bpe.encode.encoder import Encoder
from bpe.errors import EncodingError
from bpe.vocabulary import Vocabulary


def test_gaps_have_no_ids() -> None:
    encoder = Encoder(filled_tables(Vocabulary.from_merges(trained()), "gpt2"))
    chosen, texts = random.Random(8), documents()
    for _ in range(30):
        # Also nothing between two, and documents of which nothing is left.
        some = chosen.choices([*texts, "", "a"], k=9)
        gaps = [*chosen.choices(["", "<|endoftext|>", " ", "the" * 700, "é"], k=8), ""]
        pieces = [piece for both in zip(some, gaps, strict=True) for piece in both][:-1]
        for around in (
            {},
            {
                "prefix_id": 7,
                "suffix_id": 8,
                "starts_mid_document": True,
                "ends_mid_document": True,
            },
        ):
            expected, places = encoder.encode(*as_spans(some), **around)
            buffer, spans = as_spans(pieces)
            ids, found = encoder.encode(buffer, np.ascontiguousarray(spans[::2]), **around)
            assert ids.tolist() == expected.tolist()
            assert found.tolist() == places.tolist()
    ids, found = encoder.encode(np.zeros(0, np.uint8), np.zeros((0, 2), np.int64))
    assert (ids.tolist(), found.tolist()) == ([], [0])


@pytest.mark.parametrize("starts_mid_document", [False, True])
@pytest.mark.parametrize("ends_mid_document", [False, True])
def test_ids_around_documents(starts_mid_document: bool, ends_mid_document: bool) -> None:
    encoder = Encoder(filled_tables(Vocabulary.from_merges([]), "gpt2"))
    ids, offsets = encoder.encode(
        *as_spans(["a", "", "bc"]),
        prefix_id=1000,
        suffix_id=2000,
        starts_mid_document=starts_mid_document,
        ends_mid_document=ends_mid_document,
    )
    first = [97, 2000] if starts_mid_document else [1000, 97, 2000]
    last = [1000, 98, 99] if ends_mid_document else [1000, 98, 99, 2000]
    assert ids.tolist() == [*first, 1000, 2000, *last]
    assert offsets.tolist() == [0, len(first), len(first) + 2, len(ids)]


def test_ids_of_another_type() -> None:
    tables = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    # Long ones, too: those that are merged in windows, with lists, and recalled.
    batch = as_spans([*documents(), "z" * 9000, "x" * 300, "x" * 300, "e" * 70_000])
    expected, places = Encoder(tables).encode(*batch, suffix_id=2**16 - 1)
    assert expected.dtype == np.uint32
    encoder = Encoder(tables, None, np.dtype(np.uint16))
    for _ in range(2):
        ids, found = encoder.encode(*batch, suffix_id=2**16 - 1)
        assert ids.dtype == np.uint16
        assert ids.tolist() == expected.tolist()
        assert found.tolist() == places.tolist()
    fresh = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    ids, _ = Encoder(fresh, None, np.dtype(np.uint16)).encode(*batch, suffix_id=2**16 - 1)
    assert ids.tolist() == expected.tolist()
    with pytest.raises(EncodingError, match="ids up to 65,536 do not fit into uint16"):
        encoder.encode(*batch, suffix_id=2**16)
    for other in ("uint8", "int64", ">u2", "float32"):
        with pytest.raises(EncodingError, match=f"ids are uint16 or uint32, not {other}: take one"):
            Encoder(tables, None, np.dtype(other))
    plain = Vocabulary.from_merges(trained())
    wide = Vocabulary(plain.tokens, plain.merges, {"<|wide|>": 2**16})
    with pytest.raises(EncodingError, match="ids up to 131,071 do not fit into uint16"):
        Encoder(filled_tables(wide, "gpt2"), None, np.dtype(np.uint16))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_ids_in_memory_that_is_given(dtype: type[np.unsignedinteger[Any]]) -> None:
    tables = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    encoder = Encoder(tables, None, np.dtype(dtype))
    texts = documents()
    expected, places = encoder.encode(*as_spans(texts), prefix_id=1, suffix_id=2)
    given: list[NDArray[np.uint8]] = []

    def memory(n_bytes: int) -> NDArray[np.uint8]:
        # What it holds at first means nothing.
        given.append(np.full(n_bytes, 0xAB, np.uint8))
        return given[-1]

    ids, found = encoder.encode(*as_spans(texts), prefix_id=1, suffix_id=2, memory=memory)
    assert ids.dtype == dtype
    assert ids.tolist() == expected.tolist()
    assert found.tolist() == places.tolist()
    # Another call leaves them alone.
    encoder.encode(*as_spans(texts[::-1]), memory=memory)
    assert ids.tolist() == expected.tolist()
    assert len(given) == 2
    assert np.shares_memory(ids, given[0])
    # No document, no id, with and without.
    for each in (memory, None):
        ids, found = encoder.encode(np.empty(0, np.uint8), np.zeros((0, 2), np.int64), memory=each)
        assert (ids.dtype, len(ids), found.tolist()) == (dtype, 0, [0])


def test_no_documents() -> None:
    encoder = Encoder(filled_tables(Vocabulary.from_merges([]), "gpt2"))
    ids, offsets = encoder.encode(*as_spans([]), prefix_id=1, suffix_id=2)
    assert ids.tolist() == []
    assert offsets.tolist() == [0]


@pytest.mark.parametrize("small", ["ARENA", "LONG_ROWS", "ROWS"])
def test_full_tables_begin_anew(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of each kind more than there is room for: short ones, short ones of many ids, long ones.
    roomy = {"THREAD_CACHE": 8, "ROWS": 2**12, "LONG_ROWS": 2**10, "ARENA": 2**12}
    with_small_tables(monkeypatch, **(roomy | {small: 128}))
    encoder = Encoder(filled_tables(Vocabulary.from_merges([]), "gpt2"))
    words = [chr(97 + i % 26) * (2 + i % 28) for i in range(200)]
    seen = []
    for first in range(0, 400, 10):
        text = " ".join((words * 2)[first : first + 10])
        ids, _ = encoder.encode(*as_spans([text]))
        assert bytes(ids.astype(np.uint8)) == text.encode()
        _, current, _ = encoder._tables.cache.current
        if not any(current is words for words in seen):
            seen.append(current)
        assert len(current.rows) == pretoken_cache._ROWS
    assert len(seen) > 2


def test_tables_grow_and_take_along_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"ROWS": 2**8, "MOST_ROWS": 2**12, "LONG_ROWS": 2**5, "MOST_LONG_ROWS": 2**11}
    with_small_tables(monkeypatch, THREAD_CACHE=8, **sizes)
    encoder = Encoder(filled_tables(Vocabulary.from_merges([(b"x", b"y")]), "gpt2"))
    words = [f" {'xy' * (i % 3)}{chr(97 + i % 23) * n}" for i in range(200) for n in (3, 9, 17)]
    words = sorted(set(words), key=words.index)
    taken = []
    for _ in range(2):
        # A few at a time: all are in the tables before these grow.
        for first in range(0, len(words), 20):
            text = "".join(words[first : first + 20])
            ids, _ = encoder.encode(*as_spans([text]))
            assert ids.tolist() == [
                256 if byte == b"xy" else ord(byte) for byte in re.findall(b"xy|.", text.encode())
            ]
        _, current, _ = encoder._tables.cache.current
        taken.append(
            (
                np.count_nonzero(current.rows[1::4]),
                np.count_nonzero(current.long_rows[1::2]),
                int(current.used[word_kernels.ARENA_USED]),
            )
        )
    assert len(current.rows) >= 2**10
    assert len(current.long_rows) >= 2**7
    # Words were moved along: none is put in anew.
    assert min(taken[0]) >= 60
    assert taken[0] == taken[1]
