"""Token files made again from their sources: to compare them with what is there, or to mend it.

Law: what is made again is what the build made, by the same functions; nothing is written that is
not proven. A block has the digest in the manifest, a manifest the digest in stats.json, and a
tokenizer the fingerprint in the manifest.

stats.json says how the files were made and from which paths; the manifest says what each source
gave, so only the sources that are concerned are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from bpe.errors import TokenbinError
from preprocess.dataset.columns import BLOCK_BYTES, manifest_name
from preprocess.dataset.manifest import DataFile, Manifest
from preprocess.dataset.reader import TokenFile
from preprocess.encode_pass import Part, SpecialIds, encoded_again
from preprocess.outputs import TOKENIZER_FILE, Stats, names_of_tokenizer, put_tokenizer, read_stats
from preprocess.pipeline import encoded_anew, sources_of, tokenizer_again
from preprocess.progress import Progress
from preprocess.settings.options import SettingsError, convert
from preprocess.settings.schema import BuildSettings, EncodeSettings
from preprocess.sources import Source, digest_of
from preprocess.storage import REPAIR, Storage, open_storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

Blocks = Mapping[str, Sequence[int]]


class RemakeError(TokenbinError):
    """Token files cannot be made again: what they were made from is not known or has changed."""


@dataclass(frozen=True)
class Origin:
    """What a token file was made from.

    Attributes:
        manifest: That of the token file.
        sources: In order, with the sizes that the manifest says.
        part: Its position among the outputs that the sources fill.
        n_outputs: How many those are.
        tokenizer: It encodes.
        ids: What stands around every document.
        workers: Number of threads.
    """

    manifest: Manifest
    sources: Sequence[Source]
    part: int
    n_outputs: int
    tokenizer: AnyTokenizer
    ids: SpecialIds
    workers: int

    @property
    def token_starts(self) -> list[int]:
        """Where the tokens of each source begin, and where the last end."""
        return starts_of(self.manifest, "tokens")

    def pieces(self, first: int, last: int) -> Iterator[Part]:
        """Encode sources [first, last) once more."""
        for source in self.sources[first:last]:
            for parts in encoded_again(
                source, self.tokenizer, self.ids, self.workers, self.n_outputs
            ):
                yield parts[self.part]


def starts_of(manifest: Manifest, what: str) -> list[int]:
    """Where the "tokens" or "documents" of each source begin, and where the last end.

    Raises:
        RemakeError: The manifest does not say it.
    """
    counts = [source.get(what) for source in manifest.sources]
    known = [count for count in counts if isinstance(count, int) and count >= 0]
    if len(known) < len(counts):
        raise RemakeError("its manifest does not say what each source gave")
    return [0, *accumulate(known)]


def origin_of(manifest: Manifest, bin_path: Path, tokenizer: AnyTokenizer) -> Origin:
    """Find what a token file was made from.

    Raises:
        RemakeError: That is not known, not there, or of another size.
        TokenbinError: The settings are of no use, or a source cannot be read.
    """
    settings, _ = _made(bin_path)
    names, sources = sources_of(settings, tokenizer, bin_path.stem)
    starts_of(manifest, "tokens")
    known = [(source.get("name"), source.get("bytes")) for source in manifest.sources]
    found = [(source.name, source.n_bytes) for source in sources]
    if known != found:
        for before, now in zip(known, found, strict=False):
            if before != now:
                raise RemakeError(
                    f"its source {before[0]} had {before[1]} bytes, and {now[0]} with {now[1]} is"
                    " there now"
                )
        raise RemakeError(f"it was made from {len(known):,} sources, and {len(found):,} are there")
    return Origin(
        manifest,
        sources,
        names.index(bin_path.stem),
        len(names),
        tokenizer,
        SpecialIds(manifest.end_of_text_id, manifest.begin_of_text_id),
        settings.workers,
    )


def _made(bin_path: Path) -> tuple[BuildSettings | EncodeSettings, Stats]:
    """The settings that a token file was made with, and the stats.json that tells of it.

    Where a command wrote over the file of another, both tell of it; the manifest says which is
    right, and without one nobody can.
    """
    found: dict[str, tuple[BuildSettings | EncodeSettings, Stats]] = {}
    unread = []
    files = open_storage(bin_path.parent).finished
    for file_name in files.names():
        if not file_name.endswith("stats.json"):
            continue
        stats = read_stats(files, file_name)
        if stats is None or stats.made_from is None or stats.settings is None:
            unread.append(file_name)
            continue
        try:
            if stats.made_from.command == "encode":
                made = convert(stats.settings, EncodeSettings)
                if made.name == bin_path.stem:
                    found[file_name] = made, stats
            elif stats.made_from.command == "build":
                built = convert(stats.settings, BuildSettings)
                # A run without validation leaves a val.bin of another one alone.
                names = ("train", "val") if built.val or built.validation_fraction else ("train",)
                if bin_path.stem in map(built.named, names):
                    found[file_name] = built, stats
        except SettingsError:
            unread.append(file_name)
    if len(found) > 1:
        name = manifest_name(bin_path.stem)
        content = files.get(name) or b""
        digest = xxhash.xxh3_128_hexdigest(content)
        right = [made for made in found.values() if made[1].manifests.get(name) == digest]
        if not right:
            raise RemakeError(
                f"{' and '.join(found)} both tell how it was made, and which came last is not known"
            )
        return right[0]
    for only in found.values():
        return only
    more = f" ({', '.join(unread)}: cannot be read, or is not ours)" if unread else ""
    raise RemakeError(f"no stats.json beside it says how it was made{more}")


def remake_manifest(bin_path: Path, tokenizer: AnyTokenizer, progress: Progress) -> None:
    """Encode the sources once more, and put the manifest in its place if it is the very same.

    The disk has to have room for the token files once more.

    Raises:
        RemakeError: How they were made is not known, or the sources give something else now.
        TokenbinError: A source cannot be read, or encoding fails.
        OutputError: Nothing can be written there.
    """
    settings, stats = _made(bin_path)
    name = manifest_name(bin_path.stem)
    digest = stats.manifests.get(name)
    with _working(bin_path) as storage:
        encoded_anew(settings, tokenizer, bin_path.stem, storage, progress)
        if xxhash.xxh3_128_hexdigest(storage.get(name) or b"") != digest:
            raise RemakeError(
                "the sources and the tokenizer give another one now than stats.json tells of"
            )
        storage.publish([], [name])


def remake_tokenizer(
    bin_path: Path, fingerprint: str, there: AnyTokenizer | None, progress: Progress
) -> None:
    """Put tokenizer.json in its place again: from what it says, or as the build came to it.

    Args:
        bin_path: The .bin.
        fingerprint: That in the manifest.
        there: What tokenizer.json says now, if it can be read.
        progress: Shows what goes on.

    Raises:
        RemakeError: How it was made is not known, or another one comes out now.
        TokenbinError: A source or what was given cannot be read, or training fails.
        OutputError: Nothing can be written there.
    """
    with _working(bin_path) as storage:
        tokenizer = there
        if tokenizer is None or tokenizer.fingerprint != fingerprint:
            settings, _ = _made(bin_path)
            if isinstance(settings, EncodeSettings):
                raise RemakeError(f"it was not made here, but given ({settings.tokenizer})")
            tokenizer = tokenizer_again(settings, storage, progress)
        if tokenizer.fingerprint != fingerprint:
            raise RemakeError(
                f"what it was made from gives another one now ({tokenizer.fingerprint[:16]}...)"
            )
        put_tokenizer(storage, tokenizer, TOKENIZER_FILE)
        storage.publish(names_of_tokenizer(TOKENIZER_FILE))


def clear_repair(directory: Path) -> None:
    """Remove what a repair left that was killed; it is of no use to the next one.

    Raises:
        OutputError: Somebody is at work there, or it cannot be removed.
    """
    storage = open_storage(directory, REPAIR)
    if REPAIR in storage.runs():
        with storage:
            storage.clear()


@contextmanager
def _working(bin_path: Path) -> Iterator[Storage]:
    """A storage for a repair, with the lock of the directory; it leaves nothing but its results."""
    with open_storage(bin_path.parent, REPAIR) as storage:
        storage.clear()
        try:
            yield storage
        finally:
            storage.clear()


def first_difference(origin: Origin, file: TokenFile) -> tuple[int, str] | None:
    """Where the text, encoded again, gives something else than a token file holds.

    Returns:
        (the number of a source, what is different there), or None if everything is the same.
    """
    done = dict.fromkeys(("token", "document"), 0)
    columns = [(column, file.column(column.name)) for column in origin.manifest.columns]
    for index, source in enumerate(origin.sources):
        known = origin.manifest.sources[index].get("digest")
        if digest_of(source).hexdigest() != known:
            return index, "its text is not what it was when the file was built"
        for piece in origin.pieces(index, index + 1):
            values_of = piece.values()
            for column, there in columns:
                if column.name not in values_of:
                    return index, f"it has the column {column.name}, and none is computed now"
                wanted = column.stored(
                    values_of[column.name], origin.manifest.vocab_size, done["token"]
                )
                place = done[column.per]
                found = there[place : place + len(wanted)]
                if np.array_equal(found, wanted):
                    continue
                n = min(len(found), len(wanted))
                differs = np.flatnonzero(found[:n] != wanted[:n])
                at = place + (int(differs[0]) if len(differs) else n)
                return index, f"{column.noun} of {column.per} {at:,} differs"
            done["token"] += len(piece.ids)
            done["document"] += len(piece.document_ends)
    if tuple(done.values()) != (len(file), file.n_documents):
        text = f"it gives {done['token']:,} tokens and {done['document']:,} documents"
        return len(origin.sources) - 1, text
    return None


def mend(origin: Origin, name: str, storage: Storage, damaged: Blocks) -> list[tuple[str, int]]:
    """Rebuild damaged blocks, and write those that have the digest in the manifest.

    Args:
        origin: What the files were made from.
        name: NAME of the token file.
        storage: Holds the files, and their lock.
        damaged: A file -> the numbers of damaged blocks, ascending.

    Returns:
        (file, number) of each block that was mended.

    Raises:
        TokenbinError: A source cannot be read.
        OutputError: A file cannot be written.
    """
    mended = []
    for file in origin.manifest.files(name):
        size = storage.finished.size(file.name) or 0
        blocks = damaged.get(file.name, ())
        done = []
        # A file gets its size back with its content alone: whoever opens it looks at the size, so
        # one that was filled up with zeros would pass for a whole one.
        for number in blocks:
            start = number * BLOCK_BYTES
            stop = min(start + BLOCK_BYTES, file.n_bytes)
            block = _rebuilt(origin, file, start, stop)
            if start > size or xxhash.xxh3_128_hexdigest(block) != file.digests[number]:
                continue
            storage.mend(file.name, start, block)
            size = max(size, stop)
            done.append((file.name, number))
        if size > file.n_bytes and len(done) == len(blocks):
            storage.mend(file.name, file.n_bytes, b"", cut=True)
        mended += done
    return mended


def _rebuilt(origin: Origin, file: DataFile, start: int, stop: int) -> bytes:
    """Bytes [start, stop) of a file, from the sources that gave them.

    Raises:
        RemakeError: Its column is not one that is computed now.
    """
    column, before, vocab_size = file.column, file.before, origin.manifest.vocab_size
    starts = starts_of(origin.manifest, f"{column.per}s")
    itemsize, n_before = file.dtype.itemsize, before.count(column)
    wanted = range(n_before + start // itemsize, n_before + stop // itemsize)
    first = max(int(np.searchsorted(starts, wanted.start, "right")) - 1, 0)
    last = int(np.searchsorted(starts, wanted.stop, "left"))
    pieces = []
    place, token = starts[first], origin.token_starts[first]
    for piece in origin.pieces(first, last):
        if column.name not in piece.values():
            raise RemakeError(f"the column {column.name} is not one that is computed now")
        found = piece.values()[column.name]
        low, high = max(wanted.start - place, 0), max(wanted.stop - place, 0)
        pieces.append(column.stored(found[low:high], vocab_size, token - before.n_tokens))
        token += len(piece.ids)
        place += len(found)
        if place >= wanted.stop:
            break
    return b"".join(values.tobytes() for values in pieces)
