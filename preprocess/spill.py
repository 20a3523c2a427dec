"""Counts of pre-tokens that do not fit into memory: runs in files, merged part by part.

Law: the counts are those that one table would hold. A run is written when tables are full, sorted
into parts by a few bytes of each pre-token, so equal pre-tokens are in the same part of every run;
merging takes one part of all runs at a time, and needs the memory of that.

    a run    for each part: int64[n] sizes, int64[n] counts, uint8[n_bytes] pre-tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from numpy.typing import NDArray

from preprocess.journal import JournalError
from preprocess.storage import Storage

if TYPE_CHECKING:
    from bpe.count import FrozenCounts, PretokenCounts

N_PARTS = 32
Words = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True)
class Run:
    """What the journal says of a run.

    Attributes:
        file: Its name.
        parts: Of each part: pre-tokens, their bytes, the xxh3_128 of what is written.
    """

    file: str
    parts: tuple[tuple[int, int, str], ...]


def write_run(storage: Storage, file: str, of_workers: Sequence[PretokenCounts]) -> Run:
    """Write the counts of all workers, one behind the other in each part; empties `of_workers`.

    Raises:
        OutputError: That failed.
    """
    sorted_into = [_by_part(*counts.arrays()) for counts in of_workers]
    stream = storage.stream(file)
    parts = []
    try:
        for number in range(N_PARTS):
            pieces = [each[number] for each in sorted_into]
            content = written(pieces)
            stream.append(memoryview(content))
            n_bytes = sum(len(buffer) for buffer, _, _ in pieces)
            n_words = sum(len(counts) for _, _, counts in pieces)
            parts.append((n_words, n_bytes, xxhash.xxh3_128_hexdigest(content)))
        stream.sync()
    finally:
        stream.close()
    return Run(file, tuple(parts))


def written(pieces: Sequence[Words]) -> bytes:
    """Pre-tokens as they stand in a file: sizes, counts, bytes."""
    return b"".join(
        [
            *(np.diff(offsets).astype("<i8").tobytes() for _, offsets, _ in pieces),
            *(counts.astype("<i8").tobytes() for _, _, counts in pieces),
            *(buffer.tobytes() for buffer, _, _ in pieces),
        ]
    )


def counts_in(
    content: bytes | None, n_words: int, digest: str, file: str, like: tuple[str, Sequence[str]]
) -> FrozenCounts:
    """Read what `written` gave; a pre-token may be there several times.

    Args:
        content: What the file has; None: there is none.
        n_words: How many pre-tokens were written.
        digest: The xxh3_128 of what was written.
        file: For messages.
        like: The split pattern and the special tokens.

    Raises:
        JournalError: The content is not what was written.
    """
    from bpe.count import CountsFileError, FrozenCounts

    if content is None or xxhash.xxh3_128_hexdigest(content) != digest:
        raise JournalError(
            f"{file}: the counts that were written there are damaged or gone; start anew"
            " (--overwrite)"
        )
    try:
        head = 8 * n_words
        offsets = np.zeros(n_words + 1, np.int64)
        np.cumsum(np.frombuffer(content[:head], "<i8"), out=offsets[1:])
        counts = np.frombuffer(content[head : 2 * head], "<i8").astype(np.int64)
        return FrozenCounts(
            *like, np.frombuffer(content, np.uint8, offset=2 * head), offsets, counts
        )
    except (CountsFileError, ValueError) as error:
        raise JournalError(f"{file}: {error}; start anew (--overwrite)") from error


def _by_part(
    buffer: NDArray[np.uint8], offsets: NDArray[np.int64], counts: NDArray[np.int64]
) -> list[Words]:
    """Pre-tokens, each in the part that its length and its first, middle and last byte choose."""
    starts, sizes = offsets[:-1], np.diff(offsets)
    part = sizes.astype(np.uint8) * np.uint8(131)
    for places, factor in ((starts, 31), (starts + sizes // 2, 17), (starts + sizes - 1, 7)):
        part += buffer[places] * np.uint8(factor)
    part %= N_PARTS
    found = []
    for number in range(N_PARTS):
        chosen = np.flatnonzero(part == number)
        places = np.zeros(len(chosen) + 1, np.int64)
        np.cumsum(sizes[chosen], out=places[1:])
        bytes_of = np.repeat(starts[chosen] - places[:-1], sizes[chosen])
        bytes_of += np.arange(len(bytes_of))
        found.append((buffer[bytes_of], places, counts[chosen]))
    return found


def merged(storage: Storage, runs: Sequence[Run], like: tuple[str, Sequence[str]]) -> FrozenCounts:
    """Merge the counts of all runs.

    Args:
        storage: Where they lie.
        runs: What the journal says of them.
        like: The split pattern and the special tokens.

    Raises:
        JournalError: A run is not what was written.
    """
    from bpe.count import FrozenCounts, PretokenCounts

    start = dict.fromkeys((run.file for run in runs), 0)
    buffers, sizes, counts = [], [], []
    for number in range(N_PARTS):
        table = PretokenCounts(*like)
        for run in runs:
            n_words, n_bytes, digest = run.parts[number]
            place = start[run.file]
            start[run.file] += 16 * n_words + n_bytes
            content = storage.read(run.file, place, start[run.file])
            table.merge(counts_in(content, n_words, digest, run.file, like))
        buffer, offsets, of_words = table.arrays()
        buffers.append(buffer)
        sizes.append(np.diff(offsets))
        counts.append(of_words)
    places = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(sizes))])
    return FrozenCounts(*like, np.concatenate(buffers), places, np.concatenate(counts))
