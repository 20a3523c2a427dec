"""Sources of records in shards: raw records, such as conversations, or rows of tokens.

    source = ParquetShardedSource("rows")
    for record in source:
        record["input_ids"]

An iteration has a row group, a record batch or a line in memory at a time. The place in the shards
is kept, so that an iteration continues where another was left. `source[i]` reads a single record.
Objects are pickled as paths and numbers, without what they keep in memory, so workers of a
`DataLoader` may be forked or spawned.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import operator
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import msgspec
import numpy as np
import xxhash

from bpe.arguments import checked
from bpe.errors import ArgumentError
from bpe.files.locations import given_location, is_url, is_web, shown_url
from bpe.parallel import cached_property, run_in_order
from preprocess.dataset.manifest import Count
from preprocess.locations import how_to_repair, join_location, split_location
from preprocess.rows.columns import Numbers
from preprocess.rows.formats import (
    FORMATS,
    AnyFile,
    ArrowFile,
    JsonFile,
    ParquetFile,
    Record,
    RecordFile,
    Row,
    RowsError,
    as_row,
    format_of,
    name_of,
    open_file,
)
from preprocess.rows.manifest import MANIFEST_FILE, has_manifest, read_manifest
from preprocess.sampling.data import SamplingError
from preprocess.sources.find import matching_files
from preprocess.sources.remote import RemoteFile, find_object
from preprocess.storage import open_files

Location = str | os.PathLike[str]
Paths = Location | Iterable[Location]
Found = TypeVar("Found")

_SAMPLE_BYTES = 1 << 12  # at each end of a file, by which it is recognized
_FILES_AT_ONCE = 16  # servers answer slowly, but many requests at once


# --- sources of records ---


class Place(NamedTuple):
    """After a record: the number of its shard, and of records of this shard up to it."""

    shard: Count
    record: Count


class _State(msgspec.Struct):
    """State of a source, as `state_dict` returns it."""

    files: str
    place: Place | None


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

    codec: ClassVar[type[RecordFile]]
    suffixes: ClassVar[tuple[str, ...]]  # by which files of a directory are chosen

    def __init__(self, paths: Paths) -> None:
        files = list[RecordFile]()
        for path in map(given_location, [paths] if isinstance(paths, str | os.PathLike) else paths):
            if not (found := find_files(path, self.suffixes)):
                shown = shown_url(path) if is_url(path) else str(Path(path))
                raise RowsError(
                    f"there are no {self.codec.kind} files ({', '.join(self.suffixes)}) at {shown}"
                    f"{found_instead(path, self.suffixes)}; give a file, a directory or a pattern"
                )
            check_listed(path, found, self.suffixes)
            files += map(self.codec, found)
        if not files:
            raise RowsError(f"no paths of {self.codec.kind} files were given; give a list of some")
        self.shard_names = [str(each.path) for each in files]
        self._series = FileSeries(files)
        self.place: Place | None = None

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
        return read_manifest(directory).pad_id if has_manifest(open_files(directory)) else 0

    @cached_property
    def _digest(self) -> str:
        """xxh3_128 of names, sizes, and both ends of the files."""
        return xxhash.xxh3_128_hexdigest(b"".join(self._series.for_all(self._sample)))

    def _sample(self, of: RecordFile) -> bytes:
        with of.reading(), of.open() as file:
            begins, size = file.read(_SAMPLE_BYTES), file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _SAMPLE_BYTES))
            return json.dumps([name_of(of.file), size]).encode() + begins + file.read()

    def state_dict(self) -> dict[str, Any]:
        """Return the place and a digest of the files, for JSON."""
        return {"files": self._digest, "place": self.place and [*self.place]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the records that a state counts.

        Raises:
            SamplingError: The state is of other files, or of a place that they have not.
        """
        try:
            found = msgspec.convert({**state}, _State)
        except msgspec.ValidationError as error:
            raise SamplingError(
                f"this is no state of a source of shards ({error}); give what state_dict() returned"
            ) from None
        if found.files != self._digest:
            raise SamplingError(
                f"the state is of other files than the {len(self.shard_names):,} from"
                f" {self.shard_names[0]} on, or of another order; make the source of the files that"
                " it is of, or begin anew"
            )
        shard, record = found.place or (0, 0)
        n = len(self._series.files[shard]) if shard < len(self.shard_names) else -1
        if record > n:
            raise SamplingError(
                f"the state is of record {record:,} of shard {shard:,}, and there is none; give"
                " what state_dict() returned"
            )
        self.place = found.place


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

    codec = JsonFile
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

    codec = ParquetFile
    suffixes = (".parquet",)


@checked
class ArrowShardedSource(ShardedSource):
    """Records of Arrow IPC files, and of Arrow streams, such as the cache of `datasets`.

    Values and errors are as of `ParquetShardedSource`; `len` is of the metadata of record batches.

    Args:
        paths: A file, a directory with .arrow files, a glob pattern, a URL, or several of these.
    """

    codec = ArrowFile
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
        self.shard_names = source.shard_names

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


