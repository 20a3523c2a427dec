"""Count the pre-tokens of the train documents, and train a tokenizer on the counts.

Workers count units; the calling thread consumes their results in order. After an interruption, the
pass resumes from the last checkpoint in the journal (`CountCheckpoint`).

Memory is bounded: when tables are full, they are written to a file and emptied. Files are divided
by a hash of the pre-token: equal pre-tokens are in the same part of every file, and merging files
holds one part of all of them in memory at a time. The merged counts equal those of one table.

    a part    int64[n] sizes, int64[n] counts, uint8[n_bytes] pre-tokens
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash
from msgspec import Struct, field
from numpy.typing import NDArray

from preprocess.documents.batch import DocumentBatch
from preprocess.options import TrainSettings
from preprocess.report.progress import OutOfTimeError, Progress, Stage
from preprocess.report.summary import LeftOut, check_has_documents, out_of_time
from preprocess.reused_memory import ReusedMemory
from preprocess.run.journal import Journal, JournalError, journal_errors
from preprocess.run.memory_limit import bytes_for_tables, check_merging
from preprocess.run.record import end_of_text_token
from preprocess.run.units import Item, Reached, read_units, run_units
from preprocess.sources import Source
from preprocess.storage import Storage

if TYPE_CHECKING:
    from bpe import PretokenCounts, Tokenizer
    from bpe.train.counts import Arrays, FrozenCounts

N_PARTS = 32
_WORK_PER_SAVING = 40  # ratio of counting to saving counts: 2.5 % of the time
_PREFIX = "counts-"  # of file names

# (split pattern, special tokens), as of `PretokenCounts`
Like = tuple[str, Sequence[str]]


def train_tokenizer(
    sources: Sequence[Source], settings: TrainSettings, journal: Journal, progress: Progress,
    left_out: LeftOut, parts: Iterable[CountedPart] | None = None,
) -> Tokenizer:
    """Count the pre-tokens of all documents except validation, and learn merges from the counts.

    Counts are saved in the storage of the journal; dropped documents are added to `left_out`. The
    counts of `parts` of the text, if given, are added up instead. If the size of the vocabulary is
    to be chosen, it is the largest one; see `preprocess.run.vocab_curve.choose_size`.

    Raises:
        CorpusError: Text cannot be read, or an output would have no documents.
        JournalError: The files of an earlier run are damaged.
        OutOfTimeError: The time limit of the run is reached.
    """
    from bpe import Tokenizer, train_from_counts

    counting = CountPass(sources, settings, journal, progress)
    counts = counting.run() if parts is None else counting.add_up(parts)
    left_out.merge(counting.at.left_out)
    check_merging(settings.memory_limit, len(counts.buffer), len(counts.counts))
    extend: Tokenizer | None = getattr(settings, "extend", None)
    n_merges = settings.largest_size - 256 - len(settings.all_special_tokens)
    if extend is not None:
        n_merges = settings.largest_size - extend.vocab_size
    with progress.stage("merging", n_merges, "merges") as stage:

        def advance(done: int, total: int) -> None:
            stage.advance(done - stage.done)
            if done < total and progress.out_of_time():
                raise OutOfTimeError(out_of_time(progress, "merging restarts from saved counts"))

        trained = train_from_counts(
            counts, settings.largest_size, special_tokens=settings.all_special_tokens,
            tie_break=settings.tie_break, min_frequency=settings.min_frequency,
            workers=settings.workers, progress=advance, extend=extend,
        )
    if extend is not None:
        return trained
    return Tokenizer.from_vocabulary(
        trained.vocabulary, pattern=trained.pattern, tie_break=trained.tie_break,
        eos_token=end_of_text_token(settings, None), bos_token=settings.begin_of_text,
    )


# --- files of counts ---


class CountsFile(Struct, frozen=True):
    """Entry of a file of counts in the journal; parts are (n_pretokens, their bytes, xxh3_128)."""

    file: str
    parts: tuple[tuple[int, int, str], ...]


def write_counts(storage: Storage, file: str, counts: Iterable[Arrays]) -> CountsFile:
    """Write counts to one file, added up only when they are read."""
    divided, parts = [_by_part(*each) for each in counts], []
    with closing(storage.stream(file)) as stream:
        for pieces in zip(*divided, strict=True):
            buffers, offsets, numbers = zip(*pieces, strict=True)
            of_pretokens = [each.astype("<i8") for each in (*map(np.diff, offsets), *numbers)]
            content = b"".join(map(bytes, [*of_pretokens, *buffers]))
            n_pretokens = sum(map(len, numbers))
            n_bytes = len(content) - 16 * n_pretokens
            parts.append((n_pretokens, n_bytes, xxhash.xxh3_128_hexdigest(content)))
            stream.append(memoryview(content))
        stream.sync()
    return CountsFile(file, tuple(parts))


def _by_part(
    buffer: NDArray[np.uint8], offsets: NDArray[np.int64], counts: NDArray[np.int64]
) -> list[Arrays]:
    """Divide pre-tokens by their length and their first, middle and last byte."""
    starts, sizes = offsets[:-1], np.diff(offsets)
    part = sizes.astype(np.uint8) * np.uint8(131)
    for places, factor in ((starts, 31), (starts + sizes // 2, 17), (starts + sizes - 1, 7)):
        part += buffer[places] * np.uint8(factor)
    part %= N_PARTS
    found = []
    for number in range(N_PARTS):
        chosen = np.flatnonzero(part == number)
        places = _offsets(sizes[chosen])
        bytes_of = np.repeat(starts[chosen] - places[:-1], sizes[chosen])
        bytes_of += np.arange(len(bytes_of))
        found.append((buffer[bytes_of], places, counts[chosen]))
    return found


def _offsets(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[n + 1], the running sums of int64[n]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def merge_counts(storage: Storage, files: Sequence[CountsFile], like: Like) -> FrozenCounts:
    """Add up the counts of files; raise JournalError if one is damaged."""
    from bpe.train.counts import FrozenCounts, PretokenCounts

    places, merged = [0] * len(files), []
    for number in range(N_PARTS):
        table = PretokenCounts(*like)
        for index, each in enumerate(files):
            n, n_bytes, digest = each.parts[number]
            stop = places[index] + 16 * n + n_bytes
            content = storage.read(each.file, places[index], stop)
            places[index] = stop
            if xxhash.xxh3_128_hexdigest(content) != digest:
                raise JournalError(
                    f"{each.file}: saved counts are damaged or missing; start over (--overwrite)"
                )
            with journal_errors(each.file):
                sizes, counts = np.frombuffer(content, "<i8", 2 * n).astype(np.int64).reshape(2, n)
                buffer = np.frombuffer(content, np.uint8, offset=16 * n)
                table.merge(FrozenCounts(*like, buffer, _offsets(sizes), counts))
        merged.append(table.arrays())
    buffers, offsets, counts_of = zip(*merged, strict=True)
    sizes = np.concatenate([np.diff(each) for each in offsets])
    return FrozenCounts(*like, np.concatenate(buffers), _offsets(sizes), np.concatenate(counts_of))


# --- the pass ---


class CountCheckpoint(Reached, kw_only=True):
    """Checkpoint of counting: a position in the sources, and the totals before it."""

    is_all: bool = False  # all units are counted, and their counts are in one file
    files: list[CountsFile] = field(default_factory=list)  # have the counts together
    in_tables: bool = False  # counts of the last file were kept in memory, and are saved again
    n_saved: int = 0  # numbers the files
    documents: int = 0  # number of documents, validation included
    validation: int = 0  # number of validation documents
    divided: bool = False  # documents are divided into train and validation


class CountedPart(NamedTuple):
    """The counts of a part of the text, and the last checkpoint of the pass that counted it."""

    counts: FrozenCounts
    at: CountCheckpoint


def _count_unit(item: Item, counts: PretokenCounts, memory: ReusedMemory) -> DocumentBatch:
    """Add the pre-tokens of a unit to counts, and return its batch without text."""
    from bpe.text.spans import close_gaps

    batch = item.documents(memory.array)
    chosen = batch if batch.in_validation is None else batch.select(~batch.in_validation)
    counts.add(*close_gaps(chosen.buffer, chosen.bounds))
    item.unit.check_unchanged()
    return batch.without_text()


@dataclass
class CountPass:
    """The pass that counts the pre-tokens of all documents except validation.

    Each worker has its own table; tables are merged and saved at the end. Workers pause while a
    checkpoint saves the counts. Arguments and errors are those of `train_tokenizer`; a part of the
    text (`is_part`) may have no documents.
    """

    sources: Sequence[Source]
    settings: TrainSettings
    journal: Journal
    progress: Progress
    is_part: bool = False

    def __post_init__(self) -> None:
        settings = self.settings
        self._like = settings.pattern, tuple(settings.all_special_tokens)
        self._tables: list[PretokenCounts] = []
        self._idle: list[PretokenCounts] = []
        self._is_over = False  # all units are counted
        self._most = bytes_for_tables(settings.memory_limit, settings.workers, settings.unit_size)
        self.at = self.journal.value("counted", CountCheckpoint) or CountCheckpoint()

    def run(self) -> FrozenCounts:
        """Count the remaining units, and return the counts of all."""
        at, progress, workers = self.at, self.progress, self.settings.workers
        self._remove_leftovers()
        if at.is_all:
            progress.add_stage_before("counting", at.seconds, at.bytes, "B")
            return self._merged(at.files)
        if at.in_tables:
            self._add(self._merged(at.files[-1:]))
        n_bytes, seconds = sum(source.n_bytes for source in self.sources), 0.0
        with (
            closing(read_units(self.sources, at, workers)) as units,
            progress.stage("counting", n_bytes, "B", at.bytes, at.seconds) as stage,
        ):
            while True:
                self._count(units, max(self.journal.seconds, _WORK_PER_SAVING * seconds), stage)
                if self._is_over:
                    return self._finish(stage)
                began = time.monotonic()
                self._save(stage)
                seconds = time.monotonic() - began
                if progress.out_of_time():
                    raise OutOfTimeError(out_of_time(progress, "counting resumes from there"))

    def add_up(self, parts: Iterable[CountedPart]) -> FrozenCounts:
        """Return the counts of all parts of the text together."""
        if self.at.is_all:
            self._remove_leftovers()
            return self._merged(self.at.files)
        at = self.at = CountCheckpoint()  # what was added up before may be in parts
        self._remove_leftovers()
        for counts, of_part in parts:
            self._add(counts)
            at.documents += of_part.documents
            at.validation += of_part.validation
            at.divided |= of_part.divided
            at.left_out.merge(of_part.left_out)
            at.bytes += of_part.bytes
            if self._is_full():
                self._save()
        return self._finish()

    def _count(self, units: Iterator[Item], seconds: float, stage: Stage) -> None:
        """Count until `seconds` have passed, the time limit is reached, or tables are full."""
        at, paused, pause = self.at, False, time.monotonic() + seconds

        def until_paused() -> Iterator[Item]:
            while not paused:
                if (item := next(units, None)) is None:
                    self._is_over = True
                    return
                yield item

        self._idle = self._tables[:]
        counted = run_units(until_paused(), self._make_work, self.settings.workers)
        with closing(counted) as results:
            for item, batch in results:
                at.documents += batch.n_ended
                if batch.in_validation is not None:
                    at.divided = True
                    at.validation += int(batch.in_validation[: batch.n_ended].sum())
                at.add(item, batch, stage, self.settings.max_bad_records)
                is_due = time.monotonic() >= pause or self.progress.out_of_time()
                paused = is_due or self._is_full()

    def _make_work(self) -> Callable[[Item], DocumentBatch]:
        """Return a function that counts units in a table of its own; called on any thread."""
        from bpe import PretokenCounts

        try:
            counts = self._idle.pop()
        except IndexError:
            # Not `self._tables[-1]`: another thread may append in between.
            counts = PretokenCounts(*self._like)
            self._tables.append(counts)
        memory = ReusedMemory(limit=4, largest=1 << 26)
        return lambda item: _count_unit(item, counts, memory)

    def _add(self, counts: FrozenCounts) -> None:
        """Add counts of another part or earlier run to the first table, which must be idle."""
        from bpe import PretokenCounts

        if not self._tables:
            self._tables.append(PretokenCounts(*self._like))
        self._tables[0].merge(counts)

    def _is_full(self) -> bool:
        return sum(table.n_bytes for table in self._tables) > self._most

    def _finish(self, stage: Stage | None = None) -> FrozenCounts:
        """Return the counts of all workers and files, after they are saved as one file."""
        from bpe import PretokenCounts
        from bpe.train.counts import sum_counts

        at, storage = self.at, self.journal.storage
        if not self.is_part:
            ended = {"train": at.documents - at.validation}
            ended |= {"val": at.validation} if at.divided else {}
            for name, n in ended.items():
                check_has_documents(name, self.sources, n, at.documents, at.left_out)
        if len(at.files) > at.in_tables:
            self._save(stage)
            self._empty()
            counts = self._merged(at.files)
        else:
            counts = sum_counts(self._tables or [PretokenCounts(*self._like)])
            self._empty()
        at.is_all, at.files = True, [write_counts(storage, f"{_PREFIX}all", [counts.arrays()])]
        self.journal.save("counted", at, stage=stage)
        self._remove_leftovers()
        return counts

    def _save(self, stage: Stage | None = None) -> None:
        """Write the tables to a file, then the checkpoint; empty tables that are full."""
        at, tables = self.at, self._tables
        del at.files[len(at.files) - at.in_tables :]
        if tables:
            name = f"{_PREFIX}{at.n_saved}"
            arrays = (table.arrays() for table in tables)
            at.files.append(write_counts(self.journal.storage, name, arrays))
            at.n_saved += 1
        at.in_tables = bool(tables) and not self._is_full()
        if not at.in_tables:
            self._empty()
        self.journal.save("counted", at, stage=stage)
        self._remove_leftovers()

    def _empty(self) -> None:
        """Free the memory of the tables."""
        self._tables.clear()
        self._idle.clear()

    def _merged(self, files: Sequence[CountsFile]) -> FrozenCounts:
        return merge_counts(self.journal.storage, files, self._like)

    def _remove_leftovers(self) -> None:
        """Remove files that do not belong to the last checkpoint."""
        known = {each.file for each in self.at.files}
        for name in self.journal.storage.names():
            if name.startswith(_PREFIX) and name not in known:
                self.journal.storage.remove(name)
