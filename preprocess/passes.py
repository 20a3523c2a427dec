"""One pass over the text: counting pre-tokens to train on, or encoding into token files.

Law: workers see units, the main thread sees their results in order; so what is appended, counted
and digested is in the order of the documents, and one document is never in two outputs.

A `.bin` is, for each document in order: the begin-of-text id if one is asked for, `encode_ordinary`
of the document, the end-of-text id. Text that spells a special token is ordinary text; how often
that occurred is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from bpe.errors import TokenbinError
from preprocess.config import END_OF_TEXT, EncodeSettings, TrainSettings
from preprocess.documents import CorpusError, DocumentBatch, LookAlikes
from preprocess.engine import run_in_order
from preprocess.progress import Progress
from preprocess.report import Counts, LeftOut, Report
from preprocess.sources import Source, WorkUnit
from preprocess.token_file import Manifest, TokenFileWriter

if TYPE_CHECKING:
    from bpe import PretokenCounts, Tokenizer
    from bpe.text_tokenizer import AnyTokenizer

Result = TypeVar("Result")


class SpecialTokenError(TokenbinError, ValueError):
    """A tokenizer lacks a special token that is needed."""


@dataclass(frozen=True)
class SpecialIds:
    """The ids around every document.

    Attributes:
        end_of_text: Behind it; -1 for none.
        begin_of_text: Before it; None for none.
    """

    end_of_text: int
    begin_of_text: int | None

    @classmethod
    def of(cls, tokenizer: AnyTokenizer, settings: TrainSettings | EncodeSettings) -> SpecialIds:
        """Those that the user asks for, else the tokenizer's own end-of-text token.

        Raises:
            SpecialTokenError: The tokenizer lacks one of them.
        """
        there = tokenizer.special_tokens
        end = settings.end_of_text or tokenizer.eos_token or END_OF_TEXT
        for token, option in ((end, "--end-of-text"), (settings.begin_of_text, "--begin-of-text")):
            if token is not None and token not in there:
                raise SpecialTokenError(
                    f"the tokenizer has no special token {token!r}; choose one that it has"
                    f" ({option}): {', '.join(map(repr, there)) or 'it has none at all'}"
                )
        if there[end] in tokenizer.encode_ordinary(end):
            raise SpecialTokenError(
                f"{end!r} is an ordinary token of this tokenizer as well, so a document that spells"
                " it would end there; choose another special token (--end-of-text):"
                f" {', '.join(map(repr, there))}"
            )
        begin = settings.begin_of_text
        return cls(there[end], None if begin is None else there[begin])


def train_tokenizer(
    sources: Sequence[Source], settings: TrainSettings, progress: Progress, left_out: LeftOut
) -> Tokenizer:
    """Count the pre-tokens of the train documents, then merge."""
    from bpe import Tokenizer, train_from_counts

    counts = count_pretokens(sources, settings, progress, left_out)
    n_merges = settings.vocab_size - 256 - len(settings.all_special_tokens)
    with progress.stage("merging", n_merges, "merges") as stage:
        trained = train_from_counts(
            counts,
            settings.vocab_size,
            special_tokens=settings.all_special_tokens,
            tie_break=settings.tie_break,
            min_frequency=settings.min_frequency,
            progress=lambda done, total: stage.advance(done - stage.done),
        )
    return Tokenizer.from_vocabulary(
        trained.vocabulary,
        pattern=trained.pattern,
        tie_break=trained.tie_break,
        eos_token=settings.end_of_text or END_OF_TEXT,
    )


def count_pretokens(
    sources: Sequence[Source], settings: TrainSettings, progress: Progress, left_out: LeftOut
) -> PretokenCounts:
    """The pre-tokens of the documents that are not validation, and how often each occurs."""
    from bpe import PretokenCounts

    of_workers: list[PretokenCounts] = []

    def make_work() -> Callable[[WorkUnit], DocumentBatch]:
        counts = PretokenCounts(settings.pattern, settings.all_special_tokens)
        of_workers.append(counts)

        def work(unit: WorkUnit) -> DocumentBatch:
            batch = unit.read()
            chosen = batch if batch.in_validation is None else batch.select(~batch.in_validation)
            counts.add(chosen.buffer, chosen.offsets)
            return batch.without_text()

        return work

    n_documents = n_validation = 0
    splits = False
    with _results(sources, make_work, settings.workers, "counting", progress) as results:
        for unit, batch in results:
            n_documents += batch.n_ended
            if batch.in_validation is not None:
                splits = True
                n_validation += int(batch.in_validation[: batch.n_ended].sum())
            left_out.add(batch)
            unit.content()  # refuses a source that changed meanwhile
    _refuse_empty_output("train", sources, n_documents - n_validation, n_documents, left_out)
    if splits:
        _refuse_empty_output("val", sources, n_validation, n_documents, left_out)
    total = of_workers.pop()
    while of_workers:
        total.merge(of_workers.pop())
    return total


@dataclass(frozen=True)
class _Part:
    """What a unit gives to one output: ids, the ends of documents among them, bytes of text."""

    ids: NDArray[np.uint32]
    document_ends: NDArray[np.int64]
    n_bytes: int


@dataclass(frozen=True)
class _Encoded:
    """What a unit gives to each output, and what is counted."""

    batch: DocumentBatch
    parts: list[_Part]
    look_alikes: NDArray[np.int64]


def encode_into(
    sources: Sequence[Source],
    writers: dict[str, TokenFileWriter],
    tokenizer: AnyTokenizer,
    ids: SpecialIds,
    workers: int,
    report: Report,
    progress: Progress,
) -> dict[str, Manifest]:
    """Fill one token file, or two between which the documents are divided, and finish them.

    Args:
        sources: What is encoded, in order.
        writers: Name of an output -> its writer; with two, the second gets the validation
            documents.
        tokenizer: Encodes.
        ids: What stands around every document.
        workers: Number of threads.
        report: Takes in what was counted.
        progress: Shows what goes on.

    Returns:
        Name of an output -> its manifest.

    Raises:
        CorpusError: Text cannot be read, or an output has no documents.
        TokenFileError: A token file cannot be written.
    """
    digests = encode_units(
        sources, list(writers.items()), tokenizer, ids, workers, report, progress
    )
    n_documents = sum(report.outputs[name].documents for name in writers)
    manifests = {}
    for name, writer in writers.items():
        counts = report.outputs[name]
        _refuse_empty_output(name, sources, counts.documents, n_documents, report.left_out)
        manifests[name] = writer.finish(
            end_of_text_id=ids.end_of_text,
            begin_of_text_id=ids.begin_of_text,
            n_bytes=counts.bytes,
            tokenizer_fingerprint=tokenizer.fingerprint,
            pattern=tokenizer.pattern,
            unicode_version=tokenizer.unicode_version,
            sources=digests,
        )
    return manifests


def encode_units(
    sources: Sequence[Source],
    writers: Sequence[tuple[str, TokenFileWriter]],
    tokenizer: AnyTokenizer,
    ids: SpecialIds,
    workers: int,
    report: Report,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Encode every unit, append its ids, count; returns name, size and digest of each source."""
    separators = {source.separator for source in sources}
    separator = separators.pop() if len(separators) == 1 else b""
    look_alikes = LookAlikes(tokenizer.special_tokens, separator)
    outputs = [report.outputs.setdefault(name, Counts()) for name, _ in writers]
    digests = [xxhash.xxh3_128() for _ in sources]
    counts = [Counts() for _ in sources]
    index_of = {id(source): index for index, source in enumerate(sources)}
    report.sources += zip(sources, counts, strict=True)
    report.look_alikes.update(dict.fromkeys(look_alikes.tokens, 0))

    def make_work() -> Callable[[WorkUnit], _Encoded]:
        encoder = tokenizer.new_encoder()

        def work(unit: WorkUnit) -> _Encoded:
            batch = unit.read()
            encoded, offsets = encoder.encode(
                batch.buffer,
                batch.offsets,
                prefix_id=-1 if ids.begin_of_text is None else ids.begin_of_text,
                suffix_id=ids.end_of_text,
                continues=batch.continues,
                continued=batch.continued,
            )
            parts = _divided(batch, encoded, offsets)
            return _Encoded(batch.without_text(), parts, look_alikes.count(batch))

        return work

    # The encoder's tables are made here, once, and not by several threads at the same time.
    tokenizer.new_encoder()
    title = "encoding " + " and ".join(name for name, _ in writers) if writers else "encoding"
    with _results(sources, make_work, workers, title, progress) as results:
        for unit, encoded in results:
            index = index_of[id(unit.source)]
            digests[index].update(unit.content().data)
            report.left_out.add(encoded.batch)
            report.look_alikes.update(
                dict(zip(look_alikes.tokens, encoded.look_alikes.tolist(), strict=True))
            )
            for part in encoded.parts:
                counts[index].add(len(part.document_ends), part.n_bytes, len(part.ids))
            for output, (_, writer), part in zip(outputs, writers, encoded.parts, strict=False):
                writer.append(part.ids, part.document_ends)
                output.add(len(part.document_ends), part.n_bytes, len(part.ids))
    return [
        {"name": source.name, "bytes": source.n_bytes, "digest": digest.hexdigest()}
        for source, digest in zip(sources, digests, strict=True)
    ]


