"""Choose what runs the workers of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from preprocess.report.progress import Progress
from preprocess.run.sinks import Sinks, TokenFiles
from preprocess.run.units import CollectingExecutor, Executor, run_on_threads
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


def with_shards(
    executor: Executor, files: TokenFiles, name: str, states: Sequence[Any]
) -> tuple[Executor, Sinks]:
    """Return the executor and the sinks of an encoding pass: actors of Ray write shards themselves.

    Not if a run on threads has begun a shard of the first output, NAME: `states` are those of it.
    """
    if files.shard_tokens is None or not isinstance(executor, CollectingExecutor):
        return executor, files
    from preprocess.run.ray import RayExecutor
    from preprocess.run.ray_shards import EncodingApart, ShardFiles, is_writable_by_actors

    if not isinstance(executor, RayExecutor) or not is_writable_by_actors(states):
        return executor, files
    return EncodingApart(executor), ShardFiles(executor, files, name)
