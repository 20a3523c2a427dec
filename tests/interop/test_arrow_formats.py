"""Parquet and Arrow: the same bytes as from text; odd columns and damage are named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import processes
import pytest
from format_files import ARROW, DOCUMENTS, table_of, write, write_table
from hypothesis import given
from hypothesis import strategies as st
from source_cases import check_units, documents_of
from verify_cases import flip

from preprocess import CorpusError
from preprocess.documents.batch import ReadOptions
from preprocess.sources import columnar, find_sources
from preprocess.sources.columnar import ParquetSource

pa = pytest.importorskip("pyarrow", reason="needs the extra formats")
from pyarrow import parquet  # noqa: E402


@given(
    some=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), max_size=30),
    times=st.integers(1, 4), suffix=st.sampled_from(ARROW),
    unit_size=st.integers(1, 60) | st.integers(60, 2000), has_thread=st.booleans(),
)
def test_units_follow_one_another_and_are_resumed(
    tmp_path_factory: pytest.TempPathFactory, some: list[str], times: int, suffix: str,
    unit_size: int, has_thread: bool,
) -> None:
    documents = some * times  # several row groups and batches
    path = tmp_path_factory.mktemp("x") / f"x.{suffix}"
    write(path, documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar, "_TINY_BYTES", 0 if has_thread else 1_000_000)
        patch.setattr(columnar, "_BATCH_ROWS", 7)
        assert documents_of(path, unit_size=unit_size) == [each for each in documents if each]
        n_units = check_units(path, unit_size)
    assert n_units > 1 or len(documents) <= 30 or unit_size >= 60


@pytest.mark.parametrize("suffix", ARROW)
@pytest.mark.parametrize("unit_size", [1, 50, 1_000_000, 1 << 70])
def test_bad_rows_have_their_numbers(tmp_path: Path, suffix: str, unit_size: int) -> None:
    documents = [None if i % 37 == 5 else f"document {i}" for i in range(300)]
    path = tmp_path / f"x.{suffix}"
    write_table(path, pa.table({"text": documents}))
    (source,) = find_sources([path], ReadOptions(unit_size=unit_size, skip_bad_records=True))
    batches = [unit.read() for unit in source.units()]
    rejected = [each.record for batch in batches for each in batch.rejected]
    assert rejected == [i for i, each in enumerate(documents) if each is None]
    assert sum(len(batch.bounds) // 2 for batch in batches) == 300 - len(rejected)


KINDS: dict[str, Any] = {
    "large_string": pa.large_string(), "string_view": pa.string_view(), "binary": pa.binary(),
    "large_binary": pa.large_binary(), "dictionary": pa.dictionary(pa.int8(), pa.string()),
    "large dictionary": pa.dictionary(pa.int32(), pa.large_string()),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ARROW)
def test_columns_of_text(tmp_path: Path, kind: str, suffix: str) -> None:
    if (kind, suffix) == ("string_view", "parquet"):
        pytest.importorskip("pyarrow", "20", reason="earlier ones write no string_view to Parquet")
    documents = ["naïve", "", "b", "naïve", "a much longer text than the others " * 5] * 20
    column = pa.array(documents, pa.string()).cast(KINDS[kind])
    path = tmp_path / f"x.{suffix}"
    write_table(path, pa.table({"text": column}))
    assert documents_of(path) == [each for each in documents if each]


@pytest.mark.parametrize("suffix", ARROW)
def test_columns_of_structs_and_joined_columns(tmp_path: Path, suffix: str) -> None:
    rows = [{"data": {"body": f"b{i}", "n": i}, "a.b": f"t{i}", "c": [i]} for i in range(100)]
    path = tmp_path / f"x.{suffix}"
    write_table(path, pa.Table.from_pylist(rows))
    fields = ("a.b", "data.body")
    assert documents_of(path, content_field=fields) == [f"t{i}\nb{i}" for i in range(100)]
    assert documents_of(path, content_field=("data.body",)) == [f"b{i}" for i in range(100)]
    # A column of the whole name comes before a field inside of another, in either order.
    columns = {"data.body": ["of the column"], "data": [{"body": "of the struct"}]}
    for names in (["data.body", "data"], ["data", "data.body"]):
        write_table(path, pa.table({name: columns[name] for name in names}))
        assert documents_of(path, content_field=("data.body",)) == ["of the column"]


@pytest.mark.parametrize(
    ("column", "field", "message"),
    [
        (["a", None, "c"], "text", r"row 1: column 'text' is null, expected text; correct or re"),
        ([1, 2], "text", r"column 'text' is int64, expected text; choose another with content_f"),
        ([["a"]], "text", r"column 'text' is list<.*>, expected text"),
        ([{"a": "b"}], "text", r"column 'text' is struct<a: string>, expected text"),
        (["a"], "body", r"has 0 columns named 'body', .*; there are 'text'; choose another"),
        ([{"a": "b"}], "text.c", r"has 0 columns named 'c', .* for 'text\.c'; there are 'a'"),
        (["a"], "text.c", r"has 0 columns named 'c', .* it would be inside of \w+; choose another"
         " with content_field, or chat for conversations"),
        ([[{"c": "b"}]], "text.c", r"has 0 columns named 'c', .* it would be inside of list<"),
        ([b"\xff"], "text", r"row 0: not valid UTF-8"),
        ([b"a", b"b\xc3", b"\xa9c"], "text", r"row 1: not valid UTF-8"),  # valid if joined
    ],
)
@pytest.mark.parametrize("suffix", ARROW)
def test_a_bad_column_is_named(
    tmp_path: Path, suffix: str, column: list[Any], field: str, message: str
) -> None:
    path = tmp_path / f"x.{suffix}"
    write_table(path, pa.table({"text": column}))
    with pytest.raises(CorpusError, match=rf"x\.{suffix}: {message}"):
        documents_of(path, content_field=(field,))


@pytest.mark.parametrize("suffix", ARROW)
def test_a_truncated_file_is_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    write(path, [])
    assert documents_of(path) == []
    write(path, DOCUMENTS)
    whole = path.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 8, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CorpusError, match=r"is damaged or truncated|the file is truncated"):
            documents_of(path)


def test_a_damaged_page_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(table_of(DOCUMENTS), path, write_page_checksum=True)
    chunk = parquet.ParquetFile(path).metadata.row_group(0).column(1)
    flip(path, chunk.data_page_offset + chunk.total_compressed_size // 2)
    with pytest.raises(CorpusError, match=r"Parquet data is damaged or truncated \(.*get the file"):
        documents_of(path)


def test_the_first_feather_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.feather").write_bytes(b"FEA1" + bytes(60) + b"FEA1")
    with pytest.raises(CorpusError, match=r"is Feather of version 1, expected version 2, which is"):
        documents_of(tmp_path / "x.feather")


def test_content_decides_without_a_suffix(tmp_path: Path) -> None:
    for suffix in ARROW:
        write(tmp_path / f"x.{suffix}", ["a", "b"])
        (tmp_path / f"x.{suffix}").rename(tmp_path / suffix.replace(".", "-"))
    for path in tmp_path.iterdir():
        assert documents_of(path) == ["a", "b"]


@pytest.mark.parametrize(
    ("suffix", "content"), [("csv", 'id,text\n1,"a\nb"\n'), ("tsv", "id\ttext\n1\ta\n")]
)
def test_the_command_that_converts_csv(tmp_path: Path, suffix: str, content: str) -> None:
    import shlex

    path = tmp_path / f"x.{suffix}"
    path.write_text(content)
    with pytest.raises(CorpusError, match=rf"{suffix} files cannot be read.*: python -c") as raised:
        documents_of(path)
    command = shlex.split(str(raised.value).partition("convert it: ")[2])
    processes.run(*command[1:])
    assert documents_of(tmp_path / f"x.{suffix}.parquet") == ["a\nb" if suffix == "csv" else "a"]


def test_several_streams_in_a_file(tmp_path: Path) -> None:
    write(tmp_path / "a.stream.arrow", ["a", "b"])
    whole = (tmp_path / "a.stream.arrow").read_bytes()
    (tmp_path / "b.arrow").write_bytes(whole + whole)
    with pytest.raises(CorpusError, match=r"the Arrow stream ends at byte [\d,]+ of [\d,]+; ex"):
        documents_of(tmp_path / "b.arrow")


@pytest.mark.parametrize("suffix", ARROW)
def test_names_that_are_odd(tmp_path: Path, suffix: str) -> None:
    directory = tmp_path / os.fsdecode(b"\xff")
    directory.mkdir()
    write(tmp_path / f"x.{suffix}", ["a", "b"])
    (tmp_path / f"x.{suffix}").rename(directory / f"x.{suffix}")
    assert documents_of(directory / f"x.{suffix}") == ["a", "b"]
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"])
    write_table(tmp_path / f"y.{suffix}", twice)
    with pytest.raises(CorpusError, match=r"has 2 columns named 'text', expected one for 'text'"):
        documents_of(tmp_path / f"y.{suffix}")


@pytest.mark.parametrize("error", [pa.ArrowNotImplementedError, pa.ArrowMemoryError])
def test_what_pyarrow_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(*_: object) -> None:
        raise error("this is\nnot supported")

    write(tmp_path / "x.parquet", ["a"])
    monkeypatch.setattr(ParquetSource, "_batches", refuse)
    message = r"Parquet data cannot be read \(this is not supported\); write it in another way"
    with pytest.raises(CorpusError, match=message):
        documents_of(tmp_path / "x.parquet")
