"""Shards of MosaicML Streaming (MDS): a sample for each document.

A shard is the uint32 number of samples, a uint32 offset for each and the end, the JSON of its
columns, and the samples. A sample is the uint32 size of each column, then the columns: `tokens`,
and `mask` if the dataset has a loss mask, sorted by name. A column is an array of fixed dtype and
any length: a byte with the number of dimensions and the size of the length, the length, the values.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from preprocess.export import source as segments
from preprocess.export.source import OutputFile, Segment, Source, plain

_LARGEST = (1 << 32) - 1  # of an offset
_SIZE_LIMIT = 1 << 26  # which a writer of theirs would have, and no reader minds


def plan_files(source: Source, shard_tokens: int) -> list[OutputFile]:
    """Return the shards, and index.json; a document longer than a shard has one of its own."""
    shards, first = list[_Shard](), 0
    while first < source.n_documents:
        start = int(source.bounds(first, first + 1)[0])
        stop = max(source.documents_until(min(start + shard_tokens, source.n_tokens)), first + 1)
        shards.append(_Shard(source, first, stop))
        first = stop
    files = [each.file(f"shard.{number:05d}.mds") for number, each in enumerate(shards)]
    about = [
        each.about | {
            "samples": each.n, "zip_data": None,
            "raw_data": {"basename": file.name, "bytes": file.n_bytes, "hashes": {}},
        }
        for each, file in zip(shards, files, strict=True)
    ]
    index = json.dumps({"shards": about, "version": 2}, sort_keys=True).encode()
    return [*files, OutputFile("index.json", (plain(index),))]


class _Shard:
    """Documents [first, stop) of a dataset."""

    def __init__(self, source: Source, first: int, stop: int) -> None:
        self._source, self._place, self.n = source, (first, stop), stop - first
        self._itemsizes = [1] * source.file.has_mask + [source.file.dtype.itemsize]
        n_columns, names = len(self._itemsizes), ["mask", "tokens"]
        self.about: dict[str, Any] = {
            "column_encodings": ["ndarray:uint8", f"ndarray:{source.file.dtype}"][-n_columns:],
            "column_names": names[-n_columns:],
            "column_sizes": [None] * n_columns,
            "compression": None, "format": "mds", "hashes": [], "size_limit": _SIZE_LIMIT,
            "version": 2,
        }  # fmt: skip
        self._config = json.dumps(self.about, sort_keys=True).encode()

    def file(self, name: str) -> OutputFile:
        """Return the file of the shard."""
        bounds, (first, stop) = self._source.bounds(*self._place), self._place
        head = 4 + 4 * (self.n + 1) + len(self._config)
        n_bytes = int(self._sizes(bounds).sum())
        if head + n_bytes > _LARGEST:
            raise self._source.error(
                f"documents {first:,} to {stop:,} would have a shard of {head + n_bytes:,} bytes,"
                f" and one of MDS has {_LARGEST:,} at most; "
                + ("choose another format" if self.n == 1 else "lower the size (--shard-tokens)")
            )

        def offsets(begin: int, end: int) -> NDArray[np.uint32]:
            sizes = self._sizes(self._source.bounds(first, stop))
            return np.append(head, head + np.cumsum(sizes)).astype("<u4")

        # Documents that begin within so many tokens are made at a time.
        parts = (bounds[:-1] - bounds[0]) // segments.PIECE_VALUES
        cuts = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), self.n]
        count = plain(np.uint32(self.n).astype("<u4").tobytes())
        return OutputFile(name, (
            count, Segment(4 * (self.n + 1), offsets, (0, self.n + 1)), plain(self._config),
            Segment(n_bytes, self._samples, cuts),
        ))

    def _sizes(self, bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of the samples of documents with these bounds: int64[n]."""
        lengths = np.diff(bounds)
        heads = 4 + 1 + length_bytes(lengths)
        sizes: NDArray[np.int64] = len(self._itemsizes) * heads + lengths * sum(self._itemsizes)
        return sizes

    def _samples(self, start: int, stop: int) -> bytes:
        bounds = self._source.bounds(self._place[0] + start, self._place[0] + stop)
        begin, end = int(bounds[0]), int(bounds[-1])
        columns = [self._source.mask(begin, end)] if len(self._itemsizes) > 1 else []
        columns.append(self._source.ids(begin, end))
        lengths, parts = np.diff(bounds), list[bytes | memoryview]()
        places = zip((bounds - begin).tolist(), lengths.tolist(), length_bytes(lengths).tolist(),
                     strict=False)
        for place, length, n in places:
            # One dimension, and the logarithm of the bytes of its length.
            head = bytes([1 << 2 | n.bit_length() - 1]) + length.to_bytes(n, "little")
            sizes = [len(head) + length * size for size in self._itemsizes]
            parts.append(np.array(sizes, "<u4").tobytes())
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