def _divided(
    batch: DocumentBatch, ids: NDArray[np.uint32], offsets: NDArray[np.int64]
) -> list[_Part]:
    """What each output gets of a batch: [all], or [train, validation] if documents are divided."""
    n_ended = batch.n_ended
    everything = _Part(ids, offsets[1 : n_ended + 1], len(batch.buffer))
    if batch.in_validation is None:
        return [everything]
    nothing = _Part(ids[:0], offsets[:0], 0)
    if not batch.in_validation.any():
        return [everything, nothing]
    if batch.in_validation.all():
        return [nothing, everything]
    n_ids, n_bytes = np.diff(offsets), np.diff(batch.offsets)
    id_in_validation = np.repeat(batch.in_validation, n_ids)
    parts = []
    for chosen, chosen_ids in (
        (~batch.in_validation, ~id_in_validation),
        (batch.in_validation, id_in_validation),
    ):
        ends = np.cumsum(n_ids[chosen])
        parts.append(
            _Part(ids[chosen_ids], ends[: int(chosen[:n_ended].sum())], int(n_bytes[chosen].sum()))
        )
    return parts


@contextmanager
def _results(
    sources: Sequence[Source],
    make_work: Callable[[], Callable[[WorkUnit], Result]],
    workers: int,
    title: str,
    progress: Progress,
) -> Iterator[Iterator[tuple[WorkUnit, Result]]]:
    """Every unit of the sources with what work made of it, in order; shown as a stage."""

    def make_with_unit() -> Callable[[WorkUnit], tuple[WorkUnit, Result]]:
        work = make_work()
        return lambda unit: (unit, work(unit))

    def advancing() -> Iterator[tuple[WorkUnit, Result]]:
        for unit, result in results:
            yield unit, result
            stage.advance(unit.n_bytes)

    units = (unit for source in sources for unit in source.units())
    n_bytes = sum(source.n_bytes for source in sources)
    with (
        progress.stage(title, n_bytes) as stage,
        closing(run_in_order(units, make_with_unit, workers)) as results,
    ):
        yield advancing()


