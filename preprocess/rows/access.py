"""Files of records in directories and at URLs, and random access to the records of several.

Objects are pickled as paths and numbers, without what they keep in memory, so workers of a
`DataLoader` may be forked or spawned.
"""

from __future__ import annotations

import glob
import operator
import os
import re
from collections.abc import Callable
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bpe.errors import ArgumentError
from bpe.files.locations import given_location, is_url, is_web, shown_url
from bpe.parallel import run_in_order
from preprocess.locations import how_to_repair, join_location
from preprocess.rows.columns import Numbers
from preprocess.rows.formats import (
    FORMATS,
    AnyFile,
    Record,
    RecordFile,
    Row,
    RowsError,
    as_row,
    format_of,
    name_of,
    open_file,
)
from preprocess.rows.manifest import MANIFEST_FILE, read_manifest
from preprocess.sources.find import matching_files
from preprocess.sources.remote import RemoteFile, find_object
from preprocess.storage import open_files

_FILES_AT_ONCE = 16  # servers answer slowly, but many requests at once

Found = TypeVar("Found")
Location = str | os.PathLike[str]


# --- which files ---


def find_files(location: str, endings: tuple[str, ...]) -> list[AnyFile]:
    """Return the files that a path, a URL or a pattern means, sorted; of a directory by endings."""
    if is_url(location):
        is_directory, found = not glob.has_magic(shown_url(location)), _matches(location)
        is_directory = is_directory and [*map(location_of, found)] != [location]
    elif os.path.isfile(location):  # whose name may have characters of patterns
        return [Path(location)]
    else:
        is_directory = os.path.isdir(location)
        found = _files_in(location) if is_directory else _matches(location)
    return [x for x in found if not is_directory or name_of(x).endswith(endings)]


def row_files(directory: Location) -> dict[str, AnyFile]:
    """Return the files of rows in a directory by their names, ordered with numbers by their values.

    Of a web server, which has no lists, there are none.
    """
    names = {name_of(x): x for x in _files_in(given_location(directory)) if format_of(name_of(x))}
    order = sorted(names, key=lambda name: [
        int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)
    ])  # fmt: skip
    return {name: names[name] for name in order}


def found_instead(location: str, endings: tuple[str, ...]) -> str:
    """Tell, in a message, in which directories below a location files are; "" for none."""
    if glob.has_magic(location) or (is_url(location) and is_web(location)):
        return ""
    found = map(location_of, _matches(f"{location.rstrip('/')}/*/*"))
    names = sorted({each.split("/")[-2] for each in found if each.endswith(endings)})
    more = ", ..." * (len(names) > 3)
    shown = shown_url(location) if is_url(location) else location
    return f", but in {shown} there are {', '.join(names[:3])}{more}" if names else ""


def _files_in(directory: str) -> list[AnyFile]:
    """Return the files directly in a directory, without those that are hidden."""
    if is_url(directory):
        return [] if is_web(directory) else _matches(f"{directory.rstrip('/')}/")
    return _matches(os.path.join(glob.escape(directory), "*"))


def _matches(pattern: str) -> list[AnyFile]:
    """Return the files that match, sorted; of a web server one."""
    if is_url(pattern):
        return [*matching_files(pattern)]
    return [x for x in map(Path, sorted(glob.glob(pattern, recursive=True))) if x.is_file()]


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
            location = join_location(os.fspath(directory), name)
            found = find_object(location) if is_url(location) else None
            if found is None:
                raise RowsError(
                    f"{files.where(name)}: is missing, and {MANIFEST_FILE} has it; run tokenmill"
                    f" {how_to_repair(where)}"
                )
            there[name] = found
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
    series = FileSeries([open_file(there[x], counts.get(x)) for x in names], n_blocks)
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
        return self._read(*find_part(self.starts, index))

    def row(self, index: int) -> Row:
        """Return the columns of a row: int32[n] each, as a record.

        Raises:
            RowsError: It is no row of tokens, or has other columns than the rows before.
        """
        number, place = find_part(self.starts, index)
        return as_row(self.files[number].path, place, self._read(number, place), self._columns)

    def _read(self, number: int, place: int) -> Record:
        """Return a record of a file, of a block that is read unless it is kept."""
        file = self.files[number]
        block, inside = find_part(file.starts, place)
        found = self._blocks.pop((number, block), None)
        if found is None:
            while self._is_full(file):  # before reading, so that there are never more
                del self._blocks[next(iter(self._blocks))]
            found = file.block(block)
            _check_count(file, len(found), int(np.diff(file.starts)[block]))
        self._blocks[number, block] = found  # the last
        record: Record = found[inside]
        return record

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
    number = int(starts.searchsorted(place, "right")) - 1
    return number, place - int(starts[number])
