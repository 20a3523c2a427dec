"""Connect to a cluster of Ray, or start Ray on this machine."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from bpe.errors import TokenmillError

_MOST_TOGETHER = 8  # workers of one actor


class RayError(TokenmillError):
    """Ray is not installed or cannot be reached, or its workers keep dying."""


def import_ray() -> Any:
    """Import Ray, without usage statistics; raise RayError if it is not installed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # An actor without GPUs still sees them, as a later version of Ray does, which else warns.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise RayError(
            "--executor ray needs Ray, which is not installed; install it: pip install"
            " 'tokenmill[ray]', or leave --executor out"
        ) from error
    return ray


def actor_sizes(
    nodes: Iterable[Mapping[str, Any]], workers: int, resources: Mapping[str, float]
) -> list[int]:
    """Return the number of workers of each actor: as many as a machine has room for, up to 8.

    Workers that no machine has room for get an actor each.

    Args:
        nodes: What `ray.nodes` returns.
        workers: Number of workers.
        resources: Name of a resource -> amount that each worker needs.
    """
    sizes: list[int] = []
    for node in nodes:
        if not node["Alive"]:
            continue
        there = node["Resources"]
        room = [int(there.get(x, 0.0) // amount) for x, amount in resources.items() if amount > 0]
        n = min([workers - sum(sizes), *room])
        while n:
            size = min(n, _MOST_TOGETHER)
            while size > 1 and not _may_have(size, resources):
                size -= 1
            sizes.append(size)
            n -= size
    return sizes + [1] * (workers - sum(sizes))


def _may_have(n: int, resources: Mapping[str, float]) -> bool:
    """Return False if Ray refuses an actor of `n` workers: GPUs above 1 must be whole numbers."""
    amounts = [n * amount for x, amount in resources.items() if x not in ("CPU", "memory")]
    return all(amount <= 1 or amount == int(amount) for amount in amounts)


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handlers of signals of this process inside the `with`: Ray sets its own."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        with suppress(ValueError):  # not the main thread, where Ray set none
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


@contextmanager
def connected(workers: int, address: str | None) -> Iterator[Any]:
    """Connect to a cluster, or start Ray on this machine, inside the `with`; yield the module.

    A connection that the program has already is used, and stays.

    Raises:
        RayError: Ray is not installed, or the cluster cannot be reached.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    quiet = logging.getLogger("ray")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    options |= {"address": address or "local"}
    if address is None:
        options |= {"num_cpus": workers, "include_dashboard": False}
    try:
        with _own_signals():
            try:
                ray.init(**options)
            except Exception as error:  # Ray raises plain ones, too
                where = "started on this machine" if address is None else f"reached at {address}"
                raise RayError(
                    f"Ray cannot be {where}: {' '.join(str(error).split())}; start a cluster (ray"
                    " start --head), and give its address (--ray-address)"
                ) from error
        yield ray
    finally:
        ray.shutdown()
        quiet.setLevel(level)
