"""`train --extend`: the command, its outputs, resumption and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bpe import load_tokenizer, train_bpe
from preprocess import cli

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
        (["--vocab-size", "279"], "the tokenizer that is extended has 280 ids"),
        (["--vocab-size", "auto"], "this one is extended; say how many tokens it is to have"),
        (["--vocab-size", "300", "--pattern", "gpt2"], "is extended splits text by 'cl100k'"),
        (["--vocab-size", "300", "--extend", "nothing.json"], "nothing.json: No such file"),
    ],
)
def test_refusals(directory: Path, options: list[str], expected: str, capsys: Any) -> None:
    assert run(directory, "--out", directory / "new.json", *options) > 0
    assert expected in capsys.readouterr().err
    assert not (directory / "new.json").exists()


def test_a_tokenizer_without_merges_is_refused(directory: Path, capsys: Any) -> None:
    word_level = (
        '{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},'
        ' "model": {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}}'
    )
    (directory / "old.json").write_text(word_level)
    assert run(directory, "--vocab-size", 300, "--out", directory / "new.json") == 1
    assert "has no merges to be continued" in capsys.readouterr().err
