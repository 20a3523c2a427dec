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
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import xxhash

from preprocess.documents import DocumentBatch
from preprocess.inputs import end_of_text_token
from preprocess.journal import Journal, JournalError, understanding
from preprocess.limits import check_has_documents, out_of_time
from preprocess.memory import bytes_for_tables, check_merging
from preprocess.progress import OutOfTimeError, Progress, Stage
from preprocess.report import LeftOut
from preprocess.reused_memory import ReusedMemory
from preprocess.settings.schema import TrainSettings
from preprocess.sources import Place, Source, WorkUnit
from preprocess.storage import Storage
from preprocess.units import Pausing, place_after, run_numbered, run_on_threads, units_after

if TYPE_CHECKING:
    from bpe import PretokenCounts, Tokenizer
    from bpe.count import FrozenCounts
    from preprocess.spill import Words

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
) -> Tokenizer:
    """Count the pre-tokens of the train documents, then merge."""
    from bpe import Tokenizer, train_from_counts

    counts = count_pretokens(sources, settings, storage, journal, progress, left_out)
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


@dataclass
class _Counted:
    """What an entry of the kind "counted" says: how far, and what was seen up to there.

    Attributes:
        source: The number of the source.
        after: The place in it; None: its start.
        is_all: Whether nothing is left to count.
        file: The name of the file of counts.
        digest: The xxh3_128 of that file.
        n_words: Its pre-tokens.
        documents: Documents that ended.
        validation: Those of them that are validation.
        divided: Whether documents are divided at all.
        left_out: See `LeftOut`.
        bytes: Bytes of the sources.
        seconds: How long it took.
        run: The run of counts that was written with this entry, as `preprocess.spill.Run`; those of
            all entries belong together.
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
    left_out: dict[str, int] = field(default_factory=lambda: asdict(LeftOut()))
    bytes: int = 0
    seconds: float = 0.0
    run: dict[str, Any] | None = None


def count_pretokens(
    sources: Sequence[Source],
    settings: TrainSettings,
    storage: Storage,
    journal: Journal,
    progress: Progress,
    left_out: LeftOut,
) -> FrozenCounts:
    """The pre-tokens of the documents that are not validation, and how often each occurs.

    The counts are saved when all is counted, and now and then before. For that the workers come to
    rest, so that what they have is what was counted up to one place; it is done so seldom that it
    takes less than one part in `_WORK_PER_SAVING` of the time. When the tables take what memory has
    room for, they are saved as a run, and the workers begin with empty ones.
    """
    from bpe import PretokenCounts
    from bpe.count import added_up
    from preprocess.spill import Run, merged, write_run

    of_workers: list[PretokenCounts] = []
    state = _Counted()
    runs: list[Run] = []
    with understanding():
        for entry in journal.entries:
            if entry["kind"] == "counted":
                state = _Counted(**{key: value for key, value in entry.items() if key != "kind"})
                if state.run is not None:
                    parts = tuple((n, n_bytes, text) for n, n_bytes, text in state.run["parts"])
                    runs.append(Run(state.run["file"], parts))
                    state.run = None
    known = {state.file} if state.is_all else {state.file, *(run.file for run in runs)}
    for name in storage.names():
        # A kill between writing a file and the entry, or between that and removing the one before.
        if name.startswith((_COUNTS, _RUN)) and name not in known:
            storage.remove(name)
    if state.is_all:
        return _all_counts(storage, settings, state, left_out, progress)
    if state.file:
        of_workers.append(_load_counts(storage, settings, state))
    idle = list(of_workers)

    def make_work() -> Callable[[WorkUnit], DocumentBatch]:
        try:
            counts = idle.pop()
        except IndexError:
            counts = PretokenCounts(settings.pattern, settings.all_special_tokens)
            of_workers.append(counts)

        def work(unit: WorkUnit) -> DocumentBatch:
            batch = unit.read(memory.array)
            chosen = batch if batch.in_validation is None else batch.select(~batch.in_validation)
            counts.add(*chosen.joined())
            unit.check_unchanged()
            return batch.without_text()

        return work

    dropped = LeftOut(**state.left_out)
    most = bytes_for_tables(settings.memory_limit, settings.workers, settings.unit_size)
    memory = ReusedMemory(limit=256, largest=1 << 26)
    with _counting_stage(sources, state, progress) as stage:
        units = Pausing(units_after(sources, state.source, state.after))
        cost = 0.0
        while not units.is_over:
            idle[:] = of_workers
            units.paused = is_full = False
            pause = time.monotonic() + max(journal.seconds, _WORK_PER_SAVING * cost)
            counting = run_numbered(units, make_work, settings.workers, run_on_threads)
            with closing(counting) as results:
                for index, unit, batch in results:
                    state.documents += batch.n_ended
                    if batch.in_validation is not None:
                        state.divided = True
                        state.validation += int(batch.in_validation[: batch.n_ended].sum())
                    dropped.add(batch)
                    state.source, state.after = place_after(index, unit)
                    stage.advance(unit.n_bytes)
                    is_full = sum(counts.n_bytes for counts in of_workers) > most
                    is_due = time.monotonic() >= pause
                    units.paused = is_full or is_due or progress.out_of_time()
            state.left_out, state.bytes, state.seconds = asdict(dropped), stage.done, stage.seconds
            began = time.monotonic()
            if units.is_over:
                _refuse_uncountable(sources, state, dropped)
            if is_full or (runs and units.is_over and of_workers):
                runs.append(write_run(storage, f"{_RUN}{len(runs)}", of_workers))
                del of_workers[:], idle[:]
                state.run = asdict(runs[-1])
            if not units.is_over or state.run is not None:
                _save_counts(storage, journal, [counts.arrays() for counts in of_workers], state)
                state.run = None
            cost = time.monotonic() - began
            if not units.is_over and progress.out_of_time():
                raise OutOfTimeError(out_of_time(progress, "counting goes on there"))
        if runs:
            counts = merged(storage, runs, settings.pattern, settings.all_special_tokens)
        else:
            del idle[:]
            counts = added_up(of_workers)
        state.is_all = True
        _save_counts(storage, journal, [counts.arrays()], state)
        for run in runs:
            storage.remove(run.file)
    left_out.take_over(dropped)
    return counts


def _counting_stage(
    sources: Sequence[Source], state: _Counted, progress: Progress
) -> AbstractContextManager[Stage]:
    n_bytes = sum(source.n_bytes for source in sources)
    return progress.stage(
        "counting", n_bytes, done_before=state.bytes, seconds_before=state.seconds
    )


def _all_counts(
    storage: Storage,
    settings: TrainSettings,
    state: _Counted,
    left_out: LeftOut,
    progress: Progress,
) -> FrozenCounts:
    """What an earlier run counted to the end."""
    progress.add_stage_before("counting", state.seconds, state.bytes, "B")
    left_out.take_over(LeftOut(**state.left_out))
    from bpe.count import CountsFileError, FrozenCounts

    arrays = _saved_words(storage, state)
    try:
        return FrozenCounts(settings.pattern, settings.all_special_tokens, *arrays)
    except CountsFileError as error:
        raise JournalError(f"{state.file}: {error}; start anew (--overwrite)") from error


def _refuse_uncountable(sources: Sequence[Source], state: _Counted, left_out: LeftOut) -> None:
    n_train = state.documents - state.validation
    check_has_documents("train", sources, n_train, state.documents, left_out)
    if state.divided:
        check_has_documents("val", sources, state.validation, state.documents, left_out)


def _save_counts(
    storage: Storage, journal: Journal, pieces: Sequence[Words], state: _Counted
) -> None:
    """Write the counts of all workers, one behind the other, and say so in the journal."""
    from preprocess.spill import written

    before = state.file
    state.file = state.digest = ""
    state.n_words = sum(len(counts) for _, _, counts in pieces)
    if pieces:
        content = written(pieces)
        name = "all" if state.is_all else f"{state.source}-{state.bytes}"
        state.file, state.digest = f"{_COUNTS}{name}", xxhash.xxh3_128_hexdigest(content)
        storage.put(state.file, content)
    journal.append({"kind": "counted", **asdict(state)})
    if before and before != state.file:
        storage.remove(before)


def _saved_words(storage: Storage, state: _Counted) -> Words:
    from preprocess.spill import read

    content = storage.get(state.file)
    if content is None or xxhash.xxh3_128_hexdigest(content) != state.digest:
        raise JournalError(
            f"{state.file}: the counts that an earlier run saved are damaged or gone; start anew"
            " (--overwrite)"
        )
    return read(content, state.n_words)


def _load_counts(storage: Storage, settings: TrainSettings, state: _Counted) -> PretokenCounts:
    from bpe import PretokenCounts
    from bpe.count import CountsFileError

    buffer, offsets, counts = _saved_words(storage, state)
    try:
        return PretokenCounts.from_arrays(
            settings.pattern, settings.all_special_tokens, buffer, offsets, counts
        )
    except CountsFileError as error:
        raise JournalError(f"{state.file}: {error}; start anew (--overwrite)") from error
