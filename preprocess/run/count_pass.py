"""Count the pre-tokens of the train documents, and train a tokenizer on the counts.

Workers count units; the calling thread consumes their results in order. After an interruption, the
pass resumes from the last checkpoint in the journal (`CountCheckpoint`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import xxhash
from msgspec import Struct, field

from preprocess.documents.batch import DocumentBatch
from preprocess.options import TrainSettings
from preprocess.report.progress import OutOfTimeError, Progress, Stage
from preprocess.report.summary import LeftOut, check_bad_records, check_has_documents, out_of_time
from preprocess.reused_memory import ReusedMemory
from preprocess.run import spill
from preprocess.run.journal import Journal
from preprocess.run.memory_limit import bytes_for_tables, check_merging
from preprocess.run.record import end_of_text_token
from preprocess.run.units import Item, Position, read_units, run_units
from preprocess.sources import ResumePoint, Source

if TYPE_CHECKING:
    from bpe import PretokenCounts, Tokenizer
    from bpe.train.counts import Arrays, FrozenCounts

_WORK_PER_SAVING = 40  # ratio of counting to saving counts: 2.5 % of the time
_COUNTS, _SPILL = "counts-", "run-"  # prefixes of file names


def train_tokenizer(
    sources: Sequence[Source], settings: TrainSettings, journal: Journal, progress: Progress,
    left_out: LeftOut, parts: Iterable[CountedPart] | None = None,
) -> Tokenizer:
    """Count the pre-tokens of all documents except validation, and learn merges from the counts.

    Counts are saved in the storage of the journal; dropped documents are added to `left_out`. The
    counts of `parts` of the text, if given, are added up instead.

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


class CountCheckpoint(Struct, kw_only=True, forbid_unknown_fields=True):
    """Checkpoint of counting: a position in the sources, and the totals before it."""

    source: int = 0  # index of the source
    after: ResumePoint | None = None  # position in the source, as `WorkUnit.after`; None: start
    n_read: int = 0  # as in `Position`
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
    spills: list[spill.SpillFile] = []  # files with counts before the position


class CountedPart(NamedTuple):
    """The counts of a part of the text, and the last checkpoint of the pass that counted it."""

    counts: FrozenCounts
    at: CountCheckpoint


class CountUnits:
    """Factory of workers that count the pre-tokens of units, each in its own table of `tables`."""

    def __init__(
        self, pattern: str, special_tokens: Sequence[str], tables: list[PretokenCounts]
    ) -> None:
        self._like, self._tables, self._idle = (pattern, special_tokens), tables, tables[:]

    def __call__(self) -> Callable[[Item], DocumentBatch]:
        """Make a worker that counts a unit, and returns its batch without text."""
        counts, memory = self.own_table(), ReusedMemory(limit=4, largest=1 << 26)
        return lambda item: _count_unit(item, counts, memory)

    def own_table(self) -> PretokenCounts:
        """Return an unused table; may be called on any thread."""
        from bpe import PretokenCounts

        try:
            return self._idle.pop()
        except IndexError:
            # Not `self._tables[-1]`: another thread may append in between.
            table = PretokenCounts(*self._like)
            self._tables.append(table)
            return table


def _count_unit(item: Item, counts: PretokenCounts, memory: ReusedMemory) -> DocumentBatch:
    """Add the pre-tokens of a unit to counts, and return its batch without text."""
    batch = item.documents(memory.array)
    chosen = batch if batch.in_validation is None else batch.select(~batch.in_validation)
    counts.add(*chosen.close_gaps())
    item.unit.check_unchanged()
    return batch.without_text()


