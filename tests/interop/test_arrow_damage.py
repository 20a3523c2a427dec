"""Arrow and Parquet: no damaged byte aborts the process; invalid UTF-8 is as the options say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import processes
import pytest
from source_cases import documents_of

from preprocess import CorpusError

pa = pytest.importorskip("pyarrow", reason="needs the extra formats")
from pyarrow import parquet  # noqa: E402

READ_DAMAGED = """
import sys
from pathlib import Path
from preprocess import CorpusError
from preprocess.documents.batch import ReadOptions
from preprocess.documents.chat_template import ChatFormat
from preprocess.sources import find_sources

path, form = Path(sys.argv[1]), ChatFormat("{{ messages[0].content }}", (), train_on="all")
options = {
    "preset": ReadOptions(text_preset="title-text", on_invalid_utf8="replace"),
    "fields": ReadOptions(content_field=("title", "text"), on_invalid_utf8="replace"),
    "chat": ReadOptions(chat="auto", chat_format=form),
    "metadata": ReadOptions(unit_size=100),
}[sys.argv[2]]
whole = path.read_bytes()
refused = []
end = len(whole) - 8
places = range(0, len(whole), 2)
if sys.argv[2] == "metadata":  # of Parquet, whose length is before its end
    places = range(end - int.from_bytes(whole[-8:-4], "little"), end)
for place in places:
    damaged = bytearray(whole)
    damaged[place] ^= (1, 0x10, 0xF0)[place % 3] if sys.argv[2] == "metadata" else 0xF0
    path.write_bytes(damaged)
    try:
        (source,) = find_sources([path], options)
        source.estimate_text()
        for unit in source.units():
            unit.read()
    except CorpusError as error:
        refused.append(str(error))
print(len(refused), *{each for each in refused if "row groups" in each})
"""


def read_damaged(path: Path, reads: str) -> str:
    """Read a file in which each byte is damaged in turn, where pyarrow may abort the process."""
    done = processes.run("-c", READ_DAMAGED, path, reads)
    assert done.stderr == ""
    return done.stdout


def text_of(values: list[bytes], kind: str) -> Any:
    """Return a column of strings, which may be invalid UTF-8, or of a dictionary of them."""
    binary = pa.array(values, pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(binary), binary.buffers())
    if kind == "plain":
        return text
    indices = pa.array(range(len(values)), pa.int32())
    return pa.DictionaryArray.from_arrays(indices, text)


@pytest.mark.parametrize("kind", ["plain", "dictionary"])
@pytest.mark.parametrize("reads", ["preset", "fields", "chat"])
def test_any_damaged_byte_of_an_arrow_file(tmp_path: Path, kind: str, reads: str) -> None:
    title = text_of([b"title %d" % i for i in range(9)], kind)
    text = text_of([b"text %d " % i * 3 for i in range(9)], kind)
    table = pa.table({"title": title, "text": text})
    if reads == "chat":
        turns = pa.StructArray.from_arrays([title, text], ["role", "content"])
        ends = pa.array(range(10), pa.int32())
        table = pa.table({"messages": pa.ListArray.from_arrays(ends, turns)})
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    assert int(read_damaged(tmp_path / "x.arrow", reads).split()[0]) > 100


def test_damaged_metadata_is_an_error(tmp_path: Path) -> None:
    documents = [f"document {i}" for i in range(90)]
    parquet.write_table(pa.table({"text": documents}), tmp_path / "x.parquet", row_group_size=40)
    said = read_damaged(tmp_path / "x.parquet", "metadata")
    assert int(said.split()[0]) > 80
    assert "is damaged or truncated (the row groups do not have " in said


@pytest.mark.parametrize("kind", ["plain", "dictionary"])
@pytest.mark.parametrize(
    "options", [{}, {"content_field": ("title", "text")}, {"text_preset": "title-text"}]
)
def test_invalid_utf8_in_a_column(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    columns = {"title": text_of([b"a", b"b"], kind), "text": text_of([b"x\xff", b"y"], kind)}
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    read = documents_of(tmp_path / "x.parquet", on_invalid_utf8="replace", **options)
    assert read == (["a\nx\ufffd", "b\ny"] if options else ["x\ufffd", "y"])
    with pytest.raises(CorpusError, match=r"row 0: .*UTF-8"):
        documents_of(tmp_path / "x.parquet", **options)


def test_a_null_inside_a_dictionary_is_null(tmp_path: Path) -> None:
    known = pa.array(["a", None, "b"])
    text = pa.DictionaryArray.from_arrays(pa.array([0, 2, 1, 0], pa.int32()), known)
    with pa.ipc.new_file(tmp_path / "x.arrow", pa.schema([("text", text.type)])) as writer:
        writer.write_table(pa.table({"text": text}))
    with pytest.raises(CorpusError, match="row 2: column 'text' is null, expected text"):
        documents_of(tmp_path / "x.arrow")
