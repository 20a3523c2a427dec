"""Write a dataset from token ids that another program made; resumable.

Ids and documents are checked as far as a dataset promises: every id is in the vocabulary, and the
end-of-text id is the last of each document, and nowhere else.
"""

from __future__ import annotations

import os
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash
from msgspec import Struct
from numpy.typing import NDArray

from bpe.errors import CorpusError
from bpe.files.locations import is_url
from preprocess.dataset.columns import Values, token_dtype
from preprocess.dataset.manifest import IMPORTED, Count, Manifest
from preprocess.dataset.reader import open_tokens
from preprocess.dataset.writer import TokenFileWriter, WriterState, read_saved_manifest
from preprocess.documents.token_lengths import token_lengths
from preprocess.imports.formats import FORMATS, Ids
from preprocess.locations import split_location
from preprocess.options import ImportSettings
from preprocess.report.progress import Progress, progress_of
from preprocess.run.journal import JournalError
from preprocess.run.outputs import add_token_file, is_up_to_date, put_stats
from preprocess.run.record import Record, SourceRecord
from preprocess.run.run import Run
from preprocess.settings import SettingsError, options_of, takes
from preprocess.sources.text_file import TextFile
from preprocess.storage import JOURNAL_FILE

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

PIECE_TOKENS = 1 << 20  # that are read at a time
_KEY = "imported"  # in the journal
_DIGESTED_AT_ONCE = 1 << 22  # bytes of a file beside the ids


