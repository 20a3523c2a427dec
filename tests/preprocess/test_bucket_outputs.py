"""Storage in a bucket: pieces of files, local copies, refusals, and what others left there."""

from __future__ import annotations

import fcntl
import os
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import faults
import memory_objects
import numpy as np
import pytest
import torture
from memory_objects import Bucket, MemoryObjects
from run_cases import DOCUMENTS, END

from bpe.errors import TokenmillError
from bpe.files.locations import LocationError
from preprocess import (
    ChatTemplateTransform,
    build,
    import_tokens,
    merge_parts,
    open_tokens,
    pipeline,
    tokenize_and_save,
)
from preprocess.cli import run
from preprocess.dataset.columns import TokenFileError
from preprocess.settings import SettingsError
from preprocess.storage import DamagedStateError, OutputError, open_storage
from preprocess.storage.bucket import BucketStorage
from preprocess.storage.files import UrlFiles
from preprocess.storage.remote import RemoteError

WORK = "data/.build.partial/"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bucket:
    monkeypatch.setenv("TOKENMILL_CACHE_DIR", str(tmp_path / "cache"))
    made = Bucket()
    memory_objects.install(monkeypatch, MemoryObjects(made))
    return made


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "text").write_text(END.join(DOCUMENTS))
    pipeline.train(paths=tmp_path / "text", out=tmp_path / "given.json", vocab_size=290)
    given = {"train": tmp_path / "text", "tokenizer": tmp_path / "given.json"}
    return {**given, "val_fraction": 0.3, "shard_tokens": 500, "unit_size": 700}


def append(storage: BucketStorage, name: str, data: bytes, n_bytes: int = 0) -> None:
    with closing(storage.stream(name, n_bytes)) as stream:
        stream.append(memoryview(data))
        stream.sync()


def test_publishing_waits_for_files_that_are_complete(bucket: Bucket) -> None:
    with BucketStorage("s3://b/data", "build") as storage:
        stream = storage.stream("x")
        stream.append(memoryview(b"abcde"))
        stream.finish(5)
        storage.publish([])
        assert bucket.contents(WORK) == {"x": b"abcde"}


def test_an_object_has_a_largest_size(
    bucket: Bucket, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SettingsError, match=r"at most 2,500,000,000 tokens of 2 bytes"):
        build(**options | {"shard_tokens": 3_000_000_000}, out="s3://b/data")
    monkeypatch.setattr("preprocess.storage.bucket.LARGEST_OBJECT", 300)
    with pytest.raises(OutputError, match=r"bytes, and an object has at most 300; write smaller"):
        build(**options, out="s3://b/data")


def test_outputs_that_cannot_be_in_a_bucket(bucket: Bucket, options: dict[str, Any]) -> None:
    assert build(**options | {"shard_tokens": None}, out="s3://b/whole").stats
    assert "whole/train_00000.bin" in bucket.contents()
    with pytest.raises(SettingsError, match=r"out: should be a path, or a URL of a bucket that"):
        build(**options, out="https://b/data")
    with pytest.raises(RemoteError, match="has a user or a password in it"):
        build(**options, out="s3://me:secret@b/data")
    with pytest.raises(LocationError, match=r"https://b/k: .*should be a path on this machine"):
        open_storage("https://b/k")


def test_validation_that_is_no_longer_made_is_removed_from_a_bucket(
    bucket: Bucket, options: dict[str, Any]
) -> None:
    given = {"data_files": options["train"], "tokenizer": options["tokenizer"], "overwrite": True}

    def write(fraction: float) -> set[str]:
        tokenize_and_save(**given, output_path="s3://b/rows", output_format="jsonl",
                          val_fraction=fraction)
        return {*bucket.contents()}

    alone, divided = write(0), write(0.3)
    assert {"rows/rows.json", "rows/train/rows.json"} & divided == {"rows/train/rows.json"}
    assert (write(0), write(0.3)) == (alone, divided)


