"""The server of `tokenmill view`, on this machine alone.

Pages are below a path that cannot be guessed; requests need it and a Host of this machine, so that
other users of the machine and pages of other sites have no access. Only GET and POST of the answers
exist, and nothing is written.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpe.errors import TokenmillError
from bpe.files.locations import is_url
from preprocess.check import report_page
from preprocess.dataset.manifest import FORMAT
from preprocess.dataset.reader import check_tokenizer, open_tokens
from preprocess.locations import url_name
from preprocess.options import ViewSettings
from preprocess.run.outputs import TOKENIZER_FILE, find_token_files, manifests_in, read_object
from preprocess.settings import read_tokenizer, takes
from preprocess.storage import open_files
from preprocess.view import documents, steps, vocabulary
from preprocess.view.documents import ViewedDataset
from preprocess.view.numbers import Numbers, with_partner
from preprocess.view.statistics import Statistics
from preprocess.view.vocabulary import Answer, ViewedTokenizer, ViewError

HOST = "127.0.0.1"
_MOST_TEXT = 1 << 20  # bytes of a request


# --- what is shown ---


class Library:
    """Datasets and tokenizers by the names that the page has for them."""

    def __init__(self) -> None:
        self.datasets: dict[str, ViewedDataset] = {}
        self.tokenizers: dict[str, ViewedTokenizer] = {}
        self._statistics: dict[str, Statistics] = {}
        self._numbers: dict[str, Numbers] = {}

    def add(self, location: str) -> None:
        """Open the datasets and the tokenizer at a path, URL or name of a tokenizer.

        Raises:
            TokenmillError: There are none, or they cannot be read.
        """
        place = Path(location)
        if not is_url(location) and place.is_dir() and not manifests_in(open_files(location)):
            if not (place / TOKENIZER_FILE).exists():
                find_token_files(location)  # raises
            self._add_tokenizer(str(place / TOKENIZER_FILE))
        elif not _is_dataset(location):
            self._add_tokenizer(location)
        else:
            for found in find_token_files(location):
                self._add_dataset(found)

    def _add_dataset(self, location: str) -> None:
        file = open_tokens(location)
        path, _ = file.tokenizer_file()
        viewed, why = None, ""
        try:
            if path is not None:
                viewed = self._add_tokenizer(str(path))
                check_tokenizer(file.path, file.manifest, viewed.tokenizer)
        except TokenmillError as error:
            viewed, why = None, str(error)
        is_beside = viewed is not None
        if viewed is None:
            expected = file.manifest.tokenizer_fingerprint
            others = self.tokenizers.values()
            viewed = next((x for x in others if x.tokenizer.has_fingerprint(expected)), None)
        if viewed is None and not why:
            why = "there is no tokenizer.json beside it, and none was given that it was built with"
        stem = os.path.splitext(url_name(location) if is_url(location) else location)[0]
        name = _unused(stem, 1, self.datasets)
        why = "" if viewed else why
        self.datasets[name] = ViewedDataset(name, file, viewed, why, is_beside)
        self._statistics[name] = Statistics(self.datasets[name])

    def _add_tokenizer(self, location: str) -> ViewedTokenizer:
        from bpe import load_tokenizer

        known = {each.location: each for each in self.tokenizers.values()}
        location = os.path.abspath(location) if os.path.exists(location) else location
        if location not in known:
            loaded = load_tokenizer(read_tokenizer(location))
            name = _unused(location, 1 + location.endswith(TOKENIZER_FILE), self.tokenizers)
            self.tokenizers[name] = known[location] = ViewedTokenizer(name, location, loaded)
        return known[location]

    def dataset(self, name: str) -> ViewedDataset:
        """Return a dataset by its name; raise ViewError if there is none."""
        found: ViewedDataset = _find(name, self.datasets, "dataset")
        return found

    def tokenizer(self, name: str) -> ViewedTokenizer:
        """Return a tokenizer by its name; raise ViewError if there is none."""
        found: ViewedTokenizer = _find(name, self.tokenizers, "tokenizer")
        return found

    def statistics(self, name: str) -> Statistics:
        """Return the statistics of a dataset, which begin to be computed when first asked for."""
        self.dataset(name)
        self._statistics[name].start()
        return self._statistics[name]

    def numbers(self, name: str) -> Numbers:
        """Return the numbers of a dataset, which begin to be computed when first asked for."""
        found = self._numbers.get(name)
        if found is None:
            names = with_partner(self.dataset(name), self.datasets)
            found = Numbers([self.datasets[x] for x in names], [*map(self.statistics, names)])
        return self._numbers.setdefault(name, found)

    def counts(self, dataset: str, tokenizer: str) -> NDArray[np.int64] | None:
        """Return how often ids occur so far, if the dataset is of the tokenizer; else None."""
        if not dataset or self.dataset(dataset).tokenizer is not self.tokenizer(tokenizer):
            return None
        return self.statistics(dataset).scanned.counts

    def contents(self) -> Answer:
        """Describe everything that is shown."""
        return {
            "datasets": [each.facts() for each in self.datasets.values()],
            "tokenizers": [each.facts() for each in self.tokenizers.values()],
        }


def _is_dataset(location: str) -> bool:
    place = Path(url_name(location) if is_url(location) else location)
    if is_url(location):
        return place.name != TOKENIZER_FILE
    if place.suffix == ".json" and place.is_file():
        return read_object(open_files(str(place.parent)), place.name, FORMAT) is not None
    return place.is_dir() or place.suffix in (".bin", ".yaml", ".yml", ".txt")


def _unused(location: str, n_parts: int, used: Mapping[str, Any]) -> str:
    """Return the end of a path or URL that is no name yet, of at least so many parts."""
    parts = location.split("/")
    names = ("/".join(parts[-n:]) for n in range(n_parts, len(parts)))
    return next((name for name in names if name not in used), location)


def _find(name: str, among: Mapping[str, Any], what: str) -> Any:
    if name not in among:
        raise ViewError(f"there is no {what} {name!r}; there are {', '.join(among) or 'none'}")
    return among[name]


# --- answers to requests ---


def _integer(given: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a number of a request; raise ViewError if it is none."""
    text = given.get(name, "" if default is None else str(default))
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII):
        raise ViewError(f"{name}: should be a whole number of at least 0; got {text!r:.100}")
    return int(text)


