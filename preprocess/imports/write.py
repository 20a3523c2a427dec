"""A dataset of token ids that another program made: the formats of files, and writing; resumable.

Ids and documents are checked as far as a dataset promises: every id is in the vocabulary, and the
end-of-text id is the last of each document, and nowhere else.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from bpe.errors import CorpusError
from bpe.files.locations import is_url
from preprocess.dataset.columns import SHARD, Values, token_dtype
from preprocess.dataset.manifest import IMPORTED, Manifest
from preprocess.dataset.reader import open_tokens
from preprocess.documents.chat_tokens import token_lengths
from preprocess.export.formats import (
    MEGATRON_DTYPES,
    MEGATRON_HEADER,
    MEGATRON_MAGIC,
    MEGATRON_VERSION,
)
from preprocess.imports.batches import Checkpoint, DatasetRun
from preprocess.locations import split_location
from preprocess.options import ImportSettings
from preprocess.report.progress import Progress, progress_of
from preprocess.report.summary import Counts
from preprocess.run.journal import JournalError
from preprocess.run.record import Record, SourceRecord, settings_of_results
from preprocess.settings import SettingsError, takes
from preprocess.sources.text_file import TextFile, open_file
from preprocess.storage import JOURNAL_FILE

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

PIECE_TOKENS = 1 << 20  # or sequences, that are read at a time
_AGAIN = "copy it again, or make it again with Megatron's preprocess_data.py"


# --- formats: where the ids are, and where documents end ---


class Ids:
    """Ids of a fixed dtype, in a file that must not change; each end-of-text id ends a document.

    Args:
        path: The file.
        dtype: Name of the type of its ids, which are little-endian.

    Attributes:
        beside: Other files that are read, with their contents' digests in the manifest.

    Raises:
        CorpusError: It is missing, empty, or has no whole number of ids.
        SettingsError: There is no dtype.
    """

    beside: tuple[TextFile, ...] = ()

    def __init__(self, path: Path, dtype: str | None) -> None:
        if dtype is None:
            raise SettingsError(
                "--dtype is required for raw ids, which do not say it; nanoGPT's files are uint16"
            )
        if path.is_dir():
            raise CorpusError(f"{path}: is a directory; give the file of ids")
        self.file, self.path = open_file(path), path
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.n_tokens, rest = divmod(self.file.n_bytes, self.dtype.itemsize)
        if rest:
            raise CorpusError(
                f"{path}: has {self.file.n_bytes:,} bytes, which is no whole number of ids of"
                f" {self.dtype.itemsize} bytes ({self.dtype.name}); check the dtype, or copy the"
                " file again"
            )
        if not self.n_tokens:
            raise CorpusError(f"{path}: is empty; there are no ids to import")

    def content(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the bytes of ids [start, stop); raise CorpusError if the file has changed."""
        size = self.dtype.itemsize
        return self.file.read(start * size, stop * size)

    def ends(self, first: int, start: int, is_end: Flags) -> Numbers:
        """Return the ends of documents in some ids, of empty ones also where these begin: int64[n].

        Args:
            first: Number of documents that ended before.
            start: Position of the first id.
            is_end: bool[n_ids], True for each end-of-text id.
        """
        found = start + 1 + np.flatnonzero(is_end)
        is_open = start + len(is_end) == self.n_tokens and not is_end[-1]
        return np.append(found, self.n_tokens) if is_open else found


