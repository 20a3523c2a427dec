"""Rows in Parquet: a column of list<int32> for each array, a row group for each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from preprocess.rows.arrow import (
    KEPT_BYTES,
    ROWS,
    TableBlock,
    native_file,
    pyarrow,
    reading,
    schema_of,
    table_of,
)
from preprocess.rows.columns import RowBatch
from preprocess.rows.formats import Block, Record, RecordFile

_PART_BYTES = 1 << 22  # of a row group that are decoded at a time
_PAGES_BYTES = 1 << 20  # of a column chunk that are read at a time


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


class File(RecordFile):
    """A Parquet file; a block is a row group."""

    kept_bytes = KEPT_BYTES

    def _sizes(self) -> Iterable[int]:
        with self._opened("Parquet, its metadata") as file:
            return _sizes_in(file)

    def block(self, number: int) -> Block:
        """Read a row group."""
        with self._opened(what := f"Parquet, row group {number:,}") as file:
            return TableBlock(self.path, what, file.read_row_group(number, use_threads=False))

    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the records from a number on."""
        with self._opened("Parquet, its metadata") as file:
            for number, left in enumerate(_sizes_in(file)):
                if left <= first:
                    first -= left
                    continue
                with reading(self.path, what := f"Parquet, row group {number:,}"):
                    n_bytes = file.metadata.row_group(number).total_byte_size
                    n = max(1, min(ROWS, _PART_BYTES * left // max(1, n_bytes)))
                    for batch in file.iter_batches(n, [number], use_threads=False):
                        table = pyarrow().Table.from_batches([batch])
                        yield from TableBlock(self.path, what, table).between(first)
                        left, first = left - len(batch), max(0, first - len(batch))
                    if left:  # places in later row groups would be wrong
                        raise ValueError("other than the number of rows in the metadata")

    @contextmanager
    def _opened(self, what: str) -> Iterator[Any]:
        """Open a `pyarrow.parquet.ParquetFile`, to read `what` of it."""
        pyarrow()
        from pyarrow import parquet

        with (
            reading(self.path, what), native_file(self.path) as opened,
            # Without a buffer pyarrow would read whole column chunks; without threads of its own,
            # for a process that is forked would not have them.
            parquet.ParquetFile(
                opened, page_checksum_verification=True, buffer_size=_PAGES_BYTES, pre_buffer=False
            ) as file,
        ):
            yield file


def _sizes_in(file: Any) -> list[int]:
    """Return the number of rows of each row group of a `pyarrow.parquet.ParquetFile`."""
    groups = file.metadata
    sizes = [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]
    if min(sizes, default=0) < 0:  # which pyarrow does not check
        raise ValueError("a row group has a negative number of rows")
    return sizes
