"""Write the rows of a dataset, in shards that are resumed one by one.

Shards are made by threads, each from the dataset alone. A shard that is complete and durable is
noted in the journal; when all are, they get their final names, the manifest last.
"""

from __future__ import annotations

import io
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import xxhash
from msgspec import Struct, structs

from bpe.files.locations import split_location
from bpe.parallel import run_in_order
from preprocess.dataset.columns import manifest_name
from preprocess.dataset.manifest import spellings_of
from preprocess.dataset.reader import TokenFile, open_tokens
from preprocess.report.progress import Progress, logger, progress_of
from preprocess.rows.columns import RowBatch, RowReader, Shape
from preprocess.rows.formats import FORMATS, RowsError
from preprocess.rows.layout import (
    columns_of,
    compression_of,
    ids_of_rows,
    plan_rows,
    settings_of_rows,
    shard_bounds,
    shard_names,
)
from preprocess.rows.manifest import (
    FORMAT,
    MANIFEST_FILE,
    ContentDigest,
    RowsManifest,
    ShardFacts,
    read_manifest,
)
from preprocess.rows.plan import RowPlan
from preprocess.run.finished import find_manifests, find_run, find_token_files, newest_source
from preprocess.run.journal import Journal, open_journal
from preprocess.run.outputs import Committing
from preprocess.settings.keywords import RowKeywords
from preprocess.settings.options import (
    SettingsError,
    StrPath,
    TokenizerSource,
    checks_names,
    convert,
)
from preprocess.settings.rows import MAX_SHARD_SIZE, RowSettings, RowsSettings
from preprocess.storage import OutputError, Stream, open_storage

CONFIG_FILE = "config.json"
METADATA_FILE = "metadata.json"
STATS_FILE = "tokenization_stats.json"
DUMP_FILE = "dump-meta_data.json"  # of pickled rows
_RUN = "rows"
_BUFFER = 1 << 20  # bytes that are appended to a shard at a time
_WRITTEN_AT_ONCE = 1 << 24  # bytes after which the disk is asked to write


class RowsBegun(Struct, tag_field="kind", tag="rows begun"):
    """First entry of a journal: what the rows are made of."""

    made_from: dict[str, Any]


class ShardDone(Struct, tag_field="kind", tag="shard done"):
    """A shard is complete and durable."""

    number: int
    facts: ShardFacts


class RowsResult(NamedTuple):
    """Rows of one token file.

    Attributes:
        path: Directory of the rows.
        manifest: What was written.
        is_new: False if the rows were there already.
        seconds: Time that writing took.
    """

    path: Path
    manifest: RowsManifest
    is_new: bool
    seconds: float

    def __repr__(self) -> str:
        return f"RowsResult({self.line})"

    @property
    def line(self) -> str:
        """The result in words."""
        found = self.manifest
        state = f"in {self.seconds:.1f} s" if self.is_new else "up to date"
        return (
            f"{self.path}: {state} ({found.rows:,} rows, {found.tokens:,} tokens,"
            f" {len(found.shards):,} file{'s' * (len(found.shards) > 1)},"
            f" {sum(x.bytes for x in found.shards):,} bytes)"
        )


@checks_names
def write_rows(
    path: StrPath, *, out: StrPath = "rows", tokenizer: TokenizerSource | None = None,
    format: Literal["parquet", "arrow", "jsonl", "npz", "pickle"] = "parquet",
    max_length: int | None = None, seq_length: int | None = None,
    strategy: Literal["greedy", "pool", "first_fit", "best_fit"] | None = None,
    workers: int | None = None, overwrite: bool = False, progress: Progress | bool | None = None,
    **options: Unpack[RowKeywords],
) -> list[RowsResult]:
    """Write rows of a dataset, or of all datasets in a directory, to files.

    Options: docs/options.md or `tokenmill rows --help`; `progress=False` shows none.

    Raises:
        TokenFileError: There is no dataset, or it is damaged.
        RowsError: The rows cannot be made in this way.
        OutputError: They cannot be written, or other rows are there.
        SettingsError: Options are invalid.
    """
    given: dict[str, Any] = {**locals()}
    progress = progress_of(given.pop("progress"))
    return write_all(convert(given | given.pop("options"), RowsSettings), progress)


