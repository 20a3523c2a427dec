"""Write whole files so that a name has its old content or its new one, and nothing between."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

# For a longer write the system may look for memory in pieces as long as that: 2 MiB took up to 17
# times as long as these (docs/performance.md).
_WRITTEN_AT_ONCE = 256 * 1024


def write_atomically(
    path: Path, data: bytes, *, temporary: Path | None = None, durable: bool = True
) -> None:
    """Write a file under a temporary name, bring it to the disk, then give it its name.

    Args:
        path: The file.
        data: All of its content.
        temporary: The other name, in the same directory; None: one that nobody else takes, not even
            a process of the same number on another machine.
        durable: Whether it is on the disk before it has its name, and its name before this returns.
            Without, a power cut may leave a file of any content.

    Raises:
        OSError: The file cannot be written; nothing is left, and what had the name before still has
            it.
    """
    if temporary is None:
        temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.partial")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            write_all(descriptor, memoryview(data))
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            os.unlink(temporary)
        raise
    if durable:
        sync_directory(path.parent)


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of `data`, bytes, at the place where a file is open."""
    while len(data):
        data = data[os.write(descriptor, data[:_WRITTEN_AT_ONCE]) :]


def sync_directory(directory: Path) -> None:
    """Bring names that were given and removed in a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
