"""Rows in Parquet: a column of list<int32> for each array, a row group for each batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from preprocess.rows.arrow import (
    TableBlock,
    TableFile,
    native_file,
    pyarrow,
    reading,
    schema_of,
    table_of,
)
from preprocess.rows.columns import RowBatch

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


class File(TableFile):
    """A Parquet file; a block is a row group."""

    kind = "Parquet"

    def _sizes(self) -> Iterable[int]:
        with reading(self.path, "Parquet, its metadata"), self._opened() as file:
            groups = file.metadata
            sizes = [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]
            if min(sizes, default=0) < 0:  # which pyarrow does not check
                raise ValueError("a row group has a negative number of rows")
            return sizes

    def block(self, number: int) -> TableBlock:
        """Read a row group as a whole."""
        with reading(self.path, what := f"Parquet, row group {number:,}"), self._opened() as file:
            return TableBlock(self.path, what, file.read_row_group(number, use_threads=False))

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
        pyarrow()
        from pyarrow import parquet

        with (
            native_file(self.path) as opened,
            # Without a buffer pyarrow would read whole column chunks; without threads of its own,
            # for a process that is forked would not have them.
            parquet.ParquetFile(
                opened, page_checksum_verification=True, buffer_size=_PAGES_BYTES, pre_buffer=False
            ) as file,
        ):
            yield file
