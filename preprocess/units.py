"""Work units of several sources: iterate over them in order, resume after any of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Generic, Protocol, TypeVar

from bpe.parallel import run_in_order
from preprocess.sources import Place, Source, WorkUnit
from preprocess.stopping import watching

Result = TypeVar("Result")
Item = TypeVar("Item")
MakeWork = Callable[[], Callable[[WorkUnit], Result]]


def units_after(
    sources: Sequence[Source], first: int, after: Place | None
) -> Iterator[tuple[int, WorkUnit]]:
    """Yield the units after a place in the source `first`, each with the number of its source."""
    for index in range(first, len(sources)):
        for unit in sources[index].units(after if index == first else None):
            yield index, unit


def place_after(index: int, unit: WorkUnit) -> tuple[int, Place | None]:
    """Return the number of a source and the place in it after a unit of the source `index`."""
    return (index + 1, None) if unit.after is None else (index, unit.after)


class Executor(Protocol):
    """Runs work on units: `run_on_threads`, or what keeps the same promises elsewhere.

    Units, `make_work` and results pickle. The promises are those of `bpe.parallel.run_in_order`.
    """

    def __call__(
        self, units: Iterable[WorkUnit], make_work: MakeWork[Result], workers: int
    ) -> Generator[Result, None, None]:
        """Work on every unit and yield the results in the order of the units."""


def run_on_threads(
    units: Iterable[WorkUnit], make_work: MakeWork[Result], workers: int
) -> Generator[Result, None, None]:
    """Work on every unit on threads of this process; a unit that hangs is reported."""

    def make() -> Callable[[WorkUnit], Result]:
        work = make_work()

        def watched(unit: WorkUnit) -> Result:
            with watch.over(unit.where, unit.n_bytes):
                return work(unit)

        return watched

    with watching() as watch, closing(run_in_order(units, make, workers)) as results:
        yield from results


def run_numbered(
    numbered: Iterable[tuple[int, WorkUnit]],
    make_work: MakeWork[Result],
    workers: int,
    executor: Executor,
) -> Generator[tuple[int, WorkUnit, Result], None, None]:
    """Run work on units; yield each with the number of its source and its result, in order."""
    under_way: deque[tuple[int, WorkUnit]] = deque()

    def units() -> Iterator[WorkUnit]:
        for each in numbered:
            under_way.append(each)
            yield each[1]

    def with_unit(result: Result) -> tuple[int, WorkUnit, Result]:
        return *under_way.popleft(), result

    with closing(executor(units(), make_work, workers)) as results:
        # A loop would keep a result, and the memory of its text, while the next one is waited for.
        yield from map(with_unit, results)


class Pausing(Generic[Item]):
    """An iterator that yields nothing while it is `paused`, and knows when it is over."""

    def __init__(self, items: Iterator[Item]) -> None:
        self.paused = self.is_over = False
        self._items = items

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self.paused:
            raise StopIteration
        try:
            return next(self._items)
        except StopIteration:
            self.is_over = True
            raise
