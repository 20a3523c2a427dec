"""Load the tokenizer that a command is given."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from preprocess.options import BuildSettings, CountSettings
from preprocess.settings import is_ranks_file

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer


def load_given_tokenizer(settings: BuildSettings | CountSettings) -> AnyTokenizer:
    """Load the tokenizer in the settings.

    A .tiktoken file gets the given pattern and special tokens, another one without special tokens
    those around documents that are given. Of a build, the pattern is otherwise one to train with.

    Raises:
        TokenizerFileError: It cannot be loaded, or a build could not write it beside the tokens.
    """
    from bpe import load_tokenizer
    from bpe.errors import PatternError, TokenizerFileError, VocabularyError

    assert settings.tokenizer is not None
    special_tokens, pattern = settings.all_special_tokens, settings.given.get("pattern")
    if isinstance(settings, BuildSettings) and not is_ranks_file(settings.tokenizer):
        pattern = None
    found = load_tokenizer(settings.tokenizer, pattern=pattern, special_tokens=special_tokens)
    is_file = isinstance(settings.tokenizer, str) and not is_ranks_file(settings.tokenizer)
    if isinstance(settings, BuildSettings) and not is_file:
        try:
            found.to_json()
        except (PatternError, VocabularyError) as error:
            raise TokenizerFileError(
                f"the tokenizer cannot be written beside the tokens, which a build does: {error};"
                " or save it as a tokenizer.json by the program that it is from"
            ) from error
    end_of_text = getattr(settings, "end_of_text", None)
    if end_of_text is None or found.special_tokens:
        return found
    begin_of_text = getattr(settings, "begin_of_text", None)
    return _with_special_tokens(found, special_tokens, begin_of_text)


def _with_special_tokens(
    tokenizer: AnyTokenizer, tokens: Sequence[str], begin_of_text: str | None
) -> AnyTokenizer:
    """Return a tokenizer with special tokens, whose ids follow the others, the first ends text."""
    from bpe import load_tokenizer
    from bpe.special import pad_token_of

    named = {"eos_token": tokens[0], "pad_token": pad_token_of(tokens) or tokens[0]}
    named |= {"bos_token": begin_of_text} if begin_of_text else {}
    others = [token for token in tokens if token not in named.values()]
    with tempfile.TemporaryDirectory(prefix="tokenmill-") as directory:
        path, config = Path(directory, "tokenizer.json"), Path(directory, "tokenizer_config.json")
        tokenizer.save(path)
        settings = json.loads(config.read_bytes()) | named | {"extra_special_tokens": others}
        config.write_text(json.dumps(settings))
        return load_tokenizer(path)
