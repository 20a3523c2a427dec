"""What `inspect` says of token files: counted by hand here, or in the plainest way."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import write

from preprocess import build, open_tokens
from preprocess.check import inspect
from preprocess.check.inspect import facts, format_lines
from preprocess.cli import run
from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.reader import TokenFile

END = "<|endoftext|>"
TRAIN = ["low low lower", "low low lower", "a \ufffd", "it spells <|pad|>", "", "x" * 200]
VAL = ["low low lower", "only here", "a \ufffd"]
A_FEW_AT_A_TIME = (2, 1 << 20)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("quality")
    (root / "train.txt").write_text(END.join(TRAIN))
    (root / "val.txt").write_text(END.join(VAL))
    build(
        train=root / "train.txt",
        val=root / "val.txt",
        out=root / "data",
        vocab_size=265,
        special_tokens=["<|pad|>"],
    )
    return root / "data"


def written(directory: Path, documents: list[list[int]], vocab_size: int, begin: Any = None) -> Any:
    """A token file of documents, whose ends are in them already."""
    ids, ends = [i for each in documents for i in each], np.cumsum([*map(len, documents)])
    fields = {"end_of_text_id": vocab_size - 1, "begin_of_text_id": begin}
    return write(directory, ids, ends, vocab_size=vocab_size, fields=fields)


def test_a_directory_is_judged(data: Path) -> None:
    text = "\n".join(format_lines(facts(data)))
    assert "val in train:\n  documents: 3\n  of them in train, too: 2" in text
    assert "  empty documents: 0\n" in text
    assert "  copies of other documents: 1\n" in text
    assert "document 0, begins 'low low lower<|endoftext|>', document 2, begins" in text
    assert "document 4, begins 'xxx" in text
    assert "  tokens per document: mean " in text


def test_json_says_the_same(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(data), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tokenizer"]["vocab_size"] == 265
    train, val = found["token_files"]
    assert (train["documents"], train["copies"], val["documents"], val["copies"]) == (5, 1, 3, 0)
    assert train["bytes"] == sum(len(text.encode()) for text in TRAIN)
    assert train["bytes_per_token"] == train["bytes"] / train["tokens"]
    assert [sample["document"] for sample in train["samples"]] == [0, 2, 4]
    assert found["val_in_train"] == [
        {"val": "val", "train": "train", "documents": 3, "in_train": 2}
    ]
    assert found["unfinished"] == []
    assert run(["inspect", str(data / "train.bin"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == train


@pytest.mark.parametrize("at_a_time", A_FEW_AT_A_TIME)
@settings(max_examples=30, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=12),
    others=st.lists(st.lists(st.integers(0, 2), max_size=2), max_size=6),
)
def test_copies_and_lengths(
    documents: list[list[int]],
    others: list[list[int]],
    at_a_time: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    root = tmp_path_factory.mktemp("copies")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect, "_TOKENS_AT_A_TIME", at_a_time)
        train = written(root / "a", [[*document, 3] for document in documents], 4)
        val = written(root / "b", [[*document, 3] for document in others], 4)
        found, hashes = inspect._describe_token_file(train)
        assert found["copies"] == len(documents) - len(set(map(tuple, documents)))
        files = {"train": (train, hashes), "val": (val, inspect._describe_token_file(val)[1])}
        (shared,) = inspect._compare_val_with_train(files)
        assert shared["in_train"] == sum(document in documents for document in others)
        assert found["empty_documents"] == documents.count([])
        if documents:
            lengths = [len(document) + 1 for document in documents]
            spread = found["tokens_per_document"]
            assert spread["mean"] == np.mean(lengths)
            assert list(spread["percentiles"].values()) == [
                np.percentile(lengths, int(share), method="nearest")
                for share in spread["percentiles"]
            ]


def test_no_documents(tmp_path: Path) -> None:
    file = written(tmp_path, [], 4)
    found = facts(file.path)
    assert (found["tokens"], found["empty_documents"], found["tokens_per_document"]) == (0, 0, None)
    assert found["copies"] == 0
    file = written(tmp_path / "special", [[8, 9], [8, 1, 9], [8, 9]], 10, begin=8)
    found = facts(file.path)
    assert found["empty_documents"] == 2
    assert found["tokens_per_document"]["percentiles"]["100"] == 3


def test_files_of_different_tokenizers_are_not_compared(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data")
    (tmp_path / "text").write_text("another text " * 50)
    other = tmp_path / "other"
    build(train=tmp_path / "text", val=tmp_path / "text", out=other, vocab_size=260)
    for suffix in ("bin", "docs", "json"):
        shutil.copy(other / f"val.{suffix}", tmp_path / "data" / f"val.{suffix}")
    text = "\n".join(format_lines(facts(tmp_path / "data")))
    assert "not compared: they were built with different tokenizers or special tokens" in text
    assert "no samples, for lack of its tokenizer" in text


def damaged(data: Path, to: Path, name: str, place: int, value: int, dtype: str) -> TokenFile:
    shutil.copytree(data, to)
    array = np.fromfile(to / name, dtype)
    array[place] = value
    array.tofile(to / name)
    return open_tokens(to / "train.bin")


def test_an_id_that_is_not_in_the_vocabulary(data: Path, tmp_path: Path) -> None:
    file = damaged(data, tmp_path / "data", "train.bin", 9, 999, "<u2")
    message = (
        f"{file.path}: token 9 should be an id of 0 to 264 and is 999; the file is damaged:"
        f" 'tokenmill verify {file.path}' reports where"
    )
    with pytest.raises(TokenFileError, match=re.escape(message)):
        facts(file.path)
    (bad,) = (line for line in format_lines(facts(tmp_path / "data")) if "BAD: " in line)
    assert message in bad


@pytest.mark.parametrize("value", [0, 10**6, 2**64 - 1])
def test_an_end_that_cannot_be_one(data: Path, tmp_path: Path, value: int) -> None:
    file = damaged(data, tmp_path / "data", "train.docs", 1, value, "<u8")
    first = int(file.document_ends[0])
    message = (
        f"{file.path}: document 1 should end after {first} and at {len(file)} at most, and"
        f" ends at {value:,}; the file is damaged: 'tokenmill verify"
    )
    with pytest.raises(TokenFileError, match=re.escape(message)):
        facts(file.path)
    ends = np.fromfile(data / "train.docs", "<u8")
    file = damaged(data, tmp_path / "early", "train.docs", 4, int(ends[3]) + 1, "<u8")
    message = f"the last document should end at {len(file)}, the number of tokens, and ends at"
    with pytest.raises(TokenFileError, match=message):
        facts(file.path)


@pytest.mark.parametrize("split", [False, True])
def test_shards_are_judged_as_one_file(
    data: Path, split: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "train.txt").write_text(END.join(TRAIN))
    build(
        train=tmp_path / "train.txt",
        val_fraction=0,
        out=tmp_path / "data",
        tokenizer=data / "tokenizer.json",
        shard_tokens=16,
        split_documents=split,
    )
    monkeypatch.setattr(inspect, "_TOKENS_AT_A_TIME", 5)
    found, whole = facts(tmp_path / "data" / "train.json"), facts(data / "train.bin")
    assert found["shards"] > 2
    assert {**found, "path": whole["path"], "shards": 0} == whole
    if not split:
        # An end may not stand behind the shard that it is in, nor where the one before it does.
        ends = np.fromfile(tmp_path / "data" / "train_00001.docs", "<u8")
        (ends + np.uint64(1)).tofile(tmp_path / "data" / "train_00001.docs")
        with pytest.raises(TokenFileError, match=r"should end after .* and at .* at most"):
            facts(tmp_path / "data" / "train.json")
