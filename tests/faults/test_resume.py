"""Runs that are killed, cut off or fail, and are resumed."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faults
import processes
import pytest
import torture
from run_cases import contents, cut_off

from preprocess import build, pipeline, storage
from preprocess.check.doctor import run_doctor
from preprocess.check.preview import preview_build
from preprocess.report.progress import Progress
from preprocess.run import journal
from preprocess.storage import OutputError

# Kills.


def test_killed_builds_end_in_the_same_bytes() -> None:
    """Six builds, each killed up to five times; `make torture` does it with many more."""
    printed = processes.run(torture.__file__, "--builds", 6).stdout
    assert "6 builds, " in printed
    assert " 0 failures" in printed


@pytest.mark.parametrize(
    ("stage", "workers"), [("counting", 2), ("merging", 1), ("encoding train and val", 2)]
)
def test_a_run_goes_on_where_it_was_cut_off(
    options: dict[str, Any], tmp_path: Path, stage: str, workers: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also by a journal that was written anew, with what is left of it, because it was long."""
    monkeypatch.setattr(journal, "_LONG_BYTES", 2000)
    build(**options | {"out": tmp_path / "peace"})
    cut_off(options, stage, 0 if stage == "merging" else 6, workers=workers)
    progress = Progress()
    result = build(**options | {"workers": workers, "unit_size": 500}, progress=progress)
    assert contents(tmp_path / "out") == contents(tmp_path / "peace")
    done_before = {each.name: each.done_before for each in progress.stages}
    total = sum(path.stat().st_size for path in (tmp_path / "corpus").iterdir())
    for each in progress.stages:
        if each.unit == "B":
            assert each.done == total
    if stage == "encoding train and val":
        assert done_before["merging"] == 23
        assert 800 < done_before[stage] < total
    else:
        assert done_before["counting"] >= (800 if stage == "counting" else total)
    peace = json.loads((tmp_path / "peace" / "stats.json").read_text())
    for key in ("documents", "bytes", "tokens", "look_alikes", "outputs", "sources", "files"):
        assert result.stats[key] == peace[key]
    assert [each["name"] for each in result.stats["stages"]] == [
        "counting", "merging", "encoding train and val",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "name", "stage", "more"),
    [("train", "x.json", "counting", {"vocab_size": 280}), ("encode", "x.bin", "encoding x", {})],
)
def test_the_other_commands_go_on_too(
    command: str, name: str, stage: str, more: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    own: dict[str, Any] = {"paths": corpus, "unit_size": 300, "workers": 1, **more}
    function: Callable[..., Any] = getattr(pipeline, command)
    if command == "encode":
        own["tokenizer"] = tmp_path / "tokenizer.json"
        pipeline.train(paths=corpus, out=own["tokenizer"], vocab_size=280)
    function(**own, out=tmp_path / "peace" / name)
    with pytest.raises(faults.CutOff):
        function(**own, out=tmp_path / "out" / name, progress=faults.Stopping(stage))
    progress = Progress()
    function(**own, out=tmp_path / "out" / name, progress=progress)
    assert progress.stages[0].done_before > 800
    assert contents(tmp_path / "out") == contents(tmp_path / "peace")


# Failures of the disk.


@pytest.mark.parametrize("more", [{}, {"shard_tokens": 300, "split_documents": True}])
def test_every_write_fails_in_turn(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """A clear error, no final name without its content, and the same command goes on."""
    # Entries at the ends of stages only: that is every kind of call there is.
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 1e9)

    def check(out: Path, peace: dict[str, bytes], error: OutputError | None) -> None:
        # The last calls take the work directory and the lock away, when all is in place.
        if error is None:
            return
        assert "run the same command again" in str(error)
        if "No space left on device" in str(error):
            assert "free the space and run the same command again" in str(error)
        assert str(out) in str(error)
        if "nothing was put under a final name" in str(error):
            assert not (out / "tokenizer.json").exists()
        found = contents(out) if out.exists() else {}
        for name in ("train", "val"):
            files = [x for x in peace if x.startswith(name) and f"{name}.json" in found]
            assert [found.get(x) for x in files] == [peace[x] for x in files]

    faults.fail_each_call(
        lambda out: build(**options | more | {"out": out}), tmp_path, contents, check=check,
        step=7 if more else 2,
    )


def test_a_disk_that_is_too_small_for_compressed_text(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(b"some words " * 10_000))
    assert path.stat().st_size < 5_000
    options |= {"train": path, "val_fraction": 0, "unit_size": 20_000}
    monkeypatch.setattr(storage.LocalStorage, "space", lambda self: (20_000, 0))
    with pytest.raises(OutputError, match=r"need about [\d.]+ kB .*, and 20.0 kB are free;"):
        build(**options)
    monkeypatch.setattr(storage.LocalStorage, "space", lambda self: (10_000_000, 0))
    build(**options)


def test_a_file_system_that_does_not_know_its_size(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network and FUSE file systems report 0 blocks: that is no full disk."""
    system = os.statvfs

    def unknown(path: Any) -> Any:
        return os.statvfs_result((*system(path)[:2], 0, 0, 0, *system(path)[5:]))

    monkeypatch.setattr(os, "statvfs", unknown)
    lines = "".join(preview_build(**options))
    assert "disk: an unknown number of bytes are free" in lines
    build(**options)
    (disk,) = (each for each in run_doctor(tmp_path) if each.name == "disk")
    assert disk.fit
    assert disk.text.startswith("an unknown number of bytes free")


def test_a_disk_that_is_too_small_is_found_before_the_work(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 0
    monkeypatch.setattr(storage.LocalStorage, "space", lambda self: (free, 0))
    n_bytes = sum(path.stat().st_size for path in options["train"].iterdir())
    pipeline.train(paths=options["train"], out=tmp_path / "t.json", vocab_size=280)
    given = {key: value for key, value in options.items() if key != "vocab_size"}
    message = (
        r"out: the token files need about [\d.,]+ (bytes|kB) .*, and [\d.,]+ (bytes|kB) are free;"
        r" free the space or choose another directory"
    )
    # Surely too small, whatever the tokenizer will be.
    free = n_bytes // 4
    progress = Progress()
    with pytest.raises(OutputError, match=message):
        build(**options, progress=progress)
    assert not progress.stages
    # Too small for this text and this tokenizer: known at once, or when it is trained.
    free = n_bytes // 2
    with pytest.raises(OutputError, match=message):
        build(**given, tokenizer=tmp_path / "t.json", progress=progress)
    assert not progress.stages
    with pytest.raises(OutputError, match=message):
        build(**options, progress=progress)
    assert [stage.name for stage in progress.stages] == ["counting", "merging"]
    free = 2 * n_bytes
    build(**options)
