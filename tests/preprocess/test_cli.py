"""The command as its users start it: spellings, help, exit codes, signals, streams."""

from __future__ import annotations

import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import processes
import pytest

import preprocess
from preprocess.cli import COMMANDS, Command, run
from preprocess.report.progress import Progress, logger
from preprocess.settings import OTHER_NAMES

ROOT = Path(preprocess.__file__).parents[1]
TEXT = "<|endoftext|>".join(f"document {i} of many, and some more words" for i in range(400))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def start(*arguments: object, **streams: Any) -> subprocess.Popen[str]:
    return processes.start("-m", "preprocess", *arguments, stderr=subprocess.PIPE, **streams)


def test_every_command_in_turn(text: Path, tmp_path: Path, capsys: Any) -> None:
    tokenizer, out = tmp_path / "own" / "tokenizer.json", tmp_path / "own" / "x.bin"
    n_bytes = len(TEXT) - 399 * len("<|endoftext|>")
    for arguments, expected in [
        (f"train {text} --out {tokenizer} --vocab-size 290",
         r"tokenizer\.json: 290 tokens \(33 merges\), special: <\|endoftext\|>"),
        (f"encode {text} --tokenizer {tokenizer} --out {out}",
         r"x: 400 documents, .*bytes per token.*peak memory"),
        (f"count {text} {text} --tokenizer {tokenizer}",
         rf"file\n *[\d,]+ +400 +{n_bytes:,} +text\.txt\n.*text\.txt\n.*total\n"),
        (f"inspect {out}", "documents: 400"), (f"inspect {tokenizer}", "vocab size: 290"),
        (f"verify {out.parent}", r"(ok .*){7}"),
    ]:
        assert run(arguments.split()) == 0
        assert re.search(expected, capsys.readouterr().out, re.DOTALL)
    out.write_bytes(b"\1\0" * (out.stat().st_size // 2))
    assert run(["verify", str(out)]) == 1
    assert "DAMAGED" in capsys.readouterr().out


def test_decode_prints_the_text(text: Path, tmp_path: Path, capfdbinary: Any) -> None:
    out = tmp_path / "data"
    assert run(["--train", str(text), "--val", str(text), "--out", str(out), "--quiet"]) == 0
    capfdbinary.readouterr()
    assert run(["decode", str(out / "train.bin")]) == 0
    assert capfdbinary.readouterr().out.decode() == TEXT + "<|endoftext|>"
    assert run(["decode", str(out / "train.bin"), "--start", "1", "--count", "3"]) == 0
    first = capfdbinary.readouterr().out.decode()
    assert 0 < len(first) < 40
    assert first in TEXT
    # Whoever reads may stop early.
    with start("decode", out / "train.bin", stdout=subprocess.PIPE) as process:
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(("arguments", "expected"), [
    ("--train_file a --val_file b --output_dir o --vocab_size 280",
     {"train": ["a"], "val": ["b"], "out": "o", "vocab_size": "280"}),
    ("--train_file=a --val_file=b --output-dir=o --vocab_size=280",
     {"train": ["a"], "val": ["b"], "out": "o", "vocab_size": "280"}),
    ("build --train a b --val c --tokenizer_path t",
     {"train": ["a", "b"], "val": ["c"], "tokenizer": "t"}),
    ("--train_file a --val b c --train d --val_file e",
     {"train": ["a", "d"], "val": ["b", "c", "e"]}),
    ("count a --tokenizer t a_b --workers=1 -- -x",
     {"paths": ["a", "a_b", "./-x"], "tokenizer": "t", "workers": 1}),
    ("count a --tokenizer t --separator '--- page_break ---'",
     {"paths": ["a"], "tokenizer": "t", "separator": "--- page_break ---"}),
    ("train --special-token a --special-token --b -- c",
     {"paths": ["c"], "special_tokens": ["a", "--b"]}),
    ("rows --input d --output o --seq_length 9", {"path": "d", "out": "o", "seq_length": 9}),
    ("--data_file a --tokenization_folder o --chars_to_tokenize 20 --starting_character 0",
     {"train": ["a"], "out": "o", "max_characters": 20, "start_character": 0}),
    ("encode --data-file a --tokenizer_path t --out=e.bin",
     {"paths": ["a"], "tokenizer": "t", "out": "e.bin"}),
    ("verify --input d", {"path": "d"}),
])  # fmt: skip
def test_every_spelling(
    arguments: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Also with what other programs have, and what means nothing here."""
    found: dict[str, Any] = {}
    monkeypatch.setattr(Command, "call", lambda _, given, console: not found.update(given))
    assert run(shlex.split(arguments)) == 0
    assert found == expected
    words, at = shlex.split(arguments), int(arguments[0] != "-")
    ignored = ["--batch_size", "500", "--save_frequency=10000", "--batch_size", "6"]
    assert run([*words[:at], *ignored, *words[at:]]) == 0
    assert found == expected
    said = capsys.readouterr().err
    assert said.count("is ignored: ") == 2
    assert "--batch-size is ignored: --unit-size is the bytes of a unit of work, and" in said
    assert "--save-frequency is ignored: progress is saved about once a second" in said


def test_options_of_other_programs(tmp_path: Path, capsys: Any) -> None:
    """They are listed, and what cannot be meant is answered in one line."""
    page = (ROOT / "docs" / "coming-from.md").read_text("utf-8")
    assert all(f"`--{name}`" in page for name in OTHER_NAMES)
    for arguments, message in [
        ("build --seq_length 1536", "--seq_length; it is an option of tokenmill rows; see"),
        ("--max-length 8 --stride 4", "; it is an option of tokenmill rows; see"),
        ("--learning_rate 1", "; it trains a model; examples/train_gpt.py has it; see token"),
        ("--use_params x", "; it trains a model; examples/train_gpt.py has it, as '--config"),
        ("rows x --starting_character 3", "; --start-character is an option of tokenmill build, t"),
        ("rows x --special-token a", "; it is an option of tokenmill build, tokenmill train, to"),
        ("rows x --columns a", "; did you mean --column?"),
        ("--vocab-sise 9", "; did you mean --vocab-size?"),
        ("decode x.bin --start two", "argument --start: invalid int value: 'two'; see tokenmill"),
        ("decode x.bin --start -1", "error: --start: should be a whole number of at least 0; got"),
        ("import", "required: PATH, --format, --end-of-text-id; see tokenmill import --help"),
        ("bild", "error: there is no command 'bild'; did you mean build?; see tokenmill --help"),
        ("train.txt", "error: there is no command 'train.txt'"),
    ]:
        assert run(arguments.split()) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert message in said
    assert run(["rows", "--input", str(tmp_path), "--max-length", "9"]) == 1
    assert f"build one first: tokenmill build --train {tmp_path}" in capsys.readouterr().err


def test_help_names_every_command(capsys: Any) -> None:
    assert run(["--version"]) == 0
    assert re.fullmatch(r"tokenmill \d+\.\d+\.\d+\n", capsys.readouterr().out)
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(re.search(rf"\n    {command}\s", printed) for command in COMMANDS)
    assert run([]) == 2
    assert capsys.readouterr().out == printed


def test_help_is_light() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with start("--help", stdout=subprocess.DEVNULL) as process:
        assert process.wait() == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The bar is 0.3 s on an idle machine.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


def test_an_error_is_one_line_and_a_traceback_with_debug(tmp_path: Path, capsys: Any) -> None:
    missing = ["--train", f"{tmp_path}/none.txt", "--out", f"{tmp_path}/out"]
    assert run(missing) == 1
    message = f"{tmp_path}/none.txt: no such file or directory; check the path\n"
    assert capsys.readouterr() == ("", f"tokenmill: error: {message}")
    with start(*missing, "--debug") as process:
        said = process.communicate()[1]
    assert (process.returncode, "Traceback" in said, "CorpusError" in said) == (1, True, True)


def test_quiet_says_nothing_and_the_log_file_gets_everything(
    text: Path, tmp_path: Path, capsys: Any
) -> None:
    log = tmp_path / "log"
    options = ["--train", f"{text}", "--val-fraction", "0", "--vocab-size", "280"]
    assert run([*options, "--out", f"{tmp_path}/a", "--quiet", "--log-file", f"{log}"]) == 0
    out, said = capsys.readouterr()
    # On a machine's first run it is said that kernels are compiled.
    assert (out, [line for line in said.splitlines() if "compil" not in line]) == ("", [])
    assert "train: 400 documents" in log.read_text()
    assert run(["--train", f"{tmp_path}/none", "--log-file", f"{log}"]) == 1
    assert "CorpusError: " in log.read_text()


def test_signals_end_a_build_promptly(tmp_path: Path) -> None:
    text, out, tokenizer = tmp_path / "text.txt", tmp_path / "out", tmp_path / "tokenizer.json"
    text.write_text(TEXT)
    assert run(["train", str(text), "--out", str(tokenizer), "--vocab-size", "280"]) == 0
    text.write_text(TEXT * 10_000)
    options = ["--train", text, "--val", text, "--out", out, "--workers", 2]
    with start(*options, "--tokenizer", tokenizer) as process:
        partial = out / ".build.partial" / "train.bin"
        while not (partial.exists() and partial.stat().st_size) and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        sent = time.monotonic()
        _, stderr = process.communicate(timeout=60)
        took = time.monotonic() - sent
    assert process.returncode == 143
    kept, last = stderr.splitlines()[-2:]
    assert kept.endswith("/.build.partial; rerun the same command to resume")
    assert last.startswith("tokenmill: error: stopped (")
    assert "Traceback" not in stderr
    assert [path.name for path in out.iterdir()] == [".build.partial"]
    assert took < 10


def test_one_line_every_30_seconds(caplog: Any, monkeypatch: Any, capsys: Any) -> None:
    """It says with `verbose` what the run takes; rates are those since the line before."""
    seconds = 0.0

    def used() -> dict[str, float]:
        written = 1e6 * seconds**2
        return {"cpu_seconds": 1.5 * seconds, "disk_read_bytes": 0, "disk_write_bytes": written}

    memory = 123_400_000, 0, 123_400_000
    monkeypatch.setattr("preprocess.report.progress.used_resources", used)
    monkeypatch.setattr("preprocess.report.progress.resident_memory", lambda: memory)
    caplog.set_level("INFO", logger=logger.name)
    plain = Progress("lines", clock=lambda: seconds)
    with plain.stage("encoding", 1000) as stage:
        for _ in range(100):
            seconds += 1.0
            stage.advance(10)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[0] == "encoding: 30 %, 0.0 of 0.0 MB, 0.0 MB/s, about 1 min 10 s left"
    assert plain.stages[0].seconds == 100.0
    assert capsys.readouterr().err == ""
    caplog.clear()
    seconds = 0.0
    verbose = Progress("lines", clock=lambda: seconds, verbose=True)
    with verbose.stage("merging", 70, "merges") as stage:
        for _ in range(70):
            seconds += 1.0
            stage.advance(1)
    assert [record.getMessage() for record in caplog.records] == [
        f"merging: {done} %, {n} of 70 merges, 1/s, about {left} s left; memory 123 MB,"
        f" 1.5 processors, disk read 0.0 MB/s, disk write {rate} MB/s"
        for done, n, left, rate in ((43, 30, 40, "30.0"), (86, 60, 10, "90.0"))
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the memory that is in use")
def test_memory_that_a_unit_takes_for_a_moment_counts() -> None:
    """In a process of its own, which had never taken as much."""
    code = (
        "import numpy as np; from preprocess.report.progress import Progress\n"
        "progress = Progress()\n"
        "with progress.stage('x', 1):\n"
        "    np.ones(200_000_000, np.uint8)\n"
        "assert 200e6 < progress.peak_memory < 300e6, progress.peak_memory"
    )
    processes.run("-c", code)


def test_verbose_is_an_option(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preprocess.report.progress.SECONDS_BETWEEN_LINES", 0.0)
    options = ["--train", str(text), "--out", str(tmp_path / "out"), "--vocab-size", "280"]
    assert run([*options, "--verbose", "--quiet", "--log-file", str(tmp_path / "log")]) == 0
    lines = (tmp_path / "log").read_text().splitlines()
    stages = [line for line in lines if " left" in line]
    assert {re.search(r"INFO ([\w ]+):", line)[1] for line in stages} >= {"counting", "merging"}
    assert all(re.search(r" left; memory [\d,]+ MB, \d+\.\d processors", line) for line in stages)


def test_bars_show_rate_and_time_left(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds_before in (0.0, 1.0):
        monkeypatch.setattr("preprocess.report.progress._SECONDS_BEFORE_BAR", seconds_before)
        progress = Progress("bars", stream=sys.stderr)
        with progress.stage("encoding", 2_000_000) as stage:
            stage.advance(2_000_000)
        shown = capsys.readouterr().err
        is_shown = not seconds_before
        assert all((x in shown) == is_shown for x in ("encoding: 100%", "2.00M/2.00M", "B/s"))
