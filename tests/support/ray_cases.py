"""Work of tests that runs in the actors of Ray, which import this module."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bpe.errors import CorpusError


@dataclass(frozen=True)
class Unit:
    """A number instead of text."""

    number: int
    n_bytes: int = 1
    n_held: int = 0

    @property
    def where(self) -> str:
        return f"unit {self.number}"


@dataclass(frozen=True)
class Squares:
    """Squares the numbers; some of them fail, or end the process."""

    fails: int = -1
    ends: int = -1
    once: str = ""  # a file that says that it has ended before
    keeps: bool = False
    raises: Any = None

    def __call__(self) -> Callable[[Unit], int]:
        if self.raises is not None:
            raise self.raises
        return Work(self)


def pairs() -> Callable[[Unit], tuple[int, int]]:
    """Make work that returns the number of a unit, twice."""
    return lambda unit: (unit.number, unit.number)


class Strange(Exception):  # noqa: N818
    """Cannot be pickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"strange {one} {two}")


class Work:
    """What `Squares` make; it keeps the sum."""

    def __init__(self, of: Squares) -> None:
        self.of, self.sum = of, 0

    def __call__(self, unit: Unit) -> int:
        if unit.number == self.of.fails:
            if self.of.once == "strange":
                raise Strange(1, 2)
            raise CorpusError(f"{unit.where}: cannot be squared")
        if unit.number == self.of.ends and not (self.of.once and Path(self.of.once).exists()):
            if self.of.once:
                Path(self.of.once).touch()
            os._exit(1)
        time.sleep(0)
        self.sum += unit.number
        return unit.number**2

    def take(self) -> int:
        taken, self.sum = self.sum, 0
        return taken

    def add(self, other: int) -> None:
        self.sum += other
