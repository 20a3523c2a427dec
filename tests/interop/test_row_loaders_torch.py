"""Rows of every format as datasets of PyTorch: each row, in any order, in workers, in a Trainer."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import written

from preprocess import RowsError, SamplingError, TokenFile, build
from preprocess.rows.formats import FORMATS
from preprocess.rows.write import write_rows

torch = pytest.importorskip("torch", reason="needs the extra `torch`")
pa = pytest.importorskip("pyarrow", reason="needs the extra `formats`")

from torch.utils.data import DataLoader  # noqa: E402 (torch may be missing)

from preprocess import (  # noqa: E402
    PickledTrainerDataset,
    StreamingTokenizedDataset,
    TokenizedDataset,
)

SIZES = range(1, 24)
KINDS = {
    "parquet": {"format": "parquet"},
    "arrow": {"format": "arrow"},
    "arrow.zstd": {"format": "arrow", "compression": "zstd"},
    "jsonl": {"format": "jsonl"},
    "jsonl.gz": {"format": "jsonl", "compression": "gzip"},
    "jsonl.zst": {"format": "jsonl", "compression": "zstd"},
    "npz": {"format": "npz", "padding": "longest", "columns": ["input_ids", "labels"]},
    "pickle": {"format": "pickle"},
}
EACH = pytest.mark.parametrize("kind", [*KINDS])
DATASETS = pytest.mark.parametrize("new", [TokenizedDataset, StreamingTokenizedDataset])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> TokenFile:
    """23 documents of 1 to 23 tokens."""
    return written.dataset(tmp_path_factory.mktemp("data"), SIZES, seed=None)


def write(file: TokenFile, out: Path, kind: str, **more: Any) -> Path:
    options: dict[str, Any] = {"num_shards": 3} | KINDS[kind] | more
    return write_rows(str(file.path), out=out, **options)[0].path


def documents(file: TokenFile, kind: str) -> list[list[int]]:
    """The ids of each row."""
    found = [file.doc(i).tolist() for i in range(len(SIZES))]
    return [x + [written.END] * (23 - len(x)) for x in found] if kind == "npz" else found


def ids_of(dataset: Any, order: Any = None) -> list[list[int]]:
    order = range(len(dataset)) if order is None else order
    return [dataset[i]["input_ids"].tolist() for i in order]


@EACH
@DATASETS
def test_every_row(file: TokenFile, tmp_path: Path, kind: str, new: Any) -> None:
    path = write(file, tmp_path, kind)
    dataset, expected = new(path), documents(file, kind)
    assert len(dataset) == 23
    order = np.random.default_rng(0).permutation(23)
    assert ids_of(dataset, order) == [expected[i] for i in order]
    assert ids_of(dataset, range(-23, 0)) == expected
    row = dataset[5]
    names = ["input_ids"] if kind == "pickle" else ["input_ids", "attention_mask", "labels"]
    names = ["input_ids", "labels"] if kind == "npz" else names
    assert [*row] == names
    assert {tensor.dtype for tensor in row.values()} == {torch.long}
    assert {tensor.dim() for tensor in row.values()} == {1}
    for index in (23, -24):
        with pytest.raises(IndexError, match=f"there are 23 rows; got {index}"):
            dataset[index]
    row["input_ids"] += 1  # a copy
    assert ids_of(dataset) == ids_of(pickle.loads(pickle.dumps(dataset))) == expected
    # Without the manifest, as files of others.
    (path / "rows.json").unlink()
    assert ids_of(new(path)) == expected


@EACH
@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_shuffled_pass_reads_each_block_once(
    file: TokenFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, n_workers: int
) -> None:
    """Whole files, row groups, or record batches; at most `cache_size` of them in memory."""
    read: list[tuple[Path, int]] = []
    reader = FORMATS[KINDS[kind]["format"]]
    original = reader.block
    monkeypatch.setattr(
        reader, "block", lambda x, number: read.append((x.path, number)) or original(x, number)
    )
    path = write(file, tmp_path, kind, num_shards=8)
    dataset = StreamingTokenizedDataset(path, cache_size=2)
    expected = documents(file, kind)
    for epoch, order in enumerate([dataset.shuffled(3)] * 2):
        read.clear()
        loader = DataLoader(
            dataset, batch_size=None, sampler=order, num_workers=n_workers,
            multiprocessing_context="fork" if n_workers else None,
        )
        rows = [row["input_ids"].tolist() for row in loader]
        assert sorted(rows) == sorted(expected) != rows
        assert len(loader) == len(order) == 23
        if not n_workers:
            assert len(read) == len({*read}) == 8
        again = dataset.shuffled(3)
        again.set_epoch(epoch)
        numbers = [*again]
        assert rows == [expected[i] for i in numbers]
        assert numbers != [*again]
    state = dataset.shuffled(3).state_dict()
    for wrong in ({}, state | {"seed": 4}, state | {"rows": 22}):
        with pytest.raises(SamplingError, match="state: should be of an order of 23 rows with"):
            dataset.shuffled(3).load_state_dict(wrong)
    with pytest.raises(SamplingError, match="given should be at most 23; got 24"):
        dataset.shuffled(3).load_state_dict(state | {"given": 24})
    with pytest.raises(SamplingError, match="cache_size should be at least 1; got 0"):
        StreamingTokenizedDataset(path, cache_size=0)


def test_files_of_others(tmp_path: Path) -> None:
    """Streams of `datasets`, other integers, numbers in names, blank lines."""
    table = pa.table({"input_ids": pa.array([[1, 2], [3]], pa.large_list(pa.int64()))})
    for name in ("arrow", "jsonl", "pickle"):
        (tmp_path / name).mkdir()
    with pa.ipc.new_stream(tmp_path / "arrow" / "x.arrow", table.schema) as writer:
        writer.write_table(table, 1)
    lines = '\n{"input_ids": [1, 2]}\n \n{"input_ids": [3]}\n\n'
    (tmp_path / "jsonl" / "x.jsonl").write_text(lines)
    for n, rows in ((10, [[3]]), (9, [[1, 2]]), (11, [])):
        (tmp_path / "pickle" / f"dump-{n}.pkl").write_bytes(pickle.dumps(rows))
    for name in ("arrow", "jsonl", "pickle"):
        for new in (TokenizedDataset, StreamingTokenizedDataset):
            assert ids_of(new(tmp_path / name)) == [[1, 2], [3]]
    assert ids_of(PickledTrainerDataset(tmp_path / "pickle")) == [[1, 2], [3]]


# Directories and files that are wrong.


@DATASETS
def test_directories_that_are_none(file: TokenFile, tmp_path: Path, new: Any) -> None:
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(RowsError, match=r"no files of rows \(\.parquet, .* in this directory"):
            new(path)
    write(file, tmp_path / "val", "parquet")
    write(file, tmp_path / "train", "jsonl")
    with pytest.raises(RowsError, match=r"but in .* there are train, val; give the directory"):
        new(tmp_path)
    (tmp_path / "val" / "x.npz").write_bytes(b"")
    assert len(new(tmp_path / "val")) == 23  # of its manifest
    (tmp_path / "val" / "rows.json").unlink()
    with pytest.raises(RowsError, match=r"has files of several formats \(.*npz.*\), and rows are"):
        new(tmp_path / "val")
    next((tmp_path / "train").glob("*.jsonl")).unlink()
    with pytest.raises(RowsError, match=r"jsonl: is missing, and rows\.json has it; run tokenmill"):
        new(tmp_path / "train")


@EACH
@DATASETS
def test_files_that_changed(file: TokenFile, tmp_path: Path, kind: str, new: Any) -> None:
    path = write(file, tmp_path / "rows", kind)
    other = write(file, tmp_path / "other", kind, num_shards=6)
    dataset = new(path)
    first = next(x for x in path.iterdir() if re.search(r"00000-|dump-0|part_000", x.name))
    source = other / first.name.replace("-of-00003", "-of-00006")
    first.write_bytes(source.read_bytes())
    with pytest.raises(RowsError, match=r"rows where .* were counted|is no JSON object"):
        ids_of(dataset)
    with pytest.raises(RowsError, match="has 4 rows where 8 were counted, so it was changed since"):
        ids_of(new(path))


@DATASETS
def test_rows_of_others_that_differ(tmp_path: Path, new: Any) -> None:
    (tmp_path / "a.jsonl").write_text('{"input_ids": [1]}\n{"input_ids": [3, -100]}\n')
    (tmp_path / "b.jsonl").write_text('{"ids": [1]}\n')
    assert new(tmp_path)[0]["input_ids"].tolist() == [1]
    with pytest.raises(RowsError, match=r"a\.jsonl: row 1, counted from 0, has the id -100, expec"):
        ids_of(new(tmp_path))
    message = r"b\.jsonl: row 0, .* has the columns ids, and rows before it input_ids; put diff"
    with pytest.raises(RowsError, match=message):
        ids_of(new(tmp_path), (0, 2))


# Pickled rows, and the Trainer.


def test_pickled_rows_of_folders(file: TokenFile, tmp_path: Path) -> None:
    paths = [write(file, tmp_path / name, "pickle", num_shards=11) for name in ("a", "b")]
    dataset, expected = PickledTrainerDataset(paths), documents(file, "pickle") * 2
    assert len(dataset) == 46
    assert ids_of(dataset) == expected
    assert ids_of(pickle.loads(pickle.dumps(dataset)), range(-46, 0)) == expected
    row = dataset[7]
    assert {name: tensor.tolist() for name, tensor in row.items()} == {
        "input_ids": expected[7], "attention_mask": [1] * 8, "labels": expected[7],
    }  # fmt: skip
    assert {tensor.dtype for tensor in row.values()} == {torch.long}
    for index in (46, -47):
        with pytest.raises(IndexError, match=f"there are 46 rows; got {index}"):
            dataset[index]
    with pytest.raises(RowsError, match=r"there is no file dump-\*\.pkl in this folder"):
        PickledTrainerDataset([paths[0], tmp_path])
    with pytest.raises(RowsError, match=r"no folders with files dump-\*\.pkl were given; give one"):
        PickledTrainerDataset([])


def test_pickled_rows_of_one_file_for_each_input(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name * 5)
    texts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    build(train=texts, val_fraction=0, vocab_size=257, out=tmp_path)
    write_rows(tmp_path, out=tmp_path / "rows", format="pickle", per_file=True, seq_length=4)
    found = PickledTrainerDataset(tmp_path / "rows")
    expected = [[97] * 4, [97, 256, -100, -100], [98] * 4, [98, 256, -100, -100]]
    assert [found[i]["labels"].tolist() for i in range(4)] == expected


@pytest.mark.parametrize("side", ["right", "left"])
def test_pickled_padding_is_not_trained_on(file: TokenFile, tmp_path: Path, side: str) -> None:
    more = {"padding": "max-length", "padding_side": side, "max_length": 23}
    dataset = PickledTrainerDataset(write(file, tmp_path, "pickle", **more))
    for i, ids in enumerate(documents(file, "pickle")):
        row, pads = dataset[i], 23 - len(ids)
        expected = [-100] * pads + ids if side == "left" else ids + [-100] * pads
        assert row["labels"].tolist() == expected
        assert row["attention_mask"].tolist() == [int(label != -100) for label in expected]


def test_pickled_rows_are_compared_with_their_counts(
    file: TokenFile, tmp_path: Path, capsys: Any
) -> None:
    path = write(file, tmp_path, "pickle")
    meta = path / "dump-meta_data.json"
    PickledTrainerDataset([path])
    assert capsys.readouterr().out == f"{meta}: files 3, samples 23, tokens 276\n"
    lost = (path / "dump-1.pkl").rename(tmp_path / "lost")
    with pytest.raises(RowsError, match=r"data.json: expected 3 files, found 2 in the .pkl files"):
        PickledTrainerDataset([path])
    lost.rename(path / "dump-1.pkl")
    for counts, message in [
        ({"files": 3, "samples": 24}, "expected 24 samples, found 23"),
        ({"tokens": 277}, "expected 277 tokens, found 276"),
        ({"files": "3", "samples": "24"}, "expected '24' samples, found 23"),
        ({"tokens": "276 tokens"}, "expected '276 tokens' tokens, found 276"),
        ({"tokens": None}, "expected None tokens, found 276"),
        ([3], r"data.json: is no JSON object with counts \(.*; get it again, or remove it"),
    ]:
        meta.write_text(json.dumps(counts))
        with pytest.raises(RowsError, match=message):
            PickledTrainerDataset([path])
    for counts in (
        {"tokenizer": "starcoder", "samples": 23}, {"files": "3", "samples": "23"},
        {"samples": "23", "tokens": "276"},
    ):  # fmt: skip
        meta.write_text(json.dumps(counts))
        assert len(PickledTrainerDataset([path])) == 23


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_rows_that_are_arrays(tmp_path: Path, protocol: int) -> None:
    """Of each NumPy: a list of arrays, one array, and lists of its numbers."""
    rows = np.arange(12).reshape(3, 4) * 1000
    for content in (
        [*rows], rows, np.asfortranarray(rows), rows.astype(">u2"), rows.astype(np.int32),
        [[*row] for row in rows], [rows[0], [*map(int, rows[1])], rows[2].astype(np.uint32)],
    ):
        data = pickle.dumps(content, protocol)
        names = [(b"", b"")]
        if protocol < 4:  # without the lengths of names
            names = [(b"numpy.core", b"numpy._core"), (b"numpy._core", b"numpy.core")]
        for old, new in names:
            (tmp_path / "dump-0.pkl").write_bytes(data.replace(old, new) if old else data)
            assert ids_of(PickledTrainerDataset(tmp_path)) == rows.tolist()
