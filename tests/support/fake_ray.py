"""Ray in one thread: what an actor is asked to do is done when somebody waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any


class RayActorError(Exception):
    """An actor has died."""


class ObjectLostError(Exception):
    """The machine with an object is gone."""


class Reference:
    """What an actor returns, or will."""

    def __init__(self, actor: Actor | None = None, value: Any = None) -> None:
        self.actor, self.value, self.is_done = actor, value, actor is None


class Method:
    """A method of an actor."""

    def __init__(self, actor: Actor, name: str, n: int = 1) -> None:
        self._actor, self._name, self._n = actor, name, n

    def options(self, num_returns: int) -> Method:
        return Method(self._actor, self._name, num_returns)

    def remote(self, *values: Any) -> Any:
        references = [Reference(self._actor) for _ in range(self._n)]
        self._actor.queue.append((self._name, values, references))
        return references if self._n > 1 else references[0]


class Actor:
    """An actor, and what it has to do."""

    def __init__(self, made: Any) -> None:
        self.made, self.done = made, list[str]()
        self.queue = deque[tuple[str, tuple[Any, ...], list[Reference]]]()

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)

    def step(self) -> None:
        """Do the next thing."""
        name, values, references = self.queue.popleft()
        # Ray hands over what a reference among the arguments refers to.
        values = tuple(get(x) if isinstance(x, Reference) else x for x in values)
        found = getattr(self.made, name)(*values)
        self.done.append(name)
        for reference, value in zip(
            references, found if len(references) > 1 else [found], strict=True
        ):
            reference.value, reference.is_done = value, True


def get(reference: Any) -> Any:
    """As `ray.get`; an exception as value is raised, as what became of an object."""
    if isinstance(reference, list):
        return [get(each) for each in reference]
    while not reference.is_done:
        reference.actor.step()
    if isinstance(reference.value, Exception):
        raise reference.value
    return reference.value


def wait(
    references: list[Reference], num_returns: int = 1, timeout: float = 0.0,
    fetch_local: bool = True,
) -> tuple[list[Reference], list[Reference]]:
    """As `ray.wait`; an actor does something only for those who wait some time.

    That is the one with the least to do before the call of a function: those take long.
    """

    def n_calls(reference: Reference) -> int:
        queue: Iterable[Any] = reference.actor.queue if reference.actor is not None else ()
        n = 0
        for name, _, made in queue:
            n += name == "call"
            if reference in made:
                break
        return n

    if timeout and not any(each.is_done for each in references):
        first = min(references, key=n_calls)
        while not first.is_done:
            assert first.actor is not None
            first.actor.step()
    done = [each for each in references if each.is_done][: max(num_returns, 1)]
    return done, [each for each in references if each not in done]


class Remote:
    """A class whose objects are actors."""

    def __init__(self, made: Callable[[], Any], actors: list[Actor]) -> None:
        self._made, self._actors = made, actors

    def options(self, **_: Any) -> Remote:
        return self

    def remote(self) -> Actor:
        self._actors.append(Actor(self._made()))
        return self._actors[-1]


def fake_ray() -> Any:
    """Return a module to use for `ray`; `actors` are those that were started."""
    actors: list[Actor] = []
    return SimpleNamespace(
        actors=actors, remote=lambda made: Remote(made, actors), get=get, wait=wait,
        put=lambda value: Reference(None, value), kill=lambda actor: None,
        is_initialized=lambda: True, cluster_resources=lambda: {"CPU": 9.0},
        exceptions=SimpleNamespace(RayActorError=RayActorError, ObjectLostError=ObjectLostError),
    )
