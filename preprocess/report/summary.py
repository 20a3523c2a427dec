"""Report what a run read and wrote: counts, rates, closing lines, and why it had to stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from bpe.errors import CorpusError
from preprocess.documents.batch import DocumentBatch
from preprocess.report.progress import Progress, duration, used_resources
from preprocess.sources import Source

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer


class Counts(Struct):
    """Number of documents, their bytes, and their tokens with the special ones around them."""

    documents: int = 0
    bytes: int = 0
    tokens: int = 0

    def add(self, documents: int, n_bytes: int, tokens: int) -> None:
        """Add other counts."""
        self.documents += documents
        self.bytes += n_bytes
        self.tokens += tokens

    def with_ratios(self) -> dict[str, Any]:
        """Describe the counts for stats.json."""
        return asdict(self) | {
            "bytes_per_token": _ratio(self.bytes, self.tokens),
            "tokens_per_document": _ratio(self.tokens, self.documents),
        }


class LeftOut(Struct):
    """Number of documents that were dropped, and of sequences that were replaced."""

    empty_documents: int = 0
    skipped_documents: int = 0
    replaced_sequences: int = 0

    def add(self, batch: DocumentBatch) -> None:
        """Add the counts of a batch."""
        self.restore(LeftOut(batch.n_empty, batch.n_skipped, batch.n_replaced))

    def restore(self, other: LeftOut) -> None:
        """Add other counts."""
        self.empty_documents += other.empty_documents
        self.skipped_documents += other.skipped_documents
        self.replaced_sequences += other.replaced_sequences


class Report(Struct):
    """Filled by the passes that encode."""

    outputs: dict[str, Counts] = {}  # by name
    sources: list[tuple[Source, Counts]] = []  # in order
    left_out: LeftOut = msgspec.field(default_factory=LeftOut)
    look_alikes: Counter[str] = msgspec.field(default_factory=Counter)  # text of special tokens

    def total(self) -> Counts:
        """Sum the counts of all sources."""
        total = Counts()
        for _, counts in self.sources:
            total.add(counts.documents, counts.bytes, counts.tokens)
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
        """Return the closing lines of a run whose `stats` are these."""
        lines = [f"{name}: {format_counts(counts)}" for name, counts in self.outputs.items()]
        lines += format_left_out(self.left_out)
        lines += [
            f"text that spells {token!r}, encoded as ordinary text: {_count(count, 'time')}"
            for token, count in self.look_alikes.items()
            if count
        ]
        if stats["encoding_seconds"]:
            lines.append(
                f"encoding: {_count(stats['files'], 'file')},"
                f" {stats['megabytes_per_second']:,.1f} MB/s,"
                f" {stats['tokens_per_second']:,.0f} tokens/s,"
                f" {stats['documents_per_second']:,.0f} documents/s"
            )
        return [*lines, format_times(progress, stats["seconds"])]


def run_stats(progress: Progress, left_out: LeftOut, seconds: float) -> dict[str, Any]:
    """Describe a run of any kind for stats.json."""
    return {
        "seconds": seconds,
        "peak_memory_bytes": progress.peak_memory,
        **used_resources(),
        **asdict(left_out),
        "stages": [stage.facts() for stage in progress.stages],
    }


def format_counts(counts: Counts) -> str:
    """Describe documents, tokens and their ratios."""
    return (
        f"{_count(counts.documents, 'document')}, {_count(counts.tokens, 'token')},"
        f" {_ratio(counts.bytes, counts.tokens):.2f} bytes per token,"
        f" {_ratio(counts.tokens, counts.documents):,.1f} tokens per document"
    )


def format_left_out(left_out: LeftOut) -> list[str]:
    """Describe in a line each kind of text that was not taken as it was."""
    kinds = [
        ("dropped", left_out.empty_documents, "empty document"),
        ("left out, for not being UTF-8", left_out.skipped_documents, "document"),
        ("replaced by U+FFFD, for not being UTF-8", left_out.replaced_sequences, "sequence"),
    ]
    return [f"{what}: {_count(number, noun)}" for what, number, noun in kinds if number]


def format_tokenizer(tokenizer: AnyTokenizer) -> str:
    """Describe the size and special tokens of a tokenizer."""
    special, merges = list(tokenizer.special_tokens), getattr(tokenizer, "merges", None)
    kind = tokenizer.pattern if merges is None else f"{len(merges):,} merges"
    return f"{tokenizer.vocab_size:,} tokens ({kind}), special: {listed(special, 5) or 'none'}"


def format_times(progress: Progress, seconds: float) -> str:
    """Report the time of all stages and the memory."""
    stages = ", ".join(f"{stage.name} {duration(stage.seconds)}" for stage in progress.stages)
    peak = f"peak memory {progress.peak_memory / 1e6:,.0f} MB"
    return f"time: {duration(seconds)} ({stages}), {peak}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows of text as columns: to the right, except the last."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([*(cell.rjust(w) for cell, w in zip(row[:-1], widths, strict=False)), row[-1]])
        for row in rows
    ]


def listed(names: Sequence[str], most: int = 3) -> str:
    """Join the first names by commas, and count the others."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


def out_of_time(progress: Progress, what_next: str) -> str:
    """Describe each stage: the share that is done, its rate, and the time that it takes in all."""
    stages = []
    for stage in progress.stages:
        done, seconds = stage.done - stage.done_before, stage.seconds - stage.seconds_before
        share = stage.done / stage.total if stage.total else 1.0
        texts = [f"{stage.name} {share:.1%}"]
        if stage.unit == "B" and seconds:
            texts.append(f"{done / 1e6 / seconds:,.1f} MB/s")
        if share < 1 and done and seconds:
            texts.append(f"all of it takes about {duration(stage.total * seconds / done)}")
        stages.append(", ".join(texts))
    return f"the time is over ({'; '.join(stages)}); {what_next} when the same command runs again"


def check_has_text(sources: Sequence[Source], name: str) -> None:
    """Raise CorpusError if sources have zero bytes altogether; `name` is their first output."""
    if not any(source.n_bytes for source in sources):
        raise CorpusError(
            f"{_names(sources)}: empty (0 bytes), so there is no text for {name}; give files that"
            " have some"
        )


def check_has_documents(
    name: str, sources: Sequence[Source], n_documents: int, n_everywhere: int, left_out: LeftOut
) -> None:
    """Raise CorpusError if an output has no documents, of `n_everywhere` in its sources."""
    if n_documents:
        return
    if n_everywhere:
        raise CorpusError(
            f"{name} would have no documents: of the {n_everywhere:,} in {_names(sources)} none"
            " falls to it; give validation text (--val), choose another --val-fraction (0: no"
            " validation file), or see whether --separator is what stands between the documents"
        )
    raise CorpusError(
        f"{_names(sources)}: no document for {name}: {left_out.empty_documents:,} are empty and"
        f" {left_out.skipped_documents:,} are not UTF-8; give files that have text"
    )


def _names(sources: Sequence[Source]) -> str:
    return listed([source.name for source in sources])
