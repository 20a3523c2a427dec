"""What we write is read by the programs that train with it, unmodified: docs/clients.md.

Each program runs in an environment of its own, for their libraries exclude one another. `make
test-clients` makes these environments, from `tests/clients/NAME.txt`, and sets TOKENMILL_CLIENTS to
their directory. The scripts that run in them are `tests/clients/read_NAME.py`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import written

from preprocess import export_tokens

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ROOT / "tests" / "clients"
PAGE = (ROOT / "docs" / "clients.md").read_text("utf-8")
LENGTH = 32  # of a window
# A size of 1 is an empty document: its end of text alone.
SIZES = [5, 1, 300, 1, 1, 40, 9, 64, 2, 33, 32, 31] * 4

Documents = list[list[int]]


class Corpus:
    """A dataset on disk, and what is in it."""

    def __init__(
        self, directory: Path, vocab_size: int, shard_tokens: int | None = None, mask: bool = False,
        sizes: Sequence[int] = SIZES,
    ) -> None:
        self.directory, self.vocab_size, self.end_id = directory, vocab_size, vocab_size - 1
        chosen = np.random.default_rng(0)
        # All ids but the end of text, so the first and the last of the vocabulary, too.
        drawn = [chosen.integers(0, self.end_id, size - 1).tolist() for size in sizes]
        drawn[2][:2] = [0, self.end_id - 1]
        self.documents: Documents = [[*ids, self.end_id] for ids in drawn]
        self.masks = [[i % 3 > 0 for i in ids] for ids in self.documents] if mask else []
        written.write(
            directory, self.ids, np.cumsum([*map(len, self.documents)]), vocab_size=vocab_size,
            mask=[i % 3 > 0 for i in self.ids] if mask else None, shard_tokens=shard_tokens,
            fields={"end_of_text_id": self.end_id},
        )  # fmt: skip
        self.dtype = "uint16" if vocab_size <= 65_536 else "uint32"

    @property
    def ids(self) -> list[int]:
        return [id_ for document in self.documents for id_ in document]

    def export(self, to: Any) -> Path:
        """The directory of an export, which the first to ask for it writes."""
        out = self.directory / to
        if not out.exists():
            size = 500 if to in ("llmc", "mds", "litdata") else None
            export_tokens(self.directory, to=to, out=out, shard_tokens=size)
        return out


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Ids of uint16, all of them, in a dataset without shards."""
    return Corpus(tmp_path_factory.mktemp("corpus"), 65_536)