@dataclass
class CountPass:
    """The pass that counts the pre-tokens of all documents except validation.

    Each worker has its own table; tables are merged and saved at the end. Workers pause while a
    checkpoint saves the counts. Tables that exceed their memory are spilled to a file and emptied.
    Arguments and errors are those of `train_tokenizer`; a part of the text (`is_part`) may have no
    documents.
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
        self._is_over = False  # all units are counted
        self._most = bytes_for_tables(settings.memory_limit, settings.workers, settings.unit_size)
        self.at = self.journal.value("counted", CountCheckpoint) or CountCheckpoint()

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
        begin, workers = Position(at.source, at.after, at.n_read), self.settings.workers
        with (
            closing(read_units(self.sources, begin, workers)) as units,
            progress.stage("counting", n_bytes, "B", at.bytes, at.seconds) as stage,
        ):
            seconds = 0.0
            while not self._is_over:
                self._count(units, max(self.journal.seconds, _WORK_PER_SAVING * seconds), stage)
                began = time.monotonic()
                if self._is_over and not self.is_part:
                    self._check_has_documents()
                self._checkpoint(self._is_full(), stage)
                seconds = time.monotonic() - began
                if not self._is_over and progress.out_of_time():
                    raise OutOfTimeError(out_of_time(progress, "counting resumes from there"))
            return self._merge_all(stage)

    def add_up(self, parts: Iterable[CountedPart]) -> FrozenCounts:
        """Return the counts of all parts of the text together."""
        if self.at.is_all:
            self._remove_leftovers()
            return self._load_counts()
        self.at = CountCheckpoint()  # what was added up before may be in parts
        self._remove_leftovers()
        for counts, of_part in parts:
            self._merge(counts)
            self.at.documents += of_part.documents
            self.at.validation += of_part.validation
            self.at.divided |= of_part.divided
            self.at.left_out.merge(of_part.left_out)
            self.at.bytes += of_part.bytes
            if self._is_full():
                self._checkpoint(is_full=True)
        self._check_has_documents()
        self._is_over = True
        self._checkpoint(self._is_full())
        return self._merge_all()

    def _check_has_documents(self) -> None:
        at = self.at
        ended = {"train": at.documents - at.validation}
        ended |= {"val": at.validation} if at.divided else {}
        for name, n in ended.items():
            check_has_documents(name, self.sources, n, at.documents, at.left_out)

    def _count(self, units: Iterator[Item], seconds: float, stage: Stage) -> None:
        """Count until `seconds` have passed, the time limit is reached, or tables are full."""
        at, paused, pause = self.at, False, time.monotonic() + seconds

        def until_paused() -> Iterator[Item]:
            while not paused:
                if (item := next(units, None)) is None:
                    self._is_over = True
                    return
                yield item

        work = CountUnits(*self._like, self._tables)
        counted = run_units(until_paused(), work, self.settings.workers)
        with closing(counted) as results:
            for item, batch in results:
                at.documents += batch.n_ended
                if batch.in_validation is not None:
                    at.divided = True
                    at.validation += int(batch.in_validation[: batch.n_ended].sum())
                at.left_out.add(batch)
                check_bad_records(at.left_out, batch, self.settings.max_bad_records)
                at.source, at.after, at.n_read = item.end
                stage.advance(item.unit.n_bytes)
                is_due = time.monotonic() >= pause or self.progress.out_of_time()
                paused = is_due or self._is_full()
        at.bytes, at.seconds = stage.done, stage.seconds

    def _merge(self, counts: FrozenCounts) -> None:
        """Add counts of another part or earlier run to the first table, which must be idle."""
        from bpe import PretokenCounts

        if not self._tables:
            self._tables.append(PretokenCounts(*self._like))
        self._tables[0].merge(counts)

    def _is_full(self) -> bool:
        return sum(table.n_bytes for table in self._tables) > self._most

    def _checkpoint(self, is_full: bool, stage: Stage | None = None) -> None:
        """Save counts: in a spill file if tables are full or, at the end, if there are others."""
        at, tables = self.at, self._tables
        spills = bool(tables) and (is_full or (self._is_over and bool(at.spills)))
        if spills:
            name = f"{_SPILL}{len(at.spills)}"
            at.spills.append(spill.write_spill(self.journal.storage, name, tables))
            tables.clear()
        if spills or not self._is_over:
            self._save([table.arrays() for table in tables], stage)

    def _merge_all(self, stage: Stage | None = None) -> FrozenCounts:
        """Merge the counts of all workers and runs, and save them."""
        from bpe import PretokenCounts
        from bpe.train.counts import sum_counts

        if spills := self.at.spills:
            counts = spill.merge_spills(self.journal.storage, spills, self._like)
        else:
            counts = sum_counts(self._tables or [PretokenCounts(*self._like)])
        self.at.is_all, self.at.spills = True, []
        self._save([counts.arrays()], stage)
        for spilled in spills:
            self.journal.storage.remove(spilled.file)
        return counts

    def _save(self, pieces: Sequence[Arrays], stage: Stage | None = None) -> None:
        """Write concatenated counts to a file, then the checkpoint; remove the previous file."""
        at, before = self.at, self.at.file
        at.file = at.digest = ""
        at.n_pretokens = sum(len(counts) for _, _, counts in pieces)
        if pieces:
            content = spill.encode_counts(pieces)
            name = "all" if at.is_all else f"{at.source}-{at.bytes}"
            at.file, at.digest = f"{_COUNTS}{name}", xxhash.xxh3_128_hexdigest(content)
            self.journal.storage.put(at.file, content)
        self.journal.save("counted", at, stage=stage)
        if before and before != at.file:
            self.journal.storage.remove(before)

    def _load_counts(self) -> FrozenCounts:
        """Load the counts of the last checkpoint."""
        at = self.at
        content = self.journal.storage.get(at.file)
        return spill.decode_counts(content, at.n_pretokens, at.digest, at.file, self._like)

    def _remove_leftovers(self) -> None:
        """Remove files that do not belong to the last checkpoint."""
        known = {self.at.file, *(spilled.file for spilled in self.at.spills)}
        for name in self.journal.storage.names():
            if name.startswith((_COUNTS, _SPILL)) and name not in known:
                self.journal.storage.remove(name)
