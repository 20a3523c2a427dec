"""Every option is the same in its declaration, signatures, on the command line and in the docs."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import pickle
import pydoc
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import preprocess
from preprocess import options as declared
from preprocess.cli import COMMANDS, Command, imported, run
from preprocess.config import (
    DatasetConfig,
    SaveStageConfig,
    TextToRowsSettings,
    TokenizeStageConfig,
)
from preprocess.options import BuildSettings, CompareSettings, DoctorSettings, EncodeSettings
from preprocess.run.record import Record, differences, recorded_settings
from preprocess.settings import Option, Settings, SettingsError, options_of, size_in_bytes

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("docs_options", ROOT / "docs" / "options.py")
docs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(docs)


@pytest.mark.parametrize(("settings", "option", "module"), [
    ("BuildSettings", "format", "preprocess.sources.registry"),
    ("RowsSettings", "format", "preprocess.rows.formats"),
    ("ExportSettings", "to", "preprocess.export.formats"),
    ("ImportSettings", "format", "preprocess.imports.write"),
])  # fmt: skip
def test_formats_are_those_that_are_registered(settings: str, option: str, module: str) -> None:
    found = imported(f"{module}.FORMATS")
    if not isinstance(found, dict):
        found = [each.name for each in found if each.open is not None]
    formats = options_of(getattr(declared, settings))[option].metavar.split("|")
    assert {*formats} == {*found}


@pytest.mark.parametrize("command", COMMANDS)
def test_functions_have_the_options(command: str) -> None:
    options = options_of(getattr(declared, COMMANDS[command].settings))
    function = imported(COMMANDS[command].function)
    parameters = inspect.signature(function).parameters
    assert parameters.keys() == options.keys()
    for name, each in parameters.items():
        assert each.default == options[name].default
        assert (each.kind is each.KEYWORD_ONLY) == options[name].kw_only
    text = pydoc.plain(pydoc.render_doc(function))
    for name in options:
        assert re.search(rf"\b{name}: ", text)
    assert "**" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_the_command_has_the_options(command: str, capsys: Any) -> None:
    assert run([command, "--help"]) == 0
    printed = capsys.readouterr().out.replace("\noptions:", "")
    entries = re.split(r"\n  (?=\S)", printed)[1:]
    shown = {re.match(r"[\w.-]+", each)[0]: " ".join(each.split()) for each in entries}
    assert shown.pop("-h")
    assert len(shown) == len(COMMANDS[command].options())
    for option in COMMANDS[command].options():
        name = option.flag if option.kw_only else option.metavar
        default = f" [default: {option.shown_default}]" if option.shown_default else ""
        assert shown[name].endswith(f" {option.help}{default}")
        assert option.is_switch or f"{option.metavar}" in shown[name]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_path_is_wrong_usage(
    command: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what a variable of a shell is that was not set, and was read as the directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("some text")
    usual = {"to": "npy", "format": "raw", "out": "x.bin"}
    for name in [option.name for option in COMMANDS[command].options() if option.is_location]:
        given = []
        for option in COMMANDS[command].options():
            if option.is_required or option.name == name:
                value = usual.get(option.name, "text.txt" if option.is_location else "1")
                value = "" if option.name == name else value
                given += [option.flag, value] if option.kw_only else [value]
        assert run([command, *given]) == 2
        shown = {option.name: option.flag for option in COMMANDS[command].options()}
        assert capsys.readouterr().err.startswith(f"tokenmill: error: {shown[name]}: should ")
    assert [each.name for each in tmp_path.iterdir()] == ["text.txt"]


def test_one_call_from_text_to_rows_has_all_options() -> None:
    """Those of packing are in a `PipelineConfig`."""
    wanted = options_of(DatasetConfig) | options_of(TokenizeStageConfig)
    wanted |= options_of(SaveStageConfig)
    others = {"name", "tokenizer_kwargs", "save_path", "enabled", "output_dir"}
    own = {"output_path", "output_format", "keep_tokens", "progress"}
    assert options_of(TextToRowsSettings).keys() - own == wanted.keys() - others


def test_defaults_are_shown_as_they_are() -> None:
    options, settings = options_of(BuildSettings), BuildSettings()
    shown = {name: option.shown_default for name, option in options.items()}
    assert shown["val_fraction"] == str(settings.validation_fraction)
    assert shown["pattern"] == settings.pattern
    assert size_in_bytes(shown["unit_size"]) == settings.unit_size
    assert (shown["vocab_size"], shown["strip"], shown["max_documents"]) == ("32000", "", "none")
    assert options_of(CompareSettings)["max_bytes"].shown_default == "64MiB"


def test_tables_are_those_of_the_declarations() -> None:
    assert docs.page() == (ROOT / "docs" / "options.md").read_text("utf-8"), docs.__doc__


def test_tables_have_all_options_of_each_command() -> None:
    page = docs.page()
    for name, command in COMMANDS.items():
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        for option in command.options():
            shown = option.flag if option.kw_only else option.metavar
            assert re.search(rf"`{re.escape(shown)}[ `.]", section), (name, shown)
            assert option.help.replace("|", r"\|") in page


def test_an_option_is_declared_once() -> None:
    """The same name with the same help in two classes should be inherited."""
    found = [x for x in vars(declared).values() if isinstance(x, type)]
    classes = [x for x in found if issubclass(x, Settings)]
    own = [x for each in classes for x in vars(each).values() if isinstance(x, Option)]
    texts = [(x.name, x.help) for x in own if x.name != "paths"]
    assert len(texts) == len({*texts}) > 90


# Another value than the default, for each option of build.
OTHER = {
    "provenance": True,
    **{"train": ("x",), "val": (), "val_fraction": 0.2, "out": "x", "name": "x", "tokenizer": "x"},
    **{"vocab_size": 999, "pattern": "o200k", "special_tokens": ("<s>",), "min_frequency": 3},
    **{"tie_break": "huggingface", "end_of_text": "<e>", "begin_of_text": "<b>"},
    **{"separator": "-", "on_invalid_utf8": "skip", "unit_size": 100, "workers": 77},
    **{"shard_tokens": 9, "split_documents": True, "max_minutes": 3.0, "memory_limit": 10**9},
    **{"overwrite": True, "content_field": ("a.b", "c"), "format": "jsonl", "strip": True},
    **{"text_preset": "title-text", "min_length": 3, "max_length_chars": 9},
    **{"on_bad_record": "skip", "max_bad_records": 5, "config": "x.yaml", "progress": True},
    **{"deduplicate": True, "start_character": 9, "max_characters": 9, "max_documents": 9},
    **{"chat": "off", "chat_template": "x.jinja", "train_on": "all"},
    **{"chat_date": "2024-07-26", "chat_template_kwargs": '{"x": 1}'},
    **{"cut_documents": True, "shuffle_documents": 0, "profile": "speed"},
    **{"task_index": 1, "task_count": 3, "executor": "ray", "ray_address": "auto"},
    **{"ray_resources": ("CPU=2",), "width": 512, "layers": 6},
}


def test_a_record_has_what_changes_the_result() -> None:
    needed: dict[str, dict[str, Any]] = {
        "split_documents": {"shard_tokens": 5}, "cut_documents": {"start_character": 5},
        "task_index": {"task_count": 3, "tokenizer": "x"}, "ray_address": {"executor": "ray"},
        "ray_resources": {"executor": "ray"}, "width": {"vocab_size": "auto"},
        "layers": {"vocab_size": "auto"},
    }  # fmt: skip
    options = options_of(BuildSettings)
    assert OTHER.keys() == options.keys()
    for name, value in OTHER.items():
        given = needed.get(name, {})
        before = recorded_settings(BuildSettings(**given), None)
        now = recorded_settings(BuildSettings(**given | {name: value}), None)
        option = options[name]
        assert (before != now) == (option.changes_result and not option.is_location), name
    locations = [each.name for each in options.values() if each.is_location]
    assert sorted(locations) == ["out", "tokenizer", "train", "val"]


@pytest.mark.parametrize(("settings", "values", "expected"), [
    (
        BuildSettings, {"vocabsize": 3, "workers": 0, "out": None},
        "vocabsize: there is no such setting; did you mean vocab_size?; workers:"
        " should be a whole number of at least 1 and at most 65,536; got 0; out: should be a"
        " path; got None",
    ),
    (BuildSettings, {"content_field": ["a..b"]},
     "content_field 'a..b' has an empty part; name fields as in data.text"),
    (BuildSettings, {"content_field": ["a", "a.b"]},
     "content_field 'a' is text or an object with 'a.b', not both; leave one out"),
    (BuildSettings, {"chat_template": ""}, "chat_template: should not be empty; got ''"),
    (DoctorSettings, {"path": "s3://me:secret@b/k"}, "path: should be a path on this machine"),
])  # fmt: skip
def test_everything_wrong_is_named(settings: Any, values: dict[str, Any], expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(**values)
    assert str(caught.value).startswith(expected)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("command", "expected", "in_python"), [
    ("rows x --per-file --num-shards 2", "--per-file and --num-shards were both given: each i",
     "per_file and num_shards were both given: each i"),
    ("rows x --drop-short",
     "--drop-short has no effect without --max-length or --seq-length; give it, or leave out"
     " --drop-short",
     "drop_short has no effect without max_length or seq_length; give it, or leave out"
     " drop_short"),
    ("build --ray-address a", "--ray-address has no effect without --executor ray; give it",
     "ray_address has no effect without executor='ray'; give it"),
    ("rows x --max-length 0", "--max-length: should be a whole number",
     "max_length: should be a whole number"),
    ("rows x --column a --max-shard-size x", "--max-shard-size: should be a number of bytes",
     "max_shard_size: should be a number of bytes"),
    ("build --val-fraction 2", "--val-fraction: should be a number",
     "val_fraction: should be a number"),
    ("build --min-length 5 --max-length-chars 3",
     "--min-length 5 is above --max-length-chars 3, so no document is left",
     "min_length 5 is above max_length_chars=3, so no document is left"),
    ("build --special-token a --special-token a", "--special-token: should name each token",
     "special_tokens: should name each token"),
    ("build --content-field a --text-preset title-text",
     "--content-field and --text-preset were both given: --text-preset has fields of its own",
     "content_field and text_preset were both given: text_preset has fields of its own"),
])  # fmt: skip
def test_messages_have_options_or_arguments(
    command: str, expected: str, in_python: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    with monkeypatch.context() as patched:
        patched.setattr(Command, "call", lambda _, values, console: not given.update(values))
        assert run(command.split()) == 0
    assert run(command.split()) == 2
    assert capsys.readouterr().err.startswith(f"tokenmill: error: {expected}")
    with pytest.raises(SettingsError) as caught:
        imported(COMMANDS[command.split()[0]].function)(**given)
    assert str(caught.value).startswith(in_python)


def test_settings_are_values() -> None:
    section = preprocess.DatasetConfig
    assert len({section(data_files="a"), section(data_files=["a"], strip=False)}) == 1
    assert section(data_files="a") != section(data_files="a", strip=True)
    given = section(name="a", data_files="data.text", content_field="a.b")
    assert pickle.loads(pickle.dumps(given)).given == copy.deepcopy(given).given == given.given
    assert repr(given) == (
        "DatasetConfig(name='a', data_files=('data.text',), content_field=('a.b',))"
    )
    settings = BuildSettings(train=["./a//b", Path("c")], out="d/", workers=None, pattern=None)
    assert (settings.train, settings.out, settings.pattern) == (("./a//b", "c"), "d/", "gpt2")
    assert settings.given.keys() == {"train", "out"}
    assert settings.replace(out="e").given == {"train": ("./a//b", "c"), "out": "e"}
    with pytest.raises(AttributeError, match=r"settings do not change; use BuildSettings\.replace"):
        settings.out = "f"


def test_settings_in_stats_of_before_are_read() -> None:
    """As version 0.1.0 wrote them: of a build, and of an encode."""
    common = {"separator": "<|endoftext|>", "on_invalid_utf8": "error", "unit_size": 4194304}
    common |= {"workers": 2, "end_of_text": None, "begin_of_text": None, "max_minutes": None}
    common |= {"memory_limit": None, "overwrite": False, "shard_tokens": None}
    common |= {"split_documents": False}
    build = {"vocab_size": 400, "pattern": "gpt2", "special_tokens": ["<s>"], "min_frequency": 2}
    build |= {"tie_break": "greatest-bytes", "train": ["t.txt"], "val": [], "val_fraction": None}
    build |= {"out": "d", "name": "", "tokenizer": None, **common}
    default = BuildSettings().as_json()
    assert BuildSettings(**build).as_json() == default | build
    encode = {"paths": ["t.txt"], "tokenizer": "d/tokenizer.json", "pattern": None, **common}
    encode |= {"out": "e/x.bin"}
    of_build = {*build} - {*encode} | {"config", "width", "layers"}
    newer = {name: value for name, value in default.items() if name not in of_build}
    assert EncodeSettings(**encode).as_json() == newer | encode


def test_newer_options_are_no_difference_to_a_record_of_before() -> None:
    now = Record("build", recorded_settings(BuildSettings(train="x"), None), {}, None)
    before = replace(now, settings={x: y for x, y in now.settings.items() if x != "content_field"})
    assert differences(before, now) == []
    chosen = replace(now, settings=now.settings | {"content_field": ["body"]})
    assert differences(before, chosen) == ["content_field was [] and is ['body']"]


@pytest.mark.parametrize(("function", "unknown", "message"), [
    ("build", "dedup", "did you mean deduplicate?"),
    ("build", "chars_to_tokenize", "did you mean max_characters?"),
    ("build", "tokenization_folder", "did you mean out?"),
    ("build", "val_file", "did you mean val?"),
    ("build", "data_file", "did you mean train?"),
    ("build", "max_length", "it is an option of write_rows"),
    ("build", "seq_length", "it is an option of write_rows"),
    ("build", "save_frequency", "leave it out: progress is saved about once a second"),
    ("build", "use_params", "it trains a model; examples/train_gpt.py has it, as '--config F"),
    ("write_rows", "chunk_size", "leave it out: unit_size is the bytes of a unit of work"),
    ("write_rows", "data_file", "did you mean path?"),
    ("write_rows", "starting_character", "start_character is an option of build"),
    ("tokenize_and_save", "max_len", "did you mean max_length?"),
    ("tokenize_and_save", "num_workers", "did you mean workers?"),
    ("RayConfig", "workers", "it is an option of the section tokenize"),
    ("PipelineConfig", "dataset", "did you mean datasets?"),
    ("DatasetConfig", "text_field", "did you mean content_field?"),
    ("tokenize_and_save", "data_file", "did you mean data_files?"),
    ("DatasetConfig", "batch_size", "; it is an option of the section tokenize"),
    ("DatasetConfig", "block_size", "; seq_length is an option of the section pack"),
    ("build", "block_size", "seq_length is an option of write_rows"),  # not vocab_size
    ("build", "train_files", "did you mean train?"),  # not train_on
    ("build", "validation_file", "did you mean val?"),
    ("tokenize_and_save", "eos_token_id", "did you mean end_of_text?"),  # not keep_tokens
    ("tokenize_and_save", "text_column_name", "did you mean content_field?"),
    ("TokenizerConfig", "eos_token", "end_of_text is an option of the section tokenize"),
    ("SaveStageConfig", "num_rows", "num_rows: there is no such setting\n"),  # not num_workers
    ("SaveStageConfig", "revision", "revision: there is no such setting\n"),  # not compression
    ("SaveStageConfig", "seq_lenght", "did you mean seq_length, an option of the section pack"),
    ("TokenizeStageConfig", "num_workers", "it is an option of the section ray"),
    ("TokenizeStageConfig", "val_fraction", "it is an option of build"),
    ("build", "seq_lenght", "did you mean seq_length, an option of write_rows?"),
    ("TokenizeStageConfig", "max_len", "did you mean max_length?"),
])  # fmt: skip
def test_unknown_names_are_answered(function: str, unknown: str, message: str) -> None:
    """Those of other programs by what they are called here, others by the nearest."""
    with pytest.raises(SettingsError) as caught:
        getattr(preprocess, function)(**{unknown: 1})
    assert message in f"{caught.value}\n"
    if function == "TokenizeStageConfig":
        config: Any = {"datasets": [{"data_files": "x"}], "tokenize": {unknown: 1}}
        with pytest.raises(SettingsError, match=re.escape(f"tokenize.{unknown}: there is no")) as c:
            preprocess.PipelineConfig(**config)
        assert message in str(c.value)
