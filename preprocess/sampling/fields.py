"""Arrays of a batch, computed from its inputs.

All have the shape [n_windows, context_length], except `cu_seqlens`. Places without a token have the
padding id in `inputs`, and `IGNORED` in `targets`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from bpe.parallel import cached_property
from preprocess.sampling.data import IGNORED, kernels, new_batch, outside
from preprocess.sampling.windows import divided

Array = npt.NDArray[Any]


class Fields:
    """Fields of one batch.

    Args:
        inputs: int64[n_windows, context_length].
        read_targets: Returns the targets as a new array, int64, of the same shape.
        pieces: Returns what the rows were read from, table as of `DocumentWindows.pieces`.
        documents: Returns a packed tuple of uint64[n_documents], where documents end, for windows
            across documents; None: each piece is a document or a part of one.
        trained: Returns int64, of the shape of the targets, not above 0 for targets that are not
            trained on; None: all are.
        is_full: True if no row has padding; False: not known.
    """

    def __init__(
        self, inputs: Array, read_targets: Callable[[], Array], pieces: Callable[[], Array],
        documents: Callable[[], Any] | None = None, trained: Callable[[], Array] | None = None,
        is_full: bool = False,
    ) -> None:
        self.inputs, self._read_targets = inputs, read_targets
        self._find_pieces, self._documents, self._trained = pieces, documents, trained
        self._is_full = is_full

    @cached_property
    def targets(self) -> Array:
        """The tokens after the inputs: int64."""
        return self._read_targets()

    @cached_property
    def pieces(self) -> Array:
        """Pieces that the rows were read from, int64, as of `DocumentWindows.pieces`."""
        return self._find_pieces()

    @cached_property
    def _segments(self) -> Array:
        """The documents, and parts of them, in the rows: table as of `DocumentWindows.pieces`."""
        return self.pieces if self._documents is None else divided(self.pieces, self._documents())

    @cached_property
    def attention_mask(self) -> Array:
        """1 for tokens, 0 for padding: int64."""
        if self._is_full or self.pieces[1].sum() == self.inputs.size:
            return np.ones(self.inputs.shape, np.int64)
        found = new_batch(*self.inputs.shape)
        number_segments(0, self.pieces, found)
        return found

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
        return cumulative_lengths(self.segment_ids)

    @cached_property
    def document_targets(self) -> Array:
        """The targets, `IGNORED` where the target is of another document: int64."""
        found = self._read_targets()
        # Pieces that are documents were read without the target of their last token.
        if self._documents is not None:
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
        if self._trained is not None:
            labels[:, 1:][self.loss_mask[:, :-1] == 0] = IGNORED
        return labels

    @cached_property
    def loss_mask(self) -> Array:
        """1 where there is a target that is trained on, 0 elsewhere: int64."""
        is_trained = self.targets != IGNORED
        if self._trained is not None:
            is_trained &= self._trained() > 0
        mask: Array = is_trained.astype(np.int64)
        return mask


def number_segments(before: Array | int, table: Array, out: Array) -> None:
    """Number the segments of each row from 1; padding has 0.

    Args:
        before: int64[n_segments], 0 for the first segment of a row; or 0 for all.
        table: As of `DocumentWindows.pieces`.
        out: int32|int64, of any shape, filled where the table has places.

    Raises:
        TokenFileError: The table has other places.
    """
    marked = table.copy()
    marked[0] = before
    if not kernels().number_places(marked, False, out.reshape(-1)):
        raise outside()


def number_positions(table: Array, out: Array) -> None:
    """Number the tokens of each segment from 0; padding has 0. As `number_segments`."""
    if not kernels().number_places(table, True, out.reshape(-1)):
        raise outside()


def cumulative_lengths(segment_ids: Array) -> Array:
    """Return where segments begin in flattened rows, and the number of places: int32[n + 1].

    Args:
        segment_ids: int32[n_rows, row_length]; the padding of a row counts as a segment.
    """
    begins = np.ones(segment_ids.shape, np.bool_)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    return np.append(np.flatnonzero(begins), segment_ids.size).astype(np.int32)


NAMES = (
    "inputs", "targets", "attention_mask", "segment_ids", "position_ids", "cu_seqlens",
    "document_targets", "loss_mask", "input_ids", "labels",
)
NEED_DOCUMENTS = ("segment_ids", "position_ids", "cu_seqlens", "document_targets")
