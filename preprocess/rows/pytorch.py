"""Rows of tokens as map-style datasets for PyTorch's `DataLoader` and transformers' `Trainer`.

The collator makes batches, and pads rows of different lengths; without one, rows should have the
same length. Tensors are on the CPU.
"""

from __future__ import annotations

import json
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
from preprocess.rows.access import BlockCache, Row, in_order, open_rows, open_shards
from preprocess.rows.formats import DUMP_FILE, RowsError
from preprocess.sampling.data import IGNORED, check_integer

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
        self._cache = BlockCache(check_integer("cache_size", cache_size, 1))
        self._rows = open_shards(Path(local_path(directory)), self._cache)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensors:
        return _tensors_of(self._rows.row(operator.index(index)))


class PickledTrainerDataset(Dataset[Tensors]):
    """The rows of the files dump-N.pkl of some folders, with what a causal model trains on.

    Item i has `input_ids`, `attention_mask` and `labels` (the ids), int64[n_tokens] each; where
    rows were padded, the mask is 0 and labels are -100. Rows are in memory, 5 bytes per token. A
    pickle is read without running anything of it; rows in it may be lists or NumPy arrays.

    The counts in a folder's dump-meta_data.json are printed, and compared with what is there.

    Args:
        folders: One or several, in order.

    Raises:
        RowsError: A folder has no such file, one has anything but rows of ids, or there are other
            files, samples or tokens than dump-meta_data.json says.
    """

    def __init__(
        self, folders: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
    ) -> None:
        ids, masks, lengths = [np.empty(0, np.int32)], [np.empty(0, np.bool_)], [np.zeros(1, int)]
        given = [folders] if isinstance(folders, str | os.PathLike) else [*folders]
        if not given:
            raise RowsError("no folders with files dump-*.pkl were given; give one or several")
        for folder in map(local_path, given):
            paths = in_order(Path(folder).glob("dump-*.pkl"))
            if not paths:
                raise RowsError(f"{folder}: there is no file dump-*.pkl in this folder")
            n_before = len(ids)
            for batch in (batch for path in paths for batch in pickled.read_shard(path)):
                ids.append(batch.values["input_ids"])
                mask = batch.values.get("attention_mask", np.ones_like(ids[-1]))
                masks.append(mask.astype(np.bool_))
                lengths.append(np.diff(batch.offsets))
            _compare_with_meta(Path(folder), {
                "files": len(paths), "samples": sum(map(len, lengths[n_before:])),
                "tokens": sum(int(mask.sum()) for mask in masks[n_before:]),
            })
        self._ids, self._mask = np.concatenate(ids), np.concatenate(masks)
        self._offsets = np.cumsum(np.concatenate(lengths))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Tensors:
        n, place = len(self), operator.index(index)
        place += n if place < 0 else 0
        if not 0 <= place < n:
            raise IndexError(f"there are {n:,} rows; got {index}")
        begin, end = self._offsets[place : place + 2].tolist()
        ids = torch.from_numpy(self._ids[begin:end].astype(np.int64))
        mask = torch.from_numpy(self._mask[begin:end].astype(np.int64))
        labels = ids.masked_fill(mask == 0, IGNORED)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _compare_with_meta(folder: Path, found: dict[str, int]) -> None:
    """Print dump-meta_data.json, if it is there; raise RowsError if its counts are others."""
    path = folder / DUMP_FILE
    if not path.exists():
        return
    try:
        counts = json.loads(path.read_bytes())
        print(f"{path}: {', '.join(f'{name} {value}' for name, value in counts.items())}")
    except (OSError, ValueError, AttributeError) as error:
        raise RowsError(
            f"{path}: is no JSON object with counts ({error}); get it again, or remove it"
        ) from error
    for name, number in found.items():
        expected = counts.get(name, number)
        if expected != number:
            raise RowsError(
                f"{path}: expected {expected:,} {name}, found {number:,} in the files"
                " dump-*.pkl; get those that are missing, or write the rows again"
            )


def _tensors_of(row: Row) -> Tensors:
    """Return copies, which may be written to, and outlive a memory map."""
    return {name: torch.from_numpy(values.astype(np.int64)) for name, values in row.items()}
