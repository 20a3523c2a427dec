"""What an actor of Ray runs."""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpe.errors import TokenmillError
from preprocess.run.ray_cluster import RayError


class Failed:
    """An exception of the work, as a result."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Works:
    """The work of one process: a function for each of its threads."""

    def __init__(self, make_work: Any) -> None:
        self._make = pickle.loads(make_work)
        self._idle: list[Any] = []

    def __call__(self, unit: Any) -> Any:
        """Return the result of a unit; may be called on several threads."""
        try:
            work = self._idle.pop()
        except IndexError:
            work = self._make()
        try:
            return work(unit)
        finally:
            self._idle.append(work)

    def main(self) -> Any:
        """Return one of the functions, which has what all have kept; no unit is under way."""
        if not self._idle:
            self._idle.append(self._make())
        first, *others = self._idle
        for each in others:
            first.add(each.take())
        return first


@dataclass
class _Kept:
    """Results of a task that wait to be written, and the parts of it that were taken."""

    results: list[Any]
    taken: set[int] = field(default_factory=set)
    n_parts: int | None = None


class Worker:
    """The class of the actors: runs one or several workers, each on its own thread.

    Each call has the number of the work and the pickled function that makes it; work with a higher
    number replaces the work before. Further threads write the results that the actor holds, and
    send them to other actors.

    Args:
        n_workers: Number of workers. One more thread stores and fetches what they need meanwhile.
    """

    def __init__(self, n_workers: int) -> None:
        self._lock, self._free = threading.Lock(), threading.Semaphore(n_workers)
        self._number = 0
        self._works: _Works | None = None
        self._kept: dict[int, _Kept] = {}  # by key of a task
        self.opened: dict[str, Any] = {}  # what functions that `write` calls keep, by name

    def _work(self, number: int, make_work: NDArray[np.uint8]) -> _Works:
        with self._lock:
            if number < self._number:
                raise RayError("units of earlier work came late; nobody takes the results")
            if number > self._number or self._works is None:
                self._number, self._works = number, _Works(make_work)
                self._kept.clear()
            return self._works

    def run(
        self, number: int, make_work: NDArray[np.uint8], units: Sequence[Any]
    ) -> tuple[list[Any], float]:
        """Run the work on units, in order, up to the first that fails.

        Args:
            number: Number of the work.
            make_work: uint8[n], the pickled function that makes the work.
            units: Work units.

        Returns:
            (results; if a unit fails, the last one is a `Failed`, seconds that the work took).
        """
        found = list[Any]()
        with self._free:
            began = time.perf_counter()
            try:
                work = self._work(number, make_work)
                for unit in units:
                    found.append(work(unit))
            except Exception as error:  # noqa: BLE001 (raised where the results are taken)
                found.append(Failed(picklable(error)))
            return found, time.perf_counter() - began

    def run_apart(
        self, number: int, make_work: NDArray[np.uint8], units: Sequence[Any], key: int
    ) -> tuple[list[Any], float]:
        """Run the work as `run`; return the first item of each result, and hold the second.

        Both have the `Failed`: if units are repeated for the second items, nobody reads the first.
        """
        found, seconds = self.run(number, make_work, units)
        pairs = [(each, each) if isinstance(each, Failed) else each for each in found]
        with self._lock:
            if number == self._number:  # nobody takes what is late
                self._kept[key] = _Kept([stays for _, stays in pairs])
        return [sent for sent, _ in pairs], seconds

    def kept(self, key: int, part: int, n_parts: int | None) -> list[Any]:
        """Return the held results of a task, which are dropped after all parts are taken.

        Args:
            key: Key of the task.
            part: Number of the part that this is called for.
            n_parts: Number of parts of the task; None: not known yet.
        """
        with self._lock:
            kept = self._kept[key]
            kept.taken.add(part)
            kept.n_parts = n_parts or kept.n_parts
            if len(kept.taken) == kept.n_parts:
                del self._kept[key]
        return kept.results

    def forget(self, key: int, part: int, n_parts: int | None) -> None:
        """Count a part of a task as taken; arguments as of `kept`."""
        with suppress(KeyError):  # it is forgotten already
            self.kept(key, part, n_parts)

    def write(self, function: Callable[..., Any], values: tuple[Any, ...], after: Any) -> Any:
        """Return the result of a function, which gets this object, too; or what failed.

        `after` is what the call that had to be done before has returned.
        """
        try:
            return function(self, *values)
        except Exception as error:  # noqa: BLE001 (raised where the result is taken)
            return Failed(picklable(error))

    def take(self, number: int, make_work: NDArray[np.uint8]) -> Any:
        """Return what the work has kept, which it forgets."""
        return self._work(number, make_work).main().take()

    def add(self, number: int, make_work: NDArray[np.uint8], kept: Any) -> None:
        """Add what another actor has kept."""
        self._work(number, make_work).main().add(kept)

    def process(self) -> int:
        """Return the number of the process."""
        return os.getpid()


def picklable(error: Exception) -> Exception:
    """Return an exception as another process can raise it."""
    if not isinstance(error, TokenmillError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 (any class may refuse)
        notes = getattr(error, "__notes__", [repr(error)])
        return RayError(f"a worker of Ray failed: {''.join(notes)}")
    return error
