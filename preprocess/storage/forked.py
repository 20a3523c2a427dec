"""Objects at URLs in processes that were forked, such as workers of PyTorch's `DataLoader`.

The libraries that talk to servers have threads, which a forked process does not have: a request
would wait for ever. There another program, which such a process starts at its first request, makes
the requests. They come through pipes, one at a time through each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, cast

from bpe.errors import ChangedError
from bpe.parallel import Lock, start_thread
from preprocess.storage import remote
from preprocess.storage.remote import ObjectStore, RemoteError

_PROGRAM = "from preprocess.storage.forked import answer; answer()"
_AT_ONCE = 16  # requests

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
    connection = program.idle.get()
    try:
        connection.send((root, method, arguments))
        found, error = connection.recv()
    except BaseException as failure:
        # It may have been interrupted, also by an OSError, and who uses this pipe next would get
        # the answer.
        program.process.kill()
        program.process.wait()
        if isinstance(failure, OSError | EOFError):
            raise RemoteError(
                "the program that makes the requests of a forked process has ended, perhaps because"
                " memory was used up; run the command again, with fewer workers"
            ) from None
        raise
    finally:
        program.idle.put(connection)
    if error is not None:
        raise error
    return memoryview(found) if isinstance(found, bytes) and method == "read" else found


class _Program:
    """The program that makes requests; it ends when its pipes are closed, as this process ends.

    Attributes:
        idle: Connections to it without a request.
    """

    def __init__(self) -> None:
        from multiprocessing.connection import Pipe

        pipes = [Pipe() for _ in range(_AT_ONCE)]
        descriptors = [other.fileno() for _, other in pipes]
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, *map(str, descriptors)],
            stdin=subprocess.DEVNULL, pass_fds=descriptors, env=os.environ | {"PYTHONPATH": paths},
        )
        self.idle = SimpleQueue[Any]()
        for connection, other in pipes:
            other.close()
            self.idle.put(connection)


def answer() -> None:
    """Answer the requests that come through the pipes of the command line until one is closed."""
    from multiprocessing.connection import Connection

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when the process that asks has ended
    first, *others = [Connection(int(each)) for each in sys.argv[1:]]
    for connection in others:
        start_thread(_answer_all, connection)
    _answer_all(first)
    os._exit(0)  # nobody waits for the answers to requests that are still made


def _answer_all(connection: Any) -> None:
    with suppress(OSError, EOFError), connection:  # closed, too, if the memory is used up
        while True:
            connection.send(_answer(*connection.recv()))


def _answer(root: str, method: str, arguments: tuple[Any, ...]) -> tuple[Any, Exception | None]:
    try:
        found = getattr(remote.open_objects(root), method)(*arguments)
        if isinstance(found, memoryview):
            found = bytes(found)
        return (list(found) if method == "keys" else found), None
    except (RemoteError, ChangedError) as error:
        return None, error
    except BaseException as error:  # noqa: BLE001 (the process that asked waits for an answer)
        about = f"{type(error).__name__}: {remote.reason_of(error)}"
        return None, RemoteError(f"the request of a forked process failed: {about}; run it again")
