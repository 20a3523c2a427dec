"""Patterns are known by their names and their exact texts, and by nothing else."""

from __future__ import annotations

import pytest
import tiktoken_ext.openai_public as openai_public

from bpe.errors import PatternError, TokenbinError
from bpe.patterns import PATTERNS, SPELLINGS, pattern_name


@pytest.mark.parametrize("name", PATTERNS)
def test_a_name_and_its_published_text_give_the_name(name: str) -> None:
    assert pattern_name(name) == name
    assert pattern_name(PATTERNS[name]) == name


@pytest.mark.parametrize(("spelling", "name"), SPELLINGS.items())
def test_another_exact_spelling_gives_the_name(spelling: str, name: str) -> None:
    assert pattern_name(spelling) == name


def test_the_spelling_of_the_installed_tiktoken_is_known() -> None:
    assert pattern_name(openai_public.r50k_pat_str) == "gpt2"


@pytest.mark.parametrize(
    "pattern", ["", "gpt-2", "GPT2", "cl100k", r"\w+|\s+", PATTERNS["gpt2"] + " "]
)
def test_anything_else_is_refused_with_the_names_there_are(pattern: str) -> None:
    with pytest.raises(
        PatternError, match=r"unknown split pattern .*: expected one of .*'gpt2'"
    ) as raised:
        pattern_name(pattern)
    assert repr(pattern) in str(raised.value)
    assert isinstance(raised.value, TokenbinError)
    assert isinstance(raised.value, ValueError)
