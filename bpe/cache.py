"""The user's cache: what saves time in later processes and can be lost, compiled kernels for one.

Law: what is read was written whole, and for just what it is asked for. Each state of the sources
that decide what is kept has a directory of its own, named by their digest; a file has the digest of
its name and content in front, which is compared first, as a power cut may leave a file cut off or
full of zeros; and it gets its name when it is complete. What is damaged is said, and made and
written anew. That is no defence against somebody who can write to the directory, where kernels are
there to be run.

A directory that another user can write to would let them run code here, so there is no fall-back to
a shared temporary directory: where the user's cache directory cannot be written, nothing is kept,
and that is said.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from bpe.files import write_atomically

_DIGEST_BYTES = hashlib.sha256().digest_size
_logger = logging.getLogger("bpe")
_said: set[str] = set()


def say_once(message: str, *details: object) -> None:
    """Say something, each thing once per process: after a power cut all files may be damaged."""
    if message not in _said:
        _said.add(message)
        _logger.warning(message, *details)


def digest_of(about: str, paths: Iterable[Path]) -> str:
    """Hexadecimal digest of a text and of the files that are there, with their names."""
    digest = hashlib.sha256(about.encode())
    for path in paths:
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"\0{path.name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()[:32]


def _digest(name: str, data: bytes | memoryview) -> bytes:
    """Of what is kept, and of the name under which it was asked to be."""
    digest = hashlib.sha256(f"{name}\0".encode())
    digest.update(data)
    return digest.digest()


class Cache:
    """A directory of files of one kind.

    Args:
        name: Of the directory: the kind, and the digest of what decides its content.
        otherwise: What happens where nothing can be kept, as in "kernels are compiled anew".

    Attributes:
        directory: Where it is; None if that cannot be written, which is said.
    """

    def __init__(self, name: str, otherwise: str) -> None:
        self._otherwise = otherwise
        self.directory = self._made(name)

    def _made(self, name: str) -> Path | None:
        base = os.environ.get("NUMBA_CACHE_DIR")
        if not base:
            import platformdirs

            base = platformdirs.user_cache_dir("tokenbin", False)
        directory = Path(base, name)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            probe = directory / f".probe-{os.urandom(8).hex()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            say_once(
                f"{self._otherwise} in every process, because their cache %s cannot be written"
                " (%s); set NUMBA_CACHE_DIR to a directory of yours",
                directory,
                error.strerror,
            )
            return None
        return directory

    def read(self, name: str) -> memoryview | None:
        """What a file holds, or None: there is none, or it is damaged."""
        if self.directory is None:
            return None
        path = self.directory / name
        try:
            content = memoryview(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            self._say_damaged(path, error.strerror)
            return None
        data = content[_DIGEST_BYTES:]
        if content[:_DIGEST_BYTES] != _digest(name, data):
            self._say_damaged(path, "its content is not what was written")
            return None
        return data

    def write(self, name: str, data: bytes) -> None:
        """Keep it for other processes, all of it or nothing; that it cannot be kept is said."""
        if self.directory is None:
            return
        path = self.directory / name
        try:
            # All of the cache may have been removed meanwhile.
            self.directory.mkdir(parents=True, exist_ok=True)
            write_atomically(path, _digest(name, data) + data, durable=False)
        except OSError as error:
            say_once(
                f"{self._otherwise} in the next process, because %s cannot be written (%s)",
                path,
                error.strerror,
            )

    def keep_newest(self, n: int) -> None:
        """Remove all files but those that were written last; that this cannot be done is said."""
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
            say_once("%s cannot be tidied up (%s)", self.directory, error.strerror)

    def _say_damaged(self, path: Path, why: str | None) -> None:
        say_once(
            f"{self._otherwise} where their cache is damaged; the first such file is %s (%s)",
            path,
            why,
        )
