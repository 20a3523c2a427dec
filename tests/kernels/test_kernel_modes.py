"""The kernel tests once more: plain, with bounds checks, between unreadable pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = sorted(Path(__file__).parent.glob("test_kernels_*.py"))


# Bounds are checked alike however well the compiler optimizes, which takes minutes. Such code has a
# cache of its own.
def run_tests(*arguments: str | Path, **environment: str) -> str:
    """Run pytest with these arguments; return what it printed."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *map(str, arguments)],
        env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_kernels_pass_uncompiled(path: Path) -> None:
    run_tests(path, NUMBA_DISABLE_JIT="1")


def test_kernels_pass_with_bounds_checks(pytestconfig: pytest.Config) -> None:
    cache = pytestconfig.rootpath / ".pytest_cache" / "boundscheck"
    run_tests(*KERNELS, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(cache), NUMBA_OPT="0")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect is called as on Linux")
def test_nothing_outside_the_buffer_is_read() -> None:
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(ROOT / "tests" / "support" / "guard_pages.py")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "every length from 0 to 200" in run.stdout
