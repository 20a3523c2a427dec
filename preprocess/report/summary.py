"""Summary of a run: counts, rates, closing lines, and errors of missing text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from bpe.errors import CorpusError
from preprocess.documents.batch import DocumentBatch, Rejected
from preprocess.report.progress import Progress, duration, used_resources

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer
    from preprocess.sources import Source


class Counts(Struct):
    """Numbers of documents, bytes of text, and tokens, special ids included."""

    documents: int = 0
    bytes: int = 0
    tokens: int = 0

    def add(self, other: Counts) -> None:
        """Add other counts."""
        self.documents += other.documents
        self.bytes += other.bytes
        self.tokens += other.tokens

    def with_ratios(self) -> dict[str, Any]:
        """Describe the counts for stats.json."""
        return asdict(self) | {
            "bytes_per_token": _ratio(self.bytes, self.tokens),
            "tokens_per_document": _ratio(self.tokens, self.documents),
        }


class LeftOut(Struct):
    """Numbers of dropped documents and of replaced sequences."""

    empty_documents: int = 0
    skipped_documents: int = 0
    replaced_sequences: int = 0
    short_documents: int = 0
    long_documents: int = 0
    bad_records: int = 0
    duplicate_documents: int = 0
    outside_documents: int = 0

    def add(self, batch: DocumentBatch) -> None:
        """Add the counts of a batch."""
        counts = batch.n_empty, batch.n_skipped, batch.n_replaced, batch.n_short, batch.n_long
        self.merge(LeftOut(*counts, len(batch.rejected)))

    def merge(self, other: LeftOut) -> None:
        """Add other counts."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Report(Struct):
    """Counts of all encode passes of a run."""

    outputs: dict[str, Counts] = {}  # by name of the output
    sources: list[tuple[Source, Counts]] = []  # in reading order
    left_out: LeftOut = msgspec.field(default_factory=LeftOut)
    rejected: list[Rejected] = []
    # special token -> occurrences of its text
    look_alikes: Counter[str] = msgspec.field(default_factory=Counter)

    def total(self) -> Counts:
        """Sum the counts of all sources."""
        total = Counts()
        for _, counts in self.sources:
            total.add(counts)
        return total

    def stats(self, progress: Progress, seconds: float) -> dict[str, Any]:
        """Describe the run for stats.json, except its settings."""
        total, stages = self.total(), progress.stages
        encoding = sum(each.seconds for each in stages if each.name.startswith("encoding"))
        return {
            "files": len(self.sources),
            **total.with_ratios(),
            **run_stats(progress, self.left_out, seconds),
            "encoding_seconds": encoding,
            "documents_per_second": _ratio(total.documents, encoding),
            "megabytes_per_second": _ratio(total.bytes / 1e6, encoding),
            "tokens_per_second": _ratio(total.tokens, encoding),
            "look_alikes": dict(self.look_alikes),
            "outputs": {name: counts.with_ratios() for name, counts in self.outputs.items()},
            "sources": [
                {"name": source.name, "source_bytes": source.n_bytes} | asdict(counts)
                for source, counts in self.sources
            ],
        }

    def lines(self, progress: Progress, stats: Mapping[str, Any]) -> list[str]:
        """Format the closing lines of a run, with its `stats`."""
        lines = [f"{name}: {format_counts(counts)}" for name, counts in self.outputs.items()]
        lines += format_left_out(self.left_out)
        lines += [
            f"text that spells {token!r}, encoded as ordinary text: {counted(count, 'time')}"
            for token, count in self.look_alikes.items()
            if count
        ]
        if stats.get("encoding_seconds"):
            lines.append(
                f"encoding: {counted(stats['files'], 'file')},"
                f" {stats['megabytes_per_second']:,.1f} MB/s,"
                f" {stats['tokens_per_second']:,.0f} tokens/s,"
                f" {stats['documents_per_second']:,.0f} documents/s"
            )
        return [*lines, format_times(progress, stats["seconds"])]


def run_stats(progress: Progress, left_out: LeftOut, seconds: float) -> dict[str, Any]:
    """Describe the resources and left-out text of a run for stats.json."""
    return {
        "seconds": seconds, "peak_memory_bytes": progress.peak_memory, **used_resources(),
        **asdict(left_out), "stages": [stage.facts() for stage in progress.stages],
    }


def format_counts(counts: Counts) -> str:
    """Format documents, tokens and their ratios."""
    return (
        f"{counted(counts.documents, 'document')}, {counted(counts.tokens, 'token')},"
        f" {_ratio(counts.bytes, counts.tokens):.2f} bytes per token,"
        f" {_ratio(counts.tokens, counts.documents):,.1f} tokens per document"
    )


