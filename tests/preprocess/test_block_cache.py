"""The cache of blocks: its limit, several processes, kills, and what else may happen to it."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import processes
import pytest
from remote_cases import BLOCK, assert_same_batches, disk_usage, flip, pair

from preprocess import Sampler, TokenFile, TokenFileError, get_batch, open_tokens
from preprocess.dataset import columns as table
from preprocess.dataset import remote as block_cache
from preprocess.dataset.remote import CacheError
from preprocess.storage import forked
from preprocess.storage.remote import RemoteError

# --- the limit ---


@pytest.mark.parametrize("files", ["shards and mask"], indirect=True)
def test_a_batch_may_need_more_blocks_than_the_cache_has(
    files: list[TokenFile], bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(block_cache.SIZE_VARIABLE, str(4 * BLOCK))
    local, remote = files[0], open_tokens(f"{bucket}/data/train.json")
    rngs = [np.random.default_rng(3), np.random.default_rng(3)]
    for _ in range(5):
        expected, found = (
            get_batch(file, 60, 400, rng=rng)
            for file, rng in zip((local, remote), rngs, strict=True)
        )
        np.testing.assert_array_equal(expected[0], found[0])
        np.testing.assert_array_equal(expected[1], found[1])
        assert 0 < disk_usage(tmp_path / "cache") <= 4 * BLOCK
    samplers = [Sampler(x, 30, 200, windows="packed", order="epoch") for x in (local, remote)]
    assert_same_batches(*samplers)
    np.testing.assert_array_equal(remote[:], local[:])
    assert 0 < disk_usage(tmp_path / "cache") <= 4 * BLOCK


def test_what_was_used_last_stays(bucket: str, tmp_path: Path, monkeypatch: Any) -> None:
    local, remote = pair(bucket, tmp_path, 140_000)  # 69 blocks
    per_block = BLOCK // 2
    for block in range(67):
        remote[block * per_block]
        remote[5]
    flip(bucket, "data/train.bin", 0)
    remote = open_tokens(f"{bucket}/data/train.bin")
    assert remote[5] == local[5]
    flip(bucket, "data/train.bin", BLOCK)
    with pytest.raises(TokenFileError, match=f"in block 1, bytes {BLOCK:,} to {2 * BLOCK:,}: expe"):
        remote[per_block]


_READER = """
import sys
import numpy as np
from preprocess.dataset import columns
columns.BLOCK_BYTES = 65536
from preprocess import Sampler, get_batch, open_tokens
local, remote = (open_tokens(place) for place in sys.argv[1:3])
seed = int(sys.argv[3])
rngs = [np.random.default_rng(seed), np.random.default_rng(seed)]
samplers = [Sampler(x, 8, 500, windows="packed", order="epoch", seed=seed) for x in (local, remote)]
for step in range(6):
    batches = [get_batch(x, 8, 1000, rng=rng) for x, rng in zip((local, remote), rngs)]
    batches += [tuple(each.batch(step).values()) for each in samplers]
    for expected, found in (batches[:2], batches[2:]):
        for a, b in zip(expected, found):
            assert np.array_equal(a, b), step
    print(step, flush=True)
"""


def run_reader(tmp_path: Path, bucket: str, *arguments: str, **more: Any) -> subprocess.Popen[str]:
    places = tmp_path / "local" / "train.json", f"{bucket}/data/train.json"
    return processes.start("-c", more.get("code", _READER), *places, *arguments, stdout=PIPE)


def test_several_processes_keep_the_limit(bucket: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(table, "BLOCK_BYTES", 65536)
    limit = 6 * 65536
    monkeypatch.setenv(block_cache.SIZE_VARIABLE, str(limit))
    pair(bucket, tmp_path, 1_000_000, shard_tokens=400_000)  # 31 blocks of ids
    readers = [run_reader(tmp_path, bucket, str(seed)) for seed in range(2)]
    usage = []
    for reader in readers:
        assert reader.stdout is not None
        for _ in reader.stdout:
            usage.append(disk_usage(tmp_path / "cache"))
        reader.stdout.close()
    assert [reader.wait() for reader in readers] == [0, 0]
    assert len(usage) == 12
    assert 0 < max(usage) <= limit


_KILLED = """
import os, signal, sys
from preprocess.dataset import columns, remote as block_cache
columns.BLOCK_BYTES = 4096
from preprocess import open_tokens
remote = open_tokens(sys.argv[2])
remote[0]
write, n_bytes = block_cache.write_all, int(sys.argv[3])
def killed(descriptor, data):
    write(descriptor, data[:n_bytes])
    os.kill(os.getpid(), signal.SIGKILL)
block_cache.write_all = killed
remote[10_000]
"""


def test_a_reader_that_is_killed_while_it_writes_leaves_a_usable_cache(
    bucket: str, tmp_path: Path
) -> None:
    local, remote = pair(bucket, tmp_path)
    reader = run_reader(tmp_path, bucket, "1000", code=_KILLED)
    reader.communicate()
    assert reader.returncode == -signal.SIGKILL
    np.testing.assert_array_equal(remote[:], local[:])
    np.testing.assert_array_equal(open_tokens(f"{bucket}/data/train.bin")[:], local[:])
    assert disk_usage(tmp_path / "cache") <= 64 * BLOCK


# --- what happens to the cache ---


def test_blocks_that_others_remove_while_they_are_used(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They stay mapped until the process looks, and are downloaded again after that."""
    local, remote = pair(bucket, tmp_path)
    samplers = [Sampler(file, 8, 50, windows="packed", order="epoch") for file in (local, remote)]
    for seconds in (10.0, 0.0):
        monkeypatch.setattr(block_cache, "_SECONDS_BETWEEN_LOOKS", seconds)
        remote[:]
        for path in (tmp_path / "cache").glob("*/content/*"):
            path.unlink()
        assert_same_batches(*samplers)
        np.testing.assert_array_equal(remote[:], local[:])
        assert bool(disk_usage(tmp_path / "cache")) == (not seconds)
    shutil.rmtree(tmp_path / "cache")
    np.testing.assert_array_equal(remote[:], local[:])


