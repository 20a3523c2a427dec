"""Choose documents: leave out copies, and what is outside of a slice.

The documents are in work files: their text, and a `ROW` of each. In memory are a bit of each
document, and the digests of as many as the memory allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.text.bit_set import bits_between, set_bits
from bpe.text.spans import iter_ranges
from preprocess.documents.batch import DocumentBatch
from preprocess.documents.filters import count_characters
from preprocess.settings.schema import SelectSettings
from preprocess.storage import Storage

# Size in bytes, length in characters, and blake2b of a document: nobody can make two documents with
# the same one. Zeros if documents are not compared.
ROW = np.dtype([("size", "<i8"), ("characters", "<i8"), ("digest", "<u8", 2)])
Rows = NDArray[np.void]

_BLOCK = 1 << 18  # rows at a time
_COMPARED_BYTES = 80  # of memory per document compared at a time


def measure(batch: DocumentBatch, compares: bool) -> Rows:
    """Return the row of each document of a batch: `ROW`[n_documents]."""
    rows = np.zeros(len(batch), ROW)
    rows["size"] = batch.sizes
    rows["characters"] = count_characters(batch.buffer, batch.bounds)
    if compares and len(batch):
        texts = (batch.buffer[start:end].data for start, end in iter_ranges(batch.bounds))
        digests = b"".join(blake2b(text, digest_size=16).digest() for text in texts)
        rows["digest"] = np.frombuffer(digests, "<u8").reshape(-1, 2)
    return rows


def open_rows(path: Path) -> Rows:
    """Map a file of rows."""
    is_empty = not path.stat().st_size  # cannot be mapped
    return np.zeros(0, ROW) if is_empty else np.memmap(path, ROW, "r")


def find_copies(rows: Sequence[Rows], n_bytes: float) -> NDArray[np.uint64]:
    """Find the documents that are equal to an earlier one.

    Args:
        rows: Rows of consecutive documents.
        n_bytes: Memory to use: documents are compared in parts, by their digests.

    Returns:
        A bit set of their numbers, see `bpe.text.bit_set`.
    """
    n = sum(map(len, rows))
    copies = np.zeros(-(-n // 64), np.uint64)
    n_parts = max(1, int(-(-n * _COMPARED_BYTES // max(n_bytes, 1 << 20))))
    for part in range(n_parts):
        seen, place = _Seen(copies), 0
        for of in rows:
            for start in range(0, len(of), _BLOCK):
                block = of["digest"][start : start + _BLOCK]
                inside = np.flatnonzero(block[:, 0] % np.uint64(n_parts) == part)
                seen.add(inside + (place + start), block[inside])
            place += len(of)
        seen.merge()
    return copies


class _Seen:
    """Digests seen so far, each once, and later ones that are not compared with them yet.

    Args:
        copies: Gets the bits of copies.
    """

    def __init__(self, copies: NDArray[np.uint64]) -> None:
        self._copies = copies
        self._digests = np.zeros((0, 2), np.uint64)
        self._added: list[tuple[NDArray[np.int64], NDArray[np.uint64]]] = []
        self._n_added = 0

    def add(self, numbers: NDArray[np.int64], digests: NDArray[np.uint64]) -> None:
        """Add the next documents: their numbers and digests."""
        self._added.append((numbers, digests))
        self._n_added += len(numbers)
        # Sorting as many as are sorted already takes amortized constant time for each.
        if self._n_added > max(_BLOCK, len(self._digests)):
            self.merge()

    def merge(self) -> None:
        """Find the copies among the added documents."""
        n = len(self._digests)
        numbers = np.concatenate([np.full(n, -1), *(each[0] for each in self._added)])
        digests = np.concatenate([self._digests, *(each[1] for each in self._added)])
        self._added, self._n_added = [], 0
        order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: seen ones come first
        digests, numbers = digests[order], numbers[order]
        is_copy = np.zeros(len(digests), np.bool_)
        is_copy[1:] = (digests[1:] == digests[:-1]).all(axis=1)
        set_bits(self._copies, numbers[is_copy])
        self._digests = digests[~is_copy]


class Slice:
    """The slice of documents that `start_character`, `max_characters`, `max_documents` describe.

    Attributes:
        is_complete: True if no later document can be in the slice.
    """

    def __init__(self, settings: SelectSettings) -> None:
        self.start, most = settings.start_character, settings.max_characters
        self.stop = float("inf") if most is None else self.start + most
        self._cuts, self._most = settings.cut_documents, settings.max_documents
        self._n_characters = self._n_chosen = 0
        self.is_complete = False

    def take(self, characters: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return (which of the next documents are in the slice, the character each begins at)."""
        ends = self._n_characters + np.cumsum(characters)
        begins = ends - characters
        chosen = (ends > self.start if self._cuts else begins >= self.start) & (begins < self.stop)
        if self._most is not None:
            chosen &= self._n_chosen + np.cumsum(chosen) <= self._most
        self._n_chosen += int(chosen.sum())
        self._n_characters = int(ends[-1]) if len(ends) else self._n_characters
        self.is_complete = self._n_characters >= self.stop or self._n_chosen == self._most
        return chosen, begins


