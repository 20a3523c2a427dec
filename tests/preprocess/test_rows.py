"""Rows of a dataset: which tokens they have, their arrays, and their files."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_cases import dataset, documents_of, need, rows_in, rows_of

from bpe import train_bpe
from preprocess import build
from preprocess.check.verify import verify
from preprocess.cli import run
from preprocess.dataset.columns import TokenFileError
from preprocess.report.progress import OutOfTimeError, Progress
from preprocess.rows import columns
from preprocess.rows.columns import COLUMNS, RowReader, Shape
from preprocess.rows.formats import FORMATS, RowsError
from preprocess.rows.manifest import MANIFEST_FILE, read_manifest
from preprocess.rows.write import write_rows
from preprocess.sampling.windows import DocumentSpans
from preprocess.settings import SettingsError
from preprocess.storage import OutputError


def windows(document: list[int], length: int, stride: int) -> list[list[int]]:
    """Windows that begin every `stride` tokens, until one has the end of the document."""
    found = []
    for start in range(0, len(document), stride):
        found.append(document[start : start + length])
        if start + length >= len(document):
            break
    return found


# Which tokens.


@given(st.data())
def test_rows_of_documents(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=30))
    length = data.draw(st.none() | st.integers(1, 9))
    stride = None if length is None else data.draw(st.none() | st.integers(1, length))
    first_only = length is not None and stride is None and data.draw(st.booleans())
    n_before, n_after = data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1))
    drop_short = length is not None and data.draw(st.booleans())
    chosen = range(*sorted(data.draw(st.tuples(*[st.integers(0, len(sizes))] * 2))))
    ends = np.cumsum(sizes).astype(np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DocumentSpans, "BLOCK", data.draw(st.sampled_from([1, 3, 4096])))
        plan = DocumentSpans(
            ends, length, stride, first_only=first_only, n_before=n_before, n_after=n_after,
            drop_short=drop_short, documents=chosen,
        )
        expected, n_short = [], 0
        for end, size in [*zip(ends.tolist(), sizes, strict=True)][chosen.start : chosen.stop]:
            tokens = [*range(end - size, end)][n_before : size - n_after]
            if not tokens:
                continue
            whole = length or len(tokens)
            found = windows(tokens, whole, stride or whole)
            found = found[:1] if first_only else found
            expected += [row for row in found if not drop_short or len(row) == length]
            n_short += drop_short and sum(len(row) != length for row in found)
        assert len(plan) == len(expected)
        assert plan.n_tokens == sum(map(len, expected))
        assert plan.longest == max(map(len, expected), default=0)
        assert plan.n_short == n_short
        first = data.draw(st.integers(0, len(expected)))
        stop = data.draw(st.integers(first, len(expected)))
        pieces = plan.rows(first, stop)
        found = [
            [*range(start, start + n)]
            for start, n in zip(pieces.starts.tolist(), pieces.lengths.tolist(), strict=True)
        ]
        assert found == expected[first:stop]


# Arrays.


@given(st.data())
@settings(max_examples=30)
def test_arrays_of_rows(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("data")
    sizes = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=9))
    shards = data.draw(st.sampled_from([None, 7]))
    file = dataset(directory, sizes, shard_tokens=shards, mask=data.draw(st.booleans()))
    length = data.draw(st.integers(1, 9))
    around = data.draw(st.sampled_from([((), ()), ((7,), ()), ((7, 8), (9,))]))
    padded = data.draw(st.none() | st.integers(length + 3, length + 6))
    left = data.draw(st.booleans())
    plan = DocumentSpans(file.document_ends, length, None)
    shape = Shape(COLUMNS, *around, length=padded, pad_id=300, pads_left=left)
    mask = np.asarray(file.loss_mask).tolist()
    expected, at = [], 0
    for document in documents_of(file):
        for row in windows(document, length, length):
            ids, n_around = [*around[0], *row, *around[1]], [*map(len, around)]
            trained = [0] * n_around[0] + mask[at : at + len(row)] + [0] * n_around[1]
            ones, pads = [1] * len(ids), (padded or len(ids)) - len(ids)
            trained = trained if file.has_mask else ones
            columns_of_row = {
                "input_ids": (ids, 300), "attention_mask": (ones, 0),
                "labels": ([x if t else -100 for x, t in zip(ids, trained, strict=True)], -100),
                "segment_ids": (ones, 0), "position_ids": ([*range(len(ids))], 0),
            }
            expected.append({
                name: [padding] * pads * left + values + [padding] * pads * (not left)
                for name, (values, padding) in columns_of_row.items()
            })
            at += len(row)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_AT_ONCE", data.draw(st.sampled_from([1, 20, 1 << 20])))
        patch.setattr(columns, "_ROWS_AT_ONCE", data.draw(st.sampled_from([2, 1 << 16])))
        for batch in RowReader(file, plan, shape).batches(0, len(plan)):
            found += rows_of(batch)
            assert all(each.dtype == np.int32 for each in batch.values.values())
    assert found == expected


@pytest.mark.parametrize(
    ("strategy", "shards"), [("greedy", None), ("pool", 50), ("first_fit", None), ("best_fit", 50)]
)
def test_packed_rows(tmp_path: Path, strategy: Any, shards: int | None) -> None:
    sizes = [*np.random.default_rng(3).integers(1, 30, 100).tolist()]
    file = dataset(tmp_path / "data", sizes, shard_tokens=shards, mask=True)
    options: dict[str, Any] = {"seq_length": 16, "strategy": strategy, "format": "jsonl"}
    (result,) = write_rows(tmp_path / "data", out=tmp_path / "rows", num_shards=3, **options)
    rows = rows_in(result.path)
    pieces = []
    for row in rows:
        assert row.keys() == {*COLUMNS} - {"attention_mask"}
        assert len(row["input_ids"]) <= 16
        for number in range(1, max(row["segment_ids"]) + 1):
            at = [i for i, each in enumerate(row["segment_ids"]) if each == number]
            assert at == [*range(at[0], at[-1] + 1)]
            assert [row["position_ids"][i] for i in at] == [*range(len(at))]
            ids = [row["input_ids"][i] for i in at]
            labels = [row["labels"][i] for i in at]
            assert labels[0] == -100
            assert labels[1:] == [x if x % 3 > 0 else -100 for x in ids[1:]]
            pieces.append(ids)
    expected = [x for each in documents_of(file) for x in windows(each, 16, 16)]
    assert sorted(pieces) == sorted(expected)
    assert result.manifest.tokens == file.n_tokens == sum(sizes)


# Files.


ROWS: dict[str, dict[str, Any]] = {
    "windows": {"max_length": 9, "stride": 4},
    "documents": {},
    "truncated": {"max_length": 9, "truncation": True, "drop_end_of_text": True},
    "stream": {"seq_length": 8},
    "padded": {"max_length": 9, "padding": "max-length", "padding_side": "left"},
    "longest": {"max_length": 30, "padding": "longest"},
    "whole windows": {"max_length": 9, "stride": 4, "drop_short": True},
    "whole cuts": {"seq_length": 9, "drop_short": True},
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("format_name", FORMATS)
def test_what_is_written_is_read(tmp_path: Path, format_name: Any, kind: str) -> None:
    need(format_name)
    file = dataset(tmp_path / "data", [1, 20, 7, 30, 2, 2, 9, 1, 16])
    options = ROWS[kind] | {"format": format_name}
    expected, contents = None, {}
    for compression in FORMATS[format_name].compressions:
        for n_shards, workers in ((1, 1), (3, 1), (3, 2)):
            (result,) = write_rows(
                tmp_path / "data", out=tmp_path / f"{compression}{n_shards}{workers}",
                num_shards=n_shards, compression=compression, workers=workers, **options,
            )
            assert len(result.manifest.shards) == n_shards
            rows = rows_in(result.path)
            expected = expected or rows
            assert rows == expected
            assert len(rows) == result.manifest.rows
            for each in result.manifest.shards:
                data = (result.path / each.name).read_bytes()
                assert contents.setdefault((compression, n_shards, each.name), data) == data
    if "drop_short" in options:
        assert {len(row["input_ids"]) for row in expected} == {9}
    texts = documents_of(file)
    if kind == "documents" and format_name != "npz":
        assert [row["input_ids"] for row in expected] == texts
    if kind == "truncated":
        found = [
            [x for x, y in zip(row["input_ids"], row.get("attention_mask", row["input_ids"]),
                               strict=True) if y or "attention_mask" not in row]
            for row in expected
        ]
        assert found == [each[:-1][:9] for each in texts if each[:-1]]


# Refusals.


def test_settings_that_contradict() -> None:
    for options, message in [
        ({"max_length": 4, "stride": 5}, "stride 5 is above max_length=4, so tokens between"),
        ({"stride": 5}, "stride has no effect without max_length; give it, or leave out"),
        ({"max_length": 4, "seq_length": 4}, "max_length and seq_length were both given: rows"),
        ({"seq_length": 4, "drop_end_of_text": True}, "drop_end_of_text and seq_length were"),
        ({"strategy": "greedy"}, "strategy has no effect without seq_length; give it"),
        ({"max_length": 4, "stride": 2, "truncation": True}, "were both given: a document has one"),
        ({"padding": "max-length"}, "padding max-length needs max_length or seq_length; give one"),
        ({"pad_token": "x"}, "pad_token and padding_side are for padding; say how"),
        ({"drop_short": True, "seq_length": 4, "strategy": "pool"}, "packed rows are padded"),
        ({"per_file": True, "strategy": "greedy", "seq_length": 4}, "each input has one file"),
        ({"max_minutes": 0}, "max_minutes: should be a number greater than 0; got 0"),
    ]:
        with pytest.raises(SettingsError, match=message):
            write_rows("data", **options)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    dataset(tmp_path / "data", [5, 6, 7])
    for options, kind, message in [
        ({"format": "npz", "max_length": 9, "drop_short": True}, RowsError,
         "has no tokens for rows; choose a shorter max_length or seq_length, or leave out drop_s"),
        ({"format": "jsonl", "compression": "snappy"}, SettingsError,
         "compression 'snappy' is not for format 'jsonl', which has none, gzip, zstd"),
        ({"format": "pickle", "columns": "labels"}, SettingsError, "format pickle has ids alone"),
        ({"format": "jsonl", "columns": ["input_ids", "text"]}, SettingsError,
         "columns 'text' should be one of input_ids, .*, each once at most"),
        ({"format": "jsonl", "columns": ["labels"]}, SettingsError, "columns lacks input_ids, wit"),
        ({"format": "jsonl", "add_special_tokens": True}, SettingsError,
         "add_special_tokens needs the tokenizer of .*train.bin, and there is no"),
        ({"format": "jsonl", "padding": "longest", "pad_token": "<pad>"}, SettingsError,
         "pad_token '<pad>' cannot be looked up without a tokenizer; give it"),
    ]:  # fmt: skip
        with pytest.raises(kind, match=message):
            write_rows(tmp_path / "data", out=tmp_path / "rows", **options)  # type: ignore[arg-type]
        assert not [*(tmp_path / "rows").rglob("*.jsonl")]
    with pytest.raises(TokenFileError, match="no such file or directory; check the path"):
        write_rows(tmp_path / "nothing")
    (tmp_path / "text.jsonl").write_text("{}")
    with pytest.raises(TokenFileError, match="is not a dataset; build one first: tokenmill build"):
        write_rows(tmp_path / "text.jsonl")
    with pytest.raises(OutputError, match="a file is where a directory is expected, so move the f"):
        write_rows(tmp_path / "data", out=tmp_path / "text.jsonl")
    (tmp_path / "empty").mkdir()
    with pytest.raises(Exception, match="no finished token file in this directory; build one fir"):
        write_rows(tmp_path / "empty", out=tmp_path / "rows")
    dataset(tmp_path / "ends", [1, 1])
    with pytest.raises(RowsError, match="has no tokens for rows; build it from more text"):
        write_rows(tmp_path / "ends", out=tmp_path / "rows", drop_end_of_text=True, format="jsonl")


@pytest.mark.parametrize(("suffix", "dtype", "shards", "message"), [
    ("bin", np.uint16, None, "the dataset has ids outside of its vocabulary of 301"),
    *(("docs", np.uint64, shards, "positions are outside of the dataset, so its document ends")
      for shards in (None, 7)),
])  # fmt: skip
def test_rows_of_a_damaged_dataset_are_not_written(
    tmp_path: Path, suffix: str, dtype: Any, shards: int | None, message: str
) -> None:
    dataset(tmp_path / "data", [5, 6, 7], shard_tokens=shards)
    (path, *_) = sorted((tmp_path / "data").glob(f"*.{suffix}"))
    values = np.fromfile(path, dtype)
    values[-1] = 10_000
    values.tofile(path)
    with pytest.raises((RowsError, TokenFileError), match=message):
        write_rows(tmp_path / "data", out=tmp_path / "rows", format="jsonl")
    assert not (tmp_path / "rows" / MANIFEST_FILE).exists()


def test_rows_that_are_there(tmp_path: Path) -> None:
    dataset(tmp_path / "data", [5, 6, 7])
    options: dict[str, Any] = {"out": tmp_path / "rows", "format": "jsonl"}
    (first,) = write_rows(tmp_path / "data", **options)
    assert first.is_new
    (again,) = write_rows(tmp_path / "data", **options)
    assert not again.is_new
    assert "up to date (3 rows, 18 tokens, 1 file," in again.line
    with pytest.raises(OutputError, match=r"has rows of other settings \(max_length\); choose an"):
        write_rows(tmp_path / "data", max_length=3, **options)
    write_rows(tmp_path / "data", num_shards=3, overwrite=True, **options)
    write_rows(tmp_path / "data", max_length=3, overwrite=True, **options)
    names = sorted(each.name for each in (tmp_path / "rows").iterdir())
    assert names == [
        "config.json", "metadata.json", "rows.json", "tokenization_stats.json",
        "train-00000-of-00001.jsonl",
    ]
    dataset(tmp_path / "other", [5, 6])
    message = r"has rows of another dataset; choose another directory, or replace them \(overwr"
    with pytest.raises(OutputError, match=message):
        write_rows(tmp_path / "other", max_length=3, **options)


def test_files_that_are_in_the_way(tmp_path: Path) -> None:
    dataset(tmp_path / "data", [5, 6, 7])
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "config.json").write_text("mine")
    message = "config.json: exists and was not written by tokenmill rows, so it is left alone"
    with pytest.raises(OutputError, match=message):
        write_rows(tmp_path / "data", out=tmp_path / "rows", format="jsonl", overwrite=True)
    assert (tmp_path / "rows" / "config.json").read_text() == "mine"
    (tmp_path / "rows" / "config.json").unlink()
    write_rows(tmp_path / "data", out=tmp_path / "rows", format="pickle")
    foreign = tmp_path / "rows" / "train-00000-of-00001.jsonl"
    foreign.write_text("mine")
    with pytest.raises(OutputError, match="jsonl: exists and was not written by tokenmill rows"):
        write_rows(tmp_path / "data", out=tmp_path / "rows", format="jsonl", overwrite=True)
    foreign.unlink()
    write_rows(tmp_path / "data", out=tmp_path / "rows", format="jsonl", overwrite=True)
    assert not [*foreign.parent.glob("dump-*")]
    with pytest.raises(OutputError, match="has a dataset; choose another directory for its rows"):
        write_rows(tmp_path / "data", out=tmp_path / "data", format="jsonl")


@pytest.mark.parametrize(("more", "n_files", "why"), [
    ({"num_shards": 3}, 3, ""),
    ({"num_shards": 100}, 10, "10 files instead of num_shards=100, for there are 10 rows"),
    ({"num_shards": 2, "max_shard_size": "500MB"}, 2, ""),
    ({"num_shards": 2, "max_shard_size": 240}, 5, "5 files instead of num_shards=2, for their"),
    ({"max_shard_size": 240}, 5, ""),
    ({}, 1, ""),
])  # fmt: skip
def test_the_number_of_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: dict[str, Any], n_files: int, why: str
) -> None:
    dataset(tmp_path / "data", [10] * 10)
    (result,) = write_rows(tmp_path / "data", out=tmp_path / "rows", format="jsonl", **more)
    assert len(result.manifest.shards) == n_files
    assert why in caplog.text
    assert bool(why) == bool(caplog.text)
    assert repr(result) == f"RowsResult({result.line})"


def test_rows_of_two_layouts_are_not_mixed(tmp_path: Path) -> None:
    """Rows of one token file are in the directory, those of several in directories inside of it."""
    data, out, options = tmp_path / "data", tmp_path / "rows", {"format": "jsonl"}

    def rename(before: str, after: str) -> None:
        for suffix in ("bin", "docs", "json"):
            (data / f"{before}.{suffix}").rename(data / f"{after}.{suffix}")

    def places() -> list[str]:
        found = (str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("rows.json"))
        return sorted(found)

    dataset(data, [5, 6, 7])
    write_rows(data, out=out, **options)
    rename("train", "val")
    dataset(data, [5, 6])
    with pytest.raises(OutputError, match=r"rows: has rows, .* in .*train and .*replace them"):
        write_rows(data, out=out, **options)
    (out / "kept.json").touch()
    both = write_rows(data, out=f"{out}/", **options, overwrite=True)
    assert [each.path for each in both] == [out / "train", out / "val"]
    assert places() == ["rows/train", "rows/val"]
    assert [path.name for path in out.iterdir() if path.is_file()] == ["kept.json"]
    with pytest.raises(OutputError, match="train: has rows, and these would be beside them in"):
        write_rows(data / "train.bin", out=out, **options, overwrite=True)  # another command
    rename("val", "third")
    shutil.copytree(out / "train", out / "other")  # has not the name of its dataset
    for name in ("elsewhere", "damaged"):
        shutil.copytree(out / "val", out / name / "val")
        (out / name / "val" / "rows.json").write_text("{}")
    with pytest.raises(OutputError, match="val: has rows, and these would be beside them in"):
        write_rows(data, out=out, **options)
    write_rows(data, out=out, **options, overwrite=True)
    assert places() == [f"rows/{x}" for x in ("damaged/val", "elsewhere/val", "other", "third",
                                              "train")]
    assert not (out / "val").exists()


@pytest.mark.parametrize("more", [{}, {"shuffle_documents": 1}])
def test_rows_say_where_they_are_from(tmp_path: Path, more: dict[str, Any]) -> None:
    """The tokenizer, the time of the newest source, and statistics of the whole run."""
    tokenizer = train_bpe(["some text"], 262, special_tokens=["<|endoftext|>"])
    tokenizer.save(tmp_path / "tokenizer.json")
    sources = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, seconds in zip(sources, (1_700_000_000, 1_600_000_000), strict=True):
        path.write_text("some text")
        os.utime(path, (seconds, seconds))
    built = build(train=sources, val_fraction=0, out=tmp_path / "data",
                  tokenizer=tmp_path / "tokenizer.json", **more)
    (made,) = write_rows(tmp_path / "data", out=tmp_path / "rows", format="jsonl", max_length=15)
    config, about, stats = (
        json.loads((made.path / f"{name}.json").read_text())
        for name in ("config", "metadata", "tokenization_stats")
    )
    expected = {
        "tokenizer": str(tmp_path / "tokenizer.json"), "max_length": 15, "truncation": False,
    }
    counts = {"num_examples": 2, "created_at": "2023-11-14T22:13:20Z"}
    assert (expected | {"tokenizer_fingerprint": tokenizer.fingerprint}).items() <= config.items()
    assert (expected | counts).items() <= about.items()
    assert stats["files_processed"] == 2
    seconds = built.stats["seconds"]
    assert seconds < stats["processing_time_seconds"] <= seconds + made.seconds
    assert stats["sequences_per_second"] == 2 / stats["processing_time_seconds"]
    page = (Path(__file__).parents[2] / "docs" / "rows.md").read_text("utf-8")
    table = page.partition("| key of `tokenization_stats.json` |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [*stats]
    (tmp_path / "data" / "stats.json").unlink()
    write_rows(tmp_path / "data", out=tmp_path / "other", format="jsonl")
    about = json.loads((tmp_path / "other" / "metadata.json").read_text())
    assert (about["tokenizer"], about["created_at"]) == (f"sha256:{tokenizer.fingerprint}", None)


def test_padding_of_another_tokenizer_is_another_run(tmp_path: Path) -> None:
    tokenizer = train_bpe(["some text"], 262, special_tokens=["<|endoftext|>", "<a>", "<b>"])
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "text.txt").write_text("a<|endoftext|>bcd")
    build(train=tmp_path / "text.txt", val_fraction=0, tokenizer=tmp_path / "tokenizer.json",
          out=tmp_path / "data")
    options: dict[str, Any] = {"out": tmp_path / "rows", "format": "jsonl", "padding": "longest"}
    config = tmp_path / "data" / "tokenizer_config.json"
    for token in ("<a>", "<b>"):
        config.write_text(json.dumps(json.loads(config.read_text()) | {"pad_token": token}))
        if token == "<b>":
            with pytest.raises(OutputError, match=r"has rows of other settings \(special ids\)"):
                write_rows(tmp_path / "data", **options)
        (result,) = write_rows(tmp_path / "data", overwrite=True, **options)
        assert result.manifest.pad_id == tokenizer.special_tokens[token]
    path = result.path / result.manifest.shards[0].name
    content = path.read_bytes()
    for damaged, message in ((content[:-1], "has 167 bytes, expected 168 bytes"),
                             (None, "is missing, expected 168 bytes")):
        path.unlink()
        if damaged:
            path.write_bytes(damaged)
        message += r" as .*; run tokenmill verify --repair .*, or write the rows again \(ov"
        with pytest.raises(OutputError, match=message):
            write_rows(tmp_path / "data", **options)
    assert all(each.sound for each in verify(result.path, repair=True))
    assert path.read_bytes() == content


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_of_pickled_rows_is_known(tmp_path: Path, side: Any, capsys: Any) -> None:
    """Whoever loads the pickle has a list of lists; its reader here has the mask as well."""
    file = dataset(tmp_path / "data", [5, 1, 9, 3])
    options: dict[str, Any] = {"padding": "longest", "padding_side": side}
    (result,) = write_rows(tmp_path / "data", out=tmp_path / "a", format="pickle", **options)
    (other,) = write_rows(tmp_path / "data", out=tmp_path / "b", format="jsonl", **options)
    expected = rows_in(other.path)
    with open(result.path / "dump-0.pkl", "rb") as opened:
        assert pickle.load(opened) == [row["input_ids"] for row in expected]
    masked = [{name: row[name] for name in ("input_ids", "attention_mask")} for row in expected]
    assert rows_in(result.path) == masked
    assert run(["inspect", str(result.path)]) == 0
    assert "  padding share: 50.0 %\n" in capsys.readouterr().out
    assert file.n_tokens == 18
    # Cuts of the stream are padded, too, so that every row has seq_length tokens.
    (result,) = write_rows(tmp_path / "data", out=tmp_path / "c", format="pickle", seq_length=8)
    rows = rows_in(result.path)
    assert [len(row["input_ids"]) for row in rows] == [8, 8, 8]
    assert [sum(row["attention_mask"]) for row in rows] == [8, 8, 2]


def test_what_is_left_out_or_padded_is_reported(tmp_path: Path, capfd: Any) -> None:
    dataset(tmp_path / "data", [5, 6, 7], mask=True)
    command = ["rows", str(tmp_path / "data"), "--max-length", "4", "--format"]
    for more, lines in [
        (["npz"], ["npz has rows of one length, so they are padded to the longest; --drop-short"]),
        (["npz", "--padding", "longest"], []),
        (["jsonl", "--drop-short"], [": 3 rows of fewer than 4 tokens are left out (--drop-"]),
        (["pickle"], ["pickle has ids alone, so which tokens are trained on is lost; choose"]),
    ]:
        out = tmp_path / "_".join(more)
        assert run([*command, *more, "--out", str(out)]) == 0
        said = capfd.readouterr().err.splitlines()
        assert len(said) == len(lines)
        assert all(line in each for line, each in zip(lines, said, strict=True))


class Clock:
    """A second passes between two looks."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_the_time_limit_and_the_bar(tmp_path: Path, capfd: Any, monkeypatch: Any) -> None:
    """Within a file, too; what is complete is kept, and the outputs are the same."""
    monkeypatch.setattr(columns, "_AT_ONCE", 16)
    dataset(tmp_path / "data", [16] * 64)
    options: dict[str, Any] = {"format": "npz", "workers": 1, "num_shards": 2}
    shown, runs = io.StringIO(), 0
    progress = Progress("bars", shown, Clock())
    (peace,) = write_rows(tmp_path / "data", out=tmp_path / "peace", progress=progress, **options)
    # Two columns of 64 rows: each row counts when half of the passes over it are over.
    seen = [int(x) for x in re.findall(r"(\d+)\.?\d*/64\.0 ", shown.getvalue())]
    assert len({*seen}) > 20
    assert seen == sorted(seen)
    result = None
    while result is None:
        try:
            (result,) = write_rows(
                tmp_path / "data", out=tmp_path / "out", max_minutes=5,
                progress=Progress(clock=Clock()), **options,
            )
        except OutOfTimeError as error:
            runs += 1
            assert "files that are complete are kept" in str(error)
            assert re.search(r"writing rows of train \d+\.\d%, takes about ", str(error))
            assert run(["inspect", str(tmp_path / "out")]) == 0
            assert "not finished: writing rows of train: " in capfd.readouterr().out
    assert runs
    assert result.manifest == peace.manifest
    command = ["rows", str(tmp_path / "data"), "--out", str(tmp_path / "command")]
    assert run([*command, "--format", "jsonl", "--max-minutes", "1e-9"]) == 3
    said = capfd.readouterr().err
    assert "time limit reached (writing rows of train " in said
    assert "if none was complete, raise --max-minutes" in said


def test_manifests_that_are_no_manifests(tmp_path: Path) -> None:
    dataset(tmp_path / "data", [5, 6, 7])
    (result,) = write_rows(tmp_path / "data", out=tmp_path / "rows", format="jsonl")
    path = result.path / MANIFEST_FILE
    text = path.read_text()
    for changed, message in [
        (text.replace('"rows": 3', '"rows": 4', 1), "was changed since it was written; write the"),
        (text[:50], "not a manifest, for it is not JSON"),
    ]:
        path.write_text(changed)
        with pytest.raises(RowsError, match=message):
            read_manifest(result.path)
    path.unlink()
    with pytest.raises(RowsError, match="missing; no rows were written in this directory"):
        read_manifest(result.path)
