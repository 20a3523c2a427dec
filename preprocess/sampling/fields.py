"""Arrays of a batch, computed from its inputs.

All have the shape [n_windows, context_length], except `cu_seqlens`. Places without a token have the
padding id in `inputs`, and `IGNORED` in `targets`. A document ends with the end-of-text id, which
its text cannot have, so documents are found in the ids alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from preprocess.sampling.data import IGNORED, new_batch, outside
from preprocess.sampling.windows import Pieces

Array = npt.NDArray[Any]


class Fields:
    """Fields of one batch.

    Args:
        inputs: int64[n_windows, context_length].
        targets: int64, of the same shape.
        n_inputs: int64[n_windows], the number of tokens in each row; None: all are full.
        end_of_text: The id at the end of each document; None: unknown.
        pieces: Returns what the rows were read from, if each piece is a document or a part of one;
            None: the documents are looked for.

    Attributes:
        crossing: Returns the documents in rows that cross documents, table as of `Pieces`; None:
            they are found by their end-of-text ids.
        trained: Returns int64, of the shape of the targets, not above 0 for targets that are not
            trained on; None: all are.
    """

    def __init__(
        self, inputs: Array, targets: Array, n_inputs: Array | None,
        end_of_text: int | None, pieces: Callable[[], Pieces] | None = None,
    ) -> None:
        self.crossing: Callable[[], Array] | None = None
        self.trained: Callable[[], Array] | None = None
        self.inputs, self.targets = inputs, targets
        self.n_inputs, self.end_of_text, self._pieces = n_inputs, end_of_text, pieces

    @cached_property
    def attention_mask(self) -> Array:
        """1 for tokens, 0 for padding: int64."""
        if self.n_inputs is None:
            return np.ones(self.inputs.shape, np.int64)
        places = np.arange(self.inputs.shape[1])
        return (places < self.n_inputs[:, np.newaxis]).astype(np.int64)

    @cached_property
    def _segments(self) -> Array:
        """The documents, and parts of them, in the rows: table as of `windows.Pieces`."""
        if self._pieces is not None:
            return self._pieces().table
        if self.crossing is not None:
            return self.crossing()
        from preprocess.sampling.pieces import find_segments

        n_rows, length = self.inputs.shape
        n_inputs = np.full(n_rows, length) if self.n_inputs is None else self.n_inputs
        end_of_text = np.full(n_rows, self.end_of_text, np.int64)
        n_ends = np.count_nonzero(self.inputs == end_of_text[:, np.newaxis])
        table = np.empty((5, n_rows + n_ends), np.int64)
        n = find_segments(self.inputs, n_inputs, end_of_text, table)
        return np.ascontiguousarray(table[:, :n])

    @cached_property
    def segment_ids(self) -> Array:
        """Number of the document in its row, from 1; 0 for padding: int32."""
        n_rows, length = self.inputs.shape
        found = new_batch(n_rows, length, np.int32)
        number_segments(self._segments[3] % length, self._segments, found)
        return found

    @cached_property
    def position_ids(self) -> Array:
        """Position in the document, or in its part in the row, from 0; 0 for padding: int64."""
        found = new_batch(*self.inputs.shape)
        number_positions(self._segments, found)
        return found

    @cached_property
    def cu_seqlens(self) -> Array:
        """Cumulative lengths of the documents in the flattened inputs: int32[n_segments + 1].

        The padding of a row counts as one.
        """
        return cumulative_lengths(self._segments, self.inputs.size)

    def segments_in_rows(self, rows: Array) -> Array:
        """Return the documents, table as of `Pieces`, for rows that get other numbers."""
        table, length = self._segments.copy(), self.inputs.shape[1]
        shift = (rows - np.arange(len(rows)))[table[3] // length] * length
        table[3:] += shift
        return table

    @cached_property
    def document_targets(self) -> Array:
        """The targets, `IGNORED` where the target is of another document: int64."""
        if self._pieces is not None:
            return self.targets
        if self.crossing is None:
            return np.where(self.inputs == self.end_of_text, IGNORED, self.targets)
        found = self.targets.copy()
        _, sizes, n_targets, places, _ = self._segments
        found.reshape(-1)[(places + sizes - 1)[n_targets < sizes]] = IGNORED
        return found

    @property
    def input_ids(self) -> Array:
        """The inputs, by the name that models of transformers have for them: int64."""
        return self.inputs

    @cached_property
    def labels(self) -> Array:
        """The targets at the places of their own tokens, `IGNORED` for those not trained on: int64.

        Models of transformers compare the labels with the predictions one place before.
        """
        labels = np.full(self.inputs.shape, IGNORED, np.int64)
        labels[:, 1:] = self.targets[:, :-1]
        if self.trained is not None:
            labels[:, 1:][self.loss_mask[:, :-1] == 0] = IGNORED
        return labels

    @cached_property
    def loss_mask(self) -> Array:
        """1 where there is a target that is trained on, 0 elsewhere: int64."""
        is_trained = self.targets != IGNORED
        if self.trained is not None:
            is_trained &= self.trained() > 0
        mask: Array = is_trained.astype(np.int64)
        return mask


def number_segments(before: Array, table: Array, out: Array) -> None:
    """Number the segments of each row from 1; padding has 0.

    Args:
        before: int64[n_segments], 0 for the first segment of a row.
        table: As of `Pieces`.
        out: int32, of any shape, filled where the table has places.

    Raises:
        TokenFileError: The table has other places.
    """
    from preprocess.sampling.pieces import number_segments as run

    if not run(before, table, out.reshape(-1)):
        raise outside()


def number_positions(table: Array, out: Array) -> None:
    """Number the tokens of each segment from 0; padding has 0. Arguments as of `number_segments`.

    `out` may be int64, too.
    """
    from preprocess.sampling.pieces import number_positions as run

    if not run(table, out.reshape(-1)):
        raise outside()


def cumulative_lengths(table: Array, size: int) -> Array:
    """Return where documents begin in flattened rows of `size` places, and `size`: int32.

    The padding of a row counts as a document. `table` is as of `Pieces`.
    """
    _, sizes, _, places, stops = table
    ends = places + sizes
    limits = np.sort(np.append(places, ends[ends < stops]))
    return np.append(limits, size).astype(np.int32)


NAMES = (
    "inputs", "targets", "attention_mask", "segment_ids", "position_ids", "cu_seqlens",
    "document_targets", "loss_mask", "input_ids", "labels",
)
NEED_END_OF_TEXT = ("segment_ids", "position_ids", "cu_seqlens", "document_targets")
