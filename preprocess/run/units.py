"""Read the work units of several sources in order, and run work on them: the loop of every pass.

    items = read_units(sources, at, workers)      # lazy; a pass may stop, and go on later
    for item, result in run_units(items, make_work, workers): ...

Work is done on threads; it reads its unit itself. Only where documents are selected (`Source.kept`)
are units read before, on threads of their own: their documents are numbered in order, and those
that are not kept are dropped before anything works on them.

Chat templates are rendered by Python code: threads would render one conversation after another.
There each worker gets a process that reads its units (`unit_readers`): it is sent a unit and sends
back the batch. A process is started when the first unit needs it, and knows nothing of the program
that uses this package: that need not be protected by `if __name__ == "__main__"`.
"""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple, TypeVar

from msgspec import Struct, field

from bpe.errors import TokenmillError
from bpe.parallel import run_in_order
from preprocess.dataset.manifest import Count
from preprocess.documents.batch import DocumentBatch
from preprocess.report.progress import Stage
from preprocess.report.summary import LeftOut, check_bad_records
from preprocess.reused_memory import ReusedMemory
from preprocess.run.signals import watching
from preprocess.sources import ResumePoint, Source, WorkUnit
from preprocess.sources.text_file import Array

Result = TypeVar("Result")

# Bytes that are read in less time than processes take to start.
_FEW_BYTES = 32 * 1024 * 1024
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2:]; from preprocess.run.units import serve;"
    " serve(int(sys.argv[1]))"
)

# Returns the documents of a unit, as `WorkUnit.read`.
Read = Callable[[WorkUnit, Array], DocumentBatch]


def read_here(unit: WorkUnit, array: Array) -> DocumentBatch:
    """Read a unit on this thread."""
    return unit.read(array)


class Reached(Struct, kw_only=True, forbid_unknown_fields=True):
    """How far a pass has read, between two units: the checkpoints of all passes begin with it."""

    source: Count = 0  # index of the source
    after: ResumePoint | None = None  # position in it, as `WorkUnit.after`; None: its start
    n_read: Count = 0  # documents before it in the source, if documents are selected
    left_out: LeftOut = field(default_factory=LeftOut)
    bytes: Count = 0  # of the sources before the position
    seconds: float = 0.0

    def add(self, item: Item, batch: DocumentBatch, stage: Stage, max_bad_records: int) -> None:
        """Go on to the end of a unit with these documents; raise CorpusError as the options say."""
        self.left_out.add(batch)
        check_bad_records(self.left_out, batch, max_bad_records)
        self.source, self.after, self.n_read = item.end
        stage.advance(item.unit.n_bytes)
        self.bytes, self.seconds = stage.done, stage.seconds


class Item(NamedTuple):
    """A unit, and its selected documents if documents are selected."""

    source: int  # index of its source
    unit: WorkUnit
    end: tuple[int, ResumePoint | None, int]  # after the unit: the first fields of `Reached`
    selected: DocumentBatch | None = None

    def documents(self, array: Array, read: Read = read_here) -> DocumentBatch:
        """Return the documents to work on; called once, in a worker."""
        return read(self.unit, array) if self.selected is None else self.selected


MakeWork = Callable[[], Callable[[Item], Result]]


def read_units(
    sources: Sequence[Source], begin: Reached, workers: int, read: Read = read_here
) -> Generator[Item, None, None]:
    """Yield the units of sources from a position on; close it if it may not be exhausted."""
    source, after, n_read = begin.source, begin.after, begin.n_read
    if all(each.kept is None for each in sources):
        yield from _units(sources, source, after)
        return
    memory = ReusedMemory(limit=256, largest=1 << 26)

    def make_work() -> Callable[[Item], DocumentBatch]:
        return lambda item: read(item.unit, memory.array)

    while source < len(sources):
        # Up to a source of which the rest is not read: what threads read ahead there is dropped.
        stop = next((i for i in range(source, len(sources)) if ends_early(sources[i])), None)
        some = sources if stop is None else sources[: stop + 1]
        with closing(run_units(_units(some, source, after), make_work, workers)) as batches:
            yield from _select(sources, batches, n_read)
        source, after, n_read = len(some), None, 0


def ends_early(source: Source) -> bool:
    """Return True if a source is not read to its end, for no later document is selected."""
    return source.kept is not None and source.kept.stop is not None


