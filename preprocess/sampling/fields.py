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

IGNORED = -100  # a target that a loss leaves out, as in PyTorch
Array = npt.NDArray[Any]


class Fields:
    """Fields of one batch.

    Args:
        inputs: int64[n_windows, context_length].
        targets: int64, of the same shape.
        n_inputs: int64[n_windows], the number of tokens in each row; None: all are full.
        end_of_text: The id at the end of each document, or int64[n_windows, 1], one for each row;
            None: unknown.
    """

    def __init__(
        self, inputs: Array, targets: Array, n_inputs: Array | None,
        end_of_text: int | Array | None,
    ) -> None:
        self.inputs, self.targets = inputs, targets
        self._n_inputs, self._end_of_text = n_inputs, end_of_text

    @cached_property
    def attention_mask(self) -> Array:
        """1 for tokens, 0 for padding: int64."""
        if self._n_inputs is None:
            return np.ones(self.inputs.shape, np.int64)
        places = np.arange(self.inputs.shape[1])
        return (places < self._n_inputs[:, np.newaxis]).astype(np.int64)

    @cached_property
    def _begins(self) -> Array:
        """True where a document begins, or the row, or its padding: bool."""
        begins = np.zeros(self.inputs.shape, np.bool_)
        begins[:, 0] = True
        begins[:, 1:] = self.inputs[:, :-1] == np.asarray(self._end_of_text)
        if self._n_inputs is not None:
            rows = np.flatnonzero(self._n_inputs < self.inputs.shape[1])
            places = np.arange(self.inputs.shape[1])
            padded = places > self._n_inputs[rows, np.newaxis]
            begins[rows] &= ~padded
            begins[rows, self._n_inputs[rows]] = True
        return begins

    @cached_property
    def segment_ids(self) -> Array:
        """Number of the document in its row, from 1; 0 for padding: int64."""
        numbers: Array = np.cumsum(self._begins, axis=1) * self.attention_mask
        return numbers

    @cached_property
    def position_ids(self) -> Array:
        """Position in the document, or in its part in the row, from 0: int64."""
        places = np.arange(self.inputs.shape[1])
        firsts = np.maximum.accumulate(np.where(self._begins, places, 0), axis=1)
        positions: Array = (places - firsts) * self.attention_mask
        return positions

    @cached_property
    def cu_seqlens(self) -> Array:
        """Cumulative lengths of the documents in the flattened inputs: int32[n_documents + 1]."""
        return np.append(np.flatnonzero(self._begins), self.inputs.size).astype(np.int32)

    @cached_property
    def document_targets(self) -> Array:
        """The targets, `IGNORED` where the target is of another document: int64."""
        return np.where(self.inputs == np.asarray(self._end_of_text), IGNORED, self.targets)

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
