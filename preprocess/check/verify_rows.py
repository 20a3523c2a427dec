"""Check files of rows against their manifest, and make damaged ones again from the dataset.

A file is sound if it has the digest of its bytes, or the rows that were written: another version of
a library may write them as other bytes. Files of other programs have no manifest: their arrays and
ids are checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bpe.errors import TokenmillError
from preprocess.check.findings import Finding
from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.reader import open_tokens
from preprocess.options import RowSettings, RowsSettings
from preprocess.report.progress import Progress
from preprocess.rows.access import row_files
from preprocess.rows.columns import RowReader, Values
from preprocess.rows.formats import Row, RowsError, open_file
from preprocess.rows.layout import OutputFile, divided, files_of_sources, plan_rows
from preprocess.rows.manifest import (
    MANIFEST_FILE,
    ContentDigest,
    RowsManifest,
    ShardFacts,
    read_manifest,
    replace_shard,
)
from preprocess.rows.write import METADATA_FILE, content_of, digest_of_file, write_shard
from preprocess.run.finished import read_object
from preprocess.storage import REPAIR, OutputError, open_storage


class _Origin(NamedTuple):
    """Settings and files from which files of rows are rebuilt."""

    settings: RowSettings
    files: list[OutputFile]


def find_rows(directory: Path) -> list[Path]:
    """List the directories of rows: this one, or those inside of it; [] for none."""
    if _is_ours(directory):
        return [directory]
    found = [each for each in _inside(directory) if _is_ours(each)]
    return found or ([directory] if row_files(directory) else [])


def _inside(directory: Path, depth: int = 3) -> Iterator[Path]:
    """Yield the directories in a directory, as DATASET/rows/train, but none inside of rows."""
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
    for section in ("datasets", "rows"):
        for each in content.get(section, {}).values():
            out = str(each.get("out"))
            # Relative to the configuration, so that all may be moved together.
            if os.path.isabs(out) == os.path.isabs(base):
                out = os.path.normpath(directory / os.path.relpath(out, base))
            # Those inside are found with their dataset.
            if Path(out).parent not in places:
                places[Path(out)] = None
    return [*places] or [directory]


def find_unfinished(directory: Path) -> list[tuple[Path, str]]:
    """List (directory, name) of unfinished runs: in a directory, and of rows inside of it."""
    places = (directory, *_inside(directory))
    return [(each, run) for each in places for run in open_storage(each).runs()]


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
        settings = manifest.settings
        has_all = is_of_it and settings.get("seq_length") and not settings.get("drop_short")
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
        if digest_of_file(open_storage(directory).final, name) != digest:
            text = "was changed, or is missing: write the rows again (--overwrite)"
            yield Finding(path, False, text)


def _check_shard(directory: Path, manifest: RowsManifest, facts: ShardFacts) -> Finding:
    path, files = directory / facts.name, open_storage(directory).final
    try:
        size = path.stat().st_size
        if size == facts.bytes and digest_of_file(files, facts.name) == facts.digest:
            return Finding(path, True, f"{facts.rows:,} rows as written")
    except OSError as error:
        return Finding(path, False, f"cannot be read: {error.strerror}; run verify --repair")
    try:
        n_rows, content = _content_in(path)
    except RowsError as error:
        return Finding(path, False, f"damaged: {str(error).removeprefix(f'{path}: ')}")
    if content == facts.content:
        return Finding(path, True, f"{n_rows:,} rows as written, in other bytes")
    text = f"damaged: {n_rows:,} rows that differ from the {facts.rows:,} that were written"
    return Finding(path, False, f"{text}; run verify --repair")


def _content_in(path: Path) -> tuple[int, str]:
    """Return (number of rows, digest of the content) of a file of rows."""
    digest, n_rows = ContentDigest(), 0
    for row in open_file(path).rows():
        digest.update_row(row)
        n_rows += 1
    return n_rows, digest.hexdigest()


def _open_origin(directory: Path, manifest: RowsManifest) -> _Origin:
    """Open the dataset of rows; raise TokenmillError if it is not there as it was."""
    file = open_tokens(os.path.normpath(directory / manifest.dataset))
    if file.manifest.digest != manifest.dataset_digest:
        raise TokenFileError(
            f"{file.path}: is another dataset than the rows are of; write them again"
            " (--overwrite)"
        )
    settings = RowsSettings(**{**manifest.settings, "path": manifest.dataset})
    if settings.per_file:
        files = [*files_of_sources(file, settings, manifest.around, manifest.pad_id)]
    else:
        plan, shape = plan_rows(file, settings, manifest.around, manifest.pad_id)
        # Earlier versions padded other rows.
        shape = replace(shape, columns=manifest.columns, length=manifest.length)
        reader = RowReader(file, plan, shape)
        files = divided(reader, [each.name for each in manifest.shards])
    return _Origin(settings, files)


def _compare(finding: Finding, facts: ShardFacts, origin: _Origin | str, number: int) -> Finding:
    """Make the rows of a sound file again, and compare."""
    if isinstance(origin, str):
        return Finding(finding.path, False, f"cannot be compared with its dataset: {origin}")
    if content_of(origin.files[number]) == facts.content:
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
    with open_storage(directory, REPAIR) as storage:
        storage.clear()
        stream = storage.stream(facts.name)
        try:
            made = write_shard(origin.files[number], origin.settings, manifest.vocab_size, stream)
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
        has_mask = True
        try:
            for row in open_file(path).rows():
                has_mask = "attention_mask" in row
                ids = ids_of(path, row)
                if vocab_size is not None and len(ids) and ids.max() >= vocab_size:
                    raise RowsError(
                        f"{path}: has the id {int(ids.max()):,} in row {n_rows:,}, outside of the"
                        f" vocabulary of {vocab_size:,}; make the rows with this tokenizer"
                    )
                n_rows, n_tokens = n_rows + 1, n_tokens + len(ids)
        except (RowsError, OutputError) as error:
            yield Finding(path, False, str(error).removeprefix(f"{path}: "))
            continue
        checked = "ids in the vocabulary" if vocab_size else "ids not checked without --tokenizer"
        if not has_mask:
            checked += ", no attention_mask, so padding is not known"
        yield Finding(path, True, f"{n_rows:,} rows, {n_tokens:,} values per column, {checked}")


def ids_of(path: Path, row: Row) -> Values:
    """Return the ids of a row; raise RowsError if there is no such column."""
    if "input_ids" not in row:
        raise RowsError(
            f"{path}: has no column input_ids, its columns are {', '.join(row)}; rename the one"
            " with token ids"
        )
    return row["input_ids"]
