"""Batches of windows in a shuffled order, beside the loaders of data that people train with.

Law: all sides deliver int64 inputs and targets of (64, 1024) to the main process, from the same
tokens in the page cache; the targets are the inputs one token later, save where rows are packed and
a document ends. Orders differ, so no digests are compared. `loaders-random` and `loaders-packed`
have our other samplers beside the loader that most loops use; the packed one, whose tokens are cut
into documents, delivers segment ids as well. Files in a peer's format are written before the clock
runs, once per run, and the first batches, which start workers, are not timed.

Each peer is used as its documentation says, with no worker processes or with two, whichever was
faster on two processors: two for mosaicml-streaming, none for the others. PyTorch's operators run
in one thread: a batch is too small for two, which on a shared machine took up to 18 times as long.

CPU seconds and memory are those of the main process, so what workers take is missing. Workers make
up to four of 600 batches in advance.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.job import OURS, Clock, Job, Result, side
from benchmarks.sampling import (
    BATCH_SIZE,
    CONTEXT_LENGTH,
    END_OF_TEXT_ID,
    mapped_tokens,
    packed_sampler,
    random_tokens,
)

_BATCHES = 600
_CHECKED = 5
# Tokens of what a peer's writer is given at a time; each is a document to Megatron Core.
_PIECE = 1_000_000
# Windows in a chunk of litdata's, as in its documentation.
_CHUNK_WINDOWS = 8012

Batches = Iterator[tuple[Any, Any]]


def check(inputs: Any, targets: Any) -> None:
    """Refuse what is not a batch of int64 windows with their targets.

    The end of a document has any target; only packed windows have ends of documents.
    """
    pair = np.asarray(inputs), np.asarray(targets)
    for array in pair:
        if array.shape != (BATCH_SIZE, CONTEXT_LENGTH) or array.dtype != np.int64:
            raise ValueError(f"expected int64 (64, 1024), found {array.dtype} {array.shape}")
    later = pair[0][:, 1:] == pair[1][:, :-1]
    if not (later | (pair[0][:, :-1] == END_OF_TEXT_ID)).all():
        raise ValueError("the targets are not the inputs one token later")


def _draw(clock: Clock, batches: Batches) -> Result:
    for _ in range(_CHECKED):
        check(*next(batches))

    def work() -> Any:
        drawn: Any = None
        for _ in range(_BATCHES):
            drawn = next(batches)
        return drawn

    clock.time("batches", work)
    return Result(_BATCHES * 2 * BATCH_SIZE * CONTEXT_LENGTH * 8, None)


def _mapped(job: Job) -> NDArray[np.uint16]:
    return mapped_tokens(random_tokens(job.directory))


def _read(directory: Path) -> None:
    """Bring files into the page cache."""
    for path in directory.rglob("*"):
        if path.is_file():
            path.read_bytes()


def _of_sampler(clock: Clock, sampler: Any) -> Result:
    drawn = map(sampler.batch, itertools.count())
    return _draw(clock, ((batch["inputs"], batch["targets"]) for batch in drawn))


@side("loaders", OURS)
def loader_tokenmill(job: Job, clock: Clock) -> Result:
    """Ours, each window once per epoch."""
    from preprocess import Sampler

    return _of_sampler(clock, Sampler(_mapped(job), BATCH_SIZE, CONTEXT_LENGTH, order="epoch"))


@side("loaders-random", OURS)
def loader_random(job: Job, clock: Clock) -> Result:
    """Ours, windows that begin at any token."""
    from preprocess import Sampler

    return _of_sampler(clock, Sampler(_mapped(job), BATCH_SIZE, CONTEXT_LENGTH, order="random"))


@side("loaders-packed", OURS)
def loader_packed(job: Job, clock: Clock) -> Result:
    """Ours, rows of whole documents, with segment ids."""
    return _of_sampler(clock, packed_sampler(job.directory))


class Windows:
    """Windows at multiples of the context length, by their number."""

    def __init__(self, tokens: NDArray[np.uint16]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return (len(self._tokens) - 1) // CONTEXT_LENGTH

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        start = index * CONTEXT_LENGTH
        window = self._tokens[start : start + CONTEXT_LENGTH + 1].astype(np.int64)
        return window[:-1], window[1:]


class TensorWindows(Windows):
    """The same as tensors, in the manner of most training scripts."""

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        import torch

        start, stop = index * CONTEXT_LENGTH, (index + 1) * CONTEXT_LENGTH
        inputs = self._tokens[start:stop].astype(np.int64)
        targets = self._tokens[start + 1 : stop + 1].astype(np.int64)
        return torch.from_numpy(inputs), torch.from_numpy(targets)


def _one_thread() -> None:
    """Let PyTorch's operators run in one thread; see the top of this file."""
    import torch

    torch.set_num_threads(1)


def _of_data_loader(job: Job, clock: Clock, num_workers: int) -> Result:
    from torch.utils.data import DataLoader

    _one_thread()
    windows: Any = TensorWindows(_mapped(job))
    loader = DataLoader(
        windows, batch_size=BATCH_SIZE, shuffle=True, num_workers=num_workers, drop_last=True
    )
    return _draw(clock, ((inputs, targets) for inputs, targets in loader))


