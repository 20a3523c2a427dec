"""Iterate over the work units of several sources, resume after any, run work on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from bpe.parallel import run_in_order
from preprocess.run.signals import watching
from preprocess.sources import ResumePoint, Source, WorkUnit

Result = TypeVar("Result")
MakeWork = Callable[[], Callable[[WorkUnit], Result]]


def units_after(
    sources: Sequence[Source], first: int, after: ResumePoint | None
) -> Iterator[tuple[int, WorkUnit]]:
    """Yield (index of the source, unit) from position `after` of source `first` on."""
    for index in range(first, len(sources)):
        for unit in sources[index].units(after if index == first else None):
            yield index, unit


def resume_point_after(index: int, unit: WorkUnit) -> tuple[int, ResumePoint | None]:
    """Return (index of a source, position in it) after a unit of source `index`."""
    return (index + 1, None) if unit.after is None else (index, unit.after)


def run_on_threads(
    units: Iterable[WorkUnit], make_work: MakeWork[Result], workers: int
) -> Generator[Result, None, None]:
    """Run work on threads of this process, and report units that hang."""

    def make() -> Callable[[WorkUnit], Result]:
        work = make_work()

        def watched(unit: WorkUnit) -> Result:
            with watch.over(unit.where, unit.n_bytes):
                return work(unit)

        return watched

    with watching() as watch, closing(run_in_order(units, make, workers)) as results:
        yield from results


def run_numbered(
    numbered: Iterable[tuple[int, WorkUnit]], make_work: MakeWork[Result], workers: int
) -> Generator[tuple[int, WorkUnit, Result], None, None]:
    """Yield (index of the source, unit, result) for every unit, in order."""
    under_way: deque[tuple[int, WorkUnit]] = deque()

    def units() -> Iterator[WorkUnit]:
        for each in numbered:
            under_way.append(each)
            yield each[1]

    def with_unit(result: Result) -> tuple[int, WorkUnit, Result]:
        return *under_way.popleft(), result

    with closing(run_on_threads(units(), make_work, workers)) as results:
        # `map` drops each result before it waits for the next; a loop variable would keep it.
        yield from map(with_unit, results)
