"""Which tokens a row has: windows of documents, packed rows, or cuts of the token stream.

A row is one piece of the dataset, or several. Special ids may stand before and after it. Rows are
numbered from 0, and the pieces of any range of rows are found without those before.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from preprocess.dataset.reader import TokenFile
from preprocess.sampling.packing import open_plan

Numbers = npt.NDArray[np.int64]

_BLOCK = 1 << 12  # documents whose number of rows is summed up in memory


class RowPieces(NamedTuple):
    """The pieces of some rows.

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
        before = np.append(0, np.cumsum(self.lengths))
        return np.diff(before[self.offsets])


class RowPlan(Protocol):
    """All rows of a dataset; `len` is their number.

    Attributes:
        n_tokens: Tokens of all rows, without special ids around them; overlaps count again.
        longest: Tokens of the longest row, in the same way.
        n_short: Number of rows that are left out because they are shorter than they may be.
    """

    n_tokens: int
    longest: int
    n_short: int

    def __len__(self) -> int: ...

    def pieces(self, first: int, stop: int) -> RowPieces:
        """Return the pieces of rows [first, stop)."""


class DocumentRows:
    """Rows of one document each: windows that begin every `stride` tokens, until one has its end.

    Args:
        ends: uint64[n_documents], the position after each document.
        length: Tokens of a row at most; None: each document is a row.
        stride: Distance of the rows of a document, at most `length`.
        first_only: True for one row per document; what does not fit is left out.
        n_before: Ids at the start of each document that are not in rows.
        n_after: Ids at its end that are not in rows.
        drop_short: True to leave out rows of fewer than `length` tokens.
        documents: Numbers of consecutive documents that have rows; None: all.
    """

    def __init__(
        self, ends: npt.NDArray[np.uint64], length: int | None, stride: int | None,
        first_only: bool = False, n_before: int = 0, n_after: int = 0, drop_short: bool = False,
        documents: range | None = None,
    ) -> None:
        self._ends, self._first_only, self._drop_short = ends, first_only, drop_short
        self._chosen = range(len(ends)) if documents is None else documents
        self._length = length or int(np.iinfo(np.int64).max)
        self._stride = stride or self._length
        self._n_before, self._n_after = n_before, n_after
        self.n_tokens = self.longest = self.n_short = 0
        rows = [0]
        for first in range(0, len(self._chosen), _BLOCK):
            _, sizes, counts, n_short = self._documents(first)
            # Lengths of all rows of a document but the last, and of the last.
            cut = np.where(counts > 0, np.minimum(sizes, self._length), 0)
            last = np.minimum(sizes - (counts - 1) * self._stride, cut)
            self.n_tokens += int((np.maximum(counts - 1, 0) * cut + last).sum())
            self.longest = max(self.longest, int(cut.max()))
            self.n_short += n_short
            rows.append(int(counts.sum()))
        self._rows_before = np.cumsum(rows)

    def __len__(self) -> int:
        return int(self._rows_before[-1])

    def pieces(self, first: int, stop: int) -> RowPieces:
        block = int(np.searchsorted(self._rows_before, first, "right")) - 1
        starts, lengths = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        while first < stop:
            begins, sizes, counts, _ = self._documents(block * _BLOCK)
            before = np.append(0, np.cumsum(counts)) + self._rows_before[block]
            numbers = np.arange(first, min(stop, int(before[-1])))
            document = np.searchsorted(before, numbers, "right") - 1
            inside = (numbers - before[document]) * self._stride
            starts.append(begins[document] + inside)
            lengths.append(np.minimum(sizes[document] - inside, self._length))
            first, block = first + len(numbers), block + 1
        return _single(np.concatenate(starts), np.concatenate(lengths))

    def _documents(self, first: int) -> tuple[Numbers, Numbers, Numbers, int]:
        """Return (begins, sizes, numbers of rows) of a block of documents: int64[n] each.

        The last value is the number of their rows that are left out.
        """
        chosen = self._chosen[first : first + _BLOCK]
        ends = self._ends[chosen.start : chosen.stop].astype(np.int64)
        begin = int(self._ends[chosen.start - 1]) if chosen.start else 0
        begins = np.append(begin, ends[:-1]) + self._n_before
        sizes = np.maximum(ends - self._n_after - begins, 0)
        counts = np.ones(len(sizes), np.int64)
        if not self._first_only:
            counts += -(-np.maximum(sizes - self._length, 0) // self._stride)
        # A document of nothing but ids that are left out has no row.
        counts[sizes == 0] = 0
        is_short = (counts > 0) & (sizes - (counts - 1) * self._stride < self._length)
        if not self._drop_short:
            is_short[:] = False
        return begins, sizes, counts - is_short, int(is_short.sum())


class StreamRows:
    """Rows of `length` tokens each, across documents; the last one may be shorter.

    Args:
        tokens: Positions of the tokens.
        length: Tokens of a row.
        drop_short: True to leave out a last row of fewer tokens.
    """

    def __init__(self, tokens: range, length: int, drop_short: bool = False) -> None:
        self._start, self._length = tokens.start, length
        self.n_short = int(drop_short and len(tokens) % length > 0)
        self.n_tokens = len(tokens) - self.n_short * (len(tokens) % length)
        self.longest = min(length, self.n_tokens)

    def __len__(self) -> int:
        return -(-self.n_tokens // self._length)

    def pieces(self, first: int, stop: int) -> RowPieces:
        inside = np.arange(first, stop) * self._length
        lengths = np.minimum(self.n_tokens - inside, self._length)
        return _single(self._start + inside, lengths)


class PackedRows:
    """Rows of several documents each, as a plan of `sampling.packing` has them."""

    def __init__(self, file: TokenFile, length: int, strategy: str) -> None:
        _, self._plan = open_plan(file, length, strategy)
        self.n_tokens = file.n_tokens
        self.longest = self.n_short = 0
        for first in range(0, len(self), 1 << 20):
            pieces = self.pieces(first, min(first + (1 << 20), len(self)))
            self.longest = max(self.longest, int(pieces.row_lengths().max()))

    def __len__(self) -> int:
        return len(self._plan.offsets) - 1

    def pieces(self, first: int, stop: int) -> RowPieces:
        offsets = np.array(self._plan.offsets[first : stop + 1])
        chosen = slice(int(offsets[0]), int(offsets[-1]))
        # A negative length says that the piece does not end its document.
        lengths = np.abs(self._plan.lengths[chosen].astype(np.int64))
        return RowPieces(np.array(self._plan.starts[chosen]), lengths, offsets - offsets[0])


def _single(starts: Numbers, lengths: Numbers) -> RowPieces:
    """Return rows of one piece each."""
    return RowPieces(starts, lengths, np.arange(len(starts) + 1))
