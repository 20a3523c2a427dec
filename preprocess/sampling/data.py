"""Data to draw windows from: token files, paths of them, and arrays of ids."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bpe.errors import TokenmillError
from bpe.files.locations import is_url
from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.reader import TokenFile, open_tokens
from preprocess.dataset.shards import ShardView, windows_of
from preprocess.reused_memory import ReusedMemory

if TYPE_CHECKING:
    import torch

Chosen = slice | npt.NDArray[np.int64]  # index of some spans
Batch = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.integer[Any]] | ShardView
OpenDataset = TokenFile | npt.NDArray[np.integer[Any]]
Dataset = OpenDataset | str | os.PathLike[str]

_ALL = slice(None)
_GREATEST = 2**40  # of sizes and steps, so that positions of windows do not overflow
_FILES_KEPT = 16  # that were opened by path; a training loop alternates between two
IGNORED = -100  # a target that a loss leaves out, as in PyTorch

# A loop usually has two batches of two arrays: one in use, one being drawn.
outputs = ReusedMemory(limit=8, largest=1 << 24)


class SamplingError(TokenmillError, ValueError):
    """A batch cannot be drawn from this data with these arguments."""


# --- arguments ---


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


def check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise SamplingError if an argument is none of some words."""
    if value not in choices:
        raise SamplingError(f"{name} should be one of {', '.join(choices)}; got {value!r}")


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


def own_state(state: Any) -> Any:
    """Return a copy of a state as a dict, which can be pickled.

    What is no mapping is returned as it is; the checks of a state refuse it.
    """
    return dict(state) if isinstance(state, Mapping) else state


@contextmanager
def naming(argument: str) -> Iterator[None]:
    """Begin the message of a SamplingError with the argument that is wrong."""
    try:
        yield
    except SamplingError as error:
        raise SamplingError(f"{argument}: {error}") from None


# --- datasets ---


def name_of(dataset: Dataset) -> str:
    """Return the path of a dataset, for messages."""
    path = dataset.path if isinstance(dataset, TokenFile) else dataset
    return "the array" if isinstance(path, np.ndarray) else os.fspath(path)


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
        path = path if is_url(path) else os.path.abspath(path)
        identity, slot = _identity(path), _slot_of(path)
        file: TokenFile | None
        kept, file = slot
        if file is None or kept != identity:
            file = open_tokens(path)
            slot[:] = identity, file  # what was replaced is not kept
        return file
    if not isinstance(dataset, np.ndarray) or dataset.ndim != 1 or dataset.dtype.kind not in "iu":
        found = f"{dataset.dtype}{list(dataset.shape)}" if isinstance(dataset, np.ndarray) else ""
        raise SamplingError(
            "the dataset should be the result of open_tokens(), the path of a .bin, or a 1-D NumPy"
            f" array of integers; got {found or type(dataset).__name__}"
        )
    return dataset


@functools.lru_cache(_FILES_KEPT)
def _slot_of(path: str) -> list[Any]:
    """Return a list of the identity of a path when it was opened, and its file; None for none."""
    return [None, None]


def _identity(path: str) -> tuple[tuple[int, ...], ...]:
    """Identify the manifest, which a builder renames last, and the `.bin` (shards have none)."""
    found = list[os.stat_result]()
    stem = os.path.splitext(path)[0]
    for suffix in () if is_url(path) else (".json", ".bin"):
        with suppress(FileNotFoundError, ValueError):  # ValueError: of what no file can be named
            found.append(os.stat(stem + suffix))
    return tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in found)


def token_array(dataset: OpenDataset) -> Tokens:
    """Return the ids of an open dataset without a copy: integer[n_tokens]."""
    return dataset.tokens if isinstance(dataset, TokenFile) else dataset


