"""Every command and every piece of Python in the README runs, in order, on small files."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")

# Only looked at by make (-n): they would run these tests, or need what the tests may not install.
NOT_RUN = {
    "make test",
    "make test-all",
    "make torture",
    "make fuzz",
    "make coverage",
    "make lint",
    "make bench",
    "make train",
}


def blocks() -> list[tuple[str, str]]:
    """(language, text) of each fenced block, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """The lines of a block without their comments."""
    return [line.partition("  #")[0].strip() for line in text.splitlines() if line.strip()]


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
    for name, arguments in (("python", ""), ("tokenbin", " -m preprocess")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        (commands / name).chmod(0o755)
    return tmp_path


def run(command: list[str] | str, checkout: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")} | {
        "PATH": f"{checkout / 'commands'}{os.pathsep}{os.environ['PATH']}",
        # The packages under their own path, where their kernels are compiled already.
        "PYTHONPATH": str(ROOT),
        "READY_PYTHON": sys.executable,
    }
    done = subprocess.run(
        command,
        shell=isinstance(command, str),
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_everything_in_it_runs(checkout: Path) -> None:
    looked_at = set()
    for language, text in blocks():
        if language == "python":
            run([sys.executable, "-W", "error", "-c", text], checkout)
            continue
        assert language == "sh"
        for command in commands(text):
            target = " ".join(command.split()[:2])
            if target in NOT_RUN:
                looked_at.add(target)
                command = command.replace("make", "make -n", 1)
            run(command, checkout)
    assert looked_at == NOT_RUN
    for name in re.findall(r"^    corpus/([\w.]+)", README, re.MULTILINE):
        assert (checkout / "corpus" / name).stat().st_size > 0


def test_table_of_options_is_complete(checkout: Path) -> None:
    """Every option of build is in the README, and the README names no other."""
    text = run("tokenbin build --help", checkout)
    existing = set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE))
    table = README.partition("| option of `build`")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(--[\w-]+)", table))
    assert named <= existing
    assert existing - named == {"--debug", "--help", "--log-file", "--quiet"}


def test_manifest_table_is_complete() -> None:
    from msgspec.structs import replace

    from preprocess.dataset.manifest import ExtraColumn, Manifest, Shard

    table = README.partition("is a JSON object:")[2].partition("\n\nIt has")[0]
    first_column = " ".join(line.split("|")[1] for line in table.splitlines() if "|" in line)
    keys = set(re.findall(r"`(\w+)`", first_column))
    manifest = Manifest(
        dtype="uint16",
        vocab_size=1,
        n_tokens=0,
        n_documents=0,
        n_bytes=0,
        end_of_text_id=0,
        begin_of_text_id=None,
        tokenizer_fingerprint="",
        pattern="",
        unicode_version="",
        sources=(),
        extra_columns=(ExtraColumn("mask", "uint8", "token"),),
        digests={"bin": (), "docs": ()},
    )
    divided = replace(manifest, shards=(Shard(0, 0),))
    texts = manifest.to_json() + divided.to_json()
    assert keys == set(re.findall(r'^  "(\w+)"', texts, re.MULTILINE))


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "data" / "README.md", ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)", page.read_text("utf-8")):
            if not target.startswith("https://"):
                assert (page.parent / target).exists()


def test_first_screen_has_the_command_and_python() -> None:
    first_screen = README.splitlines()[:35]
    assert any(line.startswith("make preprocess TRAIN=") for line in first_screen)
    assert "```python" in first_screen
