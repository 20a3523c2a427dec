"""Rows in buckets: written as in a directory, whatever ends the run, and read in ranges."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
from itertools import islice
from pathlib import Path
from typing import Any

import faults
import memory_objects
import numpy as np
import pytest
import row_cases
from memory_objects import Bucket, MemoryObjects
from remote_cases import upload
from web_server import Page, web_server

from bpe.errors import ChangedError, TokenmillError, UnavailableError
from preprocess import (
    ArrowShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
    Pipeline,
    PipelineConfig,
    RowsError,
    tokenize_and_save,
    write_rows,
)
from preprocess.dataset import remote as block_cache
from preprocess.rows.formats import FORMATS
from preprocess.rows.loaders import open_rows
from preprocess.settings import SettingsError
from preprocess.sources import remote as sources_remote
from preprocess.sources.find import looks_into
from preprocess.storage import OutputError
from preprocess.storage.remote import RemoteError, open_objects

OF_PLACE = ("rows.json", "config.json", "tokenization_stats.json")  # with a dataset, or times
SOURCES: dict[str, Any] = {
    "parquet": ParquetShardedSource, "arrow": ArrowShardedSource, "jsonl": JsonShardedSource,
}


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv(block_cache.DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    for key, _ in list(open_objects(server).keys("")):
        open_objects(server).remove(key)
    return server


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a dataset."""
    directory = tmp_path_factory.mktemp("rows") / "data"
    row_cases.dataset(directory, [1, 20, 7, 30, 2, 2, 9, 1, 16, 40, 40, 3])
    return directory


def options_of(format_name: str, out: str | Path, **more: Any) -> dict[str, Any]:
    padding = {"padding": "max-length"} if format_name in ("npz", "pickle") else {}
    return {"format": format_name, "out": out, "max_length": 9, "num_shards": 3} | padding | more


def contents(directory: Path) -> dict[str, bytes]:
    return {x.name: x.read_bytes() for x in directory.iterdir() if x.is_file()}


def without_places(found: dict[str, bytes]) -> dict[str, bytes]:
    """Check that the rows of both places have the same shards; leave out what differs."""
    shards = json.dumps(json.loads(found["rows.json"])["shards"])
    return {x: y for x, y in found.items() if x not in OF_PLACE} | {"shards": shards.encode()}


@pytest.mark.parametrize("format_name", FORMATS)
def test_rows_in_a_bucket_are_those_of_a_directory(
    bucket: str, data: Path, tmp_path: Path, format_name: str
) -> None:
    row_cases.need(format_name)
    at = f"{bucket}/data"
    upload(data, bucket)
    (local,) = write_rows(data, **options_of(format_name, tmp_path / "rows"))
    (first,) = write_rows(data, **options_of(format_name, f"{bucket}/rows"))
    (second,) = write_rows(at, **options_of(format_name, f"{bucket}/of/bucket", workers=3))
    assert first.path == f"{bucket}/rows"
    expected = without_places(contents(tmp_path / "rows"))
    for name in ("rows", "of/bucket"):
        keys = [key for key, _ in open_objects(bucket).keys(f"{name}/")]
        found = {key[len(name) + 1 :]: open_objects(bucket).get(key) or b"" for key in keys}
        assert without_places(found) == expected
    assert (first.manifest.dataset, second.manifest.dataset) == (
        str(data / "train.json"), "../../data/train.json",
    )
    (again,) = write_rows(data, **options_of(format_name, f"{bucket}/rows"))
    assert not again.is_new
    with pytest.raises(OutputError, match=rf"^{bucket}/rows: has rows of other settings .max_len"):
        write_rows(data, **options_of(format_name, f"{bucket}/rows", max_length=8))
    write_rows(data, **options_of(format_name, f"{bucket}/rows", num_shards=1, overwrite=True))
    assert len([x for x, _ in open_objects(bucket).keys("rows/") if "0" in x]) == 1
    there, here = open_rows(f"{bucket}/of/bucket"), open_rows(tmp_path / "rows")
    whole = open_rows(f"{bucket}/of/bucket", 1)
    assert len(there) == len(here) == local.manifest.rows
    for i in range(len(here)):
        for found_row in (there.row(i), whole.row(i)):
            assert {x: y.tolist() for x, y in found_row.items()} == {
                x: y.tolist() for x, y in here.row(i).items()
            }
    lost = second.manifest.shards[1].name
    open_objects(bucket).remove(f"of/bucket/{lost}")
    for path in ("of/bucket", "of/bucket/", "of/bucket/train-*", "of/**/train-*"):
        if format_name in SOURCES:
            with pytest.raises(RowsError, match=rf"of/bucket/{lost}: is missing, and rows"):
                SOURCES[format_name](f"{bucket}/{path}")


