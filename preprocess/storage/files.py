"""Complete files by name, in a directory or below a URL: what every command that reads uses."""

from __future__ import annotations

import errno
import math
import os
import stat
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

import xxhash

from bpe.errors import ChangedError
from bpe.files.locations import given_location, is_url, is_web, shown_url
from bpe.files.temporary import temporary_directory
from preprocess.storage.errors import OutputError, writing
from preprocess.storage.forked import open_anywhere
from preprocess.storage.remote import ObjectStore, RemoteError, split_url

READ_AT_ONCE = 16 << 20  # bytes
_DIGESTED_AT_ONCE = 1 << 20  # bytes
# Errors for a file that is not there: a link may lead nowhere, and a file be its directory.
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

# Both have the methods that `LocalFiles` describes.
Files: TypeAlias = "LocalFiles | UrlFiles"


def open_files(location: str | os.PathLike[str]) -> Files:
    """Open the files in a directory, which need not exist, or below a URL of any scheme.

    Raises:
        LocationError: The location is empty, or a URL that pathlib has changed.
        RemoteError: The URL cannot be used, or the library that reads it is not installed.
    """
    text = given_location(location)
    return UrlFiles(text) if is_url(text) else LocalFiles(Path(text))


def free_space(place: Path) -> float:
    """Return the free bytes of a disk; infinity where its file system does not know its size."""
    state = os.statvfs(place)
    return state.f_bavail * state.f_frsize if state.f_blocks else math.inf


