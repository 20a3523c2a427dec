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

from preprocess.sampling.data import IGNORED, new_batch
from preprocess.sampling.windows import Pieces

Array = npt.NDArray[Any]


class Fields:
    """Fields of one batch.

    Args:
        inputs: int64[n_windows, context_length].
        targets: int64, of the same shape.
        n_inputs: int64[n_windows], the number of tokens in each row; None: all are full.
        end_of_text: The id at the end of each document, or int64[n_windows, 1], one for each row;
            None: unknown.
        pieces: Returns what the rows were read from, if each piece is a document or a part of one;
            None: the documents are looked for.
    """

    def __init__(
        self, inputs: Array, targets: Array, n_inputs: Array | None,
        end_of_text: int | Array | None, pieces: Callable[[], Pieces] | None = None,
    ) -> None:
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
        from bpe.kernels.pieces import find_segments

        n_rows, length = self.inputs.shape
        n_inputs = np.full(n_rows, length) if self.n_inputs is None else self.n_inputs
        end_of_text = np.empty(n_rows, np.int64)
        end_of_text[:] = np.asarray(self.end_of_text).reshape(-1)
        n_ends = np.count_nonzero(self.inputs == end_of_text[:, np.newaxis])
        table = np.empty((5, n_rows + n_ends), np.int64)
        n = find_segments(self.inputs, n_inputs, end_of_text, table)
        return np.ascontiguousarray(table[:, :n])

    @cached_property
    def segment_ids(self) -> Array:
        """Number of the document in its row, from 1; 0 for padding: int32."""
        from bpe.kernels.pieces import number_segments

        n_rows, length = self.inputs.shape
        found = new_batch(n_rows, length, np.int32)
        number_segments(self._segments, length, found.reshape(-1))
        return found

    @cached_property
    def position_ids(self) -> Array:
        """Position in the document, or in its part in the row, from 0; 0 for padding: int64."""
        from bpe.kernels.pieces import number_positions

        found = new_batch(*self.inputs.shape)
        number_positions(self._segments, found.reshape(-1))
        return found

    @cached_property
    def cu_seqlens(self) -> Array:
        """Cumulative lengths of the documents in the flattened inputs: int32[n_segments + 1].

        The padding of a row counts as one.
        """
        _, sizes, _, places, stops = self._segments
        ends = places + sizes
        limits = np.sort(np.append(places, ends[ends < stops]))
        return np.append(limits, self.inputs.size).astype(np.int32)

    @cached_property
    def document_targets(self) -> Array:
        """The targets, `IGNORED` where the target is of another document: int64."""
        return np.where(self.inputs == np.asarray(self.end_of_text), IGNORED, self.targets)

    @property
    def input_ids(self) -> Array:
        """The inputs, by the name that models of transformers have for them: int64."""
        return self.inputs

    @cached_property
    def labels(self) -> Array:
        """The targets at the places of their own tokens, `IGNORED` where there is none: int64.

        Models of transformers compare the labels with the predictions one place before.
        """
        labels = np.full(self.inputs.shape, IGNORED, np.int64)
        labels[:, 1:] = self.targets[:, :-1]
        return labels

    @cached_property
    def loss_mask(self) -> Array:
        """1 where there is a target, 0 elsewhere: int64."""
        mask: Array = (self.targets != IGNORED).astype(np.int64)
        return mask


NAMES = (
    "inputs", "targets", "attention_mask", "segment_ids", "position_ids", "cu_seqlens",
    "document_targets", "loss_mask", "input_ids", "labels",
)
NEED_END_OF_TEXT = ("segment_ids", "position_ids", "cu_seqlens", "document_targets")
