"""The benchmark itself: a figure counts only if results are equal; failures are told."""

import io
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import loaders, report
from benchmarks.__main__ import parse
from benchmarks.corpora import sized
from benchmarks.job import END_OF_TEXT, OURS, SIDES, Clock, Job, side
from benchmarks.rounds import MODULES, WORK, MeasurementError, compare, measure, peers_of
from bpe import train_bpe

ROOT = Path(__file__).parent.parent

# Sides of a work that only this test has: equal, another result, a failure, nothing to compare.
MADE_UP = f'''
from benchmarks.job import Result, digest_of, side

def result(name, digest):
    @side("made-up", name, package="numpy")
    def run(job, clock):
        print("a library says something")
        clock.time("work", lambda: sum(range(10_000)))
        return Result(1000, digest)

result("{OURS}", "same")
result("equal", "same")
result("different", "other")
result("time only", None)

@side("made-up", "failing", package="numpy")
def failing(job, clock):
    raise ValueError("no text at all")
'''


@pytest.fixture
def job(tmp_path: Path) -> Job:
    corpus = tmp_path / "text.txt"
    texts = [f"Document {i} says that {i} and {i}\nmake {2 * i}." for i in range(200)]
    corpus.write_text(END_OF_TEXT.join(texts))
    tokenizer = tmp_path / "tokenizer.json"
    train_bpe(corpus, 300, [END_OF_TEXT]).save(tokenizer)
    return Job("split", OURS, corpus, tokenizer, 300, "gpt2", 1, tmp_path)


