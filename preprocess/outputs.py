"""Where a run puts its files: all of them under their final names, or none.

Law: nothing is under a final name before everything is complete and on disk. Then the old manifests
go first and the new ones come last, so whatever a crash leaves, no manifest vouches for files that
are not its own. A run that ends in any other way removes what it wrote.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from bpe.errors import TokenbinError, TokenizerFileError
from preprocess.token_file import TokenFileWriter, refuse_to_overwrite

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
STATS_FORMAT = "tokenbin-stats"


class OutputError(TokenbinError):
    """Outputs exist already, or cannot be written."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure of the system inside the `with` into one that says what was not written."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path}: could not be written: {error.strerror or error}; nothing was put under a"
            " final name: see to the space and the permissions, or choose another directory"
        ) from error


class Outputs:
    """The files of one run in one directory.

    Args:
        directory: Made if it does not exist.
        name: The name of this run's work directory inside it, where small files wait.
        overwrite: Whether files that exist may be replaced.

    Raises:
        OutputError: The directory cannot be written.
    """

    def __init__(self, directory: Path, name: str, overwrite: bool) -> None:
        self.directory = directory
        self._overwrite = overwrite
        self._waiting = directory / f".{name}.partial"
        self._small: list[str] = []
        self._writers: list[TokenFileWriter] = []
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            # What an earlier run left when it was killed.
            shutil.rmtree(self._waiting, ignore_errors=True)
            self._waiting.mkdir()

    def add_token_file(self, name: str, vocab_size: int) -> TokenFileWriter:
        """Begin NAME.bin and what belongs to it."""
        writer = TokenFileWriter(
            self.directory, name, vocab_size=vocab_size, overwrite=self._overwrite
        )
        self._writers.append(writer)
        return writer

    def add_tokenizer(self, tokenizer: AnyTokenizer) -> None:
        """Write tokenizer.json and its configuration."""
        with writing(self.directory / TOKENIZER_FILE):
            tokenizer.save(self._waiting / TOKENIZER_FILE)
        # The tokenizer comes behind its configuration, which means nothing without it.
        self._small += [TOKENIZER_CONFIG_FILE, TOKENIZER_FILE]

    def add_stats(self, name: str, stats: Mapping[str, Any]) -> None:
        """Write what is known of the run itself."""
        text = json.dumps({"format": STATS_FORMAT, **stats}, indent=2) + "\n"
        with writing(self.directory / name), open(self._waiting / name, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self._small.append(name)

    def commit(self) -> None:
        """Give everything its final name; the writers were finished before."""
        with writing(self.directory):
            for writer in self._writers:
                writer.manifest_path.unlink(missing_ok=True)
            for name in self._small:
                os.replace(self._waiting / name, self.directory / name)
        for writer in self._writers:
            writer.commit()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for writer in self._writers:
            writer.abort()
        shutil.rmtree(self._waiting, ignore_errors=True)


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
    directory: Path, token_files: list[str], stats_file: str, overwrite: bool
) -> None:
    """Refuse, before any work is done, outputs that could not be put in place.

    Raises:
        OutputError: The directory cannot be written, or something else has the name of the stats.
        TokenFileError: A token file exists and may not be replaced.
    """
    refuse_directory(directory)
    for name in token_files:
        refuse_to_overwrite(directory, name, overwrite)
    stats_path = directory / stats_file
    if stats_path.exists() and not _is_stats(stats_path):
        raise OutputError(
            f"{stats_path}: exists and was not written by tokenbin, so it is left alone; move it"
            " away or choose another directory or name"
        )


def _is_stats(path: Path) -> bool:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, OSError):
        return False
    return isinstance(content, dict) and content.get("format") == STATS_FORMAT


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
        OutputError: Another tokenizer is there and may not be replaced.
    """
    from bpe import load_tokenizer

    path = directory / TOKENIZER_FILE
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
