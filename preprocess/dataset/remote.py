"""Columns of a dataset at a URL, read through a cache of blocks on a local disk.

The cache is shared by all processes, and kept within a limit:

    MANIFEST_DIGEST/content/BLOCK_DIGEST    one block; its time is that of its last use
    locks/XX    who downloads a block holds one, so that others wait for it
    lock        who adds a block, and removes old ones, holds it

A block is compared with its digest before it gets this name, and once by each process that maps it,
for a power cut may have damaged it. A process maps the blocks that it needs into one range of
addresses, so that columns are arrays. A file that another process removes stays mapped, and keeps
its space, until the process looks whether its blocks are still there.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from bpe.errors import ChangedError, TokenmillError
from bpe.files.atomic_write import write_all, write_atomically
from bpe.parallel import Lock, for_each
from preprocess.dataset import columns as table
from preprocess.dataset.file_map import FileMap
from preprocess.dataset.manifest import DataFile, Manifest
from preprocess.dataset.shards import FindSpans, Ids, Positions, ShardView, distinct
from preprocess.settings import size_in_bytes
from preprocess.storage.files import UrlFiles

DIRECTORY_VARIABLE, SIZE_VARIABLE = "TOKENMILL_CACHE_DIR", "TOKENMILL_CACHE_SIZE"
_DEFAULT_SIZE = "10GB"
_LEAST_BLOCKS = 4
_BLOCKS = "content"  # directory
_DOWNLOADS = 16  # at the same time
_SECONDS_BETWEEN_LOOKS = 10.0
_MOST_MAPPED = 24_576  # blocks, 96 GiB; Linux gives a process 65,530 maps
_PROCESSES = 32  # that may add blocks without looking how many bytes others have added
_MOST_AT_ONCE = 32  # blocks of a slice

Blocks = npt.NDArray[np.int64]


class CacheError(TokenmillError, OSError):
    """The cache of blocks cannot be used."""


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
        self._complete_at = -1  # `n_removals` when all blocks were there

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
            if self._complete_at != cache.n_removals and cache.is_there[self._blocks].all():
                self._complete_at = cache.n_removals
            if self._complete_at == cache.n_removals:
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
            self._copy(first, min(first + step, stop), found[first - start :])
        return found

    def _copy(self, start: int, stop: int, out: Ids) -> None:
        with self.at(lambda: (np.array([start]), np.array([stop]))) as here:
            out[: stop - start] = here[start:stop]


def _between(firsts: Blocks, lasts: Blocks) -> Blocks:
    """Return all numbers from `firsts` to `lasts`; some are there twice."""
    n = lasts - firsts + 1
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
    cache = BlockCache(source, manifest, stem)
    columns = {column.name: cache.view(column.name) for column in manifest.columns}
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
    path = directory / "tokenizer.json"
    if not path.exists() or sha256(path.read_bytes()).hexdigest() != fingerprint:
        content = source.get("tokenizer.json")
        if content is None:
            return None
        write_atomically(path, content, durable=False)
    return path


class _Block(NamedTuple):
    """One block: bytes [start, stop) of a file."""

    file: DataFile
    number: int
    start: int
    stop: int
    path: Path  # in the cache; its name is the digest


class BlockCache:
    """The blocks of one dataset, as one range of bytes; every file begins with a block.

    Arguments are as of `open_columns`.

    Attributes:
        directory: Directory of the dataset in the cache.
        mapped: Memory map of all blocks, zeros where no block is mapped.
        is_there: bool[n_blocks], True for mapped blocks; modified only while `lock` is held.
        is_used: bool[n_blocks], True for blocks read since the times of their files were set.
        n_removals: How often blocks ceased to be mapped; modified only while `lock` is held, too.
        lock: Held while mapped blocks are read.

    Raises:
        CacheError: The cache cannot be used.
    """

    def __init__(self, source: UrlFiles, manifest: Manifest, stem: str) -> None:
        self._source, self._manifest_url = source, source.where(table.manifest_name(stem))
        # All shards of a column one after another, so that values that cross shards are in blocks
        # one after another.
        names = [column.name for column in manifest.columns]
        self._files = sorted(manifest.files(stem), key=lambda x: names.index(x.column.name))
        self._first_blocks = np.cumsum([0, *(len(each.digests) for each in self._files)])
        self._root, self._capacity = _directory(), _capacity()
        self._room = 0  # bytes that may be added before the size of the cache is looked up
        self.directory = self._root / manifest.digest
        n_blocks = int(self._first_blocks[-1])
        with self._writing():
            self.directory.mkdir(0o700, parents=True, exist_ok=True)
            self.mapped = FileMap(-1, n_blocks * table.BLOCK_BYTES)
        self.is_there, self.is_used = np.zeros(n_blocks, bool), np.zeros(n_blocks, bool)
        self.n_removals = 0
        self.lock = Lock()
        self._looked = time.monotonic()

    def view(self, column: str) -> RemoteView:
        """Return the values of all files of a column."""
        arrays, firsts = [], []
        for file, first in zip(self._files, self._first_blocks.tolist(), strict=False):
            if file.column.name == column:
                start = first * table.BLOCK_BYTES if file.count else 0
                arrays.append(self.mapped.view(file.dtype, file.count, start))
                firsts.append(first)
        return RemoteView(arrays, firsts, self)

    def need(self, blocks: Blocks) -> None:
        """Map blocks; called with `lock`, which is held until they were read.

        Raises:
            CacheError: The cache cannot be written.
            TokenFileError: A block does not have its digest, or its file does not exist.
            RemoteError: The server does not answer or refuses the request.
        """
        self.is_used[blocks] = True
        if not self.is_there[blocks].all():
            missing = distinct(blocks[~self.is_there[blocks]]).tolist()
            with self._writing():
                if np.count_nonzero(self.is_there) + len(missing) > _MOST_MAPPED:
                    others = self.is_there.copy()
                    others[blocks] = False
                    self._unmap(np.flatnonzero(others))
                for_each(missing, self._map, min(len(missing), _DOWNLOADS))

    def look(self) -> None:
        """Now and then, note what was used, and give up blocks whose files were removed.

        Called with `lock`, before `need`.
        """
        if time.monotonic() - self._looked <= _SECONDS_BETWEEN_LOOKS:
            return
        self._looked = time.monotonic()
        self._note_uses()
        there = np.flatnonzero(self.is_there)
        self._unmap(there[[not self._block(each).path.exists() for each in there.tolist()]])

    def _unmap(self, blocks: Blocks) -> None:
        self.is_there[blocks] = False
        self.n_removals += bool(len(blocks))
        for block in blocks.tolist():
            self.mapped.remove(block * table.BLOCK_BYTES, table.BLOCK_BYTES)

    def _note_uses(self) -> None:
        for block in np.flatnonzero(self.is_used).tolist():
            with suppress(FileNotFoundError):
                os.utime(self._block(block).path)
        self.is_used[:] = False

    def _block(self, block: int) -> _Block:
        index = int(np.searchsorted(self._first_blocks, block, "right")) - 1
        file, number = self._files[index], block - int(self._first_blocks[index])
        start = number * table.BLOCK_BYTES
        stop = min(start + table.BLOCK_BYTES, file.n_bytes)
        return _Block(file, number, start, stop, self.directory / _BLOCKS / file.digests[number])

    def _map(self, _: int, number: int) -> None:
        block = self._block(number)
        if (descriptor := _open_sound(block)) is None:
            with _lock(self._root / "locks" / block.path.name[:2]):
                if (descriptor := _open_sound(block)) is None:
                    descriptor = self._add(block.path, self._download(block))
        try:
            start = number * table.BLOCK_BYTES
            self.mapped.put(start, descriptor, block.stop - block.start)
        finally:
            os.close(descriptor)
        self.is_there[number] = True

    def _add(self, path: Path, content: memoryview) -> int:
        """Write a block that has its digest, and return the descriptor of its file."""
        path.parent.mkdir(0o700, parents=True, exist_ok=True)  # somebody may have removed it
        temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
        with _lock(self._root / "lock"):  # who makes room removes files of killed processes, too
            self._make_room(len(content))
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                write_all(descriptor, content)
                os.rename(temporary, path)
            except BaseException:
                os.close(descriptor)
                temporary.unlink(missing_ok=True)
                raise
        return descriptor

    def _make_room(self, n_bytes: int) -> None:
        """Remove the blocks, of all datasets, that were not used for longest; with the lock."""
        self._room -= n_bytes
        if self._room >= 0:
            return
        self._note_uses()
        found = []
        for path in self._root.glob(f"*/{_BLOCKS}/*"):
            with suppress(FileNotFoundError):
                state = path.stat()
                found.append((state.st_mtime_ns, state.st_size, path))
        n_held = sum(size for _, size, _ in found) + n_bytes
        # Several at once, so that this is rare.
        n_left = self._capacity - self._capacity // 16 if n_held > self._capacity else n_held
        for _, size, path in sorted(found):
            if n_held <= n_left:
                break
            path.unlink(missing_ok=True)
            n_held -= size
            self._looked = -_SECONDS_BETWEEN_LOOKS  # so that its space is given back soon
        self._room = (self._capacity - n_held) // _PROCESSES

    def _download(self, block: _Block) -> memoryview:
        """Return a block that has its digest."""
        name = block.file.name
        objects, key = self._source.object(name)
        try:
            content = objects.read(key, block.start, block.stop)
        except ChangedError as error:
            found = self._source.size(name)
            if found == block.file.n_bytes:
                raise
            what = f"expected {block.file.n_bytes:,} bytes, found {found:,}" if found else "missing"
            raise self._refused(name, f"{what}, though its manifest was there") from error
        digest = xxhash.xxh3_128_hexdigest(content)
        if digest != block.path.name:
            raise self._refused(
                name, f"damaged or replaced in block {block.number:,}, bytes {block.start:,} to"
                f" {block.stop:,}: expected the digest {block.path.name}, found {digest}"
            )
        return content

    def _refused(self, name: str, what: str) -> table.TokenFileError:
        return table.TokenFileError(
            f"{self._source.where(name)}: {what} (manifest {self._manifest_url}); restore the file,"
            " or open the dataset again if it was built again"
        )

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Convert errors of files inside the `with` to CacheError."""
        try:
            yield
        except OSError as error:
            if isinstance(error, TokenmillError):
                raise
            raise CacheError(
                f"{self.directory}: blocks of {self._manifest_url} cannot be kept there:"
                f" {error.strerror or error}; set {DIRECTORY_VARIABLE} to a directory on a local"
                f" disk with room for {SIZE_VARIABLE}"
            ) from error


