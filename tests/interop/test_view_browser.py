"""The page of `view` in Chromium: it shows what Python gives, and can be used by keyboard alone."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import view_cases

from preprocess import Sampler, TokenFile, open_tokens
from preprocess.view.documents import search
from preprocess.view.library import Library
from preprocess.view.vocabulary import compare, encode, merges, vocabulary

playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs `browser`")
pytest.importorskip("uvicorn", reason="needs the extra `view`")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt install chromium")

FIRST, SECOND = "masked/tokenizer.json", "sharded/tokenizer.json"
VIEWS = [
    "tab=documents&dataset=train&number=41&query=naïve&by=text",
    "tab=documents&dataset=train&number=43&page=1&ids=1&list=longest",
    "tab=documents&dataset=train&number=45&list=copies",
    "tab=documents&dataset=train&length=32-45",
    "tab=numbers&dataset=train",
    "tab=documents&dataset=bare/train&number=3",
    f"tab=tokenizer&tokenizer={FIRST}&beside={SECOND}&counted=train&order=most frequent&ids=1",
    "tab=step&dataset=train&step=2&batch_size=3&context_length=80&windows=documents",
    "tab=step&dataset=sharded/train&step=0&batch_size=9&context_length=300&windows=packed",
]
# What a token shows: its id, its text, and whether it is special, shaded, part of a character.
TOKENS = """box => [...box.querySelectorAll(".t")].map(t => [
  Number(t.dataset.id), t.textContent, t.classList.contains("special"),
  t.classList.contains("off"), t.dataset.bytes ?? null])"""

# What a link to a state does; the page shows it when its address changes.
GO = """state => new Promise(done => {
  addEventListener("hashchange", done, {once: true});
  location.hash = state; })"""


@pytest.fixture(scope="module")
def url(view_root: Path) -> Iterator[str]:
    another = (view_root / SECOND).read_text()
    (view_root / "bare" / "tokenizer.json").write_text(another)
    places = (view_root / name for name in ("masked", "sharded", "bare"))
    with view_cases.viewing(*places) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright.expect.set_options(timeout=30_000)  # of a busy machine
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        yield driver.chromium.launch(executable_path=CHROMIUM, args=sandbox)


@pytest.fixture(scope="module", params=[390, 1440])
def window(request: Any, browser: Any) -> Any:
    """A narrow, dark one and a wide, light one: no style depends on both."""
    return browser.new_page(
        viewport={"width": request.param, "height": 900},
        color_scheme="dark" if request.param == 390 else "light",
        permissions=["clipboard-read", "clipboard-write"],
    )


@pytest.fixture
def page(window: Any, url: str) -> Iterator[Any]:
    """A page on which nothing may be logged, and from which nothing goes to other hosts."""
    problems, own = list[str](), ("data:", "http://127.0.0.1:")
    heard = {
        "console": lambda message: problems.append(message.text),
        "pageerror": lambda error: problems.append(str(error)),
        "request": lambda asked: asked.url.startswith(own) or problems.append(asked.url),
    }
    for event, listener in heard.items():
        window.on(event, listener)
    window.goto(url)
    wait(window)
    yield window
    for event, listener in heard.items():
        window.remove_listener(event, listener)
    assert not problems


def show(page: Any, state: str) -> None:
    """Go to another state, and wait for its answers."""
    page.evaluate(GO, state)
    wait(page)


def wait(page: Any) -> None:
    """Wait until the page has its answers."""
    page.wait_for_selector("body[data-waiting='0']")


def tokens_of(box: Any) -> list[list[Any]]:
    found: list[list[Any]] = box.evaluate(TOKENS)
    return found


def expected_tokens(answer: dict[str, Any], mask: list[int] | None = None) -> list[list[Any]]:
    """The tokens that the page should show for an answer."""
    special, parts = {*answer["special"]}, answer["parts"]
    return [
        [i, text, place in special, bool(mask) and not mask[place], parts.get(str(place))]
        for place, (i, text) in enumerate(zip(answer["ids"], answer["texts"], strict=True))
    ]


def dataset(view_root: Path, name: str) -> TokenFile:
    return open_tokens(view_root / name / "train.json")


@pytest.mark.parametrize("name", ["train", "sharded/train"])
def test_documents_are_those_of_python(page: Any, view_root: Path, name: str) -> None:
    file = dataset(view_root, "masked" if name == "train" else "sharded")
    start = 0
    for number, text in enumerate(view_cases.texts()):
        ids = file.doc(number).tolist()
        if number in (0, 7, *range(40, file.n_documents)):
            show(page, f"tab=documents&dataset={name}&number={number}")
            playwright.expect(page.locator("#document-title")).to_have_text(
                f"Document {number} of {file.n_documents}: {len(ids):,} tokens, from token"
                f" {start:,} on"
            )
            shown = tokens_of(page.locator("#document-tokens"))
            assert [each[0] for each in shown] == ids[:2000]
            assert file.decode(ids).startswith("".join(each[1] for each in shown))
            mask = file.loss_mask[start : start + len(shown)].tolist()
            assert [each[3] for each in shown] == [value == 0 for value in mask]
            special = [each[0] for each in shown if each[2]]
            assert special == (ids[-1:] if len(ids) <= 2000 else [])
            assert page.title() == "tokenmill view"
            assert page.locator("main script, main img, main b").count() == 0
            if len(ids) <= 2000:
                assert page.locator("#document-tokens").evaluate("x => x.textContent") == (
                    text + view_cases.END
                )
        start += len(ids)


def test_invisible_characters_are_shown(page: Any) -> None:
    show(page, "tab=documents&dataset=train&number=41")
    signs = page.locator("#document-tokens .c").evaluate_all("all => all.map(x => x.dataset.c)")
    for sign in ("U+202E", "U+200B", "U+00A0", "⇥", "␍", "⏎", "U+FEFF", "U+E0041", "U+0000"):
        assert sign in signs


def test_long_documents_have_pages(page: Any, view_root: Path) -> None:
    file, shown = dataset(view_root, "masked"), list[int]()
    show(page, "tab=documents&dataset=train&number=43")
    n_pages = -(-len(file.doc(43)) // 2000)
    for number in range(n_pages):
        label = page.locator("#documents .pages > span")
        playwright.expect(label).to_have_text(f"page {number + 1} of {n_pages}")
        wait(page)
        shown += [each[0] for each in tokens_of(page.locator("#document-tokens"))]
        if number + 1 < n_pages:
            page.click("#page-after")
    assert shown == file.doc(43).tolist()
    assert page.locator("#page-after").is_disabled()


def test_a_slow_answer_is_announced(page: Any, url: str) -> None:
    wait(page)
    held: list[Any] = []
    page.route("**/document", lambda route: held.append(route))
    page.goto(f"{url}#tab=documents&dataset=train&number=1")
    playwright.expect(page.locator("#working")).to_be_visible()
    page.unroute("**/document")  # what was held goes on
    playwright.expect(page.locator("#working")).to_be_hidden()
    playwright.expect(page.locator("#document-title")).to_contain_text("Document 1 of")


def test_keys_alone(page: Any, view_library: Library) -> None:
    title, viewed = page.locator("#document-title"), view_library.dataset("train")

    def press(*keys: str) -> None:
        for key in keys:
            page.keyboard.press(key)

    playwright.expect(title).to_contain_text("Document 0 of 49")
    press("ArrowRight", "ArrowRight")
    playwright.expect(title).to_contain_text("Document 2 of 49")
    press("ArrowLeft")
    playwright.expect(title).to_contain_text("Document 1 of 49")
    press("g")
    page.keyboard.type("42")
    press("Enter", "Escape", "ArrowRight")
    playwright.expect(title).to_contain_text("Document 43 of 49")
    press("/")
    page.keyboard.type("naïve")
    press("Enter")
    links = page.locator("#found .hits a")
    expected = search(viewed, "naïve")["hits"]
    playwright.expect(links).to_have_count(len(expected))
    shown = page.locator("#found .hits li").evaluate_all(
        "all => all.map(li => [...li.children].map(x => x.textContent))"
    )
    assert shown == [
        [f"document {x['document']}, token {x['token']:,}", x["before"], x["match"], x["after"]]
        for x in expected
    ]
    links.nth(3).focus()
    press("Enter")
    playwright.expect(title).to_contain_text(f"Document {expected[3]['document']} of 49")
    chosen = page.locator("#document-tokens .chosen")
    playwright.expect(chosen).to_have_attribute("data-id", str(viewed.file[expected[3]["token"]]))
    press("j")
    playwright.expect(page.locator("#chosen-title")).to_contain_text("Token ")
    token_id = int(page.locator("#document-tokens .chosen").get_attribute("data-id"))
    assert token_id == viewed.file[expected[3]["token"] + 1]
    press("k", "Escape")
    playwright.expect(page.locator("#chosen")).to_be_hidden()


def test_every_control_is_reached_with_tab(page: Any) -> None:
    for state in VIEWS:
        show(page, state)
        if "tab=numbers" in state:
            page.wait_for_selector("#numbers .numbers section")
        controls = (
            "section:not([hidden]) :is(a, button:enabled, input:enabled, select, summary, textarea)"
        )
        left = page.locator(controls).evaluate_all(
            "all => { all = all.filter(x => x.checkVisibility()); window.left = new Set(all);"
            " addEventListener('focusin', x => left.delete(x.target)); return all.length; }"
        )
        assert left > 5
        for _ in range(left // 50 + 7):
            for _ in range(50):
                page.keyboard.press("Tab")
            left = page.evaluate("left.size")
            if not left:
                break
        assert not left, state


def test_a_text_is_encoded_as_it_is_typed(page: Any, view_library: Library) -> None:
    show(page, f"tab=tokenizer&tokenizer={FIRST}")
    text = "of the strings 日本語 <|endoftext|>\n<b>"
    page.keyboard.press("g")
    page.keyboard.type(text)
    answer = encode(view_library.tokenizer(FIRST), text)
    numbers = page.locator("#sides .numbers")
    playwright.expect(numbers).to_have_text(
        f"{answer['n_tokens']} tokens, {answer['n_bytes']} bytes,"
        f" {answer['bytes_per_token']:.2f} bytes per token"
    )
    box = page.locator("#sides .tokens")
    assert tokens_of(box) == expected_tokens(answer)
    ids = [each[0] for each in tokens_of(box)]
    steps = [merges(view_library.tokenizer(FIRST), each)["steps"] for each in ids]
    expected = max(steps, key=len)
    box.locator(".t").nth(steps.index(expected)).click()
    rows = page.locator("#merges tr:has(td)")
    playwright.expect(rows).to_have_count(len(expected))
    assert len(expected) > 2
    shown = rows.evaluate_all("all => all.map(x => [...x.cells].map(y => y.textContent))")
    assert shown == [
        [f"{x['rank']:,}", x["left"]["text"], x["right"]["text"], x["made"]["text"],
         str(x["made"]["id"])] for x in expected
    ]  # fmt: skip
    page.uncheck("#special")
    playwright.expect(page.locator("#sides .special")).to_have_count(0)
    page.reload()  # the address has the text
    wait(page)
    assert page.input_value("#text") == text
    answer = encode(view_library.tokenizer(FIRST), text, with_special=False)
    assert tokens_of(page.locator("#sides .tokens")) == expected_tokens(answer)


def test_two_tokenizers_side_by_side(page: Any, view_library: Library) -> None:
    text = "Strings are compared with the assert statement"
    show(page, f"tab=tokenizer&tokenizer={FIRST}&beside={SECOND}&text={text}")
    found = compare(view_library.tokenizer(FIRST), view_library.tokenizer(SECOND), text)
    boxes = page.locator("#sides .tokens")
    playwright.expect(boxes).to_have_count(2)
    for number, side in enumerate(("first", "second")):
        assert tokens_of(boxes.nth(number)) == expected_tokens(found[side])
        differ = boxes.nth(number).locator(".t").evaluate_all(
            "all => all.flatMap((x, i) => x.classList.contains('differs') ? [i] : [])"
        )
        assert differ == found[side]["differ"] != []


def test_the_vocabulary_is_searched(page: Any, view_library: Library) -> None:
    show(page, f"tab=tokenizer&tokenizer={FIRST}")
    viewed, file = view_library.tokenizer(FIRST), view_library.dataset("train").file
    counts = [0] * viewed.tokenizer.vocab_size
    for i in file[:].tolist():
        counts[i] += 1
    page.select_option("#counted", "train")
    playwright.expect(page.locator("#unused")).to_be_enabled()
    page.keyboard.press("Escape")
    page.select_option("#order", "most frequent")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("e")
    page.keyboard.press("Enter")
    expected = [x for x in viewed.tokenizer.vocab.items() if b"e" in x[1]]
    expected.sort(key=lambda x: -counts[x[0]])
    about = page.locator("#words-found")
    playwright.expect(about).to_have_text(f"{len(expected)} tokens, 1 to 100")
    cells = "all => all.map(x => [...x.cells].map(y => y.textContent))"
    shown = page.locator("#vocabulary tr:has(td)").evaluate_all(cells)
    assert [(int(row[0]), int(row[4].replace(",", ""))) for row in shown] == [
        (i, counts[i]) for i, _ in expected[:100]
    ]
    page.select_option("#script", "Latin")
    playwright.expect(about).to_have_text(f"{len(expected)} tokens, 1 to 100")
    page.select_option("#script", "no letters")
    playwright.expect(about).to_have_text("0 tokens")
    page.select_option("#script", "")
    page.check("#unused")
    never = [i for i, n in enumerate(counts) if not n and b"e" in viewed.tokenizer.vocab[i]]
    playwright.expect(about).to_contain_text(f"{len(never)} tokens")
    wait(page)
    shown = page.locator("#vocabulary tr:has(td)").evaluate_all(cells)
    assert [int(row[0]) for row in shown] == never[:100]
    assert vocabulary(viewed, "e")["n_tokens"] == len(expected)


def test_an_answer_is_not_lost_to_an_earlier_question(page: Any) -> None:
    """A page that asks again and again how far the counting is does not ask on for old words."""
    held: list[Any] = []

    def respond(route: Any) -> None:
        if route.request.post_data_json["query"]:
            held.append(route)
        else:
            found = route.fetch().json()
            route.fulfill(json=found | {"over": False, "done": 0, "total": 1})

    page.route("**/vocabulary", respond)
    show(page, f"tab=tokenizer&tokenizer={FIRST}")
    playwright.expect(page.locator("#words-found")).to_contain_text("0 % of the dataset counted")
    page.fill("#word", "zzz")
    with page.expect_request("**/vocabulary"):
        page.locator("#words button").first.click()
    page.evaluate("new Promise(done => setTimeout(done, 400))")  # after the timer of the page
    held[0].continue_()
    playwright.expect(page.locator("#words-found")).to_have_text("0 tokens")
    page.unroute("**/vocabulary")


def test_rows_of_a_step(page: Any, view_root: Path) -> None:
    fields = ("inputs", "segment_ids", "loss_mask")
    for name in ("train", "sharded/train"):
        file = dataset(view_root, "masked" if name == "train" else "sharded")
        for windows in ("stride", "documents", "packed"):
            batch = Sampler(file, 3, 80, windows=windows, order="epoch", fields=fields).batch(2)
            show(page, "tab=step&step=2&batch_size=3&context_length=80&"
                 f"windows={windows}&dataset={name}")  # fmt: skip
            boxes = page.locator("#rows .tokens")
            playwright.expect(boxes).to_have_count(3)
            for row in range(3):
                shown = tokens_of(boxes.nth(row))
                assert [each[0] for each in shown] == batch["inputs"][row].tolist()
                segments = boxes.nth(row).evaluate(
                    "box => [...box.querySelectorAll('.t')].map(t => 1 + "
                    "[...box.querySelectorAll('.segment')].indexOf(t.parentElement))"
                )
                assert segments == batch["segment_ids"][row].tolist()
                off = [each[3] for each in shown]
                mask, ids = batch["loss_mask"][row], batch["segment_ids"][row]
                assert off == [bool(s) and not m for m, s in zip(mask, ids, strict=True)]
    page.keyboard.press("ArrowRight")
    playwright.expect(page.locator("#step-about")).to_contain_text("Step 3 ")


def test_the_step_of_a_document(page: Any, view_root: Path) -> None:
    file = dataset(view_root, "masked")
    begins = int(file.document_ends[40])
    sampler = Sampler(file, 6, 80, order="epoch", seed=4)
    rows = ((step, row) for step in range(len(sampler)) for row in sampler.describe(step))
    step, row = next((i, row) for i, row in rows if any(
        x["document"] == 41 and x["token"] == begins for x in row["documents"]
    ))  # fmt: skip
    options = "batch_size=6&context_length=80&seed=4"
    show(page, f"tab=documents&dataset=train&number=41&{options}")
    page.click("#to-step")
    playwright.expect(page.locator("#step-about")).to_contain_text(f"Step {step} ")
    playwright.expect(page.locator("#rows h2").first).to_have_text(f"Row {row['row']}")
    page.go_back()
    page.fill("#wanted-step", "3")
    page.locator("#by-step button").click()
    playwright.expect(page.locator("#step-about")).to_contain_text("Step 3 (")
    playwright.expect(page.locator("#seed")).to_have_value("4")
    page.go_back()
    page.click("#to-step")
    playwright.expect(page.locator("#step-about")).to_contain_text(f"Step {step} ")
    page.locator("#rows .tokens").first.get_by_role("link", name="document 41").click()
    playwright.expect(page.locator("#document-title")).to_contain_text("Document 41 of")
    show(page, "tab=documents&dataset=train&number=41&windows=packed")
    playwright.expect(page.locator("#to-step")).to_be_hidden()


def test_the_address_has_the_state(page: Any) -> None:
    title = page.locator("#document-title")
    page.fill("#number", "5")
    page.locator("#by-number button").click()
    playwright.expect(title).to_contain_text("Document 5 of")
    page.fill("#token", "100")
    page.locator("#by-token button").click()
    playwright.expect(title).to_contain_text("Document 2 of")
    page.select_option("#documents .datasets", "sharded/train")
    playwright.expect(title).to_contain_text("Document 0 of")
    page.go_back()
    playwright.expect(title).to_contain_text("Document 2 of")
    page.reload()
    playwright.expect(title).to_contain_text("Document 2 of")
    playwright.expect(page.locator("#document-tokens .chosen")).to_have_count(1)
    page.go_back()
    playwright.expect(title).to_contain_text("Document 5 of")


def test_copy_as_python(page: Any, view_root: Path) -> None:
    show(page, "tab=documents&dataset=train&number=7")
    page.locator("#document-python summary").click()
    page.locator("#document-python .copy").click()
    playwright.expect(page.locator("#document-python .copy")).to_have_text("Copied")
    names: dict[str, Any] = {}
    exec(page.evaluate("navigator.clipboard.readText()"), names)
    assert names["ids"].tolist() == dataset(view_root, "masked").doc(7).tolist()


def test_lists_of_documents(page: Any, view_root: Path, view_library: Library) -> None:
    file = dataset(view_root, "masked")
    sizes = [len(file.doc(i)) - 1 for i in range(file.n_documents)]
    show(page, "tab=documents&dataset=train")
    page.get_by_text("Longest", exact=True).click()
    hits = page.locator("#found .hits a")
    playwright.expect(hits).to_have_count(file.n_documents)
    by_size = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    assert hits.all_text_contents() == [f"document {i}" for i in by_size]
    page.get_by_text("Random", exact=True).click()
    page.get_by_text("Worst compressed").click()
    title = page.locator("#found-title")
    playwright.expect(title).to_contain_text("Fewest bytes per token")
    assert hits.count() > 5
    page.get_by_text("Most repetitive").click()
    playwright.expect(title).to_contain_text("Documents of which most repeats")
    wait(page)
    found = view_library.dataset("train")
    found.scanning.wait()
    assert page.locator("#found .hits li").all_text_contents() == [
        f"document {i}: {n_tokens:,} tokens, {100 * n_repeats / n_tokens:.0f} % repeat"
        for i, n_tokens, _, n_repeats in found.scanned.repetitive.rows.tolist()
    ]
    page.get_by_text("Copies", exact=True).click()
    playwright.expect(title).to_have_text("Documents with the most copies")
    assert page.locator("#found .hits li").all_text_contents() == [
        f"document {i}: {len(file.doc(i))} tokens, 1 copy: {45 + i}" for i in range(3)
    ]
    page.get_by_role("link", name="46").click()
    playwright.expect(page.locator("#document-title")).to_contain_text("Document 46 of")
    playwright.expect(hits).to_have_count(6)


def test_keys_go_to_documents_of_a_length(page: Any, view_root: Path) -> None:
    file = dataset(view_root, "masked")
    expected = [i for i in range(file.n_documents) if 29 <= len(file.doc(i)) <= 40]
    show(page, "tab=documents&dataset=train&length=29-40&number=0")
    title = page.locator("#document-title")
    for key, numbers, button in (
        ("ArrowRight", expected[1:], "#next"), ("ArrowLeft", expected[-2::-1], "#previous"),
    ):
        for number in numbers:
            playwright.expect(page.locator(button)).to_be_enabled()
            page.keyboard.press(key)
            playwright.expect(title).to_contain_text(f"Document {number} of")
        playwright.expect(page.locator(button)).to_be_disabled()
    page.keyboard.press("ArrowLeft")
    page.click("#close-found")
    page.click("#next")
    playwright.expect(title).to_contain_text("Document 1 of")


def test_bars_list_the_documents_of_a_length(page: Any, view_root: Path) -> None:
    file = dataset(view_root, "masked")
    sizes = [len(file.doc(i)) for i in range(file.n_documents)]
    show(page, "tab=numbers&dataset=train")
    bars = page.locator("#histogram .bins a")
    playwright.expect(bars).not_to_have_count(0)
    seen = 0
    for label in bars.evaluate_all("all => all.map(x => x.ariaLabel)"):
        n, least, most = (int(x.replace(",", "")) for x in re.findall(r"[\d,]+", label))
        assert n == sum(least <= size <= most for size in sizes)
        seen += n
    assert seen == file.n_documents
    page.keyboard.press("/")  # the first bar
    chosen = page.evaluate("document.activeElement.ariaLabel")
    page.keyboard.press("Enter")
    n, least, most = (int(x) for x in re.findall(r"\d+", chosen))
    title = page.locator("#found-title")
    playwright.expect(title).to_have_text(f"Documents of {least} to {most} tokens: {n}")
    expected = [i for i, size in enumerate(sizes) if least <= size <= most]
    links = page.locator("#found .hits a")
    assert links.all_text_contents() == [f"document {i}" for i in expected]
    page.reload()
    playwright.expect(links).to_have_count(n)
    links.last.click()
    playwright.expect(page.locator("#document-title")).to_contain_text(f"Document {expected[-1]} ")
    page.click("#close-found")
    assert "length" not in page.url
    page.go_back()
    page.go_back()
    page.go_back()
    playwright.expect(page.locator("#numbers .numbers h2")).not_to_have_count(0)


def test_an_address_with_unknown_names(page: Any) -> None:
    for name in ("constructor", "toString", "x"):
        show(page, f"tab={name}&list={name}&dataset={name}&sampling={name}&order={name}")
        title = page.locator("#found-title")
        playwright.expect(title).to_contain_text("Longest documents")
        playwright.expect(page.locator("#document-title")).to_contain_text("Document 0 of 49")
        show(page, f"tab=documents&query=naïve&by={name}")
        playwright.expect(page.locator("#by")).to_have_value("text")
        show(page, f"tab=step&sampling={name}&windows={name}")
        playwright.expect(page.locator("#step-about")).to_contain_text("Step 0 (")
        playwright.expect(page.locator("#windows")).to_have_value("stride")
        show(page, f"tab=tokenizer&script={name}")
        playwright.expect(page.locator("#script option:checked")).to_have_text(f"{name} (0)")


def test_a_dataset_without_its_tokenizer_is_ids(page: Any, view_root: Path) -> None:
    ids = dataset(view_root, "bare").doc(3).tolist()
    with view_cases.viewing(view_root / "bare") as url:
        page.goto(f"{url}#tab=documents&dataset=train&number=3")
        wait(page)
        box = page.locator("#document-tokens")
        assert box.evaluate("x => x.textContent").split() == [*map(str, ids)]
        about = page.locator("#documents .about")
        playwright.expect(about).to_contain_text("Ids only: ")
        playwright.expect(about).to_contain_text("built with the tokenizer ")


@pytest.mark.parametrize("state", VIEWS)
def test_views_are_accessible(page: Any, state: str) -> None:
    show(page, state)
    if "tab=numbers" in state:
        page.wait_for_selector("#numbers .numbers section")
    if "tab=tokenizer" in state:
        page.locator("#sides .t").nth(2).click()
        playwright.expect(page.locator("#merges tr")).not_to_have_count(0)
    for details in page.locator("section:not([hidden]) details:visible > summary").all():
        details.click()
    assert not axe.Axe().run(page).response["violations"]
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") == width
