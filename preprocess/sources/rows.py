"""Rows of Arrow record batches: base of the formats that pyarrow reads.

A document is the text in one or several columns of a row. Units carry their text; a resume point is
[byte, row]. The bytes of the file are divided among its rows only so that all of them are digested.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs

from bpe.errors import CorpusError, TokenmillError, listed
from bpe.parallel import run_ahead
from bpe.text_file import InputFile, new_array
from preprocess.documents.batch import (
    Bytes,
    DocumentBatch,
    Offsets,
    ReadOptions,
    Rejected,
    prepare,
)
from preprocess.reused_memory import ReusedMemory
from preprocess.sources.base import Array, FileSource, FileUnit, ResumePoint, import_library
from preprocess.sources.fields import PRESETS, join_documents
from preprocess.sources.json_records import shown_path
from preprocess.sources.remote import Handle, ReadAhead, RemoteFile

if TYPE_CHECKING:
    import pyarrow as pa

    # (rows of the file before the batch, the batch, bytes of the file up to its end)
    Rows = tuple[int, pa.RecordBatch, int]

_UNITS_AHEAD = 2  # that a thread decodes while the one that asked for them does other work
_TINY_BYTES = 256 * 1024  # of a file that needs no thread, which costs a tenth of its time
_LEAST_BYTES = 4 * 1024 * 1024  # of memory for a unit, unless the unit is smaller


@dataclass(frozen=True, eq=False)
class _RowRange(FileUnit):
    """Rows of a file from `first` on."""

    first: int
    _: KW_ONLY
    is_last: bool = False

    @property
    @abstractmethod
    def end(self) -> int:
        """Number of the row after the last one."""

    @property
    def where(self) -> str:
        return f"{self.file.path}, rows {self.first:,} to {self.end:,}"

    @property
    def after(self) -> ResumePoint | None:
        return None if self.is_last else [self.stop, self.end]


@dataclass(frozen=True, eq=False)
class RowsUnit(_RowRange):
    """Rows from `first` on: row i of the unit is `text[offsets[i] : offsets[i + 1]]`."""

    text: Bytes
    offsets: Offsets
    bad: Offsets  # int64[n], the bad rows, counted from `first`: their text is empty

    @property
    def end(self) -> int:
        return self.first + len(self.offsets) - 1

    @property
    def n_held(self) -> int:
        return len(self.text)

    def read(self, array: Array = new_array) -> DocumentBatch:
        bounds = np.repeat(self.offsets, 2)[1:-1]
        batch = DocumentBatch(self.text, bounds, content=self.content(array))
        prepared = prepare(batch, self.reading, self._row)
        if not len(self.bad):
            return prepared
        path, reason = shown_path(self.file), "a field is null, expected text"
        rows = (self.bad + self.first).tolist()
        rejected = tuple(Rejected(path, row, None, reason) for row in rows)
        n_empty = prepared.n_empty - len(rejected)
        return structs.replace(prepared, n_empty=n_empty, rejected=rejected)

    def _row(self, position: int) -> str:
        row = self.first + int(np.searchsorted(self.offsets, position, side="right")) - 1
        return f"{self.file.path}: row {row:,}"


@dataclass(frozen=True, eq=False)
class ChatRowsUnit(_RowRange):
    """Conversations in rows from `first` on."""

    records: list[dict[str, Any]]

    @property
    def end(self) -> int:
        return self.first + len(self.records)

    @property
    def n_held(self) -> int:
        return self.reading.unit_size

    @property
    def is_rendered(self) -> bool:
        return True

    def read(self, array: Array = new_array) -> DocumentBatch:
        from preprocess.documents.conversations import BadConversationError
        from preprocess.sources.chats import batch_of, render_record, without_null

        rendered, rejected = list[Any](), list[Rejected]()
        for row, record in enumerate(self.records, self.first):
            try:
                given = {name: without_null(value) for name, value in record.items()}
                rendered.append(render_record(given, self.reading))
            except BadConversationError as error:
                if not self.reading.skip_bad_records:
                    raise CorpusError(f"{self.file.path}: row {row:,}: {error}") from error
                rejected.append(Rejected(shown_path(self.file), row, None, str(error)))
        batch = batch_of(rendered, self.content(array))
        prepared = prepare(batch, structs.replace(self.reading, strip=False), self.byte)
        return structs.replace(prepared, rejected=tuple(rejected))


class _Filling:
    """Rows that are copied out of batches until they make a unit.

    So units are as long as those of other formats, and batches are not kept. Only a row that is
    longer than a unit is not copied.
    """

    def __init__(self, start: int, first: int) -> None:
        self._start, self._first, self.n_rows, self._n_bytes = start, first, 0, 0
        self._text = np.zeros(0, np.uint8)
        # Starts of documents, and bad rows, of each batch.
        self._starts = [np.zeros(0, np.int64)]
        self._bad = [np.zeros(0, np.int64)]

    def add(
        self, text: Bytes, offsets: Offsets, bad: Offsets, begin: int, size: int, array: Array
    ) -> int:
        """Add the rows from `begin` on that a unit of `size` bytes has room for; return their end.

        A row that is longer than a unit becomes one by itself.
        """
        limit = min(int(offsets[begin]) + size - self._n_bytes, int(offsets[-1]))
        end = int(np.searchsorted(offsets, limit, side="right")) - 1
        # The offsets of short rows take no more memory than a unit's text.
        end = min(end, begin + max(size // 8, 1) - self.n_rows)
        if end > begin:
            stop = self._n_bytes + int(offsets[end] - offsets[begin])
            if stop > len(self._text):
                self._grow(stop, size, array)
            self._text[self._n_bytes : stop] = text[offsets[begin] : offsets[end]]
        elif not self.n_rows:
            end = begin + 1
            stop = int(offsets[end] - offsets[begin])
            self._text = text[offsets[begin] : offsets[end]]
        else:
            return begin
        self._starts.append(offsets[begin:end] - offsets[begin] + self._n_bytes)
        self._bad.append(bad[(bad >= begin) & (bad < end)] - begin + self.n_rows)
        self._n_bytes, self.n_rows = stop, self.n_rows + end - begin
        return end

    def _grow(self, n_bytes: int, size: int, array: Array) -> None:
        """Move the text to memory for `n_bytes` or more, but at most `size` bytes."""
        larger = array(min(size, max(n_bytes, 2 * len(self._text), _LEAST_BYTES)))
        larger[: self._n_bytes] = self._text[: self._n_bytes]
        self._text = larger

    def unit(self, file: InputFile, reading: ReadOptions, stop: int) -> RowsUnit:
        text = self._text[: self._n_bytes]
        text.flags.writeable = False
        offsets = np.concatenate([*self._starts, [self._n_bytes]])
        bad = np.concatenate(self._bad)
        return RowsUnit(file, reading, self._start, stop, self._first, text, offsets, bad)


class RowsSource(FileSource):
    """One file of rows; subclasses define `_schema` and `_batches`.

    Raises:
        CorpusError: The file is damaged, or a column is missing or is not text.
    """

    format = ""
    is_compressed = True

    def __init__(self, file: InputFile, name: str, reading: ReadOptions) -> None:
        super().__init__(file, name, reading)
        # Memory that pyarrow returns to the system after each batch has to be mapped again for the
        # next one, which takes a fifth of the time of a run.
        os.environ.setdefault("MIMALLOC_PURGE_DELAY", "-1")
        self._pyarrow = import_library("pyarrow", self.format)
        self._large = self._pyarrow.large_string(), self._pyarrow.large_binary()
        with self._errors():
            self.schema = self._schema()
            self.columns = self._choose_columns()

    def _choose_columns(self) -> list[tuple[str, ...]]:
        """Return the paths of what is read: columns with text, or with conversations."""
        from preprocess.documents.conversations import FIELDS_BESIDE
        from preprocess.sources.chats import choose_fields

        names = self.schema.names
        chosen, fields = choose_fields(self.file.path, names, self.reading)
        self.has_spans = chosen.chat != "off"
        self.reading_of_units = structs.replace(self.reading_of_units, chat=chosen.chat)
        if not self.has_spans:
            return [self._find_column(field) for field in fields]
        for field in fields:
            if names.count(field) != 1:
                raise CorpusError(
                    f"{self.file.path}: has {names.count(field)} columns named {field!r}, expected"
                    f" one, for conversations need {listed(fields)}; choose another --chat"
                )
        return [(name,) for name in (*fields, *(x for x in names if x in FIELDS_BESIDE))]

    @abstractmethod
    def _schema(self) -> pa.Schema:
        """Return the schema of the file."""

    @abstractmethod
    def _batches(self, row: int) -> Iterator[Rows]:
        """Yield the batches of the file that have row `row` and later ones."""

    def _open_file(self, ahead: ReadAhead | None = None) -> Any:
        """Open the file for pyarrow, a `pyarrow.NativeFile`; a remote one is read by `ahead`."""
        if isinstance(self.file, RemoteFile):
            return self._pyarrow.PythonFile(Handle(ahead or ReadAhead(self.file)), "r")
        return self._pyarrow.OSFile(os.fsencode(self.file.path))

    def units(self, after: ResumePoint | None = None) -> Generator[RowsUnit | ChatRowsUnit]:
        units = self._units(*(after or [0, 0]))
        return run_ahead(units, _UNITS_AHEAD) if self.n_bytes > _TINY_BYTES else units

    def _units(self, start: int, row: int) -> Generator[RowsUnit | ChatRowsUnit]:
        held: RowsUnit | ChatRowsUnit
        if self.has_spans:
            held = ChatRowsUnit(self.file, self.reading_of_units, start, start, row, [])
        else:
            held = _Filling(start, row).unit(self.file, self.reading_of_units, start)
        with self._errors():
            for unit in (self._chat_units if self.has_spans else self._text_units)(start, row):
                # The last unit has the bytes after the last row, too.
                if held.end > held.first:
                    yield held
                held = unit
        yield replace(held, stop=self.n_bytes, is_last=True)

    def _text_units(self, start: int, row: int) -> Iterator[RowsUnit]:
        """Yield units of rows from `row` on; the bytes of a batch are in proportion to its rows."""
        size = self.reading.unit_size
        memory = ReusedMemory(limit=256, largest=1 << 26)
        filling = _Filling(start, row)
        for first, rows, stop in self._batches(row):
            text, offsets, bad = self._text_of(first, rows)
            n = len(offsets) - 1
            begin = cut = max(row - first, 0)  # rows from `cut` on have the bytes [start, stop)
            while begin < n:
                end = filling.add(text, offsets, bad, begin, size, memory.array)
                if end < n:
                    start, cut = start + (stop - start) * (end - cut) // (n - cut), end
                    yield filling.unit(self.file, self.reading_of_units, start)
                    filling = _Filling(start, first + end)
                begin = end
            self.file.check_unchanged()
            start = stop
        if filling.n_rows:
            yield filling.unit(self.file, self.reading_of_units, start)

    def _chat_units(self, start: int, row: int) -> Iterator[ChatRowsUnit]:
        """Yield units of conversations, as `_text_units`; each is of one batch."""
        for first, rows, stop in self._batches(row):
            rows.validate(full=True)  # a wrong offset would read outside the buffer
            n = len(rows)
            n_of_unit = max(1, self.reading.unit_size * n // max(estimate_decoded_bytes(rows), 1))
            for begin in range(max(row - first, 0), n, n_of_unit):
                end = min(begin + n_of_unit, n)
                unit_stop = start + (stop - start) * (end - begin) // (n - begin)
                records = rows.slice(begin, end - begin).to_pylist()
                unit = self.file, self.reading_of_units, start, unit_stop, first + begin, records
                yield ChatRowsUnit(*unit)
                start = unit_stop
            self.file.check_unchanged()

    def _text_of(self, first: int, rows: pa.RecordBatch) -> tuple[Bytes, Offsets, Offsets]:
        """Return (text of all rows, uint8[n_bytes], offsets int64[n_rows + 1], bad rows int64)."""
        columns = [self._column(rows, path) for path in self.columns]
        is_null = np.zeros(len(rows), np.bool_)
        if not self.reading.text_preset:
            for path, column in zip(self.columns, columns, strict=True):
                if column.null_count:
                    is_null |= column.is_null().to_numpy(zero_copy_only=False)
                    if not self.reading.skip_bad_records:
                        row, field = first + int(is_null.argmax()), ".".join(path)
                        raise CorpusError(
                            f"{self.file.path}: row {row:,}: column {field!r} is null, expected"
                            " text; correct or remove it"
                        )
        else:
            binary = [self._to_binary(column).to_pylist() for column in columns]
            values = (
                [None if x is None else x.decode(errors="surrogateescape") for x in row]
                for row in zip(*binary, strict=True)
            )
            joined, starts = join_documents(map(PRESETS[self.reading.text_preset].join, values))
            return joined, starts, np.flatnonzero(is_null)
        text = self._join(columns)
        _, offsets_buffer, data = text.buffers()
        width = "<i8" if text.type in self._large else "<i4"
        offsets = np.frombuffer(offsets_buffer or bytes(8), width)
        offsets = offsets[text.offset : text.offset + len(text) + 1].astype(np.int64, copy=False)
        content = np.frombuffer(data or b"", np.uint8)
        if offsets[0] < 0 or offsets[-1] > len(content) or (offsets[1:] < offsets[:-1]).any():
            raise self._pyarrow.ArrowInvalid(f"offsets of text from row {first:,} on do not ascend")
        return content, offsets, np.flatnonzero(is_null)

    def _column(self, rows: pa.RecordBatch, path: tuple[str, ...]) -> Any:
        """Return the array of a column, or of a field of its structs."""
        name, *inside = path
        column = rows.column(name)
        for key in inside:
            import pyarrow.compute as pc

            column = pc.struct_field(column, key)
        # Decoded, so that null values of a dictionary are null.
        is_dictionary = self._pyarrow.types.is_dictionary(column.type)
        return self._to_binary(column) if is_dictionary else column

    def _join(self, columns: list[Any]) -> Any:
        """Return one array of strings or binary values; null becomes empty."""
        pa = self._pyarrow
        plain = (*self._large, pa.string(), pa.binary())
        if len(columns) == 1 and not columns[0].null_count and columns[0].type in plain:
            return columns[0]  # nothing is imported or copied
        import pyarrow.compute as pc

        binary = [self._to_binary(column) for column in columns]
        newline = pa.scalar(b"\n", pa.large_binary())
        text = binary[0] if len(binary) == 1 else pc.binary_join_element_wise(*binary, newline)
        return text.fill_null(b"")

    def _to_binary(self, column: Any) -> Any:
        """Return a column as `large_binary`; invalid UTF-8 is kept: `prepare` decides about it."""
        pa = self._pyarrow
        if pa.types.is_dictionary(column.type):
            return self._to_binary(column.dictionary).take(column.indices)  # checks the indices
        unchecked = {
            pa.string(): pa.binary(), pa.large_string(): pa.large_binary(),
            pa.string_view(): pa.binary_view(),
        }  # fmt: skip
        column = column.cast(unchecked.get(column.type, column.type))
        column.validate(full=True)  # a wrong offset would read outside the buffer
        return column.cast(pa.large_binary())

    def _find_column(self, field: str) -> tuple[str, ...]:
        """Return the path of a field; the name of a column may have a dot itself."""
        path = (field,) if field in self.schema.names else tuple(field.split("."))
        node: Any = self.schema
        for key in path:
            names = [node.field(i).name for i in range(self._n_fields(node))]
            if key not in names:
                raise CorpusError(
                    f"{self.file.path}: has no column named {field!r}, there are {listed(names)};"
                    " choose another with --content-field"
                )
            if names.count(key) > 1:
                raise CorpusError(
                    f"{self.file.path}: has {names.count(key)} columns named {key!r}, expected one;"
                    " write it with different names"
                )
            found = node.field(names.index(key))
            node = found.type
        types = self._pyarrow.types
        kind = node.value_type if types.is_dictionary(node) else node
        is_text = (
            types.is_string, types.is_large_string, types.is_string_view, types.is_binary,
            types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary,
        )
        if not any(check(kind) for check in is_text):
            raise CorpusError(
                f"{self.file.path}: column {field!r} is {node}, expected text; choose another with"
                " --content-field"
            )
        return path

    def _n_fields(self, node: Any) -> int:
        if isinstance(node, self._pyarrow.Schema):
            return len(node)
        return int(node.num_fields) if self._pyarrow.types.is_struct(node) else 0

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert errors of pyarrow to `CorpusError`."""
        try:
            yield
        except TokenmillError:
            raise
        except (self._pyarrow.ArrowNotImplementedError, self._pyarrow.ArrowMemoryError) as error:
            raise CorpusError(
                f"{self.file.path}: {self.format} data cannot be read"
                f" ({' '.join(str(error).split())}); write it in another way"
            ) from error
        except (self._pyarrow.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
            self.file.check_unchanged()
            raise CorpusError(
                f"{self.file.path}: {self.format} data is damaged or truncated"
                f" ({' '.join(str(error).split())}); get the file again"
            ) from error


def estimate_decoded_bytes(values: pa.RecordBatch | pa.Array) -> int:
    """Return about how many bytes the values have if dictionaries in them are decoded."""
    import pyarrow as pa

    if isinstance(values, pa.RecordBatch):
        return sum(estimate_decoded_bytes(column) for column in values.columns)
    if isinstance(values, pa.DictionaryArray):
        import pyarrow.compute as pc

        known = values.dictionary
        by_mean = len(values) * int(known.nbytes) // max(len(known), 1)
        if known.type not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
            return by_mean
        lengths = pc.binary_length(known).take(values.indices)
        # Rows after a sample may have longer values, so they are taken to be as long as the mean.
        return max(by_mean, int(pc.sum(lengths).as_py() or 0))
    if isinstance(values, pa.StructArray):
        return sum(estimate_decoded_bytes(field) for field in values.flatten())
    lists = (
        pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray, pa.ListViewArray,
        pa.LargeListViewArray,
    )  # fmt: skip
    if isinstance(values, lists) and not isinstance(values, pa.MapArray):
        return estimate_decoded_bytes(values.flatten())
    return int(values.nbytes)
