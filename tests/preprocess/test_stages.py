"""One call from text to rows, and the stages of a configuration."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from row_cases import rows_in

from bpe import Tokenizer, train_bpe
from preprocess import (
    AsyncDataLoader,
    CorpusError,
    DatasetConfig,
    JsonShardedSource,
    Mixture,
    PackStageConfig,
    Pipeline,
    PipelineConfig,
    Progress,
    Sampler,
    SaveStageConfig,
    SettingsError,
    TokenizerConfig,
    TokenizeStageConfig,
    TransformedShardedSource,
    build,
    export_tokens,
    open_tokens,
    tokenize_and_save,
    verify,
    write_rows,
)
from preprocess.check.inspect import facts

TO_ROWS: dict[str, Any] = {"data_files": "x", "tokenizer": "y", "output_path": "z"}
TEXTS = [f"Document {i} of many, " * (1 + i % 7) for i in range(40)]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": each}) + "\n" for each in TEXTS))
    return path


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    train_bpe(TEXTS, 302, special_tokens=["<|endoftext|>", "<|end|>"]).save(path)
    return path


def test_text_becomes_rows(text: Path, tokenizer: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "data_files": text, "tokenizer": tokenizer, "output_path": tmp_path / "out",
        "output_format": "jsonl", "max_length": 16, "content_field": "text", "min_length": 24,
    }
    result = tokenize_and_save(**options)
    file = open_tokens(tmp_path / "out" / "tokens" / "train.bin")
    found = rows_in(tmp_path / "out")
    assert [x for row in found for x in row["input_ids"]] == file.tokens.tolist()
    assert max(len(row["input_ids"]) for row in found) == 16
    assert {*found[0]} == {"input_ids", "attention_mask"}
    assert file.n_documents == sum(len(each) >= 24 for each in TEXTS)
    assert [each.path for each in result.rows["tokens"]] == [tmp_path / "out"]
    assert not [*(tmp_path / "out").rglob("val*")]  # unless it is asked for
    assert all(each.sound for each in verify(tmp_path / "out"))
    again = tokenize_and_save(**options)
    assert all("up to date" in line for line in again.lines)
    both = tokenize_and_save(**options | {"output_path": tmp_path / "both", "val_fraction": 0.2})
    assert [each.path.name for each in both.rows["tokens"]] == ["train", "val"]
    # Without the dataset, its tokenizer is kept.
    (tmp_path / "out" / "tokens" / "notes.txt").write_text("mine")
    for _ in range(2):
        tokenize_and_save(**options | {"keep_tokens": False})
        names = sorted(x.name for x in (tmp_path / "out" / "tokens").iterdir())
        assert names == ["notes.txt", "tokenizer.json", "tokenizer_config.json"]
    about = json.loads((tmp_path / "out" / "metadata.json").read_text())
    assert about["tokenizer"] == str(tokenizer)
    assert all(each.sound for each in verify(tmp_path / "out"))
    deep = verify(tmp_path / "out", deep=True)
    assert any("cannot be compared with its dataset" in each.text for each in deep)


def config(text: str | Path = "x", out: str | Path = "out", **more: Any) -> PipelineConfig:
    given: dict[str, Any] = {
        "datasets": [
            DatasetConfig(name="a", data_files=text),
            {"name": "b", "data_files": text, "max_length": 9},
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
        assert one.path == tmp_path / "one" / name
        assert rows_in(one.path) == rows_in(two.path)
        assert one.manifest.longest == length
        assert (one.path / "tokens" / "train.bin").exists()
    only = Pipeline.from_config(config(text, tmp_path / "three")).source().tokenize().build()
    assert not only.rows
    assert not (tmp_path / "three" / "a" / "rows.json").exists()
    written = json.loads((tmp_path / "one" / "config.json").read_text())
    assert written["rows"]["a"]["max_length"] == 16
    assert written["datasets"]["a"]["val_fraction"] == 0


def test_rows_in_directories_of_directories_are_verified(text: Path, tmp_path: Path) -> None:
    datasets = [
        {"name": "a", "data_files": text, "val_fraction": 0.2}, {"name": "b", "data_files": text},
    ]  # fmt: skip
    save = {"format": "jsonl", "output_dir": tmp_path / "rows"}
    build(config(text, tmp_path / "out", datasets=datasets, save=save))
    path = tmp_path / "rows" / "a" / "val" / "val-00000-of-00001.jsonl"
    path.write_text("x\n")
    assert [each.path for each in verify(tmp_path / "rows") if not each.sound] == [path]
    described = facts(tmp_path / "rows")["rows"]
    assert [Path(each["path"]).name for each in described] == ["train", "val", "b"]


@pytest.mark.parametrize("segments", [True, False])
def test_packed_stages(text: Path, tokenizer: Path, tmp_path: Path, segments: bool) -> None:
    special = Tokenizer.from_file(tokenizer).special_tokens
    packed = PackStageConfig(
        seq_length=32, strategy="best_fit", include_segment_ids=segments, pad_token_id=0,
        eos_token_id=special["<|end|>"],
    )
    found = config(
        text, tmp_path / "out", pack=packed, datasets=[{"data_files": text, "val_fraction": 0.2}],
        tokenizer=str(tokenizer), tokenize={"max_length": 32},
        save={"format": "jsonl", "output_dir": tmp_path / "rows"}, output_path=None,
    )
    result = Pipeline.from_config(found).source().tokenize().pack().save().build()
    train, val = result.rows["text"]
    assert (train.path, val.path) == (tmp_path / "rows" / "train", tmp_path / "rows" / "val")
    assert ("segment_ids" in train.manifest.columns) == segments
    assert train.manifest.settings["strategy"] == "best_fit"
    file = open_tokens(tmp_path / "rows" / "tokens" / "train.bin")
    assert file.manifest.end_of_text_id == special["<|end|>"]
    rows = rows_in(train.path)
    assert {len(row["input_ids"]) for row in rows} == {32}
    kept = [x for row in rows for x, y in zip(row["input_ids"], row["labels"], strict=True) if x]
    assert sorted(kept) == sorted(x for x in file.tokens.tolist() if x)
    mask = "segment_ids" if segments else "attention_mask"
    assert not any(row["input_ids"][i] for row in rows for i in range(32) if not row[mask][i])
    # Without pack() rows are of documents.
    unpacked = config(
        text, tmp_path / "other", pack=packed, datasets=[{"name": "a", "data_files": text}],
        tokenize={"max_length": 32}, save={"format": "jsonl"},
    )
    result = Pipeline.from_config(unpacked).source().tokenize().save().build()
    assert result.rows["a"][0].manifest.settings["strategy"] is None
    assert PackStageConfig(seq_length=32, strategy=None).strategy is None
    assert len({unpacked, PipelineConfig(**unpacked.given)}) == 1


def test_special_tokens_of_packed_rows(text: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Those that the tokenizer puts around a text are around each document."""
    top = json.loads(tokenizer.read_text())
    special = Tokenizer.from_file(tokenizer).special_tokens
    begin, end = ("<|endoftext|>", "<|end|>")
    parts = [{"SpecialToken": {"id": x, "type_id": 0}} for x in (begin, end)]
    single = [parts[0], {"Sequence": {"id": "A", "type_id": 0}}, parts[1]]
    known = {x: {"id": x, "ids": [special[x]], "tokens": [x]} for x in (begin, end)}
    for many in (False, True):
        top["post_processor"] = {
            "type": "TemplateProcessing", "single": [*parts[:1] * many, *single], "pair": [],
            "special_tokens": known,
        }
        tokenizer.write_text(json.dumps(top))
        found = config(
            text, tmp_path / "out", tokenizer=str(tokenizer), datasets=[{"data_files": text}],
            tokenize={"max_length": 2048, "add_special_tokens": True}, pack={"seq_length": 2048},
        )
        if many:
            with pytest.raises(SettingsError, match="begin_of_text of packed rows would be"):
                build(found)
            return
        build(found)
        file = open_tokens(tmp_path / "out" / "text" / "tokens" / "train.bin")
        for i, each in enumerate(TEXTS):
            ids = Tokenizer.from_file(tokenizer).encode(each)
            assert file.doc(i).tolist() == [special[begin], *ids, special[end]]


