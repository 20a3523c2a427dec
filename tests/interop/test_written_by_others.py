"""Files that other programs have written hold the documents that were given to them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import format_files
import pytest
from source_cases import documents_of

DOCUMENTS = [*format_files.DOCUMENTS[:50], "with\ttab, \u2028 and \x7f", "a" * 100_000]
NEEDS = "needs the extra interop"


@pytest.mark.parametrize("name", ["x.parquet", "x.ndjson", "x.arrow", "x.feather", "y.parquet"])
def test_polars(tmp_path: Path, name: str) -> None:
    polars = pytest.importorskip("polars", reason=NEEDS)
    frame = polars.DataFrame({"id": range(len(DOCUMENTS)), "text": DOCUMENTS})
    path = tmp_path / name
    write: dict[str, Any] = {
        "x.parquet": frame.write_parquet, "x.ndjson": frame.write_ndjson,
        "x.arrow": frame.write_ipc, "x.feather": frame.write_ipc_stream,
        "y.parquet": lambda path: frame.write_parquet(path, compression="zstd", row_group_size=7),
    }  # fmt: skip
    write[name](path)
    assert documents_of(path) == DOCUMENTS


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("x.parquet", "(format parquet)"), ("y.parquet", "(format parquet, codec zstd)"),
        ("x.jsonl", "(format json)"), ("x.json", "(format json, array true)"),
        ("x.jsonl.gz", "(format json, compression gzip)"),
    ],
)  # fmt: skip
def test_duckdb(tmp_path: Path, name: str, how: str) -> None:
    duckdb = pytest.importorskip("duckdb", reason=NEEDS)
    with duckdb.connect() as connection:
        connection.execute("create table t (id integer, text varchar)")
        connection.executemany("insert into t values (?, ?)", [*enumerate(DOCUMENTS)])
        connection.execute(f"copy (select * from t order by id) to '{tmp_path / name}' {how}")
    assert documents_of(tmp_path / name) == DOCUMENTS


@pytest.mark.parametrize("name", ["x.parquet", "x.feather", "x.jsonl", "x.json", "x.jsonl.gz"])
def test_pandas(tmp_path: Path, name: str) -> None:
    pandas = pytest.importorskip("pandas", reason=NEEDS)
    frame, path = pandas.DataFrame({"n": 1, "text": DOCUMENTS}), tmp_path / name
    if name == "x.parquet":
        frame.to_parquet(path)
    elif name == "x.feather":
        frame.to_feather(path)
    else:
        frame.to_json(path, orient="records", lines="jsonl" in name)
    assert documents_of(path) == DOCUMENTS


def test_hugging_face_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason=NEEDS)
    made = datasets.Dataset.from_dict({"text": DOCUMENTS, "id": [*range(len(DOCUMENTS))]})
    made.save_to_disk(tmp_path / "saved", num_shards=3)
    made.to_parquet(tmp_path / "x.parquet")
    made.to_json(tmp_path / "x.jsonl")
    for name in ("saved", "x.parquet", "x.jsonl"):
        assert documents_of(tmp_path / name) == DOCUMENTS
    # The cache, in which it keeps what it made of a file.
    cached = datasets.load_dataset(
        "json", data_files=str(tmp_path / "x.jsonl"), cache_dir=str(tmp_path / "cache")
    )
    (file,) = cached["train"].cache_files
    assert documents_of(Path(file["filename"]).parent) == DOCUMENTS


def test_jq(tmp_path: Path) -> None:
    jq = shutil.which("jq")
    if jq is None:
        pytest.skip("needs jq")
    path = tmp_path / "x.json"
    path.write_text(json.dumps([{"text": text} for text in DOCUMENTS]))
    for name, arguments in (("x.jsonl", ["-c", ".[]"]), ("y.json", ["--indent", "3", "."])):
        with open(tmp_path / name, "wb") as file:
            subprocess.run([jq, *arguments, str(path)], stdout=file, check=True)
        assert documents_of(tmp_path / name) == DOCUMENTS


@pytest.mark.parametrize(
    ("program", "arguments", "suffix"),
    [
        ("gzip", ["-9"], "gz"), ("zstd", ["-19", "-q"], "zst"), ("zstd", ["-q", "--long"], "zst"),
        ("xz", [], "xz"), ("bzip2", [], "bz2"),
    ],
)  # fmt: skip
def test_compressors(tmp_path: Path, program: str, arguments: list[str], suffix: str) -> None:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"needs {program}")
    content = format_files.text(DOCUMENTS)
    parts = []
    for name, part in (("a", content[:70_001]), ("b", content[70_001:])):
        (tmp_path / name).write_bytes(part)
        command = [found, *arguments, str(tmp_path / name)]
        subprocess.run(command, check=True)
        parts.append((tmp_path / f"{name}.{suffix}").read_bytes())
    path = tmp_path / f"x.txt.{suffix}"
    path.write_bytes(b"".join(parts))
    assert documents_of(path) == DOCUMENTS
