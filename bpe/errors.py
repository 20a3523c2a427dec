"""The exceptions that both packages raise on purpose.

The message of a `TokenbinError` names the file or argument, what was expected, what was found and
what to do. Errors about a wrong value are also `ValueError`s, for code that knows no tokenbin.

    TokenbinError
    +-- TokenizerFileError
    |   +-- UnsupportedTokenizerError
    +-- VocabularyError
    +-- PatternError
    +-- TrainingError
    +-- EncodingError
    +-- CorpusError
        +-- UnavailableError
            +-- ChangedError

The package `preprocess` adds its own, each in the module that raises it.
"""

import json
from collections.abc import Iterable


class TokenbinError(Exception):
    """Base of every exception that tokenbin raises on purpose."""


class TokenizerFileError(TokenbinError, ValueError):
    """A tokenizer file cannot be read, is damaged, or asks for what is not implemented."""


class UnsupportedTokenizerError(TokenizerFileError):
    """A tokenizer file is sound, but asks for something that is not implemented here."""


class VocabularyError(TokenbinError, ValueError):
    """Tokens, merges and special tokens contradict one another."""


class PatternError(TokenbinError, ValueError):
    """A split pattern is not known."""


class TrainingError(TokenbinError, ValueError):
    """Training cannot start with these arguments or this text."""


class EncodingError(TokenbinError, ValueError):
    """Text is not valid Unicode, or a token id lies outside the vocabulary."""


class CorpusError(TokenbinError, ValueError):
    """Text cannot be read as documents: a file is missing, empty, no text, or changed meanwhile."""


class UnavailableError(CorpusError):
    """A source cannot be read now, though it could be when it was found; another time it may be."""


class ChangedError(UnavailableError):
    """A source is not what it was when it was found."""


def shown(value: object) -> str:
    """Return a value as a message shows it: its JSON, of at most 100 characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return repr(text if len(text) <= 100 else text[:99] + "…")


def listed(names: Iterable[str]) -> str:
    """Return names as a message lists them."""
    return ", ".join(map(repr, names)) or "(none)"
