"""Call a function for each part of a run on the workers of Ray, on this machine or a cluster."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar

from bpe.errors import TokenmillError
from preprocess.report.progress import OutOfTimeError, Progress, logger
from preprocess.storage import LockedError

_MOST_LOSSES = 3  # of workers that have the same part
_SECONDS_BETWEEN_LOOKS = 1.0
_SECONDS_TO_END = 10.0  # of workers that are told to
_SECONDS_OF_LOCK = 60.0  # until a worker that was lost has given its lock back

Given = TypeVar("Given")
Result = TypeVar("Result")
# function(given, number of the part, minutes that are left or None)
PartFunction = Callable[[Given, int, float | None], Result]


class RayError(TokenmillError):
    """Ray is not installed or cannot be reached, or its workers keep dying."""


class Failed:
    """An exception of a worker, as a result."""

    def __init__(self, error: Exception) -> None:
        if not isinstance(error, TokenmillError):
            error.add_note("".join(traceback.format_exception(error)))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001 (any class may refuse)
            notes = getattr(error, "__notes__", [repr(error)])
            error = RayError(f"a worker of Ray failed: {''.join(notes)}")
        self.error = error


class Workers:
    """Workers of Ray that call functions, each for one part of a run at a time.

    Args:
        ray: The module, connected to a cluster.
        workers: Number of parts that are under way at a time.
        resources: Name of a resource -> amount that each worker needs; CPU: 1 if not given.

    Raises:
        RayError: The cluster lacks a resource.
    """

    def __init__(self, ray: Any, workers: int, resources: Mapping[str, float]) -> None:
        self._ray, self._workers = ray, workers
        self._under_way: dict[Any, int] = {}  # result of a call -> its part
        needs, there = {"CPU": 1.0} | dict(resources), ray.cluster_resources()
        for name, amount in needs.items():
            if there.get(name, 0.0) < amount:
                raise RayError(
                    f"each worker needs {name}={amount:g}, and the machines of the Ray cluster have"
                    f" {there.get(name, 0.0):g} in all; ask for less (--ray-resource)"
                )
        self._run = ray.remote(
            num_cpus=needs.pop("CPU"), num_gpus=needs.pop("GPU", 0), resources=needs,
            memory=needs.pop("memory", None), max_retries=0,
        )(call)
        errors = ray.exceptions
        self._lost = (
            errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError,
            errors.ObjectLostError, errors.LocalRayletDiedError,
        )

    def run(
        self, function: PartFunction[Given, Result], given: Given, parts: Iterable[int],
        progress: Progress, waiting: Callable[[], None],
    ) -> Iterator[tuple[int, Result]]:
        """Yield (number of a part, result of the function) of each part, as they are done.

        A part whose worker dies, also with its machine, is given to another worker. At the time
        limit, the function raises OutOfTimeError, and so does this when no part is under way.

        Args:
            function: Function of a module.
            given: Its first argument, for all parts.
            parts: Numbers of the parts.
            progress: Says how much time is left.
            waiting: Is called about every second.

        Raises:
            RayError: A part cannot be done, for its workers die.
            Exceptions of the function, unchanged.
        """
        left, under_way, n_lost = deque(parts), self._under_way, dict[int, int]()
        shared, late = self._ray.put(given), None
        try:
            while under_way or (left and late is None):
                while left and late is None and len(under_way) < self._workers:
                    part = left.popleft()
                    called = self._run.remote(function, shared, part, progress.minutes_left())
                    under_way[called] = part
                waiting()
                done, _ = self._ray.wait([*under_way], timeout=_SECONDS_BETWEEN_LOOKS)
                for called in done:
                    part = under_way.pop(called)
                    if (found := self._take(called, part, n_lost)) is None:
                        left.appendleft(part)
                    elif not isinstance(found, Failed):
                        yield part, found
                    elif isinstance(found.error, OutOfTimeError):
                        late = found.error
                    else:
                        raise found.error
            if late is not None:
                raise late
        finally:
            self.stop()

    def stop(self) -> None:
        """End the workers that have a part, and wait, so that they write no file any more."""
        called = [*self._under_way]
        self._under_way.clear()
        for each in called:
            self._ray.cancel(each, force=True)
        if called:
            self._ray.wait(called, num_returns=len(called), timeout=_SECONDS_TO_END)

    def _take(self, called: Any, part: int, n_lost: dict[int, int]) -> Any:
        """Return the result of a part; None if its worker is lost."""
        try:
            return self._ray.get(called)
        except self._lost as error:
            n_lost[part] = n_lost.get(part, 0) + 1
            if n_lost[part] > _MOST_LOSSES:
                raise RayError(
                    f"part {part:,}: {n_lost[part]} workers of Ray ended before it was done, the"
                    f" last one so: {_line(error)}; if memory is short, give workers more of it"
                    " (--ray-resource memory=4000000000); rerun the same command to resume"
                ) from error
            logger.warning("part %s: a worker of Ray ended; another one resumes it", f"{part:,}")
            return None
        except self._ray.exceptions.RayError as error:
            raise RayError(
                f"part {part:,}: a worker of Ray cannot begin: {_line(error)}; install the same"
                " version of tokenmill on all machines"
            ) from error


def call(function: PartFunction[Given, Any], given: Given, part: int, minutes: float | None) -> Any:
    """Call the function of a part in a worker, and return its result, or a `Failed`."""
    until = time.monotonic() + _SECONDS_OF_LOCK
    while True:
        try:
            return function(given, part, minutes)
        except LockedError as error:
            # The machine may not know yet that an earlier worker with this part is dead.
            if time.monotonic() >= until:
                return Failed(error)
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        except Exception as error:  # noqa: BLE001 (raised where the result is taken)
            return Failed(error)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]


# --- the connection ---


@contextmanager
def on_ray(
    workers: int, address: str | None, resources: Mapping[str, float], progress: Progress
) -> Iterator[Workers]:
    """Yield workers of Ray, on a cluster or, without an address, on this machine.

    Args:
        workers: As of `Workers`.
        address: Address of a cluster; None: Ray is started on this machine.
        resources: As of `Workers`.
        progress: Gets a stage for the start.

    Raises:
        RayError: As `connected`, or no machine has the resources.
    """
    with ExitStack() as stack:
        with progress.stage("starting Ray", workers, "workers") as stage:
            cpus = -(-workers * max(resources.get("CPU", 1.0), 1.0) // 1)
            ray = stack.enter_context(connected(int(cpus), address))
            started = Workers(ray, workers, resources)
            stack.callback(started.stop)
            stage.advance(workers)
        yield started


def import_ray() -> Any:
    """Import Ray, without usage statistics; raise RayError if it is not installed."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # A worker without GPUs still sees them, as a later version of Ray does, which else warns.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise RayError(
            "--executor ray needs Ray, which is not installed; install it: pip install"
            " 'tokenmill[ray]', or leave --executor out"
        ) from error
    return ray


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
def connected(cpus: int, address: str | None) -> Iterator[Any]:
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
        options |= {"num_cpus": cpus, "include_dashboard": False}
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
