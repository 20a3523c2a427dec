"""A file of token ids as formats open it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bpe.errors import CorpusError
from preprocess.dataset.columns import Values
from preprocess.sources.text_file import TextFile, open_file


class Documents(Protocol):
    """Document ends in a file of ids."""

    def ends(self, first: int, start: int, stop: int, is_end: NDArray[np.bool_]) -> Values:
        """Return the ends of documents in (start, stop], and at 0: int64[n], ascending.

        Args:
            first: Number of documents that end at `start` or before.
            start: Position of an id.
            stop: The same, above it.
            is_end: bool[stop - start], True for each end-of-text id.
        """


class IdsFile:
    """Ids of a fixed dtype, in a file that must not change.

    Args:
        path: The file.
        dtype: Of its ids, little-endian.

    Raises:
        CorpusError: It is missing, empty, or has no whole number of ids.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        if path.is_dir():
            raise CorpusError(f"{path}: is a directory; give the file of ids")
        self.file: TextFile = open_file(path)
        self.path, self.dtype = path, dtype
        self.n_tokens, rest = divmod(self.file.n_bytes, dtype.itemsize)
        if rest:
            raise CorpusError(
                f"{path}: has {self.file.n_bytes:,} bytes, which is no whole number of ids of"
                f" {dtype.itemsize} bytes ({dtype.name}); check the dtype, or copy the file again"
            )
        if not self.n_tokens:
            raise CorpusError(f"{path}: is empty; there are no ids to import")

    def content(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the bytes of ids [start, stop); raise CorpusError if the file has changed."""
        size = self.dtype.itemsize
        return self.file.read(start * size, stop * size)


class Ids(Protocol):
    """Files of ids of one format: ids, documents, and the files to record.

    Attributes:
        ids: The file with the ids.
        documents: Where documents end.
        beside: Other files, with their contents' digests in the manifest.
    """

    ids: IdsFile
    documents: Documents
    beside: tuple[TextFile, ...]
