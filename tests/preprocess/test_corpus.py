"""corpus.yaml: several datasets, one configuration; killed, resumed, verified; wrong spellings."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import faults
import format_files
import pytest
import torture
from verify_cases import damages

from bpe import Tokenizer
from bpe.errors import TokenmillError
from preprocess import DatasetConfig, PipelineConfig, SettingsError, TokenizerConfig, build
from preprocess.check.verify import verify
from preprocess.cli import run
from preprocess.pipeline import train
from preprocess.report.progress import OutOfTimeError
from preprocess.run import count_pass, journal
from preprocess.storage import OutputError

YAML = """\
output_path: out
tokenizer: {vocab_size: 300}
tokenize: {workers: 2, unit_size: 700, strip: true}
datasets:
  - name: code
    data_files: [code.jsonl.zst]
    content_field: text
    tokenizer: other/tokenizer.json
    save_path: elsewhere
    val_fraction: 0
  - name: prose
    data_files: prose-*.txt
    val_fraction: 0.2
  - name: posts
    data_files: posts.json
    val_files: posts.json
    min_length: 20
    strip: false
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made, documents = tmp_path_factory.mktemp("files"), format_files.DOCUMENTS
    format_files.write(made / "code.jsonl.zst", documents[:100])
    format_files.write(made / "prose-1.txt", documents[100:150])
    format_files.write(made / "prose-2.txt", documents[150:250])
    format_files.write(made / "posts.json", [*documents[250:], "short"])
    train(paths=made / "prose-1.txt", out=made / "other" / "tokenizer.json", vocab_size=270)
    (made / "corpus.yaml").write_text(YAML)
    return made


@pytest.fixture
def corpus(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.0)
    monkeypatch.setattr(count_pass, "_WORK_PER_SAVING", 0)
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    return tmp_path


def contents(corpus: Path) -> dict[str, dict[str, bytes]]:
    return {name: torture.contents(corpus / name, "config.json") for name in ("out", "elsewhere")}


def test_a_corpus_is_what_its_datasets_are(corpus: Path) -> None:
    result = build("corpus.yaml")
    assert list(result.datasets) == ["code", "prose", "posts"]
    assert result.manifests.keys() == {
        "code/train", "prose/train", "prose/val", "posts/train", "posts/val",
    }  # fmt: skip
    shared = Tokenizer.from_file("out/tokenizer.json")
    assert result.tokenizer.fingerprint == shared.fingerprint
    assert shared.vocab_size == 300
    # The same datasets, built one by one.
    build(
        train="prose-*.txt", val_fraction=0.2, strip=True, tokenizer="out/tokenizer.json",
        out="alone",
    )
    for name in ("train.bin", "train.docs", "val.bin"):
        assert Path("alone", name).read_bytes() == Path("out/prose", name).read_bytes()
    assert result.datasets["posts"].stats["short_documents"] == 2  # of train and val
    saved = json.loads(Path("out/config.json").read_text())
    assert saved["datasets"]["prose"]["strip"] is True
    assert saved["datasets"]["prose"]["tokenizer"] == "out/tokenizer.json"
    assert "vocab_size" not in saved["datasets"]["prose"]
    assert saved["datasets"]["posts"]["strip"] is False
    for directory in ("out/prose", "out/posts", "elsewhere"):
        assert not damages(verify(directory, deep=True))
    again = build("corpus.yaml", unit_size="64KiB", max_bad_records=3)
    assert all("up to date" in line for line in again.lines if "documents" in line)
    # The same in Python.
    expected = contents(corpus)
    for name in ("out", "elsewhere"):
        torture.remove(corpus / name)
    build(PipelineConfig(
        output_path="out",
        tokenizer=TokenizerConfig(vocab_size=300),
        tokenize={"workers": 1, "unit_size": 10_000, "strip": True},
        datasets=[
            DatasetConfig(
                name="code", data_files="code.jsonl.zst", content_field=["text"],
                tokenizer="other/tokenizer.json", save_path="elsewhere", val_fraction=0,
            ),
            {"name": "prose", "data_files": ["prose-*.txt"], "val_fraction": 0.2},
            DatasetConfig(
                name="posts", data_files="posts.json", val_files="posts.json", min_length=20,
                strip=False,
            ),
        ],
    ))  # fmt: skip
    assert contents(corpus) == expected


def test_it_is_killed_and_resumed(corpus: Path) -> None:
    build("corpus.yaml")
    expected = contents(corpus)
    for name in ("out", "elsewhere"):
        torture.remove(corpus / name)
    n_kills = faults.end_and_resume(
        lambda progress: build("corpus.yaml", progress=progress), range(10, 200, 15)
    )
    assert n_kills > 2
    build("corpus.yaml")
    assert contents(corpus) == expected


