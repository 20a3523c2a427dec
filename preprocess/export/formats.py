"""Formats of exports: which files each has, and what it carries of a dataset.

A format is a function that describes its files, and a line of the table `FORMATS`, at the end. A
file is segments of values, each computed from their positions, so that writing may begin anywhere
and needs little memory. The bytes of an export depend on the dataset and the settings alone.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Generator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from bpe.errors import TokenmillError
from preprocess.dataset.columns import Values
from preprocess.dataset.reader import TokenFile, read_bounds, read_ids

PIECE_VALUES = 1 << 20  # of a segment that are computed at a time


class ExportError(TokenmillError):
    """A dataset cannot be exported to a format, or an export cannot be read."""


class Segment(NamedTuple):
    """Consecutive values of a file.

    Attributes:
        n_bytes: Number of their bytes.
        make: Computes values [start, stop).
        cuts: Positions between which they are computed at once, with the first and the last.
    """

    n_bytes: int
    make: Callable[[int, int], bytes | Values]
    cuts: Sequence[int]


def plain(content: bytes) -> Segment:
    """Return the segment of fixed bytes."""
    return Segment(len(content), lambda start, stop: content[start:stop], (0, len(content)))


def values(n: int, itemsize: int, make: Callable[[int, int], Values]) -> Segment:
    """Return the segment of `n` values of so many bytes each, computed by `make`."""
    return Segment(n * itemsize, make, [*range(0, n, PIECE_VALUES), n])


class OutputFile(NamedTuple):
    """One file of an export."""

    name: str
    segments: tuple[Segment, ...]

    @property
    def n_bytes(self) -> int:
        """Size of the file."""
        return sum(each.n_bytes for each in self.segments)

    def pieces(self, first: int = 0) -> Generator[bytes | Values]:
        """Yield the content, without the first pieces."""
        pieces = [(each.make, *place) for each in self.segments for place in pairwise(each.cuts)]
        for make, start, stop in pieces[first:]:
            yield make(start, stop)


class Source:
    """A dataset to export.

    Args:
        file: The dataset.
        name: NAME of the outputs.
    """

    def __init__(self, file: TokenFile, name: str) -> None:
        self.file, self.name = file, name
        self.n_tokens, self.n_documents = file.n_tokens, file.n_documents
        if not self.n_documents:
            raise self.error("has no documents, so there is nothing to export")

    def ids(self, start: int, stop: int, dtype: np.dtype[Any] | None = None) -> Values:
        """Return token ids [start, stop) as of `read_ids`: dtype[n]; None: the dataset's dtype."""
        found = read_ids(self.file, start, stop)
        return found if dtype is None else found.astype(dtype, copy=False)

    def ids_segment(
        self, start: int = 0, stop: int | None = None, dtype: np.dtype[Any] | None = None
    ) -> Segment:
        """Return the segment of token ids [start, stop); None: to the last."""
        n, size = (self.n_tokens if stop is None else stop) - start, dtype or self.file.dtype
        return values(n, size.itemsize, lambda a, b: self.ids(start + a, start + b, dtype))

    def mask(self, start: int, stop: int) -> Values:
        """Return the loss mask of tokens [start, stop): uint8[n]."""
        return np.ascontiguousarray(self.file.loss_mask[start:stop])

    def mask_segment(self) -> Segment:
        """Return the segment of the loss mask."""
        return values(self.n_tokens, 1, self.mask)

    def bounds(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the start of document `first`, then the ends of [first, stop): int64[n + 1]."""
        return read_bounds(self.file, first, stop)

    def ends_segment(self) -> Segment:
        """Return the segment of document ends, as uint64."""
        return values(self.n_documents, 8, lambda a, b: self.bounds(a, b)[1:].astype("<u8"))

    def shards(self, shard_tokens: int, most: int, kind: str) -> list[tuple[int, int]]:
        """Return (start, stop) of shards of `shard_tokens` tokens; the last may have fewer.

        Raises:
            ExportError: That is more than `most`, which a file of this kind may have.
        """
        if shard_tokens > most:
            raise self.error(
                f"a {kind} has {most:,} tokens at most, and {shard_tokens:,} were asked for; lower"
                " it (--shard-tokens)"
            )
        cuts = [*range(0, self.n_tokens, shard_tokens), self.n_tokens]
        return [*pairwise(cuts)]

    def int32_dtype(self, program: str) -> np.dtype[Any]:
        """Return the dtype of ids in a format without uint32: uint16, or int32.

        Raises:
            ExportError: The vocabulary is larger than int32.
        """
        if self.file.dtype.itemsize == 2:
            return self.file.dtype
        if self.file.vocab_size > 1 << 31:
            raise self.error(
                f"the vocabulary of {self.file.vocab_size:,} ids is larger than int32, the largest"
                f" type of ids of {program}; choose another format"
            )
        return np.dtype("<i4")

    def error(self, what: str) -> ExportError:
        """Return an error about the dataset."""
        return ExportError(f"{Path(self.file.path)}: {what}")


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


# --- MDS of MosaicML Streaming: shards with a sample for each document ---
#
# A shard is the uint32 number of samples, a uint32 offset for each and the end, the JSON of its
# columns, and the samples. A sample is the uint32 size of each column, then the columns: `tokens`,
# and `mask` if the dataset has a loss mask, sorted by name. A column is an array of fixed dtype and
# any length: a byte with the number of dimensions and the size of the length, the length, the
# values.

_MDS_LARGEST = (1 << 32) - 1  # of an offset
_MDS_SIZE_LIMIT = 1 << 26  # which a writer of theirs would have, and no reader minds


def mds_files(source: Source, shard_tokens: int) -> list[OutputFile]:
    """Return the shards, and index.json; a document longer than a shard has one of its own."""
    itemsizes = [1] * source.file.has_mask + [source.file.dtype.itemsize]
    n_columns, names = len(itemsizes), ["mask", "tokens"]
    about = {
        "column_encodings": ["ndarray:uint8", f"ndarray:{source.file.dtype}"][-n_columns:],
        "column_names": names[-n_columns:], "column_sizes": [None] * n_columns,
        "compression": None, "format": "mds", "hashes": [], "size_limit": _MDS_SIZE_LIMIT,
        "version": 2,
    }  # fmt: skip
    config, files, shards = json.dumps(about, sort_keys=True).encode(), list[OutputFile](), []
    first, ends = 0, source.file.document_ends
    while first < source.n_documents:
        start = int(source.bounds(first, first + 1)[0])
        # The dtype is that of the ends, or searchsorted would copy them to float64.
        whole = int(np.searchsorted(ends, np.uint64(start + shard_tokens), "right"))
        stop = max(whole, first + 1)
        name = f"shard.{len(files):05d}.mds"
        files.append(OutputFile(name, _mds_segments(source, first, stop, config, itemsizes)))
        raw = {"basename": name, "bytes": files[-1].n_bytes, "hashes": {}}
        shards.append(about | {"samples": stop - first, "zip_data": None, "raw_data": raw})
        first = stop
    index = json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode()
    return [*files, OutputFile("index.json", (plain(index),))]


def _mds_segments(
    source: Source, first: int, stop: int, config: bytes, itemsizes: list[int]
) -> tuple[Segment, ...]:
    """Return the content of a shard with documents [first, stop)."""
    bounds, n = source.bounds(first, stop), stop - first
    head, n_bytes = 4 + 4 * (n + 1) + len(config), int(_mds_sizes(bounds, itemsizes).sum())
    if head + n_bytes > _MDS_LARGEST:
        raise source.error(
            f"documents {first:,} to {stop:,} would have a shard of {head + n_bytes:,} bytes,"
            f" and one of MDS has {_MDS_LARGEST:,} at most; "
            + ("choose another format" if n == 1 else "lower the size (--shard-tokens)")
        )

    def offsets(begin: int, end: int) -> Values:
        sizes = _mds_sizes(source.bounds(first, stop), itemsizes)
        return np.append(head, head + np.cumsum(sizes)).astype("<u4")

    def samples(begin: int, end: int) -> bytes:
        return _mds_samples(source, source.bounds(first + begin, first + end), itemsizes)

    # Documents that begin within so many tokens are made at a time.
    parts = (bounds[:-1] - bounds[0]) // PIECE_VALUES
    cuts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), n]
    return (
        plain(np.uint32(n).astype("<u4").tobytes()), Segment(4 * (n + 1), offsets, (0, n + 1)),
        plain(config), Segment(n_bytes, samples, cuts),
    )


def _mds_sizes(bounds: NDArray[np.int64], itemsizes: list[int]) -> NDArray[np.int64]:
    """Return the bytes of the samples of documents with these bounds: int64[n]."""
    lengths = np.diff(bounds)
    heads = 4 + 1 + length_bytes(lengths)
    sizes: NDArray[np.int64] = len(itemsizes) * heads + lengths * sum(itemsizes)
    return sizes


def _mds_samples(source: Source, bounds: NDArray[np.int64], itemsizes: list[int]) -> bytes:
    """Return the samples of documents with these bounds."""
    begin, end = int(bounds[0]), int(bounds[-1])
    columns = [source.mask(begin, end)] if len(itemsizes) > 1 else []
    columns.append(source.ids(begin, end))
    lengths, parts = np.diff(bounds), list[bytes | memoryview]()
    places = zip((bounds - begin).tolist(), lengths.tolist(), length_bytes(lengths).tolist(),
                 strict=False)
    for place, length, n in places:
        # One dimension, and the logarithm of the bytes of its length.
        head = bytes([1 << 2 | n.bit_length() - 1]) + length.to_bytes(n, "little")
        parts.append(np.array([len(head) + length * x for x in itemsizes], "<u4").tobytes())
        for each in columns:
            parts += (head, each[place : place + length].data.cast("B"))
    return b"".join(parts)


def length_bytes(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes that each length is written with: 1, 2, 4 or 8.

    >>> length_bytes(np.array([1, 255, 256, 1 << 16, 1 << 32])).tolist()
    [1, 1, 2, 4, 8]
    """
    steps = np.array([1 << 8, 1 << 16, 1 << 32])
    return np.array([1, 2, 4, 8])[np.searchsorted(steps, lengths, "right")]


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
    "mds": Format(mds_files, 1 << 24, in_directory=True),
    "litdata": Format(
        litdata_files, 1 << 24, in_directory=True, has_documents=False, has_mask=False,
        note="TokensLoader leaves out what remains of each chunk after the last whole block",
    ),
    "npy": Format(npy_files),
}
