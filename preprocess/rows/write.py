"""Write the rows of a dataset, in shards that are resumed one by one.

Shards are made by threads, each from the dataset alone. A shard that is complete and durable is
noted in the journal; when all are, they get their final names, the manifest last.
"""

from __future__ import annotations

import glob
import io
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from msgspec import Struct, structs

from bpe.files.locations import is_url, is_web
from bpe.parallel import cached_property, run_in_order
from preprocess.config import CORPUS_FORMAT
from preprocess.dataset.columns import manifest_name
from preprocess.dataset.manifest import SELECTED
from preprocess.dataset.reader import TokenFile, check_tokenizer, open_tokens
from preprocess.locations import is_bucket, join_location, relative_location, split_location
from preprocess.options import MAX_SHARD_SIZE, RowSettings, RowsSettings
from preprocess.report.progress import OutOfTimeError, Progress, logger, progress_of
from preprocess.report.summary import out_of_time
from preprocess.rows.columns import COLUMNS, RowBatch, RowPlan, RowReader, Shape
from preprocess.rows.formats import DUMP_FILE, FORMATS, NewRows, RowsError, format_of
from preprocess.rows.loaders import find_files, location_of
from preprocess.rows.manifest import (
    MANIFEST_FILE,
    ContentDigest,
    RowsManifest,
    ShardFacts,
    has_manifest,
    read_manifest,
)
from preprocess.run.outputs import (
    check_no_others,
    check_sizes,
    find_run,
    find_token_files,
    manifests_in,
    newest_source,
    read_object,
)
from preprocess.run.record import Record
from preprocess.run.run import Run
from preprocess.sampling.packing import ALONE, PackedWindows
from preprocess.sampling.windows import DocumentSpans
from preprocess.settings import SettingsError, TokenizerSource, options_of, takes
from preprocess.sources.compressed import CODECS
from preprocess.storage import OutputError, Stream, digest_of_file, open_storage

Ids = tuple[int, ...]

CONFIG_FILE = "config.json"
METADATA_FILE = "metadata.json"
STATS_FILE = "tokenization_stats.json"
_BESIDE = {MANIFEST_FILE, CONFIG_FILE, METADATA_FILE, STATS_FILE}
_BUFFER = 1 << 20  # bytes that are appended to a shard at a time
_WRITTEN_AT_ONCE = 1 << 24  # bytes after which the disk is asked to write
_RESUMES = (
    "files that are complete are kept, and the others are written; if none was complete, raise"
    " --max-minutes, or have more and smaller files (--num-shards)"
)


class ShardDone(Struct):
    """A shard is complete and durable."""

    number: int
    facts: ShardFacts


class RowsResult(NamedTuple):
    """Rows of one token file.

    Attributes:
        path: Directory of the rows; if it is in a bucket, its URL as text.
        manifest: What was written.
        is_new: False if the rows were there already.
        seconds: Time that it took.
        n_written: Number of files that were written; the others were there.
    """

    path: Path | str
    manifest: RowsManifest
    is_new: bool
    seconds: float
    n_written: int

    def __repr__(self) -> str:
        return f"RowsResult({self.line})"

    @property
    def line(self) -> str:
        """The result in words."""
        found = self.manifest
        state = f"in {self.seconds:.1f} s" if self.is_new else "up to date"
        if self.is_new and self.n_written < len(found.shards):
            state += f", {self.n_written:,} written and the others up to date"
        return (
            f"{self.path}: {state} ({found.rows:,} rows, {found.tokens:,} tokens,"
            f" {len(found.shards):,} file{'s' * (len(found.shards) > 1)},"
            f" {sum(x.bytes for x in found.shards):,} bytes)"
        )


@takes(RowsSettings)
def write_rows(settings: RowsSettings) -> list[RowsResult]:
    """Write rows of a dataset, or of all datasets in a directory, to files.

    Options: docs/options.md or `tokenmill rows --help`; `progress=False` shows none.

    Raises:
        TokenFileError: There is no dataset, or it is damaged.
        RowsError: The rows cannot be made in this way.
        OutputError: They cannot be written, or other rows are there.
        SettingsError: Options are invalid.
        OutOfTimeError: The time limit is reached.
    """
    progress = progress_of(settings.progress)
    progress.begin(settings.max_minutes)
    return write_all(settings, progress)


