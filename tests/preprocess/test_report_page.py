"""The page of `report`: what it shows, that text of a dataset stays text, where it is written."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import trained
from processes import run as python
from written import dataset, write

from bpe import Tokenizer, Vocabulary
from bpe.errors import CorpusError
from preprocess import build
from preprocess.check import report_page
from preprocess.check.report_numbers import report
from preprocess.cli import run
from preprocess.pipeline import count
from preprocess.report.plots import PlotError
from preprocess.sources.registry import REPORT_BEGINS
from preprocess.storage import OutputError

END = "<|endoftext|>"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> & $title ${content} \u2028 \x07"
NAME = "<b>&amp;$'\"<script>.txt"
needs_matplotlib = pytest.mark.skipif(
    not importlib.util.find_spec("matplotlib"), reason="needs the extra `plot`"
)


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.source = path.read_text("utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def check_page(path: Path) -> Page:
    """A page that loads nothing, runs nothing, and has one title, of less than 2 MB."""
    page = Page(path)
    assert path.stat().st_size < 2_000_000
    tags = [tag for tag, _ in page.elements]
    assert not {"script", "img", "link", "iframe", "object", "b-r", "base"} & {*tags}
    assert (tags.count("html"), tags.count("main"), tags.count("h1")) == (1, 1, 1)
    for _, attributes in page.elements:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href", "action"):
            assert (attributes.get(name) or "#").startswith("#")
    assert not re.search(r"url\((?!#)|@import", page.source)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert not [each for each in ids if each and each.startswith(("figure", "axes"))]
    return page


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page")
    texts = [f"document {i} of some\nlines and ещё слова\n" * (1 + i % 5) for i in range(40)]
    (root / NAME).write_text(END.join([HOSTILE, *texts]))
    (root / "val.txt").write_text(END.join(["nothing of the kind", HOSTILE]))
    build(train=root / NAME, val=root / "val.txt", out=root / "data", vocab_size=300)
    return root / "data"


@needs_matplotlib
def test_the_page_shows_the_numbers(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    found = report(data, out=out, beside=data / "tokenizer.json")
    page = check_page(out)
    assert found == report(data, beside=data / "tokenizer.json")
    train = found["datasets"][0]
    assert page.source.count("<svg") == 2
    for number in (
        train["tokens"], train["documents"], train["copies"], train["rows"][0]["packed_rows"],
    ):
        assert f"{number:,}" in page.text
    for check in found["verdict"]["checks"]:
        assert check["text"] in page.text
    (pair,) = found["val_in_train"]
    assert f"{pair['divergence']:.4f} bits" in page.text
    for each in train["sample"]["by_script"]:
        assert each["script"] in page.text
        assert f"{each['bytes_per_token']:.2f}" in page.text
    assert "ещё" in page.text or "\\xd0" in page.text
    assert all(stage["name"] in page.text for stage in found["runs"][0]["stages"])
    report(data, out=tmp_path / "again.html", beside=data / "tokenizer.json")
    assert (tmp_path / "again.html").read_bytes() == out.read_bytes()


@needs_matplotlib
def test_text_of_the_dataset_stays_text(data: Path, tmp_path: Path) -> None:
    report(data, out=tmp_path / "page.html")
    page = check_page(tmp_path / "page.html")
    assert "<script>alert(1)</script><img src=x onerror=alert(2)> & $title ${content}" in page.text
    assert NAME in page.text


def variants(data: Path, place: Path) -> dict[str, Path]:
    """Datasets that lack something, or have something more."""
    made = {name: place / name for name in ("sharded", "damaged", "alone", "masked", "empty")}
    build(
        train=data.parent / NAME, val_fraction=0, out=made["sharded"], shard_tokens=300,
        tokenizer=data / "tokenizer.json", shuffle_documents=1,
    )
    shutil.copytree(data, made["damaged"])
    (made["damaged"] / "val.json").write_text("{}")
    dataset(made["alone"], [5, 30, 8])
    dataset(made["masked"], [5, 30, 8], mask=True)
    write(made["empty"], [], [])
    return made


@needs_matplotlib
def test_what_is_not_known_is_said(data: Path, tmp_path: Path) -> None:
    expected = {
        "sharded": "How many documents and tokens of train each source gave is not recorded",
        "damaged": "damage: val.json",
        "alone": "train was not decoded, so what needs its text is left out: ",
        "masked": "trained on",
        "empty": "There are no documents.",
    }
    for name, place in variants(data, tmp_path).items():
        report(place, out=tmp_path / f"{name}.html")
        page = check_page(tmp_path / f"{name}.html")
        assert expected[name] in page.text
        alone = "There is no validation dataset beside a train dataset, so none is compared."
        assert alone in page.text


@needs_matplotlib
def test_thousands_of_sources_fit_on_a_page(tmp_path: Path) -> None:
    for i in range(300):
        (tmp_path / f"{i:03d}{'long name ' * 20}.txt").write_text(f"text {i}")
    build(train=[str(x) for x in sorted(tmp_path.glob("*.txt"))], out=tmp_path / "data",
          val_fraction=0, vocab_size=260)  # fmt: skip
    found = report(tmp_path / "data", out=tmp_path / "page.html")
    page = check_page(tmp_path / "page.html")
    assert "and 270 more, which the JSON has" in page.text
    assert ", and 270 more]" in page.text
    assert (tmp_path / "page.html").stat().st_size < 300_000
    assert len(found["datasets"][0]["sources"]) == 300
    assert len(found["runs"][0]["settings"]["train"]) == 300


@needs_matplotlib
def test_documents_of_some_datasets_are_on_a_page(data: Path, tmp_path: Path) -> None:
    for i in range(12):
        for suffix in ("bin", "docs", "json"):
            shutil.copy(data / f"train.{suffix}", tmp_path / f"{i:02d}.{suffix}")
    shutil.copy(data / "tokenizer.json", tmp_path)
    found = report(tmp_path, out=tmp_path / "page.html")
    page = check_page(tmp_path / "page.html")
    assert "and those of 2 datasets more, which the JSON has (--json)." in page.text
    shown = re.findall(r"Document 0 of (\d\d), ", page.text)
    assert shown == [f"{i:02d}" for i in range(10)]
    assert all(each["decoded"] for each in found["datasets"])


@needs_matplotlib
def test_options_and_ids_have_no_separators(tmp_path: Path) -> None:
    specials = [f"<|{i}|>" for i in range(200)]
    tokenizer = Tokenizer.from_vocabulary(Vocabulary.from_merges(trained.merges(), specials))
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "a.txt").write_text(END.join(f"text {i} <|199|>" for i in range(30)))
    build(
        train=tmp_path / "a.txt", tokenizer=tmp_path / "tokenizer.json", out=tmp_path / "data",
        val_fraction=0, shuffle_documents=20260101, end_of_text="<|198|>", separator=END,
    )
    report(tmp_path / "data", out=tmp_path / "page.html")
    source = check_page(tmp_path / "page.html").source
    assert "<td>20260101</td>" in source
    assert '<td class="n">1054</td><td><code>&lt;|198|&gt;' in source
    assert '<td class="n">1,056</td>' in source  # tokens of the vocabulary


@needs_matplotlib
def test_the_command_writes_the_page(data: Path, tmp_path: Path) -> None:
    done = python("-W", "error", "-m", "preprocess", "report", data, cwd=tmp_path)
    assert "LOOK     leaks: 1 of 2 documents of val are in train, too\n" in done.stdout
    check_page(tmp_path / "report.html")
    python("-m", "preprocess", "report", data, "--json", cwd=tmp_path)
    python("-m", "preprocess", "report", data, "--json", "--out", "b.html", cwd=tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {"report.html", "b.html"}


@needs_matplotlib
def test_a_damaged_manifest_is_told(data: Path, tmp_path: Path, capsys: Any) -> None:
    path = Path(shutil.copytree(data, tmp_path / "data")) / "train.json"
    path.write_text("{")
    assert run(["report", str(path)]) == 1
    assert f"{path}: not a manifest" in capsys.readouterr().err


@needs_matplotlib
def test_a_page_beside_the_text_is_not_read(data: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text")
    report(data, out=tmp_path / "page.html")
    found = count(paths=tmp_path, tokenizer=data / "tokenizer.json").sources
    assert [source.name for source, _ in found] == ["text.txt"]
    with pytest.raises(CorpusError, match=r"page.html: is a report of tokenmill, which is not"):
        count(paths=tmp_path / "page.html", tokenizer=data / "tokenizer.json")


@needs_matplotlib
def test_only_a_report_is_replaced(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    report(data, out=out)
    before = out.read_bytes()
    out.write_bytes(before[:3000])
    report(data, out=out)
    assert out.read_bytes() == before
    out.write_text("<!doctype html><title>my notes</title>")
    for place in (out, tmp_path):
        with pytest.raises(OutputError, match="exists, and is not the page of a report; move it"):
            report(data, out=place)
    assert "my notes" in out.read_text()
    assert before.startswith(REPORT_BEGINS.encode())
    with pytest.raises(OutputError, match="could not be written"):
        report(data, out=tmp_path / "missing" / "page.html")


@pytest.mark.parametrize(
    ("library", "message"),
    [
        ("matplotlib", "plots are drawn with matplotlib, which is not installed"),
        pytest.param("jinja2", "pages are made with jinja2, which is not", marks=needs_matplotlib),
    ],
)
def test_without_a_library_nothing_is_measured(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, library: str,
    message: str,
) -> None:
    for name in [x for x in sys.modules if x.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    report_page._environment.cache_clear()
    with pytest.raises(PlotError, match=message):
        report(tmp_path / "missing", out=tmp_path / "page.html")
    assert run(["report", str(data), "--out", str(tmp_path / "page.html")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not [*tmp_path.iterdir()]
    assert run(["report", str(data), "--json"]) == 0


@needs_matplotlib
def test_a_browser_shows_it(data: Path, tmp_path: Path) -> None:
    browsers = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs `browser`")
    if (path := shutil.which("chromium")) is None:
        pytest.skip("needs chromium")
    out = tmp_path / "page.html"
    report(data, out=out, beside=data / "tokenizer.json")
    with browsers.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for width, scheme in ((390, "light"), (390, "dark"), (1440, "light"), (1440, "dark")):
            page = browser.new_page(
                viewport={"width": width, "height": 900}, color_scheme=scheme
            )
            check_shown(page, out.as_uri(), width, scheme)
            for details in page.locator("details > summary").all():
                details.click()
            assert not axe.Axe().run(page).response["violations"]
            page.close()
        browser.close()


def check_shown(page: Any, address: str, width: int, scheme: str) -> None:
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator(".tokens").first.inner_text().startswith("<script>alert(1)</script>")
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (colour == "rgb(255, 255, 255)") == (scheme == "light")
    heights = page.evaluate(
        "[...document.querySelectorAll('svg text')].map(x => x.getBoundingClientRect().height)"
    )
    assert min(heights) > 8
    assert (said, asked) == ([], [address])
