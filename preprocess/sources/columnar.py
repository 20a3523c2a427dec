"""Parquet, Arrow IPC files (also called Feather) and Arrow streams, such as those of `datasets`.

pyarrow decodes the columns that are read, some rows at a time; units carry these rows, and a resume
point is [byte, row]. The bytes of the file are divided among its rows only so that all of them are
digested.

Parquet holds 4,096 rows or 2 MiB, whatever is less, by the mean encoded size of the rows of a file;
a column of dictionary type (pandas: `category`), or an Arrow file, holds the text of a row group,
or of a record batch.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from bpe.errors import CorpusError, TokenmillError, listed
from preprocess.documents.batch import Offsets, ReadOptions, invalid_text_error, replace_invalid
from preprocess.run_ahead import run_ahead
from preprocess.sources.base import ResumePoint, import_library
from preprocess.sources.records import (
    BadRecordError,
    Record,
    RecordSource,
    RecordUnit,
    Tally,
    Texts,
    Values,
)
from preprocess.sources.remote import Handle, ReadAhead, RemoteFile
from preprocess.sources.text_file import Array, Bytes, InputFile

if TYPE_CHECKING:
    import pyarrow as pa

    # (rows of the file before the batch, the batch, first and end of its bytes of the file)
    Rows = tuple[int, pa.RecordBatch, int, int]

_UNITS_AHEAD = 2  # that a thread decodes while the one that asked for them does other work
_TINY_BYTES = 256 * 1024  # of a file that needs no thread, which costs a tenth of its time
_PAGES_BYTES = 1024 * 1024  # of a column chunk, read at a time
_BATCH_BYTES, _BATCH_ROWS = 2 * 1024 * 1024, 4096  # decoded at a time, at most
FILE_MAGIC = b"ARROW1"
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class RowsUnit(RecordUnit, frozen=True):
    """Rows [first, end) of a file: record batches of the columns with text, or conversations.

    `json_in` is what `_json_in` returns of a conversation.
    """

    first: int
    end: int
    rows: list[Any]
    json_in: Any

    @property
    def where(self) -> str:
        return f"{self.file.path}, rows {self.first:,} to {self.end:,}"

    @property
    def after(self) -> ResumePoint | None:
        return None if self.stop == self.file.n_bytes else [self.stop, self.end]

    def texts(self, content: Bytes, array: Array) -> Texts | None:
        from bpe.text.utf8 import is_utf8

        columns = [column for batch in self.rows for column in batch.columns]
        has_null = any(column.null_count for column in columns)
        if has_null or self.first == self.end or self.reading.text_preset:
            return None
        if len(self.fields) > 1:
            columns = _joined(columns, len(self.fields))
        parts = [_texts_of(column) for column in columns if len(column)]
        before = np.cumsum([0, *(text.size for text, _ in parts)])
        ends = [bounds[1:] + begin for (_, bounds), begin in zip(parts, before, strict=False)]
        texts, bounds = np.concatenate([text for text, _ in parts]), np.concatenate([[0], *ends])
        begins = texts[bounds[:-1][np.diff(bounds) > 0]]
        # Two texts may be valid only together.
        is_valid = is_utf8(texts) and not (begins & 0xC0 == 0x80).any()
        return (texts, bounds) if is_valid else None

    def numbers(self, n: int) -> Offsets:
        return np.arange(self.first, self.end)

    def records(self, content: Bytes, tally: Tally) -> Iterator[Record]:
        if self.is_rendered:
            yield from map(Record, self.rows, range(self.first, self.end))
            return
        columns = ([column.to_pylist() for column in batch.columns] for batch in self.rows)
        rows = chain.from_iterable(zip(*each, strict=True) for each in columns)
        for record in map(Record, rows, range(self.first, self.end)):
            self._check_text(record)
            yield record

    def _check_text(self, record: Record) -> None:
        """Raise CorpusError if a text is invalid UTF-8, unless `prepare` decides about it."""
        text = b"\n".join(filter(None, record.data))
        if self.reading.on_invalid_utf8 == "error" and replace_invalid(text)[1]:
            where = f"{self.file.path}: {self.place(record)}"
            raise invalid_text_error(np.frombuffer(text, np.uint8), lambda _: where)

    def place(self, record: Record) -> str:
        return f"row {record.number:,}"

    def values(self, data: Values) -> Values:
        if None in data and not self.reading.text_preset:
            field = self.fields[data.index(None)]
            raise BadRecordError(f"column {field!r} is null, expected text; correct or remove it")
        return data

    def conversation(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        json_in = self.json_in or {}
        return {name: _plain(value, json_in.get(name)) for name, value in data.items()}


def _joined(columns: list[Any], n_fields: int) -> list[Any]:
    """Join the texts of each row, `n_fields` columns of a batch one after another, by newlines."""
    import pyarrow as pa
    from pyarrow import compute

    kind = pa.large_binary()
    large, newline = [column.cast(kind) for column in columns], pa.scalar(b"\n", kind)
    rows = [large[i : i + n_fields] for i in range(0, len(large), n_fields)]
    return [compute.binary_join_element_wise(*row, newline) for row in rows]


def _texts_of(column: pa.Array) -> Texts:
    """Return the texts of a binary column of at least one row, without nulls, without a copy."""
    _, bounds, text = column.buffers()
    is_large = str(column.type).startswith("large_")
    offsets = np.frombuffer(bounds, np.int64 if is_large else np.int32)[column.offset :]
    offsets = offsets[: len(column) + 1].astype(np.int64)
    texts = np.frombuffer(text or b"", np.uint8)[offsets[0] : offsets[-1]]
    return texts, offsets - offsets[0]


class ColumnarSource(RecordSource):
    """One file of rows; subclasses define `_schema` and `_batches`.

    Raises:
        CorpusError: The file is damaged, or a column is missing or is not text.
    """

    format = ""
    is_compressed = True

    def __init__(self, file: InputFile, name: str, reading: ReadOptions) -> None:
        # Memory that pyarrow returns to the system after each batch has to be mapped again for the
        # next one, which takes a fifth of the time of a run.
        os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
        self._pyarrow = import_library("pyarrow", self.format)
        self.file = file
        with arrow_errors(file, self.format):
            self.schema = self._schema()
            super().__init__(file, name, reading)
            if self.has_spans:
                self.fields = self._columns_of_conversations()
                self.columns: list[tuple[str, ...]] = [(name,) for name in self.fields]
                return
            if reading.text_preset:
                # All are looked for if none is there, which raises an error.
                names = self.schema.names
                self.fields = tuple(x for x in self.fields if x in names) or self.fields
            self.columns = [_find_column(file.path, self.schema, x) for x in self.fields]

    @abstractmethod
    def _schema(self) -> pa.Schema:
        """Return the schema of the file."""

    @abstractmethod
    def _batches(self, row: int) -> Iterator[Rows]:
        """Yield the batches of the file that have row `row` and later ones."""

    def first_names(self) -> list[str]:
        return list(self.schema.names)

    def _columns_of_conversations(self) -> tuple[str, ...]:
        from preprocess.documents.conversations import FIELDS_BESIDE

        names = self.schema.names
        if wrong := [field for field in self.fields if names.count(field) != 1]:
            raise CorpusError(
                f"{self.file.path}: has {names.count(wrong[0])} columns named {wrong[0]!r},"
                f" expected one, for conversations need {listed(self.fields)}; choose another"
                " --chat"
            )
        return (*self.fields, *(x for x in names if x in FIELDS_BESIDE))

    def _open_file(self) -> Any:
        """Open the file for pyarrow, a `pyarrow.NativeFile`; a remote one is read ahead."""
        if isinstance(self.file, RemoteFile):
            return self._pyarrow.PythonFile(Handle(ReadAhead(self.file)), "r")
        return self._pyarrow.OSFile(os.fsencode(self.file.path))

    def units(self, after: ResumePoint | None = None) -> Generator[RowsUnit]:
        units = self._units(*(after or [0, 0]))
        return run_ahead(units, _UNITS_AHEAD) if self.n_bytes > _TINY_BYTES else units

    def _units(self, start: int, row: int) -> Generator[RowsUnit]:
        """Yield units of about the size that is asked for, or of one batch; the last has the rest.

        The last unit has the bytes after the last row, too.
        """
        n_bytes, first, stop = 0, row, start
        held: list[pa.RecordBatch] = []
        with arrow_errors(self.file, self.format):
            for rows, end in self._slices(row):
                if held and n_bytes + rows.nbytes > self.reading.unit_size:
                    yield (unit := self._unit(start, stop, first, held))
                    n_bytes, start, first, held = 0, stop, unit.end, []
                held.append(rows)
                n_bytes, stop = n_bytes + rows.nbytes, end
            last = self._unit(start, self.n_bytes, first, held)
        yield last

    def _unit(self, start: int, stop: int, first: int, held: list[pa.RecordBatch]) -> RowsUnit:
        end, rows, json_in = first + sum(map(len, held)), list[Any](held), None
        if self.has_spans:
            json_in = held and _json_in(self._pyarrow.struct(held[0].schema))
            rows = [record for batch in held for record in batch.to_pylist()]
        unit = self.file, self.reading_of_units, start, stop, self.fields
        return RowsUnit(*unit, first, end, rows, json_in)

    def _slices(self, row: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield (columns that are read of some rows, bytes of the file up to their end).

        They are the rows from `row` on, in slices of at most half a unit unless rows are long.
        """
        for first, read, begin, stop in self._batches(row):
            batch = self._checked(read)
            n = len(batch) * self.reading.unit_size // max(2 * batch.nbytes, 1)
            n = min(max(n, 1), _BATCH_ROWS)
            for at in range(max(row - first, 0), len(batch), n):
                rows = batch.slice(at, n)
                yield rows, begin + (stop - begin) * (at + len(rows)) // len(batch)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that are read; a wrong offset would be read outside of a buffer."""
        if self.has_spans:
            batch.validate(full=True)
            return batch
        columns = [_to_binary(_column(batch, path)) for path in self.columns]
        return self._pyarrow.record_batch(columns, [*self.fields])


