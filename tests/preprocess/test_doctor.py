"""`doctor`: what is fit is said to be, what is not is a line that says what to do."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bpe import Tokenizer
from preprocess import pipeline
from preprocess.check import doctor
from preprocess.cli import run
from preprocess.storage import LocalStorage, Stream

NAMES = ["versions", "processor", "memory", "accelerator", "output directory", "disk", "tokenizer"]


@pytest.fixture(autouse=True)
def _small_and_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_WRITTEN_BYTES", 1024 * 1024)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)


def test_a_machine_that_is_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(tmp_path / "new")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[9:].partition(":")[0] for line in lines] == NAMES
    assert all(line.startswith("ok ") for line in lines)
    assert "can be written (it does not exist yet)" in lines[4]
    assert all(f", {name} " in lines[0] for name in ("torch", "tiktoken", "numpy", "pandas"))
    assert "a new one decodes to the same bytes" in lines[6]
    text, ids, again = re.search("('Hello.*') -> (.*) -> (.*)", lines[6]).groups()
    assert text == again
    assert json.loads(ids)[:3] == [*b"Hel"]
    assert os.listdir(tmp_path) == []


def test_what_is_in_the_directory_is_tried(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some text " * 50)
    pipeline.train(paths=tmp_path / "text", out=tmp_path / "tokenizer.json", vocab_size=270)
    (tmp_path / ".build.partial").mkdir()
    checks = {check.name: check for check in doctor.run_doctor(tmp_path)}
    assert all(check.fit for check in checks.values())
    assert f"{tmp_path / 'tokenizer.json'} decodes to the same bytes" in checks["tokenizer"].text
    assert checks["output directory"].text.endswith("; unfinished: .build.partial")


def test_problems_are_named_and_the_rest_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    monkeypatch.setattr(doctor, "_LEAST_MEMORY", 1e18)
    monkeypatch.setattr(doctor, "_LEAST_DISK", 1e18)
    assert run(["doctor", str(tmp_path), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["fit"] is False
    problems = {check["name"]: check["text"] for check in said["checks"] if not check["fit"]}
    assert list(problems) == ["memory", "disk", "tokenizer"]
    assert "take a machine that has more" in problems["memory"]
    assert "make space or choose another directory" in problems["disk"]
    assert "tokenizer.json" in problems["tokenizer"]
    # Without a path it looks at data.
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data", "tokenizer.json").write_text("{")
    assert run(["doctor"]) == 1
    assert "tokenizer: data/tokenizer.json: the file ends" in capsys.readouterr().out
    (tmp_path / "file").write_text("")
    checks = {check.name: check for check in doctor.run_doctor(tmp_path / "file" / "below")}
    assert "Not a directory" in checks["output directory"].text
    assert not checks["disk"].fit


def one(name: str, path: Path) -> doctor.Check:
    (check,) = [check for check in doctor.run_doctor(path) if check.name == name]
    return check


def test_the_tokenizer_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text").write_text("some text " * 50)
    path = tmp_path / "tokenizer.json"
    pipeline.train(paths=tmp_path / "text", out=path, vocab_size=260)
    size, decode = Tokenizer.from_file(path).vocab_size, Tokenizer.decode

    def changing(self: Tokenizer, ids: Any) -> str:
        # The one that was just trained has a vocabulary of another size, and works.
        return decode(self, ids) + ("more" if self.vocab_size == size else "")

    with monkeypatch.context() as patch:
        patch.setattr("bpe.Tokenizer.decode", lambda self, ids: "something else")
        check = one("tokenizer", tmp_path)
    assert not check.fit
    assert "the installation is damaged; install tokenmill, numba and llvmlite again" in check.text
    with monkeypatch.context() as patch:
        patch.setattr("bpe.Tokenizer.decode", changing)
        check = one("tokenizer", tmp_path)
    assert not check.fit
    assert check.text.startswith(f"{path}: does not decode its ids to the same text")
    assert "save it again from its origin, or train one" in check.text
    data = json.loads(path.read_text())
    data["normalizer"] = {"type": "NFKC"}
    path.write_text(json.dumps(data))
    monkeypatch.setattr(doctor, "_TEXT", "\ufb01ne")
    check = one("tokenizer", tmp_path)
    assert check.fit
    assert check.text.startswith(f"{path} changes text before encoding it")


def test_whoever_is_at_work_is_named(tmp_path: Path) -> None:
    with LocalStorage(tmp_path, "build"):
        check = one("output directory", tmp_path)
    assert not check.fit
    assert "this process is writing in this directory" in check.text
    assert one("output directory", tmp_path).fit
    assert os.listdir(tmp_path) == []


def fails(*_: Any, **__: Any) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def append_reversed(stream: Stream, data: memoryview, append: Any = Stream.append) -> None:
    append(stream, data[::-1].tobytes())


FAILED = "could not be written: Input/output error.* choose another directory"


@pytest.mark.parametrize(("name", "patched", "replacement", "said"), [
    *(("output directory", call, fails, FAILED) for call in (
        "os.replace", "os.fsync", "os.mkdir",
    )),
    ("output directory", "preprocess.storage.Stream.append", append_reversed,
     "a mapped file has other content than was written; choose a directory"),
    ("disk", "resource.getrlimit", lambda which: (10**9, 10**9),
     "no file may be larger than 1,000,000,000 bytes; raise that limit"),
])  # fmt: skip
def test_what_a_build_does_is_tried(
    name: str, patched: str, replacement: Any, said: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(patched, replacement)
        check = one(name, tmp_path)
    assert not check.fit
    assert re.search(said, check.text)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("groups", "files", "limit"), [
    ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "5000000"}, 5_000_000),
    ("0::/a\n", {"a/memory.max": "7", "memory.max": "max"}, 7),
    ("0::/elsewhere\n", {"memory.max": "9"}, 9),
    ("4:memory:/a\n0::/\n", {"memory/a/memory.limit_in_bytes": "11"}, 11),
    ("3:cpu:/a\n0::/a\n", {"a/memory.max": "max"}, math.inf),
])  # fmt: skip
def test_limits_of_control_groups(
    groups: str, files: dict[str, str], limit: float, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text(f"{text}\n")
    monkeypatch.setattr(doctor, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(doctor, "_GROUP_ROOT", tmp_path / "root")
    assert doctor._memory_limit() == limit
    check = one("memory", tmp_path / "out")
    assert check.fit == (limit == math.inf)
    if not check.fit:
        assert "for this group of processes (cgroup)" in check.text
        assert "end other work, raise the limit, or take a machine that has more" in check.text


def test_memory_that_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemFree: 9999999 kB\nMemAvailable: 500000 kB\n")
    monkeypatch.setattr(doctor, "_MEMORY_INFO", tmp_path / "meminfo")
    check = one("memory", tmp_path)
    assert not check.fit
    assert "512.0 MB available on the machine now; a build needs about 1 GB" in check.text


class _Cuda:
    """As much of torch.cuda as is asked."""

    def __init__(self, available: bool, error: str = "") -> None:
        self.is_available = lambda: available
        self.device_count = lambda: 2
        self.mem_get_info = lambda: (60 * 10**9, 80 * 10**9)
        self._error = error

    def get_device_name(self) -> str:
        if self._error:
            raise RuntimeError(self._error)
        return "GPU"


@pytest.mark.parametrize(("cuda", "total", "fit", "said"), [
    (_Cuda(False), 1000, True, "none that PyTorch sees; building needs none"),
    (_Cuda(True), 1000, True, "2 x GPU, 80.0 GB of memory, 60.0 GB of it free"),
    (_Cuda(True), 999, False, "GPU computes 999 as the sum of 1000 ones; use another"),
    (_Cuda(True, "driver\ntoo old"), 0, False, "cannot use it (driver too old); building"),
])  # fmt: skip
def test_accelerators(
    cuda: _Cuda, total: int, fit: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a PyTorch made up for it: not every machine that runs the tests has an accelerator."""
    ones = SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: total))
    torch = SimpleNamespace(cuda=cuda, ones=lambda n, device: ones)
    monkeypatch.setattr(doctor, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "torch", torch)
    check = one("accelerator", tmp_path)
    assert check.fit == fit
    assert said in check.text
