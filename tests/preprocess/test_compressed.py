"""Compressed files: damage is an error, memory is bounded, long documents are read in parts."""

from __future__ import annotations

import gzip
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import format_files
import pytest
from format_files import COMPRESSIONS, zstd
from source_cases import documents_of

from preprocess import CorpusError
from preprocess.documents.batch import ReadOptions
from preprocess.sources import base, find_sources

TEXT = format_files.text(format_files.DOCUMENTS)


@pytest.mark.parametrize("how", COMPRESSIONS)
def test_a_truncated_or_damaged_file_is_an_error(tmp_path: Path, how: str) -> None:
    path = tmp_path / f"x.txt.{how}"
    whole = COMPRESSIONS[how](TEXT) if how != "zst" else checked(TEXT)
    for length in (1, 5, 20, len(whole) // 2, len(whole) - 9, len(whole) - 1):
        path.write_bytes(whole[:length])
        message = r"(ends early, so the file is truncated|is damaged \(.*\)), at .* shortly before"
        with pytest.raises(CorpusError, match=message):
            documents_of(path)
    for place in (len(whole) // 4, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        with pytest.raises(CorpusError, match=r"data (is damaged \(.*\)|ends early).*get the file"):
            assert documents_of(path) == ["nothing"]
    path.write_bytes(b"")
    with pytest.raises(CorpusError, match=rf"x\.txt\.{how}: \w+ data is empty, at byte 0 of 0"):
        documents_of(path)


def checked(data: bytes) -> bytes:
    """With a checksum, as the command `zstd` writes them."""
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


def test_what_may_be_around_members(tmp_path: Path) -> None:
    path = tmp_path / "x"
    skippable = b"\x50\x2a\x4d\x18\x04\0\0\0meta"
    for content in (
        zstd.compress(b"a ") + skippable + zstd.compress(b"b"),
        zstd.compress(b"") + zstd.compress(b"a b"),
        gzip.compress(b"") + gzip.compress(b"a b"),
        gzip.compress(b"a b") + bytes(512),  # padding of a tape
        COMPRESSIONS["xz"](b"a b") + bytes(4),
    ):
        path.write_bytes(content)
        assert documents_of(path) == ["a b"]
    for more in (b"more", b"more than that, 16 bytes and so on"):
        path.write_bytes(gzip.compress(b"a b") + more)
        with pytest.raises(CorpusError, match=r"gzip data ends at byte 23 of .*, and what follows"):
            documents_of(path)
    path = tmp_path / "x.gz"
    path.write_bytes(b"text that was decompressed already\n")
    with pytest.raises(CorpusError, match=r"is not gzip data, as its name says; rename it, or"):
        documents_of(path)


@pytest.mark.parametrize(("how", "line", "limit"), [
    ("gz", b"0" * 99 + b"\n", 16_000_000), ("zst", b"0" * 99 + b"\n", 16_000_000),
    # A document that is read whole is in memory once.
    ("gz", b"0" * 100, 60_000_000),
])  # fmt: skip
def test_a_bomb_takes_little_memory(tmp_path: Path, how: str, line: bytes, limit: int) -> None:
    path = tmp_path / f"x.txt.{how}"
    path.write_bytes(COMPRESSIONS[how](line * 300_000))
    reading = ReadOptions(separator=b"\n", unit_size=100_000)
    (source,) = find_sources([path], reading)
    tracemalloc.start()
    n_bytes = sum(unit.read().n_bytes for unit in source.units())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n_bytes == 300_000 * len(line.rstrip())
    assert most < limit


def test_a_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"x"))
    monkeypatch.setitem(sys.modules, "isal", None)
    monkeypatch.setitem(sys.modules, "isal.igzip_lib", None)
    message = r"gzip files are read with isal, which is not installed; install it: pip install 'tok"
    with pytest.raises(CorpusError, match=message):
        documents_of(tmp_path / "x.gz")
    with pytest.raises(CorpusError, match="Lance files are read with lance"):
        base.import_library("lance", "Lance")


def test_the_largest_window(tmp_path: Path) -> None:
    """As `zstd --long=31` compresses."""
    options = {zstd.CompressionParameter.window_log: 28}
    compressor = zstd.ZstdCompressor(options=options)
    data = compressor.compress(b"a b") + compressor.flush()
    (tmp_path / "x.txt.zst").write_bytes(data)
    assert documents_of(tmp_path / "x.txt.zst") == ["a b"]


@pytest.mark.parametrize(
    "reading", [{}, {"validation_fraction": 0.5}, {"on_invalid_utf8": "skip", "min_length": 1}]
)
def test_documents_longer_than_what_is_kept(tmp_path: Path, reading: dict[str, Any]) -> None:
    """They are decompressed again, to be read in parts after a decision about them."""
    documents = [f"{i} " + "word " * 1_400_000 for i in range(4)]
    path = tmp_path / "x.txt.zst"
    path.write_bytes(zstd.compress(format_files.text(documents)))
    assert documents_of(path, unit_size=1_000_000, **reading) == documents
