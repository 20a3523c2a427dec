"""Datasets for PyTorch's `DataLoader`: windows one by one, or whole batches of a sampler.

A dataset is pickled as the options and the path of what it reads, so workers may be forked or
spawned. Its tensors are on the CPU; `DataLoader(pin_memory=True)` and `.to(device,
non_blocking=True)` take them to another device.
"""

from __future__ import annotations

import inspect
import itertools
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

try:
    import torch
    from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "datasets for a DataLoader need PyTorch, which is not installed; install it: pip install"
        " 'tokenmill[torch]'", name=error.name,
    ) from error

from bpe import load_tokenizer
from bpe.arguments import checked, checks_names
from bpe.errors import ArgumentError
from preprocess.dataset.reader import TokenFile
from preprocess.sampling.data import Dataset as Tokens
from preprocess.sampling.data import (
    SamplingError,
    check_integer,
    check_state,
    name_of,
    open_dataset,
    token_array,
)
from preprocess.sampling.mixture import Mixture
from preprocess.sampling.sampler import Sampler

Tensors = dict[str, torch.Tensor]


@checks_names
class WindowDataset(Dataset[Any]):
    """Windows as a map-style dataset: of a text, or of a sampler.

    Of a text, item i is (inputs, targets), int64[max_length] each: inputs begin at token
    `i * stride`, targets one token later. There are only windows with `max_length` targets.

    Of a sampler, item i is window i of its first epoch: the fields of the sampler,
    int64[context_length] each. Its batch size does not matter: `DataLoader`, or the `Trainer` of
    transformers, makes batches, shuffles, and divides windows among processes.

    Args:
        source: The text, if there is a tokenizer. Else integer[n_tokens], the result of
            `open_tokens`, or the path of a .bin; or a sampler of order "sequential" or "epoch", for
            one process, without a device.
        tokenizer: Encodes the text; special tokens in it are recognised. A `Tokenizer`, an encoding
            of tiktoken, a tokenizer of `tokenizers` or transformers, or any other object whose
            `encode(text)` returns ids, or an object with the attribute `ids`. Or the path or name
            of one, as for `bpe.load_tokenizer`; or a `TokenizerConfig` or a dict with that as
            `name_or_path`.
        max_length: Number of inputs in a window; not of a sampler.
        stride: Distance of windows; None: `max_length`; not of a sampler.

    Raises:
        SamplingError: The sampler cannot be used so, or there are too few tokens for one window.
    """

    def __init__(
        self, source: Sampler | Tokens, tokenizer: Any = None, max_length: int = 256,
        stride: int | None = None,
    ) -> None:
        self._has_pairs = not isinstance(source, Sampler)
        if not isinstance(source, Sampler):
            max_length = check_integer("max_length", max_length, 1)
            if tokenizer is not None:
                source = _encode(source, tokenizer)
            elif isinstance(source, str) and os.path.splitext(source)[1] not in (".bin", ".json"):
                raise SamplingError(
                    "no tokenizer was given, so the source should be a sampler, ids or the path of"
                    f" a .bin, and it is {source[:40]!r}; for a text, give a tokenizer, too"
                )
            elif not isinstance(source, str | os.PathLike | np.ndarray | TokenFile):
                _check_source(source, Sampler)
            n = len(token_array(open_dataset(source)))
            if n <= max_length:
                name = name_of(source) if tokenizer is None else "the text"
                raise SamplingError(
                    f"{name} has {n:,} tokens, and a window needs max_length + 1 ="
                    f" {max_length + 1:,}; choose a smaller max_length, or more text"
                )
            source = Sampler(source, 1, max_length, stride=stride, order="sequential")
        _check_source(source, Sampler)
        if source.layout["order"] == "random":
            raise SamplingError(
                "a sampler of order 'random' has no windows to count; choose order='sequential',"
                " and shuffle=True of the DataLoader"
            )
        if source.layout["world_size"] != 1:
            raise SamplingError(
                "the windows of a map-style dataset are divided among processes by its reader; make"
                f" the sampler with world_size=1, not {source.layout['world_size']}"
            )
        if "cu_seqlens" in source.layout["fields"]:
            raise SamplingError(
                "cu_seqlens is of a whole batch, and items are windows; leave the field out, or use"
                " BatchDataset"
            )
        self.sampler = source

    def __len__(self) -> int:
        return self.sampler.n_windows

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several items, which are read together."""
        n = len(self)
        try:
            positions = np.array([operator.index(index) for index in indices], np.int64)
        except TypeError:
            wrong = next(index for index in indices if not hasattr(index, "__index__"))
            text = f"index: should be a whole number, of one window; got {wrong!r:.100}"
            raise ArgumentError(text) from None
        except OverflowError:
            positions = np.array([n])  # is in no dataset
        positions[positions < 0] += n
        if len(positions) and not 0 <= positions.min() <= positions.max() < n:
            raise IndexError(f"there are {n:,} windows; got {list(indices)}")
        arrays = self.sampler.arrays_of(self.sampler.read(positions))
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self._has_pairs:
            return [*zip(tensors["inputs"], tensors["targets"], strict=True)]
        return [
            {name: each[row] for name, each in tensors.items()} for row in range(len(positions))
        ]


def _encode(text: Any, tokenizer: Any) -> npt.NDArray[np.int64]:
    """Return the ids of a text, special tokens in it included, and no others: int64[n_tokens]."""
    options = getattr(tokenizer, "given", tokenizer)  # of a TokenizerConfig
    if isinstance(options, Mapping):
        # Others are of training or of rows.
        if other := sorted(map(str, options.keys() - {"name_or_path", "trust_remote_code"})):
            raise SamplingError(f"tokenizer: windows have no {', '.join(other)}; leave them out")
        tokenizer = options.get("name_or_path")
    if isinstance(tokenizer, str | os.PathLike):
        tokenizer = load_tokenizer(tokenizer)
    if not hasattr(tokenizer, "encode"):
        raise SamplingError(
            "the tokenizer should be an object that encodes, or its path or name; got"
            f" {tokenizer!r:.100}: give one that bpe.load_tokenizer takes"
        )
    if not isinstance(text, str):
        raise SamplingError(
            f"a tokenizer was given, so the source should be a text; got {type(text).__name__}"
        )
    for name in ("truncation", "padding"):
        if getattr(tokenizer, name, None):  # of `tokenizers`
            raise SamplingError(
                f"the tokenizer has {name}, which changes the ids of a text; switch it off:"
                f" tokenizer.no_{name}()"
            )
    parameters = inspect.signature(tokenizer.encode).parameters
    known: dict[str, Any] = {"allowed_special": "all", "add_special_tokens": False}
    found = tokenizer.encode(text, **{x: y for x, y in known.items() if x in parameters})
    return np.array(getattr(found, "ids", found), np.int64)


@checked
class BatchDataset(IterableDataset[Tensors]):
    """The batches of a sampler or a mixture as an iterable dataset.

        loader = DataLoader(BatchDataset(sampler), batch_size=None, num_workers=2)

    Batches come in the order of the sampler, whatever the number of workers. An iteration begins at
    the sampler's `step`, which it does not move, for workers are other processes: call `set_epoch`
    before each epoch. `StatefulDataLoader` of torchdata saves and restores the place in an epoch.

    Args:
        source: Without a device.

    Raises:
        SamplingError: The sampler has a device.
    """

    def __init__(self, source: Sampler | Mixture) -> None:
        _check_source(source, Sampler, Mixture)
        self.source = source
        # The next step of the iteration that runs, and of one that a state was loaded for.
        self._next: int | None = None
        self._continued: int | None = None
        # The step of the last `set_epoch` and the number of calls, for workers that persist.
        self._epoch = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._n_epochs_set = 0

    def set_epoch(self, epoch: int) -> None:
        """Begin the next iteration with the first batch of an epoch, counted from 0.

        Raises:
            SamplingError: There is no such epoch: mixtures, and samplers of order "random", have
                one alone.
        """
        epoch = check_integer("epoch", epoch, 0)
        if epoch and (isinstance(self.source, Mixture) or self.source.layout["order"] == "random"):
            raise SamplingError(
                "mixtures, and samplers of order 'random', have one epoch, number 0; got"
                f" {epoch:,}: loop once, over as many steps as you need"
            )
        step = epoch * len(self.source) if epoch else 0
        self.source.step = check_integer("the first step of the epoch", step, 0)
        self._next = self._continued = None
        self._n_epochs_set += 1
        self._epoch[:] = torch.tensor([self.source.step, self._n_epochs_set])

    def __len__(self) -> int:
        """Return the number of batches of an epoch; raise TypeError if there is no end."""
        return len(self.source)

    def __iter__(self) -> Iterator[Tensors]:
        worker = get_worker_info()
        number, n_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        step, n_set = self._epoch.tolist()
        if n_set != self._n_epochs_set:
            self.source.step, self._n_epochs_set = step, n_set
            self._continued = None
        first = self.source.step if self._continued is None else self._continued
        self._next, self._continued = self._continued, None
        for step in itertools.islice(self.source.steps(), number, None, n_workers):
            if step < first:
                continue
            self._next = step + n_workers
            batch = self.source.batch(step)
            yield {name: torch.from_numpy(array) for name, array in batch.items()}
        self._next = None  # a state of now begins the next iteration

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the iteration that runs, for JSON: that of the source and a step."""
        return {"source": self.source.state_dict(), "next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the iteration of a state, with the same number of workers.

        Raises:
            SamplingError: The state is of another source.
        """
        check_state(state, ("source", "next"), "a BatchDataset")
        following = state["next"]
        if following is not None:
            following = check_integer("the next step of a state", following, 0)
        self.source.load_state_dict(state["source"])
        self._next = self._continued = following


def _check_source(source: Sampler | Mixture, *kinds: type) -> None:
    if not isinstance(source, kinds):
        raise SamplingError(
            f"the source should be a {' or a '.join(each.__name__ for each in kinds)}, not"
            f" {type(source).__name__}; make a Sampler of a dataset first"
        )
    if (device := source.layout["device"]) is not None:
        raise SamplingError(
            f"datasets for a DataLoader are on the CPU; make the sampler without device={device!r},"
            " and take the batches to the device"
        )


@checked
def window_loader(
    data: Tokens, tokenizer: Any = None, batch_size: int = 4, max_length: int = 256,
    stride: int | None = None, shuffle: bool = True, drop_last: bool = True, num_workers: int = 0,
) -> DataLoader[tuple[torch.Tensor, torch.Tensor]]:
    """Make a `DataLoader` of (inputs, targets) from a text: int64[batch_size, max_length] each.

    Args:
        data: As source of `WindowDataset`, but no sampler.
        tokenizer: As of `WindowDataset`.
        batch_size: Number of windows in a batch.
        max_length: Number of inputs in a window.
        stride: Distance of windows; None: `max_length`.
        shuffle: Whether windows come in a new random order each epoch, by PyTorch's generator.
        drop_last: True to leave out a last batch with fewer windows.
        num_workers: Processes that read; 0: this one.

    Raises:
        SamplingError: There are too few tokens for one window, or an argument cannot work.
    """
    batch_size = check_integer("batch_size", batch_size, 1)
    num_workers = check_integer("num_workers", num_workers, 0)
    windows = WindowDataset(data, tokenizer, max_length, stride)
    if drop_last and len(windows) < batch_size:
        raise SamplingError(
            f"the loader would give no batch: there are {len(windows):,} windows, and"
            f" batch_size is {batch_size:,}; choose a smaller one, or drop_last=False"
        )
    return DataLoader(windows, batch_size, shuffle, drop_last=drop_last, num_workers=num_workers)
