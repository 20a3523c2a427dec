"""Plans of packed windows: seconds, how full the windows are, bytes on the disk, memory.

Law: a plan depends on where documents end, not on their ids. So the `.bin` is a hole: it has the
length that the documents need, and takes no disk.
"""

from __future__ import annotations

import functools
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.job import OURS, Clock, Job, Result, side
from benchmarks.rounds import Measured, measure
from benchmarks.sampling import CONTEXT_LENGTH, END_OF_TEXT_ID
from benchmarks.studies import Table

STRATEGIES = ("greedy", "pool", "first_fit", "best_fit")
N_DOCUMENTS = 10_000_000
_MEAN_TOKENS = 100
# The parent reads the memory once more after a figure; nothing may be allocated before it has.
_PAUSE_SECONDS = 0.05


def hollow_dataset(directory: Path, name: str, n: int) -> Path:
    """A dataset of `n` documents of 100 tokens on average, whose ids are a hole in the file."""
    from preprocess.dataset.columns import BLOCK_BYTES, DOCUMENT_ENDS, IDS, token_dtype
    from preprocess.dataset.manifest import Manifest

    path = directory / f"{name}.bin"
    if path.with_suffix(".json").exists():
        return path
    sizes = np.random.default_rng(0).exponential(_MEAN_TOKENS, n).astype(np.int64) + 1
    ends, dtype = np.cumsum(sizes).astype("<u8"), token_dtype(END_OF_TEXT_ID + 1)
    n_tokens = int(ends[-1])
    ends.tofile(path.with_suffix(".docs"))
    with open(path, "wb") as file:
        file.truncate(n_tokens * dtype.itemsize)
    n_bytes = {IDS.name: n_tokens * dtype.itemsize, DOCUMENT_ENDS.name: ends.nbytes}
    manifest = Manifest(
        dtype=dtype.name, vocab_size=END_OF_TEXT_ID + 1, n_tokens=n_tokens, n_documents=n,
        end_of_text_id=END_OF_TEXT_ID, begin_of_text_id=None, tokenizer_fingerprint="",
        pattern="gpt2", unicode_version="", sources=(), n_bytes=0,
        digests={name: ("",) * -(-size // BLOCK_BYTES) for name, size in n_bytes.items()},
    )  # fmt: skip
    path.with_suffix(".json").write_text(manifest.to_json())
    return path


def _sampler(path: Path, strategy: Any) -> Any:
    """A sampler of packed windows, which makes the plan if there is none."""
    from preprocess import Sampler

    return Sampler(path, 1, CONTEXT_LENGTH, windows="packed", strategy=strategy, order="epoch")


def _plans(path: Path, strategy: str) -> list[Path]:
    return [*path.parent.glob(f"{path.stem}.{strategy}-*.plan")]


def _make_plan(strategy: str, job: Job, clock: Clock) -> Result:
    """Make and open a plan, which stays there."""
    from preprocess import open_tokens

    few = hollow_dataset(job.directory, "few-documents", 1000)
    many = hollow_dataset(job.directory, "many-documents", N_DOCUMENTS)
    for plan in (*_plans(few, strategy), *_plans(many, strategy)):
        plan.unlink()
    _sampler(few, strategy)  # imports, kernels
    open_tokens(many).document_ends.max()  # the ends are in the page cache
    clock.time("before", lambda: time.sleep(_PAUSE_SECONDS))
    time.sleep(_PAUSE_SECONDS)
    clock.time("plan", lambda: _sampler(many, strategy))
    return Result(many.stat().st_size, None)


# A process has one strategy: what another has let go of may still be its memory.
side("packing", OURS, package="numba")(functools.partial(_make_plan, "best_fit"))
for _name in STRATEGIES:
    side("packing", _name, package="numba")(functools.partial(_make_plan, _name))


def _growth(found: list[Measured]) -> str:
    if not all(each.memory.keys() >= {"before", "plan"} for each in found):
        return "not told by the system"
    return f"{max(each.memory['plan'] - each.memory['before'] for each in found) / 2**20:.1f}"


def packing(job: Job, rounds: int) -> Table:
    """Plans for many documents: what they take and what they give, by strategy."""
    path = hollow_dataset(job.directory, "many-documents", N_DOCUMENTS)
    jobs = {name: replace(job, work="packing", side=name) for name in STRATEGIES}
    taken = [{name: measure(one) for name, one in jobs.items()} for _ in range(rounds)]
    rows = []
    for strategy in STRATEGIES:
        found = [some[strategy] for some in taken]
        seconds = [each.seconds["plan"] for each in found]
        cpu_seconds = statistics.median(each.cpu_seconds["plan"] for each in found)
        (plan,) = _plans(path, strategy)
        fill = _sampler(path, strategy).tokens_per_window / CONTEXT_LENGTH
        rows.append([
            strategy,
            f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})",
            f"{cpu_seconds:.2f}",
            f"{100 * fill:.2f} %",
            f"{plan.stat().st_size / N_DOCUMENTS:.1f}",
            _growth(found),
        ])  # fmt: skip
    return Table(
        f"Plans of packed windows of {CONTEXT_LENGTH:,} tokens, {N_DOCUMENTS:,} documents",
        ["strategy", "s", "CPU s", "places filled", "bytes per document", "MiB of memory"],
        rows,
        f"Documents have {_MEAN_TOKENS} tokens on average, exponentially distributed. The time is"
        " that of the first sampler: the plan is made, written, and checked. Memory is the most"
        " that RssAnon grew by in any round.",
    )
