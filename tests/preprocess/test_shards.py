"""Shards hold what one file would hold, and are read as one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torture
from hypothesis import given, settings
from hypothesis import strategies as st

from preprocess import build, open_tokens
from preprocess.check.decode import decode_range
from preprocess.check.verify import verify
from preprocess.cli import run
from preprocess.dataset.columns import TokenFileError, token_dtype
from preprocess.dataset.manifest import Manifest
from preprocess.dataset.shards import ShardView
from preprocess.pipeline import encode

END = "<|endoftext|>"
N = 200  # tokens of a shard
OPTIONS: dict[str, Any] = {"vocab_size": 270, "val_fraction": 0.2, "unit_size": 300, "workers": 1}


def write_corpus(path: Path) -> None:
    """Short documents, and one that is larger than three shards."""
    documents = [f"document {i} of many: {'low lower ' * (i % 7)}" for i in range(60)]
    documents.insert(30, "one that is long " * 130)
    path.write_text(END.join(documents))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """whole/ without shards; shards/ and split/ of the same text."""
    root = tmp_path_factory.mktemp("shards")
    write_corpus(root / "text")
    for name, more in (
        ("whole", {}),
        ("shards", {"shard_tokens": N}),
        ("split", {"shard_tokens": N, "split_documents": True}),
    ):
        build(train=root / "text", out=root / name, **OPTIONS | more)
    return root


@pytest.fixture(params=["shards", "split"], scope="module")
def divided(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def data(root: Path, divided: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root / divided, tmp_path / "data"))


def sizes_of(lengths: list[int], splits: bool) -> list[int]:
    """Tokens of each shard of documents of such lengths."""
    if splits:
        return [N] * (sum(lengths) // N) + [sum(lengths) % N] * bool(sum(lengths) % N)
    sizes = [0]
    for length in lengths:
        if sizes[-1] and sizes[-1] + length > N:
            sizes.append(0)
        sizes[-1] += length
    return sizes


def test_shards_hold_what_one_file_would_hold(root: Path, divided: str) -> None:
    for name in ("train", "val"):
        whole, file = (open_tokens(root / each / f"{name}.json") for each in ("whole", divided))
        assert np.array_equal(np.asarray(file.tokens), whole.tokens)
        assert np.array_equal(file.document_ends, whole.document_ends)
        assert (file.n_documents, len(file)) == (whole.n_documents, len(whole))
        assert file[N - 5 : N + 5].tolist() == whole[N - 5 : N + 5].tolist()
        assert file[N] == whole[N]
        assert not (root / divided / f"{name}.bin").exists()
        lengths = np.diff(whole.document_ends.astype(int), prepend=0).tolist()
        sizes = sizes_of(lengths, splits=divided == "split")
        assert [len(ids) for ids, _ in file.shards] == sizes
        for number, (ids, ends) in enumerate(file.shards):
            stem = root / divided / f"{name}_{number:05d}"
            assert np.fromfile(stem.with_suffix(".bin"), file.dtype).tolist() == ids.tolist()
            assert np.fromfile(stem.with_suffix(".docs"), "<u8").tolist() == ends.tolist()


def test_shards_are_decoded_as_one(root: Path, divided: str) -> None:
    for start, count in ((0, None), (N - 3, 9)):
        pieces = [
            b"".join(decode_range(root / each / "train.json", start=start, count=count))
            for each in ("whole", divided)
        ]
        assert pieces[0] == pieces[1]


def damages(data: Path, **more: bool) -> list[Any]:
    return [finding for finding in verify(data, **more) if not finding.sound]


@settings(max_examples=8, deadline=None)
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7), kind=st.integers(0, 2))
def test_damage_is_found_in_its_shard_and_repaired(
    tmp_path_factory: pytest.TempPathFactory, root: Path, divided: str, place: int, bit: int,
    kind: int,
) -> None:  # fmt: skip
    data = Path(shutil.copytree(root / divided, tmp_path_factory.mktemp("damaged") / "data"))
    files = sorted(path for path in data.glob("*_*.*") if path.stat().st_size and
                   path.suffix in (".bin", ".docs"))  # fmt: skip
    path = files[place % len(files)]
    content = bytearray(path.read_bytes())
    if kind == 0:
        content[place % len(content)] ^= 1 << bit
    elif kind == 1:
        del content[place % len(content) :]
    else:
        content += bytes(1 + bit)
    path.write_bytes(content)
    assert {finding.path for finding in damages(data)} >= {path}
    assert verify(data, repair=True)[-1].sound
    assert damages(data) == []
    assert torture.contents(data) == torture.contents(root / divided)


def test_a_shard_alone_and_shards_without_their_manifest(data: Path) -> None:
    with pytest.raises(TokenFileError, match=r"is one of several shards.*train\.json"):
        open_tokens(data / "train_00001.bin")
    (data / "train.json").unlink()
    with pytest.raises(TokenFileError, match="the manifest of its shards"):
        open_tokens(data / "train.bin")
    (finding,) = damages(data)
    assert "the manifest of its shards" in finding.text


def test_files_that_are_replaced_leave_none_behind(data: Path, root: Path) -> None:
    """Shards that were, and are not any more, go; other files stay."""
    (data / "train_notes.bin").write_bytes(b"mine")
    build(train=root / "text", out=data, overwrite=True, **OPTIONS)
    there = torture.contents(data)
    assert there.pop("train_notes.bin") == b"mine"
    assert there == torture.contents(root / "whole")
    build(train=root / "text", out=data, overwrite=True, shard_tokens=N, **OPTIONS)
    assert not (data / "train.bin").exists()
    assert damages(data) == []


@pytest.mark.parametrize("number", ["00007", "100000"])
def test_a_shard_that_is_there_is_not_overlooked(root: Path, tmp_path: Path, number: str) -> None:
    shard = tmp_path / f"train_{number}.bin"
    shard.write_bytes(b"mine")
    with pytest.raises(TokenFileError, match=f"{shard}: exists; choose another directory"):
        build(train=root / "text", out=tmp_path, shard_tokens=N, **OPTIONS)


def test_a_dataset_whose_name_ends_with_a_date_is_no_shard(root: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"tokenizer": root / "whole" / "tokenizer.json"}
    for name, more in (("x_20240101", {}), ("x", {"shard_tokens": N})):
        encode(paths=root / "text", out=tmp_path / f"{name}.bin", **given, **more)
    assert all(each.sound for each in verify(tmp_path))
    # x_00007 would be replaced.
    encode(paths=root / "text", out=tmp_path / "y_00007.bin", **given)
    with pytest.raises(TokenFileError, match=r"y_00007\.bin: exists; choose another directory"):
        encode(paths=root / "text", out=tmp_path / "y.bin", **given, shard_tokens=N)


def test_the_command_line(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["encode", str(root / "text"), "--tokenizer", str(root / "whole" / "tokenizer.json")]
    out = ["--out", str(tmp_path / "x.bin")]
    assert run([*command, *out, "--shard-tokens", str(N)]) == 0
    assert "1 document is larger than 200 tokens" in capsys.readouterr().err
    assert run([*command, *out, "--shard-tokens", str(N)]) == 0
    assert "up to date" in capsys.readouterr().out
    assert run([*command, *out, "--split-documents"]) == 2
    assert "--split-documents has no effect without --shard-tokens" in capsys.readouterr().err
    assert run([*command, *out, "--shard-tokens", "0"]) == 2


@pytest.mark.parametrize(("change", "message"), [
    ({"n_tokens": 7}, '"n_tokens" is 7, and the shards have'),
    ({"n_documents": 7}, '"n_documents" is 7, and the shards have'),
    ({"shards": {}}, r"Expected `array`, got `object` - at `\$\.shards`"),
    ({"shards": [{"n_tokens": -1}]}, r"Expected `int` >= 0 - at `\$\.shards\[0\]\.n_tokens`"),
    ({"shards": [{"n_tokens": 9, "n_documents": 0, "bin_digests": [], "docs_digests": []}]},
     'shard 0: "bin_digests" should have 1 entries and has 0'),
])  # fmt: skip
def test_a_manifest_that_contradicts_its_shards(
    root: Path, change: dict[str, Any], message: str
) -> None:
    content = json.loads((root / "shards" / "train.json").read_text()) | change
    with pytest.raises(TokenFileError, match=message):
        Manifest.from_json(json.dumps(content), "train.json")


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6), start=st.integers(-9, 30),
    stop=st.integers(-9, 30), step=st.sampled_from([1, 2, -1]),
)
def test_joined_arrays_are_read_like_one(
    sizes: list[int], start: int, stop: int, step: int
) -> None:
    whole = np.arange(sum(sizes), dtype=token_dtype(100))
    joined = ShardView(np.split(whole, np.cumsum(sizes)[:-1]))
    assert joined[start:stop:step].tolist() == whole[start:stop:step].tolist()
    assert joined[start:stop].dtype == whole.dtype
    if len(whole):
        places = np.array([start % len(whole), -1])
        assert joined[places].tolist() == whole[places].tolist()
    for place in (len(whole), -len(whole) - 1):
        with pytest.raises(IndexError, match=f"positions of {len(whole)} ids are from 0 to"):
            joined[place]
    with pytest.raises(ValueError, match="shards cannot become one array without a copy"):
        np.array(joined, copy=False)
