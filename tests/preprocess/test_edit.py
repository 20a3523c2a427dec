"""append and drop: datasets as plain NumPy makes them, whatever kills the runs."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pytest
import torture
from hypothesis import given, settings
from hypothesis import strategies as st
from written import dataset

from bpe import load_tokenizer
from preprocess import (
    CorpusError,
    OutputError,
    SettingsError,
    TokenFile,
    TokenFileError,
    append,
    build,
    diff,
    drop,
    open_tokens,
    verify,
)
from preprocess.cli import run
from preprocess.dataset import reader
from preprocess.dataset.manifest import APPENDED
from preprocess.edit import drop as drop_module
from preprocess.run import journal
from preprocess.storage import LocalStorage

TEXTS = [f"text {i}, and more of it: {'low lower newest ' * (i % 5)}" for i in range(60)]
SEPARATOR = "<|endoftext|>"


def documents_of(file: TokenFile) -> list[tuple[list[int], list[int]]]:
    """Ids and mask of each document."""
    ends = np.append(0, file.document_ends).astype(int).tolist()
    mask = np.asarray(file.loss_mask[:])
    return [(file.tokens[a:b].tolist(), mask[a:b].tolist()) for a, b in pairwise(ends)]


def build_some(root: Path, n: int, name: str = "data", **more: Any) -> Path:
    (root / "a.txt").write_text(SEPARATOR.join(TEXTS[: n // 2]))
    (root / "b.txt").write_text(SEPARATOR.join(TEXTS[n // 2 : n]))
    given: dict[str, Any] = {"vocab_size": 290, "val_fraction": 0} | more
    build(train=[root / "a.txt", root / "b.txt"], out=root / name, **given)
    return root / name


@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, 9, 30]), min_size=2, max_size=25), data=st.data(),
    shards=st.sampled_from([{}, {"shard_tokens": 12},
                            {"shard_tokens": 7, "split_documents": True}]),
    mask=st.booleans(), block=st.sampled_from([2, 1 << 22]),
)  # fmt: skip
@settings(max_examples=30)
def test_drop_against_plain_python(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject,
    shards: dict[str, Any], mask: bool, block: int,
) -> None:
    root = tmp_path_factory.mktemp("x")
    file = dataset(root / "old", sizes, mask=mask, **shards)
    before, files = documents_of(file), torture.contents(root / "old")
    gone = data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1, max_size=len(sizes) - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drop_module, "_BLOCK", block)
        manifest = drop(file.path, out=root / "new" / "train.bin", documents=sorted(gone))
    found = open_tokens(root / "new" / "train.bin")
    assert documents_of(found) == [each for i, each in enumerate(before) if i not in gone]
    assert torture.contents(root / "old") == files
    assert all(each.sound for each in verify(root / "new"))
    same = diff(file.path, found.path)["datasets"]["train"]
    assert same["only_in_new"]["documents"] == 0
    lines = (root / "new" / "train_dropped.jsonl").read_text().splitlines()
    assert [json.loads(line)["document"] for line in lines] == sorted(gone)
    assert [json.loads(line)["tokens"] for line in lines] == [sizes[i] for i in sorted(gone)]
    stats = json.loads((root / "new" / "train_stats.json").read_text())
    assert (stats["digest_before"], stats["digest_after"]) == (
        file.manifest.digest, manifest.digest
    )
    # Files of shards that stay are not written again.
    inodes = {os.stat(path).st_ino for path in (root / "old").iterdir()}
    kept = [x for x in (root / "new").glob("*.bin") if os.stat(x).st_ino in inodes]
    assert len(kept) >= len(manifest.shards) - 3 * len(gone) - 1


def test_drop_of_sources(tmp_path: Path) -> None:
    data = build_some(tmp_path, 40, shard_tokens=100)
    file = open_tokens(data / "train.json")
    drop(data, out=tmp_path / "clean" / "train.bin", source="a.txt")
    found = open_tokens(tmp_path / "clean" / "train.bin")
    assert documents_of(found) == documents_of(file)[20:]
    counts = [(x["documents"], x["tokens"]) for x in found.manifest.sources]
    assert counts == [(0, 0), (20, found.n_tokens)]
    tokenizer = load_tokenizer(data / "tokenizer.json")
    assert found.manifest.n_bytes == sum(len(text.encode()) for text in TEXTS[20:40])
    assert (tmp_path / "clean" / "tokenizer.json").read_text() == tokenizer.to_json()
    findings = [each.text for each in verify(tmp_path / "clean", deep=True)]
    assert any("documents were appended or dropped since it was built" in x for x in findings)
    numbers = tmp_path / "numbers.txt"
    numbers.write_text("3\n\n5\n")
    drop(data, out=tmp_path / "two" / "x.bin", documents=numbers)
    assert open_tokens(tmp_path / "two" / "x.bin").n_documents == 38
    again = drop(data, out=tmp_path / "two" / "x.bin", documents=[5, 3])
    assert again.n_documents == 38
    with pytest.raises(TokenFileError, match="its inputs were different"):
        drop(data, out=tmp_path / "two" / "x.bin", documents=[4])
    (tmp_path / "link").symlink_to(data)
    (large := tmp_path / "large.txt").write_text("9" * 5000)
    for options, message in [
        ({"documents": [40]}, "there is no document 40; .* has those from 0 to 39"),
        ({"documents": [10**30]}, "there is no document 1,000,000,"),
        ({"documents": large}, "line 1: expected the number of a document, found '99999"),
        ({"documents": numbers.with_name("a.txt")}, "line 1: expected the number of a document"),
        ({"documents": tmp_path / "missing"}, "missing: no such file; check the path"),
        ({"source": "c.txt"}, "there is no source 'c.txt' .*; those of .* are a.txt, b.txt"),
        ({}, "no document is chosen of .*, so nothing is written; choose others"),
        ({"documents": range(40)}, "all documents are chosen"),
        ({"documents": [1], "out": data / "train.bin"}, "is the dataset that is read; choose anot"),
        ({"documents": [1], "out": tmp_path / "link" / "train.bin", "overwrite": True},
         "is the dataset that is read; choose another"),
    ]:
        with pytest.raises(SettingsError, match=message):
            drop(data, **{"out": tmp_path / "y.bin"} | options)
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "tokenizer.json").write_text("{}")
    with pytest.raises(OutputError, match="another tokenizer exists, and the dataset would be"):
        drop(data, out=tmp_path / "z" / "x.bin", documents=[1])
    build(train=tmp_path / "a.txt", tokenizer=tokenizer, out=tmp_path / "s", shuffle_documents=1,
          val=tmp_path / "b.txt")  # fmt: skip
    with pytest.raises(SettingsError, match="the manifest does not have the documents of each so"):
        drop(tmp_path / "s" / "train.bin", out=tmp_path / "y.bin", source="a.txt")
    with pytest.raises(TokenFileError, match="has several datasets; give one of them"):
        drop(tmp_path / "s", out=tmp_path / "y.bin", documents=[1])


@pytest.mark.parametrize("shards", [{}, {"shard_tokens": 60}])
def test_drop_survives_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shards: dict[str, Any]
) -> None:
    file = dataset(tmp_path / "old", [9, 30, 4] * 12, mask=True, **shards)
    before = torture.contents(tmp_path / "old")

    def work(out: Path) -> None:
        drop(file.path, out=out / "train.bin", documents=[4, 5, 20])

    work(tmp_path / "peace")
    expected = torture.contents(tmp_path / "peace")
    n_kills = 0
    for at in range(3, 1000, 4):
        out = tmp_path / f"{at}"
        if (code := torture.in_a_child(functools.partial(work, out), at, None)) == 0:
            break
        assert code == -signal.SIGKILL
        n_kills += 1
        work(out)
        assert torture.contents(out) == expected
        assert torture.contents(tmp_path / "old") == before
        shutil.rmtree(out)
    assert n_kills > 8


@pytest.mark.parametrize("shards", [{}, {"shard_tokens": 150}])
@pytest.mark.parametrize("as_documents", [False, True])
def test_append_against_one_build(
    tmp_path: Path, shards: dict[str, Any], as_documents: bool
) -> None:
    data = build_some(tmp_path, 30, **shards)
    tokenizer = data / "tokenizer.json"
    expected: list[Any] = documents_of(open_tokens(data / "train.bin"))
    for start, stop in ((30, 40), (40, 60)):
        more = tmp_path / f"{stop}.txt"
        more.write_text(SEPARATOR.join(TEXTS[start:stop]))
        texts = TEXTS[start:stop]
        given_texts: Any = (lambda texts=texts: texts) if as_documents else more
        made = append(data, train=given_texts, shard_tokens=130)
        build(train=more, tokenizer=tokenizer, out=tmp_path / f"{stop}", val_fraction=0)
        expected += documents_of(open_tokens(tmp_path / f"{stop}" / "train.bin"))
        found = open_tokens(data / "train.bin")
        assert documents_of(found) == expected
        assert found.manifest == made
        assert made.n_bytes == sum(len(text.encode()) for text in TEXTS[:stop])
        assert sum(source["documents"] for source in made.sources) == stop
        before = torture.contents(data)
        assert append(data, train=given_texts, shard_tokens=130) == made  # nothing is left to do
        assert torture.contents(data) == before
    assert all(each.sound for each in verify(data, deep=True))
    assert not (data / "train.bin").exists()
    stats = json.loads((data / "train_append_stats.json").read_text())
    assert stats["digest_after"] == made.digest
    drop(data, out=tmp_path / "clean" / "train.bin", documents=[0, 59])
    assert documents_of(open_tokens(tmp_path / "clean" / "train.bin")) == expected[1:-1]


def test_append_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens the dataset finds the old or the new documents, wherever a run ends."""
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.0)
    template = build_some(tmp_path, 30)
    digest = open_tokens(template / "train.bin").manifest.digest
    old = documents_of(open_tokens(template / "train.bin"))
    more = tmp_path / "more.txt"
    more.write_text(SEPARATOR.join(TEXTS[30:]))
    (tmp_path / "peace").mkdir()
    peace = Path(shutil.copytree(template, tmp_path / "peace" / "data"))
    append(peace, train=more)
    expected = documents_of(open_tokens(peace / "train.bin"))
    data = tmp_path / "out" / "data"
    n_cuts = 0

    for at in range(1, 200, 3):
        shutil.rmtree(data.parent, ignore_errors=True)
        shutil.copytree(template, data)
        step = functools.partial(append, data, train=more, unit_size=100)
        if (code := torture.in_a_child(step, at, None)) == 0:
            break
        assert code == -signal.SIGKILL
        n_cuts += 1
        assert documents_of(open_tokens(data / "train.bin")) in (old, expected)
        append(data, train=more)
        found = open_tokens(data / "train.bin")
        assert documents_of(found) == expected
        stats = json.loads((data / "train_append_stats.json").read_text())
        assert (stats["digest_before"], stats["digest_after"]) == (digest, found.manifest.digest)
        assert [x[APPENDED]["digest"] for x in found.manifest.sources if APPENDED in x] == [digest]
    assert n_cuts > 8