@pytest.fixture
def made_up(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    (tmp_path / "made_up_sides.py").write_text(MADE_UP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(MODULES, "made-up", "made_up_sides")
    monkeypatch.setitem(SIDES, "made-up", {})
    for name in (OURS, "equal", "different", "time only", "failing"):
        side("made-up", name, package="numpy")(lambda job, clock: pytest.fail("not here"))
    return replace(job, work="made-up")


def test_every_work_has_our_side() -> None:
    parse([])
    assert set(SIDES) == set(MODULES)
    assert all(OURS in sides for sides in SIDES.values())
    assert set(WORK) <= set(MODULES)
    assert peers_of("train", "gpt2") == ["gigatoken", "tokenizers", "ffbpe", "rustbpe", "bpeasy"]
    assert "gigatoken" not in peers_of("train", "o200k")


def test_a_peer_that_everyone_has(job: Job) -> None:
    (found,) = compare(job, replace(job, side="regex"), 2, ("text", "300"))
    assert found.equal is True
    assert found.n_bytes == job.corpus.stat().st_size - 199 * len(END_OF_TEXT)
    assert len(found.ratios) == 2
    assert min(found.ratios) <= found.ratio <= max(found.ratios)
    assert found.our_memory or not Path("/proc/self/status").exists()
    assert f"**{found.ratio:.2f}**" in report.row(found)


def test_results_that_differ_have_no_figures(made_up: Job) -> None:
    (equal,) = compare(made_up, replace(made_up, side="equal"), 1, ("text", "300"))
    assert equal.equal is True
    (none,) = compare(made_up, replace(made_up, side="time only"), 1, ("text", "300"))
    assert none.equal is None
    assert "time only |" in report.row(none)
    (found,) = compare(made_up, replace(made_up, side="different"), 1, ("text", "300"))
    assert found.equal is False
    assert "results differ" in report.row(found)
    assert "**" not in report.row(found)
    assert "ratio" not in found.to_json()


def test_a_failure_says_why(made_up: Job) -> None:
    with pytest.raises(MeasurementError, match=r"made-up / failing ended with 1(.|\n)*no text at"):
        measure(replace(made_up, side="failing"))


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """An interpreter that adds a line to `python.log` whenever it starts."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho started >> "$0.log"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return python


def test_a_peer_runs_with_its_own_interpreter(made_up: Job, other_python: Path) -> None:
    peer = replace(made_up, side="equal")
    (found,) = compare(made_up, peer, 2, ("text", "300"), other_python)
    assert found.equal is True
    assert Path(f"{other_python}.log").read_text() == "started\n" * 2


@pytest.mark.parametrize("work", ["loaders", "loaders-random", "loaders-packed"])
def test_batches_of_loaders(work: str, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.sampling.N_TOKENS", 1_000_000)
    monkeypatch.setattr(loaders, "_BATCHES", 3)
    told = io.StringIO()
    result = SIDES[work][OURS].run(replace(job, work=work), Clock(told, job.corpus))
    assert result == (3 * 2 * 64 * 1024 * 8, None, None)
    assert [json.loads(line)[:2] for line in told.getvalue().splitlines()] == [
        ["begin", "batches"],
        ["end", "batches"],
    ]


def test_conversations_give_the_same_ids(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="needs the extra `chat`")
    assert MODULES["chats"] == "benchmarks.chats"
    from benchmarks import chats

    monkeypatch.setattr(chats, "_BYTES", 1_000_000)
    results = [
        SIDES["chats"][name].run(replace(job, work="chats"), Clock(io.StringIO(), job.corpus))
        for name in (OURS, "apply_chat_template")
    ]
    assert results[0].n_bytes == chats.conversations(job).stat().st_size > 0
    assert results[0] == results[1]


def test_windows_of_peers_are_checked(tmp_path: Path) -> None:
    windows = loaders.Windows(np.arange(64 * 1024 + 1, dtype=np.uint16))
    assert len(windows) == 64
    inputs, targets = map(np.stack, zip(*(windows[i] for i in range(64)), strict=True))
    loaders.check(inputs, targets)
    with pytest.raises(ValueError, match=r"expected int64 \(64, 1024\), found int32"):
        loaders.check(inputs.astype(np.int32), targets)
    with pytest.raises(ValueError, match=r"found int64 \(63, 1024\)"):
        loaders.check(inputs, targets[1:])
    with pytest.raises(ValueError, match="the targets are not the inputs one token later"):
        loaders.check(inputs, inputs)
    inputs[0, 5], targets[0, 4:6] = loaders.END_OF_TEXT_ID, (loaders.END_OF_TEXT_ID, -100)
    loaders.check(inputs, targets)
    np.arange(10, dtype=np.uint16).tofile(tmp_path / "tokens")
    pieces = [next(loaders.pieces_of(tmp_path / "tokens", 4, start)) for start in (0, 4, 8)]
    assert [piece.tolist() for piece in pieces] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_sizes(job: Job, tmp_path: Path) -> None:
    text = job.corpus.read_text()
    assert sized(job.corpus, None, tmp_path) == job.corpus
    shorter = sized(job.corpus, 1000, tmp_path).read_text()
    assert 900 < len(shorter) <= 1000
    assert text.startswith(shorter + END_OF_TEXT)
    longer = sized(job.corpus, 3 * len(text), tmp_path).read_text()
    assert longer == text + END_OF_TEXT + text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--corpus", "missing.txt"], "missing.txt is not a file"),
        (["--threads", "100000"], "--threads 100000 is more than"),
        (["--size", "many"], "--size many"),
        (["--peer", "nobody"], "--peer nobody: expected some of"),
        (["--python", "grain"], "--python grain: expected PEER=PATH"),
        (["--python", "nobody=python"], "--python nobody=python: expected a peer of"),
        (["--python", "grain=missing"], "--python grain=missing: missing is not a file"),
        (["--python", "grain="], "--python grain=: the path is not a file"),
    ],
)
def test_wrong_usage(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(arguments)
    assert message in capsys.readouterr().err


def test_the_command(job: Job, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "--corpus", str(job.corpus), "--rounds", "1"]
    options = ["--work", "split", "--vocab-size", "300", "--threads", "1", "--out", str(tmp_path)]
    run = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=True)
    markdown = (tmp_path / "benchmark.md").read_text()
    assert "| split | text |" in markdown
    assert "python -m benchmarks --corpus" in markdown
    assert "| split | text |" in run.stdout
    found = json.loads((tmp_path / "benchmark.json").read_text())
    assert found["comparisons"][0]["equal"] is True
    assert found["about"]["packages"]["numba"]
    assert found["failures"] == []
