"""Parquet: memory is bounded and text is estimated, whatever the encoding and the metadata."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import format_files
import pytest

from preprocess.documents.batch import ReadOptions
from preprocess.documents.chat_template import ChatFormat
from preprocess.sources import find_sources
from preprocess.sources.parquet import ParquetSource

pa = pytest.importorskip("pyarrow", reason="needs the extra formats")
from pyarrow import parquet  # noqa: E402


def most_allocated(source: Any) -> int:
    """Read a source, and return the most bytes that pyarrow allocates meanwhile."""
    before = most = pa.total_allocated_bytes()
    for unit in source.units():
        most = max(most, pa.total_allocated_bytes())
        unit.read()
        most = max(most, pa.total_allocated_bytes())
    return int(most - before)


def test_a_large_row_group_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"text": ["word " * 200] * 80_000}), path, use_dictionary=False)
    assert parquet.ParquetFile(path).num_row_groups == 1
    (source,) = find_sources([path], ReadOptions(unit_size=1_000_000))
    assert most_allocated(source) < 20_000_000


PREFIXES = {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}
LARGE = ["word " * 4000]


@pytest.mark.parametrize(
    ("documents", "options"),
    [
        (LARGE * 20_000, {}), (LARGE * 20_000, PREFIXES), (LARGE * 20_000, {"row_group_size": 6}),
        ([f"{LARGE[0]}{i}" for i in range(10_000)], PREFIXES),
        # The first ones are in the dictionary, until it is too large.
        ([*LARGE * 10_000, *(hashlib.sha256(b"%d" % i).hexdigest() for i in range(20_000))], {}),
    ],
)  # fmt: skip
def test_repeated_large_values(
    tmp_path: Path, documents: list[str], options: dict[str, Any]
) -> None:
    """Their encoded size is tiny, so it says nothing about the size of rows."""
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"text": documents}), path, **options)
    assert path.stat().st_size < len("".join(documents)) / 40
    (source,) = find_sources([path], ReadOptions(unit_size=1_000_000))
    assert most_allocated(source) < 40_000_000


@pytest.mark.parametrize(
    ("documents", "options"),
    [
        (format_files.DOCUMENTS, {}),
        (["short"] * 1000, {}),
        (["word " * 4000] * 3000, {}),
        (["word " * 4000] * 3000, {"use_dictionary": False}),
        (["word " * 4000] * 3000, PREFIXES),
        (["word " * 4000] * 3000, {"row_group_size": 6}),
        ([], {}),
    ],
)
def test_the_size_of_text_is_estimated(
    tmp_path: Path, documents: list[str], options: dict[str, Any]
) -> None:
    table = pa.table({"text": pa.array(documents, pa.string())})
    parquet.write_table(table, tmp_path / "x.parquet", **options)
    (source,) = find_sources([tmp_path / "x.parquet"], ReadOptions())
    n_bytes = len("".join(documents).encode())
    assert n_bytes <= source.estimate_text() <= 1.2 * n_bytes + 5 * len(documents) + 1000


def test_nothing_is_decoded_to_estimate_long_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [f"{i} " * 4000 for i in range(100)]
    parquet.write_table(pa.table({"text": documents}), tmp_path / "x.parquet")
    (source,) = find_sources([tmp_path / "x.parquet"], ReadOptions())
    monkeypatch.setattr(ParquetSource, "_batches", None)
    n_bytes = len("".join(documents))
    assert n_bytes <= source.estimate_text() < 1.01 * n_bytes + 10_000


def test_other_columns_are_no_text(tmp_path: Path) -> None:
    table = pa.table({"text": ["short"] * 300, "image": [hashlib.sha512(b"").digest() * 200] * 300})
    parquet.write_table(table, tmp_path / "x.parquet", use_dictionary=False, compression="none")
    (source,) = find_sources([tmp_path / "x.parquet"], ReadOptions())
    assert 1500 <= source.estimate_text() < 5000


def test_the_text_of_conversations_is_estimated(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": f"{i} " * 4000} for i in range(100)]
    table = pa.table({"messages": [[turn] for turn in turns]})
    parquet.write_table(table, tmp_path / "x.parquet")
    form = ChatFormat("{{ messages[0].content }}", (), train_on="all")
    options = ReadOptions(chat="auto", chat_format=form)
    (source,) = find_sources([tmp_path / "x.parquet"], options)
    n_bytes = len("".join(turn["content"] for turn in turns))
    assert n_bytes <= source.estimate_text() < 1.1 * n_bytes + 10_000


def test_rows_of_later_row_groups_are_longer(tmp_path: Path) -> None:
    short = [f"short {i}" for i in range(20_000)]
    documents = short + [f"{i} " * 5000 for i in range(4_000)]
    table = pa.table({"text": documents, "id": list(range(len(documents)))})
    parquet.write_table(
        table, tmp_path / "x.parquet", row_group_size=20_000, use_dictionary=False,
        write_batch_size=64,
    )  # fmt: skip
    del table
    (source,) = find_sources([tmp_path / "x.parquet"], ReadOptions(unit_size=1_000_000))
    assert most_allocated(source) < 30_000_000


def test_rows_of_the_same_row_group_are_longer(tmp_path: Path) -> None:
    """As in files that are sorted by the length of documents."""
    documents = [f"short {i}" for i in range(20_000)] + [f"{i} " * 8000 for i in range(4_000)]
    table = pa.table({"text": documents, "id": list(range(len(documents)))})
    parquet.write_table(table, tmp_path / "x.parquet", use_dictionary=False, write_batch_size=64)
    del table
    (source,) = find_sources([tmp_path / "x.parquet"], ReadOptions(unit_size=1_000_000))
    assert most_allocated(source) < 60_000_000


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows of the batches that pyarrow decodes."""
    iter_batches, n_rows = parquet.ParquetFile.iter_batches, list[int]()

    def watched(*arguments: Any, **options: Any) -> Any:
        for batch in iter_batches(*arguments, **options):
            n_rows.append(len(batch))
            yield batch

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", watched)
    return n_rows


