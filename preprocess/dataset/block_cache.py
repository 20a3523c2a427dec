"""Cache of blocks of remote datasets on a local disk, shared by all processes, within a limit.

A dataset has a directory, named by the digest of its manifest:

    data      a sparse file: block b of all files is at b * `BLOCK_BYTES`; the space of blocks that
              are not there is free
    blocks    the state, mapped by all processes: a header, a stamp and the time of the last use of
              each block

A block is downloaded, compared with its digest, written, and only then gets a stamp, a number that
it did not have before. Who reads blocks takes no lock: the data is right if all of them have
stamps, and the same ones after the reading. Whoever changes stamps holds the lock of the whole
cache, and a block counts before it is written, so a process may be killed at any time. Stamps from
before the machine was started say nothing about what is on the disk; those blocks are compared with
their digests again.
"""

from __future__ import annotations

import bisect
import ctypes
import errno
import fcntl
import functools
import mmap
import os
import struct
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from msgspec import Struct

from bpe.errors import ChangedError, TokenmillError
from bpe.files.locations import shown_url
from bpe.parallel import for_each, run_in_order
from preprocess.dataset import columns as table
from preprocess.dataset.file_map import FileMap
from preprocess.settings import size_in_bytes
from preprocess.storage.forked import open_anywhere
from preprocess.storage.remote import split_url

DIRECTORY_VARIABLE, SIZE_VARIABLE = "TOKENMILL_CACHE_DIR", "TOKENMILL_CACHE_SIZE"
_DEFAULT_SIZE = "10GB"
_LEAST_BLOCKS = 4  # a window may be in two, and half of the cache is read at a time
_MOST_AT_ONCE = 32  # blocks that must be there at the same time, where a reader can choose
_DOWNLOADS = 16  # at the same time
_LOCKS = 64  # files; who downloads a block holds one, so that others wait for the block
_ATTEMPTS = 3  # before a reader locks the cache, because others remove what it needs

_HEADER_BYTES = 4096
_ABSENT, _UNCHECKED = 0, 1  # stamps; an unchecked block has space, but its content is unknown
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # flags of fallocate
_F_PUNCHHOLE = 99  # of macOS

Blocks = npt.NDArray[np.int64]


class CacheError(TokenmillError, OSError):
    """The cache of blocks cannot be used."""


class BlockFile(Struct, frozen=True):
    """A file of a dataset, at a URL, that is divided into blocks."""

    url: str
    n_bytes: int
    digests: tuple[str, ...]


