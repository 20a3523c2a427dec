"""Rows of tokens as map-style datasets for PyTorch's `DataLoader` and transformers' `Trainer`.

The collator makes batches, and pads rows of different lengths; without one, rows should have the
same length. Tensors are on the CPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

try:
    import torch
    from torch.utils.data import Dataset, Sampler
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "datasets for a DataLoader need PyTorch, which is not installed; install it: pip install"
        " 'tokenmill[torch]'", name=error.name,
    ) from error

from bpe.arguments import checked
from preprocess.rows.columns import Numbers
from preprocess.rows.formats import DUMP_FILE, RowsError, open_file
from preprocess.rows.loaders import find_part, found_instead, open_rows, row_files
from preprocess.rows.manifest import MANIFEST_FILE
from preprocess.sampling.data import IGNORED, SamplingError, check_integer
from preprocess.storage import open_files

Tensors = dict[str, torch.Tensor]
Arrays = Mapping[str, npt.NDArray[Any]]


@checked
class TokenizedDataset(Dataset[Tensors]):
    """The rows of a directory; item i is row i: the columns of its file, int64[n_tokens] each.

    Files are those of `rows.json`, or all of a format, ordered by name. Rows are read when they are
    asked for: 256 MiB of decoded row groups (Parquet) and record batches (Arrow) are kept, and of
    JSON Lines the positions of lines. Compressed JSON Lines, NPZ and pickled files are decoded
    whole and kept in memory: choose `StreamingTokenizedDataset` for more of them than fit.

    Args:
        directory: Written by `tokenmill rows`, or by others, with files of one format; or a URL.

    Raises:
        RowsError: There are no rows, or of several formats, or they are damaged.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._rows = open_rows(directory)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensors:
        return _tensors_of(self._rows.row(index))


@checked
class StreamingTokenizedDataset(TokenizedDataset):
    """The rows of a directory as a `TokenizedDataset`, with some blocks in memory at a time.

    A block is a row group of Parquet, a record batch of Arrow, or a whole file of JSON Lines, NPZ
    or pickled rows. Those used last are kept, in each worker, so an order that goes from block to
    block at random reads one for nearly each row: `DataLoader(shuffle=True)` does. `shuffled` is an
    order that does not. Without `rows.json`, files that are one block are read once to count their
    rows.

    Args:
        directory: As of `TokenizedDataset`.
        cache_size: Number of blocks in memory, at least 1.

    Raises:
        RowsError: There are no rows, or of several formats, or they are damaged.
        SamplingError: `cache_size` is no such number.
    """

    def __init__(self, directory: str | os.PathLike[str], cache_size: int = 10) -> None:
        self._cache_size = check_integer("cache_size", cache_size, 1)
        self._rows = open_rows(directory, self._cache_size)

    def shuffled(self, seed: int = 0) -> ShuffledBlocks:
        """Return an order in which a pass reads each block once: `DataLoader(sampler=...)`."""
        return ShuffledBlocks(self._rows.block_starts, self._cache_size, seed)


