"""Two tokenizers on the same text, and what a tokenizer is, as a program and as a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trained

from bpe import AddedToken, Tokenizer, Vocabulary, WordLevelTokenizer
from bpe.errors import TokenizerFileError
from preprocess import cli
from preprocess.check.compare import compare, format_lines
from preprocess.check.inspect import describe_tokenizer as describe
from preprocess.check.inspect import format_lines as inspected

BASE = Vocabulary.from_merges(trained.merges(), ["<|endoftext|>"])


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("compare")
    (made / "text.txt").write_bytes("\n<|endoftext|>".join(trained.documents()).encode())
    Tokenizer.from_vocabulary(BASE).save(made / "a.json")
    bytes_only = Vocabulary.from_merges([], ["<|endoftext|>"])
    Tokenizer.from_vocabulary(bytes_only, pattern="o200k").save(made / "b.json")
    return made


def run(capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """The exit code of a command, what it printed, and its messages."""
    code = cli.run([*map(str, arguments)])
    return (code, *capsys.readouterr())


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
    assert "tokens of the second per token of the first" in format_lines(found)[-1]


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


def test_as_commands(directory: Path, capsys: Any) -> None:
    a, b, text = (directory / name for name in ("a.json", "b.json", "text.txt"))
    code, out, _ = run(capsys, "compare", a, b, text, "--quiet")
    assert code == 0
    assert out.splitlines()[0].split() == [
        "ids", "only", "here", "tokens", "bytes/token", "tokens/document", "MB/s", "tokenizer",
    ]  # fmt: skip
    found = json.loads(run(capsys, "compare", a, b, text, "--json", "--quiet")[1])
    assert [one["name"] for one in found["tokenizers"]] == [str(a), str(b)]
    assert "  pattern: o200k\n  unicode version: 16.0.0\n" in run(capsys, "inspect", b)[1]
    assert json.loads(run(capsys, "inspect", "--json", b)[1])["pattern"] == "o200k"
    for arguments, said in [
        (("compare", a, directory / "none.json"),
         "none.json: No such file or directory: expected a tokenizer.json, a directory"),
        (("inspect", "--json", text),
         "a .bin, its manifest, a tokenizer.json or a directory of them is expected"),
        (("count", text, "--tokenizer", a, "--pattern", "o200k"),
         "a pattern ('o200k') is only for a .tiktoken file"),
    ]:  # fmt: skip
        code, _, errors = run(capsys, *arguments)
        assert code == 1
        assert said in errors


def test_facts_of_a_byte_level_tokenizer() -> None:
    tokens = {**BASE.tokens, 900: b"unreached", 901: b"\xf4\x8f", 902: b"\x00\x00"}
    many = [AddedToken(f"<|{number}|>", 960 + number) for number in range(23)]
    added = [*BASE.added_tokens, AddedToken("    ", 950, special=False), *many]
    tokenizer = Tokenizer.from_vocabulary(Vocabulary(tokens, BASE.merges, added))
    said = describe(Path("t.json"), tokenizer)
    assert said["kind"] == "byte-level BPE"
    assert said["pattern_text"].startswith("'s|'t")
    assert said["added_tokens_not_special"] == {"    ": 950}
    assert said["ids_without_token"] == 983 - len(tokenizer.vocab)
    assert json.loads(json.dumps(said)) == said
    told = "\n".join(inspected(said))
    assert "  added tokens not special:      950" in told
    assert "<|18|> 978 and 4 more" in told
    assert f"  ids without token: {said['ids_without_token']}" in told


def test_facts_of_a_word_level_tokenizer(tmp_path: Path) -> None:
    tokenizer = WordLevelTokenizer(["Hello", "world", "zürich"])
    said = describe(tmp_path, tokenizer)
    assert said["kind"] == "word-level"
    assert said["ids_without_token"] == 0
    told = inspected(said)
    assert told[:3] == [f"{tmp_path}:", "  kind: word-level", "  vocab size: 8"]


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


def test_ranks_get_the_special_tokens_that_are_asked_for(
    directory: Path, tmp_path: Path, capsys: Any
) -> None:
    Tokenizer.from_vocabulary(BASE).save_tiktoken(tmp_path / "a.tiktoken")
    n, text, out = len(BASE.tokens), directory / "text.txt", tmp_path / "out"
    given = ["--tokenizer", tmp_path / "a.tiktoken"]
    code, _, errors = run(capsys, "count", text, *given)
    assert code == 1
    assert "a file of ranks does not say how text is split" in errors
    given += ["--pattern", "gpt2", "--quiet"]
    bin_file = tmp_path / "x.bin"
    assert run(capsys, "encode", text, *given, "--out", bin_file, "--begin-of-text", "<s>")[0] == 0
    manifest = json.loads((tmp_path / "x.json").read_text())
    assert (manifest["end_of_text_id"], manifest["begin_of_text_id"]) == (n, n + 1)
    # Then a second corpus beside the first, by the same ranks.
    given += ["--special-token", "<|pad|>", "--out", out]
    for more in ([], ["--name", "more"]):
        code, _, errors = run(capsys, "build", "--train", text, "--val", text, *given, *more)
        assert code == 0
        assert "not used" not in errors
    made = Tokenizer.from_file(out / "tokenizer.json")
    assert made.special_tokens == {"<|endoftext|>": n, "<|pad|>": n + 1}
    assert run(capsys, "verify", out)[0] == 0