class ParquetSource(ColumnarSource):
    """One Parquet file."""

    format = "Parquet"

    def _schema(self) -> pa.Schema:
        with open_parquet(self._open_file()) as opened:
            return opened.schema_arrow

    def _batches(self, row: int) -> Iterator[Rows]:
        paths = [".".join(path) for path in self.columns]
        with open_parquet(self._open_file()) as opened:
            n_rows, first = opened.metadata.num_rows, 0
            groups = [opened.metadata.row_group(i) for i in range(opened.num_row_groups)]
            if sum(group.num_rows for group in groups) != n_rows:
                raise self._pyarrow.ArrowInvalid(f"the row groups do not have {n_rows:,} rows")
            for number, group in enumerate(groups):
                if first + group.num_rows <= row:
                    first += group.num_rows
                    continue
                # Once pyarrow was allowed to use threads, it uses them for later batches, too.
                n = self._rows_at_once(group)
                for batch in opened.iter_batches(n, [number], paths, use_threads=False):
                    begin, first = first, first + len(batch)
                    if first > row:
                        yield begin, batch, *(self.n_bytes * x // n_rows for x in (begin, first))

    def _rows_at_once(self, group: Any) -> int:
        """Return how many rows of a row group to decode at a time.

        For each batch pyarrow makes the dictionaries of columns of dictionary type anew.
        """
        fields = (self.schema.field(path[0]) for path in self.columns)
        if any("dictionary<" in str(field.type) for field in fields):
            return max(int(group.num_rows), 1)
        of_row: int = max(group.total_byte_size // max(group.num_rows, 1), 1)
        return min(max(_BATCH_BYTES // of_row, 1), _BATCH_ROWS)


class ArrowSource(ColumnarSource):
    """One Arrow IPC file, or one Arrow IPC stream in a file."""

    format = "Arrow"
    _is_stream = False

    @contextmanager
    def _opened(self, options: pa.ipc.IpcReadOptions | None = None) -> Iterator[tuple[Any, Any]]:
        """Open (the reader, the file that it reads)."""
        ipc = self._pyarrow.ipc
        with self._open_file() as opened:
            open_reader = ipc.open_stream if self._is_stream else ipc.open_file
            with open_reader(opened, options=options) as reader:
                yield reader, opened

    def _schema(self) -> pa.Schema:
        begins = self.file.begins(len(FILE_MAGIC))
        if begins.startswith(b"FEA1"):
            path = self.file.path
            raise CorpusError(
                f"{path}: is Feather of version 1, expected version 2, which is Arrow IPC; convert"
                f" it: python -c \"from pyarrow import feather; feather.write_feather("
                f"feather.read_table('{path}'), '{path}')\""
            )
        self._is_stream = begins != FILE_MAGIC
        with self._opened() as (reader, _):
            return reader.schema

    def _batches(self, row: int) -> Iterator[Rows]:
        first, names = 0, self.schema.names
        included = sorted({names.index(path[0]) for path in self.columns})
        options = self._pyarrow.ipc.IpcReadOptions(included_fields=included, use_threads=False)
        with self._opened(options) as (reader, opened):
            position = 0
            for batch, stop in self._with_ends(reader, opened):
                start, position = position, stop
                begin, first = first, first + len(batch)
                if first > row:
                    yield begin, batch, start, stop
            if self._is_stream:
                self._check_end(opened.tell())

    def _with_ends(self, reader: Any, opened: Any) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the batches, with bytes of the file up to their ends."""
        if self._is_stream:
            for batch in reader:
                yield batch, opened.tell()
            return
        n = reader.num_record_batches
        for number in range(n):
            yield reader.get_batch(number), self.n_bytes * (number + 1) // n

    def _check_end(self, position: int) -> None:
        """Raise CorpusError unless a stream ends where the file does, with the mark of its end."""
        if position != self.n_bytes:
            raise CorpusError(
                f"{self.file.path}: the Arrow stream ends at byte {position:,} of {self.n_bytes:,};"
                " expected one stream in a file, divide it"
            )
        # A stream that ends after a batch is no error of pyarrow's.
        start = max(0, self.n_bytes - len(END_OF_STREAM))
        if self.file.read(start, self.n_bytes).tobytes() != END_OF_STREAM:
            raise CorpusError(
                f"{self.file.path}: Arrow data ends at byte {self.n_bytes:,} without the mark of"
                " the end, so the file is truncated; get the file again"
            )


def open_parquet(file: Any) -> Any:
    """Open a `pyarrow.NativeFile` as a `pyarrow.parquet.ParquetFile`."""
    from pyarrow.parquet import ParquetFile

    # Without a buffer pyarrow would read whole column chunks; without threads of its own, for a
    # process that is forked would not have them.
    return ParquetFile(
        file, page_checksum_verification=True, buffer_size=_PAGES_BYTES, pre_buffer=False
    )


# Columns.


def _find_column(path: Path | str, schema: pa.Schema, field: str) -> tuple[str, ...]:
    """Return the path of a field; the name of a column may have a dot itself."""
    from pyarrow import types

    keys = (field,) if field in schema.names else tuple(field.split("."))
    node: Any = schema
    for key in keys:
        is_inside = node is schema or types.is_struct(node)
        names = [each.name for each in node] if is_inside else []
        if names.count(key) != 1:
            found = f"there are {listed(names)}" if is_inside else f"it would be inside of {node}"
            raise CorpusError(
                f"{path}: has {names.count(key)} columns named {key!r}, expected one for {field!r};"
                f" {found}; choose another with --content-field, or --chat for conversations"
            )
        node = node.field(key).type
    kind = node.value_type if types.is_dictionary(node) else node
    if not re.fullmatch(r"(large_)?(string|binary)(_view)?|fixed_size_binary\[\d+\]", str(kind)):
        raise CorpusError(
            f"{path}: column {field!r} is {node}, expected text; choose another with"
            " --content-field"
        )
    return keys


def _column(rows: pa.RecordBatch, path: tuple[str, ...]) -> pa.Array:
    """Return the array of a column, or of a field of its structs."""
    column = rows.column(path[0])
    if len(path) > 1:
        import pyarrow.compute as pc

        column = pc.struct_field(column, path[1:])
    return column


def _to_binary(column: pa.Array) -> pa.Array:
    """Return a valid column as `binary` or `large_binary`; keep invalid UTF-8.

    pyarrow's functions are used for what is stored in other ways alone: importing them takes longer
    than many a build, and they import pandas where it is installed.
    """
    import pyarrow as pa

    if isinstance(column, pa.DictionaryArray):
        known = _to_binary(column.dictionary).cast(pa.large_binary())  # rows may exceed 2 GiB
        checked = pa.DictionaryArray.from_arrays(column.indices, known)  # checks the indices
        return checked.dictionary.take(checked.indices)
    plain = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    if column.type == pa.string_view():
        column = column.cast(pa.binary_view())
    column = column.view(plain.get(column.type, column.type))
    column.validate(full=True)  # a wrong offset would read outside the buffer
    return column if column.type in plain.values() else column.cast(pa.large_binary())


def _json_in(kind: pa.DataType) -> Any:
    """Return where values of a type are JSON, as of the type `Json` of `datasets`, or maps.

    True: a value is JSON; a list, or a dict, with where they are in elements, or fields; a tuple:
    a value is a map, with where they are in its values; else None.
    """
    import pyarrow as pa

    if isinstance(kind, pa.JsonType):
        return True
    if pa.types.is_struct(kind):
        found = {each.name: where for each in kind if (where := _json_in(each.type))}
        return found or None
    if pa.types.is_map(kind):
        return (_json_in(kind.item_type),)
    inner = getattr(kind, "value_type", None)
    return [where] if inner and (where := _json_in(inner)) else None


def _plain(value: Any, json_in: Any) -> Any:
    """Return a value of a row with its JSON and maps, whose places `_json_in` returns, decoded.

    Names whose value is null are left out: structs have all names.
    """
    if value is None:
        return None
    if json_in is True:
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError) as error:
            reason = f"a value of the type JSON is none ({error}): {value[:100]!r}; correct it"
            raise BadRecordError(reason) from error
    if isinstance(json_in, tuple):  # older versions of pyarrow give pairs alone
        value = dict(value)
        json_in = dict.fromkeys(value, json_in[0])
    if isinstance(value, list):
        return [_plain(each, json_in and json_in[0]) for each in value]
    if isinstance(value, dict):
        named = json_in or {}
        return {x: _plain(each, named.get(x)) for x, each in value.items() if each is not None}
    return value


@contextmanager
def arrow_errors(file: InputFile, form: str) -> Iterator[None]:
    """Convert errors of pyarrow inside the `with` to `CorpusError`."""
    from pyarrow import ArrowException, ArrowMemoryError, ArrowNotImplementedError

    try:
        yield
    except TokenmillError:
        raise
    except (ArrowNotImplementedError, ArrowMemoryError) as error:
        raise CorpusError(
            f"{file.path}: {form} data cannot be read ({' '.join(str(error).split())}); write it in"
            " another way"
        ) from error
    except (ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        file.check_unchanged()
        what, remedy = "is damaged or truncated", "get the file again"
        if "decrypt" in str(error).lower():
            what, remedy = "is encrypted, and no keys are taken here", "write it without encryption"
        raise CorpusError(
            f"{file.path}: {form} data {what} ({' '.join(str(error).split())}); {remedy}"
        ) from error
