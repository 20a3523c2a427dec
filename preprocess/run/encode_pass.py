"""Encode documents into sinks, one per output.

Workers encode units; the calling thread appends, counts and digests their results in order.

A `.bin` holds for each document in order: the begin-of-text id (optional), `encode_ordinary` of the
document, the end-of-text id. Text that spells a special token is encoded as ordinary text and
counted.

After an interruption, the pass resumes from its last `EncodeCheckpoint` in the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import xxhash
from msgspec import Struct
from numpy.typing import NDArray

from bpe.errors import TokenbinError
from bpe.parallel import run_in_order
from preprocess.dataset import columns as table
from preprocess.dataset.columns import DOCUMENT_ENDS, IDS, token_dtype
from preprocess.dataset.manifest import Count
from preprocess.documents.batch import DocumentBatch, Rejected, SpecialTokenText
from preprocess.documents.token_offsets import token_lengths, tokens_at
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
from preprocess.run.record import end_of_text_token
from preprocess.run.sinks import Sink, Sinks
from preprocess.run.units import (
    Executor,
    resume_point_after,
    run_numbered,
    run_on_threads,
    units_after,
)
from preprocess.settings.schema import EncodeSettings, TrainSettings
from preprocess.sources import ResumePoint, Source, WorkUnit, digest_of
from preprocess.storage import JOURNAL_FILE, Stream

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyEncoder, AnyTokenizer

# In the last 32 MiB, a checkpoint is due every 4 MiB if the disk is idle.
_NEAR_THE_END, _FEW_BYTES = 1 << 25, 1 << 22


class SpecialTokenError(TokenbinError, ValueError):
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
                raise SpecialTokenError(
                    f"the tokenizer has no special token {token!r}; choose one that it has"
                    f" ({option}): {', '.join(map(repr, known)) or 'it has none at all'}"
                )
        text = np.frombuffer(end.encode(), np.uint8)
        if known[end] in tokenizer.new_encoder().encode(text, np.array([0, len(text)]))[0]:
            raise SpecialTokenError(
                f"{end!r} is an ordinary token of this tokenizer as well, so a document that spells"
                " it would end there; choose another special token (--end-of-text):"
                f" {', '.join(map(repr, known))}"
            )
        begin = settings.begin_of_text
        return cls(known[end], None if begin is None else known[begin])


class EncodedBatch(Struct, frozen=True, eq=False):
    """A batch of documents and its token ids: the input of `Column.make`."""

    batch: DocumentBatch
    ids: NDArray[np.unsignedinteger[Any]]  # [n_tokens], special ids included
    offsets: NDArray[np.int64]  # [n_documents + 1]: document d is ids[offsets[d] : offsets[d + 1]]
    special: SpecialIds
    lengths: Callable[[], NDArray[np.int64]]  # returns `token_lengths` of the tokenizer

    def tokens_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position in `ids` of the token that contains each byte: int64[n].

        Args:
            positions: int64[n], positions in `batch.buffer`, each inside a document.

        Raises:
            EncodingError: The tokenizer changes text before it is encoded.
            ValueError: A position is outside the documents.
        """
        lengths = self.lengths()[self.ids]
        # Special ids spell no bytes of the document.
        if self.special.begin_of_text is not None:
            lengths[self.offsets[int(self.batch.starts_mid_document) : -1]] = 0
        if self.special.end_of_text >= 0:
            lengths[self.offsets[1 : self.batch.n_ended + 1] - 1] = 0
        return tokens_at(positions, self.batch.bounds, np.cumsum(lengths))


class Part(Struct, frozen=True, eq=False):
    """Encoded documents of one unit that belong to one output."""

    ids: NDArray[np.unsignedinteger[Any]]
    document_ends: NDArray[np.int64]  # positions in `ids`
    n_bytes: int  # bytes of text
    columns: Mapping[str, NDArray[Any]] = {}  # name -> values, of all other columns

    def values(self) -> dict[str, NDArray[Any]]:
        """Return name -> values of all columns."""
        return {IDS.name: self.ids, DOCUMENT_ENDS.name: self.document_ends, **self.columns}

    def counts(self) -> tuple[int, int, int]:
        """Return (documents that end, bytes of text, tokens)."""
        return len(self.document_ends), self.n_bytes, len(self.ids)


# (batch without text, part for each output, counts of special-token text)
_Result = tuple[DocumentBatch, list[Part], NDArray[np.int64]]


class SourceProgress(Struct, forbid_unknown_fields=True):
    """Progress in one source."""

    counts: Counts = msgspec.field(default_factory=Counts)
    records: int = 0  # as `DocumentBatch.n_records`
    digest: str = xxhash.xxh3_128_hexdigest(b"")
    outputs: list[Counts] = []  # counts by output


