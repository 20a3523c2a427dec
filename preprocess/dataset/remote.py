"""Columns of a dataset at a URL, read through the cache of blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from bpe.files.locations import shown_url
from preprocess.dataset import columns as table
from preprocess.dataset.block_cache import BlockCache, BlockFile, Blocks
from preprocess.dataset.manifest import DataFile, Manifest, manifest_is_as_written
from preprocess.dataset.shards import ALL, Chosen, Copy, Ids, Positions, ShardView
from preprocess.storage.files import url_beside
from preprocess.storage.forked import open_anywhere
from preprocess.storage.remote import split_url

_READS_BETWEEN_LOOKS = 64  # whether all blocks of a column are there
_SECONDS_BETWEEN_NOTES = 1.0


class RemoteView(ShardView):
    """A read-only view of a column of a remote dataset; every index copies what it selects.

    Args:
        arrays: The values of each shard in the mapped file of the cache, zeros where a block is not
            there.
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
        self._raw = ShardView(arrays)
        # Nobody else sees the mapped arrays.
        self.arrays = (self,)
        if len(arrays) > 1:
            self.arrays = tuple(
                RemoteView([each], [first], cache)
                for each, first in zip(arrays, first_blocks, strict=True)
            )
        self._first_blocks, self._cache = np.array(first_blocks, np.int64), cache
        self._per_block = table.BLOCK_BYTES // self.dtype.itemsize
        n_blocks = sum(-(-len(each) // self._per_block) for each in arrays)
        self._blocks = range(first_blocks[0], first_blocks[0] + n_blocks)
        self._n_reads = 0
        self._complete_at = -1  # `n_removals` when all blocks were there
        self._noted = 0.0  # when their use was noted

    def read_if_complete(self, copy: Copy) -> bool:
        """Call a function as `read`, without looking for blocks, if all of the column are there.

        Returns:
            Whether what it copied is right.
        """
        cache = self._cache
        if cache.n_removals != self._complete_at:
            return False
        copy(ALL, self._raw)
        if cache.n_removals != self._complete_at:
            return False
        if (now := time.monotonic()) > self._noted + _SECONDS_BETWEEN_NOTES:
            self._noted = now
            cache.use(self._blocks)
        return True

    def read_if_present(self, starts: Positions, stops: Positions, copy: Copy) -> bool:
        """Call a function as `read`, once for all spans, if all blocks are in the cache.

        Returns:
            Whether what it copied is right: not if blocks were removed meanwhile.
        """
        if not len(starts):
            return super().read_if_present(starts, stops, copy)
        if self.read_if_complete(copy):
            return True
        blocks = _between(self._blocks_of(starts), self._blocks_of(stops - 1))
        self._n_reads += 1
        if self._n_reads % _READS_BETWEEN_LOOKS == 0:
            n_removals = self._cache.n_removals
            self._complete_at = n_removals if self._cache.has_all(self._blocks) else -1
        return self._cache.read_if_present(blocks, lambda: copy(ALL, self._raw))

    def read(self, starts: Positions, stops: Positions, copy: Copy) -> None:
        """Call a function that copies spans, as `ShardView.read`; blocks are fetched.

        Raises:
            CacheError: A span needs more blocks than half of the cache has, or the cache cannot be
                written.
            TokenFileError: A block does not have its digest, or its file does not exist.
            RemoteError: The server does not answer or refuses the request.
        """
        if not self.read_if_present(starts, stops, copy):
            self._read_in_groups(self._blocks_of(starts), self._blocks_of(stops - 1), copy)

    def _read_in_groups(self, firsts: Blocks, lasts: Blocks, copy: Copy) -> None:
        """Read spans, those with blocks in common together."""
        order = np.argsort(firsts, kind="stable")
        begin = 0
        needed: set[int] = set()
        for i, number in enumerate(order.tolist()):
            more = set(range(int(firsts[number]), int(lasts[number]) + 1))
            if needed and len(needed | more) > self._cache.most_at_once:
                self._read_group(needed, order[begin:i], copy)
                begin, needed = i, set()
            needed |= more
        self._read_group(needed, order[begin:], copy)

    def _read_group(self, blocks: set[int], chosen: Positions, copy: Copy) -> None:
        self._cache.read(np.array([*blocks]), lambda: copy(chosen, self._raw))

    def _blocks_of(self, positions: Positions) -> Blocks:
        """Return the numbers of the blocks of positions."""
        if len(self._first_blocks) == 1:
            found: Blocks = positions // self._per_block + self._first_blocks[0]
            return found
        of = np.searchsorted(self.starts, positions, "right") - 1
        found = (positions - self.starts[of]) // self._per_block + self._first_blocks[of]
        return found

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice | npt.NDArray[np.integer[Any]]) -> Ids: ...
    def __getitem__(self, key: int | slice | npt.NDArray[np.integer[Any]]) -> int | Ids:
        if not isinstance(key, np.ndarray):
            return super().__getitem__(key)
        places = self._places(key)
        found = np.empty(len(places), self.dtype)

        def copy(chosen: Chosen, raw: ShardView) -> None:
            found[chosen] = raw[places[chosen]]

        self.read(places, places + 1, copy)
        return found

    def _between(self, start: int, stop: int) -> Ids:
        found = np.empty(stop - start, self.dtype)
        for first, end in self._runs(start, stop):

            def copy(_: Chosen, raw: ShardView, first: int = first, end: int = end) -> None:
                found[first - start : end - start] = raw[first:end]

            self.read(np.array([first]), np.array([end]), copy)
        return found

    def _runs(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Divide a range of positions where blocks end, so that not too many are read at once."""
        number = int(np.searchsorted(self.starts, start, "right")) - 1
        while start < stop:
            base, end = self.starts[number : number + 2].tolist()
            block = (start - base) // self._per_block
            following = base + (block + self._cache.most_at_once) * self._per_block
            following = min(following, end, stop)
            if following > start:
                yield start, following
            start, number = following, number + (following == end)

    def windows(self, starts: Positions, length: int) -> Ids:
        """Copy windows of `length` ids, as `ShardView.windows`."""
        found: Ids | None = None

        def copy(chosen: Chosen, raw: ShardView) -> None:
            nonlocal found
            windows = raw.windows(starts[chosen], length)
            if chosen is ALL:
                found = windows
                return
            if found is None:
                found = np.empty((len(starts), length), self.dtype)
            found[chosen] = windows

        self.read(starts, starts + length, copy)
        assert found is not None
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("shards cannot become one array without a copy")
        return self[:].astype(dtype or self.dtype, copy=False)


def _between(firsts: Blocks, lasts: Blocks) -> Blocks:
    """Return all numbers from `firsts` to `lasts`; some are there twice."""
    n = lasts - firsts
    if n.max() <= 1:
        return np.concatenate((firsts, lasts))
    n += 1
    before = np.cumsum(n) - n
    found: Blocks = np.arange(n.sum()) + np.repeat(firsts - before, n)
    return found


def get_beside(url: str, name: str) -> bytes | None:
    """Return the content of a file beside a URL, None if there is none."""
    root, key = split_url(url_beside(url, name))
    return open_anywhere(root).get(key)


def read_manifest(url: str, stem: str) -> Manifest:
    """Read the manifest beside a URL of a dataset with the name `stem`.

    Raises:
        TokenFileError: It does not exist, or is damaged.
        RemoteError: The server does not answer or refuses the request.
    """
    name = table.manifest_name(stem)
    content, shown = get_beside(url, name), shown_url(url_beside(url, name))
    if content is None:
        raise table.TokenFileError(
            f"{shown}: there is no such file, and a dataset at a URL is read by its manifest; check"
            " the URL, or copy the manifest there with the other files"
        )
    try:
        manifest = Manifest.from_json(content.decode(), shown)
    except UnicodeDecodeError as error:
        raise table.TokenFileError(
            f"{shown}: not a manifest, for it is not UTF-8 ({error}); build the files again"
        ) from error
    if not manifest_is_as_written(content):
        raise table.TokenFileError(
            f"{shown}: does not have the digest at its end, so it was changed or damaged; copy it"
            " there again, or build the files again"
        )
    return manifest


def open_columns(
    url: str, manifest: Manifest, stem: str
) -> tuple[list[dict[str, RemoteView]], dict[str, RemoteView], BlockCache]:
    """Open the columns of a dataset; nothing is read yet.

    Args:
        url: URL of its `.bin` or manifest.
        manifest: Its content.
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
    cache = BlockCache(
        manifest.digest, shown_url(url_beside(url, table.manifest_name(stem))),
        [BlockFile(url_beside(url, x.name), x.n_bytes, x.digests) for x in ordered],
    )
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


def tokenizer_file(url: str, directory: Path, fingerprint: str) -> Path | None:
    """Return a copy of the tokenizer.json beside a dataset, None if there is none there.

    Args:
        url: Of the dataset.
        directory: Where the copy is kept.
        fingerprint: Of the tokenizer, if the copy is to be used.
    """
    from hashlib import sha256

    from bpe.files.atomic_write import write_atomically

    path = directory / "tokenizer.json"
    if not path.exists() or sha256(path.read_bytes()).hexdigest() != fingerprint:
        content = get_beside(url, "tokenizer.json")
        if content is None:
            return None
        write_atomically(path, content, durable=False)
    return path