def write_all(settings: RowsSettings, progress: Progress) -> list[RowsResult]:
    """Write rows as `write_rows`."""
    paths, out = find_token_files(settings.path), Path(settings.out)
    is_one = len(paths) == 1
    runs = [
        _Run(open_tokens(path), settings, out if is_one else out / path.stem, path.stem)
        for path in paths
    ]
    for other in [out / paths[0].stem] if is_one else [out]:
        if (other / MANIFEST_FILE).exists():
            raise OutputError(
                f"{other}: has rows, and these would be beside them in"
                f" {' and '.join(str(run.directory) for run in runs)}; remove them, or choose"
                " another directory (--out)"
            )
    return [run.write(progress) for run in runs]


class _Run:
    """Writes the rows of one token file into one directory; files are named after `name`."""

    def __init__(
        self, file: TokenFile, settings: RowsSettings, directory: Path, name: str
    ) -> None:
        self._file, self._settings, self.directory, self._name = file, settings, directory, name
        self._of_settings = settings_of_rows(settings)
        self._ids = ids_of_rows(file, settings, settings.tokenizer)
        (before, after), pad_id = self._ids
        self._made_from = {
            "dataset_digest": file.manifest.digest, "settings": self._of_settings,
            "ids": [[*before], [*after], pad_id * (settings.padding != "none")],
        }
        self._storage = open_storage(directory, _RUN)

    def write(self, progress: Progress) -> RowsResult:
        """Write the rows, unless they are there."""
        started = time.perf_counter()
        self._storage.check_writable()
        with self._storage:
            begun, overwrite = RowsBegun(self._made_from), self._settings.overwrite
            journal = open_journal(self._storage, begun, "rows", overwrite)
            try:
                with journal:
                    if (entry := journal.last(Committing)) is not None:
                        self._publish(entry)
                    elif not journal.entries and self._is_there():
                        return RowsResult(self.directory, read_manifest(self.directory), False, 0)
                    else:
                        self._make(journal, progress, started)
            except (SettingsError, RowsError):  # the same command would fail again
                self._storage.clear()
                raise
        seconds = time.perf_counter() - started
        return RowsResult(self.directory, read_manifest(self.directory), True, seconds)

    def _is_there(self) -> bool:
        """Return True if the rows exist; raise OutputError if others do."""
        if self._storage.final.size(MANIFEST_FILE) is None or self._settings.overwrite:
            return False
        found = read_manifest(self.directory)
        before, after = found.around
        theirs = {
            "dataset_digest": found.dataset_digest, "settings": found.settings,
            "ids": [[*before], [*after], found.pad_id * (self._settings.padding != "none")],
        }
        if theirs == self._made_from:
            for each in found.shards:
                if self._storage.final.size(each.name) is None:
                    raise OutputError(
                        f"{self._storage.final.where(each.name)}: is missing; run tokenmill verify"
                        f" --repair {self.directory}"
                    )
            return True
        own = self._of_settings
        names = [name for name, value in found.settings.items() if own.get(name) != value]
        is_same = found.dataset_digest == self._made_from["dataset_digest"]
        names += ["special ids"] * (is_same and not names)
        other = f"other settings ({', '.join(names)})" if names else "another dataset"
        raise OutputError(
            f"{self.directory}: has rows of {other}; choose another directory, or replace them"
            " (--overwrite)"
        )

    def _make(self, journal: Journal, progress: Progress, started: float) -> None:
        settings = self._settings
        plan, shape = self._layout
        bounds = shard_bounds(len(plan), self._n_shards(plan, shape))
        done = {each.number: each.facts for each in journal.entries_of(ShardDone)}
        names = shard_names(self._name, len(bounds) - 1, settings)
        self._check_free(names)
        if not journal.entries:
            journal.append(RowsBegun(self._made_from))
        reader = RowReader(self._file, plan, shape)
        todo = [number for number in range(len(names)) if not self._is_complete(done.get(number))]
        n_before = sum(each.rows for number, each in done.items() if number not in todo)

        def work(number: int) -> tuple[int, ShardFacts]:
            rows = bounds[number], bounds[number + 1]
            stream = self._storage.stream(names[number])
            try:
                facts = write_shard(
                    reader, settings, self._file.vocab_size, names[number], rows, stream
                )
                stream.sync()
            finally:
                stream.close()
            return number, facts

        title = f"writing rows of {self._name}"
        with (
            progress.stage(title, len(plan), "rows", n_before) as stage,
            closing(run_in_order(todo, lambda: work, settings.workers)) as results,
        ):
            for number, facts in results:
                done[number] = facts
                journal.append(ShardDone(number, facts))
                stage.advance(facts.rows)
        shards = tuple(done[number] for number in range(len(names)))
        manifest = self._manifest_of(plan, shape, shards)
        seconds = time.perf_counter() - started
        others, digests = self._descriptions(manifest, seconds, progress.peak_memory), {}
        for name, content in others.items():
            data = (json.dumps(content, indent=2) + "\n").encode()
            self._storage.put(name, data)
            if name != STATS_FILE:  # which has times
                digests[name] = xxhash.xxh3_128_hexdigest(data)
        manifest = structs.replace(manifest, beside=digests)
        self._storage.put(MANIFEST_FILE, manifest.to_json().encode())
        gone = sorted(self._files_before() - {*names, *others, MANIFEST_FILE})
        entry = Committing([*names, *others], [MANIFEST_FILE], gone)
        journal.append(entry)
        self._publish(entry)

    def _manifest_of(
        self, plan: RowPlan, shape: Shape, shards: tuple[ShardFacts, ...]
    ) -> RowsManifest:
        file = self._file
        # A relative path, so that both may be moved together.
        dataset = os.path.relpath(Path(file.absolute_path).with_suffix(".json"), self.directory)
        return RowsManifest(
            dataset=dataset, dataset_digest=file.manifest.digest, settings=self._of_settings,
            around=(shape.before, shape.after), columns=shape.columns, vocab_size=file.vocab_size,
            pad_id=shape.pad_id, length=shape.length, rows=len(plan),
            tokens=plan.n_tokens + len(plan) * shape.n_around, documents=file.n_documents,
            longest=plan.longest + shape.n_around, text_bytes=file.manifest.n_bytes, shards=shards,
        )

    def _check_free(self, names: list[str]) -> None:
        """Raise OutputError if files of other programs, or a dataset, are in the way."""
        final = self._storage.final
        if find_manifests(self.directory):
            raise OutputError(
                f"{self.directory}: has a dataset; choose another directory for its rows (--out)"
            )
        wanted = {*names, MANIFEST_FILE, CONFIG_FILE, METADATA_FILE, STATS_FILE}
        if self._settings.format == "pickle":
            wanted.add(DUMP_FILE)
        if there := {*final.names()} & wanted - self._files_before():
            raise OutputError(
                f"{final.where(min(there))}: exists and was not written by tokenmill rows, so it is"
                " left alone; move it away or choose another directory (--out)"
            )

    def _files_before(self) -> set[str]:
        """Return the names of files of rows that are replaced; {}: none are there."""
        files = self._storage.final
        content = files.get(MANIFEST_FILE)
        if not any(each.encode() in (content or b"") for each in spellings_of(FORMAT)):
            return set()  # none, or of another program
        found = {MANIFEST_FILE, CONFIG_FILE, METADATA_FILE, STATS_FILE}
        try:
            manifest = read_manifest(self.directory)
            return found | {*manifest.beside, *(each.name for each in manifest.shards)}
        except RowsError:  # damaged: by their names
            own = rf"{re.escape(self._name)}-\d{{5}}-of-\d{{5}}\..*|part_\d{{3,}}\.npz"
            own += r"|dump-(\d+\.pkl|meta_data\.json)"
            return found | {name for name in files.names() if re.fullmatch(own, name)}

    def _publish(self, entry: Committing) -> None:
        self._storage.publish(entry.names, entry.last, entry.gone)
        self._storage.clear()

    @cached_property
    def _layout(self) -> tuple[RowPlan, Shape]:
        file, settings = self._file, self._settings
        return plan_rows(file, settings, *self._ids)

    def _n_shards(self, plan: RowPlan, shape: Shape) -> int:
        wanted, largest = self._settings.num_shards, self._settings.max_shard_size
        size = 4 * len(shape.columns) * (
            len(plan) * shape.length if shape.length
            else plan.n_tokens + len(plan) * shape.n_around
        )
        needed = -(-size // (largest or MAX_SHARD_SIZE)) if largest or not wanted else 1
        found = min(len(plan), max(wanted or 1, needed))
        if wanted and found != wanted:
            logger.warning(
                "%s: %s files instead of num_shards=%s, for %s", self.directory, f"{found:,}",
                f"{wanted:,}", f"there are {found:,} rows" if found < wanted else
                f"their arrays have {size:,} bytes, and max_shard_size is {largest:,}",
            )
        return found

    def _descriptions(
        self, manifest: RowsManifest, seconds: float, peak_memory: int
    ) -> dict[str, Any]:
        """Return the contents of the files that describe rows for people and other programs."""
        n_bytes = sum(each.bytes for each in manifest.shards)
        place, name = split_location(str(self._file.absolute_path))
        run = find_run(open_storage(place).final, manifest_name(Path(name).stem))
        fingerprint = self._file.manifest.tokenizer_fingerprint
        shown = None if run is None or run.settings is None else run.settings.get("tokenizer")
        about = {
            "tokenizer": shown or (f"sha256:{fingerprint}" if fingerprint else "not known"),
            "max_length": self._settings.max_length, "truncation": self._settings.truncation,
        }
        found: dict[str, Any] = {
            CONFIG_FILE: manifest.settings | about | {
                "dataset": manifest.dataset, "tokenizer_fingerprint": fingerprint,
                "vocab_size": manifest.vocab_size, "pad_id": manifest.pad_id,
            },
            METADATA_FILE: about | {
                "num_examples": manifest.rows, "tokens": manifest.tokens,
                "documents": manifest.documents, "longest": manifest.longest,
                "average_length": manifest.tokens / manifest.rows,
                "columns": list(manifest.columns), "files": [each.name for each in manifest.shards],
                # Not the time of the run, so that the same input gives the same bytes.
                "created_at": None if run is None else newest_source(run),
            },
            STATS_FILE: {
                "total_sequences": manifest.rows, "total_tokens": manifest.tokens,
                "avg_sequence_length": manifest.tokens / manifest.rows,
                "processing_time_seconds": seconds,
                "sequences_per_second": manifest.rows / max(seconds, 1e-9),
                "files_processed": len(manifest.shards),
                "compression_ratio": manifest.text_bytes / max(n_bytes, 1),
                "memory_usage_mb": peak_memory / 1e6,
            },
        }
        if manifest.format == "pickle":
            found[DUMP_FILE] = {
                "files": len(manifest.shards), "samples": manifest.rows, "tokens": manifest.tokens,
            }
        return found

    def _is_complete(self, facts: ShardFacts | None) -> bool:
        return facts is not None and self._storage.size(facts.name) == facts.bytes


def write_shard(
    reader: RowReader, settings: RowSettings, vocab_size: int, name: str, rows: tuple[int, int],
    stream: Stream,
) -> ShardFacts:
    """Write rows to a stream, and return the facts of the file."""
    first, stop = rows
    codec, columns = FORMATS[settings.format].codec(), columns_of(settings)
    content, n_tokens, is_counted = ContentDigest(), 0, False
    # New memory for each batch would take a tenth more time, and so would a thread that is a batch
    # ahead: more memory is in use, and leaves the caches.
    space = reader.space()

    def batches() -> Iterator[RowBatch]:
        nonlocal n_tokens, is_counted
        counts, is_counted = not is_counted, True
        for start, end in reader.bounds(first, stop):
            batch = reader.read(start, end, space)
            if counts:
                _check_ids(batch, vocab_size, name)
                content.update(batch)
                n_tokens += reader.n_tokens(start, end)
            yield batch

    sink = _Sink(stream)
    with io.BufferedWriter(sink, _BUFFER) as file:
        codec.write_shard(file, columns, compression_of(settings), stop - first, batches)
    return ShardFacts(
        name, stop - first, n_tokens, sink.n_bytes, sink.digest.hexdigest(), content.hexdigest()
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
