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
from preprocess.check.compare import compare, format_lines
from preprocess.check.inspect import describe_tokenizer as describe
from preprocess.check.inspect import format_lines as inspected

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
    assert (found["same_vocabulary"], found["same_ids"]) == (False, None)
    assert found["same_tokens"] == 257
    assert (first["only_here"], second["only_here"]) == (600, 0)
    assert found["text"]["everything"]
    assert "tokens for one of the first" in format_lines(found)[-1]


@pytest.mark.parametrize("unit_size", [50, 1 << 20])
def test_documents_with_the_same_ids(tmp_path: Path, unit_size: int) -> None:
    path, other = tmp_path / "gpt2.json", tmp_path / "qwen2.json"
    vocabulary = Vocabulary.from_merges([(b"1", b"2")], ["<|endoftext|>"])
    Tokenizer.from_vocabulary(vocabulary).save(path)
    Tokenizer.from_vocabulary(vocabulary, pattern="qwen2").save(other)
    documents = ["the same in both", "numbers: 12345", "", "words and words, so many", "x" * 300]
    (tmp_path / "t.txt").write_text("<|endoftext|>".join(documents))
    options = {"paths": [tmp_path / "t.txt"], "unit_size": unit_size}
    found = compare(first=path, second=path, **options)
    assert (found["same_vocabulary"], found["same_ids"]) == (True, 1)
    found = compare(first=path, second=other, **options)
    ours, theirs = Tokenizer.from_file(path), Tokenizer.from_file(other)
    same = [ours.encode_ordinary(d) == theirs.encode_ordinary(d) for d in documents if d]
    assert found["text"]["documents"] == 4
    assert found["same_ids"] == sum(same) / 4
    assert 0 < found["same_ids"] < 1
    assert format_lines(found)[-1] == f"documents with the same ids: {sum(same) / 4:.2%}"


def test_it_stops_after_so_much(directory: Path) -> None:
    path = directory / "a.json"
    options = {"paths": [directory / "text.txt"], "max_bytes": "3000", "unit_size": 1000}
    found = compare(first=path, second=path, **options)
    assert 2900 <= found["text"]["bytes"] < 6000
    assert not found["text"]["everything"]
    assert any("not all of the text" in line for line in format_lines(found))


def test_tokenizers_of_any_kind(directory: Path, tmp_path: Path) -> None:
    words = WordLevelTokenizer(WordLevelTokenizer.create_vocabulary(trained.documents()))
    words.save(tmp_path / "words.json")
    Tokenizer.from_vocabulary(BASE).save_tiktoken(tmp_path / "a.tiktoken")
    text = directory / "text.txt"
    options = {"paths": [text], "pattern": "gpt2", "unit_size": 1000}
    found = compare(first=tmp_path / "words.json", second=tmp_path / "a.tiktoken", **options)
    # No document is cut for the first, and the second has no special tokens.
    documents = text.read_bytes().decode().split("<|endoftext|>")
    ours = Tokenizer.from_vocabulary(BASE)
    expected = [sum(len(t.encode_ordinary(d)) for d in documents) for t in (words, ours)]
    assert [one["tokens"] for one in found["tokenizers"]] == expected
    assert found["text"]["documents"] == len(list(filter(None, documents)))


def test_the_default_is_what_python_ships(directory: Path) -> None:
    path = directory / "a.json"
    found = compare(first=path, second=path, max_bytes=200_000)
    assert found["text"]["documents"] > 10


def test_as_commands(directory: Path) -> None:
    a, b, text = (directory / name for name in ("a.json", "b.json", "text.txt"))
    ran = run("compare", a, b, text, "--quiet")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0].split() == [
        "ids", "only", "here", "tokens", "bytes/token", "tokens/document", "MB/s", "tokenizer",
    ]  # fmt: skip
    ran = run("compare", a, b, text, "--json", "--quiet")
    assert [one["name"] for one in json.loads(ran.stdout)["tokenizers"]] == [str(a), str(b)]
    ran = run("inspect", b)
    assert "  pattern: o200k\n  unicode version: 16.0.0\n" in ran.stdout
    assert json.loads(run("inspect", "--json", b).stdout)["pattern"] == "o200k"


def test_what_cannot_be_found_is_said(directory: Path) -> None:
    ran = run("compare", directory / "a.json", directory / "none.json")
    assert ran.returncode == 1
    assert (
        "none.json: No such file or directory: expected a tokenizer.json, a directory" in ran.stderr
    )
    ran = run("inspect", "--json", directory / "text.txt")
    assert ran.returncode == 1
    assert "a .bin, its manifest, a tokenizer.json or a directory of them is expected" in ran.stderr


