"""Exceptions of both packages.

The message of a `TokenmillError` names the file or argument, the expected and the found value, and
a remedy. Errors about values are also `ValueError`s.

    TokenmillError
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
from collections.abc import Iterable


class TokenmillError(Exception):
    """Base class of the exceptions of tokenmill."""


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


def shown(value: object) -> str:
    """Format a value for a message: its JSON, at most 100 characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return repr(text if len(text) <= 100 else text[:99] + "…")


def listed(names: Iterable[str]) -> str:
    """Format a list of names for a message."""
    return ", ".join(map(repr, names)) or "(none)"