def test_the_command(corpus: Path, capsys: Any) -> None:
    assert run(["build", "corpus.yaml", "--workers", "1", "--max-minutes", "5"]) == 0
    printed = capsys.readouterr().out
    assert "prose: train: " in printed
    assert run(["build", "corpus.yaml"]) == 0
    assert "prose: train: up to date" in capsys.readouterr().out
    assert run(["build", "corpus.yaml", "--strip", "--vocab-size", "400"]) == 2
    said = capsys.readouterr().err
    assert "--strip: belongs in the configuration, which is given, too; --vocab-size: b" in said
    with pytest.raises(OutOfTimeError):
        build("corpus.yaml", max_minutes=1e-9, overwrite=True)


def test_given_options_win_also_if_they_are_the_defaults(corpus: Path) -> None:
    Path("a.jsonl").write_text('{"text": "one document"}\n{"no": "text"}\n')
    Path("corpus.yaml").write_text(
        "tokenizer: other/tokenizer.json\n"
        "tokenize: {on_bad_record: skip, max_bad_records: 0, overwrite: true}\n"
        "datasets: [{name: a, data_files: a.jsonl, val_fraction: 0}]\n"
        "ray: {address: 'ray://127.0.0.1:1', resources_per_worker: {CPU: 2}}\n"
    )
    given: dict[str, Any] = {"executor": "threads", "max_bad_records": 1000}
    assert "left out: 1 bad record" in " ".join(build("corpus.yaml", **given).lines)
    with pytest.raises(TokenmillError, match="bad record 1, and 0 are allowed"):
        build("corpus.yaml", executor="threads")  # the other option was of that call
    command = ["build", "corpus.yaml", "--executor", "threads", "--max-bad-records", "1000"]
    assert run(command) == 0
    Path("a.jsonl").write_text('{"text": "another document"}\n')
    with pytest.raises(TokenmillError, match=r"its inputs were different .* replace it"):
        build("corpus.yaml", **given, overwrite=False)
    with pytest.raises(SettingsError, match="vocab_size: belongs in the configuration"):
        build("corpus.yaml", vocab_size=32_000)


@pytest.mark.parametrize(("old", "new", "message"), [
    ("    content_field: text", "    contents_field: text",
     r"7: contents_field: there is no such setting; did you mean content_field\?"),
    ("    content_field: text", "    workers: 2",
     r"7: workers: there is no such setting; it is an option of the section tokenize"),
    ("    content_field: text", "    vocab_size: 2",
     r"7: vocab_size: .* is an option of the section tokenizer"),
    ("    data_files: [code", "    train: [code", r"6: train: .*; did you mean data_files\?"),
    ("tokenize:", "tokenise:", r"3: tokenise: there is no such setting; did you mean token"),
    ("workers: 2", "workers: two", r"3: workers: should be a whole number of at least 1 and"),
    ("    val_fraction: 0.2", "    val_fraction: 2",
     r"13: val_fraction: should be a number of at least 0 and less than 1; got 2"),
    ("  - name: posts\n", "  - nam: posts\n", r"14: nam: there is no .*; did you mean name\?"),
    ("name: posts", "name: prose", r"14: name: 'prose' is an earlier dataset; rename one"),
    ("save_path: elsewhere", "save_path: out/prose",
     r"11: save_path: 'out/prose' is that of the dataset 'code', too; give each its own"),
    ("    val_files: posts.json", "    val_files: posts.json\n    val_fraction: 0.1",
     r"14: val and val_fraction were both given"),
    ("strip: false", "a: 0\n    a: 1", r"19: a: is in line 18 already; leave one"),
    ("{vocab_size: 300}", "{vocab_size: 300, vocab_size: 301}",
     r"2: vocab_size: is in line 2 already; leave one"),
    ("datasets:", "datasets: [", r"\d+: cannot be read as YAML \("),
    ("  - name: posts", "  - posts", r"14: expected options with values, found 'p|as YAML"),
    ("{vocab_size: 300}", "{vocab_size: 3}", r"2: tokenizer: vocab_size 3 is too small"),
    ("name: posts", "name: &a [*a]", r"14: name: should be text; got"),
    ("path: out", "path: out\nsave: {format: csv}", r"2: format: should be 'parquet',"),
    ("path: out", "path: out\nsave: {format: jsonl, compression: zlib}",
     r"2: save: compression 'zlib' is not for format 'jsonl', which"),
])  # fmt: skip
def test_wrong_spellings(corpus: Path, old: str, new: str, message: str) -> None:
    assert old in YAML
    Path("corpus.yaml").write_text(YAML.replace(old, new))
    with pytest.raises(SettingsError, match=message) as raised:
        build("corpus.yaml")
    assert "\n" not in str(raised.value)
    assert not Path("out").exists()


