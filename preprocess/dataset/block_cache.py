"""Cache of blocks of remote datasets on a local disk, shared by all processes, within a limit.

    MANIFEST_DIGEST/content/BLOCK_DIGEST    one block; its time is that of its last use
    locks/XX    who downloads a block holds one, so that others wait for it
    lock        who adds a block, and removes old ones, holds it

A block is compared with its digest before it gets this name, and once by each process that maps it,
for a power cut may have damaged it. A process maps the blocks that it needs into one range of
addresses, so that columns are arrays. A file that another process removes stays mapped, and keeps
its space, until the process looks whether its blocks are still there.
"""

from __future__ import annotations

import bisect
import fcntl
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from bpe.errors import ChangedError, TokenmillError
from bpe.files.atomic_write import write_all
from bpe.parallel import Lock, for_each
from preprocess.dataset import columns as table
from preprocess.dataset.file_map import FileMap
from preprocess.dataset.manifest import DataFile
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

Blocks = npt.NDArray[np.int64]


class CacheError(TokenmillError, OSError):
    """The cache of blocks cannot be used."""


class BlockCache:
    """The blocks of one dataset, as one range of bytes; every file begins with a block.

    Args:
        digest: Digest of the manifest.
        manifest_url: For messages.
        source: The files of the dataset.
        files: All of them, in the order in which their blocks are numbered.

    Attributes:
        directory: Directory of the dataset in the cache.
        first_blocks: Number of the first block of each file, and the number of all blocks.
        mapped: Memory map of all blocks, zeros where no block is mapped.
        is_there: bool[n_blocks], True for mapped blocks; modified only while `lock` is held.
        is_used: bool[n_blocks], True for blocks read since the times of their files were set.
        lock: Held while mapped blocks are read.

    Raises:
        CacheError: The cache cannot be used.
    """

    def __init__(
        self, digest: str, manifest_url: str, source: UrlFiles, files: Sequence[DataFile]
    ) -> None:
        self._files, self._manifest_url, self._source = files, manifest_url, source
        self.first_blocks = np.cumsum([0, *(len(each.digests) for each in files)]).tolist()
        self._root, self._capacity = _directory(), _capacity()
        self._room = 0  # bytes that may be added before the size of the cache is looked up
        self.directory = self._root / digest
        n_blocks = self.first_blocks[-1]
        with self._writing():
            self.directory.mkdir(0o700, parents=True, exist_ok=True)
            self.mapped = FileMap(-1, n_blocks * table.BLOCK_BYTES)
        self.is_there, self.is_used = np.zeros(n_blocks, bool), np.zeros(n_blocks, bool)
        self.lock = Lock()
        self._looked = time.monotonic()

    def need(self, blocks: Blocks) -> None:
        """Map blocks; called with `lock`, which is held until they were read.

        Raises:
            CacheError: The cache cannot be written.
            TokenFileError: A block does not have its digest, or its file does not exist.
            RemoteError: The server does not answer or refuses the request.
        """
        self.is_used[blocks] = True
        if not self.is_there[blocks].all():
            missing = np.unique(blocks[~self.is_there[blocks]]).tolist()
            with self._writing():
                if np.count_nonzero(self.is_there) + len(missing) > _MOST_MAPPED:
                    self._unmap(np.setdiff1d(np.flatnonzero(self.is_there), blocks))
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
        self._unmap(there[[not self._path(block).exists() for block in there.tolist()]])

    def _unmap(self, blocks: Blocks) -> None:
        self.is_there[blocks] = False
        for block in blocks.tolist():
            self.mapped.remove(block * table.BLOCK_BYTES, table.BLOCK_BYTES)

    def _note_uses(self) -> None:
        for block in np.flatnonzero(self.is_used).tolist():
            with suppress(FileNotFoundError):
                os.utime(self._path(block))
        self.is_used[:] = False

    def _map(self, _: int, block: int) -> None:
        descriptor = self._open(block)
        try:
            self.mapped.put(block * table.BLOCK_BYTES, descriptor, len(self._bytes_of(block)))
        finally:
            os.close(descriptor)
        self.is_there[block] = True

    def _open(self, block: int) -> int:
        """Return the descriptor of a file with a block, which is downloaded if there is none."""
        path = self._path(block)
        if (found := self._open_sound(block, path)) is not None:
            return found
        with _lock(self._root / "locks" / path.name[:2]):
            if (found := self._open_sound(block, path)) is not None:
                return found
            return self._add(path, self._download(block))

    def _open_sound(self, block: int, path: Path) -> int | None:
        """Open a file that has its digest; remove another."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        n_bytes = len(self._bytes_of(block))
        if os.fstat(descriptor).st_size == n_bytes:
            with mmap.mmap(descriptor, n_bytes, access=mmap.ACCESS_READ) as content:
                if xxhash.xxh3_128_hexdigest(content) == path.name:
                    return descriptor
        os.close(descriptor)
        path.unlink(missing_ok=True)
        return None

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

    def _place(self, block: int) -> tuple[DataFile, int]:
        """Return the file of a block, and its number there."""
        number = bisect.bisect_right(self.first_blocks, block) - 1
        return self._files[number], block - self.first_blocks[number]

    def _bytes_of(self, block: int) -> range:
        """Return the range of bytes of a block in its file."""
        file, number = self._place(block)
        start = number * table.BLOCK_BYTES
        return range(start, min(start + table.BLOCK_BYTES, file.n_bytes))

    def _path(self, block: int) -> Path:
        file, number = self._place(block)
        return self.directory / _BLOCKS / file.digests[number]

    def _download(self, block: int) -> memoryview:
        """Return a block that has its digest."""
        (file, number), place = self._place(block), self._bytes_of(block)
        shown = self._source.where(file.name)
        objects, key = self._source.object(file.name)
        try:
            content = objects.read(key, place.start, place.stop)
        except ChangedError as error:
            found = self._source.size(file.name)
            if found == file.n_bytes:
                raise
            what = f"expected {file.n_bytes:,} bytes, found {found:,}" if found else "missing"
            raise table.TokenFileError(
                f"{shown}: {what}, though its manifest {self._manifest_url} was there; restore it,"
                " or open the dataset again if it was built again"
            ) from error
        digest = xxhash.xxh3_128_hexdigest(content)
        if digest != file.digests[number]:
            raise table.TokenFileError(
                f"{shown}: damaged or replaced in block {number:,}, bytes {place.start:,} to"
                f" {place.stop:,}: expected the digest {file.digests[number]} of its manifest,"
                f" found {digest}; restore the file, or open the dataset again if it was built"
                " again"
            )
        return content

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
