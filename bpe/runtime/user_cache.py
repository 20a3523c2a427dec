"""The user's cache of kernels; it only saves time.

Its directories are named by a digest of the sources that determine the content. A file is renamed
when complete, and begins with the digest of its name and content, as a power cut may truncate it or
fill it with zeros. Damaged files are reported and rebuilt. When a directory is made, all but the
most recently used directories of its kind are removed; a process that still uses one of them writes
its files again. Whoever can write to the directory can run code here, so there is no fallback to a
shared temporary directory: if the directory is not writable, that is reported and nothing is
cached.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from contextlib import suppress
from pathlib import Path

from bpe.files.atomic_write import write_atomically

_DIGEST_BYTES = hashlib.sha256().digest_size
_logger = logging.getLogger("bpe")
_warned: set[str] = set()
_KEPT_STATES = 8  # of versions and environments


def warn_once(message: str, *details: object) -> None:
    """Warn once per process for each message: all files may be damaged."""
    if message not in _warned:
        _warned.add(message)
        _logger.warning(message, *details)


def _digest(name: str, data: bytes | memoryview) -> bytes:
    """Return the digest of the name and content of a file."""
    digest = hashlib.sha256(f"{name}\0".encode())
    digest.update(data)
    return digest.digest()


def _remove_unused(directory: Path) -> None:
    """Remove all but the most recently used directories of other states of the sources."""
    used = {}
    for path in directory.parent.glob(f"{directory.name.rpartition('-')[0]}-" + "[0-9a-f]" * 32):
        with suppress(FileNotFoundError):  # another process removes it
            used[path] = path.stat().st_mtime_ns
    for path in sorted(used, key=used.__getitem__)[:-_KEPT_STATES]:
        shutil.rmtree(path, ignore_errors=True)  # what is written at the same time stays


class Cache:
    """A directory of files.

    Args:
        name: Name of the directory, with the digest of the sources of the files.

    Attributes:
        directory: The directory; None if it is not writable, which is reported.
    """

    def __init__(self, name: str) -> None:
        base = os.environ.get("NUMBA_CACHE_DIR")
        if not base:
            import platformdirs

            base = platformdirs.user_cache_dir("tokenmill", False)
        self.directory: Path | None = Path(base, name)
        try:
            if not self.directory.exists():
                self.directory.mkdir(parents=True, exist_ok=True)
                _remove_unused(self.directory)
            # Each process that uses the directory changes its time.
            probe = self.directory / f".probe-{os.urandom(8).hex()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            warn_once(
                "kernels are compiled again in every process, because their cache %s cannot be"
                " written (%s); set NUMBA_CACHE_DIR to a directory of yours",
                self.directory, error.strerror,
            )
            self.directory = None

    def read(self, name: str) -> memoryview | None:
        """Return the content of a file; None if it is missing or damaged."""
        if self.directory is None:
            return None
        path = self.directory / name
        damage: str | None = "its content is not what was written"
        try:
            content = memoryview(path.read_bytes())
            data = content[_DIGEST_BYTES:]
            if content[:_DIGEST_BYTES] == _digest(name, data):
                return data
        except FileNotFoundError:
            return None
        except OSError as error:
            damage = error.strerror
        warn_once(
            "kernels are compiled again where their cache is damaged; the first such file is %s"
            " (%s)", path, damage,
        )
        return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically; failures are reported."""
        if self.directory is None:
            return
        path = self.directory / name
        try:
            # The user may have removed the cache.
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _digest(name, data) + data, durable=False)
        except OSError as error:
            warn_once(
                "kernels are compiled again in the next process, because %s cannot be written (%s)",
                path, error.strerror,
            )
