"""Formats of exports: which files each has, and what it carries of a dataset.

A format is a function that describes its files, and a line of the table `FORMATS`. The bytes of an
export depend on the dataset and the settings alone.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib import format as npy

from preprocess.dataset.columns import Values
from preprocess.export import mds
from preprocess.export.source import OutputFile, Segment, Source, plain, values

# --- Megatron-LM: NAME.bin with the ids, NAME.idx with the documents ---
#
# NAME.idx, all little-endian: magic, uint64 version, uint8 code of the dtype, uint64 number of
# sequences, uint64 number of document bounds; then for each sequence int32 length and int64
# position in bytes, and int64 bounds of documents, counted in sequences. A document is one sequence
# here.

MEGATRON_MAGIC = b"MMIDIDX\0\0"
MEGATRON_VERSION = 1
MEGATRON_HEADER = struct.Struct("<9sQBQQ")
MEGATRON_DTYPES = {
    1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32",
    8: "uint16",
}  # fmt: skip
_LONGEST = (1 << 31) - 1  # tokens of a document


def megatron_files(source: Source, shard_tokens: int) -> list[OutputFile]:
    """Return NAME.idx, which finds documents that are too long, and NAME.bin."""
    dtype, n = source.int32_dtype("Megatron"), source.n_documents
    code = next(code for code, name in MEGATRON_DTYPES.items() if name == dtype.name)

    def lengths(first: int, stop: int) -> Values:
        found = np.diff(source.bounds(first, stop))
        if int(found.max()) > _LONGEST:
            raise source.error(
                f"document {first + int(found.argmax()):,} has {int(found.max()):,} tokens, and a"
                f" document of Megatron {_LONGEST:,} at most; choose another format"
            )
        return found.astype("<i4")

    def pointers(first: int, stop: int) -> Values:
        return source.bounds(first, stop)[:-1].astype("<i8") * dtype.itemsize

    index = (
        plain(MEGATRON_HEADER.pack(MEGATRON_MAGIC, MEGATRON_VERSION, code, n, n + 1)),
        values(n, 4, lengths), values(n, 8, pointers),
        values(n + 1, 8, lambda start, stop: np.arange(start, stop, dtype="<i8")),
    )
    ids = source.ids_segment(dtype=dtype)
    return [OutputFile(f"{source.name}.idx", index), OutputFile(f"{source.name}.bin", (ids,))]


# --- llm.c: shards NAME_000000.bin and so on ---
#
# A header of 256 int32 (magic, version, number of tokens, zeros), then the ids: uint16, or for
# vocabularies above 65,536 uint32 under the magic of its Llama 3.

_LLMC_MAGIC = {2: (20240520, 1), 4: (20240801, 7)}  # bytes of an id -> (magic, version)
_LLMC_LARGEST = (1 << 31) - 1


def llmc_files(source: Source, shard_tokens: int) -> list[OutputFile]:
    """Return the shards."""
    files = []
    places = source.shards(shard_tokens, _LLMC_LARGEST, "file of llm.c")
    for number, (start, stop) in enumerate(places):
        header = np.zeros(256, "<i4")
        header[:3] = *_LLMC_MAGIC[source.file.dtype.itemsize], stop - start
        segments = plain(header.tobytes()), source.ids_segment(start, stop)
        files.append(OutputFile(f"{source.name}_{number:06d}.bin", segments))
    return files


# --- datatrove: NAME.ds with the ids, and beside it `.index`, `.loss` and `.metadata` ---
#
# `.index` has uint64 document ends in tokens, `.loss` a byte for each token, 1 to train on it, and
# `.metadata` three lines: tokenizer and bytes of an id, tokens, and tokens for people.


def datatrove_files(source: Source, shard_tokens: int) -> list[OutputFile]:
    """Return the files; `.loss` only if the dataset has a loss mask."""
    name, n = f"{source.name}.ds", source.n_tokens
    # Readers divide the first line at its only "|".
    tokenizer = source.file.manifest.tokenizer_fingerprint or "unknown"
    metadata = f"{tokenizer}|{source.file.dtype.itemsize}\n{n}\n{rounded(n)}"
    files = [
        OutputFile(f"{name}.index", (source.ends_segment(),)),
        OutputFile(f"{name}.metadata", (plain(metadata.encode()),)),
        OutputFile(name, (source.ids_segment(),)),
    ]
    if source.file.has_mask:
        files.append(OutputFile(f"{name}.loss", (source.mask_segment(),)))
    return files


def rounded(n: int) -> str:
    """Format a number of tokens with three digits and a prefix.

    >>> rounded(7), rounded(1500), rounded(999_999), rounded(123_000_000)
    ('7.00 T', '1.50 kT', '1.00 MT', '123 MT')
    """
    value = float(f"{n:.3g}")
    power = min(max(len(f"{value:.0f}") - 1, 0) // 3, 6)
    value /= 1000**power
    return f"{value:#.3g}".rstrip(".") + f" {('', 'k', 'M', 'G', 'T', 'P', 'E')[power]}T"


# --- litdata: chunks, for `StreamingDataset(item_loader=TokensLoader(block_size=...))` ---
#
# A chunk is one item: uint32 number of items, uint32 offsets of its start and end, then the ids.

_CHUNK_HEADER_BYTES = 12
_CHUNK_BYTES = (1 << 32) - 1  # the largest offset
_CHUNK_DTYPES = {"uint16": 20, "int32": 16}  # numbers of dtypes of PyTorch in litdata
# One tensor, as `json.loads` of litdata reads it.
_ONE_TENSOR = '[1, {"type": null, "context": null, "children_spec": []}]'


def litdata_files(source: Source, shard_tokens: int) -> list[OutputFile]:
    """Return the chunks, and index.json."""
    dtype = source.int32_dtype("litdata")
    most = (_CHUNK_BYTES - _CHUNK_HEADER_BYTES) // dtype.itemsize
    files, chunks = list[OutputFile](), []
    for start, stop in source.shards(shard_tokens, most, "chunk of litdata"):
        ids = source.ids_segment(start, stop, dtype)
        header = np.array(
            [1, _CHUNK_HEADER_BYTES, _CHUNK_HEADER_BYTES + ids.n_bytes], "<u4"
        )
        file = OutputFile(f"chunk-0-{len(files)}.bin", (plain(header.tobytes()), ids))
        files.append(file)
        chunks.append({
            "chunk_bytes": file.n_bytes, "chunk_size": 1, "dim": stop - start,
            "filename": file.name,
        })  # fmt: skip
    config = {
        "chunk_bytes": None, "chunk_size": shard_tokens, "compression": None,
        "data_format": [f"no_header_tensor:{_CHUNK_DTYPES[dtype.name]}"],
        "data_spec": _ONE_TENSOR, "encryption": None, "item_loader": "TokensLoader",
    }
    # litdata keeps what it caches of a remote dataset as long as `updated_at` is the same.
    index = {"chunks": chunks, "config": config, "updated_at": source.file.manifest.digest}
    content = json.dumps(index, sort_keys=True).encode()
    return [*files, OutputFile("index.json", (plain(content),))]


# --- NumPy: NAME.npy with the ids, NAME_document_ends.npy, and NAME_loss_mask.npy ---


def npy_files(source: Source, shard_tokens: int) -> list[OutputFile]:
    """Return the files; NAME_loss_mask.npy only if the dataset has a loss mask."""
    name, n = source.name, source.n_tokens
    files = [
        _npy(f"{name}_document_ends.npy", "<u8", source.n_documents, source.ends_segment()),
        _npy(f"{name}.npy", source.file.dtype.str, n, source.ids_segment()),
    ]
    if source.file.has_mask:
        files.append(_npy(f"{name}_loss_mask.npy", "|u1", n, source.mask_segment()))
    return files


def _npy(name: str, dtype: str, n: int, content: Segment) -> OutputFile:
    header = io.BytesIO()
    npy.write_array_header_1_0(
        header, {"descr": dtype, "fortran_order": False, "shape": (n,)}
    )
    return OutputFile(name, (plain(header.getvalue()), content))


# --- the table ---


class Format(NamedTuple):
    """A format.

    Attributes:
        plan_files: Returns the files of an export, in the order in which they are written, of a
            dataset with at least one document, and tokens of a file at most (0 for formats without
            shards); raises ExportError if the format cannot have this dataset.
        shard_tokens: Tokens of a file at most, unless chosen; None: the format has no shards.
        in_directory: True if its files have fixed names, in a directory NAME.
        has_documents: True if it carries document ends.
        has_mask: True if it carries the loss mask.
        note: Sentence about its tokens, for the closing lines; "": none.
    """

    plan_files: Callable[[Source, int], list[OutputFile]]
    shard_tokens: int | None = None
    in_directory: bool = False
    has_documents: bool = True
    has_mask: bool = True
    note: str = ""


FORMATS = {
    "megatron": Format(megatron_files, has_mask=False),
    "llmc": Format(
        llmc_files, 100_000_000, has_documents=False, has_mask=False,
        note="the end-of-text id follows each document; llm.c's own scripts put it before",
    ),
    "datatrove": Format(datatrove_files),
    "mds": Format(mds.plan_files, 1 << 24, in_directory=True),
    "litdata": Format(
        litdata_files, 1 << 24, in_directory=True, has_documents=False, has_mask=False,
        note="TokensLoader leaves out what remains of each chunk after the last whole block",
    ),
    "npy": Format(npy_files),
}
