"""Arrays of rows: ids, masks, labels, segments, positions.

All are int32. Without padding a column is the values of all rows one after another, and `offsets`
says where each row begins; with padding all rows have the same length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bpe.parallel import cached_property
from preprocess.dataset.reader import TokenFile
from preprocess.sampling.data import IGNORED, gather
from preprocess.sampling.fields import number_positions, number_segments
from preprocess.sampling.packing import PackedWindows
from preprocess.sampling.windows import DocumentSpans, RowPieces

Values = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]
RowPlan = DocumentSpans | PackedWindows  # `len` is the number of rows

COLUMNS = ("input_ids", "attention_mask", "labels", "segment_ids", "position_ids")
_AT_ONCE = 1 << 20  # tokens of rows whose arrays are made at a time
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Shape:
    """Columns, special ids and padding of rows.

    Attributes:
        columns: Names in `COLUMNS`, in their order in files.
        before: Special ids before each row.
        after: Special ids after each row.
        length: To which rows are padded; None: not at all.
        pad_id: Id of the padding.
        pads_left: True if padding stands before a row.
        is_packed: True if each piece of a row is a segment of its own.
    """

    columns: tuple[str, ...]
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    length: int | None = None
    pad_id: int = 0
    pads_left: bool = False
    is_packed: bool = False

    @property
    def n_around(self) -> int:
        """Number of special ids around each row."""
        return len(self.before) + len(self.after)


@dataclass(frozen=True)
class RowBatch:
    """Arrays of some rows.

    Attributes:
        offsets: int64[n_rows + 1]: row i is `column[offsets[i] : offsets[i + 1]]`.
        values: Name of a column -> int32[offsets[-1]].
        n_tokens: Tokens of rows that are made, without padding; 0 of rows that are read.
    """

    offsets: Numbers
    values: dict[str, Values]
    n_tokens: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1


class RowReader:
    """Makes the arrays of rows of a dataset."""

    def __init__(self, file: TokenFile, plan: RowPlan, shape: Shape) -> None:
        self._file, self.plan, self.shape = file, plan, shape
        self.longest = plan.longest + shape.n_around  # tokens of a row, without padding

    def batches(self, first: int, stop: int) -> Iterator[RowBatch]:
        """Make the arrays of rows [first, stop), batch by batch; the cuts depend on `first` alone.

        Arrays are valid until the next are made, in memory that stays in the processor's cache.
        """
        longest = self.shape.length or self.longest
        space = np.empty(len(self.shape.columns) * max(longest, _AT_ONCE), np.int32)
        for begin in range(first, stop, _ROWS_AT_ONCE):
            pieces = self.plan.rows(begin, min(begin + _ROWS_AT_ONCE, stop))
            lengths = pieces.row_lengths() + self.shape.n_around
            if self.shape.length:
                lengths[:] = self.shape.length
            ends = np.cumsum(lengths)
            row = n_before = 0
            while row < len(ends):
                fits = int(np.searchsorted(ends, n_before + _AT_ONCE, "right"))
                following = max(row + 1, fits)
                yield _Made(self._file, pieces.of_rows(row, following), self.shape, space).batch()
                row, n_before = following, int(ends[following - 1])


class _Made:
    """Columns of some rows, each made when it is asked for.

    The tables of rows and of pieces are as of `sampling.windows.DocumentWindows.pieces`: a row has
    the special ids around it, and its padding on the right.
    """

    def __init__(
        self, file: TokenFile, pieces: RowPieces, shape: Shape, space: Values
    ) -> None:
        self._file, self._starts, self._shape = file, pieces.starts, shape
        sizes = pieces.row_lengths() + shape.n_around
        n_rows, self._n_tokens = len(sizes), int(sizes.sum())
        lengths = np.full(n_rows, shape.length) if shape.length else sizes
        self._offsets = np.append(0, np.cumsum(lengths))
        begins = self._offsets[:-1] + (lengths - sizes if shape.pads_left else 0)
        self._rows = np.stack([begins, sizes, sizes, begins, self._offsets[1:]])
        self._is_full = bool((sizes == lengths).all())
        # Place of each piece: after the earlier pieces of its row.
        n_in_rows = np.diff(pieces.offsets)
        ends = np.cumsum(pieces.lengths)
        before_row = np.append(0, ends)[pieces.offsets[:-1]]
        shift = np.repeat(begins + len(shape.before) - before_row, n_in_rows)
        ends += shift
        places = ends - pieces.lengths
        ends[pieces.offsets[1:] - 1] = self._offsets[1:]  # where padding ends
        self._pieces = np.stack([places, pieces.lengths, pieces.lengths, places, ends])
        self._firsts = pieces.offsets[:-1]
        n, n_columns = int(self._offsets[-1]), len(shape.columns)
        self._free = iter(space[: n * n_columns].reshape(n_columns, n))

    def batch(self) -> RowBatch:
        values = {name: getattr(self, name) for name in self._shape.columns}
        return RowBatch(self._offsets, values, self._n_tokens)

    @cached_property
    def input_ids(self) -> Values:
        shape, (begins, sizes, *_) = self._shape, self._rows
        found = self._filled(shape.pad_id)
        self._gather(self._file.tokens, found)
        for i, token in enumerate(shape.before):
            found[begins + i] = token
        for i, token in enumerate(reversed(shape.after), start=1):
            found[begins + sizes - i] = token
        return found

    @cached_property
    def attention_mask(self) -> Values:
        """1 for tokens, 0 for padding."""
        found = self._filled(0)
        number_segments(0, self._rows, found)
        return found

    @cached_property
    def labels(self) -> Values:
        """The ids, `IGNORED` at padding, at tokens not trained on, and where a segment begins.

        A model compares the label at a place with its prediction from the places before.
        """
        found, (begins, sizes, *_) = self._filled(IGNORED), self._rows
        gather(self.input_ids, begins, sizes, begins, found)
        if self._file.has_mask:
            trained = np.zeros(len(found), np.uint8)  # special ids around a row are not trained on
            self._gather(self._file.loss_mask, trained)
            found[trained == 0] = IGNORED
        if self._shape.is_packed:
            found[self._pieces[0]] = IGNORED
        return found

    @cached_property
    def segment_ids(self) -> Values:
        """Number of the segment in its row, from 1; 0 for padding."""
        if not self._shape.is_packed:
            return self.attention_mask
        found, before = self._filled(0), np.ones(self._pieces.shape[1], np.int64)
        before[self._firsts] = 0
        number_segments(before, self._pieces, found)
        return found

    @cached_property
    def position_ids(self) -> Values:
        """Place in the segment, from 0; 0 for padding."""
        found = self._filled(0)
        number_positions(self._pieces if self._shape.is_packed else self._rows, found)
        return found

    def _gather(self, values: Any, out: npt.NDArray[Any]) -> None:
        """Copy values of the tokens to their places."""
        places, lengths, *_ = self._pieces
        gather(values, self._starts, lengths, places, out)

    def _filled(self, padding: int) -> Values:
        """Return an array that has the value at padding, and anything at tokens."""
        found = next(self._free)
        if not self._is_full:
            found.fill(padding)
        return found
