"""Objects at URLs in processes that were forked, such as workers of PyTorch's `DataLoader`.

The libraries that talk to servers have threads, which a forked process does not have: a request
would wait for ever. There another program, which such a process starts at its first request, makes
the requests. Requests go to its standard input, one JSON object a line; answers come back in the
order in which they are ready, a JSON object a line, followed by as many bytes as it says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

import msgspec

from bpe.errors import ChangedError
from bpe.files.locations import shown_url
from preprocess.storage import remote
from preprocess.storage.remote import ObjectInfo, ObjectStore, RemoteError

_PROGRAM = "from preprocess.storage.forked import answer; answer()"
_THREADS = 16
_ERRORS = {error.__name__: error for error in (ChangedError, RemoteError)}

_start_lock = threading.Lock()
_helpers: dict[int, _Helper] = {}  # by the process that started it


def open_anywhere(root: str) -> ObjectStore:
    """Open objects as `open_objects`, in a forked process, too; there they can only be read.

    Call it again in each process.
    """
    if not remote.loaded_in or os.getpid() in remote.loaded_in:
        return remote.open_objects(root)
    return _ForkedObjects(root)


class _ForkedObjects:
    """An `ObjectStore` whose requests another program makes."""

    is_conditional = False

    def __init__(self, root: str) -> None:
        self._root = root

    def _ask(self, method: str, *arguments: Any) -> tuple[Any, memoryview]:
        with _start_lock:
            helper = _helpers.get(os.getpid())
            if helper is None or helper.has_ended:
                helper = _helpers[os.getpid()] = _Helper()
        return helper.ask({"root": self._root, "method": method, "arguments": arguments})

    def pinned(self, key: str) -> str:
        return key

    def info(self, key: str) -> ObjectInfo | None:
        found, _ = self._ask("info", key)
        return None if found is None else msgspec.convert(found, ObjectInfo)

    def read(self, key: str, start: int, stop: int, version: str = "") -> memoryview:
        return self._ask("read", key, start, stop, version)[1]

    def get(self, key: str) -> bytes | None:
        is_there, content = self._ask("get", key)
        return bytes(content) if is_there else None

    def put(self, key: str, data: bytes | memoryview, version: str | None = None) -> str | None:
        raise self._read_only(key)

    def copy(self, source: str, target: str) -> None:
        raise self._read_only(target)

    def remove(self, key: str) -> None:
        raise self._read_only(key)

    def keys(self, prefix: str) -> Iterator[tuple[str, ObjectInfo]]:
        raise self._read_only(prefix)

    def _read_only(self, key: str) -> RemoteError:
        return RemoteError(
            f"{shown_url(f'{self._root}/{key}')}: cannot be listed or written by a process that was"
            " forked after its parent used a server; do it in the parent, or spawn the process"
        )


class _Helper:
    """The program that makes requests; it ends when its input is closed, as this process ends."""

    def __init__(self) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": paths},
        )
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[tuple[Any, memoryview]]] = {}
        self._n_asked = 0
        self.has_ended = False
        threading.Thread(target=self._receive, daemon=True).start()

    def ask(self, request: dict[str, Any]) -> tuple[Any, memoryview]:
        """Return the answer to a request: a value and bytes."""
        answer: Future[tuple[Any, memoryview]] = Future()
        with self._lock:
            self._n_asked += 1
            if not self.has_ended:
                self._waiting[self._n_asked] = answer
                assert self._process.stdin is not None
                try:
                    _send(self._process.stdin, request | {"number": self._n_asked})
                except OSError:
                    self.has_ended = True
            if self.has_ended:
                raise _ended()
        return answer.result()

    def _receive(self) -> None:
        """Hand answers to those who wait for them."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            head = json.loads(line)
            content = memoryview(self._process.stdout.read(head["n_bytes"]))
            with self._lock:
                waiting = self._waiting.pop(head["number"])
            if head["error"]:
                waiting.set_exception(_ERRORS[head["error"]](head["value"]))
            elif len(content) == head["n_bytes"]:
                waiting.set_result((head["value"], content))
            else:
                waiting.set_exception(_ended())
        with self._lock:
            self.has_ended = True
            for waiting in self._waiting.values():
                waiting.set_exception(_ended())
        self._process.wait()


def _ended() -> RemoteError:
    return RemoteError(
        "the program that makes the requests of a forked process has ended, perhaps because memory"
        " was used up; run the command again, with fewer workers"
    )


def _send(stream: IO[bytes], head: dict[str, Any], content: bytes | memoryview = b"") -> None:
    stream.write(json.dumps(head | {"n_bytes": len(content)}).encode() + b"\n")
    stream.write(content)
    stream.flush()


def answer() -> None:
    """Make the requests on standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when the process that asks has ended
    lock = threading.Lock()

    def make(request: dict[str, Any]) -> None:
        head, content = {"number": request["number"], "error": "", "value": None}, memoryview(b"")
        try:
            objects = remote.open_objects(request["root"])
            found = getattr(objects, request["method"])(*request["arguments"])
        except tuple(_ERRORS.values()) as error:
            kind = next(name for name, each in _ERRORS.items() if isinstance(error, each))
            head |= {"error": kind, "value": str(error)}
        except BaseException as error:  # noqa: BLE001 (the process that asked waits for an answer)
            about = f"{type(error).__name__}: {remote.reason_of(error)}"
            text = f"the request of a forked process failed: {about}; run the command again"
            head |= {"error": RemoteError.__name__, "value": text}
        else:
            if isinstance(found, ObjectInfo):
                head["value"] = msgspec.to_builtins(found)
            elif found is not None:
                head["value"], content = True, memoryview(found)
        with lock:
            _send(sys.stdout.buffer, head, content)

    with ThreadPoolExecutor(_THREADS) as pool:
        for line in sys.stdin.buffer:
            pool.submit(make, json.loads(line))
