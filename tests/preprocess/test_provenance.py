"""With `--provenance` each document has the source and record that it is from.

Texts name their file and record, so what the columns say is compared with the documents.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_cases import assert_goes_on

from bpe import TokenmillError
from preprocess import append, build, drop, open_tokens, search
from preprocess.check.verify import verify
from preprocess.find.where import where

SEPARATOR = "<|endoftext|>"


def text(file: str, number: int) -> str:
    """A text that names its file and record; every seventh is empty, some are long or copies."""
    if number % 7 == 0:
        return ""
    if number % 11 == 0:
        return f"{file} 1;"
    return f"{file} {number};" + " and more words of it" * (number % 5 + 60 * (number % 23 == 1))


def write_sources(directory: Path, n: int = 60) -> list[Path]:
    """Files of every format that needs no library; the numbers of records begin at 1."""
    directory.mkdir()
    texts = {x: [text(x, i) for i in range(1, n + 1)] for x in ("a", "b", "c")}
    (directory / "a.txt").write_text(SEPARATOR.join(texts["a"]))
    lines = [json.dumps({"text": each}) for each in texts["b"]]
    lines[10], lines[15], lines[20] = "", "not JSON", '{"other": 1}'
    (directory / "b.jsonl").write_text("\n".join(lines))
    (directory / "c.json").write_text(json.dumps([{"text": each} for each in texts["c"]]))
    (directory / "d.jsonl").write_text("".join(f'{{"text": "d {i};"}}\n' for i in range(1, n)))
    return sorted(directory.iterdir())


def assert_right(path: Path, first_row: int = 1) -> int:
    """Compare the columns of a dataset with its documents; return how many there are."""
    file = open_tokens(path)
    names = [str(source["name"]) for source in file.manifest.sources]
    sources, records = (np.asarray(file.column(name)[:]) for name in ("src", "rec"))
    assert (sources.dtype, records.dtype) == (np.uint32, np.uint64)
    for number, (source, record) in enumerate(zip(sources, records, strict=True)):
        found = re.match(r"(\w) (\d+);", file.decode(file.doc(number)))
        assert found
        assert names[source][0] == found[1]
        is_copy = found[1] != "d" and int(found[2]) == 1 and record % 11 == 0
        assert is_copy or int(found[2]) == int(record) + 1 - first_row
    return file.n_documents


OPTIONS: list[dict[str, Any]] = [
    {"val_fraction": 0.3, "unit_size": 200},
    {"val_fraction": 0, "unit_size": 200, "shard_tokens": 900, "split_documents": True},
    {"val_fraction": 0, "shuffle_documents": 5, "unit_size": 500},
    {"val_fraction": 0.2, "deduplicate": True, "min_length": 6, "strip": True},
    {"val_fraction": 0, "max_documents": 70, "unit_size": 100, "workers": 1},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_documents_have_their_source_and_record(tmp_path: Path, options: dict[str, Any]) -> None:
    options = {"train": write_sources(tmp_path / "text"), "vocab_size": 300, "workers": 3,
               "on_bad_record": "skip", "provenance": True} | options  # fmt: skip
    build(**options, out=tmp_path / "out")
    names = ["train", "val"] if options["val_fraction"] else ["train"]
    assert sum(assert_right(tmp_path / "out" / f"{name}.json") for name in names) > 60
    assert all(each.sound for each in verify(tmp_path / "out", deep=True))
    build(**options | {"provenance": False}, out=tmp_path / "plain")
    build(**options | {"unit_size": 321, "workers": 1}, out=tmp_path / "other")
    for path in (tmp_path / "out").iterdir():
        if path.suffix in (".bin", ".docs", ".src", ".rec"):
            assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()
        if path.suffix in (".bin", ".docs"):
            assert path.read_bytes() == (tmp_path / "plain" / path.name).read_bytes()
    assert not [*(tmp_path / "plain").glob("*.src")]


def test_a_long_document_of_several_units_has_its_number(tmp_path: Path) -> None:
    long = " and so on, with words" * 500
    texts = ["a 1;", f"a 2;{long}", "", f"a 4;{long}", "a 5;"]
    (tmp_path / "a.txt").write_text(SEPARATOR.join(texts))
    options: dict[str, Any] = {"train": tmp_path / "a.txt", "vocab_size": 300, "unit_size": 900}
    for name, more in {"cut": {"val_fraction": 0}, "whole": {"val_fraction": 0.5}}.items():
        build(**options | more, provenance=True, out=tmp_path / name)
        for path in (tmp_path / name).glob("*.bin"):
            assert assert_right(path)
    bad = b"\xff".join(texts[1].encode().split(b", ", 1))
    content = b"<|endoftext|>".join([b"a 1;", bad, b"a 3;", bad, b"a 5;"])
    (tmp_path / "a.txt").write_bytes(content)
    skips = {"on_invalid_utf8": "skip", "val_fraction": 0}
    build(**options | skips, provenance=True, out=tmp_path / "skipped")
    assert assert_right(tmp_path / "skipped" / "train.bin") == 3


@pytest.mark.parametrize("more", [{"shard_tokens": 500}, {"shuffle_documents": 3}])
def test_a_run_that_is_cut_off_goes_on(tmp_path: Path, often: None, more: dict[str, Any]) -> None:
    options = {"train": write_sources(tmp_path / "text", 30), "vocab_size": 280, "unit_size": 300,
               "val_fraction": 0.2, "workers": 1, "on_bad_record": "skip",
               "provenance": True} | more  # fmt: skip
    assert_goes_on(options, tmp_path, ["encoding train and val"])
    assert assert_right(tmp_path / "whole" / "train.json") > 30


@pytest.mark.parametrize("suffix", ["src", "rec"])
def test_damage_is_found_and_repaired(tmp_path: Path, suffix: str) -> None:
    options = {"train": write_sources(tmp_path / "text", 30), "vocab_size": 280, "val_fraction": 0,
               "on_bad_record": "skip", "provenance": True, "shard_tokens": 400}  # fmt: skip
    build(**options, out=tmp_path / "out")
    path = sorted((tmp_path / "out").glob(f"*.{suffix}"))[-1]
    sound = path.read_bytes()
    path.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    assert any(f"{path.name}" in str(x.path) for x in verify(tmp_path / "out") if not x.sound)
    assert any("were rebuilt" in each.text for each in verify(tmp_path / "out", repair=True))
    assert path.read_bytes() == sound


def test_a_source_that_the_manifest_lacks_is_damage(tmp_path: Path) -> None:
    build(train=write_sources(tmp_path / "text", 30)[:1], vocab_size=270, val_fraction=0,
          provenance=True, out=tmp_path / "out")  # fmt: skip
    path = tmp_path / "out" / "train.bin"
    n = open_tokens(path).n_documents
    path.with_suffix(".src").write_bytes(b"\x09\0\0\0" * n)
    for look in (lambda: where(path, token=0), lambda: search(path, "a", progress=False)):
        with pytest.raises(TokenmillError, match=r"document 0 should be of a source from 0 to 0 "):
            look()


def test_rows_of_parquet_are_counted_from_zero(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra `formats`")
    from pyarrow import parquet

    texts = [text("a", i) if i % 7 else None for i in range(50)]
    table = pa.table({"text": [x or text("a", 1) for x in texts[:20]] + texts[20:]})
    parquet.write_table(table.slice(1), tmp_path / "a.parquet", row_group_size=9)
    build(train=tmp_path / "a.parquet", vocab_size=300, val_fraction=0, unit_size=64,
          on_bad_record="skip", provenance=True, out=tmp_path / "out")  # fmt: skip
    file = open_tokens(tmp_path / "out" / "train.bin")
    rows = np.asarray(file.column("rec"))
    column = table.slice(1)["text"].to_pylist()
    for number, row in enumerate(rows.tolist()):
        assert file.decode(file.doc(number)) == f"{column[row]}{SEPARATOR}"
    assert len(rows) == sum(x is not None for x in column)


def test_conversations_have_the_number_of_their_line(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra `chat`")
    (tmp_path / "text").write_text("words to train on " * 30)
    build(train=tmp_path / "text", val_fraction=0, vocab_size=270, out=tmp_path / "first",
          end_of_text="<|endoftext|>")  # fmt: skip
    lines = [json.dumps({"messages": [{"role": "user", "content": f"number {i};"}]})
             for i in range(1, 30)]  # fmt: skip
    lines[3:3], lines[9:9] = [""], ["no JSON"]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (tmp_path / "t.jinja").write_text(template)
    build(train=tmp_path / "a.jsonl", val_fraction=0, tokenizer=tmp_path / "first/tokenizer.json",
          chat_template=str(tmp_path / "t.jinja"), on_bad_record="skip", provenance=True,
          train_on="all", unit_size=100, out=tmp_path / "out")  # fmt: skip
    file = open_tokens(tmp_path / "out" / "train.bin")
    for number, line in enumerate(np.asarray(file.column("rec")).tolist()):
        said = re.search(r"number \d+;", file.decode(file.doc(number)))
        assert said
        assert said[0] in lines[line - 1]
    assert file.n_documents == 29


def test_where_and_search_tell_the_record_of_shuffled_documents(tmp_path: Path) -> None:
    build(train=write_sources(tmp_path / "text"), vocab_size=300, val_fraction=0,
          on_bad_record="skip", shuffle_documents=1, provenance=True,
          out=tmp_path / "out")  # fmt: skip
    path = tmp_path / "out" / "train.bin"
    found = search(path, "d 17;", progress=False)["searched"][0]
    assert found["sources"] == [{"name": "d.jsonl", "count": 1}]
    (place,) = found["places"]
    assert place["source"] == {"name": "d.jsonl", "record": 17}
    assert where(path, token=place["token"])["places"][0]["source"] == place["source"]
    line = [sys.executable, "-m", "preprocess", "where", str(path), "--token", "0"]
    printed = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert re.match(r"token 0 of document 0, record \d+ of \w\.\w+\n", printed)


@pytest.mark.parametrize("shuffle", [None, 3])
def test_documents_that_are_appended_and_dropped(tmp_path: Path, shuffle: int | None) -> None:
    text = tmp_path / "text"
    a, *others = write_sources(text)
    options = {"val_fraction": 0, "vocab_size": 300, "provenance": True}
    build(train=a, out=tmp_path / "out", shuffle_documents=shuffle, **options)
    path = tmp_path / "out" / "train.json"
    n = assert_right(path)
    append(path, train=others, on_bad_record="skip", progress=False)
    assert assert_right(path) > n + 60
    (tmp_path / "drop.txt").write_text("0\n3\n")
    drop(path, documents=tmp_path / "drop.txt", out=tmp_path / "less.bin", progress=False)
    n = assert_right(tmp_path / "less.json")
    assert n == open_tokens(path).n_documents - 2
    drop(tmp_path / "less.json", source=["d.jsonl", "a.txt"], out=tmp_path / "some.bin",
         progress=False)  # fmt: skip
    some = open_tokens(tmp_path / "some.json")
    assert 60 < assert_right(tmp_path / "some.json") < n
    assert {some.decode(some.doc(i))[0] for i in range(some.n_documents)} == {"b", "c"}
    dropped = {x["name"]: x.get("dropped", 0) for x in some.manifest.sources}
    assert dropped["d.jsonl"] == 59
    assert sum(dropped.values()) == 2 + n - some.n_documents


def test_a_configuration_has_it_for_all_datasets_or_for_one(tmp_path: Path) -> None:
    a, *others = map(str, write_sources(tmp_path / "text"))
    datasets = [
        {"name": "all", "data_files": [a, *others], "shuffle_documents": 1},
        {"name": "none", "data_files": a, "provenance": False},
    ]
    (tmp_path / "corpus.yaml").write_text(json.dumps({
        "output_path": str(tmp_path / "out"), "tokenizer": {"vocab_size": 300},
        "tokenize": {"provenance": True, "on_bad_record": "skip"}, "datasets": datasets,
    }))  # fmt: skip
    build(tmp_path / "corpus.yaml")
    assert assert_right(tmp_path / "out" / "all" / "train.json") > 60
    assert [x.name for x in (tmp_path / "out").glob("*/*.src")] == ["train.src"]


def test_tasks_divide_files() -> None:
    with pytest.raises(Exception, match="counted from the beginning of a file, and tasks divide"):
        build(train="x", tokenizer="t", provenance=True, task_index=0, task_count=2)
