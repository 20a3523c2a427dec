"""Storage of outputs: writing, renaming, listing, locking and removing files.

A file is durable once `Stream.sync` or `Storage.put` has returned. A run writes to its own work
area until `publish` gives files their final names; `publish` may be interrupted and repeated.
docs/durability.md describes this commit protocol, for directories and for buckets.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bpe.files.locations import local_path
from preprocess.locations import is_bucket
from preprocess.storage.errors import DamagedStateError, LockedError, OutputError, writing
from preprocess.storage.files import Files, LocalFiles, digest_of_file, open_files
from preprocess.storage.local import IN_ORDER, JOURNAL_FILE, LOCK_FILE, REPAIR, LocalStorage, Stream
from preprocess.storage.remote import LARGEST_OBJECT

if TYPE_CHECKING:
    from preprocess.storage.bucket import BucketStorage

__all__ = [
    "IN_ORDER", "JOURNAL_FILE", "LARGEST_OBJECT", "LOCK_FILE", "REPAIR", "DamagedStateError",
    "Files", "LocalFiles", "LocalStorage", "LockedError", "OutputError", "Storage",
    "Stream", "digest_of_file", "open_files", "open_repair", "open_storage", "writing",
]


# Both have the methods that `LocalStorage` describes.
Storage: TypeAlias = "LocalStorage | BucketStorage"


def open_storage(
    location: str | os.PathLike[str], run: str = "", own_lock: bool = False
) -> Storage:
    """Open the storage of a run in a directory or a bucket; to read, `open_files` is enough.

    With `own_lock` the run locks its own files only, for others write beside it.

    Raises:
        LocationError: The location is a URL, and not one of a bucket.
        RemoteError: The URL has a password in it, or the library for buckets is not installed.
    """
    if is_bucket(os.fspath(location)):
        from preprocess.storage.bucket import BucketStorage

        return BucketStorage(os.fspath(location), run, own_lock)
    return LocalStorage(local_path(location), run, own_lock)


@contextmanager
def open_repair(directory: Path) -> Iterator[Storage]:
    """Open and lock the storage of a repair; remove its work files at the end."""
    with open_storage(directory, REPAIR) as storage:
        storage.clear()
        try:
            yield storage
        finally:
            storage.clear()
