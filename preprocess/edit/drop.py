"""Write a dataset again without some of its documents, and a list of what went.

Shards without such documents are not written: their files are linked. The dataset that is read
stays as it is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from msgspec import structs
from numpy.typing import NDArray

from bpe.files.locations import is_url
from preprocess.dataset.columns import DOCUMENT_ENDS, manifest_name, shard_name
from preprocess.dataset.manifest import APPENDED, DROPPED, Manifest, Shard
from preprocess.dataset.places import Sources
from preprocess.dataset.reader import TokenFile, open_tokens, read_ids
from preprocess.dataset.writer import ColumnFile
from preprocess.edit.append import link_or_copy
from preprocess.imports.write import text_lengths
from preprocess.locations import split_location
from preprocess.options import DropSettings
from preprocess.report.progress import progress_of
from preprocess.run.outputs import (
    TOKENIZER_FILE,
    add_token_file,
    digest_of,
    is_up_to_date,
    list_tokenizer_files,
    open_one,
    put_stats,
)
from preprocess.run.record import Record, SourceRecord
from preprocess.run.run import Run
from preprocess.settings import SettingsError, takes
from preprocess.storage import OutputError, open_files

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_BLOCK = 1 << 22  # values that are copied at a time
_KEY = "shards"  # in the journal


@takes(DropSettings)
def drop(settings: DropSettings) -> Manifest:
    """Write a dataset without some documents, and NAME_dropped.jsonl with those.

    The same call resumes an interrupted one. Options: docs/options.md or `tokenmill drop --help`;
    `progress=False` shows none.

    Returns:
        The manifest of the new dataset.

    Raises:
        TokenFileError: There is no dataset, or it is damaged; or another one is there already.
        OutputError: Files cannot be written.
        SettingsError: No document is chosen, or all are; or other options are invalid.
    """
    progress = progress_of(settings.progress)
    progress.begin(None)
    file = open_one(settings.path)
    gone = _chosen(file, settings)
    (directory, _), name = split_location(settings.out), settings.name
    if _stem(str(file.path)) == _stem(settings.out):
        raise SettingsError(f"--out {settings.out} is the dataset that is read; choose another")
    source = SourceRecord(
        os.path.basename(str(file.path)), file.n_tokens, file.manifest.digest, file.absolute_path
    )
    chosen = {"documents": xxhash.xxh3_128_hexdigest(np.packbits(gone).tobytes())}
    record = Record("drop", chosen, {name: [source]}, file.manifest.tokenizer_fingerprint)
    stats_file, has_shards = f"{name}_stats.json", bool(file.manifest.shards)
    with Run(directory, name, record, settings.overwrite) as run:
        if run.is_complete or is_up_to_date(run, stats_file, [name], shards=has_shards):
            return open_tokens(settings.out).manifest
        run.begin()
        with progress.stage("dropping", file.n_tokens, "tokens") as stage:
            shards = []
            for number, shard in enumerate(_write_shards(run, file, gone, name)):
                shards += [shard] * (shard.n_tokens > 0)
                stage.advance(file.manifest.parts[number].n_tokens)
        numbers = np.flatnonzero(gone)
        manifest = _manifest_without(file, numbers, shards)
        run.storage.put(manifest_name(name), manifest.to_json().encode())
        add_token_file(run, name, manifest)
        _copy_tokenizer(run, file)
        listed = f"{name}_dropped.jsonl"
        content = "".join(_lines(file, numbers)).encode()
        run.put(listed, content)
        put_stats(run, stats_file, {
            "settings": settings.as_json(), "digest_before": file.manifest.digest,
            "digest_after": manifest.digest, "documents": len(numbers),
            "tokens": file.n_tokens - manifest.n_tokens,
        }, {listed: digest_of(content)})  # fmt: skip
        run.publish()
    return manifest


def _stem(path: str) -> str:
    """Return the place of a dataset without suffix, in its directory without links."""
    stem = os.path.splitext(path)[0]
    directory, name = os.path.split(stem)
    return stem if is_url(path) else os.path.join(os.path.realpath(directory), name)


# --- which documents ---


def _chosen(file: TokenFile, settings: DropSettings) -> Flags:
    """Return True for each document to drop, or raise SettingsError."""
    n, gone = file.n_documents, np.zeros(file.n_documents, np.bool_)
    if settings.documents is not None:
        numbers = _numbers(settings.documents)
        if wrong := [number for number in numbers if not 0 <= number < n]:
            raise SettingsError(
                f"there is no document {wrong[0]:,}; {file.path} has those from 0 to"
                f" {n - 1:,}; correct the numbers (--documents)"
            )
        gone[np.array(numbers, np.int64)] = True
    sources = Sources(file)
    for wanted in settings.source:
        if not sources.names:
            raise SettingsError(
                "the manifest does not have the documents of each source, as of datasets that are"
                " shuffled without --provenance; give their numbers (--documents)"
            )
        if wanted not in sources.names:
            raise SettingsError(
                f"there is no source {wanted!r} (--source); those of {file.path} are"
                f" {', '.join(dict.fromkeys(sources.names))}"
            )
        is_wanted = np.array([each == wanted for each in sources.names])
        for start in range(0, n, _BLOCK):
            block = np.arange(start, min(start + _BLOCK, n))
            gone[block] |= is_wanted[sources.of(block)]
    if settings.matching is not None:
        gone[_matching(settings)] = True
    n_gone = int(gone.sum())
    if n_gone in (0, n):
        which = "all documents are" if n_gone else "no document is"
        raise SettingsError(
            f"{which} chosen of {file.path}, so nothing is written; choose others (--documents,"
            " --source, --matching)"
        )
    return gone


def _numbers(given: Any) -> list[int]:
    """Return numbers of documents, of a file one in each line."""
    if not isinstance(given, str):
        return [*map(int, given)]
    place, name = split_location(given)
    content = open_files(place).get(name)
    if content is None:
        raise SettingsError(f"--documents {given}: no such file; check the path")
    lines = [line.strip() for line in content.decode("utf-8", "replace").split("\n")]
    for number, line in enumerate(lines, start=1):
        if line and not (line.isdecimal() and len(line) < 20):
            raise SettingsError(
                f"--documents {given}: line {number:,}: expected the number of a document, found"
                f" {line!r:.80}"
            )
    return [int(line) for line in lines if line]


def _matching(settings: DropSettings) -> list[int]:
    """Return the documents that have an n-gram of an item, as `search` finds them."""
    from preprocess.find.search import search

    found = search(
        settings.path, contamination=settings.matching, ngram=settings.ngram, limit=1 << 60,
        progress=settings.progress,
    )
    return sorted({place["document"] for item in found["items"] for place in item["places"]})


# --- files ---


def _write_shards(run: Run, file: TokenFile, gone: Flags, name: str) -> Iterator[Shard]:
    """Yield the shards that remain, of zero tokens where nothing does; files are complete."""
    journal, manifest = run.journal, file.manifest
    done: Sequence[Shard] = journal.values(_KEY, Shard)
    yield from done
    n_written = sum(each.n_tokens > 0 for each in done)
    n_documents = 0
    source_stem = os.path.splitext(os.path.basename(str(file.path)))[0]
    for number, (stem, part) in enumerate(
        zip(manifest.stems(source_stem), manifest.parts, strict=True)
    ):
        first, n_documents = n_documents, n_documents + part.n_documents
        if number < len(done):
            continue
        target = shard_name(name, n_written) if manifest.shards else name
        ends = np.asarray(file.parts[number][DOCUMENT_ENDS.name]).astype(np.int64)
        # The last document may go on in the next shard.
        bounds = np.concatenate([[0], ends, [part.n_tokens]])
        is_gone = np.append(gone[first : n_documents + 1], False)[: len(bounds) - 1]
        if not (is_gone & (np.diff(bounds) > 0)).any():
            shard = structs.replace(part, stem=None)
            _link(run, file, stem, target, number)
        else:
            shard = _write_shard(run, file, number, target, bounds, ~is_gone)
        n_written += shard.n_tokens > 0
        journal.save(_KEY, shard, adds=True)
        yield shard


def _link(run: Run, file: TokenFile, stem: str, target: str, number: int) -> None:
    """Link the files of a shard that stays, or copy them where they cannot be linked."""
    for column in file.manifest.columns:
        name = f"{target}{column.suffix}"
        run.storage.remove(name)
        if is_url(str(file.path)) or is_url(run.storage.where()):
            values = file.parts[number][column.name]
            _write(run, name, column, file.vocab_size, values, [(0, len(values))])
        else:
            source = file.directory / f"{stem}{column.suffix}"
            link_or_copy(source, Path(run.storage.path(name)))


def _write(
    run: Run, name: str, column: Any, vocab_size: int, values: Any, ranges: Any
) -> tuple[str, ...]:
    """Write ranges of values of a column, and return the digests of its blocks."""
    out = ColumnFile(run.storage, name, column, vocab_size)
    try:
        for start, stop in np.asarray(ranges).tolist():
            for place in range(start, stop, _BLOCK):
                out.append(np.asarray(values[place : min(place + _BLOCK, stop)]))
        return out.finish(out.count)
    finally:
        out.stream.close()


def _write_shard(
    run: Run, file: TokenFile, number: int, target: str, bounds: Numbers, stays: Flags
) -> Shard:
    """Write the documents of a shard that stay: `bounds` int64[n + 1] of their parts in it."""
    # Consecutive documents are copied together.
    edges = np.flatnonzero(np.diff(np.concatenate([[False], stays, [False]]).astype(np.int8)))
    runs = edges.reshape(-1, 2)
    n_ended = len(bounds) - 2
    kept_ends = np.cumsum(np.where(stays, np.diff(bounds), 0))[:n_ended][stays[:n_ended]]
    n_tokens = int(np.diff(bounds)[stays].sum())
    shard = Shard(n_tokens, len(kept_ends))
    if not n_tokens:
        return shard
    digests = {}
    for column in file.manifest.columns:
        name, values = f"{target}{column.suffix}", file.parts[number][column.name]
        ranges = bounds[runs] if column.per == "token" else np.minimum(runs, n_ended)
        if column.is_position:
            values = kept_ends.astype(column.dtype_for(file.vocab_size))
            ranges = np.array([[0, len(kept_ends)]])
        run.storage.remove(name)  # it may be a link
        digests[column.name] = _write(run, name, column, file.vocab_size, values, ranges)
    return structs.replace(shard, digests=digests)


def _copy_tokenizer(run: Run, file: TokenFile) -> None:
    """Copy the tokenizer beside the new dataset, unless it is there."""
    path, _ = file.tokenizer_file()
    for name in () if path is None else list_tokenizer_files(TOKENIZER_FILE):
        assert path is not None
        there, beside = run.storage.final.get(name), path.with_name(name)
        content = beside.read_bytes() if beside.exists() else None
        if content is not None and there is None:
            run.put(name, content)
        elif name == TOKENIZER_FILE and there != content:
            raise OutputError(
                f"{run.storage.final.where(name)}: another tokenizer exists, and the dataset would"
                " be beside it; choose another directory (--out)"
            )


# --- what went ---


def _documents(file: TokenFile, numbers: Numbers) -> Iterator[tuple[int, NDArray[Any]]]:
    ends = file.document_ends
    for number in numbers.tolist():
        yield number, read_ids(file, int(ends[number - 1]) if number else 0, int(ends[number]))


def _lines(file: TokenFile, numbers: Numbers) -> Iterator[str]:
    """Yield a line of JSON for each document that went."""
    for number, ids in _documents(file, numbers):
        digest = xxhash.xxh3_128_hexdigest(ids.astype("<u4").tobytes())
        yield json.dumps({"document": number, "tokens": len(ids), "digest": digest}) + "\n"


def _manifest_without(file: TokenFile, numbers: Numbers, shards: Sequence[Shard]) -> Manifest:
    """Return the manifest of the documents that remain."""
    from bpe import load_tokenizer

    manifest, (path, _) = file.manifest, file.tokenizer_file()
    lengths = None if path is None else text_lengths(load_tokenizer(path))
    n_bytes = 0
    if lengths is not None and manifest.n_bytes:
        dropped = sum(int(lengths[ids].sum()) for _, ids in _documents(file, numbers))
        n_bytes = manifest.n_bytes - dropped
    sources = [*map(dict, manifest.sources)]
    ends = file.document_ends.astype(np.int64)
    sizes = np.diff(ends, prepend=0)[numbers]
    known = Sources(file)
    of = known.of(numbers) if known.names else 0 * numbers  # unknown: the first
    for number in np.unique(of).tolist():
        own = sources[number]
        n_documents, n_tokens = int((of == number).sum()), int(sizes[of == number].sum())
        if known.in_order:
            own["documents"] -= n_documents
            own["tokens"] -= n_tokens
        own[DROPPED] = own.get(DROPPED, 0) + n_documents
    for own in sources:
        own.pop(APPENDED, None)  # positions of tokens have changed
    return structs.replace(
        manifest, n_tokens=sum(each.n_tokens for each in shards),
        n_documents=sum(each.n_documents for each in shards), n_bytes=max(n_bytes, 0),
        sources=tuple(sources), digests={} if manifest.shards else shards[0].digests,
        shards=tuple(shards) if manifest.shards else (),
    )
