"""A storage that can neither rename nor append is one class: the commit protocol holds with it.

Its files are objects PREFIX:NAME/NUMBER, each put as a whole and never changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import faults
import pytest
import torture

from bpe.files.locations import LocationError
from preprocess import build
from preprocess.check.verify import verify
from preprocess.report.progress import Progress
from preprocess.run import count_pass, journal
from preprocess.storage import OutputError, open_storage


class Part:
    def __init__(self, add: Callable[[bytes], None], n_bytes: int) -> None:
        self._add, self.n_bytes = add, n_bytes

    def append(self, data: memoryview) -> None:
        self._add(bytes(data))
        self.n_bytes += len(data)

    def sync(self) -> None: ...

    def finish(self, n_bytes: int) -> None: ...

    def close(self) -> None: ...


class Objects:
    def __init__(self, objects: dict[str, bytes], prefix: str, cache: Path) -> None:
        self.objects, self.prefix, self.cache = objects, prefix, cache / prefix
        self.final = self if prefix == "final" else Objects(objects, "final", cache)

    def keys(self, start: str = "") -> list[str]:
        return sorted(key for key in self.objects if key.startswith(f"{self.prefix}:{start}"))

    def names(self) -> list[str]:
        return sorted({key.split(":")[1].split("/")[0] for key in self.keys()})

    def get(self, name: str) -> bytes | None:
        return b"".join(map(self.objects.get, keys)) if (keys := self.keys(f"{name}/")) else None

    def size(self, name: str) -> int | None:
        return None if (content := self.get(name)) is None else len(content)

    def sizes(self) -> dict[str, int]:
        return {name: len(self.get(name) or b"") for name in self.names()}

    def read(self, name: str, start: int, stop: int) -> bytes:
        return (self.get(name) or b"")[start:stop]

    def where(self, name: str = "") -> str:
        return f"{self.prefix}:{name}"

    def path(self, name: str = "") -> Path:
        self.cache.mkdir(parents=True, exist_ok=True)
        for each in self.names():
            (self.cache / each).write_bytes(self.get(each) or b"")
        return self.cache / name


class ObjectStorage(Objects):
    seconds_between_syncs, keeps_finished = 0.0, True

    def __enter__(self) -> Self:
        assert "lock" not in self.objects  # a conditional put
        self.objects["lock"] = b""
        return self

    def __exit__(self, *error: object) -> None:
        del self.objects["lock"]

    def check_writable(self) -> None: ...

    def refresh(self) -> None: ...

    def stream(self, name: str, n_bytes: int = 0) -> Part:
        self.put(name, self.read(name, 0, n_bytes))
        return Part(partial(self.put, name, is_more=True), n_bytes)

    def put(self, name: str, data: bytes, is_more: bool = False) -> None:
        if not is_more:
            self.remove(name)
        self.objects[f"{self.prefix}:{name}/{len(self.keys(f'{name}/')):09}"] = data

    def remove(self, name: str) -> None:
        for key in self.keys(f"{name}/"):
            del self.objects[key]

    def publish(self, names: Sequence[str], last: Any = (), gone: Any = ()) -> None:
        for name in [*(name for name in last if self.get(name)), *gone]:
            self.objects.pop(f"final:{name}/", None)
        for name in (*names, *last):
            if (data := self.get(name)) is not None:  # else it was done before an interruption
                self.objects[f"final:{name}/"] = data
                self.remove(name)

    def clear(self) -> None:
        for name in sorted(self.names(), key=lambda name: name == "journal.jsonl"):
            self.remove(name)

    def space(self) -> tuple[int, int]:
        return 1 << 40, 0


@pytest.mark.parametrize("shard_tokens", [None, 200])
def test_a_build_on_objects_is_interrupted_resumed_and_verified(
    shard_tokens: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.0)
    monkeypatch.setattr(count_pass, "_WORK_PER_SAVING", 0)
    documents = [f"document {i} of many, and more words" for i in range(60)]
    (tmp_path / "text").write_text("<|endoftext|>".join(documents))
    options: dict[str, Any] = {"train": tmp_path / "text", "vocab_size": 270, "unit_size": 300}
    options |= {"val_fraction": 0.2, "workers": 1, "shard_tokens": shard_tokens}
    build(**options, out=tmp_path / "local")
    cache, objects = tmp_path / "cache", dict[str, bytes]()
    monkeypatch.setattr(
        "preprocess.storage.LocalStorage",
        lambda at, run, own_lock=False: ObjectStorage(objects, run, cache),
    )
    for stage in ("counting", "merging", "encoding train and val"):
        progress = faults.Stopping(stage, 0 if stage == "merging" else 3)
        with pytest.raises(faults.CutOff):
            build(**options, out="memory", progress=progress)
        assert {key.partition(":")[0] for key in objects} == {"build"}
    publish = ObjectStorage.publish

    def die(self: Any, names: Sequence[str], last: Any = (), gone: Any = ()) -> None:
        publish(self, names[:2], ())
        raise faults.CutOff

    monkeypatch.setattr(ObjectStorage, "publish", die)
    with pytest.raises(faults.CutOff):
        build(**options, out="memory")
    assert not any(key.endswith(("train.json/", "val.json/")) for key in objects)
    monkeypatch.setattr(ObjectStorage, "publish", publish)
    build(**options, out="memory", progress=(progress := Progress()))
    assert not progress.stages  # only final names were missing
    assert "up to date" in build(**options, out="memory").lines[0]
    assert {key.partition(":")[0] for key in objects} == {"final"}
    there = Objects(objects, "final", cache).path()
    monkeypatch.undo()
    assert torture.contents(there) == torture.contents(tmp_path / "local")
    assert all(finding.sound for finding in verify(there, deep=True))


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "stats.json")
    with pytest.raises(OutputError, match=r"stats\.json: is a pipe, expected a file; remove it"):
        open_storage(tmp_path).final.get("stats.json")


def test_a_url_of_no_bucket_is_refused() -> None:
    with pytest.raises(LocationError, match=r"https://b/k: .*should be a path on this machine"):
        open_storage("https://b/k")
