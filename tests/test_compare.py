"""Two tokenizers on the same text, and what a tokenizer is, as a program and as a command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import trained

from bpe import AddedToken, Tokenizer, Vocabulary, WordLevelTokenizer
from bpe.errors import TokenizerFileError
from preprocess.compare import compare, lines
from preprocess.inspect_tokenizer import facts, unreachable_ids
from preprocess.inspect_tokenizer import lines as inspected

BASE = Vocabulary.from_merges(trained.merges(), ["<|endoftext|>"])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    text = "\n<|endoftext|>".join(trained.documents()) * 3
    (tmp_path / "text.txt").write_bytes(text.encode())
    Tokenizer.from_vocabulary(BASE).save(tmp_path / "a.json")
    bytes_only = Vocabulary.from_merges([], ["<|endoftext|>"])
    Tokenizer.from_vocabulary(bytes_only, pattern="o200k").save(tmp_path / "b.json")
    return tmp_path


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "preprocess", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_both_get_the_same_text(directory: Path) -> None:
    found = compare(
        first=directory / "a.json", second=directory / "b.json", paths=[directory / "text.txt"]
    )
    text = (directory / "text.txt").read_bytes().decode().split("<|endoftext|>")
    first, second = found["tokenizers"]
    ours = Tokenizer.from_file(directory / "a.json")
    assert found["text"]["documents"] == len([document for document in text if document])
    assert first["tokens"] == sum(len(ours.encode_ordinary(document)) for document in text)
    assert second["tokens"] == found["text"]["bytes"] == sum(len(d.encode()) for d in text)
    assert second["bytes_per_token"] == 1
    assert first["megabytes_per_second"] > 0
    assert 0 <= found["same_ids"] < 1
    assert found["same_tokens"] == 257
    assert "tokens for one of the first" in lines(found)[-1]


def test_the_same_tokenizer_gives_the_same_ids(directory: Path) -> None:
    path = directory / "a.json"
    found = compare(first=path, second=path, paths=[directory / "text.txt"], max_bytes=100)
    assert found["same_ids"] == 1


def test_as_commands(directory: Path) -> None:
    a, b, text = (directory / name for name in ("a.json", "b.json", "text.txt"))
    ran = run("compare", a, b, text, "--quiet")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0].split() == [
        "ids", "tokens", "bytes/token", "tokens/document", "MB/s", "tokenizer",
    ]  # fmt: skip
    ran = run("compare", a, b, text, "--json", "--quiet")
    assert [one["name"] for one in json.loads(ran.stdout)["tokenizers"]] == [str(a), str(b)]
    ran = run("inspect", b)
    assert "pattern o200k, Unicode 16.0.0" in ran.stdout
    assert json.loads(run("inspect", "--json", b).stdout)["pattern"] == "o200k"


def test_what_cannot_be_found_is_said(directory: Path) -> None:
    ran = run("compare", directory / "a.json", directory / "none.json")
    assert ran.returncode == 1
    assert (
        "none.json: No such file or directory: expected a tokenizer.json, a directory" in ran.stderr
    )
    ran = run("inspect", "--json", directory / "text.txt")
    assert ran.returncode == 1
    assert "--json is for tokenizers" in ran.stderr


def test_facts_of_a_byte_level_tokenizer() -> None:
    tokens = {**BASE.tokens, 900: b"unreached", 901: b"\xf4\x8f", 902: b"\x00\x00"}
    merges = [*BASE.merges, (b"\x00", b"\x00")]
    added = [*BASE.added_tokens, AddedToken("    ", 950, special=False)]
    tokenizer = Tokenizer.from_vocabulary(Vocabulary(tokens, merges, added))
    said = facts(Path("t.json"), tokenizer)
    assert said["kind"] == "byte-level BPE"
    assert said["unreachable"]["first"] == {"900": "unreached", "901": "\\xf4\\x8f"}
    assert said["strange"]["control characters"] == {"count": 1, "longest": ["\\x00\\x00"]}
    assert said["strange"]["parts of characters"]["count"] >= 1
    assert said["added_tokens_not_special"] == {"    ": 950}
    assert said["ids_without_token"] == 951 - len(tokenizer.vocab)
    assert json.loads(json.dumps(said)) == said
    told = "\n".join(inspected(Path("t.json"), tokenizer))
    assert "tokens that no text gives: 2, as 'unreached'" in told
    assert "added tokens that are not special: 1, as '    '" in told


def test_what_no_text_gives_with_whole_pretokens_first() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b"a b": 257, b"xyz": 258}
    tokenizer = Tokenizer.from_vocabulary(Vocabulary.from_ranks(ranks, {}))
    # "xyz" is a whole pre-token; "a b" is never one.
    assert unreachable_ids(tokenizer) == [257]
    assert tokenizer.encode("xyz a b") == [258, 32, 97, 32, 98]


def test_facts_of_a_word_level_tokenizer(tmp_path: Path) -> None:
    tokenizer = WordLevelTokenizer(["Hello", "world"])
    said = facts(tmp_path, tokenizer)
    assert said["kind"] == "word-level"
    assert said["longest"][-1] in ("Hello", "world", "<|bos|>", "<|eos|>", "<|pad|>", "<|unk|>")
    assert "word-level, 7 tokens" in inspected(tmp_path, tokenizer)[0]


def test_a_name_that_nobody_knows_is_told(tmp_path: Path) -> None:
    from bpe import load_tokenizer

    with pytest.raises(TokenizerFileError, match="No such file or directory: expected a tokenizer"):
        load_tokenizer(tmp_path / "none.json")
    with pytest.raises(TokenizerFileError, match=r"there is no tokenizer\.json in this directory"):
        load_tokenizer(tmp_path)
