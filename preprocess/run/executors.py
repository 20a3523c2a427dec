"""Choose what runs the workers of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from preprocess.report.progress import Progress
from preprocess.run.units import Executor, run_on_threads
from preprocess.settings.cluster import resources_of
from preprocess.settings.schema import RunSettings


@contextmanager
def open_executor(settings: RunSettings, progress: Progress) -> Iterator[Executor]:
    """Yield the executor of the settings, whose workers end after the `with`.

    Raises:
        RayError: Ray is chosen, and is not installed or cannot be reached.
    """
    if settings.executor == "threads":
        yield run_on_threads
        return
    from preprocess.run.ray import on_ray

    resources = resources_of(settings.ray_resources)
    with on_ray(settings.workers, settings.ray_address, resources, progress) as executor:
        yield executor
