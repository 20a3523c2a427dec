"""Options of builds on several machines.

Annotations are not postponed in this module, see `preprocess.settings.schema`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from preprocess.settings.options import (
    Count,
    Index,
    Kind,
    Settings,
    SettingsError,
    option,
    run_option,
)

_RESOURCE = re.compile(r"([^=\s]+)=(\d+(?:\.\d+)?|\.\d+)")
_RESOURCES = "amounts of resources, such as CPU=2 or memory=4000000000"


def _read_resources(value: Any) -> tuple[str, ...]:
    """Convert {"CPU": 2}, or texts such as "CPU=2", to texts."""
    if isinstance(value, Mapping):
        value = [f"{name}={amount}" for name, amount in value.items()]
    elif isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError
    found = tuple(map(str, value))
    if not all(map(_RESOURCE.fullmatch, found)):
        raise ValueError(f"should be {_RESOURCES}")
    return found


def resources_of(texts: Iterable[str]) -> dict[str, float]:
    """Return name -> amount of resources.

    >>> resources_of(("CPU=2", "GPU=0.5"))
    {'CPU': 2.0, 'GPU': 0.5}
    """
    return {name: float(amount) for name, _, amount in (text.partition("=") for text in texts)}


Resources = Annotated[
    tuple[str, ...], Kind(_read_resources, _RESOURCES, Iterable[str], "NAME=AMOUNT")
]


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ExecutorSettings(Settings):
    """Options for what runs the workers of a run."""

    executor: Literal["threads", "ray"] = run_option(
        "threads", "Where the workers are: threads, or on Ray, also on other machines, where each"
        " makes parts of the outputs (task_count)."
    )
    ray_address: str | None = run_option(
        None, "Address of a cluster of Ray, such as auto or ray://HOST:10001.",
        default_text="Ray is started on this machine",
    )
    ray_resources: Resources = run_option(
        (), "Resource of Ray that each worker needs, such as CPU=2; on the command line one at a"
        " time.", default_text="CPU=1", flags=("--ray-resource",),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.executor != "ray" and (self.ray_address or self.ray_resources):
            raise SettingsError(
                "ray_address and ray_resources are for workers on Ray; choose it (--executor ray),"
                " or leave them out"
            )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TaskSettings(Settings):
    """Options for a build that is divided among tasks of a scheduler."""

    task_index: Index | None = option(
        None, "Make only part N of --task-count parts, counted from 0, with the given tokenizer;"
        " `merge` joins them.", default_text="all",
    )
    task_count: Count | None = option(
        None, "Number of parts that the text is divided into.",
        default_text="on Ray one for every 128 MiB, up to 1,024",
    )

    @property
    def part(self) -> str:
        """Prefix of the outputs of a task; "": there are no tasks."""
        index, count = self.task_index, self.task_count
        return "" if index is None else f"part-{index:05d}-of-{count:05d}"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task_index is None:
            return
        if getattr(self, "executor", "") == "ray":
            raise SettingsError(
                "task_index is of one part, and on Ray all are made; leave out task_index"
            )
        if self.task_count is None:
            raise SettingsError(
                "task_index is the number of one of several parts; say how many there are"
                " (--task-count)"
            )
        if self.task_index >= self.task_count:
            raise SettingsError(
                f"task_index is {self.task_index:,}, and parts are counted from 0 to"
                f" {self.task_count - 1:,} (task_count {self.task_count:,}); correct one of them"
            )
