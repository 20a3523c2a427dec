"""Select documents before other passes read them: copies, and what is outside of a slice.

A pass reads the documents of the other passes and keeps a `ROW` of each, in the work file rows-N of
pass N. Then it decides: `Source.kept` has a bit of each document and the places of those that are
cut, by which the loop of `preprocess.run.units` leaves documents out. After an interruption,
reading resumes from its last checkpoint in the journal; deciding begins again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.errors import CorpusError
from bpe.text.bit_set import set_bits
from bpe.text.spans import iter_ranges
from preprocess.documents.batch import Bytes, DocumentBatch, Kept, count_characters
from preprocess.options import RunSettings, SelectSettings
from preprocess.report.progress import OutOfTimeError, Progress, Stage
from preprocess.report.summary import LeftOut, check_has_documents, out_of_time
from preprocess.reused_memory import ReusedMemory
from preprocess.run.journal import Journal, JournalError
from preprocess.run.memory_limit import bytes_for_tables
from preprocess.run.reading import Pass
from preprocess.run.units import Item, Reached, read_units, run_units
from preprocess.storage import Storage, Stream, digest_of_file

# Index of the source, length in characters, and blake2b of a document: nobody can make two
# documents with the same one. Zeros if documents are not compared.
ROW = np.dtype([("source", "<i8"), ("characters", "<i8"), ("digest", "<u8", 2)])
Rows = NDArray[np.void]

_BLOCK = 1 << 18  # rows at a time, a multiple of 8
_COMPARED = 256 << 20  # bytes of memory for digests without a memory limit
_COMPARED_BYTES = 120  # of memory per document compared at a time
_FIRST_LOOK = 1 << 16  # documents after which a slice without copies may be complete


class Measured(Reached, kw_only=True):
    """Checkpoint: the rows of a pass have the documents before a position."""

    documents: int = 0
    is_all: bool = False  # no later document can be chosen
    digest: str = ""  # xxh3_128 of the rows


class Selected(NamedTuple):
    """The documents of a pass that are chosen."""

    bits: Bytes  # a bit of each document up to the last one that decides, as `Kept.bits`
    starts: list[int]  # number of the first document of each source, and number of all
    end: int | None  # number of documents up to the last one that decides; None: all
    cuts: dict[int, tuple[int, int]]  # number of a document -> its characters that are kept
    copies: int
    outside: int


def select_documents(
    passes: Sequence[Pass], settings: SelectSettings, run: RunSettings, journal: Journal,
    progress: Progress,
) -> LeftOut:
    """Select the documents that passes read from now on, which get their `selected`.

    Copies are found among the documents of all passes, slices are of each. Returns the numbers of
    copies, and of documents before a slice.

    Raises:
        CorpusError: Text cannot be read, or no document of a pass is chosen.
        JournalError: The work files of an earlier run are damaged.
        OutOfTimeError: The time limit of the run is reached.
    """
    left_out, earlier = LeftOut(), dict[int, Selected]()
    for part in passes if settings.selects else ():
        measuring = MeasurePass(part, settings, run, journal, progress, earlier)
        measuring.run()
        chosen = earlier[part.number] = measuring.choose()
        left_out.duplicate_documents += chosen.copies
        left_out.outside_documents += chosen.outside
        part.selected = []
        for index, source in enumerate(part.files, part.decisive[1]):
            first, after = chosen.starts[index : index + 2]
            is_end = chosen.end is not None and after >= chosen.end
            stop = max((chosen.end or 0) - first, 0) if is_end else None
            part.selected.append(copy(source))
            fraction = part.reading.validation_fraction
            part.selected[-1].kept = Kept(chosen.bits, first, stop, chosen.cuts, fraction)
    return left_out


def _damaged(storage: Storage, name: str) -> JournalError:
    return JournalError(
        f"{storage.where(name)}: what the interrupted run has read of documents is damaged or"
        " missing; start over (--overwrite)"
    )


# --- reading ---


def measure(batch: DocumentBatch, source: int, compares: bool) -> Rows:
    """Return the row of each document of a batch: `ROW`[n_documents].

    Conversations are equal if their special tokens, and what is trained on, are equal, too.
    """
    rows = np.zeros(len(batch), ROW)
    rows["source"] = source
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

    part: Pass
    settings: SelectSettings
    run_settings: RunSettings
    journal: Journal
    progress: Progress
    earlier: Mapping[int, Selected]  # number of each pass whose documents come first -> its result

    def __post_init__(self) -> None:
        self._key, self._name = f"measured {self.part.number}", f"rows-{self.part.number}"
        self.at = self.journal.value(self._key, Measured) or Measured()
        self._sources, self._n_before = self.part.decisive
        # A slice is complete after so many characters, if all documents count.
        self._counts = self.settings.limits and not self.settings.deduplicate
        self._slice, self._next_look = Slice(self.settings), _FIRST_LOOK

    def run(self) -> None:
        """Read the remaining units."""
        at, title, storage = self.at, "reading documents", self.journal.storage
        size = at.documents * ROW.itemsize
        self._digest = digest_of_file(storage, self._name, size)
        if at.digest and self._digest.hexdigest() != at.digest:
            raise _damaged(storage, self._name)
        if at.is_all:
            self.progress.add_stage_before(title, at.seconds, at.bytes, "B")
            return
        n_bytes = sum(source.n_bytes for source in self._sources)
        with (
            closing(storage.stream(self._name, size)) as rows,
            self.progress.stage(title, n_bytes, "B", at.bytes, at.seconds) as stage,
        ):
            try:
                self._read(stage, rows)
                at.is_all = True
                self._submit(stage, rows)
                self.journal.wait()
            finally:
                self.journal.rest()  # its thread may still sync the stream

    def _read(self, stage: Stage, rows: Stream) -> None:
        at, workers = self.at, self.run_settings.workers
        for block in _blocks(self._rows(self.part.number)[: at.documents]):
            if self._counts:
                self._slice.take(block["characters"])
        memory = ReusedMemory(limit=256, largest=1 << 26)
        work = partial(self._measure, memory)
        units = read_units(self._sources, at, workers)
        with closing(run_units(units, lambda: work, workers)) as results:
            for item, (of_unit, batch) in results:
                data = of_unit.tobytes()
                rows.append(memoryview(data))
                self._digest.update(data)
                at.documents += len(of_unit)
                at.add(item, batch, stage, self.run_settings.max_bad_records)
                if self._is_complete(of_unit):
                    return
                if at.source < len(self._sources) and self.progress.out_of_time():
                    self._submit(stage, rows)
                    self.journal.wait()
                    what = "reading documents resumes from there"
                    raise OutOfTimeError(out_of_time(self.progress, what))
                if self.journal.due():
                    self._submit(stage, rows)

    def _measure(self, memory: ReusedMemory, item: Item) -> tuple[Rows, DocumentBatch]:
        batch = item.documents(memory.array)
        item.unit.check_unchanged()
        if batch.starts_mid_document or batch.ends_mid_document:
            raise CorpusError(
                f"{item.unit.where}: a format that divides documents cannot be read while"
                " documents are selected; leave out the options that select them"
            )
        return measure(batch, item.source, self.settings.deduplicate), batch.without_text()

    def _submit(self, stage: Stage, rows: Stream) -> None:
        self.at.digest = self._digest.hexdigest()
        self.journal.submit(self._key, self.at, [rows], stage=stage)

    def _is_complete(self, new: Rows) -> bool:
        """Return True if no later document can be chosen."""
        if self._counts:
            self._slice.take(new["characters"])
            return self._slice.is_complete
        if not self.settings.limits or self.at.documents < self._next_look:
            return False
        self._next_look = 2 * self.at.documents
        return self._choose(self._copies())[0].is_complete

    def _rows(self, number: int) -> Rows:
        """Map the rows of a pass; raise JournalError if their file is missing."""
        storage, name = self.journal.storage, f"rows-{number}"
        try:
            path = storage.path(name)
            is_empty = not path.stat().st_size  # cannot be mapped
            return np.zeros(0, ROW) if is_empty else np.memmap(path, ROW, "r")
        except OSError as error:
            raise _damaged(storage, name) from error

    # --- choosing ---

    def choose(self) -> Selected:
        """Choose documents, which come after those of earlier passes.

        Those that are left out are counted among the documents of this task alone.
        """
        starts, copies = self._starts(), self._copies()
        wanted, bits, end, cuts = self._choose(copies)
        first, stop = starts[self._n_before], starts[self._n_before + len(self.part.files)]
        stop = max(min(stop, end), first)
        before = sum(map(len, self._before()))
        n_copies = _count_bits(copies, before + first, before + stop)
        n_outside = stop - first - n_copies - _count_bits(bits, first, stop)
        if not wanted.n_chosen:
            left_out = LeftOut(duplicate_documents=n_copies, outside_documents=n_outside)
            left_out.merge(self.at.left_out)
            output = next(iter(self.part.names), "train")
            check_has_documents(output, self._sources, 0, 0, left_out)
        stop_at = end if wanted.is_complete else None
        return Selected(bits, starts, stop_at, cuts, n_copies, n_outside)

    def _starts(self) -> list[int]:
        """Return the number of the first document of each source, and the number of all."""
        n_of_source, n = np.zeros(len(self._sources), np.int64), len(self._sources)
        for block in _blocks(self._rows(self.part.number)):
            n_of_source += np.bincount(block["source"], minlength=n)
        starts: list[int] = np.cumsum([0, *n_of_source]).tolist()
        return starts

    def _before(self) -> list[Rows]:
        """Return the rows of earlier passes, as far as they decide."""
        return [self._rows(x)[: each.end] for x, each in self.earlier.items()]

    def _copies(self) -> Bytes:
        """Return a bit of each document of earlier passes and this one: 1 for copies."""
        rows, settings = [*self._before(), self._rows(self.part.number)], self.run_settings
        if not self.settings.deduplicate:
            return np.zeros(-(-sum(map(len, rows)) // 8), np.uint8)
        limit = bytes_for_tables(settings.memory_limit, settings.workers, settings.unit_size)
        return find_copies(rows, min(limit, _COMPARED))

    def _choose(
        self, copies: Bytes
    ) -> tuple[Slice, Bytes, int, dict[int, tuple[int, int]]]:
        """Choose among documents of this pass.

        Returns (the slice, a bit of each document, number of documents up to the last one that
        decides, `Selected.cuts`).
        """
        wanted, row, end, bits = Slice(self.settings), 0, 0, [np.zeros(0, np.uint8)]
        cuts, n_before = dict[int, tuple[int, int]](), sum(map(len, self._before()))
        for block in _blocks(self._rows(self.part.number)):
            first = n_before + row
            is_new = ~_bits_between(copies, first, first + len(block))
            chosen, lengths = np.zeros(len(block), np.bool_), block["characters"]
            chosen[is_new], begins = wanted.take(lengths[is_new])
            numbers, begins = np.flatnonzero(chosen), begins[chosen[is_new]]
            for i in {0, len(numbers) - 1} if len(numbers) else ():  # no others are cut
                length = int(lengths[numbers[i]])
                cut = wanted.cut(int(begins[i]), length)
                cuts |= {row + int(numbers[i]): cut} if cut != (0, length) else {}
            bits.append(np.packbits(chosen, bitorder="little"))
            end = row + int(numbers[-1]) + 1 if len(numbers) else end
            row += len(block)
            if wanted.is_complete:
                return wanted, np.concatenate(bits), end, cuts
        return wanted, np.concatenate(bits), row, cuts


def _blocks(rows: Rows) -> list[Rows]:
    return [rows[row : row + _BLOCK] for row in range(0, len(rows), _BLOCK)]


def _bits_between(bits: Bytes, start: int, stop: int) -> NDArray[np.bool_]:
    some = np.unpackbits(bits[start // 8 : -(-stop // 8)], bitorder="little")
    return some[start % 8 :][: stop - start].astype(np.bool_)


def _count_bits(bits: Bytes, start: int, stop: int) -> int:
    blocks = range(start, stop, _BLOCK)
    return sum(int(_bits_between(bits, i, min(i + _BLOCK, stop)).sum()) for i in blocks)


def find_copies(rows: Sequence[Rows], n_bytes: float) -> Bytes:
    """Find the documents that are equal to an earlier one: bit i % 8 of byte i // 8 is 1 then.

    They are compared by their digests, in parts that take about `n_bytes` of memory.
    """
    n = sum(map(len, rows))
    copies = np.zeros(-(-n // 64), np.uint64)
    n_parts = max(1, int(-(-n * _COMPARED_BYTES // max(n_bytes, 1 << 20))))
    for part in range(n_parts):
        found, place = [(np.zeros(0, np.int64), np.zeros((0, 2), np.uint64))], 0
        for block in (block for of in rows for block in _blocks(of)):
            digest = block["digest"]
            inside = np.flatnonzero(digest[:, 0] % np.uint64(n_parts) == part)
            found.append((inside + place, digest[inside]))
            place += len(block)
        numbers, digests = (np.concatenate(each) for each in zip(*found, strict=True))
        del found
        order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: earlier ones come first
        digests = digests[order]
        is_copy = (digests[1:] == digests[:-1]).all(axis=1)
        set_bits(copies, numbers[order[1:][is_copy]])
    return copies.view(np.uint8)


class Slice:
    """The slice of documents that `start_character`, `max_characters`, `max_documents` describe.

    Attributes:
        n_chosen: Number of documents in the slice so far.
        is_complete: True if no later document can be in the slice.
    """

    def __init__(self, settings: SelectSettings) -> None:
        self.start, most = settings.start_character, settings.max_characters
        self.stop = float("inf") if most is None else self.start + most
        self._cuts, self._most = settings.cut_documents, settings.max_documents
        self._n_characters = self.n_chosen = 0
        self.is_complete = False

    def take(self, characters: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return (which of the next documents are in the slice, the character each begins at)."""
        ends = self._n_characters + np.cumsum(characters)
        begins = ends - characters
        chosen = (ends > self.start if self._cuts else begins >= self.start) & (begins < self.stop)
        if self._most is not None:
            chosen &= self.n_chosen + np.cumsum(chosen) <= self._most
        self.n_chosen += int(chosen.sum())
        self._n_characters = int(ends[-1]) if len(ends) else self._n_characters
        self.is_complete = self._n_characters >= self.stop or self.n_chosen == self._most
        return chosen, begins

    def cut(self, begin: int, length: int) -> tuple[int, int]:
        """Return the characters that are kept of a document in the slice, which begins there."""
        if not self._cuts:
            return 0, length
        return max(self.start - begin, 0), int(min(self.stop - begin, length))
