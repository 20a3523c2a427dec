"""Read the work units of several sources in order, and run work on them: the loop of every pass.

    items = read_units(sources, Position(), workers)      # lazy; a pass may stop, and go on later
    for item, result in run_units(items, make_work, workers): ...

Work is done on threads; it reads its unit itself. Only where documents are selected (`Source.kept`)
are units read before, on threads of their own: their documents are numbered in order, and those
that are not kept are dropped before anything works on them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, TypeVar

from bpe.parallel import run_in_order
from preprocess.documents.batch import DocumentBatch
from preprocess.reused_memory import ReusedMemory
from preprocess.run.readers import Read, read_here
from preprocess.run.signals import watching
from preprocess.sources import ResumePoint, Source, WorkUnit
from preprocess.sources.text_file import Array

Result = TypeVar("Result")


class Position(NamedTuple):
    """A position between two units of several sources."""

    source: int = 0  # index of the source
    after: ResumePoint | None = None  # position in it, as `WorkUnit.after`; None: its start
    n_read: int = 0  # documents before it in the source, if documents are selected


class Item(NamedTuple):
    """A unit, and its selected documents if documents are selected."""

    source: int  # index of its source
    unit: WorkUnit
    end: Position  # after the unit
    selected: DocumentBatch | None = None

    def documents(self, array: Array, read: Read = read_here) -> DocumentBatch:
        """Return the documents to work on; called once, in a worker."""
        return read(self.unit, array) if self.selected is None else self.selected


MakeWork = Callable[[], Callable[[Item], Result]]


def read_units(
    sources: Sequence[Source], begin: Position, workers: int, read: Read = read_here
) -> Generator[Item, None, None]:
    """Yield the units of sources from a position on; close it if it may not be exhausted."""
    units = _units(sources, begin)
    if all(source.kept is None for source in sources):
        yield from units
        return
    memory = ReusedMemory(limit=256, largest=1 << 26)

    def make_work() -> Callable[[Item], DocumentBatch]:
        return lambda item: read(item.unit, memory.array)

    while begin.source < len(sources):
        # Up to a source of which the rest is not read: what threads read ahead there is dropped.
        stop = next((i for i in range(begin.source, len(sources)) if ends_early(sources[i])), None)
        some = sources if stop is None else sources[: stop + 1]
        with closing(run_units(_units(some, begin), make_work, workers)) as batches:
            yield from _select(sources, batches, begin.n_read)
        begin = Position(len(some))


def ends_early(source: Source) -> bool:
    """Return True if a source is not read to its end, for no later document is selected."""
    return source.kept is not None and source.kept.stop is not None


def _units(sources: Sequence[Source], begin: Position) -> Iterator[Item]:
    for index in range(begin.source, len(sources)):
        kept = sources[index].kept
        if kept is not None and kept.stop == 0:
            continue
        for unit in sources[index].units(begin.after if index == begin.source else None):
            end = Position(index + 1) if unit.after is None else Position(index, unit.after)
            yield Item(index, unit, end)


def _select(
    sources: Sequence[Source], batches: Iterable[tuple[Item, DocumentBatch]], n_read: int
) -> Iterator[Item]:
    """Yield units with their selected documents; `n_read` are before the first one."""
    for item, batch in batches:
        kept = sources[item.source].kept
        n_before, n_read = n_read, n_read + len(batch)
        is_last = kept is not None and kept.stop is not None and n_read >= kept.stop
        if is_last or item.end.source > item.source:
            end, n_read = Position(item.source + 1), 0
        else:
            end = item.end._replace(n_read=n_read)
        item.unit.check_unchanged()
        selected = batch if kept is None else kept.select(batch, n_before)
        yield item._replace(end=end, selected=selected)
        if is_last:
            return


def run_units(
    items: Iterable[Item], make_work: MakeWork[Result], workers: int
) -> Generator[tuple[Item, Result], None, None]:
    """Yield (item, result of the work) of each unit, in order; report units that hang."""
    under_way: deque[Item] = deque()

    def taken() -> Iterator[Item]:
        for item in items:
            under_way.append(item._replace(selected=None))
            yield item

    def make() -> Callable[[Item], Result]:
        work = make_work()

        def watched(item: Item) -> Result:
            with watch.over(item.unit.where, item.unit.n_bytes):
                return work(item)

        return watched

    def with_item(result: Result) -> tuple[Item, Result]:
        return under_way.popleft(), result

    with watching() as watch, closing(run_in_order(taken(), make, workers)) as results:
        # `map` drops each result before it waits for the next; a loop variable would keep it.
        yield from map(with_item, results)
