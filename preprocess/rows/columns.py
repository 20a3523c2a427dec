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
        n_tokens: Tokens of rows that are made, without padding; 0 of rows that are read.
    """

    offsets: Numbers
    values: dict[str, Values]
    n_tokens: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return self.offsets.nbytes + sum(each.nbytes for each in self.values.values())


class RowReader:
    """Makes the arrays of rows of a dataset."""

    def __init__(self, file: TokenFile, plan: RowPlan, shape: Shape) -> None:
        self._file, self.plan, self.shape = file, plan, shape
        self.longest = plan.longest + shape.n_around  # tokens of a row, without padding

    def bounds(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows that are read at a time; they depend on `first` alone."""
        while first < stop:
            end = min(first + _ROWS_AT_ONCE, stop)
            lengths = self.plan.pieces(first, end).row_lengths() + self.shape.n_around
            if self.shape.length:
                lengths[:] = self.shape.length
            ends = np.cumsum(lengths)
            begin = n_before = 0
            while begin < len(lengths):
                fits = int(np.searchsorted(ends, n_before + _AT_ONCE, "right"))
                following = max(begin + 1, fits)
                yield first + begin, first + following
                begin, n_before = following, int(ends[following - 1])
            first = end

    def space(self) -> Values:
        """Return memory for the arrays of a batch: int32, enough for any that `bounds` has."""
        longest = self.shape.length or self.longest
        return np.empty(len(self.shape.columns) * max(longest, _AT_ONCE), np.int32)

    def read(self, first: int, stop: int, space: Values | None = None) -> RowBatch:
        """Make the arrays of rows [first, stop), in memory from `space` if it is given."""
        made = _Made(self._file, self.plan.pieces(first, stop), self.shape, space)
        values = {name: getattr(made, name) for name in self.shape.columns}
        return RowBatch(made.offsets, values, made.n_tokens)


class _Made:
    """Columns of some rows, each made when it is asked for."""

    def __init__(
        self, file: TokenFile, pieces: RowPieces, shape: Shape, space: Values | None
    ) -> None:
        self._file, self._pieces, self._shape = file, pieces, shape
        n_before = len(shape.before)
        self._sizes = pieces.row_lengths() + shape.n_around
        n_rows, self.n_tokens = len(self._sizes), int(self._sizes.sum())
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
        n_values = len(shape.columns) * int(self.offsets[-1])
        space = np.empty(n_values, np.int32) if space is None else space[:n_values]
        self._free = iter(space.reshape(len(shape.columns), -1))  # an array for each column

    @cached_property
    def input_ids(self) -> Values:
        shape = self._shape
        found = self._filled(shape.pad_id)
        gather(self._file.tokens, self._pieces, self._places, found)
        for i, token in enumerate(shape.before):
            found[self._begins + i] = token
        for i, token in enumerate(reversed(shape.after), start=1):
            found[self._begins + self._sizes - i] = token
        return found

    @cached_property
    def attention_mask(self) -> Values:
        """1 for tokens, 0 for padding."""
        return self._numbered(np.ones(len(self._sizes), np.int32), 0, self._sizes, self._begins)

    @cached_property
    def labels(self) -> Values:
        """The ids, `IGNORED` at padding, at tokens not trained on, and where a segment begins.

        A model compares the label at a place with its prediction from the places before.
        """
        found = self._filled(IGNORED)
        _copy(self.input_ids, self._begins, self._sizes, self._begins, found)
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
        offsets, lengths = self._pieces.offsets, self._pieces.lengths
        numbers = np.arange(1, offsets[-1] + 1) - np.repeat(offsets[:-1], np.diff(offsets))
        return self._numbered(numbers.astype(np.int32), 0, lengths, self._places)

    @cached_property
    def position_ids(self) -> Values:
        """Place in the segment, from 0; 0 for padding."""
        lengths, places = self._sizes, self._begins
        if self._shape.is_packed:
            lengths, places = self._pieces.lengths, self._places
        return self._numbered(np.zeros(len(lengths), np.int32), 1, lengths, places)

    def _filled(self, padding: int) -> Values:
        """Return an array that has the value at padding, and anything at tokens."""
        found = next(self._free)
        if not self._is_full:
            found.fill(padding)
        return found

    def _numbered(self, firsts: Values, step: int, lengths: Numbers, places: Numbers) -> Values:
        """Return an array with numbers in spans, and 0 for padding."""
        from preprocess.sampling.pieces import number_spans

        found = self._filled(0)
        if not number_spans(firsts, step, lengths, places, found):
            raise _outside()
        return found


def gather(
    values: npt.NDArray[Any] | ShardView, pieces: RowPieces, places: Numbers,
    out: npt.NDArray[Any],
) -> None:
    """Copy pieces of an array to their places in another; raise TokenFileError for one outside."""
    starts, lengths = pieces.starts, pieces.lengths
    if not isinstance(values, ShardView):
        _copy(values, starts, lengths, places, out)
        return
    if len(starts) and (starts.min() < 0 or (starts + lengths).max() > len(values)):
        raise _outside()
    with values.at(lambda: (starts, starts + lengths)) as here:
        _gather_of_shards(here, starts, lengths, places, out)


def _gather_of_shards(
    values: ShardView, starts: Numbers, lengths: Numbers, places: Numbers, out: npt.NDArray[Any]
) -> None:
    """Copy spans, all inside the view."""
    of = np.searchsorted(values.starts, starts, "right") - 1
    inside = starts + lengths <= values.starts[of + 1]
    for number in np.unique(of[inside]).tolist():
        here = inside & (of == number)
        within = starts[here] - values.starts[number]
        _copy(values.arrays[number], within, lengths[here], places[here], out)
    for i in np.flatnonzero(~inside).tolist():
        out[places[i] : places[i] + lengths[i]] = values[starts[i] : starts[i] + lengths[i]]


def _copy(
    values: npt.NDArray[Any], starts: Numbers, lengths: Numbers, places: Numbers,
    out: npt.NDArray[Any],
) -> None:
    from preprocess.sampling.pieces import copy_spans

    if not copy_spans(values, starts, lengths, places, out):
        raise _outside()


def _outside() -> TokenFileError:
    return TokenFileError(
        "a row has positions outside of the dataset, so its document ends are damaged; run"
        " tokenmill verify on the dataset"
    )
