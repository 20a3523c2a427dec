"""Steps of split patterns without a scanner, and their JSON in Hugging Face's format."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec

from bpe.errors import PatternError, shown

if TYPE_CHECKING:
    from bpe.split.regex_splitter import DigitsSplitter, RegexSplitter

# Behaviors of Hugging Face's `Split`.
Behavior = Literal["Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext", "Removed"]


class Digits(msgspec.Struct, frozen=True, tag=True):
    """Hugging Face's `Digits`: numbers are pieces."""

    individual_digits: bool = False  # single numbers, else runs of numbers

    def splitter(self, dialect: str) -> DigitsSplitter:
        """Return the splitter, which is the same for all dialects."""
        from bpe.split.regex_splitter import DigitsSplitter

        return DigitsSplitter(self.individual_digits)


class Split(msgspec.Struct, frozen=True, tag=True):
    """Hugging Face's `Split`: a regex or a string."""

    # "Regex" or "String" -> its text
    pattern: Annotated[
        dict[Literal["Regex", "String"], Annotated[str, msgspec.Meta(min_length=1)]],
        msgspec.Meta(min_length=1, max_length=1),
    ]
    behavior: Behavior
    invert: bool = False  # swap matches and the text between them

    def splitter(self, dialect: str = "huggingface") -> RegexSplitter:
        """Return the splitter; raise PatternError if the regex cannot be run exactly.

        `dialect` is the engine of the regex: "huggingface" or "tiktoken".
        """
        ((kind, text),) = self.pattern.items()
        # Not `re.escape`: some escaped characters are special, such as `\<`.
        regex = text if kind == "Regex" else re.sub(r"([][{}()|\\^$.*+?&~#-])", r"\\\1", text)
        return _splitter(regex, dialect, self.behavior, self.invert)


@functools.lru_cache(maxsize=8)  # each has a table of a megabyte
def _splitter(regex: str, dialect: str, behavior: str, invert: bool) -> RegexSplitter:
    from bpe.split.regex_splitter import RegexSplitter

    return RegexSplitter(regex, dialect, behavior, invert)


# A string is the name of a pattern with a scanner.
Step = str | Digits | Split
_STEPS: Any = Annotated[list[Step], msgspec.Meta(min_length=1)]


def decode_steps(text: str) -> list[Step]:
    """Parse the JSON of steps; raise PatternError if it is invalid."""
    try:
        listed = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PatternError(
            f"the steps of the pattern {shown(text)} are not JSON ({error}): "
            "expected a list as in a tokenizer.json"
        ) from error
    return check_steps(listed)


def check_steps(listed: object) -> list[Step]:
    """Convert parsed JSON to steps; raise PatternError if a step is invalid or not implemented."""
    try:
        steps: list[Step] = msgspec.convert(listed, _STEPS)
    except msgspec.ValidationError as error:
        raise PatternError(
            f"the steps {shown(listed)} are not implemented: {error}: expected a list of Digits,"
            f" of Split with a Regex or a String and a behavior ({', '.join(get_args(Behavior))}),"
            " and of names of patterns"
        ) from error
    return steps
