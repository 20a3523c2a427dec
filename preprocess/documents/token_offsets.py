"""Map byte offsets in documents to positions among token ids, for columns such as loss masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bpe.errors import EncodingError

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


def token_lengths(tokenizer: AnyTokenizer, is_normalized: bool = False) -> Positions:
    """Return the number of bytes of text that each id spells: int64[vocab_size].

    Raises:
        EncodingError: The tokenizer changes text before it is encoded.
    """
    if not gives_text_back(tokenizer, is_normalized):
        raise EncodingError(
            "byte offsets cannot be mapped to the tokens of this tokenizer, for it changes text"
            " before encoding it (normal forms, white space added or removed, or words); use a"
            " byte-level tokenizer without these"
        )
    lengths = np.zeros(tokenizer.vocab_size, np.int64)
    for token_id, token in tokenizer.vocab.items():
        lengths[token_id] = len(token)
    return lengths


def tokens_at(positions: Positions, bounds: Positions, ends: Positions) -> Positions:
    """Return the position in the ids of the token that contains each byte: int64[n].

    A token contains the bytes that it spells, and may begin inside a character. Special ids around
    documents contain none.

    >>> tokens_at(np.array([0, 2, 4]), np.array([0, 3, 4, 6]), np.array([0, 2, 3, 3, 5]))
    array([1, 2, 4])

    Args:
        positions: int64[n], positions in the buffer of the batch, each inside a document.
        bounds: int64[2 * n_documents]: document d is `buffer[bounds[2 * d] : bounds[2 * d + 1]]`.
        ends: int64[n_tokens], the cumulative number of bytes that the tokens spell.

    Raises:
        EncodingError: The tokens do not spell as many bytes as the documents have.
        ValueError: A position is outside the documents.
    """
    starts, sizes = bounds[::2], bounds[1::2] - bounds[::2]
    total, spelled = int(sizes.sum()), int(ends[-1]) if len(ends) else 0
    if total != spelled:
        raise EncodingError(f"the documents have {total:,} bytes, and their tokens {spelled:,}")
    document = np.searchsorted(starts, positions, "right") - 1
    outside = np.flatnonzero((document < 0) | (positions >= bounds[1::2][document]))
    if len(outside):
        raise ValueError(f"position {positions[outside[0]]:,} is not inside a document")
    text_starts = np.cumsum(sizes) - sizes
    in_text = text_starts[document] + positions - starts[document]
    found: Positions = np.searchsorted(ends, in_text, "right").astype(np.int64)
    return found
