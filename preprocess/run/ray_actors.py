"""The actors of Ray that an executor has: started where there is room, and replaced if they die."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from preprocess.report.progress import logger
from preprocess.run.ray_cluster import RayError, actor_sizes
from preprocess.run.ray_worker import Worker

LANES = "write0", "write1"  # a shard may be synced or uploaded while the next one is written
LOOK_SECONDS = 1.0  # between looks at what has changed
_MOST_LOSSES = 3  # in a row, without any result between them
_SECONDS_BETWEEN_LINES = 30.0
_SECONDS_FOR_ROOM = 180.0  # for several workers on one machine
_SECONDS_TO_ANSWER = 10.0  # of an actor that is there


@dataclass(eq=False)
class Actor:
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


class Actors:
    """The actors of an executor, which have a given number of workers in total.

    Iteration yields the actors that are not known to have died.

    Args:
        ray: The module, connected to a cluster.
        workers: Number of workers.
        resources: Name of a resource -> amount that each worker needs; CPU: 1 if not given.

    Attributes:
        died: Errors that say that an actor has died.
        lost: Those, and that an object is lost.
        n_replaced: Number of actors that had started, died and were replaced.
    """

    def __init__(self, ray: Any, workers: int, resources: Mapping[str, float]) -> None:
        self._ray, self._workers = ray, workers
        self._resources = {"CPU": 1.0} | dict(resources)
        self._class = ray.remote(concurrency_groups=dict.fromkeys((*LANES, "give"), 1))(Worker)
        errors = ray.exceptions
        self.died = errors.RayActorError, errors.OutOfMemoryError
        self.lost = *self.died, errors.ObjectLostError
        self._actors: list[Actor] = []
        self.n_replaced = 0
        self._next_line = 0.0  # time of the next log line about waiting
        self._n_losses = 0  # in a row

    def __iter__(self) -> Iterator[Actor]:
        return iter(self._actors[:])

    def __contains__(self, actor: Actor | None) -> bool:
        """Return True if an actor is not known to have died."""
        return actor in self._actors

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
        sizes = actor_sizes(self._ray.nodes(), self._workers, self._resources)
        self._actors = [self._spawn(each) for each in sizes]
        # All of them, if they come soon: so that their start is no part of the work.
        self._next_line = deadline = time.monotonic() + _SECONDS_BETWEEN_LINES
        while self.starting():
            self._wait_for_start()
            if time.monotonic() >= deadline and self.ready():
                return  # the others join when they start

    def _spawn(self, n_workers: int) -> Actor:
        needs = {name: n_workers * amount for name, amount in self._resources.items()}
        options = {
            "num_cpus": needs.pop("CPU"), "num_gpus": needs.pop("GPU", 0),
            "memory": needs.pop("memory", None), "resources": needs,
        }  # fmt: skip
        actors = self._class.options(**options, max_restarts=0, max_concurrency=n_workers + 1)
        handle = actors.remote(n_workers)
        return Actor(handle, n_workers, handle.process.remote(), time.monotonic())

    def _divide_waiting(self) -> None:
        """Replace actors that no machine has room for by one for each of their workers."""
        for each in self._actors[:]:
            is_late = time.monotonic() - each.since > _SECONDS_FOR_ROOM
            if is_late and not each.is_ready and each.n_workers > 1:
                self._ray.kill(each.handle)
                self._actors.remove(each)
                self._actors += [self._spawn(1) for _ in range(each.n_workers)]

    def starting(self) -> dict[Any, Actor]:
        """Return the actors that have not started, by what is ready when they have."""
        return {each.started: each for each in self._actors if not each.is_ready}

    def note_started(self, done: Iterable[Any]) -> None:
        """Mark the actors that have started, and replace those for which no machine has room.

        Args:
            done: Ray references that are ready, of starts of actors and of other calls.

        Raises:
            RayError: As `note_loss`.
        """
        starting = self.starting()
        for reference in done:
            if (actor := starting.get(reference)) is None:
                continue
            try:
                self._ray.get(reference)
                actor.is_ready = True
            except self.lost as error:
                self.note_loss(actor, error)
        self._divide_waiting()

    def _wait_for_start(self) -> None:
        """Wait up to a second for an actor to start, and log every 30 s how many have started."""
        done, left = self._ray.wait([*self.starting()], timeout=LOOK_SECONDS)
        if left:
            done += self._ray.wait(left, num_returns=len(left), timeout=0)[0]
        self.note_started(done)
        if time.monotonic() >= self._next_line:
            self._next_line += _SECONDS_BETWEEN_LINES
            n = sum(each.n_workers for each in self._actors if each.is_ready)
            needs = ", ".join(f"{name}={amount:g}" for name, amount in self._resources.items())
            text = "%d of %d workers of Ray have started, each of which needs %s"
            logger.info(text, n, self._workers, needs)

    def ready(self) -> list[Actor]:
        """Return the actors that have started; wait if there are none."""
        if all(not each.is_ready for each in self._actors):
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
        while not (ready := [each for each in self._actors if each.is_ready]):
            self._wait_for_start()
        return ready

    def idlest(self) -> Actor:
        """Return the actor that has the fewest tasks."""
        return min(self.ready(), key=attrgetter("load"))

    def note_result(self) -> None:
        """Reset the count of losses in a row, after a result."""
        self._n_losses = 0

    def note_loss(self, actor: Actor, error: Exception) -> None:
        """Count a loss, and replace the actor, and others, if they died; raise as `count_loss`."""
        if not isinstance(error, self.died):
            # A machine with results may be gone, and this actor not.
            self.count_loss(error)
        elif actor in self._actors:  # it is replaced, and counted, once
            self.count_loss(error)
            self._respawn(actor)
            self.replace_dead()  # all of a machine, before units go to them

    def _respawn(self, actor: Actor) -> None:
        """Replace an actor by a new one."""
        self._ray.kill(actor.handle)  # it may only be out of reach
        self.n_replaced += actor.is_ready
        self._actors[self._actors.index(actor)] = self._spawn(actor.n_workers)

    def replace_dead(self) -> None:
        """Replace the actors that have died."""
        ready = {
            each.handle.process.options(concurrency_group="give").remote(): each
            for each in self._actors if each.is_ready
        }  # fmt: skip
        for asked, timeout in ((ready, _SECONDS_TO_ANSWER), (self.starting(), 0)):
            if not asked:
                continue
            for reference in self._ray.wait([*asked], num_returns=len(asked), timeout=timeout)[0]:
                try:
                    self._ray.get(reference)
                except self.died:
                    self._respawn(asked[reference])

    def count_loss(self, error: Exception) -> None:
        """Count an actor or an object that is lost; raise RayError if there were too many."""
        self._n_losses += 1
        if self._n_losses > _MOST_LOSSES:
            raise RayError(
                f"workers of Ray ended, or what they had made was lost, {self._n_losses} times in a"
                f" row, the last time so: {' '.join(str(error).split())[:500]}; if memory is short,"
                " use fewer workers or a smaller --unit-size; rerun the same command to resume"
            ) from error
        if isinstance(error, self.died):
            what = "a worker of Ray ended; another takes its place, and does its units again"
        else:
            what = "what a worker of Ray had made was lost; it is made again"
        logger.warning(what)

    def end(self) -> None:
        """End the actors."""
        # Ray may lose the end of an actor whose process is starting, which then keeps its CPUs.
        if starting := [*self.starting()]:
            self._ray.wait(starting, num_returns=len(starting), timeout=_SECONDS_TO_ANSWER)
        for each in self._actors:
            self._ray.kill(each.handle)
        self._actors = []
