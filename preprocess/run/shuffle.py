"""Order documents at random, in bounded memory.

Documents are sorted by random keys, which depend on a seed and the number of the document alone:
pieces of the text are sorted and written one after another, then merged by ranges of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import numpy as np
from numpy.typing import NDArray

from preprocess.documents.batch import Offsets
from preprocess.report.progress import Stage
from preprocess.split_mix import mix
from preprocess.storage import Storage

_PIECE_BYTES = 32 << 20  # of text sorted at a time
_PIECE_DOCUMENTS = 1 << 16  # sorted at a time
_MAX_PIECES = 4096  # of more than 128 GiB or 268 million documents, each is larger
_KEYED = np.dtype([("key", "<u8"), ("size", "<i8")])


def random_keys(seed: int, first: int, n: int) -> NDArray[np.uint64]:
    """Return the keys of documents `first` to `first + n`."""
    start = mix(np.array([seed % 2**64], np.uint64))
    numbers = np.arange(first, first + n, dtype=np.uint64)
    return mix(start + numbers)


def shuffle(
    storage: Storage, names: tuple[str, str], shuffled: tuple[str, str], n_bytes: int, seed: int,
    stage: Stage,
) -> None:
    """Write documents in random order.

    Args:
        storage: Has the files.
        names: Names of the files of the text and of the bounds, int64[n, 2], of the documents.
        shuffled: Names of the same files of the documents in random order.
        n_bytes: Size of all documents in bytes.
        seed: Seed of the order.
        stage: Is advanced by each byte twice.
    """
    n_documents = (storage.size(names[1]) or 0) // 16
    piece_bytes = max(_PIECE_BYTES, n_bytes // _MAX_PIECES)
    piece_documents = max(_PIECE_DOCUMENTS, n_documents // _MAX_PIECES)
    n_ranges = max(1, -(-n_bytes // piece_bytes), -(-n_documents // piece_documents))
    pieces, keyed = f"{shuffled[0]}-pieces", f"{shuffled[1]}-pieces"
    with ExitStack() as stack:
        text, rows = (stack.enter_context(closing(storage.stream(x))) for x in (pieces, keyed))
        found = []
        for piece, (keys, sizes) in _sorted_pieces(
            storage, names, piece_bytes, piece_documents, seed
        ):
            limits = np.searchsorted(_range_of(keys, n_ranges), np.arange(n_ranges + 1))
            places = np.append(0, np.cumsum(sizes))[limits]
            found.append(np.stack([places + text.n_bytes, limits + rows.n_bytes // 16], axis=1))
            text.append(memoryview(piece))
            keyed_sizes = np.zeros(len(keys), _KEYED)
            keyed_sizes["key"], keyed_sizes["size"] = keys, sizes
            rows.append(memoryview(keyed_sizes.tobytes()))
            stage.advance(len(piece))
    starts = np.stack(found)  # int64[n_pieces, n_ranges + 1, 2]
    with ExitStack() as stack:
        text, bounds = (stack.enter_context(closing(storage.stream(x))) for x in shuffled)
        for number in range(n_ranges):
            place = text.n_bytes
            content, sizes = _merge(storage, pieces, keyed, starts[:, number : number + 2])
            ends = place + np.cumsum(sizes)
            text.append(memoryview(content))
            of_range = np.stack([ends - sizes, ends], axis=1).astype("<i8")
            bounds.append(memoryview(of_range.tobytes()))
            stage.advance(len(content))
        text.sync()
        bounds.sync()
    storage.remove(pieces)
    storage.remove(keyed)


def _range_of(keys: NDArray[np.uint64], n_ranges: int) -> NDArray[np.uint64]:
    """Return the number of the range of each key; all ranges are of one size."""
    return (keys >> np.uint64(32)) * np.uint64(n_ranges) >> np.uint64(32)


def _sorted_pieces(
    storage: Storage, names: tuple[str, str], piece_bytes: int, piece_documents: int, seed: int
) -> Iterator[tuple[bytes, tuple[NDArray[np.uint64], Offsets]]]:
    """Yield (text, (keys, sizes)) of pieces of the documents, each sorted by its keys."""
    text = np.memmap(storage.path(names[0]), np.uint8, "r")
    all_bounds = np.memmap(storage.path(names[1]), "<i8", "r").reshape(-1, 2)
    first = 0
    while first < len(all_bounds):
        bounds = np.array(all_bounds[first : first + piece_documents])
        ends = np.cumsum(bounds[:, 1] - bounds[:, 0])
        n = max(int(np.searchsorted(ends, piece_bytes, side="right")), 1)
        keys = random_keys(seed, first, n)
        order = np.argsort(keys, kind="stable")
        bounds = bounds[order]
        yield (
            b"".join(text[start:end].data for start, end in bounds.tolist()),
            (keys[order], bounds[:, 1] - bounds[:, 0]),
        )
        first += n


def _merge(
    storage: Storage, pieces: str, keyed: str, starts: NDArray[np.int64]
) -> tuple[bytes, Offsets]:
    """Return (text, sizes) of the documents of one range of keys, sorted by key.

    `starts` is int64[n_pieces, 2, 2]: where this range and the next begin in each file.
    """
    texts, rows = [], []
    for (place, row), (end, end_row) in starts.tolist():
        texts.append(storage.read(pieces, place, end))
        rows.append(np.frombuffer(storage.read(keyed, row * 16, end_row * 16), _KEYED))
    text, of = memoryview(b"".join(texts)), np.concatenate(rows)
    ends = np.cumsum(of["size"])
    order = np.argsort(of["key"], kind="stable")
    bounds = np.stack([ends - of["size"], ends], axis=1)[order].tolist()
    return b"".join(text[start:end] for start, end in bounds), of["size"][order]