class MegatronIds(Ids):
    """NAME.bin and NAME.idx of Megatron-LM, whose format `preprocess.export.formats` describes.

    A document may have several sequences. Sequences must follow one another in NAME.bin, as
    Megatron writes them. The ends of all documents are in memory.

    Args:
        path: The common prefix of the files, with or without a suffix.
        dtype: None, for the index says it.

    Raises:
        CorpusError: Files are missing or damaged, or do not fit one another.
        SettingsError: There is a dtype.
    """

    def __init__(self, path: Path, dtype: str | None) -> None:
        if dtype is not None:
            raise SettingsError("the .idx of Megatron says the dtype of its ids; leave out --dtype")
        prefix = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
        self._index: TextFile = open_file(prefix.with_name(f"{prefix.name}.idx"))
        dtype, n, n_bounds = self._read_header()
        ends = self._sequence_ends(np.dtype(dtype).itemsize, n)
        self._ends = ends[self._read_bounds(n, n_bounds)[1:]]
        super().__init__(prefix.with_name(f"{prefix.name}.bin"), dtype)
        self.beside = (self._index,)
        if self.n_tokens != ends[-1]:
            raise CorpusError(
                f"{self.path}: has {self.n_tokens:,} ids of {dtype}, and its .idx says"
                f" {ends[-1]:,}; {_AGAIN}"
            )

    def ends(self, first: int, start: int, is_end: Flags) -> Numbers:
        """Return the ends of documents, as `Ids.ends`."""
        stop = int(np.searchsorted(self._ends, start + len(is_end), "right"))
        return self._ends[first:stop]

    def _error(self, what: str, remedy: str = _AGAIN) -> CorpusError:
        return CorpusError(f"{self._index.path}: {what}; {remedy}")

    def _read_header(self) -> tuple[str, int, int]:
        """Return (dtype of the ids, number of sequences, number of document bounds)."""
        n_bytes, head = self._index.n_bytes, MEGATRON_HEADER.size
        header = bytes(self._index.read(0, min(head, n_bytes)))
        magic = header[: len(MEGATRON_MAGIC)]
        if not magic or not MEGATRON_MAGIC.startswith(magic):
            raise self._error(
                "does not begin with Megatron's MMIDIDX, so it is no .idx", "check it"
            )
        if len(header) < head:
            raise self._error(f"has {len(header)} bytes, and the header of an .idx has {head}")
        _, version, code, n_sequences, n_bounds = MEGATRON_HEADER.unpack(header)
        if version != MEGATRON_VERSION:
            raise self._error(
                f"is of version {version} of the format, expected {MEGATRON_VERSION}",
                "convert it with the Megatron that made it",
            )
        name = MEGATRON_DTYPES.get(code, f"number {code}")
        if "int" not in name:
            raise self._error(f"says that ids are {name}, expected integers")
        expected = head + 12 * n_sequences + 8 * n_bounds
        if n_bytes == expected + n_sequences:
            raise self._error(
                "has a mode for each sequence, as of multimodal data, which a dataset cannot have",
                "import text alone",
            )
        if n_bytes != expected:
            raise self._error(
                f"has {n_bytes:,} bytes, and {expected:,} are expected for {n_sequences:,}"
                f" sequences and {n_bounds:,} document bounds"
            )
        return name, n_sequences, n_bounds

    def _read(self, at: int, dtype: str, start: int, stop: int) -> Values:
        """Return values [start, stop) of an array that begins at a byte after the header."""
        at, size = at + MEGATRON_HEADER.size, np.dtype(dtype).itemsize
        return self._index.read(at + start * size, at + stop * size).view(dtype)

    def _sequence_ends(self, itemsize: int, n: int) -> Numbers:
        """Return 0 and the ends of sequences, which must follow one another: int64[n + 1]."""
        found = np.zeros(n + 1, np.int64)
        for start in range(0, n, PIECE_TOKENS):
            stop = min(start + PIECE_TOKENS, n)
            lengths = self._read(0, "<i4", start, stop).astype(np.int64)
            if (lengths < 0).any():
                place = start + int((lengths < 0).argmax())
                raise self._error(f"sequence {place:,} has a length below zero")
            found[start + 1 : stop + 1] = found[start] + np.cumsum(lengths)
            begins = found[start:stop] * itemsize
            wrong = np.flatnonzero(self._read(4 * n, "<i8", start, stop) != begins)
            if len(wrong):
                raise self._error(
                    f"sequence {start + wrong[0]:,} should begin at byte {begins[wrong[0]]:,} of"
                    " the .bin, after those before it"
                )
        return found

    def _read_bounds(self, n_sequences: int, n: int) -> Values:
        """Return the sequences at which documents begin and the last ends: int64[n]."""
        bounds = self._read(12 * n_sequences, "<i8", 0, n)
        # Compared, not subtracted: a difference of hostile bounds may overflow.
        falls = bounds < np.append(0, bounds[:-1])
        if falls.any() or bounds[:1].any():
            place = int(falls.argmax())
            raise self._error(f"document {place:,} begins before the one before it")
        last = int(bounds[-1]) if n else 0
        if n < 2 or last != n_sequences:
            raise self._error(
                f"{max(n - 1, 0):,} documents have {last:,} sequences, and there are"
                f" {n_sequences:,}"
            )
        return bounds


FORMATS = {"megatron": MegatronIds, "raw": Ids}  # opened, they have checked all but the ids


# --- the dataset ---


class ImportResult(NamedTuple):
    """A dataset that was imported.

    Attributes:
        path: The .bin, or with shards the manifest; in a bucket the URL.
        manifest: Its manifest.
        is_new: False if it was there already.
        line: The result in words.
    """

    path: Path | str
    manifest: Manifest
    is_new: bool
    line: str

    def __repr__(self) -> str:
        return f"ImportResult({self.line})"


