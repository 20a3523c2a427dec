"""The kernel tests once more, uncompiled; and kernels between unreadable pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("pattern", ["test_kernels_e*.py", "test_kernels_[!e]*.py"])
def test_kernels_pass_uncompiled(pattern: str) -> None:
    """As plain Python, which checks bounds."""
    files = sorted(map(str, Path(__file__).parent.glob(pattern)))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *files],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"}, cwd=ROOT, capture_output=True, text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


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
