"""No stale or damaged kernel can run: a changed callee or table, a kill, a power cut."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import processes
import pytest

import bpe

FIND = """
import numpy as np
from bpe.text.search import find_all
print(find_all(np.frombuffer(b"a-a" + b"-" * 100, np.uint8), b"a").tolist())
"""
SPLIT = """
from bpe.split.pretokenizer import Pretokenizer
print(Pretokenizer("gpt2").split("né".encode()))
"""
FAMILY = """
from bpe.runtime.jit import kernel
def made(step):
    def add_step(x):
        return x + step
    add = kernel(add_step, f"_{step}")
    def twice(x):
        return add(add(x))
    return kernel(twice, f"_{step}")
ONE, TWO = made(1), made(2)
"""
DIE_BEFORE_THE_NAME = """
import os
os.replace = lambda source, target: os._exit(9)
"""
NO_SPACE = """
import errno, os
def full(descriptor, data):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
os.write = full
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Return a copy of the package, to be changed."""
    source = Path(bpe.__file__).parent
    copy = tmp_path / "copy" / "bpe"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


def execute(
    package: Path, program: str, expected_exit: int | None = 0, **settings: str
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(package.parent.parent / "cache"), "PYTHONPATH": str(package.parent),
    }
    environment.pop("NUMBA_DISABLE_JIT", None)
    finished = subprocess.run(
        [sys.executable, "-c", program], env=environment | settings, cwd=package.parent,
        capture_output=True, text=True, check=False,
    )
    assert expected_exit in (None, finished.returncode), finished.stderr
    return finished


def run(package: Path, program: str, expected_exit: int = 0, **settings: str) -> str:
    finished = execute(package, program, expected_exit, **settings)
    return finished.stdout.strip() + ("|compiled" if "compiling" in finished.stderr else "|cached")


def change(path: Path, before: str, after: str) -> None:
    """Edit a file and leave its time stamp as it was."""
    state = path.stat()
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_a_callee_or_a_table_in_another_file_that_changes(package: Path) -> None:
    assert run(package, FIND + SPLIT) == "[0, 2]\n[b'n\\xc3\\xa9']|compiled"
    change(package / "unicode_classes.py", 'LETTER: ("L",)', 'LETTER: ("L?",)')
    assert run(package, SPLIT) == "[b'n', b'\\xc3\\xa9']|compiled"
    change(
        package / "runtime" / "intrinsics.py",
        "lambda call, word: call.builder.cttz(word, I1(0))",
        "lambda call, word: call.builder.add(call.builder.cttz(word, I1(0)), I64(1))",
    )
    assert run(package, FIND) not in ("[0, 2]|cached", "[0, 2]|compiled")


def kept(package: Path) -> list[Path]:
    """The files with the machine code of `find_all`."""
    return sorted((package.parent.parent / "cache").rglob("search.find_some-*.o"))


def test_a_kill_and_a_full_disk_while_machine_code_is_written(package: Path) -> None:
    run(package, DIE_BEFORE_THE_NAME + FIND, expected_exit=9)
    assert not kept(package)
    shutil.rmtree(package.parent.parent / "cache")
    finished = execute(package, NO_SPACE + FIND)
    assert finished.stdout == "[0, 2]\n"
    said = "compiled again in the next process, because "
    assert finished.stderr.count(said) == 1
    assert "cannot be written (No space left on device)" in finished.stderr
    assert not [path for path in (package.parent.parent / "cache").rglob("*") if path.is_file()]
    assert run(package, FIND) == "[0, 2]|compiled"
    assert run(package, FIND) == "[0, 2]|cached"


def test_a_damaged_file_is_overwritten(package: Path) -> None:
    """As a power cut or a disk may leave it."""
    assert run(package, FIND) == "[0, 2]|compiled"
    (path,) = kept(package)
    sound = path.read_bytes()
    flipped = sound[:-100] + bytes([sound[-100] ^ 1]) + sound[-99:]
    for damaged in (sound[: len(sound) // 2], flipped, None):
        reason = "its content is not what was written" if damaged is not None else (
            os.strerror(errno.ELOOP)
        )
        if damaged is not None:
            path.write_bytes(damaged)
        else:
            path.unlink()
            path.symlink_to(path)  # nobody can read that, and root can read all others
        finished = execute(package, FIND)
        assert finished.stdout == "[0, 2]\n"
        said = f"the first such file is {path} ({reason})"
        assert finished.stderr.count("cache is damaged") == finished.stderr.count(said) == 1
    assert run(package, FIND) == "[0, 2]|cached"


FIND_INTO = """
import numpy as np
from bpe.text.search import find_some
print(find_some(np.zeros(3, np.uint8), np.zeros(1, np.uint8), 0, np.zeros({}, np.int64)))
"""


def test_code_with_bounds_checks_is_kept_apart(package: Path) -> None:
    assert run(package, FIND_INTO.format(4)) == "(3, 3)|compiled"
    checked = execute(package, FIND_INTO.format(0), expected_exit=1, NUMBA_BOUNDSCHECK="1")
    assert "IndexError: index is out of bounds" in checked.stderr
    assert "compiling" in checked.stderr
    # A file is not taken for another one.
    first, second = kept(package)
    unchecked, checked_code = first.read_bytes(), second.read_bytes()
    first.write_bytes(checked_code)
    second.write_bytes(unchecked)
    for said in ("compiled", "cached"):
        found = run(package, FIND_INTO.format(4), NUMBA_BOUNDSCHECK="1")
        assert found == f"(3, 3)|{said}"


OWN = """
from typing import NamedTuple
import numpy as np
from bpe.runtime.jit import kernel
STEP = 2
class Pair(NamedTuple):
    first: object
    second: object
