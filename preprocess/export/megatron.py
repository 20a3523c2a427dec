"""Files of Megatron-LM: NAME.bin with the ids, NAME.idx with the documents.

NAME.idx, all little-endian: magic, uint64 version, uint8 code of the dtype, uint64 number of
sequences, uint64 number of document bounds; then for each sequence int32 length and int64 position
in bytes, and int64 bounds of documents, counted in sequences. A document is one sequence here.
"""

from __future__ import annotations

import struct

import numpy as np

from preprocess.dataset.columns import Values
from preprocess.export.source import OutputFile, Segment, Source, int32_ids, plain

MAGIC = b"MMIDIDX\0\0"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32",
    8: "uint16",
}  # fmt: skip
_LONGEST = (1 << 31) - 1  # tokens of a document


def plan_files(source: Source, shard_tokens: int) -> list[OutputFile]:
    """Return NAME.idx, which finds documents that are too long, and NAME.bin."""
    dtype, n = int32_ids(source, "Megatron"), source.n_documents
    code = next(code for code, name in DTYPES.items() if name == dtype.name)

    def lengths(first: int, stop: int) -> Values:
        found = np.diff(source.bounds(first, stop))
        if int(found.max()) > _LONGEST:
            number = first + int(found.argmax())
            raise source.error(
                f"document {number:,} has {int(found.max()):,} tokens, and a document of Megatron"
                f" {_LONGEST:,} at most; choose another format"
            )
        return found.astype("<i4")

    def pointers(first: int, stop: int) -> Values:
        return source.bounds(first, stop)[:-1].astype("<i8") * dtype.itemsize

    header = HEADER.pack(MAGIC, VERSION, code, n, n + 1)
    index = OutputFile(
        f"{source.name}.idx",
        (
            plain(header), Segment(n, 4 * n, lengths), Segment(n, 8 * n, pointers),
            Segment(n + 1, 8 * (n + 1), lambda start, stop: np.arange(start, stop, dtype="<i8")),
        ),
    )
    ids = source.ids_segment(0, source.n_tokens, dtype)
    return [index, OutputFile(f"{source.name}.bin", (ids,))]
