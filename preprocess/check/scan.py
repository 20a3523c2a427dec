"""Read a token file once: occurrences of ids, lengths of documents, and hashes of documents.

Memory is that of the vocabulary, a few chunks, 8 bytes per document for the hashes, and 16 bytes
per distinct length, of which n tokens have less than sqrt(2 n). Documents are compared by the
xxh3_64 of their ids: with 1e8 documents, one false pair of copies is expected in 3,000 corpora.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from bpe.parallel import available_workers, run_in_order
from preprocess.dataset.reader import TokenFile, read_bounds, read_ids

Numbers = NDArray[np.int64]

_TOKENS_AT_A_TIME = 1 << 20
_DOCUMENTS_AT_A_TIME = 1 << 20
_MOST_THREADS = 2  # counting is limited by memory


class Lengths(NamedTuple):
    """Lengths of documents in tokens, special ids included.

    >>> lengths = Lengths(np.array([2, 5]), np.array([3, 1]))  # 2 2 2 5
    >>> lengths.percentiles((0, 50, 100)), lengths.histogram((1, 4, 8)), lengths.above(3)
    ([2, 2, 5], [3, 1], 2)
    """

    values: Numbers  # int64[n], the distinct lengths, ascending
    counts: Numbers  # int64[n], number of documents of each

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        return int(self.counts.sum())

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return int(self.values @ self.counts)

    def percentiles(self, shares: Sequence[float]) -> list[int]:
        """Return the lengths that `np.percentile(..., method="nearest")` finds."""
        places = np.rint((self.n_documents - 1) * (np.array(shares) / 100))
        found = np.searchsorted(np.cumsum(self.counts), places, "right")
        return [int(each) for each in self.values[found]]

    def histogram(self, edges: Sequence[int]) -> list[int]:
        """Return the number of documents in each bin [edge, next edge)."""
        ends = np.searchsorted(self.values, edges)
        return [int(x) for x in np.diff(np.concatenate([[0], np.cumsum(self.counts)])[ends])]

    def above(self, length: int) -> int:
        """Return the number of tokens after the first `length` of each document."""
        return int(np.maximum(self.values - length, 0) @ self.counts)

    def merge(self, values: Numbers, counts: Numbers) -> Lengths:
        """Return these lengths and others, which may be neither distinct nor sorted."""
        found, place = np.unique(np.concatenate([self.values, values]), return_inverse=True)
        total = np.zeros(len(found), np.int64)
        np.add.at(total, place, np.concatenate([self.counts, counts]))
        return Lengths(found, total)


class Scan(NamedTuple):
    """Occurrences of ids, lengths of documents, and hashes of documents of a token file."""

    counts: Numbers  # int64[vocab_size], occurrences of each id
    n_trained: int  # tokens that are trained on
    lengths: Lengths
    hashes: NDArray[np.uint64]  # uint64[n_documents], xxh3_64 of the ids of each, sorted

    @property
    def n_copies(self) -> int:
        """Number of duplicate documents: n_documents - n_unique."""
        return int(np.count_nonzero(self.hashes[1:] == self.hashes[:-1]))


def scan(file: TokenFile) -> Scan:
    """Read all of a token file.

    Raises:
        TokenFileError: The file is damaged.
    """
    def count(start: int) -> tuple[Numbers, int]:
        stop = min(start + _TOKENS_AT_A_TIME, len(file))
        n_trained = np.count_nonzero(file.loss_mask[start:stop]) if file.has_mask else stop - start
        found = np.bincount(read_ids(file, start, stop), minlength=file.vocab_size)
        return found, int(n_trained)

    # A dataset at a URL is read through one cache, by one thread.
    n_threads = min(available_workers(), _MOST_THREADS) if isinstance(file.path, Path) else 1
    counts, n_trained = np.zeros(file.vocab_size, np.int64), 0
    starts = range(0, len(file), _TOKENS_AT_A_TIME)
    for of_part, trained_of_part in run_in_order(starts, lambda: count, n_threads):
        counts += of_part
        n_trained += trained_of_part
    lengths = Lengths(np.zeros(0, np.int64), np.zeros(0, np.int64))
    hashes = np.empty(file.n_documents, np.uint64)
    for first in range(0, max(file.n_documents, 1), _DOCUMENTS_AT_A_TIME):
        stop = min(first + _DOCUMENTS_AT_A_TIME, file.n_documents)
        bounds = read_bounds(file, first, stop)
        lengths = lengths.merge(np.diff(bounds), np.ones(len(bounds) - 1, np.int64))
        hashes[first:stop] = np.fromiter(_hash_documents(file, bounds), np.uint64, stop - first)
    hashes.sort()
    return Scan(counts, n_trained, lengths, hashes)


def _hash_documents(file: TokenFile, bounds: Numbers) -> Iterator[int]:
    """Yield the xxh3_64 of the ids of each document between two bounds."""
    digest, ends = xxhash.xxh3_64(), bounds[1:]
    for start in range(int(bounds[0]), int(bounds[-1]), _TOKENS_AT_A_TIME):
        part: Any = file.tokens[start : min(start + _TOKENS_AT_A_TIME, int(bounds[-1]))]
        data = np.ascontiguousarray(part).view(np.uint8).data
        first, last = np.searchsorted(ends, [start, start + len(part)], "right")
        place = 0
        for end in ((ends[first:last] - start) * part.itemsize).tolist():
            digest.update(data[place:end])
            yield digest.intdigest()
            digest.reset()
            place = end
        digest.update(data[place:])