@takes(ImportSettings)
def import_tokens(settings: ImportSettings) -> ImportResult:
    """Write a dataset from token ids that another program made.

    Options: docs/options.md or `tokenmill import --help`; `progress=False` shows none.

    Raises:
        CorpusError: The files are missing or damaged, or have other ids or documents than a
            dataset may have.
        TokenizerFileError: The tokenizer cannot be read.
        TokenFileError: A dataset is there already.
        OutputError: It cannot be written.
        SettingsError: Options are invalid.
    """
    progress = progress_of(settings.progress)
    progress.begin(None)
    state, is_new = _Import(settings).write(progress)
    file = open_tokens(settings.out)
    line = (
        f"{file.path}: {state} ({file.n_tokens:,} tokens, {file.n_documents:,} documents,"
        f" {file.dtype.name})"
    )
    return ImportResult(file.path, file.manifest, is_new, line)


class _Import:
    """The import of one file of ids."""

    def __init__(self, settings: ImportSettings) -> None:
        self._settings, self._end_id = settings, settings.end_of_text_id
        self._directory, _ = split_location(settings.out)
        self._tokenizer = _load_tokenizer(settings)
        self._vocab_size = getattr(self._tokenizer, "vocab_size", settings.vocab_size or 0)
        if self._end_id >= self._vocab_size:
            raise SettingsError(
                f"--end-of-text-id {self._end_id:,} is not in the vocabulary of"
                f" {self._vocab_size:,} ids; correct one of them"
            )
        self._ids: Ids = FORMATS[settings.format](Path(settings.path), settings.dtype)
        self._files: list[TextFile] = [self._ids.file, *self._ids.beside]
        own = re.compile(rf"{re.escape(settings.name)}({SHARD})?\.(bin|docs|json)")
        is_here = not is_url(self._directory) and os.path.isdir(self._directory)
        for path in (each.path for each in self._files if is_here):
            is_own = own.fullmatch(path.name) is not None
            if is_own and os.path.samefile(path.parent, self._directory):
                raise SettingsError(
                    f"--out may be written over {path}, the file that is read; choose another"
                    " directory or name (--out)"
                )

    @property
    def _record(self) -> Record:
        """The inputs of the run."""
        chosen = settings_of_results(self._settings) | {"vocab_size": self._vocab_size}
        if self._tokenizer is not None:
            chosen["tokenizer"] = self._tokenizer.fingerprint
        files = [
            SourceRecord(
                each.path.name, each.n_bytes, f"modified {each.modified}",
                os.path.realpath(each.path),
            )
            for each in self._files
        ]
        return Record("import", chosen, {self._settings.name: files}, None)

    def write(self, progress: Progress) -> tuple[str, bool]:
        """Write the dataset, unless it is there; return (its state in words, it is new)."""
        settings, ids, done = self._settings, self._ids, self._ids.dtype.itemsize
        with DatasetRun(settings, self._record, self._vocab_size) as run:
            if run.is_finished:
                renamed = "complete; files renamed to their final names"
                return renamed if run.run.is_complete else "up to date", False
            at, lengths, title = run.reached, text_lengths(self._tokenizer), f"importing {run.name}"
            digest, before = self._digest_again(at), at.position
            with progress.stage(title, ids.file.n_bytes, "B", before * done, at.seconds) as stage:
                for start in range(before, ids.n_tokens, PIECE_TOKENS):
                    stop = min(start + PIECE_TOKENS, ids.n_tokens)
                    content = ids.content(start, stop)
                    digest.update(content.data)
                    given, first = content.view(ids.dtype), at.counts.documents
                    found, ends = self._documents(given, start, first)
                    n_bytes = 0 if lengths is None else int(lengths[found].sum())
                    stage.advance(len(content))
                    run.append(found, ends, n_bytes, stop, digest=digest.hexdigest(), stage=stage)
            stats = {
                "settings": settings.as_json(), "seconds": progress.seconds(),
                "peak_memory_bytes": progress.peak_memory,
                "stages": [stage.facts() for stage in progress.stages],
            }
            sources = self._sources(digest.hexdigest(), at.counts)
            run.finish(self._tokenizer, stats, end_of_text_id=self._end_id, sources=sources)
        return f"in {progress.seconds():.1f} s", True

    def _digest_again(self, at: Checkpoint) -> xxhash.xxh3_128:
        """Return the digest of the ids that were read; raise JournalError if it differs."""
        digest = _digest_of(self._ids.file, at.position * self._ids.dtype.itemsize)
        if at.position and digest.hexdigest() != at.digest:
            raise JournalError(
                f"{JOURNAL_FILE}: the ids of {self._ids.path} that were read before the"
                " interruption have changed, though its size and modification time are the same;"
                " start over (--overwrite)"
            )
        return digest

    def _documents(self, ids: Values, start: int, first: int) -> tuple[Values, Numbers]:
        """Return the ids of documents from number `first`, position `start` on, and their ends."""
        limit, end_id = self._vocab_size, self._end_id
        wrong = np.flatnonzero((ids < 0) | (ids >= limit))
        if len(wrong):
            raise CorpusError(
                f"{self._ids.path}: token {start + int(wrong[0]):,} is {int(ids[wrong[0]]):,}, and"
                f" the vocabulary has the ids 0 to {limit - 1:,}; check the dtype, and give the"
                " vocabulary that the ids were made with (--tokenizer or --vocab-size)"
            )
        ids = ids.astype(token_dtype(limit))
        is_end = ids == end_id
        ends = self._ids.ends(first, start, is_end) - start
        lacks = self._lacking(ends, is_end, first, start)
        if lacks.any():
            ids = np.insert(ids, ends[lacks], end_id)
            ends = ends + np.cumsum(lacks)
        return ids, ends

    def _lacking(self, ends: Numbers, is_end: Flags, first: int, start: int) -> Flags:
        """Return True for each document without the end-of-text id at its end: bool[n].

        `ends` are from the first id on, `is_end` is True for each end-of-text id, and `first` and
        `start` are the numbers of documents and ids before.

        Raises:
            CorpusError: Such a document may not be, or one has the id in another place.
        """
        path, end_id = self._ids.path, self._end_id
        has_ids = np.diff(ends, prepend=0) > 0
        last = np.maximum(ends - 1, 0)
        is_inside = is_end.copy()
        is_inside[last[has_ids]] = False
        if is_inside.any():
            place = int(is_inside.argmax())
            number = first + int(np.searchsorted(ends, place, "right"))
            raise CorpusError(
                f"{path}: document {number:,} has the end-of-text id {end_id} at token"
                f" {start + place:,}, before its end; check the id, or import the file as raw ids,"
                " whose documents end at each of them (--format raw)"
            )
        lacks: Flags = ~(has_ids & is_end[last])
        if lacks.any() and not self._settings.append_end_of_text:
            number = int(lacks.argmax())
            raise CorpusError(
                f"{path}: document {first + number:,} ends at token {start + int(ends[number]):,}"
                f" without the end-of-text id {end_id}; check the id, or append it to documents"
                " that lack it (--append-end-of-text)"
            )
        return lacks

    def _sources(self, digest: str, counts: Counts) -> list[dict[str, Any]]:
        """Return the sources of the manifest: the ids, with their digest, and files beside them."""
        digests = [digest, *(_digest_of(x, x.n_bytes).hexdigest() for x in self._ids.beside)]
        found = [
            {"name": each.path.name, "bytes": each.n_bytes, "digest": own, "documents": 0,
             "tokens": 0, IMPORTED: self._settings.format}
            for each, own in zip(self._files, digests, strict=True)
        ]  # fmt: skip
        found[0] |= {"documents": counts.documents, "tokens": counts.tokens}
        return found


