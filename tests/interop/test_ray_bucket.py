"""Workers of Ray write the parts of a dataset in a bucket."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import object_server
import pytest

from preprocess import build, merge_parts
from preprocess.run.parts import connected
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


def test_parts_in_a_bucket_are_those_of_tasks(bucket: str, tmp_path: Path) -> None:
    documents = [f"document {i} of many, with {i * i} words" * (i % 7 + 1) for i in range(300)]
    (tmp_path / "text").write_text("<|endoftext|>".join(documents))
    options: dict[str, Any] = {
        "train": tmp_path / "text", "val_fraction": 0.1, "unit_size": 3000, "shard_tokens": 2000,
        "workers": 2, "task_count": 2,
    }  # fmt: skip
    on_ray = options | {"executor": "ray", "vocab_size": 300, "out": f"{bucket}/data"}
    build(**options | {"task_count": None}, vocab_size=300, out=tmp_path / "whole")
    tokenizer = tmp_path / "whole" / "tokenizer.json"
    for index in (0, 1):
        build(**options, tokenizer=tokenizer, out=tmp_path / "local", task_index=index)
    merge_parts(tmp_path / "local")
    assert len(build(**on_ray).manifests["train"].shards) > 3
    objects = open_objects(bucket)
    found = {key.removeprefix("data/"): objects.get(key) for key, _ in objects.keys("data/")}
    expected = {path.name: path.read_bytes() for path in (tmp_path / "local").iterdir()}
    assert found.keys() == expected.keys()
    differ = {name for name, content in found.items() if content != expected[name]}
    assert all(name.endswith("stats.json") for name in differ)
    assert "up to date" in build(**on_ray).lines[0]
