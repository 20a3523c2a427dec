"""Settings that every test shares: the same examples on every run, no network, no time limits."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import threads
from hypothesis import HealthCheck, settings

# Read by huggingface_hub when it is imported: a test that would go to the network fails at once.
os.environ["HF_HUB_OFFLINE"] = "1"
# tiktoken keeps files by their path, and an earlier run may have had other ones at the same path.
os.environ["TIKTOKEN_CACHE_DIR"] = ""

# Files of tests are in memory where there is much of it: outputs are synced again and again, which
# takes milliseconds on a disk. What a kill leaves is the same.
_MEMORY = Path("/dev/shm")
if (
    "TMPDIR" not in os.environ
    and _MEMORY.is_dir()
    and os.access(_MEMORY, os.W_OK)
    and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
    and shutil.disk_usage(_MEMORY).free > 4 << 30
):
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)

settings.register_profile(
    "tokenmill",
    derandomize=True,
    database=None,
    # The first example of a test may compile a kernel, which takes seconds.
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tokenmill")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run only what did not pass in the run that wrote this file (--junitxml)"
    parser.addoption("--not-passed-in", metavar="FILE", help=text)


# Files that take longest, which are run first.
SLOW = [
    "test_kernel_modes", "test_ray", "test_view_browser", "test_site", "test_calls", "test_readme",
    "test_kernel_cache",
]  # fmt: skip


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the slowest first, so that no worker waits for another at the end."""
    if report := config.getoption("not_passed_in"):
        passed = {
            f"{case.get('classname')}::{case.get('name')}"
            for case in ElementTree.parse(report).iter("testcase") if case.find("*") is None
        }
        items[:] = [item for item in items if _name_in_report(item) not in passed]
    order = {name: number for number, name in enumerate(SLOW)}
    items.sort(key=lambda item: order.get(item.path.stem, len(SLOW)))


def _name_in_report(item: pytest.Item) -> str:
    path, _, name = item.nodeid.partition("::")
    return f"{path.removesuffix('.py').replace('/', '.')}::{name}"


@pytest.fixture(scope="session", autouse=True)
def _kernels_are_compiled() -> None:
    """So that runs have the same stages, whatever ran on this machine before."""
    from bpe import Tokenizer, Vocabulary
    from preprocess.report.progress import Progress
    from preprocess.run import compiling

    compiling.compile_training("gpt2", Progress())
    compiling.compile_encoding(Tokenizer.from_vocabulary(Vocabulary.from_merges([])), Progress())


@pytest.fixture(scope="module")
def view_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the datasets of `view_cases`."""
    import view_cases

    found = tmp_path_factory.mktemp("view")
    view_cases.make(found)
    return found


@pytest.fixture(scope="module")
def view_library(view_root: Path) -> Any:
    """What `view` shows of them."""
    from preprocess.view.library import Library

    found = Library()
    for name in ("masked", "sharded"):
        found.add(str(view_root / name))
    return found


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs write an entry to their journal after every unit."""
    from preprocess.run import count_pass, journal
    from preprocess.storage import bucket

    monkeypatch.setattr(journal, "SECONDS_BETWEEN_COMMITS", 0.0)
    monkeypatch.setattr(bucket, "SECONDS_BETWEEN_SYNCS", 0.0)
    monkeypatch.setattr(count_pass, "_WORK_PER_SAVING", 0)


@pytest.fixture
def threads_end() -> Iterator[None]:
    """A test leaves no thread behind."""
    before = threads.count()
    yield
    threads.wait_for(before)


@pytest.fixture(scope="module")
def few_ranges() -> Iterator[None]:
    """So that a few documents are more than are handled at a time, as thousands are."""
    import bpe.text.spans

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bpe.text.spans, "_RANGES", 3)
        yield
