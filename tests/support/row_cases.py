"""Datasets for rows, and rows read back, for tests."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import written

from preprocess import TokenFile, open_tokens
from preprocess.dataset.columns import MASK
from preprocess.rows.columns import RowBatch
from preprocess.rows.formats import open_file
from preprocess.rows.manifest import read_manifest

END = 299


def need(format_name: str) -> None:
    """Skip where the library of a format is not installed."""
    if format_name in ("parquet", "arrow"):
        pytest.importorskip("pyarrow", reason="needs the extra `formats`")


def dataset(directory: Path, sizes: list[int], seed: int = 0, shard_tokens: int | None = None,
            mask: bool = False) -> TokenFile:
    """Documents of so many tokens, the last of which is the end of text."""
    chosen = np.random.default_rng(seed)
    documents = [[*chosen.integers(0, END, size - 1), END] for size in sizes]
    more: dict[str, Any] = {"shard_tokens": shard_tokens}
    if mask:

        more["has_mask"] = True
    with written.token_file(directory, "train", vocab_size=301, **more) as writer:
        for each in documents:
            ids = np.array(each, np.uint16)
            columns = {MASK.name: (ids % 3 > 0).astype(np.uint8)} if mask else {}
            writer.append(ids, np.array([len(each)], np.int64), **columns)
        writer.finish(end_of_text_id=END, **written.FIELDS)
    return open_tokens(directory / "train.bin")


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
