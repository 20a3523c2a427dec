"""GPT-2's byte-level alphabet, in which tokenizer files spell bytes as text."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

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


def all_from_byte_level(spelled: Sequence[str]) -> tuple[list[bytes], list[int]]:
    """Return the bytes of each text, and the numbers of those that are not in the alphabet.

    Their bytes mean nothing.
    """
    points = np.frombuffer("".join(spelled).encode("utf-32-le", "surrogatepass"), "<u4")
    found = _BYTE_OF_POINT[np.minimum(points, len(_BYTE_OF_POINT) - 1)]
    data = found.astype(np.uint8).tobytes()
    ends = [0, *accumulate(map(len, spelled))]
    tokens = [data[start:end] for start, end in pairwise(ends)]
    if found.min(initial=0) == 0:
        return tokens, []
    others = np.searchsorted(ends, np.flatnonzero(found < 0), "right") - 1
    return tokens, np.unique(others).tolist()
