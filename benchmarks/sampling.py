"""Batches of windows from a `.bin` of 400 MB, as NumPy arrays.

Law: the same starts on all sides, so that all sides draw the same batches. Every batch is new
memory; the one before is let go of, as a training loop does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.job import OURS, Clock, Job, Result, digest_of, side
from benchmarks.studies import Table

BATCH_SIZE, CONTEXT_LENGTH = 64, 1024
N_TOKENS = 200_000_000
_BATCHES = 300
_CHECKED = 5
END_OF_TEXT_ID = 50_000

Batch = tuple[NDArray[np.int64], NDArray[np.int64]]


def random_tokens(directory: Path) -> Path:
    """A file of random ids, made if it is not there."""
    path = directory / "random.bin"
    if not path.exists():
        rng = np.random.default_rng(0)
        rng.integers(50_000, size=N_TOKENS, dtype=np.uint16).tofile(path)
    return path


def document_file(directory: Path) -> Path:
    """The same ids as a dataset with documents of 1,000 tokens on average."""
    from preprocess.dataset.writer import TokenFileWriter
    from preprocess.storage import LocalStorage

    path = directory / "documents.bin"
    if path.with_suffix(".json").exists():
        return path
    rng = np.random.default_rng(0)
    ids = np.fromfile(random_tokens(directory), np.uint16)
    sizes = rng.exponential(1000, N_TOKENS // 900).astype(np.int64) + 1
    ends = np.append(np.cumsum(sizes)[np.cumsum(sizes) < N_TOKENS], N_TOKENS)
    ids[ends - 1] = END_OF_TEXT_ID
    with LocalStorage(directory, "documents") as storage:
        writer = TokenFileWriter(storage, "documents", vocab_size=END_OF_TEXT_ID + 1)
        begin = 0
        for some in np.array_split(ends, 100):
            writer.append(ids[begin : some[-1]], np.asarray(some - begin))
            begin = int(some[-1])
        writer.finish(
            end_of_text_id=END_OF_TEXT_ID, n_bytes=0, tokenizer_fingerprint="", pattern="gpt2",
            unicode_version="", sources=[],
        )
        writer.close()
        storage.publish(["documents.bin", "documents.docs"], ["documents.json"])
        storage.clear()
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


def mapped_tokens(path: Path) -> NDArray[np.uint16]:
    """Map a file of ids whose pages are all in memory: uint16[n_tokens]."""
    tokens = np.memmap(path, np.uint16, mode="r")
    tokens.max()  # every page is in memory and in the map
    return tokens


@side("get-batch", OURS)
def get_batch_tokenmill(job: Job, clock: Clock) -> Result:
    """Ours."""
    from preprocess import get_batch

    tokens = mapped_tokens(random_tokens(job.directory))
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
    mapped_tokens(path)
    return _draw(clock, lambda rng: _windows(np.memmap(path, np.uint16, mode="r"), rng))


@side("get-batch", "one map", package="numpy")
def get_batch_one_map(job: Job, clock: Clock) -> Result:
    """The same loop on a map that stays."""
    tokens = mapped_tokens(random_tokens(job.directory))
    return _draw(clock, lambda rng: _windows(tokens, rng))


def packed_sampler(directory: Path) -> Any:
    """A sampler of rows of whole documents, with the number of the document of each token."""
    from preprocess import Sampler
    from preprocess.sampling.data import token_array

    sampler = Sampler(
        document_file(directory), BATCH_SIZE, CONTEXT_LENGTH, windows="packed", order="epoch",
        fields=("inputs", "targets", "segment_ids"),
    )
    token_array(sampler.dataset).max()  # every page is in the map
    return sampler


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


# --- ours alone ---

_SHAPES = (64, 1024), (512, 2048)
_WAITS = 1000


def prefetch(job: Job, rounds: int) -> Table:
    """Wait for batches in a loop whose steps take twice as long as loading a batch."""
    from preprocess import AsyncDataLoader, Sampler

    tokens = mapped_tokens(random_tokens(job.directory))
    rows = []
    for batch_size, length in _SHAPES:
        sampler = Sampler(tokens, batch_size, length)
        loading = []
        for step in range(50):
            start = time.perf_counter()
            sampler.batch(step)
            loading.append(time.perf_counter() - start)
        seconds = 2 * statistics.median(loading)
        for enabled in (True, False):
            waits = []
            for _ in range(rounds):
                batches = iter(AsyncDataLoader(sampler, prefetch_enabled=enabled))
                for _ in range(_WAITS):
                    start = time.perf_counter()
                    next(batches)
                    waits.append(1000 * (time.perf_counter() - start))
                    time.sleep(seconds)  # a device computes
            waits.sort()
            shown = (statistics.median(waits), waits[len(waits) * 99 // 100], waits[-1])
            name, used = f"({batch_size}, {length})", "yes" if enabled else "no"
            rows.append([name, used, f"{1000 * seconds:.2f}", *(f"{each:.3f}" for each in shown)])
    return Table(
        "Waits for a batch, where a step takes twice as long as loading one",
        ["batch", "prefetch", "step, ms", "median wait, ms", "99 % below", "longest"],
        rows,
        "In a step the process sleeps, as if a device computed.",
    )
