"""Write a dataset again without some of its documents, and a list of what went.

Shards without such documents are not written: their files are linked. The dataset that is read
stays as it is.
"""

from __future__ import annotations

import json
import os
from contextlib import closing
from typing import Any

import numpy as np
import xxhash
from msgspec import structs
from numpy.typing import NDArray

from bpe.files.locations import is_url
from preprocess.check.scan import spans_of_documents
from preprocess.dataset.columns import DOCUMENT_ENDS, IDS, manifest_name, shard_name
from preprocess.dataset.manifest import APPENDED, DROPPED, Manifest, Shard
from preprocess.dataset.places import Sources
from preprocess.dataset.reader import TokenFile, open_tokens, read_ids
from preprocess.dataset.writer import TokenFileWriter
from preprocess.imports.write import text_lengths
from preprocess.locations import split_location
from preprocess.options import DropSettings
from preprocess.report.progress import Stage, logger, progress_of
from preprocess.report.summary import counted
from preprocess.run.outputs import (
    TOKENIZER_FILE,
    add_token_file,
    is_up_to_date,
    list_tokenizer_files,
    open_one,
    put_stats,
)
from preprocess.run.record import Record, SourceRecord
from preprocess.run.run import Run
from preprocess.settings import SettingsError, takes
from preprocess.storage import LocalFiles, OutputError, open_files

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

_BLOCK = 1 << 22  # tokens that are copied at a time
_LISTED = 1 << 10  # documents that are listed at a time
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
    numbers, listed = np.flatnonzero(gone), f"{name}_dropped.jsonl"
    with Run(directory, name, record, settings.overwrite) as run:
        if run.is_complete or is_up_to_date(run, stats_file, [name], shards=has_shards):
            return open_tokens(settings.out).manifest
        run.begin()
        with progress.stage("dropping", file.n_tokens, "tokens") as stage:
            shards = _write_shards(run, file, ~gone, name, stage)
        digest, n_bytes = _list_dropped(run, file, numbers, listed)
        manifest = _manifest_without(file, numbers, n_bytes, shards)
        run.storage.put(manifest_name(name), manifest.to_json().encode())
        add_token_file(run, name, manifest)
        _copy_tokenizer(run, file)
        put_stats(run, stats_file, {
            "settings": settings.as_json(), "digest_before": file.manifest.digest,
            "digest_after": manifest.digest, "documents": len(numbers),
            "tokens": file.n_tokens - manifest.n_tokens,
        }, {listed: digest})  # fmt: skip
        run.publish()
    logger.info("%s: dropped %s", settings.out, counted(len(numbers), "document"))
    return manifest


def _stem(path: str) -> str:
    """Return the place of a dataset without suffix, without links."""
    stem = os.path.splitext(path)[0]
    return stem if is_url(path) else os.path.realpath(stem)


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
    if settings.source:
        sources = Sources(file)
        if not (names := sources.names):
            raise SettingsError(
                "the manifest does not have the documents of each source, as of datasets that are"
                " shuffled without --provenance; give their numbers (--documents)"
            )
        if wrong_names := [name for name in settings.source if name not in names]:
            raise SettingsError(
                f"there is no source {wrong_names[0]!r} (--source); those of {file.path} are"
                f" {', '.join(dict.fromkeys(names))}"
            )
        gone |= np.isin(names, settings.source)[sources.of(np.arange(n))]
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


def _write_shards(run: Run, file: TokenFile, stays: Flags, name: str, stage: Stage) -> list[Shard]:
    """Write the shards that have documents that stay; their files are complete."""
    manifest, n_ended = file.manifest, 0
    shards = run.journal.values(_KEY, Shard)
    stems = manifest.stems(os.path.splitext(os.path.basename(str(file.path)))[0])
    for number, (stem, part) in enumerate(zip(stems, manifest.parts, strict=True)):
        first, n_ended = n_ended, n_ended + part.n_documents
        if number >= len(shards):
            n_written = sum(each.n_tokens > 0 for each in shards)
            target = shard_name(name, n_written) if manifest.shards else name
            # The last document may go on in the next shard.
            shard = _write_shard(run, file, number, stem, target, stays[first : n_ended + 1])
            run.journal.save(_KEY, shard, adds=True)
            shards.append(shard)
        stage.advance(part.n_tokens)
    return [each for each in shards if each.n_tokens]


