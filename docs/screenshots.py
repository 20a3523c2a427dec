"""Make the screenshots of docs/, view.png and report.png: `python docs/screenshots.py`.

Needs the extras `view`, `plot` and `browser`, and Chromium. The text is made here.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

DIRECTORY = Path(__file__).parent
WORDS = [line.split(", ") for line in (
    "A small fox, The old miller, Two children, A baker named Anna, The river, My neighbour",
    "walked to, looked at, remembered, was afraid of, painted, could not find",
    "the mill, a bridge of stone, the naïve owl, seven candles, an empty house, the sea",
    "in the morning, after the rain, once more, on 3 May 1921, at 7:45, every winter",
)]  # fmt: skip


def story(chosen: random.Random) -> str:
    """A document of 4 to 40 sentences, now and then with code."""
    n_lines = chosen.randrange(4, 40)
    lines = [" ".join(map(chosen.choice, WORDS)) + "." for _ in range(n_lines)]
    if chosen.random() < 0.3:
        lines.append("\tfor i in range(12):\n\t\tprint(i, i * i)  # ½, ☃ and 日本語")
    return "\n".join(lines)


def build(root: Path) -> None:
    """Build a dataset of 600 stories, and its report."""
    chosen = random.Random(0)
    (root / "stories.txt").write_text(
        "<|endoftext|>".join(story(chosen) for _ in range(600)), encoding="utf-8"
    )
    options = ["--val-fraction", "0.05", "--vocab-size", "420", "--quiet"]
    run(root, "build", "--train", "stories.txt", *options)
    run(root, "report", "data", "--out", "report.html")


def run(root: Path, *arguments: str) -> None:
    """Run a command of tokenmill."""
    subprocess.run([sys.executable, "-m", "preprocess", *arguments], cwd=root, check=True)


def shoot(root: Path) -> None:
    """Take both pictures."""
    command = [sys.executable, "-m", "preprocess", "view", "data", "--no-browser"]
    server = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    try:
        with sync_playwright() as driver:
            chromium = shutil.which("chromium") or shutil.which("chromium-browser")
            sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
            browser = driver.chromium.launch(executable_path=chromium, args=sandbox)
            page = browser.new_page(viewport={"width": 1100, "height": 640})
            page.goto(f"{url}#tab=documents&dataset=train&number=7")
            page.wait_for_selector("body[data-waiting='0']")
            save(page, "view.png")
            page.goto((root / "report.html").as_uri())
            save(page, "report.png")
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()


def save(page: Any, name: str) -> None:
    """Write what is on the screen, of at most 200 KB."""
    assert len(page.screenshot(path=DIRECTORY / name)) < 200_000, name


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        build(Path(directory))
        shoot(Path(directory))
