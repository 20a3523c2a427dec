"""A TCP proxy before a server, which does to each HTTP request what a plan says."""

from __future__ import annotations

import re
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_REQUEST = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) /")
_BUSY = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Proxy:
    """The proxy, in threads of its own.

    Args:
        server: (host, port) that it stands before.
        plan: Is given the number of each request, from 1, and says what happens to it: "" (it is
            forwarded), "busy" (503), "reset" (before it is forwarded), "half" (when half of its
            first part was), "lost" (when it was answered), "cut" (after 5,000 bytes of the
            answer, if it has as many), "slow" (forwarded byte by byte).

    Attributes:
        n_requests: Number of requests so far.
        did: What was done to requests that were not just forwarded.
    """

    def __init__(self, server: tuple[str, int], plan: Callable[[int], str]) -> None:
        self.n_requests, self.did = 0, list[str]()
        self._server, self._plan, self._lock = server, plan, threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """URL of the proxy."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """Accept no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._server) as server:
            what, sent = "", 0
            while True:
                ready, _, _ = select.select([client, server], [], [])
                if client in ready:
                    if not (data := client.recv(1 << 16)):
                        return
                    if _REQUEST.match(data):
                        with self._lock:
                            self.n_requests += 1
                            what, sent = self._plan(self.n_requests), 0
                            self.did += [what] if what not in ("", "cut") else []
                    if what == "busy":
                        client.sendall(_BUSY)
                        return
                    if what == "reset":
                        return _reset(client)
                    if what == "half":
                        server.sendall(data[: len(data) // 2])
                        _reset(server)
                        return _reset(client)
                    step = 1 if what == "slow" else len(data)
                    for start in range(0, len(data), step):
                        server.sendall(data[start : start + step])
                if server in ready:
                    data = server.recv(1 << 16)
                    if what == "lost":
                        return _reset(client)
                    if what == "cut" and (sent := sent + len(data)) > 5000:
                        client.sendall(data[:-1])
                        self.did.append(what)
                        return _reset(client)
                    if not data:
                        return
                    client.sendall(data)


def _reset(connection: socket.socket) -> None:
    """Close a connection so that the other side sees a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@contextmanager
def proxy(server: str, plan: Callable[[int], str]) -> Iterator[Proxy]:
    """Stand before a server, such as "http://127.0.0.1:9000", inside the `with`."""
    host, port = server.removeprefix("http://").split(":")
    made = Proxy((host, int(port)), plan)
    try:
        yield made
    finally:
        made.close()
