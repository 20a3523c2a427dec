"""Every pattern, in its spelling for Hugging Face, against Hugging Face's engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engines import differs_in_huggingface
from hypothesis import given, settings
from hypothesis import strategies as st
from nasty import nasty_texts, pattern_texts

from bpe.split.patterns import PATTERNS, from_huggingface, to_huggingface
from bpe.split.pretokenizer import Pretokenizer

pytest.importorskip("tokenizers", reason="needs the extra hf")

CHARACTERS = [chr(c) for c in [*range(0x3000), *range(0x3000, 0x110000, 97)] if c >> 11 != 0x1B]
by_pattern = pytest.mark.parametrize("pattern", PATTERNS)


def spelled(pattern: str) -> str:
    """Return the regex of a pattern in tokenizer.json."""
    steps = to_huggingface(pattern)
    if steps is None:
        return PATTERNS["gpt2"]
    ((regex,),) = (step["pattern"].values() for step in steps)
    return str(regex)


def scanned(pattern: str) -> Callable[[str], list[str]]:
    pretokenizer = Pretokenizer(pattern)
    return lambda text: [piece.decode() for piece in pretokenizer.split(text.encode())]


@by_pattern
@settings(max_examples=200)
@given(texts=st.one_of(pattern_texts(30), nasty_texts(30)))
def test_nasty_text(pattern: str, texts: list[str]) -> None:
    assert differs_in_huggingface(spelled(pattern), texts, scanned(pattern)) is None


@by_pattern
@pytest.mark.parametrize(
    "around", ["{0}", "a{0}b1{0}2 {0} {0}\n", "'{0}'{0}s A{0}a", "!{0}\n{0}A", "中{0}A {0}/{0}"]
)
def test_code_points_in_all_surroundings(pattern: str, around: str) -> None:
    texts = [
        "\n".join(around.format(character) for character in CHARACTERS[first : first + 64])
        for first in range(0, len(CHARACTERS), 64)
    ]
    assert differs_in_huggingface(spelled(pattern), texts, scanned(pattern)) is None


@by_pattern
def test_the_spelling_is_recognised(pattern: str) -> None:
    assert from_huggingface(to_huggingface(pattern) or ["gpt2"]) == pattern
