"""A TCP proxy that resets every connection after some bytes of answers."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Passes on what clients and a server say.

    Attributes:
        port: Where clients connect to.
        n_resets: Number of connections that were reset so far.
    """

    def __init__(self, host: str, port: int, bytes_until_reset: int) -> None:
        self._target, self._bytes = (host, port), bytes_until_reset
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.n_resets = 0

    def serve(self) -> None:
        """Accept clients until `close`."""
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                for each in ((client, server, None), (server, client, self._bytes)):
                    threading.Thread(target=self._pass_on, args=each, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _pass_on(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        left = limit
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data if left is None else data[:left])
                if left is not None and (left := left - len(data)) <= 0:
                    self.n_resets += 1
                    # Without waiting, closing sends a reset.
                    target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RD)
            each.close()


@contextmanager
def flaky_proxy(host: str, port: int, bytes_until_reset: int) -> Iterator[Proxy]:
    """Run a proxy in front of a server inside the `with`."""
    proxy = Proxy(host, port, bytes_until_reset)
    thread = threading.Thread(target=proxy.serve)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
