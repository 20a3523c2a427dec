"""Every option is the same in the schema, signatures, on the command line and in the docs."""

from __future__ import annotations

import importlib.util
import inspect
import pydoc
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import bpe
import preprocess
from bpe.errors import TokenmillError
from preprocess.cli import COMMANDS, run
from preprocess.run.record import differences, record_inputs
from preprocess.settings import corpus, keywords, schema
from preprocess.settings.options import (
    Option,
    SettingsError,
    convert,
    nearest,
    options_of,
    size_in_bytes,
)
from preprocess.settings.schema import BuildSettings, CountSettings, EncodeSettings

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("docs_options", ROOT / "docs" / "options.py")
docs = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(docs)


def settings_of(command: str) -> type:
    return getattr(schema, COMMANDS[command].settings)


@pytest.mark.parametrize("command", COMMANDS)
def test_signature_and_schema_are_the_same(command: str) -> None:
    function, options = docs.FUNCTIONS[command], options_of(settings_of(command))
    parameters = dict(inspect.signature(function).parameters)
    names = vars(keywords) | vars(sys.modules[function.__module__])
    progress = parameters.pop("progress", None)
    assert (progress is None) == (command in ("merge", "decode", "inspect", "doctor"))
    parameters.pop("options", None)  # of a TypedDict
    annotations = docs.keywords(function)
    del annotations["return"]
    annotations.pop("progress", None)
    assert annotations.keys() == options.keys()
    for name, annotation in annotations.items():
        assert eval(annotation, names) == options[name].accepts, name
    for name, parameter in parameters.items():
        required = parameter.default is inspect.Parameter.empty
        assert required == options[name].is_required
        assert required or parameter.default == options[name].default, name
        assert required or type(parameter.default) is type(options[name].default), name
        assert parameter.kind is parameter.KEYWORD_ONLY or name in ("path", "config")


EMPTY_PATHS = [
    (command, option.name)
    for command in COMMANDS
    for option in COMMANDS[command].options()
    if option.is_location
]