def write_all(settings: RowsSettings, progress: Progress) -> list[RowsResult]:
    """Write rows as `write_rows`."""
    paths, out = find_token_files(settings.path), settings.out
    names = [Path(path).stem for path in paths]
    inside = [join_location(out, name) for name in names]
    places, others = (inside, [out]) if len(paths) > 1 else ([out], inside)
    of_runs = zip(paths, places, names, strict=True)
    runs = [_Run(open_tokens(path), settings, place, name) for path, place, name in of_runs]
    earlier = [] if paths == [settings.path] else [
        place for place in (out, *_directories_of_rows(out))
        if place not in places and runs[0].is_of_earlier(place, is_inside=place != out)
    ]
    for other in dict.fromkeys((*earlier, *others)):
        final = open_storage(other).final
        is_replaced = settings.overwrite and other in earlier
        if final.size(MANIFEST_FILE) is not None and not is_replaced:
            again = ", or replace them (--overwrite)" if other in earlier else ""
            raise OutputError(
                f"{final.where()}: has rows, and these would be beside them in"
                f" {' and '.join(run.where for run in runs)}; remove them, or choose another"
                f" directory (--out){again}"
            )
    results = [run.write(progress) for run in runs]
    for place in earlier:
        with open_storage(place, "removal") as storage:
            # The manifest last: nobody takes what is left without it for all rows.
            described = _files_of_rows(place, "") - {MANIFEST_FILE}
            storage.remove_finished([*sorted(described), MANIFEST_FILE])
        if place != out and not is_url(place):
            with suppress(OSError):  # other files are there
                os.rmdir(place)
    return results


def _directories_of_rows(out: str) -> list[str]:
    """Return the directories inside of one that have a manifest of rows."""
    pattern = join_location(out if is_url(out) else glob.escape(out), f"*/{MANIFEST_FILE}")
    names = [location_of(each).split("/")[-2] for each in find_files(pattern, ())]
    return [join_location(out, name) for name in names]


