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
from contextlib import suppress
from typing import IO, Any

import msgspec

from bpe.errors import ChangedError
from bpe.files.locations import shown_url
from bpe.parallel import Lock, start_thread
from preprocess.storage import remote
from preprocess.storage.remote import ObjectInfo, ObjectStore, RemoteError

_PROGRAM = "from preprocess.storage.forked import answer; answer()"
_THREADS = 16
_ERRORS = {error.__name__: error for error in (ChangedError, RemoteError)}

_start_lock = Lock()
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


class _Answer:
    """What came back for a request; `turn` is free when it is there, or when it is to be read."""

    def __init__(self) -> None:
        self.found: tuple[Any, memoryview] | RemoteError | ChangedError | None = None
        self.turn = threading.Lock()
        self.turn.acquire()


class _Helper:
    """The program that makes requests; it ends when its input is closed, as this process ends.

    One of those who wait for an answer reads answers, and hands them out, until its own comes.
    """

    def __init__(self) -> None:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": paths},
        )
        self._lock = threading.Lock()
        self._waiting: dict[int, _Answer] = {}
        self._n_asked = 0
        self.has_ended = False

    def ask(self, request: dict[str, Any]) -> tuple[Any, memoryview]:
        """Return the answer to a request: a value and bytes."""
        answer = _Answer()
        with self._lock:
            self._n_asked += 1
            assert self._process.stdin is not None
            try:
                if not self.has_ended:
                    _send(self._process.stdin, request | {"number": self._n_asked})
            except OSError:
                self.has_ended = True
            if self.has_ended:
                raise _ended()
            if not self._waiting:
                answer.turn.release()
            self._waiting[self._n_asked] = answer
        try:
            answer.turn.acquire()
            while answer.found is None:
                self._receive(answer)
        except BaseException:  # what is left of an answer means nothing to others
            self._end(answer)
            raise
        if not isinstance(answer.found, tuple):
            raise answer.found
        return answer.found

    def _receive(self, own: _Answer) -> None:
        """Read an answer and hand it out; after `own`, let another one read."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        head: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {"n_bytes": 1}
        content = memoryview(self._process.stdout.read(head["n_bytes"]))
        if len(content) < head["n_bytes"]:
            self._end(own)
            return
        with self._lock:
            answer = self._waiting.pop(head["number"], None)
            if answer is None:
                return  # somebody who was interrupted has ended it
            value, error = head["value"], head["error"]
            answer.found = _ERRORS[error](value) if error else (value, content)
            if answer is own:
                answer = next(iter(self._waiting.values()), own)
            if answer is not own:
                answer.turn.release()

    def _end(self, own: _Answer) -> None:
        """Let all who wait know that the program has ended."""
        with self._lock:
            self.has_ended = True
            for each in self._waiting.values():
                each.found = _ended()
                if each is not own and each.turn.locked():
                    each.turn.release()
            self._waiting.clear()
        self._process.kill()
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
    reading, writing = threading.Lock(), threading.Lock()

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
        with writing:
            _send(sys.stdout.buffer, head, content)

    def work() -> None:
        with suppress(BrokenPipeError):  # the process that asked has ended
            while True:
                with reading:
                    line = sys.stdin.buffer.readline()
                if not line:
                    return
                make(json.loads(line))

    for _ in range(_THREADS - 1):
        start_thread(work)
    work()
    os._exit(0)  # nobody waits for the answers to requests that others still make
