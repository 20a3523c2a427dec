"""No stale or damaged kernel can run: a changed callee or table, a kill, a power cut."""

from __future__ import annotations

import ast
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest
from numba.core.errors import NumbaTypeError
from numba.core.typing.typeof import typeof
from numpy.typing import NDArray

import bpe
from bpe import reference
from bpe.kernels import jit

ROOT = Path(__file__).parent.parent

FIND = """
import numpy as np
from bpe.pretokenize import find_all
print(find_all(np.frombuffer(b"a-a" + b"-" * 100, np.uint8), b"a").tolist())
"""
SPLIT = """
from bpe.pretokenize import Pretokenizer
print(Pretokenizer("gpt2").split("né".encode()))
"""
FAMILY = """
import itertools
from numba.core.bytecode import FunctionIdentity
from bpe.pretokenize import Pretokenizer
FunctionIdentity._unique_ids = itertools.repeat(1)
text = "HelloWorld 1234567's!\\n\\n\\n\\n \\n/\\n ".encode()
print([Pretokenizer(pattern).split(text) for pattern in {}])
"""
DIE_BEFORE_THE_DATA = """
import os
from numba.core.caching import IndexDataCacheFile
IndexDataCacheFile._save_data = lambda self, name, data: os._exit(9)
"""

NO_SPACE_FOR_THE_DATA = """
import errno, os
from numba.core.caching import IndexDataCacheFile
def full(self, name, data):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
IndexDataCacheFile._save_data = full
"""

# How much LLVM code is parsed: that of `find_all` is three times as long as a list of its symbols.
CALLED_LATER = """
import numba
from llvmlite import binding
sizes, parse = [0], binding.parse_bitcode
def noted(code, *context):
    sizes.append(len(code))
    return parse(code, *context)
binding.parse_bitcode = noted
FIND
from bpe.kernels import search
n_before = max(sizes)
@numba.njit
def n_found(text, wanted, position, found):
    return search.find_all(text, wanted, position, found)[0]
text = np.frombuffer(b"a-a" + b"-" * 100, np.uint8)
print(n_found(text, text[:1], 0, np.empty(9, np.int64)), max(sizes) > 2 * n_before > 0)
""".replace("FIND", FIND)

