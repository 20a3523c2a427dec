"""Encode the text into token files, one or two between which the documents are divided.

Workers see units, the calling thread sees their results in order; so what is appended, counted and
digested is in the order of the documents, and one document is never in two outputs.

A `.bin` is, for each document in order: the begin-of-text id if one is asked for, `encode_ordinary`
of the document, the end-of-text id. Text that spells a special token is ordinary text; how often
that occurred is counted.

Entries of the journal say how far the pass is; a resumed run continues after the last one:

    encoded    ids up to a place in the sources, which lie in the streams of token files
    finished   all of a pass: its manifests lie beside

A place is the number of a source and a place in it, as its units say it (`WorkUnit.after`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from bpe.errors import TokenbinError
from bpe.parallel import run_in_order
from preprocess.documents import Bytes, DocumentBatch, LookAlikes
from preprocess.inputs import end_of_text_token
from preprocess.journal import Entry, Journal, JournalError, understanding
from preprocess.limits import check_has_documents, out_of_time
from preprocess.progress import OutOfTimeError, Progress, Stage
from preprocess.report import Counts, LeftOut, Report
from preprocess.reused_memory import ReusedMemory
from preprocess.settings.schema import EncodeSettings, ShardSettings, TrainSettings
from preprocess.sources import Place, Source, WorkUnit, digest_of
from preprocess.storage import Storage, Stream
from preprocess.token_file import (
    Manifest,
    Shard,
    StreamState,
    TokenFileWriter,
    saved_manifest,
    token_dtype,
)
from preprocess.units import place_after, run_numbered, run_on_threads, units_after

if TYPE_CHECKING:
    from bpe.text_tokenizer import AnyTokenizer

# So many bytes of text before the end the journal begins to have an entry after every few of
# them, if the disk is ready.
_NEAR_THE_END, _FEW_BYTES = 1 << 25, 1 << 22


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
        end = end_of_text_token(settings, tokenizer)
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


@dataclass(frozen=True)
class Part:
    """What a unit gives to one output: ids, the ends of documents among them, bytes of text."""

    ids: NDArray[np.unsignedinteger[Any]]
    document_ends: NDArray[np.int64]
    n_bytes: int


@dataclass(frozen=True)
class _Encoded:
    """What a unit gives to each output, and what is counted."""

    batch: DocumentBatch
    parts: list[Part]
    look_alikes: NDArray[np.int64]


def encode_into(
    number: int,
    sources: Sequence[Source],
    names: Mapping[str, str],
    tokenizer: AnyTokenizer,
    ids: SpecialIds,
    workers: int,
    storage: Storage,
    journal: Journal,
    report: Report,
    progress: Progress,
    shards: ShardSettings,
) -> dict[str, Manifest]:
    """Fill one token file, or two between which the documents are divided, and finish them.

    Args:
        number: The number of the pass among those of the run.
        sources: What is encoded, in order.
        names: Name of an output -> NAME of its files; with two, the second gets the validation
            documents.
        tokenizer: Encodes.
        ids: What stands around every document.
        workers: Number of threads.
        storage: Where the token files grow.
        journal: Takes in how far that is, and knows how far an earlier run came.
        report: Takes in what was counted.
        progress: Shows what goes on.
        shards: How the token files are divided.

    Returns:
        Name of an output -> its manifest.

    Raises:
        CorpusError: Text cannot be read, or an output has no documents.
        OutputError: A token file cannot be written.
        JournalError: What an earlier run left is damaged.
        OutOfTimeError: The time that the run may take is over.
    """
    with understanding():
        state = _EncodedSoFar.of(journal, number)
    if state.finished:
        with _encoding_stage(sources, list(names), state, progress):
            report.look_alikes.update(dict.fromkeys(_look_alikes(sources, tokenizer).tokens, 0))
            state.tell(sources, names, report)
        return {name: saved_manifest(storage, names[name]) for name in names}
    writers: dict[str, TokenFileWriter] = {}
    try:
        for name, file_name in names.items():
            writers[name] = TokenFileWriter(
                storage,
                file_name,
                vocab_size=tokenizer.vocab_size,
                states=state.streams or None,
                last_end=state.last_ends.get(name, 0),
                shard_tokens=shards.shard_tokens,
                split_documents=shards.split_documents,
                shards=state.shards.get(name, ()),
            )
        sources_of = encode_units(
            sources, writers, tokenizer, ids, workers, report, progress, state, journal
        )
        n_documents = sum(report.outputs[name].documents for name in writers)
        manifests = {}
        for name, writer in writers.items():
            counts = report.outputs[name]
            check_has_documents(name, sources, counts.documents, n_documents, report.left_out)
            manifests[name] = writer.finish(
                end_of_text_id=ids.end_of_text,
                begin_of_text_id=ids.begin_of_text,
                n_bytes=counts.bytes,
                tokenizer_fingerprint=tokenizer.fingerprint,
                pattern=tokenizer.pattern,
                unicode_version=tokenizer.unicode_version,
                sources=sources_of[name],
            )
    finally:
        # The journal's thread may be at work with their streams.
        journal.rest()
        for writer in writers.values():
            writer.close()
    journal.append({"kind": "finished", "number": number})
    return manifests


@dataclass
class _EncodedSoFar:
    """How far a pass is: what the entries of the kind "encoded" say of it, one upon the other.

    Attributes:
        number: The number of the pass.
        source: The number of the source.
        after: The place in it; None: its start.
        streams: Name of a stream -> how long it is.
        last_ends: Name of an output -> the end of its last document, in its last shard.
        shards: Name of an output -> its shards that are done.
        outputs: Name of an output -> what is in it.
        sources: Number of a source -> what was read of it, the xxh3_128 of that, and documents and
            tokens of it in each output.
        left_out: What was dropped up to here by all passes.
        look_alikes: Special token -> how often it was spelled, in all passes.
        bytes: Bytes of the sources.
        seconds: How long it took.
        finished: Whether the pass is over.
    """

    number: int
    source: int = 0
    after: Place | None = None
    streams: dict[str, StreamState] = field(default_factory=dict)
    last_ends: dict[str, int] = field(default_factory=dict)
    shards: dict[str, list[Shard]] = field(default_factory=dict)
    outputs: dict[str, Counts] = field(default_factory=dict)
    sources: dict[int, tuple[Counts, str, list[list[int]]]] = field(default_factory=dict)
    left_out: LeftOut | None = None
    look_alikes: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    seconds: float = 0.0
    finished: bool = False

    @classmethod
    def of(cls, journal: Journal, number: int) -> _EncodedSoFar:
        """What the journal says of a pass."""
        state = cls(number)
        blocks: dict[str, list[str]] = {}
        for entry in journal.entries:
            if entry["kind"] == "finished" and entry["number"] == number:
                state.finished = True
            if entry["kind"] != "encoded" or entry["number"] != number:
                continue
            for name, (n_bytes, more, last) in entry["streams"].items():
                blocks.setdefault(name, []).extend(more)
                state.streams[name] = StreamState(n_bytes, (), last)
            for name, new in entry["shards"].items():
                made = [
                    Shard(tokens, documents, tuple(of_bin), tuple(of_docs))
                    for tokens, documents, of_bin, of_docs in new
                ]
                state.shards.setdefault(name, []).extend(made)
            for index, (*read, digest, in_outputs) in entry["sources"].items():
                state.sources[int(index)] = (Counts(*read), digest, in_outputs)
            state.source, state.after = entry["source"], entry["after"]
            state.last_ends = entry["last_ends"]
            state.outputs = {name: Counts(*each) for name, each in entry["outputs"].items()}
            state.left_out = LeftOut(*entry["left_out"])
            state.look_alikes = entry["look_alikes"]
            state.bytes, state.seconds = entry["bytes"], entry["seconds"]
        for name, stream in state.streams.items():
            state.streams[name] = StreamState(stream.n_bytes, tuple(blocks[name]), stream.last)
        return state

    def tell(
        self, sources: Sequence[Source], outputs: Iterable[str], report: Report
    ) -> list[Counts]:
        """Put into a report what it would say had it been there; returns the counts of sources."""
        for name in outputs:
            report.outputs[name] = self.outputs.get(name, Counts())
        nothing = {index: Counts() for index in range(len(sources))}
        counts = list((nothing | {i: each[0] for i, each in self.sources.items()}).values())
        report.sources += zip(sources, counts, strict=True)
        if self.left_out is not None:
            report.left_out = self.left_out
        report.look_alikes.update(
            {token: n - report.look_alikes[token] for token, n in self.look_alikes.items()}
        )
        return counts


def _encoding_stage(
    sources: Sequence[Source], outputs: Sequence[str], state: _EncodedSoFar, progress: Progress
) -> AbstractContextManager[Stage]:
    title = "encoding " + " and ".join(outputs) if outputs else "encoding"
    n_bytes = sum(source.n_bytes for source in sources)
    return progress.stage(title, n_bytes, done_before=state.bytes, seconds_before=state.seconds)


def encode_units(
    sources: Sequence[Source],
    writers: Mapping[str, TokenFileWriter],
    tokenizer: AnyTokenizer,
    ids: SpecialIds,
    workers: int,
    report: Report,
    progress: Progress,
    state: _EncodedSoFar | None = None,
    journal: Journal | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """Encode every unit, append its ids, count.

    Returns:
        Name of an output -> what its manifest says of each source.
    """
    look_alikes = _look_alikes(sources, tokenizer)
    report.look_alikes.update(dict.fromkeys(look_alikes.tokens, 0))
    state = state or _EncodedSoFar(0)
    counts = state.tell(sources, writers, report)
    outputs = [report.outputs[name] for name in writers]
    # Documents and tokens of each source in each output.
    in_outputs = [
        state.sources[index][2] if index in state.sources else [[0, 0] for _ in writers]
        for index in range(len(sources))
    ]
    digests = _SourceDigests(sources, state)
    # Sources of which the journal does not know all yet.
    told = state.source

    def entry() -> Entry:
        nonlocal told
        streams = {
            name: each for writer in writers.values() for name, each in writer.state().items()
        }
        touched = range(told, min(state.source + 1, len(sources)))
        told = state.source
        return {
            "kind": "encoded",
            "number": state.number,
            "source": state.source,
            "after": state.after,
            "streams": {name: astuple(each) for name, each in streams.items()},
            "shards": {
                name: [astuple(shard) for shard in writer.new_shards()]
                for name, writer in writers.items()
            },
            "last_ends": {name: writer.last_end for name, writer in writers.items()},
            "outputs": {name: astuple(report.outputs[name]) for name in writers},
            "sources": {i: (*astuple(counts[i]), digests.of(i), in_outputs[i]) for i in touched},
            "left_out": astuple(report.left_out),
            "look_alikes": {token: n for token, n in report.look_alikes.items() if n},
            "bytes": stage.done,
            "seconds": stage.seconds,
        }

    def streams() -> list[Stream]:
        return [stream for writer in writers.values() for stream in writer.streams]

    make_work = _encoding(tokenizer, ids, look_alikes)
    units = units_after(sources, state.source, state.after)
    told_of = state.bytes
    with (
        _encoding_stage(sources, list(writers), state, progress) as stage,
        closing(run_numbered(units, make_work, workers, run_on_threads)) as results,
    ):
        for index, unit, encoded in results:
            # The last unit of a file is followed by no other read of it.
            unit.check_unchanged()
            content = encoded.batch.content
            digests.update(index, unit.content() if content is None else content)
            del content
            report.left_out.add(encoded.batch)
            report.look_alikes.update(
                dict(zip(look_alikes.tokens, encoded.look_alikes.tolist(), strict=True))
            )
            for part in encoded.parts:
                counts[index].add(len(part.document_ends), part.n_bytes, len(part.ids))
            for output, writer, part, of_source in zip(
                outputs, writers.values(), encoded.parts, in_outputs[index], strict=False
            ):
                writer.append(part.ids, part.document_ends)
                output.add(len(part.document_ends), part.n_bytes, len(part.ids))
                of_source[0] += len(part.document_ends)
                of_source[1] += len(part.ids)
            stage.advance(unit.n_bytes)
            state.source, state.after = place_after(index, unit)
            is_near = stage.total - stage.done < _NEAR_THE_END
            if journal is not None and journal.due(is_near and stage.done - told_of >= _FEW_BYTES):
                journal.commit(entry(), streams())
                told_of = stage.done
            is_all = state.source == len(sources)
            if journal is not None and not is_all and progress.out_of_time():
                journal.append(entry(), streams())
                raise OutOfTimeError(out_of_time(progress, "encoding goes on there"))
        if journal is not None:
            journal.append(entry(), streams())
    return {
        name: [
            {
                "name": source.name,
                "bytes": source.n_bytes,
                "digest": digests.of(index),
                "documents": in_outputs[index][number][0],
                "tokens": in_outputs[index][number][1],
            }
            for index, source in enumerate(sources)
        ]
        for number, name in enumerate(writers)
    }


def _encoding(
    tokenizer: AnyTokenizer, ids: SpecialIds, look_alikes: LookAlikes
) -> Callable[[], Callable[[WorkUnit], _Encoded]]:
    """What makes the work of encoding a unit."""

    def make_work() -> Callable[[WorkUnit], _Encoded]:
        encoder = tokenizer.new_encoder(token_dtype(tokenizer.vocab_size))

        def work(unit: WorkUnit) -> _Encoded:
            batch = unit.read(memory.array)
            encoded, offsets = encoder.encode(
                batch.buffer,
                batch.bounds,
                prefix_id=-1 if ids.begin_of_text is None else ids.begin_of_text,
                suffix_id=ids.end_of_text,
                continues=batch.continues,
                continued=batch.continued,
                gaps=True,
                memory=memory.array,
            )
            parts = _divided(batch, encoded, offsets)
            counts = look_alikes.count(batch)
            return _Encoded(replace(batch.without_text(), content=batch.content), parts, counts)

        return work

    # For text and ids of units that are under way; of what long ones have room for, most stays
    # unused.
    memory = ReusedMemory(limit=256, largest=1 << 26)
    # The encoder's tables are made here, once, and not by several threads at the same time.
    tokenizer.new_encoder()
    return make_work


def encoded_again(
    source: Source, tokenizer: AnyTokenizer, ids: SpecialIds, workers: int
) -> Generator[list[Part], None, None]:
    """What a source gives to each output, unit by unit, for a comparison with what is there.

    Raises:
        CorpusError: Text cannot be read.
    """
    make_work = _encoding(tokenizer, ids, LookAlikes(()))
    with closing(run_in_order(source.units(), make_work, workers)) as results:
        for encoded in results:
            yield encoded.parts


def _look_alikes(sources: Sequence[Source], tokenizer: AnyTokenizer) -> LookAlikes:
    separators = {source.separator for source in sources}
    separator = separators.pop() if len(separators) == 1 else b""
    return LookAlikes(tokenizer.special_tokens, separator)


class _SourceDigests:
    """The xxh3_128 of each source, of as much of it as was read.

    What an earlier run read of the source that it stopped in is read again: that is fast, and shows
    whether it is still the same.
    """

    def __init__(self, sources: Sequence[Source], state: _EncodedSoFar) -> None:
        self._of = {index: digest for index, (_, digest, _) in state.sources.items()}
        self._index = state.source
        self._digest = xxhash.xxh3_128()
        if state.after is None:
            return
        source = sources[state.source]
        self._digest = digest_of(source, state.after)
        if self._digest.hexdigest() != self._of[state.source]:
            raise JournalError(
                f"{source.name}: what was read of it before the interruption is not what stands"
                " there now, though its size and time are the same; start anew (--overwrite)"
            )

    def update(self, index: int, content: Bytes) -> None:
        """Take in the next bytes of a source; sources come in order."""
        if index != self._index:
            self._of[self._index] = self._digest.hexdigest()
            self._index, self._digest = index, xxhash.xxh3_128()
        self._digest.update(content.data)

    def of(self, index: int) -> str:
        """The digest of what was read of a source so far."""
        if index == self._index:
            return str(self._digest.hexdigest())
        return self._of.get(index, xxhash.xxh3_128_hexdigest(b""))


def _divided(
    batch: DocumentBatch, ids: NDArray[np.unsignedinteger[Any]], offsets: NDArray[np.int64]
) -> list[Part]:
    """What each output gets of a batch: [all], or [train, validation] if documents are divided."""
    n_ended = batch.n_ended
    everything = Part(ids, offsets[1 : n_ended + 1], batch.n_bytes)
    if batch.in_validation is None:
        return [everything]
    nothing = Part(ids[:0], offsets[:0], 0)
    if not batch.in_validation.any():
        return [everything, nothing]
    if batch.in_validation.all():
        return [nothing, everything]
    n_ids, n_bytes = np.diff(offsets), batch.sizes
    id_in_validation = np.repeat(batch.in_validation, n_ids)
    parts = []
    for chosen, chosen_ids in (
        (~batch.in_validation, ~id_in_validation),
        (batch.in_validation, id_in_validation),
    ):
        ends = np.cumsum(n_ids[chosen])
        parts.append(
            Part(ids[chosen_ids], ends[: int(chosen[:n_ended].sum())], int(n_bytes[chosen].sum()))
        )
    return parts
