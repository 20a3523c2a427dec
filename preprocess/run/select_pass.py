"""Select documents before a run reads them: `SelectSettings`.

The documents of all passes are read, prepared and written to work files; then they are chosen and,
if wanted, ordered at random; then each pass has one source, of the documents in its files. After an
interruption, reading resumes from its last checkpoint in the journal; choosing begins again.

    text-N      the prepared documents of pass N, one after another
    rows-N      `selection.ROW` of each
    bounds-N    int64[n, 2], where the chosen documents are in text-N
    shuffled-N  the chosen documents in random order
    order-N     int64[n, 2], where they are in shuffled-N
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import xxhash
from msgspec import Struct, structs
from numpy.typing import NDArray

from bpe.errors import CorpusError
from preprocess.documents.batch import Bytes, DocumentBatch, ReadOptions, Rejected
from preprocess.report.progress import OutOfTimeError, Progress, Stage
from preprocess.report.summary import LeftOut, check_bad_records, check_has_documents, out_of_time
from preprocess.reused_memory import ReusedMemory
from preprocess.run import selection
from preprocess.run.journal import Journal, JournalError
from preprocess.run.memory_limit import bytes_for_tables
from preprocess.run.shuffle import shuffle
from preprocess.run.units import resume_point_after, run_numbered, units_after
from preprocess.settings.schema import SelectSettings
from preprocess.sources import ResumePoint, Source, WorkUnit
from preprocess.sources.selected import SELECTED, SelectedSource
from preprocess.storage import Stream

_COMPARED = 256 << 20  # bytes of memory for digests without a memory limit
_FIRST_LOOK = 1 << 16  # documents after which a slice without copies may be complete


class Selectable(Protocol):
    """A pass whose documents are selected."""

    number: int  # of the pass in its run
    names: dict[str, str]  # of its outputs
    reading: ReadOptions

    @property
    def files(self) -> Sequence[Source]:
        """The sources in which documents are selected."""


class SelectionLimits(Struct, frozen=True):
    """Options of the run that change no result."""

    workers: int
    unit_size: int
    memory_limit: int | None
    max_bad_records: int


class Spooled(Struct, kw_only=True, forbid_unknown_fields=True):
    """Checkpoint: the documents of pass `number` before a position are in its files."""

    number: int
    source: int = 0  # index of the source
    after: ResumePoint | None = None  # position in the source, as `WorkUnit.after`; None: start
    documents: int = 0
    text_bytes: int = 0
    left_out: LeftOut = msgspec.field(default_factory=LeftOut)
    rejected: list[Rejected] = []  # new since the previous checkpoint
    records: int = 0  # of the current source, as `DocumentBatch.n_records`
    bytes: int = 0  # bytes of the sources before the position
    seconds: float = 0.0
    is_all: bool = False  # no later document can be chosen
    digests: list[str] = []  # xxh3_128 of the text and the rows


class Selected(Struct, forbid_unknown_fields=True):
    """Checkpoint: the documents of pass `number` are chosen and ordered."""

    number: int
    documents: int
    text_bytes: int
    copies: int
    outside: int
    end: int  # number of documents read, up to the last one that decides
    digests: list[str]  # xxh3_128 of the text and the bounds


class Selection(Struct):
    """Result of `select_documents`."""

    sources: dict[int, list[Source]]  # number of a pass -> its source
    left_out: LeftOut
    rejected: list[Rejected]


def select_documents(
    passes: Sequence[Selectable], settings: SelectSettings, limits: SelectionLimits,
    journal: Journal, progress: Progress,
) -> Selection:
    """Select documents of passes: copies are found among all of them, slices are of each.

    Raises:
        CorpusError: Text cannot be read, or no document of a pass is chosen.
        OutputError: The work files cannot be written.
        JournalError: The work files of an earlier run are damaged.
        OutOfTimeError: The time limit of the run is reached.
    """
    found, storage = Selection({}, LeftOut(), []), journal.storage
    found_before = {x.number: journal.value(f"selected {x.number}", Selected) for x in passes}
    done = {number: each for number, each in found_before.items() if each is not None}
    for each in passes:
        earlier = [done[x.number] for x in passes if x.number < each.number]
        spool = SpoolPass(
            each, settings, limits, journal, progress, earlier, found.left_out.bad_records
        )
        chosen = done.get(each.number)
        spool.run(is_selected=chosen is not None)
        found.left_out.merge(spool.at.left_out)
        found.rejected += spool.rejected
        if chosen is None:
            chosen = done[each.number] = _choose(spool)
            journal.save(f"selected {each.number}", chosen)
        else:
            _check_files(each.number, settings, chosen, journal)
        if settings.shuffle_documents is not None:
            for name in (f"text-{each.number}", f"bounds-{each.number}"):
                storage.remove(name)
        left_out = LeftOut(duplicate_documents=chosen.copies, outside_documents=chosen.outside)
        found.left_out.merge(left_out)
        found.sources[each.number] = [_open(each, settings, chosen, journal)]
    for each in passes:
        storage.remove(f"rows-{each.number}")
    return found


def _choose(spool: SpoolPass) -> Selected:
    """Choose and order the documents of a pass, which come after those of earlier ones."""
    settings, journal, number = spool.settings, spool.journal, spool.at.number
    names = f"text-{number}", f"bounds-{number}"
    choice = spool.choose(_rows(journal, number), *names)
    if not choice.n_chosen:
        left_out, part = structs.replace(spool.at.left_out), spool.part
        left_out.merge(LeftOut(
            duplicate_documents=choice.n_copies, outside_documents=choice.n_outside
        ))
        check_has_documents(next(iter(part.names), "train"), part.files, 0, 0, left_out)
    if (seed := settings.shuffle_documents) is not None:
        shuffled = f"shuffled-{number}", f"order-{number}"
        with spool.progress.stage("shuffling", 2 * choice.n_bytes) as stage:
            shuffle(journal.storage, names, shuffled, choice.n_bytes, seed, stage)
    return Selected(
        number, choice.n_chosen, choice.n_bytes, choice.n_copies, choice.n_outside, choice.end,
        [_digest(journal, name).hexdigest() for name in _names(number, settings)],
    )


def _names(number: int, settings: SelectSettings) -> tuple[str, str]:
    """Return the names of the files with the selected documents of a pass, and their bounds."""
    if settings.shuffle_documents is None:
        return f"text-{number}", f"bounds-{number}"
    return f"shuffled-{number}", f"order-{number}"


def _digest(journal: Journal, name: str, n_bytes: int | None = None) -> xxhash.xxh3_128:
    """Return the digest of the first bytes of a work file; None: of all."""
    storage, digest, place = journal.storage, xxhash.xxh3_128(), 0
    stop = (storage.size(name) or 0) if n_bytes is None else n_bytes
    while place < stop and (piece := storage.read(name, place, min(place + (1 << 20), stop))):
        digest.update(piece)
        place += len(piece)
    return digest


def _check_files(
    number: int, settings: SelectSettings, chosen: Selected, journal: Journal
) -> None:
    """Raise JournalError if the selected documents of an earlier run are damaged."""
    for name, digest in zip(_names(number, settings), chosen.digests, strict=True):
        if _digest(journal, name).hexdigest() != digest:
            raise _damaged(journal, name)


def _rows(journal: Journal, number: int) -> selection.Rows:
    """Map the rows of a pass; raise JournalError if their file is missing."""
    storage = journal.storage
    try:
        return selection.open_rows(storage.path(f"rows-{number}"))
    except OSError as error:
        raise _damaged(journal, f"rows-{number}") from error


def _damaged(journal: Journal, name: str) -> JournalError:
    return JournalError(
        f"{journal.storage.where(name)}: the documents of the interrupted run are damaged or"
        " missing; start over (--overwrite)"
    )


def _open(
    part: Selectable, settings: SelectSettings, chosen: Selected, journal: Journal
) -> SelectedSource:
    """Open the chosen documents of a pass."""
    text, bounds = map(journal.storage.path, _names(part.number, settings))
    return SelectedSource(text, bounds, chosen.text_bytes, SELECTED, part.reading)


# (text of the documents, their rows, their batch without text)
_Spooled = tuple[Bytes, selection.Rows, DocumentBatch]


class SpoolUnits:
    """Factory of workers that prepare the documents of units."""

    def __init__(self, compares: bool) -> None:
        self._compares = compares
        self._memory = ReusedMemory(limit=256, largest=1 << 26)

    def __call__(self) -> Callable[[WorkUnit], _Spooled]:
        """Make a worker."""
        return self._spool

    def _spool(self, unit: WorkUnit) -> _Spooled:
        batch = unit.read(self._memory.array)
        unit.check_unchanged()
        has_values = bool(batch.fields) or batch.spans is not None
        if has_values or batch.starts_mid_document or batch.ends_mid_document:
            raise CorpusError(
                f"{unit.where}: a format with divided documents or with values of its own cannot be"
                " read while documents are selected; leave out the options that select them"
            )
        rows = selection.measure(batch, self._compares)
        return batch.close_gaps()[0], rows, batch.without_text()


@dataclass
class SpoolPass:
    """Writes the prepared documents of a pass to work files; arguments as `select_documents`."""

    part: Selectable
    settings: SelectSettings
    limits: SelectionLimits
    journal: Journal
    progress: Progress
    earlier: Sequence[Selected] = ()  # passes whose documents come first
    n_bad_before: int = 0  # bad records of these

    def __post_init__(self) -> None:
        number = self.part.number
        entries = self.journal.values(f"spooled {number}", Spooled)
        self.rejected = [each for entry in entries for each in entry.rejected]
        self.at = entries[-1] if entries else Spooled(number=number)
        self._slice = selection.Slice(self.settings)
        self._next_look = _FIRST_LOOK

    def run(self, is_selected: bool) -> None:
        """Read the remaining units, until no later document can be chosen.

        `is_selected`: the documents are selected already, so the files of this pass may be gone.
        """
        at, progress, number = self.at, self.progress, self.part.number
        n_bytes = sum(source.n_bytes for source in self.part.files)
        title = "reading documents"
        names = f"text-{number}", f"rows-{number}"
        sizes = at.text_bytes, at.documents * selection.ROW.itemsize
        if at.is_all:
            progress.add_stage_before(title, at.seconds, at.bytes, "B")
            if not is_selected:
                self._check_files(names, sizes)
            return
        self._digests = self._check_files(names, sizes)
        storage = self.journal.storage
        with ExitStack() as stack:
            text, rows = (
                stack.enter_context(closing(storage.stream(name, size)))
                for name, size in zip(names, sizes, strict=True)
            )
            # The journal's thread may still sync the streams.
            stack.callback(self.journal.rest)
            with progress.stage(title, n_bytes, "B", at.bytes, at.seconds) as stage:
                self._read(stage, text, rows)

    def _read(self, stage: Stage, text: Stream, rows: Stream) -> None:
        at, limits, files = self.at, self.limits, self.part.files
        units = units_after(files, at.source, at.after)
        make_work = SpoolUnits(self.settings.deduplicate)
        at.rejected = []
        written = self._written(rows)
        for row in range(0, len(written) if self._counts_characters else 0, 1 << 18):
            self._slice.take(written["characters"][row : row + (1 << 18)])
        with closing(run_numbered(units, make_work, limits.workers)) as results:
            for index, unit, (content, of_unit, batch) in results:
                if at.after is None:  # the unit begins a source
                    at.records = 0
                written_now = content.data, memoryview(of_unit.tobytes())
                for stream, digest, data in zip(
                    (text, rows), self._digests, written_now, strict=True
                ):
                    stream.append(data)
                    digest.update(data)
                at.documents, at.text_bytes = at.documents + len(of_unit), text.n_bytes
                self._note_left_out(batch)
                at.source, at.after = resume_point_after(index, unit)
                stage.advance(unit.n_bytes)
                at.bytes, at.seconds = stage.done, stage.seconds
                if self._is_complete(of_unit, rows):
                    break
                if self.journal.due():
                    self._submit(stage, text, rows)
                if at.source < len(files) and self.progress.out_of_time():
                    self._submit(stage, text, rows)
                    self.journal.wait()
                    what = "reading documents resumes from there"
                    raise OutOfTimeError(out_of_time(self.progress, what))
        at.is_all = True
        self._submit(stage, text, rows)
        self.journal.wait()

    def _note_left_out(self, batch: DocumentBatch) -> None:
        at = self.at
        at.left_out.add(batch)
        new = [structs.replace(x, record=x.record + at.records) for x in batch.rejected]
        at.records += batch.n_records
        at.rejected += new
        self.rejected += new
        n_bad = self.n_bad_before + at.left_out.bad_records
        of_all = structs.replace(at.left_out, bad_records=n_bad)
        check_bad_records(of_all, batch, self.limits.max_bad_records)

    def _check_files(
        self, names: tuple[str, str], sizes: tuple[int, int]
    ) -> list[xxhash.xxh3_128]:
        """Return the digests of the files up to the checkpoint; raise if they are others."""
        found = [_digest(self.journal, *each) for each in zip(names, sizes, strict=True)]
        if self.at.digests and [each.hexdigest() for each in found] != self.at.digests:
            raise _damaged(self.journal, names[0])
        return found

    def _submit(self, stage: Stage, text: Stream, rows: Stream) -> None:
        self.at.digests = [each.hexdigest() for each in self._digests]
        key = f"spooled {self.at.number}"
        self.journal.submit(key, self.at, [text, rows], adds=True, stage=stage)
        self.at.rejected = []

    def _written(self, stream: Stream) -> selection.Rows:
        """Return the rows written so far."""
        return _rows(self.journal, self.part.number)[: stream.n_bytes // selection.ROW.itemsize]

    def _is_complete(self, new: selection.Rows, rows: Stream) -> bool:
        """Return True if no later document can be chosen."""
        if not self.settings.limits:
            return False
        if self._counts_characters:
            self._slice.take(new["characters"])
            return self._slice.is_complete
        if self.at.documents < self._next_look:
            return False
        self._next_look = 2 * self.at.documents
        return self.choose(self._written(rows)).is_complete

    @property
    def _counts_characters(self) -> bool:
        """True if a slice is complete after so many documents, whatever they are."""
        return self.settings.limits and not self.settings.deduplicate

    def choose(self, rows: selection.Rows, text: str = "", bounds: str = "") -> selection.Choice:
        """Choose among documents of this pass; with names of files, write the bounds."""
        before = [_rows(self.journal, each.number)[: each.end] for each in self.earlier]
        copies, first = self._find_copies([*before, rows]), sum(map(len, before))
        storage = self.journal.storage if text else None
        return selection.choose(rows, copies, first, self.settings, storage, text, bounds)

    def _find_copies(self, rows: Sequence[selection.Rows]) -> NDArray[np.uint64]:
        """Find copies in the memory of the run; none if they are not looked for."""
        if not self.settings.deduplicate:
            return np.zeros(-(-sum(map(len, rows)) // 64), np.uint64)
        limits = self.limits
        limit = bytes_for_tables(limits.memory_limit, limits.workers, limits.unit_size)
        return selection.find_copies(rows, min(limit, _COMPARED))