class ImportCheckpoint(Struct, forbid_unknown_fields=True):
    """Checkpoint: the files of the dataset are durable up to a position of the ids."""

    state: WriterState  # new since the previous checkpoint
    tokens: Count  # position in the ids
    digest: str  # xxh3_128 of the bytes up to there
    text_bytes: Count
    seconds: float


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
        self._vocab_size = settings.vocab_size or 0
        if self._tokenizer is not None:
            self._vocab_size = self._tokenizer.vocab_size
        if self._end_id >= self._vocab_size:
            raise SettingsError(
                f"end_of_text_id {self._end_id:,} is not in the vocabulary of"
                f" {self._vocab_size:,} ids; correct one of them"
            )
        self._ids: Ids = FORMATS[settings.format](Path(settings.path), settings.dtype)
        self._files: list[TextFile] = [self._ids.file, *self._ids.beside]
        for each in self._files:
            if self._may_write(each.path):
                raise SettingsError(
                    f"out may be written over {each.path}, the file that is read; choose another"
                    " directory or name (--out)"
                )

    def _may_write(self, path: Path) -> bool:
        """Return True if a file has the name of a file of the dataset."""
        if is_url(self._directory) or not os.path.isdir(self._directory):
            return False
        own = rf"{re.escape(self._settings.name)}(_\d{{5,}})?\.(bin|docs|json)"
        return os.path.samefile(path.parent, self._directory) and bool(re.fullmatch(own, path.name))

    @property
    def _record(self) -> Record:
        """The inputs of the run."""
        options = options_of(ImportSettings).values()
        leave_out = {each.name for each in options if each.is_location or not each.changes_result}
        chosen = self._settings.as_json(leave_out) | {"vocab_size": self._vocab_size}
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
        settings, name = self._settings, self._settings.name
        stats_file, shards = f"{name}_stats.json", settings.shard_tokens is not None
        with Run(self._directory, name, self._record, settings.overwrite) as run:
            if run.is_complete:
                return "complete; files renamed to their final names", False
            if is_up_to_date(run, stats_file, [name], shards=shards):
                return "up to date", False
            run.begin()
            add_token_file(run, name, self._fill(run, progress))
            put_stats(run, stats_file, {
                "settings": settings.as_json(), "seconds": progress.seconds(),
                "peak_memory_bytes": progress.peak_memory,
                "stages": [stage.facts() for stage in progress.stages],
            })  # fmt: skip
            run.publish()
        return f"in {progress.seconds():.1f} s", True

    def _fill(self, run: Run, progress: Progress) -> Manifest:
        """Write all ids, from the last checkpoint on, and finish the files."""
        settings, journal, ids = self._settings, run.journal, self._ids
        entries = journal.values(_KEY, ImportCheckpoint)
        empty = ImportCheckpoint(WriterState(), 0, xxhash.xxh3_128_hexdigest(b""), 0, 0.0)
        at = entries[-1] if entries else empty
        if at.tokens == ids.n_tokens and run.storage.size(f"{settings.name}.json") is not None:
            return read_saved_manifest(run.storage, settings.name)
        writer = TokenFileWriter(
            run.storage, settings.name, vocab_size=self._vocab_size,
            states=[each.state for each in entries], shard_tokens=settings.shard_tokens,
            split_documents=settings.split_documents,
        )
        title, size, done = f"importing {settings.name}", ids.file.n_bytes, ids.dtype.itemsize
        try:
            digest, text_bytes = self._digest_again(at), at.text_bytes
            with progress.stage(title, size, "B", at.tokens * done, at.seconds) as stage:
                for start in range(at.tokens, ids.n_tokens, PIECE_TOKENS):
                    stop = min(start + PIECE_TOKENS, ids.n_tokens)
                    content = ids.content(start, stop)
                    digest.update(content.data)
                    text_bytes += self._append(writer, content.view(ids.dtype), start)
                    stage.advance(len(content))
                    if journal.due() or stop == ids.n_tokens:
                        whole, seconds = journal.is_long, stage.seconds
                        entry = ImportCheckpoint(
                            writer.state(whole), stop, digest.hexdigest(), text_bytes, seconds
                        )
                        journal.submit(_KEY, entry, writer.streams, adds=not whole, stage=stage)
            journal.wait()
            return self._finish(writer, digest.hexdigest(), text_bytes)
        finally:
            journal.rest()  # its thread may still sync the streams
            writer.close()

    def _digest_again(self, at: ImportCheckpoint) -> xxhash.xxh3_128:
        """Return the digest of the ids that were read; raise JournalError if it differs."""
        digest = xxhash.xxh3_128()
        for start in range(0, at.tokens, PIECE_TOKENS):
            digest.update(self._ids.content(start, min(start + PIECE_TOKENS, at.tokens)).data)
        if digest.hexdigest() != at.digest:
            raise JournalError(
                f"{JOURNAL_FILE}: the ids of {self._ids.path} that were read before the"
                " interruption have changed, though its size and modification time are the same;"
                " start over (--overwrite)"
            )
        return digest

    def _append(self, writer: TokenFileWriter, ids: Values, start: int) -> int:
        """Write the ids from position `start` on; return the bytes of text that they spell."""
        limit, end_id = self._vocab_size, self._end_id
        wrong = np.flatnonzero((ids < 0) | (ids >= limit))
        if len(wrong):
            raise CorpusError(
                f"{self._ids.path}: token {start + int(wrong[0]):,} is {int(ids[wrong[0]]):,}, and"
                f" the vocabulary has the ids 0 to {limit - 1:,}; check the dtype, and give the"
                " vocabulary that the ids were made with (--tokenizer or --vocab-size)"
            )
        ids, first = ids.astype(token_dtype(limit)), writer.n_documents
        is_end = ids == end_id
        ends = self._ids.ends(first, start, is_end) - start
        lacks = self._lacking(ends, is_end, first, start)
        if lacks.any():
            ids = np.insert(ids, ends[lacks], end_id)
            ends = ends + np.cumsum(lacks)
        writer.append(ids, ends)
        return 0 if self._text_lengths is None else int(self._text_lengths[ids].sum())

    def _lacking(
        self, ends: NDArray[np.int64], is_end: NDArray[np.bool_], first: int, start: int
    ) -> NDArray[np.bool_]:
        """Return True for each document without the end-of-text id at its end: bool[n].

        Args:
            ends: Ends of documents, from the first id on.
            is_end: True for each end-of-text id.
            first: Number of documents before.
            start: Position of the first id.

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
        lacks: NDArray[np.bool_] = ~(has_ids & is_end[last])
        if lacks.any() and not self._settings.append_end_of_text:
            number = int(lacks.argmax())
            raise CorpusError(
                f"{path}: document {first + number:,} ends at token {start + int(ends[number]):,}"
                f" without the end-of-text id {end_id}; check the id, or append it to documents"
                " that lack it (--append-end-of-text)"
            )
        return lacks

    @cached_property
    def _text_lengths(self) -> NDArray[np.int64] | None:
        """The bytes of text that each id spells, special ids none; None: they are not known."""
        lengths = None if self._tokenizer is None else token_lengths(self._tokenizer)
        if self._tokenizer is None or lengths is None:
            return None
        lengths[[*self._tokenizer.special_tokens.values()]] = 0
        return lengths

    def _finish(self, writer: TokenFileWriter, digest: str, text_bytes: int) -> Manifest:
        """Write the manifest of the dataset."""
        tokenizer, counts = self._tokenizer, {"documents": 0, "tokens": 0}
        sources = [
            {"name": each.path.name, "bytes": each.n_bytes, "digest": "", **counts,
             IMPORTED: self._settings.format}
            for each in self._files
        ]  # fmt: skip
        sources[0] |= {
            "digest": digest, "documents": writer.n_documents, "tokens": writer.n_tokens,
        }
        for source, file in zip(sources[1:], self._ids.beside, strict=True):
            source["digest"] = _digest_of(file)
        return writer.finish(
            end_of_text_id=self._end_id, n_bytes=text_bytes,
            tokenizer_fingerprint="" if tokenizer is None else tokenizer.fingerprint,
            pattern="" if tokenizer is None else tokenizer.pattern,
            unicode_version="" if tokenizer is None else tokenizer.unicode_version,
            sources=sources,
        )


def _load_tokenizer(settings: ImportSettings) -> AnyTokenizer | None:
    """Load the tokenizer of the ids; raise SettingsError if the end-of-text id is another one."""
    from bpe import load_tokenizer

    if settings.tokenizer is None:
        return None
    tokenizer, end_id = load_tokenizer(settings.tokenizer), settings.end_of_text_id
    if end_id not in (special := tokenizer.special_tokens).values():
        known = ", ".join(f"{token!r} {number}" for token, number in special.items())
        raise SettingsError(
            f"end_of_text_id {end_id:,} is no special token of {settings.tokenizer}, which has"
            f" {known or 'none'}; choose one of these"
        )
    return tokenizer


def _digest_of(file: TextFile) -> str:
    """Return the xxh3_128 of a file."""
    digest = xxhash.xxh3_128()
    for start in range(0, file.n_bytes, _DIGESTED_AT_ONCE):
        digest.update(file.read(start, min(start + _DIGESTED_AT_ONCE, file.n_bytes)).data)
    return digest.hexdigest()
