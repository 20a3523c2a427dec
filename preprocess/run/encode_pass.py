"""Encode documents into token files, one per output.

Workers encode and digest units; the calling thread appends and counts their results in order.

A `.bin` holds for each document in order: the begin-of-text id (optional), the ids of its text, the
end-of-text id. Text that spells a special token is encoded as ordinary text and counted; only the
special tokens that a source names, those of a chat template, become special ids.

After an interruption, the pass resumes from its last `EncodeCheckpoint` in the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from bpe.errors import TokenmillError
from preprocess.dataset import columns as table
from preprocess.dataset.columns import DOCUMENT_ENDS, IDS, token_dtype
from preprocess.dataset.manifest import Count, Manifest
from preprocess.dataset.writer import TokenFileWriter, WriterState, read_saved_manifest
from preprocess.documents.batch import DocumentBatch, Rejected, SpecialTokenText
from preprocess.documents.chat_tokens import ConversationEncoder
from preprocess.options import EncodeSettings, TrainSettings
from preprocess.report.progress import OutOfTimeError, Progress, Stage
from preprocess.report.summary import (
    Counts,
    LeftOut,
    Report,
    check_bad_records,
    check_has_documents,
    out_of_time,
)
from preprocess.reused_memory import ReusedMemory
from preprocess.run.journal import Journal, JournalError, journal_errors
from preprocess.run.readers import Read, read_here, unit_readers
from preprocess.run.record import end_of_text_token
from preprocess.run.shuffle import shuffle_token_file
from preprocess.run.units import Item, Position, ends_early, read_units, run_units
from preprocess.sources import ResumePoint, Source, digest_of
from preprocess.sources.digest import BlockDigests, SourceDigest, digest_blocks
from preprocess.storage import IN_ORDER, JOURNAL_FILE, Storage

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyEncoder, AnyTokenizer

# In the last 32 MiB, a checkpoint is due every 4 MiB if the disk is idle.
_NEAR_THE_END, _FEW_BYTES = 1 << 25, 1 << 22


class SpecialTokenError(TokenmillError, ValueError):
    """A tokenizer lacks a required special token."""


class SpecialIds(Struct, frozen=True):
    """Special ids around each document."""

    end_of_text: int  # after each document; -1: none
    begin_of_text: int | None  # before each document; None: none

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, settings: TrainSettings | EncodeSettings) -> SpecialIds:
        """Look up the tokens in the settings, or the tokenizer's own end-of-text token.

        Raises:
            SpecialTokenError: A token is missing, or the end-of-text token is an ordinary one, too.
        """
        known = tokenizer.special_tokens
        end = end_of_text_token(settings, tokenizer)
        for token, option in ((end, "--end-of-text"), (settings.begin_of_text, "--begin-of-text")):
            if token is not None and token not in known:
                if not known:
                    raise SpecialTokenError(
                        f"the tokenizer has no special tokens; add one: --end-of-text {token!r}"
                    )
                raise SpecialTokenError(
                    f"the tokenizer has no special token {token!r}; choose one that it has"
                    f" ({option}): {', '.join(map(repr, known))}"
                )
        text = np.frombuffer(end.encode(), np.uint8)
        if known[end] in tokenizer.new_encoder().encode(text, np.array([[0, len(text)]]))[0]:
            raise SpecialTokenError(
                f"{end!r} is an ordinary token of this tokenizer as well, so a document that spells"
                " it would end there; choose another special token (--end-of-text):"
                f" {', '.join(map(repr, known))}"
            )
        begin = settings.begin_of_text
        return cls(known[end], None if begin is None else known[begin])


class EncodedBatch(NamedTuple):
    """A batch of documents and its token ids: the input of `Column.make`."""

    batch: DocumentBatch
    ids: NDArray[np.unsignedinteger[Any]]  # [n_tokens], special ids included
    offsets: NDArray[np.int64]  # [n_documents + 1]: document d is ids[offsets[d] : offsets[d + 1]]
    trained: NDArray[np.uint8] | None = None  # [n_tokens], 1 to train on it; None: on all

    def mask(self) -> NDArray[np.uint8]:
        """Return 1 for each token to train on: uint8[n_tokens]."""
        return np.ones(len(self.ids), np.uint8) if self.trained is None else self.trained


class Part(NamedTuple):
    """Encoded documents of one unit that belong to one output."""

    n_documents: int  # that end in the unit
    n_bytes: int  # of text
    columns: Mapping[str, NDArray[Any]]  # name -> values; ends are positions in the ids

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of documents that end, bytes of text, and tokens."""
        return self.n_documents, self.n_bytes, len(self.columns[IDS.name])


