"""Read a token file once: occurrences of ids, lengths of documents, copies, unusual documents.

Memory is that of the vocabulary, a block, and 8 bytes per document and 16 per copy. Documents whose
hashes agree are compared id by id, so copies are exact.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.parallel import cached_property
from bpe.runtime.arrays import read_only
from preprocess.dataset.reader import TokenFile, document_at, read_bounds, read_ids

Numbers = NDArray[np.int64]
Keys = NDArray[np.uint64]

MIN_TOKENS = 16  # ordinary tokens of a document whose shares are compared with those of others
KEPT = 50  # unusual documents of each kind
_BLOCK = 1 << 20  # tokens, or documents
_SEEN = 1 << 14  # see `scan_kernels.Tables`
_SHORT = 1 << 14  # lengths below are counted in an array
_SEEDS = np.frombuffer(os.urandom(24), np.uint64)  # of the hashes of this process


class Lengths(NamedTuple):
    """Lengths of documents in tokens, special ids included.

    >>> lengths = Lengths(np.array([2, 5]), np.array([3, 1]))  # 2 2 2 5
    >>> lengths.percentiles((0, 50, 100)), lengths.histogram((1, 4, 8)), lengths.above(3)
    ([2, 2, 5], [3, 1], 2)
    """

    values: Numbers  # int64[n], the distinct lengths, ascending
    counts: Numbers  # int64[n], number of documents of each

    def percentiles(self, shares: Sequence[float]) -> list[int]:
        """Return the lengths that `np.percentile(..., method="nearest")` finds."""
        places = np.rint((self.counts.sum() - 1) * (np.array(shares) / 100))
        found = np.searchsorted(np.cumsum(self.counts), places, "right")
        return [int(each) for each in self.values[found]]

    def histogram(self, edges: Sequence[int]) -> list[int]:
        """Return the number of documents in each bin [edge, next edge)."""
        ends = np.searchsorted(self.values, edges)
        return [int(x) for x in np.diff(np.concatenate([[0], np.cumsum(self.counts)])[ends])]

    def above(self, length: int) -> int:
        """Return the number of tokens after the first `length` of each document."""
        return int(np.maximum(self.values - length, 0) @ self.counts)


class Extremes:
    """The documents of the highest values, of equal ones the first.

    Attributes:
        rows: int64[n, 4], of each its number, and the numbers that `scan_tokens` sums.
    """

    def __init__(self) -> None:
        self._values, self.rows = np.empty(0), np.empty((0, 4), np.int64)

    def add(self, values: NDArray[np.float64], rows: Numbers) -> None:
        """Add documents: float64[n], and rows of each."""
        if len(self._values) == KEPT:
            rows, values = rows[values > self._values[-1]], values[values > self._values[-1]]
        values, rows = np.append(self._values, values), np.concatenate([self.rows, rows])
        kept = np.argsort(-values, kind="stable")[:KEPT]
        self._values, self.rows = values[kept], rows[kept]


class Scan:
    """What one pass over a token file finds, see `run`; attributes grow while it is made.

    Args:
        file: The token file.
        sizes: int64[n], number of bytes of each id of it and more, -1 of special ones, which do not
            count as tokens of a document; None if they are not known.
        repeats: True to find repeats, too, which takes as long as all else.

    Attributes:
        file: As given.
        done: Number of tokens that were read.
        counts: int64[vocab_size], occurrences of each id; int64[n] with `sizes`.
        n_trained: Tokens that are trained on.
        lengths: Of all documents, when the pass is over.
        longest: Documents of most tokens.
        worst: Documents of `MIN_TOKENS` tokens with the fewest bytes per token.
        repetitive: Of these, those with most windows of 4 tokens that occurred before in the
            document, per token; in long ones, in the same 8,192 tokens of it.
    """

    def __init__(
        self, file: TokenFile, sizes: Numbers | None = None, repeats: bool = False
    ) -> None:
        self.file, self.done, self.n_trained = file, 0, 0
        self.counts = np.zeros(file.vocab_size if sizes is None else len(sizes), np.int64)
        self.lengths = Lengths(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self.longest, self.worst, self.repetitive = Extremes(), Extremes(), Extremes()
        self._sizes, self._repeats = sizes, repeats
        # Documents by hash: as many of its high bits as leave room for the document's number.
        self._n_low = max(file.n_documents - 1, 1).bit_length()
        self._keys: Keys = np.empty(file.n_documents, np.uint64)

    def run(self, advance: Callable[[int], None] = lambda n_tokens: None) -> Scan:
        """Make the pass, report numbers of tokens that were read to `advance`, and return it.

        Raises:
            TokenFileError: The file is damaged.
        """
        from preprocess.check import scan_kernels as kernels

        file, n_documents = self.file, 0
        sizes, seen = self._sizes, np.zeros(_SEEN * self._repeats, np.uint64)
        sizes = np.empty(0, np.int64) if sizes is None else sizes
        tables = kernels.Tables(self.counts, sizes, seen, _SEEDS)
        carried, short = np.zeros(kernels.N_CARRIED, np.uint64), np.zeros(_SHORT, np.int64)
        long: list[Numbers] = []
        for start in range(0, file.n_tokens, _BLOCK):
            ids = read_ids(file, start, min(start + _BLOCK, file.n_tokens))
            stop = start + len(ids)
            n_ended = file.n_documents if stop == file.n_tokens else document_at(file, stop)
            bounds = read_bounds(file, n_documents, n_ended)
            sums = np.empty((n_ended - n_documents, 3), np.int64)
            hashes = self._keys[n_documents:n_ended]
            kernels.scan_tokens(
                tables, read_only(ids), bounds[1:] - start, carried, hashes, sums
            )
            numbers = np.arange(n_documents, n_ended)
            low = np.uint64(self._n_low)
            np.bitwise_or(hashes >> low << low, numbers.astype(np.uint64), out=hashes)
            self._find_extremes(np.column_stack([numbers, sums]))
            lengths = np.diff(bounds)
            short += np.bincount(lengths[lengths < _SHORT], minlength=_SHORT)
            long.append(lengths[lengths >= _SHORT])
            self.n_trained += (
                int(np.count_nonzero(file.loss_mask[start:stop])) if file.has_mask else len(ids)
            )
            n_documents, self.done = n_ended, stop
            advance(len(ids))
        if not file.n_tokens:
            read_bounds(file, 0, file.n_documents)  # raises if there are documents
        self._keys.sort()
        values, counts = np.unique(np.concatenate([short[:0], *long]), return_counts=True)
        there = np.flatnonzero(short)
        self.lengths = Lengths(np.append(there, values), np.append(short[there], counts))
        return self

    def _find_extremes(self, rows: Numbers) -> None:
        """Add documents that end in a block, rows as of `Extremes`."""
        self.longest.add(rows[:, 1].astype(np.float64), rows)
        rows = rows[rows[:, 1] >= MIN_TOKENS]
        if self._sizes is not None:
            self.worst.add(-rows[:, 2] / rows[:, 1], rows)
        if self._repeats:
            again = rows[rows[:, 3] > 0]
            self.repetitive.add(again[:, 3] / again[:, 1], again)

    @cached_property
    def copies(self) -> Numbers:
        """Documents that equal an earlier one: int64[2, n], numbers of both, first the copy."""
        found, keys, low = [np.zeros((2, 0), np.int64)], self._keys, np.uint64(self._n_low)
        while len(keys):
            first_key, left = keys[0], [keys[:0]]
            for start in range(0, len(keys), _BLOCK):
                here = keys[start : start + _BLOCK]
                hashes = np.append(first_key, here) >> low
                is_first = hashes[1:] != hashes[:-1]
                of = np.maximum.accumulate(np.where(is_first, np.arange(len(here)), -1))
                firsts = np.where(of < 0, first_key, here[of])
                first_key, chosen = firsts[-1], firsts != here
                copies, firsts = self._numbers(here[chosen]), self._numbers(firsts[chosen])
                is_same = same_documents(self.file, copies, self.file, firsts)
                found.append(np.stack([copies, firsts])[:, is_same])
                left.append(here[chosen][~is_same])
            keys = np.concatenate(left)  # documents of one hash that differ
        return np.concatenate(found, axis=1)

    def count_in(self, other: Scan) -> int:
        """Count the documents that are in another token file, too."""
        low = np.uint64(max(self._n_low, other._n_low))
        ours, theirs = self._keys, other._keys
        places = np.searchsorted(theirs, ours >> low << low)
        n_found = 0
        while len(ours):
            is_inside = places < len(theirs)
            ours, places = ours[is_inside], places[is_inside]
            is_alike = theirs[places] >> low == ours >> low
            ours, places = ours[is_alike], places[is_alike]
            numbers = self._numbers(ours), other._numbers(theirs[places])
            is_same = same_documents(self.file, numbers[0], other.file, numbers[1])
            n_found += int(np.count_nonzero(is_same))
            ours, places = ours[~is_same], places[~is_same] + 1
        return n_found

    def _numbers(self, keys: Keys) -> Numbers:
        """Return the numbers of documents."""
        return (keys & np.uint64((1 << self._n_low) - 1)).astype(np.int64)


def same_documents(
    first: TokenFile, numbers: Numbers, second: TokenFile, others: Numbers
) -> NDArray[np.bool_]:
    """Compare documents with others, token by token: bool[n] from int64[n] of each file."""
    begins, lengths = spans_of_documents(first, numbers)
    theirs, other_lengths = spans_of_documents(second, others)
    done, is_same = 0, np.asarray(lengths == other_lengths)
    # Pieces of one block each: which document it is of, and where it begins there.
    n_pieces = np.where(is_same, -(-lengths // _BLOCK), 0)
    of = np.repeat(np.arange(len(lengths)), n_pieces)
    inside = (np.arange(len(of)) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)) * _BLOCK
    sizes = np.minimum(lengths[of] - inside, _BLOCK)
    ends = np.cumsum(sizes)
    while done < len(of):
        before = ends[done] - sizes[done]
        stop = max(done + 1, int(np.searchsorted(ends, before + _BLOCK, "right")))
        here = slice(done, stop)
        starts = ends[here] - sizes[here] - before
        moved = np.repeat(inside[here] - starts, sizes[here]) + np.arange(ends[stop - 1] - before)
        both = []
        for file, where in ((first, begins), (second, theirs)):
            file.count_reads(stop - done, len(moved))
            both.append(file.tokens[np.repeat(where[of[here]], sizes[here]) + moved])
        is_same[of[here][np.logical_or.reduceat(both[0] != both[1], starts)]] = False
        done = stop
    return is_same


def spans_of_documents(file: TokenFile, numbers: Numbers) -> tuple[Numbers, Numbers]:
    """Return where documents begin, and their lengths."""
    ends: Any = file.document_ends
    begins = np.where(numbers > 0, ends[numbers - 1] if len(ends) else 0, 0).astype(np.int64)
    return begins, ends[numbers].astype(np.int64) - begins
