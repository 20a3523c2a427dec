"""Every error message of the packages is expected by some test, at least a phrase of it."""

import ast
import functools
import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpe.errors import CorpusError, options_as_in_command, spelled

ROOT = Path(__file__).parent.parent
# Functions that raise, or return, an error with the message that they are given.
REFUSING = {"refuse", "unsupported"}
# So many characters of a message in a row, or all of its longest part, are in the text of a test.
PHRASE = 14


def parts_of(node: ast.AST) -> Iterator[str]:
    """Yield the literal parts of a message."""
    match node:
        case ast.Constant(value=str(text)):
            yield text.strip()
        case ast.JoinedStr(values=values):
            for value in values:
                if isinstance(value, ast.Constant):
                    yield from parts_of(value)
        case ast.BinOp(left=left, right=right):
            yield from parts_of(left)
            yield from parts_of(right)
        case ast.IfExp(body=body, orelse=orelse):
            yield from parts_of(body)
            yield from parts_of(orelse)


@functools.cache
def messages() -> dict[str, list[str]]:
    """Return "path:line" -> the literal parts of its message, for every message with words."""
    found = {}
    for path in sorted([*(ROOT / "bpe").rglob("*.py"), *(ROOT / "preprocess").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call):
                continue
            name = ast.unparse(call.func).rpartition(".")[2]
            # An assertion that fails is a defect of ours, and has no way to be tested.
            if name in REFUSING or (isinstance(node, ast.Raise) and name != "AssertionError"):
                parts = [part for given in call.args for part in parts_of(given)]
                if any(len(part) >= 4 for part in parts):
                    found[f"{path.relative_to(ROOT)}:{node.lineno}"] = parts
    return found


@pytest.fixture(scope="module")
def expected() -> str:
    """All text in the tests; escapes of regular expressions are undone."""
    texts = []
    for path in (ROOT / "tests").rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        texts += [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    return re.sub(r"\\(.)", r"\1", "\n".join(texts))


def test_messages_name_arguments_in_python() -> None:
    """And options in the command; a command line stays as it is."""
    found = [part for parts in messages().values() for part in parts if "--" in part]
    assert len(found) > 60
    for part in found:
        command = re.search("tokenmill \\w+ --|verify --|ray start --", part)
        assert "--" not in spelled(part) or command
        with options_as_in_command():
            assert spelled(part) == part
    for text, expected in [
        ("give it (--special-token), (--unit-size 5)", "give it (special_tokens), (unit_size=5)"),
        ("--out: exists; data--x/--y.txt, ./--out", "--out: exists; data--x/--y.txt, ./--out"),
        ("add it: --end-of-text '<a>'", "add it: end_of_text='<a>'"),
        ("--chat sharegpt, or another", "chat='sharegpt', or another"),
    ]:
        assert str(CorpusError(text)) == expected


def phrases_of(parts: list[str], length: int) -> set[str]:
    """All that is of so many characters in a row in the parts of a message."""
    return {part[i : i + length] for part in parts for i in range(len(part) - length + 1)}


def test_every_message_is_expected_by_a_test(expected: str) -> None:
    found = messages()
    assert len(found) > 290
    lengths = {place: min(PHRASE, max(map(len, parts))) for place, parts in found.items()}
    # How many messages have a phrase; one that is raised in several places counts as one.
    different = {"\n".join(parts): parts for parts in found.values()}.values()
    n_with = {n: Counter(x for parts in different for x in phrases_of(parts, n))
              for n in {*lengths.values()}}  # fmt: skip
    missing = []
    for place, parts in found.items():
        phrases, counts = phrases_of(parts, lengths[place]), n_with[lengths[place]]
        own = [phrase for phrase in phrases if counts[phrase] == 1] or phrases
        if not any(phrase in expected for phrase in own):
            missing.append(f"{place} {' ... '.join(parts)}")
    assert not missing, "\n".join(missing)


def test_the_page_of_errors_has_every_message() -> None:
    """The tables of the site, which are made by another reading of the source code."""
    spec = importlib.util.spec_from_file_location("docs_errors", ROOT / "docs" / "errors.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    listed: dict[str, list[str]] = {}
    of_page = [*page.messages()]
    page.messages = lambda: of_page  # which takes a while
    for module, _, text in of_page:
        listed.setdefault(module, []).append(text)
    assert sum(map(len, listed.values())) > 650
    for place, parts in messages().items():
        module = place.partition(".py")[0].replace("/", ".").removesuffix(".__init__")
        missing = [part for part in parts if not any(part in text for text in listed[module])]
        assert missing == [], place
    shown = page.page()
    assert "| the list has no path | write one in each line | `CorpusError` |" in shown
    assert shown.count("\n| ") > 650
