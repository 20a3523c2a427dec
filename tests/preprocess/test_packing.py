"""Packed windows: nothing is lost or doubled, and the plan is kept, checked and made once."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections import Counter
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import processes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_fields import check_fields
from written import END, dataset, write

from preprocess import Sampler, TokenFile, TokenFileError, open_tokens, write_rows
from preprocess.sampling import packing
from preprocess.sampling.data import SamplingError
from preprocess.sampling.packing import STRATEGIES, PackedWindows, count_rows
from preprocess.storage import OutputError

FIELDS = (
    "inputs", "targets", "segment_ids", "position_ids", "attention_mask", "cu_seqlens", "loss_mask",
)


def numbered(directory: Path, sizes: list[int], shard_tokens: int | None = None) -> TokenFile:
    more = {"shard_tokens": shard_tokens, "split_documents": True} if shard_tokens else {}
    return dataset(directory, sizes, seed=None, **more)


def packed(file: TokenFile, context_length: int, strategy: Any, **more: Any) -> Sampler:
    options: dict[str, Any] = {"order": "sequential", "drop_last": False} | more
    return Sampler(file, 3, context_length, windows="packed", strategy=strategy, **options)


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 40),
    st.sampled_from(sorted(STRATEGIES)), st.sampled_from([None, 5, 50]),
)
def test_no_token_is_lost_or_doubled(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], context_length: int, strategy: str,
    shard_tokens: int | None,
) -> None:
    """Each token is an input once, and a target once if the one before it is of its document."""
    file = numbered(tmp_path_factory.mktemp("packed"), sizes, shard_tokens)
    tokens = np.asarray(file.tokens).astype(np.int64)
    sampler = packed(file, context_length, strategy, fields=FIELDS)
    pairs: Counter[tuple[int, int]] = Counter()
    n_inputs = 0
    for batch in sampler:
        arrays = {name: each for name, each in batch.items() if name != "cu_seqlens"}
        assert {each.shape for each in arrays.values()} == {batch["inputs"].shape}
        n_inputs += check_fields(batch, END)
        pairs.update(zip(batch["inputs"].ravel().tolist(), batch["targets"].ravel().tolist(),
                         strict=True))
    n_padding = sampler.n_windows * context_length - len(tokens)
    assert n_inputs == len(tokens)
    expected = Counter(zip(tokens.tolist(), [*tokens[1:].tolist(), -100], strict=True))
    for pair in [pair for pair in expected if pair[0] == END and pair[1] != -100]:
        expected[END, -100] += expected.pop(pair)
    expected[END, -100] += n_padding
    assert pairs == +expected
    assert sampler.tokens_per_window == pytest.approx(len(tokens) / sampler.n_windows)


def test_strategies_fill_rows_ever_better(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    sizes = np.minimum(rng.lognormal(3, 1, 3000).astype(int) + 1, 700).tolist()
    file = numbered(tmp_path, sizes)
    rows = {name: packed(file, 128, name).n_windows for name in STRATEGIES}
    least = -(-sum(sizes) // 128)
    assert rows["greedy"] > rows["pool"] > rows["best_fit"] >= least
    assert rows["greedy"] > rows["first_fit"] > rows["best_fit"]
    assert rows["best_fit"] < 1.01 * least


# The file of a plan.


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return numbered(tmp_path, [7, 3, 30, 2, 2, 9, 1, 16, 5, 8, 4])


def plans(directory: Path) -> list[Path]:
    return sorted(each for each in directory.iterdir() if each.name.endswith((".plan", ".partial")))


def test_a_plan_is_made_once(file: TokenFile, tmp_path: Path) -> None:
    packed(file, 8, "best_fit")
    (path,) = plans(tmp_path)
    assert path.name == f"train.best_fit-8-{file.manifest.digest[:16]}.plan"
    header = json.loads(path.read_bytes()[:256])
    assert header["n_rows"] == packed(file, 8, "best_fit").n_windows
    assert path.stat().st_size == 256 + 8 * (header["n_rows"] + 1) + 12 * header["n_pieces"]
    before = path.stat()
    again = Sampler(str(tmp_path / "train.bin"), 3, 8, windows="packed")
    assert again.n_windows == header["n_rows"]
    packed(file, 9, "best_fit")  # another plan
    assert len(plans(tmp_path)) == 2
    assert path.stat() == before


def test_plans_of_an_older_dataset_are_removed(file: TokenFile, tmp_path: Path) -> None:
    packed(file, 8, "best_fit")
    packed(file, 8, "pool")
    old = plans(tmp_path)
    (tmp_path / "train.mine.plan").write_text("of somebody else")
    new = numbered(tmp_path, [5, 5, 5])
    packed(new, 8, "best_fit")
    found = {path.name for path in plans(tmp_path)}
    assert len(old) == 2
    assert found == {"train.mine.plan", f"train.best_fit-8-{new.manifest.digest[:16]}.plan"}
    assert packed(file, 4, "greedy").n_windows  # the old maps are still there
    assert found < {path.name for path in plans(tmp_path)}  # and no newer plan was removed


def test_a_plan_that_is_removed_while_it_is_opened(file: TokenFile, monkeypatch: Any) -> None:
    monkeypatch.setattr(packing, "_make_plan", lambda *_: None)
    with pytest.raises(TokenFileError, match="was removed while it was being opened, as when the "):
        packed(file, 8, "best_fit")


def test_a_damaged_plan_is_refused(file: TokenFile, tmp_path: Path) -> None:
    packed(file, 8, "best_fit")
    (path,) = plans(tmp_path)
    data = path.read_bytes()
    for n in (0, 100, 256, 300, len(data) - 1):
        path.write_bytes(data[:n])
        with pytest.raises(TokenFileError, match="damaged: expected a header of this dataset, and"):
            packed(file, 8, "best_fit")
    for n_rows in (-2, 1.0, True):
        changed = bytearray(data)
        header = json.loads(data[:256]) | {"n_rows": n_rows}
        changed[:256] = json.dumps(header).encode().ljust(256)
        size = 256 + 8 * (int(n_rows) + 1) + 12 * header["n_pieces"]
        path.write_bytes(changed[:size].ljust(size))
        with pytest.raises(TokenFileError, match="damaged: expected"):
            packed(file, 8, "best_fit")
    for place in (0, 3, 20, 255, 256, 260, 300, -1):
        changed = bytearray(data)
        changed[place] ^= 4
        path.write_bytes(changed)
        with pytest.raises(TokenFileError, match=r"\.plan: damaged: expected .*; remove it, and i"):
            packed(file, 8, "best_fit")
    path.unlink()
    packed(file, 8, "best_fit")


@pytest.mark.parametrize(
    ("array", "value"), [
        ("offsets", -5), ("offsets", 2**40), ("starts", -1), ("starts", 10**12), ("lengths", 0),
        ("lengths", 2**31 - 1),
    ],
)
def test_a_plan_of_a_stranger_cannot_read_out_of_bounds(
    file: TokenFile, tmp_path: Path, array: str, value: int
) -> None:
    """Its digest is right, and its positions are not."""
    packed(file, 8, "best_fit")
    (path,) = plans(tmp_path)
    data = bytearray(path.read_bytes())
    header = json.loads(data[:256])
    pieces = memoryview(data)[256:]
    getattr(packing._plan_in(pieces, header["n_rows"], header["n_pieces"]), array)[1] = value
    header["digest"] = packing._digest_of(pieces)
    data[:256] = json.dumps(header).encode().ljust(256)
    path.write_bytes(data)
    with pytest.raises(TokenFileError, match="damaged: expected the pieces that it had when it"):
        list(packed(file, 8, "best_fit"))
    rows: dict[str, Any] = {"out": tmp_path / "rows", "seq_length": 8, "strategy": "best_fit"}
    with pytest.raises(TokenFileError, match=r"damaged: expected the p|positions are outside of"):
        write_rows(file.path, **rows, format="jsonl", progress=False)


@pytest.mark.parametrize(("shard_tokens", "message"), [
    (None, "expected the pieces that it had when it was opened"),
    (50, "its plan of packed windows was changed while it was open; run"),
])  # fmt: skip
def test_a_plan_that_changes_while_it_is_open(
    tmp_path: Path, shard_tokens: int | None, message: str
) -> None:
    sampler = packed(numbered(tmp_path, [3, 20, 5, 8, 1, 30], shard_tokens), 8, "best_fit")
    (path,) = plans(tmp_path)
    header = json.loads(path.read_bytes()[:256])
    with open(path, "r+b") as opened:
        opened.seek(256 + 8 * (header["n_rows"] + 1))
        opened.write(np.full(header["n_pieces"], 10**12, np.int64).tobytes())
    with pytest.raises(TokenFileError, match=message):
        sampler.batch(len(sampler) - 1)
    with open(path, "r+b") as opened:
        opened.seek(256)
        opened.write(np.full(2, 7, np.int64).tobytes())
    with pytest.raises(TokenFileError, match="expected the pieces that it had when it was opened"):
        sampler.batch(0)


def test_damaged_document_ends_are_told(file: TokenFile, tmp_path: Path) -> None:
    with open(tmp_path / "train.docs", "r+b") as opened:
        opened.seek(16)
        opened.write((10**6).to_bytes(8, "little"))
    with pytest.raises(TokenFileError, match="document 2 should end after"):
        packed(open_tokens(file.path), 8, "best_fit")


def test_a_full_disk_is_an_error_with_the_name(
    file: TokenFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OutputError, match=r"\.plan: could not be written: No space .*the data"):
        packed(file, 8, "best_fit")
    with pytest.raises(OutputError, match=f"{tempfile.gettempdir()}: could not be written: No sp"):
        PackedWindows(file, 8, "best_fit", keeps_plan=False)
    monkeypatch.undo()
    packed(file, 8, "best_fit")
    assert len(plans(tmp_path)) == 1


MAKE = """
import os, signal, sys
from preprocess import Sampler
from preprocess.sampling import packing
step, path = sys.argv[1:]
if step == "flush":
    packing._digest_of = lambda data: os.kill(os.getpid(), signal.SIGKILL)
