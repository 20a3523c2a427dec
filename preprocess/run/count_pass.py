"""Count the pre-tokens of the train documents, and train a tokenizer on the counts.

Workers count units; the calling thread consumes their results in order. After an interruption, the
pass resumes from the last checkpoint in the journal (`CountCheckpoint`).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash
from msgspec import Struct, field

from preprocess.documents.batch import DocumentBatch
from preprocess.report.progress import OutOfTimeError, Progress, Stage
from preprocess.report.summary import LeftOut, check_bad_records, check_has_documents, out_of_time
from preprocess.reused_memory import ReusedMemory
from preprocess.run import spill
from preprocess.run.journal import Journal
from preprocess.run.memory_limit import bytes_for_tables, check_merging
from preprocess.run.record import end_of_text_token
from preprocess.run.units import (
    CollectingExecutor,
    Executor,
    WorkerLostError,
    resume_point_after,
    run_numbered,
    run_on_threads,
    units_after,
)
from preprocess.settings.schema import TrainSettings
from preprocess.sources import ResumePoint, Source, WorkUnit

if TYPE_CHECKING:
    from bpe import PretokenCounts, Tokenizer
    from bpe.training.counts import Arrays, FrozenCounts

_WORK_PER_SAVING = 40  # ratio of counting to saving counts: 2.5 % of the time
_MOST_LOSSES = 3  # of workers, without a checkpoint between them
_COUNTS, _SPILL = "counts-", "run-"  # prefixes of file names

Numbered = tuple[int, WorkUnit]  # (index of its source, unit)
# (batch of a unit without text; its counts, None if the worker keeps them; bytes of kept counts)
Counted = tuple[DocumentBatch, "FrozenCounts | None", int]


def train_tokenizer(
    sources: Sequence[Source], settings: TrainSettings, journal: Journal, progress: Progress,
    left_out: LeftOut, executor: Executor = run_on_threads,
) -> Tokenizer:
    """Count the pre-tokens of all documents except validation, and learn merges from the counts.

    Counts are saved in the storage of the journal; dropped documents are added to `left_out`.

    Raises:
        CorpusError: Text cannot be read, or an output would have no documents.
        JournalError: The files of an earlier run are damaged.
        OutOfTimeError: The time limit of the run is reached.
    """
    from bpe import Tokenizer, train_from_counts

    counting = CountPass(sources, settings, journal, progress, executor)
    counts = counting.run()
    left_out.merge(counting.at.left_out)
    check_merging(settings.memory_limit, len(counts.buffer), len(counts.counts))
    n_merges = settings.vocab_size - 256 - len(settings.all_special_tokens)
    with progress.stage("merging", n_merges, "merges") as stage:

        def advance(done: int, total: int) -> None:
            stage.advance(done - stage.done)
            if done < total and progress.out_of_time():
                raise OutOfTimeError(out_of_time(progress, "merging restarts from saved counts"))

        trained = train_from_counts(
            counts, settings.vocab_size, special_tokens=settings.all_special_tokens,
            tie_break=settings.tie_break, min_frequency=settings.min_frequency,
            workers=settings.workers, progress=advance,
        )
    return Tokenizer.from_vocabulary(
        trained.vocabulary, pattern=trained.pattern, tie_break=trained.tie_break,
        eos_token=end_of_text_token(settings, None), bos_token=settings.begin_of_text,
    )


class CountCheckpoint(
    Struct, tag_field="kind", tag="counted", kw_only=True, forbid_unknown_fields=True
):
    """Checkpoint of counting: a position in the sources, and the totals before it."""

    source: int = 0  # index of the source
    after: ResumePoint | None = None  # position in the source, as `WorkUnit.after`; None: start
    is_all: bool = False  # all units are counted and merged
    file: str = ""  # name of the file of counts; "": none
    digest: str = ""  # xxh3_128 of that file
    n_pretokens: int = field(default=0, name="n_words")  # in that file
    documents: int = 0  # number of documents, validation included
    validation: int = 0  # number of validation documents
    divided: bool = False  # documents are divided into train and validation
    left_out: LeftOut = field(default_factory=LeftOut)
    bytes: int = 0  # bytes of the sources before the position
    seconds: float = 0.0
    # Written with this checkpoint; the counts are in all spill files so far.
    spilled: spill.SpillFile | None = field(default=None, name="run")


class CountUnits:
    """Factory of workers that count the pre-tokens of units.

    Each worker of this process adds to its own table in `tables`. Tables are not pickled: a worker
    of another process returns the counts of each unit, or keeps them (`CollectingExecutor`).
    """

    def __init__(
        self, pattern: str, special_tokens: Sequence[str], tables: list[PretokenCounts],
        keeps: bool = False,
    ) -> None:
        self._like, self.keeps = (pattern, special_tokens), keeps
        self._tables: list[PretokenCounts] | None = tables
        self._idle = tables[:]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_tables": None, "_idle": []}

    def __call__(self) -> Callable[[WorkUnit], Counted]:
        """Make a worker that counts a unit."""
        from bpe import PretokenCounts
        from bpe.training.counts import sum_counts

        memory = ReusedMemory(limit=4, largest=1 << 26)
        if self.keeps:
            return KeptCounts(*self._like)
        own = self.own_table()

        def count(unit: WorkUnit) -> Counted:
            counts = PretokenCounts(*self._like) if own is None else own
            batch = _count_unit(unit, counts, memory)
            return batch, sum_counts([counts]) if own is None else None, 0

        return count

    def own_table(self) -> PretokenCounts | None:
        """Return an unused table, None in another process; may be called on any thread."""
        from bpe import PretokenCounts

        if self._tables is None:
            return None
        try:
            return self._idle.pop()
        except IndexError:
            # Not `self._tables[-1]`: another thread may append in between.
            table = PretokenCounts(*self._like)
            self._tables.append(table)
            return table


class KeptCounts:
    """Counts units of a process, and keeps the counts until they are collected."""

    def __init__(self, pattern: str, special_tokens: Sequence[str]) -> None:
        self._like = pattern, special_tokens
        self._memory = ReusedMemory(limit=4, largest=1 << 26)
        self._table: PretokenCounts | None = None

    def table(self) -> PretokenCounts:
        """Return the table with the counts so far."""
        from bpe import PretokenCounts

        if self._table is None:
            self._table = PretokenCounts(*self._like)
        return self._table

    def __call__(self, unit: WorkUnit) -> Counted:
        """Count a unit."""
        table = self.table()
        return _count_unit(unit, table, self._memory), None, table.n_bytes

    def take(self) -> FrozenCounts:
        """Return the counts since the last time."""
        from bpe.training.counts import sum_counts

        table, self._table = self.table(), None
        return sum_counts([table])

    def add(self, counts: FrozenCounts) -> None:
        """Add those of another process."""
        self.table().merge(counts)


def _count_unit(unit: WorkUnit, counts: PretokenCounts, memory: ReusedMemory) -> DocumentBatch:
    """Add the pre-tokens of a unit to counts, and return its batch without text."""
    batch = unit.read(memory.array)
    chosen = batch if batch.in_validation is None else batch.select(~batch.in_validation)
    counts.add(*chosen.close_gaps())
    unit.check_unchanged()
    return batch.without_text()


@dataclass
class CountPass:
    """The pass that counts the pre-tokens of all documents except validation.

    Each worker has its own table; tables are merged and saved at the end. Workers pause while a
    checkpoint saves the counts. Tables that exceed their memory are spilled to a file and emptied.
    Workers of other processes may keep theirs until a checkpoint collects them; if one ends, the
    pass resumes from the previous checkpoint.
    Arguments and errors are those of `train_tokenizer`.
    """

    sources: Sequence[Source]
    settings: TrainSettings
    journal: Journal
    progress: Progress
    executor: Executor

    def __post_init__(self) -> None:
        settings = self.settings
        self._like = settings.pattern, tuple(settings.all_special_tokens)
        self._tables: list[PretokenCounts] = []
        self._is_over = False  # all units are counted
        self._kept = 0  # bytes of the tables of other processes
        self._most = bytes_for_tables(settings.memory_limit, settings.workers, settings.unit_size)
        checkpoints = self.journal.entries_of(CountCheckpoint)
        self._spills = [each.spilled for each in checkpoints if each.spilled is not None]
        self.at = checkpoints[-1] if checkpoints else CountCheckpoint()
        self.at.spilled = None

    def run(self) -> FrozenCounts:
        """Count the remaining units, and return the counts of all."""
        at, progress = self.at, self.progress
        self._remove_leftovers()
        if at.is_all:
            progress.add_stage_before("counting", at.seconds, at.bytes, "B")
            return self._load_counts()
        if at.file:
            self._merge(self._load_counts())
        n_bytes = sum(source.n_bytes for source in self.sources)
        with progress.stage("counting", n_bytes, "B", at.bytes, at.seconds) as stage:
            units, seconds, n_lost = units_after(self.sources, at.source, at.after), 0.0, 0
            while not self._is_over:
                before = copy.deepcopy(self.at)
                try:
                    self._count(units, max(self.journal.seconds, _WORK_PER_SAVING * seconds), stage)
                    began, is_full = time.monotonic(), self._is_full()
                    self._collect()
                except WorkerLostError:
                    n_lost += 1
                    if n_lost > _MOST_LOSSES:
                        raise
                    self.at, self._is_over, self._kept = before, False, 0
                    units = units_after(self.sources, before.source, before.after)
                    stage.advance(before.bytes - stage.done)
                    continue
                at = self.at
                if self._is_over:
                    ended = {"train": at.documents - at.validation}
                    ended |= {"val": at.validation} if at.divided else {}
                    for name, n in ended.items():
                        check_has_documents(name, self.sources, n, at.documents, at.left_out)
                self._checkpoint(is_full)
                seconds, n_lost = time.monotonic() - began, 0
                if not self._is_over and progress.out_of_time():
                    raise OutOfTimeError(out_of_time(progress, "counting resumes from there"))
            return self._merge_all()

    def _count(self, units: Iterator[Numbered], seconds: float, stage: Stage) -> None:
        """Count until `seconds` have passed, the time limit is reached, or tables are full."""
        at, paused, pause = self.at, False, time.monotonic() + seconds

        def until_paused() -> Iterator[Numbered]:
            while not paused:
                if (numbered := next(units, None)) is None:
                    self._is_over = True
                    return
                yield numbered

        keeps = isinstance(self.executor, CollectingExecutor)
        work = CountUnits(*self._like, self._tables, keeps)
        counted = run_numbered(until_paused(), work, self.settings.workers, self.executor)
        with closing(counted) as results:
            for index, unit, (batch, counts, n_kept) in results:
                if counts is not None:
                    self._merge(counts)
                self._kept = max(self._kept, n_kept * self.settings.workers)
                at.documents += batch.n_ended
                if batch.in_validation is not None:
                    at.divided = True
                    at.validation += int(batch.in_validation[: batch.n_ended].sum())
                at.left_out.add(batch)
                check_bad_records(at.left_out, batch, self.settings.max_bad_records)
                at.source, at.after = resume_point_after(index, unit)
                stage.advance(unit.n_bytes)
                is_due = time.monotonic() >= pause or self.progress.out_of_time()
                paused = is_due or self._is_full()
        at.bytes, at.seconds = stage.done, stage.seconds

    def _merge(self, counts: FrozenCounts) -> None:
        """Add counts of another process or earlier run to the first table, which must be idle."""
        from bpe import PretokenCounts

        if not self._tables:
            self._tables.append(PretokenCounts(*self._like))
        self._tables[0].merge(counts)

    def _is_full(self) -> bool:
        return sum(table.n_bytes for table in self._tables) + self._kept > self._most

    def _collect(self) -> None:
        """Add the counts that other processes have kept to the first table."""
        if isinstance(self.executor, CollectingExecutor):
            self._merge(self.executor.collect())
            self._kept = 0

    def _checkpoint(self, is_full: bool) -> None:
        """Save counts: in a spill file if tables are full or, at the end, if there are others."""
        at, tables = self.at, self._tables
        if tables and (is_full or (self._is_over and self._spills)):
            name = f"{_SPILL}{len(self._spills)}"
            at.spilled = spill.write_spill(self.journal.storage, name, tables)
            self._spills.append(at.spilled)
            tables.clear()
        if at.spilled is not None or not self._is_over:
            self._save([table.arrays() for table in tables])
            at.spilled = None

    def _merge_all(self) -> FrozenCounts:
        """Merge the counts of all workers and runs, and save them."""
        from bpe.training.counts import sum_counts

        if self._spills:
            counts = spill.merge_spills(self.journal.storage, self._spills, self._like)
        else:
            counts = sum_counts(self._tables)
        self.at.is_all = True
        self._save([counts.arrays()])
        for spilled in self._spills:
            self.journal.storage.remove(spilled.file)
        return counts

    def _save(self, pieces: Sequence[Arrays]) -> None:
        """Write concatenated counts to a file, then the checkpoint; remove the previous file."""
        at, before = self.at, self.at.file
        at.file = at.digest = ""
        at.n_pretokens = sum(len(counts) for _, _, counts in pieces)
        if pieces:
            content = spill.encode_counts(pieces)
            name = "all" if at.is_all else f"{at.source}-{at.bytes}"
            at.file, at.digest = f"{_COUNTS}{name}", xxhash.xxh3_128_hexdigest(content)
            self.journal.storage.put(at.file, content)
        self.journal.append(at)
        if before and before != at.file:
            self.journal.storage.remove(before)

    def _load_counts(self) -> FrozenCounts:
        """Load the counts of the last checkpoint."""
        at = self.at
        content = self.journal.storage.get(at.file)
        return spill.decode_counts(content, at.n_pretokens, at.digest, at.file, self._like)

    def _remove_leftovers(self) -> None:
        """Remove files that do not belong to the last checkpoint."""
        known = {self.at.file}
        if not self.at.is_all:
            known.update(spilled.file for spilled in self._spills)
        for name in self.journal.storage.names():
            if name.startswith((_COUNTS, _SPILL)) and name not in known:
                self.journal.storage.remove(name)