def test_a_run_that_ends_at_any_request_is_resumed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(data, **options_of("jsonl", tmp_path / "peace", num_shards=4))
    peace, at, is_cut_off = without_places(contents(tmp_path / "peace")), 0, True
    while is_cut_off:
        at += 3
        bucket = Bucket()
        options = options_of("jsonl", "s3://b/out", num_shards=4, workers=1)
        what = ("die", "die after", "fail", "fail after")[at % 4]
        objects = memory_objects.install(monkeypatch, MemoryObjects(bucket, at, what))
        try:
            write_rows(data, **options)
        except (faults.CutOff, TokenmillError):
            keys = bucket.contents("out/")
            if "rows.json" in keys:
                assert peace.keys() - {"shards"} <= keys.keys()
        is_cut_off = objects.n_requests >= at
        memory_objects.install(monkeypatch, MemoryObjects(bucket))
        monkeypatch.setattr("preprocess.storage.lock._held", set())
        write_rows(data, **options)
        assert without_places(bucket.contents("out/")) == peace
    assert at > 40


def test_a_killed_run_makes_its_unfinished_shard_again(data: Path, monkeypatch: Any) -> None:
    bucket, put = Bucket(), list[str]()
    objects = memory_objects.install(monkeypatch, MemoryObjects(bucket))
    options = options_of("jsonl", "s3://b/out", workers=1)

    def die(kind: str, key: str) -> None:
        if kind == "put" and key.endswith("3.jsonl"):
            put.append(key.rpartition("/")[2])
            if len(put) == 3:
                raise faults.CutOff

    objects.before = die
    with pytest.raises(faults.CutOff):
        write_rows(data, **options)
    assert not [key for key in bucket.contents("out/") if key.endswith(".jsonl") and "/" not in key]
    write_rows(data, **options)
    names = [f"train-0000{i}-of-00003.jsonl" for i in range(3)]
    assert put == [*names, names[2]]


@pytest.mark.parametrize("keep_tokens", [True, False])
def test_text_in_a_bucket_becomes_rows_there(
    bucket: str, tmp_path: Path, keep_tokens: bool
) -> None:
    pytest.importorskip("pyarrow")
    lines = "".join(json.dumps({"text": f"document {i} of {i * i}"}) + "\n" for i in range(99))
    open_objects(bucket).put("text/a.jsonl", lines.encode())
    (tmp_path / "a.jsonl").write_text(lines)
    options: dict[str, Any] = {"tokenizer": {"vocab_size": 280}, "max_length": 8, "num_shards": 2,
                               "keep_tokens": keep_tokens, "val_fraction": 0.2}
    there = tokenize_and_save(
        data_files=f"{bucket}/text/*.jsonl", output_path=f"{bucket}/out", **options
    )
    tokenize_and_save(data_files=tmp_path / "a.jsonl", output_path=tmp_path / "out", **options)
    assert there.directory == f"{bucket}/out"
    for part in ("train", "val"):
        local, found = (
            [{x: y.tolist() for x, y in row.items()} for row in ParquetShardedSource(paths)]
            for paths in (tmp_path / "out" / part, f"{bucket}/out/{part}/*.parquet")
        )
        assert local == found
    names = {key for key, _ in open_objects(bucket).keys("out/tokens/")}
    assert ("out/tokens/train_00000.bin" in names) == keep_tokens
    assert "out/tokens/tokenizer.json" in names
    assert ("out/tokens/train.json" in names) == keep_tokens
    if keep_tokens:
        again = tokenize_and_save(
            data_files=f"{bucket}/text/*.jsonl", output_path=f"{bucket}/out", **options
        )
        assert all("up to date" in line for line in again.lines)


