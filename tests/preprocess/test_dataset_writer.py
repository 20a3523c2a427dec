"""DatasetWriter: documents that a program writes one by one become the dataset of `encode`."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torture
from hypothesis import given, settings
from hypothesis import strategies as st

from bpe import Tokenizer, train_bpe
from preprocess import (
    CorpusError,
    DatasetWriter,
    OutputError,
    SettingsError,
    TokenFileError,
    encode,
    open_tokens,
    verify,
)
from preprocess.imports import documents as module
from preprocess.run import journal

SEPARATOR = "<|endoftext|>"
TEXTS = [f"document {i} of many: " + "low lower newest " * (i % 7) for i in range(60)]


@functools.cache
def tokenizer() -> Tokenizer:
    return train_bpe(TEXTS, 290, special_tokens=[SEPARATOR, "<|begin|>"])


def written(out: Path, texts: Iterable[str], **options: Any) -> dict[str, bytes]:
    """Write texts; return the files, without the statistics."""
    with DatasetWriter(out / "train.bin", tokenizer=tokenizer(), **options) as writer:
        for text in islice(texts, writer.n_documents, None):
            writer.write(text)
    return torture.contents(out)


@given(
    texts=st.lists(st.text(max_size=40), min_size=1, max_size=30).filter(any),
    batch=st.sampled_from([1, 30, 1 << 20]), shard_tokens=st.sampled_from([None, 30]),
    begin=st.sampled_from([None, "<|begin|>"]), workers=st.sampled_from([1, 2]),
)
@settings(max_examples=20)
def test_the_dataset_is_that_of_encode(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], batch: int,
    shard_tokens: int | None, begin: str | None, workers: int,
) -> None:
    out, of_encode = tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("encode")
    texts = [text.replace(SEPARATOR, "") for text in texts]
    options = {"shard_tokens": shard_tokens, "begin_of_text": begin, "workers": workers}
    (of_encode / "text.txt").write_bytes(SEPARATOR.join([*texts, "x"]).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BATCH_BYTES", batch)
        written(out, [*texts, "x"], **options)
    encode(of_encode / "text.txt", tokenizer=tokenizer(), out=of_encode / "train.bin", **options)
    found, expected = (open_tokens(x / "train.bin") for x in (out, of_encode))
    assert found.tokens[:].tolist() == expected.tokens[:].tolist()
    assert found.document_ends[:].tolist() == expected.document_ends[:].tolist()
    assert found.manifest.n_bytes == expected.manifest.n_bytes
    tokenizer().save(out / "tokenizer.json")
    assert all(each.sound for each in verify(out))


def test_ids_and_masks(tmp_path: Path) -> None:
    end, begin = (tokenizer().special_tokens[x] for x in (SEPARATOR, "<|begin|>"))
    path = tmp_path / "train.bin"
    with DatasetWriter(
        path, tokenizer=tokenizer(), begin_of_text="<|begin|>", loss_mask=True
    ) as writer:
        writer.write_ids([65, 66, 67], [0, 1, 1])
        writer.write("ab")
        writer.write_ids([])
        writer.write_ids(np.array([begin, 65, end]), mask=[1, 0, 0])
        writer.write_ids([68])
        for of_no_text in ([end], [begin], [begin, end]):
            writer.write_ids(of_no_text, [1] * len(of_no_text))
    file, ab = open_tokens(path), tokenizer().encode("ab")
    expected = [begin, 65, 66, 67, end, begin, *ab, end, begin, 65, end, begin, 68, end]
    assert file.tokens.tolist() == expected
    ones = [1] * (len(ab) + 2)
    assert file.column("mask").tolist() == [0, 0, 1, 1, 1, *ones, 1, 0, 0, 1, 1, 1]
    assert file.n_documents == 4
    assert file.manifest.n_bytes == 3 + 2 + 1 + 1
    assert DatasetWriter(
        path, tokenizer=tokenizer(), begin_of_text="<|begin|>", loss_mask=True
    ).n_documents == 8


def test_arrays_are_used_again(tmp_path: Path) -> None:
    ids, mask = np.zeros(2, np.int64), np.zeros(2, np.int64)
    with DatasetWriter(tmp_path / "x.bin", tokenizer=tokenizer(), loss_mask=True) as writer:
        for number in (1, 2):
            ids[:], mask[:] = number, number - 1
            writer.write_ids(ids, mask)
    file = open_tokens(tmp_path / "x.bin")
    assert [file.doc(number)[:2].tolist() for number in (0, 1)] == [[1, 1], [2, 2]]
    assert file.column("mask").tolist() == [0, 0, 0, 1, 1, 1]


def test_wrong_documents_leave_the_writer_usable(tmp_path: Path) -> None:
    end = tokenizer().special_tokens[SEPARATOR]
    with DatasetWriter(tmp_path / "train.bin", tokenizer=tokenizer()) as writer:
        writer.write("a")
        with pytest.raises(CorpusError, match="document 1: not valid Unicode \\(a lone surrogate"):
            writer.write("a\ud800")
        with pytest.raises(CorpusError, match="document 1: id 290 at position 1 is not in the voc"):
            writer.write_ids([1, 290])
        with pytest.raises(CorpusError, match=r"has the end-of-text id .* at position 0, before"):
            writer.write_ids([end, 1])
        with pytest.raises(CorpusError, match="expected integers in a list, got int64 of shape"):
            writer.write_ids(np.array([[1]]))
        with pytest.raises(SettingsError, match="mask: the dataset has none; make the writer with"):
            writer.write_ids([1], [1])
        writer.write("b")
    assert open_tokens(tmp_path / "train.bin").n_documents == 2
    with DatasetWriter(tmp_path / "x.bin", tokenizer=tokenizer(), loss_mask=True) as writer:
        for mask in ([1], [2, 1]):
            with pytest.raises(CorpusError, match="a mask has 0 or 1 for each of 2 ids; got"):
                writer.write_ids([1, 2], mask)
        writer.write("b")


def test_a_finished_dataset(tmp_path: Path) -> None:
    before = written(tmp_path, TEXTS)
    with DatasetWriter(tmp_path / "train.bin", tokenizer=tokenizer()) as writer:
        assert writer.n_documents == len(TEXTS)
        with pytest.raises(SettingsError, match="is finished, with 60 documents; write it anew"):
            writer.write("more")
    assert torture.contents(tmp_path) == before
    with pytest.raises(TokenFileError, match="loss_mask was False and is True"):
        DatasetWriter(tmp_path / "train.bin", tokenizer=tokenizer(), loss_mask=True)
    assert written(tmp_path, TEXTS[:3], overwrite=True) != before


def test_a_writer_that_is_not_closed(tmp_path: Path) -> None:
    """As of a cell of a notebook that is run again."""
    writer = DatasetWriter(tmp_path / "train.bin", tokenizer=tokenizer())
    with pytest.raises(OutputError, match="this process is writing in this directory; wait until"):
        DatasetWriter(tmp_path / "train.bin", tokenizer=tokenizer())
    writer.write("a")
    assert torture.in_a_child(writer.close, 1 << 60, None) == 0  # a fork, which changes nothing
    with pytest.raises(OutputError, match="this process is writing in this directory; wait until"):
        DatasetWriter(tmp_path / "train.bin", tokenizer=tokenizer())
    del writer
    with DatasetWriter(tmp_path / "train.bin", tokenizer=tokenizer()) as another:
        another.write("a")


def test_nothing_was_written(tmp_path: Path) -> None:
    with (
        pytest.raises(CorpusError, match="no document with text was written, and a dataset has at"),
        DatasetWriter(tmp_path / "train.bin", tokenizer=tokenizer()) as writer,
    ):
        writer.write("")
    with pytest.raises(SettingsError, match="the writer is closed; make a new one, which goes on"):
        writer.write("a")
    writer.close()
    with pytest.raises(TokenFileError):
        open_tokens(tmp_path / "train.bin")


def test_an_error_of_the_program_loses_nothing(tmp_path: Path) -> None:
    expected = written(tmp_path / "peace", TEXTS)
    def texts() -> Iterator[str]:
        yield from TEXTS[:20]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        written(tmp_path / "out", texts())
    again = DatasetWriter(tmp_path / "out" / "train.bin", tokenizer=tokenizer())
    assert again.n_documents == 20
    for text in TEXTS[20:]:
        again.write(text)
    again.close()
    assert torture.contents(tmp_path / "out") == expected


def test_documents_that_are_written_slowly_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of less than a batch: a second after the last checkpoint there is another."""
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.0)

    def die() -> None:
        writer = DatasetWriter(tmp_path / "train.bin", tokenizer=tokenizer())
        for text in TEXTS[:20]:
            writer.write(text)
        os.kill(os.getpid(), signal.SIGKILL)

    assert torture.in_a_child(die, 1 << 60, None) == -signal.SIGKILL
    with DatasetWriter(tmp_path / "train.bin", tokenizer=tokenizer()) as writer:
        assert writer.n_documents >= 19  # the last may be under way
        writer.write("more")


