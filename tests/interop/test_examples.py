"""Examples: several processes, the Trainer, embeddings, and other people's scripts."""

from __future__ import annotations

import importlib
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import written

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

EXAMPLES = Path(__file__).parents[2] / "examples"
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """400 documents of 5 to 44 tokens that follow a pattern."""
    directory = tmp_path_factory.mktemp("data")
    written.dataset(directory, [5 + i % 40 for i in range(400)], seed=None)
    return directory


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import an example by its name."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    torch.set_num_threads(1)
    return importlib.import_module


def distributed(
    data: Path, checkpoint: Path, n_processes: int = 2, *more: str
) -> list[subprocess.Popen[str]]:
    """Start the processes that `torchrun` would; the first prints."""
    command = [
        sys.executable, str(EXAMPLES / "train_ddp.py"), "--data", str(data), "--checkpoint",
        str(checkpoint), "--global-batch-size", "6", "--context-length", "16", "--epochs", "2",
        "--max-steps", "50", "--save-every", "8", *more,
    ]  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "PYTHONPATH": str(EXAMPLES.parent), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "WORLD_SIZE": str(n_processes),
    }  # fmt: skip
    return [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(n_processes)
    ]  # fmt: skip


def losses(text: str) -> dict[int, str]:
    """Step -> loss, as it was printed: repr shows every bit."""
    found = re.findall(r"^step (\d+)/50: loss (\S+)$", text, re.MULTILINE)
    return {int(step): loss for step, loss in found}


def finished(processes: list[subprocess.Popen[str]]) -> str:
    said = [process.communicate(timeout=300) for process in processes]
    assert not any(process.returncode for process in processes), said
    return said[0][0]


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch was built without it")
def test_two_processes_killed_and_resumed_have_the_same_losses(data: Path, tmp_path: Path) -> None:
    whole = losses(finished(distributed(data, tmp_path / "whole.pt")))
    assert [*whole] == list(range(1, 51))
    assert float(whole[50]) < float(whole[1])
    killed = distributed(data, tmp_path / "killed.pt")
    seen: dict[int, str] = {}
    assert killed[0].stdout is not None
    while 19 not in seen:
        line = killed[0].stdout.readline()
        assert line, killed[0].communicate()
        seen |= losses(line)
    for process in killed:
        process.kill()
        process.communicate()
    resumed = losses(finished(distributed(data, tmp_path / "killed.pt")))
    assert min(resumed) in (17, 25, 33, 41, 49)  # after a save
    assert seen | resumed == whole
    # One process sees the same batches; sums in another order differ by rounding.
    alone = losses(finished(distributed(data, tmp_path / "alone.pt", n_processes=1)))
    assert np.allclose([*map(float, alone.values())], [*map(float, whole.values())], rtol=1e-4)


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch was built without it")
def test_a_batch_that_processes_cannot_share_is_refused(data: Path, tmp_path: Path) -> None:
    processes = distributed(data, tmp_path / "x.pt", 2, "--global-batch-size", "3")
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 2
        message = "--global-batch-size should be a multiple of the 2 processes; got 3"
        assert f"train_ddp.py: error: {message}" in errors
    assert not (tmp_path / "x.pt").exists()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="PyTorch was built without it")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "it has to be started by torchrun: torchrun --nproc-per-node 2 examples/train_"),
        (["--epochs=-1"], "argument --epochs: should be an integer of at least 1; got -1"),
        (["--save-every=x"], "argument --save-every: should be an integer of at least 1; got x"),
    ],
)
def test_processes_that_are_started_wrongly(
    load: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: list[str], message: str,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as stopped:
        load("train_ddp").main(arguments)
    assert stopped.value.code == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: torchrun --nproc-per-node N examples/train_ddp.py ")
    assert error.startswith(f"train_ddp.py: error: {message}")


@pytest.fixture
def trainer_example(load: Any) -> Any:
    pytest.importorskip("transformers", reason="needs the extra `hf`")
    pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
    return load("train_with_trainer")


def test_the_trainer_learns(
    trainer_example: Any, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_example, "CONTEXT_LENGTH", 32)

    def history(trainer: Any) -> list[float]:
        return [each["loss"] for each in trainer.state.log_history if "loss" in each]

    output = tmp_path / "output"
    first = history(trainer_example.train(data, output, 50, resume=False))
    assert first[-1] < first[0]
    assert history(trainer_example.train(data, output, 60, resume=True))[:5] == first


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "the following arguments are required: data"),
        (["data", "--max-steps=0"], 2, "--max-steps should be at least 1; got 0"),
        (["data", "--output=old"], 1, "old: has checkpoints of another run; continue it with"),
        (["data", "--output=new", "--resume"], 1, "new: has no checkpoint to continue from;"),
        (["data", "--output=new"], 1, "data/train.bin: there is no such file"),
    ],
)
def test_the_trainer_is_not_started(
    trainer_example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old" / "checkpoint-50").mkdir(parents=True)
    try:
        found = trainer_example.main(arguments)
    except SystemExit as stopped:
        found = stopped.code
    assert found == code
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"train_with_trainer.py: error: {message}")


def test_rows_of_a_pipeline(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra `formats`")
    from bpe import Tokenizer
    from preprocess import ParquetShardedSource

    monkeypatch.chdir(tmp_path)
    texts = [f"Text number {i} of a few. " * (i % 4 + 1) for i in range(60)]
    lines = (json.dumps({"body": text}) + "\n" for text in texts)
    Path("text.jsonl").write_text("".join(lines))
    arguments = ["text.jsonl", "--content-field", "body", "--seq-length", "32"]
    load("pipeline_rows").main(arguments)
    assert "'segment_ids': (8, 32)" in capsys.readouterr().out
    load("pipeline_rows").main(arguments)
    assert "text: packed: up to date" in capsys.readouterr().out
    tokenizer = Tokenizer.from_file("packed/tokenizer.json")
    found = [
        tokenizer.decode(row["input_ids"][row["segment_ids"] == number])
        for row in ParquetShardedSource("packed")
        for number in range(1, 1 + row["segment_ids"].max())
    ]
    assert sorted(found) == sorted(f"{text}<|endoftext|>" for text in texts)


def test_embeddings_of_a_batch(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    module = load("embeddings")
    found = module.main()
    assert found.shape == (8, 8, 16)
    text = capsys.readouterr().out
    first, targets = (line.split("'")[1] for line in text.splitlines()[:2])
    assert module.TEXT.startswith(first)
    assert targets in module.TEXT
    assert "(8, 8, 16)" in text


def test_npz_rows(load: Any, tmp_path: Path, capsys: Any, caplog: Any) -> None:
    texts, out = tmp_path / "texts", tmp_path / "out"
    texts.mkdir()
    lines = [{"title": "A title"}, {"text": "words " * 30}, {"id": 3}, {"title": "", "text": "end"}]
    (texts / "part_000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (texts / "part_001.txt").write_text("some plain text " * 9)
    command = ["--input", str(texts), "--output", str(out), "--max-length", "16", "--stride", "8"]
    command += ["--batch-size", "500", "--save-frequency", "10000"]
    example = load("npz_rows")
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
