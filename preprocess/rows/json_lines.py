"""Rows in JSON Lines: an object with a list of numbers for each column, plain or compressed."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from preprocess.rows.arrow import as_int32
from preprocess.rows.columns import RowBatch
from preprocess.rows.formats import RowsError
from preprocess.sources.base import import_zstandard

NEEDS_PADDING = False
_ROWS = 1 << 8  # that are read at a time
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


def read_shard(path: Path) -> Iterator[RowBatch]:
    """Yield the rows of a file in batches; blank lines are none."""
    lines = ((number, line) for _, number, line in numbered_lines(path))
    while some := [*islice(lines, _ROWS)]:
        yield decode_lines(path, some)


def numbered_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield (its position, its number from 1, a line) of a file, without blank lines.

    Positions are those in the decompressed file.

    Raises:
        RowsError: The file cannot be read or is damaged.
    """
    place = number = 0
    opener, errors = opener_of(path)
    try:
        with opener(path) as stream:
            for number, line in enumerate(stream, start=1):
                begin, place = place, place + len(line)
                if number == 1 and line.startswith(_BYTE_ORDER_MARK):
                    line, begin = line[len(_BYTE_ORDER_MARK) :], len(_BYTE_ORDER_MARK)
                if line and not line.isspace():
                    yield begin, number, line
    except errors as error:
        raise RowsError(
            f"{path}: cannot be read as JSON Lines, after line {number:,}"
            f" ({' '.join(str(error).split())[:200]}); get the file again, or run tokenmill verify"
            " --repair"
        ) from error


class Lines:
    """The lines of a file, without blank ones, found by number.

    Positions are kept in memory; of a compressed file also the text.

    Attributes:
        nbytes: Bytes in memory.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._text = path, bytearray()
        is_plain, places = path.suffix not in (".gz", ".zst"), array("q")
        for place, number, line in numbered_lines(path):
            places.extend((place if is_plain else len(self._text), number))
            self._text += b"" if is_plain else line
        self._places = np.array(places, np.int64).reshape(-1, 2)
        self._is_plain, self.nbytes = is_plain, self._places.nbytes + len(self._text)

    def __len__(self) -> int:
        return len(self._places)

    def line(self, index: int) -> tuple[int, bytes]:
        """Return (its number in the file, a line), 0 <= index < len."""
        place, number = self._places[index].tolist()
        if not self._is_plain:
            return number, bytes(self._text[place : self._text.find(b"\n", place) + 1 or None])
        try:
            with open(self._path, "rb") as stream:
                stream.seek(place)
                return number, stream.readline()
        except OSError as error:
            raise RowsError(
                f"{self._path}: cannot be read ({error.strerror}); get the file again"
            ) from error


def decode_lines(path: Path, lines: list[tuple[int, bytes]]) -> RowBatch:
    """Return the rows of one or more (line number, line); raise RowsError if one is none."""
    decoder = msgspec.json.Decoder(dict[str, list[int]])
    rows = []
    for number, line in lines:
        try:
            rows.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RowsError(
                f"{path}: line {number:,} is no row of tokens ({error}); make the file"
                " again, or run tokenmill verify --repair"
            ) from error
    names = [*rows[0]]
    for (number, _), row in zip(lines, rows, strict=True):
        if [*row] != names or len({len(each) for each in row.values()}) > 1:
            raise RowsError(
                f"{path}: line {number:,} has other columns than the line before it, or columns of"
                " different lengths; make the file again"
            )
    offsets = np.append(0, np.cumsum([len(row[names[0]]) if names else 0 for row in rows]))
    try:
        values = {
            name: as_int32(path, name, np.array([x for row in rows for x in row[name]], np.int64))
            for name in names
        }
    except OverflowError as error:
        raise RowsError(f"{path}: has numbers that are no int32; make it again") from error
    return RowBatch(offsets.astype(np.int64), values)


@contextmanager
def _compressed(file: IO[bytes], compression: str) -> Iterator[Any]:
    if compression == "gzip":
        import gzip

        # Without the time of day and a name.
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as stream:
            yield stream
    elif compression == "zstd":
        with import_zstandard().ZstdFile(file, "wb") as stream:
            yield stream
    else:
        yield file


def opener_of(path: Path) -> tuple[Callable[[Path], Any], tuple[type[Exception], ...]]:
    """Return what opens a file, decompressed by its suffix, and the errors of a damaged one."""
    if path.suffix == ".gz":
        import gzip
        import zlib

        return gzip.open, (OSError, EOFError, zlib.error)
    if path.suffix == ".zst":
        zstd = import_zstandard()
        return zstd.ZstdFile, (OSError, EOFError, zstd.ZstdError)
    return partial(open, mode="rb"), (OSError,)
