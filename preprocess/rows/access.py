"""Random access to the rows of a directory, whatever their format, and shards kept in memory.

Objects are pickled as paths and numbers, without what they keep in memory, so workers of a
`DataLoader` may be forked or spawned.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from bpe.errors import ArgumentError
from preprocess.rows.arrow import (
    arrow_errors,
    batch_of,
    check_ids,
    native_file,
    pyarrow,
    record_batches,
)
from preprocess.rows.columns import Numbers, RowBatch, Values
from preprocess.rows.formats import FORMATS, RowsError, format_of
from preprocess.rows.json_lines import Lines, decode_lines, numbered_lines
from preprocess.rows.manifest import MANIFEST_FILE, read_manifest
from preprocess.rows.parquet import row_group_sizes
from preprocess.rows.places import AnyPath, for_all, found_instead

Row = dict[str, Values]

KEPT_BYTES = 1 << 28  # of row groups and record batches


class Sized(Protocol):
    """What a cache holds."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""


Block = TypeVar("Block", bound=Sized)


class RowDirectory:
    """The rows of all files of a directory, one after another.

    Args:
        files: In order.
    """

    def __init__(self, files: list[RowFile]) -> None:
        self._files = files
        self._starts = np.append(0, np.cumsum([file.n_rows for file in files], dtype=np.int64))
        self._columns: list[str] | None = None

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def block_starts(self) -> Numbers:
        """Where blocks of rows begin that are read at a time, and the number of rows: int64[n]."""
        parts = zip(self._files, self._starts, strict=False)
        return np.concatenate([*(file.starts[:-1] + at for file, at in parts), self._starts[-1:]])

    def row(self, index: int) -> Row:
        """Return the columns of a row, int32[n] each; a negative index counts from the end.

        Raises:
            IndexError: There is no such row.
            RowsError: Its file is damaged, was changed, or has other columns than the rows before,
                or an id is below 0.
        """
        number, place = find_part(self._starts, index)
        file = self._files[number]
        found = file.row(place)
        if self._columns is None:
            self._columns = [*found]
        if self._columns != [*found]:
            raise RowsError(
                f"{file.path}: has columns {', '.join(found)}, and rows of another file of the"
                f" directory {', '.join(self._columns)}; put them into directories of their own"
            )
        check_ids(f"{file.path}: row {place:,}, counted from 0,", found.get("input_ids", ()))
        return found


