"""With a limit of the address space, whatever uses threads ends: with a result, or MemoryError.

A thread that is started then may end before it does anything, and LLVM may find no memory.
"""

import subprocess
import sys

import pytest

pytest.importorskip("resource", reason="this system has no limits of memory")

PROGRAM = """
import resource
from pathlib import Path

import numpy as np

from bpe import train_bpe
from preprocess import AsyncDataLoader, Sampler

line = "the quick brown fox jumps over the lazy dog and runs away from 1234 wolves.\\n"
lines = [line] * 56_000
text = "".join(lines)
first, second = (train_bpe([text[:100_000]], vocab_size=300) for _ in range(2))
sampler = Sampler(np.arange(4096), 8, 32, order="epoch")
calls = [
    lambda: len(first.encode(text)),
    lambda: sum(1 for _ in first.encode_iterable(lines)),
    lambda: len(first.encode_separated_to_numpy(text.encode())[0]),
    lambda: len(first.encode_batch_to_numpy(lines)[0]),
    lambda: train_bpe(lines, vocab_size=300, workers=3).vocab_size,
    lambda: sum(1 for _ in AsyncDataLoader(sampler, prefetch_buffer_size=4)),
    lambda: len(second.encode("where nothing of a tokenizer is in memory yet")),
]
expected = [call() for call in calls[:-1]]  # these leave the stacks of their threads behind
resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (resident + 1_000_000, -1))
for _ in range(2):
    for n, call in zip([*expected, 43], calls):
        try:
            assert call() == n
        except MemoryError:
            pass
print("ended")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems limit no address space")
@pytest.mark.parametrize("attempt", range(2))
def test_a_limit_of_the_address_space_lets_everything_end(attempt: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100
    )
    assert run.stdout == "ended\n", run.stderr
