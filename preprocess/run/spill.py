"""Counts of pre-tokens that do not fit into memory: runs in files, merged part by part.

The counts are those of one table. A run is written when tables are full, divided into parts by a
hash of each pre-token, so equal pre-tokens are in the same part of every run; merging takes one
part of all runs at a time, and needs the memory of that.

    a run    for each part: int64[n] sizes, int64[n] counts, uint8[n_bytes] pre-tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from msgspec import Struct
from numpy.typing import NDArray

from preprocess.run.journal import JournalError
from preprocess.storage import Storage

if TYPE_CHECKING:
    from bpe.training.counts import Arrays, FrozenCounts, PretokenCounts

N_PARTS = 32


class Run(Struct, frozen=True):
    """Record of a run in the journal; of each part, pre-tokens, their bytes and its xxh3_128."""

    file: str
    parts: tuple[tuple[int, int, str], ...]


def write_run(storage: Storage, file: str, of_workers: Sequence[PretokenCounts]) -> Run:
    """Write the counts of all workers, concatenated in each part; raise OutputError on failure."""
    by_worker = [_by_part(*counts.arrays()) for counts in of_workers]
    stream = storage.stream(file)
    parts = []
    try:
        for pieces in zip(*by_worker, strict=True):
            content = written(pieces)
            stream.append(memoryview(content))
            n_words = sum(len(counts) for _, _, counts in pieces)
            n_bytes = len(content) - 16 * n_words
            parts.append((n_words, n_bytes, xxhash.xxh3_128_hexdigest(content)))
        stream.sync()
    finally:
        stream.close()
    return Run(file, tuple(parts))


def written(pieces: Sequence[Arrays]) -> bytes:
    """Return pre-tokens as they are in a file: sizes, counts, bytes."""
    buffers, offsets, counts = zip(*pieces, strict=True)
    numbers = [*map(np.diff, offsets), *counts]
    return b"".join([each.astype("<i8").tobytes() for each in numbers] + [*map(bytes, buffers)])


def counts_in(
    content: bytes | None, n_words: int, digest: str, file: str, like: tuple[str, Sequence[str]]
) -> FrozenCounts:
    """Decode the output of `written`; raise JournalError if it is damaged.

    `digest` is the xxh3_128 of that, and `like` are the split pattern and the special tokens.
    """
    from bpe.training.counts import FrozenCounts

    if content is None or xxhash.xxh3_128_hexdigest(content) != digest:
        raise JournalError(
            f"{file}: the counts that were written there are damaged or gone; start over"
            " (--overwrite)"
        )
    try:
        sizes = np.frombuffer(content, "<i8", n_words)
        counts = np.frombuffer(content, "<i8", n_words, 8 * n_words).astype(np.int64)
        buffer = np.frombuffer(content, np.uint8, offset=16 * n_words)
        return FrozenCounts(*like, buffer, _offsets(sizes), counts)
    except ValueError as error:
        raise JournalError(f"{file}: {error}; start over (--overwrite)") from error


def _offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n + 1], the running sums of int64[n]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _by_part(
    buffer: NDArray[np.uint8], offsets: NDArray[np.int64], counts: NDArray[np.int64]
) -> list[Arrays]:
    """Divide pre-tokens by their length and their first, middle and last byte."""
    starts, sizes = offsets[:-1], np.diff(offsets)
    part = sizes.astype(np.uint8) * np.uint8(131)
    for places, factor in ((starts, 31), (starts + sizes // 2, 17), (starts + sizes - 1, 7)):
        part += buffer[places] * np.uint8(factor)
    part %= N_PARTS
    found = []
    for number in range(N_PARTS):
        chosen = np.flatnonzero(part == number)
        places = _offsets(sizes[chosen])
        bytes_of = np.repeat(starts[chosen] - places[:-1], sizes[chosen])
        bytes_of += np.arange(len(bytes_of))
        found.append((buffer[bytes_of], places, counts[chosen]))
    return found


def merged(storage: Storage, runs: Sequence[Run], like: tuple[str, Sequence[str]]) -> FrozenCounts:
    """Merge the counts of all runs; raise JournalError if one is damaged. See `counts_in`."""
    from bpe.training.counts import FrozenCounts, PretokenCounts

    start = {run.file: 0 for run in runs}
    parts = []
    for number in range(N_PARTS):
        table = PretokenCounts(*like)
        for run in runs:
            n_words, n_bytes, digest = run.parts[number]
            place = start[run.file]
            start[run.file] += 16 * n_words + n_bytes
            content = storage.read(run.file, place, start[run.file])
            table.merge(counts_in(content, n_words, digest, run.file, like))
        parts.append(table.arrays())
    buffers, offsets, counts = zip(*parts, strict=True)
    sizes = np.concatenate([np.diff(each) for each in offsets])
    return FrozenCounts(*like, np.concatenate(buffers), _offsets(sizes), np.concatenate(counts))
