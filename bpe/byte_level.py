"""GPT-2's byte-level alphabet, in which tokenizer files spell bytes as text."""

from __future__ import annotations

import codecs
from collections.abc import Collection
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bpe.reference import BYTE_LEVEL_ALPHABET

# Codecs of Python for code pages: 0.4 us per token.
_BYTE_OF_CHARACTER = codecs.charmap_build(BYTE_LEVEL_ALPHABET)
# int16: the byte of each code point; -1 for none, and for all from the last entry on.
_BYTE_OF_POINT = np.full(0x200, -1, np.int16)
_BYTE_OF_POINT[[ord(character) for character in BYTE_LEVEL_ALPHABET]] = range(256)


def to_byte_level(token: bytes) -> str:
    r"""Spell bytes in GPT-2's byte-level alphabet.

    >>> to_byte_level(b" a\n")
    'ĠaĊ'
    """
    return codecs.charmap_decode(token, "strict", BYTE_LEVEL_ALPHABET)[0]


def from_byte_level(spelled: str) -> bytes | None:
    r"""Return the bytes of a spelling; None if a character is not in the byte-level alphabet.

    >>> from_byte_level("ĠaĊ"), from_byte_level(" a")
    (b' a\n', None)
    """
    try:
        token: bytes = codecs.charmap_encode(spelled, "strict", _BYTE_OF_CHARACTER)[0]
    except UnicodeEncodeError:
        return None
    return token


def all_from_byte_level(
    spelled: Collection[str],
) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]:
    """Convert texts in the byte-level alphabet to bytes, all at once.

    Returns:
        offsets, int64[n + 1]; data, uint8[n_bytes]: the bytes of text i are
        `data[offsets[i] : offsets[i + 1]]`; int64[n_others], the indices of the texts with other
        characters, whose bytes are undefined.
    """
    points = np.frombuffer("".join(spelled).encode("utf-32-le", "surrogatepass"), "<u4")
    found = _BYTE_OF_POINT[np.minimum(points, len(_BYTE_OF_POINT) - 1)]
    offsets = np.zeros(len(spelled) + 1, np.int64)
    offsets[1:] = np.cumsum(np.fromiter(map(len, spelled), np.int64, len(spelled)))
    others = np.searchsorted(offsets, np.flatnonzero(found < 0), "right") - 1
    # Sorted; `np.unique` would import numpy.ma, which takes longer than all this.
    others = others[np.diff(others, prepend=-1) > 0]
    return offsets, found.astype(np.uint8), others


def all_to_byte_level(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> list[str]:
    """Return the spellings of tokens: token i is `data[offsets[i] : offsets[i + 1]]`."""
    text = to_byte_level(data.tobytes())
    return [text[start:stop] for start, stop in pairwise(offsets.tolist())]
