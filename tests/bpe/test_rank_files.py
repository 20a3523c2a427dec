"""vocab.json with merges.txt, and .tiktoken files: read, or refused by line."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizer_file_cases import MERGES, write

from bpe import Tokenizer
from bpe.byte_level import to_byte_level
from bpe.errors import EncodingError, TokenizerFileError
from bpe.formats import rank_files
from bpe.vocabulary import Vocabulary

# --- vocab.json and merges.txt -------------------------------------------------------------------


def gpt2_files(directory: Path, header: str, ending: str = "\n") -> tuple[Path, Path]:
    vocabulary = Vocabulary.from_merges(MERGES)
    vocab = {to_byte_level(token): i for i, token in vocabulary.tokens.items()}
    lines = [" ".join(map(to_byte_level, pair)) + ending for pair in MERGES]
    merges_path = directory / "merges.txt"
    merges_path.write_bytes((header + "".join(lines)).encode())
    return write(directory / "vocab.json", vocab | {"<|endoftext|>": 260}), merges_path


@pytest.mark.parametrize("header", ["", "#version: 0.2\n", "#version: 0.2 - Trained by x\n"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_merges_are_read_with_and_without_a_header(
    header: str, ending: str, tmp_path: Path
) -> None:
    tokens, merges, others = rank_files.load_gpt2_files(*gpt2_files(tmp_path, header, ending))
    assert merges == MERGES
    assert tokens == Vocabulary.from_merges(MERGES).tokens | {260: b"<|endoftext|>"}
    assert others == {}


def test_peculiarities_of_published_files(tmp_path: Path) -> None:
    vocab_path, merges_path = gpt2_files(tmp_path, "Ġ a\nà ¤\n")
    lacking = {to_byte_level(bytes([byte])) for byte in (0xC0, 0xC1, *range(0xF5, 0x100))}
    vocab = json.loads(vocab_path.read_text(encoding="utf-8")) | {"": 261, "à¤": 262}
    write(vocab_path, {text: i for text, i in vocab.items() if text not in lacking})
    tokenizer = Tokenizer.from_gpt2_files(vocab_path, merges_path)
    # Of the merge that is there twice, the last counts.
    assert tokenizer.merges == [(b"\xe0", b"\xa4"), *MERGES]
    assert tokenizer.encode(" aहé<|endoftext|>") == [257, 262, 185, 259, 260]
    assert (tokenizer.decode([261, 262, 185]), tokenizer.vocab[261]) == ("ह", b"")
    with pytest.raises(EncodingError, match="token id 192 is not in the vocabulary"):
        tokenizer.decode(np.array([192]))


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "t.tiktoken"])
def test_a_pointer_is_told_from_the_file(name: str, tmp_path: Path) -> None:
    files = gpt2_files(tmp_path, "")
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(TokenizerFileError, match=rf"{name}: it is a Git LFS pointer: .* lfs pull"):
        Tokenizer.from_tiktoken(tmp_path / name, pattern="gpt2") if name[0] == "t" else (
            Tokenizer.from_gpt2_files(*files)
        )


def test_a_first_merge_that_looks_like_a_header_is_a_merge(tmp_path: Path) -> None:
    vocab = {"#version": 0, ":": 1, "#version:": 2}
    (tmp_path / "m").write_text("#version :\n", encoding="utf-8")
    _, merges, _ = rank_files.load_gpt2_files(write(tmp_path / "v", vocab), tmp_path / "m")
    assert merges == [(b"#version", b":")]


@pytest.mark.parametrize("line", ["", "a", "a  b", " a", "a b c", "a\tb", "日 本"])
def test_a_line_that_is_no_merge_is_refused_with_its_number(line: str, tmp_path: Path) -> None:
    vocab_path, merges_path = gpt2_files(tmp_path, "#version: 0.2\n")
    lines = merges_path.read_text(encoding="utf-8").split("\n")
    lines.insert(2, line)
    merges_path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(TokenizerFileError, match=r"merges.txt: line 3 is .*: expected two tokens"):
        rank_files.load_gpt2_files(vocab_path, merges_path)


def test_two_tokens_of_one_id_are_refused(tmp_path: Path) -> None:
    _, merges_path = gpt2_files(tmp_path, "")
    with pytest.raises(TokenizerFileError, match=r"'b' has the id 1, which 'a' has already"):
        rank_files.load_gpt2_files(write(tmp_path / "v", {"a": 1, "b": 1}), merges_path)


# --- tiktoken ------------------------------------------------------------------------------------


def test_ranks_are_read(tmp_path: Path) -> None:
    path = tmp_path / "r.tiktoken"
    ranks = {b"a": 0, b"\n": 1, b" a": 7}
    lines = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in ranks.items()]
    path.write_text("\n".join(lines) + "\n")
    assert rank_files.load_tiktoken_ranks(path) == ranks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"it is empty"),
        ("YQ== 0\nYQ==\n", r"line 2 is 'YQ==': expected base64, a space and a number"),
        ("a b c 0\n", r"line 1 is 'a b c 0'"),
        ("Y*== 0\n", r"line 1 is 'Y\*== 0'"),
        ("YQ== 0\nYQ== 1\n", r"line 2 repeats the token b'a'"),
    ],
)
def test_what_is_not_ranks_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.tiktoken"
    path.write_text(text)
    with pytest.raises(TokenizerFileError, match=message):
        rank_files.load_tiktoken_ranks(path)
