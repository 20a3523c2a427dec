"""Rows in JSON Lines: an object with a list of numbers for each column, plain or compressed."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import cached_property
from itertools import islice, pairwise
from typing import IO, Any

import msgspec
import numpy as np

from bpe.errors import TokenmillError
from preprocess.rows.columns import RowBatch
from preprocess.rows.formats import Record, RecordFile, RowsError, damaged
from preprocess.rows.places import AnyPath, open_binary
from preprocess.sources.base import import_zstandard

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def write_shard(
    file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int,
    batches: Callable[[], Iterable[RowBatch]],
) -> None:
    """Write a line for each row."""
    encoder = msgspec.json.Encoder()
    with _compressed(file, compression) as stream:
        for batch in batches():
            for start, stop in pairwise(batch.offsets.tolist()):
                # Row by row, so that numbers as objects stay in the cache of the processor.
                row = {name: batch.values[name][start:stop].tolist() for name in columns}
                stream.write(encoder.encode(row) + b"\n")


class File(RecordFile):
    """A file of JSON Lines, which is one block; blank lines are no records.

    To read any line, the positions of all are kept in memory; of a compressed file the text, for as
    long as the block is.
    """

    def _sizes(self) -> Iterable[int]:
        if self._is_plain:
            return [len(self._lines)]
        known = self.n_known
        return [sum(1 for _ in _numbered_lines(self.path)) if known is None else known]

    def block(self, number: int) -> Lines:
        """Return the lines."""
        return self._lines if self._is_plain else Lines(self.path)

    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the records from a number on."""
        for number, _, line in islice(_numbered_lines(self.path), first, None):
            yield _decoded(self.path, number, line)

    @property
    def _is_plain(self) -> bool:
        return self.path.suffix not in (".gz", ".zst")

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self.path)


class Lines:
    """The lines of a file, found by their positions in it; of a compressed one in its text."""

    def __init__(self, path: AnyPath) -> None:
        self._path, places = path, array("q")
        self._text = bytearray() if path.suffix in (".gz", ".zst") else None
        for number, place, line in _numbered_lines(path):
            if self._text is not None:
                place = len(self._text)
                self._text += line
            places.extend((number, place, place + len(line)))
        self._places = np.array(places, np.int64).reshape(-1, 3)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Record:
        number, start, stop = self._places[index].tolist()
        if self._text is not None:
            return _decoded(self._path, number, self._text[start:stop])
        try:
            with open_binary(self._path) as stream:
                stream.seek(start)
                return _decoded(self._path, number, stream.read(stop - start))
        except OSError as error:
            raise damaged(self._path, "JSON Lines", error) from error


def _numbered_lines(path: AnyPath) -> Iterator[tuple[int, int, bytes]]:
    """Yield (its number from 1, its position, a line) of a file, without blank lines.

    Positions are those in the decompressed file.

    Raises:
        RowsError: The file cannot be read or is damaged.
    """
    place = number = 0
    decompressed, errors = _decompressor(path)
    try:
        with open_binary(path, is_forwards=True) as file, decompressed(file) as stream:
            for number, line in enumerate(stream, start=1):
                begin, place = place, place + len(line)
                if number == 1 and line.startswith(_BYTE_ORDER_MARK):
                    line, begin = line[len(_BYTE_ORDER_MARK) :], len(_BYTE_ORDER_MARK)
                if line and not line.isspace():
                    yield number, begin, line
    except TokenmillError:  # of a server
        raise
    except errors as error:
        raise damaged(path, f"JSON Lines, after line {number:,}", error) from error


def _decoded(path: AnyPath, number: int, line: bytes | bytearray) -> Record:
    """Return the object in a line, lists of integers as int64[n] as far as they fit."""
    from preprocess.sources.json_kernels import MAX_NESTING, is_nested_deeper

    try:
        if is_nested_deeper(bytes(line)):
            raise RecursionError(f"its values are nested more than {MAX_NESTING} levels deep")
        record = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RowsError(
            f"{path}: line {number:,} is no JSON object ({error}); correct the line, or get the"
            " file again"
        ) from error
    for key, value in record.items():
        if isinstance(value, list) and {*map(type, value)} == {int}:
            numbers = np.array(value)
            record[key] = numbers if numbers.dtype == np.int64 else value
    return record


def _compressed(file: IO[bytes], compression: str) -> Any:
    """Return a context manager that yields a stream which compresses into a file."""
    if compression == "gzip":
        import gzip

        return gzip.GzipFile("", "wb", 6, file, mtime=0)  # without the time of day and a name
    if compression == "zstd":
        return import_zstandard().ZstdFile(file, "wb")
    return nullcontext(file)


def _decompressor(path: AnyPath) -> tuple[Callable[[Any], Any], tuple[type[Exception], ...]]:
    """Return what decompresses a file, by its suffix, and the errors of a damaged one."""
    if path.suffix == ".gz":
        import gzip
        import zlib

        return gzip.open, (OSError, EOFError, zlib.error)
    if path.suffix == ".zst":
        zstd = import_zstandard()
        return zstd.ZstdFile, (OSError, EOFError, zstd.ZstdError)
    return nullcontext, (OSError,)
