"""What makes a document: UTF-8, replacement, gathering, the validation split, look-alikes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from bpe.text.utf8 import is_utf8
from preprocess.documents.batch import (
    DocumentBatch,
    SpecialTokenText,
    validation_limit,
    validation_mask,
)

pytestmark = pytest.mark.usefixtures("few_ranges")


def buffer_of(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def batch_of(documents: list[bytes]) -> DocumentBatch:
    ends = np.cumsum([0, *map(len, documents)]).astype(np.int64)
    return DocumentBatch(buffer_of(b"".join(documents)), np.repeat(ends, 2)[1:-1])


def batch_with(separator: bytes, documents: list[bytes]) -> DocumentBatch:
    """Documents with something between them that may seem to go on with them."""
    sizes = [size for d in documents for size in (len(d), len(separator))][:-1]
    bounds = np.cumsum([0, *sizes], dtype=np.int64) if documents else np.zeros(0, np.int64)
    return DocumentBatch(buffer_of(separator.join(documents)), bounds)


# Where 1 % of "document 0" to "document 999" falls.
GOLDEN = [7, 21, 241, 351, 402, 436, 480, 538, 542, 772]

# First and second bytes on both sides of every limit.
EDGES = bytes.fromhex(
    "00 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 f7 f8 ff"
)


def is_decoded(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("behind", [b"", b"\x80", b"\x80\x80", b"a" * 64])
def test_first_and_second_bytes_at_the_edge_of_a_block(behind: bytes) -> None:
    for first, second in itertools.product(EDGES, repeat=2):
        for n_before in (0, 61, 62, 63, 64, 125):
            data = b"a" * n_before + bytes([first, second]) + behind
            assert is_utf8(buffer_of(data)) == is_decoded(data), data


@given(
    text=st.text(max_size=200),
    n_before=st.integers(0, 70),
    changes=st.lists(st.tuples(st.integers(0, 800), st.sampled_from(EDGES)), max_size=2),
)
def test_blocks_of_which_a_byte_was_changed(
    text: str, n_before: int, changes: list[tuple[int, int]]
) -> None:
    data = bytearray(b"a" * n_before + text.encode())
    for place, byte in changes:
        if data:
            data[place % len(data)] = byte
    assert is_utf8(buffer_of(bytes(data))) == is_decoded(bytes(data))


def test_the_split_is_stable_for_ever() -> None:
    # Golden: a corpus that was split by an earlier version must be split the same by every later
    # one.
    documents = [f"document {i}".encode() for i in range(1000)]
    batch = batch_of(documents)
    chosen = np.flatnonzero(validation_mask(batch.buffer, batch.bounds, 0.01)).tolist()
    assert chosen == GOLDEN
    assert 400 < validation_mask(batch.buffer, batch.bounds, 0.5).sum() < 600
    assert xxhash.xxh3_64_intdigest(documents[GOLDEN[0]]) < validation_limit(0.01)


@given(
    documents=st.lists(st.text("ab<|>", min_size=1, max_size=12).map(str.encode), max_size=8),
    tokens=st.lists(st.sampled_from(["<|a|>", "<|a", "aa", "b<", "|><|", "aba"]), unique=True),
)
@example(documents=[b"<|", b"a|>"], tokens=["<|a|>"])
@example(documents=[b"b a", b"aa"], tokens=["aa"])
def test_look_alikes_are_counted_inside_documents(
    documents: list[bytes], tokens: list[str]
) -> None:
    look_alikes = SpecialTokenText(tokens)
    assert look_alikes.tokens == tuple(tokens)
    expected = [sum(d.count(token.encode()) for d in documents) for token in tokens]
    assert look_alikes.count(batch_of(documents)).tolist() == expected
    assert look_alikes.count(batch_with(b"<|a", documents)).tolist() == expected
    # A separator is never inside a document.
    assert SpecialTokenText([*tokens, "<|x|>"], b"<|x|>").tokens == tuple(tokens)
