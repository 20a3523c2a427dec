"""The engine for regexes without a scanner: what it refuses, and that it is both owners' engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engines import differs_in_tiktoken, pieces, splitting
from hypothesis import given, settings
from hypothesis import strategies as st
from nasty import SAMPLES, nasty_texts, pattern_texts, regex_texts, regexes

from bpe import reference
from bpe.errors import EncodingError, PatternError
from bpe.split import regex_splitter as regex_split
from bpe.split.patterns import PATTERNS, from_huggingface
from bpe.split.pretokenizer import Pretokenizer
from bpe.split.regex_splitter import RegexSplitter

TIKTOKENS = {name: RegexSplitter(text, "tiktoken") for name, text in PATTERNS.items()}


@settings(max_examples=60)
@given(st.one_of(pattern_texts(8), nasty_texts(8)))
def test_known_patterns_are_split_as_by_their_scanners(texts: list[str]) -> None:
    for pattern, splitter in TIKTOKENS.items():
        assert pieces(splitter, texts) == [reference.split(text, pattern) for text in texts]


def test_long_text_is_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex_split, "_BYTES_AT_A_TIME", 50)
    texts = [*SAMPLES * 3, "x" * 70_000, "日" * 300, ""]
    assert pieces(TIKTOKENS["llama3"], texts) == [reference.split(t, "llama3") for t in texts]


@settings(max_examples=150)
@given(regexes, st.lists(regex_texts, max_size=6))
def test_any_regex_splits_as_in_tiktoken(regex: str, texts: list[str]) -> None:
    # A last choice that takes any character, so that nothing is lost.
    regex += r"|[\s\S]"
    try:
        splitter = RegexSplitter(regex, "tiktoken")
    except PatternError as error:
        assert "can match nothing" in str(error)
        return
    assert differs_in_tiktoken(regex, texts, splitting(splitter)) is None


def test_text_that_tiktoken_would_lose_is_refused() -> None:
    splitter = RegexSplitter(r"\p{L}+", "tiktoken")
    assert pieces(splitter, ["abc"]) == [["abc"]]
    with pytest.raises(EncodingError, match=r"byte 6 of the text is in no match .* would lose it"):
        pieces(splitter, ["abc", "dé d"[0:2], " "])


@pytest.mark.parametrize(
    ("regex", "what"),
    [
        ("a)", r"invalid .*: unbalanced '\)' at character 1; correct it"),
        ("(a", "unterminated group at character 0"),
        ("[a", "unterminated character class"),
        ("[]a]|b[]", "empty character class"),
        ("*a", r"nothing for the quantifier '\*' to repeat"),
        ("(?=a)+b", "a quantifier on a zero-width assertion"),
        ("a{x", r"a '\{' that begins no quantifier"),
        ("a{}", r"'\{\}'"),
        ("a{3,2}", r"'\{3,2\}'"),
        ("a{2}?", r"'\{n\}\?'"),
        (r"(a)\1", r"'\\1'"),
        (r"\bx", r"'\\b'"),
        (r"\xe9", r"'\\x'"),
        (r"[\ud800-\udfff]", r"'\\u'"),
        (r"\w+", r"'\\w'"),
        (r"\h", r"'\\h'"),
        (r"\R", r"'\\R'"),
        ("(?<name>a)", r"the group '\(\?<na"),
        ("(?m:a)", r"the group '\(\?m:"),
        ("(*FAIL)a", r"the verb"),
        (r"\p{Hira}", r"the property '\{Hira\}'"),
        (r"\p{Cn}", r"the property '\{Cn\}'"),
        (r"\pL", r"'\\\\pL'"),
        ("[[:alpha:]]", "unsupported .*: a class of the form .* 1; supported are charact"),
        ("[b-a]", "a range in descending order"),
        (r"[a-\d]", "a range in descending order"),
        ("[a-[b]]", "a range that ends with a class"),
        ("(?i:straße)", "'st' where case is ignored"),
        ("(?i:é)", "'é' where case is ignored"),
        ("(?i:[à-é])", "a non-ASCII range where case is ignored"),
        (r"(?i:\p{Lu})", "where case is ignored"),
        ("a(?i)b|c", r"the group '\(\?i\)b"),
        (r"(?i:\x73s)", "'ss' where case is ignored"),
        ("(?i:s(?:x|t))", "'st' where case is ignored"),
        ("(?i:i\u0307)", "where case is ignored"),
        (r"(?i:[\p{L}])", "a nested character class where case is ignored"),
        ("a" + "{1}" * 3000, "more than three stacked quantifiers"),
        ("(?:a{999}){999}b", "quantifiers that repeat more than 10,000 characters"),
        ("(?<=a+)b", "a variable-length lookbehind"),
        ("a\\", r"a lone '\\'"),
        ("(" * 101 + "a" + ")" * 101, "more than 100 groups"),
        ("[" * 101 + "a" + "]" * 101, "more than 100 sets"),
        ("".join(map(chr, range(0x4E00, 0x5000))), "more than 500 different character classes"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(regex: str, what: str) -> None:
    with pytest.raises(PatternError, match=what) as raised:
        RegexSplitter(regex)
    assert "at character" in str(raised.value)


@pytest.mark.parametrize(
    ("regex", "what"),
    [
        ("a{,3}b", r"'\{,3\}'"),
        ("a++?", "a quantifier after a quantifier"),
        (r"\p{^L}", r"the property '\{\^L\}'"),
        ("[--a]", "'--' in a character class"),
    ],
)
def test_what_tiktoken_reads_otherwise_is_refused(regex: str, what: str) -> None:
    with pytest.raises(PatternError, match=what):
        RegexSplitter(regex, "tiktoken")


@pytest.mark.parametrize("regex", ["", "a*", "a|", "(?=a)", "^", r"(?:a?b*)+"])
def test_a_regex_for_tiktoken_that_can_match_nothing_is_refused(regex: str) -> None:
    with pytest.raises(PatternError, match="can match nothing at all"):
        RegexSplitter(regex, "tiktoken")


def test_a_regex_of_megabytes_is_refused() -> None:
    with pytest.raises(PatternError, match="has 1,000,000 characters: expected 10,000 at most"):
        RegexSplitter("a" * 1_000_000)


def split(**pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated"}


@pytest.mark.parametrize(
    ("step", "text", "expected"),
    [
        ({"type": "Digits", "individual_digits": True}, "a12 ½b", ["a", "1", "2", " ", "½", "b"]),
        ({"type": "Digits", "individual_digits": False}, "a12 ½b", ["a", "12", " ", "½", "b"]),
        (split(String="a.b") | {"behavior": "MergedWithPrevious"}, "xa.bya.b", ["xa.b", "ya.b"]),
        (split(String="<é.\u2581`_"), "<é.\u2581`_<é\u2581`_", ["<é.\u2581`_", "<é\u2581`_"]),
        (split(Regex=r"[\u00e0-\u00ff\u2581]"), "xéy\u2581", ["x", "é", "y", "\u2581"]),
        (split(Regex=" ") | {"behavior": "MergedWithNext"}, "a b  c", ["a", " b", " ", " c"]),
        (split(Regex="a") | {"behavior": "Contiguous"}, "baab", ["b", "aa", "b"]),
    ],
)
def test_steps(step: dict[str, Any], text: str, expected: list[str]) -> None:
    pretokenizer = Pretokenizer(from_huggingface([step]))
    assert [piece.decode() for piece in pretokenizer.split(text.encode())] == expected


def test_pieces_of_one_step_are_the_texts_of_the_next() -> None:
    pattern = from_huggingface([{"type": "Digits", "individual_digits": True}, "gpt2"])
    pretokenizer = Pretokenizer(pattern)
    assert pretokenizer.split(b"a  12 b") == [b"a", b"  ", b"1", b"2", b" b"]
    # No place to cut is known but the ends of documents.
    assert pretokenizer.safe_cut(np.frombuffer(b"a b c", np.uint8), 1, 5) == 5
