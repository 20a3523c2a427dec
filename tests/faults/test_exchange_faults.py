"""Exports, imports and rows: runs that are killed or fail, and continue where they were."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import faults
import numpy as np
import pytest
import torture
from export_cases import WITH_SHARDS
from row_cases import need
from torture import contents
from verify_cases import flip
from written import END, dataset

from preprocess import OutputError, export_tokens, import_tokens, write_rows
from preprocess.check.verify import verify
from preprocess.cli import run
from preprocess.export import formats
from preprocess.imports import write as import_write
from preprocess.report.progress import Progress
from preprocess.rows.formats import FORMATS
from preprocess.run.journal import Journal

SIZES = [1, 20, 7, 30, 2, 2, 9, 1, 16]
# All exports are written in one way: as files, in shards, or in a directory.
KINDS = ["megatron", "llmc", "mds", "import", *FORMATS]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small pieces, each with a checkpoint."""
    monkeypatch.setattr(formats, "PIECE_VALUES", 32)
    monkeypatch.setattr(import_write, "PIECE_TOKENS", 32)
    monkeypatch.setattr(Journal, "due", lambda self, ends_soon=False: True)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A dataset."""
    dataset(tmp_path / "data", SIZES, mask=True)
    return tmp_path / "data"


def do(what: str, data: Path, out: Path, **more: Any) -> None:
    """Export the dataset to a format, import its ids, or write rows."""
    if what == "import":
        import_tokens(
            data / "train.bin", format="raw", dtype="uint16", end_of_text_id=END, vocab_size=301,
            shard_tokens=40, out=out / "train.bin", **more,
        )
    elif what in FORMATS:
        need(what)
        options = {"max_length": 9, "padding": "max-length", "num_shards": 3, "workers": 1}
        write_rows(data, format=what, out=out, **options | more)  # type: ignore[arg-type]
    else:
        size = 40 if what in WITH_SHARDS else None
        export_tokens(data, to=what, out=out, shard_tokens=size, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", KINDS)
def test_a_disk_that_fails_at_each_call(data: Path, tmp_path: Path, what: str) -> None:
    def check(out: Path, peace: dict[str, bytes], _: object) -> None:
        final = {each for each in contents(out) if ".partial" not in each}
        described = {"import": "train.json"} | dict.fromkeys(FORMATS, "rows.json")
        described = described.get(what, "export.json")
        if any(name.endswith(described) for name in final):  # it is the last
            assert final >= peace.keys()

    faults.fail_each_call(lambda out: do(what, data, out), tmp_path, contents, check=check)


@pytest.mark.parametrize("what", KINDS)
def test_a_run_that_is_killed(data: Path, tmp_path: Path, what: str) -> None:
    do(what, data, tmp_path / "peace")
    more = {"workers": 2} if what in FORMATS else {}
    for at in (9, 12, 16, 24, 33) if what == "jsonl" else (20,) if more else (12, 24):
        out = tmp_path / f"killed{at}"
        run_of_it = partial(do, what, data, out, **more)
        assert torture.in_a_child(run_of_it, at, None) == -signal.SIGKILL
        do(what, data, out)
        assert contents(out) == contents(tmp_path / "peace")


def cut_off(what: str, data: Path, out: Path) -> None:
    """Cut a run off after some of its pieces."""
    progress = faults.Stopping("exporting train", 6)
    if what == "import":
        progress = faults.Stopping("importing train", 2)
    with pytest.raises(faults.CutOff):
        do(what, data, out, progress=progress)


def test_an_export_continues_inside_a_file(data: Path, tmp_path: Path, capsys: Any) -> None:
    out, peace, progress = tmp_path / "out", tmp_path / "peace", Progress()
    do("megatron", data, peace)
    cut_off("megatron", data, out)
    assert run(["inspect", str(out)]) == 0
    text = ".train.export.partial: not finished: exporting train: 88 %, "
    assert text in capsys.readouterr().out
    with pytest.raises(OutputError, match="run with other inputs exists: to was 'meg"):
        do("npy", data, out)
    do("megatron", data, out, progress=progress)
    assert 0 < progress.stages[0].done_before < progress.stages[0].done
    assert contents(out) == contents(peace)


def test_a_file_that_is_changed_meanwhile(data: Path, tmp_path: Path) -> None:
    out, peace = tmp_path / "out", tmp_path / "peace"
    do("megatron", data, peace)
    cut_off("megatron", data, out)
    flip(out / ".train.export.partial" / "train.bin", 7)
    with pytest.raises(OutputError, match="was changed since the interruption, for it does not ha"):
        do("megatron", data, out)
    do("megatron", data, out, overwrite=True)
    assert contents(out) == contents(peace)


def test_an_import_continues_where_it_was(data: Path, tmp_path: Path, capsys: Any) -> None:
    out, progress = tmp_path / "out", Progress()
    cut_off("import", data, out)
    with pytest.raises(OutputError, match="end_of_text_id was 299 and is 5"):
        import_tokens(
            data / "train.bin", format="raw", dtype="uint16", end_of_text_id=5, vocab_size=301,
            shard_tokens=40, out=out / "train.bin",
        )
    assert run(["inspect", str(out)]) == 0
    assert "not finished: importing train: 73 %, 0.0 of 0.0 MB" in capsys.readouterr().out
    # The ids that were read have changed, and nobody can see it.
    path = data / "train.bin"
    content, state = path.read_bytes(), path.stat()
    path.write_bytes(content[2:4] + content[2:])
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(OutputError, match="that were read before the interruption have changed"):
        do("import", data, out)
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    do("import", data, out, progress=progress)
    assert 0 < progress.stages[0].done_before < progress.stages[0].done
    do("import", data, tmp_path / "peace")
    assert contents(out) == contents(tmp_path / "peace")
    assert all(each.sound for each in verify(out))
    ids = np.concatenate([np.fromfile(each, np.uint16) for each in sorted(out.glob("*.bin"))])
    assert ids.tobytes() == content