def _write_shard(
    run: Run, file: TokenFile, number: int, stem: str, target: str, stays: Flags
) -> Shard:
    """Write the documents of a shard that stay: bool[n], also of one that does not end in it."""
    part, values, columns = file.manifest.parts[number], file.parts[number], file.manifest.columns
    ends = np.asarray(values[DOCUMENT_ENDS.name]).astype(np.int64)
    here = stays[: len(np.union1d(ends, part.n_tokens))]
    for column in columns:
        run.storage.remove(f"{target}{column.suffix}")  # it may be a link
    if not here.any():
        return Shard(0, 0)
    if here.all() and not (is_url(str(file.path)) or is_url(run.storage.where())):
        for column in columns:
            files = LocalFiles(file.directory)
            run.storage.adopt(files, f"{stem}{column.suffix}", f"{target}{column.suffix}")
        return structs.replace(part, stem=None)
    writer = TokenFileWriter(run.storage, target, vocab_size=file.vocab_size, columns=columns)
    with closing(writer):
        for begin in range(0, part.n_tokens, _BLOCK):
            stop = min(begin + _BLOCK, part.n_tokens)
            first, last = np.searchsorted(ends, (begin, stop), "right")
            sizes = np.diff(np.concatenate([[begin], ends[first:last], [stop]]))
            kept = np.append(here, False)[first : last + 1]
            chosen = {"token": np.repeat(kept, sizes), "document": kept[:-1]}
            places = {"token": slice(begin, stop), "document": slice(first, last)}
            rows = {
                each.name: np.asarray(values[each.name][places[each.per]])[chosen[each.per]]
                for each in columns
            }
            rows[DOCUMENT_ENDS.name] = np.cumsum(sizes * kept)[:-1][kept[:-1]]
            writer.append(rows.pop(IDS.name), rows.pop(DOCUMENT_ENDS.name), **rows)
        return writer.finish_shard(writer.n_tokens)


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


def _list_dropped(run: Run, file: TokenFile, numbers: Numbers, name: str) -> tuple[str, int]:
    """List documents that went as lines of JSON; return (digest, bytes of text that remain)."""
    from bpe import load_tokenizer

    path, _ = file.tokenizer_file()
    lengths = text_lengths(None if path is None else load_tokenizer(path))
    digest, n_bytes = xxhash.xxh3_128(), 0 if lengths is None else file.manifest.n_bytes
    with closing(run.storage.stream(name)) as stream:
        for first in range(0, len(numbers), _LISTED):
            some, lines = numbers[first : first + _LISTED], b""
            for number, start, size in zip(some, *spans_of_documents(file, some), strict=True):
                ids = read_ids(file, start, start + size)
                found = xxhash.xxh3_128_hexdigest(ids.astype("<u4").tobytes())
                line = {"document": int(number), "tokens": len(ids), "digest": found}
                lines += json.dumps(line).encode() + b"\n"
                n_bytes -= 0 if lengths is None else int(lengths[ids].sum())
            stream.append(memoryview(lines))
            digest.update(lines)
        stream.finish(stream.n_bytes)
    run.add(name)
    return digest.hexdigest(), max(n_bytes, 0)  # 0 if they are not known


def _manifest_without(
    file: TokenFile, numbers: Numbers, n_bytes: int, shards: list[Shard]
) -> Manifest:
    """Return the manifest of the documents that remain, with `n_bytes` of text."""
    manifest, sources = file.manifest, [*map(dict, file.manifest.sources)]
    sizes, known = spans_of_documents(file, numbers)[1], Sources(file)
    of = known.of(numbers) if known.names else 0 * numbers  # unknown: the first
    for number in np.unique(of).tolist():
        own, n_documents = sources[number], int((of == number).sum())
        if known.in_order:
            own["documents"] -= n_documents
            own["tokens"] -= int(sizes[of == number].sum())
        own[DROPPED] = own.get(DROPPED, 0) + n_documents
    for own in sources:
        own.pop(APPENDED, None)  # positions of tokens have changed
    return structs.replace(
        manifest, n_tokens=sum(each.n_tokens for each in shards),
        n_documents=sum(each.n_documents for each in shards), n_bytes=n_bytes,
        sources=tuple(sources), digests={} if manifest.shards else shards[0].digests,
        shards=tuple(shards) if manifest.shards else (),
    )
