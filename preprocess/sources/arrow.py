"""Arrow IPC files, also called Feather, and Arrow streams, such as the cache of `datasets`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bpe.errors import CorpusError
from bpe.text_file import InputFile, new_array
from preprocess.documents.batch import ReadOptions
from preprocess.sources.rows import RowsSource

if TYPE_CHECKING:
    import pyarrow as pa

    from preprocess.sources.rows import Rows

_FILE_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def open_arrow(file: InputFile, name: str, reading: ReadOptions) -> RowsSource:
    """Return the source of an Arrow file, or of an Arrow stream."""
    begins = file.read(0, file.clip(len(_FILE_MAGIC)), new_array).tobytes()
    if begins.startswith(b"FEA1"):
        raise CorpusError(
            f"{file.path}: is Feather of version 1, expected version 2, which is Arrow IPC; convert"
            f" it: python -c \"from pyarrow import feather; feather.write_feather("
            f"feather.read_table('{file.path}'), '{file.path}')\""
        )
    return (ArrowFileSource if begins == _FILE_MAGIC else ArrowStreamSource)(file, name, reading)


class ArrowFileSource(RowsSource):
    """One Arrow IPC file."""

    format = "Arrow"

    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        with self._open_file() as opened, pa.ipc.open_file(opened) as reader:
            return reader.schema

    def _batches(self, row: int) -> Iterator[Rows]:
        import pyarrow as pa

        first = 0
        with (
            self._open_file() as opened,
            pa.ipc.open_file(opened, options=_options(self)) as reader,
        ):
            n = reader.num_record_batches
            for number in range(n):
                batch = reader.get_batch(number)
                if first + len(batch) > row:
                    yield first, batch, self.n_bytes * (number + 1) // n
                first += len(batch)


class ArrowStreamSource(RowsSource):
    """One Arrow IPC stream in a file."""

    format = "Arrow"

    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        with self._open_file() as opened, pa.ipc.open_stream(opened) as reader:
            return reader.schema

    def _batches(self, row: int) -> Iterator[Rows]:
        import pyarrow as pa

        first = 0
        with (
            self._open_file() as opened,
            pa.ipc.open_stream(opened, options=_options(self)) as reader,
        ):
            for batch in reader:
                if first + len(batch) > row:
                    yield first, batch, opened.tell()
                first += len(batch)
            position = opened.tell()
        if position != self.n_bytes:
            raise CorpusError(
                f"{self.file.path}: the Arrow stream ends at byte {position:,} of {self.n_bytes:,};"
                " expected one stream in a file, divide it"
            )
        # A stream that ends after a batch is no error of pyarrow's.
        start = max(0, self.n_bytes - len(_END_OF_STREAM))
        if self.file.read(start, self.n_bytes, new_array).tobytes() != _END_OF_STREAM:
            raise CorpusError(
                f"{self.file.path}: Arrow data ends at byte {self.n_bytes:,} without the mark of"
                " the end, so the file is truncated; get the file again"
            )


def _options(source: RowsSource) -> pa.ipc.IpcReadOptions:
    """Return options that read only the columns with text."""
    import pyarrow as pa

    names = source.schema.names
    return pa.ipc.IpcReadOptions(
        included_fields=sorted({names.index(path[0]) for path in source.columns}),
        use_threads=False,
    )
