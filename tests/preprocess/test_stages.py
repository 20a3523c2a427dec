"""One call from text to rows, and the stages of a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from row_cases import rows_in

from bpe import train_bpe
from preprocess import (
    DatasetConfig,
    PackStageConfig,
    Pipeline,
    PipelineConfig,
    SaveStageConfig,
    SettingsError,
    TokenizerConfig,
    TokenizeStageConfig,
    build,
    open_tokens,
    tokenize_and_save,
    verify,
)
from preprocess.cli import run
from preprocess.rows import write

TEXTS = [f"Document {i} of many, " * (1 + i % 7) for i in range(40)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": each}) + "\n" for each in TEXTS))
    return path


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    train_bpe(TEXTS, 300, special_tokens=["<|endoftext|>"]).save(path)
    return path


def test_text_becomes_rows(text: Path, tokenizer: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data_files": text, "tokenizer": tokenizer, "output_path": tmp_path / "out",
        "output_format": "jsonl", "max_length": 16, "val_fraction": 0.2,
    }
    result = tokenize_and_save(**options)
    for name in ("train", "val"):
        file = open_tokens(tmp_path / "out" / "tokens" / f"{name}.bin")
        found = rows_in(tmp_path / "out" / name)
        assert [x for row in found for x in row["input_ids"]] == file.tokens.tolist()
        assert max(len(row["input_ids"]) for row in found) == 16
    assert [each.is_new for each in result.rows["tokens"]] == [True, True]
    assert all(each.sound for each in verify(tmp_path / "out"))
    again = tokenize_and_save(**options)
    assert not any(each.is_new for each in again.rows["tokens"])
    (tmp_path / "out" / "tokens" / "notes.txt").write_text("mine")
    tokenize_and_save(**options | {"keep_tokens": False})
    assert [x.name for x in (tmp_path / "out" / "tokens").iterdir()] == ["notes.txt"]
    (tmp_path / "out" / "tokens" / "notes.txt").unlink()
    own = tmp_path / "out" / "tokens" / "tokenizer.json"
    tokenize_and_save(**options)
    tokenize_and_save(**options | {"keep_tokens": False, "tokenizer": own})
    assert own.exists()
    own.unlink()
    own.with_name("tokenizer_config.json").unlink()
    own.with_name("stats.json").unlink()
    tokenize_and_save(**options | {"keep_tokens": False})
    assert not (tmp_path / "out" / "tokens").exists()
    assert all(each.sound for each in verify(tmp_path / "out"))
    deep = verify(tmp_path / "out", deep=True)
    assert any("cannot be compared with its dataset" in each.text for each in deep)
    assert "out" in str(tokenize_and_save(**options).directory)


def test_an_interruption_between_the_stages(
    text: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {
        "data_files": text, "tokenizer": tokenizer, "output_path": tmp_path / "out",
        "output_format": "jsonl", "num_shards": 3, "workers": 1,
    }
    real, made = write.write_shard, list[str]()

    def once(*arguments: Any) -> Any:
        made.append(arguments[3])
        if len(made) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(write, "write_shard", once)
    with pytest.raises(KeyboardInterrupt):
        tokenize_and_save(**options)
    result = tokenize_and_save(**options)
    assert [each[6:11] for each in made] == ["00000", "00001", "00001", "00002"]
    assert "up to date" in result.lines[0] or "train" in result.lines[0]
    assert len(rows_in(tmp_path / "out")) == len(TEXTS)


def config(text: Path, out: Path, **more: Any) -> PipelineConfig:
    given: dict[str, Any] = {
        "datasets": [
            DatasetConfig(name="a", data_files=text, val_fraction=0),
            {"name": "b", "data_files": text, "val_fraction": 0, "max_length": 9},
        ],
        "tokenizer": TokenizerConfig(vocab_size=300),
        "tokenize": TokenizeStageConfig(max_length=16),
        "save": SaveStageConfig(format="jsonl", num_shards=2),
        "output_path": out,
    }
    return PipelineConfig(**given | more)


def test_stages_of_a_configuration(text: Path, tmp_path: Path) -> None:
    whole = build(config(text, tmp_path / "one"))
    pipeline = Pipeline.from_config(config(text, tmp_path / "two")).source().tokenize().save()
    staged = pipeline.build()
    for name, length in (("a", 16), ("b", 9)):
        (one,), (two,) = whole.rows[name], staged.rows[name]
        assert one.path == tmp_path / "one" / name / "rows"
        assert rows_in(one.path) == rows_in(two.path)
        assert one.manifest.longest == length
    only = Pipeline.from_config(config(text, tmp_path / "three")).source().tokenize().build()
    assert not only.rows
    assert not (tmp_path / "three" / "a" / "rows").exists()
    written = json.loads((tmp_path / "one" / "config.json").read_text())
    assert written["rows"]["a"]["max_length"] == 16


@pytest.mark.parametrize("segments", [True, False])
def test_packed_stages(text: Path, tmp_path: Path, segments: bool) -> None:
    packed = PackStageConfig(seq_length=32, strategy="best_fit", include_segment_ids=segments)
    found = config(
        text, tmp_path / "out", pack=packed, datasets=[{"name": "a", "data_files": text}],
        tokenize={"max_length": 32}, save={"format": "jsonl", "output_dir": tmp_path / "rows"},
    )
    result = Pipeline.from_config(found).source().tokenize().pack().save().build()
    train, val = result.rows["a"]
    assert (train.path, val.path) == (tmp_path / "rows" / "train", tmp_path / "rows" / "val")
    assert ("segment_ids" in train.manifest.columns) == segments
    assert train.manifest.settings["strategy"] == "best_fit"
    # Without pack() rows are of documents.
    unpacked = config(
        text, tmp_path / "other", pack=packed, datasets=[{"name": "a", "data_files": text}],
        tokenize={"max_length": 32}, save={"format": "jsonl"},
    )
    result = Pipeline.from_config(unpacked).source().tokenize().save().build()
    assert result.rows["a"][0].manifest.settings["strategy"] is None


def test_stages_that_are_missing(text: Path, tmp_path: Path) -> None:
    plain = PipelineConfig(datasets=[{"name": "a", "data_files": text}], output_path=tmp_path)
    pipeline = Pipeline.from_config(plain).source()
    for stage, message in (
        ("tokenize", r"tokenize\(\) has no configuration; set tokenizer or tokenize of Pipel"),
        ("pack", r"pack\(\) has no configuration; set pack of PipelineConfig"),
        ("save", r"save\(\) has no configuration; set save of PipelineConfig"),
    ):
        with pytest.raises(SettingsError, match=message):
            getattr(pipeline, stage)()
    one = [{"name": "a", "data_files": text}]
    whole = Pipeline.from_config(config(text, tmp_path, datasets=one, pack={"seq_length": 16}))
    for some in (whole, whole.source(), whole.tokenize().save(), whole.source().tokenize().pack()):
        with pytest.raises(SettingsError, match=r"is not enabled, and build needs it; call "):
            some.build()
    assert not (tmp_path / "a").exists()
    message = "tokenizer should be a path, a name, or options to train one; save an object first"
    with pytest.raises(SettingsError, match=message):
        tokenize_and_save(data_files=text, tokenizer=object(), output_path=tmp_path)  # type: ignore[arg-type]


def test_sections_that_contradict(text: Path, tmp_path: Path, capsys: Any) -> None:
    for more, message in [
        ({"save": None}, "save: max_length: for rows, which are not written; add a section save"),
        ({"save": {"enabled": False}, "tokenize": None, "pack": {"seq_length": 4}},
         "for rows, which are not written; add a section save"),
        ({"pack": {"seq_length": 8}}, "max_length is for rows of documents, seq_length for"),
        ({"pack": {"strategy": "greedy"}}, "seq_length: is required"),
        ({"save": {"formats": "jsonl"}}, "formats: there is no such setting; did you mean format"),
        ({"tokenizer": {"max_length": 3}}, "it belongs in the section tokenize"),
        ({"tokenize": {"seq_length": 3}}, "it belongs in the section pack"),
        ({"tokenizer": {"trust_remote_code": True}}, "trust_remote_code: is refused, for no code"),
    ]:  # fmt: skip
        with pytest.raises(SettingsError, match=message):
            config(text, tmp_path, **more)
    path = tmp_path / "corpus.yaml"
    path.write_text(
        f"datasets:\n  - {{name: a, data_files: {text}, val_fraction: 0}}\n"
        f"tokenizer: {{vocab_size: 300}}\noutput_path: {tmp_path / 'out'}\n"
        "pack: {seq_length: 16, strategy: greedy}\nsave: {format: jsonl}\n"
    )
    assert run(["build", str(path)]) == 0
    assert "a: " in capsys.readouterr().out
    assert len(rows_in(tmp_path / "out" / "a" / "rows")) > 10
    path.write_text(path.read_text().replace("format: jsonl", "format: jsonl, compression: zlib"))
    assert run(["build", str(path)]) == 2
    error = capsys.readouterr().err
    assert "corpus.yaml:2: save: compression 'zlib' is not for format 'jsonl', which" in error
    path.write_text(path.read_text().replace("jsonl, compression: zlib", "csv"))
    assert run(["build", str(path)]) == 2
    assert "corpus.yaml:6: format: should be 'parquet'" in capsys.readouterr().err
