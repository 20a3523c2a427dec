"""Output files of one run: begin, resume, refuse, commit.

Files get their final names once all are complete and durable. Old manifests are removed first and
new ones renamed last, so a manifest never describes files of another run. An interrupted run leaves
its work directory: the same command resumes it, and no other command changes it without
--overwrite. A run that fails because of its text leaves nothing, for no command could resume it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct

from bpe.errors import CorpusError, TokenizerFileError, TrainingError, UnavailableError
from bpe.files.temporary import temporary_directory
from preprocess.dataset.columns import manifest_name
from preprocess.dataset.manifest import Manifest
from preprocess.documents.batch import Rejected
from preprocess.options import BuildSettings
from preprocess.report.progress import logger
from preprocess.report.summary import LeftOut
from preprocess.run.finished import (
    STATS_FORMAT,
    _sha256,
    digest_of,
    read_stats,
)
from preprocess.run.journal import FORMAT_VERSION, Journal, JournalError
from preprocess.run.record import Record, differences
from preprocess.storage import (
    JOURNAL_FILE,
    DamagedStateError,
    Files,
    OutputError,
    Storage,
    open_storage,
    writing,
)

if TYPE_CHECKING:
    from bpe import Tokenizer
    from bpe.text_tokenizer import AnyTokenizer

TOKENIZER_FILE = "tokenizer.json"


class Begun(Struct, tag_field="kind", tag="begun"):
    """First entry of a journal: the inputs of the run."""

    format_version: int
    made_from: Record
    overwrite: bool


class Trained(Struct, tag_field="kind", tag="trained", forbid_unknown_fields=True):
    """Checkpoint: the tokenizer is trained and saved."""

    fingerprint: str  # sha256 of its file
    left_out: LeftOut  # of the count pass
    stages: list[dict[str, Any]]  # completed so far, as `Stage.facts`


class Committing(Struct, tag_field="kind", tag="finishing"):
    """Checkpoint: all files are complete; the fields are arguments of `Storage.publish`."""

    names: list[str]
    last: list[str]
    gone: list[str]


class Outputs:
    """Output files of one run in one directory; a context manager that locks the directory.

    Args:
        location: The directory, or a URL; created if it does not exist.
        name: Name of the work directory inside it.
        made_from: Inputs of the run.
        overwrite: True to replace existing files and discard an unfinished run.
        own_lock: True if other runs may write to the directory at the same time.

    Attributes:
        storage: Storage of the work files.
        journal: Journal of the run; set inside the `with`.
        overwrite: As given.
        resumed: True if an earlier run of the same command is resumed.

    Raises:
        OutputError: The directory cannot be written, is locked, or has an unfinished run with
            other inputs.
        JournalError: The journal of the unfinished run is damaged.
    """

    journal: Journal

    def __init__(
        self, location: str, name: str, made_from: Record, overwrite: bool, own_lock: bool = False
    ) -> None:
        self.storage = open_storage(location, name, own_lock)
        self.storage.check_writable()
        self.overwrite, self.resumed, self._made_from = overwrite, False, made_from
        self._small, self._data, self._manifests = list[str](), list[str](), list[str]()
        self._gone, self._rejects = list[str](), list[str]()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.storage)
            self._open()
            stack.pop_all()
        return self

    def _open(self) -> None:
        try:
            self.journal = Journal(self.storage)
            begun = self.journal.last(Begun)
            if self.journal.entries and begun is None:
                raise JournalError(
                    f"{JOURNAL_FILE}: has no entry with the inputs of its run; start over"
                    " (--overwrite)"
                )
            if begun is not None and self._resumes(begun):
                self.resumed = True
                return
        except OutputError:
            if not self.overwrite:
                raise
        self.storage.clear()
        self.journal = Journal(self.storage)

    def _resumes(self, begun: Begun) -> bool:
        """Return True if this run resumes the one that wrote `begun`, False if it replaces it."""
        work = self.storage.where()
        if begun.format_version != FORMAT_VERSION:
            raise JournalError(
                f"{work}: an unfinished run of another version of tokenmill; finish it with that"
                " version, or start over (--overwrite)"
            )
        changed = differences(begun.made_from, self._made_from)
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
        """Write the first entry of the journal, unless the run is resumed."""
        if not self.resumed:
            self.journal.append(Begun(FORMAT_VERSION, self._made_from, self.overwrite))

    def add_tokenizer(self, tokenizer: AnyTokenizer, file_name: str) -> None:
        """Write a tokenizer and its configuration, and register them for `commit`."""
        put_tokenizer(self.storage, tokenizer, file_name)
        self._small += list_tokenizer_files(file_name)

    def load_trained(self, file_name: str, fingerprint: str) -> Tokenizer:
        """Load and register the tokenizer of an earlier run; raise JournalError if it differs."""
        from bpe import Tokenizer

        if _sha256(self.storage.get(file_name)) != fingerprint:
            raise JournalError(
                f"{self.storage.where(file_name)}: the trained tokenizer is damaged or missing;"
                " start over (--overwrite)"
            )
        self._small += list_tokenizer_files(file_name)
        return Tokenizer.from_file(self.storage.path(file_name))

    def add_token_file(self, name: str, manifest: Manifest) -> None:
        """Register NAME.json and its files, unless they are those of parts, for `commit`."""
        self._data += manifest.own_files(name)
        self._manifests.append(manifest_name(name))

    def add_stats(self, name: str, stats: Mapping[str, Any]) -> None:
        """Write a stats.json, and register it for `commit`."""
        content = {
            "format": STATS_FORMAT,
            "made_from": msgspec.to_builtins(self._made_from),
            "manifests": {each: digest_of(self.storage.get(each)) for each in self._manifests},
            "rejects": {each: digest_of(self.storage.get(each)) for each in self._rejects},
            **stats,
        }
        self.storage.put(name, (json.dumps(content, indent=2) + "\n").encode())
        self._small.append(name)

    def add_rejects(self, name: str, rejected: Sequence[Rejected] | None) -> None:
        """Write the records that were left out, a line each; None: remove an earlier list."""
        if rejected is None:
            self._gone += [name] if self.storage.final.size(name) is not None else []
            return
        lines = (json.dumps(msgspec.to_builtins(each)) for each in rejected)
        self.storage.put(name, "".join(f"{line}\n" for line in lines).encode())
        self._small.append(name)
        self._rejects.append(name)

    def commit(self) -> None:
        """Give all registered files, which are complete, their final names."""
        names, last = [*self._small, *self._data], self._manifests
        replaced: set[str] = set()
        for name in last:
            if (text := self.storage.final.get(name)) is not None:
                # `check_outputs_absent` found a manifest before the run began.
                manifest = Manifest.from_json(text.decode("utf-8", "replace"), name)
                replaced |= {*manifest.own_files(Path(name).stem)}
        entry = Committing(names, last, sorted({*replaced, *self._gone} - {*names, *last}))
        self.journal.append(entry)
        self._publish(entry)

    def commit_again(self) -> bool:
        """Resume an interrupted `commit`; return False if there is none."""
        entry = self.journal.last(Committing)
        if entry is not None:
            self._publish(entry)
        return entry is not None

    def _publish(self, entry: Committing) -> None:
        self.storage.publish(entry.names, entry.last, entry.gone)
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
        if isinstance(error, (CorpusError, TrainingError)) and not is_unavailable:
            self.storage.clear()
            if self.journal.n_entries > 1:
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


# --- tokenizer files ---


def put_tokenizer(storage: Storage, tokenizer: AnyTokenizer, file_name: str) -> None:
    """Write a tokenizer and its configuration into a storage.

    Raises:
        OutputError: Writing to the storage or the temporary directory fails.
    """
    where = storage.final.where(file_name)
    with writing(where), temporary_directory() as directory:
        tokenizer.save(directory / file_name)
        for path in sorted(directory.glob("[!.]*")):
            storage.put(path.name, path.read_bytes())


def list_tokenizer_files(file_name: str) -> list[str]:
    """Return the file names of a tokenizer in publishing order: configuration, tokenizer."""
    return [f"{Path(file_name).stem}_config.json", file_name]


def check_rejects_absent(files: Files, name: str, stats_file: str) -> None:
    """Raise OutputError if a list of bad records was not written by the run of a stats.json."""
    content = files.get(name)
    stats = read_stats(files, stats_file)
    if content is not None and (stats is None or stats.rejects.get(name) != digest_of(content)):
        raise OutputError(
            f"{files.where(name)}: exists and was not written by tokenmill, so it is left alone;"
            " move it away or choose another directory or name"
        )


def check_configuration_absent(files: Files, name: str, overwrite: bool) -> None:
    """Raise OutputError if `overwrite` is needed to replace a configuration without tokenizer."""
    configuration, _ = list_tokenizer_files(name)
    is_alone = files.size(configuration) is not None and files.size(name) is None
    if is_alone and not overwrite:
        raise OutputError(
            f"{files.where(configuration)}: exists without {name} and would be replaced; move it"
            " away, choose another name or directory, or replace it (--overwrite)"
        )


def needs_tokenizer_file(
    files: Files, tokenizer: AnyTokenizer | None, settings: BuildSettings
) -> bool:
    """Return True if a build must write a tokenizer.json; `tokenizer` is None if it trains one.

    Of several tasks, which run at the same time, the first one writes it.

    Raises:
        OutputError: Another tokenizer or a configuration exists, without --overwrite.
    """
    from bpe import load_tokenizer

    writes = not settings.task_index
    if writes:
        check_configuration_absent(files, TOKENIZER_FILE, settings.overwrite)
    if files.size(TOKENIZER_FILE) is None:
        return writes
    path, where = files.path(TOKENIZER_FILE), files.where(TOKENIZER_FILE)
    if tokenizer is not None and settings.tokenizer is not None:
        given = settings.tokenizer if isinstance(settings.tokenizer, str) else ""
        is_same = os.path.exists(given) and os.path.samefile(path, given)
        # It may lack a special token that is given.
        if is_same and settings.end_of_text is None:
            return False
        with suppress(TokenizerFileError):  # an unreadable file is another tokenizer
            if load_tokenizer(path).fingerprint == tokenizer.fingerprint:
                return False
    if not settings.overwrite:
        raise OutputError(
            f"{where}: another tokenizer exists, and token files in its directory may need it; use"
            f" it (--tokenizer {where}), choose another directory, or replace it (--overwrite)"
        )
    return writes
