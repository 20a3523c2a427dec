"""Parquet: memory is bounded and text is estimated, whatever the encoding and the metadata."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import format_files
import pytest
from source_cases import documents_of

from preprocess.documents.batch import ReadOptions
from preprocess.documents.chat_template import ChatFormat
from preprocess.sources import find_sources

pa = pytest.importorskip("pyarrow", reason="needs the extra formats")
from pyarrow import parquet  # noqa: E402

FORM = ChatFormat("{{ messages[0].content }}", (), train_on="all")
PREFIXES = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
LARGE = ["word " * 4000]
SHORT = [f"short {i}" for i in range(20_000)]


def most_allocated(source: Any) -> int:
    """Read a source, and return the most bytes that pyarrow allocates meanwhile."""
    before = most = pa.total_allocated_bytes()
    for unit in source.units():
        most = max(most, pa.total_allocated_bytes())
        unit.read()
        most = max(most, pa.total_allocated_bytes())
    return int(most - before)


@pytest.mark.parametrize(
    ("documents", "options", "most"),
    [
        (["word " * 200] * 40_000, {"use_dictionary": False}, 20),
        (["word " * 200] * 40_000, {}, 20),
        # The encoded size of repeated values is tiny; 4,096 of them are decoded at a time, with
        # room that pyarrow leaves.
        (LARGE * 6_000, {}, 140), (LARGE * 6_000, PREFIXES, 140),
        (LARGE * 2_000, {"row_group_size": 6}, 20),
        # As in files that are sorted by the length of documents.
        (SHORT + [f"{i} " * 8000 for i in range(2_000)],
         {"use_dictionary": False, "write_batch_size": 64}, 60),
    ],
)  # fmt: skip
def test_a_row_group_is_not_held(
    tmp_path: Path, documents: list[str], options: dict[str, Any], most: int
) -> None:
    parquet.write_table(pa.table({"text": documents}), tmp_path / "x.parquet", **options)
    (source,) = find_sources([tmp_path / "x.parquet"], ReadOptions(unit_size=1_000_000))
    assert most_allocated(source) < most * 1_000_000


@pytest.mark.parametrize(
    ("documents", "options"),
    [
        (format_files.DOCUMENTS, {}), (SHORT[:1000], {}), (LARGE * 2000, {}), ([], {}),
        (LARGE * 2000, PREFIXES), (LARGE * 2000, {"row_group_size": 6}),
    ],
)  # fmt: skip
def test_the_size_of_text_is_estimated(
    tmp_path: Path, documents: list[str], options: dict[str, Any]
) -> None:
    image = [hashlib.sha512(b"").digest()] * len(documents)
    table = pa.table({"text": pa.array(documents, pa.string()), "image": image})
    parquet.write_table(table, tmp_path / "x.parquet", **options)
    (source,) = find_sources([tmp_path / "x.parquet"], ReadOptions())
    n_bytes = len("".join(documents).encode())
    assert n_bytes <= source.estimate_text() <= 1.01 * n_bytes + 1000


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows of the batches that pyarrow decodes, without threads of its own."""
    iter_batches, n_rows = parquet.ParquetFile.iter_batches, list[int]()

    def watched(*arguments: Any, use_threads: bool = True, **options: Any) -> Any:
        assert not use_threads
        for batch in iter_batches(*arguments, use_threads=use_threads, **options):
            n_rows.append(len(batch))
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", watched)
    return n_rows


def distinct(n: int, size: int) -> list[str]:
    return [f"{i:06} ".ljust(size, "x") for i in range(n)]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.map_(pa.string(), pa.string()), [("a", "b")]), (pa.list_(pa.int64(), 2), [1, 2]),
        (pa.list_view(pa.string()), ["x", "y"]), (pa.null(), None),
        (pa.dictionary(pa.int8(), pa.int64()), 1), (pa.map_(pa.string(), pa.int8()), None),
    ],
)  # fmt: skip
def test_turns_with_other_types(tmp_path: Path, kind: Any, value: Any) -> None:
    pytest.importorskip("transformers", reason="needs the extra chat")
    content = pa.dictionary(pa.int32(), pa.string())
    fields = [("role", pa.string()), ("content", content), ("more", kind)]
    turns = [[{"role": "user", "content": "hi", "more": value}]] * 3
    table = pa.table({"messages": pa.array(turns, pa.list_(pa.struct(fields)))})
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    options: dict[str, Any] = {"chat": "auto", "chat_format": FORM}
    assert documents_of(tmp_path / "x.arrow", **options) == ["hi"] * 3
    if not isinstance(kind, pa.ListViewType):  # has no form in Parquet
        parquet.write_table(table, tmp_path / "x.parquet")
        assert documents_of(tmp_path / "x.parquet", **options) == ["hi"] * 3


@pytest.mark.parametrize("is_typed", [True, False])
def test_conversations_are_divided(tmp_path: Path, batches: list[int], is_typed: bool) -> None:
    pytest.importorskip("transformers", reason="needs the extra chat")
    documents = distinct(6_000, 1000)
    turns = [{"role": "user", "content": document} for document in documents]
    text = pa.dictionary(pa.int32(), pa.string()) if is_typed else pa.string()
    kind = pa.list_(pa.struct([("role", text), ("content", text)]))
    table = pa.table({"messages": pa.array([[turn] for turn in turns], kind)})
    parquet.write_table(table, tmp_path / "x.parquet")
    options: dict[str, Any] = {"chat": "auto", "chat_format": FORM, "unit_size": 1_000_000}
    assert documents_of(tmp_path / "x.parquet", **options) == documents
    assert (len(batches) == 1) == is_typed
    (source,) = find_sources([tmp_path / "x.parquet"], ReadOptions(**options))
    assert len("".join(documents)) <= source.estimate_text() < 1.1 * len("".join(documents))
    assert 6 <= len(list(source.units())) <= 30
