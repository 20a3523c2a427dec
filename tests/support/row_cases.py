"""Datasets for rows, and rows read back, for tests."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from written import END, dataset

from preprocess import TokenFile
from preprocess.rows.columns import RowBatch
from preprocess.rows.formats import open_file
from preprocess.rows.manifest import read_manifest

__all__ = ["END", "dataset", "documents_of", "need", "read", "rows_in", "rows_of"]


def need(format_name: str) -> None:
    """Skip where the library of a format is not installed."""
    if format_name in ("parquet", "arrow"):
        pytest.importorskip("pyarrow", reason="needs the extra `formats`")


def documents_of(file: TokenFile) -> list[list[int]]:
    return [file.doc(i).tolist() for i in range(file.n_documents)]


def rows_in(directory: Path) -> list[dict[str, list[int]]]:
    """All rows of a directory, read back."""
    return [row for each in read_manifest(directory).shards for row in read(directory / each.name)]


def rows_of(batch: RowBatch) -> list[dict[str, list[int]]]:
    return [
        {name: values[start:stop].tolist() for name, values in batch.values.items()}
        for start, stop in pairwise(batch.offsets.tolist())
    ]


def read(path: Path) -> list[dict[str, list[int]]]:
    """All rows of a file."""
    return [
        {name: values.tolist() for name, values in row.items()} for row in open_file(path).rows()
    ]