# As a numba would that asks the kernel for its code in another way.
OTHERWISE = """
from bpe.kernels import search
for compiled in search.find_all.overloads.values():
    del compiled.library._get_module_for_linking
print("until here", flush=True)
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
        "NUMBA_CACHE_DIR": str(package.parent.parent / "cache"),
        "PYTHONPATH": str(package.parent),
    }
    environment.pop("NUMBA_DISABLE_JIT", None)
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | settings,
        cwd=package.parent,
        capture_output=True,
        text=True,
        check=False,
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


def test_kernels_are_compiled_once(package: Path) -> None:
    assert run(package, FIND) == "[0, 2]|compiled"
    assert run(package, FIND) == "[0, 2]|cached"


def test_a_changed_callee_in_another_file(package: Path) -> None:
    assert run(package, FIND) == "[0, 2]|compiled"
    change(
        package / "kernels" / "machine.py",
        "return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))",
        "return builder.add(builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0)), _I64(1))",
    )
    assert run(package, FIND) != "[0, 2]|cached"
    assert run(package, FIND).startswith("[]")


def test_a_changed_table(package: Path) -> None:
    assert run(package, SPLIT).startswith("[b'n\\xc3\\xa9']")
    change(package / "unicode_classes.py", '"Ll": LETTER | LOWER', '"Ll": NUMBER')
    assert run(package, SPLIT) == "[b'n', b'\\xc3\\xa9']|compiled"


def test_a_kill_between_index_and_machine_code(package: Path) -> None:
    run(package, DIE_BEFORE_THE_DATA + FIND, expected_exit=9)
    assert run(package, FIND) == "[0, 2]|compiled"
    assert run(package, FIND) == "[0, 2]|cached"


def cut_off(content: bytes) -> bytes:
    return content[: len(content) // 2]


def one_bit_other(content: bytes) -> bytes:
    return content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]


def test_a_damaged_file_is_overwritten(package: Path) -> None:
    """As a power cut or a disk may leave an index or machine code."""
    assert run(package, FIND) == "[0, 2]|compiled"
    cache = package.parent.parent / "cache"
    (index,) = cache.rglob("search.find_all-*.nbi")
    (code,) = cache.rglob("search.find_all-*.nbc")
    for path, damaged in [
        (index, cut_off(index.read_bytes())),
        (index, b"garbage\n" * 40),
        (code, cut_off(code.read_bytes())),
        (code, one_bit_other(code.read_bytes())),
    ]:
        path.write_bytes(damaged)
        finished = execute(package, FIND)
        assert finished.stdout == "[0, 2]\n"
        said = f"the first such file is {path} (its content is not what was written)"
        assert finished.stderr.count("cache is damaged") == finished.stderr.count(said) == 1
    assert run(package, FIND) == "[0, 2]|cached"


def test_a_file_that_cannot_be_read_is_overwritten(package: Path) -> None:
    assert run(package, FIND) == "[0, 2]|compiled"
    (index,) = (package.parent.parent / "cache").rglob("search.find_all-*.nbi")
    index.unlink()
    index.symlink_to(index)  # nobody can read that, and root can read all others
    finished = execute(package, FIND)
    assert finished.stdout == "[0, 2]\n"
    assert f"{index} ({os.strerror(errno.ELOOP)})" in finished.stderr
    assert run(package, FIND) == "[0, 2]|cached"


FIND_INTO = """
import numpy as np
from bpe.kernels.search import find_all
print(find_all(np.zeros(3, np.uint8), np.zeros(1, np.uint8), 0, np.zeros({}, np.int64)))
"""


def test_code_with_bounds_checks_is_kept_apart(package: Path) -> None:
    for compiles in (True, False):
        assert run(package, FIND_INTO.format(4)) == f"(3, 3)|{'compiled' if compiles else 'cached'}"
        checked = execute(package, FIND_INTO.format(0), expected_exit=1, NUMBA_BOUNDSCHECK="1")
        assert "IndexError: index is out of bounds" in checked.stderr
        assert ("compiling" in checked.stderr) == compiles


def test_code_is_not_taken_for_that_of_another_key(package: Path) -> None:
    """As numbers of files can be given twice: after a damaged index, or by two processes."""
    for checks in ("0", "1"):
        assert run(package, FIND, NUMBA_BOUNDSCHECK=checks) == "[0, 2]|compiled"
    first, second = sorted((package.parent.parent / "cache").rglob("search.find_all-*.nbc"))
    unchecked, checked = first.read_bytes(), second.read_bytes()
    first.write_bytes(checked)
    second.write_bytes(unchecked)
    assert run(package, FIND, NUMBA_BOUNDSCHECK="1") == "[0, 2]|compiled"
    assert run(package, FIND, NUMBA_BOUNDSCHECK="1") == "[0, 2]|cached"


def test_a_full_disk_while_machine_code_is_written(package: Path) -> None:
    finished = execute(package, NO_SPACE_FOR_THE_DATA + FIND)
    assert finished.stdout == "[0, 2]\n"
    said = "compiled anew in the next process, because "
    assert finished.stderr.count(said) == 1
    assert "cannot be written (No space left on device)" in finished.stderr
    assert run(package, FIND) == "[0, 2]|compiled"
    assert run(package, FIND) == "[0, 2]|cached"


def test_no_cache_where_none_can_be_written(package: Path) -> None:
    (package.parent.parent / "cache").write_text("a file, not a directory", encoding="utf-8")
    assert run(package, FIND) == "[0, 2]|compiled"


ALL_KERNELS = """
from bpe import train_bpe
train_bpe(["hello world " * 20, "a b c"], vocab_size=260).encode("hello")
"""
COMPILER = """
import sys
print("numba.np.npyimpl" in sys.modules)
"""


def test_machine_code_that_is_there_needs_no_compiler(package: Path) -> None:
    assert run(package, FIND + COMPILER) == "[0, 2]\nTrue|compiled"
    assert run(package, FIND + COMPILER) == "[0, 2]\nFalse|cached"
    # All kernels, in the usual cache: they may be compiled in the first of these processes.
    for _ in range(2):
        finished = subprocess.run(
            [sys.executable, "-c", ALL_KERNELS + COMPILER],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert finished.stdout == "False\n"


LOCKED = """
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu import CPUContext
from numba.np import numpy_support

locked = {}

def recorded(name, method):
    def call(*arguments):
        locked.setdefault(name, set()).add(global_compiler_lock._lock._is_owned())
        return method(*arguments)
    return call

