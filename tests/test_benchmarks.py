"""The benchmark itself: a figure counts only if results are equal; failures are told."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.__main__ import parse
from benchmarks.job import END_OF_TEXT, OURS, SIDES, Job, side
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
    assert {"gigatoken", "gigabpe", "tokenizers"} <= {*peers_of("train", "gpt2")}
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