@kernel
def callee(x):
    return x * 2
@kernel
def caller(pair, x):
    return callee(x) + STEP + pair.first[0]
print(caller(Pair(first=np.array([10]), second=np.array([20])), 100))
"""


def test_a_kernel_of_somebody_elses_whose_module_changes(package: Path) -> None:
    module = package.parent / "own.py"
    module.write_text(OWN, encoding="utf-8")
    for said in ("compiled", "cached"):
        assert run(package, "import own") == f"212|{said}"
    for before, after in (
        ("STEP = 2", "STEP = 3"), ("x * 2", "x * 3"),
        ("    first: object\n    second", "    second: object\n    first"),
    ):
        change(module, before, after)
    shutil.rmtree(package.parent / "__pycache__", ignore_errors=True)
    assert run(package, "import own") == "313|compiled"
    # What was imported runs, and is not kept for what stands there since.
    module.write_text(OWN.replace("print(caller", "run = lambda: print(caller"), encoding="utf-8")
    edit = (
        "import own\nfrom pathlib import Path\nPath('own.py').write_text("
        "Path('own.py').read_text().replace('STEP = 2', 'STEP = 3'))\nown.run()"
    )
    assert run(package, edit) == "212|compiled"
    shutil.rmtree(package.parent / "__pycache__", ignore_errors=True)
    assert run(package, "import own; own.run()") == "213|compiled"


def test_a_kernel_that_is_in_no_file_and_a_cache_that_is_none(package: Path) -> None:
    assert run(package, OWN) == "212|compiled"
    cache = package.parent.parent / "cache"
    assert not list(cache.rglob("*.o"))
    shutil.rmtree(cache, ignore_errors=True)
    cache.write_text("a file, not a directory", encoding="utf-8")
    assert run(package, FIND) == "[0, 2]|compiled"


FAILING = """
from bpe.runtime import compiler
def fail(*arguments):
    raise AttributeError("numba has no such pass")
compiler.compiled = fail
"""
NO_COMPILER = "import sys; sys.modules['bpe.runtime.compiler'] = None\n"
ENCODE = """
from bpe import Tokenizer
from bpe.vocabulary import Vocabulary
tokenizer = Tokenizer.from_vocabulary(Vocabulary.from_merges([(b"a", b"b"), (b"ab", b"c")]))
print(tokenizer.encode_ordinary("abc abc"), tokenizer.encode_batch(["abcab"] * 2))
"""


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(FAILING, "AttributeError: numba has no such pass"),
     (NO_COMPILER, "ModuleNotFoundError: import of bpe.runtime.compiler halted")],
)
def test_numba_compiles_what_our_way_of_compiling_cannot(
    package: Path, failure: str, reason: str
) -> None:
    said = "kernels run as numba.njit compiles them, which takes longer to compile and to run"
    finished = execute(package, failure + FIND)
    assert finished.stdout == "[0, 2]\n"
    assert finished.stderr.count(said) == finished.stderr.count(reason) == 1
    files = set((package.parent.parent / "cache").rglob("*.nb[ic]"))
    assert files
    if failure == FAILING:  # in the second process they come from numba's cache
        assert execute(package, failure + FIND).stdout == "[0, 2]\n"
        assert set((package.parent.parent / "cache").rglob("*.nb[ic]")) == files


def test_numba_compiles_all_of_encoding_alike(package: Path) -> None:
    expected = "[257, 32, 257] [[257, 256], [257, 256]]\n"
    assert execute(package, NO_COMPILER + ENCODE, NUMBA_OPT="0").stdout == expected


FORK = """
import os, threading
import numpy as np
from bpe.runtime import compiler, jit
from bpe.text.search import find_some
started, go_on = threading.Event(), threading.Event()
compiled = compiler.compiled
def slow(*arguments):
    started.set()
    go_on.wait()
    return compiled(*arguments)
@jit.kernel
def other(x):
    return x + 1
other(1)
compiler.compiled = slow
text = np.frombuffer(b"a-a", np.uint8)
thread = threading.Thread(target=find_some, args=(text, text[:1], 0, np.empty(9, np.int64)))
thread.start()
started.wait()
threading.Timer(0.2, go_on.set).start()
child = os.fork()
if child == 0:
    os._exit(other(np.uint64(41)))
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_that_is_forked_while_a_kernel_is_compiled(package: Path) -> None:
    assert execute(package, FORK, NUMBA_CACHE_DIR="/dev/null/none").stdout == "42\n"


ALL_KERNELS = """
from bpe import train_bpe
train_bpe(["hello world " * 20, "a b c"], vocab_size=260).encode("hello")
"""
COMPILER = """
import sys
print("numba" in sys.modules)
"""


def test_machine_code_that_is_there_needs_no_compiler(package: Path) -> None:
    assert run(package, FIND + COMPILER) == "[0, 2]\nTrue|compiled"
    assert run(package, FIND + COMPILER) == "[0, 2]\nFalse|cached"
    # All kernels, in the usual cache: they may be compiled in the first of these processes.
    for _ in range(2):
        printed = processes.printed_by(ALL_KERNELS + COMPILER)
    assert printed == "False\n"


def test_kernels_of_one_source_are_compiled_once_and_told_apart(package: Path) -> None:
    """They are made by one function, and close over their numbers and over one another.

    In one process they come together from the cache, as the scanners of all patterns do.
    """
    (package.parent / "family.py").write_text(FAMILY, encoding="utf-8")
    assert run(package, "import family; print(family.ONE(5))") == "7|compiled"
    assert run(package, "import family; print(family.TWO(5))") == "9|compiled"
    both = "import family; print(family.ONE(5), family.TWO(5))"
    assert run(package, both) == "7 9|cached"
