"""Random batches of windows, for training loops like nanoGPT's.

All windows of `context_length + 1` ids are drawn with the same probability. Returned arrays share
no memory with the data. Only the modules for reading are imported, so sampling does not load the
builder; the first call with a device imports PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Never, TypeVar, overload

import numpy as np
import numpy.typing as npt

from bpe.arguments import MISSING, check, tells_missing
from preprocess.dataset.reader import TokenFile
from preprocess.sampling.data import (
    Batch,
    Dataset,
    SamplingError,
    check_integer,
    name_of,
    new_batch,
    open_dataset,
    read_windows,
    to_device,
    token_array,
)

if TYPE_CHECKING:
    import torch

Filled = TypeVar("Filled")
_OUT = (type(None), tuple)


@overload
def get_batch(
    dataset: Dataset, batch_size: int, context_length: int, device: None = None,
    *, rng: np.random.Generator | None = None,
) -> tuple[Batch, Batch]: ...
@overload
def get_batch(
    dataset: Dataset, batch_size: int, context_length: int, device: None = None,
    *, rng: np.random.Generator | None = None, out: tuple[Filled, Filled],
) -> tuple[Filled, Filled]: ...
@overload
def get_batch(
    dataset: Dataset, batch_size: int, context_length: int, device: str | torch.device,
    *, rng: np.random.Generator | None = None,
) -> tuple[torch.Tensor, torch.Tensor]: ...
@overload
def get_batch(
    dataset: Dataset, batch_size: int, context_length: int,
    device: str | torch.device | None = None, *, rng: np.random.Generator | None = None,
    with_mask: Literal[True],
) -> tuple[Any, Any, Any]: ...
@tells_missing
def get_batch(
    dataset: Dataset, batch_size: int, context_length: int,
    device: str | torch.device | None = None, *, rng: np.random.Generator | None = None,
    out: tuple[Any, Any] | None = None, with_mask: bool = False, **_unknown: Never,
) -> tuple[Any, ...]:
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
        out: Arrays or CPU tensors to fill, integer[batch_size, context_length] each, such as pinned
            tensors; `device` must be None. None: new arrays.
        with_mask: True for a third array, 1 where the target is trained on: of conversations, by
            the dataset's mask; else everywhere.

    Returns:
        (inputs, targets), each int64[batch_size, context_length], C-contiguous, or `out`:
        `targets[i, j]` is the id after `inputs[i, j]`. New arrays share no memory with each other
        or the data, so targets can be masked in place.

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
    is_missing = dataset is MISSING or batch_size is MISSING or context_length is MISSING
    if _unknown or is_missing or type(with_mask) is not bool or type(out) not in _OUT:
        sizes = (each if each is MISSING else 1 for each in (batch_size, context_length))
        check(get_batch, (dataset, *sizes), {"out": out, "with_mask": with_mask, **_unknown})
    batch_size = check_integer("batch_size", batch_size, 1)
    context_length = check_integer("context_length", context_length, 1)
    if out is not None and (device is not None or with_mask):
        other = "with_mask" if device is None else "device"
        raise SamplingError(
            f"out and {other} were both given: out is two arrays, which are filled where they are;"
            " leave one of the two out"
        )
    opened = open_dataset(dataset)
    tokens = token_array(opened)
    n_starts = len(tokens) - context_length
    if n_starts < 1:
        raise SamplingError(
            f"{name_of(dataset)} has {len(tokens):,} tokens, and a window needs context_length + 1"
            f" = {context_length + 1:,}: choose a context_length below {len(tokens):,} or more data"
        )
    starts = rng.integers(n_starts, size=batch_size)
    windows = read_windows(opened, starts, context_length + 1)
    shape = batch_size, context_length
    arrays = (
        [new_batch(*shape) for _ in range(2 + with_mask)] if out is None else _to_fill(out, shape)
    )
    arrays[0][:], arrays[1][:] = windows[:, :-1], windows[:, 1:]
    if out is not None:
        return out
    if with_mask:
        arrays[2][:] = 1
        if isinstance(opened, TokenFile) and opened.has_mask:
            arrays[2][:] = read_windows(opened, starts + 1, context_length, opened.loss_mask)
    return tuple(arrays if device is None else (to_device(x, device) for x in arrays))


def _to_fill(out: tuple[Any, ...], shape: tuple[int, ...]) -> list[npt.NDArray[Any]]:
    """Return the arrays, or the memory of the tensors, of the caller; refuse other ones."""
    if len(out) != 2:
        raise SamplingError(f"out should be two arrays or CPU tensors; got {len(out)}")
    return [_array_of(each, shape) for each in out]


def _array_of(given: Any, shape: tuple[int, ...]) -> npt.NDArray[np.integer[Any]]:
    """Return an array to fill, or the memory of a tensor; raise SamplingError for another one."""
    array = given if isinstance(given, np.ndarray) else getattr(given, "numpy", lambda: given)()
    is_array = isinstance(array, np.ndarray) and array.dtype.kind in "iu"
    is_fit = is_array and array.shape == shape and array.dtype.itemsize >= 4
    if not is_fit or not array.flags.writeable:
        is_array = isinstance(array, np.ndarray)
        found = f"{array.dtype}{list(array.shape)}" if is_array else type(given).__name__
        found = f"read-only {found}" if is_fit else found
        raise SamplingError(
            f"out should be two arrays or CPU tensors of int32 or int64{list(shape)}; got {found}"
        )
    return array