@pytest.mark.parametrize(("command", "name"), EMPTY_PATHS, ids="-".join)
def test_an_empty_path_is_wrong_usage(
    command: str, name: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what a variable of a shell is that was not set, and was read as the directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("some text")
    given = []
    for option in COMMANDS[command].options():
        if option.is_required or option.name == name:
            value = "" if option.name == name else "text.txt" if option.is_location else "1"
            value = "npy" if option.name == "to" else "raw" if option.name == "format" else value
            given += [value] if option.positional else [option.names[0], value]
    assert run([command, *given]) == 2
    assert capsys.readouterr().err.startswith(f"tokenmill: error: {name}: should ")
    assert [each.name for each in tmp_path.iterdir()] == ["text.txt"]


def test_an_empty_path_in_python() -> None:
    for call in (
        lambda: bpe.load_tokenizer(""), lambda: bpe.train_bpe("", 300),
        lambda: preprocess.verify(""), lambda: preprocess.build(train=["x", ""]),
        lambda: preprocess.build("x.yaml", out=""),
        lambda: preprocess.PipelineConfig(datasets=[{"name": "a", "data_files": "x"}],
                                          output_path=""),
        lambda: preprocess.PipelineConfig(datasets=[{"name": "a", "data_files": ""}]),
    ):  # fmt: skip
        with pytest.raises(TokenmillError, match=r"should not be an empty path|x\.yaml: cannot be"):
            call()
    with pytest.raises(SettingsError, match="chat_template: should not be empty"):
        preprocess.build(train="x", chat_template="")


def test_one_call_from_text_to_rows_has_all_options() -> None:
    """As editors and mypy know them; those of packing are in a `PipelineConfig`."""
    given = docs.keywords(preprocess.tokenize_and_save)
    wanted = options_of(corpus.DatasetConfig) | options_of(corpus.TokenizeStageConfig)
    wanted |= options_of(corpus.SaveStageConfig)
    others = {"name", "tokenizer_kwargs", "save_path", "enabled", "output_dir"}
    named = {"output_path", "output_format", "keep_tokens", "progress", "return", "seq_length"}
    assert given.keys() - named | {"format"} == wanted.keys() - others
    for name in given.keys() - named - {"tokenizer", "format"}:
        assert eval(given[name], vars(keywords)) == wanted[name].accepts, name


def test_help_of_python_shows_every_option() -> None:
    text = pydoc.plain(pydoc.render_doc(preprocess.build))
    for option in options_of(BuildSettings).values():
        assert re.search(rf"\b{option.name}: .* = {re.escape(repr(option.default))}[,)]", text)
    assert "**" not in text


def helped(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """First name of an option -> what help says of it, on one line."""
    capsys.readouterr()
    assert run([command, "--help"]) == 0
    printed = capsys.readouterr().out.replace("\noptions:", "")
    entries = re.split(r"\n  (?=\S)", printed)
    return {re.match(r"[\w.-]+", entry)[0]: " ".join(entry.split()) for entry in entries[1:]}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_the_command_and_schema_are_the_same(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = helped(command, capsys)
    assert shown.pop("-h")
    assert len(shown) == len(COMMANDS[command].options())
    for option in COMMANDS[command].options():
        name = option.metavar if option.positional else option.names[0]
        default = f" [default: {option.shown_default}]" if option.shown_default else ""
        assert shown[name].endswith(f" {option.help}{default}")
        assert option.is_switch or f"{option.metavar}" in shown[name]
        assert all(spelling in shown[name] for spelling in option.names if not option.positional)


def all_options() -> list[Option]:
    return [option for command in COMMANDS.values() for option in command.options()]


def test_defaults_are_shown_as_they_are() -> None:
    for option in all_options():
        shown = option.shown_default
        if option.is_required or option.is_switch:
            assert not shown
        elif option.kind.read is size_in_bytes and option.default:
            assert size_in_bytes(shown) == option.default
        elif option.default in (None, (), ""):
            assert shown == option.default_text or shown == "none"
        else:
            assert shown == str(option.default)
    assert options_of(BuildSettings)["val_fraction"].shown_default == str(
        convert({}, BuildSettings).validation_fraction
    )
    assert options_of(BuildSettings)["pattern"].shown_default == convert({}, BuildSettings).pattern


def test_tables_are_those_of_the_schema() -> None:
    assert docs.page() == (ROOT / "docs" / "options.md").read_text("utf-8"), docs.__doc__


def test_an_option_is_declared_once() -> None:
    """The same name in two classes means something else, or it would be inherited."""
    classes = [each for each in vars(schema).values() if isinstance(each, type)]
    declared = [
        (each.__name__, name, str(text))
        for each in classes
        if issubclass(each, schema.Settings)
        for name, text in inspect.get_annotations(each).items()
    ]
    assert len({(name, owner) for owner, name, _ in declared}) == len(declared)
    helps: dict[tuple[str, str], str] = {}
    for owner, name, _ in declared:
        option = options_of(getattr(schema, owner))[name]
        if name not in ("paths",):
            assert helps.setdefault((name, option.help), owner) == owner


USER = """
from pathlib import Path
import preprocess
from preprocess.pipeline import count, encode, train

result = preprocess.build(train="a.txt", val=[Path("b"), "c"], workers=None, unit_size="1MiB")
preprocess.build(vocab_size=8_000, special_tokens=["<s>"], tie_break="huggingface")
reveal_type(result)
train(paths="a", memory_limit="1GB")
encode(paths=["a"], tokenizer="t.json", shard_tokens=5)
count(paths="a", tokenizer=Path("t"))
preprocess.tokenize_and_save(
    data_files="a", tokenizer={"vocab_size": 300}, output_path="b", content_field="c", padding=True
)
preprocess.write_rows("a", max_length=5, num_shards=2, progress=False)
"""
WRONG = {
    "preprocess.build(vocab_sise=8)": 'Unexpected keyword argument "vocab_sise" for "build"',
    'preprocess.build(workers="2")': 'Argument "workers" to "build" has incompatible type "str"',
    'preprocess.build(tie_break="coin")': 'Argument "tie_break" to "build" has incompatible type',
    "preprocess.build(train=3)": 'Argument "train" to "build" has incompatible type "int"',
    'encode(paths="a")': 'Missing named argument "tokenizer" for "encode"',
    'preprocess.write_rows("a", num_shard=3)': 'Unexpected keyword argument "num_shard" for "wri',
    'preprocess.tokenize_and_save(data_files="a", tokenizer="b", output_path="c", strip=3)':
        'Argument "strip" to "tokenize_and_save" has incompatible type "int"',
    'preprocess.build("a.yaml", "b")': 'Too many positional arguments for "build"',
}


def test_mypy_checks_a_users_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(USER + "\n".join(WRONG) + "\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent"]
    command += ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "c")]
    done = subprocess.run(
        [*command, str(script)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert 'Revealed type is "preprocess.pipeline.BuildResult"' in lines[0]
    first = USER.count("\n") + 1
    for number, expected in enumerate(WRONG.values(), first):
        assert any(f"script.py:{number}: error: {expected}" in line for line in lines), done.stdout
    assert lines[-1].startswith(f"Found {len(WRONG)} errors in 1 file")


# Another value than the default, for each option of build.
OTHER = {
    **{"train": ("x",), "val": (), "val_fraction": 0.2, "out": "x", "name": "x", "tokenizer": "x"},
    **{"vocab_size": 999, "pattern": "o200k", "special_tokens": ("<s>",), "min_frequency": 3},
    **{"tie_break": "huggingface", "end_of_text": "<e>", "begin_of_text": "<b>"},
    **{"separator": "-", "on_invalid_utf8": "skip", "unit_size": 100, "workers": 77},
    **{"shard_tokens": 9, "split_documents": True, "max_minutes": 3.0, "memory_limit": 10**9},
    **{"overwrite": True, "content_field": ("a.b", "c"), "format": "jsonl", "strip": True},
    **{"text_preset": "title-text", "min_length": 3, "max_length_chars": 9},
    **{"on_bad_record": "skip", "max_bad_records": 5, "config": "x.yaml"},
    **{"deduplicate": True, "start_character": 9, "max_characters": 9, "max_documents": 9},
    **{"chat": "off", "chat_template": "x.jinja", "train_on": "all"},
    **{"chat_date": "2024-07-26", "chat_template_kwargs": '{"x": 1}'},
    **{"cut_documents": True, "shuffle_documents": 0, "profile": "speed"},
    **{"task_index": 1, "task_count": 3, "executor": "ray", "ray_address": "auto"},
    **{"ray_resources": ("CPU=2",)},
}


@pytest.mark.parametrize("name", OTHER)
def test_a_record_has_what_changes_the_result(name: str) -> None:
    needed: dict[str, dict[str, Any]] = {
        "split_documents": {"shard_tokens": 5}, "cut_documents": {"start_character": 5},
        "task_index": {"task_count": 3, "tokenizer": "x"}, "ray_address": {"executor": "ray"},
        "ray_resources": {"executor": "ray"},
    }  # fmt: skip
    given = needed.get(name, {})
    before = record_inputs("build", convert(given, BuildSettings), {}, None)
    now = record_inputs("build", convert(given | {name: OTHER[name]}, BuildSettings), {}, None)
    option = options_of(BuildSettings)[name]
    assert (before != now) == (option.changes_result and not option.is_location)


def test_every_option_has_another_value() -> None:
    assert OTHER.keys() == {each.name for each in fields(BuildSettings)}
    locations = [each.name for each in options_of(BuildSettings).values() if each.is_location]
    assert sorted(locations) == ["out", "tokenizer", "train", "val"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            {"vocabsize": 3, "workers": 0, "out": None},
            "vocabsize: there is no such setting; did you mean vocab_size?; workers:"
            " should be a whole number of at least 1; got 0; out: should be a path; got None",
        ),
        (
            {"val_fraction": 1, "max_minutes": -1},
            "val_fraction: should be a number of at least 0 and less than 1; got 1;"
            " max_minutes: should be a number greater than 0; got -1",
        ),
    ],
)
def test_everything_wrong_is_named(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        convert(values, BuildSettings)
    assert str(caught.value) == expected


def test_locations_are_kept_as_they_are_spelled() -> None:
    settings = convert({"train": ["./a//b", Path("c")], "out": "d/"}, BuildSettings)
    assert (settings.train, settings.out) == (("./a//b", "c"), "d/")
    with pytest.raises(SettingsError, match=r"^tokenizer: should be a path on .*; got 's3://b/k'$"):
        convert({"paths": "s3://b/t", "tokenizer": "s3://me:secret@b/k"}, CountSettings)


def test_settings_in_stats_of_before_are_read() -> None:
    """As version 0.1.0 wrote them: of a build, and of an encode."""
    common = {"separator": "<|endoftext|>", "on_invalid_utf8": "error", "unit_size": 4194304}
    common |= {"workers": 2, "end_of_text": None, "begin_of_text": None, "max_minutes": None}
    common |= {"memory_limit": None, "overwrite": False, "shard_tokens": None}
    common |= {"split_documents": False}
    build = {"vocab_size": 400, "pattern": "gpt2", "special_tokens": ["<s>"], "min_frequency": 2}
    build |= {"tie_break": "greatest-bytes", "train": ["t.txt"], "val": [], "val_fraction": None}
    build |= {"out": "d", "name": "", "tokenizer": None, **common}
    newer: dict[str, Any] = {
        "content_field": [], "format": None, "text_preset": None, "strip": False, "min_length": 0,
        "max_length_chars": None, "on_bad_record": "error", "max_bad_records": 1000,
        "deduplicate": False, "start_character": 0, "max_characters": None, "max_documents": None,
        "cut_documents": False, "shuffle_documents": None, "profile": None, "chat": "auto",
        "chat_template": None, "train_on": "assistant", "executor": "threads",
        "chat_date": None, "chat_template_kwargs": None,
        "ray_address": None, "ray_resources": [], "task_index": None, "task_count": None,
    }
    assert convert(build, BuildSettings).as_json() == build | newer | {"config": None}
    encode = {"paths": ["t.txt"], "tokenizer": "d/tokenizer.json", "pattern": None, **common}
    encode |= {"out": "e/x.bin"}
    assert convert(encode, EncodeSettings).as_json() == encode | newer


def test_newer_options_are_no_difference_to_a_record_of_before() -> None:
    now = record_inputs("build", convert({"train": "x"}, BuildSettings), {}, None)
    before = replace(now, settings={x: y for x, y in now.settings.items() if x != "content_field"})
    assert differences(before, now) == []
    chosen = replace(now, settings=now.settings | {"content_field": ["body"]})
    assert differences(before, chosen) == ["content_field was [] and is ['body']"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["a..b"], r"content_field 'a\.\.b' has an empty part; name fields as in data\.text"),
        (["a", "a.b"], r"content_field 'a' is text or an object with 'a\.b', not both; leave one"),
    ],
)
def test_fields_that_cannot_be(fields: list[str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        convert({"train": "x", "content_field": fields}, BuildSettings)


def test_none_is_the_default_that_is_computed() -> None:
    values = {"paths": "a", "tokenizer": "t", "workers": None, "pattern": None}
    assert convert(values, EncodeSettings) == convert(
        {"paths": "a", "tokenizer": "t"}, EncodeSettings
    )
    assert convert({"pattern": None}, BuildSettings).pattern == "gpt2"


def test_an_unknown_option_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["build", "--vocab_sise", "3"]) == 2
    assert capsys.readouterr().err == (
        "tokenmill: error: unrecognized arguments: --vocab_sise; did you mean --vocab-size?; see"
        " tokenmill build --help\n"
    )


def test_names_that_begin_alike_are_suggested_first() -> None:
    assert nearest("dedup", ["debug", "deduplicate"]) == "; did you mean deduplicate?"
    with pytest.raises(SettingsError, match=r"^text_preset: should be 'title-text'; got 'x'$"):
        convert({"text_preset": "x"}, BuildSettings)
