"""Sampler: batches of windows of a dataset, in an order, for one of several processes.

What a window is and the order of windows are independent choices. The order is an endless stream of
windows (`orders`); batch `step` has the next `global_batch_size` of them, of which each rank takes
its share. So a batch depends on the dataset, the options, the seed and the step alone, and the
stream does not depend on the number of ranks.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Never

import numpy as np
import numpy.typing as npt
import xxhash

from bpe.arguments import MISSING, check, checks_names, tells_missing
from preprocess.dataset.reader import TokenFile, open_tokens
from preprocess.sampling.data import (
    Dataset,
    OpenDataset,
    SamplingError,
    check_integer,
    check_state,
    name_of,
    new_batch,
    open_dataset,
    read_pieces,
    read_windows,
    to_device,
    token_array,
    torch_device,
)
from preprocess.sampling.fields import NAMES, NEED_END_OF_TEXT, Fields
from preprocess.sampling.orders import ORDERS, Numbers
from preprocess.sampling.packing import MAX_ROW_LENGTH, STRATEGIES, PackedWindows
from preprocess.sampling.windows import DocumentWindows, StrideWindows, Windows, segments_of

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]

_SAMPLES, _SAMPLE_LENGTH = 64, 512  # of an array, for its fingerprint
_STEPS = 64  # whose windows are computed at a time
# What a state must have in common with the sampler that loads it; the others may change.
_SAME = (
    "dataset", "global_batch_size", "context_length", "windows", "stride", "strategy", "order",
    "drop_last",
)


class Sampler:
    """Batches of windows of a dataset.

    >>> sampler = Sampler(np.arange(10), 2, 4, order="sequential", drop_last=False)
    >>> batch = sampler.batch(0)
    >>> batch["inputs"].tolist(), batch["targets"].tolist()
    ([[0, 1, 2, 3], [4, 5, 6, 7]], [[1, 2, 3, 4], [5, 6, 7, 8]])
    >>> len(sampler), sampler.batch(1)["targets"].tolist()
    (2, [[9, -100, -100, -100]])

    A pickle holds the options and the path of the dataset, or all ids of an array. Several threads
    may call `batch`.

    Iterating yields the batches from the current step to the end of the epoch, and moves the step;
    `random` has no epochs, and yields batches without end.

    Args:
        dataset: What `open_tokens` returns, the path of a .bin or of its manifest, or
            integer[n_tokens].
        global_batch_size: Number of windows in a batch of all ranks, at least 1.
        context_length: Number of inputs in a window, at least 1.
        windows: "stride": windows begin at multiples of `stride`, across documents. "documents":
            windows of one document each; shorter ones are padded. "packed": windows of several
            documents; longer documents are cut. Which documents share a window is planned when the
            first sampler with these options is made, and kept in a file beside the dataset.
        stride: Distance of windows; None: `context_length`, so that windows do not overlap. Not of
            "packed".
        strategy: Of "packed", see docs/sampling.md.
        order: "random": independent windows, each with the same probability; of "stride" they begin
            at any position, as those of `get_batch`. "epoch": each window once per epoch, in a new
            random order. "sequential": each window once per epoch, in the order of the data.
        seed: Of "random" and "epoch".
        drop_last: True to leave out a last window of "stride" with fewer targets, and the last
            windows of an epoch that do not fill a batch. False: the window is padded, and the last
            batch of an epoch is smaller.
        drop_short: True to leave out windows of "documents" with fewer than `context_length`
            targets, instead of padding them.
        rank: Number of this process, in range(world_size).
        world_size: Number of processes.
        fields: Names of the arrays of a batch, listed in docs/sampling.md.
        device: None for NumPy arrays, else the PyTorch device of tensors.

    Attributes:
        step: The next step of an iteration.
        dataset: The dataset, opened.
        layout: Options that samplers of one mixture have in common, and the order.

    Raises:
        SamplingError: An option has a value that cannot work, or there is no window.
        TokenFileError: The path is not a finished `.bin`, or its plan is damaged.
        OutputError: The plan of "packed" cannot be written.
        Exception: PyTorch does not know the device.
    """

    @checks_names
    def __init__(
        self, dataset: Dataset, global_batch_size: int, context_length: int, *,
        windows: Literal["stride", "documents", "packed"] = "stride", stride: int | None = None,
        strategy: Literal["greedy", "pool", "first_fit", "best_fit"] = "best_fit",
        order: Literal["random", "epoch", "sequential"] = "random", seed: int = 0,
        drop_last: bool = True, drop_short: bool = False, rank: int = 0, world_size: int = 1,
        fields: Sequence[str] = ("inputs", "targets"),
        device: str | torch.device | None = None,
    ) -> None:
        fields = fields if isinstance(fields, str) else tuple(fields)
        self._arguments = {
            "global_batch_size": global_batch_size, "context_length": context_length,
            "windows": windows, "stride": stride, "strategy": strategy, "order": order,
            "seed": seed, "drop_last": drop_last, "drop_short": drop_short, "rank": rank,
            "world_size": world_size, "fields": fields, "device": device,
        }
        sizes = {
            "global_batch_size": global_batch_size, "context_length": context_length,
            "stride": context_length if stride is None else stride, "world_size": world_size,
        }
        sizes = {name: check_integer(name, value, 1) for name, value in sizes.items()}
        global_batch_size, context_length, _, world_size = sizes.values()
        stride = None if stride is None else sizes["stride"]
        rank, seed = check_integer("rank", rank, 0), check_integer("seed", seed, 0, math.inf)
        if rank >= world_size:
            raise SamplingError(
                f"rank should be in range(world_size), of {world_size}; got {rank}"
            )
        if device is not None:
            torch_device(device)
        if isinstance(dataset, str | os.PathLike):
            dataset = open_tokens(dataset)
        self.dataset = open_dataset(dataset)
        self._tokens = token_array(self.dataset)
        self._options: dict[str, Any] = {
            "dataset": _fingerprint(self.dataset), **sizes, "windows": windows,
            "strategy": strategy if windows == "packed" else None, "order": order, "seed": seed,
            "drop_last": bool(drop_last), "drop_short": bool(drop_short),
        }
        self._rank, self._world_size, self._device = rank, world_size, device
        self._context_length, self._global_batch_size = context_length, global_batch_size
        if order not in ORDERS:
            raise SamplingError(f"order should be one of {', '.join(ORDERS)}; got {order!r}")
        self._fields = self._check_fields(fields)
        self._windows = self._make_windows(windows, stride, strategy)
        n_windows = len(self._windows)
        self._n_batches = n_windows // global_batch_size
        if not drop_last:
            self._n_batches = -(-n_windows // global_batch_size)
        self._check_enough(n_windows)
        self.layout: dict[str, Any] = {
            "global_batch_size": global_batch_size, "context_length": context_length, "rank": rank,
            "world_size": world_size, "fields": self._fields, "device": device, "order": order,
        }
        self._block: tuple[int, Numbers, list[int]] = -1, np.empty(0, np.int64), []
        self.step = 0

    def _make_windows(self, windows: str, stride: int | None, strategy: str) -> Windows:
        length, drop_last = self._context_length, bool(self._options["drop_last"])
        if windows not in ("stride", "documents", "packed"):
            raise SamplingError(
                f"windows should be one of stride, documents, packed; got {windows!r}"
            )
        if strategy not in STRATEGIES:
            raise SamplingError(
                f"strategy should be one of {', '.join(STRATEGIES)}; got {strategy!r}"
            )
        drop_short = bool(self._options["drop_short"])
        if drop_short and windows != "documents":
            raise SamplingError(
                f"drop_short is of windows='documents', not of {windows!r}: leave it out; drop_last"
                " is of 'stride', and packed windows are padded"
            )
        if windows == "stride":
            if self._options["order"] == "random":
                # Every position, and only whole windows, as of `get_batch`.
                stride, drop_last = 1, True
            return StrideWindows(len(self._tokens), length, stride or length, drop_last)
        if not isinstance(self.dataset, TokenFile):
            raise SamplingError(
                f"windows={windows!r} needs a dataset with documents, and an array has none; give"
                " a .bin"
            )
        if windows == "documents":
            ends = self.dataset.document_ends
            return DocumentWindows(ends, length, stride or length, drop_short)
        if stride is not None:
            raise SamplingError(
                f"stride={stride} is of windows='stride' and 'documents'; packed windows do not"
                " overlap: leave it out"
            )
        if length > MAX_ROW_LENGTH or not len(self._tokens):
            raise SamplingError(
                f"{name_of(self.dataset)} has {len(self._tokens):,} tokens, and packed windows of"
                f" context_length {length:,} need at least 1 and have at most {MAX_ROW_LENGTH:,};"
                " choose a smaller context_length, or more data"
            )
        return PackedWindows(self.dataset, length, strategy)

    def _check_enough(self, n_windows: int) -> None:
        """Raise SamplingError if there is no window, or no batch in an epoch."""
        if n_windows < 1 and self._options["windows"] == "documents":
            least = self._context_length + 1 if self._options["drop_short"] else 2
            raise SamplingError(
                f"{name_of(self.dataset)} has no document of at least {least:,} tokens, inputs and"
                " a target; choose windows='stride' or 'packed', or other data"
            )
        if n_windows < 1:
            n_tokens, advice = len(self._tokens), "more data"
            if n_tokens > 1:
                may_pad = self._options["order"] != "random"
                advice = f"a smaller context_length, {'drop_last=False, ' * may_pad}or more data"
            raise SamplingError(
                f"{name_of(self.dataset)} has {n_tokens:,} tokens, and a window of context_length"
                f" {self._context_length:,} needs one more than that; choose {advice}"
            )
        if self._options["order"] != "random" and not self._n_batches:
            raise SamplingError(
                f"{name_of(self.dataset)} has {n_windows:,} windows, and a batch needs"
                f" {self._global_batch_size:,}; choose a smaller global_batch_size, or"
                " drop_last=False"
            )

    def _check_fields(self, fields: Sequence[str]) -> tuple[str, ...]:
        if not fields:
            raise SamplingError(f"fields has no name; choose some of {', '.join(NAMES)}")
        for name in (fields,) if isinstance(fields, str) else fields:
            if isinstance(fields, str) or name not in NAMES:
                raise SamplingError(
                    f"there is no field {name!r}; choose some of {', '.join(NAMES)}"
                )
            if name in NEED_END_OF_TEXT and not isinstance(self.dataset, TokenFile):
                raise SamplingError(
                    f"the field {name!r} needs a dataset with documents, and an array has none;"
                    " give a .bin"
                )
        return tuple(fields)

    def __repr__(self) -> str:
        shown = {name: self._arguments[name] for name in ("windows", "order", "seed")}
        return f"Sampler({name_of(self.dataset)!r}, {shown}, step={self.step})"

    def __len__(self) -> int:
        """Return the number of batches of an epoch; raise TypeError for "random"."""
        if self._options["order"] == "random":
            raise TypeError(
                "a sampler of order 'random' has no length: it yields batches without end; choose"
                " order='epoch', or a number of steps"
            )
        return self._n_batches

    @tells_missing
    def batch(self, step: int, **_unknown: Never) -> dict[str, Any]:
        """Return the arrays of this rank of batch `step`, by name.

        Args:
            step: From 0 on, over all epochs.

        Returns:
            int64[n, context_length] for each of `fields`, except `cu_seqlens`; n is the share of
            this rank, which may be 0.
        """
        if _unknown or step is MISSING:
            check(Sampler.batch, (self, step), _unknown)
        numbers = self._numbers(check_integer("step", step, 0))
        n, world_size = len(numbers), self._world_size
        first, stop = (n * each // world_size for each in (self._rank, self._rank + 1))
        return self.arrays_of(self._read(numbers[first:stop]))

    def arrays_of(self, fields: Fields) -> dict[str, Any]:
        """Return the arrays of the sampler's fields, by name, on its device."""
        return self.to_device({name: getattr(fields, name) for name in self._fields})

    def to_device(self, arrays: dict[str, Array]) -> dict[str, Any]:
        """Return arrays, or tensors on the sampler's device."""
        if self._device is None:
            return arrays
        return {name: to_device(array, self._device) for name, array in arrays.items()}

    def read(self, positions: Numbers) -> Fields:
        """Read the windows at positions of the endless stream."""
        order, seed = ORDERS[self._options["order"]], self._options["seed"]
        return self._read(order(positions, self.n_windows, seed))

    @property
    def n_windows(self) -> int:
        """Number of windows per epoch; for order "random", number of possible windows."""
        return len(self._windows)

    @property
    def tokens_per_window(self) -> float:
        """Mean number of inputs of a window that are no padding."""
        if self._options["windows"] == "packed":
            return len(self._tokens) / self.n_windows
        if isinstance(self._windows, DocumentWindows):
            return self._windows.n_inputs / self.n_windows
        return float(self._context_length)

    def _numbers(self, step: int) -> Numbers:
        """Return the numbers of the windows of a global batch; those of many steps are kept."""
        block, index = divmod(step, _STEPS)
        kept, numbers, limits = self._block  # another thread may replace it
        if kept != block:
            numbers, limits = self._numbers_of_block(block)
            self._block = block, numbers, limits
        return numbers[limits[index] : limits[index + 1]]

    def _numbers_of_block(self, block: int) -> tuple[Numbers, list[int]]:
        """Return the numbers of the windows of many steps, and where each step begins in them."""
        steps = np.arange(block * _STEPS, (block + 1) * _STEPS)
        size, n_windows = self._global_batch_size, len(self._windows)
        firsts, counts = steps * size, np.full(_STEPS, size)
        if self._options["order"] != "random":
            epochs, batches = np.divmod(steps, self._n_batches)
            firsts = epochs * n_windows + batches * size
            counts = np.minimum(size, (epochs + 1) * n_windows - firsts)
        limits = np.append(0, np.cumsum(counts))
        positions = np.arange(limits[-1]) + np.repeat(firsts - limits[:-1], counts)
        order = ORDERS[self._options["order"]]
        return order(positions, n_windows, self._options["seed"]), limits.tolist()

    def _read(self, numbers: Numbers) -> Fields:
        """Read windows by their numbers, and pad those with fewer tokens."""
        n, length = len(numbers), self._context_length
        inputs, targets = new_batch(n, length), new_batch(n, length)
        end_of_text = None
        if isinstance(self.dataset, TokenFile):
            end_of_text = self.dataset.manifest.end_of_text_id
        if isinstance(self._windows, StrideWindows):
            starts = self._windows.whole_windows(numbers)
            if n and starts is not None:
                found = read_windows(self.dataset, starts, length + 1)
                inputs[:], targets[:] = found[:, :-1], found[:, 1:]
                return self._with_mask(Fields(inputs, targets, None, end_of_text), numbers)
        if isinstance(self._windows, PackedWindows):
            with_segment_ids = "segment_ids" in self._fields
            packed = self._windows.read(
                numbers, end_of_text or 0, inputs, targets, with_segment_ids
            )
            if packed is not None:
                return self._with_mask(packed, numbers)
        pieces = self._windows.pieces(numbers)
        read_pieces(self.dataset, pieces, end_of_text or 0, inputs, targets)
        n_inputs = None if bool((pieces.n_in_windows == length).all()) else pieces.n_in_windows
        of_documents = None if self._options["windows"] == "stride" else lambda: pieces
        fields = Fields(inputs, targets, n_inputs, end_of_text, of_documents)
        return self._with_mask(fields, numbers)

    def _with_mask(self, fields: Fields, numbers: Numbers) -> Fields:
        """Add what the column of masks says about windows that were read."""
        file = self.dataset
        if not isinstance(file, TokenFile) or not file.has_mask:
            return fields

        def trained() -> Array:
            inputs, targets = (new_batch(*fields.inputs.shape) for _ in range(2))
            read_pieces(file, self._windows.pieces(numbers), 0, inputs, targets, file.loss_mask)
            return targets

        def segments() -> Array:
            # A template may have the end-of-text id inside a document.
            return segments_of(self._windows.pieces(numbers), file.document_ends)

        fields.trained = trained
        if isinstance(self._windows, StrideWindows):
            fields.crossing = segments
        return fields

    def steps(self) -> Iterator[int]:
        """Yield the steps of an iteration that begins now, without moving `step`."""
        if self._options["order"] == "random":
            return itertools.count(self.step)
        return iter(range(self.step, (self.step // self._n_batches + 1) * self._n_batches))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for step in self.steps():
            self.step = step + 1
            yield self.batch(step)

    def __reduce__(self) -> tuple[Any, ...]:
        # A memory map would be pickled with all of its data.
        return _make, (self.dataset, self._arguments, self.step)

    def state_dict(self) -> dict[str, Any]:
        """Return the state for JSON: the step, the seed, the dataset and the options."""
        return {"step": self.step, **self._options}

    @checks_names
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a sampler with this state is; the number of ranks may be another.

        Raises:
            SamplingError: The state is of another dataset, or of other options.
        """
        self.step = self.check_state(state)

    def check_state(self, state: Mapping[str, Any]) -> int:
        """Return the step of a state; raise SamplingError if it is of another sampler."""
        own = self._options
        check_state(state, (*_SAME, "seed", "step"), "a sampler")
        # Earlier states have no `drop_short`.
        different = [
            name for name in (*_SAME, "seed", "drop_short")
            if state.get(name, False) != own[name]
        ]
        if different:
            name = different[0]
            raise SamplingError(
                f"the state is of another sampler than this of {name_of(self.dataset)}: its {name}"
                f" is {state.get(name)!r}, and here it is {own[name]!r}; make the sampler with the"
                " dataset and options of the state"
            )
        return check_integer("the step of a state", state["step"], 0)


def _make(dataset: Dataset, arguments: dict[str, Any], step: int) -> Sampler:
    """Make the sampler of a pickle."""
    sampler = Sampler(dataset, **arguments)
    sampler.step = step
    return sampler


def _fingerprint(dataset: OpenDataset) -> str:
    """Return the digest of the manifest, or length, dtype and a digest of samples of an array."""
    if isinstance(dataset, TokenFile):
        return dataset.manifest.digest
    digest = xxhash.xxh3_64()
    for start in np.linspace(0, len(dataset), _SAMPLES, endpoint=False, dtype=np.int64).tolist():
        digest.update(np.ascontiguousarray(dataset[start : start + _SAMPLE_LENGTH]).data)
    return f"{len(dataset)} {dataset.dtype} {digest.hexdigest()}"
