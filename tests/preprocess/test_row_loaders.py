"""Sources of records in shards: what was written is read, from any record on."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import processes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_cases import dataset

from bpe.errors import CorpusError
from preprocess import (
    ArrowShardedSource,
    AsyncDataLoader,
    JsonShardedSource,
    ParquetShardedSource,
    RowsError,
    SamplingError,
    TransformedShardedSource,
    write_rows,
)

CLASSES: dict[str, Any] = {
    "jsonl": JsonShardedSource, "parquet": ParquetShardedSource, "arrow": ArrowShardedSource,
}
EACH = pytest.mark.parametrize("kind", [*CLASSES, "jsonl.gz", "jsonl.zst", "stream", "arrow.zst"])


def save(path: Path, records: list[dict[str, Any]], kind: str, at_once: int = 3) -> None:
    """Write records, in row groups or record batches of a few."""
    if kind.startswith("jsonl"):
        text = "".join(json.dumps(record) + "\n" for record in records).encode()
        if kind.endswith(".gz"):
            text = gzip.compress(text)
        elif kind.endswith(".zst"):
            text = pytest.importorskip("backports.zstd").compress(text)
        path.write_bytes(text)
        return
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pylist(records)
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=at_once)
    else:
        new = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
        options = pa.ipc.IpcWriteOptions(compression="zstd" if kind == "arrow.zst" else None)
        with new(path, table.schema, options=options) as writer:
            writer.write_table(table, at_once)


def shards(directory: Path, kind: str, sizes: tuple[int, ...] = (5, 0, 1, 8)) -> Any:
    """A source of several files of conversations; one is empty."""
    n = 0
    for number, size in enumerate(sizes):
        records = [conversation(i) for i in range(n, n + size)]
        n += size
        if size or kind.startswith("jsonl"):  # a table of no records has no columns
            save(directory / f"{number}.{suffix_of(kind)}", records, kind)
    return class_of(kind)(directory)


def conversation(i: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"{n}?"} for n in range(i % 3 + 1)]
    return {"messages": messages, "ids": [i, i + 1], "n": i, "note": None if i % 2 else "é"}


def class_of(kind: str) -> Any:
    return CLASSES[suffix_of(kind).partition(".")[0]]


def suffix_of(kind: str) -> str:
    return "arrow" if kind in ("stream", "arrow.zst") else kind


def plain(record: dict[str, Any]) -> dict[str, Any]:
    return {x: y.tolist() if isinstance(y, np.ndarray) else y for x, y in record.items()}


@EACH
def test_what_was_written_is_read(tmp_path: Path, kind: str) -> None:
    source = shards(tmp_path, kind)
    expected = [conversation(i) for i in range(14)]
    assert [plain(record) for record in source] == expected
    assert [plain(record) for record in source] == expected  # another epoch
    assert len(source) == 14
    names = source.shard_names
    assert names == sorted(map(str, tmp_path.iterdir()))
    apart = [plain(record) for name in names for record in source.open_shard(name)]
    assert apart == expected
    record = next(source.open_shard(names[0]))
    assert record["ids"].dtype == np.int64
    assert record["ids"].flags.writeable
    with pytest.raises(RowsError, match="'other' is no shard of this source; give one of its"):
        source.open_shard("other")


@EACH
def test_every_place_resumes(tmp_path: Path, kind: str) -> None:
    shards(tmp_path, kind)
    for n in range(15):
        stopped, continued = (class_of(kind)(tmp_path) for _ in range(2))
        if n % 2:
            stopped, continued = (TransformedShardedSource(x, dict) for x in (stopped, continued))
        found = [record["n"] for record in islice(stopped, n)]
        continued.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
        assert found + [record["n"] for record in continued] == [*range(14)]
        assert [record["n"] for record in continued] == [*range(14)]
        # The same object continues, too.
        assert found + [record["n"] for record in stopped] == [*range(14)]


@EACH
def test_a_record_by_its_number(tmp_path: Path, kind: str) -> None:
    source = shards(tmp_path, kind)
    place = source.place
    for i in (*range(14), -1, -14):
        assert plain(source[i]) == conversation(i % 14)
        assert source[i]["ids"].dtype == np.int64
        assert plain(pickle.loads(pickle.dumps(source))[np.int32(i)]) == conversation(i % 14)
    assert source.place == place
    doubled = TransformedShardedSource(source, lambda record: {"n": 2 * record["n"]})
    assert [doubled[i]["n"] for i in range(14)] == [2 * i for i in range(14)]
    for i in (14, -15):
        with pytest.raises(IndexError, match=f"there are 14 rows; got {i}"):
            doubled[i]
    assert "4 shards" in repr(source) or "3 shards" in repr(source)


RECORDS = st.lists(
    st.fixed_dictionaries({
        "ids": st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
        "text": st.text(st.characters(exclude_categories=["Cs"])),
        "nested": st.lists(st.lists(st.integers(0, 9))),
        "flags": st.lists(st.booleans()),
        "value": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    }), min_size=1, max_size=9,
)  # fmt: skip


@EACH
def test_records_of_any_values(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    path = tmp_path_factory.mktemp("any") / f"x.{suffix_of(kind)}"

    @settings(max_examples=30)
    @given(RECORDS, st.integers(1, 4))
    def check(records: list[dict[str, Any]], at_once: int) -> None:
        save(path, records, kind, at_once)
        source = class_of(kind)(path)
        assert [plain(record) for record in source] == records
        assert len(source) == len(records)

    check()


def test_dtypes_are_those_of_columns(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    ids = [[1, 2], None, [], [3]]
    large, small = pa.large_list(pa.uint32()), pa.list_(pa.uint8())
    table = pa.table({
        "int32": pa.array(ids, pa.list_(pa.int32())), "uint32": pa.array(ids, large),
        "uint8": pa.array(ids, small),
        "fixed": pa.array([[1, 2], None, [5, 6], [7, 8]], pa.list_(pa.int64(), 2)),
        "hash": pa.array([[2**64 - 1]] * 4, pa.list_(pa.uint64())),
        "gaps": pa.array([[1, None], [2], [], None], pa.list_(pa.int32())),
    })  # fmt: skip
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    source = ArrowShardedSource(tmp_path / "x.arrow")
    records = [*source]
    assert [plain(record) for record in records] == table.to_pylist()
    kinds = {name: getattr(value, "dtype", None) for name, value in records[0].items()}
    assert kinds == {
        "int32": np.int32, "uint32": np.int64, "uint8": np.int32, "fixed": np.int64, "hash": None,
        "gaps": None,
    }  # fmt: skip
    assert records[2]["int32"].dtype == np.int32


def test_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"ids": [1, 2]}\r\n\n  \n'
        b'{"ids": [], "a": [1, true], "b": [9223372036854775808]}\n'
        b'{"ids": {"x": [1]}}'
    )
    source = JsonShardedSource(path)
    assert len(source) == 3
    first, *others = source
    assert first["ids"].tolist() == [1, 2]
    assert others == [{"ids": [], "a": [1, True], "b": [2**63]}, {"ids": {"x": [1]}}]


# Which files.


def test_paths(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "c.ndjson", ".hidden.jsonl", "[1].jsonl", "x.txt"):
        save(tmp_path / name, [{"name": name}], "jsonl")
    save(tmp_path / "d.jsonl.gz", [], "jsonl.gz")
    (tmp_path / "inner").mkdir()
    save(tmp_path / "inner" / "e.jsonl", [], "jsonl")

    def names(paths: Any) -> list[str]:
        return [Path(name).name for name in JsonShardedSource(paths).shard_names]

    assert names(tmp_path) == ["[1].jsonl", "a.jsonl", "b.jsonl", "c.ndjson", "d.jsonl.gz"]
    assert names(str(tmp_path / "?.jsonl")) == ["a.jsonl", "b.jsonl"]
    assert names(tmp_path / "[1].jsonl") == ["[1].jsonl"]
    assert names(tmp_path / "x.txt") == ["x.txt"]
    assert names([tmp_path / "b.jsonl", tmp_path / "inner", str(tmp_path / "[ac].*")]) == [
        "b.jsonl", "e.jsonl", "a.jsonl", "c.ndjson",
    ]  # fmt: skip
    assert names(f"{tmp_path}/**/e.jsonl") == ["e.jsonl"]


@pytest.mark.parametrize(("paths", "message"), [
    ("none.jsonl", r"there are no JSON Lines files .* at .*none\.jsonl; give a file, a direct"),
    ("*.jsonl", r"there are no JSON Lines files .* at .*/\*\.jsonl"),
    (".", r"there are no JSON Lines files \(\.jsonl, .*\.gz.*\) at "),
])  # fmt: skip
def test_no_files(tmp_path: Path, paths: str, message: str) -> None:
    (tmp_path / "x.txt").write_text("")
    with pytest.raises(RowsError, match=message):
        JsonShardedSource(tmp_path / paths)
    with pytest.raises(RowsError, match=message):
        JsonShardedSource([tmp_path / "x.txt", tmp_path / paths])
    with pytest.raises(RowsError, match="no paths of JSON Lines files were given; give a list"):
        JsonShardedSource([])
    for name in ("val", "train"):
        (tmp_path / name).mkdir()
        save(tmp_path / name / "x.jsonl", [{"n": 1}], "jsonl")
    with pytest.raises(RowsError, match=r", but in .* there are train, val; give a file"):
        JsonShardedSource(tmp_path)


# Batches.


@pytest.mark.parametrize("pad_id", [None, 7])
def test_batches_of_rows_are_padded(tmp_path: Path, pad_id: int | None) -> None:
    rows = [{"input_ids": [1] * n, "labels": [1] * n, "attention_mask": [1] * n} for n in (2, 0, 1)]
    save(tmp_path / "x.jsonl", rows, "jsonl")
    first, second = AsyncDataLoader(JsonShardedSource(tmp_path), batch_size=2, pad_id=pad_id)
    assert first["input_ids"].tolist() == [[1, 1], [pad_id or 0] * 2]
    assert first["labels"].tolist() == [[1, 1], [-100] * 2]
    assert first["attention_mask"].tolist() == [[1, 1], [0, 0]]
    assert second["input_ids"].tolist() == [[1]]
    assert first["input_ids"].dtype == np.int64
    other = [{"input_ids": [1], "tags": [1, 2]}, {"input_ids": [1], "tags": [1]}]
    with pytest.raises(SamplingError, match="arrays of a batch should have one shape; 'tags' has"):
        list(AsyncDataLoader(other, batch_size=2))


def test_errors_of_a_transform(tmp_path: Path) -> None:
    source = shards(tmp_path, "jsonl")

    def transform(record: dict[str, Any]) -> dict[str, Any]:
        if record["n"] == 7:
            raise CorpusError("not good")
        return {"n": record["n"] * 2}

    transformed = TransformedShardedSource(source, transform)
    assert len(transformed) == 14
    shard = transformed.shard_names[3]
    for records in (transformed, transformed.open_shard(shard)):
        with pytest.raises(RowsError, match=(
            r"3\.jsonl: record 1, counted from 0, cannot be transformed \(CorpusError: not good\)"
        )) as caught:
            list(records)
        assert isinstance(caught.value.__cause__, CorpusError)
    first = transformed.open_shard(transformed.shard_names[0])
    assert [record["n"] for record in first] == [0, 2, 4, 6, 8]


# States and files that are wrong.


@pytest.mark.parametrize("kind", CLASSES)
def test_states_of_other_files_and_places(tmp_path: Path, kind: str) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    source = shards(tmp_path / "a", kind, (5, 8))
    transformed = TransformedShardedSource(source, dict)
    state = source.state_dict()
    for place in ([0, 6], [1, 9], [2, 0], [2, 1]):
        for each in (source, transformed):
            with pytest.raises(SamplingError, match=rf"record {place[1]} of shard {place[0]}, and"):
                each.load_state_dict(state | {"place": place})
        assert source.place is None
    source.load_state_dict(state | {"place": [0, 5]})
    assert [record["n"] for record in source] == [*range(5, 13)]
    other = shards(tmp_path / "b", kind, (5, 9))
    for each in (other, class_of(kind)(source.shard_names[::-1])):
        with pytest.raises(SamplingError, match="the state is of other files than the 2 from"):
            each.load_state_dict(state | {"place": [0, 3]})
        assert each.place is None


def test_files_of_rows_that_are_lost_or_strange(tmp_path: Path, monkeypatch: Any) -> None:
    """By directory and pattern; not if other shards are given, or the manifest is foreign."""
    dataset(tmp_path / "data", [3, 4, 5])
    monkeypatch.chdir(tmp_path)
    write_rows("data", out="rows", format="jsonl", num_shards=3)
    names = sorted(path.name for path in Path("rows").glob("*.jsonl"))
    directories = "./rows/", tmp_path / "rows", "rows"
    for path in (*directories, "rows/*.jsonl", "**/*.jsonl"):
        assert len(JsonShardedSource(path)) == 3
    strange = Path(shutil.copy(Path("rows", names[0]), "rows/shard_0.jsonl"))
    for path in directories:
        with pytest.raises(RowsError, match=r"/shard_0\.jsonl: is beside rows, and not one of"):
            JsonShardedSource(path)
    assert len(JsonShardedSource("rows/train-*.jsonl")) == 3
    assert len(JsonShardedSource("rows/*.jsonl")) == 4
    strange.unlink()
    Path("rows", names[1]).unlink()
    for path in (*directories, "rows/*.jsonl", "**/*.jsonl"):
        with pytest.raises(RowsError, match=rf"{names[1]}: is missing, and rows\.json has it"):
            JsonShardedSource(path)
    monkeypatch.chdir("rows")
    with pytest.raises(RowsError, match=rf"{names[1]}: is missing, and rows\.json has it"):
        JsonShardedSource(".")
    for path in (names[0], "train-00000*"):
        assert len(JsonShardedSource(path)) == 1
    for paths in ([names[0], names[2]], "train-0000[02]*"):
        assert len(JsonShardedSource(paths)) == 2
    Path("rows.json").write_text('{"of": "another program"}')
    assert len(JsonShardedSource(".")) == 2


def test_a_relative_path_is_of_the_directory_where_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of an open dataset, also after a change of the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("files").mkdir()
    source = shards(Path("files"), "jsonl")
    assert source.shard_names[0].startswith("files")
    monkeypatch.chdir("/")
    for each in (source, pickle.loads(pickle.dumps(source))):
        assert [record["n"] for record in each] == [*range(14)]
        assert (len(each), each[3]["n"]) == (14, 3)


def test_wrong_states(tmp_path: Path) -> None:
    source = shards(tmp_path, "jsonl")
    state = source.state_dict()
    for wrong in ({"place": 3}, {"place": [0, -1]}, {"place": [0, "1"]}, {"files": None}):
        with pytest.raises(SamplingError, match=r"this is no state of a source of shards \("):
            source.load_state_dict(state | wrong)
    Path(source.shard_names[0]).unlink()
    with pytest.raises(RowsError, match=r"0\.jsonl: cannot be read as JSON Lines, .* \(.*No such"):
        list(source)
    again = JsonShardedSource(source.shard_names[1])
    Path(again.shard_names[0]).unlink()
    with pytest.raises(RowsError, match=r"1\.jsonl: cannot be read as JSON Lines"):
        again.state_dict()


def test_damage_names_the_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "x.parquet"
    table = pa.table({"text": ["a" * 50, "b" * 50, "c" * 50, "d" * 50]})
    parquet.write_table(
        table, path, row_group_size=2, use_dictionary=False, compression="none",
        write_page_checksum=True, write_statistics=False,
    )
    path.write_bytes(path.read_bytes().replace(b"d" * 50, b"e" * 50))
    found = []
    with pytest.raises(RowsError, match=r"cannot be read as Parquet, after record 2 \(.*\); get "):
        found.extend(ParquetShardedSource(path))
    assert len(found) == 2
    group = SimpleNamespace(num_rows=3)
    about = SimpleNamespace(num_row_groups=1, row_group=lambda number: group)
    with monkeypatch.context() as patch:
        patch.setattr(parquet.ParquetFile, "metadata", about)
        with pytest.raises(RowsError, match="other than the number of rows in the metadata"):
            list(ParquetShardedSource(path))
    # Text that is not UTF-8.
    parquet.write_table(table, path, use_dictionary=False, compression="none")
    path.write_bytes(path.read_bytes().replace(b"d" * 50, b"\xff" * 50))
    with pytest.raises(RowsError, match="cannot be read as Parquet, after record 0"):
        list(ParquetShardedSource(path))


def test_damage_names_the_record_batch(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = tmp_path / "x.arrow"
    table = pa.table({"text": ["a" * 50, "b" * 50, "c" * 50, "d" * 50]})
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, 2)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"d" * 50, b"\xff" * 50))
    found = []
    with pytest.raises(RowsError, match=r"cannot be read as Arrow, after record 2 \(.*\); get the"):
        found.extend(ArrowShardedSource(path))
    assert len(found) == 2
    path.write_bytes(content[:-8])
    with pytest.raises(RowsError, match="an Arrow stream without the mark of its end, so it"):
        list(ArrowShardedSource(path))


@pytest.mark.parametrize(
    "line", [b"[1]", b"{", b'{"a": 1} 2', b'{"a": NaN}', b"\xff", b'{"a": ' + b"[" * 99999]
)
def test_bad_lines(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' + line + b"\n")
    with pytest.raises(RowsError, match=r"x\.jsonl: line 3 is no JSON object \(.*\); correct the"):
        list(JsonShardedSource(path))


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_process_ends_with_an_iteration_that_is_not_over(tmp_path: Path, kind: str) -> None:
    records = [{"input_ids": [i] * 9} for i in range(3000)]
    save(tmp_path / f"x.{kind}", records, kind, 1000)
    reader = "ParquetShardedSource" if kind == "parquet" else "JsonShardedSource"
    code = f"""
import sys
from preprocess import AsyncDataLoader, {reader}
batches = iter(AsyncDataLoader({reader}(sys.argv[1]), batch_size=4))
print(len(next(batches)["input_ids"]))
"""
    done = processes.run("-c", code, tmp_path / f"x.{kind}")
    assert (done.stdout, done.stderr) == ("4\n", "")
