"""Rows in NPZ files: a compressed array int32[n_rows, length] for each column, as of NumPy."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from bpe.errors import TokenmillError
from preprocess.rows.formats import Batches, Record, RecordFile, RowsError

_MOST_ARRAYS = 16


class NpzFile(RecordFile):
    """An NPZ file of arrays of integers, whose rows have one length; it is read as a whole."""

    @staticmethod
    def write(
        file: IO[bytes], columns: tuple[str, ...], compression: str, n_rows: int, batches: Batches
    ) -> None:
        """Write the rows of all batches, one column after another."""
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in columns:
                entry = zipfile.ZipInfo(f"{name}.npy")  # without the time of day
                entry.compress_type = zipfile.ZIP_DEFLATED
                with archive.open(entry, "w", force_zip64=True) as member:
                    for number, batch in enumerate(batches()):
                        values = batch.values[name].astype("<i4", copy=False)
                        if not number:
                            shape = n_rows, len(values) // max(1, len(batch))
                            about = {"descr": "<i4", "fortran_order": False, "shape": shape}
                            npy.write_array_header_1_0(member, about)
                        member.write(values.data)

    def records(self, first: int = 0) -> Iterator[Record]:
        """Yield the rows from a number on."""
        try:
            arrays = self._arrays()
        except TokenmillError:
            raise
        # NumPy reads the header of an array as Python, which fails in many ways.
        except Exception as error:
            raise self.damaged("NPZ", error) from error
        for rows in zip(*(array[first:] for array in arrays.values()), strict=True):
            yield dict(zip(arrays, rows, strict=True))

    def _arrays(self) -> dict[str, Any]:
        """Return integer[n_rows, length] of each column."""
        with self.open() as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if len(entries) > _MOST_ARRAYS:
                raise RowsError(f"{self.path}: has {len(entries):,} arrays; these are no rows")
            found = {x.filename.removesuffix(".npy"): _read(archive, x) for x in entries}
        for name, array in found.items():
            if array.ndim != 2 or array.dtype.kind not in "iub" or not array.size:
                raise RowsError(
                    f"{self.path}: array {name!r} is {array.dtype}{list(array.shape)}, expected"
                    " int32[rows, length]; these are no rows of tokens"
                )
        if len({array.shape for array in found.values()}) != 1:
            raise RowsError(
                f"{self.path}: the arrays differ in shape, expected one; make it again"
            )
        return found


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Any:
    """Read an array, and compare its digest."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{entry.filename!r} has another compression than NumPy's")
    with archive.open(entry) as member:
        # Headers of later versions may be of 4 GB, and are read before that is checked.
        if (version := npy.read_magic(member)) != (1, 0):
            raise ValueError(f"{entry.filename!r} has version {version}, expected (1, 0)")
        shape, is_fortran, dtype = npy.read_array_header_1_0(member)
        data = b"" if dtype.hasobject else member.read()
    if dtype.itemsize * math.prod(shape) != len(data):
        raise ValueError(f"{entry.filename!r} has {len(data):,} bytes, expected {dtype}{[*shape]}")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if is_fortran else "C")
