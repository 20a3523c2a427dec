"""Datasets in buckets: processes that end, servers that fail, lost answers, two writers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import faults
import memory_objects
import pytest
import torture
from memory_objects import Bucket, MemoryObjects
from run_cases import DOCUMENTS, END

from bpe.errors import TokenmillError
from preprocess import append, build, pipeline
from preprocess.storage import OutputError, open_files
from preprocess.storage import lock as locks
from preprocess.storage.remote import RemoteError

pytestmark = pytest.mark.usefixtures("often")

SEED = {"shard_tokens": 400, "workers": 1, "unit_size": 700}


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text").write_text(END.join(DOCUMENTS))
    return tmp_path / "text"


def grow(out: str, text: Path, **options: Any) -> None:
    """Append text to a dataset of the same text."""
    manifest = open_files(out.rpartition("/")[0]).get("train.json")
    if manifest is None or b'"appended_to"' not in manifest:
        pipeline.encode(paths=[text], out=out, **options)
    append(out, train=[text], **options)


def runs(text: Path) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Name -> the function and its options, but for where outputs go."""
    given = text.with_name("tokenizer.json")
    if not given.exists():
        pipeline.train(paths=text, out=given, vocab_size=290)
    return {
        "trained": (build, {"train": text, "vocab_size": 280, "val_fraction": 0.2, **SEED}),
        "given": (build, {"train": [text, text], "tokenizer": given, "val_fraction": 0.3, **SEED}),
        "split": (build, {"train": text, "tokenizer": given, "split_documents": True,
                          "val_fraction": 0.0, **SEED}),
        "selected": (build, {"train": [text, text], "tokenizer": given, "deduplicate": True,
                             "shuffle_documents": 3, "val_fraction": 0.0, **SEED}),
        "train": (pipeline.train, {"paths": text, "vocab_size": 280, "workers": 1}),
        "encode": (pipeline.encode, {"paths": [text], "tokenizer": given, **SEED}),
        "append": (grow, {"text": text, "tokenizer": given, **SEED}),
    }  # fmt: skip


def places(kind: str, place: Any) -> dict[str, Any]:
    names = {"encode": "x.bin", "train": "tokenizer.json", "append": "train.bin"}
    return {"out": f"{place}/{names[kind]}" if kind in names else str(place)}


def built(bucket: Bucket) -> dict[str, bytes]:
    """The outputs, without the statistics, of which times are a part."""
    found = bucket.contents("data/").items()
    return {name: content for name, content in found if not name.endswith("stats.json")}


KINDS = ["trained", "given", "split", "selected", "train", "encode", "append"]


ENDS = [("die", "fail after"), ("die after", "fail")]