class _Run:
    """Writes the rows of one token file into one directory; files are named after `name`."""

    def __init__(
        self, file: TokenFile, settings: RowsSettings, location: str, name: str
    ) -> None:
        self._file, self._settings, self._name = file, settings, name
        self._location, self._final = location, open_storage(location).final
        self.where = self._final.where()
        self._of_settings = settings_of_rows(settings)
        self._ids = ids_of_rows(file, settings)
        self._dataset_digest = file.manifest.digest

    def is_of_earlier(self, place: str, is_inside: bool) -> bool:
        """Return True if a directory has rows of a dataset that is, or was, beside this one.

        Those in a directory inside of that of the rows should be of the dataset that it names.
        """
        try:
            dataset = read_manifest(place).dataset
        except RowsError:  # none, or of another program
            return False
        _, name = split_location(dataset)
        if is_inside and name != manifest_name(split_location(place)[1]):
            return False
        return dataset == relative_location(join_location(self._dataset[0], name), place)

    def write(self, progress: Progress) -> RowsResult:
        """Write the rows, unless they are there."""
        started, is_new, (around, pad_id) = time.perf_counter(), True, self._ids
        ids: list[Any] = [*map(list, around), pad_id * self._settings.is_padded]
        made_from = {"dataset_digest": self._dataset_digest, "ids": ids, **self._of_settings}
        with Run(
            self._location, "rows", Record("rows", made_from, {}, None), self._settings.overwrite,
            hopeless=(SettingsError, RowsError),
        ) as run:
            if not run.is_complete:
                is_there, kept = self._find_there(self._settings.overwrite or run.resumed)
                is_new = run.resumed or not is_there
                if is_new:
                    self._make(run, progress, started, kept)
            n_written = sum(format_of(name) is not None for name in run.published)
        manifest, seconds = read_manifest(self._location), time.perf_counter() - started
        place = self.where if is_bucket(self._location) else Path(self._location)
        return RowsResult(place, manifest, is_new, seconds, n_written)

    @cached_property
    def _files(self) -> list[OutputFile]:
        """The files to write, in order."""
        settings = self._settings
        if settings.per_file:
            return [*files_of_sources(self._file, settings, *self._ids)]
        reader = RowReader(self._file, *plan_rows(self._file, settings, *self._ids))
        n_shards = self._n_shards(reader.plan, reader.shape)
        return divided(reader, shard_names(self._name, n_shards, settings))

    def _find_there(self, replaces: bool) -> tuple[bool, dict[str, ShardFacts]]:
        """Return (the rows exist, files of `per_file` by name that are as they would be written).

        An unfinished run replaces other rows if it was to when it began.

        Raises:
            OutputError: Other rows exist, and are not to be replaced.
        """
        final = self._final
        if final.size(MANIFEST_FILE) is None:
            return False, {}
        try:
            found = read_manifest(self._location)
        except RowsError:
            if replaces:
                return False, {}
            raise
        names, is_same = self._differences(found), found.dataset_digest == self._dataset_digest
        if self._settings.per_file and not names:
            wanted, there = {x.name: x for x in self._files}, {x.name: x for x in found.shards}
            gone = sorted({*final.names()} & there.keys() - wanted.keys())
            if gone and not replaces:
                raise OutputError(
                    f"{final.where(gone[0])}: has rows of an input that the dataset no longer has;"
                    " move it away, or have it removed (--overwrite)"
                )
            kept = {
                name: facts for name, facts in there.items()
                if name in wanted and digest_of_file(final, name).hexdigest() == facts.digest
                and (is_same or content_of(wanted[name]) == facts.content)
            }
            return is_same and not replaces and kept.keys() == wanted.keys(), kept
        if replaces:
            return False, {}
        if names or not is_same:
            other = f"other settings ({', '.join(names)})" if names else "another dataset"
            raise OutputError(
                f"{self.where}: has rows of {other}; choose another directory, or replace them"
                " (--overwrite)"
            )
        repair = "" if is_bucket(self.where) else f"run tokenmill verify --repair {self.where}, or "
        again = f"{repair}write the rows again (--overwrite)"
        check_sizes(final, {each.name: each.bytes for each in found.shards}, again)
        return True, {}

    def _differences(self, found: RowsManifest) -> list[str]:
        """Return the names of settings in which rows of any dataset differ from these."""
        own, (around, pad_id) = self._of_settings, self._ids
        # Options that earlier rows lack had their default's effect.
        options = options_of(RowSettings)
        before = {x: options[x].default for x in own if x in options} | found.settings
        names = [name for name, value in before.items() if own.get(name) != value]
        is_padded_alike = found.pad_id == pad_id or not self._settings.is_padded
        has_same_ids = found.around == around and is_padded_alike
        return names or ["special ids"] * (not has_same_ids or before != own)

    def _make(
        self, run: Run, progress: Progress, started: float, kept: Mapping[str, ShardFacts]
    ) -> None:
        names = [each.name for each in self._files]
        before = _files_of_rows(self._location, self._name)
        done = {i: kept[name] for i, name in enumerate(names) if name in kept}
        if manifests_in(self._final):
            raise OutputError(
                f"{self.where}: has a dataset; choose another directory for its rows (--out)"
            )
        beside = {*_BESIDE, DUMP_FILE} if self._settings.format == "pickle" else _BESIDE
        others = {*names, *beside} - before
        check_no_others(self._final, others, "tokenmill rows", "(--out)")
        if not run.resumed:
            self._report_plan()
        run.begin()
        for entry in run.journal.values("shards", ShardDone):
            if run.storage.size(entry.facts.name) == entry.facts.bytes:
                done[entry.number] = entry.facts
        self._write_shards(run, progress, done)
        run.add(*(name for name in names if name not in kept))
        manifest = self._manifest_of(tuple(done[number] for number in range(len(names))))
        seconds, digests = time.perf_counter() - started, dict[str, str]()
        for name, content in self._descriptions(manifest, seconds, progress.peak_memory).items():
            data = (json.dumps(content, indent=2) + "\n").encode()
            run.put(name, data)
            if name != STATS_FILE:  # which has times
                digests[name] = xxhash.xxh3_128_hexdigest(data)
        manifest = structs.replace(manifest, beside=digests)
        run.put(MANIFEST_FILE, manifest.to_json().encode(), last=True)
        run.gone = before - {*names}
        run.publish()

    def _write_shards(self, run: Run, progress: Progress, done: dict[int, ShardFacts]) -> None:
        """Write the files that are not done, each in a thread, and add their facts."""
        files, settings, lock = self._files, self._settings, threading.Lock()
        total = sum(each.stop - each.first for each in files)

        def work(number: int) -> tuple[int, ShardFacts]:
            with closing(run.storage.stream(files[number].name)) as stream:
                facts = write_shard(
                    files[number], settings, self._file.vocab_size, stream, advance
                )
                stream.finish(facts.bytes)
            return number, facts

        def advance(n_rows: int) -> None:
            with lock:
                stage.advance(n_rows)
            if stage.done < total and progress.out_of_time():
                raise OutOfTimeError(out_of_time(progress, _RESUMES))

        title = f"writing rows of {self._name}"
        todo = [number for number in range(len(files)) if number not in done]
        with (
            progress.stage(title, total, "rows", sum(x.rows for x in done.values())) as stage,
            closing(run_in_order(todo, lambda: work, settings.workers)) as results,
        ):
            for number, facts in results:
                done[number] = facts
                run.journal.save("shards", ShardDone(number, facts), adds=True, stage=stage)

    def _manifest_of(self, shards: tuple[ShardFacts, ...]) -> RowsManifest:
        file, files, (around, pad_id) = self._file, self._files, self._ids
        return RowsManifest(
            # A relative path, so that both may be moved together.
            dataset=relative_location(join_location(*self._dataset), self._location),
            dataset_digest=self._dataset_digest, settings=self._of_settings,
            around=around, columns=columns_of(self._settings), vocab_size=file.vocab_size,
            pad_id=pad_id,
            length=None if self._settings.per_file else files[0].reader.shape.length,
            rows=sum(each.rows for each in shards), tokens=sum(each.tokens for each in shards),
            documents=file.n_documents, longest=max(each.reader.longest for each in files),
            text_bytes=file.manifest.n_bytes, shards=shards,
        )

    @property
    def _dataset(self) -> tuple[str, str]:
        """Directory and name of the manifest of the dataset."""
        place, name = split_location(self._file.absolute_path)
        return place, manifest_name(Path(name).stem)

    def _report_plan(self) -> None:
        """Log what is left out, and padding that was not asked for."""
        settings, log = self._settings, partial(logger.info, "%s: %s", self.where)
        if n_short := sum(each.reader.plan.n_short for each in self._files if not each.first):
            length = settings.max_length or settings.seq_length
            log(f"{n_short:,} rows of fewer than {length:,} tokens are left out (--drop-short)")
        if settings.padded_to != settings.padding:
            to = "the longest" if settings.padded_to == "longest" else "seq_length"
            text = f"{settings.format} has rows of one length, so they are padded to {to}"
            log(f"{text}; --drop-short leaves out shorter ones")
        if settings.format == "pickle" and self._file.has_mask:
            text = "pickle has ids alone, so which tokens are trained on is lost"
            logger.warning("%s: %s; choose another --format", self.where, text)

    def _n_shards(self, plan: RowPlan, shape: Shape) -> int:
        wanted, largest = self._settings.num_shards, self._settings.max_shard_size
        n_tokens = plan.n_tokens + len(plan) * shape.n_around
        size = 4 * len(shape.columns) * (len(plan) * shape.length if shape.length else n_tokens)
        needed = -(-size // (largest or MAX_SHARD_SIZE)) if largest or not wanted else 1
        found = min(len(plan), max(wanted or 1, needed))
        if wanted and found != wanted:
            why = f"there are {found:,} rows" if found < wanted else (
                f"their arrays have {size:,} bytes, and max_shard_size is {largest:,}"
            )
            logger.warning(
                "%s: %s files instead of num_shards=%s, for %s", self.where, f"{found:,}",
                f"{wanted:,}", why,
            )
        return found

    def _descriptions(
        self, found: RowsManifest, seconds: float, peak_memory: int
    ) -> dict[str, dict[str, Any]]:
        """Return the contents of the files that describe rows for people and other programs."""
        settings, of_dataset = self._settings, self._file.manifest
        directory, name = self._dataset
        # Web servers have no lists of files.
        run = None if is_web(directory) else find_run(open_storage(directory).final, name)
        shown = run and run.settings and run.settings.get("tokenizer")
        fingerprint, sources = of_dataset.tokenizer_fingerprint, of_dataset.sources
        is_selected = any(each.get("name") == SELECTED for each in sources)
        seconds += run.seconds if run else 0
        average, n_bytes = found.tokens / found.rows, sum(each.bytes for each in found.shards)
        about = {
            "tokenizer": shown or (f"sha256:{fingerprint}" if fingerprint else "not known"),
            "max_length": settings.max_length, "truncation": settings.truncation,
        }
        counts = {"files": len(found.shards), "samples": found.rows, "tokens": found.tokens}
        of_pickles = {DUMP_FILE: counts} if found.format == "pickle" else {}
        return {
            CONFIG_FILE: found.settings | about | {
                "dataset": found.dataset, "tokenizer_fingerprint": fingerprint,
                "vocab_size": found.vocab_size, "pad_id": found.pad_id,
            },
            METADATA_FILE: about | {
                "num_examples": found.rows, "tokens": found.tokens, "documents": found.documents,
                "longest": found.longest, "average_length": average,
                "columns": list(found.columns), "files": [each.name for each in found.shards],
                # Not the time of the run, so that the same input gives the same bytes.
                "created_at": newest_source(run) if run else None,
            },
            STATS_FILE: {
                "total_sequences": found.rows, "total_tokens": found.tokens,
                "avg_sequence_length": average, "processing_time_seconds": seconds,
                "sequences_per_second": found.rows / max(seconds, 1e-9),
                "files_processed": run.files if run and is_selected else len(sources),
                "compression_ratio": found.text_bytes / max(n_bytes, 1),
                "memory_usage_mb": peak_memory / 1e6,
            },
        } | of_pickles


def _files_of_rows(location: str, name: str) -> set[str]:
    """Return the names of the files of rows in a directory, of the dataset `name`; {}: none."""
    files = open_storage(location).final
    if not has_manifest(files):
        # None, or of another program; what is made of them has replaced a configuration before.
        return {CONFIG_FILE} if read_object(files, CONFIG_FILE, CORPUS_FORMAT) else set()
    try:
        manifest = read_manifest(location)
        return {*_BESIDE, *manifest.beside, *(each.name for each in manifest.shards)}
    except RowsError:  # damaged: by their names
        own = rf"{re.escape(name)}-\d{{5}}-of-\d{{5}}\..*|part_\d{{3,}}\.npz"
        own += r"|dump-(\d+\.pkl|meta_data\.json)"
        return {*_BESIDE, *(each for each in files.names() if re.fullmatch(own, each))}


def content_of(output: OutputFile) -> str:
    """Make the rows of a file, and return their `ContentDigest`."""
    digest = ContentDigest()
    for batch in output.reader.batches(output.first, output.stop):
        digest.update(batch)
    return digest.hexdigest()


def write_shard(
    output: OutputFile, settings: RowSettings, vocab_size: int, stream: Stream,
    advance: Callable[[int], None] = lambda n_rows: None,
) -> ShardFacts:
    """Write rows to a stream, and return the facts of the file.

    `advance` is called with numbers of rows while they are written.
    """
    name, reader, first, stop = output
    content, n_tokens, n_seen, n_reported, n_rows = ContentDigest(), 0, 0, 0, stop - first
    n_passes = len(reader.shape.columns) if settings.format == "npz" else 1  # over all rows

    def batches() -> Iterator[RowBatch]:
        nonlocal n_tokens, n_seen, n_reported
        for batch in reader.batches(first, stop):
            if n_seen < n_rows:
                _check_ids(batch, vocab_size, name)
                content.update(batch)
                n_tokens += batch.n_tokens
            yield batch
            n_seen += len(batch)
            advance(n_seen // n_passes - n_reported)
            n_reported = n_seen // n_passes

    sink = _Sink(stream)
    with io.BufferedWriter(sink, _BUFFER) as file:
        rows = NewRows(reader.shape.columns, n_rows, batches)
        FORMATS[settings.format].write(file, rows, compression_of(settings))
    return ShardFacts(
        name, n_rows, n_tokens, sink.n_bytes, sink.digest.hexdigest(), content.hexdigest()
    )


class _Sink(io.RawIOBase):
    """A file to write to, whose bytes are digested and appended to a stream.

    The disk writes while further rows are made: waiting for it at the end took half as long as all
    the rest.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream, self.digest, self.n_bytes, self._n_begun = stream, xxhash.xxh3_128(), 0, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._stream.append(view)
        self.digest.update(view)
        self.n_bytes += len(view)
        if self.n_bytes - self._n_begun >= _WRITTEN_AT_ONCE:
            self._stream.begin_sync()
            self._n_begun = self.n_bytes
        return len(view)

    def tell(self) -> int:
        return self.n_bytes


def _check_ids(batch: RowBatch, vocab_size: int, name: str) -> None:
    """Raise RowsError for ids outside of the vocabulary."""
    ids = batch.values["input_ids"]
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise RowsError(
            f"{name}: the dataset has ids outside of its vocabulary of {vocab_size:,}, so it is"
            " damaged; run tokenmill verify on it"
        )


# --- which rows, arrays and files settings mean ---


def ids_of_rows(file: TokenFile, settings: RowsSettings) -> tuple[tuple[Ids, Ids], int]:
    """Return ((ids before, ids after each row), id of padding).

    The padding is as chosen, of the tokenizer, or the end of text.
    """
    from bpe import load_tokenizer
    from bpe.special import pad_token_of
    from preprocess.documents.tokenizer_files import read_token_names

    path, given = _tokenizer_of(file, settings.tokenizer), settings.tokenizer
    token, is_padded, known = settings.pad_token, settings.is_padded, dict[str, int]()
    if path is not None:
        found = load_tokenizer(path)
        is_needed = given is not None or settings.add_special_tokens or is_padded
        if is_needed or found.has_fingerprint(file.manifest.tokenizer_fingerprint):
            check_tokenizer(file.path, file.manifest, found)
            known = found.special_tokens
            names = read_token_names(str(path) if isinstance(path, Path) else path)
            token = names.get("pad_token") or pad_token_of(known) if token is None else token
    around = _special_ids(file, path) if settings.add_special_tokens else ((), ())
    if token is None or (isinstance(token, str) and token not in known and not is_padded):
        return around, file.manifest.end_of_text_id
    if path is None and isinstance(token, str):
        raise SettingsError(
            f"--pad-token {token!r} cannot be looked up without a tokenizer; give it (--tokenizer)"
        )
    return around, pad_id_of(token, file.vocab_size, known, path)


def pad_id_of(
    token: int | str, vocab_size: int, known: Mapping[str, int], where: Any,
    option: str = "--pad-token",
) -> int:
    """Return the id of padding; raise SettingsError if it is not in the vocabulary.

    Args:
        token: The id, or a special token.
        vocab_size: Number of ids.
        known: Special token -> id.
        where: The tokenizer, for messages.
        option: Name of the option, for messages.
    """
    if isinstance(token, int):
        if not 0 <= token < vocab_size:
            raise SettingsError(
                f"{option} {token:,} is no id of the vocabulary of {vocab_size:,}; give one"
            )
        return token
    if token not in known:
        raise SettingsError(
            f"{option} {token!r} is no special token of {where}, which has"
            f" {', '.join(map(repr, known)) or 'none'}; choose one of these"
        )
    return known[token]


def plan_rows(
    file: TokenFile, settings: RowSettings, around: tuple[Ids, Ids], pad_id: int,
    documents: range | None = None,
) -> tuple[RowPlan, Shape]:
    """Return which tokens rows have, and how they become arrays.

    Args:
        file: The dataset.
        settings: How rows are made of it.
        around: Ids before and after each row.
        pad_id: Id of padding.
        documents: Numbers of consecutive documents, not with a strategy; None: all.

    Raises:
        RowsError: The settings do not fit the dataset.
    """
    manifest, ends = file.manifest, file.document_ends
    shape = Shape(
        columns_of(settings), *around, pad_id=pad_id, is_packed=settings.strategy is not None,
        pads_left=settings.padding_side == "left",
    )
    plan: RowPlan
    if settings.seq_length is not None:
        if settings.strategy is not None:
            plan = PackedWindows(
                file, settings.seq_length, settings.strategy, settings.cut, is_written=True
            )
        else:
            bounds = (0, len(ends)) if documents is None else (documents.start, documents.stop)
            edges = [int(ends[number - 1]) if number else 0 for number in bounds]
            plan = DocumentSpans(
                np.array(edges, np.uint64), settings.seq_length, documents=range(1, 2),
                drop_short=settings.drop_short,
            )
    elif settings.cut == "turns":
        assert settings.max_length is not None  # the option needs it
        plan = PackedWindows(file, settings.max_length, ALONE, settings.cut, is_written=True)
    else:
        n_before = n_after = 0
        if settings.add_special_tokens:
            n_before = int(manifest.begin_of_text_id is not None)
        if settings.add_special_tokens or settings.drop_end_of_text:
            n_after = 1
        room = settings.max_length and settings.max_length - shape.n_around
        if room is not None and room < 1:
            raise RowsError(
                f"--max-length {settings.max_length} has no room for the {shape.n_around} special"
                " tokens around each row and a token; raise it"
            )
        # So that rows overlap by max_length - stride tokens of the document.
        stride = settings.stride and settings.stride - shape.n_around
        if stride is not None and stride < 1:
            raise RowsError(
                f"--stride {settings.stride} is not above the {shape.n_around} special tokens"
                " around each row, so rows would not advance; raise it"
            )
        plan = DocumentSpans(
            ends, room, stride, n_before=n_before, n_after=n_after, documents=documents,
            first_only=settings.truncation, drop_short=settings.drop_short,
        )
    if not len(plan) and documents is None:
        what = "a shorter --max-length or --seq-length, or leave out --drop-short"
        raise RowsError(
            f"{file.path}: has no tokens for rows; "
            + (f"choose {what}" if plan.n_short else "build it from more text")
        )
    if settings.is_padded:
        longest = plan.longest + shape.n_around
        length = longest if settings.padded_to == "longest" else (
            settings.max_length or settings.seq_length
        )
        shape = replace(shape, length=length)
    return plan, shape


def shard_names(name: str, n_shards: int, settings: RowSettings) -> list[str]:
    """Return the names of the files."""
    if settings.format == "pickle":
        return [f"dump-{number}.pkl" for number in range(n_shards)]
    if settings.format == "npz":
        return [f"part_{number:03}.npz" for number in range(n_shards)]
    suffix = FORMATS[settings.format].suffix_of(compression_of(settings))
    return [f"{name}-{number:05}-of-{n_shards:05}{suffix}" for number in range(n_shards)]


def compression_of(settings: RowSettings) -> str:
    """Return the compression; raise SettingsError if the format has it not."""
    known = FORMATS[settings.format].compressions
    if settings.compression is None:
        return known[0]
    if settings.compression not in known:
        raise SettingsError(
            f"--compression {settings.compression!r} is not for format {settings.format!r}, which"
            f" has {', '.join(known)}; choose one of these"
        )
    return settings.compression


def columns_of(settings: RowSettings) -> tuple[str, ...]:
    """Return the names of the arrays; raise SettingsError for wrong ones."""
    if settings.format == "pickle":
        own = COLUMNS[: 2 if settings.is_padded else 1]
        if settings.columns not in ((), ("input_ids",), own):
            raise SettingsError("format pickle has ids alone; leave out --column")
        return own
    if not settings.columns:
        if settings.format == "npz":
            return COLUMNS[:2]
        # With an attention mask, models of transformers attend across the documents of a row.
        packed = ("input_ids", "labels", "segment_ids", "position_ids")
        return packed if settings.strategy is not None else COLUMNS[:3]
    for name in settings.columns:
        if name not in COLUMNS or settings.columns.count(name) > 1:
            raise SettingsError(
                f"--column {name!r} should be one of {', '.join(COLUMNS)}, each once at most"
            )
    if "input_ids" not in settings.columns:
        raise SettingsError("--column lacks input_ids, without which rows have no tokens")
    return settings.columns


def settings_of_rows(settings: RowSettings) -> dict[str, Any]:
    """Return the options of `RowSettings` that change rows, for JSON."""
    own = options_of(RowSettings)
    found = {name: getattr(settings, name) for name, each in own.items() if each.changes_result}
    found |= {"columns": list(columns_of(settings)), "compression": compression_of(settings)}
    return found


def _special_ids(file: TokenFile, path: Any) -> tuple[Ids, Ids]:
    """Return the ids (before, after) a row that the post-processor of a tokenizer has."""
    from preprocess.documents.tokenizer_files import read_special_ids

    if path is None:
        raise SettingsError(
            f"--add-special-tokens needs the tokenizer of {file.path}, and there is no"
            " tokenizer.json beside it; give it (--tokenizer)"
        )
    found = read_special_ids(path)
    if any(not 0 <= token < file.vocab_size for part in found for token in part):
        raise RowsError(
            f"{path}: the post-processor has ids outside of the vocabulary of {file.vocab_size:,};"
            " correct it"
        )
    if not any(found):
        logger.warning(
            "%s: the tokenizer puts no special tokens around a text, so rows have none: neither"
            " does a document end with one", file.path,
        )
    return found


def _tokenizer_of(file: TokenFile, given: TokenizerSource | None) -> Any:
    """Return the given tokenizer, or the file beside the dataset; None: there is none."""
    if given is None:
        return file.tokenizer_file()[0]
    if not isinstance(given, str):
        return given
    path = Path(given)
    return path / "tokenizer.json" if path.is_dir() else path


class OutputFile(NamedTuple):
    """The rows [first, stop) of a reader, which are written to one file."""

    name: str
    reader: RowReader
    first: int
    stop: int


def divided(reader: RowReader, names: Sequence[str]) -> list[OutputFile]:
    """Divide rows among files, which differ by one row at most."""
    size, longer = divmod(len(reader.plan), len(names))
    bounds = [number * size + min(number, longer) for number in range(len(names) + 1)]
    return [
        OutputFile(name, reader, *rows) for name, rows in zip(names, pairwise(bounds), strict=True)
    ]


def files_of_sources(
    file: TokenFile, settings: RowSettings, around: tuple[Ids, Ids], pad_id: int
) -> Iterator[OutputFile]:
    """Yield the file with the rows of each input file that has some.

    Raises:
        RowsError: Documents belong to no input file, or two of these would have the same output.
    """
    suffix = FORMATS[settings.format].suffix_of(compression_of(settings))
    inputs, first = dict[str, str](), 0
    for source in file.manifest.sources:
        name, count = str(source.get("name")), source.get("documents")
        if count is None or name == SELECTED or file.manifest.is_imported:
            raise RowsError(
                f"{file.path}: its documents were selected, shuffled or imported, so they belong to"
                " no input file; leave out --per-file"
            )
        documents, first = range(first, first + count), first + count
        plan, shape = plan_rows(file, settings, around, pad_id, documents)
        if not len(plan):
            continue
        output = f"{_stem_of(name)}{suffix}"
        if output in inputs:
            raise RowsError(
                f"{file.path}: the inputs {inputs[output]} and {name} would both have the output"
                f" {output}; rename one of them, or leave out --per-file"
            )
        inputs[output] = name
        yield OutputFile(output, RowReader(file, plan, shape), 0, len(plan))
    if not inputs:
        raise RowsError(f"{file.path}: has no tokens for rows; build it from more text")


def _stem_of(name: str) -> str:
    """Return the name of an input file as one name, without suffixes.

    >>> _stem_of("sub/part_000.jsonl.gz")
    'sub_part_000'
    """
    stem, suffix = os.path.splitext(name)
    if any(suffix.lower() in codec.suffixes for codec in CODECS):
        stem = os.path.splitext(stem)[0]
    return stem.lstrip("./").replace("/", "_")
