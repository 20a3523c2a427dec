"""What `inspect` says of token files: counted by hand here, on documents made for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from preprocess import build, open_tokens, quality
from preprocess.inspect import description

END = "<|endoftext|>"
TRAIN = ["low low lower", "low low lower", "a \ufffd", "it spells <|pad|>", "", "x" * 200]
VAL = ["low low lower", "only here", "a \ufffd"]


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


def test_a_directory_is_judged(data: Path) -> None:
    lines = description(data)
    text = "\n".join(lines)
    assert "val in train: 2 of 3 validation documents are in train as well" in text
    assert "duplicates: 1 documents are copies of others (20.0 %)" in text
    assert "text that spells special tokens: '<|pad|>' 1 times" in text
    assert "empty documents that were dropped: 1" in text
    assert "document 0 begins: 'low low lower<|endoftext|>'" in text
    assert "document 4 begins: 'xxx" in text
    assert "tokens per document, by share of documents: 0 % " in text


def test_counts_are_exact(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "_TOKENS_AT_A_TIME", 7)
    file = open_tokens(data / "train.bin")
    counts = quality.occurrences(file)
    assert counts.tolist() == np.bincount(file.tokens, minlength=265).tolist()
    hashes = quality.document_hashes(file)
    assert hashes is not None
    assert hashes[0] == hashes[1]
    assert len(set(hashes.tolist())) == 4


def test_the_vocabulary_is_judged(data: Path) -> None:
    from bpe import Tokenizer

    tokenizer = Tokenizer.from_file(data / "tokenizer.json")
    counts = np.zeros(265, np.int64)
    counts[[ord("a"), ord("b"), 256, 263]] = [1, 3, 6, 100]
    frequent, rarest, single = quality.vocabulary_lines(counts, tokenizer)
    spelled = tokenizer.vocab[256].decode()
    assert frequent == f"  most frequent: {spelled!r} 6, 'b' 3, 'a' 1"
    assert rarest.startswith("  rarest: 'a' 1, 'b' 3, ")
    assert rarest.endswith("260 ordinary tokens do not occur")
    assert single == "  single bytes: 3.64 % of all tokens"


def test_lengths() -> None:
    line = quality.length_line(np.arange(1, 102))
    assert line.endswith(": 0 % 1, 1 % 2, 10 % 11, 50 % 51, 90 % 91, 99 % 100, 100 % 101")


def test_too_many_documents_are_said_not_to_be_looked_at(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality, "_MOST_DOCUMENTS", 2)
    text = "\n".join(description(data))
    assert "duplicates: not looked for, for there are more than 2 documents" in text
    assert "val in train: not looked for" in text
