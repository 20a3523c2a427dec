"""Check and describe files of rows; make damaged ones again from the dataset.

A file is sound if it has the digest of its bytes, or the rows that were written: another version of
a library may write them as other bytes. Files of other programs have no manifest: their arrays and
ids are checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bpe.errors import TokenmillError
from bpe.files.locations import is_url
from bpe.parallel import cached_property
from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.reader import open_tokens
from preprocess.options import RowsSettings, VerifySettings
from preprocess.report.progress import Progress
from preprocess.rows.columns import RowBatch, RowReader
from preprocess.rows.formats import Row, RowsError, open_file
from preprocess.rows.loaders import row_files
from preprocess.rows.manifest import (
    MANIFEST_FILE,
    ContentDigest,
    RowsManifest,
    read_manifest,
    replace_shard,
)
from preprocess.rows.write import (
    METADATA_FILE,
    OutputFile,
    content_of,
    divided,
    files_of_sources,
    plan_rows,
    write_shard,
)
from preprocess.run.outputs import read_object
from preprocess.sampling.data import IGNORED
from preprocess.settings import TokenizerSource
from preprocess.storage import OutputError, digest_of_file, open_repair, open_storage

_VALUES_AT_ONCE = 1 << 20  # of rows that are checked together


class Finding(NamedTuple):
    """Result of one check of a file; `blocks` are the damaged ones, `sources` their sources.

    It is not `checked` if that with which it has to be compared is not there, and then `sound`
    unless `deep` asks for the comparison.
    """

    path: Path | str  # a URL is text
    sound: bool
    text: str
    blocks: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()
    checked: bool = True


def reason_of(error: Exception, path: Path | str) -> str:
    """Return the text of an error about a file, without its path."""
    return str(error).removeprefix(f"{path}: ")


# --- places ---


def find_rows(directory: Path) -> list[Path]:
    """List the directories of rows: this one, or those inside of it; [] for none."""
    if _is_ours(directory):
        return [directory]
    found = [each for each in _inside(directory) if _is_ours(each)]
    return found or ([directory] if row_files(directory) else [])


def _is_ours(directory: Path) -> bool:
    """Return True if `tokenmill rows` wrote a directory, also if its manifest is missing."""
    has_shards = (directory / METADATA_FILE).exists() and bool(row_files(directory))
    return (directory / MANIFEST_FILE).exists() or has_shards


def _inside(directory: Path, depth: int = 3) -> Iterator[Path]:
    """Yield the directories in a directory, as DATASET/rows/train, but none inside of rows.

    Hidden ones are left out; one that cannot be listed raises OSError.
    """
    for name in open_storage(directory).final.names():
        place = directory / name
        if not name.startswith(".") and place.is_dir():
            yield place
            if depth > 1 and not _is_ours(place):
                yield from _inside(place, depth - 1)


def find_places(directory: Path) -> list[Path]:
    """List the directories with the outputs of a corpus, of its config.json; else this one."""
    from preprocess.config import CORPUS_FORMAT

    content = read_object(open_storage(directory).final, "config.json", CORPUS_FORMAT) or {}
    base, places = str(content.get("output_path")), dict[Path, None]()
    outputs = [x for section in ("datasets", "rows") for x in content.get(section, {}).values()]
    for out in (str(each.get("out")) for each in outputs):
        # Relative to the configuration, so that all may be moved together.
        is_relative = os.path.isabs(out) == os.path.isabs(base)
        inside = directory / os.path.relpath(out, base) if is_relative else out
        place = Path(os.path.normpath(inside)) if is_relative else Path(out)
        # Those inside are found with their dataset.
        if place.parent not in places:
            places[place] = None
    return [*places] or [directory]


def find_unfinished(directory: Path) -> list[tuple[Path, str]]:
    """List (directory, name) of unfinished runs: in a directory, and of rows inside of it."""
    places = (directory, *_inside(directory))
    return [(each, run) for each in places for run in open_storage(each).runs()]


# --- contents ---


def read_batches(path: Path) -> Iterator[RowBatch]:
    """Yield the rows of a file, some at a time.

    Raises:
        RowsError: The file is damaged, something in it is no row, or there is no column of ids.
    """
    rows = open_file(path).rows()
    while some := _next_rows(rows):
        names = [*some[0]]
        if "input_ids" not in names:
            raise RowsError(
                f"{path}: has no column input_ids, its columns are {', '.join(names)}; rename the"
                " one with token ids"
            )
        offsets = np.append(0, np.cumsum([len(row["input_ids"]) for row in some]))
        yield RowBatch(offsets, {x: np.concatenate([row[x] for row in some]) for x in names})


def _next_rows(rows: Iterator[Row]) -> list[Row]:
    """Return rows until they have many values, for rows may be of any length; [] at the end."""
    some, n = list[Row](), 0
    while n < _VALUES_AT_ONCE and (row := next(rows, None)) is not None:
        some.append(row)
        n += 1 + sum(map(len, row.values()))
    return some


def describe(directory: Path, bad: list[dict[str, str]]) -> dict[str, Any]:
    """Describe the rows in a directory as a dictionary for JSON; every file is read.

    To `bad` are added path and text of each file that is damaged, of which rows before the damage
    are counted, or that has other columns than those before it.
    """
    files, manifest = [directory / name for name in row_files(directory)], directory / MANIFEST_FILE
    has_mask, is_ours = False, manifest.exists()
    try:
        if is_ours:
            of_rows = read_manifest(directory)
            files = [directory / each.name for each in of_rows.shards]
            has_mask = of_rows.length is None  # nothing is padded
    except TokenmillError as error:
        bad.append({"path": str(manifest), "text": reason_of(error, manifest)})
    columns: tuple[str, ...] = ()
    n_rows = n_places = n_tokens = n_trained = longest = 0
    for path in files:
        try:
            for batch in read_batches(path):
                values, names = batch.values, tuple(batch.values)
                if columns and names != columns:
                    raise RowsError(
                        f"{path}: has the columns {', '.join(names)}, and files before it"
                        f" {', '.join(columns)}; keep different rows in different directories"
                    )
                mask = values.get("attention_mask", values.get("segment_ids"))
                is_token = np.ones(len(values["input_ids"]), bool) if mask is None else mask > 0
                before = np.append(0, np.cumsum(is_token))[batch.offsets]
                columns, has_mask = names, has_mask or mask is not None
                n_rows, n_places = n_rows + len(batch), n_places + len(is_token)
                n_tokens, longest = n_tokens + int(before[-1]), max(longest, *np.diff(before))
                n_trained += int((values.get("labels", values["input_ids"]) != IGNORED).sum())
        except (TokenmillError, OSError) as error:
            bad.append({"path": str(path), "text": reason_of(error, path)})
    return {
        "path": str(directory), "files": len(files), "columns": list(columns),
        "dtype": "int32" if is_ours else "read as int32", "rows": n_rows, "tokens": n_tokens,
        "average_length": n_tokens / max(n_rows, 1), "longest": int(longest),
        "padding_share": 1 - n_tokens / max(n_places, 1) if has_mask else None,
        "trained_share": n_trained / max(n_tokens, 1) if "labels" in columns else None,
    }


# --- verification ---


def verify(
    directories: Sequence[Path], settings: VerifySettings, progress: Progress
) -> Iterator[Finding]:
    """Check all rows in directories, as of `find_rows`."""
    for place in directories:
        path = place / MANIFEST_FILE
        if not _is_ours(place):
            yield from _check_foreign(place, settings.tokenizer)
            continue
        try:
            manifest = read_manifest(place)
        except RowsError as error:
            text = reason_of(error, path)
            missing = "missing: remove this directory, and write the rows again"
            yield Finding(path, False, text if path.exists() else missing)
            yield from _check_foreign(place, None)
        else:
            yield from _Rows(place, manifest, settings).check(progress)


class _Rows:
    """Checks the rows of a directory."""

    def __init__(self, directory: Path, manifest: RowsManifest, settings: VerifySettings) -> None:
        self._directory, self._manifest = directory, manifest
        self._deep, self._repairs = settings.deep, settings.repair
        self._final = open_storage(directory).final

    def check(self, progress: Progress) -> Iterator[Finding]:
        found = self._manifest
        yield Finding(
            self._directory / MANIFEST_FILE, True,
            f"{found.rows:,} rows of {found.documents:,} documents, {found.tokens:,} tokens",
        )
        for name, digest in found.beside.items():
            if digest_of_file(self._final, name).hexdigest() != digest:
                text = "was changed, or is missing: write the rows again (--overwrite)"
                yield Finding(self._directory / name, False, text)
        with progress.stage(
            f"checking rows of {self._directory.name}", sum(each.bytes for each in found.shards)
        ) as stage:
            for number, facts in enumerate(found.shards):
                (is_sound, text), is_checked = self._check_shard(number), True
                if is_sound and self._deep:
                    is_sound, text = self._compare(number, text)
                    is_checked = not isinstance(self._files, str)
                elif not is_sound and self._repairs:
                    is_sound, text = self._repair(number)
                path = self._directory / facts.name
                yield Finding(path, is_sound, text, checked=is_checked)
                stage.advance(facts.bytes)

    def _check_shard(self, number: int) -> tuple[bool, str]:
        """Return (a file has the rows that were written, text)."""
        facts, digest, n_rows = self._manifest.shards[number], ContentDigest(), 0
        path = self._directory / facts.name
        try:
            is_whole = path.stat().st_size == facts.bytes
            if is_whole and digest_of_file(self._final, facts.name).hexdigest() == facts.digest:
                return True, f"{facts.rows:,} rows as written"
            for batch in read_batches(path):
                digest.update(batch)
                n_rows += len(batch)
        except OSError as error:
            return False, f"cannot be read: {error.strerror}; run verify --repair"
        except RowsError as error:
            return False, f"damaged: {reason_of(error, path)}"
        if digest.hexdigest() == facts.content:
            # A rerun refuses a file of another size, so a repair writes it again, if it can.
            is_sound = is_whole or not self._repairs or isinstance(self._files, str)
            return is_sound, f"{n_rows:,} rows as written, in other bytes"
        text = f"damaged: {n_rows:,} rows that differ from the {facts.rows:,} that were written"
        return False, f"{text}; run verify --repair"

    @cached_property
    def _files(self) -> list[OutputFile] | str:
        """The files as they are made of the dataset; why not, if it is not there as it was."""
        try:
            return self._made_again()
        except TokenmillError as error:
            return str(error)

    def _made_again(self) -> list[OutputFile]:
        manifest = self._manifest
        dataset = manifest.dataset
        if not is_url(dataset):
            dataset = os.path.normpath(self._directory / dataset)
        file = open_tokens(dataset)
        if file.manifest.digest != manifest.dataset_digest:
            raise TokenFileError(
                f"{file.path}: is another dataset than the rows are of; write them again"
                " (--overwrite)"
            )
        settings = self._settings
        if settings.per_file:
            return [*files_of_sources(file, settings, manifest.around, manifest.pad_id)]
        plan, shape = plan_rows(file, settings, manifest.around, manifest.pad_id)
        # Earlier versions padded other rows.
        shape = replace(shape, columns=manifest.columns, length=manifest.length)
        names = [each.name for each in manifest.shards]
        return divided(RowReader(file, plan, shape), names)

    @property
    def _settings(self) -> RowsSettings:
        return RowsSettings(**{**self._manifest.settings, "path": self._manifest.dataset})

    def _compare(self, number: int, found: str) -> tuple[bool, str]:
        """Make the rows of a sound file again, and compare."""
        if isinstance(self._files, str):
            return False, f"cannot be compared with its dataset: {self._files}"
        if content_of(self._files[number]) == self._manifest.shards[number].content:
            return True, f"{found}, equal to the dataset"
        return False, "its rows are not those of the dataset: write them again (--overwrite)"

    def _repair(self, number: int) -> tuple[bool, str]:
        """Write a file again, and the manifest if its bytes are others."""
        if isinstance(self._files, str):
            return False, f"cannot be repaired: {self._files}"
        manifest, facts = self._manifest, self._manifest.shards[number]
        with open_repair(self._directory) as storage:
            with closing(storage.stream(facts.name)) as stream:
                made = write_shard(self._files[number], self._settings, manifest.vocab_size, stream)
                stream.sync()
            if made.content != facts.content:
                text = "cannot be repaired: the dataset gives other rows now; write them again"
                return False, f"{text} (--overwrite)"
            names = [facts.name]
            if made != facts:
                self._manifest = replace_shard(manifest, number, made)
                storage.put(MANIFEST_FILE, self._manifest.to_json().encode())
                names.append(MANIFEST_FILE)
            # The manifest that is there stays until it is replaced: only it tells how to repair.
            storage.publish(names)
        return True, f"was damaged, and made again from the dataset: the same {facts.rows:,} rows"


def _check_foreign(directory: Path, tokenizer: TokenizerSource | None) -> Iterator[Finding]:
    """Check files of rows that have no manifest: their arrays, and the range of ids."""
    vocab_size, has_mask = None, True
    if tokenizer is not None:
        from bpe import load_tokenizer

        vocab_size = load_tokenizer(tokenizer).vocab_size
    for path in (directory / name for name in row_files(directory)):
        n_rows = n_tokens = 0
        try:
            for batch in read_batches(path):
                ids, has_mask = batch.values["input_ids"], "attention_mask" in batch.values
                if vocab_size is not None and len(ids) and int(ids.max()) >= vocab_size:
                    place = int((ids >= vocab_size).argmax())
                    row = n_rows + int(np.searchsorted(batch.offsets, place, "right")) - 1
                    raise RowsError(
                        f"{path}: has the id {int(ids[place]):,} in row {row:,}, outside of the"
                        f" vocabulary of {vocab_size:,}; make the rows with this tokenizer"
                    )
                n_rows, n_tokens = n_rows + len(batch), n_tokens + len(ids)
        except (RowsError, OutputError) as error:
            yield Finding(path, False, reason_of(error, path))
            continue
        checked = "ids in the vocabulary" if vocab_size else "ids not checked without --tokenizer"
        if not has_mask:
            checked += ", no attention_mask, so padding is not known"
        yield Finding(path, True, f"{n_rows:,} rows, {n_tokens:,} values per column, {checked}")
