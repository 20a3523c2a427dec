"""Columns of a dataset at a URL, read through the cache of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from preprocess.dataset import columns as table
from preprocess.dataset.block_cache import BlockCache, Blocks
from preprocess.dataset.manifest import DataFile, Manifest
from preprocess.dataset.shards import FindSpans, Ids, Positions, ShardView
from preprocess.storage.files import UrlFiles

_MOST_AT_ONCE = 32  # blocks of a slice


class RemoteView(ShardView):
    """A read-only view of a column of a remote dataset; every index copies what it selects.

    Args:
        arrays: The values of each shard among the mapped blocks, zeros where a block is not there.
        first_blocks: int64[n_arrays], the number of the first block of each; those of one array
            follow those of the array before.
        cache: Has the blocks.

    Attributes:
        arrays: A view of each shard.
    """

    def __init__(
        self, arrays: Sequence[Ids], first_blocks: Sequence[int], cache: BlockCache
    ) -> None:
        super().__init__(arrays)
        self._mapped = ShardView(arrays)  # nobody else sees it without the lock
        self.arrays = (self,)
        if len(arrays) > 1:
            self.arrays = tuple(
                RemoteView([each], [first], cache)
                for each, first in zip(arrays, first_blocks, strict=True)
            )
        self._first_blocks, self._cache = np.array(first_blocks, np.int64), cache
        self._per_block = table.BLOCK_BYTES // self.dtype.itemsize
        n_blocks = sum(-(-len(each) // self._per_block) for each in arrays)
        self._blocks = slice(first_blocks[0], first_blocks[0] + n_blocks)

    @contextmanager
    def at(self, find_spans: FindSpans) -> Iterator[ShardView]:
        """As `ShardView.at`; blocks are fetched.

        Raises:
            CacheError: The cache cannot be written.
            TokenFileError: A block does not have its digest, or its file does not exist.
            RemoteError: The server does not answer or refuses the request.
        """
        cache = self._cache
        with cache.lock:
            cache.look()
            if cache.is_there[self._blocks].all():
                cache.is_used[self._blocks] = True
            else:
                starts, stops = find_spans()
                if len(starts):
                    cache.need(_between(self._blocks_of(starts), self._blocks_of(stops - 1)))
            yield self._mapped

    def _blocks_of(self, positions: Positions) -> Blocks:
        """Return the numbers of the blocks of positions."""
        of = np.searchsorted(self.starts, positions, "right") - 1
        found: Blocks = (positions - self.starts[of]) // self._per_block + self._first_blocks[of]
        return found

    def _between(self, start: int, stop: int) -> Ids:
        found = np.empty(stop - start, self.dtype)
        step = _MOST_AT_ONCE * self._per_block
        for first in range(start, stop, step):
            end = min(first + step, stop)
            self._copy(first, end, found[first - start : end - start])
        return found

    def _copy(self, start: int, stop: int, out: Ids) -> None:
        with self.at(lambda: (np.array([start]), np.array([stop]))) as here:
            out[:] = here[start:stop]


def _between(firsts: Blocks, lasts: Blocks) -> Blocks:
    """Return all numbers from `firsts` to `lasts`; some are there twice."""
    n = lasts - firsts
    if n.max() <= 1:
        return np.concatenate((firsts, lasts))
    n += 1
    before = np.cumsum(n) - n
    found: Blocks = np.arange(n.sum()) + np.repeat(firsts - before, n)
    return found


def open_columns(
    source: UrlFiles, manifest: Manifest, stem: str
) -> tuple[list[dict[str, RemoteView]], dict[str, RemoteView], BlockCache]:
    """Open the columns of a dataset; nothing is read yet.

    Args:
        source: Its files.
        manifest: Its manifest.
        stem: NAME of the dataset.

    Returns:
        For each shard: name of a column -> its values there; name of a column -> all of its values,
        positions in shards as they are stored; and the cache.
    """
    files = manifest.files(stem)
    # All shards of a column one after another, so that values that cross shards are in blocks one
    # after another.
    by_column = {
        column.name: [each for each in files if each.column.name == column.name]
        for column in manifest.columns
    }
    ordered = [each for of_column in by_column.values() for each in of_column]
    where = source.where(table.manifest_name(stem))
    cache = BlockCache(manifest.digest, where, source, ordered)
    first_of = dict(zip((each.name for each in ordered), cache.first_blocks, strict=False))

    def mapped(each: DataFile) -> Ids:
        start = first_of[each.name] * table.BLOCK_BYTES
        return cache.mapped.view(each.dtype, each.count, start if each.count else 0)

    columns = {
        name: RemoteView(list(map(mapped, of)), [first_of[x.name] for x in of], cache)
        for name, of in by_column.items()
    }
    parts = [
        {name: view.arrays[number] for name, view in columns.items()}
        for number in range(len(manifest.parts))
    ]
    return parts, columns, cache


def tokenizer_file(source: UrlFiles, directory: Path, fingerprint: str) -> Path | None:
    """Return a copy of the tokenizer.json of a dataset, None if there is none.

    Args:
        source: Files of the dataset.
        directory: Where the copy is kept.
        fingerprint: Of the tokenizer, if the copy is to be used.
    """
    from hashlib import sha256

    from bpe.files.atomic_write import write_atomically

    path = directory / "tokenizer.json"
    if not path.exists() or sha256(path.read_bytes()).hexdigest() != fingerprint:
        content = source.get("tokenizer.json")
        if content is None:
            return None
        write_atomically(path, content, durable=False)
    return path
