"""The site of `make docs`: its links and anchors, and pages that need nothing from other hosts."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest
from processes import ROOT, run

import bpe
import preprocess

pytest.importorskip("material", reason="needs the extra `docs`")
pytest.importorskip("mkdocstrings", reason="needs the extra `docs`")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Page(HTMLParser):
    """The ids, links and loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids, self.links, self.loads = set[str](), list[str](), list[str]()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {found[key] or "" for key in ("id", "name") if key in found}
        target = found.get("href") or found.get("src")
        if target:
            (self.links if tag == "a" else self.loads).append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("site") / "site"
    arguments = ("build", "--strict", "--quiet", "--site-dir", found)
    run("-m", "mkdocs", *arguments, cwd=ROOT, NO_MKDOCS_2_WARNING="1")
    return found


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_links_and_anchors_lead_somewhere(pages: dict[Path, Page]) -> None:
    n_checked = 0
    for path, page in pages.items():
        for link in page.links + page.loads:
            if ":" in link.partition("/")[0]:
                continue
            place, _, anchor = link.partition("#")
            target = (path.parent / unquote(place)).resolve() if place else path
            assert target.exists(), (path.name, link)
            if anchor:
                assert unquote(anchor) in pages[target].ids, (path.name, link)
            n_checked += 1
    assert n_checked > 3000


def test_pages_load_nothing_from_other_hosts(pages: dict[Path, Page]) -> None:
    assert {load for page in pages.values() for load in page.loads if "//" in load} == set()


def test_generated_pages_are_complete(site: Path, pages: dict[Path, Page]) -> None:
    for package in (bpe, preprocess):
        reference = pages[site / "reference" / f"{package.__name__}.html"]
        shown = {each.rpartition(".")[2] for each in reference.ids}
        assert {*package.__all__} - shown == set()
    errors = (site / "errors.html").read_text("utf-8")
    assert errors.count("<tr>") > 650
    assert "<td>the list has no path</td>\n<td>write one in each line</td>" in errors


class Quiet(SimpleHTTPRequestHandler):
    """A handler of requests for files."""

    def log_message(self, *_: object) -> None: ...


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address of a server of the site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium")
def test_pages_in_a_browser(site: Path) -> None:
    """No request elsewhere, no error in the console, no text beside the screen; search works."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    problems = list[str]()
    with served(site) as url, playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        page = browser.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda x: x.url.startswith((url, "data:")) or problems.append(x.url))
        for path in sorted(site.glob("*.html")):
            page.goto(f"{url}/{path.name}", wait_until="domcontentloaded")
            for width in (390, 1440):
                page.set_viewport_size({"width": width, "height": 900})
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, path.name
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            page.goto(f"{url}/index.html")
            page.keyboard.press("/")
            page.keyboard.type("loss mask")
            page.wait_for_selector(".md-search-result__item a[href*='chats.html']")
    assert not problems
