"""Datasets at URLs: the same batches as of local ones, and every block is checked."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import object_server
import pytest
import written
from remote_cases import assert_same_batches, flip, pair, upload

from preprocess import Sampler, TokenFile, TokenFileError, get_batch, open_tokens
from preprocess.storage.remote import RemoteError, open_objects


def test_what_is_read_is_what_a_local_dataset_has(files: list[TokenFile]) -> None:
    local, remote = files
    assert (len(remote), remote.dtype, remote.manifest) == (len(local), local.dtype, local.manifest)
    assert (remote[7], remote[-1], remote.tokens[7]) == (local[7], local[-1], local[7])
    for part in (slice(2_990, 9_500), slice(None), slice(5, 2), slice(0, 20_000, 7)):
        np.testing.assert_array_equal(remote[part], local[part])
    places = np.array([0, -1, 2_999, 3_000, 17_000])
    np.testing.assert_array_equal(remote.tokens[places], local[:][places])
    np.testing.assert_array_equal(np.asarray(remote.tokens), local[:])
    for mine, other in zip(local.shards, remote.shards, strict=True):
        np.testing.assert_array_equal(mine[0], other[0])
        np.testing.assert_array_equal(mine[1], other[1])
    for mine, part in zip(local.parts, remote.parts, strict=True):
        for name, values in mine.items():
            np.testing.assert_array_equal(part[name], values)
    for number in (0, 100, -1):
        np.testing.assert_array_equal(remote.doc(number), local.doc(number))
    np.testing.assert_array_equal(remote.document_ends, local.document_ends)
    assert not remote.document_ends.flags.writeable
    np.testing.assert_array_equal(remote.loss_mask[:], local.loss_mask[:])
    arrays = getattr(remote.tokens, "arrays")  # noqa: B009
    np.testing.assert_array_equal(np.concatenate([np.asarray(each) for each in arrays]), local[:])
    with pytest.raises(IndexError, match="positions of 20,000 ids"):
        remote.tokens[20_000]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "epoch", "stride": 7, "drop_last": False},
        {"order": "sequential", "drop_last": False},
        {"windows": "documents", "order": "epoch"},
        {"windows": "packed", "order": "epoch"},
        {"windows": "packed", "strategy": "greedy", "world_size": 3, "rank": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("files", ["uint32", "shards and mask"], indirect=True)
def test_samplers_draw_the_same_windows(files: list[TokenFile], options: dict[str, Any]) -> None:
    fields = (
        "inputs", "targets", "segment_ids", "position_ids", "cu_seqlens", "document_targets",
        "loss_mask", "labels",
    )
    local, remote = (Sampler(file, 8, 100, fields=fields, **options) for file in files)
    assert_same_batches(local, remote)
    assert_same_batches(local, pickle.loads(pickle.dumps(remote)))


def test_a_url_is_a_dataset(bucket: str, tmp_path: Path) -> None:
    local, remote = pair(bucket, tmp_path)
    batches = [get_batch(x, 4, 50, rng=np.random.default_rng(0)) for x in (local, str(remote.path))]
    np.testing.assert_array_equal(*batches)


def test_an_empty_dataset(bucket: str, tmp_path: Path) -> None:
    written.write(tmp_path / "local", [], [])
    remote = open_tokens(f"{upload(tmp_path / 'local', bucket)}/train.bin")
    assert (len(remote), remote[:].tolist(), remote.document_ends.tolist()) == (0, [], [])


# --- damage ---


@pytest.mark.parametrize(("name", "read"), [
    ("train.bin", lambda file: get_batch(file, 4, 19_000)),
    ("train.bin", lambda file: file[:]),
    ("train.docs", lambda file: file.doc(3)),
    ("train.mask", lambda file: file.loss_mask[:]),
])  # fmt: skip
def test_a_flipped_byte_is_refused(
    bucket: str, tmp_path: Path, name: str, read: Callable[[TokenFile], Any]
) -> None:
    _, remote = pair(bucket, tmp_path, mask=True)
    read(remote)
    shutil.rmtree(tmp_path / "cache")
    flip(bucket, f"data/{name}", 2_000)
    expected = (
        rf"^{bucket}/data/{name}: damaged or replaced in block 0, bytes 0 to [\d,]+: expected the"
        r" digest \w{32}, found \w{32} .*; restore the file"
    )
    for _ in range(2):
        with pytest.raises(TokenFileError, match=expected):
            read(open_tokens(f"{bucket}/data/train.bin"))
    flip(bucket, f"data/{name}", 2_000)
    read(open_tokens(f"{bucket}/data/train.bin"))


def test_a_flipped_byte_of_the_manifest_is_refused(bucket: str, tmp_path: Path) -> None:
    pair(bucket, tmp_path)
    text = (tmp_path / "local" / "train.json").read_text()
    flip(bucket, "data/train.json", text.index('"n_bytes": 12') + len('"n_bytes": 1'))
    with pytest.raises(TokenFileError, match="does not have the digest at its end, so it was chan"):
        open_tokens(f"{bucket}/data/train.bin")
    open_objects(bucket).put("data/train.json", b"\xff")
    with pytest.raises(TokenFileError, match="not a manifest, for it is not JSON"):
        open_tokens(f"{bucket}/data/train.bin")


def test_missing_and_shorter_objects(bucket: str, tmp_path: Path) -> None:
    _, remote = pair(bucket, tmp_path)
    objects = open_objects(bucket)
    objects.put("data/train.bin", (objects.get("data/train.bin") or b"")[:-1])
    with pytest.raises(TokenFileError, match=r"39,999, though its manifest was there .*; restor"):
        remote[-1]
    objects.remove("data/train.bin")
    with pytest.raises(TokenFileError, match="bin: missing, though its manifest was there"):
        remote[0]
    objects.remove("data/train.json")
    with pytest.raises(TokenFileError, match="a dataset at a URL is read by its manifest; chec"):
        open_tokens(f"{bucket}/data/train.bin")


def test_urls_that_cannot_be_datasets(bucket: str) -> None:
    with pytest.raises(TokenFileError, match=r"s3://b/x\.txt: the .bin of a built corpus"):
        open_tokens("s3://b/x.txt")
    with pytest.raises(RemoteError, match=r"(?i)https://h/x\.bin: has a query, such as a"):
        open_tokens("HTTPS://h/x.bin?signature=very-secret")
    with pytest.raises(RemoteError, match="give the path without file"):
        get_batch("file:///a.bin", 1, 1)


def test_a_pickle_of_a_dataset_that_was_built_again(bucket: str, tmp_path: Path) -> None:
    _, remote = pair(bucket, tmp_path)
    text = pickle.dumps(remote)
    assert object_server.SECRET.encode() not in text
    np.testing.assert_array_equal(pickle.loads(text)[:], remote[:])
    shutil.rmtree(tmp_path / "local")
    pair(bucket, tmp_path, seed=5)
    with pytest.raises(TokenFileError, match="was rebuilt since it was pickled"):
        pickle.loads(text)


def test_the_tokenizer_is_fetched(bucket: str, tmp_path: Path) -> None:
    from preprocess import build

    (tmp_path / "text.txt").write_text("low lower lowest " * 200)
    build(train=[tmp_path / "text.txt"], out=tmp_path / "local", vocab_size=270, val_fraction=0)
    directory = upload(tmp_path / "local", bucket)
    for _ in range(2):
        remote = open_tokens(f"{directory}/train.bin")
        assert remote.decode(remote[:5]).startswith("low lower")
        open_objects(bucket).remove("data/tokenizer.json")
    next((tmp_path / "cache").glob("*/tokenizer.json")).unlink()
    with pytest.raises(TokenFileError, match=r"data/tokenizer\.json: missing, and no tokeniz"):
        open_tokens(f"{directory}/train.bin").decode([1])
