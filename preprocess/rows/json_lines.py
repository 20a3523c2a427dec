"""Rows in JSON Lines: an object with a list of numbers for each column, plain or compressed."""

from __future__ import annotations

import gzip
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import cached_property
from itertools import islice, pairwise
from typing import IO, Any

import msgspec
import numpy as np

from bpe.errors import TokenmillError
from preprocess.rows.formats import Batches, Record, RecordFile, RowsError
from preprocess.sources.base import import_zstandard

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonFile(RecordFile):
    """A file of JSON Lines, which is one block; blank lines are no records.

    To read any line, the positions of all are kept in memory; of a compressed file the text, for as
    long as the block is.
    """

    @staticmethod
    def write(
        file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int, batches: Batches
    ) -> None:
        """Write a line for each row."""
        encoder = msgspec.json.Encoder()
        with _compressed(file, compression) as stream:
            for batch in batches():
                for start, stop in pairwise(batch.offsets.tolist()):
                    # Row by row, so that numbers as objects stay in the cache of the processor.
                    row = {name: batch.values[name][start:stop].tolist() for name in columns}
                    stream.write(encoder.encode(row) + b"\n")

    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the records from a number on."""
        for number, _, line in islice(self.lines(), first, None):
            yield self.decoded(number, line)

    def sizes(self) -> Iterable[int]:
        """Return the number of lines."""
        if not self.is_plain and self.n_known is not None:
            return [self.n_known]
        return [len(self._lines) if self.is_plain else sum(1 for _ in self.lines())]

    def block(self, number: int) -> Lines:
        """Return the lines."""
        return self._lines if self.is_plain else Lines(self)

    @cached_property
    def _lines(self) -> Lines:
        return Lines(self)

    @property
    def is_plain(self) -> bool:
        """True if the file is not compressed."""
        return not str(self.path).endswith((".gz", ".zst"))

    def lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (its number from 1, its position, a line), without blank lines.

        Positions are those in the decompressed file.

        Raises:
            RowsError: The file cannot be read or is damaged.
        """
        place = number = 0
        errors: tuple[type[Exception], ...] = (OSError, EOFError, zlib.error)
        opened: Any = gzip.open if str(self.path).endswith(".gz") else nullcontext
        if str(self.path).endswith(".zst"):
            zstd = import_zstandard()
            opened, errors = zstd.ZstdFile, (*errors, zstd.ZstdError)
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
        except errors as error:
            raise self.damaged(f"JSON Lines, after line {number:,}", error) from error

    def decoded(self, number: int, line: bytes | bytearray) -> Record:
        """Return the object in a line, lists of integers as int64[n] as far as they fit."""
        from preprocess.sources.json_kernels import MAX_NESTING, is_nested_deeper

        try:
            if is_nested_deeper(bytes(line)):
                raise RecursionError(f"its values are nested more than {MAX_NESTING} levels deep")
            record = msgspec.json.decode(line, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RowsError(
                f"{self.path}: line {number:,} is no JSON object ({error}); correct the line, or"
                " get the file again"
            ) from error
        for key, value in record.items():
            if isinstance(value, list) and {*map(type, value)} == {int}:
                numbers = np.array(value)
                record[key] = numbers if numbers.dtype == np.int64 else value
        return record


class Lines:
    """The lines of a file, found by their positions in it; of a compressed one in its text."""

    def __init__(self, file: JsonFile) -> None:
        self._file, places = file, array("q")
        self._text = None if file.is_plain else bytearray()
        for number, place, line in file.lines():
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
            return self._file.decoded(number, self._text[start:stop])
        try:
            with self._file.open() as stream:
                stream.seek(start)
                return self._file.decoded(number, stream.read(stop - start))
        except OSError as error:
            raise self._file.damaged("JSON Lines", error) from error


def _compressed(file: IO[bytes], compression: str) -> Any:
    """Return a context manager that yields a stream which compresses into a file."""
    if compression == "gzip":
        return gzip.GzipFile("", "wb", 6, file, mtime=0)  # without the time of day and a name
    return import_zstandard().ZstdFile(file, "wb") if compression == "zstd" else nullcontext(file)
