"""Directories that have more than the outputs of one run: files of others, and the text itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from preprocess import build
from preprocess.cli import run

TEXT = "<|endoftext|>".join(f"document {i} of many, and more words" for i in range(60))


def options_of(directory: Path) -> dict[str, Any]:
    return {"train": directory / "text", "out": directory, "vocab_size": 280, "val_fraction": 0.2}


def test_files_of_others_beside_the_outputs(tmp_path: Path, capsys: Any) -> None:
    """Links that lead nowhere, as editors make them, and JSON that does not fit in memory."""
    (tmp_path / "text").write_text(TEXT)
    (tmp_path / ".#train.json").symlink_to("me@host.1234:5678")
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "directory.json").mkdir()
    for name in ("huge.json", "my_stats.json"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(1 << 43)  # no memory has room for it, and it takes none of the disk
    out = str(tmp_path)
    command = ["build", "--train", f"{out}/text", "--out", out, "--vocab-size", "280"]
    for _ in range(2):
        assert run(command) == 0
    assert "up to date" in capsys.readouterr().out
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "link").symlink_to("nowhere")
    for name in ("rows", "export"):
        how = ["--format", "jsonl"] if name == "rows" else ["--to", "npy"]
        for _ in range(2):
            assert run([name, out, "--out", f"{out}/{name}", *how]) == 0, capsys.readouterr()
    for name in ("verify", "inspect"):
        assert run([name, out]) == 0, capsys.readouterr()
    for name in ("train.json", "stats.json"):
        with open(tmp_path / "rows" / name, "wb") as file:
            file.truncate(1 << 43)
    assert run([*command[:3], "--out", f"{out}/rows"]) == 1
    assert "train.json: exists and is not a manifest" in capsys.readouterr().err
