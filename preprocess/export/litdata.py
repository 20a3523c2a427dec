"""Chunks of litdata, for `StreamingDataset(item_loader=TokensLoader(block_size=...))`.

A chunk is one item: uint32 number of items, uint32 offsets of its start and end, then the ids.
"""

from __future__ import annotations

import json

import numpy as np

from preprocess.export.source import OutputFile, Source, int32_ids, plain, token_shards

INDEX_FILE = "index.json"
_HEADER_BYTES = 12
_DTYPES = {"uint16": 20, "int32": 16}  # numbers of dtypes of PyTorch in litdata
_LARGEST = (1 << 32) - 1  # of an offset
# One tensor, as `json.loads` of litdata reads it.
_ONE_TENSOR = '[1, {"type": null, "context": null, "children_spec": []}]'


def plan_files(source: Source, shard_tokens: int) -> list[OutputFile]:
    """Return the chunks, and index.json."""
    dtype = int32_ids(source, "litdata")
    most = (_LARGEST - _HEADER_BYTES) // dtype.itemsize
    if shard_tokens > most:
        raise source.error(
            f"a chunk of litdata has {most:,} tokens at most, and {shard_tokens:,} were asked for;"
            " lower it (--shard-tokens)"
        )
    files, chunks = [], []
    for number, (start, stop) in enumerate(token_shards(source, shard_tokens)):
        ids = source.ids_segment(start, stop, dtype)
        header = np.array([1, _HEADER_BYTES, _HEADER_BYTES + ids.n_bytes], "<u4")
        file = OutputFile(f"chunk-0-{number}.bin", (plain(header.tobytes()), ids))
        files.append(file)
        chunks.append({
            "chunk_bytes": file.n_bytes, "chunk_size": 1, "dim": stop - start,
            "filename": file.name,
        })  # fmt: skip
    config = {
        "chunk_bytes": None, "chunk_size": shard_tokens, "compression": None,
        "data_format": [f"no_header_tensor:{_DTYPES[dtype.name]}"], "data_spec": _ONE_TENSOR,
        "encryption": None, "item_loader": "TokensLoader",
    }
    # litdata keeps what it caches of a remote dataset as long as `updated_at` is the same.
    index = {"chunks": chunks, "config": config, "updated_at": source.file.manifest.digest}
    content = json.dumps(index, sort_keys=True).encode()
    return [*files, OutputFile(INDEX_FILE, (plain(content),))]
