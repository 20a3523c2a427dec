"""Formats of files of rows: how arrays of rows become bytes, and are read again.

Each format is a `RecordFile`, which the table `FORMATS`, at the end, names. Bytes are the same
whenever the rows and the version of the library are. What is read is records, dictionaries of
values; a record is a row if its values are integers, as many in each column.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import pickle
import re
import zipfile
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
from numpy.lib import format as npy

from bpe.errors import TokenmillError
from bpe.parallel import cached_property
from preprocess.locations import how_to_repair, url_name
from preprocess.rows.columns import Numbers, RowBatch, Values
from preprocess.sources.base import import_zstandard
from preprocess.sources.columnar import END_OF_STREAM, FILE_MAGIC, open_parquet
from preprocess.sources.remote import Handle, RemoteFile, read_ahead

AnyFile = Path | RemoteFile
Record = dict[str, Any]
Row = dict[str, Values]

DUMP_FILE = "dump-meta_data.json"  # counts of pickled rows
_BUFFER_BYTES = 1 << 20
_INT32 = np.dtype(np.int32)


class RowsError(TokenmillError):
    """Rows cannot be made, or a file of rows cannot be read."""


class NewRows(NamedTuple):
    """Rows to write; `batches` returns them all, also if it is called again.

    The next batch takes the place of a batch in memory.
    """

    columns: tuple[str, ...]
    n_rows: int
    batches: Callable[[], Iterable[RowBatch]]


class RecordFile(ABC):
    """A file of records, read when it is asked for; raises RowsError for damage.

    A file that has no places to begin to read at is one block.

    Args:
        file: The file.
        n_records: Number of records, if it is known.
        is_whole: True to read it as a whole, also if it has places to begin at, but no blocks.

    Attributes:
        path: Of the file, for messages: a path, or a URL without what is secret.
        kind: What it should be, for messages.
        suffix: Of names of files.
        compressions: Those of the format, the default first.
        kept_bytes: Of blocks, that those who read records one by one should keep; None: all.
    """

    kind: str
    suffix: str
    compressions: tuple[str, ...]
    kept_bytes: int | None = None

    def __init__(
        self, file: AnyFile, n_records: int | None = None, is_whole: bool = False
    ) -> None:
        self.path = file if isinstance(file, Path) else file.path
        # A relative path is of the working directory now.
        self.file = file.absolute() if isinstance(file, Path) else file
        self.n_known, self.is_whole = n_records, is_whole

    @staticmethod
    @abstractmethod
    def write(file: IO[bytes], rows: NewRows, compression: str) -> None:
        """Write rows to an empty file."""

    @classmethod
    def suffix_of(cls, compression: str) -> str:
        """Return the suffix of files with a compression."""
        return cls.suffix

    @abstractmethod
    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the records from a number on."""

    def sizes(self) -> Iterable[int]:
        """Return the number of records of each block."""
        return [sum(1 for _ in self.records()) if self.n_known is None else self.n_known]

    def block(self, number: int) -> Any:
        """Read a block, a sequence of records; their arrays are not to be changed."""
        return [*self.records()]

    @cached_property
    def starts(self) -> Numbers:
        """Offsets of the blocks in records: int64[n_blocks + 1], the last is their number."""
        return np.append(0, np.cumsum([*self.sizes()], dtype=np.int64))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def rows(self) -> Iterator[Row]:
        """Yield all rows."""
        names = list[str]()
        for number, record in enumerate(self.records()):
            yield as_row(self.path, number, record, names)

    def open(self, is_forwards: bool = False) -> IO[bytes]:
        """Open the file; of a remote one ranges are read, ahead if it is read forwards."""
        if isinstance(self.file, Path):
            return open(self.file, "rb")
        file = read_ahead(self.file) if is_forwards else self.file
        return io.BufferedReader(Handle(file), _BUFFER_BYTES)

    @contextmanager
    def reading(self, place: str = "") -> Iterator[None]:
        """Convert what libraries raise for a damaged file, which is of many kinds, to RowsError."""
        try:
            yield
        except TokenmillError:  # of a server
            raise
        except Exception as error:
            raise self.damaged(error, place) from error

    def damaged(self, error: Exception, place: str = "") -> RowsError:
        """Return the error for a file that cannot be read as what it should be."""
        early = "it ends too early" if isinstance(error, EOFError) else type(error).__name__
        reason = " ".join(str(error).split())[:200] or early
        return RowsError(
            f"{self.path}: cannot be read as {self.kind}{place} ({reason}); get the file again, or,"
            f" of rows, run tokenmill {how_to_repair(str(self.path))}"
        )


