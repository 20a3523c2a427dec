"""A hub like Hugging Face's with one dataset: prints what `find_sources` finds at given URLs.

Run as a program, because huggingface_hub reads the address of the hub when it is imported.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from web_server import Page, web_server

COMMIT = "a" * 40
FILES = {"data/a.txt": b"text of a", "data/b.jsonl": b'{"text": "of b"}\n', "c.md": b"text of c"}


class Pages(dict[str, Page]):
    """What reading asks for; files are there at their commit only, not at `main`."""

    def get(self, path: str, default: Any = None) -> Page | None:
        path = path.partition("?")[0]
        if path == "/api/datasets/me/it" or "/revision/" in path:
            return _as_page({"id": "me/it", "sha": COMMIT, "siblings": [], "tags": []})
        if f"/tree/{COMMIT}" in path:
            below = path.partition(COMMIT)[2].strip("/")
            found = [x for x in FILES if x.startswith(f"{below}/" if below else "")]
            sizes = [{"type": "file", "path": x, "size": len(FILES[x]), "oid": "b"} for x in found]
            return _as_page(sizes)
        if f"/resolve/{COMMIT}/" in path:
            return Page(FILES[path.partition(f"{COMMIT}/")[2]])
        return None


def _as_page(content: Any) -> Page:
    return Page(json.dumps(content).encode())


def main() -> None:
    """Print a list of [name, stamp, location, text] for each URL, or the error."""
    with web_server(Pages()) as url:
        os.environ |= {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0"}
        print_sources()


def print_sources() -> None:
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
