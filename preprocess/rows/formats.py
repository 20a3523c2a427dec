"""Formats of files of rows: how arrays of rows become bytes, and are read again.

Each format is a module with a function `write_shard` and a class `File`; `FORMATS` is their table.
Bytes are the same whenever the rows and the version of the library are. What is read is records,
dictionaries of values; a record is a row if its values are integers, as many in each column.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import IO, Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from bpe.errors import TokenmillError
from preprocess.rows.columns import Numbers, RowBatch, Values
from preprocess.rows.places import AnyPath

Record = dict[str, Any]
Row = dict[str, Values]

DUMP_FILE = "dump-meta_data.json"  # counts of pickled rows


class RowsError(TokenmillError):
    """Rows cannot be made, or a file of rows cannot be read."""


class Block(Protocol):
    """Records of a file that are in memory together."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Record:
        """Return a record, 0 <= index < len; lists of integers are arrays, not to be changed."""


class RecordFile(ABC):
    """A file of records, read when it is asked for; raises RowsError for damage.

    Args:
        path: Of the file.
        n_records: Number of records, if it is known.

    Attributes:
        kept_bytes: Of blocks, that those who read records one by one should keep; None: all.
    """

    kept_bytes: int | None = None

    def __init__(self, path: AnyPath, n_records: int | None = None) -> None:
        self.path, self.n_known = path, n_records

    @cached_property
    def starts(self) -> Numbers:
        """Where blocks begin that are read at a time, and the number of records: int64[n + 1]."""
        return np.append(0, np.cumsum([*self._sizes()], dtype=np.int64))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def _sizes(self) -> Iterable[int]:
        """Return the number of records of each block; without places to begin at, there is one."""
        return [sum(1 for _ in self.records()) if self.n_known is None else self.n_known]

    @abstractmethod
    def block(self, number: int) -> Block:
        """Read a block."""

    @abstractmethod
    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the records from a number on, with a part of the file in memory at a time."""

    def rows(self) -> Iterator[Row]:
        """Yield all rows."""
        columns = None
        for number, record in enumerate(self.records()):
            row = as_row(self.path, number, record)
            columns = columns or [*row]
            if [*row] != columns:
                raise RowsError(
                    f"{self.path}: row {number:,} has the columns {', '.join(row)}, and rows before"
                    f" it {', '.join(columns)}; make it again"
                )
            yield row


class WholeFile(RecordFile):
    """A file that has no places to begin to read at, so it is one block."""

    def block(self, number: int) -> Block:
        """Read all records."""
        return _Records(self.records())


class _Records(list[Record]):
    @property
    def nbytes(self) -> int:
        return sum(values.nbytes for record in self for values in record.values())


class Codec(Protocol):
    """Module of a format."""

    File: type[RecordFile]

    def write_shard(
        self, file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int,
        batches: Callable[[], Iterable[RowBatch]],
    ) -> None:
        """Write the rows of all batches, which may be asked for several times.

        The next batch takes the place of a batch in memory.
        """


class Format(NamedTuple):
    """A format: its module, the suffix of files, and compressions, the default first."""

    module: str
    suffix: str
    compressions: tuple[str, ...]

    def codec(self) -> Codec:
        """Import the module of the format."""
        return cast(Codec, importlib.import_module(f"preprocess.rows.{self.module}"))

    def suffix_of(self, compression: str) -> str:
        """Return the suffix of files with a compression around all of the file."""
        outer = {"gzip": ".gz", "zstd": ".zst"} if self.module == "json_lines" else {}
        return self.suffix + outer.get(compression, "")


FORMATS = {
    "parquet": Format("parquet", ".parquet", ("zstd", "snappy", "none")),
    "arrow": Format("arrow", ".arrow", ("none", "zstd")),
    "jsonl": Format("json_lines", ".jsonl", ("none", "gzip", "zstd")),
    "npz": Format("npz", ".npz", ("zlib",)),
    "pickle": Format("pickled", ".pkl", ("none",)),
}


def format_of(path: AnyPath) -> str | None:
    """Return the name of the format of a file, by its name; None: it has no rows."""
    name = path.name.removesuffix(".gz").removesuffix(".zst")
    return next((key for key, each in FORMATS.items() if name.endswith(each.suffix)), None)


def open_file(path: AnyPath, n_records: int | None = None) -> RecordFile:
    """Open a file of the format that its name says."""
    return FORMATS[format_of(path) or ""].codec().File(path, n_records)


def as_row(path: AnyPath, number: int, record: Record) -> Row:
    """Return a record as a row: int32[n] by name; raise RowsError if it is none."""
    row, lengths = {}, set()
    for name, values in record.items():
        if type(values) is np.ndarray and values.dtype == np.int32:  # most are
            row[name] = values
            lengths.add(len(values))
            continue
        if isinstance(values, list):
            values = _integers(values)
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "iub":
            kind = values.dtype if isinstance(values, np.ndarray) else _kind_of(values)
            raise _no_row(
                path, number, f"{kind} in column {name!r}, expected integers, without nulls; these"
                " are no rows of tokens"
            )
        if not np.can_cast(values.dtype, np.int32) and len(values) and not (
            int(values.min()) >= -(2**31) and int(values.max()) < 2**31
        ):
            what = f"numbers that are no int32 in column {name!r}; make the file again"
            raise _no_row(path, number, what)
        row[name] = values.astype(np.int32, copy=False)
        lengths.add(len(values))
    if len(lengths) > 1:
        raise _no_row(path, number, "columns of different lengths; make the file again")
    ids = row.get("input_ids")
    if ids is not None and len(ids) and (least := int(ids.min())) < 0:
        raise _no_row(path, number, f"the id {least:,}, expected 0 or more; make the file again")
    return row


def _integers(values: list[Any]) -> npt.NDArray[np.int64] | list[Any]:
    """Return a list of integers, such as those of 64 bits without a sign, as an array.

    Those that are no int64 have another value, which is no int32 either.
    """
    if not {*map(type, values)} <= {int}:
        return values
    return np.array([min(max(x, -(2**63)), 2**63 - 1) for x in values], np.int64)


def _kind_of(value: Any) -> str:
    """Return the type of a value, for a message; of a list that of its first wrong value."""
    if not isinstance(value, list):
        return type(value).__name__
    wrong = next((x for x in value if type(x) is not int), None)
    return f"a list with {'null' if wrong is None else type(wrong).__name__}"


def _no_row(path: AnyPath, number: int, found: str) -> RowsError:
    return RowsError(f"{path}: row {number:,}, counted from 0, has {found}")


def damaged(path: AnyPath, what: str, error: Exception | str) -> RowsError:
    """Return the error for a file that cannot be read as what it should be."""
    reason = " ".join(str(error).split())[:200]
    return RowsError(
        f"{path}: cannot be read as {what} ({reason}); get the file again, or, of rows, run"
        " tokenmill verify --repair"
    )
