"""Batches as NumPy arrays: shapes, contents, uniform starts, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import written
from hypothesis import given
from hypothesis import strategies as st

from preprocess.dataset.columns import TokenFileError
from preprocess.dataset.reader import TokenFile, open_tokens
from preprocess.sampling.data import SamplingError
from preprocess.sampling.get_batch import get_batch


def write(directory: Path, ids: np.ndarray, vocab_size: int, name: str = "train") -> Path:
    fields = {"end_of_text_id": 0}
    file = written.write(
        directory, ids, [len(ids)], vocab_size=vocab_size, name=name, fields=fields
    )
    return Path(file.path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A `.bin` whose ids count from 0 to 999."""
    return write(tmp_path, np.arange(1000, dtype=np.uint32), 1000)


@given(
    n_tokens=st.integers(2, 60),
    context_length=st.integers(1, 59),
    batch_size=st.integers(1, 9),
    dtype=st.sampled_from([np.uint16, np.uint32, np.int64, np.uint8, np.dtype(">u2")]),
    step=st.sampled_from([1, 2, -1]),
    seed=st.integers(0, 99),
)
def test_every_row_is_a_window_of_the_data(
    n_tokens: int, context_length: int, batch_size: int, dtype: Any, step: int, seed: int
) -> None:
    context_length = min(context_length, n_tokens - 1)
    data = (np.arange(n_tokens * abs(step)) * 3 % 251).astype(dtype)[::step]
    rng = np.random.default_rng(seed)
    inputs, targets = get_batch(data, batch_size, context_length, rng=rng)
    windows = {tuple(data[i : i + context_length + 1]) for i in range(len(data) - context_length)}
    for row, following in zip(inputs, targets, strict=True):
        assert (*row, following[-1]) in windows
        assert (row[1:] == following[:-1]).all()
    for array in (inputs, targets):
        assert array.shape == (batch_size, context_length)
        assert array.dtype == np.int64
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert not np.shares_memory(array, data)
    assert not np.shares_memory(inputs, targets)
    targets[:] = -100
    assert (inputs >= 0).all()


@pytest.mark.parametrize("kind", ["array", "map", "path", "text", "file"])
def test_every_kind_of_dataset_gives_the_same_batch(path: Path, kind: str) -> None:
    dataset = {
        "array": np.arange(1000), "map": np.memmap(path, dtype=np.uint16, mode="r"), "path": path,
        "text": str(path), "file": open_tokens(path),
    }[kind]
    inputs, targets = get_batch(dataset, 5, 7, rng=np.random.default_rng(1))
    wanted, _ = get_batch(np.arange(1000), 5, 7, rng=np.random.default_rng(1))
    assert (inputs == wanted).all()
    assert (targets == inputs + 1).all()


def test_starts_are_uniform() -> None:
    """Pearson's chi-squared test of 200,000 starts over all 97 that there are."""
    n_starts, context_length, n_draws = 97, 4, 200_000
    data = np.arange(n_starts + context_length)
    inputs, _ = get_batch(data, n_draws, context_length, rng=np.random.default_rng(0))
    counts = np.bincount(inputs[:, 0], minlength=n_starts)
    assert len(counts) == n_starts  # no start lies past the last valid one
    assert counts.min() > 0  # the first and the last are reached
    expected = n_draws / n_starts
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    # 96 degrees of freedom: mean 96, standard deviation 13.9; 0.1 % lie above 144.6.
    assert chi_squared < 144.6


def test_generator_is_advanced_and_repeats() -> None:
    data = np.arange(10**6)
    first, second = np.random.default_rng(3), np.random.default_rng(3)
    batches = [get_batch(data, 4, 2, rng=first)[0] for _ in range(3)]
    again = [get_batch(data, 4, 2, rng=second)[0] for _ in range(3)]
    assert np.array_equal(batches, again)
    assert (batches[0] != batches[1]).any()


def test_where_the_system_maps_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(n_bytes: int) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("preprocess.reused_memory._mapped", refuse)
    held = [get_batch(np.arange(500), 99, 150)[0] for _ in range(9)]
    assert all(part.shape == (99, 150) for part in held)


def test_memory_is_used_again_when_nobody_holds_it() -> None:
    """Who keeps a part of a batch keeps it as it is, and little more memory than it needs."""
    data = np.arange(500)
    ways = [lambda x: x[1:][::-1], memoryview, lambda x: x.view(np.uint32), lambda x: x.T]
    held: list[Any] = []
    for _ in range(6):
        for way in ways:
            held += map(way, get_batch(data, 64, 150))
    seen = [bytes(each) for each in held]
    for _ in range(20):
        for part in get_batch(data, 64, 150):
            part[:] = -1
    assert [bytes(each) for each in held] == seen
    for _ in range(9):  # which leave memory of their size
        get_batch(data, 4000, 150)
    kept: Any = get_batch(data, 64, 150)[0]
    n_bytes = kept.nbytes
    while isinstance(kept.base, np.ndarray):
        kept = kept.base
    assert (kept.nbytes if kept.base is None else len(kept.base.obj)) <= 2 * n_bytes


# Paths.


