"""Arrays of a batch, computed from its inputs.

All have the shape [n_windows, context_length], except `cu_seqlens`. Places without a token have the
padding id in `inputs`, and `IGNORED` in `targets`. A document ends with the end-of-text id, which
its text cannot have, so documents are found in the ids alone.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from preprocess.sampling.data import IGNORED

Array = npt.NDArray[Any]


class Fields:
    """Fields of one batch.

    Args:
        inputs: int64[n_windows, context_length].
        targets: int64, of the same shape.
        n_inputs: int64[n_windows], the number of tokens in each row; None: all are full.
        end_of_text: The id at the end of each document, or int64[n_windows, 1], one for each row;
            None: unknown.
        begins: int64[n], places in the flattened inputs where a document or a part of it begins,
            ascending, at each row and in it; None: they are looked for.
    """

    def __init__(
        self, inputs: Array, targets: Array, n_inputs: Array | None,
        end_of_text: int | Array | None, begins: Array | None = None,
    ) -> None:
        self.inputs, self.targets = inputs, targets
        self.n_inputs, self.end_of_text, self._begins = n_inputs, end_of_text, begins

    @cached_property
    def attention_mask(self) -> Array:
        """1 for tokens, 0 for padding: int64."""
        if self.n_inputs is None:
            return np.ones(self.inputs.shape, np.int64)
        places = np.arange(self.inputs.shape[1])
        return (places < self.n_inputs[:, np.newaxis]).astype(np.int64)

    @cached_property
    def _segments(self) -> tuple[Array, Array, Array]:
        """(place in the flattened inputs, length, number in its row or 0) of each segment."""
        length = self.inputs.shape[1]
        places = self._find_begins() if self._begins is None else self._begins
        n_inputs = self.n_inputs
        if n_inputs is not None:
            padded = np.flatnonzero(n_inputs < length)
            places = np.sort(np.append(places, padded * length + n_inputs[padded]))
        rows = places // length
        firsts = np.searchsorted(places, np.arange(len(self.inputs)) * length)
        numbers = np.arange(1, len(places) + 1) - firsts[rows]
        if n_inputs is not None:
            numbers[places - rows * length >= n_inputs[rows]] = 0
        return places, np.append(places[1:], self.inputs.size) - places, numbers

    def _find_begins(self) -> Array:
        """Find where rows begin, and where documents do in them, by the end of those before."""
        begins = np.empty(self.inputs.shape, np.bool_)
        begins[:, 0] = True
        np.equal(self.inputs[:, :-1], np.asarray(self.end_of_text), out=begins[:, 1:])
        if self.n_inputs is not None:
            rows = np.flatnonzero(self.n_inputs < self.inputs.shape[1])
            begins[rows] &= np.arange(self.inputs.shape[1]) < self.n_inputs[rows, np.newaxis]
        return np.flatnonzero(begins)

    @cached_property
    def segment_ids(self) -> Array:
        """Number of the document in its row, from 1; 0 for padding: int64."""
        _, lengths, numbers = self._segments
        ids: Array = np.repeat(numbers, lengths).reshape(self.inputs.shape)
        return ids

    @cached_property
    def position_ids(self) -> Array:
        """Position in the document, or in its part in the row, from 0; 0 for padding: int64."""
        places, lengths, numbers = self._segments
        positions: Array = np.arange(self.inputs.size) - np.repeat(places, lengths)
        if not numbers.all():
            positions *= np.repeat(numbers > 0, lengths)
        return positions.reshape(self.inputs.shape)

    @cached_property
    def cu_seqlens(self) -> Array:
        """Cumulative lengths of the documents in the flattened inputs: int32[n_documents + 1]."""
        return np.append(self._segments[0], self.inputs.size).astype(np.int32)

    @cached_property
    def document_targets(self) -> Array:
        """The targets, `IGNORED` where the target is of another document: int64."""
        return np.where(self.inputs == np.asarray(self.end_of_text), IGNORED, self.targets)

    @cached_property
    def loss_mask(self) -> Array:
        """1 where there is a target, 0 elsewhere: int64."""
        mask: Array = (self.targets != IGNORED).astype(np.int64)
        return mask


NAMES = (
    "inputs", "targets", "attention_mask", "segment_ids", "position_ids", "cu_seqlens",
    "document_targets", "loss_mask",
)
NEED_END_OF_TEXT = ("segment_ids", "position_ids", "cu_seqlens", "document_targets")
