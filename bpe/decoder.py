"""Decode token ids to bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpe.errors import EncodingError
from bpe.vocabulary import Vocabulary, unknown_id_message

_DECODE_IDS = 1 << 15  # ids decoded at a time, to bound memory beyond that of the text


def decode_bytes(vocabulary: Vocabulary, ids: Iterable[int]) -> bytes:
    """Return the bytes of tokens; raise EncodingError if an id has no token."""
    if type(ids) is not list and hasattr(ids, "__array__"):
        return _decode_array(vocabulary, np.asarray(ids))
    try:
        return b"".join(map(vocabulary.bytes_of_id.__getitem__, ids))
    except KeyError as error:
        raise EncodingError(unknown_id_message(error.args[0], vocabulary.size)) from None


def _decode_array(vocabulary: Vocabulary, ids: NDArray[Any]) -> bytes:
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise EncodingError(
            f"ids have the shape {ids.shape} and the type {ids.dtype}: "
            "expected one dimension of whole numbers"
        )
    data, starts, lengths = vocabulary.flat_by_id
    pieces = []
    for first in range(0, len(ids), _DECODE_IDS):
        part = ids[first : first + _DECODE_IDS]
        inside = (part >= 0) & (part < len(lengths))
        taken = np.where(inside, part, 0).astype(np.int64)
        unknown = ~inside | (lengths[taken] < 0)
        if unknown.any():
            token_id = int(part[unknown.argmax()])
            raise EncodingError(unknown_id_message(token_id, vocabulary.size))
        # Twice as fast as joining the bytes of single tokens.
        ends = np.cumsum(lengths[taken])
        places = np.repeat(starts[taken] - ends + lengths[taken], lengths[taken])
        pieces.append(data[places + np.arange(len(places))].tobytes())
    return b"".join(pieces)
