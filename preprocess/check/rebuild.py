"""Rebuild token files from their sources, to compare or to repair them.

Files are rebuilt by the functions of the build. Only proven content gets a final name: blocks must
have the digests in the manifest, a manifest the digest in stats.json, a tokenizer the fingerprint
in the manifest. Settings and paths are read from stats.json, the counts of each source from the
manifest; only sources of damaged shards are read.

Functions raise `RebuildError` if the origin is unknown or the result not proven, another
`TokenmillError` if a source cannot be read, and `OutputError` if a file cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate, groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bpe.errors import TokenmillError
from preprocess.dataset.columns import (
    DOCUMENT_ENDS,
    IDS,
    MASK,
    Column,
    Values,
    manifest_name,
)
from preprocess.dataset.manifest import SELECTED, DataFile, Manifest
from preprocess.dataset.reader import TokenFile
from preprocess.dataset.writer import ColumnFile
from preprocess.options import BuildSettings, EncodeSettings
from preprocess.report.progress import Progress
from preprocess.report.summary import Report
from preprocess.run.encode_pass import EncodePass, Part, SpecialIds, reencode
from preprocess.run.finished import Stats, digest_of, read_stats
from preprocess.run.journal import Journal
from preprocess.run.merge import find_parts, join_parts
from preprocess.run.outputs import TOKENIZER_FILE, list_tokenizer_files, put_tokenizer
from preprocess.run.passes import reload_tokenizer
from preprocess.run.reading import find_passes
from preprocess.run.selection import select_documents
from preprocess.settings import SettingsError
from preprocess.sources import Source
from preprocess.sources import digest_of as digest_of_source
from preprocess.sources.standard_input import has_standard_input
from preprocess.storage import REPAIR, Storage, open_storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer


_UNITS = ("token", "document")
_SETTINGS: dict[str, type[BuildSettings | EncodeSettings]] = {
    "build": BuildSettings, "encode": EncodeSettings,
}


SELECTED_BEFORE = (
    "an earlier version selected or shuffled its documents, in another way; if it is damaged,"
    " build it again (--overwrite)"
)


class RebuildError(TokenmillError):
    """Token files cannot be rebuilt: their sources or settings are unknown or have changed."""


class Origin(NamedTuple):
    """Origin of a token file: its manifest, and the sources listed there, in the same order.

    `encode` encodes a source again, and yields the part of each unit; `fill` makes all files again,
    in the storage of the repair.
    """

    manifest: Manifest
    sources: Sequence[Source]
    encode: Callable[[Source], Iterator[Part]]
    fill: Callable[[], Manifest]
    selects: bool  # documents were selected, or shuffled
    shuffles: bool

    def encode_again(self, indices: range) -> Iterator[tuple[dict[str, int], dict[str, Values]]]:
        """Encode sources again.

        Yields:
            For each unit ("token" and "document" -> number of those before it in the dataset, name
            of a column -> values).
        """
        place = {per: find_starts(self.manifest, per)[indices.start] for per in _UNITS}
        for number in indices:
            for piece in self.encode(self.sources[number]):
                yield place, dict(piece.columns)
                place["token"] += piece.counts[2]
                place["document"] += piece.n_documents


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


def find_origin(
    manifest: Manifest, bin_path: Path, tokenizer: AnyTokenizer,
    storage: Storage | None = None, progress: Progress | None = None,
) -> Origin:
    """Find the origin of a token file, and check that its sources have the same sizes.

    If documents were selected in its sources, they are selected again in `storage`, of a repair;
    without one, the origin has the files, and cannot be encoded.
    """
    if manifest.is_imported:
        raise RebuildError("its ids were imported; run the import again (--overwrite)")
    if any(source.get("name") == SELECTED for source in manifest.sources):
        raise RebuildError(SELECTED_BEFORE)
    settings, _ = _find_run(bin_path)
    try:
        read, passes = find_passes(settings, tokenizer, bin_path.stem)
        names, progress = list(read.names.values()), progress or Progress()
        if any(has_standard_input(each.files) for each in passes):
            raise RebuildError("it was built from standard input, which is gone")
        if storage is not None:
            with Journal(storage) as journal:
                select_documents(passes, settings, settings, journal, progress)
        sources = read.sources
    except TokenmillError as error:
        raise RebuildError(str(error)) from error
    shuffles = settings.shuffle_documents is not None
    if not shuffles:
        find_starts(manifest, "token")
    known = [(source.get("name"), source.get("bytes")) for source in manifest.sources]
    found = [(source.name, source.n_bytes) for source in sources]
    for before, now in zip(known, found, strict=False):
        if before != now:
            was = f"its source {before[0]} had {before[1]} bytes"
            raise RebuildError(f"{was}, and now it is {now[0]} with {now[1]}")
    if len(known) != len(found):
        raise RebuildError(f"it was built from {len(known):,} sources, and {len(found):,} exist")
    ids = SpecialIds(manifest.end_of_text_id, manifest.begin_of_text_id)
    part = names.index(bin_path.stem)
    has_mask = MASK in manifest.columns

    def encode(source: Source) -> Iterator[Part]:
        units = reencode(source, tokenizer, ids, settings.workers, len(names), has_mask)
        return (parts[part] for parts in units)

    def fill() -> Manifest:
        assert storage is not None
        with Journal(storage) as journal:
            filled = EncodePass(read, settings, tokenizer, Report(), progress, journal).fill()
        return next(y for x, y in filled.items() if read.names[x] == bin_path.stem)

    selects = settings.selects or shuffles
    return Origin(manifest, sources, encode, fill, selects, shuffles)


def _find_run(bin_path: Path) -> tuple[BuildSettings | EncodeSettings, Stats]:
    """Return (settings, stats.json) of the run that wrote a token file.

    If a command replaced the file of another, both stats.json list it: the digest of the manifest
    decides.
    """
    found: dict[str, tuple[BuildSettings | EncodeSettings, Stats]] = {}
    unread = []
    files, name = open_storage(bin_path.parent).final, manifest_name(bin_path.stem)
    for file_name in files.names():
        if not file_name.endswith("stats.json"):
            continue
        stats = read_stats(files, file_name)
        if stats is None or stats.made_from is None or stats.settings is None:
            unread.append(file_name)
        elif kind := _SETTINGS.get(stats.made_from.command):
            try:
                settings: BuildSettings | EncodeSettings = kind(**stats.settings)
            except SettingsError:
                unread.append(file_name)
                continue
            if name in stats.manifests:
                found[file_name] = settings, stats
    if not found:
        more = f" ({', '.join(unread)}: cannot be read, or is not ours)" if unread else ""
        raise RebuildError(f"no stats.json in its directory describes it{more}")
    runs = list(found.values())
    if len(runs) > 1:
        digest = digest_of(files.get(name))
        runs = [run for run in runs if run[1].manifests[name] == digest]
    if not runs:
        both = " and ".join(found)
        raise RebuildError(f"{both} both describe it, and neither has its manifest's digest")
    return runs[0]


def has_own_tokenizer(bin_path: Path) -> bool:
    """Return True if the run that wrote a token file put its tokenizer beside it, as `build`."""
    with suppress(RebuildError):
        return isinstance(_find_run(bin_path)[0], BuildSettings)
    return False


def rebuild_manifest(bin_path: Path, tokenizer: AnyTokenizer, progress: Progress) -> None:
    """Re-encode the sources, and write the manifest if its digest is the one in stats.json.

    Needs free disk space for a second copy of the token files.
    """
    settings, stats = _find_run(bin_path)
    name = manifest_name(bin_path.stem)
    with open_repair(bin_path) as storage:
        with Journal(storage) as journal:
            if joins_parts(stats.settings):
                parts = find_parts(storage.final, settings.name, settings.task_count)
                joined = join_parts(storage.final, settings, parts)
                manifests = {manifest_name(settings.stems[x]): y for x, y in joined.items()}
                storage.put(name, manifests[name].to_json().encode())
            else:
                read, passes = find_passes(settings, tokenizer, bin_path.stem)
                select_documents(passes, settings, settings, journal, progress)
                EncodePass(read, settings, tokenizer, Report(), progress, journal).fill()
        if digest_of(storage.get(name)) != stats.manifests.get(name):
            raise RebuildError(
                "the manifest rebuilt from the sources does not match the digest in stats.json"
            )
        storage.publish([], [name])


def joins_parts(settings: Mapping[str, Any] | None) -> bool:
    """Return True if files with these settings in their stats.json are those of parts, joined."""
    given = settings or {}
    return given.get("task_count") is not None and given.get("task_index") is None


def rebuild_tokenizer(
    bin_path: Path, fingerprint: str, found: AnyTokenizer | None, progress: Progress
) -> None:
    """Replace tokenizer.json by `found`, the one read from it, or by one trained again.

    `fingerprint` is the one in the manifest.
    """
    with open_repair(bin_path) as storage:
        tokenizer = found
        if tokenizer is None or tokenizer.fingerprint != fingerprint:
            settings, _ = _find_run(bin_path)
            if isinstance(settings, EncodeSettings):
                raise RebuildError(f"it was not trained here, but given ({settings.tokenizer})")
            tokenizer = reload_tokenizer(settings, storage, progress)
        if (now := tokenizer.fingerprint) != fingerprint:
            raise RebuildError(f"its inputs give another one now ({now[:16]}...)")
        put_tokenizer(storage, tokenizer, TOKENIZER_FILE)
        storage.publish(list_tokenizer_files(TOKENIZER_FILE))


def clear_repair(directory: Path) -> None:
    """Remove the work files of a killed repair."""
    storage = open_storage(directory, REPAIR)
    if REPAIR in storage.runs():
        with storage:
            storage.clear()


@contextmanager
def open_repair(bin_path: Path) -> Iterator[Storage]:
    """Open and lock the storage of a repair; remove its work files at the end."""
    with open_storage(bin_path.parent, REPAIR) as storage:
        storage.clear()
        try:
            yield storage
        finally:
            storage.clear()


def find_difference(origin: Origin, file: TokenFile) -> tuple[str, str] | None:
    """Find the first difference between the sources, encoded again, and a token file.

    Returns:
        (name of a source, description), or None if there is no difference.
    """
    manifest = origin.manifest
    for number, source in enumerate(origin.sources):
        # That of a source that was not read to its end is not known.
        known = manifest.sources[number].get("digest")
        if known and digest_of_source(source).hexdigest() != known:
            return source.name, "its text has changed since the file was built"
    if origin.shuffles:
        made = origin.fill()
        name = Path(file.path).stem
        for own, other in zip(manifest.files(name), made.files(name), strict=False):
            if own != other:
                return own.name, "it differs from what its sources give in random order"
        return None
    for number, source in enumerate(origin.sources):
        name = source.name
        counts = {"token": 0, "document": 0}
        for place, values_of in origin.encode_again(range(number, number + 1)):
            for column in manifest.columns:
                values, start = _values(values_of, column), place[column.per]
                wanted = column.to_stored(values, manifest.vocab_size, place["token"])
                found = file.column(column.name)[start : start + len(wanted)]
                if not np.array_equal(found, wanted):
                    n = min(len(found), len(wanted))
                    differs = np.append(np.flatnonzero(found[:n] != wanted[:n]), n)
                    return name, f"{column.noun} of {column.per} {start + differs[0]:,} differs"
            counts["token"] += len(values_of[IDS.name])
            counts["document"] += len(values_of[DOCUMENT_ENDS.name])
        if any(n != manifest.sources[number][f"{per}s"] for per, n in counts.items()):
            return name, f"it has {counts['token']:,} tokens and {counts['document']:,} documents"
    return None


def _values(values_of: Mapping[str, Values], column: Column) -> Values:
    if (found := values_of.get(column.name)) is None:
        raise RebuildError(f"the column {column.name} is not computed any more")
    return found


def rebuild_files(
    origin: Origin, name: str, storage: Storage, damaged: Collection[str]
) -> list[str]:
    """Rebuild damaged files of a token file; return the names of those that have their digests.

    Files take their final names once those of their shard are complete; others are left as they
    are. The sources of a shard are encoded once for all of its files.
    """
    proven: list[str] = []
    if origin.shuffles:
        made_again = {x.name: x.digests for x in origin.fill().files(name)}
        known = {file.name: file.digests for file in origin.manifest.files(name)}
        proven = [x for x in damaged if made_again.get(x) == known[x]]
        storage.publish(proven)
        return proven
    files = [file for file in origin.manifest.files(name) if file.name in damaged]
    for _, shard in groupby(files, attrgetter("before")):
        with ExitStack() as stack:
            made = [
                (file, ColumnFile(storage, file.name, file.column, origin.manifest.vocab_size))
                for file in shard
            ]
            for _, written in made:
                stack.callback(written.stream.close)
            _fill(origin, made)
            complete = [
                file.name for file, written in made
                if written.finish(written.count) == file.digests
            ]
        storage.publish(complete)
        proven += complete
    return proven


def _fill(origin: Origin, made: Sequence[tuple[DataFile, ColumnFile]]) -> None:
    """Encode the sources of a shard again, and append the values of its columns to its files."""
    before, manifest = made[0][0].before, origin.manifest
    for place, values_of in origin.encode_again(find_sources_of(manifest, made[0][0])):
        for file, written in made:
            column = file.column
            start = before.count(column) - place[column.per]
            values = _values(values_of, column)[max(start, 0) : max(start + file.count, 0)]
            n_before = place["token"] - before.n_tokens
            written.append(column.to_stored(values, manifest.vocab_size, n_before))
        if all(written.count == file.count for file, written in made):
            return
