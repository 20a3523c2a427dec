"""Count the pre-tokens of the train documents and train a tokenizer on the counts.

Workers see units, the calling thread sees their results in order. Entries of the journal say how
far the pass is; a resumed run continues after the last one:

    counted    pre-tokens up to a place in the sources, which lie in a file of counts
    trained    the tokenizer, which lies beside

A place is the number of a source and a place in it, as its units say it (`WorkUnit.after`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xxhash
from msgspec import Struct, field

from preprocess import spill
from preprocess.documents import DocumentBatch
from preprocess.inputs import end_of_text_token
from preprocess.journal import Journal
from preprocess.limits import check_has_documents, out_of_time
from preprocess.memory import bytes_for_tables, check_merging
from preprocess.progress import OutOfTimeError, Progress, Stage
from preprocess.report import LeftOut
from preprocess.reused_memory import ReusedMemory
from preprocess.settings.schema import TrainSettings
from preprocess.sources import Place, Source, WorkUnit
from preprocess.storage import Storage
from preprocess.units import (
    Executor,
    Pausing,
    place_after,
    run_numbered,
    run_on_threads,
    units_after,
)

if TYPE_CHECKING:
    from bpe import PretokenCounts, Tokenizer
    from bpe.count import FrozenCounts

# How much longer is counted than the saving of counts takes: at most 2.5 % of the time goes there.
_WORK_PER_SAVING = 40
# How the files of counts, and those of runs, are called.
_COUNTS, _RUN = "counts-", "run-"


def train_tokenizer(
    sources: Sequence[Source],
    settings: TrainSettings,
    storage: Storage,
    journal: Journal,
    progress: Progress,
    left_out: LeftOut,
    executor: Executor = run_on_threads,
) -> Tokenizer:
    """Count the pre-tokens of the train documents, then merge.

    Args:
        sources: Their documents are counted, but for those of validation.
        settings: Those of the run.
        storage: Where counts are saved.
        journal: Records how far counting is.
        progress: Shows what goes on.
        left_out: Takes in what was dropped.
        executor: Runs the counting of units.
    """
    from bpe import Tokenizer, train_from_counts

    counting = CountPass(sources, settings, storage, journal, progress, executor)
    counts = counting.run()
    left_out.take_over(counting.left_out)
    buffer, _, of_words = counts.arrays()
    check_merging(settings.memory_limit, len(buffer), len(of_words))
    del buffer, of_words
    n_merges = settings.vocab_size - 256 - len(settings.all_special_tokens)
    with progress.stage("merging", n_merges, "merges") as stage:

        def advance(done: int, total: int) -> None:
            stage.advance(done - stage.done)
            if done < total and progress.out_of_time():
                raise OutOfTimeError(out_of_time(progress, "merging begins again from its counts"))

        trained = train_from_counts(
            counts,
            settings.vocab_size,
            special_tokens=settings.all_special_tokens,
            tie_break=settings.tie_break,
            min_frequency=settings.min_frequency,
            workers=settings.workers,
            progress=advance,
        )
    return Tokenizer.from_vocabulary(
        trained.vocabulary,
        pattern=trained.pattern,
        tie_break=trained.tie_break,
        eos_token=end_of_text_token(settings, None),
    )


class Counted(Struct, tag_field="kind", tag="counted", kw_only=True, forbid_unknown_fields=True):
    """Checkpoint of counting: how far it is, and what was seen up to there.

    Attributes:
        source: The number of the source.
        after: The place in it; None: its start.
        is_all: Whether nothing is left to count.
        file: The name of the file of counts; "": there is none.
        digest: The xxh3_128 of that file.
        n_words: Its pre-tokens.
        documents: Documents that ended.
        validation: Those of them that are validation.
        divided: Whether documents are divided at all.
        left_out: What was dropped.
        bytes: Bytes of the sources.
        seconds: How long it took.
        run: The run of counts that was written with this checkpoint; those of all checkpoints
            belong together.
    """

    source: int = 0
    after: Place | None = None
    is_all: bool = False
    file: str = ""
    digest: str = ""
    n_words: int = 0
    documents: int = 0
    validation: int = 0
    divided: bool = False
    left_out: LeftOut = field(default_factory=LeftOut)
    bytes: int = 0
    seconds: float = 0.0
    run: spill.Run | None = None


class Tables:
    """Tables of counts, each for one worker at a time; all of them together are the counts.

    Args:
        pattern: Name of the split pattern.
        special_tokens: Text to cut out of documents.

    Attributes:
        all: The tables.
    """

    def __init__(self, pattern: str, special_tokens: Sequence[str]) -> None:
        self.all: list[PretokenCounts] = []
        self._like = pattern, tuple(special_tokens)
        self._idle: list[PretokenCounts] = []

    def take(self) -> PretokenCounts:
        """Take a table that no worker has; may be called on any thread."""
        from bpe import PretokenCounts

        try:
            return self._idle.pop()
        except IndexError:
            # Not `self.all[-1]`: another thread may append in between.
            table = PretokenCounts(*self._like)
            self.all.append(table)
            return table

    def merge(self, counts: FrozenCounts) -> None:
        """Add counts that were made elsewhere; no worker of this process may have a table."""
        self.rest()
        self.take().merge(counts)

    def rest(self) -> None:
        """Take back the tables of all workers, which have come to their end."""
        self._idle[:] = self.all

    def clear(self) -> None:
        """Forget all counts."""
        self.all.clear()
        self._idle.clear()

    @property
    def n_bytes(self) -> int:
        """Bytes of memory that the tables take."""
        return sum(table.n_bytes for table in self.all)


@dataclass(frozen=True)
class CountUnits:
    """Makes workers that count the pre-tokens of units.

    Attributes:
        pattern: Name of the split pattern.
        special_tokens: Text to cut out of documents.
        tables: Where the workers of this process add their counts. It stays here: workers of
            another process return the counts of each unit, to be merged here.
    """

    pattern: str
    special_tokens: tuple[str, ...]
    tables: Tables | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"tables": None}

    def __call__(self) -> Callable[[WorkUnit], tuple[DocumentBatch, FrozenCounts | None]]:
        """Make a worker, which gives what a unit holds, without text, and perhaps its counts."""
        from bpe import PretokenCounts
        from bpe.count import added_up

        memory = ReusedMemory(limit=4, largest=1 << 26)
        like = self.pattern, self.special_tokens
        table = None if self.tables is None else self.tables.take()

        def count(unit: WorkUnit) -> tuple[DocumentBatch, FrozenCounts | None]:
            batch = unit.read(memory.array)
            chosen = batch if batch.in_validation is None else batch.select(~batch.in_validation)
            counts = PretokenCounts(*like) if table is None else table
            counts.add(*chosen.joined())
            unit.check_unchanged()
            return batch.without_text(), added_up([counts]) if table is None else None

        return count


class CountPass:
    """The pass over the sources that counts the pre-tokens of all documents but validation.

    Workers map units to counts in tables of their own; the tables are merged at the end. Counts are
    saved then, and now and then before. For that the workers come to rest, so that their tables
    hold what was counted up to one place; it is done so seldom that it takes less than one part in
    `_WORK_PER_SAVING` of the time. When the tables take what memory has room for, they are saved as
    a run, and the workers begin with empty ones.

    Args:
        sources: In order.
        settings: Those of the run.
        storage: Where counts are saved.
        journal: Records how far the pass is, and knows how far an earlier run came.
        progress: Shows what goes on.
        executor: Runs the counting of units.

    Raises:
        JournalError: What an earlier run left is damaged.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        settings: TrainSettings,
        storage: Storage,
        journal: Journal,
        progress: Progress,
        executor: Executor = run_on_threads,
    ) -> None:
        self._sources, self._settings, self._executor = sources, settings, executor
        self._storage, self._journal, self._progress = storage, journal, progress
        self._like = settings.pattern, tuple(settings.all_special_tokens)
        self._tables = Tables(*self._like)
        self._most = bytes_for_tables(settings.memory_limit, settings.workers, settings.unit_size)
        self._at = Counted()
        self._runs: list[spill.Run] = []
        for self._at in journal.of(Counted):
            if self._at.run is not None:
                self._runs.append(self._at.run)
        self._at.run = None

    @property
    def left_out(self) -> LeftOut:
        """What was dropped up to now."""
        return self._at.left_out

    def run(self) -> FrozenCounts:
        """Count what is left to count, and return the counts of all.

        Raises:
            CorpusError: Text cannot be read, or an output would have no documents.
            JournalError: What an earlier run left is damaged.
            OutOfTimeError: The time that the run may take is over.
        """
        at, progress = self._at, self._progress
        self._remove_left_over()
        if at.is_all:
            progress.add_stage_before("counting", at.seconds, at.bytes, "B")
            return self._saved()
        if at.file:
            self._tables.merge(self._saved())
        with self._stage() as stage:
            units = Pausing(units_after(self._sources, at.source, at.after))
            seconds = 0.0
            while not units.is_over:
                self._count(units, max(self._journal.seconds, _WORK_PER_SAVING * seconds), stage)
                if units.is_over:
                    self._check_countable()
                began = time.monotonic()
                self._checkpoint(units.is_over)
                seconds = time.monotonic() - began
                if not units.is_over and progress.out_of_time():
                    raise OutOfTimeError(out_of_time(progress, "counting goes on there"))
            return self._merged()

    def _stage(self) -> AbstractContextManager[Stage]:
        at, n_bytes = self._at, sum(source.n_bytes for source in self._sources)
        return self._progress.stage(
            "counting", n_bytes, done_before=at.bytes, seconds_before=at.seconds
        )

    def _count(self, units: Pausing[tuple[int, WorkUnit]], seconds: float, stage: Stage) -> None:
        """Count until so much time is over, or that of the run, or tables are full."""
        at, tables = self._at, self._tables
        tables.rest()
        units.paused = False
        pause = time.monotonic() + seconds
        work = CountUnits(*self._like, tables)
        counted = run_numbered(units, work, self._settings.workers, self._executor)
        with closing(counted) as results:
            for index, unit, (batch, counts) in results:
                if counts is not None:
                    tables.merge(counts)
                at.documents += batch.n_ended
                if batch.in_validation is not None:
                    at.divided = True
                    at.validation += int(batch.in_validation[: batch.n_ended].sum())
                at.left_out.add(batch)
                at.source, at.after = place_after(index, unit)
                stage.advance(unit.n_bytes)
                is_due = time.monotonic() >= pause or self._progress.out_of_time()
                units.paused = is_due or tables.n_bytes > self._most
        at.bytes, at.seconds = stage.done, stage.seconds

    def _checkpoint(self, is_over: bool) -> None:
        """Save what was counted: as a run if tables are full or the others are in runs, too."""
        at, tables = self._at, self._tables
        is_full = tables.n_bytes > self._most
        if is_full or (is_over and self._runs and tables.all):
            at.run = spill.write_run(self._storage, f"{_RUN}{len(self._runs)}", tables.all)
            self._runs.append(at.run)
            tables.clear()
        if at.run is not None or not is_over:
            self._save([table.arrays() for table in tables.all])
            at.run = None

    def _merged(self) -> FrozenCounts:
        """Merge the counts of all workers and runs, and save them."""
        from bpe.count import added_up

        if self._runs:
            counts = spill.merged(self._storage, self._runs, self._like)
        else:
            tables = self._tables.all[:]
            self._tables.clear()
            counts = added_up(tables)
        self._at.is_all = True
        self._save([counts.arrays()])
        for run in self._runs:
            self._storage.remove(run.file)
        return counts

    def _check_countable(self) -> None:
        at = self._at
        n_train = at.documents - at.validation
        check_has_documents("train", self._sources, n_train, at.documents, at.left_out)
        if at.divided:
            check_has_documents("val", self._sources, at.validation, at.documents, at.left_out)

    def _save(self, pieces: Sequence[spill.Words]) -> None:
        """Write the counts of all workers, one behind the other, and then the checkpoint."""
        at, before = self._at, self._at.file
        at.file = at.digest = ""
        at.n_words = sum(len(counts) for _, _, counts in pieces)
        if pieces:
            content = spill.written(pieces)
            name = "all" if at.is_all else f"{at.source}-{at.bytes}"
            at.file, at.digest = f"{_COUNTS}{name}", xxhash.xxh3_128_hexdigest(content)
            self._storage.put(at.file, content)
        self._journal.append(at)
        if before and before != at.file:
            self._storage.remove(before)

    def _saved(self) -> FrozenCounts:
        """Read the counts that the checkpoint speaks of."""
        at = self._at
        return spill.counts_in(
            self._storage.get(at.file), at.n_words, at.digest, at.file, self._like
        )

    def _remove_left_over(self) -> None:
        """Remove what no checkpoint speaks of: a kill came before it, or after the one before."""
        known = {self._at.file}
        if not self._at.is_all:
            known.update(run.file for run in self._runs)
        for name in self._storage.names():
            if name.startswith((_COUNTS, _RUN)) and name not in known:
                self._storage.remove(name)
