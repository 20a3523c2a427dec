"""What a run did: counts of documents, bytes and tokens, rates, and the lines that end it.

Law: nothing here goes into a token file or a manifest. It is about the run: how long, how fast, how
much was left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from preprocess.documents import DocumentBatch
from preprocess.progress import Progress, Stage, duration, used_resources
from preprocess.sources import Source

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer


@dataclass
class Counts:
    """Documents, their bytes and their tokens, special tokens around them included."""

    documents: int = 0
    bytes: int = 0
    tokens: int = 0

    def add(self, documents: int, n_bytes: int, tokens: int = 0) -> None:
        """Count more."""
        self.documents += documents
        self.bytes += n_bytes
        self.tokens += tokens

    def with_ratios(self) -> dict[str, Any]:
        """For stats.json."""
        return asdict(self) | {
            "bytes_per_token": _ratio(self.bytes, self.tokens),
            "tokens_per_document": _ratio(self.tokens, self.documents),
        }


@dataclass
class LeftOut:
    """What did not become documents as it stood in the sources."""

    empty_documents: int = 0
    skipped_documents: int = 0
    replaced_sequences: int = 0

    def add(self, batch: DocumentBatch) -> None:
        """Count what a batch says."""
        self.empty_documents += batch.n_empty
        self.skipped_documents += batch.n_skipped
        self.replaced_sequences += batch.n_replaced

    def take_over(self, other: LeftOut) -> None:
        """Count what another has counted, too."""
        self.empty_documents += other.empty_documents
        self.skipped_documents += other.skipped_documents
        self.replaced_sequences += other.replaced_sequences


@dataclass
class Report:
    """Filled by the passes over the text.

    Attributes:
        outputs: Name of an output -> what is in it.
        sources: One entry for each source that was encoded, in order.
        left_out: What was dropped, skipped and replaced.
        look_alikes: Special token -> how often documents spell it.
    """

    outputs: dict[str, Counts] = field(default_factory=dict)
    sources: list[tuple[Source, Counts]] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)
    look_alikes: Counter[str] = field(default_factory=Counter)

    def total(self) -> Counts:
        """All sources together."""
        total = Counts()
        for _, counts in self.sources:
            total.add(counts.documents, counts.bytes, counts.tokens)
        return total

    def stats(self, progress: Progress, seconds: float) -> dict[str, Any]:
        """What stats.json says of the run, except its settings."""
        total = self.total()
        encoding = sum(stage.seconds for stage in _encoding(progress.stages))
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

    def lines(self, progress: Progress, seconds: float) -> list[str]:
        """The closing lines."""
        lines = [f"{name}: {in_words(counts)}" for name, counts in self.outputs.items()]
        lines += left_out_lines(self.left_out)
        lines += [
            f"text that spells {token!r}, encoded as ordinary text: {_count(count, 'time')}"
            for token, count in self.look_alikes.items()
            if count
        ]
        total = self.total()
        encoding = sum(stage.seconds for stage in _encoding(progress.stages))
        if encoding:
            lines.append(
                f"encoding: {_count(len(self.sources), 'file')},"
                f" {total.bytes / 1e6 / encoding:,.1f} MB/s,"
                f" {total.tokens / encoding:,.0f} tokens/s,"
                f" {total.documents / encoding:,.0f} documents/s"
            )
        return [*lines, time_line(progress, seconds)]


def run_stats(progress: Progress, left_out: LeftOut, seconds: float) -> dict[str, Any]:
    """What stats.json says of every kind of run."""
    return {
        "seconds": seconds,
        "peak_memory_bytes": progress.peak_memory,
        **used_resources(),
        **asdict(left_out),
        "stages": [stage.facts() for stage in progress.stages],
    }


def _encoding(stages: Iterable[Stage]) -> Iterable[Stage]:
    return (stage for stage in stages if stage.name.startswith("encoding"))


def in_words(counts: Counts) -> str:
    """Documents, tokens and their ratios."""
    return (
        f"{_count(counts.documents, 'document')}, {_count(counts.tokens, 'token')},"
        f" {_ratio(counts.bytes, counts.tokens):.2f} bytes per token,"
        f" {_ratio(counts.tokens, counts.documents):,.1f} tokens per document"
    )


def left_out_lines(left_out: LeftOut) -> list[str]:
    """One line for each kind of text that was not taken as it stood."""
    lines = []
    if left_out.empty_documents:
        lines.append(f"dropped: {_count(left_out.empty_documents, 'empty document')}")
    if left_out.skipped_documents:
        skipped = _count(left_out.skipped_documents, "document")
        lines.append(f"left out, for not being UTF-8: {skipped}")
    if left_out.replaced_sequences:
        replaced = _count(left_out.replaced_sequences, "sequence")
        lines.append(f"replaced by U+FFFD, for not being UTF-8: {replaced}")
    return lines


def tokenizer_in_words(tokenizer: AnyTokenizer) -> str:
    """Its size and special tokens."""
    special = list(tokenizer.special_tokens)
    kind = getattr(tokenizer, "merges", None)
    made = tokenizer.pattern if kind is None else f"{len(kind):,} merges"
    return f"{tokenizer.vocab_size:,} tokens ({made}), special: {listed(special, 5) or 'none'}"


def time_line(progress: Progress, seconds: float) -> str:
    """How long everything took, and how much memory."""
    stages = ", ".join(f"{stage.name} {duration(stage.seconds)}" for stage in progress.stages)
    peak = f"peak memory {progress.peak_memory / 1e6:,.0f} MB"
    return f"time: {duration(seconds)} ({stages}), {peak}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as columns: to the right, but for the last, which is left as it is."""
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
