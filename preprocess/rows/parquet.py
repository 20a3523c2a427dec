"""Rows in Parquet: a column of list<int32> for each array, a row group for each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from preprocess.rows.arrow import arrow_errors, batch_of, native_file, pyarrow, schema_of, table_of
from preprocess.rows.columns import RowBatch
from preprocess.rows.places import AnyPath

_ROWS = 1 << 12  # that are read at a time


def write_shard(
    file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int,
    batches: Callable[[], Iterable[RowBatch]],
) -> None:
    """Write the rows of all batches."""
    pyarrow()
    from pyarrow import parquet

    # Ids hardly repeat within a page: a dictionary would be given up after it was made.
    with parquet.ParquetWriter(
        file, schema_of(columns), compression=compression, use_dictionary=False,
        write_statistics=False,
    ) as writer:
        for batch in batches():
            writer.write_table(table_of(batch), row_group_size=max(1, len(batch)))


def read_shard(path: AnyPath) -> Iterator[RowBatch]:
    """Yield the rows of a file in batches."""
    pyarrow()
    from pyarrow import parquet

    with (
        arrow_errors(path, "Parquet"), native_file(path) as opened,
        parquet.ParquetFile(opened) as file,
    ):
        for batch in file.iter_batches(_ROWS):
            yield batch_of(path, batch)


def row_group_sizes(file: Any) -> list[int]:
    """Return the number of rows of each row group of a `pyarrow.parquet.ParquetFile`.

    Raises:
        ValueError: One is negative, which pyarrow does not check.
    """
    about = file.metadata
    sizes = [about.row_group(number).num_rows for number in range(about.num_row_groups)]
    if min(sizes, default=0) < 0:
        raise ValueError("a row group has a negative number of rows")
    return sizes
