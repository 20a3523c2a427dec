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
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np

from preprocess.report.progress import Progress, logger
from preprocess.run.ray_cluster import RayError, actor_sizes, connected
from preprocess.run.ray_worker import Failed, Worker
from preprocess.run.signals import watching
from preprocess.run.units import MakeWork, Result, WorkerLostError
from preprocess.sources import WorkUnit

_MOST_LOSSES = 3  # in a row, without any result between them
_LOOK_SECONDS = 1.0  # between looks at what has changed
_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_FOR_ROOM = 60.0  # for several workers on one machine
# A task is a few units, for it costs this process and Ray about 5 ms.
_UNITS_OF_TASK = 8
_TASKS_BEFORE = 4  # of each worker, as long as a task: few units are shared out, too
_LANES = "write0", "write1"  # a shard may be synced or uploaded while the next one is written
_MOST_TASKS = 2  # under way at a worker
_WINDOW = 3  # tasks or their results of each worker at a time, at most


@dataclass(eq=False)
class _Actor:
    """An actor, and how many tasks it has."""

    handle: Any
    n_workers: int
    started: Any  # reference that is ready when the actor has started
    since: float  # time at which it was asked for
    is_ready: bool = False
    n_tasks: int = 0

    @property
    def load(self) -> float:
        """Tasks for each worker."""
        return self.n_tasks / self.n_workers


@dataclass(eq=False)
class _Task:
    """Units in the hands of an actor, or what their source raised instead of a unit."""

    units: Sequence[WorkUnit] = ()
    error: Exception | None = None
    actor: _Actor | None = None
    reference: Any = None
    kept: Kept | None = None
    is_done: bool = False


@dataclass(eq=False)
class Kept:
    """What an actor keeps of the results of a task, and what it is made of again if it is lost."""

    units: Any  # reference to the units of the task
    n_units: int
    actor: _Actor | None = None
    key: int = 0
    n_parts: int = 0  # that were asked for


class Lane(NamedTuple):
    """A thread of an actor, which calls functions one after the other."""

    actor: _Actor
    name: str


@dataclass(eq=False)
class Call:
    """A call of a function by an actor."""

    reference: Any
    actor: _Actor


