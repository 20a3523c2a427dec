"""The first build on a machine: kernels are compiled once, and that is reported and timed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bpe.runtime import jit
from preprocess.run import compiling

pytestmark = pytest.mark.skipif(jit.DISABLE_JIT, reason="uncompiled there is nothing to compile")

ROOT = Path(__file__).parents[2]
STAGES = ["counting", "merging", "encoding train"]
# Python ignores entries of sys.path that are no text.
PROGRAM = (
    "import sys, pathlib; sys.path.append(pathlib.Path());"
    "import preprocess.cli; sys.exit(preprocess.cli.main())"
)


def build(directory: Path, out: str, *options: str) -> str:
    """Build with the cache of a directory; return what was written to stderr."""
    command = [sys.executable, "-c", PROGRAM, "build", "--train", str(directory / "text")]
    finished = subprocess.run(
        [*command, "--out", str(directory / out), "--vocab-size", "300", *options],
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(directory / "cache"), "NUMBA_OPT": "0",
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
    assert re.search(r"compiling kernels, once per machine: takes about [\d.]+ s", said)
    assert "for this machine" not in said  # what programs that use the library are told
    # Another process compiles the kernels of encoding, and may be done before they are needed.
    names = stages(directory, "first")
    assert names[0] == compiling.STAGE
    assert [name for name in names if name != compiling.STAGE] == STAGES


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
