"""Datasets in a bucket of the tests, and the cache that they are read through."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import written

from preprocess import Mixture, Sampler, TokenFile, open_tokens
from preprocess.storage.remote import open_objects

BLOCK = 4096  # bytes, in tests; a multiple of the page

KINDS: dict[str, dict[str, Any]] = {
    "uint16": {},
    "uint32": {"vocab_size": 70_000},
    "shards": {"shard_tokens": 3_000},
    "shards of uint32": {"shard_tokens": 3_000, "vocab_size": 70_000},
    "mask": {"mask": True},
    "shards and mask": {"mask": True, "shard_tokens": 3_000},
}


def make_dataset(directory: Path, n_tokens: int, *, seed: int = 0, **more: Any) -> TokenFile:
    """Documents of random ids, 40 tokens long on average; a shard may end inside of one."""
    rng = np.random.default_rng(seed)
    ends = np.unique(np.append(rng.integers(1, n_tokens, size=n_tokens // 40), n_tokens))
    sizes = np.diff(ends, prepend=0).tolist()
    return written.dataset(directory, sizes, seed=seed, split_documents=True, **more)


def upload(directory: Path, bucket: str, prefix: str = "data") -> str:
    """Put all files of a directory in a bucket; return the URL of their directory."""
    for path in directory.iterdir():
        open_objects(bucket).put(f"{prefix}/{path.name}", path.read_bytes())
    return f"{bucket}/{prefix}"


def flip(bucket: str, key: str, position: int) -> None:
    """Flip a bit of an object."""
    objects = open_objects(bucket)
    content = bytearray(objects.get(key) or b"")
    content[position] ^= 1
    objects.put(key, bytes(content))


def disk_usage(cache: Path) -> int:
    """Bytes that the blocks in a cache take on the disk."""
    total = 0
    for path in cache.glob("*/content/*"):
        with suppress(FileNotFoundError):  # another process may remove a block meanwhile
            total += path.stat().st_size
    return total


def pair(bucket: str, tmp_path: Path, n_tokens: int = 20_000, **options: Any) -> list[TokenFile]:
    """A dataset, local and remote."""
    local = make_dataset(tmp_path / "local", n_tokens, **options)
    return [local, open_tokens(f"{upload(tmp_path / 'local', bucket)}/train.json")]


def assert_same_batches(local: Sampler | Mixture, other: Sampler | Mixture, steps: int = 4) -> None:
    for step in range(steps):
        expected, found = local.batch(step), other.batch(step)
        assert list(expected) == list(found)
        for name, values in expected.items():
            np.testing.assert_array_equal(values, found[name], name)