class Choice(NamedTuple):
    """Result of `choose`: numbers of documents, and bytes of the chosen ones.

    `end` is the number of documents up to the last one that decides: what follows is ignored.
    """

    n_chosen: int
    n_bytes: int
    n_copies: int
    n_outside: int
    end: int
    is_complete: bool


def choose(
    rows: Rows, copies: NDArray[np.uint64], first: int, settings: SelectSettings,
    storage: Storage | None = None, text: str = "", bounds: str = "",
) -> Choice:
    """Choose documents, and write their bounds.

    Args:
        rows: Rows of the documents.
        copies: Documents to leave out; a bit set in which they are numbered from `first` on.
        first: See `copies`.
        settings: The slice.
        storage: Has the file `text` of the documents; the file `bounds` is written. None: nothing
            is written.
        text: See `storage`.
        bounds: See `storage`.
    """
    cut, place, n_chosen, n_bytes, end = Slice(settings), 0, 0, 0, 0
    stream = None if storage is None else storage.stream(bounds)
    try:
        for row in range(0, len(rows), _BLOCK):
            block = rows[row : row + _BLOCK]
            kept = np.ones(len(block), np.bool_)
            kept[_numbers(copies, first + row, len(block))] = False
            chosen = np.zeros(len(block), np.bool_)
            chosen[kept], begins = cut.take(block["characters"][kept])
            numbers = np.flatnonzero(chosen)
            ends = place + np.cumsum(block["size"])
            found = np.stack([ends - block["size"], ends], axis=1)[numbers].astype("<i8")
            if storage is not None and settings.cut_documents and len(numbers):
                lengths = block["characters"][numbers]
                _cut_ends(found, begins[chosen[kept]], lengths, cut, storage.path(text))
            if stream is not None:
                stream.append(memoryview(found.tobytes()))
            n_bytes += int((found[:, 1] - found[:, 0]).sum())
            n_chosen += len(numbers)
            end = row + int(numbers[-1]) + 1 if len(numbers) else end
            place = int(ends[-1])
            if cut.is_complete:
                break
        if stream is not None:
            stream.sync()
    finally:
        if stream is not None:
            stream.close()
    if not cut.is_complete:
        end = len(rows)
    blocks = (range(row, min(row + _BLOCK, end)) for row in range(0, end, _BLOCK))
    n_copies = sum(len(_numbers(copies, first + each.start, len(each))) for each in blocks)
    return Choice(n_chosen, n_bytes, n_copies, end - n_copies - n_chosen, end, cut.is_complete)


def _numbers(copies: NDArray[np.uint64], first: int, n: int) -> NDArray[np.int64]:
    """Return which of the documents `first` to `first + n` are in a bit set, from 0 on."""
    return bits_between(copies, first, first + n) - first


def _cut_ends(
    bounds: NDArray[np.int64], begins: NDArray[np.int64], lengths: NDArray[np.int64], cut: Slice,
    path: Path,
) -> None:
    """Move the bounds of the documents in which the slice begins and ends, in place."""
    text = np.memmap(path, np.uint8, "r")
    for number in {0, len(bounds) - 1}:
        begin, length = int(begins[number]), int(lengths[number])
        first, stop = max(cut.start - begin, 0), int(min(cut.stop - begin, length))
        if first > 0 or stop < length:
            start, end = bounds[number].tolist()
            document = text[start:end].tobytes().decode()
            bounds[number] = [start + len(document[:n].encode()) for n in (first, stop)]
