r"""Split patterns by name, as published.

The law here: a pattern is recognised by its exact text.  Two texts share a name only where they are
proven to split every string alike, because spellings of the "same" pattern often do not (design,
law 4).

    >>> pattern_name("gpt2")
    'gpt2'
    >>> pattern_name(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
    'gpt2'
"""

from __future__ import annotations

from typing import Final

from bpe.errors import PatternError

# Name -> the pattern as its authors published it.
PATTERNS: Final[dict[str, str]] = {
    # OpenAI, github.com/openai/gpt-2, src/encoder.py; Hugging Face's ByteLevel(use_regex=True) is
    # the same text.
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
}

# Name -> the text with which tiktoken splits fastest, and the same.  Possessive runs change
# nothing, for nothing that follows could make a run give a character back; `\s++$` and a lone `\s`
# only name two cases of `\s+(?!\S)|\s+`.
TIKTOKEN_SPELLINGS: Final[dict[str, str]] = {
    # tiktoken 0.14 for gpt2, r50k_base, p50k_base and p50k_edit.
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
}

# Other exact texts that split every string as the named pattern does -> its name.
SPELLINGS: Final[dict[str, str]] = {
    **{text: name for name, text in TIKTOKEN_SPELLINGS.items()},
    # As tiktoken wrote gpt2 before it took possessive quantifiers.
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
}


def pattern_name(pattern: str) -> str:
    """Return the name of a pattern given by name, published text or another known spelling.

    Raises:
        PatternError: No pattern of this name or exact text is known.
    """
    if pattern in PATTERNS:
        return pattern
    for name, text in PATTERNS.items():
        if pattern == text:
            return name
    if pattern in SPELLINGS:
        return SPELLINGS[pattern]
    known = ", ".join(repr(name) for name in PATTERNS)
    raise PatternError(
        f"unknown split pattern {pattern!r}: expected one of the names {known}, "
        "or the exact text of one of them"
    )
