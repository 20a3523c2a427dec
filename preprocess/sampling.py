"""Random batches of windows, for training loops like nanoGPT's.

All windows of `context_length + 1` ids are drawn with the same probability. Returned arrays share
no memory with the data. Only the modules for reading are imported, so sampling does not load the
builder; the first call with a device imports PyTorch.
"""

from __future__ import annotations

import operator
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from bpe.errors import TokenbinError
from bpe.files.locations import local_path
from preprocess.dataset.reader import TokenFile, open_tokens
from preprocess.dataset.shards import ShardView, windows_of
from preprocess.reused_memory import ReusedMemory

if TYPE_CHECKING:
    import torch

Identity = tuple[tuple[int, ...], ...]
Batch = npt.NDArray[np.int64]
Dataset = TokenFile | str | os.PathLike[str] | npt.NDArray[np.integer[Any]]


# A loop usually has two batches of two arrays: one in use, one being drawn.
_outputs = ReusedMemory(limit=8, largest=1 << 24)
# Files opened by path, least recently used first; a training loop alternates between two.
_files: dict[str, tuple[Identity, TokenFile]] = {}
_FILES_KEPT = 16
_lock = threading.Lock()


class SamplingError(TokenbinError, ValueError):
    """A batch cannot be drawn from this data with these arguments."""


@overload
def get_batch(
    dataset: Dataset, batch_size: int, context_length: int, device: None = None,
    *, rng: np.random.Generator | None = None,
) -> tuple[Batch, Batch]: ...
@overload
def get_batch(
    dataset: Dataset, batch_size: int, context_length: int, device: str | torch.device,
    *, rng: np.random.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def get_batch(
    dataset: Dataset, batch_size: int, context_length: int,
    device: str | torch.device | None = None, *, rng: np.random.Generator | None = None,
) -> tuple[Batch, Batch] | tuple[torch.Tensor, torch.Tensor]:
    """Draw random windows and their targets: the same windows, one id later.

    >>> inputs, targets = get_batch(np.arange(9), batch_size=2, context_length=4)
    >>> inputs.shape, (targets == inputs + 1).all()
    ((2, 4), np.True_)

    Args:
        dataset: The result of `open_tokens`; or the path of a `.bin` or its manifest, which is
            opened once, and again if it was replaced; or integer[n_tokens], such as a memory map of
            raw ids. Windows may cross shards.
        batch_size: Number of windows, at least 1; drawn with replacement.
        context_length: Number of inputs in a window, at least 1.
        device: None for NumPy arrays, else the PyTorch device of the tensors. For CUDA, memory is
            pinned and copied asynchronously.
        rng: Generator of the starts; None uses entropy of the system, so threads and forked
            processes draw different batches. Pass `np.random.default_rng(seed)` for reproducible
            batches.

    Returns:
        (inputs, targets), each int64[batch_size, context_length], C-contiguous: `targets[i, j]` is
        the id after `inputs[i, j]`. They share no memory with each other or the data, so targets
        can be masked in place.

    Raises:
        SamplingError: The data is too short for one window, not 1-D, or not of integers; or an
            argument is out of range.
        TokenFileError: The path is not a finished `.bin`.
        Exception: PyTorch does not have the device.
    """
    if rng is None:
        rng = np.random.default_rng()
    elif not isinstance(rng, np.random.Generator):
        raise SamplingError(
            f"rng should be a numpy Generator, not {rng!r}: pass np.random.default_rng(seed), made "
            "once before the loop"
        )
    # Small NumPy integers would overflow.
    batch_size, context_length = operator.index(batch_size), operator.index(context_length)
    for name, value in (("batch_size", batch_size), ("context_length", context_length)):
        if value < 1:
            raise SamplingError(f"{name} should be at least 1; got {value}")
    tokens = _token_array(dataset)
    n_starts = len(tokens) - context_length
    if n_starts < 1:
        path = dataset.path if isinstance(dataset, TokenFile) else dataset
        found = "the array" if isinstance(path, np.ndarray) else os.fspath(path)
        raise SamplingError(
            f"{found} has {len(tokens):,} tokens, and a window needs context_length + 1 = "
            f"{context_length + 1:,}: choose a context_length below {len(tokens):,} or more data"
        )
    starts = rng.integers(n_starts, size=batch_size)
    if isinstance(tokens, ShardView):
        windows = tokens.windows(starts, context_length + 1)
    else:
        windows = windows_of(tokens, context_length + 1)[starts]
    inputs, targets = (
        _outputs.array(8 * batch_size * context_length).view(np.int64).reshape(batch_size, -1)
        for _ in range(2)
    )
    inputs[:], targets[:] = windows[:, :-1], windows[:, 1:]
    if device is None:
        return inputs, targets
    return _to_device(inputs, device), _to_device(targets, device)


def _to_device(array: Batch, device: str | torch.device) -> torch.Tensor:
    import torch

    tensor = torch.from_numpy(array)
    if torch.device(device).type == "cuda" and torch.cuda.is_available():
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _token_array(dataset: Dataset) -> npt.NDArray[np.integer[Any]] | ShardView:
    """Return the ids of a dataset without a copy: integer[n_tokens]."""
    if isinstance(dataset, TokenFile):
        return dataset.tokens
    if isinstance(dataset, str | os.PathLike):
        return _open_cached(os.path.abspath(local_path(dataset))).tokens
    if not isinstance(dataset, np.ndarray) or dataset.ndim != 1 or dataset.dtype.kind not in "iu":
        found = f"{dataset.dtype}{list(dataset.shape)}" if isinstance(dataset, np.ndarray) else ""
        raise SamplingError(
            "a dataset is what open_tokens() returns, the path of a .bin, or a 1-D NumPy array of "
            f"integers; got {found or type(dataset).__name__}"
        )
    return dataset


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
    stem = os.path.splitext(path)[0]
    try:
        found = [os.stat(f"{stem}.json")]
    except FileNotFoundError:
        return ()
    with suppress(FileNotFoundError):
        found.append(os.stat(f"{stem}.bin"))
    return tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