@side("loaders", "DataLoader", package="torch")
def loader_torch(job: Job, clock: Clock) -> Result:
    """PyTorch's loader of a map-style dataset over a memory map."""
    return _of_data_loader(job, clock, 0)


@side("loaders", "DataLoader, 2 workers", package="torch")
@side("loaders-random", "DataLoader, 2 workers", package="torch")
@side("loaders-packed", "DataLoader, 2 workers", package="torch")
def loader_torch_workers(job: Job, clock: Clock) -> Result:
    """The same with worker processes, which are to leave the main process to the training."""
    return _of_data_loader(job, clock, 2)


def pieces_of(path: Path, size: int, start: int) -> Iterator[NDArray[np.uint16]]:
    """The piece of a file of tokens that begins at `start`; what litdata's writer calls."""
    yield np.array(np.memmap(path, np.uint16, mode="r")[start : start + size])


def _shifted(windows: Any) -> tuple[Any, Any]:
    """Inputs and targets of a tensor of windows that have one more token."""
    return windows[:, :-1].contiguous().long(), windows[:, 1:].contiguous().long()


@side("loaders", "litdata")
def loader_litdata(job: Job, clock: Clock) -> Result:
    """The loader of litdata for pretraining: chunks of tokens, windows of one token more."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize

    _one_thread()
    directory, path = job.directory / "litdata", random_tokens(job.directory)
    size = (CONTEXT_LENGTH + 1) * _CHUNK_WINDOWS
    if not (directory / "index.json").exists():
        optimize(
            fn=functools.partial(pieces_of, path, size),
            inputs=list(range(0, path.stat().st_size // 2, size)),
            output_dir=str(directory),
            chunk_size=size,
            item_loader=TokensLoader(),
            num_workers=2,
        )
    _read(directory)
    dataset = StreamingDataset(
        input_dir=str(directory),
        item_loader=TokensLoader(block_size=CONTEXT_LENGTH + 1),
        shuffle=True,
        drop_last=True,
    )
    loader = StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=0)
    return _draw(clock, map(_shifted, loader))


class NoTokenizer:
    """Minimal tokenizer interface of Megatron Core; the tokens have no special ids."""

    vocab_size = 50_257
    eod, pad = 50_256, 50_255
    unique_identifiers = {"class": "NoTokenizer"}  # noqa: RUF012 (Megatron only reads it)


@side("loaders", "megatron-core")
def loader_megatron(job: Job, clock: Clock) -> Result:
    """Megatron Core's GPT dataset, which shuffles, in PyTorch's loader.

    Documents are of a million tokens, so that hardly a window spans two, which costs more. A batch
    has a loss mask and positions as well; the mask of attention is off.
    """
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
    from torch.utils.data import DataLoader

    _one_thread()
    prefix = job.directory / "megatron" / "tokens"
    if not prefix.with_suffix(".idx").exists():
        prefix.parent.mkdir(exist_ok=True)
        tokens, builder = _mapped(job), IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
        for start in range(0, len(tokens), _PIECE):
            document = tokens[start : start + _PIECE]
            builder.add_document(document, [len(document)])
        builder.finalize(f"{prefix}.idx")
    config = GPTDatasetConfig(
        random_seed=0,
        sequence_length=CONTEXT_LENGTH,
        blend=([str(prefix)], None),
        split="1,0,0",
        path_to_cache=str(prefix.parent / "cache"),
        tokenizer=NoTokenizer(),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [None, None, None]  # one epoch
    dataset = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()[0]
    _read(prefix.parent)
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, num_workers=0, drop_last=True)
    return _draw(clock, ((batch["tokens"], batch["labels"]) for batch in loader))


@side("loaders", "mosaicml-streaming")
def loader_streaming(job: Job, clock: Clock) -> Result:
    """MosaicML's loader: shards of windows in uint16, which the dataset turns into tensors."""
    import torch
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    _one_thread()
    directory = job.directory / "mds"
    if not (directory / "index.json").exists():
        tokens, length = _mapped(job), CONTEXT_LENGTH + 1
        with MDSWriter(out=str(directory), columns={"tokens": f"ndarray:uint16:{length}"}) as out:
            for start in range(0, len(tokens) - CONTEXT_LENGTH, CONTEXT_LENGTH):
                out.write({"tokens": np.array(tokens[start : start + length])})
    _read(directory)

    # The base class is Any for mypy if the library is not installed.
    class Shards(StreamingDataset):  # type: ignore[misc, unused-ignore]
        def __getitem__(self, at: Any) -> tuple[Any, Any]:
            window = torch.from_numpy(super().__getitem__(at)["tokens"].astype(np.int64))
            return window[:-1], window[1:]

    dataset = Shards(local=str(directory), shuffle=True, batch_size=BATCH_SIZE)
    loader = StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=2, drop_last=True)
    return _draw(clock, ((inputs, targets) for inputs, targets in loader))


@side("loaders", "grain")
def loader_grain(job: Job, clock: Clock) -> Result:
    """Grain's loader of a source over a memory map.

    It reads in the main thread, as its documentation advises for data in memory.
    """
    import grain

    source: Any = Windows(_mapped(job))
    dataset = grain.MapDataset.source(source).shuffle(seed=0).batch(BATCH_SIZE)
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return _draw(clock, iter(dataset.to_iter_dataset(options)))