def as_row(path: str | os.PathLike[str], number: int, record: Record, names: list[str]) -> Row:
    """Return a record as a row: int32[n] by name.

    Args:
        path: Of its file, for messages.
        number: Of the record, for messages.
        record: As it was read.
        names: Columns of the rows before it; filled if it is empty.

    Raises:
        RowsError: It is no row, or has other columns.
    """
    try:
        row = {name: _as_ids(name, values) for name, values in record.items()}
        if len({*map(len, row.values())}) > 1:
            raise ValueError("columns of different lengths; make the file again")
        names += () if names else row
        if [*row] != names:
            raise ValueError(
                f"the columns {', '.join(row)}, and rows before it {', '.join(names)}; put"
                " different rows into directories of their own"
            )
        ids = row.get("input_ids")
        if ids is not None and len(ids) and (least := int(np.minimum.reduce(ids))) < 0:
            raise ValueError(f"the id {least:,}, expected 0 or more; make the file again")
    except ValueError as error:
        raise RowsError(f"{path}: row {number:,}, counted from 0, has {error}") from None
    return row


def _as_ids(name: str, values: Any) -> Values:
    """Return a column of a record as int32[n]; raise ValueError if it is none."""
    if type(values) is np.ndarray and values.dtype is _INT32:  # most are
        return values
    is_array = isinstance(values, np.ndarray) and values.dtype.kind in "iub"
    if not is_array and not (isinstance(values, list) and {*map(type, values)} <= {int}):
        kind = "a list with other values" if isinstance(values, list) else (
            getattr(values, "dtype", type(values).__name__)
        )
        raise ValueError(
            f"{kind} in column {name!r}, expected integers, without nulls; these are no rows of"
            " tokens"
        )
    numbers = np.asarray(values, None if len(values) else np.int32)  # of any size
    if len(numbers) and not -(2**31) <= numbers.min() <= numbers.max() < 2**31:
        raise ValueError(f"numbers that are no int32 in column {name!r}; make the file again")
    return numbers.astype(np.int32, copy=False)


# --- Parquet and Arrow IPC files: a column of list<int32> for each array ---
#
# A block, a row group or a record batch, is a batch of rows. Arrow streams, such as the cache of
# `datasets`, are read, too.

# Those of 64 bits without a sign have no array: they are hashes rather than ids.
_DTYPES = {
    "int8": np.int32, "int16": np.int32, "int32": np.int32, "uint8": np.int32, "uint16": np.int32,
    "uint32": np.int64, "int64": np.int64,
}


def table_of(batch: RowBatch) -> Any:
    """Return rows as a `pyarrow.Table`, without a copy."""
    pa = pyarrow()
    offsets = pa.array(batch.offsets.astype(np.int32))
    arrays = [pa.ListArray.from_arrays(offsets, pa.array(each)) for each in batch.values.values()]
    return pa.Table.from_arrays(arrays, [*batch.values])


