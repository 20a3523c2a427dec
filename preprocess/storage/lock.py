"""Locks of a place where files are written: who holds one is the only writer there.

In a directory it is a lock of the system on a file that names its owner, given back when the
process ends. In a bucket, and where the file system has no locks, it is an `ObjectLock`: an object
that its owner replaces while he lives. It is put only if there is none, and replaced only if its
version is the one that was put last, so two owners are impossible. If it is not replaced for
`EXPIRES_AFTER` seconds, its owner is gone, and whoever waited that long may replace it. No clocks
of different machines are compared. A process of the same machine is recognised as dead at once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import threading
import time
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from bpe.errors import ChangedError
from bpe.parallel import Lock, start_thread
from bpe.runtime.user_cache import warn_once
from preprocess.storage.errors import LockedError, OutputError
from preprocess.storage.remote import ANY, ObjectInfo, ObjectStore

EXPIRES_AFTER = 60.0  # seconds without a replacement
RENEWED_EVERY = 15.0  # seconds
_LOOKED_AT_EVERY = 5.0  # seconds, by others
_PAUSE = 0.05  # seconds; lists of network file systems are late

logger = logging.getLogger("preprocess")
pause = time.sleep  # tests replace it

_held = set[str]()  # ids of the locks of this process


class SystemLock:
    """A lock of the system on a file: given back when the process ends, and never lost before."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor, self._process = path, descriptor, os.getpid()

    def release(self) -> None:
        """Remove the file and give the lock back, which a forked process cannot."""
        try:
            if self._process == os.getpid():
                self._path.unlink(missing_ok=True)
        finally:
            os.close(self._descriptor)


def acquire_lock(path: Path) -> SystemLock | ObjectLock:
    """Lock a directory; with links that are renewed, if its file system has no locks."""
    while True:
        # Do not follow a link, for its target would be overwritten.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with ExitStack() as stack:
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _locked(str(path.parent), _holder(descriptor)) from None
            except OSError as error:
                return _acquire_without(path, descriptor, error)
            # Retry if the previous holder removed the file after it was opened here.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    os.ftruncate(descriptor, 0)
                    me = {"pid": os.getpid(), "host": os.uname().nodename}
                    os.pwrite(descriptor, json.dumps(me).encode(), 0)
                    stack.callback(path.unlink, missing_ok=True)
                    # After this file has content, which who makes the others looks for.
                    if any(x.startswith(f"{path.name}.") for x in os.listdir(path.parent)):
                        lock = _lock_without(path)
                        lock.acquire()
                        lock.release()
                    stack.pop_all()
                    return SystemLock(path, descriptor)


def _acquire_without(path: Path, descriptor: int, error: OSError) -> ObjectLock:
    """Lock a directory whose file system has no locks, as the error says."""
    lock = _lock_without(path)
    lock.acquire()
    with ExitStack() as stack:
        stack.callback(lock.release)
        with suppress(FileNotFoundError):
            if os.stat(path).st_size:
                raise OutputError(
                    f"{path}: {_describe(_holder(descriptor))} has locked this directory, and this"
                    f" machine has no locks there ({error.strerror}); wait until it is finished, or"
                    " remove this file if it was killed"
                )
            path.unlink()
        stack.pop_all()
    warn_once(
        "%s: this file system has no locks (%s), so links beside the outputs that are renewed every"
        " 15 s lock the directory", path.parent, error.strerror,
    )
    return lock


def _lock_without(path: Path) -> ObjectLock:
    """Return the lock of a machine without locks of the system; `path` is that of such a lock."""
    return ObjectLock(LockLinks(), str(path.absolute()), str(path.parent))


def _holder(descriptor: int) -> dict[str, Any]:
    return _parse(os.pread(descriptor, 1000, 0))


class ObjectLock:
    """A lock; `where` names its place in messages."""

    def __init__(self, objects: ObjectStore | LockLinks, key: str, where: str) -> None:
        self._objects, self._key, self._where = objects, key, where
        self._id, self._number = uuid.uuid4().hex, 0
        self._version = ""  # of the object as put last
        self._renewed = 0.0  # monotonic seconds
        self._is_held = self._is_lost = False
        self._guard = Lock()
        self._ended = threading.Event()

    def acquire(self) -> None:
        """Take the lock, and renew it from now on.

        Raises:
            LockedError: Another process holds it.
            OSError: It cannot be written; of a server `RemoteError`.
        """
        seen, waited = None, 0.0
        while not self._put(""):
            if (found := self._find()) is None:
                continue  # it was just released
            holder = _parse(found[1])
            seen = seen or found
            state = _state(holder)
            if found != seen or state == "alive":
                raise _locked(self._where, holder)
            if state == "dead" or waited >= EXPIRES_AFTER:
                if self._put(found[0]):
                    break
                continue
            if not waited:
                logger.warning(
                    "%s: %s may still be writing there; looking for %.0f s whether it is",
                    self._where, _describe(holder), EXPIRES_AFTER,
                )
            pause(_LOOKED_AT_EVERY)
            waited += _LOOKED_AT_EVERY
        self._is_held = True
        _held.add(self._id)
        start_thread(self._keep)

    def check(self) -> None:
        """Raise if the lock is lost; called before anything is written.

        Raises:
            OutputError: Another process took it, for it could not be renewed in time.
            OSError: It is time to renew it, and that fails; of a server `RemoteError`.
        """
        if self._is_held and time.monotonic() - self._renewed > EXPIRES_AFTER / 2:
            self._renew()
        if self._is_lost:
            raise OutputError(
                f"{self._where}: another process took over, for this one was cut off from the"
                " server or suspended; nothing is written any more: let the other one finish, or"
                " stop it and run the same command again"
            )

    def release(self, is_cut_off: bool = False) -> None:
        """Give the lock back; `is_cut_off`: the server does not answer, so let it expire."""
        self._ended.set()
        _held.discard(self._id)
        with self._guard:
            is_held, self._is_held = self._is_held, False
            if is_held and not self._is_lost and not is_cut_off and self._is_own(self._find()):
                self._objects.remove(self._key)

    def _keep(self) -> None:
        while not self._ended.wait(RENEWED_EVERY):
            with suppress(OSError):  # `check` tries it again, and raises
                self._renew()

    def _renew(self) -> None:
        with self._guard:
            if self._is_held and not self._is_lost:
                self._is_lost = not self._put(self._version)

    def _put(self, version: str) -> bool:
        """Put the object if it has this version ("": if there is none); True if it was put."""
        self._number += 1
        began = time.monotonic()
        me = {"id": self._id, "number": self._number, "pid": os.getpid(), **_machine()}
        content = json.dumps({**me, "began": _began(os.getpid())}).encode()
        put = self._objects.put(self._key, content, version)
        if put is None:
            # A request whose answer was lost was repeated, and found our own object.
            found = self._find()
            if found is None or not self._is_own(found):
                return False
            if found[1] != content:  # of an earlier request
                return self._put(found[0])
            put = found[0]
        self._version, self._renewed = put, began
        return True

    def _find(self) -> tuple[str, bytes] | None:
        """Return (version, content) of the object, None if there is none."""
        while (info := self._objects.info(self._key)) is not None:
            with suppress(ChangedError):  # replaced since
                content = self._objects.read(self._key, 0, info.n_bytes, info.version)
                return info.version, bytes(content)
        return None

    def _is_own(self, found: tuple[str, bytes] | None) -> bool:
        return found is not None and _parse(found[1]).get("id") == self._id


