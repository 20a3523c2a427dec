"""Objects at URLs in processes that were forked, such as workers of PyTorch's `DataLoader`.

The libraries that talk to servers have threads, which a forked process does not have: a request
would wait for ever. There another program, which such a process starts at its first request, makes
the requests. Each is a connection to its socket, which only the process that started it can use:
the socket is in a directory of its own, and a random key is compared.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, cast

from bpe.errors import ChangedError
from bpe.files.temporary import temporary_directory
from bpe.parallel import Lock, start_thread
from preprocess.storage import remote
from preprocess.storage.remote import ObjectStore, RemoteError

_PROGRAM = "from preprocess.storage.forked import answer; answer()"
_WAITING = 128  # connections that are not accepted yet

_start_lock = Lock()
_programs: dict[int, _Program] = {}  # by the process that started it


def open_anywhere(root: str) -> ObjectStore:
    """Open objects as `open_objects`, in a forked process, too; call it again in each process."""
    if not remote.loaded_in or os.getpid() in remote.loaded_in:
        return remote.open_objects(root)
    return cast("ObjectStore", _ForkedObjects(root))


class _ForkedObjects:
    """An `ObjectStore` whose requests another program makes."""

    is_conditional = False

    def __init__(self, root: str) -> None:
        self._root = root

    def __getattr__(self, method: str) -> Any:
        return partial(_ask, self._root, method)


def _ask(root: str, method: str, *arguments: Any) -> Any:
    """Return the result of a method of the objects below a root, or raise its error."""
    with _start_lock:
        program = _programs.get(os.getpid())
        if program is None or program.process.poll() is not None:
            program = _programs[os.getpid()] = _Program()
    try:
        with Client(program.address, "AF_UNIX", program.key) as connection:
            connection.send((root, method, arguments))
            found, error = connection.recv()
    except (OSError, EOFError):
        raise RemoteError(
            "the program that makes the requests of a forked process has ended, perhaps because"
            " memory was used up; run the command again, with fewer workers"
        ) from None
    if error is not None:
        raise error
    return memoryview(found) if isinstance(found, bytes) and method == "read" else found


class _Program:
    """The program that makes requests; it ends when its input is closed, as this process ends."""

    def __init__(self) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": paths},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.key = os.urandom(32)
        with suppress(BrokenPipeError):  # whoever connects says so
            self.process.stdin.write(self.key.hex().encode() + b"\n")
            self.process.stdin.flush()
        self.address = self.process.stdout.readline().decode().rstrip("\n")


def answer() -> None:
    """Answer requests until the standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when the process that asks has ended
    key = bytes.fromhex(sys.stdin.readline())
    with temporary_directory() as directory:
        listener = Listener(str(directory / "socket"), "AF_UNIX", _WAITING, key)
        start_thread(_accept, listener)
        print(directory / "socket", flush=True)
        sys.stdin.read()
    os._exit(0)  # nobody waits for the answers to requests that are still made


def _accept(listener: Listener) -> None:
    while True:
        with suppress(OSError, EOFError):  # the process that asked was interrupted
            start_thread(_answer_one, listener.accept())


def _answer_one(connection: Connection) -> None:
    with suppress(OSError, EOFError), connection:
        root, method, arguments = connection.recv()
        found, error = None, None
        try:
            found = getattr(remote.open_objects(root), method)(*arguments)
            if isinstance(found, memoryview):
                found = bytes(found)
            if method == "keys":
                found = list(found)
        except (RemoteError, ChangedError) as raised:
            error = raised
        except BaseException as raised:  # noqa: BLE001 (the process that asked waits for an answer)
            about = f"{type(raised).__name__}: {remote.reason_of(raised)}"
            error = RemoteError(f"the request of a forked process failed: {about}; run it again")
        connection.send((found, error))
