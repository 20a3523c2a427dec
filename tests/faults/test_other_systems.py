"""What Linux has and other systems lack: without it the outputs are the same."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from processes import printed_by
from remote_cases import make_dataset

from preprocess import OutputError, Sampler, build, open_tokens
from preprocess.check.verify import verify


def test_without_what_linux_has(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(
        "<|endoftext|>".join(f"This is document {n:x}.\n" * (n % 9 + 1) for n in range(700))
    )
    for out, more in (("here", []), ("there", ["elsewhere"])):
        printed = printed_by("import elsewhere; elsewhere.main()", tmp_path / out, *more)
        *doctor, synced = printed.splitlines()
        assert (int(synced) > 10) == (out == "there")
        assert any("processor" in line for line in doctor)
    here, there = (
        {x.relative_to(tmp_path / out): x for x in (tmp_path / out).rglob("*") if x.is_file()}
        for out in ("here", "there")
    )
    assert here.keys() == there.keys()
    assert [x for x in here if x.suffix in (".bin", ".docs", ".plan", ".jsonl")]
    for name, path in here.items():
        if name.suffix in (".bin", ".docs", ".plan", ".jsonl") or name.name == "tokenizer.json":
            assert path.read_bytes() == there[name].read_bytes(), name


def test_a_plan_where_no_space_can_be_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_dataset(tmp_path, 4000)

    def refuse(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    expected = Sampler(file, 3, 8, windows="packed").batch(0)
    (plan,) = tmp_path.glob("*.plan")
    content = plan.read_bytes()
    for how in ("none", "refused"):
        plan.unlink()
        with monkeypatch.context() as patch:
            if how == "none":
                patch.delattr(os, "posix_fallocate")
            else:
                patch.setattr(os, "posix_fallocate", refuse)
            found = Sampler(open_tokens(file.path), 3, 8, windows="packed").batch(0)
        assert all((found[name] == expected[name]).all() for name in expected)
        assert plan.read_bytes() == content


@pytest.mark.parametrize(("call", "code"), [
    ("fsync", errno.EINVAL), ("fsync", errno.EBADF), ("fsync", errno.ENOSYS),
    ("fsync", errno.EOPNOTSUPP), ("open", errno.EISDIR), ("fsync", errno.EIO),
])  # fmt: skip
def test_directories_that_cannot_be_synced(
    call: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on some file systems of networks and containers; an error of the disk is still one."""
    (tmp_path / "text").write_text("some text " * 9)
    options: dict[str, Any] = {"train": tmp_path / "text", "vocab_size": 258, "val_fraction": 0}
    build(**options, out=tmp_path / "expected")
    real = getattr(os, call)

    def refuse(place: Any, *more: Any, **named: Any) -> Any:
        if os.path.isdir(place):
            raise OSError(code, os.strerror(code))
        return real(place, *more, **named)

    monkeypatch.delattr("fcntl.F_FULLFSYNC", raising=False)  # of macOS, instead of fsync
    monkeypatch.setattr(os, call, refuse)
    if code == errno.EIO:
        with pytest.raises(OutputError, match="Input/output error"):
            build(**options, out=tmp_path / "out")
        return
    build(**options, out=tmp_path / "out")
    assert all(each.sound for each in verify(tmp_path / "out", deep=True))
    for name in ("tokenizer.json", "train.bin", "train.json"):
        assert len({(tmp_path / x / name).read_bytes() for x in ("expected", "out")}) == 1


LIMITED = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
from preprocess import Sampler, open_tokens, verify
file = open_tokens(sys.argv[1])
print(len(file.parts), len([*Path("/dev/fd").iterdir()]) < 20)
sampler = Sampler(file, 2, 16, order="epoch", windows="packed")
print(all((sampler.batch(step)['inputs'] < 301).all() for step in range(20)))
again = [open_tokens(sys.argv[1]) for _ in range(3)]
view = again[0].tokens
del file, again, sampler
print(int(view[-1]), [each.sound for each in verify(sys.argv[1])])
"""


def test_more_shards_than_files_that_may_be_open(tmp_path: Path) -> None:
    file = make_dataset(tmp_path, 22_400, shard_tokens=100, mask=True)
    expected = f"{len(file.parts)} True\nTrue\n{int(file[-1])} [True, True, True, True]\n"
    assert len(file.parts) >= 224
    assert printed_by(LIMITED, file.path) == expected


ON_WINDOWS = """
import os, sys
sys.platform, sys.modules["fcntl"], sys.argv[1:], codes = "win32", None, ["--version"], sys.argv[1:]
for code in codes:
    if not (child := os.fork()):
        try:
            exec(code)
        except ImportError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_windows_is_named() -> None:
    modules = (
        "bpe", "preprocess", "bpe.tokenizer", "bpe.files.temporary", "preprocess.sampling",
        "preprocess.storage.lock", "preprocess.dataset.remote",
    )
    codes = [f"import {module}" for module in modules]
    codes.append("from preprocess.cli import main; main()")  # the command
    codes.append("import runpy; runpy.run_module('preprocess', run_name='__main__')")
    message = "tokenmill does not run on Windows: use Linux, macOS, or Windows' WSL\n"
    assert printed_by(ON_WINDOWS, *codes) == len(codes) * message
