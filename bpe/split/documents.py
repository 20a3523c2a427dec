"""What all scanners share: splitting documents block by block, and safe cuts inside them."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.runtime.jit import kernel
from bpe.split.classes import LETTER, MARK, WHITE_SPACE

BLOCK_NEEDS = 68  # bytes read for a block: its last character may have three more
TAIL = 8 * 64  # bytes of `Scratch.tail`: two blocks before the first one read from it, and more


class Characters(NamedTuple):
    """Unicode class tables, see `bpe.unicode_classes`."""

    classes: NDArray[np.uint8]  # uint8[0x110000], `class_table`
    pages: NDArray[np.uint64]  # uint64[0x5000 * 8], the same by pages, `class_pages`


class Source(NamedTuple):
    """Bytes of a text for a scanner."""

    # uint8, from byte `start` of the text on, a multiple of 64: from two blocks before the first
    # one to scan to 67 bytes past the start of the last one, with zeros after the text
    data: NDArray[np.uint8]
    start: int
    n: int  # bytes of the text


class Scratch(NamedTuple):
    """Scratch arrays for splitting one text, undefined between calls."""

    tail: NDArray[np.uint8]  # uint8[TAIL]
    tail_text: NDArray[np.uint8]  # the same, read-only as text, so that a scanner is compiled once
    state: NDArray[np.uint64]  # uint64, state of a scanner between blocks


@functools.cache
def splitter(scan, n_after):
    """Return the kernel that splits whole texts with a scanner, a kernel such as `split_gpt2`.

    The scanner is called for `n_after` blocks after the last one, too.
    """

    def split_documents(characters, scratch, buffer, offsets, is_marked, starts):
        """Split documents into pre-tokens.

        Args:
            characters, scratch: `Characters` and `Scratch`, the second modified in place.
            buffer: uint8[n_bytes] or more, zeros after the documents.
            offsets: int64[n > 0], where documents begin and end, from 0 to n_bytes.
            is_marked: Whether `starts` has the documents; then only the last offset is used.
            starts: uint64[n_bytes // 64 + 1 or more], replaced by the bit set of starts of
                pre-tokens, and of n_bytes.

        Example: for gpt2, b"Hi you" with offsets [0, 6] -> starts[0] == 0b1000101.
        """
        n = offsets[offsets.size - 1]
        n_blocks = (n >> 6) + 1
        starts = starts[:n_blocks]
        if not is_marked:
            starts[:] = np.uint64(0)
            for d in range(offsets.size):
                at = offsets[d]
                starts[at >> 6] |= np.uint64(1) << np.uint64(at & 63)
        state, tail = scratch.state, scratch.tail
        state[:] = np.uint64(0)
        n_scanned = n_blocks + n_after
        # Blocks are read from the buffer if all bytes they need are inside, else from `tail`.
        whole = (buffer.size - BLOCK_NEEDS + 64) >> 6
        whole = n_scanned if whole >= n_blocks else max(0, whole)
        if whole:
            scan(Source(buffer, np.int64(0), n), characters, starts, (0, whole), state)
        if whole < n_scanned:
            tail_start = max(0, whole - 2) << 6
            for j in range((n_blocks + 2 << 6) - tail_start):
                tail[j] = buffer[tail_start + j] if tail_start + j < n else 0
            rest = Source(scratch.tail_text, np.int64(tail_start), n)
            scan(rest, characters, starts, (whole, n_scanned), state)

    return kernel(split_documents, f"_{n_after}_{getattr(scan, 'name', '')}")


@kernel
def checked_character(source, at, stop):
    """Return a code point at `source[at]` and its bytes: C3 A9 -> (0xE9, 2); not UTF-8 -> (-1, 1).

    Bytes from `stop` on are not read.
    """
    first = np.int64(source[at])
    if first < 0x80:
        return first, 1
    if first < 0xC2 or first > 0xF4:
        return -1, 1
    n = 2 if first < 0xE0 else (3 if first < 0xF0 else 4)
    if at + n > stop:
        return -1, 1
    code_point = first & (0x7F >> n)
    for j in range(1, n):
        byte = np.int64(source[at + j])
        if byte & 0xC0 != 0x80:
            return -1, 1
        code_point = (code_point << 6) | (byte & 0x3F)
    if (n == 3 and (code_point < 0x800 or 0xD800 <= code_point <= 0xDFFF)) or (
        n == 4 and (code_point < 0x10000 or code_point > 0x10FFFF)
    ):
        return -1, 1
    return code_point, n


@kernel
def safe_cut(buffer, position, stop, classes, after_letters_only, has_phrases):
    """Return the first position from `position` on where a cut changes no pre-token, else `stop`.

    It is before white space after a letter (any character but white space if not
    `after_letters_only`), or after a letter and before anything but a letter, mark or apostrophe;
    not between a letter and a blank if there are phrases, of words joined by blanks.
    Both characters must be valid UTF-8, so that replacing invalid bytes does not cross the cut.
    `buffer` is uint8[>= stop]; `classes`: see `Characters`.

    Example: in "ab cd" from 0 on -> 2.
    """
    at = max(position, 1)
    while at < stop:
        if np.int64(buffer[at]) & 0xC0 == 0x80:
            at += 1
            continue
        code_point, _ = checked_character(buffer, at, stop)
        before = at - 1
        while before > 0 and at - before < 4 and np.int64(buffer[before]) & 0xC0 == 0x80:
            before -= 1
        code_point_before, width_before = checked_character(buffer, before, at)
        if code_point >= 0 and code_point_before >= 0 and before + width_before == at:
            flags, flags_before = classes[code_point], classes[code_point_before]
            if has_phrases and code_point == 32 and flags_before & LETTER:
                at += 1
                continue
            if flags & WHITE_SPACE and not flags_before & WHITE_SPACE and not after_letters_only:
                return at
            if flags_before & LETTER and not flags & (LETTER | MARK) and code_point != 39:
                return at
        at += 1
    return stop
