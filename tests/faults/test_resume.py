"""Interrupted, failed, repeated and changed runs: the same bytes in the end, or a refusal."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import faults
import pytest
import torture

from bpe import PretokenCounts, text_file
from bpe.errors import ChangedError, CorpusError, TokenbinError, UnavailableError
from preprocess import build, pipeline, storage
from preprocess.check.inspect import facts, lines
from preprocess.cli import run
from preprocess.dataset.columns import TokenFileError
from preprocess.report.progress import OutOfTimeError, Progress, Stage
from preprocess.run import count_pass, encode_pass, journal
from preprocess.run.journal import JournalError
from preprocess.sources.text import TextUnit
from preprocess.storage import LOCK_FILE, DamagedStateError, OutputError

ROOT = Path(__file__).parents[2]
END = "<|endoftext|>"
DOCUMENTS = [f"document {i} of many, and some more words: {i * i}" for i in range(60)]
contents = torture.contents


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """corpus/a.txt, corpus/b.txt."""
    directory = tmp_path / "corpus"
    directory.mkdir()
    (directory / "a.txt").write_text(END.join(DOCUMENTS[:40]))
    (directory / "b.txt").write_text(END.join(DOCUMENTS[40:]))
    return directory


@pytest.fixture
def options(corpus: Path, tmp_path: Path) -> dict[str, Any]:
    """Of a build that takes many units and writes an entry after each."""
    return {
        "train": corpus,
        "val_fraction": 0.2,
        "out": tmp_path / "out",
        "vocab_size": 280,
        "unit_size": 300,
        "workers": 1,
    }


@pytest.fixture(autouse=True)
def _entries_after_every_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.0)
    monkeypatch.setattr(count_pass, "_WORK_PER_SAVING", 0)


def cut_off(
    options: dict[str, Any], stage: str = "encoding train and val", units: int = 3, **more: Any
) -> None:
    with pytest.raises(faults.CutOff):
        build(**options | more, progress=faults.Stopping(stage, units))


# Kills.


def test_killed_builds_end_in_the_same_bytes() -> None:
    """A dozen builds, each killed up to five times; `make torture` does it with many more."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "support" / "torture.py"), "--builds", "12"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 builds, " in done.stdout
    assert " 0 failures" in done.stdout


