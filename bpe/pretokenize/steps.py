"""Steps of a split pattern that has no scanner, as Hugging Face writes them in JSON."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import msgspec

from bpe.errors import PatternError, shown

if TYPE_CHECKING:
    from bpe.pretokenize.regex_splitter import DigitsSplitter, RegexSplitter

# What Hugging Face's `Split` does with a match, but for "Removed", which loses it.
Behavior = Literal["Isolated", "Contiguous", "MergedWithPrevious", "MergedWithNext"]


class Digits(msgspec.Struct, frozen=True, tag=True):
    """Splits off numbers, as Hugging Face's `Digits`."""

    individual_digits: bool = False  # each number alone, else each run of numbers

    def splitter(self, dialect: str) -> DigitsSplitter:
        """Return its splitter, for any dialect."""
        from bpe.pretokenize.regex_splitter import DigitsSplitter

        return DigitsSplitter(self.individual_digits)


class Split(msgspec.Struct, frozen=True, tag=True):
    """A regex that `bpe.pretokenize.regex_splitter` runs, as in Hugging Face's `Split`."""

    # "Regex" or "String" -> its text
    pattern: Annotated[
        dict[Literal["Regex", "String"], Annotated[str, msgspec.Meta(min_length=1)]],
        msgspec.Meta(min_length=1, max_length=1),
    ]
    behavior: Behavior  # what becomes of a match
    invert: bool = False  # whether matches are the pieces, and the text between the delimiters

    def splitter(self, dialect: str = "huggingface") -> RegexSplitter:
        """Return its splitter; raise PatternError if the regex cannot be run exactly.

        `dialect` is the engine that the regex was written for: "huggingface" or "tiktoken".
        """
        ((kind, text),) = self.pattern.items()
        # Only what is special in a regex: an escaped `\<` would be special again.
        regex = text if kind == "Regex" else re.sub(r"([][{}()|\\^$.*+?&~#-])", r"\\\1", text)
        return _splitter(regex, dialect, self.behavior, self.invert)


@functools.lru_cache(maxsize=8)  # each has a table of a megabyte
def _splitter(regex: str, dialect: str, behavior: str, invert: bool) -> RegexSplitter:
    from bpe.pretokenize.regex_splitter import RegexSplitter

    return RegexSplitter(regex, dialect, behavior, invert)


# The name of a pattern that has a scanner stands for itself.
Step = str | Digits | Split
_STEPS: Any = Annotated[list[Step], msgspec.Meta(min_length=1)]


def decode_steps(text: str) -> list[Step]:
    """Return steps from their JSON; raise PatternError if it is damaged, or as `check_steps`."""
    try:
        listed = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise PatternError(
            f"the steps of the pattern {shown(text)} are not JSON ({error}): "
            "expected a list as in a tokenizer.json"
        ) from error
    return check_steps(listed)


def check_steps(listed: object) -> list[Step]:
    """Return steps from values of JSON; raise PatternError if one is damaged or of another kind."""
    try:
        steps: list[Step] = msgspec.convert(listed, _STEPS)
    except msgspec.ValidationError as error:
        raise PatternError(
            f"the steps {shown(listed)} are not implemented: {error}: expected a list of Digits,"
            " of Split with a Regex or a String and a behavior that loses no text"
            f" ({', '.join(get_args(Behavior))}), and of names of patterns"
        ) from error
    return steps
