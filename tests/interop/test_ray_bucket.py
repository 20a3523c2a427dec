"""Actors of Ray write the shards of a dataset in a bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import object_server
import pytest
from preprocess.run.ray_cluster import connected

from preprocess import build
from preprocess.storage.remote import open_objects

pytest.importorskip("ray", reason="needs Ray")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bucket() -> Iterator[str]:
    """A bucket, and a session of Ray whose actors know its server."""
    with object_server.s3_bucket() as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        with connected(2, None):
            yield url


def test_shards_in_a_bucket_are_written_by_actors(bucket: str, tmp_path: Path) -> None:
    documents = [f"document {i} of many, with {i * i} words" * (i % 7 + 1) for i in range(300)]
    (tmp_path / "text").write_text("<|endoftext|>".join(documents))
    options: dict[str, Any] = {
        "train": tmp_path / "text", "vocab_size": 300, "val_fraction": 0.1, "unit_size": 3000,
        "shard_tokens": 2000, "workers": 2,
    }  # fmt: skip
    build(**options, out=tmp_path / "local")
    result = build(**options, out=f"{bucket}/data", executor="ray")
    assert len(result.manifests["train"].shards) > 3
    objects = open_objects(bucket)
    found = {key.removeprefix("data/"): objects.get(key) for key, _ in objects.keys("data/")}
    expected = {path.name: path.read_bytes() for path in (tmp_path / "local").iterdir()}
    assert found.keys() == expected.keys()
    assert {x: y for x, y in found.items() if x != "stats.json"} == {
        x: y for x, y in expected.items() if x != "stats.json"
    }
    assert "up to date" in build(**options, out=f"{bucket}/data", executor="ray").lines[0]
