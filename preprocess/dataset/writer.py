"""Write the columns of a dataset into a storage, digested, divided into shards, and resumable."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
from msgspec import Struct

from preprocess.dataset import columns as table
from preprocess.dataset.columns import (
    BLOCK_BYTES,
    Column,
    TokenFileError,
    Values,
    manifest_name,
    shard_name,
    token_dtype,
)
from preprocess.dataset.manifest import ExtraColumn, Manifest, Shard, manifest_is_as_written
from preprocess.storage import DamagedStateError, Storage, Stream

# Bytes read at a time of a document that moves to the next shard.
_MOVED_BYTES = 16 * 1024 * 1024


class StreamState(Struct, frozen=True, array_like=True):
    """Progress of one file."""

    n_bytes: int = 0  # its length
    blocks: tuple[str, ...] = ()  # digests of the full blocks that earlier states do not have
    last: str = xxhash.xxh3_128_hexdigest(b"")  # digest of the block after them, not full


class WriterState(Struct, frozen=True, forbid_unknown_fields=True):
    """Progress of a writer since its previous state."""

    streams: dict[str, StreamState] = {}  # by name of a file that grows
    shards: tuple[Shard, ...] = ()  # those that were finished
    last_end: int = 0  # the end of the last document, in the shard that grows


class _ColumnFile:
    """The growing file of a column, digested block by block."""

    def __init__(
        self, storage: Storage, name: str, column: Column, vocab_size: int,
        states: Sequence[StreamState],
    ) -> None:
        self.name, self.column, self.dtype = name, column, column.dtype_for(vocab_size)
        self._storage = storage
        self._finished = [block for state in states for block in state.blocks]
        self._n_reported = len(self._finished)
        self._block = xxhash.xxh3_128()
        self._in_block = 0
        reached = states[-1] if states else StreamState()
        full = len(self._finished) * BLOCK_BYTES
        self.stream = storage.stream(name, reached.n_bytes)
        if reached.n_bytes:
            self._digest(memoryview(storage.read(name, full, reached.n_bytes)))
        if self._block.hexdigest() != reached.last or len(self._finished) != self._n_reported:
            self.stream.close()
            raise DamagedStateError(
                f"{name}: what was written before the interruption is damaged (its last block, from"
                f" byte {full:,}, is not what the journal says); start over (--overwrite)"
            )

    @property
    def count(self) -> int:
        """Number of values."""
        return self.stream.n_bytes // self.dtype.itemsize

    def _digest(self, data: memoryview) -> None:
        while len(data):
            piece = data[: BLOCK_BYTES - self._in_block]
            self._block.update(piece)
            self._in_block += len(piece)
            data = data[len(piece) :]
            if self._in_block == BLOCK_BYTES:
                self._finished.append(self._block.hexdigest())
                self._block.reset()
                self._in_block = 0

    def append(self, values: Values) -> None:
        """Append values as they are stored."""
        if not values.size:  # an empty array has no view of its bytes
            return
        data = memoryview(np.ascontiguousarray(values).data).cast("B")
        self.stream.append(data)
        self._digest(data)

    def state(self) -> StreamState:
        """Progress, with the blocks that no earlier state had."""
        blocks = tuple(self._finished[self._n_reported :])
        self._n_reported = len(self._finished)
        return StreamState(self.stream.n_bytes, blocks, self._block.hexdigest())

    def finish(self, count: int) -> tuple[str, ...]:
        """Make the file durable and close it; return the digests of its first `count` values."""
        self.stream.sync()
        self.stream.close()
        n_bytes = count * self.dtype.itemsize
        blocks = self._finished[: n_bytes // BLOCK_BYTES]
        start = len(blocks) * BLOCK_BYTES
        if start < n_bytes == self.stream.n_bytes:
            blocks.append(self._block.hexdigest())
        elif start < n_bytes:
            rest = self._storage.read(self.name, start, n_bytes)
            blocks.append(xxhash.xxh3_128_hexdigest(rest))
        return tuple(blocks)


class TokenFileWriter:
    """Writes NAME.json and the files of all columns into a storage, which gives them final names.

    `append` as often as needed, then `finish` once. A writer that is made with all `state`s of
    another resumes it.

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
        storage: Where the files grow.
        name: NAME of the files.
        vocab_size: Every id is below it; it decides the type of the `.bin`.
        states: All states of a writer to resume, in order; bytes after them are cut off. (): begin.
        shard_tokens: Make shards of at most so many ids; None: none.
        split_documents: Whether a document may be continued in the next shard.

    Raises:
        OutputError: The files cannot be written.
        DamagedStateError: They are not what `states` says.
    """

    def __init__(
        self, storage: Storage, name: str, *, vocab_size: int, states: Sequence[WriterState] = (),
        shard_tokens: int | None = None, split_documents: bool = False,
    ) -> None:
        if not name or name != os.path.basename(name):
            raise TokenFileError(f"a name for files in a directory is expected; got {name!r}")
        self.vocab_size = vocab_size
        self._columns = table.COLUMNS
        self._name = name
        self._storage = storage
        self._shard_tokens, self._splits = shard_tokens, split_documents
        self._shards = [shard for state in states for shard in state.shards]
        self._n_reported = len(self._shards)
        # The end of the last document, in the growing shard.
        self._last_end = states[-1].last_end if states else 0
        self._files: list[_ColumnFile] = []
        self._open(states)

    def _open(self, states: Sequence[WriterState] = ()) -> None:
        """Begin or resume the files that grow."""
        self._files = []
        is_whole = self._shard_tokens is None
        stem = self._name if is_whole else shard_name(self._name, len(self._shards))
        try:
            for column in self._columns:
                name = f"{stem}{column.suffix}"
                of_file = [state.streams[name] for state in states if name in state.streams]
                file = _ColumnFile(self._storage, name, column, self.vocab_size, of_file)
                self._files.append(file)
        except BaseException:
            self.close()
            raise

    @property
    def n_tokens(self) -> int:
        """Ids that were appended."""
        return sum(shard.n_tokens for shard in self._shards) + self._files[0].count

    @property
    def n_documents(self) -> int:
        """Documents that ended."""
        return sum(shard.n_documents for shard in self._shards) + self._files[1].count

    @property
    def streams(self) -> list[Stream]:
        """Streams that must be durable before a journal may record `state`."""
        return [file.stream for file in self._files]

    def state(self) -> WriterState:
        """Progress since the previous call."""
        new = tuple(self._shards[self._n_reported :])
        self._n_reported = len(self._shards)
        return WriterState({file.name: file.state() for file in self._files}, new, self._last_end)

    def append(self, ids: Values, document_ends: Values, **others: Values) -> None:
        """Append token ids, the ends of the documents that end among them, and other columns.

        Args:
            ids: integer[t], token ids, each in [0, vocab_size).
            document_ends: integer[k], positions in `ids` just past a document's end-of-text id,
                each in [1, t], strictly rising. A document may be continued in the next call.
            **others: Name of a column -> its values, one for each id or each end.

        Raises:
            TokenFileError: Values are out of range; nothing was written.
            OutputError: A write failed; the writer cannot be used any more.
        """
        self._check(ids, document_ends, others)
        ends = document_ends.astype(np.int64)
        rows = [ids, ends, *(others[column.name] for column in self._columns[2:])]
        while (n := self._fitting(ids.size, ends)) < ids.size:
            n_ends = int(np.searchsorted(ends, n, "right"))
            counts = [n if column.per == "token" else n_ends for column in self._columns]
            if n:
                self._write([row[:count] for row, count in zip(rows, counts, strict=True)])
            else:
                self._next_shard()
            rows = [row[count:] for row, count in zip(rows, counts, strict=True)]
            rows[1] = rows[1] - n
            ids, ends = rows[:2]
        self._write(rows)

    def _check(self, ids: Values, ends: Values, others: Mapping[str, Values]) -> None:
        """Check the arguments of `append`."""
        name = self._files[0].name
        place = f"{name}: token {self.n_tokens:,} and on"
        for what, array in (("token ids", ids), ("document ends", ends)):
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise TokenFileError(
                    f"{place}: {what} should be a 1-D array of integers, not {array.dtype} of "
                    f"shape {array.shape}"
                )
        if ids.size and (ids.max() >= self.vocab_size or (ids.dtype.kind == "i" and ids.min() < 0)):
            position = int(np.flatnonzero((ids < 0) | (ids >= self.vocab_size))[0])
            raise TokenFileError(
                f"{name}: token {self.n_tokens + position:,} would have the id "
                f"{int(ids[position])}, and the vocabulary has the ids 0 to {self.vocab_size - 1}: "
                "encode with the tokenizer that the vocabulary size was taken from"
            )
        rising = (ends[1:] > ends[:-1]).all()
        if ends.size and not (ends[0] >= 1 and ends[-1] <= ids.size and rising):
            raise TokenFileError(
                f"{place}: document ends should rise from at least 1 to at most {ids.size:,}, the "
                f"number of ids; got {ends.size:,} from {int(ends[0])} to {int(ends[-1])}"
            )
        expected = [column.name for column in self._columns[2:]]
        if sorted(others) != sorted(expected):
            raise TokenFileError(
                f"{place}: values for the columns {expected} are expected; got {sorted(others)}"
            )
        for column in self._columns[2:]:
            values = others[column.name]
            n = ids.size if column.per == "token" else ends.size
            if values.shape != (n,):
                raise TokenFileError(
                    f"{place}: the column {column.name} should have {n:,} values, one for each"
                    f" {column.per}; got an array of shape {values.shape}"
                )
            info = np.iinfo(column.dtype_for(self.vocab_size))
            most = info.max if column.limit is None else column.limit - 1
            low, high = (int(values.min()), int(values.max())) if n else (0, 0)
            if low < info.min or high > most:
                raise TokenFileError(
                    f"{place}: values of the column {column.name} are {info.min:,} to {most:,};"
                    f" found {low if low < info.min else high:,}"
                )

    def _fitting(self, n: int, ends: npt.NDArray[np.int64]) -> int:
        """Return how many of `n` ids go into the growing shard; if 0, the next one is due."""
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
        # A document that is larger than a shard has one of its own.
        return int(ends[0]) if ends.size else n

    def _write(self, rows: Sequence[Values]) -> None:
        n = self._files[0].count
        for file, values in zip(self._files, rows, strict=True):
            file.append(file.column.stored(values, self.vocab_size, n))
        if rows[1].size:
            self._last_end = n + int(rows[1][-1])

    def _next_shard(self) -> None:
        """Close the growing shard, and move its part of an unfinished document to the next.

        That part also stays in the old files until `finish`, because the journal may count on it.
        """
        old = self._files
        keeps = old[0].count if self._splits else self._last_end
        self._shards.append(self._finished(keeps))
        self._last_end = 0
        self._open()
        for before, after in zip(old, self._files, strict=True):
            if before.column.per == "token":
                itemsize = before.dtype.itemsize
                for start in range(keeps * itemsize, before.stream.n_bytes, _MOVED_BYTES):
                    piece = self._storage.read(before.name, start, start + _MOVED_BYTES)
                    after.append(np.frombuffer(piece, before.dtype))

    def _finished(self, n_tokens: int) -> Shard:
        """Finish the growing files, of which `n_tokens` tokens and all documents count."""
        shard = Shard(n_tokens, self._files[1].count)
        digests = {file.column.name: file.finish(shard.count(file.column)) for file in self._files}
        return Shard(shard.n_tokens, shard.n_documents, digests)

    def finish(
        self, *, end_of_text_id: int, n_bytes: int, tokenizer_fingerprint: str, pattern: str,
        unicode_version: str, sources: Sequence[Mapping[str, Any]],
        begin_of_text_id: int | None = None,
    ) -> Manifest:
        """Write the manifest and make all files durable, not yet under final names.

        The arguments are the fields of `Manifest` that the writer does not know itself.

        Raises:
            TokenFileError: The last document has no end, or a special id is not in the vocabulary.
            OutputError: A write failed.
        """
        name, n_here = self._files[0].name, self._files[0].count
        if self._last_end != n_here:
            raise TokenFileError(
                f"{name}: {n_here - self._last_end:,} ids stand behind the last "
                "document's end; append the end of every document before finishing"
            )
        for special_id in (end_of_text_id, begin_of_text_id):
            if special_id is not None and not 0 <= special_id < self.vocab_size:
                raise TokenFileError(
                    f"{name}: the special id {special_id} is not in the vocabulary, whose"
                    f" ids are 0 to {self.vocab_size - 1}"
                )
        n_tokens, n_documents = self.n_tokens, self.n_documents
        here = self._finished(n_here)
        is_whole = self._shard_tokens is None
        extra = [
            {"name": each.name, "dtype": str(each.dtype), "per": each.per}
            for each in self._columns[2:]
        ]
        manifest = Manifest(
            dtype=token_dtype(self.vocab_size).name, vocab_size=self.vocab_size,
            n_tokens=n_tokens, n_documents=n_documents, n_bytes=n_bytes,
            end_of_text_id=end_of_text_id, begin_of_text_id=begin_of_text_id,
            tokenizer_fingerprint=tokenizer_fingerprint,
            pattern=pattern, unicode_version=unicode_version,
            sources=tuple(map(dict, sources)),
            extra_columns=msgspec.convert(extra, tuple[ExtraColumn, ...]),
            digests=here.digests if is_whole else {},
            shards=() if is_whole else (*self._shards, here),
        )
        for data in manifest.files(self._name)[: -len(self._columns)]:
            if data.column.per == "token":
                # Cut off what was moved to the next shard, now that the journal records that.
                with closing(self._storage.stream(data.name, data.n_bytes)) as stream:
                    stream.sync()
        self._storage.put(manifest_name(self._name), manifest.to_json().encode())
        return manifest

    def close(self) -> None:
        """Close the files; what was appended stays. May be called more than once."""
        for file in self._files:
            file.stream.close()


def saved_manifest(storage: Storage, name: str) -> Manifest:
    """Read the manifest of a token file that an earlier run finished, but did not publish.

    The length and the last block of each file are compared with it.

    Raises:
        DamagedStateError: A file is damaged or gone.
    """

    def damaged(what: str) -> DamagedStateError:
        return DamagedStateError(
            f"{what}: was finished before the interruption, and is damaged or gone now; start over"
            " (--overwrite)"
        )

    text = storage.get(manifest_name(name)) or b""
    if not manifest_is_as_written(text):
        raise damaged(manifest_name(name))
    manifest = Manifest.from_json(text.decode(), manifest_name(name))
    for file in manifest.files(name):
        start = max(len(file.digests) - 1, 0) * BLOCK_BYTES
        # One byte more than there should be.
        block = storage.read(file.name, start, file.n_bytes + 1)
        # A shard that lies inside one document has no ends, an empty .docs and no digests.
        digest = (xxhash.xxh3_128_hexdigest(block),) if block else ()
        if start + len(block) != file.n_bytes or digest != file.digests[-1:]:
            raise damaged(file.name)
    return manifest
