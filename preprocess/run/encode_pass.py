"""Encode documents into sinks, one per output.

Workers encode and digest units; the calling thread appends and counts their results in order.

A `.bin` holds for each document in order: the begin-of-text id (optional), `encode_ordinary` of the
document, the end-of-text id. Text that spells a special token is encoded as ordinary text and
counted.

After an interruption, the pass resumes from its last `EncodeCheckpoint` in the journal.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from preprocess.dataset.manifest import Count
from preprocess.documents.batch import Rejected, SpecialTokenText
from preprocess.report.progress import OutOfTimeError, Progress, Stage
from preprocess.report.summary import (
    Counts,
    LeftOut,
    Report,
    check_bad_records,
    check_has_documents,
    out_of_time,
)
from preprocess.run.encoding import Encoded, Encoding, SpecialIds
from preprocess.run.journal import Journal, JournalError, journal_errors
from preprocess.run.readers import Read, unit_readers
from preprocess.run.sinks import Sink, Sinks
from preprocess.run.units import Item, Position, ends_early, read_units, run_units
from preprocess.sources import ResumePoint, Source, digest_of
from preprocess.sources.digest import SourceDigest
from preprocess.storage import JOURNAL_FILE

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

# In the last 32 MiB, a checkpoint is due every 4 MiB if the disk is idle.
_NEAR_THE_END, _FEW_BYTES = 1 << 25, 1 << 22


class SourceProgress(Struct, forbid_unknown_fields=True):
    """Progress in one source."""

    counts: Counts = msgspec.field(default_factory=Counts)
    records: int = 0  # as `DocumentBatch.n_records`
    digest: str = SourceDigest().hexdigest()
    outputs: list[Counts] = []  # counts by output


class EncodeCheckpoint(Struct, kw_only=True, forbid_unknown_fields=True):
    """Checkpoint of a pass, which adds to those before.

    `sinks` has the states that are new since the previous checkpoint, and `sources` all progress of
    the sources read since then; all of them, if it replaces those before, because the journal is
    long. Other fields are totals, if nothing else is said.
    """

    source: Count = 0  # index of the source
    after: ResumePoint | None = None  # position in the source, as `WorkUnit.after`; None: start
    n_read: Count = 0  # as in `Position`
    sinks: dict[str, Any] = {}  # name of an output -> state of its sink
    outputs: dict[str, Counts] = {}  # name of an output -> its counts
    sources: dict[int, SourceProgress] = {}  # by index
    left_out: LeftOut | None = None  # of all passes so far
    rejected: list[Rejected] = []  # new since the previous checkpoint
    look_alikes: dict[str, int] = {}  # special token -> occurrences of its text in all passes
    bytes: Count = 0  # bytes of the sources before the position
    seconds: float = 0.0


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
    max_bad_records: int = 0
    # Of all tasks, if `sources` are those of one, which may have no documents. None: `sources`.
    all_sources: Sequence[Source] | None = None

    def __post_init__(self) -> None:
        separators = {source.separator for source in self.all_sources or self.sources}
        separator = separators.pop() if len(separators) == 1 else b""
        self._look_alikes = SpecialTokenText(self.tokenizer.special_tokens, separator)
        self._at = EncodeCheckpoint()
        self._of_sources = [SourceProgress() for _ in self.sources]
        self.sink_states: dict[str, list[Any]] = {}
        self._rejected: list[Rejected] = []
        self._n_reported = self._n_reported_before = 0  # of `report.rejected`, in checkpoints
        self._key = f"encoded {self.number}"
        entries = [] if self.journal is None else self.journal.values(self._key, EncodeCheckpoint)
        for entry in entries:
            self._at = entry
            self._rejected += entry.rejected
            for name, state in entry.sinks.items():
                self.sink_states.setdefault(name, []).append(state)
            with journal_errors():
                for index, source in entry.sources.items():
                    self._of_sources[index] = source

    @property
    def has_mask(self) -> bool:
        """True if the outputs have the columns of sources with spans."""
        return any(source.has_spans for source in self.all_sources or self.sources)

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
        if self.journal.value(f"{self._key} finished", bool):
            with self._stage(names):
                self._restore_report(names)
            return {name: sinks.result_of(names[name]) for name in names}
        opened: dict[str, Sink] = {}
        try:
            for name, file_name in names.items():
                opened[name] = sinks.open(file_name, self.sink_states.get(name, ()))
            self.run(opened)
            results = self._finish(opened)
        finally:
            # The journal's thread may still sync their streams.
            self.journal.rest()
            for sink in opened.values():
                sink.close()
        self.journal.save(f"{self._key} finished", True)
        return results

    def _finish(self, sinks: Mapping[str, Sink]) -> dict[str, Any]:
        report, tokenizer = self.report, self.tokenizer
        n_documents = sum(report.outputs[name].documents for name in sinks)
        results = {}
        for number, (name, sink) in enumerate(sinks.items()):
            counts = report.outputs[name]
            if self.all_sources is None:
                n, left_out = counts.documents, report.left_out
                check_has_documents(name, self.sources, n, n_documents, left_out)
            results[name] = sink.finish(
                end_of_text_id=self.ids.end_of_text,
                begin_of_text_id=self.ids.begin_of_text,
                n_bytes=counts.bytes,
                tokenizer_fingerprint=tokenizer.fingerprint,
                pattern=tokenizer.pattern,
                unicode_version=tokenizer.unicode_version,
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
        self._n_reported_before = len(report.rejected)  # of other passes
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
        journal, progress = self.journal, self.progress
        at = Position(self._at.source, self._at.after, self._at.n_read)
        with (
            self._stage(sinks) as stage,
            unit_readers(self.sources, self.workers) as read,
            closing(read_units(self.sources, at, self.workers, read)) as units,
            closing(self._encoded(units, max(len(sinks), 1), read)) as results,
        ):
            for item, result in results:
                # The last unit of a file is not followed by a read that would notice a change.
                item.unit.check_unchanged()
                if item.source != at.source or at.after is None:  # the position before this unit
                    digest = SourceDigest()
                digest.update(result.digests)
                self._of_sources[item.source].digest = digest.hexdigest()
                self._append(item.source, result, sinks)
                del result  # frees the memory of its text and ids for the next unit
                stage.advance(item.unit.n_bytes)
                at = item.end
                if journal is None:
                    continue
                is_near = stage.total - stage.done < _NEAR_THE_END
                is_due = journal.due(is_near and stage.done - self._at.bytes >= _FEW_BYTES)
                is_over = at.source < len(self.sources) and progress.out_of_time()
                if is_due or is_over:
                    self._checkpoint(journal, at, stage, sinks)
                if is_over:
                    journal.wait()
                    raise OutOfTimeError(out_of_time(progress, "encoding resumes from there"))
            if journal is not None:
                self._checkpoint(journal, at, stage, sinks)
                journal.wait()

    def _encoded(
        self, units: Iterable[Item], n_outputs: int, read: Read
    ) -> Generator[tuple[Item, Encoded], None, None]:
        """Encode units, as `run_units`."""
        encoding = Encoding(
            self.tokenizer, self.ids, self._look_alikes, n_outputs, self.has_mask, read
        )
        return run_units(units, encoding, self.workers)

    def _append(self, index: int, result: Encoded, sinks: Mapping[str, Sink]) -> None:
        """Append and count the result of a unit of source `index`."""
        report, source = self.report, self._of_sources[index]
        batch, parts = result.batch, result.parts
        report.left_out.add(batch)
        report.rejected += [
            msgspec.structs.replace(each, record=each.record + source.records)
            for each in batch.rejected
        ]
        source.records += batch.n_records
        check_bad_records(report.left_out, batch, self.max_bad_records)
        tokens = self._look_alikes.tokens
        report.look_alikes.update(dict(zip(tokens, result.look_alikes.tolist(), strict=True)))
        for part in parts:
            source.counts.add(*part.counts())
        outputs = zip(sinks.items(), parts, source.outputs, strict=False)
        for (name, sink), part, of_source in outputs:
            sink.append(part.ids, part.document_ends, **part.columns)
            report.outputs[name].add(*part.counts())
            of_source.add(*part.counts())

    def _checkpoint(
        self, journal: Journal, at: Position, stage: Stage, sinks: Mapping[str, Sink]
    ) -> None:
        """Submit a checkpoint at a position."""
        report, whole = self.report, journal.is_long
        new = range(0 if whole else self._at.source, min(at.source + 1, len(self.sources)))
        first = self._n_reported_before if whole else self._n_reported
        rejected, self._n_reported = report.rejected[first:], len(report.rejected)
        self._at = entry = EncodeCheckpoint(
            source=at.source, after=at.after, n_read=at.n_read,
            sinks={name: sink.state(whole) for name, sink in sinks.items()},
            outputs={name: report.outputs[name] for name in sinks},
            sources={index: self._of_sources[index] for index in new}, left_out=report.left_out,
            rejected=rejected,
            look_alikes={token: n for token, n in report.look_alikes.items() if n},
            bytes=stage.done, seconds=stage.seconds,
        )
        streams = [stream for sink in sinks.values() for stream in sink.streams]
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