class _State:
    """The mapped state of the blocks of one dataset.

    The file of blocks stays open, so that state and data belong together even if somebody removes
    the directory, and another process makes it again.

    Attributes:
        data: Descriptor of the file of blocks.
        stamps: uint64[n_blocks].
        used: float64[n_blocks], the time of the last use.
    """

    def __init__(self, directory: Path) -> None:
        with open(directory / "blocks", "r+b") as opened:
            mapped = mmap.mmap(opened.fileno(), 0)
        self.data = os.open(directory / "data", os.O_RDWR | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.data)
        n_blocks = (len(mapped) - _HEADER_BYTES) // 16
        self.header = np.frombuffer(mapped, np.uint64, _HEADER_BYTES // 8)
        self.stamps = np.frombuffer(mapped, np.uint64, n_blocks, _HEADER_BYTES)
        self.used = np.frombuffer(mapped, np.float64, n_blocks, _HEADER_BYTES + 8 * n_blocks)

    def remove(self, blocks: Blocks) -> None:
        """Free the space of blocks; called with the lock."""
        # Before the content goes, for those who are reading it.
        self.stamps[blocks] = _UNCHECKED
        self.header[3] += np.uint64(1)
        for block in blocks.tolist():
            _punch(self.data, block * table.BLOCK_BYTES)
        self.stamps[blocks] = _ABSENT

    def forget_other_starts(self) -> None:
        """Let blocks be checked again if the machine was started since; called with the lock."""
        start = np.frombuffer(_start_of_machine(), np.uint64)
        if not np.array_equal(self.header[1:3], start):
            self.stamps[self.stamps != _ABSENT] = _UNCHECKED
            self.header[1:3] = start

    def new_stamp(self) -> int:
        """Return a stamp that no block had before; called with the lock."""
        self.header[0] = max(int(self.header[0]), _UNCHECKED) + 1
        return int(self.header[0])


class BlockCache:
    """The blocks of one dataset.

    Args:
        digest: Digest of the manifest.
        manifest_url: For messages.
        files: All files, in the order in which their blocks are numbered.

    Attributes:
        directory: Directory of the dataset in the cache.
        first_blocks: Number of the first block of each file, and the number of all blocks.
        mapped: The file of blocks; those that are not there are zeros.

    Raises:
        CacheError: The cache cannot be used.
    """

    def __init__(self, digest: str, manifest_url: str, files: Sequence[BlockFile]) -> None:
        self._files, self._manifest_url = files, manifest_url
        self.first_blocks = np.cumsum([0, *(len(each.digests) for each in files)]).tolist()
        self._root, self._capacity = _directory(), _capacity()
        self.directory = self._root / digest
        n_blocks = self.first_blocks[-1]
        sizes = {"data": n_blocks * table.BLOCK_BYTES, "blocks": _HEADER_BYTES + 16 * n_blocks}
        with self._writing():
            (self._root / "locks").mkdir(0o700, parents=True, exist_ok=True)
            self.directory.mkdir(exist_ok=True)
            with self._locked():
                for name, size in sizes.items():
                    self._make_file(name, size)
                self._state = _State(self.directory)
                self._state.forget_other_starts()
            self.mapped = FileMap(self._state.data, sizes["data"])

    def _make_file(self, name: str, size: int) -> None:
        with open(self.directory / name, "ab") as opened:
            found = opened.tell()
            if not found and size:
                opened.truncate(size)
                if name == "data":
                    _punch(opened.fileno(), 0)  # an error here, not when the cache is full
            elif found != size:
                raise CacheError(
                    f"{opened.name}: a file of {size:,} bytes is expected in the cache, found"
                    f" {found:,}; remove the directory {self.directory}, and it is made again"
                )

    @property
    def most_at_once(self) -> int:
        """Number of blocks that a reader should need at the same time."""
        return min(_MOST_AT_ONCE, self._capacity // 2)

    @property
    def n_removals(self) -> int:
        """Number of times that blocks of the dataset were removed."""
        return int(self._state.header[3])

    def has_all(self, blocks: range) -> bool:
        """Return whether blocks one after another are all there."""
        stamps = self._state.stamps[blocks.start : blocks.stop]
        return 0 < len(stamps) <= self._capacity and bool(stamps.min() > _UNCHECKED)

    def use(self, blocks: range) -> None:
        """Note that blocks one after another are used."""
        self._state.used[blocks.start : blocks.stop] = time.time()

    def read_if_present(self, blocks: Blocks, read: Callable[[], object]) -> bool:
        """Call `read` if all blocks are there; return whether they were, and stayed so."""
        state = self._state
        before = state.stamps[blocks]
        if before.min() <= _UNCHECKED:
            return False
        read()
        if not np.array_equal(state.stamps[blocks], before):
            return False
        state.used[blocks] = time.time()
        return True

    def read(self, blocks: Blocks, read: Callable[[], object]) -> None:
        """Call `read`, perhaps several times, the last time with all blocks there.

        Raises:
            CacheError: There are more than fit into half of the cache, or it cannot be written.
            TokenFileError: A block does not have its digest, or its file does not exist.
            RemoteError: The server does not answer or refuses the request.
        """
        blocks = np.unique(blocks)
        if len(blocks) > max(self._capacity // 2, self.most_at_once):
            raise CacheError(
                f"{self._manifest_url}: {len(blocks):,} blocks of {table.BLOCK_BYTES:,} bytes are"
                f" needed at the same time, and half of the cache has {self._capacity // 2:,};"
                f" set {SIZE_VARIABLE} to a larger size, or choose shorter windows"
            )
        for _ in range(_ATTEMPTS):
            if self.read_if_present(blocks, read):
                return
            self._fetch(blocks)
        if self.read_if_present(blocks, read):
            return
        with self._writing(), self._locked():
            self._fetch_locked(blocks)
            read()

    def _missing(self, blocks: Blocks) -> list[int]:
        found: list[int] = blocks[self._state.stamps[blocks] <= _UNCHECKED].tolist()
        return found

    def _fetch(self, blocks: Blocks) -> None:
        """Make blocks present; another process may remove them again at once."""
        missing = self._missing(blocks)
        self._state.used[blocks] = time.time()  # so that the others of them stay
        with self._writing():
            for_each(missing, self._fetch_one, min(len(missing), _DOWNLOADS) or 1)

    def _fetch_one(self, _: int, block: int) -> None:
        with _lock(self._root / "locks" / str(block % _LOCKS)):
            with self._locked():
                if self._is_there(block):
                    return
            content = self._download(block)
            with self._locked():
                self._store(block, content, np.array([block]))

    def _fetch_locked(self, blocks: Blocks) -> None:
        """The same with the lock of the cache, so that they stay until it is released."""
        missing = [block for block in self._missing(blocks) if not self._is_there(block)]
        workers = min(len(missing), _DOWNLOADS) or 1
        with closing(run_in_order(missing, lambda: self._download, workers)) as found:
            for block, content in zip(missing, found, strict=True):
                self._store(block, content, blocks)

    def _is_there(self, block: int) -> bool:
        """Return whether a block is there; one from before is checked. Called with the lock."""
        if self._state.stamps[block] == _UNCHECKED:
            _, file, start, stop = self._place(block)
            place = block * table.BLOCK_BYTES
            content = self.mapped.data[place : place + stop - start].data
            if xxhash.xxh3_128_hexdigest(content) == file.digests[start // table.BLOCK_BYTES]:
                self._state.used[block] = time.time()
                self._state.stamps[block] = self._state.new_stamp()
        return bool(self._state.stamps[block] > _UNCHECKED)

    def _store(self, block: int, content: memoryview, kept: Blocks) -> None:
        """Write a block that has its digest, and remove none of `kept`; called with the lock."""
        state = self._state
        if state.stamps[block] > _UNCHECKED:
            return
        if state.stamps[block] == _ABSENT:
            self._make_room(kept)
        # If this process is killed now, the block counts, and will be checked.
        state.stamps[block], state.used[block] = _UNCHECKED, time.time()
        try:
            n = 0
            while n < len(content):
                n += os.pwrite(state.data, content[n:], block * table.BLOCK_BYTES + n)
        except OSError:
            state.remove(np.array([block]))
            raise
        state.stamps[block] = state.new_stamp()

    def _make_room(self, kept: Blocks) -> None:
        """Remove the blocks, of all datasets, that were not used for longest; with the lock."""
        states = [self._state]
        for path in self._root.glob("*/blocks"):
            if path.parent != self.directory:
                with suppress(FileNotFoundError, ValueError):  # being made, or being removed
                    states.append(_State(path.parent))
        held = [np.flatnonzero(each.stamps) for each in states]
        n_held = sum(map(len, held))
        if n_held < self._capacity:
            return
        # Several at once, so that this is rare.
        n_removed = n_held + 1 - self._capacity + self._capacity // 16
        held[0] = np.setdiff1d(held[0], kept)
        used = np.concatenate([each.used[x] for each, x in zip(states, held, strict=True)])
        is_old = np.zeros(len(used), bool)
        is_old[np.argsort(used, kind="stable")[:n_removed]] = True
        limits = np.cumsum([len(each) for each in held])[:-1]
        for state, x, old in zip(states, held, np.split(is_old, limits), strict=True):
            if old.any():
                state.remove(x[old])

    def _place(self, block: int) -> tuple[str, BlockFile, int, int]:
        """Return (URL for messages, file, first byte, byte after the last) of a block."""
        number = bisect.bisect_right(self.first_blocks, block) - 1
        file = self._files[number]
        start = (block - self.first_blocks[number]) * table.BLOCK_BYTES
        return shown_url(file.url), file, start, min(start + table.BLOCK_BYTES, file.n_bytes)

    def _download(self, block: int) -> memoryview:
        """Return a block that has its digest."""
        shown, file, start, stop = self._place(block)
        root, key = split_url(file.url)
        objects = open_anywhere(root)
        try:
            content = objects.read(key, start, stop)
        except ChangedError as error:
            info = objects.info(key)
            if info is None:
                found = "missing"
            elif info.n_bytes != file.n_bytes:
                found = f"expected {file.n_bytes:,} bytes, found {info.n_bytes:,}"
            else:
                raise
            raise table.TokenFileError(
                f"{shown}: {found}, though its manifest {self._manifest_url} was there; restore it,"
                " or open the dataset again if it was built again"
            ) from error
        number = start // table.BLOCK_BYTES
        digest = xxhash.xxh3_128_hexdigest(content)
        if digest != file.digests[number]:
            raise table.TokenFileError(
                f"{shown}: damaged or replaced in block {number:,}, bytes {start:,} to {stop:,}:"
                f" expected the digest {file.digests[number]} of its manifest, found {digest};"
                " restore the file, or open the dataset again if it was built again"
            )
        return content

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the whole cache; not again in the same thread."""
        with _lock(self._root / "lock"):
            yield

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
    """Return how many blocks the cache may have."""
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
    return n_bytes // table.BLOCK_BYTES


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file, which the system releases when the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)  # somebody may have removed it
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


@functools.cache
def _start_of_machine() -> bytes:
    """Return 16 bytes that are the same until the machine is started again."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return bytes.fromhex(text.replace("-", ""))
    except (OSError, ValueError):
        return os.urandom(16)  # blocks are checked again by each process


@functools.cache
def _fallocate() -> Any:
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


def _punch(descriptor: int, start: int) -> None:
    """Free the space of a block in a file."""
    if sys.platform == "darwin":
        hole = struct.pack("IIqq", 0, 0, start, table.BLOCK_BYTES)
        fcntl.fcntl(descriptor, _F_PUNCHHOLE, hole)
        return
    fallocate = _fallocate()
    if fallocate is None:
        raise OSError(errno.ENOTSUP, "this system cannot free parts of a file")
    if fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, table.BLOCK_BYTES):
        number = ctypes.get_errno()
        raise OSError(number, f"parts of a file cannot be freed ({os.strerror(number)})")
