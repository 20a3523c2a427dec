"""Encode documents into token files, one per output.

Workers encode and digest units; the calling thread appends and counts their results in order.

A `.bin` holds for each document in order: the begin-of-text id (optional), the ids of its text, the
end-of-text id. Text that spells a special token is encoded as ordinary text and counted; only the
special tokens that a source names, those of a chat template, become special ids.

After an interruption, the pass resumes from its last `EncodeCheckpoint` in the journal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from bpe.errors import TokenmillError
from bpe.parallel import cached_property
from preprocess.dataset import columns as table
from preprocess.dataset.columns import DOCUMENT_ENDS, IDS, token_dtype
from preprocess.dataset.manifest import Manifest
from preprocess.dataset.writer import TokenFileWriter, WriterState, read_saved_manifest
from preprocess.documents.batch import DocumentBatch, Rejected, SpecialTokenText
from preprocess.documents.chat_tokens import ConversationEncoder
from preprocess.options import (
    BuildSettings,
    CountSettings,
    EncodeSettings,
    SpecialTokenSettings,
    TrainFileSettings,
)
from preprocess.report.progress import OutOfTimeError, Progress, Stage
from preprocess.report.summary import Counts, Report, check_has_documents, out_of_time
from preprocess.reused_memory import ReusedMemory
from preprocess.run.journal import Journal, JournalError, journal_errors
from preprocess.run.reading import Pass
from preprocess.run.record import end_of_text_token
from preprocess.run.shuffle import shuffle_token_file
from preprocess.run.units import (
    Item,
    Reached,
    Read,
    ends_early,
    read_units,
    run_units,
    unit_readers,
)
from preprocess.sources import digest_of
from preprocess.sources.digest import BlockDigests, SourceDigest, digest_blocks
from preprocess.storage import IN_ORDER, JOURNAL_FILE

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyEncoder, AnyTokenizer


class SpecialTokenError(TokenmillError, ValueError):
    """A tokenizer lacks a required special token."""


class SpecialIds(Struct, frozen=True):
    """Special ids around each document."""

    end_of_text: int  # after each document; -1: none
    begin_of_text: int | None  # before each document; None: none

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, settings: SpecialTokenSettings) -> SpecialIds:
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

    counts: Counts  # of documents that end in the unit, their bytes of text included
    columns: Mapping[str, NDArray[Any]]  # name -> values; ends are positions in the ids


class Encoded(NamedTuple):
    """Token ids, counts and digests of a unit."""

    batch: DocumentBatch  # without text
    parts: list[Part]  # one for each output
    look_alikes: NDArray[np.int64]  # counts of special-token text
    digests: BlockDigests  # of the bytes of the source


# --- the pass ---


class SourceProgress(Struct, forbid_unknown_fields=True):
    """Progress in one source."""

    counts: Counts = field(default_factory=Counts)
    records: int = 0  # as `DocumentBatch.n_records`
    digest: str = SourceDigest().hexdigest()
    outputs: list[Counts] = []  # counts by output


class EncodeCheckpoint(Reached, kw_only=True):
    """Checkpoint of a pass, which adds to those before.

    `files`, `sources` and `rejected` are new since the previous checkpoint; or all, if this
    replaces those before, because the journal is long. Other fields are totals; `left_out` and
    `look_alikes` are those of all passes so far.
    """

    files: dict[str, WriterState] = field(default_factory=dict)  # by name of an output
    outputs: dict[str, Counts] = field(default_factory=dict)  # by name of an output
    sources: dict[int, SourceProgress] = field(default_factory=dict)  # by index
    rejected: list[Rejected] = field(default_factory=list)
    look_alikes: dict[str, int] = field(default_factory=dict)  # token -> occurrences of its text


@dataclass
class EncodePass:
    """Pass that encodes sources; raises JournalError if checkpoints are damaged."""

    part: Pass
    settings: EncodeSettings | BuildSettings | CountSettings | TrainFileSettings
    tokenizer: AnyTokenizer
    report: Report  # counts are added to it
    progress: Progress
    journal: Journal | None = None  # None: no checkpoints
    ids: SpecialIds | None = None  # None: as the settings say, if they are of a dataset
    has_mask: bool | None = None  # None: if a source has spans
    n_sources_before: int = 0  # of the dataset that the outputs are appended to

    def __post_init__(self) -> None:
        self.sources, all_sources = self.part.sources, self.part.all_files
        separators = {source.separator for source in all_sources}
        separator = separators.pop() if len(separators) == 1 else b""
        self._look_alikes = SpecialTokenText(self.tokenizer.special_tokens, separator)
        has_mask = self.has_mask or any(source.has_spans for source in all_sources)
        has_provenance = getattr(self.settings, "provenance", False)
        self._columns = table.columns_of(has_mask, has_provenance)
        self._key, self._ids = f"encoded {self.part.number}", self.ids or SpecialIds(-1, None)
        if self.ids is None and isinstance(self.settings, BuildSettings | EncodeSettings):
            self._ids = SpecialIds.of(self.tokenizer, self.settings)
        self._at = EncodeCheckpoint()
        # Text and ids of units in progress.
        self._memory = ReusedMemory(limit=256, largest=1 << 26)

    def _restore(self, outputs: Iterable[str]) -> dict[str, list[WriterState]]:
        """Restore the progress and the report; return the states of the files of each output."""
        report, states = self.report, dict[str, list[WriterState]]()
        self._of_sources = [SourceProgress() for _ in self.sources]
        self._at = EncodeCheckpoint(left_out=report.left_out, look_alikes=report.look_alikes)
        self._first_rejected = len(report.rejected)  # others are of other passes
        entries = [] if self.journal is None else self.journal.values(self._key, EncodeCheckpoint)
        for entry in entries:
            self._at = entry
            report.rejected += entry.rejected
            for name, state in entry.files.items():
                states.setdefault(name, []).append(state)
            with journal_errors():
                for index, source in entry.sources.items():
                    self._of_sources[index] = source
        at, self._n_saved, self._n_sources_saved = self._at, len(report.rejected), self._at.source
        report.left_out = at.left_out
        zeros = dict.fromkeys(self._look_alikes.tokens, 0)
        report.look_alikes = Counter(zeros | report.look_alikes | at.look_alikes)
        at.outputs = {name: at.outputs.get(name, Counts()) for name in outputs}
        report.outputs |= at.outputs
        counts = (each.counts for each in self._of_sources)
        report.sources += zip(self.sources, counts, strict=True)
        return states

    def fill(self) -> dict[str, Manifest]:
        """Encode all sources into token files, whose documents are shuffled if the settings say so.

        Documents `in_validation` go to the second output of the pass, others to the first. Returns
        name of an output -> its manifest.

        Raises:
            CorpusError: Text cannot be read, or an output has no documents.
            OutputError: A file cannot be written.
            OutOfTimeError: The time limit of the run is reached.
        """
        settings, journal = self.settings, self.journal
        assert journal is not None
        assert isinstance(settings, BuildSettings | EncodeSettings)
        storage, names = journal.storage, self.part.names
        states = self._restore(names)
        if journal.value(f"{self._key} finished", bool):
            with self._stage(names):
                return {x: read_saved_manifest(storage, y) for x, y in names.items()}
        vocab_size, seed = self.tokenizer.vocab_size, settings.shuffle_documents
        whole = partial(TokenFileWriter, storage, vocab_size=vocab_size, columns=self._columns)
        final = partial(
            whole, shard_tokens=settings.shard_tokens, split_documents=settings.split_documents
        )
        open_file, suffix = (final, "") if seed is None else (whole, IN_ORDER)
        with ExitStack() as stack:
            writers = {}
            for name, file_name in names.items():
                writer = open_file(f"{file_name}{suffix}", states=states.get(name, ()))
                writers[name] = stack.enter_context(closing(writer))
            stack.callback(journal.rest)  # its thread may still sync their streams
            self._encode(writers)
            manifests = self._finish(writers)
        if seed is not None:
            for name, file_name in names.items():
                manifests[name] = shuffle_token_file(
                    storage, f"{file_name}{suffix}", manifests[name], final(file_name), seed,
                    self.progress,
                )
        journal.save(f"{self._key} finished", True)
        return manifests

    def _finish(self, writers: Mapping[str, TokenFileWriter]) -> dict[str, Manifest]:
        report, tokenizer, manifests = self.report, self.tokenizer, dict[str, Manifest]()
        n_documents = sum(report.outputs[name].documents for name in writers)
        for number, (name, writer) in enumerate(writers.items()):
            counts = report.outputs[name]
            if self.part.task is None:  # a task may have none
                n, left_out = counts.documents, report.left_out
                check_has_documents(name, self.sources, n, n_documents, left_out)
            manifests[name] = writer.finish(
                end_of_text_id=self._ids.end_of_text, begin_of_text_id=self._ids.begin_of_text,
                n_bytes=counts.bytes, tokenizer_fingerprint=tokenizer.fingerprint,
                pattern=tokenizer.pattern, unicode_version=tokenizer.unicode_version,
                sources=[
                    {
                        "name": source.name,
                        "bytes": source.n_bytes if source.is_sized else each.counts.bytes,
                        # Of a source that was not read to its end, none is known.
                        "digest": "" if ends_early(source) else each.digest,
                        "documents": each.outputs[number].documents,
                        "tokens": each.outputs[number].tokens,
                    }
                    for source, each in zip(self.sources, self._of_sources, strict=True)
                ],
            )
        return manifests

    def _stage(self, outputs: Iterable[str]) -> AbstractContextManager[Stage]:
        title = "encoding " + " and ".join(outputs)
        n_bytes, at = sum(source.n_bytes for source in self.sources), self._at
        return self.progress.stage(title.strip(), n_bytes, "B", at.bytes, at.seconds)

    def count(self) -> None:
        """Encode all sources, and only count what they give."""
        self._restore(())
        self._encode({})

    def _encode(self, writers: Mapping[str, TokenFileWriter]) -> None:
        """Encode the remaining units into writers, by name of output."""
        for each in self._of_sources:
            each.outputs = each.outputs or [Counts() for _ in writers]
            if len(each.outputs) != len(writers):
                raise JournalError(
                    f"{JOURNAL_FILE}: an entry counts {len(each.outputs):,} outputs of a source,"
                    f" and there are {len(writers):,}; start over (--overwrite)"
                )
        at, progress, digest = self._at, self.progress, self._reread_digest()
        with self._stage(writers) as stage, self.results() as results:
            for item, result in results:
                # The last unit of a file is not followed by a read that would notice a change.
                item.unit.check_unchanged()
                if item.source != at.source or at.after is None:  # the position before this unit
                    digest = SourceDigest()
                digest.update(result.digests)
                self._of_sources[item.source].digest = digest.hexdigest()
                self._append(item.source, result, writers)
                at.add(item, result.batch, stage, self.settings.max_bad_records)
                del result  # frees the memory of its text and ids for the next unit
                self._checkpoint(stage, writers)
                if at.source < len(self.sources) and progress.out_of_time():
                    self._checkpoint(stage, writers, True)
                    raise OutOfTimeError(out_of_time(progress, "encoding resumes from there"))
            self._checkpoint(stage, writers, True)

    @contextmanager
    def results(self) -> Iterator[Iterator[tuple[Item, Encoded]]]:
        """Encode the remaining units inside the `with`; its target has the results, in order."""
        workers = self.settings.workers
        self.tokenizer.new_encoder()  # makes the shared tables once, before threads need them
        with (
            unit_readers(self.sources, workers) as read,
            closing(read_units(self.sources, self._at, workers, read)) as units,
            closing(run_units(units, partial(self._make_work, read), workers)) as results,
        ):
            yield results

    @cached_property
    def _conversation_encoder(self) -> ConversationEncoder:
        return ConversationEncoder(self.tokenizer, token_dtype(self.tokenizer.vocab_size))

    def _make_work(self, read: Read) -> Callable[[Item], Encoded]:
        """Return a function that encodes units, for one thread at a time."""
        encoder = self.tokenizer.new_encoder(token_dtype(self.tokenizer.vocab_size))
        return partial(self._encode_unit, encoder, read)

    def _encode_unit(self, encoder: AnyEncoder, read: Read, item: Item) -> Encoded:
        batch, unit = item.documents(self._memory.array, read), item.unit
        content = batch.content if batch.content is not None else unit.content(self._memory.array)
        digests, batch = digest_blocks(content, unit.start), replace(batch, content=None)
        del content  # frees its memory
        parts = [self._encode_part(encoder, each) for each in self._divide(batch)]
        return Encoded(batch.without_text(), parts, self._look_alikes.count(batch), digests)

    def _divide(self, batch: DocumentBatch) -> list[DocumentBatch]:
        """Return the documents of a batch for each output."""
        decided = batch.in_validation
        return [batch] if decided is None else [batch.select(~decided), batch.select(decided)]

    def _encode_part(self, encoder: AnyEncoder, batch: DocumentBatch) -> Part:
        begin, end, mask = self._ids.begin_of_text, self._ids.end_of_text, None
        prefix = -1 if begin is None else begin
        if batch.special is not None:
            ids, offsets, mask = self._conversation_encoder.encode(encoder, batch, prefix, end)
        else:
            ids, offsets = encoder.encode(
                batch.buffer, batch.bounds.reshape(-1, 2), prefix_id=prefix, suffix_id=end,
                starts_mid_document=batch.starts_mid_document,
                ends_mid_document=batch.ends_mid_document, memory=self._memory.array,
            )
        encoded, others = EncodedBatch(batch, ids, offsets, mask), self._columns
        columns = {IDS.name: ids, DOCUMENT_ENDS.name: offsets[1 : batch.n_ended + 1]}
        columns |= {each.name: each.make(encoded) for each in others if each.make is not None}
        return Part(Counts(batch.n_ended, batch.n_bytes, len(ids)), columns)

    def _append(
        self, index: int, result: Encoded, writers: Mapping[str, TokenFileWriter]
    ) -> None:
        """Append and count the result of a unit of source `index`."""
        report, source, batch = self.report, self._of_sources[index], result.batch
        report.rejected += [
            replace(each, record=each.record + source.records) for each in batch.rejected
        ]
        n_before, source.records = source.records, source.records + batch.n_records
        tokens = self._look_alikes.tokens
        report.look_alikes.update(dict(zip(tokens, result.look_alikes.tolist(), strict=True)))
        for part in result.parts:
            source.counts.add(part.counts)
        outputs = zip(writers.items(), result.parts, source.outputs, strict=False)
        for (name, writer), part, of_source in outputs:
            others = table.in_sources(part.columns, self.n_sources_before + index, n_before)
            writer.append(others.pop(IDS.name), others.pop(DOCUMENT_ENDS.name), **others)
            report.outputs[name].add(part.counts)
            of_source.add(part.counts)

    def _checkpoint(
        self, stage: Stage, writers: Mapping[str, TokenFileWriter], is_last: bool = False
    ) -> None:
        """Submit a checkpoint if one is due; wait until it is durable if it is the last one."""
        journal, report, at = self.journal, self.report, self._at
        if journal is None or not (is_last or journal.due()):
            return
        whole = journal.is_long
        new = range(0 if whole else self._n_sources_saved, min(at.source + 1, len(self.sources)))
        at.sources = {index: self._of_sources[index] for index in new}
        at.files = {name: writer.state(whole) for name, writer in writers.items()}
        at.rejected = report.rejected[self._first_rejected if whole else self._n_saved :]
        at.look_alikes = {token: n for token, n in report.look_alikes.items() if n}
        streams = [stream for writer in writers.values() for stream in writer.streams]
        journal.submit(self._key, at, streams, adds=not whole, stage=stage)
        self._n_saved, self._n_sources_saved = len(report.rejected), at.source
        if is_last:
            journal.wait()

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