class EncodeCheckpoint(
    Struct, tag_field="kind", tag="encoded", kw_only=True, forbid_unknown_fields=True
):
    """Checkpoint of a pass.

    `sinks` has the states that are new since the previous checkpoint, and `sources` all progress of
    the sources read since then. Other fields are totals, if nothing else is said.
    """

    number: int  # index of the pass
    source: Count = 0  # index of the source
    after: ResumePoint | None = None  # position in the source, as `WorkUnit.after`; None: start
    sinks: dict[str, Any] = {}  # name of an output -> state of its sink
    outputs: dict[str, Counts] = {}  # name of an output -> its counts
    sources: dict[int, SourceProgress] = {}  # by index
    left_out: LeftOut | None = None  # of all passes so far
    rejected: list[Rejected] = []  # new since the previous checkpoint
    look_alikes: dict[str, int] = {}  # special token -> occurrences of its text in all passes
    bytes: Count = 0  # bytes of the sources before the position
    seconds: float = 0.0


class PassDone(Struct, tag_field="kind", tag="finished", forbid_unknown_fields=True):
    """Checkpoint: pass `number` is done, and its sinks are finished."""

    number: int


@dataclass
class EncodePass:
    """Pass that encodes sources into sinks; raises JournalError if checkpoints are damaged."""

    number: int  # index of the pass in its run
    sources: Sequence[Source]
    tokenizer: AnyTokenizer
    ids: SpecialIds
    workers: int
    report: Report  # counts are added to it
    progress: Progress
    journal: Journal | None = None  # None: no checkpoints
    executor: Executor = run_on_threads
    max_bad_records: int = 0

    def __post_init__(self) -> None:
        separators = {source.separator for source in self.sources}
        separator = separators.pop() if len(separators) == 1 else b""
        self._look_alikes = SpecialTokenText(self.tokenizer.special_tokens, separator)
        self._at = EncodeCheckpoint(number=self.number)
        self._of_sources = [SourceProgress() for _ in self.sources]
        self._sink_states: dict[str, list[Any]] = {}
        self._rejected: list[Rejected] = []
        self._n_reported = 0  # of `report.rejected`, in checkpoints
        for entry in [] if self.journal is None else self.journal.entries_of(EncodeCheckpoint):
            if entry.number == self.number:
                self._at = entry
                self._rejected += entry.rejected
                for name, state in entry.sinks.items():
                    self._sink_states.setdefault(name, []).append(state)
                with journal_errors():
                    for index, source in entry.sources.items():
                        self._of_sources[index] = source

    def fill(self, names: Mapping[str, str], sinks: Sinks) -> dict[str, Any]:
        """Encode all sources into one sink per output, and finish the sinks.

        Args:
            names: Name of an output -> NAME of its files; documents `in_validation` go to the
                second output, others to the first.
            sinks: Factory of the sinks.

        Returns:
            Name of an output -> the result of its sink.

        Raises:
            CorpusError: Text cannot be read, or an output has no documents.
            OutputError: A sink cannot be written.
            JournalError: The files of an earlier run are damaged.
            OutOfTimeError: The time limit of the run is reached.
        """
        assert self.journal is not None
        if any(each.number == self.number for each in self.journal.entries_of(PassDone)):
            with self._stage(names):
                self._restore_report(names)
            return {name: sinks.result_of(names[name]) for name in names}
        opened: dict[str, Sink] = {}
        try:
            for name, file_name in names.items():
                opened[name] = sinks.open(file_name, self._sink_states.get(name, ()))
            self.run(opened)
            results = self._finish(opened)
        finally:
            # The journal's thread may still sync their streams.
            self.journal.rest()
            for sink in opened.values():
                sink.close()
        self.journal.append(PassDone(self.number))
        return results

    def _finish(self, sinks: Mapping[str, Sink]) -> dict[str, Any]:
        report, tokenizer = self.report, self.tokenizer
        n_documents = sum(report.outputs[name].documents for name in sinks)
        results = {}
        for number, (name, sink) in enumerate(sinks.items()):
            counts = report.outputs[name]
            check_has_documents(name, self.sources, counts.documents, n_documents, report.left_out)
            results[name] = sink.finish(
                end_of_text_id=self.ids.end_of_text,
                begin_of_text_id=self.ids.begin_of_text,
                n_bytes=counts.bytes,
                tokenizer_fingerprint=tokenizer.fingerprint,
                pattern=tokenizer.pattern,
                unicode_version=tokenizer.unicode_version,
                sources=[
                    {
                        "name": source.name, "bytes": source.n_bytes, "digest": each.digest,
                        "documents": each.outputs[number].documents,
                        "tokens": each.outputs[number].tokens,
                    }
                    for source, each in zip(self.sources, self._of_sources, strict=True)
                ],
            )
        return results

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
        report.rejected += self._rejected
        self._n_reported = len(report.rejected)

    def _stage(self, outputs: Iterable[str]) -> AbstractContextManager[Stage]:
        title = "encoding " + " and ".join(outputs)
        n_bytes, at = sum(source.n_bytes for source in self.sources), self._at
        return self.progress.stage(title.strip(), n_bytes, "B", at.bytes, at.seconds)

    def run(self, sinks: Mapping[str, Sink]) -> None:
        """Encode the remaining units into `sinks`, by name of output; {}: only count them."""
        self._restore_report(sinks)
        for each in self._of_sources:
            each.outputs = each.outputs or [Counts() for _ in sinks]
            if len(each.outputs) != len(sinks):
                raise JournalError(
                    f"{JOURNAL_FILE}: an entry counts {len(each.outputs):,} outputs of a source,"
                    f" and there are {len(sinks):,}; start over (--overwrite)"
                )
        digest = self._reread_digest()
        encoding = _Encoding(self.tokenizer, self.ids, self._look_alikes, max(len(sinks), 1))
        journal, progress = self.journal, self.progress
        source, after = self._at.source, self._at.after
        units = units_after(self.sources, source, after)
        with (
            self._stage(sinks) as stage,
            closing(run_numbered(units, encoding, self.workers, self.executor)) as results,
        ):
            for index, unit, result in results:
                # The last unit of a file is not followed by a read that would notice a change.
                unit.check_unchanged()
                begins_source = index != source or after is None  # the position before this unit
                if begins_source:
                    digest = xxhash.xxh3_128()
                content = result[0].content
                digest.update((unit.content() if content is None else content).data)
                del content
                self._of_sources[index].digest = digest.hexdigest()
                self._append(index, result, sinks)
                del result  # frees the memory of its text and ids for the next unit
                stage.advance(unit.n_bytes)
                source, after = resume_point_after(index, unit)
                if journal is None:
                    continue
                is_near = stage.total - stage.done < _NEAR_THE_END
                if journal.due(is_near and stage.done - self._at.bytes >= _FEW_BYTES):
                    journal.submit(*self._checkpoint(source, after, stage, sinks))
                if source < len(self.sources) and progress.out_of_time():
                    journal.append(*self._checkpoint(source, after, stage, sinks))
                    raise OutOfTimeError(out_of_time(progress, "encoding resumes from there"))
            if journal is not None:
                journal.append(*self._checkpoint(source, after, stage, sinks))

    def _append(self, index: int, result: _Result, sinks: Mapping[str, Sink]) -> None:
        """Append and count the result of a unit of source `index`."""
        report, source = self.report, self._of_sources[index]
        batch, parts, look_alikes = result
        report.left_out.add(batch)
        report.rejected += [
            msgspec.structs.replace(each, record=each.record + source.records)
            for each in batch.rejected
        ]
        source.records += batch.n_records
        check_bad_records(report.left_out, batch, self.max_bad_records)
        tokens = self._look_alikes.tokens
        report.look_alikes.update(dict(zip(tokens, look_alikes.tolist(), strict=True)))
        for part in parts:
            source.counts.add(*part.counts())
        outputs = zip(sinks.items(), parts, source.outputs, strict=False)
        for (name, sink), part, of_source in outputs:
            sink.append(part.ids, part.document_ends, **part.columns)
            report.outputs[name].add(*part.counts())
            of_source.add(*part.counts())

    def _checkpoint(
        self, source: int, after: ResumePoint | None, stage: Stage, sinks: Mapping[str, Sink]
    ) -> tuple[EncodeCheckpoint, list[Stream]]:
        """Return (checkpoint at a position, streams to sync before it)."""
        report = self.report
        new = range(self._at.source, min(source + 1, len(self.sources)))
        rejected, self._n_reported = report.rejected[self._n_reported :], len(report.rejected)
        self._at = entry = EncodeCheckpoint(
            number=self.number, source=source, after=after,
            sinks={name: sink.state() for name, sink in sinks.items()},
            outputs={name: report.outputs[name] for name in sinks},
            sources={index: self._of_sources[index] for index in new}, left_out=report.left_out,
            rejected=rejected,
            look_alikes={token: n for token, n in report.look_alikes.items() if n},
            bytes=stage.done, seconds=stage.seconds,
        )
        return entry, [stream for sink in sinks.values() for stream in sink.streams]

    def _reread_digest(self) -> xxhash.xxh3_128:
        """Return the digest of the current source before the checkpoint; raise if it differs."""
        if self._at.after is None:
            return xxhash.xxh3_128()
        source = self.sources[self._at.source]
        digest = digest_of(source, self._at.after)
        if digest.hexdigest() != self._of_sources[self._at.source].digest:
            raise JournalError(
                f"{source.name}: the text read before the interruption has changed, though size and"
                " modification time are the same; start over (--overwrite)"
            )
        return digest