def count_openings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    opened: list[str] = []

    def counted(path: str) -> TokenFile:
        opened.append(path)
        return open_tokens(path)

    monkeypatch.setattr("preprocess.sampling.data.open_tokens", counted)
    return opened


def test_path_is_opened_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = count_openings(monkeypatch)
    for _ in range(3):
        get_batch(path, 2, 3)
        get_batch(str(path), 2, 3)
    monkeypatch.chdir(path.parent)
    get_batch("train.bin", 2, 3)
    assert opened == [str(path)]


def test_relative_path_follows_the_working_directory(tmp_path: Path, monkeypatch: Any) -> None:
    for name, token in (("a", 7), ("b", 8)):
        write(tmp_path / name, np.full(9, token, np.uint32), 300)
        monkeypatch.chdir(tmp_path / name)
        assert get_batch("train.bin", 1, 2)[0].tolist() == [[token, token]]


def test_replaced_file_is_opened_again(path: Path) -> None:
    assert get_batch(path, 2, 3)[0].max() < 1000
    write(path.parent, np.full(1000, 77, np.uint32), 1000)
    assert get_batch(path, 2, 3)[0].tolist() == [[77] * 3] * 2
    write(path.parent, np.full(50, 70_000, np.uint32), 70_001)
    assert get_batch(path, 2, 3)[0].tolist() == [[70_000] * 3] * 2
    maps = Path("/proc/self/maps")
    if maps.exists():  # what was replaced takes no disk
        assert f"{path} (deleted)" not in maps.read_text()
    path.with_suffix(".json").unlink()
    with pytest.raises(TokenFileError, match=r"has no manifest .*np\.memmap"):
        get_batch(path, 2, 3)


def test_many_paths_are_not_all_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = count_openings(monkeypatch)
    paths = [
        write(tmp_path, np.arange(9, dtype=np.uint32), 300, name=f"{i}_train") for i in range(40)
    ]
    for each in paths:
        get_batch(each, 1, 2)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert maps.read_text().count(str(tmp_path)) < 2 * 40
    get_batch(paths[0], 1, 2)
    assert len(opened) == 41


# Refusals.


@pytest.mark.parametrize(("given", "message"), [
    *(({"dataset": np.arange(n), "context_length": length},
       rf"the array has {n} tokens, and a window needs context_length \+ 1 = {length + 1:,}:"
       f" choose a context_length below {n} or more data")
      for n, length in ((0, 1), (1, 1), (4, 4), (5, 1000))),
    ({"dataset": np.zeros(9)}, r"the dataset should be the result of open_.*got float64\[9\]"),
    ({"dataset": np.zeros((3, 3), np.uint16)}, r"open_tokens.*got uint16\[3, 3\]"),
    ({"dataset": [1, 2, 3]}, "the dataset should be the result of open_tokens.*got list"),
    ({"batch_size": 0}, "batch_size should be at least 1; got 0"),
    ({"rng": 0}, r"rng should be a numpy Generator.*default_rng\(seed\)"),
    ({"rng": np.random.RandomState(0)}, r"rng should be a numpy Generator.*default_rng\(seed"),
])  # fmt: skip
def test_wrong_arguments(given: dict[str, Any], message: str) -> None:
    sound: dict[str, Any] = {"dataset": np.arange(99), "batch_size": 1, "context_length": 1}
    with pytest.raises(SamplingError, match=message):
        get_batch(**sound | given)


def test_arrays_of_the_caller_are_filled() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    expected = get_batch(tokens, 3, 5, rng=np.random.default_rng(1))
    for dtype in (np.int64, np.int32, np.uint32):
        out = np.zeros((3, 5), dtype), np.zeros((3, 5), dtype)
        found = get_batch(tokens, 3, 5, rng=np.random.default_rng(1), out=out)
        assert found is out
        assert all((a == b).all() for a, b in zip(out, expected, strict=True))
    wrong: list[Any] = [
        (np.zeros((3, 4), np.int64), r"int64\[3, 5\]; got int64\[3, 4\]"),
        (np.zeros((3, 5)), r"got float64\[3, 5\]"),
        (np.zeros((3, 5), np.int8), r"got int8\[3, 5\]"),
        (np.frombuffer(bytes(120), np.int64).reshape(3, 5), r"got read-only int64\[3, 5\]"),
        (np.broadcast_to(np.int64(0), (3, 5)), r"got read-only int64\[3, 5\]"),
        ([[0]], r"out should be two arrays or CPU tensors of int32 or int64\[3, 5\]; got list"),
    ]  # fmt: skip
    for each, message in wrong:
        with pytest.raises(SamplingError, match=message):
            get_batch(tokens, 3, 5, out=(each, each))
    for few_or_many in ((), (expected[0],), (*expected, expected[0])):
        with pytest.raises(SamplingError, match=r"out should be two arrays or CPU tensors; got \d"):
            get_batch(tokens, 3, 5, out=few_or_many)  # type: ignore[call-overload]
    with pytest.raises(SamplingError, match="out and device were both given: out is two arrays"):
        get_batch(tokens, 3, 5, "cpu", out=(expected[0], expected[1]))