def test_outputs_in_a_bucket_are_found_again(
    bucket: Bucket, options: dict[str, Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    result = build(**options, out="s3://b/data/")
    assert result.directory == "s3://b/data"
    assert result.manifests == build(**options, out="s3://b/data").manifests
    os.utime(tmp_path / "text")  # compared by its digest
    assert "up to date" in build(**options, out="s3://b/data").lines[0]
    with pytest.raises(TokenFileError, match=r"s3://b/data/train.json: exists; its inputs were "):
        build(**options | {"shard_tokens": 400}, out="s3://b/data")
    whole = bucket.objects["data/train_00001.bin"]
    bucket.objects["data/train_00001.bin"] = b"short", "v"
    check, bucket.check = bucket.check, lambda: None
    with pytest.raises(TokenFileError, match=r"has 5 bytes, .*; restore or repair it \(verify --"):
        build(**options, out="s3://b/data")
    bucket.check = check
    bucket.objects["data/train_00001.bin"] = whole
    build(**options | {"shard_tokens": 400}, out="s3://b/data", overwrite=True)
    build(**options | {"shard_tokens": 400}, out=tmp_path / "local")
    found = bucket.contents("data/")
    assert {x: found[x] for x in found if x != "stats.json"} == torture.contents(tmp_path / "local")
    # At the root of a bucket, too.
    assert build(**options | {"shard_tokens": 400}, out="s3://b").directory == "s3://b"
    root = {x: y for x, y in bucket.contents().items() if "/" not in x and x != "stats.json"}
    assert root == torture.contents(tmp_path / "local")
    arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    assert run(["build", *arguments, "--out", "s3://b/data", "--dry-run"]) == 0
    assert "output: train.bin, val.bin in s3://b/data, about" in capsys.readouterr().out


def test_a_server_that_is_away_is_asked_once(options: dict[str, Any], monkeypatch: Any) -> None:
    """Requests wait for minutes, so a run that ends because of that makes no more."""
    away = memory_objects.install(monkeypatch, MemoryObjects(Bucket(), 12, "fail"))
    with pytest.raises(TokenmillError, match="the server is away"):
        build(**options | {"workers": 1}, out="s3://b/data")
    assert away.n_requests < 12 + 4


def test_a_removal_that_is_cut_off_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set[frozenset[str]]()
    for at in range(1, 14):
        bucket = Bucket()
        for name in "abc":
            bucket.change(f"data/{name}", b"x")
        what = ("die", "die after")[at % 2]
        memory_objects.install(monkeypatch, MemoryObjects(bucket, at, what))
        with suppress(faults.CutOff), BucketStorage("s3://b/data", "removal") as storage:
            storage.remove_finished(["a", "b"])
        memory_objects.install(monkeypatch, MemoryObjects(bucket))
        monkeypatch.setattr("preprocess.storage.lock._held", set())
        with BucketStorage("s3://b/data", "build"):
            pass
        found.add(frozenset(bucket.contents("data/")))
    assert found == {frozenset("abc"), frozenset("c")}


def test_local_copies_of_processes_that_were_killed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="files at URLs are read with obstore")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    abandoned, used, strange = (tmp_path / f"tokenmill-spool-{x}" for x in "abc")
    for directory in (abandoned, used):
        directory.mkdir()
        (directory / ".lock").touch()
    strange.symlink_to(tmp_path)
    with open(used / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        mine = UrlFiles("s3://bucket/data")
        there = mine.spool
        assert sorted(tmp_path.iterdir()) == sorted([used, strange, there])
        for _ in range(2):
            mine.close()
        assert not there.exists()


def test_a_late_request_of_a_run_that_was_displaced_changes_nothing(bucket: Bucket) -> None:
    with BucketStorage("s3://b/data", "build") as first:
        append(first, "x", b"of the first")
        with first._objects.bucket.lock:  # type: ignore[attr-defined]  # of `MemoryObjects`
            bucket.change("data/.tokenmill.lock", None)
        with BucketStorage("s3://b/data", "build") as second:
            second.clear()
            append(second, "x", b"abc")
            for name in ("x", "y"):
                with suppress(OutputError):
                    first.put(name, b"of the first, late")
            assert bucket.contents(WORK)["x"] == b"abc"
            with pytest.raises(OutputError, match="another process writes the files of this run"):
                second.put("y", b"new")


def test_a_file_that_is_gone_before_it_is_published(bucket: Bucket) -> None:
    with BucketStorage("s3://b/data", "build") as storage:
        for name in ("train.bin", "train.json"):
            storage.put(name, b"new content")
        bucket.check = lambda: None
        bucket.change("data/train.bin", b"of before")
        bucket.change(f"{WORK}train.bin", None)
        for before in (None, b"of before"):  # its manifest
            bucket.change("data/train.json", before)
            storage._known = None
            with pytest.raises(DamagedStateError, match="was complete, and is missing now, also"):
                storage.publish(["train.bin"], ["train.json"])


def test_a_copy_here_is_of_a_whole_object_or_not_made(bucket: Bucket, monkeypatch: Any) -> None:
    monkeypatch.setattr("preprocess.storage.files.READ_AT_ONCE", 4)
    content = b"abcdefghij"
    with BucketStorage("s3://b/data", "build") as storage:
        append(storage, "x", content)
    for at in range(1, 5):
        with BucketStorage("s3://b/data", "build") as storage:
            assert storage.size("x") == 10
            memory_objects.install(monkeypatch, MemoryObjects(bucket, at, "fail"))
            with pytest.raises(RemoteError, match="the server is away"):
                storage.path("x")
            made = memory_objects.install(monkeypatch, MemoryObjects(bucket))
            assert storage.read("x", 0, 99) == content
            made.n_requests = 0
            append(storage, "x", content)  # none of the bytes that it has are needed
            assert made.n_requests == 0


@pytest.mark.parametrize("text", ["s3://b/data", "s3://b/data/*", "s3://b/**"])
def test_outputs_beside_the_text(
    bucket: Bucket, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Those of a run that ended while it gave files their final names, too."""
    bucket.change("data/text.txt", END.join(DOCUMENTS).encode())
    given = options | {"train": text, "out": "s3://b/data", "workers": 1}

    def run_with(at: int = 0, **more: Any) -> tuple[list[str], int]:
        objects = memory_objects.install(monkeypatch, MemoryObjects(bucket, at))
        return build(**given | more).lines, objects.n_requests

    run_with()
    whole = {x: y for x, y in bucket.contents().items() if not x.endswith("stats.json")}
    lines, _ = run_with()
    assert all("up to date" in line for line in lines)
    _, n_requests = run_with(overwrite=True)
    for at in range(n_requests - 60, n_requests, 13):
        with suppress(faults.CutOff):
            run_with(at, overwrite=True)
        run_with(overwrite=True)
        found = {x: y for x, y in bucket.contents().items() if not x.endswith("stats.json")}
        assert found == whole
        lines, _ = run_with()
        assert all("up to date" in line for line in lines)


@pytest.mark.parametrize("url", ["s3://bucket/made/tokenizer.json", "s3://bucket/made/"])
def test_a_tokenizer_in_a_bucket(
    bucket: Bucket, options: dict[str, Any], url: str, tmp_path: Path, capsys: Any
) -> None:
    """As a run left it there."""
    build(**options, out=tmp_path / "here")
    build(**options | {"out": "s3://bucket/made"})
    build(**options | {"tokenizer": url, "out": tmp_path / "there"})
    assert torture.contents(tmp_path / "there") == torture.contents(tmp_path / "here")
    assert run(["count", str(options["train"]), "--tokenizer", url]) == 0
    capsys.readouterr()
    assert run(["count", str(options["train"]), "--tokenizer", "s3://bucket/none"]) == 2
    expected = "s3://bucket/none/tokenizer.json: there is no such tokenizer; give the URL of a tok"
    assert expected in capsys.readouterr().err
    bucket.change("made/tokenizer.json", b"{")
    with pytest.raises(TokenmillError, match=r"s3://bucket/made/tokenizer\.json: "):
        build(**options | {"tokenizer": url, "out": tmp_path / "new"})


def test_a_chat_template_in_a_bucket(bucket: Bucket, options: dict[str, Any]) -> None:
    pytest.importorskip("transformers", reason="templates are rendered with transformers")
    built = build(**options | {"out": "s3://bucket/made"})
    bucket.change("made/chat_template.jinja", b"{% for m in messages %}{{ m.content }}{% endfor %}")
    record = {"messages": [{"role": "assistant", "content": "ab"}]}
    found = ChatTemplateTransform("s3://bucket/made/")(record)["input_ids"]
    assert found.tolist() == built.tokenizer.encode_ordinary("ab")


def test_parts_in_a_bucket_are_merged(
    bucket: Bucket, options: dict[str, Any], tmp_path: Path
) -> None:
    build(**options, out=tmp_path / "whole")
    for task in (1, 0):
        build(**options, out="s3://b/parts", task_index=task, task_count=2)
    merge_parts("s3://b/parts")
    merged = merge_parts("s3://b/parts")["train"]
    found, whole = (open_tokens(f"{x}/train.json") for x in ("s3://b/parts", tmp_path / "whole"))
    assert merged == found.manifest
    assert np.array_equal(found[:], whole[:])
    assert np.array_equal(found.document_ends, whole.document_ends)


def test_ids_are_imported_into_a_bucket(bucket: Bucket, tmp_path: Path) -> None:
    ids = np.array([1, 2, 9, 3, 9], np.uint16)
    ids.tofile(tmp_path / "ids.bin")
    options: dict[str, Any] = {"format": "raw", "dtype": "uint16", "vocab_size": 10,
                               "end_of_text_id": 9, "out": "s3://b/ids/train.bin",
                               "shard_tokens": 3}
    result = import_tokens(tmp_path / "ids.bin", **options)
    assert result.path == "s3://b/ids/train.json"
    assert open_tokens("s3://b/ids/train.json")[:].tolist() == ids.tolist()
    assert not import_tokens(tmp_path / "ids.bin", **options).is_new
