"""The user's cache, for example of kernels: it saves time in later processes and can be lost.

Each state of the sources that decide the content has a directory of its own, named by their digest.
A file is renamed when it is complete, and begins with the digest of its name and content, because
a power cut may leave it cut off or full of zeros. Damage is reported, and the file rebuilt. That is
no defence against somebody who can write to the directory and so run code here: there is no
fallback to a shared temporary directory. Without a writable directory nothing is kept, as reported.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from bpe.files.atomic_write import write_atomically

_DIGEST_BYTES = hashlib.sha256().digest_size
_logger = logging.getLogger("bpe")
_said: set[str] = set()


def warn_once(message: str, *details: object) -> None:
    """Warn once per process for each message: all files may be damaged."""
    if message not in _said:
        _said.add(message)
        _logger.warning(message, *details)


def digest_of(about: str, paths: Iterable[Path]) -> str:
    """Return the hexadecimal digest of a text, and of the names and content of existing files."""
    digest = hashlib.sha256(about.encode())
    for path in paths:
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"\0{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:32]


def _digest(name: str, data: bytes | memoryview) -> bytes:
    """Return the digest of the name and content of a file."""
    digest = hashlib.sha256(f"{name}\0".encode())
    digest.update(data)
    return digest.digest()


class Cache:
    """A directory of files of one kind.

    Args:
        name: Of the directory: the kind, and the digest of what decides its content.
        otherwise: The effect of having no cache, as in "kernels are compiled again".

    Attributes:
        directory: None if it cannot be written, which is reported.
    """

    def __init__(self, name: str, otherwise: str) -> None:
        self._otherwise = otherwise
        base = os.environ.get("NUMBA_CACHE_DIR")
        if not base:
            import platformdirs

            base = platformdirs.user_cache_dir("tokenbin", False)
        self.directory: Path | None = Path(base, name)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            probe = self.directory / f".probe-{os.urandom(8).hex()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            warn_once(
                f"{otherwise} in every process, because their cache %s cannot be written"
                " (%s); set NUMBA_CACHE_DIR to a directory of yours",
                self.directory, error.strerror,
            )
            self.directory = None

    def read(self, name: str) -> memoryview | None:
        """Return the content of a file; None if there is none, or it is damaged."""
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
        warning = f"{self._otherwise} where their cache is damaged; the first such file is %s (%s)"
        warn_once(warning, path, damage)
        return None

    def write(self, name: str, data: bytes) -> None:
        """Keep data for other processes, all or nothing; a failure is reported."""
        if self.directory is None:
            return
        path = self.directory / name
        try:
            # All of the cache may have been removed meanwhile.
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _digest(name, data) + data, durable=False)
        except OSError as error:
            warning = f"{self._otherwise} in the next process, because %s cannot be written (%s)"
            warn_once(warning, path, error.strerror)

    def keep_newest(self, n: int) -> None:
        """Remove all files but the `n` written last; a failure is reported."""
        if self.directory is None:
            return
        try:
            # Another process may remove the same ones.
            ages = {}
            for path in self.directory.glob("[!.]*"):
                with suppress(FileNotFoundError):
                    ages[path] = path.stat().st_mtime_ns
            for path in sorted(ages, key=ages.__getitem__)[:-n]:
                path.unlink(missing_ok=True)
        except OSError as error:
            warn_once("%s cannot be tidied up (%s)", self.directory, error.strerror)
