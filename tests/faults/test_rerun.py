"""Outputs that exist: up to date, of something else, or from sources and settings that changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_cases import assert_as_in_peace, contents, cut_off

from bpe import PretokenCounts
from bpe.errors import ChangedError, TokenmillError, UnavailableError
from preprocess import build, pipeline
from preprocess.cli import run
from preprocess.dataset.columns import TokenFileError
from preprocess.report.progress import Progress
from preprocess.run.journal import JournalError
from preprocess.storage import OutputError

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
    with pytest.raises(OutputError, match=r"t\.json: exists; choose another directory or name"):
        pipeline.train(paths=corpus, out=tmp_path / "t.json", vocab_size=280)


NOT_OURS = "exists and was not written by this tokenmill, so it is left alone"
EXISTS = "exists; choose another directory or name, or replace it"
NO_TOKENIZER = r"exists; it is without tokenizer\.json"


@pytest.mark.parametrize(
    ("command", "name", "message", "is_replaced"),
    [
        ("build", "train.json", NOT_OURS, False),
        ("build", "val.json", NOT_OURS, False),
        ("build", "stats.json", NOT_OURS, False),
        ("build", "val.bin", EXISTS, True),
        ("build", "tokenizer.json", "another tokenizer exists", True),
        ("build", "tokenizer_config.json", NO_TOKENIZER, True),
        ("train", "tokenizer_stats.json", NOT_OURS, False),
        ("train", "tokenizer_config.json", NO_TOKENIZER, True),
    ],
)
def test_a_file_of_another_program(
    options: dict[str, Any], command: str, name: str, message: str, is_replaced: bool
) -> None:
    """It is left alone; what has the name of an output may be replaced, if the user says so."""
    path = options["out"] / name
    path.parent.mkdir()
    path.write_text('{"mine": true}')
    if command == "train":
        options = {"paths": options["train"], "out": path.parent / "tokenizer.json"}
    function: Callable[..., Any] = getattr(pipeline, command)
    for overwrite in (False, True):
        if overwrite and is_replaced:
            function(**options | {"vocab_size": 280}, overwrite=True)
            assert path.read_bytes()[:9] != b'{"mine": '
        else:
            with pytest.raises(TokenmillError, match=f"{name}: {message}"):
                function(**options | {"vocab_size": 280}, overwrite=overwrite)
            assert [(each.name, each.read_text()) for each in path.parent.iterdir()] == [
                (name, '{"mine": true}')
            ]


@pytest.mark.parametrize("name", ["tokenizer.json", "train.bin", "train.json", "stats.json"])
def test_a_directory_with_the_name_of_an_output(options: dict[str, Any], name: str) -> None:
    """Found before the work, also where outputs are replaced, and left as it is."""
    (options["out"] / name).mkdir(parents=True)
    for more in ({}, {"overwrite": True}):
        with pytest.raises(TokenmillError, match=f"{name}: is a directory, where a file is exp"):
            build(**options, **more)
        assert [each.name for each in options["out"].iterdir()] == [name]


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


@pytest.mark.parametrize(
    ("change", "message", "finished"),
    [(*each, number in (1, 2)) for number, each in enumerate(CHANGES)],
)
def test_changed_sources_are_named_and_not_mixed(
    options: dict[str, Any], change: Callable[[Path], None], message: str, finished: bool
) -> None:
    if finished:
        build(**options)
    else:
        cut_off(options)
    before = contents(options["out"]) if finished else {}
    change(options["train"] / "b.txt")
    with pytest.raises(TokenmillError, match=message) as refusal:
        build(**options)
    assert "overwrite=True" in str(refusal.value)
    if finished:
        assert contents(options["out"]) == before
    build(**options, overwrite=True)
    assert_as_in_peace(options)


ENCODING = "encoding train and val"


class Acting(Progress):
    """Does something once, when something of a stage is done."""

    def __init__(self, stage: str, act: Callable[[], object]) -> None:
        super().__init__()
        self._stage, self._act, self.is_done = stage, act, False

    def note_memory(self) -> None:
        if not self.is_done and self.stages[-1].name == self._stage and self.stages[-1].done:
            self.is_done = True
            self._act()


@pytest.mark.parametrize("stage", ["counting", ENCODING])
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("loop", "cannot be opened any more: Too many levels of symbolic links; remove the cause"),
        ("gone", "was changed, replaced or removed while it was being read; run"),
        ("other", "was changed, replaced or removed while it was being read; run"),
    ],
)
def test_a_file_that_cannot_be_read_for_a_while_costs_nothing(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture, stage: str, how: str, message: str
) -> None:
    path, away = options["train"] / "b.txt", options["train"].with_name("away")
    shutil.copy2(path, away)

    def act() -> None:
        if how == "other":
            path.write_bytes(b"\xfe" * path.stat().st_size)
            return
        path.unlink()
        if how == "loop":
            path.symlink_to(path.name)

    with pytest.raises(UnavailableError, match=rf"b\.txt: {message}"):
        build(**options, progress=Acting(stage, act))
    assert (options["out"] / ".build.partial" / "journal.jsonl").exists()
    assert caplog.messages[-1].endswith(
        "/.build.partial; rerun the same command to resume, once the file can be read and is as it"
        " was, with its modification time (cp -p); without it, or with its new content, start over"
        " (overwrite=True)"
    )
    if how == "other":
        with pytest.raises(OutputError, match=r"b\.txt was written to or touched.*overwrite=True"):
            build(**options)
    path.unlink(missing_ok=True)
    shutil.copy2(away, path)
    again = Progress()
    build(**options, progress=again)
    done_before = {each.name: each.done_before for each in again.stages}
    # One unit of the stage was done, at least, when the file could not be read any more.
    assert done_before[stage] > 200
    if stage != "counting":
        assert done_before["counting"] == sum(p.stat().st_size for p in options["train"].iterdir())
    assert_as_in_peace(options)


def test_a_file_that_changes_while_its_last_unit_is_counted_is_refused(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is read again."""
    path, count = options["train"] / "b.txt", PretokenCounts.add

    def add(counts: PretokenCounts, *text: Any) -> None:
        count(counts, *text)
        touch(path)

    monkeypatch.setattr(PretokenCounts, "add", add)
    with pytest.raises(ChangedError, match=r"b\.txt: was changed, replaced or removed"):
        pipeline.train(paths=path, out=options["out"] / "tokenizer.json", vocab_size=280)