@checked
class ShuffledBlocks(Sampler[int]):
    """Numbers of rows: blocks in random order, some at a time, whose rows are mixed.

    Args:
        starts: int64[n_blocks + 1], where blocks begin.
        n_mixed: Number of blocks at a time.
        seed: Of the order, which is another one in each epoch.
    """

    def __init__(self, starts: Numbers, n_mixed: int, seed: int) -> None:
        self._starts, self._n_mixed = starts, n_mixed
        self._seed = check_integer("seed", seed, 0)
        # (epoch, count of numbers that were given) of this iteration, and where the next begins.
        self._place = self._next = 0, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, counted from 0."""
        self._place = self._next = check_integer("epoch", epoch, 0), 0

    def state_dict(self) -> dict[str, int]:
        """Return where the iteration is, which torchdata's `StatefulDataLoader` saves."""
        epoch, given = self._place
        return {"seed": self._seed, "rows": len(self), "epoch": epoch, "given": given}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue where an iteration was; raise SamplingError for a state of other rows."""
        own = self.state_dict()
        if state.keys() != own.keys() or any(state[x] != own[x] for x in ("seed", "rows")):
            raise SamplingError(
                f"state: should be of an order of {len(self):,} rows with seed {self._seed}; got"
                f" {dict(state)!r:.100}"
            )
        self.set_epoch(state["epoch"])
        given = check_integer("given", state["given"], 0, len(self))
        self._place = self._next = self._place[0], given

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __iter__(self) -> Iterator[int]:
        epoch, given = self._place = self._next
        if given:  # a place that was loaded is that of one iteration, also if it is not begun
            self._next = epoch + 1, 0
        return self._numbers(epoch, given)

    def _numbers(self, epoch: int, given: int) -> Iterator[int]:
        self._next = epoch + 1, 0
        for number in islice(self._order(epoch), given, None):
            given += 1
            self._place = epoch, given
            yield number

    def _order(self, epoch: int) -> Iterator[int]:
        random = np.random.default_rng([self._seed, epoch])
        order = random.permutation(len(self._starts) - 1)
        for first in range(0, len(order), self._n_mixed):
            mixed = order[first : first + self._n_mixed]
            rows = [np.arange(*self._starts[block : block + 2]) for block in mixed]
            yield from random.permutation(np.concatenate(rows)).tolist()


@checked
class PickledTrainerDataset(Dataset[Tensors]):
    """The rows of the files dump-N.pkl of some folders, with what a causal model trains on.

    Item i has `input_ids`, `attention_mask` and `labels` (the ids), int64[n_tokens] each; where
    rows were padded, the mask is 0 and labels are -100. Rows are in memory, 5 bytes per token, 9 of
    padded ones. A pickle is read without running anything of it; rows in it may be lists or NumPy
    arrays.

    The counts in a folder's dump-meta_data.json are printed, and compared with what is there.

    Args:
        folders: Directories, or URLs in buckets, in order.

    Raises:
        RowsError: A folder has no such file, one has anything but rows of ids, or there are other
            files, samples or tokens than dump-meta_data.json says.
    """

    def __init__(
        self, folders: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
    ) -> None:
        given = [folders] if isinstance(folders, str | os.PathLike) else [*folders]
        if not given:
            raise RowsError("no folders with files dump-*.pkl were given; give one or several")
        self._rows = [row for folder in given for row in _rows_in(folder)]
        self._starts = np.array([0, len(self._rows)])

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Tensors:
        _, place = find_part(self._starts, index)
        return _tensors_of(self._rows[place])


def _rows_in(folder: str | os.PathLike[str]) -> list[Arrays]:
    """Return the rows of a folder, with masks; its counts are printed and compared.

    Raises:
        RowsError: There are none, or others than the counts say.
    """
    files, there = open_files(folder), row_files(folder)
    paths = [x for name, x in there.items() if re.fullmatch(r"dump-.*\.pkl", name)]
    if not paths and files.size(MANIFEST_FILE) is not None:  # a file of each input, of its name
        paths = [x for name, x in there.items() if name.endswith(".pkl")]
    if not paths:
        instead = found_instead(files.where(), (".pkl",))
        raise RowsError(f"{files.where()}: there is no file dump-*.pkl in this folder{instead}")
    rows = list[Arrays]()
    for row in (row for path in paths for row in open_file(path).rows()):
        # A mask of one byte per token; without one, all are tokens.
        ids = row["input_ids"]
        mask = row.get("attention_mask", np.ones(len(ids))).astype(np.int8)
        labels = ids if mask.all() else np.where(mask, ids, np.int32(IGNORED))
        rows.append({**row, "attention_mask": mask, "labels": labels})
    if (content := files.get(DUMP_FILE)) is None:
        return rows
    meta = files.where(DUMP_FILE)
    try:
        counts = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise RowsError(
            f"{meta}: is no JSON object with counts ({error}); get it again, or remove it"
        ) from error
    print(f"{meta}: {', '.join(f'{name} {value}' for name, value in counts.items())}")
    n_tokens = sum(int(row["attention_mask"].sum()) for row in rows)
    found = {"files": len(paths), "samples": len(rows), "tokens": n_tokens}
    for name, number in found.items():
        # Some write numbers as text.
        if str(expected := counts.get(name, number)) != str(number):
            raise RowsError(
                f"{meta}: expected {expected!r} {name}, found {number} in the .pkl files; get"
                " those that are missing, or write the rows again"
            )
    return rows


def _tensors_of(row: Arrays) -> Tensors:
    """Return copies, which may be written to, and outlive a memory map."""
    return {name: torch.from_numpy(values.astype(np.int64)) for name, values in row.items()}
