"""With a limit of the address space, whatever uses threads ends: with a result, or MemoryError.

A thread that is started then may end before it does anything, and LLVM may find no memory.
"""

import _thread
import sys
from collections.abc import Callable

import numpy as np
import processes
import pytest

from bpe import train_bpe
from preprocess import AsyncDataLoader, Sampler

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
def test_a_limit_of_the_address_space_lets_everything_end() -> None:
    assert processes.printed_by(PROGRAM) == "ended\n"


@pytest.mark.parametrize("how", ["refused", "ends without a word"])
def test_threads_that_never_begin_cost_no_result(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["the quick brown fox jumps over the lazy dog\n"] * 60_000
    first = train_bpe(lines[:100], vocab_size=300)
    expected, batches = first.encode("".join(lines)), [*Sampler(np.arange(99), 2, 4, order="epoch")]

    def start(run: Callable[..., object], arguments: tuple[object, ...]) -> int:
        if how == "refused":
            raise RuntimeError("can't start new thread")
        return 0

    monkeypatch.setattr(_thread, "start_new_thread", start)
    again = train_bpe(lines[:100], vocab_size=300, workers=3)
    assert again.merges == first.merges
    assert again.encode("".join(lines)) == expected
    assert [id for ids in again.encode_batch(lines) for id in ids] == expected
    assert [*again.encode_iterable(lines)] == expected
    loader = AsyncDataLoader(Sampler(np.arange(99), 2, 4, order="epoch"), prefetch_buffer_size=4)
    np.testing.assert_equal([*loader], batches)
