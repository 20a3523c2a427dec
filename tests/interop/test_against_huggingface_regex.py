"""Every pattern, regexes without a scanner, and other steps, against Hugging Face's engine."""

from __future__ import annotations

import functools
from itertools import product
from typing import Any

import pytest
from engines import differs_in_huggingface, splitting
from hypothesis import given, settings
from hypothesis import strategies as st
from nasty import hard_texts, nasty_texts, pattern_texts, regex_texts, regexes
from published import split

from bpe.split.patterns import PATTERNS, from_huggingface, to_huggingface
from bpe.split.pretokenizer import Pretokenizer
from bpe.split.regex_splitter import RegexSplitter

tokenizers = pytest.importorskip("tokenizers", reason="needs the extra hf")

# As DeepSeek, BLOOM and others publish them, and texts that the two engines read differently.
REGEXES = [
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"\p{N}{1,3}",
    PATTERNS["cl100k"],
    r"\s+$|^a|[\p{L}&&[^a-z]]+|a{1,2}+",
    r"[\u0300-\u036f\u00e0-\u00ff]+|\u3000|\x{1F44D}",
    # That of SuperBPE matches nothing, between groups of digits.
    r"(?=(\d{3})+(?!\d))", r"|a", r"a*|'", r"(?<=a)|b+", r"^|$|\d",
]
COVERING = [
    *(text for name, text in PATTERNS.items() if name != "cl100k"),
    r"\p{L}+|\s+|[^\p{L}\s]?[^\s\p{L}]", r"(?:a|bc)d?|(?i:a)|[^aA]", r"(?:a{2})?a|[^a]", r".+|\n",
]  # fmt: skip
CHARACTERS = [chr(c) for c in range(0x110000) if c >> 11 != 0x1B]


@functools.cache
def both_splits(pattern: str) -> dict[str, Any]:
    """Return the regex of a pattern, or of its name, for their engine; our function to split."""
    if pattern not in PATTERNS:
        return {"regex": pattern, "split": splitting(RegexSplitter(pattern))}
    steps, pretokenizer = to_huggingface(pattern), Pretokenizer(pattern)
    ((regex,),) = (step["pattern"].values() for step in steps or [split(PATTERNS["gpt2"])])
    return {
        "regex": regex,
        "split": lambda text: [piece.decode() for piece in pretokenizer.split(text.encode())],
    }


@settings(max_examples=150)
@given(st.one_of(pattern_texts(20), nasty_texts(20)))
def test_published_patterns(texts: list[str]) -> None:
    for pattern in (*PATTERNS, *REGEXES):
        assert differs_in_huggingface(texts=texts, **both_splits(pattern)) is None, pattern


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    "around", ["{0}", "a{0}b1{0}2 {0} {0}\n", "'{0}'{0}s A{0}a", "!{0}\n{0}A", "中{0}A {0}/{0}"]
)
def test_code_points_in_all_surroundings(pattern: str, around: str) -> None:
    some = [*CHARACTERS[:0x3000], *CHARACTERS[0x3000::97]]
    texts = [
        "\n".join(around.format(character) for character in some[first : first + 64])
        for first in range(0, len(some), 64)
    ]
    assert differs_in_huggingface(texts=texts, **both_splits(pattern)) is None


@settings(max_examples=250)
@given(regexes, st.lists(regex_texts, max_size=6))
def test_any_regex(regex: str, texts: list[str]) -> None:
    splitter = RegexSplitter(regex)
    assert differs_in_huggingface(regex, texts, splitting(splitter)) is None
    if splitter.covers_all:  # nothing is outside of all matches
        theirs = tokenizers.pre_tokenizers.Split(tokenizers.Regex(regex), "removed", invert=True)
        for text in texts:
            pieces = [piece for piece, _ in theirs.pre_tokenize_str(text)]
            assert pieces == splitting(splitter)(text)


@pytest.mark.parametrize("regex", COVERING)
def test_what_covers_all_text(regex: str) -> None:
    assert from_huggingface([split(regex, "Removed", True)]) == from_huggingface([split(regex)])
    theirs = tokenizers.pre_tokenizers.Split(tokenizers.Regex(regex), "removed", invert=True)
    for text in hard_texts(["1234567", "'ll", "\u212a"]):
        assert "".join(piece for piece, _ in theirs.pre_tokenize_str(text)) == text


@pytest.mark.parametrize(
    "regex", [r"\p{Han}", r"\p{han}+", r"\p{P}+", r"\p{S}+", r"\p{Nd}+", r"(?i:[a-z])"]
)
def test_sets_are_the_same_for_every_code_point(regex: str) -> None:
    n = len(CHARACTERS)
    texts = ["a\n".join(CHARACTERS[first : first + 4096]) for first in range(0, n, 4096)]
    if "(?i" in regex:  # it takes their engine long; other blocks have one case only
        texts = [text for text in texts if text.casefold() != text]
    assert differs_in_huggingface(regex, texts, splitting(RegexSplitter(regex))) is None


@pytest.mark.parametrize("individual", [False, True])
def test_digits_for_every_code_point(individual: bool) -> None:
    pretokenizer = Pretokenizer(
        from_huggingface([{"type": "Digits", "individual_digits": individual}])
    )
    theirs = tokenizers.pre_tokenizers.Digits(individual)
    for text in ("1a".join(CHARACTERS[:0x3000]), "".join(CHARACTERS)):
        expected = [piece.encode() for piece, _ in theirs.pre_tokenize_str(text)]
        assert pretokenizer.split(text.encode()) == expected


@settings(max_examples=60)
@given(
    st.sampled_from([r"\p{L}", r"\s+|1", "a|'", "(?=a)|b", "b*"]),
    st.lists(regex_texts, max_size=6),
)
def test_behaviors(regex: str, texts: list[str]) -> None:
    for behavior, invert in product(
        ("isolated", "contiguous", "merged_with_previous", "merged_with_next"), (False, True)
    ):
        theirs = tokenizers.pre_tokenizers.Split(tokenizers.Regex(regex), behavior, invert)
        name = behavior.title().replace("_", "")  # in files
        ours = splitting(RegexSplitter(regex, "huggingface", name, invert))
        for text in texts:
            assert ours(text) == [piece for piece, _ in theirs.pre_tokenize_str(text)], behavior


@settings(max_examples=100)
@given(st.text("ab<>`_é▁\u0301\n \\.+*?()[]{}|^$#&~-", min_size=1, max_size=4), st.data())
def test_any_string(string: str, data: st.DataObject) -> None:
    other = st.sampled_from([string, string[0], string[-1], "x", "\\", " "])
    text = data.draw(st.lists(other, max_size=8).map("".join))
    step = {"type": "Split", "pattern": {"String": string}, "behavior": "Isolated"}
    theirs = tokenizers.pre_tokenizers.Split(string, "isolated").pre_tokenize_str(text)
    ours = Pretokenizer(from_huggingface([step])).split(text.encode())
    assert ours == [piece.encode() for piece, _ in theirs]
