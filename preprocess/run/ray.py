"""Run work on actors of Ray, on this machine or a cluster.

Each actor holds one worker, such as an encoder, and is sent a unit at a time. An actor that dies,
also with its machine, is replaced, and its units are done again by others. Results of encoding stay
in Ray's object store until this process takes them; counts stay in the actors, and are added up in
a tree when they are collected.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from preprocess.report.progress import Progress, logger
from preprocess.run.ray_cluster import RayError, connected
from preprocess.run.ray_worker import Failed, Worker
from preprocess.run.signals import watching
from preprocess.run.units import MakeWork, Result, WorkerLostError
from preprocess.sources import WorkUnit

_MOST_LOSSES = 3  # in a row, without any result between them
_LOOK_SECONDS = 1.0  # between looks at what has changed
_SECONDS_BETWEEN_LINES = 30.0
_MOST_UNITS = 2  # under way at an actor
_OF_CALL = 3  # units that a call counts as: more than those, so that calls are shared out first
_WINDOW = 3  # units or results of each actor at a time, at most


@dataclass(eq=False)
class _Actor:
    """An actor, and how many units it has; a call counts as `_OF_CALL` of them."""

    handle: Any
    started: Any  # reference that is ready when the actor has started
    is_ready: bool = False
    n_units: int = 0


@dataclass(eq=False)
class _Task:
    """A unit in the hands of an actor, or what its source raised instead of a unit."""

    unit: WorkUnit | None = None
    error: Exception | None = None
    actor: _Actor | None = None
    reference: Any = None
    stored: Stored | None = None
    is_done: bool = False


@dataclass(eq=False)
class Stored:
    """What stays of a result in the object store, and what it is made of again if it is lost."""

    unit: Any  # reference to the unit
    reference: Any = None


@dataclass(eq=False)
class Call:
    """A call of a function by an actor."""

    reference: Any
    actor: _Actor


class RayExecutor:
    """An `Executor` whose workers are actors of Ray, which stay from call to call.

    Args:
        ray: The module, connected to a cluster.
        workers: Number of actors.
        resources: Name of a resource -> amount that each actor needs; CPU: 1 if not given.
    """

    def __init__(self, ray: Any, workers: int, resources: Mapping[str, float]) -> None:
        self._ray, self.workers = ray, workers
        self._resources = {"CPU": 1.0} | dict(resources)
        others = {x: y for x, y in self._resources.items() if x not in ("CPU", "GPU", "memory")}
        self._class = ray.remote(Worker).options(
            num_cpus=self._resources["CPU"], num_gpus=self._resources.get("GPU", 0),
            memory=self._resources.get("memory"), resources=others, max_restarts=0,
        )
        self._lost = ray.exceptions.RayActorError, ray.exceptions.ObjectLostError
        self._actors: list[_Actor] = []
        self._calls: dict[Any, Call] = {}  # by reference; not known to be done
        self._begun: Any = None  # reference to what the actors make their work of
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
        self._actors = [self._spawn() for _ in range(self.workers)]
        # All of them, if they come soon: so that their start is no part of the work.
        deadline = time.monotonic() + _SECONDS_BETWEEN_LINES
        while not all(each.is_ready for each in self._actors):
            self._look([])
            if time.monotonic() >= deadline:
                n = sum(each.is_ready for each in self._actors)
                logger.info(
                    "%d of %d workers of Ray have started, each of which needs %s", n, self.workers,
                    self._needs(),
                )
                if n:
                    return  # the others join when they start
                deadline += _SECONDS_BETWEEN_LINES

    def _needs(self) -> str:
        return ", ".join(f"{name}={amount:g}" for name, amount in self._resources.items())

    def _spawn(self) -> _Actor:
        handle = self._class.remote()
        actor = _Actor(handle, handle.process.remote())
        if self._begun is not None:
            handle.begin.remote(self._begun)
        return actor

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
    ) -> Generator[tuple[Result, Stored | None], None, None]:
        """Yield (result of a unit, None), in order, as `__call__`.

        If the results are pairs that are taken apart, the first of each is yielded, and the second
        stays in the object store.
        """
        self._begun = self._ray.put(pickle.dumps(make_work))
        for each in self._actors:
            each.handle.begin.remote(self._begun)
            each.n_units = 0
        self._calls.clear()
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
                    assert head.unit is not None
                    with watch.over(head.unit.where, head.unit.n_bytes):
                        while not head.is_done:
                            self._look(under_way)
                            self._fill(remaining, under_way, is_apart)
                    try:
                        found, seconds = self._ray.get(head.reference)
                    except self._lost as error:
                        self._replace(head, under_way, keeps, error)
                        continue
                    if isinstance(found, Failed):
                        raise found.error
                    under_way.popleft()
                    self._n_losses, self._busy = 0, self._busy + seconds
                    result = found, head.stored
                    del found, head
                    yield result
                    del result
                    self._fill(remaining, under_way, is_apart)
            finally:
                self._seconds += (time.monotonic() - began) * len(self._actors)
                under_way.clear()

    def _fill(
        self, remaining: Iterator[WorkUnit], under_way: deque[_Task], is_apart: bool
    ) -> None:
        """Give units to actors that have room, while the window has; one if none is under way."""
        ready = self._ready()
        while len(under_way) < _WINDOW * len(self._actors):
            actor = min(ready, key=lambda each: each.n_units)
            is_full = actor.n_units >= _MOST_UNITS
            if under_way and (is_full or under_way[-1].error is not None):
                return
            try:
                unit = next(remaining, None)
            except Exception as error:  # noqa: BLE001 (raised when it is its turn)
                under_way.append(_Task(error=error, is_done=True))
                return
            if unit is None:
                return
            task = _Task(unit, stored=Stored(self._ray.put(unit)) if is_apart else None)
            self._submit(task, actor)
            under_way.append(task)

    def _ready(self) -> list[_Actor]:
        """Return the actors that have started; wait if there are none."""
        while not (ready := [each for each in self._actors if each.is_ready]):
            self._look([])
        return ready

    def _submit(self, task: _Task, actor: _Actor) -> None:
        task.actor, task.is_done = actor, False
        if task.stored is None:
            task.reference = actor.handle.run.remote(task.unit)
        else:
            task.reference = self._run_apart(task.stored, actor)
        actor.n_units += 1

    def _run_apart(self, stored: Stored, actor: _Actor) -> Any:
        """Give a unit to an actor, and return the reference to what it sends."""
        run = actor.handle.run_apart.options(num_returns=2)
        sent, stored.reference = run.remote(stored.unit)
        return sent

    def call(self, function: Callable[..., Any], *values: Any) -> Call:
        """Let an actor call a function, after the units that it has; for `result_of`."""
        actor = min(self._ready(), key=lambda each: each.n_units)
        # Takes as long as many units, which others do meanwhile.
        actor.n_units += _OF_CALL
        call = Call(actor.handle.call.remote(function, values), actor)
        self._calls[call.reference] = call
        return call

    def is_done(self, call: Call) -> bool:
        """Return True if a call has returned or failed."""
        done = bool(self._ray.wait([call.reference], timeout=0, fetch_local=False)[0])
        if done:
            self._end_call(call.reference)
        return done

    def _end_call(self, reference: Any) -> None:
        """Note that a call is done."""
        call = self._calls.pop(reference, None)
        if call is not None:
            call.actor.n_units -= _OF_CALL

    def result_of(self, call: Call) -> Any:
        """Wait for a call, and return its result; None if its actor died, or an object is lost.

        Raises:
            RayError: Workers died, or objects were lost, again and again.
            Exceptions of the function, unchanged.
        """
        try:
            found = self._ray.get(call.reference)
        except self._lost as error:
            self._note_loss(call.actor, error)
            return None
        finally:
            self._end_call(call.reference)
        if not isinstance(found, Failed):
            self._n_losses = 0
            return found
        if not isinstance(found.error, self._lost):
            raise found.error
        # What the call needed is lost, maybe because the actor that was to make it has died.
        before = self._n_losses
        if isinstance(found.error, self._ray.exceptions.RayActorError):
            for actor in self._actors[:]:
                self._check(actor)
        if self._n_losses == before:
            self._count_loss(found.error)
        return None

    def make_again(self, stored: Stored) -> None:
        """Make what stays in the object store again, if it is lost."""
        try:
            self._ray.get(stored.reference)
        except self._lost:
            self._run_apart(stored, self._ready()[0])

    def _look(self, under_way: Iterable[_Task]) -> None:
        """Wait up to a second for a unit to be done, or an actor to start; note all that are."""
        tasks = {each.reference: each for each in under_way if not each.is_done}
        starting = {each.started: each for each in self._actors if not each.is_ready}
        references = [*tasks, *starting, *self._calls]
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
                task.actor.n_units -= 1
                continue
            if reference in self._calls:
                self._end_call(reference)
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
            self._actors[self._actors.index(actor)] = self._spawn()

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
        """Replace the actor of a task, and give its units to others."""
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
                lost.n_units -= 1
            self._submit(task, min(ready, key=lambda each: each.n_units))

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
        handles = [each.handle for each in self._ready()]
        try:
            while len(handles) > 1:
                half = (len(handles) + 1) // 2
                added = [
                    taker.add.remote(giver.take.remote())
                    for taker, giver in zip(handles, handles[half:], strict=False)
                ]
                self._ray.get(added)
                handles = handles[:half]
            found = self._ray.get(handles[0].take.remote())
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
    """Yield an executor with as many actors, which are ended after the `with`.

    Args:
        workers: Number of actors.
        address: Address of a cluster; None: Ray is started on this machine.
        resources: Name of a resource of Ray -> amount that each actor needs; CPU: 1 if not given.
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