class Encoded(NamedTuple):
    """Token ids, counts and digests of a unit."""

    batch: DocumentBatch  # without text
    parts: list[Part]  # one for each output
    look_alikes: NDArray[np.int64]  # counts of special-token text
    digests: BlockDigests  # of the bytes of the source


class EncodeUnits:
    """Factory of workers that encode units for `n_outputs` outputs, one or two."""

    def __init__(
        self, tokenizer: AnyTokenizer, ids: SpecialIds, look_alikes: SpecialTokenText,
        n_outputs: int, has_mask: bool, read: Read = read_here,
    ) -> None:
        self._tokenizer, self._ids, self._has_mask, self._read = tokenizer, ids, has_mask, read
        self._look_alikes, self._n_outputs = look_alikes, n_outputs
        # Text and ids of units in progress.
        self._memory = ReusedMemory(limit=256, largest=1 << 26)
        tokenizer.new_encoder()  # makes the shared tables once, before threads need them

    @cached_property
    def _conversation_encoder(self) -> ConversationEncoder:
        return ConversationEncoder(self._tokenizer, token_dtype(self._tokenizer.vocab_size))

    def __call__(self) -> Callable[[Item], Encoded]:
        """Return a function that encodes units, for one thread at a time."""
        encoder = self._tokenizer.new_encoder(token_dtype(self._tokenizer.vocab_size))
        return partial(self._encode_unit, encoder)

    def _encode_unit(self, encoder: AnyEncoder, item: Item) -> Encoded:
        batch, unit = item.documents(self._memory.array, self._read), item.unit
        content = batch.content if batch.content is not None else unit.content(self._memory.array)
        digests, batch = digest_blocks(content, unit.start), replace(batch, content=None)
        del content  # frees its memory
        begin, end, mask = self._ids.begin_of_text, self._ids.end_of_text, None
        prefix = -1 if begin is None else begin
        if batch.special is not None:
            encode = self._conversation_encoder.encode
            ids, offsets, mask = encode(encoder, batch, prefix, end)
        else:
            ids, offsets = encoder.encode(
                batch.buffer, batch.bounds.reshape(-1, 2), prefix_id=prefix, suffix_id=end,
                starts_mid_document=batch.starts_mid_document,
                ends_mid_document=batch.ends_mid_document, memory=self._memory.array,
            )
        encoded = EncodedBatch(batch, ids, offsets, mask)
        parts = _divide(encoded, table.columns_of(self._has_mask))[: self._n_outputs]
        return Encoded(batch.without_text(), parts, self._look_alikes.count(batch), digests)


def _divide(encoded: EncodedBatch, columns: Sequence[table.Column]) -> list[Part]:
    """Return the documents that are not `in_validation`, and those that are."""
    batch, offsets, n_ended = encoded.batch, encoded.offsets, encoded.batch.n_ended
    values = {IDS.name: encoded.ids, DOCUMENT_ENDS.name: offsets[1 : n_ended + 1]}
    values |= {each.name: each.make(encoded) for each in columns if each.make is not None}
    whole = Part(n_ended, batch.n_bytes, values)
    nothing = Part(0, 0, {name: each[:0] for name, each in values.items()})
    decided = batch.in_validation
    if decided is None or not decided.any():  # nothing is copied
        return [whole, nothing]
    if decided.all():
        return [nothing, whole]
    n_ids, parts = np.diff(offsets), []
    of_id = np.repeat(decided, n_ids)
    for number in (False, True):
        chosen = {"token": of_id == number, "document": decided[:n_ended] == number}
        some = {each.name: values[each.name][chosen[each.per]] for each in columns}
        n_documents = int(chosen["document"].sum())
        some[DOCUMENT_ENDS.name] = np.cumsum(n_ids[decided == number])[:n_documents]
        parts.append(Part(n_documents, int(batch.sizes[decided == number].sum()), some))
    return parts


