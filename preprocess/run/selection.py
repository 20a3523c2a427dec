"""Select documents before other passes read them: copies, and what is outside of a slice.

A pass reads the documents of the other passes and keeps a `ROW` of each. Then it decides, and keeps
a bit of each document and the places of those that are cut: `Source.kept`, by which the loop of
`preprocess.run.units` leaves documents out. After an interruption, reading resumes from its last
checkpoint in the journal; deciding begins again.

    rows-N      `ROW` of each document of pass N, until all passes have decided
    kept-N      a bit of each document, up to the last one that decides
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import xxhash
from msgspec import Struct
from numpy.typing import NDArray

from bpe.errors import CorpusError
from bpe.text.bit_set import bits_between, set_bits
from bpe.text.spans import iter_ranges
from preprocess.documents.batch import DocumentBatch, Kept, ReadOptions, count_characters
from preprocess.options import RunSettings, SelectSettings
from preprocess.report.progress import OutOfTimeError, Progress, Stage
from preprocess.report.summary import LeftOut, check_bad_records, check_has_documents, out_of_time
from preprocess.reused_memory import ReusedMemory
from preprocess.run.journal import Journal, JournalError
from preprocess.run.memory_limit import bytes_for_tables
from preprocess.run.units import Item, Position, read_units, run_units
from preprocess.sources import ResumePoint, Source
from preprocess.storage import Storage, Stream

# Size in bytes, length in characters, and blake2b of a document: nobody can make two documents with
# the same one. Zeros if documents are not compared.
ROW = np.dtype([("size", "<i8"), ("characters", "<i8"), ("digest", "<u8", 2)])
Rows = NDArray[np.void]

_BLOCK = 1 << 18  # rows at a time, a multiple of 8
_COMPARED = 256 << 20  # bytes of memory for digests without a memory limit
_COMPARED_BYTES = 120  # of memory per document compared at a time
_FIRST_LOOK = 1 << 16  # documents after which a slice without copies may be complete


class Selectable(Protocol):
    """A pass whose documents are selected."""

    number: int  # of the pass in its run
    names: dict[str, str]  # of its outputs
    reading: ReadOptions
    selected: Sequence[Source] | None  # the sources to read then

    @property
    def files(self) -> list[Source]:
        """The sources to read."""

    @property
    def decisive(self) -> tuple[list[Source], int]:
        """The sources that decide which documents are selected, and how many precede `files`."""


class Measured(Struct, kw_only=True, forbid_unknown_fields=True):
    """Checkpoint: the rows of a pass have the documents before a position."""

    source: int = 0  # index of the source
    after: ResumePoint | None = None  # position in the source, as `WorkUnit.after`; None: start
    # By index of the source; of those read since the previous checkpoint, to which this adds,
    # or of all, if this replaces it.
    documents: dict[int, int] = {}
    left_out: LeftOut = msgspec.field(default_factory=LeftOut)
    bytes: int = 0  # bytes of the sources before the position
    seconds: float = 0.0
    is_all: bool = False  # no later document can be chosen
    digest: str = ""  # xxh3_128 of the rows


class Selected(Struct, forbid_unknown_fields=True):
    """Checkpoint: the documents of a pass are chosen."""

    starts: list[int]  # number of the first document of each source that was read, and their number
    end: int | None  # number of documents up to the last one that decides; None: all
    n_bytes: int  # of the chosen documents
    copies: int
    outside: int
    cuts: dict[int, tuple[int, int]]  # number of a document -> its characters that are kept
    digest: str  # xxh3_128 of the bits


def select_documents(
    passes: Sequence[Selectable], settings: SelectSettings, run: RunSettings, journal: Journal,
    progress: Progress,
) -> LeftOut:
    """Select the documents that passes read from now on, which get their `selected`.

    Copies are found among the documents of all passes, slices are of each.

    Args:
        passes: The passes, in order.
        settings: Which documents.
        run: Settings of the run.
        journal: Journal of the run.
        progress: Progress of the run.

    Returns:
        The numbers of copies, and of documents before a slice.

    Raises:
        CorpusError: Text cannot be read, or no document of a pass is chosen.
        OutputError: The work files cannot be written.
        JournalError: The work files of an earlier run are damaged.
        OutOfTimeError: The time limit of the run is reached.
    """
    left_out = LeftOut()
    if not settings.selects:
        return left_out
    earlier = dict[int, Selected]()
    for each in passes:
        measuring = MeasurePass(each, settings, run, journal, progress, earlier)
        chosen = journal.value(f"selected {each.number}", Selected)
        measuring.run(is_selected=chosen is not None)
        if chosen is None:
            chosen = measuring.choose_all()
            journal.save(f"selected {each.number}", chosen)
        elif _digest(journal.storage, f"kept-{each.number}").hexdigest() != chosen.digest:
            raise _damaged(journal, f"kept-{each.number}")
        earlier[each.number] = chosen
        left_out.merge(
            LeftOut(duplicate_documents=chosen.copies, outside_documents=chosen.outside)
        )
        each.selected = _selected_sources(each, chosen, journal.storage)
    for each in passes:
        journal.storage.remove(f"rows-{each.number}")
    return left_out


def _selected_sources(part: Selectable, chosen: Selected, storage: Storage) -> list[Source]:
    """Return the sources of a pass with their selected documents."""
    bits = np.memmap(storage.path(f"kept-{part.number}"), np.uint8, "r")
    starts, fraction, found = chosen.starts, part.reading.validation_fraction, list[Source]()
    for index, source in enumerate(part.files, part.decisive[1]):
        first, after = (starts[min(i, len(starts) - 1)] for i in (index, index + 1))
        stop = None
        if chosen.end is not None and after >= chosen.end:
            stop = max(chosen.end - first, 0)
        found.append(copy(source))
        found[-1].kept = Kept(bits, first, stop, chosen.cuts, fraction)
    return found


def _digest(storage: Storage, name: str, n_bytes: int | None = None) -> xxhash.xxh3_128:
    """Return the digest of the first bytes of a work file; None: of all."""
    digest, place = xxhash.xxh3_128(), 0
    stop = (storage.size(name) or 0) if n_bytes is None else n_bytes
    while place < stop and (piece := storage.read(name, place, min(place + (1 << 20), stop))):
        digest.update(piece)
        place += len(piece)
    return digest


def _rows(journal: Journal, number: int) -> Rows:
    """Map the rows of a pass; raise JournalError if their file is missing."""
    try:
        path = journal.storage.path(f"rows-{number}")
        is_empty = not path.stat().st_size  # cannot be mapped
        return np.zeros(0, ROW) if is_empty else np.memmap(path, ROW, "r")
    except OSError as error:
        raise _damaged(journal, f"rows-{number}") from error


def _damaged(journal: Journal, name: str) -> JournalError:
    return JournalError(
        f"{journal.storage.where(name)}: what the interrupted run has read of documents is damaged"
        " or missing; start over (--overwrite)"
    )


# --- reading ---


def measure(batch: DocumentBatch, compares: bool) -> Rows:
    """Return the row of each document of a batch: `ROW`[n_documents].

    Conversations are equal if their special tokens, and what is trained on, are equal, too.
    """
    rows = np.zeros(len(batch), ROW)
    rows["size"] = batch.sizes
    rows["characters"] = count_characters(batch.buffer, batch.bounds)
    if compares and len(batch):
        texts = (batch.buffer[start:end].data for start, end in iter_ranges(batch.bounds))
        digests = [blake2b(text, digest_size=16) for text in texts]
        for spans in (batch.special, batch.spans):
            if spans is not None:
                of, begins = spans.document_of(batch.bounds), batch.bounds[::2]
                inside = spans.bounds.reshape(-1, 2) - begins[of][:, np.newaxis]
                for number, row in zip(of, np.column_stack([inside, spans.values]), strict=True):
                    digests[number].update(row.data)
        found = b"".join(digest.digest() for digest in digests)
        rows["digest"] = np.frombuffer(found, "<u8").reshape(-1, 2)
    return rows


@dataclass
class MeasurePass:
    """Reads the documents of a pass until no later one can be chosen, and keeps their rows."""

    part: Selectable
    settings: SelectSettings
    limits: RunSettings
    journal: Journal
    progress: Progress
    earlier: Mapping[int, Selected]  # number of each pass whose documents come first -> its result

    def __post_init__(self) -> None:
        self._key = f"measured {self.part.number}"
        entries = self.journal.values(self._key, Measured)
        self.at = entries[-1] if entries else Measured()
        self._n_of_source = {x: y for entry in entries for x, y in entry.documents.items()}
        self.at.documents = {}
        self._sources = self.part.decisive[0]
        self._slice = Slice(self.settings)
        self._next_look = _FIRST_LOOK

    @property
    def _n_documents(self) -> int:
        return sum(self._n_of_source.values())

    def run(self, is_selected: bool) -> None:
        """Read the remaining units; `is_selected`: the rows may be gone."""
        at, title = self.at, "reading documents"
        name, size = f"rows-{self.part.number}", self._n_documents * ROW.itemsize
        if is_selected:
            self.progress.add_stage_before(title, at.seconds, at.bytes, "B")
            return
        self._digest = _digest(self.journal.storage, name, size)
        if at.digest and self._digest.hexdigest() != at.digest:
            raise _damaged(self.journal, name)
        if at.is_all:
            self.progress.add_stage_before(title, at.seconds, at.bytes, "B")
            return
        n_bytes = sum(source.n_bytes for source in self._sources)
        with closing(self.journal.storage.stream(name, size)) as rows:
            try:
                with self.progress.stage(title, n_bytes, "B", at.bytes, at.seconds) as stage:
                    self._read(stage, rows)
            finally:
                self.journal.rest()  # its thread may still sync the stream

    def _read(self, stage: Stage, rows: Stream) -> None:
        at, n_of_source, compares = self.at, self._n_of_source, self.settings.deduplicate
        memory, written = ReusedMemory(limit=256, largest=1 << 26), self._written(rows)
        for row in range(0, len(written) if self._counts_characters else 0, _BLOCK):
            self._slice.take(written["characters"][row : row + _BLOCK])

        def work(item: Item) -> tuple[Rows, DocumentBatch]:
            batch = item.documents(memory.array)
            item.unit.check_unchanged()
            if batch.starts_mid_document or batch.ends_mid_document:
                raise CorpusError(
                    f"{item.unit.where}: a format that divides documents cannot be read while"
                    " documents are selected; leave out the options that select them"
                )
            return measure(batch, compares), batch.without_text()

        units = read_units(self._sources, Position(at.source, at.after), self.limits.workers)
        with closing(run_units(units, lambda: work, self.limits.workers)) as results:
            for item, (of_unit, batch) in results:
                data = of_unit.tobytes()
                rows.append(memoryview(data))
                self._digest.update(data)
                n = n_of_source[item.source] = n_of_source.get(item.source, 0) + len(of_unit)
                at.documents[item.source] = n
                at.left_out.add(batch)
                check_bad_records(at.left_out, batch, self.limits.max_bad_records)
                at.source, at.after, _ = item.end
                stage.advance(item.unit.n_bytes)
                at.bytes, at.seconds = stage.done, stage.seconds
                if self._is_complete(of_unit, rows):
                    break
                if self.journal.due():
                    self._submit(stage, rows)
                if at.source < len(self._sources) and self.progress.out_of_time():
                    self._submit(stage, rows)
                    self.journal.wait()
                    what = "reading documents resumes from there"
                    raise OutOfTimeError(out_of_time(self.progress, what))
        at.is_all = True
        self._submit(stage, rows)
        self.journal.wait()

    def _submit(self, stage: Stage, rows: Stream) -> None:
        self.at.digest, whole = self._digest.hexdigest(), self.journal.is_long
        if whole:
            self.at.documents = dict(self._n_of_source)
        self.journal.submit(self._key, self.at, [rows], adds=not whole, stage=stage)
        self.at.documents = {}

    def _written(self, stream: Stream) -> Rows:
        """Return the rows written so far."""
        return _rows(self.journal, self.part.number)[: stream.n_bytes // ROW.itemsize]

    def _is_complete(self, new: Rows, rows: Stream) -> bool:
        """Return True if no later document can be chosen."""
        if not self.settings.limits:
            return False
        if self._counts_characters:
            self._slice.take(new["characters"])
            return self._slice.is_complete
        if rows.n_bytes // ROW.itemsize < self._next_look:
            return False
        self._next_look = 2 * (rows.n_bytes // ROW.itemsize)
        return self._choose(self._written(rows)).is_complete

    @property
    def _counts_characters(self) -> bool:
        """True if a slice is complete after so many documents, whatever they are."""
        return self.settings.limits and not self.settings.deduplicate

    # --- choosing ---

    def choose_all(self) -> Selected:
        """Choose documents, which come after those of earlier passes, and write their bits."""
        journal, number = self.journal, self.part.number
        name = f"kept-{number}"
        with closing(journal.storage.stream(name)) as bits:
            rows, starts = _rows(journal, number), self._starts()
            first = self.part.decisive[1]
            places = (min(x, len(starts) - 1) for x in (first, first + len(self.part.files)))
            choice = self._choose(rows, bits, range(*(starts[x] for x in places)))
            bits.sync()
        if not choice.n_chosen:
            choice = self._choose(rows)
            copies, outside = choice.n_copies, choice.n_outside
            left_out = LeftOut(duplicate_documents=copies, outside_documents=outside)
            left_out.merge(self.at.left_out)
            output = next(iter(self.part.names), "train")
            check_has_documents(output, self._sources, 0, 0, left_out)
        return Selected(
            starts, choice.end if choice.is_complete else None,
            choice.n_bytes, choice.n_copies, choice.n_outside, choice.cuts,
            _digest(journal.storage, name).hexdigest(),
        )

    def _starts(self) -> list[int]:
        """Return the number of the first document of each source that was read, and of all."""
        n_of_source = self._n_of_source
        counts = [n_of_source.get(i, 0) for i in range(max(n_of_source, default=-1) + 1)]
        starts: list[int] = np.cumsum([0, *counts]).tolist()
        return starts

    def _choose(
        self, rows: Rows, bits: Stream | None = None, own: range | None = None
    ) -> Choice:
        """Choose among documents of this pass, and write their bits; `own` as in `choose`."""
        before = [_rows(self.journal, x)[: each.end] for x, each in self.earlier.items()]
        n_before = sum(map(len, before))
        copies = np.zeros(-(-(n_before + len(rows)) // 64), np.uint64)
        if self.settings.deduplicate:
            limits = self.limits
            limit = bytes_for_tables(limits.memory_limit, limits.workers, limits.unit_size)
            copies = find_copies([*before, rows], min(limit, _COMPARED))
        return choose(rows, copies, n_before, self.settings, bits, own)


def find_copies(rows: Sequence[Rows], n_bytes: float) -> NDArray[np.uint64]:
    """Find the documents that are equal to an earlier one.

    Args:
        rows: Rows of consecutive documents.
        n_bytes: Memory to use: documents are compared in parts, by their digests.

    Returns:
        A bit set of their numbers, see `bpe.text.bit_set`.
    """
    n = sum(map(len, rows))
    copies = np.zeros(-(-n // 64), np.uint64)
    n_parts = max(1, int(-(-n * _COMPARED_BYTES // max(n_bytes, 1 << 20))))
    for part in range(n_parts):
        found, place = [(np.zeros(0, np.int64), np.zeros((0, 2), np.uint64))], 0
        for of in rows:
            for start in range(0, len(of), _BLOCK):
                block = of["digest"][start : start + _BLOCK]
                inside = np.flatnonzero(block[:, 0] % np.uint64(n_parts) == part)
                found.append((inside + (place + start), block[inside]))
            place += len(of)
        numbers, digests = (np.concatenate(each) for each in zip(*found, strict=True))
        del found
        order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: earlier ones come first
        digests = digests[order]
        is_copy = (digests[1:] == digests[:-1]).all(axis=1)
        set_bits(copies, numbers[order[1:][is_copy]])
    return copies


class Slice:
    """The slice of documents that `start_character`, `max_characters`, `max_documents` describe.

    Attributes:
        is_complete: True if no later document can be in the slice.
    """

    def __init__(self, settings: SelectSettings) -> None:
        self.start, most = settings.start_character, settings.max_characters
        self.stop = float("inf") if most is None else self.start + most
        self._cuts, self._most = settings.cut_documents, settings.max_documents
        self._n_characters = self._n_chosen = 0
        self.is_complete = False

    def take(self, characters: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return (which of the next documents are in the slice, the character each begins at)."""
        ends = self._n_characters + np.cumsum(characters)
        begins = ends - characters
        chosen = (ends > self.start if self._cuts else begins >= self.start) & (begins < self.stop)
        if self._most is not None:
            chosen &= self._n_chosen + np.cumsum(chosen) <= self._most
        self._n_chosen += int(chosen.sum())
        self._n_characters = int(ends[-1]) if len(ends) else self._n_characters
        self.is_complete = self._n_characters >= self.stop or self._n_chosen == self._most
        return chosen, begins


