"""Shards of MosaicML Streaming (MDS): a sample for each document.

A shard is the uint32 number of samples, a uint32 offset for each and the end, the JSON of its
columns, and the samples. A sample is the uint32 size of each column, then the columns: `tokens`,
and `mask` if the dataset has a loss mask, sorted by name. A column is an array of fixed dtype and
any length: a byte with the number of dimensions and the size of the length, the length, the values.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from preprocess.export.source import PIECE_VALUES, OutputFile, Segment, Source, plain

INDEX_FILE = "index.json"
_LARGEST = (1 << 32) - 1  # of an offset
_SIZE_LIMIT = 1 << 26  # which a writer of theirs would have, and no reader minds


class _Column(NamedTuple):
    name: str
    dtype: np.dtype[Any]


class _Shard:
    """Documents [first, stop) of a dataset."""

    def __init__(self, source: Source, columns: list[_Column], first: int, stop: int) -> None:
        self._source, self._columns, self._first = source, columns, first
        self.n = stop - first
        self._config = json.dumps(describe(columns), sort_keys=True).encode()
        self._head = 4 + 4 * (self.n + 1) + len(self._config)
        n_bytes = sum(
            int(self._sizes(start, min(start + PIECE_VALUES, self.n)).sum())
            for start in range(0, self.n, PIECE_VALUES)
        )
        self.n_bytes = self._head + n_bytes
        if self.n_bytes > _LARGEST:
            is_one = self.n == 1
            raise source.error(
                f"documents {first:,} to {stop:,} would have a shard of {self.n_bytes:,} bytes, and"
                f" one of MDS has {_LARGEST:,} at most; "
                + ("choose another format" if is_one else "lower the size (--shard-tokens)")
            )

    def file(self, number: int) -> OutputFile:
        """Return the file of the shard."""
        offsets = Segment(self.n + 1, 4 * (self.n + 1), self._offsets)
        samples = Segment(self.n, self.n_bytes - self._head, self._samples, self._cuts())
        count = plain(np.uint32(self.n).astype("<u4").tobytes())
        return OutputFile(
            f"shard.{number:05d}.mds", (count, offsets, plain(self._config), samples)
        )

    def _sizes(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the bytes of samples [start, stop): int64[n]."""
        lengths = np.diff(self._source.bounds(self._first + start, self._first + stop))
        head = 1 + length_bytes(lengths)
        width = sum(each.dtype.itemsize for each in self._columns)
        sizes: NDArray[np.int64] = len(self._columns) * (4 + head) + lengths * width
        return sizes

    def _offsets(self, start: int, stop: int) -> NDArray[np.uint32]:
        before = self._head + sum(
            int(self._sizes(at, min(at + PIECE_VALUES, start)).sum())
            for at in range(0, start, PIECE_VALUES)
        )
        sizes = self._sizes(start, min(stop, self.n)) if start < self.n else np.zeros(0, np.int64)
        return np.append(before, before + np.cumsum(sizes))[: stop - start].astype("<u4")

    def _cuts(self) -> list[int]:
        """Return the documents between which samples are made: about as many tokens each."""
        source, cuts = self._source, [0]
        while cuts[-1] < self.n:
            here = self._first + cuts[-1]
            start = int(source.bounds(here, here + 1)[0])
            until = source.documents_until(start + PIECE_VALUES) - self._first
            cuts.append(min(max(until, cuts[-1] + 1), self.n))
        return cuts

    def _samples(self, start: int, stop: int) -> bytes:
        bounds = self._source.bounds(self._first + start, self._first + stop)
        begin, end = int(bounds[0]), int(bounds[-1])
        values = {"tokens": self._source.ids(begin, end)}
        if len(self._columns) > 1:
            values["mask"] = self._source.mask(begin, end)
        lengths, parts = np.diff(bounds), list[bytes | memoryview]()
        places = (bounds - begin).tolist()
        of_length = length_bytes(lengths).tolist()
        for number, length in enumerate(lengths.tolist()):
            n = of_length[number]
            # One dimension, and the logarithm of the bytes of its length.
            head = bytes([1 << 2 | n.bit_length() - 1]) + length.to_bytes(n, "little")
            sizes = [len(head) + length * each.dtype.itemsize for each in self._columns]
            parts.append(np.array(sizes, "<u4").tobytes())
            for each in self._columns:
                part = values[each.name][places[number] : places[number + 1]]
                parts += (head, part.data.cast("B"))
        return b"".join(parts)


def plan_files(source: Source, shard_tokens: int) -> list[OutputFile]:
    """Return the shards, and index.json."""
    columns = [_Column("tokens", source.file.dtype)]
    if source.file.has_mask:
        columns.insert(0, _Column("mask", np.dtype("u1")))
    files, about, first = list[OutputFile](), list[dict[str, Any]](), 0
    while first < source.n_documents:
        start = int(source.bounds(first, first + 1)[0])
        stop = max(source.documents_until(min(start + shard_tokens, source.n_tokens)), first + 1)
        shard = _Shard(source, columns, first, stop)
        file = shard.file(len(files))
        files.append(file)
        raw = {"basename": file.name, "bytes": shard.n_bytes, "hashes": {}}
        about.append(describe(columns) | {"samples": shard.n, "raw_data": raw, "zip_data": None})
        first = stop
    index = json.dumps({"shards": about, "version": 2}, sort_keys=True).encode()
    return [*files, OutputFile(INDEX_FILE, (plain(index),))]


def describe(columns: list[_Column]) -> dict[str, Any]:
    """Return the description of samples that index.json and each shard have."""
    return {
        "column_encodings": [f"ndarray:{each.dtype.name}" for each in columns],
        "column_names": [each.name for each in columns],
        "column_sizes": [None for _ in columns],
        "compression": None, "format": "mds", "hashes": [], "size_limit": _SIZE_LIMIT,
        "version": 2,
    }  # fmt: skip


def length_bytes(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes that each length is written with: 1, 2, 4 or 8.

    >>> length_bytes(np.array([1, 255, 256, 1 << 16, 1 << 32])).tolist()
    [1, 1, 2, 4, 8]
    """
    steps = np.array([1 << 8, 1 << 16, 1 << 32])
    return np.array([1, 2, 4, 8])[np.searchsorted(steps, lengths, "right")]
