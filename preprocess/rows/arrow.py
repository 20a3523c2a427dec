"""Rows in Arrow IPC files: a column of list<int32> for each array, a record batch per batch.

Arrow streams, such as the cache of `datasets`, are read, too.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from bpe.errors import TokenmillError
from preprocess.rows.columns import RowBatch
from preprocess.rows.formats import Record, RecordFile, RowsError, damaged
from preprocess.rows.places import AnyPath
from preprocess.sources.remote import Handle

_FILE_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
# Those of 64 bits without a sign have no array: they are hashes rather than ids.
_DTYPES = {
    "int8": np.int32, "int16": np.int32, "int32": np.int32, "uint8": np.int32, "uint16": np.int32,
    "uint32": np.int64, "int64": np.int64,
}


def write_shard(
    file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int,
    batches: Callable[[], Iterable[RowBatch]],
) -> None:
    """Write the rows of all batches."""
    pa = pyarrow()
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    with pa.ipc.new_file(file, schema_of(columns), options=options) as writer:
        for batch in batches():
            writer.write_table(table_of(batch))


class TableFile(RecordFile):
    """A file of tables of pyarrow."""

    kept_bytes = 1 << 28
    kind: str  # for messages

    @abstractmethod
    def tables(self, first: int) -> Iterator[Any]:
        """Yield the blocks from a number on, perhaps in parts, as a `pyarrow.Table` each."""

    def block(self, number: int) -> TableBlock:
        """Read a block."""
        with reading(self.path, what := f"{self.kind}, block {number:,}"):
            none = pyarrow().table({})  # the file was replaced
            return TableBlock(self.path, what, next(self.tables(number), none))

    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the records from a number on."""
        number = int(np.searchsorted(self.starts, first, "right")) - 1 if first else 0
        n, tables = int(self.starts[number]) if first else 0, self.tables(number)
        while True:
            with reading(self.path, what := f"{self.kind}, after record {n:,}"):
                if (table := next(tables, None)) is None:
                    return
                block = TableBlock(self.path, what, table)
            for i in range(max(first - n, 0), len(block)):
                yield {  # copies, which do not keep the block in memory
                    name: value.copy() if isinstance(value, np.ndarray) else value
                    for name, value in block[i].items()
                }
            n += len(block)


class File(TableFile):
    """An Arrow file or stream; a block is a record batch. Local ones are memory-mapped."""

    kind = "Arrow"

    def _sizes(self) -> Iterable[int]:
        with reading(self.path, self.kind):
            # One column, so that a compressed file is not decompressed to count its records.
            return [*map(len, _record_batches(self.path, only_first_column=True))]

    def tables(self, first: int) -> Iterator[Any]:
        """Yield the record batches from a number on."""
        for batch in _record_batches(self.path, first):
            batch.validate(full=True)
            yield pyarrow().Table.from_batches([batch])


class TableBlock:
    """Records in a `pyarrow.Table`, which is `what` of a file, for messages."""

    def __init__(self, path: AnyPath, what: str, table: Any) -> None:
        self._path, self._what, self._table = path, what, table
        self.nbytes = table.nbytes

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> Record:
        try:
            return {name: value_of(index) for name, value_of in self._columns.items()}
        except Exception:
            with reading(self._path, self._what):  # only now, for each `with` takes time
                raise

    @cached_property
    def _columns(self) -> dict[str, Callable[[int], Any]]:
        """For each column a function that returns the value of a record."""
        names, columns = self._table.column_names, self._table.combine_chunks().columns
        return {name: _values_of(column) for name, column in zip(names, columns, strict=True)}


def _values_of(column: Any) -> Callable[[int], Any]:
    """Return a function of the number of a record, which returns its value: an array or plain."""
    import pyarrow.compute as pc

    types, kind = pyarrow().types, column.type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    dtype = _DTYPES.get(str(kind.value_type)) if is_list else None
    flat = None if dtype is None else pc.list_flatten(column)
    if flat is None or flat.null_count:
        return lambda index: column[index].as_py()
    numbers = flat.to_numpy().astype(dtype, copy=False)
    is_valid = None if column.null_count == 0 else column.is_valid().to_numpy()
    ends = np.append(0, np.cumsum(pc.list_value_length(column).fill_null(0).to_numpy()))

    def values(index: int) -> Any:
        begin, end = ends[index : index + 2].tolist()
        return numbers[begin:end] if is_valid is None or is_valid[index] else None

    return values


def _record_batches(
    path: AnyPath, first: int = 0, only_first_column: bool = False
) -> Iterator[Any]:
    """Yield the `pyarrow.RecordBatch`es from a number on; they are not validated."""
    pa = pyarrow()
    fields = [0] if only_first_column else []  # [] is all
    options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
    with native_file(path, is_mapped=True) as source:
        is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
        source.seek(0)
        if is_file:
            with pa.ipc.open_file(source, options=options) as reader:
                for number in range(first, reader.num_record_batches):
                    yield reader.get_batch(number)
            return
        with pa.ipc.open_stream(source, options=options) as reader:
            yield from islice(reader, first, None)
        # A stream that ends after a batch is no error of pyarrow's.
        source.seek(max(0, source.size() - len(_END_OF_STREAM)))
        if source.read() != _END_OF_STREAM:
            raise OSError("an Arrow stream without the mark of its end, so it is truncated")


def native_file(path: AnyPath, is_mapped: bool = False) -> Any:
    """Open a file as a `pyarrow.NativeFile`; of a remote one ranges are read."""
    pa = pyarrow()
    if not isinstance(path, Path):
        return pa.PythonFile(Handle(path.file), "r")
    return (pa.memory_map if is_mapped else pa.OSFile)(os.fsencode(path))


def pyarrow() -> Any:
    """Import pyarrow; raise RowsError if it is not installed."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise RowsError(
            "Parquet and Arrow rows are written and read with pyarrow, which is not installed;"
            " install it: pip install 'tokenmill[formats]'"
        ) from error
    return pa


def schema_of(columns: Iterable[str]) -> Any:
    """Return the Arrow schema of rows."""
    pa = pyarrow()
    return pa.schema([(name, pa.list_(pa.int32())) for name in columns])


def table_of(batch: RowBatch) -> Any:
    """Return rows as a `pyarrow.Table`, without a copy."""
    pa = pyarrow()
    offsets = pa.array(batch.offsets.astype(np.int32))
    arrays = [pa.ListArray.from_arrays(offsets, pa.array(each)) for each in batch.values.values()]
    return pa.Table.from_arrays(arrays, schema=schema_of(batch.values))


@contextmanager
def reading(path: AnyPath, what: str) -> Iterator[None]:
    """Convert errors of pyarrow to RowsError."""
    try:
        yield
    except TokenmillError:  # of a server
        raise
    # ValueError is of text that is not UTF-8, and of negative sizes.
    except (pyarrow().ArrowException, OSError, ValueError, LookupError, MemoryError) as error:
        raise damaged(path, what, error) from error
