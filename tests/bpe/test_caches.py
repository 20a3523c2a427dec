"""What is kept to save time is bounded: on the disk, in memory, and after a kill."""

from __future__ import annotations

import gc
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path

import processes
import pytest

from bpe import train_bpe
from bpe.runtime.user_cache import Cache
from bpe.special import SpecialTokenMatcher


def test_directories_of_other_states_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    old = [f"kernels-{number:032x}" for number in range(20)]
    others = ["tokenizers-" + "0" * 32, "kernels-of-mine", "kernels-" + "0" * 31]
    for number, name in enumerate([*others, *old]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        os.utime(tmp_path / name, (number, number))
    Cache(old[3]).write("name", b"used again")
    used = Cache(old[4])
    new = Cache(f"kernels-{99:032x}")
    assert new.directory is not None
    kept = [*old[3:5], *old[15:], new.directory.name]
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*others, *kept])
    # A process that uses one that is gone makes what it needs again.
    for path in (tmp_path / old[4]).iterdir():
        path.unlink()
    (tmp_path / old[4]).rmdir()
    assert used.read("name") is None
    used.write("name", b"content")
    assert bytes(used.read("name") or b"") == b"content"


def test_threads_that_make_a_cache_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: Cache(f"kind-{number // 8}"), range(80)))
    assert all(each.directory is not None for each in made)
    assert not caplog.records
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_subsets_of_special_tokens_are_kept_for_a_while_only() -> None:
    special_tokens = [f"<{letter}>" for letter in "abcdefgh"]
    tokenizer = train_bpe(["ab"], 264, special_tokens)
    for n in range(8):
        for subset in combinations(special_tokens, n):
            ids = tokenizer.encode("<a><h>", allowed_special=set(subset))
            assert len(ids) == 6 - 2 * len({"<a>", "<h>"} & set(subset))
    gc.collect()
    assert sum(type(each) is SpecialTokenMatcher for each in gc.get_objects()) < 100


IDLE = """
import sys
from pathlib import Path
import numpy as np
import bpe.encode.parallel_encoder as parallel
from bpe import train_bpe
parallel.available_workers = lambda: int(sys.argv[1])
tokenizer = train_bpe(["abc abd"], 257)
text = " ".join(f"{n:x}" for n in range(2_500_000)).encode()
def mebibytes():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1024
tokenizer.safe_cut(np.frombuffer(text, np.uint8), 1, len(text))  # compiling takes memory
before = mebibytes()
tokenizer.encode_separated_to_numpy(text)
print(mebibytes() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells what is used")
def test_many_encoders_give_memory_back() -> None:
    def used(workers: int) -> float:
        return float(processes.printed_by(IDLE, workers))

    assert used(16) < used(1) + 60


KILLED = """
import os, signal, sys
from bpe import Tokenizer, train_bpe
from bpe.files.temporary import temporary_directory
class Source:
    def save_pretrained(self, directory):
        open(os.path.join(directory, "file"), "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "converting":
    Tokenizer.from_huggingface(Source())
with temporary_directory() as directory:
    (directory / "file").touch()
    if sys.argv[1] == "writing":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["converting", "writing"])
def test_temporary_directories_of_killed_processes_are_removed(tmp_path: Path, how: str) -> None:
    def run(how: str, expected_exit: int) -> None:
        processes.run("-c", KILLED, how, expected_exit=expected_exit, TMPDIR=str(tmp_path))

    run(how, -signal.SIGKILL)
    assert len([*tmp_path.iterdir()]) == 1
    run("neither", 0)
    assert not [*tmp_path.iterdir()]
