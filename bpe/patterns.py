r"""Split patterns: by name, by exact text, or as steps in a row.

The law here: a pattern is recognised by its exact text *and* by the engine that the text was
written for.  Spellings of the "same" pattern often split differently (design, law 4), and one text
can mean two things: `\p{N}{1,3}+` is possessive to tiktoken's engine and a repeated repetition to
Hugging Face's.  Whatever is not recognised is run as it is written, by `bpe.regex_split`, or
refused.

Everywhere in this package a pattern is one string:

    "gpt2", "cl100k", ...   a pattern that has a scanner (a key of `PATTERNS`)
    "tiktoken:" + regex     another regex, as tiktoken's engine (fancy-regex) reads it
    "steps:" + JSON         several steps in a row, as Hugging Face's `Sequence` writes them; a
                            name stands for itself
    any other text          another regex, as Hugging Face's engine (Oniguruma) reads it

    >>> pattern_name("gpt2")
    'gpt2'
    >>> pattern_name(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    'gpt2'
    >>> pattern_name(r"\d+|\D")
    '\\d+|\\D'
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from bpe.errors import PatternError

# --- patterns that have a scanner ----------------------------------------------------------------

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_CASED_WORD = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL_WORD = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WHITE_SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K_TIKTOKEN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)

# Name -> the pattern as its authors published it.
PATTERNS: Final[dict[str, str]] = {
    # OpenAI, github.com/openai/gpt-2, src/encoder.py; Hugging Face's ByteLevel(use_regex=True) is
    # the same text.
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    # tiktoken 0.14, cl100k_base (GPT-4).  White space at the end of the text is one piece, which
    # no other spelling of it says.
    "cl100k": _CL100K_TIKTOKEN,
    # tiktoken 0.14, o200k_base and o200k_harmony (GPT-4o, gpt-oss); Hugging Face has the same text.
    "o200k": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_CASED_WORD}*{_SMALL_WORD}+{_CONTRACTIONS}?"
        rf"|[^\r\n\p{{L}}\p{{N}}]?{_CASED_WORD}+{_SMALL_WORD}*{_CONTRACTIONS}?"
        rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_WHITE_SPACE}"
    ),
    # Meta, Llama 3; also what Hugging Face publishes for GPT-4, and tiktoken's first cl100k_base.
    "llama3": (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_WHITE_SPACE}"
    ),
    # Alibaba, Qwen 2 to 3: llama3 with one digit to the piece.
    "qwen2": (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_WHITE_SPACE}"
    ),
}

# Name -> the text with which Hugging Face's engine splits as the pattern does.
_HUGGINGFACE: Final[dict[str, str]] = {
    **PATTERNS,
    # `$` is the end of a line to Oniguruma, `\z` that of the text.
    "cl100k": PATTERNS["llama3"].replace(r"|\s*[\r\n]+", r"|\s++\z|\s*[\r\n]+"),
}

# Name -> the text with which tiktoken splits fastest, and the same.  In gpt2's, possessive runs
# change nothing, for nothing that follows could make a run give a character back; `\s++$` and a
# lone `\s` only name two cases of `\s+(?!\S)|\s+`.
_TIKTOKEN: Final[dict[str, str]] = {
    **PATTERNS,
    # tiktoken 0.14 for gpt2, r50k_base, p50k_base and p50k_edit.
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
}

# Other exact texts that split every string as the named pattern does -> its name.
_HUGGINGFACE_SPELLINGS: Final[dict[str, str]] = {
    **{text: name for name, text in _HUGGINGFACE.items()},
}
_TIKTOKEN_SPELLINGS: Final[dict[str, str]] = {
    **{text: name for name, text in PATTERNS.items()},
    **{text: name for name, text in _TIKTOKEN.items()},
    # As tiktoken wrote gpt2 before it took possessive quantifiers.
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
}

# --- steps ---------------------------------------------------------------------------------------

TIKTOKEN: Final = "tiktoken:"
STEPS: Final = "steps:"
BEHAVIORS: Final = ("Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext")


@dataclass(frozen=True)
class Scanner:
    """A pattern that has a scanner.

    Attributes:
        name: A key of `PATTERNS`.
    """

    name: str


@dataclass(frozen=True)
class Digits:
    """Numbers stand apart from all else, as in Hugging Face's `Digits`.

    Attributes:
        individual: Each number stands alone, else each run of numbers.
    """

    individual: bool


@dataclass(frozen=True)
class Split:
    """A regex that `bpe.regex_split` runs.

    Attributes:
        regex: Its text.
        dialect: Whose engine it was written for: "huggingface" or "tiktoken".
        behavior: One of `BEHAVIORS`: what becomes of a match.
        invert: The matches are the pieces and what is between them the delimiters.
    """

    regex: str
    dialect: str = "huggingface"
    behavior: str = "Isolated"
    invert: bool = False


Step = Scanner | Digits | Split


def pattern_name(pattern: str) -> str:
    """Return the one string for a pattern given by name, published text or any spelling above.

    Raises:
        PatternError: No pattern has this name, or the regex cannot be run exactly.
    """
    if pattern in PATTERNS:
        return pattern
    if pattern.startswith(STEPS):
        try:
            listed = json.loads(pattern.removeprefix(STEPS))
        except (ValueError, RecursionError) as error:
            raise PatternError(
                f"the steps of the pattern {_shown(pattern)} are not JSON ({error}): "
                "expected a list as in a tokenizer.json"
            ) from error
        return from_huggingface(listed)
    if pattern.startswith(TIKTOKEN):
        text = pattern.removeprefix(TIKTOKEN)
        if text in _TIKTOKEN_SPELLINGS:
            return _TIKTOKEN_SPELLINGS[text]
        _refuse_if_unknown(Split(text, "tiktoken"))
        return pattern
    for spellings in (_HUGGINGFACE_SPELLINGS, _TIKTOKEN_SPELLINGS):
        if pattern in spellings:
            return spellings[pattern]
    if re.fullmatch(r"[\w.-]*", pattern):
        known = ", ".join(repr(name) for name in PATTERNS)
        raise PatternError(
            f"unknown split pattern {pattern!r}: expected one of the names {known}, or a regex"
        )
    _refuse_if_unknown(Split(pattern))
    return pattern


@functools.lru_cache(maxsize=64)
def _refuse_if_unknown(step: Split) -> None:
    # A regex is read when it is met first, so that nobody learns after hours that it cannot be run.
    from bpe.regex_split import RegexSplitter

    RegexSplitter(step.regex, step.dialect, step.behavior, step.invert)


def steps(pattern: str) -> tuple[Step, ...]:
    """Return the steps of a pattern; the pieces of one are the texts of the next.

    Raises:
        PatternError: As `pattern_name`.
    """
    pattern = pattern_name(pattern)
    if pattern in PATTERNS:
        return (Scanner(pattern),)
    if pattern.startswith(TIKTOKEN):
        return (Split(pattern.removeprefix(TIKTOKEN), "tiktoken"),)
    if pattern.startswith(STEPS):
        return tuple(map(_step, json.loads(pattern.removeprefix(STEPS))))
    return (Split(pattern),)


def _step(listed: str | dict[str, Any]) -> Step:
    """The step that an entry of a list that `from_huggingface` made stands for."""
    if isinstance(listed, str):
        return Scanner(listed)
    if listed["type"] == "Digits":
        return Digits(listed["individual_digits"])
    ((kind, text),) = listed["pattern"].items()
    # What means something in a regex, and nothing else: `\<` would mean something again.
    regex = text if kind == "Regex" else re.sub(r"([][{}()|\\^$.*+?&~#-])", r"\\\1", text)
    return Split(regex, "huggingface", listed["behavior"], listed["invert"])


# --- other libraries -----------------------------------------------------------------------------


def from_huggingface(listed: Sequence[str | dict[str, Any]]) -> str:
    """Return the pattern of a list of Hugging Face's pre-tokenizers, in their JSON.

    Args:
        listed: `Split` and `Digits` steps, and the name "gpt2" where ByteLevel splits by its own
            regex.  ByteLevel itself is not among them.

    Raises:
        PatternError: A step is of another kind, is damaged, or its regex cannot be run exactly.
    """
    if not isinstance(listed, list | tuple) or not listed:
        raise PatternError(f"{_shown(listed)} is no list of steps: expected at least one step")
    canonical = [_canonical(step) for step in listed]
    if len(canonical) == 1:
        (only,) = canonical
        if isinstance(only, str):
            return only
        if only["type"] == "Split" and only["behavior"] == "Isolated" and not only["invert"]:
            regex = only["pattern"].get("Regex", "")
            # A text that would be taken for something else is told apart by its step.
            if not re.fullmatch(r"[\w.-]*", regex) and not regex.startswith((TIKTOKEN, STEPS)):
                return str(regex)
    return STEPS + json.dumps(canonical, ensure_ascii=False, separators=(",", ":"))


def _canonical(step: object) -> str | dict[str, Any]:
    if isinstance(step, str):
        if step not in PATTERNS:
            raise PatternError(
                f"the step {step!r} is no pattern: expected one of {', '.join(PATTERNS)}"
            )
        return step
    kind = step.get("type") if isinstance(step, dict) else None
    if not isinstance(step, dict) or kind not in ("Split", "Digits"):
        raise PatternError(
            f"the step {_shown(kind or step)} is not implemented: expected Split or Digits"
        )
    if kind == "Digits":
        individual = step.get("individual_digits", False)
        if not isinstance(individual, bool):
            raise PatternError(
                f"individual_digits of the step Digits is {_shown(individual)}: "
                "expected true or false"
            )
        return {"type": "Digits", "individual_digits": individual}
    pattern, behavior, invert = step.get("pattern"), step.get("behavior"), step.get("invert", False)
    if (
        not isinstance(pattern, dict)
        or len(pattern) != 1
        or not isinstance(pattern.get("Regex", pattern.get("String")), str)
        or not next(iter(pattern.values()))
    ):
        raise PatternError(
            f"the pattern of a step Split is {_shown(pattern)}: expected a Regex or a String"
        )
    if behavior not in BEHAVIORS:
        raise PatternError(
            f"the behavior of a step Split is {_shown(behavior)}: "
            f"only {', '.join(BEHAVIORS)} are implemented, which lose no text"
        )
    if not isinstance(invert, bool):
        raise PatternError(f"invert of a step Split is {_shown(invert)}: expected true or false")
    name = _HUGGINGFACE_SPELLINGS.get(pattern.get("Regex", ""))
    if name is not None and behavior == "Isolated" and not invert:
        return name
    canonical = {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    made = _step(canonical)
    assert isinstance(made, Split)
    _refuse_if_unknown(made)
    return canonical


def to_huggingface(pattern: str) -> list[dict[str, Any]] | None:
    """Return the steps of a pattern as Hugging Face's `Split` and `Digits`, in their JSON.

    Returns:
        The steps; None for gpt2, which ByteLevel splits by itself.

    Raises:
        PatternError: The pattern was written for tiktoken, and no text means the same there.
    """
    pattern = pattern_name(pattern)
    if pattern == "gpt2":
        return None
    if pattern.startswith(TIKTOKEN):
        raise PatternError(
            f"the pattern {_shown(pattern)} was written for tiktoken: it cannot be said to mean "
            "the same in a tokenizer.json; write it for Hugging Face, without the prefix"
        )
    if pattern.startswith(STEPS):
        listed: list[str | dict[str, Any]] = json.loads(pattern.removeprefix(STEPS))
        return [_split(_HUGGINGFACE[step]) if isinstance(step, str) else step for step in listed]
    return [_split(_HUGGINGFACE.get(pattern, pattern))]


def _split(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def to_tiktoken(pattern: str) -> str:
    """Return the regex with which tiktoken splits as the pattern does.

    Raises:
        PatternError: No single regex is known to.
    """
    pattern = pattern_name(pattern)
    if pattern in _TIKTOKEN:
        return _TIKTOKEN[pattern]
    if pattern.startswith(TIKTOKEN):
        return pattern.removeprefix(TIKTOKEN)
    raise PatternError(
        f"the pattern {_shown(pattern)} was written for Hugging Face: tiktoken may read it "
        "otherwise; use the tokenizer through tokenizer.json, or train with 'tiktoken:' before it"
    )


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return repr(text if len(text) <= 100 else text[:99] + "…")