def test_where_outputs_are(text: Path, tokenizer: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """In the directory that is named; nothing is in a directory that is read."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for name in ("a", "b"):
        (Path("data") / f"{name}.jsonl").write_bytes(text.read_bytes())
    inputs = {"data_files": "data/*.jsonl", "tokenizer": tokenizer}
    rows = SaveStageConfig(format="jsonl")
    for more, places in [
        ({"datasets": [inputs]}, ["tokenized/data"]),
        ({"datasets": [inputs | {"save_path": "x"}]}, ["x"]),
        ({"datasets": [inputs | {"name": "n"}], "output_path": "o"}, ["o/n"]),
        ({"datasets": [inputs, inputs | {"data_files": "data/"}]},
         ["tokenized/data", "tokenized/data-2"]),
        ({"datasets": [inputs | {"save_path": "t/a"}, inputs | {"save_path": "t/b"}]},
         ["t/a", "t/b"]),
        ({"datasets": [inputs], "save": {"format": "jsonl", "output_dir": "p"}}, ["p"]),
        ({"datasets": [inputs, inputs | {"data_files": "data/b.jsonl"}],
          "save": {"format": "jsonl", "output_dir": "q"}}, ["q/data", "q/b"]),
        ({"datasets": [{"data_files": ["data/b.jsonl", "data/a.jsonl"], "save_path": "v.1"}],
          "tokenizer": {"vocab_size": 300}}, ["v.1"]),
    ]:
        before = {*tmp_path.rglob("*")}
        pipeline = Pipeline.from_config(PipelineConfig(**{"save": rows} | more))
        result = pipeline.source().tokenize().save().build()
        assert [str(each.path) for of in result.rows.values() for each in of] == places
        tokens = [str(each.directory) for each in result.datasets.values()]
        assert tokens == [f"{place}/tokens" for place in places]
        new = {*tmp_path.rglob("*")} - before
        made = {each.parts[0] for each in map(Path, places)}
        assert {each.relative_to(tmp_path).parts[0] for each in new} == made
        again = pipeline.source().tokenize().save().build()
        assert all("up to date" in line for line in again.lines)
        shutil.rmtree(places[0].split("/")[0])
    without_rows = build(PipelineConfig(datasets=[inputs | {"save_path": "w"}]))
    assert (str(without_rows.directory), Path("w/train.bin").exists()) == ("w", True)
    assert json.loads(Path("w/config.json").read_text())["format"] == "tokenmill-corpus"


@pytest.mark.parametrize("spelling", ["without tokens", "pipeline", "no rows"])
def test_validation_that_is_no_longer_asked_for_is_removed(
    text: Path, tokenizer: Path, tmp_path: Path, spelling: str
) -> None:
    """And rows lie where they would without it, and back."""
    out = tmp_path / "out"

    def write(fraction: float) -> tuple[set[str], dict[str, int]]:
        given = {"data_files": str(text), "tokenizer": str(tokenizer), "val_fraction": fraction}
        if spelling == "without tokens":
            tokenize_and_save(**given, output_path=out, output_format="jsonl", overwrite=True,
                              keep_tokens=False)
        else:
            save = {} if spelling == "no rows" else {"save": {"format": "jsonl"}}
            datasets = [given | {"save_path": str(out)}]
            build(PipelineConfig(datasets=datasets, **save, tokenize={"overwrite": True}))
        assert all(each.sound for each in verify(out))
        assert all([*path.iterdir()] for path in out.rglob("*") if path.is_dir())
        places = [path.parent for path in out.rglob("rows.json")]
        names = {str(path.relative_to(out)) for path in out.rglob("[!.]*") if path.is_file()}
        return names, {str(place.relative_to(out)): len(rows_in(place)) for place in places}

    alone = write(0)
    (out / "mine.txt").touch()
    divided = write(0.3)
    assert divided[1].keys() == ({"train", "val"} if alone[1] else set())
    assert sum(divided[1].values()) == sum(alone[1].values())
    names, rows = write(0)
    assert (names, rows) == (alone[0] | {"mine.txt"}, alone[1])
    assert write(0.3) == divided


def test_a_lost_dataset_is_not_taken_for_a_removed_one(
    text: Path, tokenizer: Path, tmp_path: Path
) -> None:
    tokenize_and_save(data_files=text, tokenizer=tokenizer, output_path=tmp_path / "out",
                      output_format="jsonl", val_fraction=0.2)
    for path in (tmp_path / "out" / "tokens").iterdir():
        if path.name.startswith(("train", "val")):
            path.unlink()
    (found,) = [each for each in verify(tmp_path / "out") if not each.sound]
    assert found.text.startswith("no finished token file in this directory")


def test_outputs_in_a_directory_that_is_read(
    text: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("data/x.jsonl", "data/inner/x.jsonl"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(text.read_bytes())
    before = {*tmp_path.rglob("*")}
    dataset = {"data_files": "data/x.jsonl", "tokenizer": tokenizer, "save_path": "data/rows"}
    for files, place in [
        ("data", "data"), ("data", "data/rows"), ("data/*.jsonl", "data"),
        ("data/**/*.jsonl", "data/a/b"), ("data/*", "data/rows"), ("./data/../data", "data/x"),
        ("data/*/x.jsonl", "data/rows"),
    ]:
        wrong = dataset | {"data_files": files, "save_path": place}
        with pytest.raises(SettingsError, match=r"outputs would be in data.*, where .* is look"):
            build(PipelineConfig(datasets=[wrong], save={"format": "jsonl"}))
    Path("list").write_text("data/inner/x.jsonl\ndata/x.jsonl\n")
    Path("here.jsonl").symlink_to(text)
    (tmp_path / "tokenized").symlink_to("data")
    before |= {*tmp_path.rglob("*")}
    given: dict[str, Any] = {"tokenizer": tokenizer, "output_format": "jsonl"}
    for files, place in [
        ("data/x.jsonl", "data"), ("data/x.jsonl", tmp_path / "data/"), ("here.jsonl", "."),
        ("@list", "data/inner"), (["data/inner/x.jsonl", "data/x.jsonl"], "./data/inner/../"),
        ("data/x.jsonl", "tokenized"),
    ]:
        with pytest.raises(SettingsError, match=r"outputs would be in .*, from which .* is read"):
            tokenize_and_save(data_files=files, output_path=place, **given)
    for wrong in (
        {"data_files": "tokenized/x.jsonl", "tokenizer": tokenizer},  # with the default output
        dataset | {"save_path": "data"},
        dataset | {"val_files": "data/inner/x.jsonl", "save_path": "data/inner"},
    ):
        for save in ({}, {"save": {"format": "jsonl"}}):
            with pytest.raises(SettingsError, match=r"from which .* is read; choose another dir"):
                build(PipelineConfig(datasets=[wrong], **save))
    assert {*tmp_path.rglob("*")} == before
    build(PipelineConfig(datasets=[dataset], save={"format": "jsonl"}))
    build(train="data/inner/x.jsonl", tokenizer=tokenizer, out="data/inner", val_fraction=0)


def test_what_wins(text: Path, tokenizer: Path) -> None:
    """The dataset over its tokenizer config, that over the stage, the stage over the default."""
    own = TokenizerConfig(name_or_path=tokenizer, max_length=20, truncation=True, padding="longest")
    stage = {"max_length": 30, "padding": "longest"}
    for dataset, expected in [
        ({"tokenizer": own, "max_length": 10}, (10, True, "longest")),
        ({"tokenizer": own, "padding": False}, (20, True, "none")),
        ({"tokenizer": {"name_or_path": str(tokenizer)}}, (30, False, "longest")),
        ({"padding": "max_length"}, (40, False, "max-length")),
    ]:
        found = PipelineConfig(
            datasets=[{"data_files": text, "name": "a"} | dataset], tokenize=stage,
            tokenizer={"name_or_path": tokenizer, "max_length": 40}, save={},
        ).plans["a"].rows
        assert (found.max_length, found.truncation, found.padding) == expected


def test_arguments_without_effect_are_said_once(
    text: Path, tokenizer: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = TokenizerConfig(name_or_path=tokenizer, trust_remote_code=True)
    arguments = {"use_fast": True, "cache_dir": "x", "token": "y", "local_files_only": True}
    dataset = {"data_files": text, "tokenizer": own, "tokenizer_kwargs": arguments}
    result = build(config(
        text, tmp_path / "out", datasets=[dataset | {"name": name} for name in "ab"],
        tokenize=TokenizeStageConfig(max_length=2048, batch_size=1000), pack={"seq_length": 64},
    ))  # fmt: skip
    said = [each.getMessage() for each in caplog.records if "no effect" in each.getMessage()]
    assert sorted(said) == [
        "batch_size has no effect: units of work have unit_size bytes",
        "max_length 2,048 has no effect on packed rows",
        *(f"tokenizer_kwargs: {each} has no effect" for each in sorted(arguments)),
        "trust_remote_code has no effect: no code of a repository is run",
    ]
    plain = {"name": "a", "data_files": text, "tokenizer": tokenizer}
    plain = config(text, tmp_path / "plain", tokenize={"unit_size": 100}, datasets=[plain],
                   pack={"seq_length": 64})
    assert rows_in(build(plain).rows["a"][0].path) == rows_in(result.rows["a"][0].path)


def test_defaults_may_be_given(text: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Of rows that are packed, and without rows; they change nothing."""
    given = {"name_or_path": tokenizer, "truncation": False, "padding": False}
    for name, more in [("plain", {}), ("said", given)]:
        datasets = [{"data_files": text, "name": "a", "tokenizer": {"name_or_path": tokenizer}}]
        datasets[0]["tokenizer"] |= more | {"max_length": 16}
        build(config(
            text, tmp_path / name, datasets=datasets, tokenize=None, pack={"seq_length": 16}
        ))
    assert rows_in(tmp_path / "said" / "a") == rows_in(tmp_path / "plain" / "a")
    datasets = [{"data_files": text, "tokenizer": given, "save_path": tmp_path / "tokens"}]
    assert build(PipelineConfig(datasets=datasets)).manifests


def test_files_of_validation_that_are_missing(text: Path, tokenizer: Path, tmp_path: Path) -> None:
    given = {"data_files": text, "val_files": tmp_path / "none.txt", "tokenizer": tokenizer}
    with pytest.raises(CorpusError, match=r"^val_files: .*none\.txt: no such file"):
        tokenize_and_save(**given, output_path=tmp_path / "rows")
    config = PipelineConfig(datasets=[given], output_path=tmp_path / "out")
    with pytest.raises(CorpusError, match=r"^datasets\[0\]\.val_files: .*none\.txt: no such file"):
        build(config)


def test_the_format_of_text_is_not_that_of_rows(text: Path, tokenizer: Path) -> None:
    given = {"data_files": text, "tokenizer": tokenizer, "output_path": text.parent / "rows"}
    with pytest.raises(CorpusError, match="format is that of the text, and output_format that of"):
        tokenize_and_save(**given, format="parquet", max_length=8)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: DatasetConfig(name="x"), "DatasetConfig: data_files: is required"),
    (lambda: PipelineConfig(datasets=[{"data_files": "x", "seq_length": 3}]),
     r"\[0\].seq_length: there is no such setting; it is an option of the section pack"),
    (lambda: DatasetConfig(data_files="x", tokenizer_kwargs={"revision": "a"}),
     "should have what cannot change ids .* revision could; give it to transformers, and its"),
    (lambda: DatasetConfig(data_files="x", tokenizer_kwargs={"token": "s", "revision": "a"}),
     "could; give it to transformers, and its tokenizer here; got {'token': '...', 'revision'"),
    (lambda: DatasetConfig(data_files="x", tokenizer_kwargs={"padding_side": "left"}),
     "tokenizer_kwargs: padding_side is padding_side of the dataset itself; move it there"),
    (lambda: DatasetConfig(data_files="x", tokenizer_kwargs={"model_max_length": 9}),
     "model_max_length is max_length of the dataset itself; move it there; got"),
    (lambda: TokenizerConfig(padding="most"), r"padding: should be .*or True; got 'most'"),
    (lambda: PackStageConfig(), "PackStageConfig: seq_length: is required"),
    (lambda: tokenize_and_save(**TO_ROWS, min_length=-1), r"^min_length: should be a whole n"),
    (lambda: config(save=None), "save: max_length: for rows, which are not written; add a sec"),
    (lambda: config(save={"enabled": False}, tokenize=None, pack={"seq_length": 4}),
     "for rows, which are not written; add a section save"),
    (lambda: config(pack={"seq_length": 8}, tokenize={"max_length": 8, "truncation": True}),
     "max_length and seq_length were both given: rows are of docu"),
    (lambda: config(pack={"strategy": "greedy"}), "seq_length: is required"),
    (lambda: config(datasets=[{"data_files": "x", "tokenizer": {"vocab_size": 300}}]),
     "tokenizer: a tokenizer is trained on all datasets; train it in the section tokenizer"),
    (lambda: config(datasets=["x"]), "expected options with values, found 'x'"),
    (lambda: config(datasets=[TokenizerConfig()]), "expected options .* found TokenizerConfig"),
])  # fmt: skip
def test_wrong_arguments(call: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        call()


@pytest.mark.parametrize(("more", "message"), [
    ({"pack": {"eos_token_id": 5}},
     r"end_of_text of packed rows would be \(5,\), expected the id of one special token of \{"),
    ({"pack": {"eos_token_id": 10**6}}, r"would be \(1000000,\), expected the id of one"),
    ({"pack": {"pad_token_id": 302}}, "pad_token_id 302 is no id of the vocabulary of 302"),
    ({"tokenize": {"padding": "longest", "pad_token": "<pad>"}},
     "pad_token '<pad>' is no special token of the tokeni"),
])  # fmt: skip
def test_ids_that_the_tokenizer_has_not(
    text: Path, tokenizer: Path, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    if "pack" in more:
        more = {"pack": {"seq_length": 16} | more["pack"], "tokenize": None}
    datasets = [{"data_files": text, "tokenizer": tokenizer}]
    with pytest.raises(SettingsError, match=message):
        build(config(text, tmp_path / "out", datasets=datasets, **more))
    assert not (tmp_path / "out").exists()  # nothing was encoded before


def test_a_bar_is_shown_to_people(text: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """On a terminal and in a notebook, unless they want none."""
    monkeypatch.setattr("preprocess.report.progress._SECONDS_BEFORE_BAR", 0.0)
    for is_terminal, module, progress, shows in [
        (True, "io", None, True), (False, "io", None, False), (True, "io", False, False),
        (False, "ipykernel.iostream", None, True), (False, "io", True, False),
        (False, "io", Progress("bars"), True),
    ]:
        stream: Any = type("Stream", (io.StringIO,), {"__module__": module})()
        stream.isatty = lambda is_terminal=is_terminal: is_terminal
        monkeypatch.setattr("sys.stderr", stream)
        build(train=text, val_fraction=0, vocab_size=260, out=tmp_path, progress=progress,
              overwrite=True)
        assert ("counting" in stream.getvalue()) == shows


def test_objects_are_shown_in_a_line(text: Path, tmp_path: Path) -> None:
    result = build(train=text, vocab_size=260, out=tmp_path / "out")
    file = open_tokens(tmp_path / "out" / "train.bin")
    sampler = Sampler(file, 1, 8)
    (rows, _) = write_rows(tmp_path / "out", out=tmp_path / "rows", format="jsonl")
    source = JsonShardedSource(rows.path)
    (export, _) = export_tokens(tmp_path / "out", to="npy", out=tmp_path / "npy")
    for each, word in [
        (result, "train: "), (file, "train.bin"), (sampler, "windows"), (rows, "rows"),
        (Mixture({"a": sampler}, {"a": 1}), "a, step=0"), (source, "1 shards"), (export, "npy"),
        (TransformedShardedSource(source, dict), "1 shards"), (AsyncDataLoader(sampler), "Sampl"),
        (config(text, tmp_path), "datasets=["), (Pipeline(config(text, tmp_path), ("a",)), "a"),
    ]:
        shown = repr(each)
        assert shown.startswith(f"{type(each).__name__}(")
        assert "\n" not in shown
        assert len(shown) < 800
        assert word in shown


def test_stages_that_are_missing(text: Path, tokenizer: Path, tmp_path: Path) -> None:
    one = [{"name": "a", "data_files": text}]
    plain = Pipeline.from_config(PipelineConfig(datasets=one, output_path=tmp_path)).source()
    for stage, message in (
        ("tokenize", r"tokenize\(\) has no configuration; set tokenizer or tokenize of Pipel"),
        ("pack", r"pack\(\) has no configuration; set pack of PipelineConfig"),
    ):
        with pytest.raises(SettingsError, match=message):
            getattr(plain, stage)()
    whole = Pipeline.from_config(config(text, tmp_path, datasets=one, pack={"seq_length": 16}))
    for some in (whole, whole.source(), whole.tokenize().save(), whole.source().tokenize().pack()):
        with pytest.raises(SettingsError, match="is not enabled, and build needs it; call "):
            some.build()
    assert not (tmp_path / "a").exists()
    # A dataset with a tokenizer needs no section for it, and save() enables rows.
    dataset = {"data_files": text, "tokenizer": tokenizer, "save_path": tmp_path / "own"}
    own = PipelineConfig(datasets=[dataset], save=SaveStageConfig(enabled=False, format="jsonl"))
    result = Pipeline.from_config(own).source().tokenize().save().build()
    assert len(rows_in(result.rows["own"][0].path)) == len(TEXTS)
