"""The server of `view` over HTTP: what it answers, and to whom."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import processes
import pytest
import view_cases

from preprocess.cli import run
from preprocess.view.library import Library, ViewError
from preprocess.view.server import answer, open_viewer

pytest.importorskip("uvicorn", reason="needs the extra `view`")
pytest.importorskip("starlette", reason="needs the extra `view`")

REQUESTS = [
    ("contents", {}),
    ("document", {"dataset": "train", "number": "41"}),
    ("document", {"dataset": "sharded/train", "number": "43", "page": "1"}),
    ("document_with", {"dataset": "train", "token": "1234"}),
    ("search", {"dataset": "train", "query": "naïve 日"}),
    ("search", {"dataset": "sharded/train", "query": "97 98", "by_ids": "1", "start": "5"}),
    ("encode", {"tokenizer": "masked/tokenizer.json", "text": "of <|endoftext|> 🙂\x00"}),
    ("compare", {"tokenizer": "masked/tokenizer.json", "beside": "sharded/tokenizer.json",
                 "text": "of the <|endoftext|>", "with_special": "0"}),
    ("merges", {"tokenizer": "masked/tokenizer.json", "id": "500"}),
    ("vocabulary", {"tokenizer": "masked/tokenizer.json", "query": "e", "order": "longest"}),
    ("vocabulary", {"tokenizer": "masked/tokenizer.json", "dataset": "train", "unused": "1",
                    "order": "least frequent", "start": "100"}),
    ("step", {"dataset": "train", "step": "3", "batch_size": "5", "context_length": "40"}),
    ("step", {"dataset": "sharded/train", "step": "0", "batch_size": "6", "context_length": "9",
              "windows": "documents", "order": "random", "seed": "7", "row": "4", "column": "3"}),
    ("step", {"dataset": "train", "step": "1", "batch_size": "6", "context_length": "33",
              "windows": "packed"}),
    ("step_with", {"dataset": "train", "token": "1234", "batch_size": "5", "context_length": "40"}),
    ("vocabulary", {"tokenizer": "masked/tokenizer.json", "script": "Latin"}),
    ("statistics", {"dataset": "train"}),
    ("lengths", {"dataset": "sharded/train", "least": "20", "most": "40", "start": "3"}),
    ("numbers", {"dataset": "train"}),
    ("merges", {"tokenizer": "masked/tokenizer.json", "id": "x"}),
    ("document", {"dataset": "train", "number": "49"}),
    ("search", {"dataset": "train", "query": "\ud800"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def url(view_root: Path) -> Iterator[str]:
    with view_cases.viewing(view_root / "masked", view_root / "sharded") as found:
        yield found


def fetch(
    url: str, method: str = "GET", body: Any = None, host: str | None = None
) -> tuple[int, dict[str, str], bytes]:
    """The status, the headers and the content of an answer."""
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.netloc, timeout=60)
    path = f"{at.path}?{at.query}" if at.query else at.path
    connection.request(method, path, body, {} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    connection.close()
    return found


@pytest.mark.parametrize(("name", "values"), REQUESTS)
def test_answers_are_those_of_python(
    url: str, view_library: Library, name: str, values: dict[str, str]
) -> None:
    if values.get("dataset"):
        view_library.dataset(values["dataset"]).scanning.wait()
    try:
        expected = answer(view_library, name, values)
    except ValueError as error:
        expected = {"error": str(error)}
    for method, query, body in (
        ("POST", "", json.dumps(values)), ("GET", urlencode(values, errors="replace"), None)
    ):
        if "\ud800" in values.values() and method == "GET":
            continue  # an address cannot have it
        for _ in range(600):  # the server's pass over the dataset may not be done
            status, headers, content = fetch(f"{url}{name}?{query}", method, body)
            found = json.loads(content)
            if found.get("over", True):
                break
            time.sleep(0.05)
        assert found == expected
        assert (status, headers["content-type"]) == (400 if "error" in expected and len(expected)
                                                     == 1 else 200, "application/json")


def test_requests_of_others_are_refused(url: str) -> None:
    at = urlsplit(url)
    port, origin = at.port, f"{at.scheme}://{at.netloc}"
    for wrong, host, status in [
        (url, "example.com", 421), (url, f"example.com:{port}", 421), (url, "127.0.0.1", 421),
        (f"{url}contents", f"127.0.0.1.example.com:{port}", 421), (url, "", 421),
        (f"{origin}/", None, 404), (f"{origin}/contents", None, 404), (url[:-2] + "/", None, 404),
        (f"{origin}/{'x' * 32}/contents", None, 404), (f"{url}missing", None, 404),
        (f"{url}../contents", None, 404), (f"{url}document/x", None, 404),
        (f"{origin}/é", None, 404) if False else (f"{origin}/%C3%A9/", None, 404),
        (url, f"localhost:{port}", 200), (url.rstrip("/"), None, 200),
    ]:  # fmt: skip
        found, headers, content = fetch(wrong, host=host)
        assert found == status, wrong
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert (b"<html" in content) == (status == 200)
    assert len(at.path) > 32
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        status, headers, _ = fetch(f"{url}contents", method)
        assert status == 405
        assert "default-src 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the request is no JSON"), (b"\xff", "the request is no JSON"),
        (b"[" * 100_000, "the request is no JSON"),
        (b"[]", "the request should be a JSON object whose values are texts"),
        (b'{"number": 3}', "the request should be a JSON object whose values are texts"),
        (b" " * (1 << 20) + b"{}", "the request is larger than 1,048,576 bytes; take a shorter"),
    ],
)  # fmt: skip
def test_damaged_requests(url: str, body: bytes, message: str) -> None:
    status, _, content = fetch(f"{url}document", "POST", body)
    assert status == 400
    assert json.loads(content)["error"].startswith(message)


def test_nothing_is_written(view_root: Path, url: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in view_root.rglob("*")}
    for name, values in REQUESTS:
        fetch(f"{url}{name}", "POST", json.dumps(values))
    assert {path: path.stat().st_mtime_ns for path in view_root.rglob("*")} == before


def test_only_this_machine_is_served(url: str) -> None:
    port = urlsplit(url).port
    own = {each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in own - {"127.0.0.1"}:
        with pytest.raises(OSError, match="refused"):
            socket.create_connection((str(address), port), 5).close()


def test_a_port_that_is_used(view_root: Path, capsys: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(["view", str(view_root / "masked"), "--port", str(port), "--no-browser"]) == 1
    message = f"port {port} of 127.0.0.1 cannot be used (Address already in use); give another"
    assert message in capsys.readouterr().err
    viewer = open_viewer(view_root / "masked", port=port, no_browser=True)
    assert viewer.url.startswith(f"http://127.0.0.1:{port}/")
    viewer.close()


def test_a_termination_ends_it_during_a_request(view_root: Path) -> None:
    command = ("-m", "preprocess", "view", view_root / "masked", "--no-browser")
    with processes.start(*command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        at = urlsplit(process.stdout.readline().strip())
        with socket.create_connection((at.hostname, at.port)) as open_one:
            open_one.sendall(f"POST {at.path}contents HTTP/1.1\r\nHost: {at.netloc}\r\n".encode())
            open_one.sendall(b"Content-Length: 99\r\n\r\n{")
            fetch(at.geturl())
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=30)[1] == "tokenmill: error: stopped (Terminated)\n"
    assert process.returncode == 143


def test_requests_that_are_given_up(view_root: Path) -> None:
    with view_cases.viewing(view_root / "masked") as url:  # which expects that nothing is printed
        at = urlsplit(url)
        for content in (b"", b"{"):
            with socket.create_connection((at.hostname, at.port)) as given_up:
                head = f"POST {at.path}contents HTTP/1.1\r\nHost: {at.netloc}\r\n"
                given_up.sendall(f"{head}Content-Length: 99\r\n\r\n".encode() + content)
                assert fetch(url)[0] == 200
        assert fetch(f"{url}contents")[0] == 200


def test_without_its_libraries(view_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(ViewError, match="needs starlette and uvicorn, which are not installed"):
        open_viewer(view_root / "masked")


def test_a_browser_is_opened_where_there_is_a_display(
    view_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[str]()
    monkeypatch.setattr("webbrowser.open", opened.append)
    for display, no_browser in (("", False), (":0", True), (":0", False)):
        monkeypatch.setenv("DISPLAY", display) if display else os.environ.pop("DISPLAY", None)
        viewer = open_viewer(view_root / "masked", no_browser=no_browser)
        viewer._server.should_exit = True
        viewer.serve()
    assert opened == [viewer.url]


def test_commands_of_the_documentation(view_root: Path, tmp_path: Path) -> None:
    page = (processes.ROOT / "docs" / "look.md").read_text("utf-8")
    commands = re.findall(r"^tokenmill view (.*)$", page, re.MULTILINE)
    assert len(commands) == 2
    (tmp_path / "built").symlink_to(view_root / "masked")
    (tmp_path / "tokenizer.json").symlink_to(view_root / "sharded" / "tokenizer.json")
    for command in commands:
        words = [word for word in command.split() if word != "--no-browser"]
        if "--port" in words:  # it may be used
            words[words.index("--port") + 1] = "0"
        with view_cases.viewing(*words, cwd=tmp_path) as url:
            assert fetch(url)[0] == 200