def find_part(starts: npt.NDArray[np.int64], index: int) -> tuple[int, int]:
    """Return (number of a part, place in it) of a row.

    Args:
        starts: int64[n_parts + 1], where parts begin, and the number of rows.
        index: Number of the row; a negative one counts from the end.

    Raises:
        IndexError: There is no such row.
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
    number = int(np.searchsorted(starts, place, "right")) - 1
    return number, place - int(starts[number])


class BlockCache(Generic[Block]):
    """Blocks of rows, of which those used last are kept; pickled without them.

    Args:
        max_blocks: How many to keep; None: any number.
        max_bytes: How many bytes of them to keep, but at least one block; None: any number.
    """

    def __init__(self, max_blocks: int | None = None, max_bytes: int | None = None) -> None:
        self._limits = max_blocks, max_bytes
        self._blocks: dict[tuple[AnyPath, int], Block] = {}
        self._n_bytes = 0

    def __reduce__(self) -> tuple[type[Any], tuple[int | None, int | None]]:
        return BlockCache, self._limits

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, path: AnyPath, number: int, read: Callable[[Any, int], Block]) -> Block:
        """Return a block of a file, which is read unless it is kept."""
        block = self._blocks.pop((path, number), None)
        if block is None:
            max_blocks, max_bytes = self._limits
            # Before reading, so that there are never more.
            while max_blocks is not None and len(self._blocks) >= max_blocks:
                self._drop()
            block = read(path, number)
            self._n_bytes += block.nbytes
            while max_bytes is not None and self._n_bytes > max_bytes and self._blocks:
                self._drop()
        self._blocks[path, number] = block
        return block

    def _drop(self) -> None:
        """Drop the block that was not used for the longest time."""
        self._n_bytes -= self._blocks.pop(next(iter(self._blocks))).nbytes


class _BlockFile:
    """A file that is read in blocks of rows, such as row groups."""

    def __init__(
        self, path: AnyPath, sizes: Iterable[int], read: Callable[[AnyPath, int], RowBatch],
        cache: BlockCache[RowBatch],
    ) -> None:
        self.path, self._read, self._cache = path, read, cache
        self.starts = np.append(0, np.cumsum([*sizes], dtype=np.int64))
        self.n_rows = int(self.starts[-1])

    def row(self, index: int) -> Row:
        number, place = find_part(self.starts, index)
        block = self._cache.get(self.path, number, self._read)
        _check_count(self.path, len(block), int(self.starts[number + 1] - self.starts[number]))
        begin, end = block.offsets[place : place + 2].tolist()
        return {name: values[begin:end] for name, values in block.values.items()}


class _LineFile:
    """JSON Lines that are not compressed, with the position of each line."""

    def __init__(self, path: AnyPath) -> None:
        self.path, self._lines = path, Lines(path)
        self.n_rows = len(self._lines)
        self.starts = np.array([0, self.n_rows])

    def row(self, index: int) -> Row:
        return decode_lines(self.path, [self._lines.line(index)]).values


RowFile = _BlockFile | _LineFile


def open_rows(directory: AnyPath, cache: BlockCache[RowBatch] | None = None) -> RowDirectory:
    """Open the rows of a directory; blocks that are read are kept in a cache.

    Row groups of Parquet are decoded, and the last of them are kept; record batches of Arrow are
    memory-mapped, and compressed ones are decoded and kept like row groups; lines of JSON are found
    by their positions. A compressed JSON Lines file, an NPZ file or a pickled list is decoded when
    it is first needed, and is kept.

    Raises:
        RowsError: There are no rows, or of several formats, or they are damaged.
    """
    name, counts = _find_rows(directory)
    kept = cache if cache is not None else BlockCache[RowBatch](
        max_bytes=KEPT_BYTES if name in ("parquet", "arrow") else None
    )

    def opened(path: AnyPath) -> RowFile:
        file: RowFile
        count = counts[path]
        if name == "parquet":
            file = _BlockFile(path, _row_groups(path), _read_row_group, kept)
        elif name == "arrow":
            file = _BlockFile(path, _batch_sizes(path), _read_record_batch, kept)
        elif name == "jsonl" and path.suffix not in (".gz", ".zst"):
            file = _LineFile(path)
        else:
            file = _whole_file(path, count, kept)
        if count is not None:
            _check_count(path, file.n_rows, count)
        return file

    return RowDirectory(for_all(opened, counts))


def joined(path: AnyPath, batches: Iterable[RowBatch]) -> RowBatch:
    """Return the rows of all batches of a file as one; raise RowsError if their columns differ."""
    offsets, parts, n = [np.zeros(1, np.int64)], list[dict[str, Values]](), 0
    for batch in batches:
        if parts and batch.values.keys() != parts[0].keys():
            raise RowsError(f"{path}: some rows have other columns than the first; make it again")
        offsets.append(batch.offsets[1:] + n)
        n += int(batch.offsets[-1])
        parts.append(batch.values)
    if len(parts) == 1:
        return RowBatch(np.concatenate(offsets), parts[0])
    names = parts[0] if parts else ()
    values = {name: np.concatenate([part[name] for part in parts]) for name in names}
    return RowBatch(np.concatenate(offsets), values)


def in_order(paths: Iterable[AnyPath]) -> list[AnyPath]:
    """Return paths in the order of their names, with numbers in names by their values."""
    return sorted(
        paths, key=lambda path: [
            int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)
        ],
    )


def _find_rows(directory: AnyPath) -> tuple[str, dict[AnyPath, int | None]]:
    """Return the format of the files of a directory, and the rows of each as the manifest says."""
    has_manifest = (directory / MANIFEST_FILE).exists()
    if not has_manifest and not directory.is_dir():
        instead = found_instead(str(directory), tuple(each.suffix for each in FORMATS.values()))
        raise RowsError(
            f"{directory}: is no directory{instead}; give the one that has the files of rows"
        )
    formats = _formats_in(directory)
    if not formats and not has_manifest:
        inside = [path.name for path in in_order(directory.iterdir()) if path.is_dir()]
        inside = [name for name in inside if _formats_in(directory / name)]
        if inside:
            raise RowsError(
                f"{directory}: has no rows itself, but its directories {', '.join(inside)} have;"
                " open one of these"
            )
        known = ", ".join(each.suffix for each in FORMATS.values())
        raise RowsError(f"{directory}: there are no files of rows in this directory ({known})")
    if len(formats) > 1:
        raise RowsError(
            f"{directory}: has files of several formats ({', '.join(formats)}), and rows are of"
            " one; put them into directories of their own"
        )
    there = {path.name: path for paths in formats.values() for path in paths}
    if not has_manifest:
        return next(iter(formats)), dict.fromkeys(in_order(there.values()), None)
    manifest, found = read_manifest(directory), dict[AnyPath, int | None]()
    for shard in manifest.shards:
        path = there.get(shard.name, directory / shard.name)  # of a web server there is no list
        if not path.exists():
            raise RowsError(
                f"{path}: is missing, and {MANIFEST_FILE} has it; run tokenmill verify --repair"
            )
        found[path] = shard.rows
    return manifest.format, found


def _formats_in(directory: AnyPath) -> dict[str, list[AnyPath]]:
    found: dict[str, list[AnyPath]] = {}
    for path in directory.iterdir():
        if (name := format_of(path)) and path.is_file() and not path.name.startswith("."):
            found.setdefault(name, []).append(path)
    return found


def _whole_file(path: AnyPath, count: int | None, cache: BlockCache[RowBatch]) -> _BlockFile:
    if count is None:
        count = _count_rows(path)
    return _BlockFile(path, [count], _read_file, cache)


def _count_rows(path: AnyPath) -> int:
    """Return the number of rows of a file; without metadata it is read, and not kept."""
    if format_of(path) == "jsonl":
        return sum(1 for _ in numbered_lines(path))
    return sum(map(len, batches_of(path)))


def _check_count(path: AnyPath, found: int, expected: int) -> None:
    if found != expected:
        raise RowsError(
            f"{path}: has {found:,} rows where {expected:,} were counted, so it was changed since;"
            " open the directory again, or run tokenmill verify --repair"
        )


def batches_of(path: AnyPath) -> Iterable[RowBatch]:
    """Yield the rows of a file in batches; raise RowsError if it is damaged."""
    return FORMATS[format_of(path) or ""].codec().read_shard(path)


def _read_file(path: AnyPath, number: int) -> RowBatch:
    """Read all rows of a file, its only block."""
    return joined(path, batches_of(path))


def _row_groups(path: AnyPath) -> list[int]:
    with arrow_errors(path, "Parquet"), _open_parquet(path) as file:
        return row_group_sizes(file)


def _read_row_group(path: AnyPath, number: int) -> RowBatch:
    with arrow_errors(path, "Parquet"), _open_parquet(path) as file:
        sizes = row_group_sizes(file)
        if number >= len(sizes):  # the file was replaced
            return joined(path, ())
        batches = file.iter_batches(max(1, sizes[number]), [number], use_threads=False)
        return joined(path, (batch_of(path, batch) for batch in batches))


@contextmanager
def _open_parquet(path: AnyPath) -> Iterator[Any]:
    pyarrow()
    from pyarrow import parquet

    # Without threads of its own, which a process that is forked would not have.
    with native_file(path) as opened, parquet.ParquetFile(opened, pre_buffer=False) as file:
        yield file


def _batch_sizes(path: AnyPath) -> list[int]:
    with arrow_errors(path, "Arrow"):
        return [*map(len, record_batches(path, only_sizes=True))]


def _read_record_batch(path: AnyPath, number: int) -> RowBatch:
    with arrow_errors(path, "Arrow"):
        batches = [*islice(record_batches(path, number), 1)]
        for batch in batches:
            batch.validate(full=True)
        return joined(path, (batch_of(path, batch) for batch in batches))
