"""Rows in NPZ files: a compressed array int32[n_rows, length] for each column, as of NumPy."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from bpe.errors import TokenmillError
from preprocess.rows.columns import RowBatch
from preprocess.rows.formats import Record, RowsError, WholeFile, damaged
from preprocess.rows.places import AnyPath, open_binary

_ROWS_BYTES = 1 << 22  # of a column that are read at a time
_MOST_ARRAYS = 16
_LONGEST = 1 << 24  # tokens of a row, which is read as a whole


def write_shard(
    file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int,
    batches: Callable[[], Iterable[RowBatch]],
) -> None:
    """Write the rows of all batches, one column after another."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in columns:
            entry = zipfile.ZipInfo(f"{name}.npy")  # without the time of day
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as member:
                length = None
                for batch in batches():
                    if length is None:
                        length = len(batch.values[name]) // max(1, len(batch))
                        about = {"descr": "<i4", "fortran_order": False, "shape": (n_rows, length)}
                        npy.write_array_header_1_0(member, about)
                    member.write(batch.values[name].astype("<i4", copy=False).data)


class File(WholeFile):
    """An NPZ file of arrays of integers, whose rows have one length."""

    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the rows from a number on."""
        try:
            with open_binary(self.path) as file, zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                _check_entries(self.path, entries)
                yield from islice(_read_rows(self.path, archive, entries), first, None)
        except TokenmillError:
            raise
        # NumPy reads the header of an array as Python, which fails in many ways.
        except Exception as error:
            raise damaged(self.path, "NPZ", error) from error


def _check_entries(path: AnyPath, entries: list[zipfile.ZipInfo]) -> None:
    """Raise RowsError for an archive that NumPy has not written."""
    if len(entries) > _MOST_ARRAYS:
        raise RowsError(f"{path}: has {len(entries):,} arrays; these are no rows of tokens")
    for entry in entries:
        is_plain = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if not is_plain or entry.flag_bits & 1:
            raise RowsError(
                f"{path}: {entry.filename!r} is encrypted, or of another compression than"
                " NumPy's; write it with numpy.savez_compressed"
            )


def _read_rows(
    path: AnyPath, archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo]
) -> Iterator[Record]:
    names = [entry.filename.removesuffix(".npy") for entry in entries]
    members = [archive.open(entry) for entry in entries]
    arrays = zip(names, members, entries, strict=True)
    headers = [_header_of(path, *each) for each in arrays]
    if len(shapes := {shape for shape, _ in headers}) != 1:
        raise RowsError(f"{path}: the arrays differ in shape, expected one; make it again")
    ((n_rows, length),) = shapes
    at_once = max(1, _ROWS_BYTES // (4 * max(1, length)))
    for first in range(0, n_rows, at_once):
        n = min(at_once, n_rows - first)
        found = [
            _read(path, member, n * length, dtype).reshape(n, length)
            for member, (_, dtype) in zip(members, headers, strict=True)
        ]
        for rows in zip(*found, strict=True):
            yield dict(zip(names, rows, strict=True))
    for member in members:
        member.close()  # compares the digest of an array


def _header_of(
    path: AnyPath, name: str, member: IO[bytes], entry: zipfile.ZipInfo
) -> tuple[tuple[int, int], np.dtype[Any]]:
    """Return (shape, dtype) of an array."""
    # Headers of later versions may be of 4 GB, and are read before that is checked.
    if (version := npy.read_magic(member)) != (1, 0):
        raise ValueError(f"array {name!r} has version {version} of the format, expected (1, 0)")
    shape, is_fortran, dtype = npy.read_array_header_1_0(member)
    if len(shape) != 2 or is_fortran or dtype.kind not in "iub":
        raise RowsError(
            f"{path}: array {name!r} is {dtype}{list(shape)}, expected int32[rows, length]; these"
            " are no rows of tokens"
        )
    n_rows, length = shape
    size = entry.file_size - member.tell()
    if n_rows < 1 or not 1 <= length <= _LONGEST or dtype.itemsize * n_rows * length != size:
        raise RowsError(
            f"{path}: array {name!r} should have {n_rows:,} rows of {length:,} numbers, and has"
            f" {size:,} bytes; make it again"
        )
    return (n_rows, length), dtype


def _read(path: AnyPath, member: IO[bytes], n: int, dtype: np.dtype[Any]) -> Any:
    data = member.read(dtype.itemsize * n)
    if len(data) != dtype.itemsize * n:
        raise RowsError(f"{path}: an array is shorter than its entry says; make it again")
    return np.frombuffer(data, dtype)