def _parse(content: bytes) -> dict[str, Any]:
    """Return the facts about the owner in a lock, {} if it is not one of ours."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _describe(holder: dict[str, Any]) -> str:
    pid, host = holder.get("pid"), holder.get("host")
    is_named = isinstance(pid, int) and isinstance(host, str)
    return f"process {pid} on {host}" if is_named else "another process"


def _locked(where: str, holder: dict[str, Any]) -> LockedError:
    if (holder.get("pid"), holder.get("host")) == (os.getpid(), os.uname().nodename):
        return LockedError(
            f"{where}: this process is writing in this directory; wait until it is finished, close"
            " its DatasetWriter, or choose another directory"
        )
    return LockedError(
        f"{where}: {_describe(holder)} is writing in this directory; wait until it is finished,"
        " stop it, or choose another directory"
    )


def _machine() -> dict[str, str]:
    """Return the name of this machine, and in what its process ids are unique, "" if unknown."""
    space = ""
    with suppress(OSError):  # not Linux
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return {"host": os.uname().nodename, "space": space}


def _began(pid: int) -> str:
    """Return when a process began, in ticks; "" if it has ended or is not known."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def _state(holder: dict[str, Any]) -> str:
    """Return "alive" or "dead" for a process of this machine, else ""."""
    pid, space, began = holder.get("pid"), holder.get("space"), holder.get("began")
    if not isinstance(pid, int) or not began or space != _machine()["space"]:
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "dead"
    except OSError:  # of another user, and perhaps hidden
        return ""
    is_ours = pid == os.getpid()
    is_alive = _began(pid) == began and (not is_ours or holder.get("id") in _held)
    return "alive" if is_alive else "dead"


class LockLinks:
    """Links in place of the objects of an `ObjectLock`; keys are paths, methods as `ObjectStore`.

    Version N of a lock is the symbolic link LOCK.N, and its target is the content: one process
    alone makes it, complete or not at all. It holds only if it is the last, and if version N - 1
    was there until then, or none for the first, whose number is the time: numbers are not used
    again.
    """

    def info(self, key: str) -> ObjectInfo | None:
        """Return the last version; it has no size, for `read` reads all of it."""
        versions = self._versions(key)
        return ObjectInfo(0, 0, str(versions[-1])) if versions else None

    def read(self, key: str, start: int, stop: int, version: str = "") -> memoryview:
        """Read a version, b"" if it is no link; raise ChangedError if it is gone."""
        try:
            return memoryview(os.readlink(f"{key}.{version}").encode())
        except FileNotFoundError:
            pause(_PAUSE)
            raise ChangedError(f"{key}.{version}: was replaced while it was being read") from None
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return memoryview(b"")

    def put(self, key: str, data: bytes | memoryview, version: str | None = ANY) -> str | None:
        """Replace a version ("": none), and return the new one; None if it is another."""
        before = int(version or 0)
        number = before + 1 if before else time.time_ns()
        path = Path(f"{key}.{number}")
        if not before and self._versions(key):
            return None
        try:
            path.symlink_to(bytes(data).decode())
        except FileExistsError:
            return None
        if self._versions(key)[-2:] != ([before, number] if before else [number]):
            path.unlink(missing_ok=True)
            return None
        if before:
            Path(f"{key}.{before}").unlink(missing_ok=True)
        return str(number)

    def remove(self, key: str) -> None:
        """Remove all versions, the last one last."""
        for version in self._versions(key):
            Path(f"{key}.{version}").unlink(missing_ok=True)

    def _versions(self, key: str) -> list[int]:
        directory, name = os.path.split(key)
        pattern, before, found = rf"{re.escape(name)}\.(\d+)", [-1], [-2]
        while found != before:  # a list may lack both a link and the one that replaces it meanwhile
            matches = (re.fullmatch(pattern, each) for each in os.listdir(directory))
            before, found = found, sorted(int(match[1]) for match in matches if match)
        return found
