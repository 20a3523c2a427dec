"""Damaged and hostile files: an error that is documented, soon, or what they are."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from fuzz import SOUND_TOKENIZER as SOUND
from fuzz import odd_values
from hypothesis import given, settings
from hypothesis import strategies as st

from bpe import Tokenizer
from bpe.errors import EncodingError, TokenizerFileError, TokenmillError
from bpe.formats.hf_read import TokenizerFiles
from bpe.split.pretokenizer import Pretokenizer
from preprocess import RowsError, build, open_tokens
from preprocess.cli import run

CONFIG = {
    "eos_token": "<|endoftext|>",
    "added_tokens_decoder": {"296": {"content": "<|endoftext|>", "special": True}},
}


@settings(max_examples=150)
@given(key=st.sampled_from([*CONFIG, "add_prefix_space", "bos_token", "x"]), value=odd_values)
def test_any_configuration(key: str, value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("config")
    (directory / "tokenizer.json").write_text(json.dumps(SOUND))
    (directory / "tokenizer_config.json").write_text(json.dumps(CONFIG | {key: value}))
    try:
        tokenizer = Tokenizer.from_file(directory / "tokenizer.json")
    except TokenizerFileError as error:
        assert str(directory) in str(error)
    else:
        assert tokenizer.bos_token in (None, *tokenizer.special_tokens)


@settings(max_examples=150)
@given(content=st.one_of(st.binary(max_size=200), st.text("aGBQ= 0123456789\n", max_size=200)))
def test_any_file_of_ranks_or_merges(
    content: bytes | str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("ranks") / "file"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    vocab = path.with_name("vocab.json")
    vocab.write_text(json.dumps(SOUND["model"]["vocab"]))
    for read in (
        lambda: Tokenizer.from_tiktoken(path, pattern="gpt2"),
        lambda: Tokenizer.from_gpt2_files(vocab, path),
    ):
        try:
            read()
        except TokenizerFileError as error:
            assert str(path) in str(error)


def test_a_regex_that_explodes_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Oniguruma and `regex` both go through 2**n ways here.
    step = {"type": "Split", "pattern": {"Regex": "(?:a|a)*b|[^b]"}, "behavior": "Isolated"}
    document = copy.deepcopy(SOUND)
    document["pre_tokenizer"]["pretokenizers"][0] = step | {"invert": False}
    document["model"].pop("pattern", None)
    parts = TokenizerFiles(tmp_path, json.dumps(document).encode(), None).parts()
    pretokenizer = Pretokenizer(parts.pattern)
    assert pretokenizer.split(b"aab c") == [b"aab", b" ", b"c"]
    monkeypatch.setattr("bpe.split.regex_splitter._TIMEOUT", 0.1)
    with pytest.raises(EncodingError, match=r"took more than 0 s .* from byte 0 on, because of"):
        pretokenizer.split(b"a" * 40)


@pytest.mark.parametrize("depth", [60, 1000, 4000, 100_000])
def test_depth_is_bounded(depth: int, tmp_path: Path) -> None:
    # Whatever Python's own JSON bears.
    nested = '{"type":"Sequence","pretokenizers":[' * depth + "]}" * depth
    text = json.dumps(SOUND | {"pre_tokenizer": 0}).replace(
        '"pre_tokenizer": 0', f'"pre_tokenizer": {nested}'
    )
    with pytest.raises(TokenizerFileError, match="stand too deep inside one another, more than"):
        TokenizerFiles(tmp_path, text.encode(), None).parts()


@pytest.mark.parametrize(("name", "place"), [
    (".tokenmill.removal", "text"), (".build.partial/journal.jsonl", "text"), ("a.json", "text"),
    (".tokenmill.removal", "out"),
])  # fmt: skip
def test_files_of_ours_that_are_nested_deep(name: str, place: str, tmp_path: Path) -> None:
    """JSON of tokenmill that is nested too deep is ignored, or an error names its file."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("some text")
    path = tmp_path / place / name
    path.parent.mkdir(exist_ok=True)
    nested = "[" * 50_000 + "]" * 50_000
    path.write_text(f'{{"format": "tokenmill tokens", "x": {nested}}}')
    options: dict[str, Any] = {"vocab_size": 258, "val_fraction": 0, "out": tmp_path / "out"}
    if place == "text" and path.suffix != ".json":
        build(train=tmp_path / "text", **options)
        assert open_tokens(tmp_path / "out" / "train.bin").n_documents == 1
        return
    with pytest.raises(TokenmillError, match=name):
        build(train=tmp_path / "text", **options)


def test_values_of_options_that_are_nested_deep(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["build", "--chat-template-kwargs", '{"x": ' + "[" * 50_000 + "]" * 50_000 + "}"]
    assert run(command) == 2
    assert "--chat-template-kwargs: should be a JSON object" in capsys.readouterr().err


def test_counts_of_dumps_that_are_nested_deep(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    from preprocess import PickledTrainerDataset

    (tmp_path / "dump-0.pkl").write_bytes(pickle.dumps([[1, 2], [3, 4]]))
    (tmp_path / "dump-meta_data.json").write_text('{"x": ' + "[" * 50_000 + "]" * 50_000 + "}")
    with pytest.raises(RowsError, match=r"dump-meta_data\.json: is no JSON object with counts"):
        PickledTrainerDataset(tmp_path)


def test_a_number_of_thousands_of_digits_is_a_key_of_no_account(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(SOUND))
    config = {"added_tokens_decoder": {"9" * 5000: {"content": "<|endoftext|>", "special": True}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert "<|endoftext|>" in TokenizerFiles.read(path).parts().vocabulary.special_tokens
