"""`train --extend`: the command, its outputs, resumption and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bpe import load_tokenizer, reference, train_bpe
from preprocess import cli, pipeline
from preprocess.settings import SettingsError

END = "<|endoftext|>"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    words = ["low", "lower", "lowest", "new", "newer", "newest", "wide", "wider", "widest"]
    first = [" ".join(words[i % 9] for i in range(n, n + 40)) for n in range(30)]
    pairs = [f"{x}-{y}" for x in words for y in words[:4]]
    second = [" ".join(pairs[n : n + 30]) for n in range(9)]
    (tmp_path / "first.txt").write_text(END.join(first))
    (tmp_path / "second.txt").write_text(END.join(second))
    train_bpe(tmp_path / "first.txt", 280, [END], pattern="cl100k").save(tmp_path / "old.json")
    return tmp_path


def run(directory: Path, *options: object) -> int:
    arguments = ["train", directory / "second.txt", "--extend", directory / "old.json", *options]
    return cli.run([*map(str, arguments)])


def test_the_command_extends_as_python_does(directory: Path, capsys: Any) -> None:
    out = directory / "new.json"
    assert run(directory, "--vocab-size", 284, "--out", out, "--special-token", "<x>") == 0
    assert "new.json: 284 tokens" in capsys.readouterr().out
    old, new = load_tokenizer(directory / "old.json"), load_tokenizer(out)
    assert new == train_bpe(directory / "second.txt", 284, ["<x>"], extend=old)
    assert new.special_tokens == {END: 279, "<x>": 283}
    assert run(directory, "--vocab-size", 284, "--out", out, "--special-token", "<x>") == 0
    assert "up to date" in capsys.readouterr().out
    # Another tokenizer is another input.
    train_bpe(directory / "first.txt", 281, [END], pattern="cl100k").save(directory / "old.json")
    assert run(directory, "--vocab-size", 284, "--out", out, "--special-token", "<x>") == 1
    assert "its inputs were different (the tokenizer" in capsys.readouterr().err


def test_a_build_with_it_keeps_the_ids_of_old_text(directory: Path, tmp_path: Path) -> None:
    assert run(directory, "--vocab-size", 300, "--out", directory / "new.json", "--quiet") == 0
    old, new = (load_tokenizer(directory / f"{name}.json") for name in ("old", "new"))
    text = "low newest"
    assert new.encode(text) == old.encode(text)
    assert len(new.encode("wider-lower")) < len(old.encode("wider-lower"))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--vocab-size", "279"], "it counts the 280 ids of the tokenizer to extend"),
        (["--vocab-size", "auto"], "is of one training, and --extend goes on after another"),
        (["--vocab-size", "300", "--pattern", "gpt2"], "is extended splits text by 'cl100k'"),
        (["--vocab-size", "300", "--extend", "nothing.json"], "nothing.json: No such file"),
    ],
)
def test_refusals(directory: Path, options: list[str], expected: str, capsys: Any) -> None:
    assert run(directory, "--out", directory / "new.json", *options) > 0
    assert expected in capsys.readouterr().err
    assert not (directory / "new.json").exists()


def test_a_tokenizer_without_merges_is_refused(directory: Path, capsys: Any) -> None:
    pytest.importorskip("tokenizers", reason="needs the extra hf")
    word_level = (
        '{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},'
        ' "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}}'
    )
    (directory / "old.json").write_text(word_level)
    assert run(directory, "--vocab-size", 300, "--out", directory / "new.json") == 1
    assert "has no merges to be continued" in capsys.readouterr().err


# --- tokens of several words ---


def train(directory: Path, *options: object) -> int:
    return cli.run([*map(str, ["train", directory / "first.txt", *options])])


def test_superwords_are_merges_across_blanks_after_those_of_words(
    directory: Path, capsys: Any
) -> None:
    out, options = directory / "super.json", ("--vocab-size", 300, "--superwords", 25)
    assert train(directory, *options, "--out", out) == 0
    words, found = load_tokenizer(directory / "super_words.json"), load_tokenizer(out)
    text = directory / "first.txt"
    assert words == train_bpe(text, 282, [END])
    assert (found.pattern, found.merges[:25]) == ("superwords", words.merges)
    assert any(b" " in (left + right)[1:] for left, right in found.merges[25:])
    sentence = "low lower lowest new newer"
    assert found.decode(found.encode(sentence)) == sentence
    assert len(found.encode(sentence)) < len(words.encode(sentence))

    # In plain Python: what the first merges leave of phrases, and pairs of that.
    rank = reference.rank_by_merges(words.merges)
    merges = reference.train_from_counts(
        reference.count([text.read_text()], [END], "superwords"), 299,
        extended=[left + right for left, right in words.merges],
        encoded=lambda phrase: reference.encode(phrase, rank),
    )
    assert found.merges[25:] == merges
    capsys.readouterr()
    assert train(directory, *options, "--out", out) == 0
    assert "up to date" in capsys.readouterr().out


def test_a_rerun_keeps_the_words(directory: Path) -> None:
    out, options = directory / "super.json", ("--vocab-size", 300, "--superwords", 25)
    assert train(directory, *options, "--out", out) == 0
    words, content = directory / "super_words.json", out.read_bytes()
    before = words.stat()
    for path in directory.glob("super*"):
        if "words" not in path.name:
            path.unlink()
    assert train(directory, *options, "--out", out) == 0
    assert out.read_bytes() == content
    after = words.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    (directory / "others.json").write_text("{}")
    assert train(directory, *options, "--out", directory / "others.json") == 1
    assert not (directory / "others_words.json").exists()


def test_documents_that_can_be_read_once_are_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"vocab_size": 300, "superwords": 9, "out": tmp_path / "super.json"}
    texts = ["the low of the low", "the new of the new"] * 20
    with pytest.raises(SettingsError, match="reads the text twice: give a function that returns"):
        pipeline.train(iter(texts), **options)
    assert not [*tmp_path.iterdir()]
    found, _ = pipeline.train(lambda: iter(texts), **options)
    assert b"the low of the low" in found.vocabulary.tokens.values()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-"], "reads the text twice: save standard input (-) to a file"),
        (["--vocab-size", "282"], "--superwords 25 leaves no merge for phrases"),
        (["--vocab-size", "auto"], "is of one training, and --superwords goes on"),
        (["--pattern", "gpt2"], "--superwords has split patterns of its own"),
        (["--extend", "old.json"], "tokens of several words need a new tokenizer"),
    ],
)
def test_refusals_of_superwords(
    directory: Path, options: list[str], expected: str, capsys: Any
) -> None:
    assert train(directory, "--out", directory / "new.json", "--superwords", 25, *options) > 0
    assert expected in capsys.readouterr().err
    assert not (directory / "new.json").exists()
