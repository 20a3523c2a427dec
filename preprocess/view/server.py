"""The server of `tokenmill view`, on this machine alone.

Pages are below a path that cannot be guessed; requests need it and a Host of this machine, so that
other users of the machine and pages of other sites have no access. Only GET and POST of the answers
exist, and nothing is written.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import os
import re
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from typing import Any

from bpe.errors import TokenmillError
from preprocess.check import report_page
from preprocess.options import ViewSettings
from preprocess.settings import takes
from preprocess.view import documents, numbers, steps, vocabulary
from preprocess.view.library import Answer, Library, ViewError, contents, is_dataset

HOST = "127.0.0.1"
_MOST_TEXT = 1 << 20  # bytes of a request


# --- answers to requests ---

# Values of a request are arguments by the names of parameters; those of others are left out.
ANSWERS: dict[str, Callable[..., Answer]] = {
    "contents": contents,
    "document": documents.document,
    "document_with": documents.document_with,
    "lengths": documents.of_length,
    "search": documents.search,
    "statistics": numbers.statistics,
    "numbers": numbers.numbers,
    "step": steps.step,
    "step_with": steps.step_with,
    "encode": vocabulary.encode,
    "compare": vocabulary.compare,
    "merges": vocabulary.merges,
    "vocabulary": vocabulary.vocabulary,
}


def answer(library: Library, name: str, given: Mapping[str, str]) -> Answer:
    """Return the answer to a request; raise ViewError if a value of it cannot be read."""
    arguments = dict[str, Any]()
    kinds: dict[str, Callable[[str], Any]] = {
        "Library": lambda _: library, "str": str, "bool": "1".__eq__,
        "ViewedDataset": library.dataset, "ViewedTokenizer": library.tokenizer,
        "ViewedDataset | None": lambda name: library.dataset(name) if name else None,
    }  # fmt: skip
    for x in inspect.signature(ANSWERS[name]).parameters.values():
        text = given.get(x.name, "")
        if x.name not in given and x.default is not x.empty:
            continue
        if x.annotation != "int":
            arguments[x.name] = kinds[x.annotation](text)
        elif re.fullmatch(r"\d{1,18}", text, re.ASCII):
            arguments[x.name] = int(text)
        else:
            raise ViewError(f"{x.name}: should be a whole number of at least 0; got {text!r:.100}")
    return ANSWERS[name](**arguments)


# --- the server ---


def page() -> str:
    """Return the HTML of the page."""
    html = files("preprocess.view").joinpath("page.html").read_text("utf-8")
    return html.replace("/* style of numbers */", report_page.style())


def headers_of(html: str) -> dict[str, str]:
    """Return the headers of every response: the page runs its own script and style alone."""
    allowed = {}
    for tag in ("script", "style"):
        parts = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(x.encode()).digest()).decode() for x in parts]
        allowed[tag] = " ".join(f"'sha256-{digest}'" for digest in digests)
    return {
        "content-security-policy": f"default-src 'none'; script-src {allowed['script']}; style-src"
        f" {allowed['style']}; connect-src 'self'; img-src data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "cache-control": "no-store", "cross-origin-resource-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin", "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff", "x-frame-options": "DENY",
    }  # fmt: skip


def application(library: Library, path: str, hosts: Iterable[str]) -> Any:
    """Return an ASGI application that serves a library below a path.

    Args:
        library: What is shown.
        path: The first part of the path of requests.
        hosts: Values of the header Host that are answered.
    """
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import ClientDisconnect
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    html, allowed = page(), frozenset(hosts)
    headers = headers_of(html)

    async def respond(request: Any) -> Any:
        given, _, name = request.path_params["path"].partition("/")
        if request.headers.get("host") not in allowed:
            return Response("this host is not served", 421, headers)
        is_ours = secrets.compare_digest(given.encode(), path.encode())
        if not is_ours or (name and name not in ANSWERS):
            return Response("not found", 404, headers)
        if not name:
            return Response(html, 200, headers, "text/html; charset=utf-8")
        try:
            asked = await _asked(request)
            found = await run_in_threadpool(answer, library, name, asked)
            return JSONResponse(found, 200, headers)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it
        except (TokenmillError, OSError, MemoryError) as error:
            return JSONResponse({"error": str(error)}, 400, headers)

    async def refuse(_: Any, error: Any) -> Any:
        code, more = getattr(error, "status_code", 500), getattr(error, "headers", None)
        return Response("this request cannot be answered", code, headers | (more or {}))

    return Starlette(
        routes=[Route("/{path:path}", respond, methods=["GET", "POST"])],
        exception_handlers={405: refuse, 500: refuse},
    )


async def _asked(request: Any) -> dict[str, str]:
    """Return the names and values of a request, of its query or of its body, a JSON object."""
    if request.method != "POST":
        return dict(request.query_params)
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > _MOST_TEXT:
            raise ViewError(f"the request is larger than {_MOST_TEXT:,} bytes; take a shorter text")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ViewError(f"the request is no JSON ({error})") from error
    if not isinstance(found, dict) or not all(isinstance(x, str) for x in found.values()):
        raise ViewError("the request should be a JSON object whose values are texts")
    return found


class Viewer:
    """A server that is bound to a port, and serves when `serve` is called.

    Attributes:
        url: Address of the page.
    """

    def __init__(self, library: Library, port: int, opens_browser: bool) -> None:
        try:
            import starlette  # noqa: F401 (it may not be installed)
            import uvicorn
        except ModuleNotFoundError as error:
            raise ViewError(
                "tokenmill view needs starlette and uvicorn, which are not installed; install them:"
                " pip install 'tokenmill[view]'"
            ) from error
        self._opens_browser = opens_browser
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((HOST, port))
            self._socket.listen()  # requests before the server has started wait
        except OSError as error:
            self._socket.close()
            raise ViewError(
                f"port {port} of {HOST} cannot be used ({error.strerror}); give another, or none"
                " for a free one (--port)"
            ) from error
        port, path = self._socket.getsockname()[1], secrets.token_urlsafe(24)
        self.url = f"http://{HOST}:{port}/{path}/"
        # Clients leave the port out of Host if it is that of HTTP.
        ends = ("", ":80") if port == 80 else (f":{port}",)
        hosts = [name + end for name in (HOST, "localhost") for end in ends]
        self._server = uvicorn.Server(uvicorn.Config(
            application(library, path, hosts), http="h11", ws="none", lifespan="off",
            log_level="warning", access_log=False, server_header=False, date_header=False,
        ))  # fmt: skip

    def serve(self) -> bool:
        """Print the address, open it in a browser, and serve until the process is interrupted."""
        print(f"{self.url}\nCtrl-C stops the server", flush=True)
        # Signals are handled by the command, so the server is on another thread.
        server = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        server.start()
        try:
            has_display = sys.platform == "darwin" or {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ}
            if self._opens_browser and has_display:
                webbrowser.open(self.url)
            server.join()
        finally:
            self.close()
        return True

    def close(self) -> None:
        """Stop the server."""
        self._server.should_exit = True
        self._socket.close()


@takes(ViewSettings)
def open_viewer(settings: ViewSettings) -> Viewer:
    """Open datasets and tokenizers, and return a server that shows them, bound to its port.

    Options: docs/options.md or `tokenmill view --help`.

    Raises:
        TokenmillError: There is nothing to show, or starlette and uvicorn are not installed.
    """
    library = Library()
    # Tokenizers first: a dataset without one beside it may have been built with one of them.
    for location in sorted(settings.paths, key=is_dataset):
        library.add(location)
    return Viewer(library, settings.port, not settings.no_browser)
