"""A tokenizer for the tests of conversations, and its special tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_cases import make_model

from bpe import Tokenizer


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer."""
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def special(model: Path) -> tuple[tuple[str, int], ...]:
    """Its special tokens, as templates are given them."""
    return tuple(Tokenizer.from_file(model / "tokenizer.json").special_tokens.items())
