"""Sources of records in shards: raw records, such as conversations, or rows of tokens.

    source = ParquetShardedSource("rows")
    for record in source:
        record["input_ids"]

An iteration has one batch of rows, or one line, in memory at a time. The place in the shards is
kept, so that an iteration continues where another was left. `source[i]` reads a single record.
"""

from __future__ import annotations

import glob
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from bpe.arguments import checked
from bpe.errors import TokenmillError
from bpe.files.locations import given_location, is_url, shown_url
from preprocess.rows.access import KEPT_BYTES, BlockCache, find_part
from preprocess.rows.arrow import native_file, pyarrow, record_batches
from preprocess.rows.formats import RowsError
from preprocess.rows.json_lines import Lines, numbered_lines
from preprocess.rows.manifest import MANIFEST_FILE, read_manifest
from preprocess.rows.parquet import row_group_sizes
from preprocess.rows.places import AnyPath, RemotePath, for_all, found_instead, open_binary
from preprocess.sampling.data import SamplingError, check_integer, check_state
from preprocess.sources.find import matching_files

Record = dict[str, Any]
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_ROWS = 1 << 10  # of a record batch that are records at a time
_BATCH_BYTES = 1 << 22  # of a row group that are decoded at a time
_PAGES_BYTES = 1 << 20  # of a column chunk that are read at a time
_SAMPLE_BYTES = 1 << 12  # at each end of a file, by which it is recognized
# Those of 64 bits without a sign have no array: they are hashes rather than ids.
_DTYPES = {
    "int8": np.int32, "int16": np.int32, "int32": np.int32, "uint8": np.int32, "uint16": np.int32,
    "uint32": np.int64, "int64": np.int64,
}


class Place(NamedTuple):
    """After a record: the number of its shard, and of records of this shard up to it."""

    shard: int
    record: int


class ShardedSource(ABC):
    """Records of several shards, in order.

    An iteration begins at `place` and moves it: it continues after the last record that another one
    gave, or that a loaded state counts. After the last record the next begins with the first one.
    `source[i]` is record i of all shards, with int64 arrays; it does not matter for `place`.

    Attributes:
        shard_names: Paths or URLs of the shards.
        place: After which record the next iteration begins; None: with the first one.
    """

    shard_names: list[str]
    place: Place | None

    @property
    @abstractmethod
    def pad_id(self) -> int:
        """Id with which rows of a batch are padded."""

    @abstractmethod
    def open_shard(self, name: str) -> Iterator[Record]:
        """Return all records of a shard; `place` does not matter and is not changed.

        Raises:
            RowsError: There is no such shard, or, while iterating, it is damaged.
        """

    @abstractmethod
    def placed(self) -> Iterator[tuple[Place, Record]]:
        """Yield (its place, a record) from `place` on, without changing `place`."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of records of all shards."""

    @abstractmethod
    def __getitem__(self, index: int) -> Record:
        """Return a record; raise IndexError if there is none, RowsError if its file is damaged."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the place and a digest of the files, for JSON."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the records that a state counts.

        Raises:
            SamplingError: The state is of other files.
        """

    def __iter__(self) -> Iterator[Record]:
        for place, record in self.placed():
            self.place = place
            yield record
        self.place = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.shard_names):,} shards, place={self.place})"


