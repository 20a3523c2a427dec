"""What an actor of Ray runs."""

from __future__ import annotations

import os
import pickle
import time
import traceback
from collections.abc import Callable
from typing import Any

from bpe.errors import TokenbinError
from preprocess.run.ray_cluster import RayError


class Failed:
    """An exception of the work, as a result."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Worker:
    """What an actor runs: the work of one worker; methods are called one after another."""

    def __init__(self) -> None:
        self._work: Any = None
        self._failed: Failed | None = None

    def begin(self, make_work: bytes) -> None:
        """Make the work that units are given to from now on."""
        self._work, self._failed = None, None
        try:
            self._work = pickle.loads(make_work)()
        except Exception as error:  # noqa: BLE001 (raised where the results are taken)
            self._failed = Failed(picklable(error))

    def run(self, unit: Any) -> tuple[Any, float]:
        """Return (result, or what failed, of a unit; the seconds that it took)."""
        if self._failed is not None:
            return self._failed, 0.0
        began = time.perf_counter()
        found: Any
        try:
            found = self._work(unit)
        except Exception as error:  # noqa: BLE001 (raised where the results are taken)
            found = Failed(picklable(error))
        return found, time.perf_counter() - began

    def run_apart(self, unit: Any) -> tuple[tuple[Any, float], Any]:
        """Return ((what is sent of the result, seconds), what stays in the object store).

        Both are what failed, if so: nobody takes the first if a unit is done again for the second.
        """
        found, seconds = self.run(unit)
        if isinstance(found, Failed):
            return (found, seconds), found
        sent, stays = found
        return (sent, seconds), stays

    def call(self, function: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        """Return the result of a function, or what failed."""
        try:
            return function(*values)
        except Exception as error:  # noqa: BLE001 (raised where the result is taken)
            return Failed(picklable(error))

    def take(self) -> Any:
        """Return what the work has kept, which it forgets."""
        return self._work.take()

    def add(self, kept: Any) -> None:
        """Add what another worker has kept."""
        self._work.add(kept)

    def process(self) -> int:
        """Return the number of the process."""
        return os.getpid()


def picklable(error: Exception) -> Exception:
    """Return an exception as another process can raise it."""
    if not isinstance(error, TokenbinError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 (any class may refuse)
        notes = getattr(error, "__notes__", [repr(error)])
        return RayError(f"a worker of Ray failed: {''.join(notes)}")
    return error
