"""Standard streams that are closed, full or of another encoding change no output or exit code."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import processes
import pytest
import torture

from preprocess import cli

TEXT = "naïve 日本語 🙂 <|endoftext|>" * 9

COMMANDS = [
    "build --train ä.txt --vocab-size 270 --out data --val-fraction 0",
    "train ä.txt --vocab-size 270 --out ö.json --quiet",
    "encode ä.txt --tokenizer data/tokenizer.json --out encoded/train.bin",
    "count ä.txt --tokenizer data/tokenizer.json",
    "rows data --format jsonl --out rows",
    "export data --to npy --out export",
    "decode data/train.bin",
    "inspect data/tokenizer.json",
    "inspect data --json",
    "compare data/tokenizer.json data/tokenizer.json ä.txt",
    "verify data",
    "doctor data",
    "--version",
    "rows --help",
    "encode missing-ä.txt --tokenizer data/tokenizer.json",
    "bild ä.txt",
]
NAMES = ["data", "encoded", "rows/train", "export"]


def make_place(place: Path) -> Path:
    place.mkdir()
    (place / "ä.txt").write_text(TEXT)
    os.utime(place / "ä.txt", (1, 1))
    return place


def files_in(place: Path) -> list[dict[str, bytes]]:
    return [torture.contents(place / x, "config.json") for x in NAMES if (place / x).is_dir()]


def run_all(place: Path, redirections: str, commands: list[str], **more: str) -> list[Any]:
    """Return each command, its exit code, standard output and errors."""
    make_place(place)
    program = f"'{sys.executable}' -c 'from preprocess.cli import main; main()'"
    found: list[Any] = []
    for command in commands:
        done = subprocess.run(
            f"{program} {command} {redirections}", shell=True, cwd=place, capture_output=True,
            env=processes.environment(**more), check=False,
        )
        found.append((command, done.returncode, done.stdout, done.stderr))
        assert b"Traceback" not in done.stderr, done.stderr
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, tuple[int, bytes]]]:
    """The directory, and the exit code and output of each command, in this process."""
    place, found = make_place(tmp_path_factory.mktemp("streams") / "plain"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for command in COMMANDS:
            shown = io.TextIOWrapper(printed := io.BytesIO(), "utf-8", write_through=True)
            with contextlib.redirect_stdout(shown):
                code = cli.run(command.split())
            shown.flush()
            found[command] = code, printed.getvalue()
    return place, found


# Each with a build, and with every fifth of the other commands.
REDIRECTIONS = [">/dev/full 2>/dev/full", "<&- >&- 2>&-", "ascii", "2>&-", "2>&1 | true"]


@pytest.mark.parametrize("redirections", REDIRECTIONS)
def test_commands(plain: Any, tmp_path: Path, redirections: str) -> None:
    place, expected = plain
    codes = {command: code for command, (code, _) in expected.items()}
    commands = COMMANDS[:1] + COMMANDS[1 + REDIRECTIONS.index(redirections) :: 5]
    if redirections == "ascii":
        found = run_all(tmp_path / "x", "", commands, PYTHONIOENCODING=redirections)
        (shown,) = (output.decode(redirections) for x, _, output, _ in found if "--json" in x)
        assert json.loads(shown) == json.loads(expected["inspect data --json"][1])
    else:
        found = run_all(tmp_path / "x", redirections, commands)
    if "full" in redirections:
        codes["decode data/train.bin"] = 1  # the text is its output, and lost
    if "|" not in redirections:  # where the shell has the exit code of another program
        assert [(command, codes[command]) for command in commands] == [x[:2] for x in found]
    for files in files_in(tmp_path / "x"):
        assert files in files_in(place)


def test_what_is_lost_is_reported(tmp_path: Path) -> None:
    found = run_all(tmp_path / "a", ">/dev/full", [COMMANDS[0], "decode data/train.bin"])
    for *_, errors in found:
        assert b"tokenmill: what it printed is lost: No space left on device\n" in errors
        assert b"Errno" not in errors
    found = run_all(tmp_path / "b", "--log-file /dev/full", COMMANDS[:1])
    (_, code, output, errors), = found
    assert code == 0
    assert b"train: " in output
    assert errors.count(b"/dev/full: the log lacks lines, for it could not be written: No sp") == 1


def test_lines_are_not_kept_back() -> None:
    """Also where Python is told to buffer nothing, and in a program that took the stream away."""
    program = (
        "import contextlib, io, os, sys\n"
        "from preprocess import cli\n"
        "with contextlib.redirect_stdout(io.StringIO()) as taken:\n"
        "    assert cli.run(['--version']) == 0\n"
        "assert taken.getvalue().startswith('tokenmill ')\n"
        "with cli.standard_streams():\n"
        "    print('a line', file=sys.stderr)\n"
        "    os._exit(0)\n"
    )
    for unbuffered in ("", "1"):
        assert processes.run("-c", program, PYTHONUNBUFFERED=unbuffered).stderr == "a line\n"


def test_a_pipe_that_does_not_block_gets_all() -> None:
    """Another program that has it may have made it so; it is full when a line is written."""
    program = (
        "import os\n"
        "from preprocess.cli import standard_streams\n"
        "os.set_blocking(1, False)\n"
        "try:\n"
        "    while True: os.write(1, b'.')\n"
        "except BlockingIOError: pass\n"
        "with standard_streams():\n"
        "    os.write(2, b'full\\n')\n"
        "    print('a line', flush=True)\n"
    )
    with processes.start("-c", program, stdout=PIPE, stderr=PIPE) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "full\n"
        output, errors = process.communicate()
    assert (process.returncode, output.lstrip("."), errors) == (0, "a line\n", "")