def pyarrow() -> Any:
    """Import pyarrow; raise RowsError if it is not installed."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise RowsError(
            "Parquet and Arrow rows are written and read with pyarrow, which is not installed;"
            " install it: pip install 'tokenmill[formats]'"
        ) from error
    return pa


class _TableFile(RecordFile):
    """A file of tables of pyarrow, a block each."""

    kept_bytes = 1 << 28

    @classmethod
    def write(cls, file: IO[bytes], rows: NewRows, compression: str) -> None:
        """Write a block for each batch."""
        pa = pyarrow()
        schema = pa.schema([(name, pa.list_(pa.int32())) for name in rows.columns])
        with cls.writer(file, schema, compression) as writer:
            for batch in rows.batches():
                writer.write_table(table_of(batch), max(1, len(batch)))

    @staticmethod
    @abstractmethod
    def writer(file: IO[bytes], schema: Any, compression: str) -> Any:
        """Return a writer of tables, which is a context manager."""

    @abstractmethod
    def tables(self, first: int) -> Iterator[Any]:
        """Yield the blocks from a number on, as a `pyarrow.Table` each."""

    def block(self, number: int) -> Block:
        """Read a block."""
        with self.reading(place := f", block {number:,}"):
            table = next(self.tables(number), pyarrow().table({}))  # none: the file was replaced
            return Block(self, place, table)

    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the records from a number on."""
        number = int(np.searchsorted(self.starts, first, "right")) - 1 if first else 0
        n, tables = int(self.starts[number]) if first else 0, self.tables(number)
        while True:
            with self.reading(place := f", after record {n:,}"):
                if (table := next(tables, None)) is None:
                    return
                block = Block(self, place, table)
            for i in range(max(first - n, 0), len(block)):
                yield {  # copies, which do not keep the block in memory
                    name: value.copy() if isinstance(value, np.ndarray) else value
                    for name, value in block[i].items()
                }
            n += len(block)

    def native(self, is_mapped: bool = False) -> Any:
        """Open the file as a `pyarrow.NativeFile`; of a remote one ranges are read."""
        pa = pyarrow()
        if not isinstance(self.file, Path):
            return pa.PythonFile(Handle(self.file), "r")
        return (pa.memory_map if is_mapped else pa.OSFile)(os.fsencode(self.file))


class Block:
    """Records in a `pyarrow.Table`, which is at a place of a file, for messages."""

    def __init__(self, file: _TableFile, place: str, table: Any) -> None:
        self._file, self._place, self._n = file, place, len(table)
        self.nbytes = table.nbytes
        names, columns = table.column_names, table.combine_chunks().columns
        self._columns = {name: _values_of(x) for name, x in zip(names, columns, strict=True)}

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> Record:
        try:
            return {name: value_of(index) for name, value_of in self._columns.items()}
        except Exception as error:  # text that is not UTF-8
            raise self._file.damaged(error, self._place) from error


def _values_of(column: Any) -> Callable[[int], Any]:
    """Return a function of the number of a record, which returns its value: an array or plain."""
    import pyarrow.compute as pc

    types, kind = pyarrow().types, column.type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    dtype = _DTYPES.get(str(kind.value_type)) if is_list else None
    flat = None if dtype is None else pc.list_flatten(column)
    if flat is None or flat.null_count:
        return lambda index: column[index].as_py()
    numbers = flat.to_numpy().astype(dtype, copy=False)
    is_valid = None if column.null_count == 0 else column.is_valid().to_numpy()
    lengths = pc.list_value_length(column).fill_null(0).to_numpy()
    ends = np.append(0, np.cumsum(lengths)).data  # whose numbers are Python's

    def values(index: int) -> Any:
        if is_valid is None or is_valid[index]:
            return numbers[ends[index] : ends[index + 1]]
        return None

    return values


class ArrowFile(_TableFile):
    """An Arrow file or stream; a block is a record batch. Local ones are memory-mapped."""

    kind, suffix, compressions = "Arrow", ".arrow", ("none", "zstd")

    @staticmethod
    def writer(file: IO[bytes], schema: Any, compression: str) -> Any:
        """Return a writer of record batches."""
        ipc = pyarrow().ipc
        options = ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        return ipc.new_file(file, schema, options=options)

    def sizes(self) -> Iterable[int]:
        """Return the number of records of each batch."""
        with self.reading():
            # One column, so that a compressed file is not decompressed to count its records.
            return [*map(len, self._batches(0, [0]))]

    def tables(self, first: int) -> Iterator[Any]:
        """Yield the record batches from a number on."""
        for batch in self._batches(first, []):  # all columns
            batch.validate(full=True)
            yield pyarrow().Table.from_batches([batch])

    def _batches(self, first: int, columns: list[int]) -> Iterator[Any]:
        """Yield the `pyarrow.RecordBatch`es from a number on; they are not validated."""
        ipc = pyarrow().ipc
        options = ipc.IpcReadOptions(included_fields=columns, use_threads=False)
        with self.native(is_mapped=True) as source:
            if source.read(len(FILE_MAGIC)) == FILE_MAGIC:
                reader = ipc.open_file(source, options=options)
                yield from map(reader.get_batch, range(first, reader.num_record_batches))
                return
            source.seek(0)
            yield from islice(ipc.open_stream(source, options=options), first, None)
            # A stream that ends after a batch is no error of pyarrow's.
            source.seek(max(0, source.size() - len(END_OF_STREAM)))
            if source.read() != END_OF_STREAM:
                raise OSError("an Arrow stream without the mark of its end, so it is truncated")