class _Encoding:
    """Factory of workers that encode units for `n_outputs` outputs; can be pickled."""

    def __init__(
        self, tokenizer: AnyTokenizer, ids: SpecialIds, look_alikes: SpecialTokenText,
        n_outputs: int,
    ) -> None:
        self._tokenizer, self._ids = tokenizer, ids
        self._look_alikes, self._n_outputs = look_alikes, n_outputs
        # Text and ids of units in progress.
        self._memory = ReusedMemory(limit=256, largest=1 << 26)
        tokenizer.new_encoder()  # makes the shared tables once, before threads need them

    def __reduce__(self) -> tuple[Any, ...]:
        return _Encoding, (self._tokenizer, self._ids, self._look_alikes, self._n_outputs)

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        return token_lengths(self._tokenizer)

    def __call__(self) -> Callable[[WorkUnit], _Result]:
        encoder = self._tokenizer.new_encoder(token_dtype(self._tokenizer.vocab_size))
        return partial(self._encode, encoder)

    def _encode(self, encoder: AnyEncoder, unit: WorkUnit) -> _Result:
        batch, begin = unit.read(self._memory.array), self._ids.begin_of_text
        ids, offsets = encoder.encode(
            batch.buffer, batch.bounds, prefix_id=-1 if begin is None else begin,
            suffix_id=self._ids.end_of_text, starts_mid_document=batch.starts_mid_document,
            ends_mid_document=batch.ends_mid_document, gaps=True, memory=self._memory.array,
        )
        encoded = EncodedBatch(batch, ids, offsets, self._ids, lambda: self._lengths)
        parts, counts = _divide(encoded, self._n_outputs), self._look_alikes.count(batch)
        return msgspec.structs.replace(batch.without_text(), content=batch.content), parts, counts