@pytest.mark.parametrize("stage", ["counting", "merging", "encoding train and val"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_goes_on_where_it_was_cut_off(
    options: dict[str, Any], tmp_path: Path, stage: str, workers: int
) -> None:
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


@pytest.mark.parametrize("command", ["train", "encode"])
def test_the_other_commands_go_on_too(
    command: str, corpus: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    own: dict[str, Any] = {"paths": corpus, "unit_size": 300, "workers": 1}
    tokenizer = tmp_path / "tokenizer.json"
    name = "x.bin" if command == "encode" else "x.json"
    stage = "encoding x" if command == "encode" else "counting"
    function: Callable[..., Any] = getattr(pipeline, command)
    if command == "encode":
        pipeline.train(paths=corpus, out=tokenizer, vocab_size=280)
        own["tokenizer"] = tokenizer
    else:
        own["vocab_size"] = 280
    function(**own, out=tmp_path / "peace" / name)
    with pytest.raises(faults.CutOff):
        function(**own, out=tmp_path / "out" / name, progress=faults.Stopping(stage))
    progress = Progress()
    function(**own, out=tmp_path / "out" / name, progress=progress)
    assert progress.stages[0].done_before > 800
    assert contents(tmp_path / "out") == contents(tmp_path / "peace")


# Failures of the disk.


def test_near_the_end_an_entry_comes_after_every_few_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on the disk already need not be waited for at the end."""
    n_bytes, unit_size = 200_000, 10_000
    (tmp_path / "text").write_text("more " * (n_bytes // 5))
    pipeline.train(paths=tmp_path / "text", out=tmp_path / "tokenizer.json", vocab_size=260)
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 1e9)
    monkeypatch.setattr(encode_pass, "_NEAR_THE_END", 100_000)
    monkeypatch.setattr(encode_pass, "_FEW_BYTES", 20_000)
    encoded: list[int] = []
    commit = journal.Journal.commit

    def noted(self: journal.Journal, entry: Any, streams: Any = ()) -> None:
        if isinstance(entry, encode_pass.Encoded):
            encoded.append(entry.bytes)
        commit(self, entry, streams)
        self.rest()  # the disk is ready at once

    monkeypatch.setattr(journal.Journal, "commit", noted)
    pipeline.encode(
        paths=tmp_path / "text",
        tokenizer=tmp_path / "tokenizer.json",
        out=tmp_path / "x.bin",
        unit_size=unit_size,
        workers=2,
    )
    *early, last = encoded
    assert last == n_bytes
    assert 100_000 < early[0] <= 100_000 + 2 * unit_size
    steps = [after - before for before, after in pairwise(early)]
    assert 3 <= len(steps) <= 5
    assert all(20_000 <= step <= 20_000 + 2 * unit_size for step in steps)


def test_every_write_fails_in_turn(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clear error, no final name without its content, and the same command goes on."""
    build(**options | {"out": tmp_path / "peace"})
    peace = contents(tmp_path / "peace")
    # Entries at the ends of stages only: that is every kind of call there is.
    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 1e9)
    for number in range(1, 1000):
        out = tmp_path / str(number)
        system = faults.System(number, faults.fail(faults.ERRORS[number % len(faults.ERRORS)]))
        error: TokenbinError | None = None
        with monkeypatch.context() as patch:
            faults.install(system, patch)
            try:
                build(**options | {"out": out})
            except TokenbinError as found:
                error = found
        if error is None and len(system.calls) < number:
            break
        # The last calls take the work directory and the lock away, when all is in place.
        if error is not None:
            assert "could not be written" in str(error)
            assert "run the same command again" in str(error)
            assert str(out) in str(error)
            if "nothing was put under a final name" in str(error):
                assert not (out / "tokenizer.json").exists()
            for name in ("train.json", "val.json"):
                if (out / name).exists():
                    assert (out / name).read_bytes() == peace[name]
                    assert (out / name).with_suffix(".bin").read_bytes() == peace[
                        f"{name[:-5]}.bin"
                    ]
        build(**options | {"out": out})
        assert contents(out) == peace
    assert number > 60


def test_messages_of_a_disk_that_fails(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def full(name: str, arguments: Any) -> None:
        faults.fail(28)(name, arguments)

    system = faults.System()
    with monkeypatch.context() as patch:
        faults.install(system, patch)
        build(**options)
    faults.install(faults.System(system.calls.index("write") + 1, full), monkeypatch)
    command = ["--train", str(options["train"]), "--out", str(options["out"]), "--overwrite"]
    assert run(command) == 1
    said = capsys.readouterr().err
    assert "journal.jsonl: could not be written at byte 0: No space left on device" in said
    assert "free the space and run the same command again" in said


def test_a_disk_that_is_too_small_is_found_before_the_work(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 0
    monkeypatch.setattr(storage.LocalStorage, "space", lambda self: (free, 0))
    n_bytes = sum(path.stat().st_size for path in options["train"].iterdir())
    pipeline.train(paths=options["train"], out=tmp_path / "t.json", vocab_size=280)
    given = {key: value for key, value in options.items() if key != "vocab_size"}
    message = r"out: the token files will have about .* free the space or choose another directory"
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


# What is there already.


def unchanged(path: Path) -> tuple[int, int, int]:
    """The same as long as nobody replaces or writes to a file."""
    state = path.stat()
    return state.st_ino, state.st_size, state.st_mtime_ns


def test_a_finished_output_is_up_to_date(options: dict[str, Any], capsys: Any) -> None:
    out = options["out"]
    build(**options)
    before = {path: unchanged(path) for path in out.iterdir()}
    arguments = [
        "--train", options["train"], "--val-fraction", 0.2, "--out", out, "--vocab-size", 280,
    ]  # fmt: skip
    # Workers and units do not count.
    for more in ([], ["--workers", 2], ["--unit-size", 999]):
        assert run([*map(str, [*arguments, *more])]) == 0
        assert "train: up to date (" in capsys.readouterr().out
    assert {path: unchanged(path) for path in out.iterdir()} == before
    result = build(**options)
    assert result.manifests["train"].n_documents + result.manifests["val"].n_documents == 60
    assert result.stats["documents"] == 60
    assert result.tokenizer.vocab_size == 280


def test_outputs_that_another_command_wrote_are_not_up_to_date(
    options: dict[str, Any], tmp_path: Path
) -> None:
    build(**options)
    (tmp_path / "other.txt").write_text("something else")
    tokenizer, out = options["out"] / "tokenizer.json", options["out"] / "train.bin"
    pipeline.encode(paths=tmp_path / "other.txt", tokenizer=tokenizer, out=out, overwrite=True)
    with pytest.raises(TokenFileError, match=r"train\.json: exists"):
        build(**options)
    touch(options["train"] / "a.txt")
    with pytest.raises(TokenFileError, match=r"train\.json: exists"):
        build(**options)
    build(**options, overwrite=True)
    assert "up to date" in build(**options).lines[0]


def test_another_tokenizer_under_the_name_is_not_up_to_date(corpus: Path, tmp_path: Path) -> None:
    for name, size in (("t.json", 280), ("u.json", 270)):
        pipeline.train(paths=corpus, out=tmp_path / name, vocab_size=size)
    (tmp_path / "t.json").write_bytes((tmp_path / "u.json").read_bytes())
    with pytest.raises(OutputError, match=r"t\.json: exists; choose another name"):
        pipeline.train(paths=corpus, out=tmp_path / "t.json", vocab_size=280)


def test_train_leaves_the_stats_of_others_alone(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "t_stats.json").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(OutputError, match=r"t_stats\.json: exists and was not written by"):
            pipeline.train(
                paths=corpus, out=tmp_path / "t.json", vocab_size=280, overwrite=overwrite
            )
    assert (tmp_path / "t_stats.json").read_text() == "mine"


@pytest.mark.parametrize("command", ["train", "build"])
def test_a_configuration_without_its_tokenizer_is_left_alone(
    options: dict[str, Any], command: str
) -> None:
    configuration = options["out"] / "tokenizer_config.json"
    configuration.parent.mkdir()
    configuration.write_text("mine")

    def run_it(overwrite: bool) -> None:
        if command == "build":
            build(**options, overwrite=overwrite)
        else:
            out = options["out"] / "tokenizer.json"
            pipeline.train(paths=options["train"], out=out, vocab_size=280, overwrite=overwrite)

    with pytest.raises(OutputError, match=r"_config\.json: exists without tokenizer\.json"):
        run_it(False)
    assert configuration.read_text() == "mine"
    run_it(True)
    assert configuration.read_text() != "mine"


def test_train_is_up_to_date_too(corpus: Path, tmp_path: Path, capsys: Any) -> None:
    command = ["train", str(corpus), "--out", str(tmp_path / "t.json"), "--vocab-size", "280"]
    assert run(command) == 0
    before = unchanged(tmp_path / "t.json")
    capsys.readouterr()
    assert run(command) == 0
    assert "t.json: up to date, 280 tokens" in capsys.readouterr().out
    assert unchanged(tmp_path / "t.json") == before


def grow(path: Path) -> None:
    with open(path, "a") as file:
        file.write("more")


def shrink(path: Path) -> None:
    path.write_text(path.read_text()[:-1])


def rewrite(path: Path) -> None:
    path.write_text(path.read_text().replace("many", "MANY"))
    touch(path)


def touch(path: Path) -> None:
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000_000))


def add(path: Path) -> None:
    path.with_name("c.txt").write_text("another file")


def rename(path: Path) -> None:
    path.rename(path.with_name("c.txt"))


CHANGES = [
    (grow, r"train and val: b\.txt grew from [\d,]+ to [\d,]+ bytes"),
    (shrink, r"train and val: b\.txt shrank from [\d,]+ to [\d,]+ bytes"),
    (rewrite, r"train and val: b\.txt was written to or touched \(as many bytes, but modified \d+"),
    (add, r"train and val: c\.txt is new"),
    (rename, r"train and val: b\.txt is gone; train and val: c\.txt is new"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
@pytest.mark.parametrize("finished", [False, True])
def test_changed_sources_are_named_and_not_mixed(
    options: dict[str, Any], change: Callable[[Path], None], message: str, finished: bool
) -> None:
    if finished:
        build(**options)
    else:
        cut_off(options)
    before = contents(options["out"]) if finished else {}
    change(options["train"] / "b.txt")
    with pytest.raises(TokenbinError, match=message) as refusal:
        build(**options)
    assert "--overwrite" in str(refusal.value)
    if finished:
        assert contents(options["out"]) == before
    build(**options, overwrite=True)
    peace = options["out"].with_name("peace")
    build(**options | {"out": peace})
    assert contents(options["out"]) == contents(peace)


class Noting(Progress):
    """Sets a flag when something of a stage is done."""

    def __init__(self, stage: str) -> None:
        super().__init__()
        self._stage, self.is_there = stage, False

    def note_memory(self) -> None:
        if self.stages[-1].name == self._stage and self.stages[-1].done:
            self.is_there = True


@pytest.mark.parametrize("stage", ["counting", "encoding train and val"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("stat", "cannot be opened any more: Too many; see to that and run the same command"),
        ("open", "cannot be opened any more: Too many; see to that and run the same command"),
        (
            "readinto",
            r"byte [\d,]+ and on cannot be read: Too many; see to the disk and run the sa",
        ),
        ("write", "was changed, replaced or removed while it was being read; run the command"),
    ],
)
def test_a_file_that_cannot_be_read_for_a_while_costs_nothing(
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stage: str,
    call: str,
    message: str,
) -> None:
    path, progress = options["train"] / "b.txt", Noting(stage)
    text, state = path.read_bytes(), path.stat()

    def refuse(name: str, called: Any) -> None:
        if progress.is_there and name == call and Path(called) == path:
            raise OSError(errno.EMFILE, "Too many")

    class File(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            refuse("readinto", self.name)
            if progress.is_there and call == "write" and Path(self.name) == path:
                # No text, right after it was looked at.
                path.write_bytes(b"\xff" * len(text))
            return super().readinto(buffer)

    class System:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def stat(self, path: Path) -> os.stat_result:
            refuse("stat", path)
            return os.stat(path)

    def opened(path: Path, mode: str, buffering: int = 0) -> io.FileIO:
        refuse("open", path)
        return File(path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(text_file, "os", System())
        patch.setattr(text_file, "open", opened, raising=False)
        with pytest.raises(UnavailableError, match=rf"b\.txt: {message}"):
            build(**options, progress=progress)
    assert (options["out"] / ".build.partial" / "journal.jsonl").exists()
    assert caplog.messages[-1].endswith(
        "/.build.partial: the same command goes on there, when the file is as it was, with its time"
        " (cp -p); without it, or with what it is now, start anew (--overwrite)"
    )
    if call == "write":
        with pytest.raises(OutputError, match=r"b\.txt was written to or touched.*--overwrite"):
            build(**options)
    path.write_bytes(text)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    again = Progress()
    build(**options, progress=again)
    done_before = {each.name: each.done_before for each in again.stages}
    # One unit of the stage was done, at least, when the file could not be read any more.
    assert done_before[stage] > 200
    if stage != "counting":
        assert done_before["counting"] == sum(p.stat().st_size for p in options["train"].iterdir())
    peace = options["out"].with_name("peace")
    build(**options | {"out": peace})
    assert contents(options["out"]) == contents(peace)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("is_last", [False, True])
def test_a_file_that_changes_while_it_is_counted_is_refused(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, workers: int, is_last: bool
) -> None:
    """Right after the unit that was read meanwhile, though nothing of the last is read again."""
    path = options["train"] / "b.txt"
    count, counted = PretokenCounts.add, []
    n_units = 1

    def add(counts: PretokenCounts, *text: Any) -> None:
        count(counts, *text)
        counted.append(1)
        if len(counted) == n_units:
            touch(path)

    monkeypatch.setattr(PretokenCounts, "add", add)
    few = {
        "paths": path,
        "out": options["out"] / "tokenizer.json",
        "vocab_size": 280,
        "unit_size": path.stat().st_size // 9,
        "workers": workers,
    }
    if is_last:
        n_units = 0
        pipeline.train(**few | {"out": options["out"] / "other.json"})
        n_units = len(counted)
        assert n_units >= 9
        counted.clear()
    with pytest.raises(ChangedError, match=r"b\.txt: was changed, replaced or removed"):
        pipeline.train(**few)
    assert n_units <= len(counted) <= n_units + 2 * workers + 2


class Texts:
    """Of the units that were counted: which are still in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read = TextUnit.read
        self._texts: list[weakref.ref[Any]] = []
        self.three = threading.Event()
        monkeypatch.setattr(TextUnit, "read", self._noted)

    @property
    def _noted(self) -> Callable[[TextUnit], Any]:
        def read(unit: TextUnit, array: Any) -> Any:
            batch = self._read(unit, array)
            assert batch.content is not None
            self._texts.append(weakref.ref(batch.content))
            if len(self._texts) == 3:
                self.three.set()
            return batch

        return read

    def held(self, n: int | None = None) -> list[bool]:
        return [text() is not None for text in self._texts[:n]]


def test_text_that_is_counted_is_held_no_longer(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, seen, advance = Texts(monkeypatch), [], Stage.advance

    def advanced(stage: Stage, n: int) -> None:
        if stage.name == "counting":
            seen.append(texts.held())
        advance(stage, n)

    monkeypatch.setattr(Stage, "advance", advanced)
    build(**options)
    assert len(seen) > 5
    assert seen == [[False] * n for n in range(1, len(seen) + 1)]


def test_text_that_is_counted_is_not_held_while_its_result_waits(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, read, seen = Texts(monkeypatch), TextUnit.read, []

    def slowly(unit: TextUnit, array: Any) -> Any:
        if unit.start == 0 and not seen:
            assert texts.three.wait(60)
            seen.append(texts.held(2))
        return read(unit, array)

    monkeypatch.setattr(TextUnit, "read", slowly)
    build(**options | {"workers": 2, "val_fraction": 0, "train": options["train"] / "a.txt"})
    assert seen == [[False, False]]


def test_a_touched_file_of_a_finished_output_is_read_and_found_to_be_the_same(
    options: dict[str, Any],
) -> None:
    build(**options)
    before = unchanged(options["out"] / "train.bin")
    touch(options["train"] / "a.txt")
    assert "up to date" in build(**options).lines[0]
    assert unchanged(options["out"] / "train.bin") == before


def test_a_touched_file_of_an_unfinished_run_is_refused(options: dict[str, Any]) -> None:
    cut_off(options)
    touch(options["train"] / "a.txt")
    with pytest.raises(OutputError, match=r"a\.txt was written to or touched"):
        build(**options)


def twin(options: dict[str, Any], text: Callable[[str], str]) -> Path:
    """Files in another directory, of the same names, sizes and times."""
    directory = options["train"].with_name("twin")
    directory.mkdir()
    for path in options["train"].iterdir():
        (directory / path.name).write_text(text(path.read_text()))
        times = path.stat()
        os.utime(directory / path.name, ns=(times.st_atime_ns, times.st_mtime_ns))
    return directory


@pytest.mark.parametrize("stage", ["counting", "encoding train and val", "finished"])
def test_files_that_differ_by_their_directories_alone_are_told_apart(
    options: dict[str, Any], stage: str
) -> None:
    build(**options) if stage == "finished" else cut_off(options, stage)
    other = options | {"train": twin(options, str.swapcase)}
    before = contents(options["out"]) if stage == "finished" else {}
    message = rf"a\.txt was {options['train']}/a\.txt and is {other['train']}/a\.txt"
    with pytest.raises(TokenbinError, match=message):
        build(**other)
    assert contents(options["out"]) == before if before else True
    # Another way to the same files is no change.
    link = options["train"].with_name("link")
    link.symlink_to(options["train"])
    build(**options | {"train": link})
    peace = options["out"].with_name("peace")
    build(**options | {"out": peace})
    assert contents(options["out"]) == contents(peace)


def test_finished_outputs_of_files_that_were_moved_are_up_to_date(options: dict[str, Any]) -> None:
    build(**options)
    before = unchanged(options["out"] / "train.bin")
    assert "up to date" in build(**options | {"train": twin(options, str)}).lines[0]
    assert unchanged(options["out"] / "train.bin") == before


def test_a_change_that_no_time_tells_of_is_found_when_it_was_read(options: dict[str, Any]) -> None:
    path = options["train"] / "a.txt"
    cut_off(options)
    times = path.stat()
    path.write_text(path.read_text().replace("document 1 ", "DOCUMENT 1 "))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(JournalError, match=r"a\.txt: what was read of it before the interruption"):
        build(**options)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"vocab_size": 281}, r"vocab_size was 280 and is 281"),
        ({"separator": "\n"}, r"separator was '<\|endoftext\|>' and is '\\n'"),
        ({"val_fraction": 0.3}, r"val_fraction was 0\.2 and is 0\.3"),
        ({"pattern": "o200k", "min_frequency": 3}, r"min_frequency was 2 .*; pattern was 'gpt2'"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_changed_settings_are_named(
    options: dict[str, Any], more: dict[str, Any], message: str, finished: bool
) -> None:
    if finished:
        build(**options)
    else:
        cut_off(options)
    with pytest.raises(TokenbinError, match=message):
        build(**options | more)
    # It goes on, or is up to date, as if nobody had asked.
    build(**options)


@pytest.mark.parametrize("finished", [False, True])
def test_a_default_that_is_spelled_out_is_no_change(
    options: dict[str, Any], tmp_path: Path, finished: bool
) -> None:
    del options["val_fraction"]
    (options["train"] / "a.txt").write_text(END.join(f"document {i}" for i in range(500)))
    spelled_out: dict[str, Any] = {
        "val_fraction": 0.01,
        "end_of_text": END,
        "special_tokens": [END],
        "separator": END,
        "min_frequency": 2,
        "pattern": "gpt2",
        "tie_break": "greatest-bytes",
        "on_invalid_utf8": "error",
    }
    pipeline.train(paths=options["train"], out=tmp_path / "t.json", vocab_size=280)
    for number, given in enumerate(({}, {"tokenizer": tmp_path / "t.json"})):
        options["out"] = tmp_path / str(number)
        of_run = {key: value for key, value in options.items() if key != "vocab_size" or not given}
        if given:
            for key in ("special_tokens", "min_frequency", "pattern", "tie_break"):
                spelled_out.pop(key)
        build(**of_run, **given) if finished else cut_off(of_run, **given)
        progress = Progress()
        result = build(**of_run, **given, **spelled_out, progress=progress)
        if finished:
            assert "up to date" in result.lines[0]
        else:
            assert progress.stages[0].done_before > 0


def test_another_tokenizer_is_named(options: dict[str, Any], tmp_path: Path) -> None:
    for size in (270, 275):
        out = tmp_path / f"{size}.json"
        pipeline.train(paths=options["train"], out=out, vocab_size=size)
    del options["vocab_size"]
    cut_off(options, tokenizer=tmp_path / "270.json")
    message = r"the tokenizer [0-9a-f]{16}\.\.\. and the tokenizer [0-9a-f]{16}\.\.\. now"
    with pytest.raises(OutputError, match=message):
        build(**options, tokenizer=tmp_path / "275.json")
    with pytest.raises(OutputError, match=r"the tokenizer .* and a tokenizer to be trained now"):
        build(**options)
    build(**options, tokenizer=tmp_path / "270.json")


def test_overwrite_starts_anew_but_goes_on_with_itself(options: dict[str, Any]) -> None:
    build(**options)
    for begun_with, overwrite, goes_on in [(False, True, False), (True, True, True)]:
        more = {"vocab_size": 290}
        out = options["out"].with_name(f"{begun_with}")
        if begun_with:
            build(**options | {"out": out})
        cut_off(options | more | {"out": out}, overwrite=begun_with)
        progress = Progress()
        build(**options | more | {"out": out}, overwrite=overwrite, progress=progress)
        assert (progress.stages[0].done_before > 0) == goes_on


def test_a_run_that_overwrites_leaves_the_old_files_until_the_end(options: dict[str, Any]) -> None:
    build(**options)
    before = contents(options["out"])
    cut_off(options | {"vocab_size": 290}, overwrite=True)
    after = options["out"]
    assert {name: (after / name).read_bytes() for name in before} == before
    with pytest.raises(TokenFileError, match=r"train\.json: exists"):
        build(**options | {"vocab_size": 290})
    build(**options | {"vocab_size": 290}, overwrite=True)
    assert contents(options["out"]) != before


@pytest.mark.parametrize("name", ["journal.jsonl", "train.bin", "tokenizer.json", "counts"])
def test_a_damaged_state_is_refused(options: dict[str, Any], name: str) -> None:
    if name == "counts":
        cut_off(options, "counting")
    else:
        cut_off(options)
    work = options["out"] / ".build.partial"
    path = next(work.glob(f"{name}*"))
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    with pytest.raises(TokenbinError, match=r"damaged.*start anew \(--overwrite\)"):
        build(**options)
    build(**options, overwrite=True)
    peace = options["out"].with_name("peace")
    build(**options | {"out": peace})
    assert contents(options["out"]) == contents(peace)


def test_a_run_that_is_refused_for_its_text_says_that_its_work_is_given_up(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    path = options["train"] / "b.txt"
    times, text = path.stat(), path.read_bytes()
    path.write_bytes(text[:-20] + b"\xff" * 20)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    given_up = "what was done is given up: the same command would come to this again"
    # All of a.txt was counted.
    with pytest.raises(CorpusError, match=r"b\.txt: byte [\d,]+: not valid UTF-8"):
        build(**options)
    assert given_up in caplog.text
    assert not list(options["out"].iterdir())
    caplog.clear()
    # Nothing was.
    bad = options["train"].with_name("bad.txt")
    bad.write_bytes(b"\xff")
    with pytest.raises(CorpusError, match=r"bad\.txt: byte 0: not valid UTF-8"):
        build(**options | {"train": bad})
    assert given_up not in caplog.text
    path.write_bytes(text)
    build(**options)


@pytest.mark.parametrize("is_all", [False, True])
def test_counts_that_a_kill_left_over_are_removed(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, is_all: bool
) -> None:
    """Killed between writing counts and saying so, or between saying so and removing the old."""
    build(**options | {"out": options["out"].with_name("peace")})
    work = storage.LocalStorage(options["out"], "build")
    cut_off(options, "merging" if is_all else "counting", 0 if is_all else 3)
    (known,) = [name for name in work.names() if name.startswith("counts-")]
    for name in ("counts-0-1", "counts-0-2.new", "run-7"):
        work.put(name, b"left over")
    seen = []

    def looked(*arguments: Any, **more: Any) -> Any:
        seen.append([name for name in work.names() if name.startswith(("counts-", "run-"))])
        return Progress.stage(*arguments, **more)

    progress = Progress()
    monkeypatch.setattr(progress, "stage", lambda *a, **more: looked(progress, *a, **more))
    build(**options, progress=progress)
    assert seen[0] == [known]
    assert contents(options["out"]) == contents(options["out"].with_name("peace"))


@pytest.mark.parametrize("name", ["train.bin", "tokenizer.json", "counts"])
def test_a_damaged_state_of_a_run_that_overwrites_is_given_up(
    options: dict[str, Any], name: str
) -> None:
    """Such a run goes on with itself, so its damage would be in the way for ever."""
    build(**options | {"vocab_size": 270})
    cut_off(options, "counting" if name == "counts" else "encoding train and val", overwrite=True)
    path = next((options["out"] / ".build.partial").glob(f"{name}*"))
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedStateError, match=r"damaged.*start anew \(--overwrite\)"):
        build(**options, overwrite=True)
    build(**options, overwrite=True)
    peace = options["out"].with_name("peace")
    build(**options | {"out": peace})
    assert contents(options["out"]) == contents(peace)


@pytest.mark.parametrize("name", ["train.bin", "train.docs", "train.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "extend", "remove"])
def test_damage_to_what_a_pass_has_finished_is_found(
    options: dict[str, Any], name: str, how: str
) -> None:
    """It would get a final name beside a manifest that tells of something else."""
    del options["val_fraction"]
    cut_off(options, "encoding val", val=options["train"])
    path = options["out"] / ".build.partial" / name
    content = path.read_bytes()
    changed = {
        "flip": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        "cut": content[:-3],
        "extend": content + b"x",
    }
    path.write_bytes(changed[how]) if how != "remove" else path.unlink()
    with pytest.raises(DamagedStateError, match=rf"{name}: was finished .* \(--overwrite\)"):
        build(**options, val=options["train"])
    assert not (options["out"] / "train.json").exists()
    build(**options, val=options["train"], overwrite=True)


def test_a_journal_of_another_version_is_refused(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("preprocess.run.outputs.FORMAT_VERSION", 0)
        cut_off(options)
    with pytest.raises(JournalError, match="an unfinished run of another version of tokenbin"):
        build(**options)


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("counting", r"counting: \d+ %, .* MB/s, about .* left; 0 of 2 files done"),
        ("merging", r"counting: 100 %, .*; 2 of 2 files done"),
        ("encoding train and val", r"encoding train and val: \d+ %, .* left; 0 of 2 files done"),
    ],
)
def test_inspect_says_how_far_an_unfinished_run_is(
    options: dict[str, Any], stage: str, said: str
) -> None:
    cut_off(options, stage, 0 if stage == "merging" else 3)
    (line,) = lines(facts(options["out"]))
    assert re.fullmatch(rf".*/\.build\.partial: not finished: {said}", line)


@pytest.mark.parametrize(
    "entries",
    [
        [{"kind": "nonsense"}],
        [{"kind": "begun", "format_version": 1}],
        [{"kind": "begun", "format_version": 1, "made_from": {"command": "build"}}],
        [None, {"kind": "counted", "nonsense": 1}],
        [None, {"kind": "finished"}],
        [None, {"kind": "encoded", "number": 0, "streams": {"train.bin": 3}}],
        [None, {"kind": "trained", "stages": [{"nonsense": 1}]}],
    ],
)
def test_entries_that_nobody_writes_are_refused(
    options: dict[str, Any], tmp_path: Path, entries: list[dict[str, Any] | None]
) -> None:
    pipeline.train(paths=options["train"], out=tmp_path / "t.json", vocab_size=280)
    if "finished" in str(entries) or "encoded" in str(entries):
        options["tokenizer"] = tmp_path / "t.json"
    cut_off(options)
    work = storage.LocalStorage(options["out"], "build")
    with journal.Journal(work) as before:
        first = before.entries[0]
    work.remove(storage.JOURNAL_FILE)
    with journal.Journal(work) as wrong:
        for entry in entries:
            wrong.append(entry or first)
    (line,) = lines(facts(options["out"]))
    assert "not finished: " in line
    with pytest.raises(JournalError, match=r"--overwrite"):
        build(**options)
    build(**options, overwrite=True)


def test_a_journal_that_cannot_be_read_is_an_error(options: dict[str, Any]) -> None:
    journal_file = options["out"] / ".build.partial" / storage.JOURNAL_FILE
    journal_file.mkdir(parents=True)
    with pytest.raises(OutputError, match=r"journal\.jsonl: could not be read: Is a directory"):
        build(**options)


# One at a time, and in time.


def test_two_builders_in_one_directory(options: dict[str, Any], capsys: Any) -> None:
    out = options["out"]
    out.mkdir()
    with open(out / LOCK_FILE, "w") as lock:
        lock.write('{"pid": 4711, "host": "elsewhere"}')
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match=r"out: process 4711 on elsewhere is writing in this"):
            build(**options)
        lock.truncate(0)
        with pytest.raises(OutputError, match=r"out: another process is writing in this directory"):
            build(**options)
    # The file alone is no lock: its holder is dead.
    build(**options)
    assert not (out / LOCK_FILE).exists()


def test_a_lock_that_is_a_link_is_not_written_through(
    options: dict[str, Any], tmp_path: Path
) -> None:
    options["out"].mkdir()
    (tmp_path / "precious").write_text("mine")
    (options["out"] / LOCK_FILE).symlink_to(tmp_path / "precious")
    with pytest.raises(OutputError, match=r"out: could not be written: Too many levels of symbol"):
        build(**options)
    assert (tmp_path / "precious").read_text() == "mine"


def test_the_lock_is_held_while_a_build_runs(options: dict[str, Any]) -> None:
    refused = []

    class Second(Progress):
        def note_memory(self) -> None:
            if not refused and self.stages[-1].done:
                refused.append(None)
                with pytest.raises(OutputError, match=f"process {os.getpid()} on .* is writing"):
                    build(**options)

    build(**options, progress=Second())
    assert refused


def test_max_minutes(options: dict[str, Any], capsys: Any) -> None:
    peace = options["out"].with_name("peace")
    build(**options | {"out": peace})
    seconds = 0.0

    def clock() -> float:
        nonlocal seconds
        seconds += 1.0
        return seconds

    said = []
    for _ in range(100):
        try:
            build(**options, max_minutes=0.2, progress=Progress(clock=clock))
            break
        except OutOfTimeError as error:
            said.append(str(error))
    assert len(said) > 1
    assert "encoding train and val" in said[-1]
    assert "all of it takes about" in said[-1]
    assert contents(options["out"]) == contents(peace)


def test_max_minutes_exits_with_3(options: dict[str, Any], capsys: Any) -> None:
    command = ["--train", str(options["train"]), "--out", str(options["out"])]
    command += ["--unit-size", "300", "--val", str(options["train"])]
    assert run([*command, "--max-minutes", "0.000001"]) == 3
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("tokenbin: the time is over (counting ")
    assert said[-1].endswith("when the same command runs again")
    assert run(command) == 0
