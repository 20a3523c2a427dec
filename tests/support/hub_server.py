"""A hub like Hugging Face's with one dataset: prints what `find_sources` finds at given URLs.

Run as a program, because huggingface_hub reads the address of the hub when it is imported.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "a" * 40
FILES = {"data/a.txt": b"text of a", "data/b.jsonl": b'{"text": "of b"}\n', "c.md": b"text of c"}


class Hub(BaseHTTPRequestHandler):
    """What reading asks for; files are there at their commit only, not at `main`."""

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/api/datasets/me/it" or "/revision/" in path:
            self._say(json.dumps({"id": "me/it", "sha": COMMIT, "siblings": [], "tags": []}))
        elif f"/tree/{COMMIT}" in path:
            below = path.partition(COMMIT)[2].strip("/")
            found = [x for x in FILES if x.startswith(f"{below}/" if below else "")]
            tree = [{"type": "file", "path": x, "size": len(FILES[x]), "oid": "b"} for x in found]
            self._say(json.dumps(tree))
        elif f"/resolve/{COMMIT}/" in path:
            start, last = (int(x) for x in self.headers["Range"].removeprefix("bytes=").split("-"))
            self._say(FILES[path.partition(f"{COMMIT}/")[2]][start : last + 1], 206)
        else:
            self.send_error(404)

    def _say(self, content: str | bytes, status: int = 200) -> None:
        data = content if isinstance(content, bytes) else content.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    """Print a list of [name, stamp, location, text] for each URL, or the error."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0"}
    from bpe.errors import CorpusError
    from preprocess.documents.batch import ReadOptions
    from preprocess.sources import find_sources

    for url in sys.argv[1:]:
        try:
            found: Any = [
                [x.name, x.stamp, x.location, bytes(next(iter(x.units())).read().buffer).decode()]
                for x in find_sources([url], ReadOptions())
            ]
        except CorpusError as error:
            found = str(error)
        print(json.dumps(found))


if __name__ == "__main__":
    main()
