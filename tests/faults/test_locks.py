"""One writer at a time, also where the file system has no locks; none is held by the dead."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import processes
import pytest
import written

from bpe.errors import ChangedError, TokenmillError
from preprocess import Sampler, build
from preprocess.check.doctor import run_doctor
from preprocess.cli import run
from preprocess.dataset.remote import CacheError, _lock
from preprocess.storage import LocalStorage, OutputError
from preprocess.storage import lock as locks
from preprocess.storage.lock import LockLinks, ObjectLock

LOCK = ".tokenmill.lock"
HOLDER = """
import errno, fcntl, os, sys, time
def flock(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock = flock
from preprocess.storage import LocalStorage
with LocalStorage(sys.argv[1], "build") as storage:
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=[errno.ENOLCK, errno.ENOSYS])
def no_locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    def flock(*_: object) -> None:
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr("fcntl.flock", flock)
    return request.param


def holder_of(directory: Path) -> subprocess.Popen[str]:
    """A process that holds the lock of a directory without locks of the system."""
    return processes.start("-c", HOLDER, directory, stdin=PIPE, stdout=PIPE)


def test_everything_works_without_locks(no_locks: int, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "text").write_text("some text and more " * 99)
    out = tmp_path / "out"
    command = ["build", "--train", str(tmp_path / "text"), "--val-fraction", "0", "--out", str(out),
               "--vocab-size", "270"]
    for _ in range(2):
        assert run(command) == 0
    assert "up to date" in capsys.readouterr().out
    assert not [x for x in out.iterdir() if x.name.startswith(".")]
    check = next(x for x in run_doctor(out) if x.name == "output directory")
    assert check.fit
    assert check.text.endswith("its file system has no locks, so a lock file that is renewed is"
                               " used instead")
    written.write(out, np.append(np.arange(99), 299), [100], name="x")
    Sampler(out / "x.bin", 1, 16, windows="packed").batch(0)
    assert [x.name for x in out.glob("x*plan*")]
    with (
        pytest.raises(CacheError, match=r"cannot be locked .*to a directory on a local disk"),
        _lock(tmp_path / "cache" / "lock"),
    ):
        pass


def test_a_lock_of_a_living_process_and_of_a_dead_one(no_locks: int, tmp_path: Path) -> None:
    with holder_of(tmp_path) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        (tmp_path / "text").write_text("text")
        with pytest.raises(OutputError, match=f"process {pid} on .* is writing in this directory"):
            build(train=tmp_path / "text", out=tmp_path, vocab_size=270)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert [*tmp_path.glob(f"{LOCK}.*")]
        with LocalStorage(tmp_path, "build"):
            assert len([*tmp_path.glob(f"{LOCK}.*")]) == 1
        assert not [*tmp_path.glob(f"{LOCK}*")]


def test_a_machine_without_locks_and_one_that_has_them(tmp_path: Path) -> None:
    """One of them writes at a time, and what a killed one left is removed."""
    with holder_of(tmp_path) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        for _ in range(2):
            with pytest.raises(OutputError, match=f"process {pid} on .* is writing in this d"):
                LocalStorage(tmp_path, "build").__enter__()
            assert len([*tmp_path.glob(f"{LOCK}*")]) == 1
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with LocalStorage(tmp_path, "build"):
        assert [*tmp_path.glob(f"{LOCK}*")] == [tmp_path / LOCK]
        with holder_of(tmp_path) as process:
            assert process.wait() == 1
        assert [*tmp_path.glob(f"{LOCK}*")] == [tmp_path / LOCK]
    assert not [*tmp_path.glob(f"{LOCK}*")]


