"""GPT-2's byte-level alphabet, in which tokenizer files spell bytes as text."""

from __future__ import annotations

import codecs
from collections.abc import Collection
from itertools import accumulate

import numpy as np

from bpe.reference import BYTE_LEVEL_ALPHABET

# Codecs of Python for code pages: 0.4 us per token.
_BYTE_OF_CHARACTER = codecs.charmap_build(BYTE_LEVEL_ALPHABET)


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


def all_from_byte_level(spelled: Collection[str]) -> dict[str, bytes]:
    """Return text -> bytes for all texts that are spelled in the byte-level alphabet."""
    # A character of that alphabet is two bytes of UTF-16: one look-up by NumPy serves all texts.
    byte_of = np.full(2**16, -1, np.int16)
    byte_of[[ord(character) for character in BYTE_LEVEL_ALPHABET]] = range(256)
    units = "".join(spelled).encode("utf-16-le", "surrogatepass")
    found = byte_of[np.frombuffer(units, "<u2")]
    if found.min(initial=0) < 0:
        pairs = ((text, from_byte_level(text)) for text in spelled)
        return {text: token for text, token in pairs if token is not None}
    data = found.astype(np.uint8).tobytes()
    ends = [0, *accumulate(map(len, spelled))]
    return dict(zip(spelled, map(data.__getitem__, map(slice, ends, ends[1:])), strict=True))
