"""Files and directories of rows: paths of this machine, or URLs."""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import IO

from bpe.files.locations import given_location, is_url, is_web, shown_url
from preprocess.locations import url_name
from preprocess.sources.find import matching_files
from preprocess.sources.remote import Handle, RemoteFile, find_object, read_ahead
from preprocess.storage.files import url_beside

_BUFFER_BYTES = 1 << 20


class RemotePath:
    """A file or a directory at a URL, with the methods of `Path` that readers of rows need.

    What is read is of the version that was found first; methods raise RemoteError, and those that
    read ChangedError or UnavailableError.
    """

    def __init__(self, url: str, file: RemoteFile | None = None) -> None:
        self._url, self._file, self._process = url, file, os.getpid()
        self.name = url_name(url)
        self.suffix = os.path.splitext(self.name)[1]

    def __str__(self) -> str:
        return shown_url(self._url)

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(url_beside(f"{self._url.rstrip('/')}/", name))

    @property
    def parent(self) -> RemotePath | None:
        """The directory; None if the URL has a query, such as a signature, which is of one file."""
        is_signed = is_web(self._url) and "?" in self._url
        return None if is_signed else RemotePath(self._url.rpartition("/")[0])

    @property
    def file(self) -> RemoteFile:
        """The file, to be read in ranges; raises FileNotFoundError."""
        if self._file is not None and self._process != os.getpid():
            # A forked process cannot use the connections of its parent.
            self._file, self._process = copy(self._file), os.getpid()
        if not self.exists():
            raise FileNotFoundError(f"{self}: there is no such file")
        assert self._file is not None
        return self._file

    def exists(self) -> bool:
        """Return True if there is such a file."""
        self._file = self._file or find_object(self._url)
        return self._file is not None

    def is_file(self) -> bool:
        """Return True: what `iterdir` lists are files."""
        return True

    def is_dir(self) -> bool:
        """Return True if there are files below; web servers do not tell."""
        return is_web(self._url) or any(self.iterdir())

    def read_bytes(self) -> bytes:
        """Return the whole file."""
        return self.file.read(0, self.file.n_bytes).tobytes()

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the files that are directly in this directory; of a web server none."""
        if not is_web(self._url):
            for file in matching_files(f"{self._url.rstrip('/')}/"):
                yield RemotePath(file.url, file)


AnyPath = Path | RemotePath


def place_of(location: str | os.PathLike[str]) -> AnyPath:
    """Return the path of a location; raise LocationError for the URL of a `Path`."""
    text = given_location(location)
    return RemotePath(text) if is_url(text) else Path(text)


def matches(pattern: str) -> list[AnyPath]:
    """Return the files at a path, a URL or a pattern of either, sorted; of a web server one."""
    if is_url(pattern):
        return [RemotePath(each.url, each) for each in matching_files(pattern)]
    return [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]


def found_instead(location: str, endings: tuple[str, ...]) -> str:
    """Tell, in a message, in which directories below a location files are; "" for none."""
    if is_url(location) and is_web(location):
        return ""
    base = location if is_url(location) else glob.escape(location)
    found = [str(each).split("/") for each in matches(f"{base.rstrip('/')}/*/*")]
    names = sorted({parts[-2] for parts in found if parts[-1].endswith(endings)})
    more = ", ..." * (len(names) > 3)
    return f", but in {place_of(location)} there are {', '.join(names[:3])}{more}" if names else ""


def open_binary(path: AnyPath, is_forwards: bool = False) -> IO[bytes]:
    """Open a file for reading; of a remote one ranges are read, ahead if it is read forwards."""
    if isinstance(path, Path):
        return open(path, "rb")
    file = read_ahead(path.file) if is_forwards else path.file
    return io.BufferedReader(Handle(file), _BUFFER_BYTES)
