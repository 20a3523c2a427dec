"""Windows of a dataset: where window i begins, and how many tokens it has.

A window has up to `context_length` inputs; the target of each is the token after it. The last input
of a window that ends with the data, or with its document, has no target.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bpe.runtime.arrays import read_only
from preprocess.dataset.shards import distinct
from preprocess.sampling.data import kernels, outside

Numbers = npt.NDArray[np.int64]


def count_windows(n_tokens: Numbers, context_length: int, stride: int) -> Numbers:
    """Count the windows of sequences: int64[n] from int64[n].

    Windows begin at multiples of `stride` and have at least one target; after the one that has the
    last target there is none.
    """
    n_targets = np.maximum(n_tokens - 1, 0)
    n_to_last = -(-np.maximum(n_targets - context_length, 0) // stride)
    n_later: Numbers = np.minimum(n_to_last, np.maximum(n_targets - 1, 0) // stride)
    return n_later + (n_targets > 0)


class DocumentSpans:
    """Spans of documents: one begins every `stride` tokens, until one has the end of its document.

    Args:
        ends: uint64[n_documents], the position after each document, mapped.
        length: Tokens of a span at most; None: any number.
        stride: Distance of the spans of a document; None: `length`.
        n_before: Tokens at the start of each document that are in no span.
        n_after: Tokens at its end that are in none.
        first_only: True for the first span of each document alone.
        drop_short: True to leave out spans of fewer than `length` tokens.
        documents: Numbers of consecutive documents that have spans; None: all.

    Attributes:
        n_tokens: Tokens of all spans; overlaps count again.
        longest: Tokens of the longest span.
        n_partial: Number of spans of fewer than `length` tokens.
        n_short: Number of spans that are left out for this.
    """

    BLOCK = 256  # documents whose number of spans is summed up in memory

    def __init__(
        self, ends: npt.NDArray[np.uint64], length: int | None, stride: int | None = None, *,
        n_before: int = 0, n_after: int = 0, first_only: bool = False, drop_short: bool = False,
        documents: range | None = None,
    ) -> None:
        length = length or int(np.iinfo(np.int64).max)
        self._ends, self._length, self._stride = ends, length, stride or length
        self._n_before, self._n_after = n_before, n_after
        self._first_only, self._drop_short = first_only, drop_short
        self._chosen = range(len(ends)) if documents is None else documents
        options = [length, self._stride, n_before, n_after, first_only, drop_short]
        chosen, found = self._chosen, np.array([self.BLOCK, 0, 0, 0, 0])
        self._before = np.zeros(-(-len(chosen) // self.BLOCK) + 1, np.int64)
        kernels().count_spans(
            read_only(ends), np.array([chosen.start, chosen.stop]), np.array(options, np.int64),
            self._before[1:], found,
        )
        self.n_tokens, self.longest, self.n_partial, self.n_short = map(int, found[1:])
        np.cumsum(self._before, out=self._before)  # spans before each block

    def __len__(self) -> int:
        return int(self._before[-1])

    def find(self, numbers: Numbers) -> tuple[Numbers, Numbers]:
        """Return (where spans begin, the tokens from there to the end of the document).

        Both are int64[n]; those before and after that are in no span are not counted.
        """
        blocks = distinct(self._before.searchsorted(numbers, side="right") - 1)
        places = blocks[:, np.newaxis] * self.BLOCK + np.arange(min(self.BLOCK, len(self._chosen)))
        begins, sizes, counts = self._count(
            np.minimum(places, len(self._chosen) - 1).reshape(-1)
        )
        after = counts.reshape(places.shape).cumsum(axis=1) + self._before[blocks, np.newaxis]
        after = after.reshape(-1)  # spans up to and with each document
        of = after.searchsorted(numbers, side="right")
        inside = (numbers - after[of] + counts[of]) * self._stride
        return begins[of] + inside, sizes[of] - inside

    def rows(self, first: int, stop: int) -> RowPieces:
        """Return spans [first, stop) as the pieces of a row each."""
        starts, left = self.find(np.arange(first, stop))
        return RowPieces(starts, np.minimum(left, self._length), np.arange(len(starts) + 1))

    def _count(self, places: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """Return (begins, sizes, numbers of spans) of documents by their places."""
        documents = places + self._chosen.start
        ends = self._ends[documents].astype(np.int64)
        begins = self._ends[documents - 1].astype(np.int64)
        begins[documents == 0] = 0
        begins += self._n_before
        sizes = np.maximum(ends - self._n_after - begins, 0)
        counts = count_windows(sizes + 1, self._length, self._stride)
        if self._first_only:
            counts = np.minimum(counts, 1)
        if not self._drop_short:
            return begins, sizes, counts
        is_short = (counts > 0) & (sizes - (counts - 1) * self._stride < self._length)
        return begins, sizes, counts - is_short


class RowPieces(NamedTuple):
    """The pieces of some rows, which have any length.

    Attributes:
        starts: int64[n_pieces], positions in the dataset.
        lengths: int64[n_pieces], in tokens.
        offsets: int64[n_rows + 1]: row i has the pieces offsets[i] to offsets[i + 1].
    """

    starts: Numbers
    lengths: Numbers
    offsets: Numbers

    def row_lengths(self) -> Numbers:
        """Return the number of tokens of each row: int64[n_rows]."""
        return np.diff(np.append(0, np.cumsum(self.lengths))[self.offsets])

    def of_rows(self, first: int, stop: int) -> RowPieces:
        """Return the pieces of rows [first, stop) alone."""
        offsets = self.offsets[first : stop + 1]
        chosen = slice(int(offsets[0]), int(offsets[-1]))
        return RowPieces(self.starts[chosen], self.lengths[chosen], offsets - offsets[0])


class DocumentWindows(DocumentSpans):
    """Windows of one document each; a document longer than a window has several.

    Attributes:
        n_inputs: Inputs of all windows that are no padding.

    Args:
        ends: uint64[n_documents], the position after each document, mapped.
        context_length: Number of inputs.
        stride: Distance of windows in a document.
        drop_short: True to leave out windows with fewer than `context_length` targets.
    """

    def __init__(
        self, ends: npt.NDArray[np.uint64], context_length: int, stride: int,
        drop_short: bool = False,
    ) -> None:
        # Spans are of the inputs that have a target.
        super().__init__(ends, context_length, stride, n_after=1, drop_short=drop_short)
        self.n_inputs = self.n_tokens + self.n_partial

    def pieces(self, numbers: Numbers) -> Numbers:
        """Return the pieces of windows, by their numbers from 0 on; each window has at least one.

        Returns:
            A table int64[5, n_pieces], by column a piece: position of its first token, number of
            inputs, number of targets (as many, or one less), its place in the inputs of all windows
            one after another, and the place up to which the inputs are padded after it.
        """
        return self._pieces(*self.find(numbers))

    def _pieces(self, starts: Numbers, left: Numbers) -> Numbers:
        table = _whole_pieces(len(starts), self._length).copy()
        table[0] = starts
        np.minimum(left + 1, self._length, out=table[1])
        np.minimum(left, self._length, out=table[2])
        return table


class StrideWindows(DocumentWindows):
    """Windows that begin at multiples of `stride`, across documents.

    Args:
        n_tokens: Number of tokens.
        context_length: Number of inputs.
        stride: Distance of windows.
        drop_last: True to leave out a last window with fewer than `context_length` targets.
    """

    def __init__(self, n_tokens: int, context_length: int, stride: int, drop_last: bool) -> None:
        super().__init__(np.array([n_tokens], np.uint64), context_length, stride, drop_last)

    def pieces(self, numbers: Numbers) -> Numbers:
        if self.n_partial:
            starts = numbers * self._stride
            return self._pieces(starts, int(self._ends[0]) - 1 - starts)
        table = _whole_pieces(len(numbers), self._length).copy()
        np.multiply(numbers, self._stride, out=table[0])
        return table

    def whole_windows(self, numbers: Numbers) -> Numbers | None:
        """Return where windows begin, if all have `context_length` targets; else None."""
        is_whole = not self.n_partial or bool((numbers < len(self) - self.n_partial).all())
        return numbers * self._stride if is_whole else None


@functools.lru_cache(4)
def _whole_pieces(n: int, length: int) -> Numbers:
    """Return the table of windows at 0 that have `length` inputs and targets each."""
    table = np.zeros((5, n), np.int64)
    table[1:3] = length
    table[3] = np.arange(n) * length
    table[4] = table[3] + length
    return table


def divided(table: Numbers, documents: Any) -> Numbers:
    """Divide pieces where documents end: table as of `DocumentWindows.pieces`.

    The last token of a document has no target in its segment. `documents` is a packed tuple of
    uint64[n_documents], where documents end. Raises TokenFileError for ends that descend.
    """
    found, n, n_columns = table, 4 * table.shape[1], 0
    while n > n_columns:  # once, unless documents are short
        found, n_columns = np.empty((5, n), np.int64), n
        n = kernels().divide_pieces(table, documents, found)
    if n < 0:
        raise outside()
    return found[:, :n].copy()
