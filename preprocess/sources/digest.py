"""Digest of a source, which workers compute unit by unit.

It is the xxh3_128 of the digests (xxh3_128, 16 bytes) of its blocks. Blocks begin at multiples of
BLOCK_BYTES in the file, so the digest does not depend on units; the last block, and the first of a
part of a file, may be shorter. A unit passes on the bytes of blocks that it shares with others, up
to twice BLOCK_BYTES; such a block is digested when all of it is there.
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from preprocess.documents.batch import Bytes

BLOCK_BYTES = 64 * 1024


class BlockDigests(NamedTuple):
    """Digests of the whole blocks in a range of a file, and the bytes before and after these."""

    head: bytes
    ends_block: bool  # a block ends after `head`
    blocks: bytes  # 16 bytes for each block, its xxh3_128
    tail: bytes


def digest_blocks(content: Bytes, start: int) -> BlockDigests:
    """Digest the whole blocks in a range of a file.

    Args:
        content: uint8[n], the bytes in the range.
        start: Position of the first byte in the file.
    """
    first = min(-start % BLOCK_BYTES, len(content))
    stop = len(content) - (len(content) - first) % BLOCK_BYTES
    blocks = b"".join(
        xxhash.xxh3_128_digest(content[begin : begin + BLOCK_BYTES].data)
        for begin in range(first, stop, BLOCK_BYTES)
    )
    head, tail = content[:first].tobytes(), content[stop:].tobytes()
    return BlockDigests(head, (start + first) % BLOCK_BYTES == 0, blocks, tail)


class SourceDigest:
    """Digest of the bytes of a source so far."""

    def __init__(self) -> None:
        self._blocks, self._open, self._n_open = xxhash.xxh3_128(), xxhash.xxh3_128(), 0

    def update(self, digests: BlockDigests) -> None:
        """Add the digests of the bytes that follow."""
        self._extend(digests.head)
        if digests.ends_block:
            self._close()
        self._blocks.update(digests.blocks)
        self._extend(digests.tail)

    def _extend(self, part: bytes) -> None:
        """Add bytes to the open block."""
        self._open.update(part)
        self._n_open += len(part)

    def _close(self) -> None:
        """Add the open block, unless it is empty."""
        if self._n_open:
            self._blocks.update(self._open.digest())
            self._open, self._n_open = xxhash.xxh3_128(), 0

    def hexdigest(self) -> str:
        """Return the digest, hexadecimal: that of no bytes is the xxh3_128 of none."""
        digest = self._blocks.copy()
        if self._n_open:
            digest.update(self._open.digest())
        return digest.hexdigest()
