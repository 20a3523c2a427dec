"""Datasets to damage, for the tests of verify and repair; datasets in a bucket; a text file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import object_server
import pytest
from remote_cases import BLOCK, KINDS, pair

from preprocess import TokenFile, build
from preprocess.dataset import columns as table
from preprocess.dataset import remote as block_cache
from preprocess.storage.remote import open_objects


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("verify")
    documents = [f"document {i} of many, and many more words: low lower newest" for i in range(50)]
    (root / "text").write_text("<|endoftext|>".join(documents))
    build(
        train=root / "text",
        val=root / "text",
        out=root / "data",
        vocab_size=280,
        begin_of_text="<|begin|>",
    )
    return root / "data"


@pytest.fixture
def data(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "data"))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of three files whose train.bin has three blocks; one block's text is validation."""
    root = tmp_path_factory.mktemp("large")
    (root / "text").mkdir()
    for number in range(3):
        documents = [f"{number} and {i} are {number + i}. " * 40 for i in range(2800)]
        (root / "text" / f"{number}.txt").write_text("<|endoftext|>".join(documents))
    build(train=root / "text", val_fraction=0.01, out=root / "data", vocab_size=258)
    return root / "data"


@pytest.fixture
def copy(large: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(large, tmp_path / "data"))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that a test may write again for each example."""
    return tmp_path_factory.mktemp("sources") / "text.txt"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with object_server.s3_bucket() as url:
        yield url


@pytest.fixture
def bucket(
    server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> str:
    """A bucket with nothing in it, blocks of 4 KiB, and an empty cache of 64 of them."""
    open_objects.cache_clear()
    monkeypatch.setattr(table, "BLOCK_BYTES", BLOCK)
    monkeypatch.setenv(block_cache.DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(block_cache.SIZE_VARIABLE, str(64 * BLOCK))
    for key, _ in list(open_objects(server).keys("")):
        open_objects(server).remove(key)
    return server


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest, bucket: str, tmp_path: Path) -> list[TokenFile]:
    return pair(bucket, tmp_path, **KINDS[request.param])