def _units(sources: Sequence[Source], begin: int, after: ResumePoint | None) -> Iterator[Item]:
    for index in range(begin, len(sources)):
        kept = sources[index].kept
        if kept is not None and kept.stop == 0:
            continue
        for unit in sources[index].units(after if index == begin else None):
            is_last = unit.after is None
            yield Item(index, unit, (index + 1, None, 0) if is_last else (index, unit.after, 0))


def _select(
    sources: Sequence[Source], batches: Iterable[tuple[Item, DocumentBatch]], n_read: int
) -> Iterator[Item]:
    """Yield units with their selected documents; `n_read` are before the first one."""
    for item, batch in batches:
        kept = sources[item.source].kept
        n_before, n_read = n_read, n_read + len(batch)
        is_last = kept is not None and kept.stop is not None and n_read >= kept.stop
        if is_last or item.end[0] > item.source:
            n_read = 0
        end = (item.source + 1, None, 0) if is_last else (*item.end[:2], n_read)
        item.unit.check_unchanged()
        selected = batch if kept is None else kept.select(batch, n_before)
        yield item._replace(end=end, selected=selected)
        if is_last:
            return


def run_units(
    items: Iterable[Item], make_work: MakeWork[Result], workers: int
) -> Generator[tuple[Item, Result], None, None]:
    """Yield (item, result of the work) of each unit, in order; report units that hang."""
    def make() -> Callable[[Item], tuple[Item, Result]]:
        work = make_work()

        def watched(item: Item) -> tuple[Item, Result]:
            with watch.over(item.unit.where, item.unit.n_bytes):
                return item._replace(selected=None), work(item)

        return watched

    with watching() as watch, closing(run_in_order(items, make, workers)) as results:
        yield from results


# --- processes that read units ---


class ReaderError(TokenmillError):
    """A process that reads units has ended."""


@contextmanager
def unit_readers(sources: Sequence[Source], workers: int) -> Iterator[Read]:
    """Yield a function that reads a unit, here or in one of up to `workers` processes.

    The function raises ReaderError if its process ends, and otherwise what `WorkUnit.read` raises.
    """
    if workers == 1 or sum(each.n_bytes for each in sources if each.has_spans) < _FEW_BYTES:
        yield read_here
        return
    started, idle = list[_Process](), list[_Process]()

    def read(unit: WorkUnit, array: Array) -> DocumentBatch:
        if not unit.is_rendered:
            return unit.read(array)
        try:
            process = idle.pop()
        except IndexError:
            process = _Process()
            started.append(process)
        found = process.read(unit)
        idle.append(process)  # one that has ended is not used again
        if isinstance(found, Exception):
            raise found
        return found

    try:
        yield read
    finally:
        for process in started:
            process.end()


class _Process:
    """A process that reads units, one at a time."""

    def __init__(self) -> None:
        from multiprocessing import Pipe

        self._connection, other = Pipe()
        with other:
            command = [sys.executable, "-c", _PROGRAM, str(other.fileno()), *sys.path]
            # In a group of its own, for the terminal interrupts this process, which ends it.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[other.fileno()], process_group=0
            )

    def read(self, unit: WorkUnit) -> DocumentBatch | Exception:
        try:
            self._connection.send(unit)
            found: DocumentBatch | Exception = self._connection.recv()
        except (EOFError, OSError) as error:
            status = self._process.wait()
            how = f"by signal {-status}" if status < 0 else f"with exit status {status}"
            raise ReaderError(
                f"{unit.where}: the process that renders conversations ended {how}; if memory is"
                " short, use fewer --workers; rerun the same command to resume"
            ) from error
        return found

    def end(self) -> None:
        """End the process, which has no state to lose."""
        self._connection.close()
        self._process.kill()
        self._process.wait()


def serve(descriptor: int) -> None:
    """Read the units that come through a pipe until it is closed, and send their batches."""
    from multiprocessing.connection import Connection

    # A unit is many small objects without cycles: fewer looks for cycles make reading 5 to 9 %
    # faster.
    gc.set_threshold(100_000)
    with Connection(descriptor) as connection, suppress(EOFError, ConnectionError):
        while True:
            unit: WorkUnit = connection.recv()
            found: DocumentBatch | Exception
            try:
                found = unit.read()
            except Exception as error:  # noqa: BLE001 (raised where the unit comes from)
                if not isinstance(error, TokenmillError):
                    error.add_note("".join(traceback.format_exception(error)))
                found = error
            try:
                connection.send(found)
            except (TypeError, AttributeError, pickle.PicklingError):
                # An exception of a library that cannot be pickled.
                notes = getattr(found, "__notes__", [repr(found)])
                connection.send(ReaderError(f"{unit.where}: {''.join(notes)}"))
