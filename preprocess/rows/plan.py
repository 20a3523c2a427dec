"""Which tokens a row has: windows of documents, packed rows, or cuts of the token stream.

A row is one piece of the dataset, or several. Special ids may stand before and after it. Rows are
numbered from 0, and the pieces of any range of rows are found without those before.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from preprocess.dataset.reader import TokenFile
from preprocess.sampling.packing import open_plan
from preprocess.sampling.windows import DocumentSpans

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


class DocumentRows(DocumentSpans):
    """Rows of one document each, or of all tokens as if they were one.

    Arguments are those of `DocumentSpans`; without a length each document is a row.
    """

    def __init__(
        self, ends: npt.NDArray[np.uint64], length: int | None, stride: int | None, **more: Any
    ) -> None:
        length = length or int(np.iinfo(np.int64).max)
        super().__init__(ends, length, stride or length, block=_BLOCK, **more)

    def pieces(self, first: int, stop: int) -> RowPieces:
        starts, left = self.find(np.arange(first, stop))
        return _single(starts, np.minimum(left, self._length))


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
