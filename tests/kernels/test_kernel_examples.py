"""Worked examples in the docstrings of kernels are run."""

import os
import subprocess
import sys

RUN = """
import doctest, importlib, pkgutil, sys
import bpe.kernels
n = 0
for module in pkgutil.walk_packages(bpe.kernels.__path__, "bpe.kernels."):
    result = doctest.testmod(importlib.import_module(module.name))
    n += result.attempted
    if result.failed:
        sys.exit(1)
print(n)
"""


def test_examples_in_docstrings_of_kernels() -> None:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout) > 20
