"""Count pre-tokens in bounded memory: spill tables to files, and merge these part by part.

The merged counts equal those of one table in memory. When tables are full, they are written to a
spill file, partitioned by a hash of the pre-token: equal pre-tokens are in the same part of every
file. Merging holds one part of all files in memory at a time.

    a part    int64[n] sizes, int64[n] counts, uint8[n_bytes] pre-tokens
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
    from bpe.train.counts import Arrays, FrozenCounts, PretokenCounts

N_PARTS = 32


class SpillFile(Struct, frozen=True):
    """Entry of a spill file in the journal; parts are (n_pretokens, their bytes, xxh3_128)."""

    file: str
    parts: tuple[tuple[int, int, str], ...]


def write_spill(storage: Storage, file: str, of_workers: Sequence[PretokenCounts]) -> SpillFile:
    """Write the counts of all workers to one file."""
    by_worker = [_by_part(*counts.arrays()) for counts in of_workers]
    stream = storage.stream(file)
    parts = []
    try:
        for pieces in zip(*by_worker, strict=True):
            content = encode_counts(pieces)
            stream.append(memoryview(content))
            n_pretokens = sum(len(counts) for _, _, counts in pieces)
            n_bytes = len(content) - 16 * n_pretokens
            parts.append((n_pretokens, n_bytes, xxhash.xxh3_128_hexdigest(content)))
        stream.sync()
    finally:
        stream.close()
    return SpillFile(file, tuple(parts))


def encode_counts(pieces: Sequence[Arrays]) -> bytes:
    """Encode counts for a file: sizes, counts, bytes; see the module."""
    buffers, offsets, counts = zip(*pieces, strict=True)
    numbers = [*map(np.diff, offsets), *counts]
    return b"".join([each.astype("<i8").tobytes() for each in numbers] + [*map(bytes, buffers)])


def decode_counts(
    content: bytes | None, n_pretokens: int, digest: str, file: str, like: tuple[str, Sequence[str]]
) -> FrozenCounts:
    """Decode the output of `encode_counts`, whose xxh3_128 is `digest`.

    `like` is (split pattern, special tokens), as of `PretokenCounts`.

    Raises:
        JournalError: The content is damaged, or None.
    """
    from bpe.train.counts import FrozenCounts

    if content is None or xxhash.xxh3_128_hexdigest(content) != digest:
        raise JournalError(f"{file}: saved counts are damaged or missing; start over (--overwrite)")
    try:
        sizes = np.frombuffer(content, "<i8", n_pretokens)
        counts = np.frombuffer(content, "<i8", n_pretokens, 8 * n_pretokens).astype(np.int64)
        buffer = np.frombuffer(content, np.uint8, offset=16 * n_pretokens)
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


def merge_spills(
    storage: Storage, spills: Sequence[SpillFile], like: tuple[str, Sequence[str]]
) -> FrozenCounts:
    """Merge the counts of all spill files; `like` and errors as in `decode_counts`."""
    from bpe.train.counts import FrozenCounts, PretokenCounts

    start = {spilled.file: 0 for spilled in spills}
    parts = []
    for number in range(N_PARTS):
        table = PretokenCounts(*like)
        for spilled in spills:
            n_pretokens, n_bytes, digest = spilled.parts[number]
            place = start[spilled.file]
            start[spilled.file] += 16 * n_pretokens + n_bytes
            content = storage.read(spilled.file, place, start[spilled.file])
            table.merge(decode_counts(content, n_pretokens, digest, spilled.file, like))
        parts.append(table.arrays())
    buffers, offsets, counts = zip(*parts, strict=True)
    sizes = np.concatenate([np.diff(each) for each in offsets])
    return FrozenCounts(*like, np.concatenate(buffers), _offsets(sizes), np.concatenate(counts))