class RayExecutor:
    """An `Executor` whose workers are threads of actors of Ray, which stay from call to call.

    Args:
        ray: The module, connected to a cluster.
        workers: Number of workers.
        resources: Name of a resource -> amount that each worker needs; CPU: 1 if not given.
    """

    def __init__(self, ray: Any, workers: int, resources: Mapping[str, float]) -> None:
        self._ray, self.workers = ray, workers
        self._resources = {"CPU": 1.0} | dict(resources)
        self._class = ray.remote(concurrency_groups=dict.fromkeys((*_LANES, "give"), 1))(Worker)
        self._lost = ray.exceptions.RayActorError, ray.exceptions.ObjectLostError
        self._actors: list[_Actor] = []
        self._keys, self._n_lanes = count(1), 0
        self._work: tuple[int, Any] = 0, None  # number, and reference to what makes it
        self._n_given = 0  # units of this work, to actors
        self._n_losses = 0  # in a row
        self._busy = self._seconds = 0.0  # of all actors together

    def start(self) -> None:
        """Start the actors, and wait until the first one is there.

        Raises:
            RayError: The cluster lacks a resource, or the actors cannot be started.
        """
        there = self._ray.cluster_resources()
        for name, amount in self._resources.items():
            if there.get(name, 0.0) < amount:
                raise RayError(
                    f"each worker needs {name}={amount:g}, and the machines of the Ray cluster have"
                    f" {there.get(name, 0.0):g} in all; ask for less (--ray-resource)"
                )
        sizes = actor_sizes(self._ray.nodes(), self.workers, self._resources)
        self._actors = [self._spawn(each) for each in sizes]
        # All of them, if they come soon: so that their start is no part of the work.
        deadline = time.monotonic() + _SECONDS_BETWEEN_LINES
        while not all(each.is_ready for each in self._actors):
            self._look([])
            if time.monotonic() >= deadline:
                n = sum(each.n_workers for each in self._actors if each.is_ready)
                logger.info(
                    "%d of %d workers of Ray have started, each of which needs %s", n, self.workers,
                    self._needs(),
                )
                if n:
                    return  # the others join when they start
                deadline += _SECONDS_BETWEEN_LINES

    def _needs(self) -> str:
        return ", ".join(f"{name}={amount:g}" for name, amount in self._resources.items())

    def _spawn(self, n_workers: int) -> _Actor:
        needs = {name: n_workers * amount for name, amount in self._resources.items()}
        options = {
            "num_cpus": needs.pop("CPU"), "num_gpus": needs.pop("GPU", 0),
            "memory": needs.pop("memory", None), "resources": needs,
        }  # fmt: skip
        actors = self._class.options(**options, max_restarts=0, max_concurrency=n_workers + 1)
        handle = actors.remote(n_workers)
        return _Actor(handle, n_workers, handle.process.remote(), time.monotonic())

    def _divide_waiting(self) -> None:
        """Replace actors that no machine has room for by one for each of their workers."""
        for each in self._actors[:]:
            is_late = time.monotonic() - each.since > _SECONDS_FOR_ROOM
            if is_late and not each.is_ready and each.n_workers > 1:
                self._ray.kill(each.handle)
                self._actors.remove(each)
                self._actors += [self._spawn(1) for _ in range(each.n_workers)]

    def processes(self) -> list[int]:
        """Return the numbers of the processes of the actors, each on its machine."""
        found: list[int] = self._ray.get([each.started for each in self._actors])
        return found

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

        If the results are pairs that are taken apart, the first of each is yielded, and the second
        is kept by the actor, as one of a list.
        """
        # An array is not copied where it arrives.
        made_of = np.frombuffer(pickle.dumps(make_work), np.uint8)
        self._work, self._n_given = (self._work[0] + 1, self._ray.put(made_of)), 0
        for each in self._actors:
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
                    except self._lost as error:
                        self._replace(head, under_way, keeps, error)
                        continue
                    under_way.popleft()
                    self._n_losses, self._busy = 0, self._busy + seconds
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
        ready = self._ready()
        while len(under_way) < _WINDOW * self.workers:
            actor = min(ready, key=attrgetter("load"))
            is_full = actor.load >= _MOST_TASKS
            if under_way and (is_full or under_way[-1].error is not None):
                return
            units, raised = self._take(remaining)
            if units:
                kept = Kept(self._ray.put(units), len(units)) if is_apart else None
                under_way.append(_Task(units, kept=kept))
                self._submit(under_way[-1], actor)
            if raised is not None:
                under_way.append(_Task(error=raised, is_done=True))
            if raised is not None or not units:
                return

    def _take(self, remaining: Iterator[WorkUnit]) -> tuple[list[WorkUnit], Exception | None]:
        """Return (units of the next task, what the iterator raised)."""
        units: list[WorkUnit] = []
        n = self._n_given // (_TASKS_BEFORE * self.workers)
        try:
            for unit in islice(remaining, min(max(n, 1), _UNITS_OF_TASK)):
                units.append(unit)
        except Exception as error:  # noqa: BLE001 (raised when it is its turn)
            return units, error
        self._n_given += len(units)
        return units, None

    def _ready(self) -> list[_Actor]:
        """Return the actors that have started; wait if there are none."""
        while not (ready := [each for each in self._actors if each.is_ready]):
            self._look([])
        return ready

    def _submit(self, task: _Task, actor: _Actor) -> None:
        task.actor, task.is_done = actor, False
        if task.kept is None:
            task.reference = actor.handle.run.remote(*self._work, task.units)
        else:
            task.reference = self._run_apart(task.kept, actor)
        actor.n_tasks += 1

    def _run_apart(self, kept: Kept, actor: _Actor) -> Any:
        """Give units to an actor, and return the reference to what it sends."""
        kept.actor, kept.key = actor, next(self._keys)
        return actor.handle.run_apart.remote(*self._work, kept.units, kept.key)

    def lane(self) -> Lane:
        """Return where to `write`: one after the other."""
        ready = self._ready()
        n, self._n_lanes = self._n_lanes, self._n_lanes + 1
        return Lane(ready[n % len(ready)], _LANES[n // len(ready) % len(_LANES)])

    def is_there(self, actor: _Actor | None) -> bool:
        """Return True if an actor is not known to have died."""
        return actor in self._actors

    def write(self, lane: Lane, function: Callable[..., Any], *values: Any) -> Call:
        """Let an actor call `function(worker, *values)`, after those before in the lane."""
        writing = lane.actor.handle.write.options(concurrency_group=lane.name)
        return Call(writing.remote(function, values), lane.actor)

    def is_done(self, call: Call) -> bool:
        """Return True if a call has returned or failed."""
        return bool(self._ray.wait([call.reference], timeout=0, fetch_local=False)[0])

    def result_of(self, call: Call) -> tuple[Any] | None:
        """Wait for a call, and return (its result,); None if an actor died, or an object is lost.

        Raises:
            RayError: Workers died, or objects were lost, again and again.
            Exceptions of the function, unchanged.
        """
        try:
            found = self._ray.get(call.reference)
        except self._lost as error:
            self._note_loss(call.actor, error)
            return None
        if not isinstance(found, Failed):
            self._n_losses = 0
            return (found,)
        if not isinstance(found.error, self._lost):
            raise found.error
        # What the call needed is lost, maybe because the actor that kept it has died.
        before = self._n_losses
        if isinstance(found.error, self._ray.exceptions.RayActorError):
            for actor in self._actors[:]:
                self._check(actor)
        if self._n_losses == before:
            self._count_loss(found.error)
        return None

    def make_again(self, kept: Kept) -> Kept:
        """Make what an actor kept again, and wait for it."""
        again = Kept(kept.units, kept.n_units)
        while not self.is_there(again.actor):
            reference = self._run_apart(again, self._ready()[0])
            try:
                self._ray.get(reference)
            except self._lost as error:
                assert again.actor is not None
                self._note_loss(again.actor, error)
        return again

    def _look(self, under_way: Iterable[_Task]) -> None:
        """Wait up to a second for a task to be done, or an actor to start; note all that are."""
        self._divide_waiting()
        tasks = {each.reference: each for each in under_way if not each.is_done}
        starting = {each.started: each for each in self._actors if not each.is_ready}
        references = [*tasks, *starting]
        if not references:
            return
        wait = self._ray.wait
        done, left = wait(references, num_returns=1, timeout=_LOOK_SECONDS, fetch_local=False)
        if left:
            more, _ = wait(left, num_returns=len(left), timeout=0, fetch_local=False)
            done += more
        for reference in done:
            if reference in tasks:
                task = tasks[reference]
                task.is_done = True
                assert task.actor is not None
                task.actor.n_tasks -= 1
                continue
            actor = starting[reference]
            try:
                self._ray.get(reference)
                actor.is_ready = True
            except self._lost as error:
                self._note_loss(actor, error)

    def _note_loss(self, actor: _Actor, error: Exception) -> None:
        """Count a loss, and replace the actor if it died; raise as `_count_loss`."""
        if not isinstance(error, self._ray.exceptions.RayActorError):
            # A machine with results may be gone, and this actor not.
            self._count_loss(error)
        elif actor in self._actors:  # it is replaced, and counted, once
            self._count_loss(error)
            self._actors[self._actors.index(actor)] = self._spawn(actor.n_workers)

    def _count_loss(self, error: Exception) -> None:
        """Count an actor or an object that is lost; raise RayError if there were too many."""
        self._n_losses += 1
        if self._n_losses > _MOST_LOSSES:
            raise RayError(
                f"workers of Ray ended, or what they had made was lost, {self._n_losses} times in a"
                f" row, the last time so: {' '.join(str(error).split())[:500]}; if memory is short,"
                " use fewer workers or a smaller --unit-size; rerun the same command to resume"
            ) from error
        if isinstance(error, self._ray.exceptions.RayActorError):
            what = "a worker of Ray ended; another takes its place, and does its units again"
        else:
            what = "what a worker of Ray had made was lost; it is made again"
        logger.warning(what)

    def _replace(
        self, head: _Task, under_way: Iterable[_Task], keeps: bool, error: Exception
    ) -> None:
        """Replace the actor of a task, and give its tasks to others."""
        lost = head.actor
        assert lost is not None
        self._note_loss(lost, error)
        if keeps:
            raise WorkerLostError(f"a worker of Ray ended: {error}") from error
        ready = self._ready()
        for task in under_way:
            if task.actor is not lost or (task is not head and self._is_there(task)):
                continue
            if not task.is_done:
                lost.n_tasks -= 1
            self._submit(task, min(ready, key=attrgetter("load")))

    def _is_there(self, task: _Task) -> bool:
        """Return True if a task is not lost: it is under way, or its result can be fetched."""
        if not task.is_done and task.actor in self._actors:
            return True
        try:
            self._ray.get(task.reference)
        except self._lost:
            return False
        return True

    def collect(self) -> Any:
        """Return what the workers have kept since the last time, added up in a tree; None: nothing.

        Raises:
            WorkerLostError: A worker died, with what it had kept.
        """
        handles, work = [each.handle for each in self._ready()], self._work
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
        except self._lost as error:
            for actor in self._actors[:]:
                self._check(actor)
            raise WorkerLostError(f"a worker of Ray ended: {error}") from error
        self._n_losses = 0
        return found

    def _check(self, actor: _Actor) -> None:
        """Replace an actor if it has died."""
        try:
            self._ray.get(actor.handle.process.remote())
        except self._lost as error:
            self._note_loss(actor, error)

    def close(self) -> None:
        """End the actors, and report how busy they were."""
        for each in self._actors:
            self._ray.kill(each.handle)
        self._actors = []
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
            executor.start()
            stage.advance(workers)
        yield executor
