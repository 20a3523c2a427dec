"""The kernel tests once more: uncompiled, with bounds checks, and between unreadable pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize("mode", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_kernels_pass(mode: str, pytestconfig: pytest.Config) -> None:
    # Bounds are checked alike however well the compiler optimizes, which takes minutes. What comes
    # of that is for nobody else, and has a cache of its own.
    cache = pytestconfig.rootpath / ".pytest_cache" / mode.lower()
    environment = os.environ | {mode: "1", "NUMBA_CACHE_DIR": str(cache), "NUMBA_OPT": "1"}
    command = [sys.executable, "-m", "pytest", "-q", str(TESTS / "test_kernels.py")]
    run = subprocess.run(
        command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect is called as on Linux")
def test_nothing_outside_the_buffer_is_read() -> None:
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(TESTS / "guard_pages.py")],
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "every length from 0 to 200" in run.stdout
