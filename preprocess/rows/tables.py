"""Rows in Parquet and Arrow IPC files: a column of list<int32> for each array.

A block, a row group or a record batch, is a batch of rows. Arrow streams, such as the cache of
`datasets`, are read, too.
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
from preprocess.rows.formats import Batches, Record, RecordFile, RowsError
from preprocess.sources.remote import Handle

_FILE_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_PART_BYTES = 1 << 22  # of a row group that are decoded at a time
_PAGES_BYTES = 1 << 20  # of a column chunk that are read at a time
# Those of 64 bits without a sign have no array: they are hashes rather than ids.
_DTYPES = {
    "int8": np.int32, "int16": np.int32, "int32": np.int32, "uint8": np.int32, "uint16": np.int32,
    "uint32": np.int64, "int64": np.int64,
}


def table_of(batch: RowBatch) -> Any:
    """Return rows as a `pyarrow.Table`, without a copy."""
    pa = pyarrow()
    offsets = pa.array(batch.offsets.astype(np.int32))
    arrays = [pa.ListArray.from_arrays(offsets, pa.array(each)) for each in batch.values.values()]
    return pa.Table.from_arrays(arrays, schema=_schema_of(batch.values))


def _schema_of(columns: Iterable[str]) -> Any:
    pa = pyarrow()
    return pa.schema([(name, pa.list_(pa.int32())) for name in columns])


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


class _TableFile(RecordFile):
    """A file of tables of pyarrow."""

    kept_bytes = 1 << 28
    kind: str  # for messages

    @abstractmethod
    def tables(self, first: int) -> Iterator[Any]:
        """Yield the blocks from a number on, perhaps in parts, as a `pyarrow.Table` each."""

    def block(self, number: int) -> Block:
        """Read a block."""
        what = f"{self.kind}, block {number:,}"
        with self.reading(what):
            return Block(self, what, self._read_block(number))

    def _read_block(self, number: int) -> Any:
        return next(self.tables(number), pyarrow().table({}))  # none: the file was replaced

    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the records from a number on."""
        number = int(np.searchsorted(self.starts, first, "right")) - 1 if first else 0
        n, tables = int(self.starts[number]) if first else 0, self.tables(number)
        while True:
            with self.reading(what := f"{self.kind}, after record {n:,}"):
                if (table := next(tables, None)) is None:
                    return
                block = Block(self, what, table)
            for i in range(max(first - n, 0), len(block)):
                yield {  # copies, which do not keep the block in memory
                    name: value.copy() if isinstance(value, np.ndarray) else value
                    for name, value in block[i].items()
                }
            n += len(block)

    def native(self, is_mapped: bool = False) -> Any:
        """Open the file as a `pyarrow.NativeFile`; of a remote one ranges are read."""
        pa = pyarrow()
        if not isinstance(self.file, Path):
            return pa.PythonFile(Handle(self.file), "r")
        return (pa.memory_map if is_mapped else pa.OSFile)(os.fsencode(self.file))

    @contextmanager
    def reading(self, what: str) -> Iterator[None]:
        """Convert errors of pyarrow to RowsError."""
        try:
            yield
        except TokenmillError:  # of a server
            raise
        # ValueError is of text that is not UTF-8, and of negative sizes.
        except (pyarrow().ArrowException, OSError, ValueError, LookupError, MemoryError) as error:
            raise self.damaged(what, error) from error


class Block:
    """Records in a `pyarrow.Table`, which is `what` of a file, for messages."""

    def __init__(self, file: _TableFile, what: str, table: Any) -> None:
        self._file, self._what, self._table = file, what, table
        self.nbytes = table.nbytes

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> Record:
        try:
            return {name: value_of(index) for name, value_of in self._columns.items()}
        except Exception:
            with self._file.reading(self._what):  # only now, for each `with` takes time
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


