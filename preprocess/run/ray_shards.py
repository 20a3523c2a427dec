"""Shards that the actors of Ray write.

The ids of units stay in Ray's object store. As soon as all ids of a shard are known, an actor gets
the references to them, and writes the files of the shard into the work area of the run, which all
machines see. This process handles counts, ends of documents and references only, and writes the
second output of a pass, the few documents of validation, itself.

A checkpoint is of a position before which all is written: that before the unit in which the first
shard begins that is not. Its states say how many ids after the position are written already.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from preprocess.dataset.columns import DOCUMENT_ENDS, IDS, Values, columns_of, shard_name
from preprocess.dataset.manifest import Manifest, Shard
from preprocess.dataset.writer import TokenFileWriter, WriterState, count_fitting
from preprocess.run.encoding import Encoding, Result
from preprocess.run.journal import journal_errors
from preprocess.run.ray import Call, RayExecutor, Stored
from preprocess.run.ray_worker import Failed
from preprocess.run.sinks import TokenFiles
from preprocess.run.units import MakeWork
from preprocess.sources import WorkUnit
from preprocess.storage import DamagedStateError, Storage, Stream


class Ids:
    """The ids of the first output in a unit, which are in the object store."""

    def __init__(self, stored: Stored, n: int) -> None:
        self.stored, self._n = stored, n

    def __len__(self) -> int:
        return self._n


class _Apart:
    """Makes work that encodes a unit and takes the values of the first output apart."""

    def __init__(self, encoding: MakeWork[Result]) -> None:
        self._encoding = encoding

    def __call__(self) -> Any:
        encode = self._encoding()

        def work(unit: WorkUnit) -> tuple[Result, dict[str, Values]]:
            batch, (first, *others), counts = encode(unit)
            sent = replace(first, ids=np.empty(len(first.ids), "V0"), columns={})
            return (batch, [sent, *others], counts), first.values()

        return work


class EncodingApart:
    """An executor for encoding, which leaves the ids in the object store."""

    def __init__(self, executor: RayExecutor) -> None:
        self._executor = executor

    def __call__(
        self, units: Iterable[WorkUnit], make_work: MakeWork[Any], workers: int
    ) -> Generator[Any, None, None]:
        """Yield the result of every unit, in order; `ids` of the first part are `Ids`."""
        assert isinstance(make_work, Encoding)
        apart = _Apart(make_work)
        with closing(self._executor.run_tasks(units, apart, is_apart=True)) as results:
            for (batch, (first, *others), counts), stored in results:
                assert stored is not None
                ids: Any = Ids(stored, len(first.ids))
                yield batch, [replace(first, ids=ids), *others], counts


@dataclass(frozen=True)
class _Piece:
    """Ids [start, stop) of a unit, and the ends of documents [first, last) among them."""

    ids: Ids
    start: int
    stop: int
    first: int
    last: int


def write_shard(
    storage: Storage, stem: str, vocab_size: int, has_mask: bool,
    pieces: Sequence[tuple[Any, int, int, int, int]],
) -> Shard:
    """Write the files of a shard, in an actor.

    Args:
        storage: Storage of the run.
        stem: Name of the files without suffix.
        vocab_size: As of `TokenFileWriter`.
        has_mask: As of `TokenFileWriter`.
        pieces: (reference to the values of a unit, start, stop, first, last) as in `_Piece`.

    Raises:
        OutputError: A write failed.
        ObjectLostError: A machine with ids is gone.
        Exceptions of a unit that failed when it was done again, unchanged.
    """
    import ray

    writer = TokenFileWriter(storage, stem, vocab_size=vocab_size, has_mask=has_mask)
    with closing(writer):
        for reference, start, stop, first, last in pieces:
            found = ray.get(reference)
            if isinstance(found, Failed):
                raise found.error
            values = dict(found)
            ids, ends = values.pop(IDS.name), values.pop(DOCUMENT_ENDS.name)
            others = {
                column.name: values[column.name][start:stop]
                if column.per == "token"
                else values[column.name][first:last]
                for column in columns_of(has_mask)[2:]
            }
            writer.append(ids[start:stop], ends[first:last] - start, **others)
        return writer.finish_files()


class ShardsOnRay:
    """Sink of one output, whose shards are written by actors; arguments as of `TokenFileWriter`."""

    streams: Sequence[Stream] = ()

    def __init__(
        self, executor: RayExecutor, files: TokenFiles, name: str, states: Sequence[WriterState]
    ) -> None:
        assert files.shard_tokens is not None
        self._executor, self._files, self._name = executor, files, name
        self._shard_tokens = files.shard_tokens
        self._shards: list[Shard | Call] = [shard for state in states for shard in state.shards]
        self._waiting: dict[int, list[_Piece]] = {}  # number of a shard -> what it is made of
        self._skip = states[-1].skip if states else 0
        self._n_written = len(self._shards)  # the first ones, without a gap
        self._n_reported = self._n_written
        self._pieces: list[_Piece] = []  # of the open shard
        self._n = self._last_end = 0  # of the open shard
        written = sum(shard.n_tokens for shard in self._shards if isinstance(shard, Shard))
        self.n_appended, self._n_durable = written - self._skip, written

    @property
    def n_begun(self) -> int:
        """Number of shards that have all their ids."""
        return len(self._shards)

    def is_written(self, n_tokens: int) -> bool:
        """Return True if the first `n_tokens` ids are in shards that are written."""
        while self._n_written < len(self._shards):
            shard = self._shards[self._n_written]
            if isinstance(shard, Call) and not self._executor.is_done(shard):
                break
            self._wait_for(self._n_written)
        return self._n_durable >= n_tokens

    def _wait_for(self, number: int) -> None:
        """Wait until a shard, the first that is not, is written."""
        while isinstance(shard := self._shards[number], Call):
            found = self._executor.result_of(shard)
            if found is None:
                for piece in self._waiting[number]:
                    self._executor.make_again(piece.ids.stored)
                found = self._write(number)
            self._shards[number] = found
        del self._waiting[number]
        self._n_written, self._n_durable = number + 1, self._n_durable + shard.n_tokens

    def append(self, ids: Any, document_ends: Values, **columns: Values) -> None:
        """Append the ids of a unit, as `TokenFileWriter.append`."""
        ends = document_ends.astype(np.int64)
        self.n_appended += len(ids)
        start = min(self._skip, len(ids))
        self._skip -= start
        while start < len(ids):
            first = int(np.searchsorted(ends, start, "right"))
            n = self._fitting(len(ids) - start, ends[first:] - start)
            if n:
                self._add(ids, start, start + n, ends)
            else:
                self._next_shard()
            start += n

    def _fitting(self, n: int, ends: npt.NDArray[np.int64]) -> int:
        room = self._shard_tokens - self._n
        return count_fitting(n, ends, room, self._files.split_documents, self._last_end > 0)

    def _add(self, ids: Ids, start: int, stop: int, ends: npt.NDArray[np.int64]) -> None:
        first, last = np.searchsorted(ends, [start, stop], "right").tolist()
        self._pieces.append(_Piece(ids, start, stop, first, last))
        if last > first:
            self._last_end = self._n + int(ends[last - 1]) - start
        self._n += stop - start

    def _next_shard(self) -> None:
        """Let the open shard be written, but for a part of a document that moves to the next."""
        keeps = self._n if self._files.split_documents else self._last_end
        moved: list[_Piece] = []
        n_moved = self._n - keeps
        while n_moved:
            piece = self._pieces.pop()
            n = min(n_moved, piece.stop - piece.start)
            cut = piece.stop - n
            moved.insert(0, _Piece(piece.ids, cut, piece.stop, piece.last, piece.last))
            if cut > piece.start:
                self._pieces.append(_Piece(piece.ids, piece.start, cut, piece.first, piece.last))
            n_moved -= n
        self._close_shard()
        self._pieces = moved
        self._n = sum(piece.stop - piece.start for piece in moved)

    def _close_shard(self) -> None:
        number = len(self._shards)
        # Bounds what is in the object store.
        while number - self._n_written >= self._executor.workers:
            self._wait_for(self._n_written)
        self._waiting[number], self._pieces, self._n, self._last_end = self._pieces, [], 0, 0
        self._shards.append(self._write(number))

    def _write(self, number: int) -> Call:
        pieces = [
            (x.ids.stored.reference, x.start, x.stop, x.first, x.last)
            for x in self._waiting[number]
        ]
        files, stem = self._files, shard_name(self._name, number)
        values = files.storage, stem, files.vocab_size, files.has_mask, pieces
        return self._executor.call(write_shard, *values)

    def wait(self) -> None:
        """Wait until all shards that have all their ids are written."""
        while self._n_written < len(self._shards):
            self._wait_for(self._n_written)

    def flush(self) -> None:
        """Write all that is left, which is the last shard."""
        if self._n or not self._shards:
            self._close_shard()
        self.wait()

    def state(self) -> WriterState:
        """Return what is new since the previous call, as after `flush`."""
        return self.state_at(self.n_appended)

    def state_at(self, n_tokens: int) -> WriterState:
        """Return the state for a position with so many ids before it."""
        new = self._shards[self._n_reported : self._n_written]
        self._n_reported = self._n_written
        shards = tuple(shard for shard in new if isinstance(shard, Shard))
        return WriterState({}, shards, 0, self._n_durable - n_tokens)

    def finish(self, **fields: Any) -> Manifest:
        """Write the manifest; `flush` has written all else.

        Raises:
            DamagedStateError: A file does not have the size that was written.
            OutputError: A write failed.
        """
        shards = tuple(shard for shard in self._shards if isinstance(shard, Shard))
        self._files.storage.refresh()
        self._check_sizes(shards)
        return self._files.open(self._name, (WriterState({}, shards),)).finish(**fields)

    def _check_sizes(self, shards: Sequence[Shard]) -> None:
        """Raise DamagedStateError if an actor that was given up has changed a file since."""
        files, sizes = self._files, self._files.storage.sizes()
        for number, shard in enumerate(shards):
            for column in columns_of(files.has_mask):
                name = f"{shard_name(self._name, number)}{column.suffix}"
                expected = shard.count(column) * column.dtype_for(files.vocab_size).itemsize
                found = sizes.get(name, 0)
                if found != expected:
                    raise DamagedStateError(
                        f"{files.storage.where(name)}: expected {expected:,} bytes, as a worker of"
                        f" Ray wrote, found {found:,}; another process changed the file: start over"
                        " (--overwrite)"
                    )

    def close(self) -> None:
        """Forget what is not written."""
        self._pieces, self._waiting = [], {}


class _LateWriter:
    """Writer of another output in this process, whose checkpoints are late with the first one's."""

    n_begun = 0

    def __init__(self, writer: TokenFileWriter, skip: int) -> None:
        self._writer, self.n_appended = writer, writer.n_tokens - skip
        self.finish, self.close = writer.finish, writer.close

    @property
    def streams(self) -> Sequence[Stream]:
        """As of `TokenFileWriter`."""
        return self._writer.streams

    def append(self, ids: Values, document_ends: Values, **columns: Values) -> None:
        """Append documents, as `TokenFileWriter.append`."""
        self._writer.append(ids, document_ends, **columns)
        self.n_appended += len(ids)

    def is_written(self, n_tokens: int) -> bool:
        """Return True: all is written at once."""
        return True

    def state(self) -> WriterState:
        """Return what is new since the previous call."""
        return self.state_at(self.n_appended)

    def state_at(self, n_tokens: int) -> WriterState:
        """Return the state for a position with so many ids before it."""
        return replace(self._writer.state(), skip=self._writer.n_tokens - n_tokens)

    def wait(self) -> None:
        """Do nothing: all is written at once."""

    flush = wait


@dataclass(frozen=True)
class ShardFiles:
    """Factory of the sinks of a pass, of which actors write that of NAME `first`."""

    executor: RayExecutor
    files: TokenFiles
    first: str

    def open(self, name: str, states: Sequence[Any]) -> ShardsOnRay | _LateWriter:
        """Open or resume the token file NAME."""
        with journal_errors():
            converted = msgspec.convert(states, tuple[WriterState, ...])
        if name != self.first:
            skip = converted[-1].skip if converted else 0
            return _LateWriter(self.files.open(name, states), skip)
        return ShardsOnRay(self.executor, self.files, name, converted)

    def result_of(self, name: str) -> Manifest:
        """Return the manifest of a token file that an earlier run finished."""
        return self.files.result_of(name)


def is_writable_by_actors(states: Sequence[Any]) -> bool:
    """Return False if threads have begun a shard, which they have to continue."""
    return not any(state.get("streams") for state in states)