def reencode(
    source: Source, tokenizer: AnyTokenizer, ids: SpecialIds, workers: int, n_outputs: int,
    has_mask: bool = False,
) -> Generator[list[Part], None, None]:
    """Encode a source again, and yield the parts of each unit, one per output.

    Raises:
        CorpusError: Text cannot be read.
    """
    with unit_readers([source], workers) as read:
        make_work = EncodeUnits(tokenizer, ids, SpecialTokenText(()), n_outputs, has_mask, read)
        with (
            closing(read_units([source], Position(), workers, read)) as units,
            closing(run_units(units, make_work, workers)) as results,
        ):
            for _, encoded in results:
                yield encoded.parts


# --- the pass ---


class TokenFiles(Struct, frozen=True):
    """How token files are opened; the attributes are arguments of `TokenFileWriter`."""

    storage: Storage
    vocab_size: int
    shard_tokens: int | None = None
    split_documents: bool = False
    has_mask: bool = False

    def open(self, name: str, states: Sequence[WriterState] = ()) -> TokenFileWriter:
        """Open the token file NAME, or resume it from its states."""
        return TokenFileWriter(
            self.storage, name, vocab_size=self.vocab_size, states=states,
            shard_tokens=self.shard_tokens, split_documents=self.split_documents,
            has_mask=self.has_mask,
        )


class SourceProgress(Struct, forbid_unknown_fields=True):
    """Progress in one source."""

    counts: Counts = msgspec.field(default_factory=Counts)
    records: int = 0  # as `DocumentBatch.n_records`
    digest: str = SourceDigest().hexdigest()
    outputs: list[Counts] = []  # counts by output


class EncodeCheckpoint(Struct, kw_only=True, forbid_unknown_fields=True):
    """Checkpoint of a pass, which adds to those before.

    `files` has the states that are new since the previous checkpoint, and `sources` all progress of
    the sources read since then; all of them, if it replaces those before, because the journal is
    long. Other fields are totals, if nothing else is said.
    """

    source: Count = 0  # index of the source
    after: ResumePoint | None = None  # position in the source, as `WorkUnit.after`; None: start
    n_read: Count = 0  # as in `Position`
    files: dict[str, WriterState] = {}  # name of an output -> state of its files
    outputs: dict[str, Counts] = {}  # name of an output -> its counts
    sources: dict[int, SourceProgress] = {}  # by index
    left_out: LeftOut | None = None  # of all passes so far
    rejected: list[Rejected] = []  # new since the previous checkpoint
    look_alikes: dict[str, int] = {}  # special token -> occurrences of its text in all passes
    bytes: Count = 0  # bytes of the sources before the position
    seconds: float = 0.0


