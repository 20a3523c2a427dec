"""Check files of rows against their manifest, and make damaged ones again from the dataset.

A file is sound if it has the digest of its bytes, or the rows that were written: another version of
a library may write them as other bytes. Files of other programs have no manifest: their arrays and
ids are checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import xxhash

from bpe.errors import TokenmillError
from preprocess.check.findings import Finding
from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.reader import open_tokens
from preprocess.report.progress import Progress
from preprocess.rows.columns import RowBatch, RowReader
from preprocess.rows.formats import FORMATS, RowsError, format_of
from preprocess.rows.layout import plan_rows, shard_bounds
from preprocess.rows.manifest import (
    MANIFEST_FILE,
    ContentDigest,
    RowsManifest,
    ShardFacts,
    read_manifest,
    replace_shard,
)
from preprocess.rows.write import METADATA_FILE, write_shard
from preprocess.settings.options import convert
from preprocess.settings.rows import RowSettings, RowsSettings
from preprocess.storage import REPAIR, OutputError, open_storage

_PIECE_BYTES = 1 << 22


class _Origin(NamedTuple):
    """Reader, settings and shard bounds from which files of rows are rebuilt."""

    reader: RowReader
    settings: RowSettings
    bounds: list[int]


def find_rows(directory: Path, or_foreign: bool = True) -> list[Path]:
    """List the directories of rows: this one, or those in it or its "rows"; [] for none.

    With `or_foreign` it is this one, too, if it has files of rows of another program.
    """
    if _is_ours(directory):
        return [directory]
    found = [
        each for place in (directory, directory / "rows") for each in _directories(place)
        if _is_ours(each)
    ]
    return found or ([directory] if or_foreign and row_files(directory) else [])


def _directories(directory: Path) -> list[Path]:
    names = [name for name in open_storage(directory).final.names() if not name.startswith(".")]
    return [directory / name for name in names if (directory / name).is_dir()]


def row_files(directory: Path) -> list[Path]:
    """List the files of rows in a directory that has no manifest, by their names."""
    files = (each for each in directory.iterdir() if each.is_file())
    return sorted(each for each in files if format_of(each) is not None)


def verify(
    directories: Sequence[Path], tokenizer: str | None, progress: Progress, deep: bool, repair: bool
) -> list[Finding]:
    """Check all rows in directories, as of `find_rows`."""
    findings: list[Finding] = []
    for place in directories:
        if _is_ours(place):
            findings += _check(place, progress, deep, repair)
        else:
            findings += _check_foreign(place, tokenizer)
    return findings


def _is_ours(directory: Path) -> bool:
    """Return True if `tokenmill rows` wrote a directory, also if its manifest is missing."""
    has_shards = (directory / METADATA_FILE).exists() and bool(row_files(directory))
    return (directory / MANIFEST_FILE).exists() or has_shards


def _check(directory: Path, progress: Progress, deep: bool, repair: bool) -> list[Finding]:
    path = directory / MANIFEST_FILE
    if not path.exists():
        text = "missing: remove this directory, and write the rows again"
        return [Finding(path, False, text), *_check_foreign(directory, None)]
    try:
        manifest = read_manifest(directory)
    except RowsError as error:
        text = str(error).removeprefix(f"{path}: ")
        return [Finding(path, False, text), *_check_foreign(directory, None)]
    findings = [_check_counts(directory, manifest), *_check_beside(directory, manifest)]
    origin: _Origin | str = "not needed"
    if deep or repair:
        try:
            origin = _open_origin(directory, manifest)
        except TokenmillError as error:
            origin = str(error)
    total = sum(each.bytes for each in manifest.shards)
    with progress.stage(f"checking rows of {directory.name}", total) as stage:
        for number, facts in enumerate(manifest.shards):
            finding = _check_shard(directory, manifest, facts)
            if finding.sound and deep:
                finding = _compare(finding, facts, origin, number)
            elif not finding.sound and repair:
                finding, manifest = _repair(directory, manifest, origin, number)
            findings.append(finding)
            stage.advance(facts.bytes)
    return findings


def _check_counts(directory: Path, manifest: RowsManifest) -> Finding:
    """Compare the totals with those of the files, and with the dataset if it is there."""
    path, problems = directory / MANIFEST_FILE, []
    for name in ("rows", "tokens"):
        total = sum(getattr(each, name) for each in manifest.shards)
        if total != getattr(manifest, name):
            problems.append(f"{getattr(manifest, name):,} {name}, and its files {total:,}")
    dataset = directory / manifest.dataset
    # Where the dataset is not there, or is damaged, rows may be sound all the same.
    with suppress(TokenmillError):
        file = open_tokens(dataset)
        is_of_it = file.manifest.digest == manifest.dataset_digest
        has_all = is_of_it and manifest.settings.get("seq_length") is not None
        if has_all and file.n_tokens != manifest.tokens:
            problems.append(f"{manifest.tokens:,} tokens, and the dataset {file.n_tokens:,}")
    if problems:
        text = f"has {'; '.join(problems)}: write the rows again (--overwrite)"
        return Finding(path, False, text)
    text = f"{manifest.rows:,} rows of {manifest.documents:,} documents, {manifest.tokens:,} tokens"
    return Finding(path, True, text)


def _check_beside(directory: Path, manifest: RowsManifest) -> Iterator[Finding]:
    """Find files that describe the rows, and were changed or are missing."""
    for name, digest in manifest.beside.items():
        path = directory / name
        if not path.exists() or _digest_of(path) != digest:
            text = "was changed, or is missing: write the rows again (--overwrite)"
            yield Finding(path, False, text)


def _check_shard(directory: Path, manifest: RowsManifest, facts: ShardFacts) -> Finding:
    path = directory / facts.name
    try:
        size = path.stat().st_size
        if size == facts.bytes and _digest_of(path) == facts.digest:
            return Finding(path, True, f"{facts.rows:,} rows as written")
    except OSError as error:
        return Finding(path, False, f"cannot be read: {error.strerror}; run verify --repair")
    try:
        n_rows, content = _content_of(path)
    except RowsError as error:
        return Finding(path, False, f"damaged: {str(error).removeprefix(f'{path}: ')}")
    if content == facts.content:
        return Finding(path, True, f"{n_rows:,} rows as written, in other bytes")
    text = f"damaged: {n_rows:,} rows that differ from the {facts.rows:,} that were written"
    return Finding(path, False, f"{text}; run verify --repair")


def _digest_of(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return str(digest.hexdigest())


def read_rows(path: Path) -> Iterator[RowBatch]:
    """Read a file of rows; raise RowsError if it is damaged or has no ids."""
    kind = format_of(path)
    assert kind is not None
    for batch in FORMATS[kind].codec().read_shard(path):
        if "input_ids" not in batch.values:
            raise RowsError(
                f"{path}: has no column input_ids, its columns are {', '.join(batch.values)};"
                " rename the one with token ids"
            )
        yield batch


def _content_of(path: Path) -> tuple[int, str]:
    """Return (number of rows, digest of the content) of a file of rows."""
    digest, n_rows = ContentDigest(), 0
    for batch in read_rows(path):
        digest.update(batch)
        n_rows += len(batch)
    return n_rows, digest.hexdigest()


def _open_origin(directory: Path, manifest: RowsManifest) -> _Origin:
    """Open the dataset of rows; raise TokenmillError if it is not there as it was."""
    file = open_tokens(os.path.normpath(directory / manifest.dataset))
    if file.manifest.digest != manifest.dataset_digest:
        raise TokenFileError(
            f"{file.path}: is another dataset than the rows are of; write them again"
            " (--overwrite)"
        )
    settings = convert({**manifest.settings, "path": manifest.dataset}, RowsSettings)
    plan, shape = plan_rows(file, settings, manifest.around, manifest.pad_id)
    bounds = shard_bounds(len(plan), len(manifest.shards))
    return _Origin(RowReader(file, plan, shape), settings, bounds)


def _compare(finding: Finding, facts: ShardFacts, origin: _Origin | str, number: int) -> Finding:
    """Make the rows of a sound file again, and compare."""
    if isinstance(origin, str):
        return Finding(finding.path, False, f"cannot be compared with its dataset: {origin}")
    digest, reader = ContentDigest(), origin.reader
    first, stop = origin.bounds[number : number + 2]
    for start, end in reader.bounds(first, stop):
        digest.update(reader.read(start, end))
    if digest.hexdigest() == facts.content:
        return finding._replace(text=f"{finding.text}, equal to the dataset")
    text = "its rows are not those of the dataset: write them again (--overwrite)"
    return Finding(finding.path, False, text)


def _repair(
    directory: Path, manifest: RowsManifest, origin: _Origin | str, number: int
) -> tuple[Finding, RowsManifest]:
    """Write a file again; return the finding, and the manifest, which changes if bytes do."""
    facts = manifest.shards[number]
    path = directory / facts.name
    if isinstance(origin, str):
        return Finding(path, False, f"cannot be repaired: {origin}"), manifest
    rows = origin.bounds[number], origin.bounds[number + 1]
    with open_storage(directory, REPAIR) as storage:
        storage.clear()
        stream = storage.stream(facts.name)
        try:
            made = write_shard(
                origin.reader, origin.settings, manifest.vocab_size, facts.name, rows, stream
            )
            stream.sync()
        finally:
            stream.close()
        if made.content != facts.content:
            storage.clear()
            text = "cannot be repaired: the dataset gives other rows now; write them again"
            return Finding(path, False, f"{text} (--overwrite)"), manifest
        names = [facts.name]
        if made != facts:
            manifest = replace_shard(manifest, number, made)
            storage.put(MANIFEST_FILE, manifest.to_json().encode())
            names.append(MANIFEST_FILE)
        # The manifest that is there stays until it is replaced: only it tells how to repair.
        storage.publish(names)
        storage.clear()
    text = f"was damaged, and made again from the dataset: the same {facts.rows:,} rows"
    return Finding(path, True, text), manifest


def _check_foreign(directory: Path, tokenizer: str | None) -> Iterator[Finding]:
    """Check files of rows that have no manifest: their arrays, and the range of ids."""
    vocab_size = None
    if tokenizer is not None:
        from bpe import load_tokenizer

        vocab_size = load_tokenizer(tokenizer).vocab_size
    for path in row_files(directory):
        n_rows = n_tokens = 0
        try:
            for batch in read_rows(path):
                ids = batch.values["input_ids"]
                if vocab_size is not None and len(ids):
                    wrong = ids[(ids < 0) | (ids >= vocab_size)]
                    if len(wrong):
                        raise RowsError(
                            f"{path}: has the id {int(wrong[0]):,} in one of rows {n_rows:,} to"
                            f" {n_rows + len(batch):,}, outside of the vocabulary of"
                            f" {vocab_size:,}; make the rows with this tokenizer"
                        )
                n_rows, n_tokens = n_rows + len(batch), n_tokens + len(ids)
        except (RowsError, OutputError) as error:
            yield Finding(path, False, str(error).removeprefix(f"{path}: "))
            continue
        checked = "ids in the vocabulary" if vocab_size else "ids not checked without --tokenizer"
        yield Finding(path, True, f"{n_rows:,} rows, {n_tokens:,} values per column, {checked}")
