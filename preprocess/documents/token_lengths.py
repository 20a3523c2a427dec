"""How many bytes of text each token spells, of tokenizers that do not change text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

Positions = NDArray[np.int64]


def gives_text_back(tokenizer: AnyTokenizer, is_normalized: bool = False) -> bool:
    """Return True if `decode(encode_ordinary(text)) == text` for every text, or normalized text."""
    from bpe import Tokenizer

    return (
        isinstance(tokenizer, Tokenizer)
        and (is_normalized or not tokenizer.normal_forms)
        and not any(token.lstrip or token.rstrip for token in tokenizer.vocabulary.added_tokens)
        # no space is added in front
        and tokenizer.decode(tokenizer.encode_ordinary("x")) == "x"
    )


def token_lengths(tokenizer: AnyTokenizer, is_normalized: bool = False) -> Positions | None:
    """Return the number of bytes of text, or of normalized text, that each id spells.

    They are int64[vocab_size]; None: the tokenizer changes text before it is encoded, by normal
    forms, white space that is added or removed, or words.
    """
    if not gives_text_back(tokenizer, is_normalized):
        return None
    lengths = np.zeros(tokenizer.vocab_size, np.int64)
    for token_id, token in tokenizer.vocab.items():
        lengths[token_id] = len(token)
    return lengths
