"""What makes a document: UTF-8, replacement, gathering, the validation split, look-alikes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st

from bpe.text.spans import close_gaps, find_pieces
from bpe.text.utf8 import is_utf8
from preprocess.documents.batch import (
    DocumentBatch,
    SpecialTokenText,
    replace_invalid,
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

_bytes = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(
        st.sampled_from([b"\xe4\xb8\xad", b"\xe4\xb8", b"\xf0\x9f\x98\x80", b"a", b"\x80", b"\xff"])
    ).map(b"".join),
)


@given(data=_bytes)
@example(data=b"")
@example(data=b"\xed\xa0\x80")
@example(data=b"\xc0\x80")
@example(data=b"\xf4\x90\x80\x80")
def test_valid_utf8_is_what_python_decodes(data: bytes) -> None:
    assert is_utf8(buffer_of(data)) is is_decoded(data)


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


@given(data=_bytes)
def test_replacing_changes_nothing_that_is_valid(data: bytes) -> None:
    replaced, n_replaced = replace_invalid(data)
    assert is_utf8(buffer_of(replaced))
    assert (n_replaced == 0) == is_utf8(buffer_of(data))
    assert (replaced == data) == (n_replaced == 0)


def test_joining_copies_only_where_there_are_gaps() -> None:
    buffer = buffer_of(b"one--two---three")
    same, offsets = close_gaps(buffer, np.array([0, 3, 3, 5]))
    assert np.shares_memory(same, buffer)
    assert offsets.tolist() == [0, 3, 5]
    copied, offsets = close_gaps(buffer, np.array([0, 3, 5, 8, 11, 16]))
    assert copied.tobytes() == b"onetwothree"
    assert offsets.tolist() == [0, 3, 6, 11]
    pairs = np.sort(np.random.default_rng(0).integers(0, 100, 2 * 11))  # more than at a time
    text = np.arange(100, dtype=np.uint8)
    copied, offsets = close_gaps(text, pairs)
    parts = [text[start:end].tobytes() for start, end in pairs.reshape(-1, 2)]
    assert copied.tobytes() == b"".join(parts)
    assert np.diff(offsets).tolist() == list(map(len, parts))
    nothing, offsets = close_gaps(buffer, np.array([], np.int64))
    assert (len(nothing), offsets.tolist()) == (0, [0])


@given(
    data=st.text("ab\n", max_size=30).map(str.encode),
    separator=st.sampled_from([b"aa", b"\n\n", b"ab"]),
)
def test_between_is_split(data: bytes, separator: bytes) -> None:
    starts, ends = find_pieces(buffer_of(data), separator)
    assert [data[a:b] for a, b in zip(starts, ends, strict=True)] == data.split(separator)


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


@pytest.mark.parametrize(
    ("chosen", "documents", "starts_mid_document", "ends_mid_document"),
    [
        ([True, True, True], b"onetwothree", True, True),
        ([True, False, True], b"onethree", True, True),
        ([False, True, False], b"two", False, False),
        ([False, False, False], b"", False, False),
    ],
)
def test_selecting_keeps_what_is_unfinished(
    chosen: list[bool], documents: bytes, starts_mid_document: bool, ends_mid_document: bool
) -> None:
    bounds = np.array([0, 3, 5, 8, 8, 13])
    batch = DocumentBatch(buffer_of(b"one--twothree"), bounds, True, True)
    selected = batch.select(np.array(chosen))
    assert selected.close_gaps()[0].tobytes() == documents
    assert np.shares_memory(selected.buffer, batch.buffer) == any(chosen)
    assert (selected.starts_mid_document, selected.ends_mid_document) == (
        starts_mid_document,
        ends_mid_document,
    )
    assert len(selected) == sum(chosen)
