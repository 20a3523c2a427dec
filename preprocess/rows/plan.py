"""Which tokens a row has: windows of documents, packed rows, or cuts of the token stream.

A row is one piece of the dataset, or several. Special ids may stand before and after it. Rows are
numbered from 0, and the pieces of any range of rows are found without those before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from preprocess.dataset.reader import TokenFile
from preprocess.sampling.packing import open_plan
from preprocess.sampling.windows import DocumentSpans

Numbers = npt.NDArray[np.int64]

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


class DocumentRows(DocumentSpans):
    """Rows of one document each, or of all tokens as if they were one."""

    BLOCK = 1 << 12

    def pieces(self, first: int, stop: int) -> RowPieces:
        """Return the pieces of rows [first, stop)."""
        starts, left = self.find(np.arange(first, stop))
        return RowPieces(starts, np.minimum(left, self._length), np.arange(len(starts) + 1))


class PackedRows:
    """Rows of several documents each, as a plan of `sampling.packing` has them.

    Attributes are those of `DocumentRows`.
    """

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


RowPlan = DocumentRows | PackedRows  # `len` is the number of rows
