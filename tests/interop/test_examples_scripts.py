"""Examples in the spelling of other people's scripts, on small real input."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

EXAMPLES = Path(__file__).parents[2] / "examples"
END = "<|endoftext|>"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import an example by its name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    torch.set_num_threads(1)
    return importlib.import_module


def test_npz_rows(load: Any, tmp_path: Path, capsys: Any, caplog: Any) -> None:
    texts, out = tmp_path / "texts", tmp_path / "out"
    texts.mkdir()
    lines = [{"title": "A title"}, {"text": "words " * 30}, {"id": 3}, {"title": "", "text": "end"}]
    (texts / "part_000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (texts / "part_001.txt").write_text("some plain text " * 9)
    command = ["--input", str(texts), "--output", str(out), "--max-length", "16", "--stride", "8"]
    command += ["--batch-size", "500", "--save-frequency", "10000"]
    example: ModuleType = load("npz_rows")
    files = example.main([*command, "--vocab-size", "280", "--workers", "2", "--max-minutes", "9"])
    assert [path.name for path in files] == ["part_000.npz", "part_001.npz"]
    first = np.load(files[0])
    assert first["input_ids"].dtype == np.int32
    assert first["input_ids"].shape == first["attention_mask"].shape
    assert set(first["attention_mask"].flatten().tolist()) == {0, 1}
    before = {path.name: path.stat().st_ino for path in files}
    (texts / "part_002.txt").write_text("added later")
    files[1].write_bytes(b"damaged")
    again = example.main([*command, "--vocab-size", "280"])
    assert ", 2 written and the others up to date" in capsys.readouterr().out
    assert "settings are not used" not in caplog.text
    assert [path.name for path in again] == [*before, "part_002.npz"]
    assert again[0].stat().st_ino == before["part_000.npz"]
    assert len(np.load(again[1])["input_ids"])


def test_notebook_windows(load: Any, capsys: Any) -> None:
    assert load("notebook_windows").main().shape == (8, 4, 16)
    said = capsys.readouterr().out
    assert '-> it was the " best" of <|unk|>' in said
    assert "-> it was<|endoftext|>In the" in said


def test_pickled_dumps(load: Any, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("transformers", reason="needs the extra `hf`")
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    pa = pytest.importorskip("pyarrow", reason="needs the extra `formats`")
    from pyarrow import parquet

    code = [f"def f{i}(x):\n    return x + {i}\n" * (i % 5 + 1) for i in range(60)]
    parquet.write_table(pa.table({"code": code}), tmp_path / "code.parquet")
    losses = load("pickled_dumps").main([
        "--data_file", str(tmp_path / "code.parquet"), "--tokenization_folder",
        str(tmp_path / "out"), "--chars_to_tokenize", "3000", "--starting_character", "0",
        "--seq_length", "48", "--vocab_size", "300", "--chunk_size", "10000",
    ])
    assert len(losses) == 2
    assert all(0 < loss < 9 for loss in losses)
    assert "dump-meta_data.json: files 1, samples " in capsys.readouterr().out


def test_cs336(load: Any, tmp_path: Path, capsys: Any) -> None:
    for name, n in (("train", 200), ("val", 20)):
        text = END.join(f"Once upon a time, number {i} met number {i * i}. " for i in range(n))
        (tmp_path / f"{name}.txt").write_text(text)
    inputs = load("cs336").main([
        "--train_file", str(tmp_path / "train.txt"), "--val_file", str(tmp_path / "val.txt"),
        "--vocab_size", "300", "--output_dir", str(tmp_path / "data"), "--name", "tiny",
    ])
    assert inputs.shape == (4, 32)
    ids = np.fromfile(tmp_path / "data" / "tiny_val_tokens.bin", np.uint16)
    assert (ids == 299).sum() == 19
    assert "tiny_train_tokens.bin" in capsys.readouterr().out
