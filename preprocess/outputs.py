"""The files of one run: begun, gone on with, refused, or found to be there already.

Law: nothing is under a final name before everything is complete and on disk. Then the old manifests
go first and the new ones come last, so whatever a crash leaves, no manifest vouches for files that
are not its own. A run that was interrupted leaves its work directory, and the same command goes on
there; a run of anything else does not touch it unless it is told to (--overwrite). A run that was
refused because of its text leaves nothing: the same command would be refused again, and a run of
other text or with other settings could not go on with what was done.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import xxhash

from bpe.errors import CorpusError, TokenizerFileError, TrainingError, UnavailableError
from preprocess.dataset.columns import data_names, manifest_name
from preprocess.dataset.manifest import Manifest
from preprocess.dataset.reader import refuse_to_overwrite
from preprocess.inputs import Record, differences, of_content_alone
from preprocess.journal import FORMAT_VERSION, Journal, JournalError, understanding
from preprocess.progress import logger
from preprocess.storage import DamagedStateError, LocalStorage, OutputError, Storage, writing

if TYPE_CHECKING:
    from bpe import Tokenizer
    from bpe.text_tokenizer import AnyTokenizer

TOKENIZER_FILE = "tokenizer.json"
STATS_FORMAT = "tokenbin-stats"

# Refusals of the text itself: the same command would only come to them again.
_OF_THE_TEXT = (CorpusError, TrainingError)


class Outputs:
    """The files of one run in one directory; as a context manager it holds the directory's lock.

    Args:
        directory: Made if it does not exist.
        name: The name of this run's work directory inside it.
        made_from: What the run is made from.
        overwrite: Whether files that exist may be replaced, and an unfinished run be given up.

    Attributes:
        storage: Where everything lies that has no final name.
        journal: What was done; of use inside the `with`.
        overwrite: As given.
        resumed: Whether an earlier run of the same command is gone on with.

    Raises:
        OutputError: The directory cannot be written, somebody else is at work there, or an
            unfinished run of something else is there.
        JournalError: The journal of the unfinished run is damaged.
    """

    journal: Journal

    def __init__(self, directory: Path, name: str, made_from: Record, overwrite: bool) -> None:
        refuse_directory(directory)
        self.directory = directory
        self.storage = LocalStorage(directory, name)
        self.resumed = False
        self._made_from = made_from
        self.overwrite = overwrite
        self._small: list[str] = []
        self._data: list[str] = []
        self._manifests: list[str] = []

    def __enter__(self) -> Self:
        self.storage.__enter__()
        try:
            self._open()
        except BaseException:
            self.storage.__exit__(None, None, None)
            raise
        return self

    def _open(self) -> None:
        try:
            self.journal = Journal(self.storage)
            if self.journal.entries and self._goes_on(self.journal.entries[0]):
                self.resumed = True
                return
        except (JournalError, OutputError):
            if not self.overwrite:
                raise
        self.storage.clear()
        self.journal = Journal(self.storage)

    def _goes_on(self, begun: Mapping[str, Any]) -> bool:
        """Whether this run goes on with the one that wrote `begun`; else it takes its place."""
        work = self.storage.work
        with understanding():
            version = begun["format_version"]
        if version != FORMAT_VERSION:
            raise JournalError(
                f"{work}: an unfinished run of another version of tokenbin; finish it with that"
                " one, or start anew (--overwrite)"
            )
        with understanding():
            changed = differences(begun["made_from"], self._made_from)
            # A run that was to overwrite goes on with --overwrite; others start anew with it.
            anew = self.overwrite and (bool(changed) or not begun["overwrite"])
        if changed and not anew:
            raise OutputError(
                f"{work}: an unfinished run of something else is there: {'; '.join(changed)}. Run"
                " the command that it was to finish it, choose another directory or name, or give"
                " it up and start anew (--overwrite)"
            )
        return not anew

    def begin(self) -> None:
        """Write the first entry of the journal, if this is a new run."""
        if not self.resumed:
            self.journal.append(
                {
                    "kind": "begun",
                    "format_version": FORMAT_VERSION,
                    "made_from": self._made_from,
                    "overwrite": self.overwrite,
                }
            )

    @property
    def finishing(self) -> bool:
        """Whether all is complete, and only final names are missing, or some of them."""
        return self.journal.last("finishing") is not None

    def add_tokenizer(self, tokenizer: AnyTokenizer, file_name: str) -> None:
        """Write a tokenizer and its configuration."""
        with writing(self.directory / file_name):
            put_tokenizer(self.storage, tokenizer, file_name)
        self._small += names_of_tokenizer(file_name)

    def add_token_file(self, name: str, manifest: Manifest) -> None:
        """Let NAME.json and the files that it vouches for get their names with the others."""
        self._data += data_names(manifest.stems(name), manifest.columns)
        self._manifests.append(manifest_name(name))

    def trained(self, file_name: str) -> Tokenizer:
        """The tokenizer that an earlier run trained and the journal tells of.

        Raises:
            JournalError: It is not what it was.
        """
        from bpe import Tokenizer

        entry = self.journal.last("trained")
        content = self.storage.get(file_name)
        if (
            entry is None
            or content is None
            or hashlib.sha256(content).hexdigest() != entry["fingerprint"]
        ):
            raise JournalError(
                f"{self.storage.work / file_name}: the tokenizer that was trained is damaged or"
                " gone; start anew (--overwrite)"
            )
        self._small += names_of_tokenizer(file_name)
        return Tokenizer.from_file(self.storage.work / file_name)

    def add_stats(self, name: str, stats: Mapping[str, Any]) -> None:
        """Write what is known of the run itself."""
        manifests = {each: _digest(self.storage.get(each)) for each in self._manifests}
        content = {
            "format": STATS_FORMAT,
            "made_from": self._made_from,
            "manifests": manifests,
            **stats,
        }
        self.storage.put(name, (json.dumps(content, indent=2) + "\n").encode())
        self._small.append(name)

    def commit(self) -> None:
        """Give everything its final name; the writers were finished before."""
        names, last = [*self._small, *self._data], self._manifests
        gone = sorted(self._replaced() - {*names, *last})
        self.journal.append({"kind": "finishing", "names": names, "last": last, "gone": gone})
        self._publish(names, last, gone)

    def _replaced(self) -> set[str]:
        """The files of the token files whose names are about to be taken."""
        there: set[str] = set()
        for name in self._manifests:
            path = self.directory / name
            if path.exists():
                # Whether it is one of ours was asked before any work was done.
                manifest = Manifest.from_json(path.read_text("utf-8", errors="replace"), path)
                there |= {*data_names(manifest.stems(path.stem), manifest.columns)}
        return there

    def commit_again(self) -> None:
        """Go on with a `commit` that was interrupted."""
        entry = self.journal.last("finishing")
        assert entry is not None
        self._publish(entry["names"], entry["last"], entry["gone"])

    def _publish(self, names: Sequence[str], last: Sequence[str], gone: Sequence[str]) -> None:
        self.storage.publish(names, last, gone)
        self.storage.clear()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.journal.__exit__(kind, error, traceback)
            if isinstance(error, _OF_THE_TEXT) and not isinstance(error, UnavailableError):
                self.storage.clear()
                if self.journal.n_entries > 1:
                    logger.warning(
                        "what was done is given up: the same command would come to this again, and"
                        " one with other text or settings could not go on with it"
                    )
            elif isinstance(error, DamagedStateError):
                # The message says to start anew with --overwrite. Who has given it already would
                # go on with the same damage for ever: a run of --overwrite goes on with itself.
                if self.overwrite:
                    self.storage.clear()
                    logger.warning(
                        "what was done is damaged and was given up (--overwrite): the same command"
                        " starts anew"
                    )
            elif error is not None and self.storage.exists():
                when = ""
                if isinstance(error, UnavailableError):
                    when = (
                        ", when the file is as it was, with its time (cp -p); without it, or with"
                        " what it is now, start anew (--overwrite)"
                    )
                logger.warning(
                    "what was done is kept in %s: the same command goes on there%s",
                    self.storage.work,
                    when,
                )
        finally:
            self.storage.__exit__(kind, error, traceback)


def put_tokenizer(storage: Storage, tokenizer: AnyTokenizer, file_name: str) -> None:
    """Write a tokenizer and its configuration into a storage."""
    with tempfile.TemporaryDirectory(prefix="tokenbin-") as directory:
        tokenizer.save(Path(directory, file_name))
        for path in sorted(Path(directory).iterdir()):
            storage.put(path.name, path.read_bytes())


def names_of_tokenizer(file_name: str) -> list[str]:
    """The files of a tokenizer: itself behind its configuration, which means nothing without it."""
    return [f"{Path(file_name).stem}_config.json", file_name]


def _digest(content: bytes | None) -> str | None:
    return None if content is None else xxhash.xxh3_128_hexdigest(content)


def finished_before(
    directory: Path, token_files: Sequence[str], stats_file: str, made_from: Record
) -> list[str] | None:
    """What has changed since finished outputs were made; [] if nothing, None if there are none.

    Outputs that stats.json does not tell of, because another command wrote them later, are none.

    Args:
        directory: Where they would be.
        token_files: NAME of each token file.
        stats_file: The name of what says what they were made from.
        made_from: What would be made now.
    """
    stats = stats_in(directory / stats_file)
    if stats is None:
        return None
    try:
        for name in map(manifest_name, token_files):
            path = directory / name
            if not path.exists() or stats["manifests"][name] != _digest(path.read_bytes()):
                return None
        return differences(stats["made_from"], made_from)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None  # It was written before outputs said what they were made from.


def trained_before(path: Path, stats_file: str) -> bool:
    """Whether a tokenizer.json is the one that the stats beside it tell of, to the byte."""
    stats = stats_in(path.with_name(stats_file))
    fingerprint = hashlib.sha256(path.read_bytes()).hexdigest()
    return stats is not None and stats.get("fingerprint") == fingerprint


def may_have_the_same_text(stats_path: Path, made_from: Record) -> bool:
    """Whether finished outputs were made from the same, but for times and places of files."""
    stats = stats_in(stats_path)
    try:
        return stats is not None and not differences(
            of_content_alone(stats["made_from"]), of_content_alone(made_from)
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def refuse_directory(directory: Path) -> None:
    """Refuse a directory that cannot be made or written to, before any work is done.

    Raises:
        OutputError: That is so.
    """
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        raise OutputError(
            f"{directory}: {place} is not a directory; choose another output directory"
        )
    if not os.access(place, os.W_OK | os.X_OK):
        raise OutputError(
            f"{directory}: {place} cannot be written to by this user; choose another output"
            " directory or change its permissions"
        )


def refuse_outputs_in_the_way(
    directory: Path,
    token_files: Sequence[str],
    stats_file: str,
    overwrite: bool,
    why: str = "",
    shards: bool = False,
) -> None:
    """Refuse, before any work is done, outputs that could not be put in place.

    Raises:
        OutputError: The directory cannot be written, or something else has the name of the stats.
        TokenFileError: A token file exists and may not be replaced.
    """
    for name in token_files:
        refuse_to_overwrite(directory, name, overwrite, why, shards)
    stats_path = directory / stats_file
    if stats_path.exists() and stats_in(stats_path) is None:
        raise OutputError(
            f"{stats_path}: exists and was not written by tokenbin, so it is left alone; move it"
            " away or choose another directory or name"
        )


def stats_in(path: Path) -> dict[str, Any] | None:
    """What a stats.json of ours says; None if there is none."""
    try:
        # Reading a pipe would wait for somebody who writes to it.
        content = json.loads(path.read_bytes()) if path.is_file() else None
    except (ValueError, OSError, RecursionError):
        return None
    return content if isinstance(content, dict) and content.get("format") == STATS_FORMAT else None


def refuse_configuration(path: Path, overwrite: bool) -> None:
    """Refuse a configuration that is there without its tokenizer, and so may not be one of ours.

    Raises:
        OutputError: That is so, and it may not be replaced.
    """
    configuration = path.with_name(f"{path.stem}_config.json")
    if configuration.exists() and not path.exists() and not overwrite:
        raise OutputError(
            f"{configuration}: exists without {path.name} and would be replaced; move it away,"
            " choose another name or directory, or replace it (--overwrite)"
        )


def saves_tokenizer(
    directory: Path, tokenizer: AnyTokenizer | None, given: Path | None, overwrite: bool
) -> bool:
    """Whether the run has to put a tokenizer.json in the directory.

    Args:
        directory: Where it would be.
        tokenizer: The one that is used; None: it is going to be trained.
        given: The file or the name that `tokenizer` was read from.
        overwrite: Whether one that is there may be replaced.

    Raises:
        OutputError: Another tokenizer is there, or the configuration of one, and may not be
            replaced.
    """
    from bpe import load_tokenizer

    path = directory / TOKENIZER_FILE
    refuse_configuration(path, overwrite)
    if not path.exists():
        return True
    if given is not None and given.exists() and os.path.samefile(path, given):
        return False
    if tokenizer is not None:
        try:
            if load_tokenizer(path).fingerprint == tokenizer.fingerprint:
                return False
        except TokenizerFileError:
            pass  # Whatever it is, it is not this tokenizer.
    if not overwrite:
        raise OutputError(
            f"{path}: another tokenizer is there, and the token files beside it may need it; use it"
            f" (--tokenizer {path}), choose another directory, or replace it (--overwrite)"
        )
    return True
