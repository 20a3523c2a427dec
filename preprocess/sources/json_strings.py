"""Decode strings of JSON to documents in one buffer, find elements of an array, limit nesting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpe.runtime.arrays import Bytes, read_only
from preprocess.sources import json_kernels as kernels

MAX_NESTING = 300  # of what is read; every version of Python and of other programs reads so much


def decode_strings(
    values: Sequence[Any], n_joined: int, array: Callable[[int], Bytes] | None = None
) -> tuple[Bytes, NDArray[np.int64]]:
    """Decode valid values of JSON to texts in UTF-8, up to the first value that is not a string.

    Args:
        values: Bytes-like: UTF-8 without lone surrogates.
        n_joined: So many strings are one text, joined by newlines.
        array: Allocates uint8[n] for the texts.

    Returns:
        (texts, offsets): uint8[n_bytes], read-only, and int64[n_texts + 1].
    """
    source = np.frombuffer(b"".join([*values, bytes(kernels.PADDING)]), np.uint8)
    text = np.empty(len(source), np.uint8) if array is None else array(len(source))
    offsets = np.empty(len(values) // n_joined + 1, np.int64)
    n_bytes = len(source) - kernels.PADDING
    n = kernels.decode_strings(source, n_bytes, n_joined, text, offsets)
    offsets = offsets[: n // n_joined + 1]
    return read_only(text[: offsets[-1]]), offsets


def is_nested_deeper(values: Any, limit: int = MAX_NESTING) -> bool:
    """Return True if lists and objects in values of JSON, bytes-like, are nested deeper than that.

    Parsers have limits of their own, which differ between versions of Python.
    """
    if isinstance(values, bytes) and values.count(b"[") + values.count(b"{") <= limit:
        return False
    state = np.zeros(kernels.STATE, np.int64)
    part = np.frombuffer(values, np.uint8)
    kernels.find_element_end(read_only(part), len(part), state)
    return bool(state[kernels.DEEPEST] > limit)


class ElementFinder:
    """Finds the elements of an array of JSON, whose text is given in parts."""

    def __init__(self) -> None:
        self._state = np.zeros(kernels.STATE, np.int64)

    def find_end(self, part: Bytes, least: int = 0) -> int:
        """Return the position in `part` of the first comma between elements from `least` on.

        The bracket that closes the array counts, too. -1 if there is none: the next call gets the
        next part of the text. After a comma, the next call gets the text after it.
        """
        return int(kernels.find_element_end(read_only(part), least, self._state))
