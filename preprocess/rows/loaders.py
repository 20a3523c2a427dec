"""Sources of records in shards: raw records, such as conversations, or rows of tokens.

    source = ParquetShardedSource("rows")
    for record in source:
        record["input_ids"]

An iteration has one part of a file in memory at a time. The place in the shards is kept, so that an
iteration continues where another was left. `source[i]` reads a single record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import xxhash

from bpe.arguments import checked
from bpe.files.locations import given_location, is_url, is_web
from preprocess.locations import split_location
from preprocess.rows.access import FileSeries, find_files, found_instead, location_of
from preprocess.rows.formats import FORMATS, Record, RecordFile, RowsError, name_of
from preprocess.rows.manifest import MANIFEST_FILE, read_manifest
from preprocess.sampling.data import SamplingError, check_integer, check_state
from preprocess.storage import open_files

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

_SAMPLE_BYTES = 1 << 12  # at each end of a file, by which it is recognized


class Place(NamedTuple):
    """After a record: the number of its shard, and of records of this shard up to it."""

    shard: int
    record: int


@checked
class ShardedSource:
    """Records of several shards, in order.

    An iteration begins at `place` and moves it: it continues after the last record that another one
    gave, or that a loaded state counts. After the last record the next begins with the first one.
    `source[i]` is record i of all shards, with int64 arrays; it does not matter for `place`.

    Attributes:
        shard_names: Paths or URLs of the shards.
        place: After which record the next iteration begins; None: with the first one.
    """

    format: ClassVar[str]
    kind: str
    suffixes: ClassVar[tuple[str, ...]]  # by which files of a directory are chosen

    def __init__(self, paths: Paths) -> None:
        new_file = FORMATS[self.format].codec()
        given = [paths] if isinstance(paths, str | os.PathLike) else paths
        files = [new_file(x) for path in map(given_location, given) for x in self._find(path)]
        if not files:
            raise RowsError(f"no paths of {self.kind} files were given; give a list of some")
        self.shard_names = [str(each.path) for each in files]
        self._series = FileSeries(files)
        self.place: Place | None = None

    def _find(self, path: str) -> list[Any]:
        """Return the files that a path means; raise RowsError if it means none."""
        if not (found := find_files(path, self.suffixes)):
            shown, instead = open_files(path).where(), found_instead(path, self.suffixes)
            raise RowsError(
                f"there are no {self.kind} files ({', '.join(self.suffixes)}) at {shown}{instead};"
                " give a file, a directory or a pattern"
            )
        return found

    def open_shard(self, name: str) -> Iterator[Record]:
        """Return all records of a shard; `place` does not matter and is not changed.

        Raises:
            RowsError: There is no such shard, or, while iterating, it is damaged.
        """
        if name not in self.shard_names:
            raise RowsError(f"{name!r} is no shard of this source; give one of its shard_names")
        return (record for _, record in self._records(self.shard_names.index(name), 0))

    def placed(self) -> Iterator[tuple[Place, Record]]:
        """Yield (its place, a record) from `place` on, without changing `place`."""
        shard, first = self.place or (0, 0)
        for number in range(shard, len(self.shard_names)):
            yield from self._records(number, first)
            first = 0

    def _records(self, shard: int, first: int) -> Iterator[tuple[Place, Record]]:
        """Yield (its place, a record) of a shard, from a number on."""
        for n, record in enumerate(self._series.files[shard].records(first), start=first + 1):
            yield Place(shard, n), record

    def __iter__(self) -> Iterator[Record]:
        for place, record in self.placed():
            self.place = place
            yield record
        self.place = None

    def __len__(self) -> int:
        """Return the number of records of all shards."""
        return len(self._series)

    def __getitem__(self, index: int) -> Record:
        """Return a record; raise IndexError if there is none, RowsError if its file is damaged."""
        return {  # PyTorch's losses take no int32
            key: value.astype(np.int64) if isinstance(value, np.ndarray) else value
            for key, value in self._series[index].items()
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.shard_names):,} shards, place={self.place})"

    @property
    def pad_id(self) -> int:
        """Id with which rows of a batch are padded: of the manifest of rows, 0 without one."""
        location = location_of(self._series.files[0].file)
        if is_url(location) and is_web(location) and "?" in location:
            return 0  # a signature, which is of one file
        directory, _ = split_location(location)
        has_manifest = open_files(directory).size(MANIFEST_FILE) is not None
        return read_manifest(directory).pad_id if has_manifest else 0

    @cached_property
    def _digest(self) -> str:
        """xxh3_128 of names, sizes, and both ends of the files."""
        return xxhash.xxh3_128_hexdigest(b"".join(self._series.for_all(self._sample)))

    def _sample(self, of: RecordFile) -> bytes:
        try:
            with of.open() as file:
                begins, size = file.read(_SAMPLE_BYTES), file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _SAMPLE_BYTES))
                return json.dumps([name_of(of.file), size]).encode() + begins + file.read()
        except OSError as error:
            raise of.damaged(self.kind, error) from error

    def state_dict(self) -> dict[str, Any]:
        """Return the place and a digest of the files, for JSON."""
        return {"files": self._digest, "place": self.place and [*self.place]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the records that a state counts.

        Raises:
            SamplingError: The state is of other files.
        """
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
class JsonShardedSource(ShardedSource):
    """Records of JSON Lines, plain or compressed (.gz, .zst): an object in each line.

    Blank lines are none. A list of integers is int64[n], as far as they fit; other values are what
    JSON says. `len` reads all files, once. `source[i]` keeps the positions of lines; a compressed
    file is decompressed and kept in memory.

    Args:
        paths: A file, a directory with .jsonl or .ndjson files, a glob pattern, a URL, or several.

    Raises:
        RowsError: There is no such file; or, while iterating, a line is no object.
    """

    format = "jsonl"
    kind = "JSON Lines"
    suffixes = tuple(
        suffix + outer for suffix in (".jsonl", ".ndjson") for outer in ("", ".gz", ".zst")
    )


