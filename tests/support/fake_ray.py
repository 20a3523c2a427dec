"""Ray in one thread: what an actor is asked to do is done when somebody waits for it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class RayActorError(Exception):
    """An actor has died."""


class OutOfMemoryError(Exception):
    """An actor was killed to free memory."""


class ObjectLostError(Exception):
    """The machine with an object is gone."""


class Reference:
    """What an actor returns, or will."""

    def __init__(self, actor: Actor | None = None, value: Any = None, group: str = "") -> None:
        self.actor, self.value, self.is_done, self.group = actor, value, actor is None, group


class Method:
    """A method of an actor."""

    def __init__(self, actor: Actor, name: str, group: str = "") -> None:
        self._actor, self._name, self._group = actor, name, group

    def options(self, concurrency_group: str) -> Method:
        return Method(self._actor, self._name, concurrency_group)

    def remote(self, *values: Any) -> Any:
        reference = Reference(self._actor, group=self._group)
        self._actor.queues[self._group].append((self._name, values, reference))
        return reference


class Actor:
    """An actor, and what each group of its threads has to do."""

    def __init__(self, made: Any) -> None:
        self.made, self.done = made, list[str]()
        self.is_dead = False
        self.is_killed = False  # by a test
        self.is_pending = False  # no machine has room for it
        self.queues = defaultdict[str, deque[tuple[str, tuple[Any, ...], Reference]]](deque)

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)

    def step(self, group: str) -> None:
        """Do the next thing of a group."""
        name, values, reference = self.queues[group].popleft()
        # Ray hands over what a reference among the arguments refers to.
        values = tuple(get(x) if isinstance(x, Reference) else x for x in values)
        reference.value = getattr(self.made, name)(*values)
        self.done.append(name)
        reference.is_done = True


def get(reference: Any) -> Any:
    """As `ray.get`; an exception as value is raised, as what became of an object."""
    if isinstance(reference, list):
        return [get(each) for each in reference]
    while not reference.is_done:
        assert not reference.actor.is_pending, "waits for ever"
        if reference.actor.is_dead:
            raise RayActorError("killed")
        reference.actor.step(reference.group)
    if isinstance(reference.value, Exception):
        raise reference.value
    return reference.value


def wait(
    references: list[Reference], num_returns: int = 1, timeout: float = 0.0,
    fetch_local: bool = True,
) -> tuple[list[Reference], list[Reference]]:
    """As `ray.wait`; an actor does something only for those who wait some time."""

    def is_ready(reference: Reference) -> bool:
        return reference.is_done or (reference.actor is not None and reference.actor.is_dead)

    moving = [each for each in references if each.actor is None or not each.actor.is_pending]
    for reference in moving[:num_returns] if timeout else []:
        if not is_ready(reference) and (num_returns > 1 or not any(map(is_ready, references))):
            get(reference)
    done = [each for each in references if is_ready(each)][: max(num_returns, 1)]
    return done, [each for each in references if each not in done]


def kill(actor: Actor) -> None:
    """As `ray.kill`, and as if the process had ended."""
    actor.is_dead = True


class Remote:
    """A class whose objects are actors."""

    def __init__(self, made: Callable[..., Any], actors: list[Actor]) -> None:
        self._made, self._actors = made, actors

    def options(self, **_: Any) -> Remote:
        return self

    def remote(self, *values: Any) -> Actor:
        self._actors.append(Actor(self._made(*values)))
        return self._actors[-1]


def fake_ray(cpus: tuple[int, ...] = (1, 1)) -> Any:
    """Return a module to use for `ray`, of machines with so many processors each.

    `actors` are those that were started.
    """
    actors: list[Actor] = []
    return SimpleNamespace(
        actors=actors, remote=lambda **_: lambda made: Remote(made, actors), get=get, wait=wait,
        nodes=lambda: [{"Alive": True, "Resources": {"CPU": float(n)}} for n in cpus],
        put=lambda value: Reference(None, value), kill=kill,
        is_initialized=lambda: True, cluster_resources=lambda: {"CPU": float(sum(cpus))},
        exceptions=SimpleNamespace(
            RayActorError=RayActorError, ObjectLostError=ObjectLostError,
            OutOfMemoryError=OutOfMemoryError,
        ),
    )