class Choice(NamedTuple):
    """Result of `choose`: numbers of documents, and bytes of the chosen ones.

    Those that are left out, `n_copies` and `n_outside`, are counted among `own` documents alone.
    `end` is the number of documents up to the last one that decides: what follows is ignored.
    """

    n_chosen: int
    n_bytes: int
    n_copies: int
    n_outside: int
    end: int
    is_complete: bool
    cuts: dict[int, tuple[int, int]]


def choose(
    rows: Rows, copies: NDArray[np.uint64], first: int, settings: SelectSettings,
    bits: Stream | None = None, own: range | None = None,
) -> Choice:
    """Choose documents, and write a bit of each.

    Args:
        rows: Rows of the documents.
        copies: Documents to leave out; a bit set in which they are numbered from `first` on.
        first: See `copies`.
        settings: The slice.
        bits: Gets a bit of each document, `Kept.bits`; None: nothing is written.
        own: The documents among which those that are left out are counted, of a task those of its
            part, as rows; None: all.
    """
    wanted, n_chosen, n_bytes, end = Slice(settings), 0, 0, 0
    own, n_own = range(len(rows)) if own is None else own, 0
    cuts: dict[int, tuple[int, int]] = {}
    for row in range(0, len(rows), _BLOCK):
        block = rows[row : row + _BLOCK]
        kept = np.ones(len(block), np.bool_)
        kept[_numbers(copies, first + row, len(block))] = False
        chosen = np.zeros(len(block), np.bool_)
        chosen[kept], begins = wanted.take(block["characters"][kept])
        numbers = np.flatnonzero(chosen)
        if settings.cut_documents:
            places = begins[chosen[kept]], block["characters"][numbers]
            for i in {0, len(numbers) - 1} if len(numbers) else ():
                begin, length = (int(each[i]) for each in places)
                cuts |= _cut(wanted, row + int(numbers[i]), begin, length)
        if bits is not None:
            bits.append(memoryview(np.packbits(chosen, bitorder="little").tobytes()))
        n_bytes += int(block["size"][numbers].sum())
        n_chosen += len(numbers)
        n_own += int(chosen[max(own.start - row, 0) : max(own.stop - row, 0)].sum())
        end = row + int(numbers[-1]) + 1 if len(numbers) else end
        if wanted.is_complete:
            break
    if not wanted.is_complete:
        end = len(rows)
    decided = own[: max(end - own.start, 0)]
    blocks = (decided[i : i + _BLOCK] for i in range(0, len(decided), _BLOCK))
    n_copies = sum(len(_numbers(copies, first + each.start, len(each))) for each in blocks)
    n_outside = len(decided) - n_copies - n_own
    return Choice(n_chosen, n_bytes, n_copies, n_outside, end, wanted.is_complete, cuts)


def _numbers(copies: NDArray[np.uint64], first: int, n: int) -> NDArray[np.int64]:
    """Return which of the documents `first` to `first + n` are in a bit set, from 0 on."""
    return bits_between(copies, first, first + n) - first


def _cut(wanted: Slice, number: int, begin: int, length: int) -> dict[int, tuple[int, int]]:
    """Return the characters of a document that are kept, if the slice begins or ends inside."""
    first, stop = max(wanted.start - begin, 0), int(min(wanted.stop - begin, length))
    return {number: (first, stop)} if first > 0 or stop < length else {}
