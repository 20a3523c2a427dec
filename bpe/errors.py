"""Exceptions of both packages.

The message of a `TokenmillError` names the file or argument, the expected and the found value, and
a remedy. It is written with options as in a command, and shows arguments in Python. Errors about
values are also `ValueError`s.

    TokenmillError
    +-- ArgumentError
    +-- TokenizerFileError
    |   +-- UnsupportedTokenizerError
    +-- VocabularyError
    +-- PatternError
    +-- TrainingError
    +-- EncodingError
    +-- CorpusError
        +-- UnavailableError
            +-- ChangedError

Modules of `preprocess` define more.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class TokenmillError(Exception):
    """Base class of the exceptions of tokenmill."""

    def __str__(self) -> str:
        """Return the message in one line, also where it shows an array."""
        return re.sub(r"\s*\n\s*", " ", spelled(super().__str__()))


class ArgumentError(TokenmillError, TypeError, ValueError):
    """An argument is unknown, missing, or of a type or value that cannot work.

    Python raises TypeError for some of these, and ValueError for others.
    """


class TokenizerFileError(TokenmillError, ValueError):
    """A tokenizer file is unreadable, damaged, or not supported."""


class UnsupportedTokenizerError(TokenizerFileError):
    """A tokenizer file is valid, but needs something that is not implemented."""


class VocabularyError(TokenmillError, ValueError):
    """Tokens, merges and special tokens are inconsistent."""


class PatternError(TokenmillError, ValueError):
    """A split pattern is unknown or not supported."""


class TrainingError(TokenmillError, ValueError):
    """Training cannot start with these arguments or this text."""


class EncodingError(TokenmillError, ValueError):
    """Text is not valid Unicode, or a token id is not in the vocabulary."""


class CorpusError(TokenmillError, ValueError):
    """A file cannot be read as documents: missing, empty, not text, or changed."""


class UnavailableError(CorpusError):
    """A source that was readable at first cannot be read; a later attempt may succeed."""


class ChangedError(UnavailableError):
    """A source has changed since it was found."""


# An option, perhaps with a value before a bracket or comma; or a command line, which stays, as does
# the name of a file before a colon. A switch in brackets is a remedy, which gives it.
_OPTION = (
    r"(?:^(?!\S+:)|(?<=[\s(]))((?:tokenmill \w+|verify|ray start) )?"
    r"--([a-z][a-z0-9-]*[a-z0-9])(?![\w/-]|[.:]\S)"
    r"(?: (?:'([^\s']*)'(?=[),;]|$)|([^\s(),;]+)(?=[),;])))?"
)
_SWITCHES = frozenset({
    "append-end-of-text", "deduplicate", "drop-short", "overwrite", "split-documents"
})
_PLURAL = {"column": "columns", "ray-resource": "ray_resources", "special-token": "special_tokens"}
_in_command = False


def spelled(text: str) -> str:
    """Return a message with options as arguments of Python, unless the command shows it.

    >>> spelled("exists; replace it (--overwrite), or choose a format (--format jsonl)")
    "exists; replace it (overwrite=True), or choose a format (format='jsonl')"
    >>> spelled("run tokenmill verify --repair data")
    'run tokenmill verify --repair data'
    """
    return text if _in_command else with_arguments(text)


def with_arguments(text: str) -> str:
    """Return a message with options as arguments of Python."""
    return re.sub(_OPTION, _as_argument, text)


def _as_argument(match: re.Match[str]) -> str:
    command, option, quoted, plain = match.groups()
    value = quoted or plain
    name = _PLURAL.get(option, option.replace("-", "_"))
    if option in _SWITCHES and match.string[: match.start()].endswith("("):
        name += "=True"
    elif value:
        name += f"={value if value.isdecimal() else repr(value)}"
    return match[0] if command else name


@contextmanager
def options_as_in_command() -> Iterator[None]:
    """Let messages name options as the command has them, inside the `with`."""
    global _in_command
    before, _in_command = _in_command, True
    try:
        yield
    finally:
        _in_command = before


def shown(value: object) -> str:
    """Format a value for a message: its JSON, at most 100 characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return repr(text if len(text) <= 100 else text[:99] + "…")


def listed(names: Iterable[str]) -> str:
    """Format a list of names for a message, the first 50 of them."""
    shown = [*map(repr, names)]
    more = f" and {len(shown) - 50:,} more" if len(shown) > 50 else ""
    return ", ".join(shown[:50]) + more or "(none)"
