"""Rebuild token files from their sources, to compare or to repair them.

Files are rebuilt by the functions of the build. Only proven content gets a final name: blocks must
have the digests in the manifest, a manifest the digest in stats.json, a tokenizer the fingerprint
in the manifest. Settings and paths are read from stats.json, the counts of each source from the
manifest; only sources of damaged shards are read.

Functions raise `RebuildError` if the origin is unknown or the result not proven, another
`TokenmillError` if a source cannot be read, and `OutputError` if a file cannot be written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bpe.errors import TokenmillError
from preprocess.dataset.columns import Column, Values, in_sources, manifest_name
from preprocess.dataset.manifest import SELECTED, DataFile, Manifest
from preprocess.dataset.reader import TokenFile
from preprocess.dataset.writer import ColumnFile
from preprocess.iterables import is_shown
from preprocess.options import BuildSettings, EncodeSettings
from preprocess.report.progress import Progress
from preprocess.report.summary import Report
from preprocess.run.encode_pass import EncodePass, Part, SpecialIds
from preprocess.run.journal import Journal
from preprocess.run.merge import find_parts, join_parts
from preprocess.run.outputs import (
    TOKENIZER_FILE,
    Stats,
    digest_of,
    list_tokenizer_files,
    put_tokenizer,
    read_stats,
)
from preprocess.run.passes import reload_tokenizer
from preprocess.run.reading import find_passes
from preprocess.run.selection import select_documents
from preprocess.sources import digest_of as digest_of_source
from preprocess.sources.standard_input import has_standard_input
from preprocess.storage import Storage, open_repair, open_storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

EDITED = "documents were appended or dropped since it was built"
SELECTED_BEFORE = (
    "an earlier version selected or shuffled its documents, in another way; if it is damaged,"
    " build it again (--overwrite)"
)
_COMMANDS: dict[str, type[BuildSettings | EncodeSettings]] = {
    "build": BuildSettings, "encode": EncodeSettings,
}


class RebuildError(TokenmillError):
    """Token files cannot be rebuilt: their sources or settings are unknown or have changed."""


@contextmanager
def _as_rebuild_error() -> Iterator[None]:
    try:
        yield
    except TokenmillError as error:
        raise RebuildError(str(error)) from error


def find_starts(manifest: Manifest, per: str) -> list[int]:
    """Return the index of the first token or document of each source, and the total."""
    counts = [source.get(f"{per}s") for source in manifest.sources]
    known = [count for count in counts if isinstance(count, int) and count >= 0]
    if len(known) < len(counts):
        raise RebuildError("its manifest has no counts of each source")
    return [0, *accumulate(known)]


def find_sources_of(manifest: Manifest, file: DataFile, number: int | None = None) -> range:
    """Return the indices of the sources of a data file, or of one block of it."""
    starts = find_starts(manifest, file.column.per)
    values = range(file.count) if number is None else file.block(number)
    n_before = file.before.count(file.column)
    first = int(np.searchsorted(starts, n_before + values.start, "right")) - 1
    return range(max(first, 0), int(np.searchsorted(starts, n_before + values.stop, "left")))


def find_run(bin_path: Path) -> tuple[BuildSettings | EncodeSettings, Stats]:
    """Return (settings, stats.json) of the run that wrote a token file.

    If a command replaced the file of another, both stats.json list it: the digest of the manifest
    decides.
    """
    files, name = open_storage(bin_path.parent).final, manifest_name(bin_path.stem)
    found: dict[str, Stats] = {}
    for each in files.names():
        stats = read_stats(files, each) if each.endswith("stats.json") else None
        if stats and stats.made_from and stats.made_from.command in _COMMANDS:
            found |= {each: stats} if name in stats.manifests else {}
    runs = [*found.values()]
    if len(runs) > 1:
        digest = digest_of(files.get(name))
        runs = [each for each in runs if each.manifests[name] == digest]
    if not runs:
        which = f"{' and '.join(found)} both describe it, and neither has its manifest's digest"
        none = "no stats.json in its directory describes it, or it cannot be read"
        raise RebuildError(which if found else none)
    assert runs[0].made_from is not None
    with _as_rebuild_error():
        return _COMMANDS[runs[0].made_from.command](**(runs[0].settings or {})), runs[0]


# --- in the storage of a repair ---


def rebuild_manifest(
    bin_path: Path, tokenizer: AnyTokenizer, storage: Storage, progress: Progress
) -> None:
    """Re-encode the sources, and write the manifest if its digest is the one in stats.json.

    Needs free disk space for a second copy of the token files.
    """
    settings, stats = find_run(bin_path)
    name = manifest_name(bin_path.stem)
    if stats.joins_parts:
        parts = find_parts(storage.final, settings.name, settings.task_count)
        outputs = [x for x, stem in settings.stems.items() if stem == bin_path.stem]
        (manifest,) = join_parts(storage.final, outputs, parts).values()
        storage.put(name, manifest.to_json().encode())
    else:
        _make_again(settings, tokenizer, bin_path.stem, storage, progress)
    if digest_of(storage.get(name)) != stats.manifests.get(name):
        raise RebuildError(
            "the manifest rebuilt from the sources does not match the digest in stats.json"
        )
    storage.publish([], [name])


def _make_again(
    settings: BuildSettings | EncodeSettings, tokenizer: AnyTokenizer, name: str,
    storage: Storage, progress: Progress,
) -> Manifest:
    """Make the token file NAME again, in the storage of a repair, and return its manifest."""
    read, passes = find_passes(settings, tokenizer, name)
    with Journal(storage) as journal:
        select_documents(passes, settings, settings, journal, progress)
        made = EncodePass(read, settings, tokenizer, Report(), progress, journal).fill()
    return next(made[output] for output, stem in read.names.items() if stem == name)


def rebuild_tokenizer(
    bin_path: Path, fingerprint: str, found: AnyTokenizer | None, storage: Storage,
    progress: Progress,
) -> None:
    """Replace tokenizer.json by `found`, the one read from it, or by one trained again.

    `fingerprint` is the one in the manifest.
    """
    tokenizer = found
    if tokenizer is None or tokenizer.fingerprint != fingerprint:
        settings, _ = find_run(bin_path)
        if isinstance(settings, EncodeSettings):
            raise RebuildError(f"it was not trained here, but given ({settings.tokenizer})")
        tokenizer = reload_tokenizer(settings, storage, progress)
    if (now := tokenizer.fingerprint) != fingerprint:
        raise RebuildError(f"its inputs give another one now ({now[:16]}...)")
    put_tokenizer(storage, tokenizer, TOKENIZER_FILE)
    storage.publish(list_tokenizer_files(TOKENIZER_FILE))


# --- data files ---


class Origin:
    """Sources of a token file, which are encoded again.

    Sources are those in the manifest, in the same order and of the same sizes. Documents that were
    selected are selected again, in the storage of a repair.
    """

    def __init__(
        self, manifest: Manifest, bin_path: Path, tokenizer: AnyTokenizer, progress: Progress
    ) -> None:
        if manifest.is_imported:
            raise RebuildError("its ids were imported; run the import again (--overwrite)")
        if manifest.is_edited:
            raise RebuildError(EDITED)
        if any(source.get("name") == SELECTED for source in manifest.sources):
            raise RebuildError(SELECTED_BEFORE)
        self._manifest, self._name, self._tokenizer = manifest, bin_path.stem, tokenizer
        self._directory, self._progress = bin_path.parent, progress
        self._settings, _ = find_run(bin_path)
        self._shuffles = self._settings.shuffle_documents is not None
        given = self._settings
        paths = given.paths if isinstance(given, EncodeSettings) else (*given.train, *given.val)
        if any(map(is_shown, paths)):
            raise RebuildError("it was built from documents of a program, which has them")
        with _as_rebuild_error():
            self._read, self._passes = find_passes(self._settings, tokenizer, self._name)
            if any(has_standard_input(each.files) for each in self._passes):
                raise RebuildError("it was built from standard input, which is gone")
            self.sources = self._read.sources
        if not self._shuffles:
            find_starts(manifest, "token")
        self._check_sizes()

    def _check_sizes(self) -> None:
        known = [(source.get("name"), source.get("bytes")) for source in self._manifest.sources]
        found = [(source.name, source.n_bytes) for source in self.sources]
        for before, now in zip(known, found, strict=False):
            if before != now:
                was = f"its source {before[0]} had {before[1]} bytes"
                raise RebuildError(f"{was}, and now it is {now[0]} with {now[1]}")
        if len(known) != len(found):
            n = len(found)
            raise RebuildError(f"it was built from {len(known):,} sources, and {n:,} exist")

    def _select(self, storage: Storage) -> None:
        """Select documents again, in the storage of a repair."""
        with _as_rebuild_error(), Journal(storage) as journal:
            settings = self._settings
            select_documents(self._passes, settings, settings, journal, self._progress)

    def find_difference(self, file: TokenFile) -> tuple[str, str] | None:
        """Find the first difference between the sources, encoded again, and a token file.

        Returns:
            (name of a source, description), or None if there is no difference.
        """
        if not (self._settings.selects or self._shuffles):
            return self._find_difference(file, None)
        with open_repair(self._directory) as storage:
            self._select(storage)
            return self._find_difference(file, storage)

    def _find_difference(self, file: TokenFile, storage: Storage | None) -> tuple[str, str] | None:
        for source, before in zip(self.sources, self._manifest.sources, strict=True):
            # That of a source that was not read to its end is not known.
            known = before.get("digest")
            if known and digest_of_source(source).hexdigest() != known:
                return source.name, "its text has changed since the file was built"
        if self._shuffles and storage is not None:
            made, files = self._digests_now(storage), self._manifest.files(self._name)
            differs = next((x.name for x in files if made.get(x.name) != x.digests), None)
            why = "it differs from what its sources give in random order"
            return None if differs is None else (differs, why)
        columns, counts = self._manifest.columns, [Counter[str]() for _ in self.sources]
        for number, place, part in self._encode(range(len(self.sources))):
            for column in columns:
                values, start = _values(part, column), place[column.per]
                wanted = column.to_stored(values, self._manifest.vocab_size, place["token"])
                found = file.column(column.name)[start : start + len(wanted)]
                if not np.array_equal(found, wanted):
                    n = min(len(found), len(wanted))
                    unequal = np.append(np.flatnonzero(found[:n] != wanted[:n]), n)
                    what = f"{column.noun} of {column.per} {start + unequal[0]:,} differs"
                    return self.sources[number].name, what
            counts[number].update(tokens=part.counts.tokens, documents=part.counts.documents)
        for source, before, now in zip(self.sources, self._manifest.sources, counts, strict=True):
            if any(now[name] != before[name] for name in ("tokens", "documents")):
                text = f"it has {now['tokens']:,} tokens and {now['documents']:,} documents"
                return source.name, text
        return None

    def rebuild(self, damaged: Collection[str], storage: Storage) -> list[str]:
        """Rebuild damaged files; return the names of those that have their digests.

        Files take their final names once those of their shard are complete; others are left as
        they are. The sources of a shard are encoded once for all of its files.
        """
        files = [file for file in self._manifest.files(self._name) if file.name in damaged]
        proven: list[str] = []
        self._select(storage)
        if self._shuffles:
            made = self._digests_now(storage)
            proven = [file.name for file in files if made.get(file.name) == file.digests]
            storage.publish(proven)
            return proven
        for _, shard in groupby(files, attrgetter("before")):
            complete = self._rebuild_shard(storage, [*shard])
            storage.publish(complete)
            proven += complete
        return proven

    def _rebuild_shard(self, storage: Storage, files: Sequence[DataFile]) -> list[str]:
        """Write files of a shard again; return the names of those that have their digests."""
        vocab_size, before = self._manifest.vocab_size, files[0].before
        with ExitStack() as stack:
            made = [(x, ColumnFile(storage, x.name, x.column, vocab_size)) for x in files]
            for _, written in made:
                stack.callback(written.stream.close)
            for _, place, part in self._encode(find_sources_of(self._manifest, files[0])):
                for file, written in made:
                    column = file.column
                    start = before.count(column) - place[column.per]
                    values = _values(part, column)[max(start, 0) : max(start + file.count, 0)]
                    n_before = place["token"] - before.n_tokens
                    written.append(column.to_stored(values, vocab_size, n_before))
                if all(written.count == file.count for file, written in made):
                    break
            return [x.name for x, written in made if written.finish(written.count) == x.digests]

    def _encode(self, numbers: range) -> Iterator[tuple[int, dict[str, int], Part]]:
        """Encode some sources again, as the build.

        Yields:
            For each unit (index of its source, "token" and "document" -> number of those before it
            in the dataset, what it gives).
        """
        # From the manifest: a tokenizer without its tokenizer_config.json may name other ids.
        ids = SpecialIds(self._manifest.end_of_text_id, self._manifest.begin_of_text_id)
        encode = EncodePass(
            self._read, self._settings, self._tokenizer, Report(), self._progress, ids=ids
        )
        encode.sources = encode.sources[numbers.start : numbers.stop]
        output, at, n_records = [*self._read.names.values()].index(self._name), -1, 0
        starts = {per: find_starts(self._manifest, per) for per in ("token", "document")}
        with encode.results() as results:
            for item, encoded in results:
                if item.source != at:
                    at, n_records = item.source, 0
                    place = {per: each[numbers.start + at] for per, each in starts.items()}
                part, index = encoded.parts[output], numbers.start + at
                columns = in_sources(part.columns, index, n_records)
                yield index, place, part._replace(columns=columns)
                n_records += encoded.batch.n_records
                place["token"] += part.counts.tokens
                place["document"] += part.counts.documents

    def _digests_now(self, storage: Storage) -> dict[str, tuple[str, ...]]:
        """Make all files again, in a storage; return name -> digests of the blocks."""
        made = _make_again(self._settings, self._tokenizer, self._name, storage, self._progress)
        return {file.name: file.digests for file in made.files(self._name)}


def _values(part: Part, column: Column) -> Values:
    if (found := part.columns.get(column.name)) is None:
        raise RebuildError(f"the column {column.name} is not computed any more")
    return found
