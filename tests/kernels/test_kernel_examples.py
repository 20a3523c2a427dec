"""Worked examples in the docstrings of kernels: each has one, and statements are run."""

import ast
import os
import subprocess
import sys
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "bpe" / "kernels"

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


def test_every_kernel_has_an_example() -> None:
    kernels = {
        f"{path.stem}.{node.name}": ast.get_docstring(node) or ""
        for path in KERNELS.rglob("*.py")
        if path.stem != "jit"  # its kernels only check the compiler
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator) == "kernel" for decorator in node.decorator_list)
    }
    assert len(kernels) > 80
    marks = "Example", "->", ">>>"
    assert not [name for name, text in kernels.items() if not any(mark in text for mark in marks)]