def test_a_touched_file_of_a_finished_output_is_read_and_found_to_be_the_same(
    options: dict[str, Any],
) -> None:
    build(**options)
    before = unchanged(options["out"] / "train.bin")
    touch(options["train"] / "a.txt")
    assert "up to date" in build(**options).lines[0]
    assert unchanged(options["out"] / "train.bin") == before


def twin(options: dict[str, Any], text: Callable[[str], str]) -> Path:
    """Files in another directory, of the same names, sizes and times."""
    directory = options["train"].with_name("twin")
    directory.mkdir()
    for path in options["train"].iterdir():
        (directory / path.name).write_text(text(path.read_text()))
        times = path.stat()
        os.utime(directory / path.name, ns=(times.st_atime_ns, times.st_mtime_ns))
    return directory


@pytest.mark.parametrize("stage", [ENCODING, "finished"])
def test_files_that_differ_by_their_directories_alone_are_told_apart(
    options: dict[str, Any], stage: str
) -> None:
    build(**options) if stage == "finished" else cut_off(options, stage)
    other = options | {"train": twin(options, str.swapcase)}
    before = contents(options["out"]) if stage == "finished" else {}
    message = rf"a\.txt was {options['train']}/a\.txt and is {other['train']}/a\.txt"
    with pytest.raises(TokenmillError, match=message):
        build(**other)
    assert contents(options["out"]) == before if before else True
    # Another way to the same files is no change.
    link = options["train"].with_name("link")
    link.symlink_to(options["train"])
    build(**options | {"train": link})
    assert_as_in_peace(options)


def test_a_change_that_no_time_tells_of_is_found_when_it_was_read(options: dict[str, Any]) -> None:
    path = options["train"] / "a.txt"
    cut_off(options)
    times = path.stat()
    path.write_text(path.read_text().replace("document 1 ", "DOCUMENT 1 "))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(JournalError, match=r"a\.txt: the text read before the .* changed"):
        build(**options)


@pytest.mark.parametrize("finished", [False, True])
def test_changed_settings_are_named(options: dict[str, Any], finished: bool) -> None:
    if finished:
        build(**options)
    else:
        cut_off(options)
    for more, message in (
        ({"vocab_size": 281}, r"vocab_size was 280 and is 281"),
        ({"separator": "\n"}, r"separator was '<\|endoftext\|>' and is '\\n'"),
        ({"val_fraction": 0.3}, r"val_fraction was 0\.2 and is 0\.3"),
        ({"pattern": "o200k", "min_frequency": 3}, r"min_frequency was 2 .*; pattern was 'gpt2'"),
    ):
        with pytest.raises(TokenmillError, match=message):
            build(**options | more)
    # It goes on, or is up to date, as if nobody had asked.
    build(**options)
