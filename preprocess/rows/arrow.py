"""Rows in Arrow IPC files: a column of list<int32> for each array, a record batch per batch.

Arrow streams, such as the cache of `datasets`, are read, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from bpe.errors import TokenmillError
from preprocess.rows.columns import RowBatch
from preprocess.rows.formats import RowsError
from preprocess.rows.places import AnyPath
from preprocess.sources.remote import Handle

_FILE_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


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


def read_shard(path: AnyPath) -> Iterator[RowBatch]:
    """Yield the rows of a file in batches."""
    with arrow_errors(path, "Arrow"):
        for batch in record_batches(path):
            batch.validate(full=True)
            yield batch_of(path, batch)


def record_batches(path: AnyPath, first: int = 0, only_sizes: bool = False) -> Iterator[Any]:
    """Yield the `pyarrow.RecordBatch`es of a file or stream from a number on.

    Local ones are memory-mapped. They are not validated. With `only_sizes` they have one column, so
    that a compressed file is not decompressed to count its rows.

    Raises:
        pyarrow.ArrowException, OSError: It is damaged, or of another kind.
    """
    pa = pyarrow()
    fields = [0] if only_sizes else []  # [] is all
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


def batch_of(path: AnyPath, batch: Any) -> RowBatch:
    """Return the rows of a `pyarrow.RecordBatch`; raise RowsError if they are no such rows."""
    pa = pyarrow()
    values, offsets = {}, None
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        kind = array.type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not is_list or not pa.types.is_integer(kind.value_type):
            raise RowsError(
                f"{path}: column {name!r} is {kind}, expected lists of int32; these are no rows of"
                " tokens"
            )
        if array.null_count or array.values.null_count:
            raise RowsError(
                f"{path}: column {name!r} has nulls, expected lists of int32; replace them"
            )
        found = array.offsets.to_numpy().astype(np.int64)
        if offsets is not None and not np.array_equal(np.diff(found), np.diff(offsets)):
            raise RowsError(f"{path}: the columns of a row differ in length; make the rows again")
        offsets = found - found[0]
        values[name] = as_int32(path, name, array.flatten().to_numpy(zero_copy_only=False))
    return RowBatch(np.zeros(1, np.int64) if offsets is None else offsets, values)


def as_int32(path: AnyPath, name: str, values: Any) -> Any:
    """Return integers as int32; raise RowsError if one does not fit."""
    if np.can_cast(values.dtype, np.int32):  # memory-mapped values are not read here
        return values.astype(np.int32, copy=False)
    if len(values) and not (int(values.min()) >= -(2**31) and int(values.max()) < 2**31):
        raise RowsError(f"{path}: column {name!r} has numbers that are no int32; make it again")
    return values.astype(np.int32, copy=False)


def check_ids(where: str, ids: Any) -> None:
    """Raise RowsError if an id of a token is below 0; `where` begins the message."""
    if len(ids) and (least := int(ids.min())) < 0:
        raise RowsError(f"{where} has the id {least:,}, expected 0 or more; make the file again")


@contextmanager
def arrow_errors(path: AnyPath, kind: str) -> Iterator[None]:
    """Convert errors of pyarrow to RowsError."""
    try:
        yield
    except TokenmillError:  # of the server
        raise
    # ValueError is of names that are not UTF-8, and of negative sizes.
    except (
        pyarrow().ArrowException, OSError, ValueError, LookupError, MemoryError
    ) as error:
        raise RowsError(
            f"{path}: is no {kind} file, or damaged ({' '.join(str(error).split())[:200]}); make it"
            " again, or run tokenmill verify --repair"
        ) from error
