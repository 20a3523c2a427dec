"""Find the elements of an array of JSON, and limit how deep its values are nested."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpe.runtime.arrays import Bytes, read_only
from bpe.runtime.jit import kernel
from bpe.runtime.machine import range_mask, trailing_zeros

MAX_NESTING = 300  # of what is read; every version of Python and of other programs reads so much

_QUOTE, _BACKSLASH = 0x22, 0x5C
_DEPTH, _IN_STRING, _IS_ESCAPED, _DEEPEST = 0, 1, 2, 3


class ElementFinder:
    """Finds the elements of an array of JSON, whose text is given in parts."""

    def __init__(self) -> None:
        self._state: NDArray[np.int64] = np.zeros(4, np.int64)

    def find_end(self, part: Bytes, least: int = 0) -> int:
        """Return the position in `part` of the first comma between elements from `least` on.

        The bracket that closes the array counts, too. -1 if there is none: the next call gets the
        next part of the text. After a comma, the next call gets the text after it.
        """
        return int(find_element_end(read_only(part), least, self._state))


def is_nested_deeper(values: Any, limit: int = MAX_NESTING) -> bool:
    """Return True if lists and objects in values of JSON, bytes-like, are nested deeper than that.

    Parsers have limits of their own, which differ between versions of Python.
    """
    if isinstance(values, bytes) and values.count(b"[") + values.count(b"{") <= limit:
        return False
    part, state = np.frombuffer(values, np.uint8), np.zeros(4, np.int64)
    find_element_end(read_only(part), len(part), state)
    return bool(state[_DEEPEST] > limit)


@kernel
def find_element_end(source, least, state):
    """Find the first comma at position `least` or later that is between elements of an array.

    Args:
        source: uint8, text inside an array, from the start of an element or as `state` says.
        least: Commas before it do not count.
        state: int64[4], zeros at the start of an element: depth, whether in a string, whether
            after its backslash, greatest depth so far. Modified in place, so that the next part of
            the text may follow.

    Returns:
        Its position, or that of the bracket that closes the array; -1 if neither is in `source`.

    Example: [1,2],"]",3] with least 0 -> 5; with least 6 -> 9; with least 10 -> 11.
    """
    depth, in_string, is_escaped = state[_DEPTH], state[_IN_STRING], state[_IS_ESCAPED]
    at, n = 0, source.size
    while at < n:
        if in_string and not is_escaped and at + 64 <= n:
            # Up to the next quote or backslash, 64 at a time.
            special = range_mask(source, at, _QUOTE, _QUOTE)
            special |= range_mask(source, at, _BACKSLASH, _BACKSLASH)
            at += trailing_zeros(special)
            if special == np.uint64(0):
                continue
        byte = source[at]
        if in_string:
            if is_escaped:
                is_escaped = np.int64(0)
            elif byte == _BACKSLASH:
                is_escaped = np.int64(1)
            elif byte == _QUOTE:
                in_string = np.int64(0)
        elif byte == _QUOTE:
            in_string = np.int64(1)
        elif byte == 0x5B or byte == 0x7B:
            depth += 1
            state[_DEEPEST] = max(state[_DEEPEST], depth)
        elif byte == 0x5D or byte == 0x7D:
            if depth == 0:
                return np.int64(at)
            depth -= 1
        elif byte == 0x2C and depth == 0 and at >= least:
            return np.int64(at)
        at += 1
    state[_DEPTH], state[_IN_STRING], state[_IS_ESCAPED] = depth, in_string, is_escaped
    return np.int64(-1)