@checked
class _Files(ShardedSource):
    """Shards that are files of one format."""

    kind: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]  # by which files of a directory are chosen
    kept_bytes: ClassVar[int | None] = KEPT_BYTES  # of blocks, for `source[i]`; None: all are kept

    def __init__(self, paths: Paths) -> None:
        found = _find_files(paths, self.kind, self.suffixes)
        self.shard_names = [name for name, _ in found]
        self._paths = dict(found)
        self.place = None
        self._cache = BlockCache[Any](max_bytes=self.kept_bytes)
        self._blocks: dict[str, NDArray[np.int64]] = {}  # where the blocks of a file begin

    @abstractmethod
    def _read(self, path: AnyPath, first: int) -> Iterator[Record]:
        """Yield the records of a file from number `first` on."""

    @abstractmethod
    def _block_sizes(self, path: AnyPath) -> list[int]:
        """Return the number of records of each block of a file."""

    @abstractmethod
    def _read_block(self, path: AnyPath, number: int) -> Any:
        """Read what has the records of a block, to be kept for some time."""

    @abstractmethod
    def _record_of(self, name: str, block: Any, number: int) -> Record:
        """Return a record of a block."""

    def open_shard(self, name: str) -> Iterator[Record]:
        if name not in self.shard_names:
            raise RowsError(f"{name!r} is no shard of this source; give one of its shard_names")
        return self._read(self._paths[name], 0)

    def placed(self) -> Iterator[tuple[Place, Record]]:
        shard, first = self.place or (0, 0)
        for number in range(shard, len(self.shard_names)):
            records = self._read(self._paths[self.shard_names[number]], first)
            for n, record in enumerate(records, start=first + 1):
                yield Place(number, n), record
            first = 0

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Record:
        shard, place = find_part(self._starts, index)
        name = self.shard_names[shard]
        path = self._paths[name]
        if name not in self._blocks:
            self._blocks[name] = _starts_of(self._block_sizes(path))
        number, place = find_part(self._blocks[name], place)
        block = self._cache.get(path, number, self._read_block)
        record = self._record_of(name, block, place)
        # PyTorch's losses take no int32.
        return {
            key: value.astype(np.int64) if isinstance(value, np.ndarray) else value
            for key, value in record.items()
        }

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Where shards begin, and the number of records."""
        paths = [self._paths[name] for name in self.shard_names]
        return _starts_of(for_all(lambda path: sum(self._block_sizes(path)), paths))

    @cached_property
    def pad_id(self) -> int:
        """The id of padding in the manifest of rows, 0 without one."""
        directory = self._paths[self.shard_names[0]].parent
        has_manifest = directory is not None and (directory / MANIFEST_FILE).exists()
        return read_manifest(directory).pad_id if directory and has_manifest else 0

    @cached_property
    def _digest(self) -> str:
        """xxh3_128 of names, sizes, and both ends of the files."""
        digest = xxhash.xxh3_128()
        for sample in for_all(self._sample, [self._paths[name] for name in self.shard_names]):
            digest.update(sample)
        return digest.hexdigest()

    def _sample(self, path: AnyPath) -> bytes:
        try:
            with open_binary(path) as file:
                begins, size = file.read(_SAMPLE_BYTES), file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _SAMPLE_BYTES))
                return json.dumps([path.name, size]).encode() + begins + file.read()
        except OSError as error:
            raise _damaged(path, self.kind, error) from error

    def state_dict(self) -> dict[str, Any]:
        return {"files": self._digest, "place": self.place and [*self.place]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        check_state(state, ("files", "place"), "a source of shards")
        place = state["place"]
        if state["files"] != self._digest:
            raise SamplingError(
                f"the state is of other files than the {len(self.shard_names):,} from"
                f" {self.shard_names[0]} on, or of another order; make the source of the files that"
                " it is of, or begin anew"
            )
        if place is not None:
            if not isinstance(place, list | tuple) or len(place) != 2:
                raise SamplingError(
                    f"the place of a state should be [shard, records]; got {place!r}: give what"
                    " state_dict() returned"
                )
            shard = check_integer("the shard of a state", place[0], 0, len(self.shard_names) - 1)
            place = Place(shard, check_integer("the records of a state", place[1], 0))
        self.place = place


@checked
class JsonShardedSource(_Files):
    """Records of JSON Lines, plain or compressed (.gz, .zst): an object in each line.

    Blank lines are none. A list of integers is int64[n], as far as they fit; other values are what
    JSON says. `len` reads all files, once. `source[i]` keeps the positions of lines; a compressed
    file is decompressed and kept in memory.

    Args:
        paths: A file, a directory with .jsonl or .ndjson files, a glob pattern, a URL, or several.

    Raises:
        RowsError: There is no such file; or, while iterating, a line is no object.
    """

    kind = "JSON Lines"
    kept_bytes = None
    suffixes = tuple(
        suffix + outer for suffix in (".jsonl", ".ndjson") for outer in ("", ".gz", ".zst")
    )

    def _read(self, path: AnyPath, first: int) -> Iterator[Record]:
        decoder = msgspec.json.Decoder(dict[str, Any])
        for _, number, line in islice(numbered_lines(path), first, None):
            yield _decoded(str(path), number, line, decoder)

    def _block_sizes(self, path: AnyPath) -> list[int]:
        return [sum(1 for _ in numbered_lines(path))]

    def _read_block(self, path: AnyPath, number: int) -> Lines:
        return Lines(path)

    def _record_of(self, name: str, block: Lines, number: int) -> Record:
        return _decoded(name, *block.line(number), msgspec.json.Decoder(dict[str, Any]))


@checked
class _ArrowFiles(_Files):
    """Files that pyarrow reads."""

    def __init__(self, paths: Paths) -> None:
        pyarrow()
        super().__init__(paths)

    def _record_of(self, name: str, block: Any, number: int) -> Record:
        with _reading(name, lambda: self.kind):
            batches = block.slice(number, 1).to_batches()
            return next(chain.from_iterable(map(_records_of, batches)))


@checked
class ParquetShardedSource(_ArrowFiles):
    """Records of Parquet files.

    A list of integers of a column is int32[n] or int64[n], by the type of the column; other values
    are plain Python. `len` is of the metadata.

    Args:
        paths: A file, a directory with .parquet files, a glob pattern, a URL, or several of these.

    Raises:
        RowsError: There is no such file, or pyarrow is missing; or, while iterating, a file is
            damaged.
    """

    kind = "Parquet"
    suffixes = (".parquet",)

    def _read(self, path: AnyPath, first: int) -> Iterator[Record]:
        where = "its metadata"
        with _reading(path, lambda: f"{self.kind}, {where}"), _open_parquet(path) as file:
            for number, n_rows in enumerate(row_group_sizes(file)):
                if n_rows <= first:
                    first -= n_rows
                    continue
                where = f"row group {number:,}"
                group = file.metadata.row_group(number)
                n = max(1, min(_ROWS, _BATCH_BYTES * n_rows // max(1, group.total_byte_size)))
                for batch in file.iter_batches(n, [number], use_threads=False):
                    yield from _records_of(batch.slice(min(first, len(batch))))
                    first = max(0, first - len(batch))
                    n_rows -= len(batch)
                if n_rows:  # places in later row groups would be wrong
                    raise ValueError("other than the number of rows in the metadata")

    def _block_sizes(self, path: AnyPath) -> list[int]:
        with _reading(path, lambda: self.kind), _open_parquet(path) as file:
            return row_group_sizes(file)

    def _read_block(self, path: AnyPath, number: int) -> Any:
        what = f"{self.kind}, row group {number:,}"
        with _reading(path, lambda: what), _open_parquet(path) as file:
            return file.read_row_group(number, use_threads=False)


@checked
class ArrowShardedSource(_ArrowFiles):
    """Records of Arrow IPC files, and of Arrow streams, such as the cache of `datasets`.

    A list of integers of a column is int32[n] or int64[n], by the type of the column; other values
    are plain Python. `len` is of the metadata of record batches.

    Args:
        paths: A file, a directory with .arrow files, a glob pattern, a URL, or several of these.

    Raises:
        RowsError: There is no such file, or pyarrow is missing; or, while iterating, a file is
            damaged.
    """

    kind = "Arrow"
    suffixes = (".arrow",)

    def _read(self, path: AnyPath, first: int) -> Iterator[Record]:
        number = skipped = 0
        with _reading(path, lambda: f"{self.kind}, record batch {number:,}"):
            if first:
                for batch in record_batches(path, only_sizes=True):
                    if skipped + len(batch) > first:
                        break
                    skipped, number = skipped + len(batch), number + 1
            first -= skipped
            for batch in record_batches(path, number):
                batch.validate(full=True)
                for start in range(first, len(batch), _ROWS):
                    yield from _records_of(batch.slice(start, _ROWS))
                first, number = 0, number + 1

    def _block_sizes(self, path: AnyPath) -> list[int]:
        with _reading(path, lambda: self.kind):
            return [*map(len, record_batches(path, only_sizes=True))]

    def _read_block(self, path: AnyPath, number: int) -> Any:
        with _reading(path, lambda: f"{self.kind}, record batch {number:,}"):
            batch = next(record_batches(path, number))
            batch.validate(full=True)
            return pyarrow().Table.from_batches([batch])


@checked
class TransformedShardedSource(ShardedSource):
    """The records of another source, each changed by a function, such as `ChatTemplateTransform`.

    The place and the state are those of the source.

    Args:
        source: Where records come from.
        transform: Makes a record of a record.

    Raises:
        RowsError: While iterating: the transform raised an error, which is the `__cause__`.
    """

    def __init__(self, source: ShardedSource, transform: Callable[[Record], Record]) -> None:
        self._source, self._transform = source, transform
        self.shard_names = source.shard_names

    @property
    def place(self) -> Place | None:
        """After which record the next iteration begins; None: with the first one."""
        return self._source.place

    @place.setter
    def place(self, place: Place | None) -> None:
        self._source.place = place

    def open_shard(self, name: str) -> Iterator[Record]:
        records = enumerate(self._source.open_shard(name))
        return (self._transformed(name, number, record) for number, record in records)

    def placed(self) -> Iterator[tuple[Place, Record]]:
        for place, record in self._source.placed():
            name = self.shard_names[place.shard]
            yield place, self._transformed(name, place.record - 1, record)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Record:
        return self._transformed("the source", index, self._source[index])

    @property
    def pad_id(self) -> int:
        """That of the transform, else of the source."""
        own: int | None = getattr(self._transform, "pad_id", None)
        return self._source.pad_id if own is None else own

    def state_dict(self) -> dict[str, Any]:
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._source.load_state_dict(state)

    def _transformed(self, name: str, number: int, record: Record) -> Record:
        try:
            return self._transform(record)
        except Exception as error:
            raise RowsError(
                f"{name}: record {number:,}, counted from 0, cannot be transformed"
                f" ({type(error).__name__}: {error}); correct the record or the transform"
            ) from error


def _find_files(paths: Paths, kind: str, suffixes: tuple[str, ...]) -> list[tuple[str, AnyPath]]:
    """Return name and path of the files that paths mean; raise RowsError if one means none."""
    found: list[tuple[str, AnyPath]] = []
    for path in map(given_location, [paths] if isinstance(paths, str | os.PathLike) else paths):
        if is_url(path):
            there = [RemotePath(each.url, each) for each in matching_files(path)]
            url = shown_url(path)
            is_named = glob.has_magic(url) or [*map(str, there)] == [url]
            remote = [x for x in there if is_named or x.name.endswith(suffixes)]
            looked_for, files = f"{kind} files at {url}", [*map(str, remote)]
            found += zip(files, remote, strict=True)
        elif os.path.isfile(path):  # a name may have the characters of patterns
            looked_for, files = "", [path]
        elif os.path.isdir(path):
            names = (os.path.join(path, name) for name in os.listdir(path) if name[0] != ".")
            looked_for = f"{kind} files ({', '.join(suffixes)}) in the directory {path}"
            files = [name for name in names if name.endswith(suffixes) and os.path.isfile(name)]
        else:
            looked_for = f"{kind} files at {path}"
            files = [name for name in glob.glob(path, recursive=True) if os.path.isfile(name)]
        if not files:
            if not glob.has_magic(path):
                looked_for += found_instead(path, suffixes)
            raise RowsError(f"there are no {looked_for}; give a file, a directory or a pattern")
        if not is_url(path):
            found += [(name, Path(name)) for name in sorted(files)]
    if not found:
        raise RowsError(f"no paths of {kind} files were given; give a list of some")
    return found


def _starts_of(sizes: list[int]) -> NDArray[np.int64]:
    """Return where parts begin, and their total: int64[len(sizes) + 1]."""
    return np.append(0, np.cumsum(sizes, dtype=np.int64))


def _decoded(
    name: str, number: int, line: bytes, decoder: msgspec.json.Decoder[dict[str, Any]]
) -> Record:
    """Return the object in a line, lists of integers as arrays."""
    from preprocess.sources.json_strings import MAX_NESTING, is_nested_deeper

    try:
        if is_nested_deeper(line):
            raise RecursionError(f"its values are nested more than {MAX_NESTING} levels deep")
        record = decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RowsError(
            f"{name}: line {number:,} is no JSON object ({error}); correct the line, or get the"
            " file again"
        ) from error
    return {key: _array_of(value) for key, value in record.items()}


def _array_of(value: Any) -> Any:
    """Return a list of integers of JSON as int64[n], other values unchanged."""
    if not isinstance(value, list) or {*map(type, value)} != {int}:
        return value
    try:
        return np.array(value, np.int64)
    except OverflowError:
        return value


def _records_of(batch: Any) -> Iterator[Record]:
    """Yield the records of a `pyarrow.RecordBatch`."""
    columns = [_values_of(array) for array in batch.columns]
    for number in range(len(batch)):
        yield {
            name: values[number] for name, values in zip(batch.schema.names, columns, strict=True)
        }


def _values_of(array: Any) -> list[Any]:
    """Return the values of a column; a copy, which does not keep the batch in memory."""
    import pyarrow.compute as pc

    types, kind = pyarrow().types, array.type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    dtype = _DTYPES.get(str(kind.value_type)) if is_list else None
    values = array.flatten() if dtype is not None else None
    if values is None or values.null_count:
        found: list[Any] = array.to_pylist()
        return found
    numbers = values.to_numpy(zero_copy_only=False)
    ends = np.cumsum(pc.list_value_length(array).fill_null(0).to_numpy()).tolist()
    starts = [0, *ends][:-1]
    valid = array.is_valid().to_pylist()
    return [
        numbers[start:stop].astype(dtype) if is_there else None
        for start, stop, is_there in zip(starts, ends, valid, strict=True)
    ]


@contextmanager
def _open_parquet(path: AnyPath) -> Iterator[Any]:
    from pyarrow import parquet

    with (
        native_file(path) as opened,
        # Without a buffer pyarrow would read whole column chunks.
        parquet.ParquetFile(
            opened, page_checksum_verification=True, buffer_size=_PAGES_BYTES, pre_buffer=False
        ) as file,
    ):
        yield file


@contextmanager
def _reading(path: AnyPath | str, what: Callable[[], str]) -> Iterator[None]:
    """Convert errors of pyarrow to RowsError; ValueError is of text that is not UTF-8."""
    try:
        yield
    except TokenmillError:  # of a server
        raise
    except (pyarrow().ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise _damaged(path, what(), error) from error


def _damaged(path: AnyPath | str, what: str, error: Exception) -> RowsError:
    reason = " ".join(str(error).split())[:200]
    return RowsError(f"{path}: cannot be read as {what} ({reason}); get the file again")
