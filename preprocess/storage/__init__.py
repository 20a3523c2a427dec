"""Where outputs are kept: every file that is written, renamed, listed, locked or removed.

`Storage` is all that the rest of the package knows. `open_storage` opens the one of a location; the
scheme of a URL chooses its kind in `STORAGES`, and the only kind there is keeps files in a local
directory (`preprocess.storage.local`). Durable is what `Stream.sync` or `put` returned from. A run
keeps everything in a work area of its own until `publish` gives it its final name; `publish` may be
interrupted anywhere and called again. A write that fails names the file and the place, and undoes
nothing that was done before.

Commit protocol for a store of objects, which can neither rename nor append, but replaces one object
as a whole and puts one only if it does not exist:

1. Keys. A finished file is the object LOCATION/NAME. A work file of the run RUN is one or more
   objects under LOCATION/.RUN.partial/. No reader looks there.
2. Streams. A stream is a sequence of immutable objects NAME/000000, NAME/000001 and so on, whose
   sizes add up to its length: `append` collects bytes, `sync` puts them as the next object.
   `stream(name, n)` removes the objects after byte n, and replaces the one that n lies in by its
   first bytes. It refuses if they are shorter than n.
3. Journal. It is a stream that is synced after each line, so each entry is a small object of its
   own. It is read by concatenating them in order; a missing one breaks the chain of checks.
4. Lock. LOCATION/.tokenbin.lock is put only if it does not exist (If-None-Match: *), with owner
   and expiry; the owner replaces it in time (If-Match: its own version), and one that has expired
   may be taken over in the same way. A writer that loses it stops before the next put.
5. Publishing. The journal has the entry "finishing" first, so the set of names is durable. Then the
   manifests that are replaced are deleted; each file is put under its final key in one step
   (a server-side copy or a completed multipart upload of its objects), the manifests last; then the
   work objects are deleted, the journal last. A step whose final object exists and whose work
   objects are gone was done by an earlier attempt. So a manifest that can be read always describes
   complete files.

tests/test_storage.py has such a store of objects in memory; a build on it is interrupted, resumed
and verified.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from bpe.locations import is_url, local_path
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
    "STORAGES",
    "DamagedStateError",
    "Files",
    "OutputError",
    "Storage",
    "Stream",
    "open_storage",
]

# Scheme of a URL, "" for a path -> what opens the storage of a run in a location.
STORAGES: dict[str, Callable[[str, str], Storage]] = {"": LocalStorage}


def open_storage(location: str | os.PathLike[str], run: str = "") -> Storage:
    """Open the storage of a run in a location; it is created when something is written.

    Args:
        location: Where the outputs get their final names.
        run: The name of the run; "" where only finished files are read.

    Raises:
        LocationError: The location is a URL of a scheme that has no storage.
    """
    text = os.fspath(location)
    scheme = text.partition("://")[0] if is_url(text) else ""
    if scheme not in STORAGES:
        local_path(text)
    return STORAGES[scheme](text, run)