def reencode(
    source: Source, tokenizer: AnyTokenizer, ids: SpecialIds, workers: int, n_outputs: int
) -> Generator[list[Part], None, None]:
    """Encode a source again, and yield the parts of each unit, one per output.

    Raises:
        CorpusError: Text cannot be read.
    """
    make_work = _Encoding(tokenizer, ids, SpecialTokenText(()), n_outputs)
    with closing(run_in_order(source.units(), make_work, workers)) as results:
        for _, parts, _ in results:
            yield parts


def _divide(encoded: EncodedBatch, n_outputs: int) -> list[Part]:
    """Divide a batch among outputs, by `in_validation`; without it all goes to the first."""
    batch, ids, offsets = encoded.batch, encoded.ids, encoded.offsets
    n_ended = batch.n_ended
    columns = {each: each.make(encoded) for each in table.COLUMNS if each.make is not None}
    decided = np.zeros(1) if batch.in_validation is None else batch.in_validation
    output_of = decided.astype(np.int64)
    present = np.flatnonzero(np.bincount(output_of)).tolist()  # np.unique imports numpy.ma
    if present and present[-1] >= n_outputs:
        raise ValueError(f"a document is assigned to output {present[-1]}, of {n_outputs} outputs")
    if len(present) < 2:  # nothing is copied
        by_name = {each.name: values for each, values in columns.items()}
        everything = Part(ids, offsets[1 : n_ended + 1], batch.n_bytes, by_name)
        empty = {name: values[:0] for name, values in by_name.items()}
        nothing = Part(ids[:0], offsets[:0], 0, empty)
        return [everything if [number] == present else nothing for number in range(n_outputs)]
    n_ids, n_bytes, parts = np.diff(offsets), batch.sizes, []
    output_of_id = np.repeat(output_of.astype(np.min_scalar_type(n_outputs)), n_ids)
    for number in range(n_outputs):
        chosen, chosen_ids = output_of == number, output_of_id == number
        ended = chosen[:n_ended]
        further = {
            each.name: values[chosen_ids if each.per == "token" else ended]
            for each, values in columns.items()
        }
        ends = np.cumsum(n_ids[chosen])[: int(ended.sum())]
        parts.append(Part(ids[chosen_ids], ends, int(n_bytes[chosen].sum()), further))
    return parts
