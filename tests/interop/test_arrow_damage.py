"""Arrow and Parquet: no damaged byte aborts the process; invalid UTF-8 is as the options say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from preprocess import CorpusError
from preprocess.documents.batch import ReadOptions
from preprocess.sources import find_sources

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
}[sys.argv[2]]
whole = path.read_bytes()
n_refused = 0
for place in range(0, len(whole), 2):
    damaged = bytearray(whole)
    damaged[place] ^= 0xF0
    path.write_bytes(damaged)
    try:
        (source,) = find_sources([path], options)
        source.estimate_text()
        for unit in source.units():
            unit.read()
    except CorpusError:
        n_refused += 1
print(n_refused)
"""


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
    """In a subprocess, because pyarrow may abort the process."""
    title = text_of([b"title %d" % i for i in range(9)], kind)
    text = text_of([b"text %d " % i * 3 for i in range(9)], kind)
    table = pa.table({"title": title, "text": text})
    if reads == "chat":
        turns = pa.StructArray.from_arrays([title, text], ["role", "content"])
        ends = pa.array(range(10), pa.int32())
        table = pa.table({"messages": pa.ListArray.from_arrays(ends, turns)})
    with pa.ipc.new_file(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    done = subprocess.run(
        [sys.executable, "-c", READ_DAMAGED, tmp_path / "x.arrow", reads], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 100


@pytest.mark.parametrize("kind", ["plain", "dictionary"])
@pytest.mark.parametrize(
    "options", [{}, {"content_field": ("title", "text")}, {"text_preset": "title-text"}]
)
def test_invalid_utf8_in_a_column(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    columns = {"title": text_of([b"a", b"b"], kind), "text": text_of([b"x\xff", b"y"], kind)}
    parquet.write_table(pa.table(columns), tmp_path / "x.parquet")
    (source,) = find_sources(
        [tmp_path / "x.parquet"], ReadOptions(on_invalid_utf8="replace", **options)
    )
    read = b"".join(unit.read().buffer.tobytes() for unit in source.units()).decode()
    assert read == (
        "a\nx\N{REPLACEMENT CHARACTER}b\ny" if options else "x\N{REPLACEMENT CHARACTER}y"
    )
    (source,) = find_sources([tmp_path / "x.parquet"], ReadOptions(**options))
    with pytest.raises(CorpusError, match=r"row 0: .*UTF-8"):
        [unit.read() for unit in source.units()]


def test_a_null_inside_a_dictionary_is_null(tmp_path: Path) -> None:
    known = pa.array(["a", None, "b"])
    text = pa.DictionaryArray.from_arrays(pa.array([0, 2, 1, 0], pa.int32()), known)
    with pa.ipc.new_file(tmp_path / "x.arrow", pa.schema([("text", text.type)])) as writer:
        writer.write_table(pa.table({"text": text}))
    (source,) = find_sources([tmp_path / "x.arrow"], ReadOptions())
    with pytest.raises(CorpusError, match="row 2: column 'text' is null, expected text"):
        [unit.read() for unit in source.units()]