@checked
class ParquetShardedSource(ShardedSource):
    """Records of Parquet files.

    A list of integers of a column is int32[n] or int64[n], by the type of the column; other values
    are plain Python. `len` is of the metadata.

    Args:
        paths: A file, a directory with .parquet files, a glob pattern, a URL, or several of these.

    Raises:
        RowsError: There is no such file, or pyarrow is missing; or, while iterating, a file is
            damaged.
    """

    format = "parquet"
    kind = "Parquet"
    suffixes = (".parquet",)


@checked
class ArrowShardedSource(ShardedSource):
    """Records of Arrow IPC files, and of Arrow streams, such as the cache of `datasets`.

    Values and errors are as of `ParquetShardedSource`; `len` is of the metadata of record batches.

    Args:
        paths: A file, a directory with .arrow files, a glob pattern, a URL, or several of these.
    """

    format = "arrow"
    kind = "Arrow"
    suffixes = (".arrow",)


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
        self._source, self._transform, self._series = source, transform, source._series
        self.shard_names, self.kind = source.shard_names, source.kind

    @property
    def place(self) -> Place | None:
        """After which record the next iteration begins; None: with the first one."""
        return self._source.place

    @place.setter
    def place(self, place: Place | None) -> None:
        self._source.place = place

    def _records(self, shard: int, first: int) -> Iterator[tuple[Place, Record]]:
        for place, record in self._source._records(shard, first):
            yield place, self._transformed(self.shard_names[shard], place.record - 1, record)

    def __getitem__(self, index: int) -> Record:
        return self._transformed("the source", index, self._source[index])

    @property
    def pad_id(self) -> int:
        """That of the transform, else of the source."""
        own: int | None = getattr(self._transform, "pad_id", None)
        return self._source.pad_id if own is None else own

    def _transformed(self, name: str, number: int, record: Record) -> Record:
        try:
            return self._transform(record)
        except Exception as error:
            raise RowsError(
                f"{name}: record {number:,}, counted from 0, cannot be transformed"
                f" ({type(error).__name__}: {error}); correct the record or the transform"
            ) from error
