"""Files of Megatron-LM, which `preprocess.export.megatron` describes.

A document may have several sequences. Sequences must follow one another in NAME.bin, as Megatron
writes them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bpe.errors import CorpusError
from preprocess.dataset.columns import Values
from preprocess.export.megatron import DTYPES, HEADER, MAGIC, VERSION
from preprocess.imports.ids_file import IdsFile
from preprocess.settings import SettingsError
from preprocess.sources.text_file import TextFile, open_file

_AT_ONCE = 1 << 20  # entries that are checked at a time
_DOCUMENTS_AT_ONCE = 1 << 12  # whose ends are read at a time
_AGAIN = "copy it again, or make it again with Megatron's preprocess_data.py"


class Index:
    """A NAME.idx: the ends of documents.

    Raises:
        CorpusError: It is damaged, of another kind, or does not fit the ids.
    """

    def __init__(self, path: Path) -> None:
        self.file: TextFile = open_file(path)
        self.path = path
        header = bytes(self.file.read(0, min(HEADER.size, self.file.n_bytes)))
        if header[: len(MAGIC)] != MAGIC[: len(header)] or not header:
            raise self._error("does not begin with Megatron's MMIDIDX, so it is no .idx; check it")
        if len(header) < HEADER.size:
            raise self._error(
                f"has {len(header)} bytes, and the header of an .idx has {HEADER.size}; {_AGAIN}"
            )
        _, version, code, self.n_sequences, n_bounds = HEADER.unpack(header)
        if version != VERSION:
            raise self._error(
                f"is of version {version} of the format, expected {VERSION}; convert it with the"
                " Megatron that made it"
            )
        name = DTYPES.get(code, f"number {code}")
        if np.dtype(DTYPES.get(code, "float64")).kind not in "iu":
            raise self._error(f"says that ids are {name}, expected integers; {_AGAIN}")
        self.dtype = np.dtype(name).newbyteorder("<")
        self.n_documents = n_bounds - 1
        expected = HEADER.size + 12 * self.n_sequences + 8 * n_bounds
        if self.file.n_bytes == expected + self.n_sequences:
            raise self._error(
                "has a mode for each sequence, as of multimodal data, which a dataset cannot have;"
                " import text alone"
            )
        if self.file.n_bytes != expected:
            raise self._error(
                f"has {self.file.n_bytes:,} bytes, and {expected:,} are expected for"
                f" {self.n_sequences:,} sequences and {n_bounds:,} document bounds; {_AGAIN}"
            )
        self._pointers = HEADER.size + 4 * self.n_sequences
        self._bounds = self._pointers + 8 * self.n_sequences
        self.n_tokens = 0  # found by `_check`
        self._check()

    def _error(self, what: str) -> CorpusError:
        return CorpusError(f"{self.path}: {what}")

    def _read(self, at: int, dtype: str, start: int, stop: int) -> Values:
        size = np.dtype(dtype).itemsize
        return self.file.read(at + start * size, at + stop * size).view(dtype)

    def _check(self) -> None:
        """Check that sequences follow one another, and that documents are made of all of them."""
        for start in range(0, self.n_sequences, _AT_ONCE):
            stop = min(start + _AT_ONCE, self.n_sequences)
            lengths = self._read(HEADER.size, "<i4", start, stop).astype(np.int64)
            if (lengths < 0).any():
                place = start + int((lengths < 0).argmax())
                raise self._error(f"sequence {place:,} has a length below zero; {_AGAIN}")
            ends = self.n_tokens + np.cumsum(lengths)
            wanted = (ends - lengths) * self.dtype.itemsize
            wrong = np.flatnonzero(self._read(self._pointers, "<i8", start, stop) != wanted)
            if len(wrong):
                place = int(wrong[0])
                raise self._error(
                    f"sequence {start + place:,} should begin at byte {wanted[place]:,} of the"
                    f" .bin, after those before it; {_AGAIN}"
                )
            self.n_tokens = int(ends[-1])
        before = 0
        for start in range(0, self.n_documents + 1, _AT_ONCE):
            bounds = self._read(
                self._bounds, "<i8", start, min(start + _AT_ONCE, self.n_documents + 1)
            )
            # Compared, not subtracted: a difference of hostile bounds may overflow.
            falls = bounds < np.append(before, bounds[:-1])
            if falls.any() or (start == 0 and bounds[0] != 0):
                place = start + int(falls.argmax())
                raise self._error(f"document {place:,} begins before the one before it; {_AGAIN}")
            before = int(bounds[-1])
        if self.n_documents < 1 or before != self.n_sequences:
            raise self._error(
                f"{max(self.n_documents, 0):,} documents have {before:,} sequences, and there are"
                f" {self.n_sequences:,}; {_AGAIN}"
            )

    def _ends_of(self, first: int, stop: int) -> NDArray[np.int64]:
        """Return the ends of documents [first, stop) in tokens: int64[n]."""
        bounds = self._read(self._bounds, "<i8", first + 1, stop + 1)
        low, high = int(bounds[0]), min(int(bounds[-1]) + 1, self.n_sequences)
        starts = self._read(self._pointers, "<i8", low, high) // self.dtype.itemsize
        found: NDArray[np.int64] = np.append(starts, self.n_tokens)[bounds - low]
        return found

    def ends(self, first: int, start: int, stop: int, is_end: NDArray[np.bool_]) -> Values:
        """Return the ends of documents, as `Documents.ends`."""
        found = [np.zeros(0, np.int64)]
        while first < self.n_documents:
            part = self._ends_of(first, min(first + _DOCUMENTS_AT_ONCE, self.n_documents))
            n = int(np.searchsorted(part, stop, "right"))
            found.append(part[:n])
            first += n
            if n < len(part):
                break
        return np.concatenate(found)


class MegatronIds:
    """NAME.bin and NAME.idx, as `Ids`."""

    def __init__(self, ids: IdsFile, index: Index) -> None:
        self.ids, self.documents, self.beside = ids, index, (index.file,)


def open_ids(path: Path, dtype: str | None) -> MegatronIds:
    """Open the files with a common prefix, with or without its suffix."""
    if dtype is not None:
        raise SettingsError("the .idx of Megatron says the dtype of its ids; leave out dtype")
    prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    index = Index(prefix.with_name(f"{prefix.name}.idx"))
    ids = IdsFile(prefix.with_name(f"{prefix.name}.bin"), index.dtype)
    if ids.n_tokens != index.n_tokens:
        raise CorpusError(
            f"{ids.path}: has {ids.n_tokens:,} ids of {index.dtype.name}, and its .idx says"
            f" {index.n_tokens:,}; {_AGAIN}"
        )
    return MegatronIds(ids, index)
