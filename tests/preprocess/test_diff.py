"""diff: what one dataset has and another lacks, as plain Python counts it."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import END, write

from bpe import train_bpe
from preprocess import DatasetWriter, TokenFileError, build, diff
from preprocess.check import diff as module
from preprocess.cli import run

Documents = list[list[int]]
SOME = st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=25)


def dataset(directory: Path, documents: Documents, **more: Any) -> Path:
    ids = [x for each in documents for x in (*each, END)]
    write(directory, ids, np.cumsum([len(each) + 1 for each in documents]), **more)
    return directory / "train.bin"


def surplus(ours: Documents, theirs: Documents) -> list[int]:
    """Numbers of the documents that are missing in the other, of equal ones the last."""
    found, left = [], Counter(map(tuple, theirs))
    for number, document in enumerate(map(tuple, ours)):
        left[document] -= 1
        if left[document] < 0:
            found.append(number)
    return found


@given(old=SOME, new=SOME, shuffled=st.booleans(), shards=st.sampled_from([None, 7]),
       memory=st.sampled_from([1 << 28, 300]))  # fmt: skip
@settings(max_examples=30)
def test_against_plain_python(
    tmp_path_factory: pytest.TempPathFactory, old: Documents, new: Documents, shuffled: bool,
    shards: int | None, memory: int,
) -> None:
    root = tmp_path_factory.mktemp("x")
    new = sorted(old) if shuffled else new
    paths = dataset(root / "old", old), dataset(root / "new", new, shard_tokens=shards)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MEMORY", memory)
        patch.setattr(module, "_ROWS", 3)
        patch.setattr(module, "_BLOCK", 2)
        found = diff(old=paths[0].with_suffix(".json"), new=paths[1].with_suffix(".json"))
    of = found["datasets"]["train"]
    for name, ours, theirs in (("old", old, new), ("new", new, old)):
        expected = surplus(ours, theirs)
        assert of[f"only_in_{name}"] == {
            "documents": len(expected), "first": expected[:10],
            "tokens": sum(len(ours[i]) + 1 for i in expected),
        }
    assert of["same"] is found["same"] is (old == new)
    if old == new:
        assert of["first_difference"] is None
    else:
        place = of["first_difference"]["document"]
        assert old[:place] == new[:place]
        assert old[place : place + 1] != new[place : place + 1]
        if place < min(len(old), len(new)):
            token = of["first_difference"]["token"]
            assert old[place][:token] == new[place][:token]
            assert old[place][token : token + 1] != new[place][token : token + 1]


def test_masks_are_of_documents(tmp_path: Path) -> None:
    documents = [[1, 2], [3, 4]]
    paths = []
    for name, mask in (("a", [1] * 6), ("b", [1] * 5 + [0]), ("c", None)):
        paths.append(dataset(tmp_path / name, documents, mask=mask))
    found = diff(paths[0], paths[1])["datasets"]["train"]
    assert found["only_in_old"]["first"] == [1]
    found = diff(paths[0], paths[2])["datasets"]["train"]
    assert not found["same"]
    assert found["columns"] == {"old": ["bin", "docs", "mask"], "new": ["bin", "docs"]}
    assert found["first_difference"] is None


def test_masks_of_other_tokenizers_are_not_compared(tmp_path: Path) -> None:
    texts = [f"text {i}, and more of it: {i * i}" for i in range(20)]
    for name, size in (("a", 290), ("b", 270)):
        tokenizer = train_bpe(texts, size, special_tokens=["<|endoftext|>"])
        path = tmp_path / name / "train.bin"
        with DatasetWriter(path, tokenizer=tokenizer, loss_mask=True) as writer:
            for text in texts:
                writer.write(text)
        tokenizer.save(tmp_path / name / "tokenizer.json")
    found = diff(tmp_path / "a", tmp_path / "b")["datasets"]["train"]
    assert found["compared"] == "text"
    assert found["only_in_old"]["documents"] == found["only_in_new"]["documents"] == 0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("diff")
    texts = [f"text {i}, and more of it: {i * i}" for i in range(40)]
    for name, some in (("a", texts[:20]), ("b", texts[20:]), ("c", texts[:21])):
        (root / f"{name}.txt").write_text("<|endoftext|>".join(some))
    options: dict[str, Any] = {"vocab_size": 280, "val_fraction": 0}
    build(train=[root / "a.txt", root / "b.txt"], out=root / "old", **options)
    build(train=[root / "b.txt", root / "a.txt"], out=root / "other", vocab_size=300,
          val_fraction=0)  # fmt: skip
    build(train=[root / "c.txt", root / "b.txt"], val=root / "a.txt", out=root / "new",
          tokenizer=root / "old" / "tokenizer.json")  # fmt: skip
    return root


def test_other_tokenizers_are_compared_by_text(root: Path, tmp_path: Path) -> None:
    found = diff(root / "old", root / "other")["datasets"]["train"]
    assert found["compared"] == "text"
    assert found["tokenizers"]["old"] != found["tokenizers"]["new"]
    assert found["only_in_old"]["documents"] == found["only_in_new"]["documents"] == 0
    assert found["first_difference"] == {"document": 0}
    for name in ("train.bin", "train.docs", "train.json"):
        (tmp_path / name).write_bytes((root / "other" / name).read_bytes())
    with pytest.raises(TokenFileError, match="missing, and no tokenizer was given"):
        diff(root / "old", tmp_path)


def test_the_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = str(root / "old"), str(root / "new")
    assert run(["diff", old, old]) == 0
    assert "train: the same 40 documents in the same order" in capsys.readouterr().out
    assert run(["diff", old, new]) == 1
    lines = capsys.readouterr().out
    assert "val is only in new" in lines
    assert "train: documents: 40 in old, 41 in new (+1)" in lines
    assert "train: only in old: 0 documents, 0 tokens\n" in lines
    assert "train: only in new: 1 documents, " in lines
    assert "train: documents of c.txt: 0 in old, 21 in new" in lines
    assert "train: the first difference is in document 21, token 2" in lines
    assert run(["diff", old, str(root / "other"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["datasets"]["train"]["compared"] == "text"
    assert run(["diff", old, f"{root}/missing"]) == 1
    assert "no such file or directory" in capsys.readouterr().err


def test_a_shuffled_dataset_lacks_counts_of_sources(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("<|endoftext|>".join(f"text {i}" for i in range(9)))
    options: dict[str, Any] = {"train": tmp_path / "text.txt", "vocab_size": 257, "val_fraction": 0}
    build(**options, out=tmp_path / "old")
    build(**options, out=tmp_path / "new", shuffle_documents=1)
    found = diff(old=tmp_path / "old", new=tmp_path / "new")["datasets"]["train"]
    assert (found["sources"], found["only_in_new"]["documents"]) == ([], 0)
    assert found["first_difference"]


def test_memory_for_documents_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory grows by little more than eight bytes for each number."""
    monkeypatch.setattr(module, "_MEMORY", 1 << 17)
    monkeypatch.setattr(module, "_ROWS", 1 << 9)
    monkeypatch.setattr(module, "_BLOCK", 1 << 9)
    n = 15_000
    numbers = np.arange(2 * n)
    documents = np.stack([numbers % 250, numbers // 250 % 250, numbers // 250 // 250], 1)
    paths = [dataset(tmp_path / f"{i}", documents[i::2].tolist()) for i in range(2)]
    diff(old=paths[0], new=paths[0], progress=False)  # modules are imported
    tracemalloc.start()
    try:
        found = diff(old=paths[0], new=paths[1], progress=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found["datasets"]["train"]["only_in_old"]["documents"] == n
    assert peak < 1 << 20
