"""Keep standard input in the work files of a run, to read it more than once and to resume."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import xxhash
from msgspec import Struct

from preprocess.run.journal import Journal
from preprocess.sources.standard_input import FILE_NAME, read_pieces
from preprocess.storage import DamagedStateError, OutputError


class InputRead(Struct, forbid_unknown_fields=True):
    """Checkpoint: all of standard input is in its file."""

    bytes: int
    digest: str  # xxh3_128


def keep_standard_input(journal: Journal) -> Path:
    """Write standard input to a work file, and return its path.

    A run that is resumed has it already. Standard input must then be the same, nothing, or a
    terminal.

    Raises:
        CorpusError: There is no standard input.
        OutputError: The file cannot be written, or standard input is not that of the run that is
            resumed.
        DamagedStateError: The file of the run that is resumed is damaged.
    """
    storage, entry = journal.storage, journal.value("standard input", InputRead)
    path = storage.path(FILE_NAME)
    digest, n_bytes = xxhash.xxh3_128(), 0
    if entry is None:
        with closing(storage.stream(FILE_NAME)) as stream:
            for piece in read_pieces():
                digest.update(piece)
                stream.append(memoryview(piece))
            stream.sync()
            n_bytes = stream.n_bytes
        journal.save("standard input", InputRead(n_bytes, digest.hexdigest()))
        return path
    if storage.size(FILE_NAME) != entry.bytes:
        raise DamagedStateError(
            f"{storage.where(FILE_NAME)}: the standard input of the interrupted run is damaged or"
            " missing; start over (--overwrite)"
        )
    if sys.stdin is not None and not sys.stdin.isatty():
        for piece in read_pieces():
            digest.update(piece)
            n_bytes += len(piece)
        if n_bytes and (n_bytes, digest.hexdigest()) != (entry.bytes, entry.digest):
            raise OutputError(
                f"-: standard input has {n_bytes:,} bytes, and is not the {entry.bytes:,} bytes"
                " that the interrupted run has read; give the same or nothing (< /dev/null) to"
                f" resume, or remove {storage.where()} to start over"
            )
    return path
