"""A tokenizer for the tests of conversations."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_cases import make_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a tokenizer."""
    return make_model(tmp_path_factory.mktemp("model"))
