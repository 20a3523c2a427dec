"""Lock of a place in a bucket: an object that names its owner, who replaces it while he lives.

It is put only if there is none, and replaced only if its version is the one that was put last, so
two owners are impossible. If it is not replaced for `EXPIRES_AFTER` seconds, its owner is gone, and
whoever waited that long may replace it; one that names no owner is waited for a moment. No clocks
of different machines are compared. A process of the same machine is recognised as dead at once.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from bpe.errors import ChangedError
from bpe.parallel import Lock, start_thread
from preprocess.storage.errors import LockedError, OutputError
from preprocess.storage.remote import RemoteError, Versions

EXPIRES_AFTER = 60.0  # seconds without a replacement
RENEWED_EVERY = 15.0  # seconds
_LOOKED_AT_EVERY = 5.0  # seconds, by others

logger = logging.getLogger("preprocess")
pause = time.sleep  # tests replace it

_held = set[str]()  # ids of the locks of this process


class ObjectLock:
    """A lock; `where` names its place in messages."""

    def __init__(self, objects: Versions, key: str, where: str) -> None:
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
            RemoteError: The server does not answer, or refuses the request.
        """
        seen, waited = None, 0.0
        while not self._put(""):
            if (found := self._find()) is None:
                continue  # it was just released
            holder = _parse(found[1])
            seen = seen or found
            state = _state(holder)
            if found != seen or state == "alive":
                raise LockedError(
                    f"{self._where}: {_describe(holder)} is writing there; wait until it is"
                    " finished, stop it, or choose another place"
                )
            # A holder is named at once, but for the moment in which a lock file is written.
            expires_after = EXPIRES_AFTER if holder else _LOOKED_AT_EVERY
            if state == "dead" or waited >= expires_after:
                if self._put(found[0]):
                    break
                continue
            if not waited:
                logger.warning(
                    "%s: %s may still be writing there; looking for %.0f s whether it is",
                    self._where, _describe(holder), expires_after,
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
            RemoteError: It is time to renew it, and the server does not answer.
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
            if not is_held or self._is_lost or is_cut_off:
                return
            found = self._find()
            if found is not None and _parse(found[1]).get("id") == self._id:
                self._objects.remove(self._key)

    def _keep(self) -> None:
        while not self._ended.wait(RENEWED_EVERY):
            # `check` tries it again, and raises.
            with suppress(RemoteError):
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
            if found is None or _parse(found[1]).get("id") != self._id:
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


def _parse(content: bytes) -> dict[str, Any]:
    """Return the facts about the owner in a lock, {} if it is not one of ours."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _describe(holder: dict[str, Any]) -> str:
    pid, host = holder.get("pid"), holder.get("host")
    if isinstance(pid, int) and isinstance(host, str):
        return f"process {pid} on {host}"
    return "another process"


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
