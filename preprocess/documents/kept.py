"""Selected documents of a source: a bit of each, and the documents that are cut."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from preprocess.documents.batch import DocumentBatch, validation_mask

Cuts = Mapping[int, tuple[int, int]]


class Kept(Struct, frozen=True, eq=False):
    """Which documents of a source are kept.

    Attributes:
        bits: uint8[n], bit i % 8 of byte i // 8 is 1 if document i is kept; of several sources.
        first: Number in `bits` of the first document of the source.
        stop: Number of documents of the source that are read; None: all.
        cuts: Number in `bits` of a document -> the range of its characters that is kept.
        validation_fraction: As in `ReadOptions`; a document that was cut is decided on again.
    """

    bits: NDArray[np.uint8]
    first: int = 0
    stop: int | None = None
    cuts: Cuts = {}
    validation_fraction: float = 0.0

    def select(self, batch: DocumentBatch, n_before: int) -> DocumentBatch:
        """Return the kept documents of a batch, of which the source has `n_before` before it."""
        first = self.first + n_before
        stop = first + len(batch)
        if self.stop is not None:
            stop = min(stop, self.first + self.stop)
        some = np.unpackbits(self.bits[first // 8 : -(-stop // 8)], bitorder="little")
        chosen = np.zeros(len(batch), np.bool_)
        chosen[: max(stop - first, 0)] = some[first % 8 : first % 8 + stop - first]
        for number in self.cuts:
            if first <= number < stop:
                batch = self._cut(batch, number - first, *self.cuts[number])
        return batch.select(chosen)

    def _cut(self, batch: DocumentBatch, index: int, first: int, stop: int) -> DocumentBatch:
        """Keep a range of the characters of one document."""
        bounds = batch.bounds.copy()
        start, end = bounds[2 * index : 2 * index + 2].tolist()
        text = batch.buffer[start:end].tobytes().decode()
        own = start + np.array([len(text[:n].encode()) for n in (first, stop)])
        bounds[2 * index : 2 * index + 2] = own
        in_validation = batch.in_validation
        if in_validation is not None:
            in_validation = in_validation.copy()
            in_validation[index] = validation_mask(batch.buffer, own, self.validation_fraction)[0]
        return replace(batch, bounds=bounds, in_validation=in_validation)