class ParquetFile(_TableFile):
    """A Parquet file; a block is a row group."""

    kind, suffix, compressions = "Parquet", ".parquet", ("zstd", "snappy", "none")

    @staticmethod
    def writer(file: IO[bytes], schema: Any, compression: str) -> Any:
        """Return a writer of row groups."""
        from pyarrow import parquet

        # Ids hardly repeat within a page: a dictionary would be given up after it was made.
        return parquet.ParquetWriter(
            file, schema, compression=compression, use_dictionary=False, write_statistics=False
        )

    def sizes(self) -> Iterable[int]:
        """Return the number of records of each row group, of the metadata."""
        with self.reading(", its metadata"), self._opened() as file:
            groups = file.metadata
            return [groups.row_group(number).num_rows for number in range(groups.num_row_groups)]

    def tables(self, first: int) -> Iterator[Any]:
        """Yield the row groups from a number on."""
        with self._opened() as file:
            for number in range(first, file.num_row_groups):
                table = file.read_row_group(number, use_threads=False)
                if len(table) != file.metadata.row_group(number).num_rows:
                    raise ValueError("other than the number of rows in the metadata")
                yield table

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open a `pyarrow.parquet.ParquetFile`."""
        with self.native() as opened, open_parquet(opened) as file:
            yield file


# --- JSON Lines: an object with a list of numbers for each column, plain or compressed ---

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_ROW = msgspec.json.Decoder(dict[str, list[int]])


class JsonFile(RecordFile):
    """A file of JSON Lines, which is one block; blank lines are no records.

    To read any line, the positions of all are kept in memory, unless the file is read as a whole.
    """

    kind, suffix, compressions = "JSON Lines", ".jsonl", ("none", "gzip", "zstd")
    _has_rows = True  # until a line has something else than lists of integers

    @staticmethod
    def write(file: IO[bytes], rows: NewRows, compression: str) -> None:
        """Write a line for each row."""
        encoder = msgspec.json.Encoder()
        stream: Any = nullcontext(file)
        if compression == "gzip":  # without the time of day and a name
            stream = gzip.GzipFile("", "wb", 6, file, mtime=0)
        elif compression == "zstd":
            stream = import_zstandard().ZstdFile(file, "wb")
        with stream as compressed:
            for batch in rows.batches():
                for start, stop in pairwise(batch.offsets.tolist()):
                    # Row by row, so that numbers as objects stay in the cache of the processor.
                    row = {x: batch.values[x][start:stop].tolist() for x in rows.columns}
                    compressed.write(encoder.encode(row) + b"\n")

    @classmethod
    def suffix_of(cls, compression: str) -> str:
        """Return the suffix of files with a compression around all of the file."""
        return cls.suffix + {"gzip": ".gz", "zstd": ".zst"}.get(compression, "")

    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the records from a number on."""
        for number, _, line in islice(self.lines(), first, None):
            yield self.decoded(number, line)

    def sizes(self) -> Iterable[int]:
        """Return the number of lines."""
        return super().sizes() if self._lines is None else [len(self._lines)]

    def block(self, number: int) -> Any:
        """Return the lines."""
        return super().block(number) if self._lines is None else self._lines

    @cached_property
    def _lines(self) -> Lines | None:
        """The lines, unless the file is compressed or read as a whole."""
        is_read = self.is_whole or str(self.path).endswith((".gz", ".zst"))
        return None if is_read else Lines(self)

    def lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (its number from 1, its position, a line), without blank lines.

        Positions are those in the decompressed file.

        Raises:
            RowsError: The file cannot be read or is damaged.
        """
        place = number = 0
        opened: Any = gzip.open if str(self.path).endswith(".gz") else nullcontext
        if str(self.path).endswith(".zst"):
            opened = import_zstandard().ZstdFile
        try:
            with self.open(is_forwards=True) as file, opened(file) as stream:
                for number, line in enumerate(stream, start=1):
                    begin, place = place, place + len(line)
                    if number == 1 and line.startswith(_BYTE_ORDER_MARK):
                        line, begin = line[len(_BYTE_ORDER_MARK) :], len(_BYTE_ORDER_MARK)
                    if line and not line.isspace():
                        yield number, begin, line
        except TokenmillError:  # of a server
            raise
        except Exception as error:
            raise self.damaged(error, f", after line {number:,}") from error

    def decoded(self, number: int, line: bytes) -> Record:
        """Return the object in a line, lists of integers as int64[n] as far as they fit."""
        from preprocess.sources.json_kernels import MAX_NESTING, is_nested_deeper

        try:
            if is_nested_deeper(line):
                raise RecursionError(f"its values are nested more than {MAX_NESTING} levels deep")
            if self._has_rows:
                try:  # it looks at the types of numbers itself, which is quick
                    row = _ROW.decode(line)
                    return {key: _numbers_of(value) for key, value in row.items()}
                except msgspec.ValidationError:
                    self._has_rows = False
            record = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RowsError(
                f"{self.path}: line {number:,} is no JSON object ({error}); correct the line, or"
                " get the file again"
            ) from error
        for key, value in record.items():
            if isinstance(value, list) and {*map(type, value)} == {int}:
                record[key] = _numbers_of(value)
        return record


def _numbers_of(values: list[int]) -> Any:
    """Return int64[n] of integers; the list, if there are none or some do not fit."""
    try:  # faster than np.array, which looks for a type
        return np.fromiter(values, np.int64, len(values)) if values else values
    except OverflowError:
        return values


class Lines:
    """The lines of a file that is not compressed, found by their positions in it."""

    def __init__(self, file: JsonFile) -> None:
        self._file, places = file, array("q")
        for number, place, line in file.lines():
            places.extend((number, place, len(line)))
        self._places = np.array(places, np.int64).reshape(-1, 3)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Record:
        number, place, n_bytes = self._places[index].tolist()
        with self._file.reading(), self._file.open() as stream:
            stream.seek(place)
            return self._file.decoded(number, stream.read(n_bytes))


# --- NPZ: a compressed array int32[n_rows, length] for each column, as of NumPy ---

_MOST_ARRAYS = 16


class NpzFile(RecordFile):
    """An NPZ file of arrays of integers, whose rows have one length; it is read as a whole."""

    kind, suffix, compressions = "NPZ", ".npz", ("zlib",)

    @staticmethod
    def write(file: IO[bytes], rows: NewRows, compression: str) -> None:
        """Write the rows of all batches, one column after another."""
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in rows.columns:
                entry = zipfile.ZipInfo(f"{name}.npy")  # without the time of day
                entry.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(entry, "w", force_zip64=True) as member:
                    for number, batch in enumerate(rows.batches()):
                        values = batch.values[name].astype("<i4", copy=False)
                        if not number:
                            shape = rows.n_rows, len(values) // max(1, len(batch))
                            about = {"descr": "<i4", "fortran_order": False, "shape": shape}
                            npy.write_array_header_1_0(member, about)
                        member.write(values.data)

    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the rows from a number on."""
        with self.reading():
            arrays = self._arrays()
        for rows in zip(*(each[first:] for each in arrays.values()), strict=True):
            yield dict(zip(arrays, rows, strict=True))

    def _arrays(self) -> dict[str, Any]:
        """Return integer[n_rows, length] of each column."""
        with self.open() as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if len(entries) > _MOST_ARRAYS:
                raise ValueError(f"{len(entries):,} arrays, expected {_MOST_ARRAYS} at most")
            found = {x.filename.removesuffix(".npy"): _read_array(archive, x) for x in entries}
        if len({each.shape for each in found.values()}) != 1:
            raise ValueError("the arrays differ in shape, expected one")
        return found


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Any:
    """Read an array if its header agrees with its size, and compare its checksum."""
    name = entry.filename
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name!r} has another compression than NumPy's")
    with archive.open(entry) as member:
        # Headers of later versions may be of 4 GB.
        if (version := npy.read_magic(member)) != (1, 0):
            raise ValueError(f"{name!r} has version {version}, expected (1, 0)")
        shape, is_fortran, dtype = npy.read_array_header_1_0(member)
        if len(shape) != 2 or dtype.kind not in "iub" or math.prod(shape) < 1:
            raise ValueError(
                f"array {name!r} is {dtype}{[*shape]}, expected integer[rows, length], not empty,"
                " with rows padded to one length"
            )
        n_bytes, n_expected = entry.file_size - member.tell(), dtype.itemsize * math.prod(shape)
        if n_bytes != n_expected:
            raise ValueError(
                f"{name!r} has {n_bytes:,} bytes, expected {n_expected:,} by its shape"
            )
        data = member.read()
    return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")