@pytest.mark.parametrize("number", [errno.EPERM, errno.EXDEV, errno.EACCES])
def test_files_are_copied_where_they_cannot_have_two_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    whole = build_some(tmp_path, 30)
    sharded = build_some(tmp_path, 30, "sharded", shard_tokens=100)
    copies = [Path(shutil.copytree(each, tmp_path / f"copy-{each.name}"))
              for each in (whole, sharded)]  # fmt: skip
    (tmp_path / "more.txt").write_text(SEPARATOR.join(TEXTS[30:]))
    append(whole, train=tmp_path / "more.txt")
    drop(sharded, out=tmp_path / "clean" / "x.bin", documents=[3])
    monkeypatch.setattr(os, "link", link)
    if number == errno.EACCES:
        with pytest.raises(OutputError, match=f"could not be written: {os.strerror(number)}"):
            append(copies[0], train=tmp_path / "more.txt")
        return
    append(copies[0], train=tmp_path / "more.txt")
    drop(copies[1], out=tmp_path / "copied" / "x.bin", documents=[3])
    for found, expected in ((copies[0], whole), (tmp_path / "copied", tmp_path / "clean")):
        names = [path.name for path in expected.iterdir() if not path.name.endswith("stats.json")]
        assert len(names) > 5
        for name in names:
            assert (found / name).read_bytes() == (expected / name).read_bytes()


