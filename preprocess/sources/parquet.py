"""Parquet files: the columns with text are decoded, some thousand rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
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
_NUMBER_BYTES = 4  # at most, of a value in a dictionary


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

    def text_bytes(self) -> int:
        paths = [".".join(path) for path in self.columns]
        with self._errors(), self._open() as opened:
            groups = map(opened.metadata.row_group, range(opened.num_row_groups))
            sizes = [_encoded_text(group, paths) for group in groups]
        if all(is_text for _, is_text in sizes):
            return sum(n_bytes for n_bytes, _ in sizes)
        return super().text_bytes()

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
                    ahead.will_read(_chunks(group, paths))
                n_bytes, is_text = _encoded_text(group, paths)
                if not (is_text or sampled):
                    # Without the argument, pyarrow decodes on its threads, later batches, too.
                    read = opened.iter_batches(_SAMPLED_ROWS, [number], paths, use_threads=False)
                    sampled = max(1, *(each.nbytes // len(each) for each in islice(read, 1)))
                of_row = max(n_bytes // max(group.num_rows, 1), 1 if is_text else sampled)
                n = max(1, min(_BATCH_ROWS, _BATCH_BYTES // of_row))
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


def _encoded_text(group: Any, paths: list[str]) -> tuple[int, bool]:
    """Return (bytes of the columns of a row group, True if that is about the size of their text).

    The text is longer if values are repeated: numbers of values in a dictionary stand for them.
    """
    chunks = [group.column(i) for i in range(group.num_columns)]
    chunks = [chunk for chunk in chunks if chunk.path_in_schema in paths]
    is_text = len(chunks) == len(paths) and not any(map(_may_be_numbers, chunks))
    return sum(chunk.total_uncompressed_size for chunk in chunks), is_text


def _may_be_numbers(chunk: Any) -> bool:
    """Return whether a column chunk may have a dictionary, and only numbers beside it."""
    if not chunk.has_dictionary_page:
        return False
    n_dictionary = chunk.data_page_offset - chunk.dictionary_page_offset
    return bool(chunk.total_compressed_size - n_dictionary <= _NUMBER_BYTES * chunk.num_values)
