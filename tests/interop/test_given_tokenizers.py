"""A tokenizer is given as a path, a name, or an object of any library: the same ids."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bpe import ArgumentError, Tokenizer, TokenizerFileError, load_tokenizer, train_bpe
from preprocess import (
    SettingsError,
    TokenizerConfig,
    build,
    open_tokens,
    tokenize_and_save,
    write_rows,
)

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra `hf`")
transformers = pytest.importorskip("transformers", reason="needs the extra `hf`")

TEXTS = [f"Hello number {i}, how are you? " * (i % 5 + 1) for i in range(50)]


def of_transformers(directory: Path) -> Any:
    found = transformers.AutoTokenizer.from_pretrained(directory)
    found("some text", truncation=True, max_length=2, padding="max_length")  # sets its backend
    return found


def of_tokenizers(directory: Path) -> Any:
    found = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    found.enable_truncation(2)
    return found


def of_another_model(directory: Path) -> Any:
    found = tokenizers.Tokenizer(tokenizers.models.Unigram())
    found.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=90, special_tokens=["<unk>", "<|endoftext|>"], unk_token="<unk>",
        show_progress=False,
    )
    found.train_from_iterator(TEXTS, trainer)
    return found


KINDS: dict[str, Callable[[Path], Any]] = {
    "path": lambda directory: directory,
    "options": lambda directory: {"name_or_path": str(directory), "trust_remote_code": True},
    "config": lambda directory: TokenizerConfig(name_or_path=directory),
    "ours": lambda directory: Tokenizer.from_file(directory / "tokenizer.json"),
    "tiktoken": lambda directory: load_tokenizer(directory).to_tiktoken(),
    "tokenizers": of_tokenizers,
    "transformers": of_transformers,
    "another model": of_another_model,
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_object(tmp_path: Path, kind: str) -> None:
    tokenizer = train_bpe(TEXTS, 300, special_tokens=["<|endoftext|>", "<pad>"])
    tokenizer.save(tmp_path / "tokenizer.json")
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": "<pad>"}))
    given = KINDS[kind](tmp_path)
    encode: Any = tokenizer.encode
    if kind == "another model":
        encode = lambda text: given.encode(text, add_special_tokens=False).ids  # noqa: E731
    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (tmp_path / "text.jsonl").write_text(lines)
    options: dict[str, Any] = {"train": tmp_path / "text.jsonl", "val_fraction": 0}
    build(**options, tokenizer=given, out=tmp_path / "out")
    file = open_tokens(tmp_path / "out" / "train.bin")
    assert [file.doc(i).tolist()[:-1] for i in range(50)] == [encode(text) for text in TEXTS]
    for again in (given, tmp_path / "out" / "tokenizer.json"):  # the same tokenizer
        result = build(**options, tokenizer=again, out=tmp_path / "out")
        assert result.lines[0].startswith("train: up to date")
    (rows,) = write_rows(
        tmp_path / "out", tokenizer=given, padding=True, out=tmp_path / "rows", format="jsonl"
    )
    is_path, has_pad_token = kind in ("path", "options", "config"), kind != "another model"
    assert (rows.manifest.pad_id == tokenizer.special_tokens["<pad>"]) == has_pad_token
    shown = json.loads((tmp_path / "rows" / "config.json").read_text())["tokenizer"]
    fingerprint = f"sha256:{file.manifest.tokenizer_fingerprint}"
    assert shown == (str(tmp_path) if is_path else fingerprint)


@pytest.mark.parametrize("value", [3, {"a": 1}, ["gpt2"], b"gpt2", Tokenizer])
def test_what_is_no_tokenizer(value: Any) -> None:
    expected = f"tokenizer: should be a path, a name or a tokenizer; got {value!r}"
    with pytest.raises(SettingsError, match=re.escape(expected)):
        build(train="x.txt", tokenizer=value)


def test_a_class_is_no_tokenizer() -> None:
    for each in (Tokenizer, tokenizers.Tokenizer, transformers.PreTrainedTokenizerFast):
        message = re.escape(f"name: should be a path, a name or a tokenizer; got {each!r}")
        with pytest.raises(ArgumentError, match=message):
            load_tokenizer(each)


def test_one_that_is_code(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["x.X"]}}')
    (tmp_path / "x.py").write_text("raise SystemExit")
    own = TokenizerConfig(name_or_path=tmp_path, trust_remote_code=True)
    message = r"names code \(auto_map\) that would be needed instead, and none is run; expected"
    with pytest.raises(TokenizerFileError, match=message):
        tokenize_and_save(data_files=tmp_path, tokenizer=own, output_path=tmp_path / "rows")


def test_one_that_cannot_be_written(tmp_path: Path) -> None:
    """This is found before anything is encoded."""
    tiktoken = pytest.importorskip("tiktoken")
    given = tiktoken.Encoding(
        "own", pat_str=r"\S+|\s+", special_tokens={"<|endoftext|>": 256},
        mergeable_ranks={bytes([i]): i for i in range(256)},
    )
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(TokenizerFileError, match="cannot be written beside the tokens, which a "):
        build(train=tmp_path / "a.txt", val_fraction=0, tokenizer=given, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
