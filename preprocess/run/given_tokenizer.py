"""Load the tokenizer that a command is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preprocess.settings import schema
from preprocess.settings.options import is_ranks_file

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer


def load_tokenizer_of_build(settings: schema.BuildSettings) -> AnyTokenizer:
    """Load the tokenizer given to a build; only a .tiktoken file needs the split pattern."""
    needs_pattern = is_ranks_file(settings.tokenizer)
    return load_given_tokenizer(settings, settings.pattern if needs_pattern else None)


def load_given_tokenizer(
    settings: schema.BuildSettings | schema.CountSettings, pattern: str | None
) -> AnyTokenizer:
    """Load the tokenizer in the settings; a .tiktoken file gets a pattern and special tokens."""
    from bpe import load_tokenizer

    assert settings.tokenizer is not None
    special_tokens = settings.all_special_tokens
    return load_tokenizer(settings.tokenizer, pattern=pattern, special_tokens=special_tokens)
