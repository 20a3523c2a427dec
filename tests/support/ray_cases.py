"""Functions of tests that run in the workers of Ray, which import this module."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import faults

from bpe.errors import CorpusError
from preprocess.run.parts import DividedRun, count_part
from preprocess.run.passes import make_part


def _first_time(run: DividedRun, what: str) -> bool:
    try:
        Path(run.directory, f".{what}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def dying_make(run: DividedRun, number: int, minutes: float | None) -> int:
    """Kill the worker at some call that changes the disk, the first three times."""
    at = 7 * number + 9
    if number < 2 and any(_first_time(run, f"{number}-{i}") for i in range(3)):
        faults.install(faults.System(at, faults.die))
    return make_part(run, number, minutes)


def dying_count(run: DividedRun, number: int, minutes: float | None) -> Any:
    """Kill a worker inside of counting, once."""
    if number == 1 and _first_time(run, "count"):
        faults.install(faults.System(8, faults.die))
    return count_part(run, number, minutes)


def make_where_a_machine_dies(run: DividedRun, number: int, minutes: float | None) -> int:
    """Tell the machine of a part, once, and wait for its end."""
    import ray

    if number == 2 and _first_time(run, "waits"):
        node = ray.get_runtime_context().get_node_id()
        Path(run.directory, ".machine").write_text(node)
        threading.Event().wait(100)
    return make_part(run, number, minutes)


class Strange(Exception):  # noqa: N818
    """Cannot be pickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"strange {one} {two}")


def square(given: Any, number: int, minutes: float | None) -> int:
    """Square the number; one of them fails as is given."""
    if number == 3 and given == "ends":
        os._exit(1)
    if number == 3 and given == "fails":
        raise CorpusError("part 3: cannot be squared")
    if number == 3 and given == "strange":
        raise Strange(1, 2)
    return number**2
