"""Python in a process of its own, which has this checkout and the helpers of the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def environment(**more: str) -> dict[str, str]:
    """The environment of such a process."""
    return os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}"} | more


def start(*arguments: object, **streams: Any) -> subprocess.Popen[str]:
    """Start Python with arguments, such as "-c" and code."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, **{"env": environment(), "text": True} | streams)


def run(
    *arguments: object, expected_exit: int = 0, cwd: Path | None = None, stdin: Any = None,
    **more: str,
) -> subprocess.CompletedProcess[str]:
    """Run Python with arguments until it ends; `more` is of its environment."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment(**more), cwd=cwd, stdin=stdin,
        capture_output=True, text=True, timeout=600, check=False,
    )
    assert done.returncode == expected_exit, done.stdout + done.stderr
    return done


def printed_by(code: str, *arguments: object, **more: str) -> str:
    """Run Python code, and return its standard output."""
    return run("-c", code, *arguments, **more).stdout
