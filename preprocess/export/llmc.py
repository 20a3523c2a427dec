"""Shards of llm.c: NAME_000000.bin and so on.

A header of 256 int32 (magic, version, number of tokens, zeros), then the ids: uint16, or for
vocabularies above 65,536 uint32 under the magic of its Llama 3.
"""

from __future__ import annotations

import numpy as np

from preprocess.export.source import OutputFile, Source, plain, token_shards

HEADER_VALUES = 256
MAGIC = {2: (20240520, 1), 4: (20240801, 7)}  # bytes of an id -> (magic, version)
_LARGEST = (1 << 31) - 1


def plan_files(source: Source, shard_tokens: int) -> list[OutputFile]:
    """Return the shards."""
    if shard_tokens > _LARGEST:
        raise source.error(
            f"a file of llm.c has {_LARGEST:,} tokens at most, and {shard_tokens:,} were asked"
            " for; lower it (--shard-tokens)"
        )
    files = []
    for number, (start, stop) in enumerate(token_shards(source, shard_tokens)):
        header = np.zeros(HEADER_VALUES, "<i4")
        header[:3] = *MAGIC[source.file.dtype.itemsize], stop - start
        segments = plain(header.tobytes()), source.ids_segment(start, stop)
        files.append(OutputFile(f"{source.name}_{number:06d}.bin", segments))
    return files
