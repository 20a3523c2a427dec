"""Storage of outputs: writing, renaming, listing, locking and removing files.

A file is durable once `Stream.sync` or `Storage.put` has returned. A run writes to its own work
area until `publish` gives files their final names; `publish` may be interrupted and repeated.
docs/durability.md describes this commit protocol, also for an object store;
tests/faults/test_storage.py has such a store in memory.
"""

from __future__ import annotations

import os

from bpe.files.locations import local_path
from preprocess.storage.base import (
    JOURNAL_FILE,
    REPAIR,
    DamagedStateError,
    Files,
    OutputError,
    Storage,
    Stream,
)
from preprocess.storage.local import LOCK_FILE, LocalFiles, LocalStorage, LocalStream, writing

__all__ = [
    "JOURNAL_FILE", "LOCK_FILE", "REPAIR", "DamagedStateError", "Files", "LocalFiles",
    "LocalStorage", "LocalStream", "OutputError", "Storage", "Stream", "open_storage", "writing",
]


def open_storage(
    location: str | os.PathLike[str], run: str = "", own_lock: bool = False
) -> Storage:
    """Open the storage of a run, "" to read finished files; raise LocationError for a URL.

    With `own_lock` the run locks its own files only, for others write beside it.
    """
    return LocalStorage(local_path(location), run, own_lock)
