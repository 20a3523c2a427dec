"""The dataset as formats read it, and the files that they describe.

A file is segments of values, each computed from their positions, so that writing may begin
anywhere and needs little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.errors import TokenmillError
from preprocess.dataset.checked import read_bounds, read_ids
from preprocess.dataset.columns import DOCUMENT_ENDS, Values
from preprocess.dataset.reader import TokenFile

PIECE_VALUES = 1 << 20  # of a segment that are computed at a time


class ExportError(TokenmillError):
    """A dataset cannot be exported to a format, or an export cannot be read."""


class Segment(NamedTuple):
    """Consecutive values of a file.

    Attributes:
        n_values: Number of values.
        n_bytes: Number of their bytes.
        make: Computes values [start, stop).
        cuts: Positions between which they are computed at once; (): `PIECE_VALUES` at a time.
    """

    n_values: int
    n_bytes: int
    make: Callable[[int, int], bytes | Values]
    cuts: Sequence[int] = ()

    @property
    def n_pieces(self) -> int:
        """Number of pieces that are computed at a time."""
        return len(self.cuts) - 1 if self.cuts else -(-self.n_values // PIECE_VALUES)

    def piece(self, number: int) -> bytes | Values:
        """Compute a piece."""
        if self.cuts:
            return self.make(self.cuts[number], self.cuts[number + 1])
        start = number * PIECE_VALUES
        return self.make(start, min(start + PIECE_VALUES, self.n_values))


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
        for segment in self.segments:
            for number in range(first, segment.n_pieces):
                yield segment.piece(number)
            first = max(first - segment.n_pieces, 0)


def plain(content: bytes) -> Segment:
    """Return the segment of fixed bytes."""
    return Segment(1, len(content), lambda start, stop: content)


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
            raise ExportError(f"{file.path}: has no documents, so there is nothing to export")
        parts = file.manifest.parts
        self._starts = np.cumsum([0, *(part.n_tokens for part in parts)], dtype=np.int64)
        self._before = np.cumsum([0, *(part.n_documents for part in parts)], dtype=np.int64)

    def ids(self, start: int, stop: int, dtype: np.dtype[Any] | None = None) -> Values:
        """Return token ids [start, stop) as of `read_ids`: dtype[n]; None: the dataset's dtype."""
        found = read_ids(self.file, start, stop)
        return found if dtype is None else found.astype(dtype, copy=False)

    def ids_segment(self, start: int, stop: int, dtype: np.dtype[Any] | None = None) -> Segment:
        """Return the segment of token ids [start, stop)."""
        n, size = stop - start, (dtype or self.file.dtype).itemsize
        return Segment(n, n * size, lambda a, b: self.ids(start + a, start + b, dtype))

    def mask(self, start: int, stop: int) -> Values:
        """Return the loss mask of tokens [start, stop): uint8[n]."""
        return np.ascontiguousarray(self.file.loss_mask[start:stop])

    def mask_segment(self) -> Segment:
        """Return the segment of the loss mask."""
        return Segment(self.n_tokens, self.n_tokens, self.mask)

    def bounds(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the start of document `first`, then the ends of [first, stop): int64[n + 1]."""
        return read_bounds(self.file, first, stop)

    def documents_until(self, position: int) -> int:
        """Return the number of documents that end at a position or before it."""
        number = min(int(np.searchsorted(self._starts, position, "right")), len(self._starts) - 1)
        ends = self.file.parts[number - 1][DOCUMENT_ENDS.name]
        here = np.uint64(position - int(self._starts[number - 1]))
        return int(self._before[number - 1]) + int(np.searchsorted(ends, here, "right"))

    def error(self, what: str) -> ExportError:
        """Return an error about the dataset."""
        return ExportError(f"{Path(self.file.path)}: {what}")


def token_shards(source: Source, shard_tokens: int) -> list[tuple[int, int]]:
    """Return (start, stop) of shards of `shard_tokens` tokens; the last may have fewer."""
    n = source.n_tokens
    return [(start, min(start + shard_tokens, n)) for start in range(0, n, shard_tokens)]


def int32_ids(source: Source, program: str) -> np.dtype[Any]:
    """Return the dtype of ids in a format without uint32: uint16, or int32.

    Raises:
        ExportError: The vocabulary is larger than int32.
    """
    if source.file.dtype.itemsize == 2:
        return source.file.dtype
    if source.file.vocab_size > 1 << 31:
        raise source.error(
            f"the vocabulary of {source.file.vocab_size:,} ids is larger than int32, the largest"
            f" type of ids of {program}; choose another format"
        )
    return np.dtype("<i4")