def test_facts_of_a_byte_level_tokenizer() -> None:
    tokens = {**BASE.tokens, 900: b"unreached", 901: b"\xf4\x8f", 902: b"\x00\x00"}
    added = [*BASE.added_tokens, AddedToken("    ", 950, special=False)]
    tokenizer = Tokenizer.from_vocabulary(Vocabulary(tokens, BASE.merges, added))
    said = describe(Path("t.json"), tokenizer)
    assert said["kind"] == "byte-level BPE"
    assert said["pattern_text"].startswith("'s|'t")
    assert said["added_tokens_not_special"] == {"    ": 950}
    assert said["ids_without_token"] == 951 - len(tokenizer.vocab)
    assert json.loads(json.dumps(said)) == said
    told = "\n".join(inspected(said))
    assert "  added tokens not special:      950" in told
    assert f"  ids without token: {said['ids_without_token']}" in told


def test_many_special_tokens_are_not_all_listed() -> None:
    special = [f"<|{number}|>" for number in range(23)]
    tokenizer = Tokenizer.from_vocabulary(Vocabulary.from_merges([], special))
    told = "\n".join(inspected(describe(Path("t"), tokenizer)))
    assert "<|0|> 256, <|1|> 257" in told
    assert "<|19|> 275 and 3 more" in told


def test_facts_of_a_word_level_tokenizer(tmp_path: Path) -> None:
    tokenizer = WordLevelTokenizer(["Hello", "world", "zürich"])
    said = describe(tmp_path, tokenizer)
    assert said["kind"] == "word-level"
    assert said["longest"] == ["zürich", "Hello", "world"]
    assert said["ids_without_token"] == 0
    told = inspected(said)
    assert told[:3] == [f"{tmp_path}:", "  kind: word-level", "  vocab size: 8"]


def test_a_name_that_nobody_knows_is_told(tmp_path: Path) -> None:
    from bpe import load_tokenizer

    with pytest.raises(TokenizerFileError, match="No such file or directory: expected a tokenizer"):
        load_tokenizer(tmp_path / "none.json")
    with pytest.raises(TokenizerFileError, match=r"there is no tokenizer\.json in this directory"):
        load_tokenizer(tmp_path)
    with pytest.raises(TokenizerFileError, match="No such file or directory"):
        load_tokenizer("neither a path nor a name")


def test_a_name_is_asked_for_at_tiktoken_and_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    from bpe import huggingface, load_tokenizer

    def nowhere(name: object) -> Path:
        raise TokenizerFileError(f"{name}: the hub gave nothing")

    monkeypatch.setattr(huggingface, "huggingface_hub_file", nowhere)
    with pytest.raises(TokenizerFileError) as refused:
        load_tokenizer("owner/Model2.5-7B")
    assert str(refused.value).startswith(
        "owner/Model2.5-7B: the hub gave nothing; nor is it an enc"
    )
    assert "o200k_base" in str(refused.value)
    made = Tokenizer.from_vocabulary(BASE)
    monkeypatch.setattr(Tokenizer, "from_tiktoken", lambda name: (name, made))
    assert load_tokenizer("cl100k_base") == ("cl100k_base", made)


def test_a_pattern_is_only_for_ranks(directory: Path) -> None:
    ran = run(
        "count", directory / "text.txt", "--tokenizer", directory / "a.json", "--pattern", "o200k"
    )
    assert ran.returncode == 1
    assert "a pattern ('o200k') is only for a .tiktoken file" in ran.stderr


def test_ranks_get_the_special_tokens_that_are_asked_for(directory: Path, tmp_path: Path) -> None:
    Tokenizer.from_vocabulary(BASE).save_tiktoken(tmp_path / "a.tiktoken")
    n = len(BASE.tokens)
    text, ranks, out = directory / "text.txt", tmp_path / "a.tiktoken", tmp_path / "out"
    ran = run("count", text, "--tokenizer", ranks)
    assert ran.returncode == 1
    assert "a file of ranks does not say how text is split" in ran.stderr
    given_options = ["--tokenizer", ranks, "--pattern", "gpt2", "--quiet"]
    ran = run("encode", text, *given_options, "--out", tmp_path / "x.bin", "--begin-of-text", "<s>")
    assert ran.returncode == 0, ran.stderr
    manifest = json.loads((tmp_path / "x.json").read_text())
    assert (manifest["end_of_text_id"], manifest["begin_of_text_id"]) == (n, n + 1)
    ran = run(
        "build",
        "--train",
        text,
        "--val",
        text,
        *given_options,
        "--special-token",
        "<|pad|>",
        "--out",
        out,
    )
    assert ran.returncode == 0, ran.stderr
    assert "not used" not in ran.stderr
    made = Tokenizer.from_file(out / "tokenizer.json")
    assert made.special_tokens == {"<|endoftext|>": n, "<|pad|>": n + 1}
    assert run("verify", out).returncode == 0
    # A second corpus beside the first, by the same ranks.
    ran = run(
        "build",
        "--train",
        text,
        "--val",
        text,
        *given_options,
        "--special-token",
        "<|pad|>",
        "--out",
        out,
        "--name",
        "more",
    )
    assert ran.returncode == 0, ran.stderr