def test_a_process_maps_so_many_blocks_at_a_time(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_cache, "_MOST_MAPPED", 3)
    local, remote = pair(bucket, tmp_path)
    samplers = [Sampler(file, 2, 50, windows="packed", order="epoch") for file in (local, remote)]
    assert_same_batches(*samplers, steps=20)
    for place in (9_000, 1, 15_000, 5_000, 1):
        assert remote[place] == local[place]
    assert 0 < np.count_nonzero(remote.tokens._cache.is_there) <= 3  # type: ignore[union-attr]


@pytest.mark.parametrize("damage", [bytes(BLOCK), b"short"])
def test_blocks_that_were_damaged_are_downloaded_again(
    bucket: str, tmp_path: Path, damage: bytes
) -> None:
    """As after a power cut; a block that is sound is not asked for again."""
    local, remote = pair(bucket, tmp_path)
    remote[:]
    digests = remote.manifest.digests["bin"]
    (first,) = (tmp_path / "cache").glob(f"*/content/{digests[0]}")
    first.write_bytes(damage)
    flip(bucket, "data/train.bin", BLOCK)
    np.testing.assert_array_equal(open_tokens(f"{bucket}/data/train.bin")[:], local[:])


def time_out(_: object) -> None:
    """As the handler of a signal may do."""
    raise TimeoutError


UNSENT = """
from preprocess.storage import forked
forked._answer = lambda root, method, arguments: (None if method == "info" else lambda: 0, None)
forked.answer()
"""


def test_a_forked_process_reads(bucket: str, tmp_path: Path, monkeypatch: Any) -> None:
    local, remote = pair(bucket, tmp_path)
    remote[0]
    if not (process := os.fork()):
        status = 1
        try:
            assert np.array_equal(remote[:], local[:])
            assert np.array_equal(open_tokens(f"{bucket}/data/train.bin")[:], local[:])
            objects = forked.open_anywhere(bucket)
            found = objects.info("data/train.bin")
            assert found is not None
            assert found.n_bytes == 40_000
            assert objects.info("nothing") is None
            assert objects.get("nothing") is None
            assert ("data/train.bin", found) in objects.keys("data/")
            with pytest.raises(forked.ChangedError, match="was changed or removed"):
                objects.read("nothing", 0, 1)
            with pytest.raises(RemoteError, match="TypeError"):
                objects.read("data/train.bin", None, 1)  # type: ignore[arg-type]  # a defect
            with monkeypatch.context() as patched:
                patched.setattr(Connection, "recv", time_out)
                with pytest.raises(RemoteError, match="has ended"):
                    objects.read("data/train.bin", 0, 9)
            for _ in range(2 * forked._AT_ONCE):  # none has the answer to that request
                assert objects.info("nothing") is None
            for program in ("from preprocess.storage.forked import answer; answer()", UNSENT, ""):
                monkeypatch.setattr(forked, "_PROGRAM", program)
                forked._programs[os.getpid()].process.kill()
                forked._programs[os.getpid()].process.wait()
                if program == UNSENT:  # as if the memory was used up
                    assert objects.info("data/train.bin") is None
                elif program:
                    assert len(objects.read("data/train.bin", 0, 9)) == 9  # of another program
            with pytest.raises(RemoteError, match="the program that makes the requests of a for"):
                objects.read("data/train.bin", 0, 1)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(process, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_of_a_data_loader_read(bucket: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="datasets for a DataLoader need PyTorch")
    from preprocess import window_loader

    local, remote = pair(bucket, tmp_path)
    loaders = [
        window_loader(file, None, 8, 100, shuffle=False, num_workers=n)
        for file, n in ((local, 0), (remote, 2))
    ]
    for expected, found in zip(*loaders, strict=True):
        np.testing.assert_array_equal(expected[0], found[0])


def test_a_full_disk_and_a_cache_that_cannot_be_made(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, remote = pair(bucket, tmp_path)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(block_cache, "write_all", full)
        with pytest.raises(CacheError, match="cannot be kept there: No space left on device; set"):
            remote[:]
    assert disk_usage(tmp_path / "cache") == 0
    assert len(remote[:]) == 20_000
    with monkeypatch.context() as patch:
        patch.setenv(block_cache.DIRECTORY_VARIABLE, str(tmp_path / "local" / "train.bin"))
        with pytest.raises(CacheError, match="cannot be kept there: Not a directory; set TOKE"):
            open_tokens(f"{bucket}/data/train.bin")


@pytest.mark.parametrize(
    ("size", "message"),
    [("a lot", "TOKENMILL_CACHE_SIZE should be"), ("16383", "and the cache needs at least 16,384")],
)
def test_sizes_that_a_cache_cannot_have(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, message: str
) -> None:
    pair(bucket, tmp_path)
    monkeypatch.setenv(block_cache.SIZE_VARIABLE, size)
    with pytest.raises(CacheError, match=message):
        open_tokens(f"{bucket}/data/train.bin")