def test_a_pipeline_writes_to_places_of_both_kinds(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some words, and some more. " * 50)
    files = {"data_files": tmp_path / "text"}
    config = PipelineConfig(
        datasets=[files | {"name": "a"}, files | {"name": "b", "save_path": tmp_path / "b"}],
        tokenizer={"vocab_size": 270}, output_path=f"{bucket}/all", save={"format": "jsonl"},
        tokenize={"max_length": 8},
    )
    result = Pipeline.from_config(config).source().tokenize().save().build()
    assert [str(result.rows[x][0].path) for x in "ab"] == [f"{bucket}/all/a", str(tmp_path / "b")]
    kept = json.loads(open_objects(bucket).get("all/config.json") or b"")
    assert kept["tokenizer"]["out"] == f"{bucket}/all/tokenizer.json"
    rows = [[row["input_ids"].tolist() for row in JsonShardedSource(x)]
            for x in (f"{bucket}/all/a", tmp_path / "b")]
    assert rows[0] == rows[1]
    for given, message in (
        ({"output_path": "https://host/x"}, "output_path: should be a path, or a URL of a bucket"),
        ({"save": {"output_dir": "ftp://host/x"}}, "output_dir: should be a path, or a URL of a b"),
    ):
        with pytest.raises(SettingsError, match=message):
            PipelineConfig(datasets=[files], **given)
    config = PipelineConfig(
        datasets=[{"data_files": f"{bucket}/**/*.x", "save_path": f"{bucket}/y"}],
        tokenizer={"vocab_size": 270},
    )
    with pytest.raises(SettingsError, match=f"outputs would be in {bucket}/y, where .* is looked"):
        Pipeline.from_config(config).source().tokenize().build()
    open_objects(bucket).put("in/x.jsonl", b'{"text": "some words"}\n')
    for place in ("in", "in/"):
        with pytest.raises(SettingsError, match=f"would be in {bucket}/{place}, from which .* rea"):
            tokenize_and_save(data_files=f"{bucket}/in/x.jsonl", output_path=f"{bucket}/{place}",
                              tokenizer={"vocab_size": 270})
    assert [key for key, _ in open_objects(bucket).keys("in/")] == ["in/x.jsonl"]
    assert not looks_into("s3://b/data/*.parquet", "s3://b/tokenized")
    assert looks_into("s3://b/", "s3://b/tokenized")
    assert not looks_into("s3://b/", "s3:")


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each request for a range, from now on."""
    sizes, real = list[int](), sources_remote.RemoteFile.fetch

    def fetch(self: Any, start: int, stop: int) -> Any:
        sizes.append(stop - start)
        return real(self, start, stop)

    monkeypatch.setattr(sources_remote.RemoteFile, "fetch", fetch)
    monkeypatch.setattr(sources_remote, "_SMALL_BYTES", 0)  # exactly what is asked for
    return sizes


@pytest.mark.parametrize("format_name", SOURCES)
def test_sources_of_a_bucket_are_resumed_and_read_in_ranges(
    bucket: str, tmp_path: Path, format_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    records = [{"input_ids": rng.integers(0, 1 << 30, 2000).tolist()} for _ in range(60)]
    (tmp_path / "rows").mkdir()
    for number, some in enumerate((records[:40], records[40:])):
        path = tmp_path / "rows" / f"x-{number}.{format_name}"
        if format_name == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in some))
            continue
        pa = pytest.importorskip("pyarrow")
        table = pa.Table.from_pylist(some)
        if format_name == "parquet":
            pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=4)
        else:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, 4)
    upload(tmp_path / "rows", bucket, "rows")
    (tmp_path / "rows" / "x-2.txt").touch()
    source = SOURCES[format_name](f"{bucket}/rows")
    names = [f"{bucket}/rows/x-{number}.{format_name}" for number in range(2)]
    assert source.shard_names == names == SOURCES[format_name](f"{bucket}/rows/x-?.*").shard_names
    assert SOURCES[format_name](names).shard_names == names
    assert len(source) == 60
    first = [row["input_ids"].tolist() for row in islice(source, 37)]
    other = SOURCES[format_name](f"{bucket}/rows/")
    other.load_state_dict(json.loads(json.dumps(source.state_dict())))
    sizes = count_reads(monkeypatch)
    first.append(next(iter(other))["input_ids"].tolist())
    if format_name == "parquet":
        assert sum(sizes) < 200_000  # of 960,000: a row group, and the end of the file twice
    first += [row["input_ids"].tolist() for row in other]
    assert first == [row["input_ids"] for row in records]
    one = SOURCES[format_name](names[0])
    assert one[39]["input_ids"].tolist() == records[39]["input_ids"]
    sizes.clear()
    assert one[1]["input_ids"].tolist() == records[1]["input_ids"]
    if format_name != "jsonl":  # whose buffer is as large
        assert sum(sizes) < 140_000
    open_objects(bucket).put(f"rows/x-0.{format_name}", b"something else" * 50_000)
    monkeypatch.setattr(sources_remote, "_kept", sources_remote._Kept())
    with pytest.raises(ChangedError, match=rf"x-0\.{format_name}: was changed or removed while"):
        list(source.open_shard(names[0]))
    with pytest.raises(RowsError, match=f"there are no .* at {bucket}/none; give a file"):
        SOURCES[format_name](f"{bucket}/none")
    upload(tmp_path / "rows", bucket, "out/train")
    for open_it in (SOURCES[format_name], open_rows):
        with pytest.raises(RowsError, match=f", but in {bucket}/out there are train; give "):
            open_it(f"{bucket}/out")


def test_rows_on_a_web_server(data: Path, tmp_path: Path) -> None:
    """Which has no lists: rows.json says what there is, and a signed URL is of one file."""
    write_rows(data, **options_of("jsonl", tmp_path / "rows", compression="gzip"))
    pages = {f"/rows/{x}": Page(y) for x, y in contents(tmp_path / "rows").items()}
    pages["/a.jsonl?key=secret"] = Page(b'{"input_ids": [1, 2]}\n')
    expected = row_cases.rows_in(tmp_path / "rows")
    with web_server(pages) as server:
        found = open_rows(f"{server}/rows")
        assert [found.row(i)["input_ids"].tolist() for i in range(len(found))] == [
            row["input_ids"] for row in expected
        ]
        signed = JsonShardedSource(f"{server}/a.jsonl?key=secret")
        assert (len(signed), signed.pad_id, signed[0]["input_ids"].tolist()) == (1, 0, [1, 2])
        assert signed.shard_names == [f"{server}/a.jsonl"]
        with pytest.raises(RemoteError, match="has a query, such as a signature"):
            open_rows(f"{server}/rows?key=secret")
        with pytest.raises(RowsError, match=rf"JSON Lines files .* at {server}/none\.jsonl; give"):
            JsonShardedSource(f"{server}/none.jsonl?key=secret")
        found = open_rows(f"{server}/rows")
        pages["/rows/train-00001-of-00003.jsonl.gz"] = Page(b"", status=403)
        with pytest.raises(UnavailableError, match="the request failed"):
            [found.row(i) for i in range(len(found))]
        del pages["/rows/train-00001-of-00003.jsonl.gz"]
        with pytest.raises(RowsError, match=r"00001-of-00003.jsonl.gz: is missing, and rows.json"):
            open_rows(f"{server}/rows")
        pages["/b.jsonl.gz"] = Page(gzip.compress(b'{"input_ids": [1]}\n' * 9)[:-9])
        with pytest.raises(RowsError, match=r"b\.jsonl\.gz: .* as JSON Lines, after line"):
            list(JsonShardedSource(f"{server}/b.jsonl.gz"))


def _read_there(found: Any, answers: Any) -> None:
    answers.put([found.row(i)["input_ids"].tolist() for i in range(len(found))])


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_rows_are_read_in_other_processes(
    bucket: str, data: Path, start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the workers of a DataLoader."""
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2])]))
    write_rows(data, **options_of("parquet", f"{bucket}/rows"))
    found = open_rows(f"{bucket}/rows")
    expected = [found.row(i)["input_ids"].tolist() for i in range(len(found))]
    context = multiprocessing.get_context(start)
    answers = context.Queue()
    process = context.Process(target=_read_there, args=(found, answers))
    process.start()
    assert answers.get(timeout=60) == expected
    process.join()


def test_rows_whose_names_begin_with_a_dot(data: Path, tmp_path: Path) -> None:
    """As those of a dataset with such a name."""
    for path in data.glob("train.*"):
        (tmp_path / f".x{path.suffix}").write_bytes(path.read_bytes())
    (made,) = write_rows(tmp_path / ".x.bin", **options_of("jsonl", tmp_path / "rows"))
    assert len(open_rows(tmp_path / "rows")) == made.manifest.rows
