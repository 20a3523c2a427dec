"""The dataset as formats read it, and the files that they describe.

A file is segments of values, each computed from their positions, so that writing may begin
anywhere and needs little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.errors import TokenmillError
from preprocess.dataset.columns import Values
from preprocess.dataset.reader import TokenFile, read_bounds, read_ids

PIECE_VALUES = 1 << 20  # of a segment that are computed at a time


class ExportError(TokenmillError):
    """A dataset cannot be exported to a format, or an export cannot be read."""


class Segment(NamedTuple):
    """Consecutive values of a file.

    Attributes:
        n_bytes: Number of their bytes.
        make: Computes values [start, stop).
        cuts: Positions between which they are computed at once, with the first and the last.
    """

    n_bytes: int
    make: Callable[[int, int], bytes | Values]
    cuts: Sequence[int]


def plain(content: bytes) -> Segment:
    """Return the segment of fixed bytes."""
    return Segment(len(content), lambda start, stop: content[start:stop], (0, len(content)))


def values(n: int, itemsize: int, make: Callable[[int, int], Values]) -> Segment:
    """Return the segment of `n` values of so many bytes each, computed by `make`."""
    return Segment(n * itemsize, make, [*range(0, n, PIECE_VALUES), n])


class OutputFile(NamedTuple):
    """One file of an export."""

    name: str
    segments: tuple[Segment, ...]

    @property
    def n_bytes(self) -> int:
        """Size of the file."""
        return sum(each.n_bytes for each in self.segments)

    def pieces(self, first: int = 0) -> Generator[bytes | Values]:
        """Yield the content, without the first pieces."""
        pieces = [(each.make, *place) for each in self.segments for place in pairwise(each.cuts)]
        for make, start, stop in pieces[first:]:
            yield make(start, stop)


class Source:
    """A dataset to export.

    Args:
        file: The dataset.
        name: NAME of the outputs.
    """

    def __init__(self, file: TokenFile, name: str) -> None:
        self.file, self.name = file, name
        self.n_tokens, self.n_documents = file.n_tokens, file.n_documents
        if not self.n_documents:
            raise self.error("has no documents, so there is nothing to export")

    def ids(self, start: int, stop: int, dtype: np.dtype[Any] | None = None) -> Values:
        """Return token ids [start, stop) as of `read_ids`: dtype[n]; None: the dataset's dtype."""
        found = read_ids(self.file, start, stop)
        return found if dtype is None else found.astype(dtype, copy=False)

    def ids_segment(
        self, start: int = 0, stop: int | None = None, dtype: np.dtype[Any] | None = None
    ) -> Segment:
        """Return the segment of token ids [start, stop); None: to the last."""
        n, size = (self.n_tokens if stop is None else stop) - start, dtype or self.file.dtype
        return values(n, size.itemsize, lambda a, b: self.ids(start + a, start + b, dtype))

    def mask(self, start: int, stop: int) -> Values:
        """Return the loss mask of tokens [start, stop): uint8[n]."""
        return np.ascontiguousarray(self.file.loss_mask[start:stop])

    def mask_segment(self) -> Segment:
        """Return the segment of the loss mask."""
        return values(self.n_tokens, 1, self.mask)

    def bounds(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the start of document `first`, then the ends of [first, stop): int64[n + 1]."""
        return read_bounds(self.file, first, stop)

    def ends_segment(self) -> Segment:
        """Return the segment of document ends, as uint64."""
        return values(self.n_documents, 8, lambda a, b: self.bounds(a, b)[1:].astype("<u8"))

    def documents_until(self, position: int) -> int:
        """Return the number of documents that end at a position or before it."""
        # The dtype is that of the ends, or searchsorted would copy them to float64.
        return int(np.searchsorted(self.file.document_ends, np.uint64(position), "right"))

    def shards(self, shard_tokens: int, most: int, kind: str) -> list[tuple[int, int]]:
        """Return (start, stop) of shards of `shard_tokens` tokens; the last may have fewer.

        Raises:
            ExportError: That is more than `most`, which a file of this kind may have.
        """
        if shard_tokens > most:
            raise self.error(
                f"a {kind} has {most:,} tokens at most, and {shard_tokens:,} were asked for; lower"
                " it (--shard-tokens)"
            )
        cuts = [*range(0, self.n_tokens, shard_tokens), self.n_tokens]
        return [*pairwise(cuts)]

    def int32_dtype(self, program: str) -> np.dtype[Any]:
        """Return the dtype of ids in a format without uint32: uint16, or int32.

        Raises:
            ExportError: The vocabulary is larger than int32.
        """
        if self.file.dtype.itemsize == 2:
            return self.file.dtype
        if self.file.vocab_size > 1 << 31:
            raise self.error(
                f"the vocabulary of {self.file.vocab_size:,} ids is larger than int32, the largest"
                f" type of ids of {program}; choose another format"
            )
        return np.dtype("<i4")

    def error(self, what: str) -> ExportError:
        """Return an error about the dataset."""
        return ExportError(f"{Path(self.file.path)}: {what}")
