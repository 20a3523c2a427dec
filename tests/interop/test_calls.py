"""Calls as users of other tools write them, through an installed wheel.

`tests/calls` has the calls in their own spelling, each with what it must give; nothing of the
checkout is on the path of the processes that run them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from object_server import s3_bucket

for _name in ("torch", "transformers", "pyarrow", "pandas"):
    pytest.importorskip(_name, reason="needs the extras `torch`, `hf`, `formats` and `interop`")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An environment with the wheel of this checkout, and the libraries of this one."""
    directory = tmp_path / "installed"
    directory.mkdir()
    copy = directory / "checkout"
    copy.mkdir()
    for name in ("bpe", "preprocess", "pyproject.toml", "README.md", "LICENSE"):
        (copy / name).symlink_to(ROOT / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", directory, copy], check=True
    )
    venv.create(directory / "venv", symlinks=True)
    found = directory / "venv" / "bin" / "python"
    (wheel,) = directory.glob("tokenmill-*.whl")
    subprocess.run([*pip, "--python", found, "install", "--no-deps", wheel], check=True)
    packages = next((directory / "venv").glob("lib/python*/site-packages"))
    # Directories that are added in this way have no `.pth` files of their own, so the checkout,
    # which may be installed in them, is not found.
    (packages / "libraries.pth").write_text(sysconfig.get_paths()["purelib"])
    return found


def test_calls_that_people_bring(python: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
    with s3_bucket() as url:
        environment |= {x: y for x, y in os.environ.items() if x.startswith("AWS_")}
        done = subprocess.run(
            [python, ROOT / "tests" / "calls" / "run_calls.py", tmp_path, url],
            capture_output=True, text=True, env=environment, cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    assert not failed, "\n".join(f"{name}:\n{text}" for name, text in failed.items())
