r"""Split patterns: a name, a regex, or a sequence of steps.

A pattern is recognised by its exact text *and* by the engine it was written for. Similar regexes
often split differently, and engines differ: `\p{N}{1,3}+` is possessive in tiktoken's engine and a
repeated repetition in Hugging Face's. Other regexes are run by `bpe.split.regex_splitter`, or
refused.

A pattern is a string:

    "gpt2", "cl100k", ...   a pattern with a scanner (a key of `PATTERNS`)
    "tiktoken:" + regex     another regex, for tiktoken's engine (fancy-regex)
    "steps:" + JSON         steps of Hugging Face's `Sequence`; or names of patterns with a scanner
    any other text          another regex, for Hugging Face's engine (Oniguruma)

    >>> pattern_name("gpt2")
    'gpt2'
    >>> pattern_name(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    'gpt2'
    >>> pattern_name(r"\d+|\D")
    '\\d+|\\D'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from bpe.errors import PatternError, shown

if TYPE_CHECKING:
    # Steps import msgspec, which patterns with a scanner do not need.
    from bpe.split.steps import Split, Step

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CASED_WORD = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL_WORD = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WHITE_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_WHITE_SPACE}"
)

# Name -> the published pattern.
PATTERNS: Final[dict[str, str]] = {
    # OpenAI, github.com/openai/gpt-2, src/encoder.py; Hugging Face's ByteLevel(use_regex=True).
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    # tiktoken 0.14, cl100k_base (GPT-4). The only one with white space at the end in one piece.
    "cl100k": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
    # tiktoken 0.14, o200k_base and o200k_harmony (GPT-4o, gpt-oss); Hugging Face has the same text.
    "o200k": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_CASED_WORD}*{_SMALL_WORD}+{_CONTRACTIONS}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_CASED_WORD}+{_SMALL_WORD}*{_CONTRACTIONS}?"
        rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_WHITE_SPACE}"
    ),
    # Meta, Llama 3; also Hugging Face's GPT-4, and tiktoken's first cl100k_base.
    "llama3": _LLAMA3,
    # Alibaba, Qwen 2 to 3: llama3 with single digits.
    "qwen2": _LLAMA3.replace("{1,3}", ""),
    # Ours, for tokens of several words: gpt2 without contractions, and with phrases for words.
    "superwords": r" ?\p{L}+(?:[ ']\p{L}+)*| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}

# Name -> equivalent regex for Hugging Face's engine (Oniguruma), where `$` is the end of a line and
# `\z` the end of the text.
_HUGGINGFACE: Final = PATTERNS | {
    "cl100k": _LLAMA3.replace(r"|\s*[\r\n]+", r"|\s++\z|\s*[\r\n]+")
}

# Name -> the equivalent regex that is fastest in tiktoken. Possessive runs are equivalent in gpt2:
# nothing after them needs backtracking; `\s++$` and a lone `\s` are cases of `\s+(?!\S)|\s+`.
_TIKTOKEN: Final = PATTERNS | {
    # tiktoken 0.14 for gpt2, r50k_base, p50k_base and p50k_edit.
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
}

# Regex -> name of the pattern that it is equivalent to.
_HUGGINGFACE_SPELLINGS: Final = {text: name for name, text in _HUGGINGFACE.items()}
_TIKTOKEN_SPELLINGS: Final = {
    **{text: name for listed in (PATTERNS, _TIKTOKEN) for name, text in listed.items()},
    # tiktoken's gpt2 before possessive quantifiers.
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
}

TIKTOKEN: Final = "tiktoken:"
STEPS: Final = "steps:"


def pattern_name(pattern: str) -> str:
    """Return the canonical string of a pattern; a name for each regex above.

    Raises:
        PatternError: No pattern has this name, or the regex cannot be run exactly.
    """
    if pattern in PATTERNS:
        return pattern
    if pattern.startswith(STEPS):
        return _name_of(_decode(pattern))
    text = pattern.removeprefix(TIKTOKEN)
    dialect = "huggingface" if text == pattern else "tiktoken"
    if dialect == "huggingface" and text in _HUGGINGFACE_SPELLINGS:
        return _HUGGINGFACE_SPELLINGS[text]
    if text in _TIKTOKEN_SPELLINGS:
        return _TIKTOKEN_SPELLINGS[text]
    if re.fullmatch(r"[\w.-]*", pattern):
        known = ", ".join(map(repr, PATTERNS))
        raise PatternError(
            f"unknown split pattern {pattern!r}: expected one of the names {known}, or a regex"
        )
    _isolated_split(text).splitter(dialect)  # fails now rather than in a run
    return pattern


def steps(pattern: str) -> list[Step]:
    """Return the steps of a pattern, or raise PatternError; each splits the pieces of the last."""
    pattern = pattern_name(pattern)
    if pattern in PATTERNS:
        return [pattern]
    if pattern.startswith(STEPS):
        return _decode(pattern)
    return [_isolated_split(pattern.removeprefix(TIKTOKEN))]


def _decode(pattern: str) -> list[Step]:
    from bpe.split.steps import decode_steps

    return decode_steps(pattern.removeprefix(STEPS))


def _isolated_split(regex: str) -> Split:
    from bpe.split.steps import Split

    return Split({"Regex": regex}, "Isolated")


def from_huggingface(listed: Sequence[str | dict[str, Any]]) -> str:
    """Return the pattern of a list of Hugging Face's pre-tokenizers, in their JSON.

    They are `Split` and `Digits` steps, and "gpt2" for a ByteLevel with `use_regex`.

    Raises:
        PatternError: A step is of another kind or invalid, or its regex cannot be run exactly.
    """
    from bpe.split.steps import check_steps

    return _name_of(check_steps(listed))


def _name_of(listed: list[Step]) -> str:
    canonical = [_canonical(step) for step in listed]
    only = canonical[0] if len(canonical) == 1 else None
    if isinstance(only, str):
        return only
    import msgspec

    from bpe.split.steps import Split

    regex = only.pattern.get("Regex", "") if isinstance(only, Split) else ""
    # A regex that would be read as a name or a prefix is written as a step.
    is_text = not re.fullmatch(r"[\w.-]*", regex) and not regex.startswith((TIKTOKEN, STEPS))
    if is_text and only == _isolated_split(regex):
        return regex
    return STEPS + msgspec.json.encode(canonical).decode()


def _canonical(step: Step) -> Step:
    if isinstance(step, str):
        if step not in PATTERNS:
            expected = ", ".join(PATTERNS)
            raise PatternError(f"the step {step!r} is no pattern: expected one of {expected}")
        return step
    from bpe.split.steps import Split

    if isinstance(step, Split):
        name = _HUGGINGFACE_SPELLINGS.get(step.pattern.get("Regex", ""))
        isolated = Split(step.pattern, "Isolated")
        if step.behavior == "Removed":
            # Where matches are all of the text, nothing else is there to be removed.
            if not step.invert or not (name or isolated.splitter().covers_all):
                raise PatternError(
                    f"the split pattern {shown(step.pattern)} with the behavior Removed can drop"
                    " text: expected 'invert' and a pattern that matches all text, or Isolated"
                )
            step = isolated
        if name is not None and step == isolated:
            return name
        step.splitter()
    return step


def to_huggingface(pattern: str) -> list[dict[str, Any]] | None:
    """Return the steps of a pattern as Hugging Face's JSON; None for gpt2, the regex of ByteLevel.

    Raises:
        PatternError: The pattern was written for tiktoken, and has no known equivalent.
    """
    pattern = pattern_name(pattern)
    if pattern == "gpt2":
        return None
    if pattern.startswith(TIKTOKEN):
        raise PatternError(
            f"the pattern {shown(pattern)} was written for tiktoken: it cannot be said to mean "
            "the same in a tokenizer.json; write it for Hugging Face, without the prefix"
        )
    named = (_isolated_split(_HUGGINGFACE[s]) if isinstance(s, str) else s for s in steps(pattern))
    import msgspec

    return [msgspec.to_builtins(step) for step in named]


def to_tiktoken(pattern: str) -> str:
    """Return the equivalent regex for tiktoken; raise PatternError if none is known."""
    pattern = pattern_name(pattern)
    if pattern in _TIKTOKEN:
        return _TIKTOKEN[pattern]
    if pattern.startswith(TIKTOKEN):
        return pattern.removeprefix(TIKTOKEN)
    raise PatternError(
        f"the pattern {shown(pattern)} was written for Hugging Face: tiktoken may read it "
        "otherwise; use the tokenizer through tokenizer.json, or train with 'tiktoken:' before it"
    )
