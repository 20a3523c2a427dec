"""Work units of several sources: iterate over them in order, resume after any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from preprocess.sources import Place, Source, WorkUnit
from preprocess.stopping import Watch

Result = TypeVar("Result")
Item = TypeVar("Item")


def units_after(
    sources: Sequence[Source], first: int, after: Place | None
) -> Iterator[tuple[int, WorkUnit]]:
    """The units behind a place, each with the number of its source."""
    for index in range(first, len(sources)):
        for unit in sources[index].units(after if index == first else None):
            yield index, unit


def place_after(index: int, unit: WorkUnit) -> tuple[int, Place | None]:
    """The place behind a unit of the source `index`."""
    return (index + 1, None) if unit.after is None else (index, unit.after)


def paired_with_unit(
    make_work: Callable[[], Callable[[WorkUnit], Result]], watch: Watch
) -> Callable[[], Callable[[tuple[int, WorkUnit]], tuple[tuple[int, WorkUnit], Result]]]:
    """Work that gives its unit back, too, and is watched over."""

    def make() -> Callable[[tuple[int, WorkUnit]], tuple[tuple[int, WorkUnit], Result]]:
        work = make_work()

        def watched(numbered: tuple[int, WorkUnit]) -> tuple[tuple[int, WorkUnit], Result]:
            with watch.over(numbered[1].where, numbered[1].n_bytes):
                return numbered, work(numbered[1])

        return watched

    return make


class Pausing(Generic[Item]):
    """An iterator that gives nothing while it is `paused`, and knows when it is over."""

    def __init__(self, items: Iterator[Item]) -> None:
        self.paused = False
        self.is_over = False
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
