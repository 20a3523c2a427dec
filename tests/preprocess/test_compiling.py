"""The first build on a machine: kernels are compiled once, and that is reported and timed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bpe.runtime import jit
from preprocess.report.progress import Progress
from preprocess.run import compiling

pytestmark = pytest.mark.skipif(jit.DISABLE_JIT, reason="uncompiled there is nothing to compile")

ROOT = Path(__file__).parents[2]
STAGES = ["counting", "merging", "encoding train"]

# The process that compiles is killed at once; at the end none is left.
KILLED = """
import os, signal, subprocess, sys
from preprocess import cli
from preprocess.run import compiling
def killed(pattern):
    return subprocess.Popen([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"])
compiling._start_child = killed
code = cli.main(sys.argv[1:])
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    sys.exit(code)
sys.exit("a process is left")
"""


def build(
    directory: Path, out: str, *options: str, program: tuple[str, ...] = ("-m", "preprocess")
) -> str:
    """Build with the cache of a directory; return what was written to stderr."""
    command = [sys.executable, *program, "build", "--train", str(directory / "text")]
    finished = subprocess.run(
        [*command, "--out", str(directory / out), "--vocab-size", "300", *options],
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "NUMBA_CACHE_DIR": str(directory / "cache"),
            "NUMBA_OPT": "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stderr


def stages(directory: Path, out: str) -> list[str]:
    """Return the names of the stages of a build."""
    stats = json.loads((directory / out / "stats.json").read_text())
    return [stage["name"] for stage in stats["stages"]]


def kept(directory: Path) -> set[Path]:
    """Return the files with machine code."""
    return set((directory / "cache").rglob("*.o"))


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Build for the first time; return the directory, and what was reported."""
    directory = tmp_path_factory.mktemp("first")
    # So many different pre-tokens, short and long, that all tables have to grow.
    words = " ".join(f"{i:05}x {i:020}x" for i in range(10_000))
    text = "some text, 12 documents<|endoftext|>" * 300 + words
    (directory / "text").write_text(text, encoding="utf-8")
    return directory, build(directory, "first", "--val-fraction", "0")


def test_compiling_is_reported_and_timed(first: tuple[Path, str]) -> None:
    directory, said = first
    lines = re.findall(r"compiling kernels, once per machine: (\d+) of (\d+), about .* left", said)
    assert len(lines) >= 2
    assert all(int(done) <= int(total) for done, total in lines)
    assert "for this machine" not in said  # what programs that use the library are told
    names = stages(directory, "first")
    assert names[0] == compiling._STAGE
    assert [name for name in names if name != compiling._STAGE] == STAGES


def test_the_next_build_compiles_nothing(first: tuple[Path, str]) -> None:
    directory, _ = first
    before = kept(directory)
    assert "compiling" not in build(directory, "second", "--val-fraction", "0")
    assert kept(directory) == before
    assert stages(directory, "second") == STAGES
    for name in ("train.bin", "train.docs", "tokenizer.json", "train.json"):
        assert (directory / "second" / name).read_bytes() == (
            directory / "first" / name
        ).read_bytes()


def without_encoding(first: Path, tmp_path: Path) -> set[Path]:
    """Copy a directory without a kernel of encoding; return the files in its cache."""
    shutil.copytree(first, tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / "cache").rglob("cache_rows.move_rows-*"):
        path.unlink()
    return kept(tmp_path)


def test_a_process_that_is_killed_costs_time_alone(first: tuple[Path, str], tmp_path: Path) -> None:
    before = without_encoding(first[0], tmp_path)
    said = build(tmp_path, "out", "--val-fraction", "0", program=("-c", KILLED))
    assert "compiling kernels, once per machine: " in said
    assert len(kept(tmp_path) - before) == 1
    assert stages(tmp_path, "out") == [*STAGES[:2], compiling._STAGE, STAGES[2]]
    assert (tmp_path / "out" / "train.bin").read_bytes() == (
        first[0] / "first" / "train.bin"
    ).read_bytes()


def test_a_run_that_fails_ends_the_process_that_compiles() -> None:
    compiler = compiling.KernelCompiler(Progress())
    waiting = [sys.executable, "-c", "input()"]
    compiler._child = subprocess.Popen(waiting, stdin=subprocess.PIPE)
    other = compiler._child
    with pytest.raises(RuntimeError, match="full disk"), compiler:
        raise RuntimeError("full disk")
    assert other.stdin is not None
    other.stdin.close()
    assert other.returncode == -9


def test_the_process_that_compiles_runs_no_file_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bpe.py").write_text("open('ran', 'w').close()")
    monkeypatch.chdir(tmp_path)
    assert compiling._start_child("gpt2").wait() == 0
    assert not (tmp_path / "ran").exists()