# --- pickled lists of lists of ids: `dump-N.pkl` ---
#
# Only ids are written. Where rows are padded, a second pickle follows in the same file, which those
# who load one do not see: the list of numbers of tokens of the rows, negative for padding on the
# left. Reading runs nothing: pickles of lists and numbers are loaded once each opcode was checked,
# and others read by code in which names of NumPy's arrays stand for classes here.

# Protocol 2 has no frames, so the pickle of a list is that of its elements with a few bytes around.
_PROTOCOL = 2
# Numbers of 8, 16 and 32 bits, lists, frames, and places in the memo, which nothing reads; these
# below 2^24, for a greater one makes the memo large.
_OPCODES = rb"(?s:K.|M..|J....|[\](ae\x94]|q.|r...\x00|\x95........)*+"
_PLAIN = re.compile(rb"\x80[\x02-\x05]" + _OPCODES + rb"\.")
_DTYPE = re.compile("[<>=|][iu][1248]")
_NAMES = re.compile(  # of arrays, in NumPy 1 and 2
    r"numpy\.(ndarray|dtype|_?core\.(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer))"
    r"|_codecs\.encode"
)


class PickledFile(RecordFile):
    """A pickled list of rows of ids; if they are padded, the token counts of rows follow it."""

    kind, suffix, compressions = "a pickle", ".pkl", ("none",)

    @staticmethod
    def write(file: IO[bytes], rows: NewRows, compression: str) -> None:
        """Write the ids of all batches as one list, without having it in memory."""
        file.write(pickle.PROTO + bytes([_PROTOCOL]) + pickle.EMPTY_LIST)
        counts = list[int]()
        for batch in rows.batches():
            numbers = batch.values["input_ids"].tolist()
            file.write(pickle.MARK)
            for start, stop in pairwise(batch.offsets.tolist()):
                # Without the protocol in front, and STOP at the end.
                file.write(pickle.dumps(numbers[start:stop], _PROTOCOL)[2:-1])
            file.write(pickle.APPENDS)
            if "attention_mask" in rows.columns:
                mask, starts = batch.values["attention_mask"], batch.offsets[:-1]
                n_tokens = np.add.reduceat(mask, starts)
                counts += np.where(mask[starts] > 0, n_tokens, -n_tokens).tolist()
        file.write(pickle.STOP)
        if counts:
            file.write(pickle.dumps(counts, _PROTOCOL))

    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the rows from a number on."""
        with self.reading(), self.open() as file:
            rows, counts = _load(file.read())
        for ids, n_tokens in zip(rows[first:], counts[first:], strict=True):
            record = {"input_ids": ids}
            if n_tokens is not None:
                mask = record["attention_mask"] = np.zeros(len(ids), np.int32)
                mask[:n_tokens], mask[len(ids) + n_tokens :] = n_tokens > 0, n_tokens < 0
            yield record


def _load(data: bytes) -> tuple[list[Any], list[int | None]]:
    """Load rows; anything else is refused, and nothing of it runs.

    Returns:
        (ids of each row: integer[n], the number of tokens in each, negative if padding is before
        them, None if rows are not padded).
    """
    found, end = _load_one(data, 0)
    if not isinstance(found, list | np.ndarray):
        raise _not_rows(f"a {type(found).__name__}")
    found = [*found]
    # Once for each object: a pickle may have one any number of times.
    made = {key: _ids_of(row) for key, row in {id(row): row for row in found}.items()}
    rows = [made[id(row)] for row in found]
    if end == len(data):
        return rows, [None] * len(rows)
    counts, last = _load_one(data, end)
    is_list = isinstance(counts, list) and {*map(type, counts)} == {int} and last == len(data)
    if not is_list or len(counts) != len(rows) or any(
        abs(count) > len(row) for count, row in zip(counts, rows, strict=True)
    ):
        raise ValueError("the list of padding is of other rows")
    return rows, counts


def _ids_of(row: Any) -> Any:
    """Return a row as integer[n]."""
    ids = row
    if isinstance(row, _Noted):
        ids = _plain(row)
    elif isinstance(row, list):
        numbers = [*map(_plain, row)] if _Noted in map(type, row) else row
        if {*map(type, numbers)} <= {int}:
            ids = np.array(numbers, None if row else np.int64)
    if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise _not_rows(f"{type(ids).__name__}, or something else, inside of rows")
    return ids


def _not_rows(found: str) -> ValueError:
    return ValueError(f"has {found}, expected a pickled list of lists of token ids")


def _load_one(data: bytes, begin: int) -> tuple[Any, int]:
    """Return (content of the pickle that begins at a byte, where it ends)."""
    if match := _PLAIN.match(data, begin):
        return pickle.loads(memoryview(data)[begin : match.end()]), match.end()
    stream = io.BytesIO(data)
    stream.seek(begin)
    return _plain(_Reader(stream).load()), stream.tell()


class _Noted:
    """A call that a pickle asks for: noted, not made; `state` is what it gives to the result."""

    def __init__(self, name: str, *arguments: Any) -> None:
        self.name, self.arguments, self.state = name, arguments, [None] * 5

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Reader(pickle._Unpickler):
    """The one in Python, for places in the memo take no memory there."""

    def _refuse(self: Any) -> None:
        raise ValueError("has an opcode which is in no pickle of rows")

    # Extensions, objects and buffers of the program are in none.
    dispatch = pickle._Unpickler.dispatch | dict.fromkeys(b"\x82\x83\x84PQ\x97\x98", _refuse)
    # Read as bytes, for memory of the size that it claims would be taken first.
    dispatch[pickle.BYTEARRAY8[0]] = dispatch[pickle.BINBYTES8[0]]

    def find_class(self, module: str, name: str) -> Any:
        if not _NAMES.fullmatch(f"{module}.{name}"):
            raise ValueError(
                f"names {module}.{name}, which is in no pickle of rows; it is refused, for a pickle"
                " may run any program when it is loaded"
            )
        # No `partial`, which a pickle could change to call itself.
        return lambda *arguments: _Noted(name, *arguments)


def _plain(value: Any) -> Any:
    """Return what a noted call would make, if it is an array or a number of NumPy."""
    if not isinstance(value, _Noted):
        return value
    shape: Any = ()
    order: Any = "C"
    if value.name == "scalar":
        kind, content = value.arguments
    elif value.name == "_frombuffer":
        content, kind, shape, order = value.arguments
    else:
        _, shape, kind, is_fortran, content = value.state
        order = "F" if is_fortran else "C"
    dtype = f"{kind.state[1] or '='}{kind.arguments[0]}"
    if not _DTYPE.fullmatch(dtype):
        raise _not_rows(f"arrays of {dtype}")
    if isinstance(content, _Noted):  # bytes, in protocol 2
        content = content.arguments[0].encode("latin1")
    found = np.frombuffer(content, dtype).reshape(shape, order=order)
    return found if found.ndim else int(found)


# --- the table ---


FORMATS: dict[str, type[RecordFile]] = {
    "parquet": ParquetFile, "arrow": ArrowFile, "jsonl": JsonFile, "npz": NpzFile,
    "pickle": PickledFile,
}


def name_of(file: AnyFile) -> str:
    """Return the name of a file in its directory."""
    return file.name if isinstance(file, Path) else url_name(file.url)


def format_of(name: str) -> str | None:
    """Return the name of the format of a file, by its name; None: it has no rows."""
    name = name.removesuffix(".gz").removesuffix(".zst")
    return next((key for key, each in FORMATS.items() if name.endswith(each.suffix)), None)


def open_file(
    file: AnyFile, n_records: int | None = None, is_whole: bool = False
) -> RecordFile:
    """Open a file of the format that its name says; see `RecordFile`."""
    return FORMATS[format_of(name_of(file)) or ""](file, n_records, is_whole)
