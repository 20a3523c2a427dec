"""Random access to the records of files, one after another, and the files of a directory of rows.

Objects are pickled as paths and numbers, without what they keep in memory, so workers of a
`DataLoader` may be forked or spawned.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bpe.errors import ArgumentError
from bpe.parallel import run_in_order
from preprocess.rows.columns import Numbers
from preprocess.rows.formats import (
    FORMATS,
    Record,
    RecordFile,
    Row,
    RowsError,
    as_row,
    format_of,
    open_file,
)
from preprocess.rows.manifest import MANIFEST_FILE, read_manifest
from preprocess.rows.places import AnyPath, RemotePath, found_instead

_FILES_AT_ONCE = 16  # servers answer slowly, but many requests at once

Found = TypeVar("Found")
Location = TypeVar("Location", Path, RemotePath, AnyPath)


class FileSeries:
    """The records of files, one after another; blocks of files that were used last are kept.

    Args:
        files: In order.
        n_blocks: How many blocks are kept; None: as many as suits the format.
    """

    def __init__(self, files: list[RecordFile], n_blocks: int | None = None) -> None:
        self.files, self._n_blocks = files, n_blocks
        self._blocks: dict[tuple[int, int], Any] = {}
        self._columns: list[str] = []

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_blocks": {}}

    @cached_property
    def starts(self) -> Numbers:
        """Where files begin, and the number of records: int64[n_files + 1]."""
        sizes = self.for_all(len)
        for file, size in zip(self.files, sizes, strict=True):
            _check_count(file, size, size if file.n_known is None else file.n_known)
        return np.append(0, np.cumsum(sizes, dtype=np.int64))

    @property
    def block_starts(self) -> Numbers:
        """Where blocks of records begin, and the number of records: int64[n_blocks + 1]."""
        parts = zip(self.files, self.starts, strict=False)
        return np.concatenate([*(file.starts[:-1] + at for file, at in parts), self.starts[-1:]])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def for_all(self, function: Callable[[RecordFile], Found]) -> list[Found]:
        """Return the results of a function of each file; of remote ones several at a time."""
        is_remote = any(isinstance(file.path, RemotePath) for file in self.files)
        workers = _FILES_AT_ONCE if is_remote else 1
        with closing(run_in_order(self.files, lambda: function, workers)) as results:
            return [*results]

    def __getitem__(self, index: int) -> Record:
        """Return a record; a negative number counts from the end.

        Raises:
            IndexError: There is no such record.
            RowsError: Its file is damaged, or was changed.
        """
        return self._read(*find_part(self.starts, index))

    def row(self, index: int) -> Row:
        """Return the columns of a row: int32[n] each, as a record.

        Raises:
            RowsError: It is no row of tokens, or has other columns than the rows before.
        """
        number, place = find_part(self.starts, index)
        return as_row(self.files[number].path, place, self._read(number, place), self._columns)

    def _read(self, number: int, place: int) -> Record:
        """Return a record of a file."""
        block, inside = find_part(self.files[number].starts, place)
        record: Record = self._block(number, block)[inside]
        return record

    def _block(self, number: int, block: int) -> Any:
        """Return a block of a file, which is read unless it is kept; RowsError if it changed."""
        key = number, block
        found = self._blocks.pop(key, None)
        if found is None:
            file = self.files[number]
            while self._is_full(file):  # before reading, so that there are never more
                del self._blocks[next(iter(self._blocks))]
            found = file.block(block)
            _check_count(file, len(found), int(np.diff(file.starts)[block]))
        self._blocks[key] = found  # the last
        return found

    def _is_full(self, file: RecordFile) -> bool:
        if self._n_blocks is not None or file.kept_bytes is None:
            return len(self._blocks) == self._n_blocks
        return bool(sum(each.nbytes for each in self._blocks.values()) > file.kept_bytes)


def _check_count(file: RecordFile, found: int, expected: int) -> None:
    if found != expected:
        raise RowsError(
            f"{file.path}: has {found:,} rows where {expected:,} were counted, so it was changed"
            " since; open the directory again, or run tokenmill verify --repair"
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
    number = int(starts.searchsorted(place, "right")) - 1
    return number, place - int(starts[number])


def open_rows(directory: AnyPath, n_blocks: int | None = None) -> FileSeries:
    """Open the rows of a directory: the files of its manifest, or all, which are of one format.

    Args:
        directory: Has the files.
        n_blocks: As of `FileSeries`.

    Raises:
        RowsError: There are no rows, or of several formats, or they are damaged.
    """
    counts: dict[AnyPath, int | None] = dict.fromkeys(row_files(directory))
    if (directory / MANIFEST_FILE).exists():
        there = {path.name: path for path in counts}
        counts = {  # of a web server there is no list
            there.get(shard.name, directory / shard.name): shard.rows
            for shard in read_manifest(directory).shards
        }
    elif not counts:
        endings = tuple(each.suffix for each in FORMATS.values())
        raise RowsError(
            f"{directory}: there are no files of rows ({', '.join(endings)}) in this directory"
            f"{found_instead(str(directory), endings)}; give the directory that has them"
        )
    for path in counts:
        if not path.exists():
            raise RowsError(
                f"{path}: is missing, and {MANIFEST_FILE} has it; run tokenmill verify --repair"
            )
    if len(formats := {format_of(path) or "": None for path in counts}) > 1:
        raise RowsError(
            f"{directory}: has files of several formats ({', '.join(formats)}), and rows are of"
            " one; put them into directories of their own"
        )
    series = FileSeries([open_file(*each) for each in counts.items()], n_blocks)
    series.starts  # noqa: B018 (raises the errors of opening)
    return series


def row_files(directory: Location) -> list[Location]:
    """Return the files of rows in a directory, by their names; [] if there is none."""
    inside = directory.iterdir() if directory.is_dir() else ()
    return in_order(
        x for x in inside if format_of(x) and x.is_file() and not x.name.startswith(".")
    )


def in_order(paths: Iterable[Location]) -> list[Location]:
    """Return paths in the order of their names, with numbers in names by their values."""
    return sorted(
        paths, key=lambda path: [
            int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)
        ],
    )
