"""Conversations that are rendered in processes of their own: the bytes and errors of one thread."""

from __future__ import annotations

import bz2
import gzip
import lzma
import signal
from pathlib import Path
from typing import Any

import processes
import pytest
from chat_cases import DIALOGUES, say, write

from bpe.errors import CorpusError
from preprocess import open_tokens
from preprocess.pipeline import encode
from preprocess.run import units

pytest.importorskip("transformers", reason="needs the extra `chat`")


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "_FEW_BYTES", 0)


def encoded(model: Path, out: Path, paths: list[Path], workers: int) -> dict[str, bytes]:
    """Name -> content of the files of a dataset."""
    encode(
        paths=paths, tokenizer=model, chat_template="chatml", out=out / "x.bin", workers=workers,
        unit_size=500, shard_tokens=1000,
    )
    return {
        path.name: path.read_bytes() for path in out.iterdir()
        if path.suffix in (".bin", ".docs", ".mask")
    }


def test_processes_write_the_bytes_of_one_thread(model: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lines = write(tmp_path / "a.jsonl", DIALOGUES * 8)
    (tmp_path / "b.txt").write_text("Plain text.<|endoftext|>More text." * 50)
    pq.write_table(pa.table({"messages": DIALOGUES * 3}), tmp_path / "c.parquet")
    paths = [lines, tmp_path / "b.txt", tmp_path / "c.parquet"]
    for suffix, module in (("gz", gzip), ("bz2", bz2), ("xz", lzma)):
        paths.append(tmp_path / f"d.jsonl.{suffix}")
        paths[-1].write_bytes(module.compress(lines.read_bytes()))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    alone = encoded(model, tmp_path / "one", paths, 1)
    assert encoded(model, tmp_path / "two", paths, 2) == alone
    assert len(alone) > 6
    assert len(open_tokens(tmp_path / "one" / "x.bin").document_ends) == 35 * len(DIALOGUES) + 51


@pytest.mark.parametrize(("rows", "expected"), [
    ([[{"role": "wizard", "content": "x"}]], "message 1 has the role 'wizard'"),
    ([say("a question")], "nothing to train on"),
])
def test_bad_records_are_named_as_by_one_thread(
    model: Path, tmp_path: Path, rows: Any, expected: str
) -> None:
    path = write(tmp_path / "a.jsonl", DIALOGUES * 10 + rows)
    messages = []
    for workers in (1, 2):
        with pytest.raises(CorpusError, match=expected) as caught:
            encoded(model, tmp_path, [path], workers)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "line 51" in messages[0]


@pytest.mark.parametrize(("program", "how"), [
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "by signal 9"),
    ("raise SystemExit(3)", "with exit status 3"),
])
def test_a_process_that_ends_is_an_error(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, how: str
) -> None:
    path = write(tmp_path / "a.jsonl", DIALOGUES * 10)
    with monkeypatch.context() as patched:
        patched.setattr(units, "_PROGRAM", program)
        expected = rf"a.jsonl, .*the process that renders conversations ended {how};"
        with pytest.raises(units.ReaderError, match=expected):
            encoded(model, tmp_path, [path], 2)
    resumed = encoded(model, tmp_path, [path], 2)
    (tmp_path / "other").mkdir()
    assert encoded(model, tmp_path / "other", [path], 1) == resumed


def test_programs_need_no_guard_and_leave_no_process(model: Path, tmp_path: Path) -> None:
    """Also with a file that only this process has."""
    path = write(tmp_path / "a.jsonl", DIALOGUES * 10)
    program = tmp_path / "program.py"
    program.write_text(
        "from preprocess.pipeline import encode\n"
        "from preprocess.run import units\n"
        "units._FEW_BYTES = 0\n"
        f"encode(paths=['/dev/stdin'], tokenizer={str(model)!r}, chat_template='chatml',\n"
        f"       out={str(tmp_path / 'x.bin')!r}, workers=2, unit_size=500, format='jsonl')\n"
        "print('done')\n"
    )
    with open(path, "rb") as file:
        assert processes.run(program, stdin=file).stdout.count("done") == 1
    assert open_tokens(tmp_path / "x.bin").n_documents == 10 * len(DIALOGUES)


def test_a_process_ends_with_the_one_that_uses_it() -> None:
    program = (
        "import os, signal\n"
        "from preprocess.run import units\n"
        "process = units._Process()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # It returns when both have closed their output.
    processes.run("-c", program, expected_exit=-signal.SIGKILL)