# --- which files there are ---


def find_files(location: str, endings: tuple[str, ...]) -> list[AnyFile]:
    """Return the files that a path, a URL or a pattern means, sorted; of a directory by endings.

    Hidden files are left out, unless they are named.
    """
    found: list[AnyFile]
    if is_url(location):
        found = [*matching_files(location)]
        is_one = [*map(location_of, found)] == [location]
        is_directory = not glob.has_magic(shown_url(location)) and not is_one
    elif os.path.isfile(location):  # whose name may have characters of patterns
        return [Path(location)]
    else:
        is_directory = os.path.isdir(location)
        pattern = os.path.join(glob.escape(location), "*") if is_directory else location
        found = [x for x in map(Path, sorted(glob.glob(pattern, recursive=True))) if x.is_file()]
    return [x for x in found if not is_directory or name_of(x).endswith(endings)]


def check_listed(location: str, found: Iterable[AnyFile], endings: tuple[str, ...]) -> None:
    """Raise RowsError if a file is missing that a manifest has, and a path or pattern means.

    Also if a directory has other files beside those of its manifest, which may be of anything.

    Args:
        location: A path, a URL or a pattern.
        found: Its files.
        endings: Of the files that are chosen in a directory.
    """
    if is_url(location) and is_web(location):
        return
    there = {*map(location_of, found)}
    place, pattern = location.rstrip("/"), split_location(location.rstrip("/"))[1]
    for directory in {split_location(each)[0] for each in there}:
        is_given = directory == (place if is_url(place) else str(Path(place)))
        files = open_files(directory)
        if not (is_given or glob.has_magic(pattern)) or not has_manifest(files):
            continue
        listed = [each.name for each in read_manifest(directory).shards]
        others = {x for place_of, x in map(split_location, there) if place_of == directory}
        others -= {*listed}
        if is_given and others and any(name.endswith(endings) for name in listed):
            raise RowsError(
                f"{files.where(min(others))}: is beside rows, and not one of their {MANIFEST_FILE};"
                " give a pattern of the files that are meant"
            )
        for name in listed:
            is_meant = name.endswith(endings) if is_given else fnmatch.fnmatchcase(name, pattern)
            if is_meant and join_location(directory, name) not in there:
                find_listed(directory, name)


def find_listed(directory: str, name: str) -> AnyFile:
    """Return a file that the manifest of rows has; raise RowsError if it is missing."""
    location = join_location(directory, name)
    found: AnyFile | None = Path(location)  # whose name may begin with a dot
    if is_url(location):
        found = find_object(location)
    if found is None or (isinstance(found, Path) and not found.is_file()):
        files = open_files(directory)
        raise RowsError(
            f"{files.where(name)}: is missing, and {MANIFEST_FILE} has it; run tokenmill"
            f" {how_to_repair(files.where())}"
        )
    return found


def row_files(directory: Location) -> dict[str, AnyFile]:
    """Return the files of rows in a directory by their names, ordered with numbers by their values.

    Of a web server, which has no lists, there are none.
    """
    location = f"{given_location(directory).rstrip('/')}/"
    found = [] if is_url(location) and is_web(location) else find_files(location, ("",))
    names = {name_of(x): x for x in found if format_of(name_of(x))}
    order = sorted(names, key=lambda name: [
        int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)
    ])  # fmt: skip
    return {name: names[name] for name in order}


def found_instead(location: str, endings: tuple[str, ...]) -> str:
    """Tell, in a message, in which directories below a location files are; "" for none."""
    if glob.has_magic(location) or (is_url(location) and is_web(location)):
        return ""
    found = map(location_of, find_files(f"{location.rstrip('/')}/*/*", ()))
    names = sorted({each.split("/")[-2] for each in found if each.endswith(endings)})
    more = ", ..." * (len(names) > 3)
    shown = shown_url(location) if is_url(location) else location
    return f", but in {shown} there are {', '.join(names[:3])}{more}" if names else ""


def location_of(file: AnyFile) -> str:
    """Return the path of a file, or its URL with what is secret."""
    return str(file) if isinstance(file, Path) else file.url


def open_rows(directory: Location, n_blocks: int | None = None) -> FileSeries:
    """Open the rows of a directory: the files of its manifest, or all, which are of one format.

    Args:
        directory: Has the files; or its URL.
        n_blocks: As of `FileSeries`.

    Raises:
        RowsError: There are no rows, or of several formats, or they are damaged.
    """
    files = open_files(directory)
    where, there, counts = files.where(), row_files(directory), dict[str, int]()
    if files.size(MANIFEST_FILE) is not None:
        counts = {each.name: each.rows for each in read_manifest(directory).shards}
        for name in counts.keys() - there.keys():
            there[name] = find_listed(os.fspath(directory), name)
    elif not there:
        endings = tuple(each.suffix for each in FORMATS.values())
        raise RowsError(
            f"{where}: there are no files of rows ({', '.join(endings)}) in this directory"
            f"{found_instead(where, endings)}; give the directory that has them"
        )
    names = [*(counts or there)]
    if len(formats := {format_of(name) or "": None for name in names}) > 1:
        raise RowsError(
            f"{where}: has files of several formats ({', '.join(formats)}), and rows are of"
            " one; put them into directories of their own"
        )
    is_whole = n_blocks is not None
    opened = [open_file(there[name], counts.get(name), is_whole) for name in names]
    series = FileSeries(opened, n_blocks)
    series.starts  # noqa: B018 (raises the errors of opening)
    return series


