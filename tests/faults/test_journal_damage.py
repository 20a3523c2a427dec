"""State of an unfinished run that is overwritten, damaged, locked, or out of time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest
from run_cases import assert_as_in_peace, cut_off

from bpe.errors import CorpusError, TokenmillError
from preprocess import build, pipeline, storage
from preprocess.check.inspect import facts, format_lines
from preprocess.cli import run
from preprocess.report.progress import OutOfTimeError, Progress
from preprocess.run import journal
from preprocess.run.journal import JournalError
from preprocess.storage import LOCK_FILE, DamagedStateError, OutputError


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


@pytest.mark.parametrize(
    ("name", "what", "overwrite"),
    [
        ("journal.jsonl", "damaged", False),
        ("train.bin", r"damaged since the interruption \(its last block, from byte 0,", True),
        ("tokenizer.json", "the trained tokenizer is damaged or missing", False),
        ("counts", "saved counts are damaged", True),
        ("train.docs", "bytes, as in the journal, found 0", False),
    ],
)
def test_a_damaged_state_is_refused(
    options: dict[str, Any], name: str, what: str, overwrite: bool
) -> None:
    """A run that overwrites goes on with itself, so its damage would be in the way for ever."""
    stage = "counting" if name == "counts" else "encoding train and val"
    cut_off(options, stage, overwrite=overwrite)
    work = options["out"] / ".build.partial"
    path = next(work.glob(f"{name}*"))
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content if name != "train.docs" else b"")
    with pytest.raises(TokenmillError, match=rf"{what}.*start over \(overwrite=True\)"):
        build(**options, overwrite=overwrite)
    build(**options, overwrite=True)
    assert_as_in_peace(options)


def test_a_run_that_is_refused_for_its_text_says_that_its_work_is_given_up(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    path = options["train"] / "b.txt"
    times, text = path.stat(), path.read_bytes()
    path.write_bytes(text[:-20] + b"\xff" * 20)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    given_up = "progress is discarded: the same command would fail again"
    # All of a.txt was counted.
    with pytest.raises(CorpusError, match=r"b\.txt: byte [\d,]+: not valid UTF-8"):
        build(**options)
    assert given_up in caplog.text
    assert not options["out"].exists()
    caplog.clear()
    # Nothing was.
    bad = options["train"].with_name("bad.txt")
    bad.write_bytes(b"\xff")
    with pytest.raises(CorpusError, match=r"bad\.txt: byte 0: not valid UTF-8"):
        build(**options | {"train": bad})
    assert given_up not in caplog.text
    path.write_bytes(text)
    build(**options)


@pytest.mark.parametrize(
    ("name", "how"),
    [("train.bin", "flip"), ("train.docs", "cut"), ("train.bin", "extend"),
     ("train.docs", "remove"), ("train.json", "flip"), ("train.json", "remove")],
)
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
    with pytest.raises(DamagedStateError, match=rf"{name}: damaged or missing .* \(overwrite"):
        build(**options, val=options["train"])
    assert not (options["out"] / "train.json").exists()
    build(**options, val=options["train"], overwrite=True)


def test_a_complete_file_that_is_missing_is_built_again(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(storage.LocalStorage, "publish", lambda *_: os.kill(os.getpid(), 2))
        with pytest.raises(KeyboardInterrupt):
            build(**options, overwrite=True)
    (options["out"] / ".build.partial" / "train.bin").unlink()
    with pytest.raises(DamagedStateError, match=r"train\.bin: was complete, and is missing now"):
        build(**options)
    build(**options, overwrite=True)
    assert_as_in_peace(options)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (None, {"kind": "begun", "format_version": 4}, r"in the format .*the version that began"),
        ("nonsense", 1, "no entry of this version of tokenmill with the inputs"),
        ("begun", {"format_version": 7, "made_from": {"command": "build"}}, "is not in the format"),
        ("counted", {"nonsense": 1}, "is not in the format"),
        ("encoded 0", {"streams": {"train.bin": 3}}, "is not in the format"),
        (
            "encoded 0", {"sources": {"0": {"outputs": [{}]}}},
            "an entry counts 1 outputs of a source, and there are 2",
        ),
        ("encoded 0 finished", "yes", "is not in the format"),
        ("trained", {"stages": [{"nonsense": 1}]}, "is not in the format"),
    ],
)
def test_entries_that_nobody_writes_are_refused(
    options: dict[str, Any], tmp_path: Path, key: str | None, value: Any, message: str
) -> None:
    pipeline.train(paths=options["train"], out=tmp_path / "t.json", vocab_size=280)
    if key is not None and key.startswith("encoded"):
        options["tokenizer"] = tmp_path / "t.json"
    cut_off(options)
    work = storage.LocalStorage(options["out"], "build")
    content = work.get(storage.JOURNAL_FILE) or b""
    _, check, stop = next(journal.read_entries(content, "journal"))
    entry = {"key": key, "value": value, "adds": False, "stage": None} if key else value
    kept = content[:stop] if key not in (None, "nonsense", "begun") else b""
    line, _ = journal._line(entry, check if kept else "")
    work.put(storage.JOURNAL_FILE, kept + line)
    (said,) = format_lines(facts(options["out"]))
    assert "not finished: " in said
    with pytest.raises(JournalError, match=rf"{message}.*overwrite=True"):
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


def test_max_minutes(options: dict[str, Any], capsys: Any) -> None:
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
    assert "takes about" in said[-1]
    assert_as_in_peace(options)


def test_max_minutes_exits_with_3(options: dict[str, Any], capsys: Any) -> None:
    command = ["--train", str(options["train"]), "--out", str(options["out"])]
    command += ["--unit-size", "300", "--val", str(options["train"])]
    assert run([*command, "--max-minutes", "0.000001"]) == 3
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("tokenmill: time limit reached (counting ")
    assert said[-1].endswith("if you rerun the same command")
    assert run(command) == 0
