"""A web server in this process: files by path and query."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest


class Page(NamedTuple):
    """What a server answers."""

    content: bytes
    tag: str = '"1"'  # "": none
    has_ranges: bool = True
    knows_head: bool = True
    status: int = 200  # another: an error
    breaks_off: bool = False  # answers end after half of a range


class _Handler(BaseHTTPRequestHandler):
    pages: dict[str, Page]

    def log_message(self, *_: Any) -> None: ...

    def do_HEAD(self) -> None:
        page = self.pages.get(self.path)
        if page is not None and not page.knows_head:
            self.send_error(403)
            return
        self._answer(page, False)

    def do_GET(self) -> None:
        self._answer(self.pages.get(self.path), True)

    def _answer(self, page: Page | None, has_body: bool) -> None:
        if page is None or page.status != 200:
            self.send_error(404 if page is None else page.status)
            return
        content, wanted = page.content, self.headers.get("Range", "")
        if (condition := self.headers.get("If-Match")) and condition != page.tag:
            self.send_error(412)
            return
        if wanted and page.has_ranges:
            start, last = (int(x) for x in wanted.removeprefix("bytes=").split("-"))
            content = content[start : last + 1]
            self.send_response(206)
            whole = f"bytes {start}-{start + len(content) - 1}/{len(page.content)}"
            self.send_header("Content-Range", whole)
        else:
            self.send_response(200)
        if page.tag:
            self.send_header("ETag", page.tag)
        self.send_header("Last-Modified", "Thu, 26 Nov 2026 14:00:00 GMT")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if has_body:
            is_half = wanted and page.breaks_off
            self.wfile.write(content[: max(1, len(content) // 2)] if is_half else content)


@contextmanager
def web_server(pages: dict[str, Page]) -> Iterator[str]:
    """Serve pages by path and query, which may be changed, and yield the URL of the server."""
    pytest.importorskip("obstore", reason="URLs are read with obstore: tokenmill[remote]")
    with serve(_Handler, pages=pages) as place:
        yield f"http://{place}"


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler], **of_all: Any) -> Iterator[str]:
    """Serve with handlers that share some attributes, and yield the host and port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), of_all))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
