"""Signals end a command within about a second, whatever it is doing; a worker that hangs does."""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any

import processes
import pytest
import torture

import preprocess.run.signals as stopping_module
from bpe import PretokenCounts
from preprocess import build
from preprocess.cli import run
from preprocess.run.signals import HUNG_CODE, SECONDS, logger
from preprocess.storage import LOCK_FILE

# A call that no signal interrupts, as a kernel's: minutes in C without the interpreter's lock.
STUCK = """
import hashlib, os, signal, sys
# As in a terminal; what was started in the background inherits that it ignores SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
import bpe.train.counts, preprocess.cli, preprocess.run.signals
preprocess.run.signals.TICK = 0.01
add, n = bpe.train.counts.PretokenCounts.add, 0

def stuck(*arguments):
    global n
    n += 1
    if n < 6:
        return add(*arguments)
    said = False
    while True:
        try:  # the signal may come before the call
            if not said:
                said = True
                os.write(1, b"stuck\\n")  # in one piece, also from two workers
                preprocess.run.signals.PATIENCE = float(os.environ["PATIENCE"])
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
        except BaseException:
            pass

bpe.train.counts.PretokenCounts.add = stuck
sys.exit(preprocess.cli.run(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("number", "code", "workers"),
    [(signal.SIGINT, 130, 1), (signal.SIGTERM, 143, 2), (None, HUNG_CODE, 2)],
)
def test_a_process_that_is_stuck_ends(
    tmp_path: Path, workers: int, number: signal.Signals | None, code: int
) -> None:
    text, out, log = tmp_path / "text", tmp_path / "out", tmp_path / "log"
    text.write_text("<|endoftext|>".join(f"document {i} of many" for i in range(500)))
    options = ["--train", str(text), "--out", str(out), "--vocab-size", "280"]
    patience = "inf" if number else "0"
    options += ["--workers", str(workers), "--unit-size", "500", "--log-file", str(log)]
    with processes.start(
        "-c", STUCK, "build", *options, env=processes.environment(PATIENCE=patience), stdout=PIPE,
        stderr=PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "stuck\n"
            if number is not None:
                process.send_signal(number)
            sent = time.monotonic()
            _, stderr = process.communicate(timeout=60)
            took = time.monotonic() - sent
        finally:
            process.kill()
    assert process.returncode == code
    assert "earlier progress is saved: rerun the same command to resume" in stderr
    last = stderr.splitlines()[-1]
    if number is not None:
        assert last.startswith("tokenmill: error: stopped (")
        assert took >= SECONDS
    else:
        hung = (
            rf"a worker hangs: for 0 minutes it has not come back from {text}, bytes [\d,]+ to .*"
        )
        assert re.fullmatch(f"tokenmill: error: {hung}", last)
        assert re.search(f"ERROR {hung}\n", log.read_text())
    # Nothing has a final name.
    assert {path.name for path in out.iterdir()} == {".build.partial", LOCK_FILE}
    assert run(["build", *options]) == 0
    build(train=text, out=tmp_path / "peace", vocab_size=280)
    assert torture.contents(out) == torture.contents(tmp_path / "peace")


def test_a_program_that_called_build_is_told_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.set()

    told, handler = threading.Event(), Told()
    add = PretokenCounts.add

    def slow(*arguments: Any) -> None:
        monkeypatch.setattr(stopping_module, "PATIENCE", 0.0)
        assert told.wait(60)
        add(*arguments)

    monkeypatch.setattr(stopping_module, "TICK", 0.01)
    monkeypatch.setattr(PretokenCounts, "add", slow)
    (tmp_path / "text").write_text("one document")
    logger.addHandler(handler)
    try:
        build(train=tmp_path / "text", val_fraction=0, out=tmp_path / "out", vocab_size=260)
    finally:
        logger.removeHandler(handler)
    hung = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert hung[0].endswith(f"it has not come back from {tmp_path / 'text'}, bytes 0 to 12")
    assert (tmp_path / "out" / "train.bin").exists()
