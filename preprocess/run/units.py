"""Iterate over the work units of several sources, resume after any, run work on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, Protocol, TypeVar, runtime_checkable

from bpe.errors import TokenmillError
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


class Executor(Protocol):
    """Signature of `bpe.parallel.run_in_order`, whose guarantees every executor gives.

    Units, `make_work` and results can be pickled. The executor is called once by an encoding pass,
    and by a count pass again after each checkpoint. `EncodePass` and `train_tokenizer` take it as
    an argument.
    """

    def __call__(
        self, units: Iterable[WorkUnit], make_work: MakeWork[Result], workers: int
    ) -> Generator[Result, None, None]:
        """Yield the result of every unit, in order."""


class WorkerLostError(TokenmillError):
    """A worker has ended that kept something of units which are done."""


@runtime_checkable
class CollectingExecutor(Executor, Protocol):
    """An executor of which work may keep something in its process until it is collected.

    `make_work` of such work has an attribute `keeps` that is true. Its function has the methods
    `take`, which returns what it has kept and forgets it, and `add`, which adds that of another.
    If a worker ends, the executor raises WorkerLostError: all units since the last time are lost.
    """

    def collect(self) -> Any:
        """Return what all workers have kept, added up; raise WorkerLostError if one has ended."""


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
    numbered: Iterable[tuple[int, WorkUnit]], make_work: MakeWork[Result], workers: int,
    executor: Executor,
) -> Generator[tuple[int, WorkUnit, Result], None, None]:
    """Yield (index of the source, unit, result) for every unit, in order."""
    under_way: deque[tuple[int, WorkUnit]] = deque()

    def units() -> Iterator[WorkUnit]:
        for each in numbered:
            under_way.append(each)
            yield each[1]

    def with_unit(result: Result) -> tuple[int, WorkUnit, Result]:
        return *under_way.popleft(), result

    with closing(executor(units(), make_work, workers)) as results:
        # `map` drops each result before it waits for the next; a loop variable would keep it.
        yield from map(with_unit, results)