@dataclass
class EncodePass:
    """Pass that encodes sources; raises JournalError if checkpoints are damaged."""

    number: int  # index of the pass in its run
    sources: Sequence[Source]
    tokenizer: AnyTokenizer
    ids: SpecialIds
    workers: int
    report: Report  # counts are added to it
    progress: Progress
    journal: Journal | None = None  # None: no checkpoints
    max_bad_records: int = 0
    # Of all tasks, if `sources` are those of one, which may have no documents. None: `sources`.
    all_sources: Sequence[Source] | None = None

    def __post_init__(self) -> None:
        separators = {source.separator for source in self.all_sources or self.sources}
        separator = separators.pop() if len(separators) == 1 else b""
        self._look_alikes = SpecialTokenText(self.tokenizer.special_tokens, separator)
        self._at = EncodeCheckpoint()
        self._of_sources = [SourceProgress() for _ in self.sources]
        self._states_of_files: dict[str, list[WriterState]] = {}
        self._rejected: list[Rejected] = []
        self._n_reported = self._n_reported_before = 0  # of `report.rejected`, in checkpoints
        self._key = f"encoded {self.number}"
        entries = [] if self.journal is None else self.journal.values(self._key, EncodeCheckpoint)
        for entry in entries:
            self._at = entry
            self._rejected += entry.rejected
            for name, state in entry.files.items():
                self._states_of_files.setdefault(name, []).append(state)
            with journal_errors():
                for index, source in entry.sources.items():
                    self._of_sources[index] = source

    @property
    def has_mask(self) -> bool:
        """True if the outputs have the columns of sources with spans."""
        return any(source.has_spans for source in self.all_sources or self.sources)

    def fill(
        self, names: Mapping[str, str], files: TokenFiles, shuffle_seed: int | None = None
    ) -> dict[str, Manifest]:
        """Encode all sources into token files.

        Args:
            names: Name of an output -> NAME of its files; documents `in_validation` go to the
                second output, others to the first.
            files: How they are opened.
            shuffle_seed: Seed of a random order of the documents of each; None: as in the sources.

        Returns:
            Name of an output -> its manifest.

        Raises:
            CorpusError: Text cannot be read, or an output has no documents.
            OutputError: A file cannot be written.
            JournalError: The files of an earlier run are damaged.
            OutOfTimeError: The time limit of the run is reached.
        """
        assert self.journal is not None
        if self.journal.value(f"{self._key} finished", bool):
            with self._stage(names):
                self._restore_report(names)
            return {x: read_saved_manifest(files.storage, names[x]) for x in names}
        in_order, suffix = files, ""
        if shuffle_seed is not None:
            in_order = replace(files, shard_tokens=None, split_documents=False)
            suffix = IN_ORDER
        writers: dict[str, TokenFileWriter] = {}
        try:
            for name, file_name in names.items():
                states = self._states_of_files.get(name, ())
                writers[name] = in_order.open(f"{file_name}{suffix}", states)
            self.run(writers)
            manifests = self._finish(writers)
        finally:
            # The journal's thread may still sync their streams.
            self.journal.rest()
            for writer in writers.values():
                writer.close()
        if shuffle_seed is not None:
            for name, file_name in names.items():
                manifests[name] = shuffle_token_file(
                    files.storage, f"{file_name}{suffix}", manifests[name],
                    files.open(file_name), shuffle_seed, self.progress,
                )
        self.journal.save(f"{self._key} finished", True)
        return manifests

    def _finish(self, writers: Mapping[str, TokenFileWriter]) -> dict[str, Manifest]:
        report, tokenizer, manifests = self.report, self.tokenizer, dict[str, Manifest]()
        n_documents = sum(report.outputs[name].documents for name in writers)
        for number, (name, writer) in enumerate(writers.items()):
            counts = report.outputs[name]
            if self.all_sources is None:
                n, left_out = counts.documents, report.left_out
                check_has_documents(name, self.sources, n, n_documents, left_out)
            manifests[name] = writer.finish(
                end_of_text_id=self.ids.end_of_text, begin_of_text_id=self.ids.begin_of_text,
                n_bytes=counts.bytes, tokenizer_fingerprint=tokenizer.fingerprint,
                pattern=tokenizer.pattern, unicode_version=tokenizer.unicode_version,
                sources=[
                    {
                        "name": source.name, "bytes": source.n_bytes,
                        # Of a source that was not read to its end, none is known.
                        "digest": "" if ends_early(source) else each.digest,
                        "documents": each.outputs[number].documents,
                        "tokens": each.outputs[number].tokens,
                    }
                    for source, each in zip(self.sources, self._of_sources, strict=True)
                ],
            )
        return manifests

    def _restore_report(self, outputs: Iterable[str]) -> None:
        """Restore the report from the last checkpoint."""
        report, at = self.report, self._at
        for token in self._look_alikes.tokens:
            report.look_alikes[token] = at.look_alikes.get(token, report.look_alikes[token])
        for name in outputs:
            report.outputs[name] = at.outputs.get(name, Counts())
        counts = [each.counts for each in self._of_sources]
        report.sources += zip(self.sources, counts, strict=True)
        report.left_out = at.left_out or report.left_out
        self._n_reported_before = len(report.rejected)  # of other passes
        report.rejected += self._rejected
        self._n_reported = len(report.rejected)

    def _stage(self, outputs: Iterable[str]) -> AbstractContextManager[Stage]:
        title = "encoding " + " and ".join(outputs)
        n_bytes, at = sum(source.n_bytes for source in self.sources), self._at
        return self.progress.stage(title.strip(), n_bytes, "B", at.bytes, at.seconds)

    def run(self, writers: Mapping[str, TokenFileWriter]) -> None:
        """Encode the remaining units into writers, by name of output; {}: only count them."""
        self._restore_report(writers)
        for each in self._of_sources:
            each.outputs = each.outputs or [Counts() for _ in writers]
            if len(each.outputs) != len(writers):
                raise JournalError(
                    f"{JOURNAL_FILE}: an entry counts {len(each.outputs):,} outputs of a source,"
                    f" and there are {len(writers):,}; start over (--overwrite)"
                )
        digest = self._reread_digest()
        journal, progress = self.journal, self.progress
        at = Position(self._at.source, self._at.after, self._at.n_read)
        with (
            self._stage(writers) as stage,
            unit_readers(self.sources, self.workers) as read,
            closing(read_units(self.sources, at, self.workers, read)) as units,
            closing(run_units(units, self._make_work(len(writers), read), self.workers)) as results,
        ):
            for item, result in results:
                # The last unit of a file is not followed by a read that would notice a change.
                item.unit.check_unchanged()
                if item.source != at.source or at.after is None:  # the position before this unit
                    digest = SourceDigest()
                digest.update(result.digests)
                self._of_sources[item.source].digest = digest.hexdigest()
                self._append(item.source, result, writers)
                del result  # frees the memory of its text and ids for the next unit
                stage.advance(item.unit.n_bytes)
                at = item.end
                if journal is None:
                    continue
                is_near = stage.total - stage.done < _NEAR_THE_END
                is_due = journal.due(is_near and stage.done - self._at.bytes >= _FEW_BYTES)
                is_over = at.source < len(self.sources) and progress.out_of_time()
                if is_due or is_over:
                    self._checkpoint(journal, at, stage, writers)
                if is_over:
                    journal.wait()
                    raise OutOfTimeError(out_of_time(progress, "encoding resumes from there"))
            if journal is not None:
                self._checkpoint(journal, at, stage, writers)
                journal.wait()

    def _make_work(self, n_outputs: int, read: Read) -> EncodeUnits:
        return EncodeUnits(
            self.tokenizer, self.ids, self._look_alikes, max(n_outputs, 1), self.has_mask, read
        )

    def _append(
        self, index: int, result: Encoded, writers: Mapping[str, TokenFileWriter]
    ) -> None:
        """Append and count the result of a unit of source `index`."""
        report, source = self.report, self._of_sources[index]
        batch, parts = result.batch, result.parts
        report.left_out.add(batch)
        report.rejected += [
            replace(each, record=each.record + source.records)
            for each in batch.rejected
        ]
        source.records += batch.n_records
        check_bad_records(report.left_out, batch, self.max_bad_records)
        tokens = self._look_alikes.tokens
        report.look_alikes.update(dict(zip(tokens, result.look_alikes.tolist(), strict=True)))
        for part in parts:
            source.counts.add(*part.counts)
        outputs = zip(writers.items(), parts, source.outputs, strict=False)
        for (name, writer), part, of_source in outputs:
            others = dict(part.columns)
            writer.append(others.pop(IDS.name), others.pop(DOCUMENT_ENDS.name), **others)
            report.outputs[name].add(*part.counts)
            of_source.add(*part.counts)

    def _checkpoint(
        self, journal: Journal, at: Position, stage: Stage, writers: Mapping[str, TokenFileWriter]
    ) -> None:
        """Submit a checkpoint at a position."""
        report, whole = self.report, journal.is_long
        new = range(0 if whole else self._at.source, min(at.source + 1, len(self.sources)))
        first = self._n_reported_before if whole else self._n_reported
        rejected, self._n_reported = report.rejected[first:], len(report.rejected)
        self._at = entry = EncodeCheckpoint(
            source=at.source, after=at.after, n_read=at.n_read,
            files={name: writer.state(whole) for name, writer in writers.items()},
            outputs={name: report.outputs[name] for name in writers},
            sources={index: self._of_sources[index] for index in new}, left_out=report.left_out,
            rejected=rejected,
            look_alikes={token: n for token, n in report.look_alikes.items() if n},
            bytes=stage.done, seconds=stage.seconds,
        )
        streams = [stream for writer in writers.values() for stream in writer.streams]
        journal.submit(self._key, entry, streams, adds=not whole, stage=stage)

    def _reread_digest(self) -> SourceDigest:
        """Return the digest of the current source before the checkpoint; raise if it differs."""
        if self._at.after is None:
            return SourceDigest()
        source = self.sources[self._at.source]
        digest = digest_of(source, self._at.after)
        if digest.hexdigest() != self._of_sources[self._at.source].digest:
            raise JournalError(
                f"{source.name}: the text read before the interruption has changed, though size and"
                " modification time are the same; start over (--overwrite)"
            )
        return digest
