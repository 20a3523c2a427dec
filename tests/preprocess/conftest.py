"""Datasets to damage, for the tests of verify and repair; a text file to write to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from preprocess import build


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("verify")
    documents = [f"document {i} of many, and many more words: low lower newest" for i in range(50)]
    (root / "text").write_text("<|endoftext|>".join(documents))
    build(
        train=root / "text",
        val=root / "text",
        out=root / "data",
        vocab_size=280,
        begin_of_text="<|begin|>",
    )
    return root / "data"


@pytest.fixture
def data(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "data"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of three files whose train.bin has three blocks; one block's text is validation."""
    root = tmp_path_factory.mktemp("large")
    (root / "text").mkdir()
    for number in range(3):
        documents = [f"{number} and {i} are {number + i}. " * 40 for i in range(2800)]
        (root / "text" / f"{number}.txt").write_text("<|endoftext|>".join(documents))
    build(train=root / "text", val_fraction=0.01, out=root / "data", vocab_size=258)
    return root / "data"


@pytest.fixture
def copy(large: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(large, tmp_path / "data"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that a test may write again for each example."""
    return tmp_path_factory.mktemp("sources") / "text.txt"