@pytest.mark.parametrize("shard_tokens", [None, 300])
def test_kills_at_any_change_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_tokens: int | None
) -> None:
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.0)
    monkeypatch.setattr(module, "_BATCH_BYTES", 400)
    texts = [*TEXTS[:20], "", *TEXTS[20:]]
    expected = written(tmp_path / "peace", texts, shard_tokens=shard_tokens)

    def go_on(out: Path, reached: list[int]) -> None:
        path = out / "train.bin"
        with DatasetWriter(path, tokenizer=tokenizer(), shard_tokens=shard_tokens) as writer:
            os.write(reached[0], f"{writer.n_documents}\n".encode())
            for text in texts[writer.n_documents :]:
                writer.write(text)

    resumed = list[int]()
    for at in range(3, 1000, 9):
        out, (read, write) = tmp_path / f"{at}", os.pipe()
        work, later = functools.partial(go_on, out, [write]), at
        if (code := torture.in_a_child(work, at, None)) == 0:
            break
        while code:
            assert code == -signal.SIGKILL
            later += 20  # or it would be killed at the same call for ever
            code = torture.in_a_child(work, later, None)
        os.close(write)
        with open(read) as file:
            reached = [*map(int, file)]
        assert reached == sorted(reached)
        resumed += reached[1:]
        assert torture.contents(out) == expected
    assert len(resumed) > 8
    assert sum(0 < x < len(texts) for x in resumed) > 4
