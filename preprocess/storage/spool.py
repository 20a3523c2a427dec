"""Local files of a storage of objects, in a temporary directory that ends with its process."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import numpy as np

from bpe.files.temporary import end_directory, make_directory
from bpe.parallel import Lock


class Spool:
    """A temporary directory, made when it is first used (TMPDIR says where), and its files."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._guard = Lock()  # held while it is made

    @property
    def directory(self) -> Path:
        """The directory."""
        with self._guard:
            if self._directory is None:
                self._directory, descriptor = make_directory()
                self._end = weakref.finalize(self, end_directory, self._directory, descriptor)
            return self._directory

    def path(self, name: str) -> Path:
        """Return the path of a file, which need not exist."""
        return self.directory / name

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        self.path(name).unlink(missing_ok=True)

    def space(self) -> tuple[int, int]:
        """Return (free bytes of the disk, bytes of the files)."""
        state = os.statvfs(self.directory)
        used = sum(each.stat().st_size for each in os.scandir(self.directory))
        return state.f_bavail * state.f_frsize, used

    def close(self) -> None:
        """Remove all files; may be called more than once, and the spool used again."""
        if self._directory is not None:
            self._end()
            self._directory = None


def map_bytes(path: Path, start: int, stop: int) -> memoryview:
    """Map bytes [start, stop) of a file, read-only."""
    if start == stop:
        return memoryview(b"")
    return np.memmap(path, np.uint8, "r", start, (stop - start,)).data

