"""Patterns are known by their names and their exact texts, each engine's for itself."""

from __future__ import annotations

from typing import Any

import pytest
import tiktoken_ext.openai_public as openai_public

from bpe.errors import PatternError, TokenmillError
from bpe.split.patterns import (
    PATTERNS,
    from_huggingface,
    pattern_name,
    steps,
    to_huggingface,
    to_tiktoken,
)


def split(regex: str, **others: Any) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"} | others


@pytest.mark.parametrize("name", PATTERNS)
def test_a_name_and_its_published_text_give_the_name(name: str) -> None:
    assert pattern_name(name) == name
    assert pattern_name(PATTERNS[name]) == name
    assert pattern_name("tiktoken:" + PATTERNS[name]) == name
    assert pattern_name("tiktoken:" + to_tiktoken(name)) == name
    assert steps(name) == [name]
    assert from_huggingface(to_huggingface(name) or ["gpt2"]) == name


def test_the_spellings_of_the_installed_tiktoken_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pattern_name(openai_public.r50k_pat_str) == "gpt2"
    # The vocabularies would be downloaded; only the patterns are wanted.
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
    assert pattern_name(openai_public.cl100k_base()["pat_str"]) == "cl100k"
    assert pattern_name(openai_public.o200k_base()["pat_str"]) == "o200k"
    assert pattern_name(openai_public.o200k_harmony()["pat_str"]) == "o200k"


@pytest.mark.parametrize("pattern", ["", "gpt-2", "GPT2", "cl100k_base", "o200k.2"])
def test_an_unknown_name_is_refused_with_the_names_there_are(pattern: str) -> None:
    with pytest.raises(
        PatternError, match=r"unknown split pattern .*: expected one of .*'gpt2'.* or a regex"
    ) as raised:
        pattern_name(pattern)
    assert repr(pattern) in str(raised.value)
    assert isinstance(raised.value, TokenmillError)
    assert isinstance(raised.value, ValueError)


def test_one_text_means_two_things_to_two_engines() -> None:
    # Possessive to tiktoken, a repeated repetition to Hugging Face.
    assert pattern_name(PATTERNS["cl100k"]) == "cl100k"
    assert from_huggingface([split(PATTERNS["cl100k"])]) != "cl100k"


def test_other_regexes_stand_for_themselves() -> None:
    assert pattern_name(r"\d+|\D") == r"\d+|\D"
    assert from_huggingface([split(r"\d+|\D")]) == r"\d+|\D"
    assert to_huggingface(r"\d+|\D") == [split(r"\d+|\D", invert=False)]
    assert to_tiktoken(r"tiktoken:\d+|\D") == r"\d+|\D"
    # A regex that looks like a name is told apart by its step.
    assert pattern_name(from_huggingface([split("gpt2")])).startswith("steps:")


@pytest.mark.parametrize(
    "listed",
    [
        [{"type": "Digits", "individual_digits": True}, "gpt2"],
        [split(r"\p{N}{1,3}"), split("[a-z]+", behavior="MergedWithNext"), "llama3"],
        [split(r"\s", invert=True)],
        [{"type": "Split", "pattern": {"String": "a.b"}, "behavior": "Contiguous"}, "gpt2"],
    ],
)
def test_steps_survive(listed: list[Any]) -> None:
    pattern = from_huggingface(listed)
    assert pattern.startswith("steps:")
    assert pattern_name(pattern) == pattern
    assert len(steps(pattern)) == len(listed)
    assert from_huggingface(to_huggingface(pattern) or []) == pattern


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ([], "the steps '.*' are not implemented: Expected `array` of length >= 1: expected a"),
        ("gpt2", "Expected `array`, got `str`: expected a list of Digits, of Split with a Regex"),
        ([3], r"got `int` - at `\$\[0\]`"),
        ([{"type": "Metaspace"}], r"Invalid value 'Metaspace' - at `\$\[0\].type`: expected a"),
        (["gpt3"], "the step 'gpt3' is no pattern: expected one of gpt2"),
        ([{"type": "Digits", "individual_digits": 1}], "got `int` - at .*individual_digits"),
        ([split("a", pattern={})], r"`object` of length >= 1 - at `\$\[0\].pattern`"),
        ([split("a", pattern={"Regex": "a", "String": "b"})], "`object` of length <= 1"),
        ([split("a", pattern={"Regex": 3})], r"Expected `str`, got `int` - at `\$\[0\].pattern"),
        ([split("a", pattern={"Glob": "a"})], "Invalid enum value 'Glob'"),
        ([split("")], r"`str` of length >= 1 - at `\$\[0\].pattern"),
        ([split("a", behavior="Left")], "'Left' .* and a behavior .Isolated, Contig"),
        ([split("a|[^a]", behavior="Removed")], "with the behavior Removed can drop text: exp"),
        ([split(r"\s+(?!\S)|\S+", behavior="Removed", invert=True)], "a pattern that matches all"),
        ([split("a", invert=0)], r"Expected `bool`, got `int` - at `\$\[0\].invert`"),
    ],
)
def test_a_step_that_is_not_implemented_is_refused_by_name(listed: Any, message: str) -> None:
    with pytest.raises(PatternError, match=message):
        from_huggingface(listed)


def test_damaged_steps_are_refused() -> None:
    for damaged in ("steps:[", "steps:" + "[" * 100_000):
        with pytest.raises(PatternError, match="are not JSON"):
            pattern_name(damaged)


def test_what_the_other_library_cannot_say_is_refused() -> None:
    with pytest.raises(PatternError, match="was written for tiktoken: it cannot be said"):
        to_huggingface(r"tiktoken:\d+|\D")
    with pytest.raises(PatternError, match="was written for Hugging Face: tiktoken may read it"):
        to_tiktoken(r"\d+|\D")