def refuse_no_text(sources: Sequence[Source], name: str) -> None:
    """Refuse sources of zero bytes altogether."""
    if not any(source.n_bytes for source in sources):
        raise CorpusError(
            f"{_listed(sources)}: empty (0 bytes), so there is no text for {name}; give files that"
            " have some"
        )


def _refuse_empty_output(
    name: str, sources: Sequence[Source], n_documents: int, n_everywhere: int, left_out: LeftOut
) -> None:
    """Refuse an output without documents, and say why it has none.

    Args:
        name: The output.
        sources: What it is made of.
        n_documents: Its documents.
        n_everywhere: Documents of the sources, whichever output they go to.
        left_out: What was dropped or skipped so far.
    """
    if n_documents:
        return
    if n_everywhere:
        raise CorpusError(
            f"{name} would have no documents: of the {n_everywhere:,} in {_listed(sources)} none"
            " falls to it; give validation text (--val), choose another --val-fraction (0: no"
            " validation file), or see whether --separator is what stands between the documents"
        )
    raise CorpusError(
        f"{_listed(sources)}: no document for {name}: {left_out.empty_documents:,} are empty and"
        f" {left_out.skipped_documents:,} are not UTF-8; give files that have text"
    )


def _listed(sources: Sequence[Source]) -> str:
    names = ", ".join(source.name for source in sources[:3])
    return f"{names} and {len(sources) - 3:,} more" if len(sources) > 3 else names
