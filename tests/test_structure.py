"""The structure of the code: who imports whom, sizes, files that documents name, light imports."""

import ast
import functools
import importlib
import inspect
import json
import re
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from processes import printed_by

ROOT = Path(__file__).parent.parent

# Not loaded before something needs them.
HEAVY = {
    "numba", "llvmlite", "matplotlib", "pyarrow", "tiktoken", "tokenizers", "torch", "transformers",
    "regex",
}  # fmt: skip


def modules() -> dict[str, Path]:
    """Every module of both packages."""
    paths = [path for package in ("bpe", "preprocess") for path in (ROOT / package).rglob("*.py")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


MODULES = modules()


@functools.cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text("utf-8"))


def imports_of(name: str) -> set[str]:
    """The modules of ours that a module imports anywhere in its text, for types too."""
    found = set()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} has a relative import; spell it out"
            assert node.module is not None
            for alias in node.names:  # `from package import module` imports the module
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return {module for module in found if module in MODULES}


def layers() -> list[str]:
    """The rows of the table in docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    return text.partition("```text\n")[2].partition("```")[0].splitlines()


LAYER_OF = {unit: layer for layer, row in enumerate(layers()) for unit in row.split()}


def unit_of(name: str) -> str:
    """The package of a module, or the module itself beside the packages of `bpe` and others."""
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    return name if package in ("bpe", "preprocess") else package


def test_every_unit_has_a_layer() -> None:
    assert sorted({unit_of(name) for name in MODULES}) == sorted(LAYER_OF)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_go_downward(name: str) -> None:
    unit = unit_of(name)
    others = {other for other in imports_of(name) if unit_of(other) != unit}
    assert {other for other in others if LAYER_OF[unit_of(other)] >= LAYER_OF[unit]} == set()


def test_no_modules_import_one_another() -> None:
    list(TopologicalSorter({name: imports_of(name) for name in MODULES}).static_order())


@pytest.mark.parametrize("name", sorted(MODULES))
def test_properties_have_no_lock_that_a_fork_would_hold(name: str) -> None:
    found = set()
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.ImportFrom) and node.module == "functools":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(ast.unparse(node).removeprefix("functools."))
    assert "cached_property" not in found, "use that of bpe.parallel"


@pytest.mark.parametrize("name", sorted(MODULES))
def test_functions_are_short(name: str) -> None:
    long = []
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.FunctionDef):
            is_kernel = any(ast.unparse(each) == "kernel" for each in node.decorator_list)
            n_lines = (node.end_lineno or 0) - node.lineno + 1
            if n_lines > (150 if is_kernel else 80):
                long.append(f"{node.name}: {n_lines}")
    assert not long


def test_kernels_take_at_most_six_arguments() -> None:
    kernels = [
        (name, node)
        for name in MODULES
        for node in ast.walk(tree_of(name))
        if isinstance(node, ast.FunctionDef) and "kernel" in map(ast.unparse, node.decorator_list)
    ]
    assert len(kernels) > 50
    assert [
        f"{name}.{kernel.name}"
        for name, kernel in kernels
        if name.startswith("bpe.") and len(kernel.args.args) > 6
    ] == []


@pytest.mark.parametrize(
    "path", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda path: path.name
)
def test_files_that_documents_name_exist(path: Path) -> None:
    text = path.read_text("utf-8")
    named = re.findall(r"`((?:bpe|preprocess|tests|docs|benchmarks|examples)/[\w/]+\.\w+)`", text)
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_packages_list_their_modules() -> None:
    lists = []
    for name, path in MODULES.items():
        doc = ast.get_docstring(tree_of(name)) or ""
        if path.name == "__init__.py":
            lists += [(name, x) for x in re.findall(r"^ *(\w+)  +[^ ]|`(\w+)`:", doc, re.MULTILINE)]
    assert [(x, a or b) for x, (a, b) in lists if f"{x}.{a or b}" not in MODULES] == []


@functools.cache
def loaded_by(code: str) -> set[str]:
    """The modules that are loaded in a new process after `code`."""
    printed = printed_by(f"{code}\nimport json, sys; print(json.dumps([*sys.modules]))")
    return set(json.loads(printed.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import bpe", "import preprocess", "import preprocess.cli",
        "from preprocess import get_batch, open_tokens",
        "import numpy, preprocess; preprocess.get_batch(numpy.arange(9), 2, 3)",
    ],
)
def test_heavy_packages_wait_until_they_are_needed(code: str) -> None:
    assert not loaded_by(code) & HEAVY


@pytest.mark.parametrize("code", ["import bpe", "import preprocess", "import preprocess.cli"])
def test_numpy_waits_too(code: str) -> None:
    assert "numpy" not in loaded_by(code)


def test_samplers_load_nothing_of_numpy_late() -> None:
    """A process that is forked while a thread loads a module cannot load it."""
    code = (
        "import numpy, preprocess\n"
        "preprocess.Sampler(numpy.arange(99), 2, 4, order='epoch').batch(0)"
    )
    assert "numpy.ma" not in loaded_by(code)


def test_who_samples_never_loads_the_builder() -> None:
    loaded = loaded_by("from preprocess import get_batch")
    ours = {name for name in loaded if name.partition(".")[0] in ("bpe", "preprocess")}
    assert ours == {
        "bpe", "bpe.arguments", "bpe.errors", "bpe.files", "bpe.files.locations", "bpe.parallel",
        "preprocess", "preprocess.dataset", "preprocess.dataset.columns",
        "preprocess.dataset.file_map", "preprocess.dataset.manifest", "preprocess.dataset.reader",
        "preprocess.dataset.shards", "preprocess.locations", "preprocess.reused_memory",
        "preprocess.sampling", "preprocess.sampling.data", "preprocess.sampling.get_batch",
    }


NEED_TORCH = [
    "BatchDataset", "PickledTrainerDataset", "StreamingTokenizedDataset", "TokenizedDataset",
    "WindowDataset", "window_loader",
]  # fmt: skip


def test_without_pytorch_its_datasets_say_what_to_install() -> None:
    printed = printed_by(
        "import sys; sys.modules['torch'] = None; from preprocess import *; import preprocess\n"
        f"for name in {NEED_TORCH}:\n"
        "  try:\n    getattr(preprocess, name)\n"
        "  except ModuleNotFoundError as error:\n    print(error)"
    )
    message = "datasets for a DataLoader need PyTorch, which is not installed; inst"
    assert printed.count(message) == len(NEED_TORCH)


def test_packages_in_a_zip_are_imported(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "packages.zip", "w") as file:
        for path in MODULES.values():
            file.write(path, path.relative_to(ROOT))
    place = str(tmp_path / "packages.zip")
    code = f"import sys; sys.path.insert(0, {place!r}); from preprocess import open_tokens"
    assert printed_by(f"{code}; print(sys.modules['preprocess'].__file__)").startswith(place)


@pytest.mark.parametrize("package", ["bpe", "preprocess"])
def test_public_names_are_documented(package: str) -> None:
    text = (ROOT / "docs" / "python.md").read_text("utf-8")
    section = text.partition(f"## `{package}`")[2].partition("## `")[0]
    module = importlib.import_module(package)
    documented = sorted(re.findall(r"^\| `(\w+)`", section, re.MULTILINE))
    optional = NEED_TORCH if package == "preprocess" else []
    assert documented == sorted([*module.__all__, *optional])
    assert all(inspect.getdoc(getattr(module, name)) for name in module.__all__)
