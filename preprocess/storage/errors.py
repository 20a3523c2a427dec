"""Errors of a storage, and what their messages say is left."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bpe.errors import TokenmillError

# What a failed write leaves, for messages.
WORK_KEPT = "nothing was put under a final name, and progress so far is saved"
PUBLISHED_KEPT = "files with final names are complete, and all others are kept"
OUTPUTS_KEPT = "outputs are not affected"
# Errors that freeing space resolves.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class OutputError(TokenmillError):
    """Outputs exist already, cannot be written, or are being written by another process."""


class LockedError(OutputError):
    """Another process is writing there."""


class DamagedStateError(OutputError):
    """The work files of an earlier run are damaged, so it cannot be resumed."""


@contextmanager
def writing(path: Path | str, kept: str = WORK_KEPT, position: int | None = None) -> Iterator[None]:
    """Convert an OSError inside the `with` to an OutputError that names the file."""
    try:
        yield
    except OSError as error:
        place = "" if position is None else f" at byte {position:,}"
        is_full = error.errno in _NO_SPACE
        advice = "free the space" if is_full else "check the disk and its permissions"
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            advice = "a file is where a directory is expected, so move the file"
        another = ", or choose another directory" if kept is WORK_KEPT else ""
        raise OutputError(
            f"{path}: could not be written{place}: {error.strerror or error}; {kept}: {advice} and"
            f" run the same command again{another}"
        ) from error
