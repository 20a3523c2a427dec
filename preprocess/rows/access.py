"""Random access to the rows of a directory, whatever their format, and shards kept in memory.

Objects are pickled as paths and numbers, without what they keep in memory, so workers of a
`DataLoader` may be forked or spawned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from preprocess.rows.arrow import arrow_errors, batch_of, pyarrow, record_batches
from preprocess.rows.columns import RowBatch, Values
from preprocess.rows.formats import FORMATS, RowsError, format_of
from preprocess.rows.json_lines import Lines, decode_lines, numbered_lines
from preprocess.rows.manifest import MANIFEST_FILE, read_manifest
from preprocess.rows.parquet import row_group_sizes

Row = dict[str, Values]

KEPT_BYTES = 1 << 28  # of row groups and record batches


class Sized(Protocol):
    """What a cache holds."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""


Block = TypeVar("Block", bound=Sized)


class RowFile(Protocol):
    """A file of rows."""

    path: Path
    n_rows: int

    def row(self, index: int) -> Row:
        """Return a row, 0 <= index < n_rows; raise RowsError if the file is damaged."""


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

    def row(self, index: int) -> Row:
        """Return the columns of a row, int32[n] each; a negative index counts from the end.

        Raises:
            IndexError: There is no such row.
            RowsError: Its file is damaged, was changed, or has other columns than the rows before.
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
        return found


def find_part(starts: npt.NDArray[np.int64], index: int) -> tuple[int, int]:
    """Return (number of a part, place in it) of a row.

    Args:
        starts: int64[n_parts + 1], where parts begin, and the number of rows.
        index: Number of the row; a negative one counts from the end.

    Raises:
        IndexError: There is no such row.
    """
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
        self._blocks: dict[tuple[Path, int], Block] = {}
        self._n_bytes = 0

    def __reduce__(self) -> tuple[type[Any], tuple[int | None, int | None]]:
        return BlockCache, self._limits

    def __len__(self) -> int:
        return len(self._blocks)

    def get(self, path: Path, number: int, read: Callable[[Path, int], Block]) -> Block:
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
        self, path: Path, sizes: Iterable[int], read: Callable[[Path, int], RowBatch],
        cache: BlockCache[RowBatch],
    ) -> None:
        self.path, self._read, self._cache = path, read, cache
        self._starts = np.append(0, np.cumsum([*sizes], dtype=np.int64))
        self.n_rows = int(self._starts[-1])

    def row(self, index: int) -> Row:
        number, place = find_part(self._starts, index)
        block = self._cache.get(self.path, number, self._read)
        _check_count(self.path, len(block), int(self._starts[number + 1] - self._starts[number]))
        begin, end = block.offsets[place : place + 2].tolist()
        return {name: values[begin:end] for name, values in block.values.items()}


class _LineFile:
    """JSON Lines that are not compressed, with the position of each line."""

    def __init__(self, path: Path) -> None:
        self.path, self._lines = path, Lines(path)
        self.n_rows = len(self._lines)

    def row(self, index: int) -> Row:
        return decode_lines(self.path, [self._lines.line(index)]).values


def open_rows(directory: Path) -> RowDirectory:
    """Open the rows of a directory.

    Row groups of Parquet are decoded, and the last of them are kept; record batches of Arrow are
    memory-mapped, and compressed ones are decoded and kept like row groups; lines of JSON are found
    by their positions. A compressed JSON Lines file, an NPZ file or a pickled list is decoded when
    it is first needed, and is kept.

    Raises:
        RowsError: There are no rows, or of several formats, or they are damaged.
    """
    name, counts = _find_rows(directory)
    cache = BlockCache[RowBatch](max_bytes=KEPT_BYTES if name in ("parquet", "arrow") else None)
    files: list[RowFile] = []
    for path, count in counts.items():
        file: RowFile
        if name == "parquet":
            file = _BlockFile(path, _row_groups(path), _read_row_group, cache)
        elif name == "arrow":
            file = _BlockFile(path, _batch_sizes(path), _read_record_batch, cache)
        elif name == "jsonl" and path.suffix not in (".gz", ".zst"):
            file = _LineFile(path)
        else:
            file = _whole_file(path, count, cache)
        if count is not None:
            _check_count(path, file.n_rows, count)
        files.append(file)
    return RowDirectory(files)


def open_shards(directory: Path, cache: BlockCache[RowBatch]) -> RowDirectory:
    """Open the rows of a directory, of which whole files are decoded and kept in a cache.

    Raises:
        RowsError: There are no rows, or of several formats, or they are damaged.
    """
    _, counts = _find_rows(directory)
    return RowDirectory([_whole_file(path, count, cache) for path, count in counts.items()])


def joined(path: Path, batches: Iterable[RowBatch]) -> RowBatch:
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


def in_order(paths: Iterable[Path]) -> list[Path]:
    """Return paths in the order of their names, with numbers in names by their values."""
    return sorted(
        paths, key=lambda path: [
            int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)
        ],
    )


def _find_rows(directory: Path) -> tuple[str, dict[Path, int | None]]:
    """Return the format of the files of a directory, and the rows of each as the manifest says."""
    if not directory.is_dir():
        raise RowsError(f"{directory}: is no directory; give the one that has the files of rows")
    formats = _formats_in(directory)
    if not formats:
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
    ((name, paths),) = formats.items()
    if not (directory / MANIFEST_FILE).exists():
        return name, dict.fromkeys(in_order(paths), None)
    shards = read_manifest(directory).shards
    for shard in shards:
        if not (directory / shard.name).exists():
            raise RowsError(
                f"{directory / shard.name}: is missing, and {MANIFEST_FILE} has it; run tokenmill"
                " verify --repair"
            )
    return name, {directory / shard.name: shard.rows for shard in shards}


def _formats_in(directory: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in directory.iterdir():
        if (name := format_of(path)) and path.is_file() and not path.name.startswith("."):
            found.setdefault(name, []).append(path)
    return found


def _whole_file(path: Path, count: int | None, cache: BlockCache[RowBatch]) -> _BlockFile:
    if count is None:
        count = _count_rows(path)
    return _BlockFile(path, [count], _read_file, cache)


def _count_rows(path: Path) -> int:
    """Return the number of rows of a file; without metadata it is read, and not kept."""
    match format_of(path):
        case "parquet":
            return sum(_row_groups(path))
        case "arrow":
            return sum(_batch_sizes(path))
        case "jsonl":
            return sum(1 for _ in numbered_lines(path))
        case _:
            return sum(map(len, _batches_of(path)))


def _check_count(path: Path, found: int, expected: int) -> None:
    if found != expected:
        raise RowsError(
            f"{path}: has {found:,} rows where {expected:,} were counted, so it was changed since;"
            " open the directory again, or run tokenmill verify --repair"
        )


def _batches_of(path: Path) -> Iterable[RowBatch]:
    return FORMATS[format_of(path) or ""].codec().read_shard(path)


def _read_file(path: Path, number: int) -> RowBatch:
    """Read all rows of a file, its only block."""
    return joined(path, _batches_of(path))


def _row_groups(path: Path) -> list[int]:
    with arrow_errors(path, "Parquet"), _open_parquet(path) as file:
        return row_group_sizes(file)


def _read_row_group(path: Path, number: int) -> RowBatch:
    with arrow_errors(path, "Parquet"), _open_parquet(path) as file:
        sizes = row_group_sizes(file)
        if number >= len(sizes):  # the file was replaced
            return joined(path, ())
        batches = file.iter_batches(max(1, sizes[number]), [number], use_threads=False)
        return joined(path, (batch_of(path, batch) for batch in batches))


def _open_parquet(path: Path) -> Any:
    pyarrow()
    from pyarrow import parquet

    # Without threads of its own, which a process that is forked would not have.
    return parquet.ParquetFile(path, pre_buffer=False)


def _batch_sizes(path: Path) -> list[int]:
    with arrow_errors(path, "Arrow"):
        return [*map(len, record_batches(path, only_sizes=True))]


def _read_record_batch(path: Path, number: int) -> RowBatch:
    with arrow_errors(path, "Arrow"):
        batches = [*islice(record_batches(path, number), 1)]
        for batch in batches:
            batch.validate(full=True)
        return joined(path, (batch_of(path, batch) for batch in batches))