@pytest.mark.parametrize("step", ["pathlib.Path.mkdir", "os.open", "fcntl.flock"])
def test_a_run_begins_while_another_removes_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The other one made it and leaves nothing there, so it is made again, and locked."""
    out, is_of_both = tmp_path / "train" / "out", step == "fcntl.flock"
    module, _, name = step.rpartition(".")
    before = getattr(sys.modules.get(module, Path), name)
    others = [LocalStorage(out.with_name("beside") if "mkdir" in step else out, "build")]
    others[0].__enter__()

    def end_first(*given: Any, **named: Any) -> Any:
        while others:
            others.pop().__exit__()
        return before(*given, **named)

    monkeypatch.setattr(step, end_first)
    with LocalStorage(out, "other", not is_of_both):
        assert not others
        with pytest.raises(OutputError, match="this process is writing in this directory"):
            LocalStorage(out, "other", not is_of_both).__enter__()
    assert not out.exists()


def test_directories_that_a_run_did_not_make_stay(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to("mine")
    storage, out = LocalStorage(tmp_path / "link" / "train", "build"), tmp_path / "mine" / "train"
    with storage:
        assert out.is_dir()
    assert not out.exists()
    out.mkdir()
    with storage:
        pass
    assert out.is_dir()
    (tmp_path / "file").write_text("text")
    with pytest.raises(OutputError, match="a file is where a directory is expected, so move"):
        LocalStorage(tmp_path / "file", "build").__enter__()


def test_a_lock_is_kept_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_locks: int
) -> None:
    def symlink_to(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(locks, "EXPIRES_AFTER", 0.0)  # so each write renews it
    with LocalStorage(tmp_path, "build") as storage:
        with monkeypatch.context() as patched:
            patched.setattr(Path, "symlink_to", symlink_to)
            for _ in range(2):
                with pytest.raises(TokenmillError, match="No space left on device"):
                    storage.put("x", b"")
            assert len([*tmp_path.glob(f"{LOCK}.*")]) == 1
        storage.put("x", b"")


def test_a_lock_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_locks: int
) -> None:
    """It is taken over when it was not renewed for a minute; test_bucket_faults.py: while it is."""
    theirs = {"id": "x", "pid": 7, "host": "other", "space": "other", "began": "1", "number": 1}
    waited: list[float] = []
    (tmp_path / f"{LOCK}.5").symlink_to(json.dumps(theirs))
    monkeypatch.setattr(locks, "pause", waited.append)
    with LocalStorage(tmp_path, "build") as storage:
        assert sum(waited) == locks.EXPIRES_AFTER
        stream = storage.stream("x")
        # This process was suspended, and another one took over.
        (own,) = tmp_path.glob(f"{LOCK}.*")
        later = f"{LOCK}.{9 * 10**18}"
        own.with_name(later).symlink_to(json.dumps(theirs))
        own.unlink()
        monkeypatch.setattr(locks, "EXPIRES_AFTER", 0.0)
        for write in (lambda: stream.append(memoryview(b"x")), lambda: storage.put("y", b""),
                      lambda: storage.publish(["x"])):
            with pytest.raises(OutputError, match="another process took over"):
                write()
        stream.close()
    assert (tmp_path / later).is_symlink()
    # A machine with locks has the directory.
    (tmp_path / later).unlink()
    (tmp_path / LOCK).write_text(json.dumps({"pid": 7, "host": "other"}))
    with pytest.raises(OutputError, match="process 7 on other has locked this directory, and this"):
        LocalStorage(tmp_path, "build").__enter__()


def test_a_file_in_the_place_of_a_lock_expires(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{LOCK}.{time.time_ns()}").write_text("of another program")
    waited: list[float] = []
    monkeypatch.setattr(locks, "pause", waited.append)
    lock = ObjectLock(LockLinks(), str(tmp_path / LOCK), "here")
    lock.acquire()
    assert sum(waited) == locks.EXPIRES_AFTER
    lock.release()
    assert not [*tmp_path.iterdir()]


def test_never_two_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads stand for machines that wait for one another, and take over from dead ones."""
    states = {True: "dead", False: "alive"}  # "": it is being written
    monkeypatch.setattr(locks, "_state", lambda x: states.get(x.get("dead"), ""))
    monkeypatch.setattr(locks, "pause", lambda seconds: None)
    dead = threading.local()
    monkeypatch.setattr(locks, "_machine", lambda: {"dead": dead.value})
    key, errors, held = str(tmp_path / LOCK), list[BaseException](), list[bool]()

    def work() -> None:
        for turn in range(60):
            dead.value = turn % 3 == 0
            lock = ObjectLock(LockLinks(), key, "here")
            try:
                lock.acquire()
            except OutputError:
                continue
            held.append(dead.value)
            if dead.value:  # others may take over at once
                lock.release(is_cut_off=True)
                continue
            try:
                open(tmp_path / "held", "x").close()
                os.unlink(tmp_path / "held")
            except OSError as error:
                errors.append(error)
            lock.release()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(ChangedError, match="was replaced while it was being read"):
        LockLinks().read(key, 0, 0, "7")
    assert {*held} == {True, False}
    assert not errors