# --- their records ---


class FileSeries:
    """The records of files, one after another; blocks of files that were used last are kept.

    Args:
        files: In order.
        n_blocks: How many blocks are kept; None: as many as suits the format.
    """

    def __init__(self, files: list[RecordFile], n_blocks: int | None = None) -> None:
        self.files, self._n_blocks = files, n_blocks
        self._blocks: dict[int, Any] = {}
        self._columns: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_blocks": {}}

    @cached_property
    def starts(self) -> Numbers:
        """Offsets of the files in records: int64[n_files + 1], the last is their number."""
        sizes = self.for_all(len)
        for file, size in zip(self.files, sizes, strict=True):
            _check_count(file, size, size if file.n_known is None else file.n_known)
        return np.append(0, np.cumsum(sizes, dtype=np.int64))

    @cached_property
    def block_starts(self) -> Numbers:
        """Offsets of the blocks of all files in records: int64[n_blocks + 1]."""
        parts = zip(self.files, self.starts, strict=False)
        return np.concatenate([*(file.starts[:-1] + at for file, at in parts), self.starts[-1:]])

    @cached_property
    def _places(self) -> list[tuple[RecordFile, int, int]]:
        """(file, number, first record) of each block; the last two are counted in its file."""
        return [(x, *place) for x in self.files for place in enumerate(x.starts[:-1].tolist())]

    def __len__(self) -> int:
        return int(self.starts[-1])

    def for_all(self, function: Callable[[RecordFile], Found]) -> list[Found]:
        """Return the results of a function of each file; of remote ones several at a time."""
        is_remote = any(isinstance(file.file, RemoteFile) for file in self.files)
        workers = _FILES_AT_ONCE if is_remote else 1
        with closing(run_in_order(self.files, lambda: function, workers)) as results:
            return [*results]

    def __getitem__(self, index: int) -> Record:
        """Return a record; a negative number counts from the end.

        Raises:
            IndexError: There is no such record.
            RowsError: Its file is damaged, or was changed.
        """
        number, place = find_part(self.block_starts, index)
        record: Record = self._block(number)[place]
        return record

    def row(self, index: int) -> Row:
        """Return the columns of a row: int32[n] each, as a record.

        Raises:
            RowsError: It is no row of tokens, or has other columns than the rows before.
        """
        number, place = find_part(self.block_starts, index)
        block, (file, _, first) = self._block(number), self._places[number]
        row = as_row(file.path, first + place, block[place], self._columns)
        if isinstance(block, list):
            block[place] = row  # which is not converted again
        return row

    def _block(self, number: int) -> Any:
        """Return a block of all files, which is read unless it is kept."""
        found = self._blocks.pop(number, None)
        if found is None:
            file, inside, first = self._places[number]
            while self._is_full(file):  # before reading, so that there are never more
                del self._blocks[next(iter(self._blocks))]
            found = file.block(inside)
            _check_count(file, len(found), int(file.starts[inside + 1]) - first)
        self._blocks[number] = found  # the last
        return found

    def _is_full(self, file: RecordFile) -> bool:
        if self._n_blocks is not None or file.kept_bytes is None:
            return len(self._blocks) == self._n_blocks
        return bool(sum(each.nbytes for each in self._blocks.values()) > file.kept_bytes)


def _check_count(file: RecordFile, found: int, expected: int) -> None:
    if found != expected:
        raise RowsError(
            f"{file.path}: has {found:,} rows where {expected:,} were counted, so it was changed"
            " since; open the directory again, or run tokenmill"
            f" {how_to_repair(str(file.path))}"
        )


def find_part(starts: Numbers, index: int) -> tuple[int, int]:
    """Return (number of a part, place in it) of a record.

    Args:
        starts: int64[n_parts + 1], where parts begin, and the number of records.
        index: Number of the record; a negative one counts from the end.

    Raises:
        IndexError: There is no such record.
    """
    try:
        index = operator.index(index)
    except TypeError:
        raise ArgumentError(
            f"index: should be a whole number; got {index!r:.100}; for several rows, give one after"
            " another"
        ) from None
    n = int(starts[-1])
    place = index + n if index < 0 else index
    if not 0 <= place < n:
        raise IndexError(f"there are {n:,} rows; got {index}")
    number = bisect_right(starts, place) - 1  # of few parts faster than NumPy's search
    return number, place - int(starts[number])