elif step == "rename":
    os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
print(Sampler(path, 3, 8, windows="packed").n_windows)
"""


@pytest.mark.parametrize("step", ["flush", "rename"])
def test_a_killed_maker_leaves_no_plan(file: TokenFile, tmp_path: Path, step: str) -> None:
    processes.run("-c", MAKE, step, tmp_path / "train.bin", expected_exit=-signal.SIGKILL)
    assert [path.suffix for path in plans(tmp_path)] == [".partial"]
    packed(file, 8, "best_fit")
    assert [path.suffix for path in plans(tmp_path)] == [".plan"]


def test_processes_that_start_together_share_a_plan(file: TokenFile, tmp_path: Path) -> None:
    command = ["-c", MAKE, "", tmp_path / "train.bin"]
    makers = [processes.start(*command, stdout=PIPE, stderr=PIPE) for _ in range(3)]
    found = [maker.communicate()[0] for maker in makers]
    assert set(found) == {f"{packed(file, 8, 'best_fit').n_windows}\n"}
    assert [path.suffix for path in plans(tmp_path)] == [".plan"]


@pytest.mark.parametrize(("more", "message"), [
    ({"context_length": 2**31}, "need at least 1 and have at most 2,147,483,647; choose a sma"),
    ({"stride": 4}, "stride=4 is of windows='stride' and 'documents'; packed windows do not"),
])  # fmt: skip
def test_wrong_options(file: TokenFile, more: dict[str, Any], message: str) -> None:
    options = {"dataset": file, "global_batch_size": 3, "context_length": 8, "windows": "packed"}
    with pytest.raises(SamplingError, match=message):
        Sampler(**options | more)


def test_an_empty_dataset_has_no_plan(tmp_path: Path) -> None:
    with pytest.raises(SamplingError, match=r"train\.bin has 0 tokens, and packed windows of cont"):
        packed(write(tmp_path, np.zeros(0, int), []), 8, "best_fit")
    assert plans(tmp_path) == []


@pytest.mark.parametrize("strategy", ["greedy", "best_fit"])
def test_rows_are_the_same_whether_a_plan_is_kept(tmp_path: Path, strategy: str) -> None:
    random = np.random.default_rng(0)
    file = dataset(tmp_path, random.geometric(0.02, 3_000).tolist())
    found = PackedWindows(file, 64, strategy, keeps_plan=False)
    assert plans(tmp_path) == []
    kept = PackedWindows(file, 64, strategy)
    assert len(found) == len(kept)
    for numbers in (np.arange(len(kept)), random.integers(0, len(kept), 20), np.array([3, 3, 0])):
        np.testing.assert_array_equal(found.pieces(numbers), kept.pieces(numbers))


def test_rows_are_counted_without_a_plan(tmp_path: Path) -> None:
    sizes = np.random.default_rng(0).geometric(0.02, 3_000)
    file = dataset(tmp_path, sizes.tolist())
    lengths, counts = np.unique(sizes, return_counts=True)
    for row_length in (1, 2, 7, 64, 100, 1000):
        expected = len(PackedWindows(file, row_length, "best_fit"))
        assert count_rows(lengths, counts, row_length) == expected
