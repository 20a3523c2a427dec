"""Run work on actors of Ray, on this machine or a cluster.

The workers of a machine are threads of one actor, or of a few: they share what they learn, such as
the tokens of frequent words. An actor that dies, also with its machine, is replaced, and its units
are done again by others. Results are taken by this process, or a part of them stays in the actor
until it is written; counts stay in the actors, and are added up in a tree when they are collected.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import count, islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from preprocess.report.progress import Progress, logger
from preprocess.run.ray_actors import LANES, LOOK_SECONDS, Actor, Actors
from preprocess.run.ray_cluster import connected
from preprocess.run.ray_worker import Failed
from preprocess.run.signals import watching
from preprocess.run.units import MakeWork, Result, WorkerLostError
from preprocess.sources import WorkUnit

# A task is several units, for it costs this process and Ray about 5 ms. Ids that stay in an actor
# occupy its memory longer than ids that this process fetches, so their tasks are smaller.
_UNITS_APART, _UNITS_FETCHED = 16, 32
_HELD_BYTES = 32 * 1024 * 1024  # of text that the units of a task contain
_TASKS_BEFORE = 4  # of each worker, as long as a task: few units are shared out, too
_MOST_TASKS = 2  # under way at a worker
_WINDOW = 3  # tasks or their results of each worker at a time, at most


@dataclass(eq=False)
class _Task:
    """Units in the hands of an actor, or what their source raised instead of a unit."""

    units: Sequence[WorkUnit] = ()
    error: Exception | None = None
    actor: Actor | None = None
    reference: Any = None
    kept: Kept | None = None
    is_done: bool = False


@dataclass(eq=False)
class Kept:
    """Results of a task that an actor holds, and the units to compute lost results from."""

    units: Any  # reference to the units of the task
    n_units: int
    actor: Actor | None = None
    key: int = 0
    n_parts: int = 0  # parts that were asked for


class Lane(NamedTuple):
    """A thread of an actor, which calls one function at a time."""

    actor: Actor
    name: str


@dataclass(eq=False)
class Call:
    """A call of a function by an actor."""

    reference: Any
    actor: Actor
    n_replaced: int  # actors that had been replaced before
    n_parts: int = 0  # parts of tasks that it takes


class RayExecutor:
    """An `Executor` whose workers are threads of actors of Ray, which stay from call to call.

    Args:
        ray: The module, connected to a cluster.
        workers: Number of workers.
        resources: Name of a resource -> amount that each worker needs; CPU: 1 if not given.
    """

    def __init__(self, ray: Any, workers: int, resources: Mapping[str, float]) -> None:
        self._ray, self.workers = ray, workers
        self.actors = Actors(ray, workers, resources)
        self._keys, self._n_lanes = count(1), 0
        self._work: tuple[int, Any] = 0, None  # number, and reference to what makes it
        self._n_given = 0  # units of this work, to actors
        self._n_replaced = 0  # actors, before this work
        self._busy = self._seconds = 0.0  # of all actors together

    def __call__(
        self, units: Iterable[WorkUnit], make_work: MakeWork[Result], workers: int
    ) -> Generator[Result, None, None]:
        """Yield the result of every unit, in order; `workers` is not used.

        Raises:
            WorkerLostError: A worker died that had counts which were not collected.
            RayError: Workers died again and again.
            Exceptions of `units`, `make_work` and the work, unchanged.
        """
        with closing(self.run_tasks(units, make_work)) as results:
            yield from map(itemgetter(0), results)

    def run_tasks(
        self, units: Iterable[WorkUnit], make_work: MakeWork[Result], is_apart: bool = False
    ) -> Generator[tuple[Result, Kept | None, int], None, None]:
        """Yield (result of a unit, None, number of the unit in its task), in order, as `__call__`.

        With `is_apart`, results are pairs: the first item of each is yielded, and the actor holds
        the second in a list with one element per unit of the task.

        Raises:
            RayError, WorkerLostError, exceptions of `units` and the work: As `__call__`.
        """
        # An array is not copied where it arrives.
        made_of = np.frombuffer(pickle.dumps(make_work), np.uint8)
        self._work, self._n_given = (self._work[0] + 1, self._ray.put(made_of)), 0
        self._n_replaced = self.actors.n_replaced
        for each in self.actors:
            each.n_tasks = 0
        keeps = bool(getattr(make_work, "keeps", False))
        remaining, under_way = iter(units), deque[_Task]()
        began = time.monotonic()
        with watching() as watch:
            try:
                self._fill(remaining, under_way, is_apart)
                while under_way:
                    head = under_way[0]
                    if head.error is not None:
                        raise head.error
                    with watch.over(head.units[0].where, sum(x.n_bytes for x in head.units)):
                        while not head.is_done:
                            self._look(under_way)
                            self._fill(remaining, under_way, is_apart)
                    try:
                        found, seconds = self._ray.get(head.reference)
                    except self.actors.lost as error:
                        self._replace(head, under_way, keeps, error)
                        continue
                    under_way.popleft()
                    self._busy += seconds
                    self.actors.note_result()
                    kept, results = head.kept, deque(found)
                    del found, head
                    self._fill(remaining, under_way, is_apart)
                    for number in range(len(results)):
                        if isinstance(results[0], Failed):
                            raise results[0].error
                        yield results.popleft(), kept, number
            finally:
                self._seconds += (time.monotonic() - began) * self.workers
                under_way.clear()

    def _fill(
        self, remaining: Iterator[WorkUnit], under_way: deque[_Task], is_apart: bool
    ) -> None:
        """Give tasks to actors that have room, while the window has; one if none is under way."""
        while len(under_way) < _WINDOW * self.workers:
            actor = self.actors.idlest()
            is_full = actor.load >= _MOST_TASKS
            if under_way and (is_full or under_way[-1].error is not None):
                return
            units, raised = self._take(remaining, is_apart)
            if units:
                kept = Kept(self._ray.put(units), len(units)) if is_apart else None
                under_way.append(_Task(units, kept=kept))
                self._submit(under_way[-1], actor)
            if raised is not None:
                under_way.append(_Task(error=raised, is_done=True))
            if raised is not None or not units:
                return

    def _take(
        self, remaining: Iterator[WorkUnit], is_apart: bool
    ) -> tuple[list[WorkUnit], Exception | None]:
        """Return (units of the next task, what the iterator raised)."""
        units: list[WorkUnit] = []
        n, n_held = max(self._n_given // (_TASKS_BEFORE * self.workers), 1), 0
        try:
            for unit in islice(remaining, min(n, _UNITS_APART if is_apart else _UNITS_FETCHED)):
                units.append(unit)
                n_held += unit.n_held
                if n_held >= _HELD_BYTES:
                    break
        except Exception as error:  # noqa: BLE001 (raised when it is its turn)
            return units, error
        self._n_given += len(units)
        return units, None

    def _submit(self, task: _Task, actor: Actor) -> None:
        task.actor, task.is_done = actor, False
        if task.kept is None:
            task.reference = actor.handle.run.remote(*self._work, task.units)
        else:
            task.reference = self._run_apart(task.kept, actor)
        actor.n_tasks += 1

    def _run_apart(self, kept: Kept, actor: Actor) -> Any:
        """Give units to an actor, and return the reference to what it sends."""
        kept.actor, kept.key = actor, next(self._keys)
        return actor.handle.run_apart.remote(*self._work, kept.units, kept.key)

    def lane(self) -> Lane:
        """Return where to `write`: one after the other."""
        ready = self.actors.ready()
        n, self._n_lanes = self._n_lanes, self._n_lanes + 1
        return Lane(ready[n % len(ready)], LANES[n // len(ready) % len(LANES)])

    def write(
        self, lane: Lane, after: Call | None, function: Callable[..., Any], *values: Any
    ) -> Call:
        """Let an actor call `function(worker, *values)`, after another call to it."""
        writing = lane.actor.handle.write.options(concurrency_group=lane.name)
        # Ray may change the order of calls, but not that of a call and what it depends on.
        reference = writing.remote(function, values, after and after.reference)
        return Call(reference, lane.actor, self.actors.n_replaced)

    def done_of(self, calls: Iterable[Call]) -> set[Any]:
        """Return the references of the calls that are done."""
        return self._done_of([each.reference for each in calls], 0)

    def wait_for(self, calls: Iterable[Call]) -> set[Any]:
        """Wait up to a second until a call is done, and return the references of all that are."""
        return self._done_of([each.reference for each in calls], LOOK_SECONDS)

    def _done_of(self, references: list[Any], timeout: float) -> set[Any]:
        """Return the references that are ready; wait some time for the first one."""
        if not references:
            return set()
        done, left = self._ray.wait(references, timeout=timeout, fetch_local=False)
        if left:
            done += self._ray.wait(left, num_returns=len(left), timeout=0, fetch_local=False)[0]
        return set(done)

    def forget(self, kept: Kept, part: int, n_parts: int | None) -> None:
        """Let an actor forget a part of what it keeps, if it is there."""
        if kept.actor is not None and kept.actor in self.actors:
            forgetting = kept.actor.handle.forget.options(concurrency_group="give")
            forgetting.remote(kept.key, part, n_parts)

    def result_of(self, call: Call, is_again: bool = False) -> tuple[Any] | None:
        """Wait for a call, and return (its result,); None if an actor died, or an object is lost.

        Losses before and after a call that is made again are in a row.

        Raises:
            RayError: Workers died, or objects were lost, again and again.
            Exceptions of the function, unchanged.
        """
        try:
            found = self._ray.get(call.reference)
        except self.actors.lost as error:
            self.actors.note_loss(call.actor, error)
            return None
        if not isinstance(found, Failed):
            if not is_again:
                self.actors.note_result()
            return (found,)
        if not isinstance(found.error, self.actors.lost):
            raise found.error
        # What the call needed is lost, maybe because the actor that kept it has died: this is
        # counted once.
        if self.actors.n_replaced == call.n_replaced:
            self.actors.count_loss(found.error)
            self.actors.replace_dead()
        return None

    def make_again(self, kept: Kept) -> Kept:
        """Compute lost results again on an actor, and wait; raise RayError as `note_loss`."""
        again = Kept(kept.units, kept.n_units)
        while True:
            actor = self.actors.idlest()
            reference = self._run_apart(again, actor)
            try:
                self._ray.get(reference)
            except self.actors.lost as error:
                self.actors.note_loss(actor, error)
                self.forget(again, 1, 1)
            else:
                return again

    def _look(self, under_way: Iterable[_Task]) -> None:
        """Wait up to a second for a task to be done, or an actor to start; note all that are."""
        tasks = {each.reference: each for each in under_way if not each.is_done}
        done = self._done_of([*tasks, *self.actors.starting()], LOOK_SECONDS)
        for reference in done & tasks.keys():
            task = tasks[reference]
            task.is_done = True
            assert task.actor is not None
            task.actor.n_tasks -= 1
        self.actors.note_started(done)

    def _replace(
        self, head: _Task, under_way: Iterable[_Task], keeps: bool, error: Exception
    ) -> None:
        """Replace the actor of a task, and give its tasks to others."""
        lost = head.actor
        assert lost is not None
        self.actors.note_loss(lost, error)
        if keeps:
            raise WorkerLostError(f"a worker of Ray ended: {error}") from error
        for task in under_way:
            if task.actor is not lost or (task is not head and self._is_there(task)):
                continue
            if not task.is_done:
                lost.n_tasks -= 1
            if task.kept is not None:
                self.forget(task.kept, 1, 1)
            self._submit(task, self.actors.idlest())

    def _is_there(self, task: _Task) -> bool:
        """Return True if a task is not lost: it is under way, or its result can be fetched."""
        if not task.is_done and task.actor in self.actors:
            return True
        try:
            self._ray.get(task.reference)
        except self.actors.lost:
            return False
        return True

    def collect(self) -> Any:
        """Return what the workers have kept since the last time, added up in a tree; None: nothing.

        Raises:
            WorkerLostError: A worker died, with what it had kept.
        """
        handles, work = [each.handle for each in self.actors.ready()], self._work
        if self.actors.n_replaced != self._n_replaced:
            raise WorkerLostError("a worker of Ray ended before what it kept was collected")
        try:
            while len(handles) > 1:
                half = (len(handles) + 1) // 2
                added = [
                    taker.add.remote(*work, giver.take.remote(*work))
                    for taker, giver in zip(handles, handles[half:], strict=False)
                ]
                self._ray.get(added)
                handles = handles[:half]
            found = self._ray.get(handles[0].take.remote(*work))
        except self.actors.lost as error:
            self.actors.count_loss(error)
            self.actors.replace_dead()
            raise WorkerLostError(f"a worker of Ray ended: {error}") from error
        self.actors.note_result()
        return found

    def close(self) -> None:
        """End the actors, and report how busy they were."""
        self.actors.end()
        if self._seconds:
            share = self._busy / self._seconds
            logger.info("%d workers of Ray were busy %s of the time", self.workers, f"{share:.0%}")
            self._seconds = 0.0


@contextmanager
def on_ray(
    workers: int, address: str | None, resources: Mapping[str, float], progress: Progress
) -> Iterator[RayExecutor]:
    """Yield an executor with as many workers, which are ended after the `with`.

    Args:
        workers: Number of workers.
        address: Address of a cluster; None: Ray is started on this machine.
        resources: Name of a resource of Ray -> amount that each worker needs; CPU: 1 if not given.
        progress: Gets a stage for the start.

    Raises:
        RayError: As `connected`, or no machine has the resources.
    """
    with ExitStack() as stack:
        with progress.stage("starting Ray", workers, "workers") as stage:
            cpus = -(-workers * max(resources.get("CPU", 1.0), 1.0) // 1)
            ray = stack.enter_context(connected(int(cpus), address))
            executor = RayExecutor(ray, workers, resources)
            stack.callback(executor.close)
            executor.actors.start()
            stage.advance(workers)
        yield executor
