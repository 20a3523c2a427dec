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
_SAMPLED_ROWS = 64
_FEW_ROWS = 256  # that are decoded without a sample: it would take a large part of their time
_NUMBER_BYTES, _HEADER_BYTES = 4, 256  # of a number of a value in a dictionary, of headers of pages


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
        paths = [".".join(path) for path in self.columns]
        with self._errors(), self._open() as opened:
            groups = map(opened.metadata.row_group, range(opened.num_row_groups))
            in_groups = [_chunks(group, paths) for group in groups]
        for chunks in in_groups:
            if len(chunks) < len(paths) or any(map(_may_abbreviate_most, chunks)):
                return super().estimate_text()
        return sum(map(_encoded_bytes, in_groups))

    def _batches(self, row: int) -> Iterator[Rows]:
        paths = [".".join(path) for path in self.columns]
        ahead = ReadAhead(self.file) if isinstance(self.file, RemoteFile) else None
        with self._open(ahead) as opened:
            n_rows, first, sampled = opened.metadata.num_rows, 0, 0
            for number in range(opened.num_row_groups):
                group = opened.metadata.row_group(number)
                if first + group.num_rows <= row:
                    first += group.num_rows
                    continue
                if ahead is not None:
                    ahead.will_read(_ranges(group, paths))
                chunks = _chunks(group, paths)
                n_bytes = _encoded_bytes(chunks) // max(group.num_rows, 1)  # of a row
                is_sure = len(chunks) >= len(paths) and not any(map(_may_abbreviate, chunks))
                if not (is_sure or sampled or _batch_rows(n_bytes) <= _FEW_ROWS):
                    # If pyarrow may use threads once, it decodes all later batches on them.
                    read = opened.iter_batches(_SAMPLED_ROWS, [number], paths, use_threads=False)
                    rows = next(read, None)
                    sampled = rows.nbytes // len(rows) if rows else 0
                n = _batch_rows(n_bytes if is_sure else max(n_bytes, sampled))
                for batch in opened.iter_batches(n, [number], paths, use_threads=False):
                    end = first + len(batch)
                    if end > row:
                        yield first, batch, self.n_bytes * end // n_rows
                    first = end


def _batch_rows(n_bytes: int) -> int:
    """Return how many rows of `n_bytes` each to decode at a time."""
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(n_bytes, 1)))


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


def _chunks(group: Any, paths: list[str]) -> list[Any]:
    """Return the column chunks of a row group that have strings; a list has none of its own."""
    chunks = map(group.column, range(group.num_columns))
    return [chunk for chunk in chunks if chunk.path_in_schema in paths]


def _encoded_bytes(chunks: list[Any]) -> int:
    """Return the bytes of column chunks, decompressed but still encoded."""
    return sum(chunk.total_uncompressed_size for chunk in chunks)


def _may_abbreviate(chunk: Any) -> bool:
    """Return whether the encoding of some values may be much shorter than they are.

    DELTA_BYTE_ARRAY leaves out what a value shares with the one before; the number of a value in a
    dictionary takes its place.
    """
    return any(x == "DELTA_BYTE_ARRAY" or "DICTIONARY" in x for x in chunk.encodings)


def _may_abbreviate_most(chunk: Any) -> bool:
    """Return whether the encoding of most values may be much shorter than they are."""
    if "DELTA_BYTE_ARRAY" in chunk.encodings or not chunk.has_dictionary_page:
        return _may_abbreviate(chunk)
    n_dictionary = chunk.data_page_offset - chunk.dictionary_page_offset
    most = _HEADER_BYTES + _NUMBER_BYTES * chunk.num_values
    return bool(chunk.total_compressed_size - n_dictionary <= most)
