"""Whether bytes are well-formed UTF-8, 64 of them at a time.

The bytes of a block become bit sets: where characters of two, three and four bytes begin, and which
bytes go on with one. Each of these has to stand where a character that has begun wants it, and
nowhere else. What else is forbidden (RFC 3629: overlong forms, surrogates, code points above
U+10FFFF) shows in a first byte, or in the one behind it.
"""

from __future__ import annotations

import numpy as np

from bpe.kernels.runtime.jit import kernel
from bpe.kernels.runtime.machine import always_inline, range_mask

STATE_WORDS = 7
# What must be known of the block before: where characters of several bytes begin; of three or four;
# of four; and where there are first bytes that not every second byte may follow.
_SEVERAL, _LONG, _LONGEST, _E0, _ED, _F0, _F4 = range(STATE_WORDS)


@kernel
def _behind(state, name, members, n):
    """Return the places `n` behind a member of a set, 1 to 3; keep the set for the next block."""
    before = state[name]
    state[name] = members
    return (members << np.uint64(n)) | (before >> np.uint64(64 - n))


@kernel
def _wrong(source, base, state):
    """Return the places in the block `source[base : base + 64]` that are not as they have to be."""
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
def is_utf8(source, tail, state):
    """Return True if `source` and `tail` together are well-formed, as `bytes.decode` has it.

    Args:
        source: uint8[n], of which whole blocks are looked at.
        tail: uint8[64], the last n % 64 bytes, then zeros: one at least.
        state: uint64[STATE_WORDS], zeros; replaced.

    Example: bytes C3 A9 in the tail -> True; C3 alone -> False.
    """
    goes_on = False
    for base in range(0, source.size - 63, 64):
        # Of a block that leaves nothing open the next one need not know anything.
        if goes_on or range_mask(source, base, 0x80, 0xFF) != np.uint64(0):
            if _wrong(source, base, state) != np.uint64(0):
                return False
            rest = state[_SEVERAL] >> np.uint64(63) | state[_LONG] >> np.uint64(62)
            goes_on = rest | state[_LONGEST] >> np.uint64(61) != np.uint64(0)
    return _wrong(tail, 0, state) == np.uint64(0)
