"""Write files atomically: a name has either its old content or its new one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from bpe.files.locations import local_path

# Larger writes may allocate contiguous memory: 2 MiB took up to 17 times as long
# (docs/performance.md).
_WRITTEN_AT_ONCE = 256 * 1024
# Errors of file systems that cannot sync directories, such as some of SMB, 9p and FUSE.
_UNSUPPORTED = {
    errno.EINVAL, errno.EBADF, errno.EISDIR, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP,
}


def write_atomically(
    path: Path, data: bytes, *, temporary: Path | None = None, durable: bool = True
) -> None:
    """Write a file under a temporary name, sync it, then rename it.

    Args:
        path: The file.
        data: The whole content.
        temporary: Temporary name in the same directory, random if None.
        durable: Whether to sync the file before renaming, and then the directory. If False, the
            content is undefined after a power cut.

    Raises:
        OSError: The file cannot be written; `path` and its directory are unchanged.
        LocationError: The path is a URL.
    """
    local_path(path)
    if temporary is None:
        temporary = path.with_name(f".{path.name}.{os.urandom(8).hex()}.partial")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            write_all(descriptor, memoryview(data))
            if durable:
                sync(descriptor)
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
    """Write all of `data`, bytes, at the current position of a file."""
    while len(data):
        data = data[os.write(descriptor, data[:_WRITTEN_AT_ONCE]) :]


def sync(descriptor: int, data_only: bool = False) -> None:
    """Sync a file to the disk; `data_only`: without times and permissions, if that is possible."""
    # On macOS fsync leaves it in the cache of the drive; some of its file systems have no more.
    if hasattr(fcntl, "F_FULLFSYNC"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    if data_only and hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


def sync_directory(directory: Path) -> None:
    """Sync the names in a directory to the disk, if its file system can."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
