"""Parquet files: the columns with text are decoded, some thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from preprocess.sources.remote import ReadAhead, RemoteFile
from preprocess.sources.rows import RowsSource, estimate_decoded_bytes

if TYPE_CHECKING:
    import pyarrow as pa

    from preprocess.sources.rows import Rows

_PAGES_BYTES = 1024 * 1024  # of a column chunk, read at a time
_BATCH_BYTES = 2 * 1024 * 1024  # of text decoded at a time, by the average of the row group
_BATCH_ROWS = 16 * 1024
_SAMPLED_ROWS = 64
_FEW_ROWS = 256  # a batch of so few rows is made without a sample
_DICTIONARY_BATCHES = 4  # at most, for each time that the text is as long as the dictionary


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

        For shorter ones a sample takes little time, and tells how long they are when decoded: the
        encoded data may be only indices into a dictionary of long values, as it always is for
        columns of dictionary type. The metadata of columns tells more, but pyarrow aborts the
        process where it is damaged.
        """
        if metadata.num_columns != len(self.columns) or self._has_dictionaries:
            return 0
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        of_row = sum(group.total_byte_size for group in groups) // max(metadata.num_rows, 1)
        return of_row if _batch_rows(of_row) <= _FEW_ROWS else 0

    @cached_property
    def _has_dictionaries(self) -> bool:
        kinds: list[Any] = []
        for path in self.columns:
            kind: Any = self.schema
            for key in path:
                kind = kind.field(key).type
            kinds.append(kind)
        for kind in kinds:  # the loop also visits the nested types that are appended here
            kinds += [kind.field(i).type for i in range(kind.num_fields)]
        return any(map(self._pyarrow.types.is_dictionary, kinds))

    def _batches(self, row: int) -> Iterator[Rows]:
        paths = [".".join(path) for path in self.columns]
        ahead = ReadAhead(self.file) if isinstance(self.file, RemoteFile) else None
        with self._open(ahead) as opened:
            n_rows, first = opened.metadata.num_rows, 0
            groups = [opened.metadata.row_group(i) for i in range(opened.num_row_groups)]
            if sum(group.num_rows for group in groups) != n_rows:
                raise self._pyarrow.ArrowInvalid(f"the row groups do not have {n_rows:,} rows")
            # Mean bytes of a decoded row, and that divided by the mean bytes of an encoded row.
            of_row, ratio = self._bytes_of_long_rows(opened.metadata), 1.0
            is_whole = opened.metadata.num_columns == 1  # no column is left out
            dictionary = 0  # its bytes
            for number, group in enumerate(groups):
                if first + group.num_rows <= row:
                    first += group.num_rows
                    continue
                if ahead is not None:
                    ahead.will_read(_ranges(group, paths))
                encoded = max(group.total_byte_size // max(group.num_rows, 1), 1)
                if not of_row or self._has_dictionaries:
                    # Once pyarrow was allowed to use threads, it uses them for later batches, too.
                    read = opened.iter_batches(_SAMPLED_ROWS, [number], paths, use_threads=False)
                    if rows := next(read, None):
                        of_row = max(estimate_decoded_bytes(rows) // len(rows), 1)
                        ratio = of_row / encoded
                        if self._has_dictionaries:
                            # The sample shows the whole one, unless pages hold plain values, of
                            # which pyarrow makes one that grows with each batch.
                            dictionary = group.total_byte_size if is_whole else rows.nbytes
                    del read, rows  # frees dictionaries
                # The sampled rows may be shorter than others, or columns that are not read longer.
                of_group = max(round(encoded * ratio), min(encoded // 2, _BATCH_BYTES // _FEW_ROWS))
                n = _batch_rows(max(of_row, of_group), dictionary)
                for batch in opened.iter_batches(n, [number], paths, use_threads=False):
                    end = first + len(batch)
                    if end > row:
                        yield first, batch, self.n_bytes * end // n_rows
                    first = end


def _batch_rows(n_bytes: int, dictionary: int = 0) -> int:
    """Return how many rows to decode at a time.

    Args:
        n_bytes: Bytes of a row.
        dictionary: Bytes of the dictionaries of the row group, which pyarrow makes for each batch.
    """
    n_bytes = max(n_bytes, 1)
    usual = min(_BATCH_ROWS, _BATCH_BYTES // n_bytes)
    return max(usual, dictionary // _DICTIONARY_BATCHES // n_bytes, 1)


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