# --- reading ---


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
    dataset: OpenDataset, table: Batch, padding: int, inputs: Batch, targets: Batch,
    column: Tokens | None = None,
) -> None:
    """Copy the inputs and the targets of pieces to their places in a batch, and fill it up.

    Args:
        dataset: An open file, or an array.
        table: As of `DocumentWindows.pieces`, all inside the dataset.
        padding: For places without an input; those without a target have `IGNORED`.
        inputs: int64[n_windows, context_length], filled.
        targets: int64, of the same shape, filled.
        column: Values to copy instead of ids, one for each token.
    """
    tokens = token_array(dataset) if column is None else column
    inputs, targets = inputs.reshape(-1), targets.reshape(-1)
    if not isinstance(dataset, TokenFile):  # of any type, for which no kernel is compiled
        copy_pieces(tokens, table, padding, inputs, targets)
        return
    dataset.count_reads(table.shape[1], inputs.size)
    starts, n_inputs, n_targets, *_ = table

    def copy(ids: Any, begins: Batch, chosen: Chosen) -> bool:
        part = table
        if begins is not starts:
            part = np.array(table[:, chosen], order="C")
            part[0] = begins
        return bool(kernels().copy_pieces(ids, part, padding, IGNORED, inputs, targets))

    read_spans(tokens, starts, starts + np.maximum(n_inputs, n_targets + 1), copy)


def copy_pieces(tokens: Tokens, table: Batch, padding: int, inputs: Batch, targets: Batch) -> None:
    """Copy pieces as `read_pieces`, one after another."""
    for start, n_inputs, n_targets, place, stop in table.T.tolist():
        ids = tokens[start : start + max(n_inputs, n_targets + 1)]
        inputs[place : place + n_inputs], inputs[place + n_inputs : stop] = ids[:n_inputs], padding
        targets[place : place + n_targets] = ids[1 : n_targets + 1]
        targets[place + n_targets : stop] = IGNORED


def gather(
    values: Tokens, starts: Batch, lengths: Batch, places: Batch, out: npt.NDArray[Any]
) -> None:
    """Copy spans of values to their places in an array; raises as `read_spans`.

    Args:
        values: uint8|uint16|uint32|int32[n], or a view of shards.
        starts: int64[n_spans], positions in `values`.
        lengths: int64[n_spans].
        places: int64[n_spans], positions in `out`.
        out: uint8|int32[m], filled in these places.
    """
    def copy(part: Any, begins: Batch, chosen: Chosen) -> bool:
        return bool(kernels().copy_spans(part, begins, lengths[chosen], places[chosen], out))

    read_spans(values, starts, starts + lengths, copy)


@functools.cache
def kernels() -> Any:
    """Return the kernels that read pieces, imported when they are first used."""
    from preprocess.sampling import pieces

    return pieces


def read_spans(
    values: Tokens, starts: Batch, stops: Batch, copy: Callable[[Any, Batch, Chosen], bool]
) -> None:
    """Call a function that copies spans, for each array that has some of them.

    Args:
        values: An array, or a view of shards.
        starts: int64[n_spans], positions where spans begin.
        stops: int64[n_spans], where they end.
        copy: Called with an array, where spans begin in it, and an index of these spans; returns
            False if one is outside of the array.

    Raises:
        TokenFileError: A span is outside of the values.
    """
    if not isinstance(values, ShardView):
        if not copy(values, starts, _ALL):
            raise outside()
        return
    if len(starts) and (starts.min() < 0 or stops.max() > len(values)):
        raise outside()
    for array, begins, chosen in values.spans(starts, stops):
        if not copy(array, begins, chosen):
            raise outside()


def outside() -> TokenFileError:
    """Return the error for positions that document ends, or a plan, must not have."""
    return TokenFileError(
        "positions are outside of the dataset, so its document ends are damaged, or its plan of"
        " packed windows was changed while it was open; run tokenmill verify on the dataset, and"
        " remove the .plan files beside it, which are made again"
    )


# --- batches ---


def new_batch(batch_size: int, context_length: int, dtype: Any = np.int64) -> npt.NDArray[Any]:
    """Return dtype[batch_size, context_length], uninitialized, from reused memory."""
    n_bytes = np.dtype(dtype).itemsize * batch_size * context_length
    return np.ndarray((batch_size, context_length), dtype, outputs.array(n_bytes))


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