def text_lengths(tokenizer: AnyTokenizer | None) -> Numbers | None:
    """Return the bytes of text that each id spells, special ids none; None: they are not known."""
    if tokenizer is None:
        return None
    lengths = token_lengths(tokenizer)
    if lengths is not None:
        lengths[[*tokenizer.special_tokens.values()]] = 0
    return lengths


def _load_tokenizer(settings: ImportSettings) -> AnyTokenizer | None:
    """Load the tokenizer of the ids; raise SettingsError if the end-of-text id is another one."""
    from bpe import load_tokenizer

    if settings.tokenizer is None:
        return None
    tokenizer, end_id = load_tokenizer(settings.tokenizer), settings.end_of_text_id
    if end_id not in (special := tokenizer.special_tokens).values():
        known = ", ".join(f"{token!r} {number}" for token, number in special.items())
        raise SettingsError(
            f"--end-of-text-id {end_id:,} is no special token of {settings.tokenizer}, which has"
            f" {known or 'none'}; choose one of these"
        )
    return tokenizer


def _digest_of(file: TextFile, n_bytes: int) -> xxhash.xxh3_128:
    """Return the xxh3_128 of the first bytes of a file."""
    digest = xxhash.xxh3_128()
    for start in range(0, n_bytes, PIECE_TOKENS):
        digest.update(file.read(start, min(start + PIECE_TOKENS, n_bytes)).data)
    return digest
