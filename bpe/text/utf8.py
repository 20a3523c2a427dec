"""Validate UTF-8, 64 bytes at a time.

Bit sets of a block are the first bytes of characters of two, three and four bytes, and continuation
bytes, which must be exactly where first bytes need them. Other errors (RFC 3629: overlong forms,
surrogates, code points above U+10FFFF) are seen in the first two bytes of a character.
"""

from __future__ import annotations

import numpy as np

from bpe.errors import EncodingError
from bpe.runtime.arrays import Bytes, read_only
from bpe.runtime.jit import kernel
from bpe.runtime.machine import always_inline, range_mask

STATE_WORDS = 7
# Sets of the last block: first bytes of characters of two or more bytes; of three or more; of four;
# and first bytes with constraints on the second byte.
_SEVERAL, _LONG, _LONGEST, _E0, _ED, _F0, _F4 = range(STATE_WORDS)


@kernel
def _behind(state, name, members, n):
    """Return the positions n after members, 1 to 3: 0b1, n = 2 -> 0b100; keep the set."""
    before = state[name]
    state[name] = members
    return (members << np.uint64(n)) | (before >> np.uint64(64 - n))


@kernel
def _wrong(source, base, state):
    """Return the invalid positions in `source[base : base + 64]`: 80 41 41 ... -> 0b1."""
    always_inline()
    zero = np.uint64(0)
    several = range_mask(source, base, 0xC0, 0xFF)
    long = range_mask(source, base, 0xE0, 0xFF)
    wrong = range_mask(source, base, 0xC0, 0xC1)
    wanted = zero
    if long | state[_LONG] != zero:
        longest = range_mask(source, base, 0xF0, 0xFF)
        if longest | state[_LONGEST] != zero:
            wanted = _behind(state, _LONGEST, longest, 3)
            wrong |= range_mask(source, base, 0xF5, 0xFF)
            low = range_mask(source, base, 0x80, 0x8F)
            wrong |= _behind(state, _F0, range_mask(source, base, 0xF0, 0xF0), 1) & low
            wrong |= _behind(state, _F4, range_mask(source, base, 0xF4, 0xF4), 1) & ~low
        low = range_mask(source, base, 0x80, 0x9F)
        wrong |= _behind(state, _E0, range_mask(source, base, 0xE0, 0xE0), 1) & low
        wrong |= _behind(state, _ED, range_mask(source, base, 0xED, 0xED), 1) & ~low
        wanted |= _behind(state, _LONG, long, 2)
    wanted |= _behind(state, _SEVERAL, several, 1)
    return wrong | (wanted ^ range_mask(source, base, 0x80, 0xBF))


@kernel
def is_valid(source, tail, state):
    """Return True if `source` and `tail` together are valid UTF-8, as for `bytes.decode`.

    Args:
        source: uint8[n]; whole blocks are read.
        tail: uint8[64], the last n % 64 bytes, then zeros.
        state: uint64[STATE_WORDS], zeros; modified.

    Example: bytes C3 A9 in the tail -> True; C3 alone -> False.
    """
    goes_on = False
    for base in range(0, source.size - 63, 64):
        # ASCII blocks are skipped, unless a character continues in them.
        if goes_on or range_mask(source, base, 0x80, 0xFF) != np.uint64(0):
            if _wrong(source, base, state) != np.uint64(0):
                return False
            rest = state[_SEVERAL] >> np.uint64(63) | state[_LONG] >> np.uint64(62)
            goes_on = rest | state[_LONGEST] >> np.uint64(61) != np.uint64(0)
    return _wrong(tail, 0, state) == np.uint64(0)


def is_utf8(buffer: Bytes) -> bool:
    """Return True if `uint8[n_bytes]` is UTF-8 (RFC 3629: no surrogates, no overlong forms)."""
    whole = len(buffer) // 64 * 64
    tail = np.zeros(64, np.uint8)
    tail[: len(buffer) - whole] = buffer[whole:]
    state = np.zeros(STATE_WORDS, np.uint64)
    return bool(is_valid(read_only(buffer), read_only(tail), state))


def invalid_utf8(buffer: Bytes) -> tuple[int, str]:
    """Return the position of the first byte that is not UTF-8, and a description."""
    try:
        buffer.tobytes().decode()
    except UnicodeDecodeError as error:
        return error.start, f"0x{buffer[error.start]:02x}: {error.reason}"
    raise AssertionError("the kernel and Python disagree about UTF-8")


def check_utf8(part: Bytes, start: int) -> None:
    """Raise EncodingError unless uint8[n_bytes] is UTF-8; `start` is its offset in the data."""
    if not is_utf8(part):
        place, what = invalid_utf8(part)
        raise EncodingError(
            f"byte {start + place:,} is not valid UTF-8 ({what}): expected UTF-8; decode the text"
            " as what it is, and encode it"
        )
