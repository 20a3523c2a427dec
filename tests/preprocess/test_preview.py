"""A dry run shows what a run would do, and writes nothing; profiles set limits together."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import format_files
import pytest

from preprocess import build
from preprocess.cli import run
from preprocess.options import BuildSettings
from preprocess.pipeline import encode, train
from preprocess.run import memory_limit
from preprocess.run.memory_limit import apply_profile, expected_memory

TEXTS = ["Once upon a time.\n", "日本", "The end.", "The end.", "\x00 More."]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    format_files.write(tmp_path / "text" / "a.jsonl", TEXTS)
    (tmp_path / "text" / "b.png").write_bytes(b"\x89PNG\0")
    return tmp_path


def printed(capsys: Any, *arguments: str) -> list[str]:
    before = sorted(Path().rglob("*"))
    capsys.readouterr()
    assert run(["build", "--dry-run", *arguments]) == 0
    assert sorted(Path().rglob("*")) == before
    return capsys.readouterr().out.splitlines()


def test_a_build(here: Path, capsys: Any) -> None:
    lines = printed(capsys, "--train", "text", "--val-fraction", "0.5", "--workers", "1")
    size = (here / "text" / "a.jsonl").stat().st_size
    assert lines[0] == f"train and val: 1 file, {size:,} bytes: a.jsonl"
    assert lines[1] == "skipped: 1 binary file, such as text/b.png"
    assert lines[2] == "tokenizer: to be trained"
    assert lines[3].startswith("output: train.bin, val.bin in data, about 90 bytes (6.0 bytes of")
    assert re.fullmatch(r"disk: [\d,.]+ [GM]B are free in .*", lines[4])
    assert "with 1 workers and units of 4,194,304 bytes, and counts of pre-tokens" in lines[5]
    assert lines[6:] == [
        "train, document 0: 18 characters: Once upon a time.\\n",
        "train, document 1: 2 characters: 日本", "train, document 2: 8 characters: The end.",
    ]


def test_tokens_and_what_is_there(here: Path, capsys: Any) -> None:
    build(train="text", vocab_size=265, val_fraction=0)
    lines = printed(
        capsys, "--train", "text", "--tokenizer", "data/tokenizer.json", "--val-fraction", "0",
        "--deduplicate", "--start-character", "18", "--shuffle-documents", "1",
    )  # fmt: skip
    assert "exists: train.bin (--overwrite replaces it)" in lines
    assert any(re.match(r"work files: at most [\d.]+ (bytes|kB) in data, until", x) for x in lines)
    assert lines[-3:] == [
        "train, document 1: 2 characters, 6 tokens: \\xe6|\\x97|\\xa5|\\xe6|\\x9c|\\xac",
        "train, document 2: 8 characters, 3 tokens: The| end|.",
        "train: documents are shown in the order of the files, before they are selected",
    ]


def test_long_documents_and_standard_input(here: Path, capsys: Any) -> None:
    (here / "x.txt").write_text("word " * 1000 + "<|endoftext|>short")
    lines = printed(capsys, "--train", "x.txt", "--unit-size", "300", "--val-fraction", "0")
    assert [line.partition(":")[0] for line in lines[-2:]] == ["train, document 0",
                                                               "train, document 1"]  # fmt: skip
    assert lines[-2].endswith("...")
    lines = printed(capsys, "--train", "-")
    assert lines[-1] == "standard input is read by the run, so nothing is known of it"


def test_a_corpus(here: Path, capsys: Any) -> None:
    (here / "corpus.yaml").write_text(
        "tokenize: {profile: memory}\n"
        "datasets:\n  - {name: a, data_files: text, strip: true}\n"
        "  - {name: b, data_files: text/a.jsonl, max_documents: 1}\n"
    )
    lines = printed(capsys, "corpus.yaml")
    assert lines[:2] == ["tokenized/tokenizer.json: is trained on the datasets a, b", "dataset a:"]
    assert "  train and val, document 0" not in lines
    assert "  train, document 0: 17 characters: Once upon a time." in lines
    start = lines.index("dataset b:")
    assert "  train, document 0: 18 characters: Once upon a time.\\n" in lines[start:]
    assert sum("with 1 workers and units of 262,144 bytes" in line for line in lines) == 2


def test_errors_are_those_of_the_run(here: Path, capsys: Any) -> None:
    assert run(["build", "--dry-run", "--train", "none"]) == 1
    assert "no such file or directory; check the path" in capsys.readouterr().err


@pytest.mark.parametrize("profile", ["memory", "balanced", "speed"])
def test_profiles(profile: str, caplog: Any, monkeypatch: Any) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(memory_limit, "available_workers", lambda: 7)
    given: dict[str, Any] = {"profile": profile, "vocab_size": 1000}
    settings = apply_profile(BuildSettings(**given))
    found = settings.workers, settings.unit_size, settings.memory_limit
    assert found == {
        "memory": (1, 1 << 18, 500_000_000), "balanced": (4, 1 << 20, 2_000_000_000),
        "speed": (7, 4 << 20, None),
    }[profile]  # fmt: skip
    shown = "none" if found[2] is None else f"{found[2]:,}"
    assert (
        f"profile {profile}: workers {found[0]}, unit_size {found[1]:,}, memory_limit {shown}"
    ) in caplog.text
    # What is given stays, also if it is the default.
    given |= {"unit_size": "4MiB", "workers": 3}
    settings = apply_profile(BuildSettings(**given))
    assert (settings.workers, settings.unit_size) == (3, 4 << 20)
    assert (settings.memory_limit or 10**10) >= 500_000_000


def test_the_limit_of_a_profile_fits_the_run(here: Path) -> None:
    given: dict[str, Any] = {"profile": "memory", "vocab_size": 200_000}
    settings = apply_profile(BuildSettings(**given))
    assert settings.memory_limit == 220e6 + 150e6 + 200e6 + 30e6 + 90 * 65536
    assert expected_memory(settings) <= settings.memory_limit
    build(train="text", val_fraction=0, out="a", vocab_size=265, profile="memory")
    train(paths="text", out="t.json", vocab_size=265, profile="speed")
    encode(paths="text", tokenizer="t.json", out="b.bin", profile="balanced")
    assert Path("a/train.bin").read_bytes() == Path("b.bin").read_bytes()
