"""The digest of a source, from its definition alone."""

from __future__ import annotations

from itertools import pairwise

import xxhash


def digest_of_source(content: bytes, start: int = 0) -> str:
    """Digest of bytes that begin at `start`: xxh3_128 of those of 64 KiB blocks of the file."""
    bounds = [0, *(i for i in range(1, len(content)) if (start + i) % 65536 == 0), len(content)]
    blocks = [content[a:b] for a, b in pairwise(bounds) if b > a]
    return xxhash.xxh3_128_hexdigest(b"".join(map(xxhash.xxh3_128_digest, blocks)))
