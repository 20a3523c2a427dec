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
_BATCH_BYTES = 2 * 1024 * 1024  # of text decoded at a time, by the average of the row group
_BATCH_ROWS = 16 * 1024
_UNEVEN = 2  # how many times _BATCH_BYTES a batch has at most on average, if the sample is short
_SAMPLED_ROWS = 64
_FEW_ROWS = 256  # a batch of so few rows is made without a sample


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

    def estimate_text(self) -> int:
        with self._errors(), self._open() as opened:
            n_rows, of_row = opened.metadata.num_rows, self._bytes_of_long_rows(opened.metadata)
        return n_rows * of_row if of_row else super().estimate_text()

    def _bytes_of_long_rows(self, metadata: Any) -> int:
        """Return the mean bytes of an encoded row if rows are long, and have only text; else 0.

        For shorter ones a sample takes little time, and tells how long they are when decoded: short
        numbers may stand for repeated values. The metadata of columns tells more, but pyarrow
        aborts the process where it is damaged.
        """
        if metadata.num_columns != len(self.columns) or any(map(self._is_dictionary, self.columns)):
            return 0
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        of_row = sum(group.total_byte_size for group in groups) // max(metadata.num_rows, 1)
        return of_row if _batch_rows(of_row) <= _FEW_ROWS else 0

    def _is_dictionary(self, path: tuple[str, ...]) -> bool:
        kind: Any = self.schema
        for key in path:
            kind = kind.field(key).type
        return bool(self._pyarrow.types.is_dictionary(kind))

    def _decoded(self, rows: pa.RecordBatch) -> tuple[int, int, int]:
        """Return (bytes of the text of rows, values of their dictionaries, bytes of those)."""
        if self.has_spans:
            return rows.nbytes, 0, 0
        columns = [self._column(rows, path) for path in self.columns]
        pairs = zip(columns, self.columns, strict=True)
        found = [column.dictionary for column, path in pairs if self._is_dictionary(path)]
        n_values, n_bytes = sum(map(len, found)), sum(each.nbytes for each in found)
        return self._join(columns).nbytes, n_values, n_bytes

    def _batches(self, row: int) -> Iterator[Rows]:
        paths = [".".join(path) for path in self.columns]
        ahead = ReadAhead(self.file) if isinstance(self.file, RemoteFile) else None
        with self._open(ahead) as opened:
            n_rows, first = opened.metadata.num_rows, 0
            groups = [opened.metadata.row_group(i) for i in range(opened.num_row_groups)]
            if sum(group.num_rows for group in groups) != n_rows:
                raise self._pyarrow.ArrowInvalid(f"the row groups do not have {n_rows:,} rows")
            # Bytes of a row, and how many times the bytes of an encoded one that is.
            of_row, ratio = self._bytes_of_long_rows(opened.metadata), 1.0
            dictionary = [0, 0]  # values, bytes
            for number, group in enumerate(groups):
                if first + group.num_rows <= row:
                    first += group.num_rows
                    continue
                if ahead is not None:
                    ahead.will_read(_ranges(group, paths))
                encoded = max(group.total_byte_size // max(group.num_rows, 1), 1)
                if not of_row:
                    # Once pyarrow was allowed to use threads, it uses them for later batches, too.
                    read = opened.iter_batches(_SAMPLED_ROWS, [number], paths, use_threads=False)
                    if rows := next(read, None):
                        n_bytes, *dictionary = self._decoded(rows)
                        of_row = max(n_bytes // len(rows), 1)
                        ratio = of_row / encoded
                    del read, rows  # frees the dictionary
                of_group = round(encoded * max(ratio, 1 / _UNEVEN))
                n = _batch_rows(max(of_row, of_group), *dictionary)
                for batch in opened.iter_batches(n, [number], paths, use_threads=False):
                    end = first + len(batch)
                    if end > row:
                        yield first, batch, self.n_bytes * end // n_rows
                    first = end


def _batch_rows(n_bytes: int, dictionary_values: int = 0, dictionary_bytes: int = 0) -> int:
    """Return how many rows of `n_bytes` each to decode at a time.

    Each batch takes time in proportion to its dictionary, so it is at least a quarter as long.
    """
    most_rows = max(_BATCH_ROWS, dictionary_values // 4)
    most_bytes = max(_BATCH_BYTES, dictionary_bytes // 4)
    return max(1, min(most_rows, most_bytes // max(n_bytes, 1)))


def _ranges(group: Any, paths: list[str]) -> list[tuple[int, int]]:
    """Return the ranges of a file that the columns of a row group take."""
    ranges = []
    for each in map(group.column, range(group.num_columns)):
        name = each.path_in_schema
        if any(name == path or name.startswith(f"{path}.") for path in paths):
            places = each.dictionary_page_offset, each.data_page_offset
            start = min(place for place in places if place is not None)
            ranges.append((start, start + each.total_compressed_size))
    return ranges