numpy_support.from_dtype = recorded("look up", numpy_support.from_dtype)
CPUContext.load_additional_registries = recorded("load", CPUContext.load_additional_registries)
"""


def test_a_kernel_from_the_cache_is_called_by_one_compiled_later(package: Path) -> None:
    """What the compiler needs of it is read then, and not before."""
    assert run(package, FIND) == "[0, 2]|compiled"
    assert run(package, CALLED_LATER) == "[0, 2]\n2 True|cached"


def test_with_a_numba_that_keeps_the_code_elsewhere(package: Path) -> None:
    """Then it is read at once."""
    change(package / "kernels" / "jit.py", '"_get_module_for_linking"', '"code_to_link"')
    assert run(package, FIND) == "[0, 2]|compiled"
    assert run(package, CALLED_LATER) == "[0, 2]\n2 False|cached"


def test_what_stands_in_for_the_code_cannot_be_run(package: Path) -> None:
    assert run(package, FIND) == "[0, 2]|compiled"
    otherwise = CALLED_LATER.replace("from bpe.kernels import search", OTHERWISE)
    finished = execute(package, otherwise, expected_exit=None)
    assert finished.stdout == "[0, 2]\nuntil here\n"
    assert finished.returncode < 0, finished.stderr


def test_no_type_is_looked_up_while_numba_loads_types(package: Path) -> None:
    """Or two workers whose first kernels come at the same moment could fail."""
    said = run(package, LOCKED + FIND + "print(sorted(locked.items()))")
    assert said == "[0, 2]\n[('load', {True}), ('look up', {True})]|compiled"


class Pair(NamedTuple):
    first: NDArray[Any]
    second: NDArray[Any]


def argument_values() -> list[Any]:
    plain = np.zeros((4, 6), np.uint32)
    fixed = np.zeros(3, np.int64)
    fixed.flags.writeable = False
    arrays = [plain, fixed, plain.T, plain[:, ::2], plain[0], np.zeros((), np.uint64)]
    arrays += [np.zeros(1, kind) for kind in "bBhHiIqQfd?"]
    numbers = [1, -1, 2**63, True, 0.5, np.uint8(1), np.int64(1), np.uint64(2**63), None]
    return [*arrays, *numbers, Pair(plain, fixed), (1, plain), (plain, fixed)]


def other_values() -> list[Any]:
    """Values that no kernel has, and some that numba has no type for."""
    big_endian = np.zeros(1, ">u4")
    fields = np.zeros(1, [("a", np.uint8), ("b", np.int64)])
    values = [fields, np.array(["text"]), np.array([b"text"]), np.array([{}], object)]
    return [*values, "text", big_endian, (1, big_endian), np.zeros(1, np.longdouble), {}, (1, {})]


@pytest.mark.parametrize("value", other_values(), ids=str)
def test_what_no_kernel_takes_is_left_to_numba(value: Any) -> None:
    import numba

    def first(values: Any) -> Any:
        return values[0]

    ours, theirs = jit.kernel(first), numba.njit(first)
    assert ours.typeof_pyval(value) == theirs.typeof_pyval(value)


def test_masked_arrays_are_refused() -> None:
    with pytest.raises(NumbaTypeError, match=r"Unsupported array type: numpy\.ma\.MaskedArray"):
        jit.kernel(lambda values: values[0])(np.ma.masked_array(np.zeros(2), [True, False]))


@pytest.mark.parametrize("value", argument_values(), ids=str)
def test_arguments_have_the_types_that_numba_gives_them(value: Any) -> None:
    assert jit._type_of(value) == typeof(value)


def test_numba_settings_are_left_alone() -> None:
    import numba

    import bpe.kernels.search

    assert bpe.kernels.search.find_all is not None
    assert os.environ.get("NUMBA_CACHE_DIR", "") == numba.config.CACHE_DIR


def test_scanners_of_one_source_are_compiled_once_and_told_apart(package: Path) -> None:
    """They are made by one function, and close over their flags and over one another.

    In one process they come together from the cache, and numba's numbers behind their names, which
    each process counts for itself, may be the same: here they always are.
    """
    text = "HelloWorld 1234567's!\n\n\n\n \n/\n "
    patterns = ["o200k", "llama3", "qwen2"]
    for pattern in patterns:
        assert "compiling kernels" in execute(package, FAMILY.format([pattern])).stderr
    for some in (patterns, patterns[::-1]):
        together = execute(package, FAMILY.format(some))
        assert "compiling kernels" not in together.stderr
        assert ast.literal_eval(together.stdout) == [
            [piece.encode() for piece in reference.split(text, pattern)] for pattern in some
        ]


def test_a_kernel_that_closes_over_something_else_is_refused() -> None:
    names = ["a", "b"]

    def look() -> int:
        return len(names)

    with pytest.raises(TypeError, match="look closes over names, list; kernels may close over num"):
        jit._own_name(look)

    def first() -> int:
        return second()

    with pytest.raises(TypeError, match=r"first closes over second, NoneType; .* made before them"):
        jit._own_name(first)

    def second() -> int:
        return first()


def test_kernels_that_one_function_makes_in_two_ways_have_two_names() -> None:
    def names(flag: bool, number: int = 1) -> list[str]:
        if flag:

            @jit.kernel
            def inner(x, k=number):
                return x + k
        else:

            @jit.kernel
            def inner(x, k=number):
                return x - k

        @jit.kernel
        def outer(x):
            return inner(inner(x))

        return [getattr(kernel, "py_func", kernel).__qualname__ for kernel in (inner, outer)]

    assert names(True) == names(True)
    for some in zip(names(True), names(False), names(True, 2), strict=True):
        assert len(set(some)) == (1 if numba.config.DISABLE_JIT else 3)
