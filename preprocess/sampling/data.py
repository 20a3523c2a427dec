"""Data to draw windows from: token files, paths of them, and arrays of ids."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bpe.errors import TokenmillError
from bpe.files.locations import is_url
from bpe.parallel import Lock
from preprocess.dataset.reader import TokenFile, open_tokens
from preprocess.dataset.shards import ShardView, windows_of
from preprocess.reused_memory import ReusedMemory

if TYPE_CHECKING:
    import torch

    from preprocess.sampling.windows import Pieces

Identity = tuple[tuple[int, ...], ...]
Batch = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.integer[Any]] | ShardView
OpenDataset = TokenFile | npt.NDArray[np.integer[Any]]
Dataset = OpenDataset | str | os.PathLike[str]

_GREATEST = 2**40  # of sizes and steps, so that positions of windows do not overflow
IGNORED = -100  # a target that a loss leaves out, as in PyTorch

# A loop usually has two batches of two arrays: one in use, one being drawn.
outputs = ReusedMemory(limit=8, largest=1 << 24)
# Files opened by path, least recently used first; a training loop alternates between two.
_files: dict[str, tuple[Identity, TokenFile]] = {}
_FILES_KEPT = 16
_lock = Lock()


class SamplingError(TokenmillError, ValueError):
    """A batch cannot be drawn from this data with these arguments."""


def check_integer(name: str, value: Any, least: int, most: float = _GREATEST) -> int:
    """Return an argument as an int; raise SamplingError if it is no integer, or out of range."""
    try:
        found = operator.index(value)  # small NumPy integers would overflow
    except TypeError:
        raise SamplingError(f"{name} should be an integer; got {value!r}") from None
    if found < least:
        raise SamplingError(f"{name} should be at least {least}; got {found}")
    if found > most:
        raise SamplingError(f"{name} should be at most {most:,}; got {found:,}")
    return found


def check_state(state: Any, names: Iterable[str], of: str) -> None:
    """Raise SamplingError if a state is no dictionary, or lacks a name."""
    if not isinstance(state, Mapping):
        raise SamplingError(
            f"the state of {of} should be a dictionary, what its state_dict() returned; got"
            f" {type(state).__name__}"
        )
    for name in names:
        if name not in state:
            raise SamplingError(
                f"the state of {of} has no {name!r}; give what its state_dict() returned"
            )


def name_of(dataset: Dataset) -> str:
    """Return the path of a dataset, for messages."""
    path = dataset.path if isinstance(dataset, TokenFile) else dataset
    return "the array" if isinstance(path, np.ndarray) else os.fspath(path)


def read_windows(
    dataset: OpenDataset, starts: npt.NDArray[np.int64], length: int, column: Tokens | None = None
) -> npt.NDArray[np.integer[Any]]:
    """Copy windows of `length` ids, or values of a column: integer[n, length]; starts int64[n]."""
    tokens = token_array(dataset) if column is None else column
    if isinstance(dataset, TokenFile):
        dataset.count_reads(len(starts), len(starts) * length)
    if isinstance(tokens, ShardView):
        return tokens.windows(starts, length)
    found: npt.NDArray[np.integer[Any]] = windows_of(tokens, length)[starts]
    return found


def read_pieces(
    dataset: OpenDataset, pieces: Pieces, padding: int, inputs: Batch, targets: Batch,
    column: Tokens | None = None,
) -> None:
    """Copy the inputs and the targets of pieces to their places in a batch, and fill it up.

    Args:
        dataset: An open file, or an array.
        pieces: All inside the dataset.
        padding: For places without an input; those without a target have `IGNORED`.
        inputs: int64[n_windows, context_length], filled.
        targets: int64, of the same shape, filled.
        column: Values to copy instead of ids, one for each token.
    """
    tokens, table = token_array(dataset) if column is None else column, pieces.table
    inputs, targets = inputs.reshape(-1), targets.reshape(-1)
    if not isinstance(dataset, TokenFile):
        copy_pieces(tokens, table, padding, inputs, targets)
        return
    dataset.count_reads(table.shape[1], inputs.size)
    if not isinstance(tokens, ShardView):
        _copy_by_kernel(tokens, table, padding, inputs, targets)
        return
    starts, n_inputs, n_targets, *_ = table
    last = starts + np.maximum(n_inputs - 1, n_targets)
    if len(starts) and (starts.min() < 0 or last.max() >= len(tokens)):
        raise outside()
    with tokens.at(lambda: (starts, last + 1)) as here:
        _copy_of_shards(here, table, padding, inputs, targets)


def _copy_of_shards(
    tokens: ShardView, table: Batch, padding: int, inputs: Batch, targets: Batch
) -> None:
    """Copy pieces, all inside the view."""
    if len(tokens.arrays) == 1:
        _copy_by_kernel(tokens.arrays[0], table, padding, inputs, targets)
        return
    starts, n_inputs, n_targets, *_ = table
    last = starts + np.maximum(n_inputs - 1, n_targets)
    limits = np.searchsorted(tokens.starts, (starts, last), "right") - 1
    inside = limits[0] == limits[1]
    for number in np.unique(limits[0, inside]).tolist():
        here = table[:, inside & (limits[0] == number)]
        here[0] -= tokens.starts[number]
        _copy_by_kernel(tokens.arrays[number], here, padding, inputs, targets)
    copy_pieces(tokens, table[:, ~inside], padding, inputs, targets)


def copy_pieces(tokens: Tokens, table: Batch, padding: int, inputs: Batch, targets: Batch) -> None:
    """Copy pieces as `read_pieces`, one after another; table as of `Pieces`."""
    for start, n_inputs, n_targets, place, stop in table.T.tolist():
        ids = tokens[start : start + max(n_inputs, n_targets + 1)]
        inputs[place : place + n_inputs], inputs[place + n_inputs : stop] = ids[:n_inputs], padding
        targets[place : place + n_targets] = ids[1 : n_targets + 1]
        targets[place + n_targets : stop] = IGNORED


def _copy_by_kernel(
    ids: npt.NDArray[Any], table: Batch, padding: int, inputs: Batch, targets: Batch
) -> None:
    from preprocess.sampling.pieces import copy_pieces as run

    if not run(ids, np.ascontiguousarray(table), padding, IGNORED, inputs, targets):
        raise outside()


def outside() -> SamplingError:
    """Return the error for positions that a plan must not have."""
    return SamplingError(
        "a window has positions outside of the dataset: the file of its plan was changed while it"
        " was open; remove it, and it is made again"
    )


def new_batch(batch_size: int, context_length: int, dtype: Any = np.int64) -> npt.NDArray[Any]:
    """Return dtype[batch_size, context_length], uninitialized, from reused memory."""
    n_bytes = np.dtype(dtype).itemsize * batch_size * context_length
    found: npt.NDArray[Any] = outputs.array(n_bytes).view(dtype)
    return found.reshape(batch_size, context_length)


def torch_device(device: Any) -> torch.device:
    """Return a device of PyTorch; raise SamplingError if it has no such device."""
    import torch

    try:
        return torch.device(device)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise SamplingError(
            f"device should be one of PyTorch, such as 'cuda' or 'cpu'; got {device!r:.100}"
        ) from None


def to_device(array: Batch, device: str | torch.device) -> torch.Tensor:
    """Copy an array to a PyTorch device; to CUDA from pinned memory, asynchronously."""
    import torch

    tensor = torch.from_numpy(array)
    if torch_device(device).type == "cuda" and torch.cuda.is_available():
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def open_dataset(dataset: Dataset) -> OpenDataset:
    """Return an open file, or an array; a path is opened once, and again if it was replaced.

    A URL is opened once: asking the server would take longer than a batch.

    Raises:
        SamplingError: It is no dataset.
        TokenFileError: The path is not a finished `.bin`.
    """
    if isinstance(dataset, TokenFile):
        return dataset
    if isinstance(dataset, str | os.PathLike):
        path = os.fspath(dataset)
        return _open_cached(path if is_url(path) else os.path.abspath(path))
    if not isinstance(dataset, np.ndarray) or dataset.ndim != 1 or dataset.dtype.kind not in "iu":
        found = f"{dataset.dtype}{list(dataset.shape)}" if isinstance(dataset, np.ndarray) else ""
        raise SamplingError(
            "a dataset is what open_tokens() returns, the path of a .bin, or a 1-D NumPy array of "
            f"integers; got {found or type(dataset).__name__}"
        )
    return dataset


def token_array(dataset: OpenDataset) -> Tokens:
    """Return the ids of an open dataset without a copy: integer[n_tokens]."""
    return dataset.tokens if isinstance(dataset, TokenFile) else dataset


def _open_cached(path: str) -> TokenFile:
    """Open a token file, or return it from the cache unless it was replaced."""
    # A builder renames the manifest last, so the identity of a file being replaced changes again.
    seen = _identity(path)
    with _lock:
        identity, file = _files.pop(path, ((), None))
    # Without the lock, so that no other thread or forked process waits for it.
    if file is None or not seen or identity != seen:
        file = open_tokens(path)
    with _lock:
        _files[path] = seen, file
        if len(_files) > _FILES_KEPT:
            del _files[next(iter(_files))]
    return file


def _identity(path: str) -> Identity:
    """Identify the manifest and the `.bin` (shards have none); () without a manifest."""
    if is_url(path):
        return ((0,),)
    stem = os.path.splitext(path)[0]
    try:
        found = [os.stat(f"{stem}.json")]
    except (FileNotFoundError, ValueError):  # ValueError: of what no file can be named
        return ()
    with suppress(FileNotFoundError):
        found.append(os.stat(f"{stem}.bin"))
    return tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