def _document(library: Library, given: Mapping[str, str]) -> Answer:
    viewed = library.dataset(given.get("dataset", ""))
    if "token" in given:
        return documents.document_with(viewed, _integer(given, "token"))
    return documents.document(viewed, _integer(given, "number"), _integer(given, "page", 0))


def _lengths(library: Library, given: Mapping[str, str]) -> Answer:
    viewed, limits = library.dataset(given.get("dataset", "")), ("least", "most", "start")
    return documents.of_length(viewed, *(_integer(given, name, 0) for name in limits))


def _search(library: Library, given: Mapping[str, str]) -> Answer:
    viewed, by_ids = library.dataset(given.get("dataset", "")), given.get("by") == "ids"
    return documents.search(viewed, given.get("query", ""), by_ids, _integer(given, "start", 0))


def _step(library: Library, given: Mapping[str, str]) -> Answer:
    viewed = library.dataset(given.get("dataset", ""))
    sizes = [_integer(given, name) for name in ("batch_size", "context_length")]
    options: dict[str, Any] = {name: given[name] for name in ("order", "windows") if name in given}
    options["seed"] = _integer(given, "seed", 0)
    if "token" in given:
        return steps.step_with(viewed, _integer(given, "token"), *sizes, **options)
    options |= {name: _integer(given, name, 0) for name in ("row", "column")}
    return steps.step(viewed, _integer(given, "step"), *sizes, **options)


def _encode(library: Library, given: Mapping[str, str]) -> Answer:
    first, text = library.tokenizer(given.get("tokenizer", "")), given.get("text", "")
    with_special = given.get("special") != "text"
    if not given.get("beside"):
        return {"first": vocabulary.encode(first, text, with_special)}
    return vocabulary.compare(first, library.tokenizer(given["beside"]), text, with_special)


def _merges(library: Library, given: Mapping[str, str]) -> Answer:
    return vocabulary.merges(library.tokenizer(given.get("tokenizer", "")), _integer(given, "id"))


def _vocabulary(library: Library, given: Mapping[str, str]) -> Answer:
    viewed, dataset = library.tokenizer(given.get("tokenizer", "")), given.get("dataset", "")
    counts = library.counts(dataset, viewed.name)
    found = vocabulary.vocabulary(
        viewed, given.get("query", ""), given.get("order", "id"), _integer(given, "start", 0),
        counts, given.get("unused") == "1", given.get("script", ""),
    )
    if counts is not None:
        found |= library.statistics(dataset).progress()
    return found


ANSWERS: dict[str, Callable[[Library, Mapping[str, str]], Answer]] = {
    "contents": lambda library, _: library.contents(),
    "document": _document,
    "lengths": _lengths,
    "numbers": lambda library, given: library.numbers(given.get("dataset", "")).answer(),
    "search": _search,
    "statistics": lambda library, given: library.statistics(given.get("dataset", "")).answer(),
    "step": _step,
    "encode": _encode,
    "merges": _merges,
    "vocabulary": _vocabulary,
}


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
            answer = await run_in_threadpool(ANSWERS[name], library, asked)
            return JSONResponse(answer, 200, headers)
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
    import json

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
        library: What it shows.
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
        self.library, self._opens_browser = library, opens_browser
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
    for location in sorted(settings.paths, key=_is_dataset):
        library.add(location)
    return Viewer(library, settings.port, not settings.no_browser)
