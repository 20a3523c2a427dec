"""Batches of windows from a `.bin` of 400 MB, as NumPy arrays.

Law: the same starts on all sides, so that all sides draw the same batches. Every batch is new
memory; the one before is let go of, as a training loop does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.job import OURS, Clock, Job, Result, digest_of, side

BATCH_SIZE, CONTEXT_LENGTH = 64, 1024
N_TOKENS = 200_000_000
_BATCHES = 300
_CHECKED = 5

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]


def random_tokens(directory: Path) -> Path:
    """A file of random ids, made if it is not there."""
    path = directory / "random.bin"
    if not path.exists():
        rng = np.random.default_rng(0)
        rng.integers(50_000, size=N_TOKENS, dtype=np.uint16).tofile(path)
    return path


def _draw(clock: Clock, batch: Callable[[np.random.Generator], Batch]) -> Result:
    rng = np.random.default_rng(0)
    first = [batch(rng) for _ in range(_CHECKED)]
    digest = digest_of(*(array for pair in first for array in pair))
    del first

    def work() -> Any:
        drawn: Any = None
        for _ in range(_BATCHES):
            drawn = batch(rng)
        return drawn

    clock.time("batches", work)
    return Result(_BATCHES * 2 * BATCH_SIZE * CONTEXT_LENGTH * 8, digest)


def _mapped(path: Path) -> NDArray[np.uint16]:
    tokens = np.memmap(path, np.uint16, mode="r")
    tokens.max()  # every page is in memory and in the map
    return tokens


@side("get-batch", OURS)
def get_batch_tokenbin(job: Job, clock: Clock) -> Result:
    """Ours."""
    from preprocess import get_batch

    tokens = _mapped(random_tokens(job.directory))
    return _draw(clock, lambda rng: get_batch(tokens, BATCH_SIZE, CONTEXT_LENGTH, rng=rng))


def _windows(tokens: NDArray[np.uint16], rng: np.random.Generator) -> Batch:
    starts = rng.integers(len(tokens) - CONTEXT_LENGTH, size=BATCH_SIZE)
    inputs = np.stack([tokens[i : i + CONTEXT_LENGTH].astype(np.int64) for i in starts])
    targets = np.stack([tokens[i + 1 : i + 1 + CONTEXT_LENGTH].astype(np.int64) for i in starts])
    return inputs, targets


@side("get-batch", "map for each batch", package="numpy")
def get_batch_map_for_each(job: Job, clock: Clock) -> Result:
    """A loop in the manner of nanoGPT, which maps the file anew for each batch."""
    path = random_tokens(job.directory)
    _mapped(path)
    return _draw(clock, lambda rng: _windows(np.memmap(path, np.uint16, mode="r"), rng))


@side("get-batch", "one map", package="numpy")
def get_batch_one_map(job: Job, clock: Clock) -> Result:
    """The same loop on a map that stays."""
    tokens = _mapped(random_tokens(job.directory))
    return _draw(clock, lambda rng: _windows(tokens, rng))


def _of_sampler(job: Job, clock: Clock, order: Any) -> Result:
    """Batches of a `Sampler`, which are others than those of `get_batch`."""
    from preprocess import Sampler

    tokens = _mapped(random_tokens(job.directory))
    sampler = Sampler(tokens, BATCH_SIZE, CONTEXT_LENGTH, order=order)
    steps = itertools.count()

    def batch(_: np.random.Generator) -> Batch:
        found = sampler.batch(next(steps))
        return found["inputs"], found["targets"]

    return Result(_draw(clock, batch).n_bytes, None)


@side("get-batch", "Sampler, random", package="numpy")
def sampler_random(job: Job, clock: Clock) -> Result:
    """Ours, as a function of seed and step."""
    return _of_sampler(job, clock, "random")


@side("get-batch", "Sampler, epoch", package="numpy")
def sampler_epoch(job: Job, clock: Clock) -> Result:
    """Ours, each window once per epoch."""
    return _of_sampler(job, clock, "epoch")


@side("get-batch", "fill only", package="numpy")
def get_batch_fill(job: Job, clock: Clock) -> Result:
    """No batch at all: how fast the machine fills fresh arrays of that size."""

    def fresh(_: np.random.Generator) -> Batch:
        inputs = np.empty((BATCH_SIZE, CONTEXT_LENGTH), np.int64)
        inputs.fill(1)
        targets = np.empty((BATCH_SIZE, CONTEXT_LENGTH), np.int64)
        targets.fill(2)
        return inputs, targets

    return Result(_draw(clock, fresh).n_bytes, None)
