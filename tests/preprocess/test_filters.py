"""Filters and presets: what Python's strings give, wherever units end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from source_cases import documents_of

from preprocess import CorpusError, build

texts = st.text(st.sampled_from(" \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u2003\u3000aé日🙂"), max_size=12)


@settings(max_examples=60)
@given(
    st.lists(texts, max_size=12), st.integers(1, 40), st.booleans(), st.integers(0, 4),
    st.none() | st.integers(1, 8), st.sampled_from([0.0, 0.5]),
)
@example(["a\xa0", "\u3000a", "a\x1f"], 40, True, 0, None, 0.0)
def test_documents_are_filtered_as_a_whole(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], unit_size: int, strip: bool,
    least: int, most: int | None, fraction: float,
) -> None:
    path = tmp_path_factory.mktemp("x") / "x.txt"
    path.write_bytes("<|endoftext|>".join(documents).encode())
    reading: dict[str, Any] = {"strip": strip, "min_length": least, "max_length": most}
    reading |= {"unit_size": unit_size, "validation_fraction": fraction}
    expected = [document.strip() if strip else document for document in documents]
    expected = [x for x in expected if x and least <= len(x) <= (most or 99)]
    assert documents_of(path, **reading) == expected
    lines = path.with_suffix(".jsonl")
    lines.write_text("".join(json.dumps({"text": x}) + "\n" for x in documents))
    assert documents_of(lines, **reading) == expected


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    documents = ["  ", "", " ab ", "abc", "a" * 20, "é" * 20, "日" * 21]
    path.write_text("".join(json.dumps({"text": x}) + "\n" for x in documents))
    options: dict[str, Any] = {"strip": True, "min_length": 3, "max_length_chars": 20}
    result = build(train=path, vocab_size=258, val_fraction=0, out=tmp_path / "out", **options)
    counts = {x: result.stats[f"{x}_documents"] for x in ("empty", "short", "long")}
    assert counts == {"empty": 2, "short": 1, "long": 1}
    assert result.stats["documents"] == 3
    lines = "\n".join(result.lines)
    assert "left out, for fewer characters than min_length: 1 document" in lines
    assert "left out, for more than max_length_chars: 1 document" in lines


ROWS: list[dict[str, Any]] = [
    {"title": " A title ", "text": "\nsome text\n", "id": 1},
    {"title": "Only a title", "text": "[deleted]", "id": 2},
    {"title": " [removed]", "text": "only text", "id": 3},
    {"title": "", "text": " \t ", "id": 4},
    {"title": "Null", "text": None, "id": 5},
    {"title": "No text", "id": 6},
    {"text": "no title", "id": 7},
    {"id": 8},
]
JOINED = ["A title\nsome text", "Only a title", "only text", "Null", "No text", "no title"]


def write_records(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        pa = pytest.importorskip("pyarrow", reason="needs the extra `formats`")
        from pyarrow import feather, parquet

        write = parquet.write_table if path.suffix == ".parquet" else feather.write_feather
        names = {name: None for row in rows for name in row}
        write(pa.table({name: [row.get(name) for row in rows] for name in names}), path)


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet", "arrow"])
def test_title_and_text_are_optional(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    for rows, joined in ((ROWS, JOINED), (ROWS[6:], JOINED[5:])):
        write_records(path, rows)
        for unit_size in (1, 10**6):
            found = documents_of(path, text_preset="title-text", unit_size=unit_size)
            assert found == joined
    if suffix in ("parquet", "arrow"):
        write_records(path, [{"body": "some"}])
        with pytest.raises(CorpusError, match=r"has 0 columns named 'title', .* are 'body'"):
            documents_of(path, text_preset="title-text")


def test_titles_that_are_no_text(tmp_path: Path) -> None:
    for row, message in (
        ({"title": "a", "text": 3}, r"line 1 \(byte 0\): .*Expected `str \| null`, got `int`"),
        ({"text": ["a"]}, r"line 1 \(byte 0\): .*Expected `str \| null`, got `array`"),
        ({"title": None, "text": True}, r"line 1 \(byte 0\): .*Expected `str \| null`, got `bool`"),
    ):
        (tmp_path / "y.jsonl").write_text(json.dumps(row))
        with pytest.raises(CorpusError, match=message):
            documents_of(tmp_path / "y.jsonl", text_preset="title-text")
