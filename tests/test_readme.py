"""Every command and every piece of Python in the documentation runs on small files."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from preprocess import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "data" / "README.md")
}

# Run with `make -n` only: they would run these tests, or need what the tests may not install.
NOT_RUN = {
    "make test", "make test-all", "make test-clients", "make torture", "make fuzz",
    "make coverage", "make lint", "make bench", "make train", "make docs",
}

# Python that imports one of these runs in a test of its own, where they are installed.
_OPTIONAL = re.compile(
    r"^(?:import|from) (?:torch|tokenizers|transformers|pyarrow|datasets)\b", re.MULTILINE
)

# Loads those once, which takes seconds, and runs each text in a copy of the process.
_EACH = """
import os, sys, datasets, pyarrow, tokenizers, torch, transformers
for text in sys.argv[1:]:
    if not (child := os.fork()):
        exec(text, {"__name__": "__main__"})
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit(text)
"""

# Its Python is of other programs: tests/interop/test_clients.py runs it where they are installed.
_OF_OTHERS = "docs/clients.md"


def blocks(page: str) -> list[tuple[str, str]]:
    """(language, text) of each fenced block of a page, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", PAGES[page], re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """The lines of a block without their comments."""
    return [line.partition("  #")[0].strip() for line in text.splitlines() if line.strip()]


def headings(page: str) -> set[str]:
    """The anchors that the headings of a page get on GitHub."""
    found = re.findall(r"^#+ (.*)$", PAGES[page], re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in found}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with the files that make looks for, and with some text to work on."""
    for name in ("Makefile", "pyproject.toml", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    lines = [f"Line {i} of the text has the numbers {i * i} and {i * 7}.\n" for i in range(2000)]
    documents = ["".join(lines[i : i + 9]) for i in range(0, len(lines), 9)]
    (tmp_path / "train.txt").write_text("<|endoftext|>".join(documents))
    (tmp_path / "val.txt").write_text("<|endoftext|>".join(documents[::20]))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.txt").write_text("A short document in a directory.")
    commands = tmp_path / "commands"
    commands.mkdir()
    for name, arguments in (("python", ""), ("tokenmill", " -m preprocess")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        (commands / name).chmod(0o755)
    return tmp_path


def run(command: list[str] | str, checkout: Path) -> None:
    # Where make runs these tests, its own variables are in the environment.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k != "ARGS"}
    environment = kept | {
        "PATH": f"{checkout / 'commands'}{os.pathsep}{os.environ['PATH']}",
        # The packages under their own path, where their kernels are compiled already.
        "PYTHONPATH": str(ROOT),
        "READY_PYTHON": sys.executable,
    }
    done = subprocess.run(
        command, shell=isinstance(command, str), cwd=checkout, env=environment,
        capture_output=True, text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def run_here(what: str, call: Callable[[], int | None], checkout: Path) -> None:
    """Call in a copy of this process, in which everything is loaded; expects 0 or None."""
    said = checkout / "said"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(checkout)
            with open(said, "w") as sys.stdout:
                sys.stderr = sys.stdout
                try:
                    code = call() or 0
                except BaseException:
                    traceback.print_exc()
                    raise
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0, f"{what}\n{said.read_text()}"


def run_command(command: str, checkout: Path) -> None:
    """Run a command of the shell; one of tokenmill alone needs no new process."""
    if command.startswith("tokenmill ") and not set(command) & set("|<>&;$"):
        run_here(command, lambda: cli.run(shlex.split(command)[1:]), checkout)
    else:
        run(command, checkout)


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_everything_in_it_runs(page: str, checkout: Path) -> None:
    for language, text in blocks(page):
        if language == "python" and page != _OF_OTHERS and not _OPTIONAL.search(text):
            code = compile(text, page, "exec")
            run_here(text, lambda code=code: exec(code, {"__name__": "__main__"}), checkout)
        assert language in ("python", "sh", "mermaid", "text")
        if language != "sh":
            continue
        for command in commands(text):
            if " ".join(command.split()[:2]) in NOT_RUN:
                command = command.replace("make", "make -n", 1)
            run_command(command, checkout)
    if page == "README.md":
        for name in re.findall(r"^    corpus/([\w.]+)", README, re.MULTILINE):
            assert (checkout / "corpus" / name).stat().st_size > 0


def test_python_with_optional_libraries_runs(checkout: Path) -> None:
    for library in ("torch", "tokenizers", "transformers", "pyarrow", "datasets"):
        pytest.importorskip(library)
    pages = [page for page in PAGES if page != _OF_OTHERS]
    texts = [text for page in pages for _, text in blocks(page) if _OPTIONAL.search(text)]
    assert texts
    run_command("tokenmill build --train train.txt --out corpus --vocab-size 500", checkout)
    run([sys.executable, "-c", _EACH, *texts], checkout)


def test_every_target_of_make_is_documented() -> None:
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert targets
    assert set(re.findall(r"make ([\w-]+)", PAGES["docs/commands.md"])) >= set(targets[1].split())
    shown = [each for page in PAGES for _, text in blocks(page) for each in commands(text)]
    assert {" ".join(command.split()[:2]) for command in shown} >= NOT_RUN


def test_options_in_the_documentation_exist() -> None:
    """Each option of tokenmill that a page names exists, and each command is listed."""
    from preprocess.cli import COMMANDS

    options = [option for command in COMMANDS.values() for option in command.options()]
    existing = {option.flag for option in options} | {"--help"}
    names = ("commands", "look", "durability", "files")
    for page in ("README.md", *(f"docs/{name}.md" for name in names)):
        text = re.sub(r"ARGS=\".*?\"|`--config [^`]*`|TORCH=\".*?\"", "", PAGES[page])
        named = set(re.findall(r"--[a-z][\w-]*", text))
        assert {name.replace("_", "-") for name in named} <= existing, page
    table = PAGES["docs/commands.md"].partition("| command |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `([\w-]+)`", table, re.MULTILINE) == list(COMMANDS)


def test_manifest_table_is_complete() -> None:
    from msgspec.structs import replace

    from preprocess.dataset.manifest import ExtraColumn, Manifest, Shard

    page = PAGES["docs/files.md"]
    table = page.partition("is a JSON object:")[2].partition("\n\nIt has")[0]
    first_column = " ".join(line.split("|")[1] for line in table.splitlines() if "|" in line)
    keys = set(re.findall(r"`(\w+)`", first_column))
    manifest = Manifest(
        dtype="uint16", vocab_size=1, n_tokens=0, n_documents=0, n_bytes=0, end_of_text_id=0,
        begin_of_text_id=None, tokenizer_fingerprint="", pattern="", unicode_version="", sources=(),
        extra_columns=(ExtraColumn("mask", "uint8", "token"),), digests={"bin": (), "docs": ()},
    )
    divided = replace(manifest, shards=(Shard(0, 0),))
    texts = manifest.to_json() + divided.to_json()
    assert keys == set(re.findall(r'^  "(\w+)"', texts, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", PAGES[page]):
        if not target.startswith("https://"):
            path = (ROOT / page).parent / target if target else ROOT / page
            assert path.exists(), target
            if anchor:
                assert anchor in headings(path.resolve().relative_to(ROOT).as_posix()), anchor


def test_first_screen_has_the_command_and_python() -> None:
    lines = README.splitlines()
    assert any(line.startswith("make preprocess TRAIN=") for line in lines[:40])
    assert "```python" in lines[:35]
    assert len(lines) <= 150