def distinct(n: int, size: int) -> list[str]:
    return [f"{i:06} ".ljust(size, "x") for i in range(n)]


def read_text(path: Path, options: ReadOptions) -> str:
    (source,) = find_sources([path], options)
    return b"".join(unit.read().buffer.tobytes() for unit in source.units()).decode()


@pytest.mark.parametrize(("n", "size"), [(10_000, 1000), (300, 30_000), (200_000, 5)])
@pytest.mark.parametrize(
    ("field", "use_dictionary"), [("text", True), ("inside.text", True), ("text", False)]
)
def test_dictionaries_are_decoded_in_few_batches(
    tmp_path: Path, batches: list[int], n: int, size: int, field: str, use_dictionary: bool
) -> None:
    """Each batch takes time in proportion to the dictionary of the row group."""
    documents = distinct(n, size)
    text = pa.array(documents).dictionary_encode()
    inside = pa.StructArray.from_arrays([text], ["text"])
    table = pa.table({"text": text, "inside": inside} if use_dictionary else {"text": text})
    parquet.write_table(table, tmp_path / "x.parquet", use_dictionary=use_dictionary)
    read = read_text(tmp_path / "x.parquet", ReadOptions(content_field=(field,)))
    assert read == "".join(documents)
    sample, *others = batches
    assert sample <= 64
    assert len(others) <= 13


def test_dictionaries_of_row_groups_differ(tmp_path: Path, batches: list[int]) -> None:
    groups = [["a" * 1000] * 1000, distinct(10_000, 1000), ["b"] * 1000]
    tables = [pa.table({"text": pa.array(group).dictionary_encode()}) for group in groups]
    with parquet.ParquetWriter(tmp_path / "x.parquet", tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    read = read_text(tmp_path / "x.parquet", ReadOptions())
    assert read == "".join(document for group in groups for document in group)
    assert len(batches) <= 16


def test_small_dictionaries_beside_text(tmp_path: Path) -> None:
    """A row group is not held for them, nor for those of fields that are not read."""
    n = 40_000
    title = pa.array(["first", "second"] * (n // 2)).dictionary_encode()
    text = pa.array(distinct(n, 1000))
    inside = pa.StructArray.from_arrays([text, title], ["text", "language"])
    table = pa.table({"title": title, "text": text, "inside": inside})
    parquet.write_table(table, tmp_path / "x.parquet", write_batch_size=64)
    del inside, text, table
    for fields in (("title", "text"), ("inside.text",)):
        options = ReadOptions(content_field=fields, unit_size=10**6)
        (source,) = find_sources([tmp_path / "x.parquet"], options)
        assert most_allocated(source) < 25_000_000


def test_large_columns_that_are_not_read(tmp_path: Path, batches: list[int]) -> None:
    rows = {"text": distinct(2000, 50), "image": [b"%d" % i * 10_000 for i in range(2000)]}
    parquet.write_table(pa.table(rows), tmp_path / "x.parquet")
    assert read_text(tmp_path / "x.parquet", ReadOptions()) == "".join(rows["text"])
    assert len(batches) <= 10


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.map_(pa.string(), pa.string()), [("a", "b")]), (pa.list_(pa.int64(), 2), [1, 2]),
        (pa.list_view(pa.string()), ["x", "y"]), (pa.null(), None),
        (pa.dictionary(pa.int8(), pa.int64()), 1), (pa.map_(pa.string(), pa.int8()), None),
    ],
)  # fmt: skip
def test_turns_with_other_types(tmp_path: Path, kind: Any, value: Any) -> None:
    content = pa.dictionary(pa.int32(), pa.string())
    fields = [("role", pa.string()), ("content", content), ("more", kind)]
    turns = [[{"role": "user", "content": "hi", "more": value}]] * 3
    table = pa.table({"messages": pa.array(turns, pa.list_(pa.struct(fields)))})
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    form = ChatFormat("{{ messages[0].content }}", (), train_on="all")
    options = ReadOptions(chat="auto", chat_format=form)
    assert read_text(tmp_path / "x.arrow", options) == "hi" * 3
    if not isinstance(kind, pa.ListViewType):  # has no form in Parquet
        parquet.write_table(table, tmp_path / "x.parquet")
        assert read_text(tmp_path / "x.parquet", options) == "hi" * 3


