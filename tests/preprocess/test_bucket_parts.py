"""Parts that tasks build in a bucket are merged there; ids of others are imported into one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preprocess import build, import_tokens, merge_parts, open_tokens
from preprocess.pipeline import train
from preprocess.settings import SettingsError


def test_parts_in_a_bucket_are_merged(bucket: str, tmp_path: Path) -> None:
    documents = [f"document {i} of many, with {i * i} words" for i in range(90)]
    (tmp_path / "text").write_text("<|endoftext|>".join(documents))
    train(paths=tmp_path / "text", out=tmp_path / "tokenizer.json", vocab_size=280)
    options: dict[str, Any] = {
        "train": tmp_path / "text", "tokenizer": tmp_path / "tokenizer.json", "shard_tokens": 300,
        "workers": 1, "val_fraction": 0,
    }  # fmt: skip
    build(**options, out=tmp_path / "whole")
    for task in (1, 0):
        build(**options, out=f"{bucket}/parts", task_index=task, task_count=2)
    merge_parts(f"{bucket}/parts")
    merged = merge_parts(f"{bucket}/parts")["train"]
    found = open_tokens(f"{bucket}/parts/train.json")
    whole = open_tokens(tmp_path / "whole" / "train.json")
    assert merged == found.manifest
    assert np.array_equal(found[:], whole[:])
    assert np.array_equal(found.document_ends, whole.document_ends)


def test_ids_are_imported_into_a_bucket(bucket: str, tmp_path: Path) -> None:
    ids = np.array([1, 2, 9, 3, 9], np.uint16)
    ids.tofile(tmp_path / "ids.bin")
    options: dict[str, Any] = {
        "format": "raw", "dtype": "uint16", "vocab_size": 10, "end_of_text_id": 9,
        "out": f"{bucket}/ids/train.bin",
    }  # fmt: skip
    result = import_tokens(tmp_path / "ids.bin", **options, shard_tokens=3)
    assert result.path == f"{bucket}/ids/train.json"
    assert open_tokens(f"{bucket}/ids/train.json")[:].tolist() == ids.tolist()
    assert not import_tokens(tmp_path / "ids.bin", **options, shard_tokens=3).is_new


def test_shards_are_not_written_over_what_is_imported(tmp_path: Path) -> None:
    np.array([1, 9, 2, 9], np.uint16).tofile(tmp_path / "train_00000.bin")
    with pytest.raises(SettingsError, match=r"written over .*train_00000\.bin, the file that is"):
        import_tokens(
            tmp_path / "train_00000.bin", format="raw", dtype="uint16", vocab_size=10,
            end_of_text_id=9, out=tmp_path / "train.bin", shard_tokens=2, overwrite=True,
        )  # fmt: skip