def test_old_names_are_removed_by_the_same_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object) -> None:
        raise faults.CutOff

    data = build_some(tmp_path, 30)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "remove_finished", cut_off)
        with pytest.raises(faults.CutOff):
            append(data, train=lambda: TEXTS[30:])
    assert open_tokens(data / "train.bin").n_documents == 60
    assert (data / "train.bin").exists()
    append(data, train=lambda: TEXTS[30:])
    assert open_tokens(data / "train.bin").n_documents == 60
    assert [x.name for x in sorted(data.glob("train*.bin"))] == [
        "train_00000.bin", "train_00001.bin"
    ]
    (data / "train.bin").write_bytes(b"of another program")
    append(data, train=lambda: TEXTS[30:])
    assert (data / "train.bin").exists()


def test_append_while_the_dataset_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the manifest that was read have other names when they are opened."""
    data, read = build_some(tmp_path, 30), reader._read_manifest

    def read_before(path: Any) -> Any:
        found = read(path)
        monkeypatch.setattr(reader, "_read_manifest", read)
        append(data, train=lambda: TEXTS[30:])
        return found

    monkeypatch.setattr(reader, "_read_manifest", read_before)
    assert open_tokens(data / "train.bin").n_documents == 60
    (data / "train_00001.bin").unlink()
    with pytest.raises(TokenFileError, match="missing, though its manifest"):
        open_tokens(data / "train.bin")


def test_appends_that_cannot_be(tmp_path: Path) -> None:
    data = build_some(tmp_path, 30)
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
    ]}))  # fmt: skip
    (tmp_path / "t").mkdir()
    build(train=tmp_path / "a.txt", out=tmp_path / "t", vocab_size=300, val_fraction=0,
          special_tokens=["<|im_start|>", "<|im_end|>"])  # fmt: skip
    for options, error, message in [
        ({"train": "-"}, SettingsError, "documents that are read once, and standard input"),
        ({"train": iter(["a b"])}, SettingsError, "documents that are read once, and standard"),
        ({"tokenizer": tmp_path / "t"}, TokenFileError, "built with the tokenizer"),
    ]:
        with pytest.raises(error, match=message):
            append(data, **{"train": tmp_path / "a.txt"} | options)  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match="has conversations, whose tokens have a loss mask, and"):
        append(tmp_path / "t", train=tmp_path / "chat.jsonl", chat_template="chatml")
    (data / "train_00001.bin").write_bytes(b"")
    with pytest.raises(OutputError, match="and a new shard would have this name; move it away"):
        append(data, train=tmp_path / "a.txt")
    (data / "tokenizer.json").unlink()
    with pytest.raises(TokenFileError, match="missing, and no tokenizer was given"):
        append(data, train=tmp_path / "a.txt")


def test_appended_text_of_a_dataset_with_masks(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra `chat`")
    data = build_some(tmp_path, 30, special_tokens=["<|im_start|>", "<|im_end|>"])
    lines = [
        json.dumps({"messages": [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": f"b {i}"},
        ]}) for i in range(9)
    ]  # fmt: skip
    (tmp_path / "chat.jsonl").write_text("\n".join(lines))
    options: dict[str, Any] = {"tokenizer": data / "tokenizer.json", "chat_template": "chatml"}
    build(train=tmp_path / "chat.jsonl", out=tmp_path / "chats", val_fraction=0, **options)
    shutil.copy(data / "tokenizer.json", tmp_path / "chats")
    chats = documents_of(open_tokens(tmp_path / "chats" / "train.bin"))
    append(tmp_path / "chats", train=tmp_path / "a.txt")
    append(tmp_path / "chats", train=tmp_path / "chat.jsonl", chat_template="chatml")
    plain = documents_of(open_tokens(data / "train.bin"))[:15]
    assert documents_of(open_tokens(tmp_path / "chats" / "train.bin")) == [*chats, *plain, *chats]
    assert {0} < {x for _, mask in chats for x in mask}


def test_drop_of_what_matches_items(tmp_path: Path) -> None:
    data = build_some(tmp_path, 40)
    (tmp_path / "evals.jsonl").write_text(json.dumps({"text": "Text 7, and MORE of it: newest?"}))
    gone = [i for i, x in enumerate(TEXTS[:40]) if x.startswith("text 7, and more of it")]
    drop(data, out=tmp_path / "x" / "train.bin", matching=tmp_path / "evals.jsonl", ngram=5)
    found = documents_of(open_tokens(tmp_path / "x" / "train.bin"))
    before = documents_of(open_tokens(data / "train.bin"))
    assert found == [each for i, each in enumerate(before) if i not in gone]


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = build_some(tmp_path, 30)
    (tmp_path / "numbers").write_text("0\n7")
    assert run(["append", str(data), "--train", str(tmp_path / "a.txt")]) == 0
    shown = capsys.readouterr()
    assert "45 documents" in shown.out
    assert "train.json: appended 15 documents" in shown.err
    assert run(["drop", str(data), "--documents", str(tmp_path / "numbers"), "--out",
                str(tmp_path / "x.bin")]) == 0  # fmt: skip
    assert "43 documents" in capsys.readouterr().out
    assert run(["drop", str(data), "--source", "b.txt", "--out", str(tmp_path / "y.bin")]) == 0
    assert "30 documents" in capsys.readouterr().out
