"""Write a shard in an actor of Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from preprocess.dataset.columns import DOCUMENT_ENDS, IDS, columns_of
from preprocess.dataset.manifest import Shard
from preprocess.dataset.writer import TokenFileWriter
from preprocess.run.ray_cluster import RayError
from preprocess.run.ray_worker import Failed, Worker
from preprocess.storage import Storage


class Part(NamedTuple):
    """Ids of a task that are the next ones of a shard."""

    holder: Any  # handle of the actor that keeps them; None: that which writes
    key: int  # of the task
    # (number of the unit in its task, ids [start, stop), ends of documents [first, last))
    pieces: list[tuple[int, int, int, int, int]]
    number: int  # of this part of the task
    n_parts: int | None  # parts of the task in all; None: more follow


class ShardFile(NamedTuple):
    """Arguments of `TokenFileWriter`."""

    storage: Storage
    stem: str
    vocab_size: int
    has_mask: bool


class _Opened:
    """Writer of a shard in an actor."""

    def __init__(self, file: ShardFile, attempt: int) -> None:
        self.attempt, self.n_calls, self._has_mask = attempt, 0, file.has_mask
        self.writer = TokenFileWriter(
            file.storage, file.stem, vocab_size=file.vocab_size, has_mask=file.has_mask
        )

    def append(self, worker: Worker, part: Part) -> None:
        if part.holder is None:
            units = worker.kept(part.key, part.number, part.n_parts)
        else:
            import ray

            giving = part.holder.kept.options(concurrency_group="give")
            units = ray.get(giving.remote(part.key, part.number, part.n_parts))
        for number, start, stop, first, last in part.pieces:
            # Those after a unit that failed are not there.
            *_, found = units[: number + 1]
            if isinstance(found, Failed):
                raise found.error
            values = dict(found)
            ids, ends = values.pop(IDS.name), values.pop(DOCUMENT_ENDS.name)
            others = {
                column.name: values[column.name][start:stop]
                if column.per == "token"
                else values[column.name][first:last]
                for column in columns_of(self._has_mask)[2:]
            }
            self.writer.append(ids[start:stop], ends[first:last] - start, **others)


def append_to_shard(
    worker: Worker, file: ShardFile, attempt: int, n_before: int, parts: Sequence[Part],
    finishes: bool,
) -> Shard | None:
    """Append ids to the files of a shard, in an actor; return the shard if this `finishes` it.

    Args:
        worker: The worker of the actor.
        file: The shard.
        attempt: A higher one than before starts over.
        n_before: Number of calls of the attempt before this one.
        parts: Ids.
        finishes: These are the last ids.

    Raises:
        OutputError: A write failed.
        RayError: A call was lost.
        RayActorError: An actor with ids has died.
        Exceptions of a unit that failed when it was done again, unchanged.
    """
    opened: _Opened | None = worker.opened.get(file.stem)
    if n_before == 0 and (opened is None or attempt > opened.attempt):
        close_shard(worker, file.stem)
        opened = worker.opened[file.stem] = _Opened(file, attempt)
    # Also a late call of an attempt that was given up, which must not touch the files.
    found = opened and (opened.attempt, opened.n_calls)
    if opened is None or found != (attempt, n_before):
        raise RayError(
            f"{file.stem}: ids came out of order: expected (attempt, call) {found}, found"
            f" {(attempt, n_before)}; rerun the same command to resume"
        )
    for part in parts:
        opened.append(worker, part)
    opened.n_calls += 1
    if not finishes:
        # Otherwise the run would wait at its end until the disk has the last shard.
        for stream in opened.writer.streams:
            stream.begin_sync()
        return None
    try:
        return opened.writer.finish_files()
    finally:
        close_shard(worker, file.stem)


def close_shard(worker: Worker, stem: str) -> None:
    """Close the files of a shard, in an actor."""
    opened = worker.opened.pop(stem, None)
    if opened is not None:
        opened.writer.close()
