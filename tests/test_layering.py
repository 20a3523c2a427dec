"""Who may import whom, and what an import loads."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# A module may import those in earlier rows, and nothing else of ours. One row is one level.
LEVELS = [
    "bpe.bit_set bpe.errors bpe.unicode_classes bpe.gathered bpe.huge_pages bpe.parallel bpe.files"
    " bpe.kernels.machine",
    "bpe.cache bpe.hub bpe.json_file bpe.locations",
    "bpe.kernels.machine_code bpe.kernels.intrinsics bpe.kernels.vectors",
    "bpe.kernels.vector_intrinsics",
    "bpe.kernels.compiler bpe.kernels.plain_numba",
    "bpe.kernels.jit",
    "bpe.kernels.search bpe.kernels.split_classes bpe.kernels.words bpe.kernels.learn_merges"
    " bpe.kernels.utf8",
    "bpe.kernels.merge_tables bpe.kernels.split bpe.kernels.split_rows bpe.kernels.group",
    "bpe.kernels.merge_short bpe.kernels.split_mend",
    "bpe.kernels.apply_merges",
    "bpe.kernels.misses",
    "bpe.kernels.encode",
    "bpe.kernels.count bpe.kernels.split_cl100k",
    "bpe.kernels",
    "bpe.regex_parser",
    "bpe.regex_split",
    "bpe.steps",
    "bpe.patterns",
    "bpe.reference bpe.pretokenize bpe.pretoken_cache",
    "bpe.byte_level bpe.normalize bpe.separated",
    "bpe.vocabulary bpe.special_tokens bpe.text_file",
    "bpe.added_tokens bpe.decoder bpe.hf_write bpe.rank_files",
    "bpe.encode bpe.hf_read",
    "bpe.parallel_encoder bpe.tokenizer_cache bpe.convert",
    "bpe.count bpe.tokenizer",
    "bpe.text_tokenizer",
    "bpe.word_level",
    "bpe.huggingface",
    "bpe.train",
    "bpe.compile_ahead",
    "bpe",
    "preprocess.settings",
    "preprocess.storage.base",
    "preprocess.storage.local",
    "preprocess.progress preprocess.storage preprocess.dataset preprocess.dataset.columns"
    " preprocess.dataset.shards preprocess.stopping preprocess.reused_memory",
    "preprocess.compiling preprocess.dataset.manifest preprocess.journal",
    "preprocess.dataset.reader preprocess.dataset.writer",
    "preprocess.spill preprocess.sinks preprocess.token_offsets",
    "preprocess.sampling preprocess.documents preprocess.settings.options",
    "preprocess.settings.schema preprocess.settings.argparse",
    "preprocess.sources.base preprocess.memory",
    "preprocess.sources.text preprocess.sources.standard_library",
    "preprocess.sources.registry",
    "preprocess.sources",
    "preprocess.report preprocess.inputs",
    "preprocess.outputs preprocess.quality preprocess.units",
    "preprocess.count_pass preprocess.doctor preprocess.encode_pass preprocess.inspect_tokenizer"
    " preprocess.compare",
    "preprocess.inspect preprocess.plan",
    "preprocess.pipeline",
    "preprocess.rebuild",
    "preprocess.verify",
    "preprocess.cli",
    "preprocess.__main__ preprocess",
]
LEVEL_OF = {module: level for level, row in enumerate(LEVELS) for module in row.split()}

# Not loaded before something needs them.
HEAVY = {"numba", "llvmlite", "pyarrow", "tiktoken", "tokenizers", "torch", "transformers", "regex"}


def modules() -> dict[str, Path]:
    """Every module of both packages."""
    paths = [path for package in ("bpe", "preprocess") for path in (ROOT / package).rglob("*.py")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}
    return {name.removesuffix(".__init__"): path for name, path in names.items()}


MODULES = modules()


def imports_of(name: str) -> set[str]:
    """The modules of ours that a module imports anywhere in its text, for types too."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} has a relative import; spell it out"
            assert node.module is not None
            for alias in node.names:  # `from package import module` imports the module
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return {module for module in found if module in MODULES}


def test_every_module_has_a_level() -> None:
    assert sorted(MODULES) == sorted(LEVEL_OF)


@pytest.mark.parametrize("name", sorted(LEVEL_OF))
def test_imports_go_downward(name: str) -> None:
    upward = {other for other in imports_of(name) if LEVEL_OF[other] >= LEVEL_OF[name]}
    assert not upward


def test_bpe_knows_nothing_of_corpora() -> None:
    for name in MODULES:
        if name.partition(".")[0] == "bpe":
            assert all(other.partition(".")[0] == "bpe" for other in imports_of(name))


def test_sampling_knows_only_the_token_file() -> None:
    allowed = {
        "bpe.errors",
        "bpe.locations",
        "preprocess.dataset.columns",
        "preprocess.dataset.reader",
        "preprocess.dataset.shards",
        "preprocess.reused_memory",
    }
    for name in MODULES:
        if name == "preprocess.sampling":
            assert imports_of(name) <= allowed


def loaded_by(code: str) -> set[str]:
    """The modules that are loaded in a new process after `code`."""
    code += "\nimport json, sys; print(json.dumps([*sys.modules]))"
    environment = {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import bpe",
        "import preprocess",
        "import preprocess.cli",
        "from preprocess import get_batch, open_tokens",
        "import numpy, preprocess; preprocess.get_batch(numpy.arange(9), 2, 3)",
    ],
)
def test_heavy_packages_wait_until_they_are_needed(code: str) -> None:
    assert not loaded_by(code) & HEAVY


@pytest.mark.parametrize("code", ["import bpe", "import preprocess", "import preprocess.cli"])
def test_numpy_waits_too(code: str) -> None:
    assert "numpy" not in loaded_by(code)


def test_who_samples_never_loads_the_builder() -> None:
    loaded = loaded_by("from preprocess import get_batch")
    ours = {name for name in loaded if name.partition(".")[0] in ("bpe", "preprocess")}
    assert ours == {
        "bpe",
        "bpe.errors",
        "bpe.locations",
        "preprocess",
        "preprocess.dataset",
        "preprocess.dataset.columns",
        "preprocess.dataset.manifest",
        "preprocess.dataset.reader",
        "preprocess.dataset.shards",
        "preprocess.reused_memory",
        "preprocess.sampling",
    }


@pytest.mark.parametrize("package", ["bpe", "preprocess"])
def test_public_names_exist(package: str) -> None:
    code = f"import {package} as p; assert all(hasattr(p, n) for n in p.__all__), p.__all__"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, check=True)