def _open_sound(block: _Block) -> int | None:
    """Open the file of a block that has its digest; remove another."""
    try:
        descriptor = os.open(block.path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    n_bytes = block.stop - block.start
    if os.fstat(descriptor).st_size == n_bytes:
        with mmap.mmap(descriptor, n_bytes, access=mmap.ACCESS_READ) as content:
            if xxhash.xxh3_128_hexdigest(content) == block.path.name:
                return descriptor
    os.close(descriptor)
    block.path.unlink(missing_ok=True)
    return None


def _directory() -> Path:
    """Return the directory of the cache."""
    base = os.environ.get(DIRECTORY_VARIABLE)
    if not base:
        import platformdirs

        base = os.path.join(platformdirs.user_cache_dir("tokenmill", False), "blocks")
    return Path(os.path.abspath(base))


def _capacity() -> int:
    """Return how many bytes the cache may have."""
    text = os.environ.get(SIZE_VARIABLE) or _DEFAULT_SIZE
    try:
        n_bytes = size_in_bytes(text)
    except ValueError as error:
        raise CacheError(f"{SIZE_VARIABLE} {error}; got {text!r}") from None
    if n_bytes < _LEAST_BLOCKS * table.BLOCK_BYTES:
        raise CacheError(
            f"{SIZE_VARIABLE} is {n_bytes:,} bytes, and the cache needs at least"
            f" {_LEAST_BLOCKS * table.BLOCK_BYTES:,}; set it to a larger size"
        )
    return n_bytes


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, which the system releases when the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX)
        except OSError as error:
            raise CacheError(
                f"{path}: cannot be locked ({error.strerror}), and processes share the cache; set"
                f" {DIRECTORY_VARIABLE} to a directory on a local disk"
            ) from error
        try:
            yield
        finally:
            # A process that was forked meanwhile has the file open, too.
            fcntl.flock(opened, fcntl.LOCK_UN)
