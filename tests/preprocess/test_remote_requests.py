"""Requests for text at URLs: how many, what they hold in memory, and some that fail."""

from __future__ import annotations

import io
import json
import os
import threading
import tracemalloc
from typing import Any

import format_files
import processes
import pytest

from preprocess.documents.batch import ReadOptions
from preprocess.sources import compressed, find_sources
from preprocess.sources import remote as sources_remote
from preprocess.storage import remote

OPTIONS: dict[str, Any] = {"vocab_size": 300, "unit_size": 700, "val_fraction": 0.1}


class Counted:
    """Counts requests of the stores of fsspec, and their bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n, self.n_bytes = 0, 0
        read, lock = remote._Fsspec.read, threading.Lock()

        def counted(store: Any, key: str, start: int, stop: int, version: str = "") -> Any:
            with lock:
                self.n, self.n_bytes = self.n + 1, self.n_bytes + stop - start
            return read(store, key, start, stop, version)

        monkeypatch.setattr(remote._Fsspec, "read", counted)


def parquet_of(documents: list[str]) -> bytes:
    pa = pytest.importorskip("pyarrow", reason="needs the extra formats")
    from pyarrow import parquet

    sink = io.BytesIO()
    table = pa.table({"n": list(range(len(documents))), "text": documents})
    parquet.write_table(table, sink, row_group_size=2000, compression="none", use_dictionary=False)
    return sink.getvalue()


LARGE = {
    "txt": format_files.text, "jsonl": format_files.json_lines, "json": format_files.json_array,
    "txt.gz": lambda x: format_files.COMPRESSIONS["gz"](format_files.text(x)),
    "parquet": parquet_of,
}


@pytest.fixture(scope="module")
def long_documents() -> list[str]:
    return [f"{i} " + os.urandom(2000).hex() for i in range(8000)]


@pytest.mark.parametrize(
    ("suffix", "fraction"), [*((x, 0.0) for x in LARGE), ("txt", 0.01), ("txt.gz", 0.01)]
)
def test_requests_are_few_and_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch, long_documents: list[str], suffix: str, fraction: float
) -> None:
    """As with 4 MiB, a quarter of the size."""
    fsspec = pytest.importorskip("fsspec", reason="other URLs are read with fsspec: remote")
    monkeypatch.setattr(sources_remote, "_PIECE_BYTES", 1 << 20)
    monkeypatch.setattr(sources_remote, "_KEPT_WINDOWS", 16)
    system = fsspec.filesystem("memory")
    system.pipe(f"/requests-{os.getpid()}/x.{suffix}", LARGE[suffix](long_documents))
    url = f"memory://requests-{os.getpid()}/x.{suffix}"
    counted = Counted(monkeypatch)
    tracemalloc.start()
    try:
        reading = ReadOptions(unit_size=1 << 20, validation_fraction=fraction)
        (source,) = find_sources([url], reading)
        n_read = sum(unit.read().n_bytes for unit in source.units())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        system.store.clear()
    assert n_read >= sum(map(len, long_documents))
    assert counted.n < 2.5 * source.n_bytes / 1e6 + 6
    # The threads of pyarrow read columns in any order.
    assert counted.n_bytes < (1.6 if suffix == "parquet" else 1.3) * source.n_bytes
    assert most < 30_000_000


def test_many_files_are_read_in_turns(monkeypatch: Any, long_documents: list[str]) -> None:
    fsspec = pytest.importorskip("fsspec", reason="other URLs are read with fsspec: remote")
    monkeypatch.setattr(sources_remote, "_PIECE_BYTES", 1 << 17)
    monkeypatch.setattr(compressed, "_INPUT_BYTES", 1 << 12)
    system = fsspec.filesystem("memory")
    content = LARGE["txt.gz"](long_documents[:600])
    for number in range(12):
        system.pipe(f"/turns-{os.getpid()}/{number}.txt.gz", content)
    counted = Counted(monkeypatch)
    try:
        sources = find_sources([f"memory://turns-{os.getpid()}"], ReadOptions(unit_size=1 << 14))
        for units in zip(*(source.units() for source in sources), strict=True):
            assert len({unit.read().n_bytes for unit in units}) == 1
    finally:
        system.store.clear()
    assert counted.n_bytes < 3 * len(sources) * len(content)


def test_a_hub_is_read_at_one_commit() -> None:
    pytest.importorskip("huggingface_hub", reason="needs the extra `hf`")
    pytest.importorskip("fsspec", reason="other URLs are read with fsspec: remote")
    urls = [
        f"hf://datasets/me/it{x}" for x in ("/data/a.txt", "", "@main/*.md", "/data", "/none.txt")
    ]
    done = processes.run("-m", "hub_server", *urls)
    a, b, c = (
        [name, "version b", f"hf://datasets/me/it{place}", text]
        for name, place, text in (
            ("a.txt", "/data/a.txt", "text of a"), ("b.jsonl", "/data/b.jsonl", "of b"),
            ("c.md", "/c.md", "text of c"),
        )
    )
    below = [["c.md", *c[1:]], ["data/a.txt", *a[1:]], ["data/b.jsonl", *b[1:]]]
    c = [*c[:2], "hf://datasets/me/it@main/c.md", c[3]]
    first, second, third, fourth, error = map(json.loads, done.stdout.splitlines())
    assert (first, second, third, fourth) == ([a], below, [c], [a, b])
    assert "there is no such object, and none below it" in error