def test_dictionaries_in_conversations(tmp_path: Path, batches: list[int]) -> None:
    documents = distinct(10_000, 1000)
    content = pa.array(documents).dictionary_encode()
    role = pa.array(["user"] * len(documents)).dictionary_encode()
    turns = pa.StructArray.from_arrays([role, content], ["role", "content"])
    ends = pa.array(range(len(documents) + 1), pa.int32())
    table = pa.table({"messages": pa.ListArray.from_arrays(ends, turns)})
    parquet.write_table(table, tmp_path / "x.parquet")
    form = ChatFormat("{{ messages[0].content }}", (), train_on="all")
    options = ReadOptions(chat="auto", chat_format=form, unit_size=1_000_000)
    assert read_text(tmp_path / "x.parquet", options) == "".join(documents)
    assert len(batches) <= 16
    (source,) = find_sources([tmp_path / "x.parquet"], options)
    assert 10 <= len(list(source.units())) <= 30


REPEATED = [f"{i % 10}" * 100_000 for i in range(2000)]


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ({"text": pa.array([*["s"] * 64, *REPEATED]).dictionary_encode()}, {}),
        # A few values of the dictionary are used in many rows.
        (
            {"text": pa.array([*REPEATED, *distinct(20_000, 20)]).dictionary_encode()}, {},
        ),
        (
            {"title": pa.nulls(len(REPEATED), pa.string()), "text": REPEATED},
            {"text_preset": "title-text"},
        ),
        (
            {"title": pa.nulls(len(REPEATED), pa.string()), "text": REPEATED},
            {"content_field": ("title", "text"), "skip_bad_records": True},
        ),
    ],
)  # fmt: skip
def test_repeated_values_that_a_sample_does_not_show(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, Any]
) -> None:
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    (source,) = find_sources([tmp_path / "x.parquet"], ReadOptions(unit_size=10**6, **options))
    assert most_allocated(source) < 40_000_000


DAMAGE = """
import sys
from pathlib import Path
from preprocess import CorpusError
from preprocess.documents.batch import ReadOptions
from preprocess.sources import find_sources

path = Path(sys.argv[1])
whole = path.read_bytes()
refused = []
for place in range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole) - 8):
    for change in (1, 0x10, 0xF0):
        damaged = bytearray(whole)
        damaged[place] ^= change
        path.write_bytes(damaged)
        try:
            (source,) = find_sources([path], ReadOptions(unit_size=100))
            source.estimate_text()
            for unit in source.units():
                unit.read()
        except CorpusError as error:
            refused.append(str(error))
print(len(refused), *{each for each in refused if "row groups" in each})
"""


def test_damaged_metadata_is_an_error(tmp_path: Path) -> None:
    """In a subprocess, because pyarrow may abort the process."""
    documents = [f"document {i}" for i in range(90)]
    parquet.write_table(pa.table({"text": documents}), tmp_path / "x.parquet", row_group_size=40)
    done = subprocess.run(
        [sys.executable, "-c", DAMAGE, tmp_path / "x.parquet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout.split()[0]) > 200
    assert "is damaged or truncated (the row groups do not have -91 rows); get the" in done.stdout


@pytest.mark.parametrize("documents", [format_files.DOCUMENTS, ["word " * 400] * 2000])
def test_pyarrow_starts_no_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: list[str]
) -> None:
    parquet.write_table(pa.table({"text": documents}), tmp_path / "x.parquet", row_group_size=40)
    iter_batches, given = parquet.ParquetFile.iter_batches, []

    def watched(*arguments: Any, use_threads: bool = True, **options: Any) -> Any:
        given.append(use_threads)
        return iter_batches(*arguments, use_threads=use_threads, **options)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", watched)
    (source,) = find_sources([tmp_path / "x.parquet"], ReadOptions())
    assert sum(unit.read().n_ended for unit in source.units()) == len(list(filter(None, documents)))
    assert given
    assert not any(given)