class ArrowFile(_TableFile):
    """An Arrow file or stream; a block is a record batch. Local ones are memory-mapped."""

    kind = "Arrow"

    @staticmethod
    def write(
        file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int, batches: Batches
    ) -> None:
        """Write a record batch for each batch."""
        ipc = pyarrow().ipc
        options = ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        with ipc.new_file(file, _schema_of(columns), options=options) as writer:
            for batch in batches():
                writer.write_table(table_of(batch))

    def sizes(self) -> Iterable[int]:
        """Return the number of records of each batch."""
        with self.reading(self.kind):
            # One column, so that a compressed file is not decompressed to count its records.
            return [*map(len, self._batches(0, [0]))]

    def tables(self, first: int) -> Iterator[Any]:
        """Yield the record batches from a number on."""
        for batch in self._batches(first, []):  # all columns
            batch.validate(full=True)
            yield pyarrow().Table.from_batches([batch])

    def _batches(self, first: int, columns: list[int]) -> Iterator[Any]:
        """Yield the `pyarrow.RecordBatch`es from a number on; they are not validated."""
        ipc = pyarrow().ipc
        options = ipc.IpcReadOptions(included_fields=columns, use_threads=False)
        with self.native(is_mapped=True) as source:
            is_file = source.read(len(_FILE_MAGIC)) == _FILE_MAGIC
            source.seek(0)
            if is_file:
                with ipc.open_file(source, options=options) as reader:
                    for number in range(first, reader.num_record_batches):
                        yield reader.get_batch(number)
                return
            with ipc.open_stream(source, options=options) as reader:
                yield from islice(reader, first, None)
            # A stream that ends after a batch is no error of pyarrow's.
            source.seek(max(0, source.size() - len(_END_OF_STREAM)))
            if source.read() != _END_OF_STREAM:
                raise OSError("an Arrow stream without the mark of its end, so it is truncated")


class ParquetFile(_TableFile):
    """A Parquet file; a block is a row group."""

    kind = "Parquet"

    @staticmethod
    def write(
        file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int, batches: Batches
    ) -> None:
        """Write a row group for each batch."""
        schema = _schema_of(columns)
        from pyarrow import parquet

        # Ids hardly repeat within a page: a dictionary would be given up after it was made.
        with parquet.ParquetWriter(
            file, schema, compression=compression, use_dictionary=False, write_statistics=False
        ) as writer:
            for batch in batches():
                writer.write_table(table_of(batch), row_group_size=max(1, len(batch)))

    def sizes(self) -> Iterable[int]:
        """Return the number of records of each row group, of the metadata."""
        with self.reading("Parquet, its metadata"), self._opened() as file:
            groups = file.metadata
            sizes = [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]
            if min(sizes, default=0) < 0:  # which pyarrow does not check
                raise ValueError("a row group has a negative number of rows")
            return sizes

    def _read_block(self, number: int) -> Any:
        with self._opened() as file:
            return file.read_row_group(number, use_threads=False)

    def tables(self, first: int) -> Iterator[Any]:
        """Yield the row groups from a number on, in parts of a few MB."""
        with self._opened() as file:
            for number in range(first, file.num_row_groups):
                group = file.metadata.row_group(number)
                left = group.num_rows
                n = max(1, min(1024, _PART_BYTES * left // max(1, group.total_byte_size)))
                for batch in file.iter_batches(n, [number], use_threads=False):
                    left -= len(batch)
                    yield pyarrow().Table.from_batches([batch])
                if left:  # places in later row groups would be wrong
                    raise ValueError("other than the number of rows in the metadata")

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open a `pyarrow.parquet.ParquetFile`."""
        with self.native() as opened:
            from pyarrow import parquet

            # Without a buffer pyarrow would read whole column chunks; without threads of its own,
            # for a process that is forked would not have them.
            with parquet.ParquetFile(
                opened, page_checksum_verification=True, buffer_size=_PAGES_BYTES, pre_buffer=False
            ) as file:
                yield file
