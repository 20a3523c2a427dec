"""Text files become the documents that `split` says, wherever they are cut."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import example, given
from hypothesis import strategies as st
from nasty import nasty_text
from source_cases import parts_of, source_of, units_of

from bpe.errors import CorpusError
from bpe.split.pretokenizer import Pretokenizer
from preprocess.documents.batch import ReadOptions
from preprocess.sources import text as text_module
from preprocess.sources.text import Ends, TextSource, TextUnit
from preprocess.sources.text_file import TextFile, open_file

pytestmark = pytest.mark.usefixtures("few_ranges")

SEPARATORS = [b"<|endoftext|>", b"\n\n", b"aa", b"aba", b"\n", b" ", b"\xc3\xa9", b""]


PRETOKENIZER = Pretokenizer("gpt2")


# Small pieces that make separators, halves of separators and runs of them likely.
_pieces = st.sampled_from(
    ["a", "b", "aa", "ab", "\n", "\n\n", " ", "word", " word", "é", "日本語", "'s", "1", ".",
     "<|endoftext|>", "<|endof", "text|>", "a b", "The end.\n"]
)  # fmt: skip


texts = st.one_of(st.lists(_pieces, max_size=60).map("".join), nasty_text(max_pieces=12))


def documents_of(units: Iterable[TextUnit]) -> tuple[list[bytes], dict[str, int]]:
    """Put parts of documents together again; also count what was left out and replaced."""
    documents: list[bytes] = []
    totals = {"empty": 0, "skipped": 0, "replaced": 0, "validation": 0}
    ends_mid_document = False
    for unit in units:
        batch = unit.read()
        parts = parts_of(batch)
        assert all(parts), "no document and no part of one is empty"
        assert not batch.buffer.flags.writeable
        assert batch.bounds[:1].tolist() == [0][: len(parts)]
        assert batch.bounds[-1:].tolist() == [len(batch.buffer)][: len(parts)]
        assert batch.n_bytes == sum(map(len, parts))
        totals["empty"] += batch.n_empty
        totals["skipped"] += batch.n_skipped
        totals["replaced"] += batch.n_replaced
        if batch.in_validation is not None:
            ended = batch.in_validation[:-1] if batch.ends_mid_document else batch.in_validation
            totals["validation"] += int(ended.sum())
        if not len(batch):
            continue
        assert batch.starts_mid_document == ends_mid_document
        if ends_mid_document:
            documents[-1] += parts.pop(0)
        documents += parts
        ends_mid_document = batch.ends_mid_document
    assert not ends_mid_document
    return documents, totals


def expected_documents(data: bytes, separator: bytes) -> tuple[list[bytes], int]:
    pieces = data.split(separator) if separator else [data]
    return [piece for piece in pieces if piece], pieces.count(b"")


def covers(units: Sequence[TextUnit], data: bytes) -> None:
    assert b"".join(unit.content().tobytes() for unit in units) == data
    assert sum(unit.n_bytes for unit in units) == len(data)


@given(
    text=texts, separator=st.sampled_from(SEPARATORS), unit_size=st.integers(1, 200),
    window=st.integers(1, 20) | st.just(1 << 16), stride=st.integers(1, 20) | st.just(1 << 16),
    fraction=st.sampled_from([0.0, 0.5]),
)
@example("aaaaa b aaaa", b"aa", 1, 1 << 16, 1 << 16, 0.0)
@example("one\n\n\ntwo\n\n\n\nthree", b"\n\n", 3, 1 << 16, 1 << 16, 0.0)
@example("", b"\n\n", 1, 1, 1, 0.0)
@example("a<|endoftext|>", b"<|endoftext|>", 1, 9, 9, 0.0)
# A byte behind the window; some, one before it; a separator that two strides share.
@example("日本語abaa", b"\n\n", 9, 2, 1, 0.5)
@example("aab1日本語", b"\n", 3, 2, 4, 0.5)
@example("wordbéé1日é ", b"\n", 9, 2, 4, 0.5)
@example("baa", b"aa", 1, 9, 2, 0.5)
def test_units_of_any_size_give_the_documents_of_split(
    path: Path, text: str, separator: bytes, unit_size: int, window: int, stride: int,
    fraction: float,
) -> None:
    """Whatever is looked at of the file at a time, one window behind the other."""
    data = text.encode()
    choices = {"separator": separator, "unit_size": unit_size, "validation_fraction": fraction}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "_WINDOW_BYTES", window)
        patch.setattr(text_module, "_STRIDE_BYTES", stride)
        source = source_of(path, data, **choices)
        units = list(source.units())
        for unit in units:
            if unit.after is not None:
                before = [bytes(piece) for _, piece in source.content(unit.after)]
                assert b"".join(before) == data[: unit.stop]
                assert next(source.units(unit.after)).start == unit.stop
    covers(units, data)
    documents, totals = documents_of(units)
    assert (documents, totals["empty"]) == expected_documents(data, separator)


@given(text=texts, separator=st.sampled_from(SEPARATORS), unit_size=st.integers(1, 60))
def test_a_cut_changes_no_pre_token(
    path: Path, text: str, separator: bytes, unit_size: int
) -> None:
    units = units_of(path, text.encode(), separator=separator, unit_size=unit_size)
    whole = expected_documents(text.encode(), separator)[0]
    pieces: list[list[bytes]] = []
    for unit in units:
        batch = unit.read()
        for i, part in enumerate(parts_of(batch)):
            split = PRETOKENIZER.split(part)
            if i == 0 and batch.starts_mid_document:
                pieces[-1] += split
            else:
                pieces.append(split)
    assert pieces == [PRETOKENIZER.split(document) for document in whole]


@given(
    text=texts,
    separator=st.sampled_from([b"\n\n", b"aa", b""]),
    unit_size=st.integers(1, 30),
    token=st.sampled_from([b"word word", b"a b", b" ", b"b\n", "日本語 word".encode()]),
)
def test_no_cut_runs_through_a_special_token(
    path: Path, text: str, separator: bytes, unit_size: int, token: bytes
) -> None:
    data = text.encode()
    units = units_of(path, data, separator=separator, unit_size=unit_size, atomic=(token,))
    for unit in units:
        if unit.ends is Ends.INSIDE:
            around = data[max(0, unit.stop - len(token) + 1) : unit.stop + len(token) - 1]
            assert token not in around
    documents, _ = documents_of(units)
    in_parts = sum(part.count(token) for unit in units for part in parts_of(unit.read()))
    assert in_parts == sum(document.count(token) for document in documents)


_damaged = st.lists(
    st.one_of(
        st.sampled_from(
            [b"\xff", b"\xe4\xb8", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80"]
        ),
        _pieces.map(str.encode),
    ),
    max_size=30,
).map(b"".join)


def is_valid(document: bytes) -> bool:
    try:
        document.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(
    data=_damaged, separator=st.sampled_from(SEPARATORS), unit_size=st.integers(1, 60),
    fraction=st.sampled_from([0.0, 0.01, 0.5, 0.99]), policy=st.sampled_from(["replace", "skip"]),
)  # fmt: skip
def test_each_document_alone_decides_about_itself(
    path: Path, data: bytes, separator: bytes, unit_size: int, fraction: float, policy: str
) -> None:
    choices: dict[str, Any] = {"validation_fraction": fraction, "on_invalid_utf8": policy}
    units = units_of(path, data, separator=separator, unit_size=unit_size, **choices)
    covers(units, data)
    documents, totals = documents_of(units)
    whole, empty = expected_documents(data, separator)
    prepared = [document.decode("utf-8", "replace").encode() for document in whole]
    mark = "\ufffd".encode()
    replaced = sum(x.count(mark) for x in prepared) - sum(x.count(mark) for x in whole)
    if policy == "skip":
        prepared, replaced = [document for document in whole if is_valid(document)], 0
    assert documents == prepared
    assert totals["empty"] == empty
    assert totals["skipped"] == len(whole) - len(prepared)
    assert totals["replaced"] == replaced
    below = fraction * 2**64
    assert totals["validation"] == sum(xxhash.xxh3_64_intdigest(d) < below for d in prepared)


def test_planning_reads_little_but_what_is_around_the_cuts(path: Path, monkeypatch: Any) -> None:
    taken: list[tuple[int, int]] = []
    read = TextFile.read

    def noted(self: TextFile, start: int, stop: int, *array: Any) -> Any:
        taken.append((start, stop))
        return read(self, start, stop, *array)

    monkeypatch.setattr(TextFile, "read", noted)
    atomic = tuple(f"<|{number}|>".encode() for number in range(300))
    path.write_bytes(b"some words <|7|> " * 40_000)
    reading = ReadOptions(unit_size=200_000, atomic=atomic)
    units = list(TextSource(open_file(path), "text", reading).units())
    assert len(units) == 4
    assert len(taken) == 3
    for unit, (start, stop) in zip(units, taken, strict=False):
        assert start < unit.stop < stop < start + 140_000
    # Where one place after the other is none to cut at, all is read once.
    for choices in ({}, {"validation_fraction": 0.5}):
        taken.clear()
        units = units_of(path, b"<|a b|>" * 20_000, unit_size=1000, atomic=(b"<|a b|>",), **choices)
        assert [unit.stop for unit in units] == [140_000]
        assert sum(stop - start for start, stop in taken) < 400_000 * (1 + len(choices))


@pytest.mark.parametrize("text", [b"some words " * 40_000, b"some words <|endoftext|>" * 20_000])
def test_text_is_not_copied(path: Path, text: bytes) -> None:
    units = units_of(path, text, unit_size=100_000)
    batch = units[1].read()
    assert not batch.buffer.flags.writeable
    assert batch.content is not None
    assert np.shares_memory(batch.buffer, batch.content)
    # Nor sent to another process, but for the documents.
    assert pickle.loads(pickle.dumps(batch)).content is None


@pytest.mark.parametrize("fraction", [0.0, 0.5])
@pytest.mark.parametrize("unit_size", [1, 20, 1000])
def test_invalid_text_is_an_error_that_names_the_byte_in_the_file(
    path: Path, unit_size: int, fraction: float
) -> None:
    data = b"one two\n\nthree four five six seven \xff eight\n\n\xfe"
    units = units_of(
        path, data, separator=b"\n\n", unit_size=unit_size, validation_fraction=fraction
    )
    with pytest.raises(
        CorpusError, match=r"text\.txt: byte 35: not valid UTF-8 \(0xff: .*on_invalid_utf8"
    ):
        documents_of(units)
