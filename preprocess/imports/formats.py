"""Formats of files of token ids: where the ids are, and where documents end.

A format is a function that opens its files, and a line of the table `FORMATS`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpe.errors import CorpusError
from preprocess.dataset.columns import Values
from preprocess.export.formats import (
    MEGATRON_DTYPES,
    MEGATRON_HEADER,
    MEGATRON_MAGIC,
    MEGATRON_VERSION,
)
from preprocess.settings import SettingsError
from preprocess.sources.text_file import TextFile, open_file

_AT_ONCE = 1 << 20  # sequences that are checked at a time
_AGAIN = "copy it again, or make it again with Megatron's preprocess_data.py"


class Ids:
    """Ids of a fixed dtype, in a file that must not change; each end-of-text id ends a document.

    Args:
        path: The file.
        dtype: Of its ids, little-endian.

    Attributes:
        beside: Other files that are read, with their contents' digests in the manifest.

    Raises:
        CorpusError: It is missing, empty, or has no whole number of ids.
    """

    beside: tuple[TextFile, ...] = ()

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

    def ends(self, first: int, start: int, is_end: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the ends of documents in some ids, of empty ones also where these begin: int64[n].

        Args:
            first: Number of documents that ended before.
            start: Position of the first id.
            is_end: bool[n_ids], True for each end-of-text id.
        """
        found = start + 1 + np.flatnonzero(is_end)
        is_open = start + len(is_end) == self.n_tokens and not is_end[-1]
        return np.append(found, self.n_tokens) if is_open else found


class MegatronIds(Ids):
    """NAME.bin and NAME.idx of Megatron-LM, whose format `preprocess.export.formats` describes.

    A document may have several sequences. Sequences must follow one another in NAME.bin, as
    Megatron writes them. The ends of all documents are in memory.

    Args:
        path: The common prefix of the files, with or without a suffix.

    Raises:
        CorpusError: Files are missing or damaged, or do not fit one another.
    """

    def __init__(self, path: Path) -> None:
        prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
        self._path = prefix.with_name(f"{prefix.name}.idx")
        self._index: TextFile = open_file(self._path)
        dtype, n_sequences, n_bounds = self._read_header()
        ends = self._sequence_ends(dtype.itemsize, n_sequences)
        self._ends = ends[self._read_bounds(n_sequences, n_bounds)[1:]]
        super().__init__(prefix.with_name(f"{prefix.name}.bin"), dtype)
        self.beside = (self._index,)
        if self.n_tokens != ends[-1]:
            raise CorpusError(
                f"{self.path}: has {self.n_tokens:,} ids of {dtype.name}, and its .idx says"
                f" {ends[-1]:,}; {_AGAIN}"
            )

    def ends(self, first: int, start: int, is_end: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the ends of documents, as `Ids.ends`."""
        stop = int(np.searchsorted(self._ends, start + len(is_end), "right"))
        return self._ends[first:stop]

    def _error(self, what: str, remedy: str = _AGAIN) -> CorpusError:
        return CorpusError(f"{self._path}: {what}; {remedy}")

    def _read_header(self) -> tuple[np.dtype[Any], int, int]:
        """Return (dtype of the ids, number of sequences, number of document bounds)."""
        index, head = self._index, MEGATRON_HEADER.size
        header = bytes(index.read(0, min(head, index.n_bytes)))
        magic = header[: len(MEGATRON_MAGIC)]
        if not magic or magic != MEGATRON_MAGIC[: len(magic)]:
            raise self._error(
                "does not begin with Megatron's MMIDIDX, so it is no .idx", "check it"
            )
        if len(header) < head:
            raise self._error(f"has {len(header)} bytes, and the header of an .idx has {head}")
        _, version, code, n_sequences, n_bounds = MEGATRON_HEADER.unpack(header)
        if version != MEGATRON_VERSION:
            raise self._error(
                f"is of version {version} of the format, expected {MEGATRON_VERSION}",
                "convert it with the Megatron that made it",
            )
        name = MEGATRON_DTYPES.get(code, f"number {code}")
        if "int" not in name:
            raise self._error(f"says that ids are {name}, expected integers")
        expected = head + 12 * n_sequences + 8 * n_bounds
        if index.n_bytes == expected + n_sequences:
            raise self._error(
                "has a mode for each sequence, as of multimodal data, which a dataset cannot have",
                "import text alone",
            )
        if index.n_bytes != expected:
            raise self._error(
                f"has {index.n_bytes:,} bytes, and {expected:,} are expected for {n_sequences:,}"
                f" sequences and {n_bounds:,} document bounds"
            )
        return np.dtype(name).newbyteorder("<"), n_sequences, n_bounds

    def _read(self, at: int, dtype: str, start: int, stop: int) -> Values:
        """Return values [start, stop) of an array that begins at a byte after the header."""
        at, size = at + MEGATRON_HEADER.size, np.dtype(dtype).itemsize
        return self._index.read(at + start * size, at + stop * size).view(dtype)

    def _sequence_ends(self, itemsize: int, n: int) -> NDArray[np.int64]:
        """Return 0 and the ends of sequences, which must follow one another: int64[n + 1]."""
        found = np.zeros(n + 1, np.int64)
        for start in range(0, n, _AT_ONCE):
            stop = min(start + _AT_ONCE, n)
            lengths = self._read(0, "<i4", start, stop).astype(np.int64)
            if (lengths < 0).any():
                place = start + int((lengths < 0).argmax())
                raise self._error(f"sequence {place:,} has a length below zero")
            found[start + 1 : stop + 1] = found[start] + np.cumsum(lengths)
            wanted = found[start:stop] * itemsize
            wrong = np.flatnonzero(self._read(4 * n, "<i8", start, stop) != wanted)
            if len(wrong):
                place = int(wrong[0])
                raise self._error(
                    f"sequence {start + place:,} should begin at byte {wanted[place]:,} of the"
                    " .bin, after those before it"
                )
        return found

    def _read_bounds(self, n_sequences: int, n: int) -> NDArray[np.int64]:
        """Return the sequences at which documents begin and the last ends: int64[n]."""
        bounds: NDArray[np.int64] = self._read(12 * n_sequences, "<i8", 0, n)
        # Compared, not subtracted: a difference of hostile bounds may overflow.
        falls = bounds < np.append(0, bounds[:-1])
        if falls.any() or (n and bounds[0] != 0):
            place = int(falls.argmax())
            raise self._error(f"document {place:,} begins before the one before it")
        last = int(bounds[-1]) if n else 0
        if n < 2 or last != n_sequences:
            raise self._error(
                f"{max(n - 1, 0):,} documents have {last:,} sequences, and there are"
                f" {n_sequences:,}"
            )
        return bounds


def _open_megatron(path: Path, dtype: str | None) -> Ids:
    if dtype is not None:
        raise SettingsError("the .idx of Megatron says the dtype of its ids; leave out dtype")
    return MegatronIds(path)


def _open_raw(path: Path, dtype: str | None) -> Ids:
    """Open a file of ids without a header, as nanoGPT's."""
    if dtype is None:
        raise SettingsError(
            "dtype is required for raw ids, which do not say it; nanoGPT's files are uint16"
        )
    return Ids(path, np.dtype(dtype).newbyteorder("<"))


# Name of a format -> a function of path and dtype (None: not given), which opens files of ids, and
# checks all but the ids; raises CorpusError, or SettingsError for the dtype.
FORMATS = {"megatron": _open_megatron, "raw": _open_raw}