class LocalFiles:
    """Complete files of a directory, which need not exist, by name."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def names(self) -> list[str]:
        """Return the names of all files, sorted; raise `RemoteError` for a web server."""
        return sorted(os.listdir(self.directory)) if self.directory.is_dir() else []

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes, None if it does not exist.

        Raises:
            OutputError: It is a directory.
        """
        try:
            state = os.stat(self.directory / name)
        except OSError as error:
            if error.errno in _MISSING:
                return None
            raise
        if stat.S_ISDIR(state.st_mode):
            raise OutputError(
                f"{self.directory / name}: is a directory, where a file is expected; move it away,"
                " or choose another directory or name"
            )
        return state.st_size

    def sizes(self) -> dict[str, int]:
        """Return the sizes of all files in bytes, by name; raises as `names`."""
        names = [name for name in self.names() if not (self.directory / name).is_dir()]
        sizes = {name: self.size(name) for name in names}
        return {name: size for name, size in sizes.items() if size is not None}

    def get(self, name: str) -> bytes | None:
        """Return the content of a file, None if missing; raise `OutputError` if unreadable."""
        path = self.directory / name
        try:
            state = os.stat(path)
            if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
                # Reading it would block, or never end.
                raise OutputError(f"{path}: is a pipe or a device, expected a file; remove it")
            with open(path, "rb") as file:
                return file.read(state.st_size)
        except OSError as error:
            if error.errno in _MISSING:
                return None
            raise OutputError(
                f"{path}: could not be read: {error.strerror}; check the disk and its permissions"
                " and run the same command again"
            ) from error

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Read bytes [start, stop) of a file; fewer if it is shorter or missing."""
        try:
            with open(self.directory / name, "rb") as file:
                file.seek(start)
                return file.read(stop - start)
        except FileNotFoundError:
            return b""

    def read_into(self, buffer: memoryview, name: str, start: int, stop: int) -> memoryview:
        """Read as `read` into a buffer, of `stop - start` bytes or more, and return its part."""
        with open(self.directory / name, "rb") as file:
            file.seek(start)
            n = file.readinto(buffer[: stop - start])
        return buffer[:n]

    def where(self, name: str = "") -> str:
        """Format the location of a file, or of the directory, for messages."""
        return str(self.directory / name)

    def path(self, name: str = "") -> Path:
        """Return a local path of a file with its siblings, to read or map: if remote, of a copy."""
        return self.directory / name


class UrlFiles:
    """As `LocalFiles`, below the URL of a directory: each file is an object of a server.

    All methods may raise `RemoteError`.
    """

    def __init__(self, location: str) -> None:
        scheme, _, rest = location.partition("://")
        self._url = f"{scheme.lower()}://{rest.rstrip('/')}"
        self._spool: Path | None = None
        directory_of(f"{self._url}/")  # both raise for a URL that cannot be used
        self.object("x")

    @property
    def spool(self) -> Path:
        """A temporary directory (TMPDIR says where), which ends with this object or process."""
        if self._spool is None:
            stack = ExitStack()
            self._spool = stack.enter_context(temporary_directory())
            self._end = weakref.finalize(self, stack.close)
        return self._spool

    def close(self) -> None:
        """Remove the temporary directory, if there is one."""
        if self._spool is not None:
            self._end()
            self._spool = None

    def url(self, name: str) -> str:
        """Return the URL of a file."""
        return f"{self._url}/{quote(name) if is_web(self._url) else name}"

    def object(self, name: str) -> tuple[ObjectStore, str]:
        """Return the store of a file, and its key there."""
        root, key = split_url(self.url(name))
        return open_anywhere(root), key

    def names(self) -> list[str]:
        return sorted(self.sizes())

    def size(self, name: str) -> int | None:
        objects, key = self.object(name)
        info = objects.info(key)
        return None if info is None else info.n_bytes

    def sizes(self) -> dict[str, int]:
        if is_web(self._url):
            raise RemoteError(
                f"{self.where()}: web servers have no lists of files; give the URL of a manifest"
            )
        objects, prefix = self.object("")
        found = ((key[len(prefix) :], info.n_bytes) for key, info in objects.keys(prefix))
        return {name: n_bytes for name, n_bytes in found if name and "/" not in name}

    def get(self, name: str) -> bytes | None:
        objects, key = self.object(name)
        return objects.get(key)

    def read(self, name: str, start: int, stop: int) -> bytes:
        objects, key = self.object(name)
        with suppress(ChangedError):  # it is shorter
            return bytes(objects.read(key, start, stop))
        stop = min(stop, self.size(name) or 0)
        return bytes(objects.read(key, start, stop)) if start < stop else b""

    def where(self, name: str = "") -> str:
        return shown_url(self.url(name) if name else self._url)

    def path(self, name: str = "") -> Path:
        """As `Files.path`; the siblings of NAME.json are the files NAME_....json."""
        if name.endswith(".json"):
            begin = f"{name.removesuffix('.json')}_"
            for other in self.names():
                if other.startswith(begin) and other.endswith(".json"):
                    copy_to(self.spool / other, self, other)
        return copy_to(self.spool / name, self, name) if name else self.spool


def digest_of_file(files: Files, name: str, n_bytes: int | None = None) -> xxhash.xxh3_128:
    """Return the xxh3_128 of `n_bytes` of a file, None: of all; a missing one is empty."""
    digest, size = xxhash.xxh3_128(), files.size(name) or 0
    stop = size if n_bytes is None else min(n_bytes, size)
    for start in range(0, stop, _DIGESTED_AT_ONCE):
        digest.update(files.read(name, start, min(start + _DIGESTED_AT_ONCE, stop)))
    return digest


def copy_to(path: Path, files: Files, name: str) -> Path:
    """Copy a file to a path, which is removed if there is none, and return the path."""
    path.unlink(missing_ok=True)
    if (size := files.size(name)) is not None:
        part = path.with_name(f".{path.name}.part")  # nobody takes it for the whole file
        with writing(path):
            part.write_bytes(b"")
        for start in range(0, size, READ_AT_ONCE):
            piece = files.read(name, start, start + READ_AT_ONCE)
            with writing(path), open(part, "ab") as file:
                file.write(piece)
        with writing(path):
            part.rename(path)
    return path


def directory_of(url: str) -> str:
    """Return the URL of the directory of a file.

    Raises:
        RemoteError: The URL has a query, which is of one file.
    """
    if is_web(url) and ("?" in url or "#" in url):
        raise RemoteError(
            f"{shown_url(url)}: has a query, such as a signature, which is valid for one file, and"
            " a dataset has several; give a URL without one, or that of the bucket"
        )
    return url.rpartition("/")[0]