def format_left_out(left_out: LeftOut) -> list[str]:
    """Format the counts of dropped and replaced text, one line for each kind that occurred."""
    kinds = [
        ("dropped", left_out.empty_documents, "empty document"),
        ("left out, for not being UTF-8", left_out.skipped_documents, "document"),
        ("replaced by U+FFFD, for not being UTF-8", left_out.replaced_sequences, "sequence"),
        ("left out, for fewer characters than --min-length", left_out.short_documents, "document"),
        ("left out, for more than --max-length-chars", left_out.long_documents, "document"),
        ("left out", left_out.bad_records, "bad record"),
        ("left out, for being equal to an earlier one", left_out.duplicate_documents, "document"),
        ("left out, for being before the slice", left_out.outside_documents, "document"),
    ]
    return [f"{what}: {counted(number, noun)}" for what, number, noun in kinds if number]


def format_skipped(binary_files: Sequence[Path | str]) -> str:
    """Format the number of skipped files, of which there is one or more."""
    return f"skipped: {counted(len(binary_files), 'binary file')}, such as {binary_files[0]}"


def format_tokenizer(tokenizer: AnyTokenizer) -> str:
    """Format the size and the special tokens of a tokenizer."""
    special, vocabulary = list(tokenizer.special_tokens), getattr(tokenizer, "vocabulary", None)
    merges = getattr(vocabulary, "n_merges", None)  # only of a byte-level BPE
    kind = tokenizer.pattern if merges is None else f"{merges:,} merges"
    return f"{tokenizer.vocab_size:,} tokens ({kind}), special: {listed(special, 5) or 'none'}"


def format_times(progress: Progress, seconds: float) -> str:
    """Format the times of all stages and the peak memory."""
    stages = ", ".join(f"{stage.name} {duration(stage.seconds)}" for stage in progress.stages)
    peak = f"peak memory {progress.peak_memory / 1e6:,.0f} MB"
    return f"time: {duration(seconds)} ({stages}), {peak}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as lines with aligned columns, right-aligned except the last."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([*(cell.rjust(w) for cell, w in zip(row[:-1], widths, strict=False)), row[-1]])
        for row in rows
    ]


def listed(names: Sequence[str], most: int = 3) -> str:
    """Join the first names by commas, and state the number of the others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def counted(number: int, noun: str) -> str:
    """Format a number of things: 1 token, 2 tokens."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


def out_of_time(progress: Progress, what_next: str) -> str:
    """Format the share done, rate and total time of each stage, for `OutOfTimeError`."""
    stages = []
    for stage in progress.stages:
        done, seconds = stage.done - stage.done_before, stage.seconds - stage.seconds_before
        share = stage.done / stage.total if stage.total else 1.0
        texts = [f"{stage.name} {share:.1%}"]
        if stage.unit == "B" and seconds:
            texts.append(f"{done / 1e6 / seconds:,.1f} MB/s")
        if share < 1 and done and seconds:
            texts.append(f"takes about {duration(stage.total * seconds / done)} in all")
        stages.append(", ".join(texts))
    return f"time limit reached ({'; '.join(stages)}); {what_next} if you rerun the same command"


def check_has_text(sources: Sequence[Source], name: str) -> None:
    """Raise CorpusError if all sources are empty; `name` is their first output."""
    if not any(source.n_bytes or not source.is_sized for source in sources):
        raise CorpusError(
            f"{_names(sources)}: empty (0 bytes), so there is no text for {name}; give files that"
            " have some"
        )


def check_bad_records(left_out: LeftOut, batch: DocumentBatch, most: int) -> None:
    """Raise CorpusError if more than `most` records were left out; `batch` has the last ones."""
    if left_out.bad_records > most and batch.rejected:
        first = batch.rejected[most - left_out.bad_records]
        place = f"row {first.record:,}" if first.byte is None else f"byte {first.byte:,}"
        raise CorpusError(
            f"{first.file}: {place}: {first.reason}. This is bad record {most + 1:,}, and"
            f" {most:,} are allowed (--max-bad-records)"
        )


def check_has_documents(
    name: str, sources: Sequence[Source], n_documents: int, n_everywhere: int, left_out: LeftOut
) -> None:
    """Raise CorpusError if an output has no documents of the `n_everywhere` of its sources."""
    if n_documents:
        return
    if n_everywhere:
        raise CorpusError(
            f"{name} would have no documents: none of the {n_everywhere:,} in {_names(sources)}"
            " belongs to it; choose another --val-fraction (of build, 0: no validation file), give"
            " build or vocab-curve validation text (--val), or check that --separator is the text"
            " between documents"
        )
    reasons = ", ".join(
        f"{n:,} {what}"
        for n, what in (
            (left_out.empty_documents, "are empty"),
            (left_out.skipped_documents, "are not UTF-8"),
            (left_out.short_documents, "are shorter than --min-length"),
            (left_out.long_documents, "are longer than --max-length-chars"),
            (left_out.bad_records, "are bad records (--on-bad-record error shows the first)"),
            (left_out.duplicate_documents, "are equal to earlier ones (--deduplicate)"),
            (left_out.outside_documents, "are outside of --start-character and --max-characters"),
        )
        if n
    ) or "there is no record"
    is_filtered = "--" in reasons
    remedy = "choose other values of these options" if is_filtered else "give files that have text"
    raise CorpusError(f"{_names(sources)}: no document for {name}: {reasons}; {remedy}")


def _names(sources: Sequence[Source]) -> str:
    return listed([source.name for source in sources])
