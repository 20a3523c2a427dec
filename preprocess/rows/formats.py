"""Formats of files of rows: how arrays of rows become bytes, and are read again.

Each format is a `RecordFile` and a line of the table `FORMATS`. Bytes are the same whenever the
rows and the version of the library are. What is read is records, dictionaries of values; a record
is a row if its values are integers, as many in each column.
"""

from __future__ import annotations

import importlib
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from bpe.errors import TokenmillError
from preprocess.locations import how_to_repair, url_name
from preprocess.rows.columns import Numbers, RowBatch, Values
from preprocess.sources.remote import Handle, RemoteFile, read_ahead

AnyFile = Path | RemoteFile
Record = dict[str, Any]
Row = dict[str, Values]
Batches = Callable[[], Iterable[RowBatch]]

DUMP_FILE = "dump-meta_data.json"  # counts of pickled rows
_BUFFER_BYTES = 1 << 20


class RowsError(TokenmillError):
    """Rows cannot be made, or a file of rows cannot be read."""


class RecordFile(ABC):
    """A file of records, read when it is asked for; raises RowsError for damage.

    A file that has no places to begin to read at is one block.

    Args:
        file: The file.
        n_records: Number of records, if it is known.

    Attributes:
        path: Of the file, for messages: a path, or a URL without what is secret.
        kept_bytes: Of blocks, that those who read records one by one should keep; None: all.
    """

    kept_bytes: int | None = None

    def __init__(self, file: AnyFile, n_records: int | None = None) -> None:
        self.file, self.n_known = file, n_records
        self.path = file if isinstance(file, Path) else file.path

    @staticmethod
    @abstractmethod
    def write(
        file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int, batches: Batches
    ) -> None:
        """Write the `n_rows` rows of all batches.

        `batches()` yields them, also when it is called again; the next one takes the place of a
        batch in memory.
        """

    @abstractmethod
    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the records from a number on."""

    def sizes(self) -> Iterable[int]:
        """Return the number of records of each block."""
        return [sum(1 for _ in self.records()) if self.n_known is None else self.n_known]

    def block(self, number: int) -> Any:
        """Read a block, a sequence of records; their arrays are not to be changed."""
        return [*self.records()]

    @cached_property
    def starts(self) -> Numbers:
        """Where blocks begin that are read at a time, and the number of records: int64[n + 1]."""
        return np.append(0, np.cumsum([*self.sizes()], dtype=np.int64))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def rows(self) -> Iterator[Row]:
        """Yield all rows."""
        names = list[str]()
        for number, record in enumerate(self.records()):
            yield as_row(self.path, number, record, names)

    def open(self, is_forwards: bool = False) -> IO[bytes]:
        """Open the file; of a remote one ranges are read, ahead if it is read forwards."""
        if isinstance(self.file, Path):
            return open(self.file, "rb")
        file = read_ahead(self.file) if is_forwards else self.file
        return io.BufferedReader(Handle(file), _BUFFER_BYTES)

    def damaged(self, what: str, error: Exception | str) -> RowsError:
        """Return the error for a file that cannot be read as what it should be."""
        reason = " ".join(str(error).split())[:200]
        return RowsError(
            f"{self.path}: cannot be read as {what} ({reason}); get the file again, or, of rows,"
            f" run tokenmill {how_to_repair(str(self.path))}"
        )


class Format(NamedTuple):
    """A format: its class, the suffix of files, and compressions, the default first."""

    place: str  # module and class of its `RecordFile`
    suffix: str
    compressions: tuple[str, ...]

    def codec(self) -> type[RecordFile]:
        """Import the class of the format."""
        module, _, name = self.place.partition(".")
        found: type[RecordFile] = getattr(
            importlib.import_module(f"preprocess.rows.{module}"), name
        )
        return found

    def suffix_of(self, compression: str) -> str:
        """Return the suffix of files with a compression around all of the file."""
        outer = {"gzip": ".gz", "zstd": ".zst"} if self.suffix == ".jsonl" else {}
        return self.suffix + outer.get(compression, "")


FORMATS = {
    "parquet": Format("tables.ParquetFile", ".parquet", ("zstd", "snappy", "none")),
    "arrow": Format("tables.ArrowFile", ".arrow", ("none", "zstd")),
    "jsonl": Format("json_lines.JsonFile", ".jsonl", ("none", "gzip", "zstd")),
    "npz": Format("npz.NpzFile", ".npz", ("zlib",)),
    "pickle": Format("pickled.PickledFile", ".pkl", ("none",)),
}


def name_of(file: AnyFile) -> str:
    """Return the name of a file in its directory."""
    return file.name if isinstance(file, Path) else url_name(file.url)


def format_of(name: str) -> str | None:
    """Return the name of the format of a file, by its name; None: it has no rows."""
    name = name.removesuffix(".gz").removesuffix(".zst")
    return next((key for key, each in FORMATS.items() if name.endswith(each.suffix)), None)


def open_file(file: AnyFile, n_records: int | None = None) -> RecordFile:
    """Open a file of the format that its name says."""
    return FORMATS[format_of(name_of(file)) or ""].codec()(file, n_records)


def as_row(path: str | os.PathLike[str], number: int, record: Record, names: list[str]) -> Row:
    """Return a record as a row: int32[n] by name.

    Args:
        path: Of its file, for messages.
        number: Of the record, for messages.
        record: As it was read.
        names: Columns of the rows before it; filled if it is empty.

    Raises:
        RowsError: It is no row, or has other columns.
    """
    try:
        row = {name: _as_ids(name, values) for name, values in record.items()}
        if len({len(values) for values in row.values()}) > 1:
            raise ValueError("columns of different lengths; make the file again")
        names += () if names else row
        if [*row] != names:
            raise ValueError(
                f"the columns {', '.join(row)}, and rows before it {', '.join(names)}; put"
                " different rows into directories of their own"
            )
        ids = row.get("input_ids")
        if ids is not None and len(ids) and (least := int(ids.min())) < 0:
            raise ValueError(f"the id {least:,}, expected 0 or more; make the file again")
    except ValueError as error:
        raise RowsError(f"{path}: row {number:,}, counted from 0, has {error}") from None
    return row


def _as_ids(name: str, values: Any) -> Values:
    """Return a column of a record as int32[n]; raise ValueError if it is none."""
    if type(values) is np.ndarray and values.dtype == np.int32:  # most are
        return values
    is_array = isinstance(values, np.ndarray) and values.dtype.kind in "iub"
    if not is_array and not (isinstance(values, list) and {*map(type, values)} <= {int}):
        kind = "a list with other values" if isinstance(values, list) else (
            getattr(values, "dtype", type(values).__name__)
        )
        raise ValueError(
            f"{kind} in column {name!r}, expected integers, without nulls; these are no rows of"
            " tokens"
        )
    numbers = np.asarray(values, None if len(values) else np.int32)  # of any size
    if len(numbers) and not -(2**31) <= numbers.min() <= numbers.max() < 2**31:
        raise ValueError(f"numbers that are no int32 in column {name!r}; make the file again")
    return numbers.astype(np.int32, copy=False)
