"""The kernel tests once more, uncompiled; and kernels between unreadable pages."""

from __future__ import annotations

import sys
from pathlib import Path

import processes
import pytest


@pytest.mark.parametrize("pattern", ["test_kernels_e*.py", "test_kernels_[!e]*.py"])
def test_kernels_pass_uncompiled(pattern: str) -> None:
    """As plain Python, which checks bounds."""
    files = sorted(Path(__file__).parent.glob(pattern))
    processes.run("-m", "pytest", "-q", *files, cwd=processes.ROOT, NUMBA_DISABLE_JIT="1")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect is called as on Linux")
def test_nothing_outside_the_buffer_is_read() -> None:
    script = processes.ROOT / "tests" / "support" / "guard_pages.py"
    assert "every length from 0 to 200" in processes.run("-X", "faulthandler", script).stdout