@pytest.mark.parametrize(
    ("kind", "what"), [(kind, what) for i, kind in enumerate(KINDS) for what in ENDS[i % 2]]
)
def test_a_run_that_ends_at_any_request_is_resumed_from_the_bucket(
    kind: str, what: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, options = runs(text)[kind]
    run(**options, **places(kind, tmp_path / "local"))
    expected = torture.contents(tmp_path / "local")
    whole = memory_objects.install(monkeypatch, MemoryObjects(Bucket()))
    run(**options, **places(kind, "s3://bucket/data"))
    assert built(whole.bucket) == expected
    step = max(whole.n_requests // 6, 1)
    at = 1 + (len(kind) + len(what)) % step
    while True:
        bucket = Bucket()
        memory_objects.install(monkeypatch, MemoryObjects(bucket, at, what))
        error = faults.CutOff if what.startswith("die") else (OutputError, RemoteError)
        try:
            run(**options, **places(kind, "s3://bucket/data"))
        except error:
            pass
        else:  # it needed fewer requests
            break
        again = options | {"workers": 2, "unit_size": 1100}
        memory_objects.install(monkeypatch, MemoryObjects(bucket))
        run(**again, **places(kind, "s3://bucket/data"))
        assert built(bucket) == expected, at
        at += step
    assert at > 3 * step


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_of_which_every_answer_is_lost_once(
    kind: str, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, options = runs(text)[kind]
    run(**options, **places(kind, tmp_path / "local"))
    made = memory_objects.install(monkeypatch, MemoryObjects(Bucket(), is_repeated=True))
    run(**options, **places(kind, "s3://bucket/data"))
    assert built(made.bucket) == torture.contents(tmp_path / "local")


# Two writers.


def test_a_second_run_is_refused(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, options = runs(text)["given"]
    made = memory_objects.install(monkeypatch, MemoryObjects(Bucket()))
    before = dict(made.bucket.objects)

    class Second(faults.Progress):
        def note_memory(self) -> None:
            if not before:
                before.update(made.bucket.objects)
                with pytest.raises(OutputError, match="s3://bucket/data: this process is writing"):
                    run(**options, out="s3://bucket/data")
                assert {*before} <= {*made.bucket.objects}

    run(**options, out="s3://bucket/data", progress=Second())
    assert before


@pytest.mark.parametrize("becomes", ["renewed", "silent", "released", "taken", "removed"])
def test_the_lock_of_another_machine_is_watched(
    becomes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, waited = Bucket(), list[float]()
    other = b'{"id": "other", "number": %d, "pid": 7, "host": "far", "space": "x", "began": "1"}'
    bucket.change("lock", other % 1)

    def pause(seconds: float) -> None:
        waited.append(seconds)
        if sum(waited) >= 20:
            if becomes == "renewed":
                bucket.change("lock", other % 2)
            if becomes == "released":
                bucket.change("lock", None)

    objects_of = MemoryObjects(bucket)
    monkeypatch.setattr(locks, "pause", pause)
    lock = locks.ObjectLock(objects_of, "lock", "s3://b/d")

    def interfere(kind: str, key: str) -> None:
        """Another process takes or removes the lock just before this one does."""
        if kind == "put" and sum(waited) >= locks.EXPIRES_AFTER:
            objects_of.before = lambda kind, key: None
            bucket.change("lock", None if becomes == "removed" else other % 3)

    if becomes in ("taken", "removed"):
        objects_of.before = interfere
    if becomes in ("renewed", "taken"):
        with pytest.raises(OutputError, match="process 7 on far is writing in this directory"):
            lock.acquire()
        assert b"other" in bucket.objects["lock"][0]
    else:
        lock.acquire()
        lock.check()
        assert b"other" not in bucket.objects["lock"][0]
        lock.release()
        assert not bucket.objects
    assert sum(waited) == (20 if becomes in ("renewed", "released") else locks.EXPIRES_AFTER)


def test_the_lock_of_a_dead_process_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket()
    objects_of = MemoryObjects(bucket)
    locks.ObjectLock(objects_of, "lock", "x").acquire()
    monkeypatch.setattr(locks, "_held", set[str]())  # as after its end
    monkeypatch.setattr(locks, "pause", lambda seconds: pytest.fail("waited"))
    lock = locks.ObjectLock(objects_of, "lock", "x")
    lock.acquire()
    with pytest.raises(OutputError, match="is writing in this directory; wait until it is"):
        locks.ObjectLock(objects_of, "lock", "x").acquire()
    lock.release()


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"pid": "x"}', b"{" * 100_000])
def test_a_lock_that_is_not_ours_expires_too(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket()
    bucket.change("lock", content)
    monkeypatch.setattr(locks, "pause", lambda seconds: None)
    lock = locks.ObjectLock(MemoryObjects(bucket), "lock", "x")
    lock.acquire()
    lock.release()
    assert not bucket.objects


def test_a_lock_is_renewed_and_an_answer_that_is_lost_does_no_harm(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, clock = Bucket(), [100.0]
    monkeypatch.setattr("preprocess.storage.lock.time.monotonic", lambda: clock[0])
    lock = locks.ObjectLock(MemoryObjects(bucket, is_repeated=True), "lock", "x")
    lock.acquire()
    for _ in range(3):
        clock[0] += locks.EXPIRES_AFTER
        before = bucket.objects["lock"]
        lock.check()
        assert bucket.objects["lock"] != before
    # The server did as it was told, and the process never heard of it.
    lock._objects = MemoryObjects(bucket, 1, "fail after")
    clock[0] += locks.EXPIRES_AFTER
    with pytest.raises(TokenmillError, match="the server is away"):
        lock.check()
    lock._objects = MemoryObjects(bucket)
    lock.check()
    lock.release()
    assert not bucket.objects


def test_a_run_whose_lock_was_taken_writes_nothing_more(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, options = runs(text)["given"]
    run(**options, out=tmp_path / "local")
    made = memory_objects.install(monkeypatch, MemoryObjects(Bucket()))
    taken = dict[str, tuple[bytes, str]]()

    class Suspended(faults.Progress):
        def note_memory(self) -> None:
            if not taken:
                with made.bucket.lock:
                    made.bucket.change("data/.tokenmill.lock", b'{"id": "another"}')
                    taken.update(made.bucket.objects)
                    # Time passes; the next write looks whether the lock is still there.
                    monkeypatch.setattr(locks, "EXPIRES_AFTER", -1.0)

    with pytest.raises(OutputError, match="another process took over, for this one was cut off"):
        run(**options, out="s3://bucket/data", progress=Suspended())
    assert made.bucket.objects == taken
    monkeypatch.setattr(locks, "EXPIRES_AFTER", 60.0)
    monkeypatch.setattr(locks, "pause", lambda seconds: None)
    run(**options, out="s3://bucket/data")
    assert built(made.bucket) == torture.contents(tmp_path / "local")
