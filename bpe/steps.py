"""Steps of a split pattern that has no scanner, as Hugging Face writes them in JSON."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec

from bpe.errors import PatternError, shown

if TYPE_CHECKING:
    from bpe.regex_split import DigitsSplitter, RegexSplitter

# What Hugging Face's `Split` does with a match, but for "Removed", which loses it.
Behavior = Literal["Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext"]


class Digits(msgspec.Struct, frozen=True, tag=True):
    """Numbers stand apart from all else, as in Hugging Face's `Digits`.

    Attributes:
        individual_digits: Each number stands alone, else each run of numbers.
    """

    individual_digits: bool = False

    def splitter(self, dialect: str) -> DigitsSplitter:
        """Return what splits by it, whatever the dialect."""
        from bpe.regex_split import DigitsSplitter

        return DigitsSplitter(self.individual_digits)


class Split(msgspec.Struct, frozen=True, tag=True):
    """A regex that `bpe.regex_split` runs, as in Hugging Face's `Split`.

    Attributes:
        pattern: "Regex" or "String" -> its text.
        behavior: What becomes of a match.
        invert: The matches are the pieces and what is between them the delimiters.
    """

    pattern: Annotated[
        dict[Literal["Regex", "String"], Annotated[str, msgspec.Meta(min_length=1)]],
        msgspec.Meta(min_length=1, max_length=1),
    ]
    behavior: Behavior
    invert: bool = False

    def splitter(self, dialect: str = "huggingface") -> RegexSplitter:
        """Return what splits by it.

        Args:
            dialect: Whose engine the regex was written for: "huggingface" or "tiktoken".

        Raises:
            PatternError: The regex cannot be run exactly.
        """
        ((kind, text),) = self.pattern.items()
        # What means something in a regex, and nothing else: `\<` would mean something again.
        regex = text if kind == "Regex" else re.sub(r"([][{}()|\\^$.*+?&~#-])", r"\\\1", text)
        return _splitter(regex, dialect, self.behavior, self.invert)


@functools.lru_cache(maxsize=8)  # each has a table of a megabyte
def _splitter(regex: str, dialect: str, behavior: str, invert: bool) -> RegexSplitter:
    from bpe.regex_split import RegexSplitter

    return RegexSplitter(regex, dialect, behavior, invert)


# The name of a pattern that has a scanner stands for itself.
Step = str | Digits | Split


def decode_steps(text: str) -> list[Step]:
    """Return steps from their JSON.

    Raises:
        PatternError: It is damaged, or a step is of another kind.
    """
    try:
        listed = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PatternError(
            f"the steps of the pattern {shown(text)} are not JSON ({error}): "
            "expected a list as in a tokenizer.json"
        ) from error
    return check_steps(listed)


def check_steps(listed: object) -> list[Step]:
    """Return steps from values of JSON.

    Raises:
        PatternError: One is of another kind or damaged.
    """
    try:
        typed: list[Step] = msgspec.convert(
            listed, Annotated[list[Step], msgspec.Meta(min_length=1)]
        )
    except msgspec.ValidationError as error:
        raise PatternError(
            f"the steps {shown(listed)} are not implemented: {error}: expected a list of Digits,"
            " of Split with a Regex or a String and a behavior that loses no text"
            f" ({', '.join(get_args(Behavior))}), and of names of patterns"
        ) from error
    return typed


def encode_steps(steps: list[Step]) -> str:
    """Return the JSON of steps."""
    return msgspec.json.encode(steps).decode()


def steps_to_json(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """Return steps as values of JSON."""
    return [msgspec.to_builtins(step) for step in steps]