@pytest.fixture(scope="module")
def with_masks(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Shards with loss masks."""
    return Corpus(tmp_path_factory.mktemp("corpus"), 50_257, 400, mask=True)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Shards of ids that need uint32."""
    return Corpus(tmp_path_factory.mktemp("corpus"), 128_256, 400)


@pytest.fixture(params=["one_file", "with_masks", "wide"])
def corpus(request: pytest.FixtureRequest) -> Corpus:
    found: Corpus = request.getfixturevalue(request.param)
    return found


def run(command: list[str | Path]) -> str:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def python_of(environment: str) -> Path:
    """The interpreter of an environment, or a skip that says why there is none."""
    directory = os.environ.get("TOKENMILL_CLIENTS")
    if directory is None:
        pytest.skip("needs an environment with the program: run make test-clients")
    found = ROOT / directory / environment
    if not (found / ".ready").exists():
        log = found / "pip.log"
        said = log.read_text().splitlines()[-1] if log.exists() else "run make test-clients"
        pytest.skip(f"tests/clients/{environment}.txt is not installed: {said}")
    return found / "bin" / "python"


def read_by(environment: str, script: str, path: Path, **options: Any) -> Any:
    """What a program read."""
    command = [python_of(environment), SCRIPTS / f"{script}.py", path, json.dumps(options)]
    return json.loads(run(command).splitlines()[-1])


def cut(ids: list[int], length: int) -> Documents:
    """Windows side by side, without a rest."""
    return [ids[i : i + length] for i in range(0, len(ids) - length + 1, length)]


def lengths_in(window: list[int], end_id: int) -> list[int]:
    """Lengths of the parts of documents in a window."""
    ends = [i + 1 for i, id_ in enumerate(window) if id_ == end_id]
    return [b - a for a, b in pairwise([0, *ends, len(window)]) if a < b]


def positions_in(window: list[int], end_id: int) -> list[int]:
    """Positions in the parts of documents in a window."""
    return [i for length in lengths_in(window, end_id) for i in range(length)]


def test_megatron(corpus: Corpus) -> None:
    python_of("megatron")
    read = read_by(
        "megatron", "read_megatron", corpus.export("megatron"), length=LENGTH,
        vocab_size=corpus.vocab_size, end_id=corpus.end_id,
    )  # fmt: skip
    assert read["documents"] == corpus.documents
    assert read["document_bounds"] == [*range(len(corpus.documents) + 1)]
    # Its samples are windows of the documents in its order, in the order of its shuffle.
    assert sorted(read["document_order"]) == [*range(len(corpus.documents))]
    stream = [id_ for i in read["document_order"] for id_ in corpus.documents[i]]
    n = (len(stream) - 1) // LENGTH
    assert sorted(read["order"]) == [*range(n)]
    starts = [i * LENGTH for i in read["order"]]
    assert read["tokens"] == [stream[i : i + LENGTH] for i in starts]
    assert read["labels"] == [stream[i + 1 : i + LENGTH + 1] for i in starts]
    assert read["positions"] == [positions_in(ids, corpus.end_id) for ids in read["tokens"]]


def test_streaming(corpus: Corpus) -> None:
    python_of("streaming")
    read = read_by("streaming", "read_streaming", corpus.export("mds"))
    assert read["dtype"] == corpus.dtype
    assert read["first"] == corpus.documents[0]
    assert read["at"] == [each["tokens"] for each in read["in_order"]] == corpus.documents
    assert [each["mask"] for each in read["in_order"] if corpus.masks] == corpus.masks
    assert read["shuffled"] != read["in_order"]
    assert sorted(map(repr, read["shuffled"])) == sorted(map(repr, read["in_order"]))


def test_streaming_of_long_documents(tmp_path: Path) -> None:
    """Lengths of 1, 2 and 4 bytes; a document longer than a shard has one of its own."""
    python_of("streaming")
    corpus = Corpus(tmp_path, 65_536, sizes=[255, 256, 65_535, 65_536, 3])
    read = read_by("streaming", "read_streaming", corpus.export("mds"))
    assert read["at"] == corpus.documents


def test_litdata(corpus: Corpus) -> None:
    python_of("litdata")
    out = corpus.export("litdata")
    read = read_by("litdata", "read_litdata", out, length=LENGTH)
    chunks = json.loads((out / "train" / "index.json").read_text())["chunks"]
    ends = np.cumsum([chunk["dim"] for chunk in chunks]).tolist()
    assert ends[-1] == len(corpus.ids)
    parts = [corpus.ids[a:b] for a, b in pairwise([0, *ends])]
    assert read["blocks"] == [block for part in parts for block in cut(part, LENGTH + 1)]
    assert read["batches"] == read["blocks"]
    assert read["dtype"] == {"uint16": "torch.uint16", "uint32": "torch.int32"}[corpus.dtype]


def test_datatrove(corpus: Corpus) -> None:
    python_of("datatrove")
    read = read_by(
        "datatrove", "read_datatrove", corpus.export("datatrove"), length=LENGTH,
        token_size=np.dtype(corpus.dtype).itemsize,
    )  # fmt: skip
    assert read["windows"] == cut(corpus.ids, LENGTH + 1)
    assert read["positions"] == [positions_in(ids, corpus.end_id) for ids in read["windows"]]


def test_olmo_core(corpus: Corpus) -> None:
    read = read_by(
        "olmo", "read_olmo", corpus.directory, length=LENGTH, dtype=corpus.dtype,
        vocab_size=corpus.vocab_size, end_id=corpus.end_id,
    )  # fmt: skip
    sizes = [
        path.stat().st_size // np.dtype(corpus.dtype).itemsize
        for path in sorted(corpus.directory.glob("train*.bin"))
    ]
    bounds = [*pairwise([0, *np.cumsum(sizes).tolist()])]
    parts = [corpus.ids[a:b] for a, b in bounds]
    assert read["windows"] == [window for part in parts for window in cut(part, LENGTH)]
    assert read["lengths"] == [lengths_in(ids, corpus.end_id) for ids in read["windows"]]
    assert [ids[: ids.index(corpus.end_id) + 1] for ids in read["documents"]] == corpus.documents
    if corpus.masks:
        flat = [bit for mask in corpus.masks for bit in mask]
        assert read["masks"] == [mask for a, b in bounds for mask in cut(flat[a:b], LENGTH)]
        pairs = zip(read["document_masks"], corpus.masks, strict=True)
        assert all(padded[: len(mask)] == mask for padded, mask in pairs)


def test_grain(corpus: Corpus) -> None:
    python_of("grain")
    read = read_by("grain", "read_grain", corpus.export("npy"), length=LENGTH)
    assert [each["ids"] for each in read["documents"]] == corpus.documents
    assert [each["mask"] for each in read["documents"] if corpus.masks] == corpus.masks
    assert read["shuffled"] != read["documents"]
    assert sorted(map(repr, read["shuffled"])) == sorted(map(repr, read["documents"]))
    assert read["inputs"] == cut(corpus.ids[:-1], LENGTH)
    assert read["targets"] == cut(corpus.ids[1:], LENGTH)


def check_random_windows(read: Any, ids: list[int]) -> None:
    assert len(set(read["starts"])) > 1
    assert read["inputs"] == [ids[i : i + LENGTH] for i in read["starts"]]
    assert read["targets"] == [ids[i + 1 : i + 1 + LENGTH] for i in read["starts"]]


def test_jax(corpus: Corpus) -> None:
    python_of("jax")
    read = read_by("jax", "read_jax", corpus.export("npy"), length=LENGTH)
    assert (read["ids"], read["dtype"]) == (corpus.ids, corpus.dtype)
    assert read["mask"] == [bit for mask in corpus.masks for bit in mask]
    assert read["documents"] == corpus.documents
    check_random_windows(read, corpus.ids)


def test_nanogpt(one_file: Corpus) -> None:
    """It maps one file as uint16, so shards and larger vocabularies are not for it."""
    read = read_by("nano", "read_nanogpt", one_file.directory, length=LENGTH)
    check_random_windows(read, one_file.ids)


def test_nanochat(corpus: Corpus) -> None:
    python_of("nano")
    options = {"length": LENGTH, "batch_size": 3, "buffer_size": 8}
    read = read_by("nano", "read_nanochat", corpus.export("npy"), **options)
    assert read["documents"] == corpus.documents

    batches = cut(corpus.ids, 3 * LENGTH + 1)
    assert read["inputs"] == [cut(ids[:-1], LENGTH) for ids in batches]
    assert read["targets"] == [cut(ids[1:], LENGTH) for ids in batches]

    assert len(read["rows"]) > 10
    left = [*corpus.documents]
    for row in read["rows"]:
        ends = np.cumsum(lengths_in(row, corpus.end_id)).tolist()
        assert ends[-1] == LENGTH + 1
        for part in (row[a:b] for a, b in pairwise([0, *ends])):
            # Whole, or the beginning of one at the end of a row.
            left.remove(next(each for each in left if each[: len(part)] == part))


@pytest.fixture(scope="module")
def llmc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    program = tmp_path_factory.mktemp("llmc") / "llmc"
    run([compiler, "-O1", "-Wall", "-Wextra", "-Werror", SCRIPTS / "llmc.c", "-o", program])
    return program


def test_llmc(corpus: Corpus, llmc: Path) -> None:
    lines = run([llmc, corpus.export("llmc") / "train_*.bin", "2", str(LENGTH)]).splitlines()
    found: list[int] = []
    for name, *numbers in (line.split() for line in lines):
        ids = [int(number) for number in numbers]
        if name == "batch":
            assert len(ids) == 2 * LENGTH + 1
            found += ids[:-1]  # the last is the first of the next batch
        elif name == "rest":
            found += ids
    assert found == corpus.ids
    assert sum(int(line.split()[1]) for line in lines if line.startswith("file")) == len(found)


def test_page_shows_what_the_scripts_do() -> None:
    """Each line of code on the page is a line of a script that ran."""
    scripts = [path.read_text("utf-8") for path in sorted(SCRIPTS.glob("read_*.py"))]
    lines = {line.strip() for text in scripts for line in text.splitlines()}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == len(scripts)
    shown = [line.strip() for block in blocks for line in block.splitlines()]
    assert [line for line in shown if line not in lines] == []


def test_page_has_the_versions_that_are_tested() -> None:
    pins = dict(
        line.split("  #")[0].split("==")
        for path in SCRIPTS.glob("*.txt")
        for line in path.read_text("utf-8").splitlines()
    )
    table = PAGE.partition("|---")[2].partition("\n\n")[0]
    stated = dict(re.findall(r"`([\w-]+) (\d[\w.]+)`", table))
    assert stated.items() <= pins.items()
    helpers = {"numpy", "torch", "torchvision", "orjson", "jaxlib"}
    assert set(stated) == set(pins) - helpers