def test_files_that_are_no_configuration(corpus: Path) -> None:
    for content, message in (
        (b"", r"c\.yaml: expected sections, such as datasets; found None"),
        (b"- a", r"c\.yaml: expected sections"),
        (b"datasets: []", r"c\.yaml:1: datasets: should be a list of at least one"),
        (b"datasets: x", r"c\.yaml:1: datasets: should be a list of at least one"),
        (b"a: \xff", r"c\.yaml: cannot be read as YAML \('utf-8' codec can't decode byte 0xff"),
        (b"name: 2024-99-99", r"c\.yaml: cannot be read as YAML \(month must be in 1"),
        (b"a: \x07", r"c\.yaml: cannot be read as YAML \(unacceptable character"),
        (b"a: " + b"[" * 3000, r"c\.yaml.* cannot be read as YAML"),
        (b"a: !!python/object:os.system x", r"c\.yaml:1: cannot be read as YAML \(could not"),
    ):
        Path("c.yaml").write_bytes(content)
        with pytest.raises(SettingsError, match=message):
            build("c.yaml")
    with pytest.raises(SettingsError, match=r"a\.txt: expected a \.yaml file .* given with train$"):
        build("a.txt")
    with pytest.raises(SettingsError, match=r"none\.yaml: cannot be read as YAML \(No such file"):
        build("none.yaml")
    Path("null.yaml").symlink_to("/dev/null")
    with pytest.raises(SettingsError, match=r"null\.yaml: is a device, expected a YAML file; give"):
        build("null.yaml")


def test_a_missing_file_is_found_before_the_work(corpus: Path, capsys: Any) -> None:
    for old, new, message in (
        ("posts.json", "post.json", "15: data_files: post.json: no such file or directory; check"),
        ("other/tokenizer.json", "none/tokenizer.json", "8: tokenizer: none/tokenizer.json: "),
    ):
        Path("corpus.yaml").write_text(YAML.replace(old, new))
        assert run(["build", "corpus.yaml"]) == 1
        assert f"corpus.yaml:{message}" in capsys.readouterr().err
        assert not Path("out").exists()


def test_given_tokenizers_get_what_they_lack(corpus: Path, caplog: Any) -> None:
    """A .tiktoken file has neither a pattern nor special tokens; other tokenizers need none."""
    Path("corpus.yaml").write_text(YAML.replace("{vocab_size: 300}", "other/tokenizer.json"))
    result = build("corpus.yaml")
    other = Tokenizer.from_file("other/tokenizer.json").fingerprint
    assert {each.tokenizer.fingerprint for each in result.datasets.values()} == {other}
    assert not Path("out/tokenizer.json").exists()
    ranks = "".join(f"{base64.b64encode(bytes([i])).decode()} {i}\n" for i in range(256))
    Path("x.tiktoken").write_text(ranks)
    given = {"name_or_path": "x.tiktoken", "pattern": "cl100k", "special_tokens": ["<s>"]}
    datasets = [{"name": "a", "data_files": "prose-1.txt", "val_fraction": 0}]
    found = build(PipelineConfig(datasets=datasets, tokenizer=given)).tokenizer
    assert (found.pattern, list(found.special_tokens)) == ("cl100k", ["<|endoftext|>", "<s>"])
    assert "not used" not in caplog.text
    own = [{**datasets[0], "name": "b", "tokenizer": "x.tiktoken"}]
    found = build(PipelineConfig(datasets=own, tokenizer={"pattern": "o200k"})).tokenizer
    assert found.pattern == "o200k"
    given = {"name_or_path": "other/tokenizer.json", "vocab_size": 999}
    build(PipelineConfig(datasets=[{**datasets[0], "name": "c"}], tokenizer=given))
    assert "these settings are not used: vocab_size" in caplog.text


def test_changes_of_datasets_are_named(corpus: Path) -> None:
    """Also of their order, for checkpoints of the training number the sources of all."""
    with pytest.raises(faults.CutOff):
        build("corpus.yaml", progress=faults.Ending([10]))
    first, second = YAML.index("  - name: prose"), YAML.index("  - name: posts")
    for changed, message in (
        (YAML[:first] + YAML[second:] + YAML[first:second],
         r"order_of_datasets was \['prose', 'posts'\] and is"),
        (YAML.replace("min_length: 20", "min_length: 21"),
         r"datasets\.posts\.min_length was 20 and is 21"),
    ):  # fmt: skip
        Path("corpus.yaml").write_text(changed)
        with pytest.raises(OutputError, match=message):
            build("corpus.yaml")


def test_a_configuration_of_another_program_is_left_alone(corpus: Path) -> None:
    Path("out").mkdir()
    Path("out/config.json").write_text("{}")
    with pytest.raises(OutputError, match=r"choose another directory \(output_path\)"):
        build("corpus.yaml")
    assert Path("out/config.json").read_text() == "{}"
    Path("out/config.json").unlink()
    build("corpus.yaml")
    assert json.loads(Path("out/config.json").read_text())["format"] == "tokenmill-corpus"
    build("corpus.yaml")
