"""One run that writes files into one place: lock it, resume, write, give all files their names.

Files get their final names once all are complete and durable. Those in `last`, manifests, which
describe the others, are removed first and renamed last, so a manifest never describes files of
another run. An interrupted run leaves its work directory: the same command resumes it, and no other
command changes it without --overwrite. A run that fails because of its text leaves nothing, for no
command could resume it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

from msgspec import Struct

from bpe.errors import CorpusError, TrainingError, UnavailableError
from preprocess.report.progress import logger
from preprocess.run.journal import FORMAT_VERSION, Journal, JournalError
from preprocess.run.record import Record, differences
from preprocess.storage import (
    JOURNAL_FILE,
    DamagedStateError,
    OutputError,
    open_storage,
)

_BEGUN, PUBLISHING = "begun", "publishing"  # keys of the journal


class Begun(Struct, forbid_unknown_fields=True):
    """First value of a journal: the inputs of the run."""

    format_version: int
    made_from: Record
    overwrite: bool


class Publishing(Struct, forbid_unknown_fields=True):
    """All files are complete; the fields are arguments of `Storage.publish`."""

    names: list[str]
    last: list[str]
    gone: list[str]
    replaces: bool = False


class Run:
    """One run in one directory; a context manager that locks the directory.

        with Run(location, "rows", made_from, overwrite) as run:
            if not (run.is_complete or is_up_to_date()):
                run.begin()
                ...  # write to run.storage, note in run.journal how far
                run.put("manifest.json", data, last=True)
                run.publish()

    Inside the `with`, a run that was interrupted while it gave files their names has done so.

    Args:
        location: The directory, or a URL; created if it does not exist.
        name: Name of the work directory inside it.
        made_from: Inputs of the run.
        overwrite: True to replace existing files and discard an unfinished run.
        own_lock: True if other runs may write to the directory at the same time.
        hopeless: Errors after which the same command would fail again.

    Attributes:
        storage: Storage of the work files.
        journal: Journal of the run; set inside the `with`.
        made_from: As given.
        overwrite: As given.
        resumed: True if an earlier run of the same command is resumed.
        is_complete: True if all that an earlier run lacked were final names, which files have now.
        manifests: Registered files that describe the others.
        published: Names of the files that `publish` gave their names.
        gone: Names of finished files that `publish` removes, unless it replaces them.

    Raises:
        OutputError: The directory cannot be written, is locked, or has an unfinished run with
            other inputs.
        JournalError: The journal of the unfinished run is damaged.
    """

    journal: Journal

    def __init__(
        self, location: str, name: str, made_from: Record, overwrite: bool, own_lock: bool = False,
        hopeless: tuple[type[Exception], ...] = (CorpusError, TrainingError),
    ) -> None:
        self.storage = open_storage(location, name, own_lock)
        self.made_from, self.overwrite, self._hopeless = made_from, overwrite, hopeless
        self.resumed = self.is_complete = False
        self.published, self.gone = list[str](), set[str]()
        self._names, self.manifests = list[str](), list[str]()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.storage)
            try:
                self.journal = Journal(self.storage)
                self.resumed = self._resumes()
                if entry := self.journal.value(PUBLISHING, Publishing):
                    # Also that of another run, which is replaced then: without its manifests,
                    # nobody would know whose files these are.
                    self._publish(entry)
                    self.resumed, self.is_complete = False, self.resumed
            except DamagedStateError:
                if not self.overwrite:
                    raise
                self.resumed = False
            if not self.resumed:
                self.storage.clear()  # also what is left of an interrupted removal
                self.journal = Journal(self.storage)
            stack.pop_all()
        return self

    def _resumes(self) -> bool:
        """Return True if this run resumes the one of the journal, False if it starts anew."""
        if not self.journal.keys:
            return False
        work, begun = self.storage.where(), self.journal.value(_BEGUN, Begun)
        if begun is None or begun.format_version != FORMAT_VERSION:
            raise JournalError(
                f"{work}/{JOURNAL_FILE}: has no entry of this version of tokenmill with the inputs"
                " of its run; finish it with the version that began it, or start over (--overwrite)"
            )
        changed = differences(begun.made_from, self.made_from)
        # --overwrite resumes a run that was begun with it, and discards any other.
        if self.overwrite and (changed or not begun.overwrite):
            return False
        if changed:
            raise OutputError(
                f"{work}: an unfinished run with other inputs exists: {'; '.join(changed)}. Run its"
                " command to finish it, choose another directory or name, or discard it and start"
                " over (--overwrite)"
            )
        return True

    def begin(self) -> None:
        """Write the inputs to the journal, unless the run is resumed."""
        if not self.resumed:
            self.journal.save(_BEGUN, Begun(FORMAT_VERSION, self.made_from, self.overwrite))

    def put(self, name: str, data: bytes, last: bool = False) -> None:
        """Write a small file, and register it for `publish`."""
        self.storage.put(name, data)
        self.add(name, last=last)

    def add(self, *names: str, last: bool = False) -> None:
        """Register complete files for `publish`, in order; those in `last` describe the others."""
        (self.manifests if last else self._names).extend(names)

    def publish(self, replaces: bool = False) -> None:
        """Give all registered files, which are complete, their final names.

        With `replaces`, files that are there describe what is there until they are replaced.
        """
        gone = sorted(self.gone - {*self._names, *self.manifests}, key=lambda x: x[-5:] != ".json")
        entry = Publishing(self._names, self.manifests, gone, replaces)
        self.journal.save(PUBLISHING, entry)
        self._publish(entry)

    def _publish(self, entry: Publishing) -> None:
        self.storage.publish(entry.names, entry.last, entry.gone, entry.replaces)
        self.published = [*entry.names, *entry.last]
        self.storage.clear()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            self.journal.__exit__(kind, error, traceback)
            if error is not None:
                self._keep_or_clear(error)
        finally:
            self.storage.__exit__(kind, error, traceback)

    def _keep_or_clear(self, error: object) -> None:
        """Keep the work directory if the same command can resume it, and report that."""
        is_unavailable = isinstance(error, UnavailableError)
        if isinstance(error, self._hopeless) and not is_unavailable:
            self.storage.clear()
            if len(self.journal.keys) > 1:
                logger.warning(
                    "progress is discarded: the same command would fail again, and a command with"
                    " other text or settings could not use it"
                )
        elif isinstance(error, DamagedStateError):
            # A rerun with --overwrite, as the message advises, would resume the damaged run.
            if self.overwrite:
                self.storage.clear()
                logger.warning(
                    "saved progress is damaged and was discarded (--overwrite): rerun the same"
                    " command to start over"
                )
        elif self.storage.names():
            when = (
                ", once the file can be read and is as it was, with its modification time (cp -p);"
                " without it, or with its new content, start over (--overwrite)"
            )
            logger.warning(
                "progress is saved in %s; rerun the same command to resume%s",
                self.storage.where(), when if is_unavailable else "",
            )
