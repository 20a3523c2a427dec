"""Write the columns of a dataset to a storage, with digests and shards; resumable."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
from msgspec import Struct

from preprocess.dataset import columns as table
from preprocess.dataset.columns import Values
from preprocess.dataset.manifest import (
    DataFile,
    ExtraColumn,
    Manifest,
    Shard,
    manifest_is_as_written,
)
from preprocess.storage import DamagedStateError, Storage, Stream

# Bytes of a document that are moved to the next shard at a time.
_MOVED_BYTES = 16 * 1024 * 1024


class StreamState(Struct, frozen=True, array_like=True):
    """Progress of one file."""

    n_bytes: int = 0  # length of the file
    blocks: tuple[str, ...] = ()  # digests of full blocks since the previous state
    last: str = xxhash.xxh3_128_hexdigest(b"")  # digest of the incomplete last block


class WriterState(Struct, frozen=True, forbid_unknown_fields=True):
    """Progress of a writer since its previous state."""

    streams: dict[str, StreamState] = {}  # by name of an open file
    shards: tuple[Shard, ...] = ()  # shards finished since the previous state
    last_end: int = 0  # end of the last document, relative to the open shard


class ColumnFile:
    """The open file of a column, with a digest of each block."""

    def __init__(
        self, storage: Storage, name: str, column: table.Column, vocab_size: int,
        states: Sequence[StreamState] = (),
    ) -> None:
        self.name, self.column, self.dtype = name, column, column.dtype_for(vocab_size)
        self._storage = storage
        self._finished = [block for state in states for block in state.blocks]
        self._n_reported = len(self._finished)
        self._block, self._in_block = xxhash.xxh3_128(), 0
        reached = states[-1] if states else StreamState()
        full = len(self._finished) * table.BLOCK_BYTES
        self.stream = storage.stream(name, reached.n_bytes)
        if reached.n_bytes:
            self._digest(memoryview(storage.read(name, full, reached.n_bytes)))
        if self._block.hexdigest() != reached.last or len(self._finished) != self._n_reported:
            self.stream.close()
            raise DamagedStateError(
                f"{name}: damaged since the interruption (its last block, from byte {full:,}, does"
                " not have the digest in the journal); start over (--overwrite)"
            )

    @property
    def count(self) -> int:
        """Number of values."""
        return self.stream.n_bytes // self.dtype.itemsize

    def _digest(self, data: memoryview) -> None:
        while len(data):
            piece = data[: table.BLOCK_BYTES - self._in_block]
            self._block.update(piece)
            self._in_block += len(piece)
            data = data[len(piece) :]
            if self._in_block == table.BLOCK_BYTES:
                self._finished.append(self._block.hexdigest())
                self._block.reset()
                self._in_block = 0

    def append(self, values: Values) -> None:
        """Append values, converted by `Column.to_stored`."""
        if values.size:  # an empty array has no view of its bytes
            data = memoryview(np.ascontiguousarray(values).data).cast("B")
            self.stream.append(data)
            self._digest(data)

    def state(self, whole: bool = False) -> StreamState:
        """Return the progress, with full blocks since the previous call, or all."""
        blocks = tuple(self._finished[0 if whole else self._n_reported :])
        self._n_reported = len(self._finished)
        return StreamState(self.stream.n_bytes, blocks, self._block.hexdigest())

    def finish(self, count: int) -> tuple[str, ...]:
        """End the file after `count` values, and return the digests of its blocks."""
        n_bytes = count * self.dtype.itemsize
        self.stream.finish(n_bytes)
        blocks = self._finished[: n_bytes // table.BLOCK_BYTES]
        start = len(blocks) * table.BLOCK_BYTES
        if start < n_bytes == self.stream.n_bytes:
            blocks.append(self._block.hexdigest())
        elif start < n_bytes:
            rest = self._storage.read(self.name, start, n_bytes)
            blocks.append(xxhash.xxh3_128_hexdigest(rest))
        return tuple(blocks)


class TokenFileWriter:
    """Writer of NAME.json and the files of all columns, under temporary names in a storage.

    Call `append` any number of times, then `finish` once. A writer with all `state`s of another one
    resumes it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from preprocess.dataset.reader import open_tokens
    >>> from preprocess.storage import LocalStorage
    >>> with tempfile.TemporaryDirectory() as directory, LocalStorage(directory, "x") as storage:
    ...     writer = TokenFileWriter(storage, "train", vocab_size=300)
    ...     writer.append(np.array([5, 7, 299, 8, 299], np.uint32), np.array([3, 5]))
    ...     _ = writer.finish(
    ...         end_of_text_id=299, n_bytes=3, tokenizer_fingerprint="", pattern="gpt2",
    ...         unicode_version="16.0.0", sources=[],
    ...     )
    ...     storage.publish(["train.bin", "train.docs"], ["train.json"])
    ...     open_tokens(Path(directory, "train.bin")).tokens.tolist()
    [5, 7, 299, 8, 299]

    Args:
        storage: Storage of the files.
        name: NAME of the files.
        vocab_size: Exclusive upper bound of ids; decides the dtype of the `.bin`.
        states: All states of a writer to resume, in order; later bytes are cut off. (): begin.
        shard_tokens: Maximum number of ids in a shard; None: no shards.
        split_documents: True if a document may continue in the next shard.
        columns: Columns of the dataset, of which ids and document ends are the first.

    Raises:
        OutputError: The files cannot be written.
        DamagedStateError: The files do not match `states`.
    """

    def __init__(
        self, storage: Storage, name: str, *, vocab_size: int, states: Sequence[WriterState] = (),
        shard_tokens: int | None = None, split_documents: bool = False,
        columns: Sequence[table.Column] = (table.IDS, table.DOCUMENT_ENDS),
    ) -> None:
        self.vocab_size = vocab_size
        self._columns, self._name, self._storage = columns, name, storage
        self._shard_tokens, self._splits = shard_tokens, split_documents
        self._shards = [shard for state in states for shard in state.shards]
        self._n_reported = len(self._shards)
        # As in `WriterState`.
        self._last_end = states[-1].last_end if states else 0
        self._files: list[ColumnFile] = []
        self._open(states)

    def _open(self, states: Sequence[WriterState] = ()) -> None:
        """Open the files of the next shard, or resume them."""
        self._files = []
        is_whole = self._shard_tokens is None
        stem = self._name if is_whole else table.shard_name(self._name, len(self._shards))
        try:
            for column in self._columns:
                name = f"{stem}{column.suffix}"
                of_file = [state.streams[name] for state in states if name in state.streams]
                file = ColumnFile(self._storage, name, column, self.vocab_size, of_file)
                self._files.append(file)
        except BaseException:
            self.close()
            raise

    @property
    def n_tokens(self) -> int:
        """Number of ids so far."""
        return sum(shard.n_tokens for shard in self._shards) + self._files[0].count

    @property
    def n_documents(self) -> int:
        """Number of documents that ended so far."""
        return sum(shard.n_documents for shard in self._shards) + self._files[1].count

    @property
    def streams(self) -> list[Stream]:
        """Streams to sync before a journal records `state`."""
        return [file.stream for file in self._files]

    def state(self, whole: bool = False) -> WriterState:
        """Return the progress since the previous call, or all."""
        new = tuple(self._shards[0 if whole else self._n_reported :])
        self._n_reported = len(self._shards)
        streams = {file.name: file.state(whole) for file in self._files}
        return WriterState(streams, new, self._last_end)

    def append(self, ids: Values, document_ends: Values, **others: Values) -> None:
        """Append token ids, document ends, and values of other columns.

        Args:
            ids: integer[t], token ids, each in [0, vocab_size).
            document_ends: integer[k], positions in `ids` after an end-of-text id, each in [1, t],
                strictly ascending. The last document may continue in the next call.
            **others: Name of a column -> its values, one for each id or each end.

        Raises:
            TokenFileError: Values are out of range; nothing is written.
            OutputError: A write failed; the writer is unusable.
        """
        ends = document_ends
        if ends.dtype.kind in "biu":  # others are refused, not truncated
            ends = ends.astype(np.int64)
        rows = [ids, ends, *(others[column.name] for column in self._columns[2:])]
        self._check(rows)
        while (n := self._count_fitting(ids.size, ends)) < ids.size:
            n_ends = int(np.searchsorted(ends, n, "right"))
            counts = [n if column.per == "token" else n_ends for column in self._columns]
            if n:
                self._write([row[:count] for row, count in zip(rows, counts, strict=True)])
            else:
                self._next_shard()
            rows = [row[count:] for row, count in zip(rows, counts, strict=True)]
            ids, ends = rows[0], rows[1] - n
            rows[1] = ends
        self._write(rows)

    def _check(self, rows: Sequence[Values]) -> None:
        """Raise TokenFileError for values that a column cannot have."""
        ends, n_ids = rows[1], rows[0].size
        for file, values in zip(self._files, rows, strict=True):
            column, count = file.column, n_ids if file.column.per == "token" else ends.size
            if values.shape != (count,) or values.dtype.kind not in "biu":
                raise self._refused(
                    file, f"{count:,} integers are expected, one for each {column.per}; got"
                    f" {values.dtype} of shape {values.shape}"
                )
            limit = column.limit_for(self.vocab_size)
            most = np.iinfo(file.dtype).max if limit is None else limit - 1
            if count and not 0 <= values.min() <= values.max() <= most:
                place = int(((values < 0) | (values > most)).argmax())
                number = place + (self.n_tokens if column.per == "token" else self.n_documents)
                raise self._refused(
                    file, f"{column.noun}s are from 0 to {most:,}, and that of {column.per}"
                    f" {number:,} is {values[place]}"
                )
        before = np.append(0, ends[:-1])
        wrong = (ends <= before) | (ends > n_ids)
        if wrong.any():
            place = int(wrong.argmax())
            raise self._refused(
                self._files[1], f"ends should ascend strictly from at least 1 to at most {n_ids:,},"
                f" the number of ids; that at {place:,} is {ends[place]}, after {before[place]}"
            )

    def _refused(self, file: ColumnFile, what: str) -> table.TokenFileError:
        return table.TokenFileError(f"{file.name}: token {self.n_tokens:,} and on: {what}")

    def _count_fitting(self, n: int, ends: npt.NDArray[np.int64]) -> int:
        """Return how many of `n` ids the open shard takes; 0: open the next one."""
        if self._shard_tokens is None:
            return n
        room = self._shard_tokens - self._files[0].count
        if n <= room or self._splits:
            return min(n, room)
        n_ends = int(np.searchsorted(ends, room, "right"))
        if n_ends:
            return int(ends[n_ends - 1])
        if self._last_end:
            return 0
        # A document larger than a shard has its own.
        return int(ends[0]) if ends.size else n

    def _write(self, rows: Sequence[Values]) -> None:
        n = self._files[0].count
        for file, values in zip(self._files, rows, strict=True):
            file.append(file.column.to_stored(values, self.vocab_size, n))
        if rows[1].size:
            self._last_end = n + int(rows[1][-1])

    def _next_shard(self) -> None:
        """Finish the open shard, and move its part of an unfinished document to the next.

        The old files keep that part until `finish`, for a checkpoint may describe it.
        """
        old = self._files
        keeps = old[0].count if self._splits else self._last_end
        self._shards.append(self.finish_shard(keeps))
        self._last_end = 0
        self._open()
        for before, after in zip(old, self._files, strict=True):
            if before.column.per == "token":
                itemsize = before.dtype.itemsize
                for start in range(keeps * itemsize, before.stream.n_bytes, _MOVED_BYTES):
                    piece = self._storage.read(before.name, start, start + _MOVED_BYTES)
                    after.append(np.frombuffer(piece, before.dtype))

    def finish_shard(self, n_tokens: int) -> Shard:
        """Finish the open files; the shard has their first `n_tokens` tokens and all documents."""
        shard = Shard(n_tokens, self._files[1].count)
        digests = {file.column.name: file.finish(shard.count(file.column)) for file in self._files}
        return Shard(shard.n_tokens, shard.n_documents, digests)

    def finish(self, *, end_of_text_id: int, **fields: Any) -> Manifest:
        """Write the manifest and sync all files; they keep their temporary names.

        The arguments are those fields of `Manifest` that the writer does not know.

        Raises:
            TokenFileError: The last document has no end.
            DamagedStateError: A shard is shorter than it was.
            OutputError: A write failed.
        """
        name, n_here = self._files[0].name, self._files[0].count
        if self._last_end != n_here:
            raise table.TokenFileError(
                f"{name}: {n_here - self._last_end:,} ids follow the last document end; append the"
                " end of every document before finishing"
            )
        n_tokens, n_documents = self.n_tokens, self.n_documents
        is_whole, last = self._shard_tokens is None, self.finish_shard(n_here)
        extra = [
            {"name": each.name, "dtype": str(each.dtype), "per": each.per}
            for each in self._columns[2:]
        ]
        manifest = Manifest(
            dtype=table.token_dtype(self.vocab_size).name, vocab_size=self.vocab_size,
            n_tokens=n_tokens, n_documents=n_documents, end_of_text_id=end_of_text_id,
            **{"begin_of_text_id": None, **fields, "sources": tuple(map(dict, fields["sources"]))},
            extra_columns=msgspec.convert(extra, tuple[ExtraColumn, ...]),
            digests=last.digests if is_whole else {},
            shards=() if is_whole else (*self._shards, last),
        )
        for data in manifest.files(self._name)[: -len(self._columns)]:
            if (self._storage.size(data.name) or 0) != data.n_bytes:
                # Cut off the part moved to the next shard, which is durable now.
                with closing(self._storage.stream(data.name, data.n_bytes)) as stream:
                    stream.finish(data.n_bytes)
        self._storage.put(table.manifest_name(self._name), manifest.to_json().encode())
        return manifest

    def close(self) -> None:
        """Close the files, keeping their content; may be called more than once."""
        for file in self._files:
            file.stream.close()


def read_saved_manifest(storage: Storage, name: str) -> Manifest:
    """Read the manifest of a token file that an earlier run finished but did not publish.

    Raises:
        DamagedStateError: The manifest, or the size or last block of a file is damaged.
    """
    text, damaged = storage.get(table.manifest_name(name)) or b"", ""
    if not manifest_is_as_written(text):
        damaged = table.manifest_name(name)
    else:
        manifest = Manifest.from_json(text, table.manifest_name(name))
        damaged = next((x.name for x in manifest.files(name) if not _is_saved(storage, x)), "")
    if damaged:
        raise DamagedStateError(
            f"{damaged}: damaged or missing since the interruption; start over (--overwrite)"
        )
    return manifest


def _is_saved(storage: Storage, file: DataFile) -> bool:
    """Return True if a file has its size, and its last block its digest."""
    start = max(len(file.digests) - 1, 0) * table.BLOCK_BYTES
    block = storage.read(file.name, start, file.n_bytes + 1)  # one byte more than expected
    # A shard inside one document has an empty .docs without digests.
    digest = (xxhash.xxh3_128_hexdigest(block),) if block else ()
    return start + len(block) == file.n_bytes and digest == file.digests[-1:]
