"""The first build on a machine: kernels are compiled once, and that is reported and timed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import processes
import pytest

from bpe.runtime import jit
from bpe.runtime.machine_code import kept_code
from preprocess.run import compiling

pytestmark = pytest.mark.skipif(jit.DISABLE_JIT, reason="uncompiled there is nothing to compile")

ROOT = Path(__file__).parents[2]
STAGES = ["counting", "merging", "encoding train"]
# Python ignores entries of sys.path that are no text.
PROGRAM = (
    "import sys, pathlib; sys.path.append(pathlib.Path());"
    "import preprocess.cli; sys.exit(preprocess.cli.main())"
)

# Prints the machine code of all kernels that are called to have them compiled.
CALLS = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)
from preprocess.run import compiling
compiling._call_training("gpt2")
compiling.call_encoding("gpt2")
print(*(path for path in map(str, opened) if path.endswith(".o")), sep="\\n")
"""


def build(directory: Path, out: str) -> str:
    """Build with the cache of a directory; return what was written to stderr."""
    given = ["--train", directory / "text", "--out", directory / out, "--vocab-size", "300"]
    command = [sys.executable, "-c", PROGRAM, "build", *map(str, given), "--val-fraction", "0"]
    environment = {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(directory / "cache")}
    finished = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
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


def test_the_first_build_compiles_and_the_next_one_does_not(tmp_path: Path) -> None:
    # Those that take seconds are there, if they are called before the work; some of training and of
    # encoding are missing.
    known = compiling.training_kernels("gpt2") | compiling.encoding_kernels()
    slow = {kernel.name for kernel, seconds in known.items() if seconds > 1}
    there = kept_code().directory
    assert there is not None
    own = tmp_path / "cache" / there.name
    own.mkdir(parents=True)
    for path in map(Path, processes.printed_by(CALLS).splitlines()):
        if path.name.rpartition("-")[0] in slow:
            shutil.copy(path, own)
    # So many different pre-tokens, short and long, that all tables have to grow.
    words = " ".join(f"{i:05}x {i:020}x" for i in range(10_000))
    text = "some text, 12 documents<|endoftext|>" * 300 + words
    (tmp_path / "text").write_text(text, encoding="utf-8")
    said = build(tmp_path, "first")
    assert re.search(r"compiling kernels, once per machine: takes about [\d.]+ s", said)
    assert "for this machine" not in said  # what programs that use the library are told
    # Another process compiles the kernels of encoding, and may be done before they are needed.
    names = stages(tmp_path, "first")
    assert names[0] == compiling.STAGE
    assert [name for name in names if name != compiling.STAGE] == STAGES
    before = kept(tmp_path)
    assert len({path.name for path in before}) >= len(known)
    assert "compiling" not in build(tmp_path, "second")
    assert kept(tmp_path) == before
    assert stages(tmp_path, "second") == STAGES
    for name in ("train.bin", "train.docs", "tokenizer.json", "train.json"):
        found, first = ((tmp_path / x / name).read_bytes() for x in ("second", "first"))
        assert found == first
