"""`doctor`: what is fit is said to be, what is not is a line that says what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from preprocess import doctor, pipeline
from preprocess.cli import run

NAMES = [
    "versions", "processor", "memory", "accelerator", "output directory", "disk", "tokenizer",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _small_and_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_WRITTEN_BYTES", 1024 * 1024)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)


def test_a_machine_that_is_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(tmp_path / "new")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[9:].partition(":")[0] for line in lines] == NAMES
    assert all(line.startswith("ok ") for line in lines)
    assert "can be written (it does not exist yet)" in lines[4]
    assert "one just trained gives every byte back" in lines[6]
    assert os.listdir(tmp_path) == []


def test_what_is_in_the_directory_is_tried(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some text " * 50)
    pipeline.train(paths=tmp_path / "text", out=tmp_path / "tokenizer.json", vocab_size=270)
    (tmp_path / ".build.partial").mkdir()
    checks = {check.name: check for check in doctor.examined(tmp_path)}
    assert all(check.fit for check in checks.values())
    assert f"{tmp_path / 'tokenizer.json'} gives every byte back" in checks["tokenizer"].text
    assert checks["output directory"].text.endswith("; unfinished: .build.partial")


def test_problems_are_named_and_the_rest_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    monkeypatch.setattr(doctor, "_LEAST_MEMORY", 1e18)
    monkeypatch.setattr(doctor, "_LEAST_DISK", 1e18)
    assert run(["doctor", str(tmp_path), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["fit"] is False
    problems = {check["name"]: check["text"] for check in said["checks"] if not check["fit"]}
    assert list(problems) == ["memory", "disk", "tokenizer"]
    assert "take a machine that has more" in problems["memory"]
    assert "make space or choose another directory" in problems["disk"]
    assert "tokenizer.json" in problems["tokenizer"]
    (tmp_path / "file").write_text("")
    checks = {check.name: check for check in doctor.examined(tmp_path / "file" / "below")}
    assert "is not a directory" in checks["output directory"].text
    assert not checks["disk"].fit


def test_a_tokenizer_that_does_not_work_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bpe.Tokenizer.decode", lambda self, ids: "something else")
    (check,) = [check for check in doctor.examined(tmp_path) if check.name == "tokenizer"]
    assert not check.fit
    assert "the installation is damaged" in check.text
