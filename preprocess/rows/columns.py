"""Arrays of rows: ids, masks, labels, segments, positions.

All are int32. Without padding a column is the values of all rows one after another, and `offsets`
says where each row begins; with padding all rows have the same length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.reader import TokenFile
from preprocess.dataset.shards import ShardView
from preprocess.rows.plan import RowPieces, RowPlan
from preprocess.sampling.data import IGNORED

Values = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.int64]

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
    """

    offsets: Numbers
    values: dict[str, Values]

    def __len__(self) -> int:
        return len(self.offsets) - 1


class RowReader:
    """Makes the arrays of rows of a dataset."""

    def __init__(self, file: TokenFile, plan: RowPlan, shape: Shape) -> None:
        self._file, self._plan, self._shape = file, plan, shape

    def bounds(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows that are read at a time; they depend on `first` alone."""
        while first < stop:
            end = min(first + _ROWS_AT_ONCE, stop)
            lengths = self._plan.pieces(first, end).row_lengths() + self._shape.n_around
            if self._shape.length:
                lengths[:] = self._shape.length
            ends = np.cumsum(lengths)
            begin = n_before = 0
            while begin < len(lengths):
                fits = int(np.searchsorted(ends, n_before + _AT_ONCE, "right"))
                following = max(begin + 1, fits)
                yield first + begin, first + following
                begin, n_before = following, int(ends[following - 1])
            first = end

    def n_tokens(self, first: int, stop: int) -> int:
        """Return the number of tokens of rows [first, stop), without padding."""
        pieces = self._plan.pieces(first, stop)
        return int(pieces.lengths.sum()) + (stop - first) * self._shape.n_around

    def read(self, first: int, stop: int) -> RowBatch:
        """Make the arrays of rows [first, stop)."""
        made = _Made(self._file, self._plan.pieces(first, stop), self._shape)
        return RowBatch(made.offsets, {name: getattr(made, name) for name in self._shape.columns})


class _Made:
    """Columns of some rows, each made when it is asked for."""

    def __init__(self, file: TokenFile, pieces: RowPieces, shape: Shape) -> None:
        self._file, self._pieces, self._shape = file, pieces, shape
        n_before = len(shape.before)
        self._sizes = pieces.row_lengths() + shape.n_around
        n_rows = len(self._sizes)
        lengths = np.full(n_rows, shape.length) if shape.length else self._sizes
        self.offsets = np.append(0, np.cumsum(lengths))
        self._begins = self.offsets[:-1] + (lengths - self._sizes if shape.pads_left else 0)
        # Place of each piece: after the earlier pieces of its row.
        ends = np.cumsum(pieces.lengths)
        of_row = np.repeat(np.arange(n_rows), np.diff(pieces.offsets))
        before_row = np.append(0, ends)[pieces.offsets[:-1]]
        inside = ends - pieces.lengths - before_row[of_row]
        self._places = self._begins[of_row] + n_before + inside
        self._is_full = bool((self._sizes == lengths).all())

    @cached_property
    def input_ids(self) -> Values:
        shape = self._shape
        found = self._empty(shape.pad_id)
        gather(self._file.tokens, self._pieces, self._places, found)
        for i, token in enumerate(shape.before):
            found[self._begins + i] = token
        for i, token in enumerate(reversed(shape.after), start=1):
            found[self._begins + self._sizes - i] = token
        return found

    @cached_property
    def attention_mask(self) -> Values:
        """1 for tokens, 0 for padding."""
        if self._is_full:
            return np.ones(int(self.offsets[-1]), np.int32)
        found = np.zeros(int(self.offsets[-1]), np.int32)
        # The number of rows that have begun and not ended.
        found[self._begins] += 1
        stops = self._begins + self._sizes
        found[stops[stops < len(found)]] -= 1
        return np.cumsum(found, dtype=np.int32)

    @cached_property
    def labels(self) -> Values:
        """The ids, `IGNORED` at padding, at tokens not trained on, and where a segment begins.

        A model compares the label at a place with its prediction from the places before.
        """
        found = self.input_ids.copy()
        if not self._is_full:
            found[self.attention_mask == 0] = IGNORED
        if self._file.has_mask:
            trained = np.zeros(len(found), np.uint8)  # special ids around a row are not trained on
            gather(self._file.loss_mask, self._pieces, self._places, trained)
            found[trained == 0] = IGNORED
        if self._shape.is_packed:
            found[self._places] = IGNORED
        return found

    @cached_property
    def segment_ids(self) -> Values:
        """Number of the segment in its row, from 1; 0 for padding."""
        if not self._shape.is_packed:
            return self.attention_mask
        offsets = self._pieces.offsets
        number = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets)) + 1
        return self._of_tokens(np.repeat(number.astype(np.int32), self._pieces.lengths))

    @cached_property
    def position_ids(self) -> Values:
        """Place in the segment, from 0; 0 for padding."""
        sizes = self._pieces.lengths if self._shape.is_packed else self._sizes
        starts = (np.cumsum(sizes) - sizes).astype(np.int32)  # a batch has fewer than 2^31 tokens
        found = np.arange(sizes.sum(), dtype=np.int32)
        found -= np.repeat(starts, sizes)
        return self._of_tokens(found)

    def _empty(self, value: int) -> Values:
        n = int(self.offsets[-1])
        return np.empty(n, np.int32) if self._is_full else np.full(n, value, np.int32)

    def _of_tokens(self, values: Values) -> Values:
        """Return an array that has values, one for each token, at the places of tokens."""
        if self._is_full:
            return values
        found = np.zeros(int(self.offsets[-1]), np.int32)
        found[self.attention_mask == 1] = values
        return found


def gather(
    values: npt.NDArray[Any] | ShardView, pieces: RowPieces, places: Numbers,
    out: npt.NDArray[Any],
) -> None:
    """Copy pieces of an array to their places in another; raise TokenFileError for one outside."""
    from bpe.kernels.pieces import copy_spans

    starts, lengths = pieces.starts, pieces.lengths
    if not isinstance(values, ShardView):
        if not copy_spans(values, starts, lengths, places, out):
            raise _outside()
        return
    if len(starts) and (starts.min() < 0 or (starts + lengths).max() > len(values)):
        raise _outside()
    of = np.searchsorted(values.starts, starts, "right") - 1
    inside = starts + lengths <= values.starts[of + 1]
    for number in np.unique(of[inside]).tolist():
        here = inside & (of == number)
        within = starts[here] - values.starts[number]
        if not copy_spans(values.arrays[number], within, lengths[here], places[here], out):
            raise _outside()
    for i in np.flatnonzero(~inside).tolist():
        out[places[i] : places[i] + lengths[i]] = values[starts[i] : starts[i] + lengths[i]]


def _outside() -> TokenFileError:
    return TokenFileError(
        "a row has positions outside of the dataset, so its document ends are damaged; run tokenbin"
        " verify on the dataset"
    )
