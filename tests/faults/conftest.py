"""A corpus, and a build of it that takes many units, for the tests of interrupted runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_cases import DOCUMENTS, END


@pytest.fixture
def corpus(tmp_path: Path, often: None) -> Path:
    """corpus/a.txt, corpus/b.txt; runs write an entry after every unit."""
    directory = tmp_path / "corpus"
    directory.mkdir()
    (directory / "a.txt").write_text(END.join(DOCUMENTS[:40]))
    (directory / "b.txt").write_text(END.join(DOCUMENTS[40:]))
    return directory


@pytest.fixture
def options(corpus: Path, tmp_path: Path) -> dict[str, Any]:
    """Of a build that takes many units and writes an entry after each."""
    return {
        "train": corpus, "val_fraction": 0.2, "out": tmp_path / "out", "vocab_size": 280,
        "unit_size": 300, "workers": 1,
    }
