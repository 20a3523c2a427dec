"""The main job through make, in the environment that runs the tests: nothing is installed."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bpe import Tokenizer
from preprocess import open_tokens

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    # `make test ARGS=...` hands its own variables on to the tests.
    settings = re.findall(r"^(\w+) \?=", (ROOT / "Makefile").read_text(), re.M)
    inherited = {name for name in os.environ if name.startswith("MAKE") or name in settings}
    environment = {k: v for k, v in os.environ.items() if k not in inherited}
    return subprocess.run(
        ["make", *arguments],
        cwd=ROOT,
        env=environment | {"READY_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=check,
    )


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A training file of 300 documents; its name has a space in it."""
    path = tmp_path / "my train.txt"
    documents = (f"Document {i} says that {i} and {i} make {2 * i}.\n" for i in range(300))
    path.write_text("<|endoftext|>".join(documents))
    return path


def decoded(path: Path) -> str:
    tokenizer = Tokenizer.from_file(path.parent / "tokenizer.json")
    return tokenizer.decode(open_tokens(path, tokenizer=tokenizer)[:])


def test_training_and_reuse_of_its_tokenizer(text: Path, tmp_path: Path) -> None:
    val = tmp_path / "val.txt"
    val.write_text("Another document.")
    out, again = tmp_path / "out", tmp_path / "again"
    run = make(
        "preprocess", f"TRAIN={text}", f"VAL={val}", f"OUT={out}", "VOCAB_SIZE=400", "WORKERS=2"
    )
    assert Tokenizer.from_file(out / "tokenizer.json").vocab_size == 400
    assert decoded(out / "train.bin") == text.read_text() + "<|endoftext|>"
    assert decoded(out / "val.bin") == "Another document.<|endoftext|>"
    assert np.memmap(out / "train.bin", dtype=np.uint16).max() == 399
    assert "tokens" in run.stdout + run.stderr
    options = [f"TRAIN={text}", f"VAL={val}", f"TOKENIZER={out / 'tokenizer.json'}", "NAME=x"]
    make("preprocess", *options, f"OUT={again}")
    assert (again / "x_train.bin").read_bytes() == (out / "train.bin").read_bytes()


def test_several_files_without_val(tmp_path: Path) -> None:
    """Some documents become validation; ARGS takes any option."""
    for name in ("a", "b"):
        documents = (f"{name} is of document {i}." for i in range(150))
        (tmp_path / name).write_text("<|endoftext|>".join(documents))
    paths = f"TRAIN={tmp_path / 'a'} {tmp_path / 'b'}"
    args = "ARGS=--val-fraction 0.5 --quiet"
    make("preprocess", paths, f"OUT={tmp_path / 'out'}", "VOCAB_SIZE=260", args)
    train, val = (open_tokens(tmp_path / "out" / f"{split}.bin") for split in ("train", "val"))
    assert train.n_documents + val.n_documents == 300
    assert 110 < val.n_documents < 190


def test_failure_is_a_failure_of_make(tmp_path: Path) -> None:
    run = make("preprocess", "TRAIN=missing.txt", f"OUT={tmp_path}", check=False)
    assert run.returncode != 0
    assert "missing.txt" in run.stderr


def test_help_is_the_default_and_names_every_target() -> None:
    text = make().stdout
    phony = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[0]
    for target in phony.split():
        assert target == "help" or f"make {target} " in text


def test_train_builds_what_is_missing_and_passes_its_options_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    text = make("-n", "train", f"OUT={out}", "NAME=x", "ARGS=--max-iters 5").stdout
    assert re.search(r"python\S* -m preprocess build --out '.*/out' +--name 'x'\n", text)
    assert f"examples/train_gpt.py --data '{out}' --name 'x' --max-iters 5" in text


def test_python_that_is_too_old_is_refused(tmp_path: Path) -> None:
    run = make(
        "test", "PYTHON=false", f"VENV={tmp_path / 'venv'}", "--eval=undefine READY_PYTHON",
        check=False,
    )
    assert run.returncode != 0
    assert "tokenmill needs Python 3.11 or newer, and false is not" in run.stderr
    assert not (tmp_path / "venv").exists()
