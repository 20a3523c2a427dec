"""Find the elements of an array of JSON, limit how deep values are nested, and decode strings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpe.runtime.arrays import Bytes
from bpe.runtime.jit import kernel
from bpe.runtime.machine import copy_64_bytes, range_mask, trailing_zeros
from preprocess.sources.text_file import Array

PADDING = 64  # bytes read and written at a time, so both arrays have so many more
MAX_NESTING = 300  # of what is read; every version of Python and of other programs reads so much

_QUOTE, _BACKSLASH = 0x22, 0x5C
_DEPTH, _IN_STRING, _IS_ESCAPED, _DEEPEST = 0, 1, 2, 3


def new_state() -> NDArray[np.int64]:
    """Return the state of `find_element_end` at the start of an element."""
    return np.zeros(4, np.int64)


def find_end(part: Bytes, least: int, state: NDArray[np.int64]) -> int:
    """Return what `find_element_end` finds."""
    return int(find_element_end(part, least, state))


def is_nested_deeper(values: Any, limit: int = MAX_NESTING) -> bool:
    """Return True if lists and objects in values of JSON, bytes-like, are nested deeper than that.

    Parsers have limits of their own, which differ between versions of Python.
    """
    if isinstance(values, bytes) and values.count(b"[") + values.count(b"{") <= limit:
        return False
    part, state = np.frombuffer(values, np.uint8), new_state()
    find_element_end(part, len(part), state)
    return bool(state[_DEEPEST] > limit)


def decode_strings(
    values: Iterable[Any], n_joined: int, array: Array
) -> tuple[Bytes, NDArray[np.int64]] | None:
    """Decode strings of JSON to texts in UTF-8; return None if a value is no string.

    Args:
        values: Bytes-like, valid JSON in UTF-8 without lone surrogates.
        n_joined: So many strings are one text, joined by newlines.
        array: Allocates uint8[n] for the texts.

    Returns:
        (texts, offsets): uint8[n_bytes] and int64[n_texts + 1].
    """
    found = [*values]
    source = np.frombuffer(b"".join([*found, bytes(PADDING)]), np.uint8)
    out, offsets = array(len(source)), np.zeros(len(found) // n_joined + 1, np.int64)
    if strings_to_texts(source, n_joined, out, offsets) < len(found):
        return None
    return out[: offsets[-1]], offsets


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


@kernel
def strings_to_texts(source, n_joined, out, offsets):
    r"""Decode JSON strings, one directly after another, to texts in UTF-8.

    Args:
        source: uint8[n + PADDING]: valid strings with their quotes, in UTF-8, without lone
            surrogates; then anything.
        n_joined: So many strings are one text, joined by newlines.
        out: uint8[n + PADDING], filled with the texts.
        offsets: int64[n_texts + 1], replaced by the offsets of texts in `out`.

    Returns:
        The number of strings; if a value is not a string, its index.

    Example: the strings "a\nb" and "é" with n_joined 1 -> out "a", newline, "bé"; offsets 0 3 5; 2.
    """
    at, to, number, n = 0, 0, 0, source.size - PADDING
    offsets[0] = 0
    while at < n:
        if source[at] != _QUOTE:
            return number
        at += 1
        while True:
            # Bytes up to the next quote or backslash are copied, 64 at a time.
            special = range_mask(source, at, _QUOTE, _QUOTE)
            special |= range_mask(source, at, _BACKSLASH, _BACKSLASH)
            copy_64_bytes(source, at, out, to)
            width = trailing_zeros(special)
            at += width
            to += width
            if special == np.uint64(0):
                continue
            if source[at] == _QUOTE:
                at += 1
                break
            at, to = _escape(source, at + 1, out, to)
        number += 1
        if number % n_joined == 0:
            offsets[number // n_joined] = to
        else:
            out[to] = 10
            to += 1
    return number


@kernel
def _escape(source, at, out, to):
    r"""Decode the escape after a backslash; return (place after it, end of `out`).

    Example: u00e9 at 1, to = 0 -> out C3 A9; (6, 2).
    """
    letter = source[at]
    if letter != 0x75:
        if letter == 0x6E:  # n
            letter = np.uint8(10)
        elif letter == 0x72:  # r
            letter = np.uint8(13)
        elif letter == 0x74:  # t
            letter = np.uint8(9)
        elif letter == 0x62:  # b
            letter = np.uint8(8)
        elif letter == 0x66:  # f
            letter = np.uint8(12)
        out[to] = letter
        return at + 1, to + 1
    code_point = _hexadecimal(source, at + 1)
    at += 5
    if 0xD800 <= code_point < 0xDC00:
        # A pair of surrogates: the second one is `\uXXXX`, too.
        code_point = 0x10000 + ((code_point & 0x3FF) << 10 | _hexadecimal(source, at + 2) & 0x3FF)
        at += 6
    if code_point < 0x80:
        out[to] = code_point
        return at, to + 1
    if code_point < 0x800:
        out[to] = 0xC0 | code_point >> 6
        out[to + 1] = 0x80 | code_point & 0x3F
        return at, to + 2
    if code_point < 0x10000:
        out[to] = 0xE0 | code_point >> 12
        out[to + 1] = 0x80 | code_point >> 6 & 0x3F
        out[to + 2] = 0x80 | code_point & 0x3F
        return at, to + 3
    out[to] = 0xF0 | code_point >> 18
    out[to + 1] = 0x80 | code_point >> 12 & 0x3F
    out[to + 2] = 0x80 | code_point >> 6 & 0x3F
    out[to + 3] = 0x80 | code_point & 0x3F
    return at, to + 4


@kernel
def _hexadecimal(source, at):
    """Return the number of four hexadecimal digits, int64: 00e9 -> 0xE9."""
    number = np.int64(0)
    for j in range(4):
        digit = np.int64(source[at + j])
        # Letters in either case have bit 6 set, and end in 1 to 6.
        number = number << 4 | (digit & 0xF) + 9 * (digit >> 6)
    return number
