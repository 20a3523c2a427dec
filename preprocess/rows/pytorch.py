"""Rows of tokens as map-style datasets for PyTorch's `DataLoader` and transformers' `Trainer`.

The collator makes batches, and pads rows of different lengths; without one, rows should have the
same length. Tensors are on the CPU.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

try:
    import torch
    from torch.utils.data import Dataset
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "datasets for a DataLoader need PyTorch, which is not installed; install it: pip install"
        " 'tokenmill[torch]'", name=error.name,
    ) from error

from bpe.files.locations import local_path
from preprocess.rows import pickled
from preprocess.rows.access import BlockCache, Row, in_order, joined, open_rows, open_shards
from preprocess.rows.columns import RowBatch
from preprocess.rows.formats import RowsError
from preprocess.sampling.data import check_integer

Tensors = dict[str, torch.Tensor]


class TokenizedDataset(Dataset[Tensors]):
    """The rows of a directory; item i is row i: the columns of its file, int64[n_tokens] each.

    Files are those of `rows.json`, or all of a format, ordered by name. Rows are read when they are
    asked for: 256 MiB of decoded row groups (Parquet) and record batches (Arrow) are kept, and of
    JSON Lines the positions of lines. Compressed JSON Lines, NPZ and pickled files are decoded
    whole and kept in memory: choose `StreamingTokenizedDataset` for more of them than fit.

    Args:
        directory: Written by `tokenmill rows`, or by others, with files of one format.

    Raises:
        RowsError: There are no rows, or of several formats, or they are damaged.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._rows = open_rows(Path(local_path(directory)))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensors:
        return _tensors_of(self._rows.row(operator.index(index)))


class StreamingTokenizedDataset(Dataset[Tensors]):
    """The rows of a directory as a `TokenizedDataset`, with some files in memory at a time.

    Whole files are decoded, and those used last are kept, in each worker. An order that goes from
    file to file at random decodes one for nearly each row: keep the order of rows, or let
    `cache_size` be the number of files. Without `rows.json`, NPZ, pickled and JSON Lines files are
    read once to count their rows.

    Args:
        directory: As of `TokenizedDataset`.
        cache_size: Number of files in memory, at least 1.

    Raises:
        RowsError: There are no rows, or of several formats, or they are damaged.
        SamplingError: `cache_size` is no such number.
    """

    def __init__(self, directory: str | os.PathLike[str], cache_size: int = 10) -> None:
        self._cache = BlockCache[RowBatch](check_integer("cache_size", cache_size, 1))
        self._rows = open_shards(Path(local_path(directory)), self._cache)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensors:
        return _tensors_of(self._rows.row(operator.index(index)))


class PickledTrainerDataset(Dataset[Tensors]):
    """The rows of the files dump-N.pkl of some folders, with what a causal model trains on.

    Item i has `input_ids`, `attention_mask` (ones) and `labels` (the ids), int64[n_tokens] each.
    Rows are in memory, 4 bytes per token. A pickle is read without running anything of it.

    Args:
        folders: One or several, in order.

    Raises:
        RowsError: A folder has no such file, or one has anything but lists of lists of ids.
    """

    def __init__(
        self, folders: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
    ) -> None:
        paths: list[Path] = []
        given = [folders] if isinstance(folders, str | os.PathLike) else folders
        for folder in map(local_path, given):
            found = in_order(Path(folder).glob("dump-*.pkl"))
            if not found:
                raise RowsError(f"{folder}: there is no file dump-*.pkl in this folder")
            paths += found
        if not paths:
            raise RowsError("no folders with files dump-*.pkl were given; give one or several")
        batches = (batch for path in paths for batch in pickled.read_shard(path))
        self._rows = joined(paths[0], batches)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensors:
        n, place = len(self), operator.index(index)
        place += n if place < 0 else 0
        if not 0 <= place < n:
            raise IndexError(f"there are {n:,} rows; got {index}")
        begin, end = self._rows.offsets[place : place + 2].tolist()
        ids = torch.from_numpy(self._rows.values["input_ids"][begin:end].astype(np.int64))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def _tensors_of(row: Row) -> Tensors:
    """Return copies, which may be written to, and outlive a memory map."""
    return {name: torch.from_numpy(values.astype(np.int64)) for name, values in row.items()}
