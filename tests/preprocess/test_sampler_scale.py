"""Samplers of huge data and over many batches: 64-bit numbers, flat memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import processes
import pytest
import written

from preprocess import Sampler


def test_a_trillion_tokens(tmp_path: Path) -> None:
    """A sparse file: numbers of 64 bits, no memory for the order."""
    path = tmp_path / "x.bin"
    n = 10**12
    with open(path, "wb") as file:
        file.truncate(2 * n)
        file.seek(2 * (n - 3))
        file.write(np.array([7, 8, 9], np.uint16).tobytes())
    tokens = np.memmap(path, np.uint16, "r")
    tracemalloc.start()
    last = Sampler(tokens, 2, 2, stride=1, order="sequential")
    batch = last.batch(len(last) - 1)
    assert batch["inputs"].tolist()[-1] == [7, 8]
    assert batch["targets"].tolist()[-1] == [8, 9]
    sampler = Sampler(tokens, 64, 128, order="epoch")
    numbers = np.concatenate([sampler._numbers(step) for step in range(100)])
    assert len(np.unique(numbers)) == 6400
    assert len(sampler) == (n - 1) // 128 // 64
    assert numbers.max() > 0.9 * n / 128 > 0.1 * n / 128 > numbers.min()
    assert sampler.batch(10**7)["inputs"].shape == (64, 128)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


MANY = """
import itertools, os, sys
from preprocess import AsyncDataLoader, Mixture, Sampler, get_batch
path, reader = sys.argv[1:]
fields = "inputs", "targets", "segment_ids"
parts = {w: Sampler(path, 2, 5, windows=w, order="epoch", fields=fields)
         for w in ("stride", "documents", "packed")}
mixture = Mixture(parts, {name: 1 for name in parts})
def drawn():
    draw = [mixture.batch, *(part.batch for part in parts.values())]
    draw.append(lambda step: get_batch(path, 2, 5))
    return (draw[step % 5](step // 5) for step in itertools.count())
def loaded():
    from torch.utils.data import DataLoader
    from preprocess import BatchDataset
    return DataLoader(BatchDataset(endless), batch_size=None)
endless = Sampler(path, 2, 5, windows="packed", fields=fields)
batches = {"drawn": drawn, "prefetched": lambda: AsyncDataLoader(endless), "loaded": loaded}
def state():
    with open("/proc/self/status") as file:
        anonymous = next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))
    return anonymous, len(os.listdir("/proc/self/fd"))
for step, batch in zip(range(9_000), batches[reader]()):
    if step in (3_000, 6_000):
        print(*state())
print(*state())
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system has no /proc")
@pytest.mark.parametrize("reader", ["drawn", "prefetched", "loaded"])
def test_many_batches_take_no_memory_and_no_files(tmp_path: Path, reader: str) -> None:
    if reader == "loaded":
        pytest.importorskip("torch", reason="needs the extra `torch`")
    path = written.dataset(tmp_path, [20] * 20_000, seed=None).path
    lines = processes.printed_by(MANY, path, reader).splitlines()
    first, second, last = (map(int, line.split()) for line in lines)
    (before, files), (between, _), (after, files_after) = first, second, last
    # KiB: 50 bytes per batch, less than any object has. An allocator may take more once.
    assert min(between - before, after - between) < 150
    assert files_after <= files


RESIDENT = """
import sys
from preprocess import Sampler, get_batch, open_tokens
from preprocess.dataset import reader
reader._RESIDENT = int(sys.argv[2])
def resident():
    with open("/proc/self/status") as file:
        mapped = "RssFile", "RssShmem"  # of a disk, and of memory
        return sum(int(line.split()[1]) for line in file if line.startswith(mapped))
file = open_tokens(sys.argv[1])
samplers = [Sampler(file, 64, 30, windows=windows) for windows in ("stride", "documents")]
for sampler in samplers:
    sampler.batch(0)
get_batch(file, 1, 30)
before = resident()
for step in range(400):
    for sampler in samplers:
        sampler.batch(step)
    get_batch(file, 64, 30)
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="this system has no /proc")
@pytest.mark.parametrize("limit", [1 << 20, 1 << 30])
def test_mapped_pages_are_given_back(tmp_path: Path, limit: int) -> None:
    """Of a file of 64 MB most are resident after a while, if the limit is not smaller."""
    n = 32_000_000
    ids = np.full(n, 7, np.uint32)
    ids[99::100] = 299
    path = written.write(tmp_path, ids, np.arange(100, n + 1, 100)).path
    grown = int(processes.printed_by(RESIDENT, path, limit))  # KiB
    assert grown < 12_000 if limit == 1 << 20 else grown > 20_000
