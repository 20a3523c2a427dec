"""Parquet files: the columns with text are decoded, some thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from preprocess.sources.remote import ReadAhead, RemoteFile
from preprocess.sources.rows import RowsSource

if TYPE_CHECKING:
    import pyarrow as pa

    from preprocess.sources.rows import Rows

_PAGES_BYTES = 1024 * 1024  # of a column chunk, read at a time
_BATCH_BYTES = 4 * 1024 * 1024  # of text decoded at a time, by the average of the row group
_BATCH_ROWS = 16 * 1024
_SAMPLED_ROWS = 64


class ParquetSource(RowsSource):
    """One Parquet file."""

    format = "Parquet"

    def _open(self, ahead: ReadAhead | None = None) -> Any:
        from pyarrow.parquet import ParquetFile

        return ParquetFile(
            self._open_file(ahead), page_checksum_verification=True,
            # Without a buffer pyarrow would read whole column chunks.
            buffer_size=_PAGES_BYTES, pre_buffer=False,
        )

    def _schema(self) -> pa.Schema:
        with self._open() as opened:
            return opened.schema_arrow

    def _batches(self, row: int) -> Iterator[Rows]:
        paths = [".".join(path) for path in self.columns]
        ahead = ReadAhead(self.file) if isinstance(self.file, RemoteFile) else None
        with self._open(ahead) as opened:
            n_rows, first = opened.metadata.num_rows, 0
            if ahead is not None and opened.num_row_groups:
                ahead.will_read(_chunks(opened.metadata.row_group(0), paths))
            # Encoded sizes say little if values are repeated.
            sample = next(opened.iter_batches(_SAMPLED_ROWS, columns=paths), None)
            n_bytes = 1 if sample is None else sample.nbytes // max(len(sample), 1)
            most = max(1, _BATCH_BYTES // max(n_bytes, 1))
            for number in range(opened.num_row_groups):
                group = opened.metadata.row_group(number)
                if first + group.num_rows <= row:
                    first += group.num_rows
                    continue
                if ahead is not None:
                    ahead.will_read(_chunks(group, paths))
                n = min(most, _batch_rows(group, paths))
                for batch in opened.iter_batches(n, [number], paths, use_threads=False):
                    end = first + len(batch)
                    if end > row:
                        yield first, batch, self.n_bytes * end // n_rows
                    first = end


def _chunks(group: Any, paths: list[str]) -> list[tuple[int, int]]:
    """Return the ranges of a file that the columns of a row group take."""
    ranges = []
    for each in map(group.column, range(group.num_columns)):
        name = each.path_in_schema
        if any(name == path or name.startswith(f"{path}.") for path in paths):
            places = each.dictionary_page_offset, each.data_page_offset
            start = min(place for place in places if place is not None)
            ranges.append((start, start + each.total_compressed_size))
    return ranges


def _batch_rows(group: Any, paths: list[str]) -> int:
    """Return how many rows of a row group to decode at a time."""
    chunks = [group.column(i) for i in range(group.num_columns)]
    n_bytes = sum(x.total_uncompressed_size for x in chunks if x.path_in_schema in paths)
    return int(max(1, min(_BATCH_ROWS, _BATCH_BYTES * group.num_rows // max(n_bytes, 1))))
