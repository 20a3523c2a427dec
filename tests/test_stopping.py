"""Signals end a command within about a second, whatever it is doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torture

from preprocess import build
from preprocess.cli import run
from preprocess.stopping import SECONDS, Stopped, stopping

ROOT = Path(__file__).parent.parent
# A call that no signal interrupts, as a kernel's: minutes in C without the interpreter's lock.
STUCK = """
import hashlib, os, sys
import bpe.count, preprocess.cli
add, n = bpe.count.PretokenCounts.add, 0

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
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
        except BaseException:
            pass

bpe.count.PretokenCounts.add = stuck
sys.exit(preprocess.cli.run(sys.argv[1:]))
"""


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_process_that_is_stuck_ends(
    tmp_path: Path, workers: int, number: signal.Signals, code: int
) -> None:
    text, out = tmp_path / "text", tmp_path / "out"
    text.write_text("<|endoftext|>".join(f"document {i} of many" for i in range(500)))
    options = ["--train", str(text), "--out", str(out), "--vocab-size", "280"]
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, "build", *options, "--workers", str(workers),
         "--unit-size", "500"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "stuck\n"
            process.send_signal(number)
            sent = time.monotonic()
            _, stderr = process.communicate(timeout=60)
            took = time.monotonic() - sent
        finally:
            process.kill()
    assert process.returncode == code
    assert "not waited for; what was done before is kept" in stderr
    assert stderr.splitlines()[-1].startswith("tokenbin: error: stopped (")
    assert took >= SECONDS
    assert run(["build", *options]) == 0
    build(train=text, out=tmp_path / "peace", vocab_size=280)
    assert torture.contents(out) == torture.contents(tmp_path / "peace")


def test_what_ends_by_itself_is_let_end() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped) as stopped, stopping():
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.number == signal.SIGTERM
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
