"""Where outputs are kept: every file that is written, renamed, listed, locked or removed.

`Storage` is the protocol that the rest of the package uses, and `open_storage` opens one. The only
implementation keeps files in a local directory (`preprocess.storage.local`). docs/durability.md
describes the commit protocol, also for a store of objects; tests/test_storage.py has one in memory.

A file is durable once `Stream.sync` or `put` has returned. A run writes to a work area of its own
until `publish` gives files their final names; `publish` may be interrupted anywhere and repeated. A
failed write names the file and the position, and undoes nothing that was done before.
"""

from __future__ import annotations

import os

from bpe.locations import local_path
from preprocess.storage.base import (
    JOURNAL_FILE,
    REPAIR,
    DamagedStateError,
    Files,
    OutputError,
    Storage,
    Stream,
)
from preprocess.storage.local import LocalStorage

__all__ = [
    "JOURNAL_FILE",
    "REPAIR",
    "DamagedStateError",
    "Files",
    "OutputError",
    "Storage",
    "Stream",
    "open_storage",
]


def open_storage(location: str | os.PathLike[str], run: str = "") -> Storage:
    """Open the storage of a run in a location, which is created when something is written.

    Args:
        location: The directory where outputs get their final names.
        run: The name of the run; "" where only finished files are read.

    Raises:
        LocationError: The location is a URL.
    """
    return LocalStorage(local_path(location), run)
