"""A server in this process that answers as Google's object storage does, as far as it is used.

`gcp-storage-emulator` of PyPI does not do: it answers a write without an entity tag, which obstore
needs, and knows no conditions on generations, which the lock of a bucket is made of.
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from web_server import serve


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    objects: dict[str, tuple[bytes, int]]  # bucket/key -> (content, generation)
    generations: Iterator[int]  # no number is used again
    lock: threading.Lock

    def log_message(self, *_: Any) -> None: ...

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def about(self, content: bytes, generation: int) -> dict[str, str]:
        return {
            "ETag": f'"{hashlib.md5(content + b"%d" % generation).hexdigest()}"',
            "Last_Modified": formatdate(generation, usegmt=True),
            "x_goog_generation": str(generation), "x_goog_metageneration": "1",
        }

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        name = unquote(parts.path)[1:]
        if "list-type" in parts.query:
            prefix = parse_qs(parts.query).get("prefix", [""])[0]
            with self.lock:
                found = [(x[len(name) + 1 :], *y) for x, y in sorted(self.objects.items())
                         if x.startswith(f"{name}/{prefix}")]
            contents = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
                f"<LastModified>2026-01-01T00:00:00Z</LastModified>"
                f"<ETag>{escape(self.about(content, generation)['ETag'])}</ETag></Contents>"
                for key, content, generation in found
            )
            return self.answer(200, f"<ListBucketResult>{contents}</ListBucketResult>".encode())
        with self.lock:
            content, generation = self.objects.get(name, (b"", 0))
        about = self.about(content, generation)
        if not generation:
            return self.answer(404)
        if self.headers.get("If-Match", about["ETag"]) != about["ETag"]:
            return self.answer(412)
        if of := self.headers.get("Range"):
            start, stop = of.removeprefix("bytes=").split("-")
            part = content[int(start) : int(stop) + 1]
            of = f"bytes {start}-{int(start) + len(part) - 1}/{len(content)}"
            return self.answer(206, part, Content_Range=of, **about)
        if self.command == "HEAD":
            about["Content_Length"] = str(len(content))
        return self.answer(200, content, **about)

    def do_PUT(self) -> None:
        name = unquote(urlsplit(self.path).path)[1:]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.lock:
            if source := self.headers.get("x-goog-copy-source"):
                body = self.objects[unquote(source)][0]
            wanted = self.headers.get("x-goog-if-generation-match")
            _, generation = self.objects.get(name, (b"", 0))
            if wanted is not None and int(wanted) != generation:
                return self.answer(412)
            generation = next(self.generations)
            self.objects[name] = body, generation
        return self.answer(200, **self.about(body, generation))

    def do_DELETE(self) -> None:
        with self.lock:
            found = self.objects.pop(unquote(urlsplit(self.path).path)[1:], None)
        self.answer(404 if found is None else 204)


@contextmanager
def gcs() -> Iterator[tuple[str, dict[str, tuple[bytes, int]]]]:
    """Start a server, and yield its host and port, and the objects."""
    objects: dict[str, tuple[bytes, int]] = {}
    generations, lock = itertools.count(2), threading.Lock()
    with serve(_Handler, objects=objects, generations=generations, lock=lock) as place:
        yield place, objects
