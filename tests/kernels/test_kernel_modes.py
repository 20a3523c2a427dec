"""The kernel tests once more: plain, with bounds checks, for others, between unreadable pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bpe.kernels.runtime import vectors
from bpe.kernels.runtime.jit import kernel

ROOT = Path(__file__).parents[2]
KERNELS = [str(path) for path in sorted(Path(__file__).parent.glob("test_kernels_*.py"))]


@kernel
def has_eight():
    return vectors.has_eight()


@pytest.mark.parametrize("mode", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_kernels_pass(mode: str, pytestconfig: pytest.Config) -> None:
    # Bounds are checked alike however well the compiler optimizes, which takes minutes. What comes
    # of that is for nobody else, and has a cache of its own.
    cache = pytestconfig.rootpath / ".pytest_cache" / mode.lower()
    environment = os.environ | {mode: "1", "NUMBA_CACHE_DIR": str(cache), "NUMBA_OPT": "1"}
    command = [sys.executable, "-m", "pytest", "-q", *KERNELS]
    run = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_encoding_passes_on_other_processors(pytestconfig: pytest.Config) -> None:
    if not has_eight():
        pytest.skip("for a processor without AVX-512 all other tests are compiled already")
    cache = pytestconfig.rootpath / ".pytest_cache" / "generic"
    generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_BOUNDSCHECK": "1"}
    environment = os.environ | generic | {"NUMBA_CACHE_DIR": str(cache), "NUMBA_OPT": "1"}
    tests = [
        *KERNELS,
        "-k",
        "encoder_gives_the_ids or beyond_a_window or eight",
    ]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *tests],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 skipped" in run.stdout, "eight words at a time were compiled for this processor"


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
