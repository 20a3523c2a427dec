"""Shards that the actors of Ray write.

The ids of units stay in the actors that encoded them. An actor writes a shard: it is told in order
which ids are next, takes them from itself or from others, and appends them to files in the work
area of the run, which all machines see. This process handles counts and ends of documents only, and
writes the second output of a pass, the few documents of validation, itself. If the writer of a
shard dies, the shard is made again from its beginning.

A checkpoint is of a position before which all is written: that before the unit in which the first
shard begins that is not. Its states say how many ids after the position are written already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from preprocess.dataset.columns import Values, columns_of, shard_name
from preprocess.dataset.manifest import Manifest, Shard
from preprocess.dataset.writer import TokenFileWriter, WriterState, count_fitting
from preprocess.run.encoding import Encoded, Encoding
from preprocess.run.journal import journal_errors
from preprocess.run.ray import Call, Kept, RayExecutor
from preprocess.run.ray_shard_writer import Part, ShardFile, append_to_shard, close_shard
from preprocess.run.sinks import TokenFiles
from preprocess.run.units import MakeWork
from preprocess.sources import WorkUnit
from preprocess.storage import DamagedStateError, Stream

_MOST_PARTS = 2  # of tasks, which lanes are to take, for each worker


class Ids:
    """The ids of the first output in a unit, which an actor keeps."""

    def __init__(self, kept: Kept, number: int, n: int) -> None:
        self.kept, self.number, self._n = kept, number, n
        self.is_last = number == kept.n_units - 1  # of the task

    def __len__(self) -> int:
        return self._n


class _Apart:
    """Makes work that encodes a unit and takes the values of the first output apart."""

    def __init__(self, encoding: MakeWork[Encoded]) -> None:
        self._encoding = encoding

    def __call__(self) -> Any:
        encode = self._encoding()

        def work(unit: WorkUnit) -> tuple[Encoded, dict[str, Values]]:
            encoded = encode(unit)
            first, *others = encoded.parts
            sent = structs.replace(first, ids=np.empty(len(first.ids), "V0"), columns={})
            return encoded._replace(parts=[sent, *others]), first.values()

        return work


class EncodingApart:
    """An executor for encoding, which leaves the ids in the actors."""

    def __init__(self, executor: RayExecutor) -> None:
        self._executor = executor

    def __call__(
        self, units: Iterable[WorkUnit], make_work: MakeWork[Any], workers: int
    ) -> Generator[Any, None, None]:
        """Yield the result of every unit, in order; `ids` of the first part are `Ids`."""
        assert isinstance(make_work, Encoding)
        apart = _Apart(make_work)
        with closing(self._executor.run_tasks(units, apart, is_apart=True)) as results:
            for encoded, kept, number in results:
                assert kept is not None
                first, *others = encoded.parts
                ids: Any = Ids(kept, number, len(first.ids))
                yield encoded._replace(parts=[structs.replace(first, ids=ids), *others])


@dataclass(frozen=True)
class _Piece:
    """Ids [start, stop) of a unit, and the ends of documents [first, last) among them."""

    ids: Ids
    start: int
    stop: int
    first: int
    last: int
    is_last: bool = False  # nothing of the task follows; such a piece is empty

    @property
    def where(self) -> tuple[int, int, int, int, int]:
        """(number of the unit in its task, start, stop, first, last)."""
        return self.ids.number, self.start, self.stop, self.first, self.last


class _Open:
    """A shard that is being written: its pieces, and the calls to the actor that appends them."""

    def __init__(self, executor: RayExecutor, file: ShardFile) -> None:
        self._executor, self._file = executor, file
        self.pieces: list[_Piece] = []
        self.n_settled = 0  # pieces that stay in this shard
        self.n_tokens = self.last_end = 0
        self.is_closed = False
        self._n_sent = self._n_calls = self._attempt = 0
        self._lane = executor.lane()
        self.calls = deque[Call]()
        self._last: Call | None = None  # of this attempt
        self._asked: list[tuple[Kept, int, int | None]] = []  # part of a task, number of its parts
        self._shard: Shard | None = None

    def send(self) -> None:
        """Send what is settled, in whole tasks; all if the shard is closed."""
        stop = len(self.pieces)
        if not self.is_closed:
            stop = self.n_settled
            while stop > self._n_sent and not self.pieces[stop - 1].is_last:
                stop -= 1
        if stop > self._n_sent or self.is_closed:
            pieces, self._n_sent = self.pieces[self._n_sent : stop], stop
            self._call([self._part(each) for each in _by_task(pieces)], self.is_closed)

    def _part(self, pieces: Sequence[_Piece]) -> Part:
        """Return pieces of a task as the writer needs them."""
        kept = pieces[0].ids.kept
        if kept.actor not in self._executor.actors:
            return self._again(pieces)
        return self._make_part(kept, pieces, pieces[-1].is_last)

    def _again(self, pieces: Sequence[_Piece]) -> Part:
        """Make a task again, for these pieces only."""
        return self._make_part(self._executor.make_again(pieces[0].ids.kept), pieces, True)

    def _make_part(self, kept: Kept, pieces: Sequence[_Piece], is_last: bool) -> Part:
        assert kept.actor is not None
        kept.n_parts += 1
        number, n_parts = kept.n_parts, kept.n_parts if is_last else None
        self._asked.append((kept, number, n_parts))
        holder = None if kept.actor is self._lane.actor else kept.actor.handle
        where = [each.where for each in pieces if each.stop > each.start]
        return Part(holder, kept.key, where, number, n_parts)

    def _call(self, parts: Sequence[Part], finishes: bool) -> None:
        values = self._file, self._attempt, self._n_calls, parts, finishes
        call = self._executor.write(self._lane, self._last, append_to_shard, *values)
        call.n_parts, self._last, self._n_calls = len(parts), call, self._n_calls + 1
        self.calls.append(call)

    def take_done(self, done: Container[Any]) -> None:
        """Take the results of the first calls, as far as their references are in `done`."""
        while self.calls and self.calls[0].reference in done:
            found = self._executor.result_of(self.calls.popleft())
            while found is None:
                found = self._start_over()
            (self._shard,) = found

    def wait(self) -> Shard:
        """Wait until the shard, which is closed, is written."""
        while self.calls:
            self.take_done([self.calls[0].reference])
        assert self._shard is not None
        return self._shard

    def _start_over(self) -> tuple[Shard | None] | None:
        """Make all that was sent again, a task at a time; return None if something is lost."""
        self.calls.clear()
        for asked in self._asked:
            self._executor.forget(*asked)
        self._asked.clear()
        self._attempt, self._n_calls, self._last = self._attempt + 1, 0, None
        if self._lane.actor not in self._executor.actors:
            self._lane = self._executor.lane()
        for pieces in _by_task(self.pieces[: self._n_sent]):
            self._call([self._again(pieces)], finishes=False)
            if self._executor.result_of(self.calls.popleft(), is_again=True) is None:
                return None
        if not self.is_closed:
            return (None,)
        self._call([], finishes=True)
        return self._executor.result_of(self.calls.popleft())

    def close(self) -> None:
        """Let the actor close the files."""
        if self._n_calls and self._lane.actor in self._executor.actors:
            self._executor.write(self._lane, self._last, close_shard, self._file.stem)


def _by_task(pieces: Iterable[_Piece]) -> list[list[_Piece]]:
    return [list(group) for _, group in groupby(pieces, lambda each: each.ids.kept)]


class ShardsOnRay:
    """Sink of one output, whose shards are written by actors; arguments as of `TokenFileWriter`."""

    streams: Sequence[Stream] = ()

    def __init__(
        self, executor: RayExecutor, files: TokenFiles, name: str, states: Sequence[WriterState]
    ) -> None:
        assert files.shard_tokens is not None
        self._executor, self._files, self._name = executor, files, name
        self._shard_tokens = files.shard_tokens
        self._shards: list[Shard | _Open] = [shard for state in states for shard in state.shards]
        self._skip = states[-1].skip if states else 0
        self._n_written = len(self._shards)  # the first ones, without a gap
        self._n_reported = self._n_written
        written = sum(shard.n_tokens for shard in self._shards if isinstance(shard, Shard))
        self.n_appended, self._n_durable = written - self._skip, written
        self._open = self._next()

    def _next(self) -> _Open:
        """Open the next shard."""
        files, stem = self._files, shard_name(self._name, len(self._shards))
        file = ShardFile(files.storage, stem, files.vocab_size, files.has_mask)
        return _Open(self._executor, file)

    @property
    def n_begun(self) -> int:
        """Number of shards that have all their ids."""
        return len(self._shards)

    def is_written(self, n_tokens: int) -> bool:
        """Return True if the first `n_tokens` ids are in shards that are written."""
        self._take_done(self._executor.done_of)
        while self._n_written < len(self._shards):
            shard = self._shards[self._n_written]
            if isinstance(shard, _Open) and shard.calls:
                break
            self._wait_for(self._n_written)
        return self._n_durable >= n_tokens

    def _wait_for(self, number: int) -> None:
        """Wait until a shard, the first that is not, is written."""
        shard = self._shards[number]
        if isinstance(shard, _Open):
            self._shards[number] = shard = shard.wait()
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
        if ids.is_last:
            last = _Piece(ids, len(ids), len(ids), len(ends), len(ends), is_last=True)
            self._open.pieces.append(last)
        self._open.send()
        # Bounds what the actors keep.
        most = _MOST_PARTS * self._executor.workers
        if self._n_parts() > most:
            self._take_done(self._executor.done_of)
        while self._n_parts() > most:
            self._take_done(self._executor.wait_for)

    def _unwritten(self) -> list[_Open]:
        """Return the shards that are not written, the open one last."""
        return [each for each in (*self._shards[self._n_written :], self._open)
                if isinstance(each, _Open)]  # fmt: skip

    def _n_parts(self) -> int:
        return sum(call.n_parts for each in self._unwritten() for call in each.calls)

    def _take_done(self, done_of: Callable[[Iterable[Call]], set[Any]]) -> None:
        """Take the results of the calls that are done."""
        shards = self._unwritten()
        done = done_of(chain.from_iterable(each.calls for each in shards))
        for each in shards:
            each.take_done(done)

    def _fitting(self, n: int, ends: npt.NDArray[np.int64]) -> int:
        room, has_documents = self._shard_tokens - self._open.n_tokens, self._open.last_end > 0
        return count_fitting(n, ends, room, self._files.split_documents, has_documents)

    def _add(self, ids: Ids, start: int, stop: int, ends: npt.NDArray[np.int64]) -> None:
        shard = self._open
        first, last = np.searchsorted(ends, [start, stop], "right").tolist()
        # The first document of a shard stays in it, also a part of it.
        if self._files.split_documents or not (shard.last_end or last > first):
            shard.n_settled = len(shard.pieces) + 1
        elif last > first:
            shard.n_settled = len(shard.pieces)
        shard.pieces.append(_Piece(ids, start, stop, first, last))
        if last > first:
            shard.last_end = shard.n_tokens + int(ends[last - 1]) - start
        shard.n_tokens += stop - start

    def _next_shard(self) -> None:
        """Close the open shard, but for a part of a document that moves to the next."""
        shard = self._open
        keeps = shard.n_tokens if self._files.split_documents else shard.last_end
        moved: list[_Piece] = []
        n_moved = shard.n_tokens - keeps
        while n_moved:
            piece = shard.pieces.pop()
            n = min(n_moved, piece.stop - piece.start)
            cut = piece.stop - n
            moved.insert(0, replace(piece, start=cut, first=piece.last))
            if cut > piece.start:
                shard.pieces.append(replace(piece, stop=cut))
            n_moved -= n
        self._close_shard()
        self._open.pieces = moved
        self._open.n_tokens = sum(piece.stop - piece.start for piece in moved)

    def _close_shard(self) -> None:
        self._open.is_closed = True
        self._open.send()
        self._shards.append(self._open)
        self._open = self._next()

    def wait(self) -> None:
        """Wait until all shards that have all their ids are written."""
        while self._n_written < len(self._shards):
            self._wait_for(self._n_written)

    def flush(self) -> None:
        """Write all that is left, which is the last shard."""
        if self._open.n_tokens or not self._shards:
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
        """Let the actors close what is not written."""
        for shard in (*self._shards, self._open):
            if isinstance(shard, _Open):
                shard.close()


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
        return structs.replace(self._writer.state(), skip=self._writer.n_tokens - n_tokens)

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
