"""Datasets to export, and plain readers of every format, for tests."""

from __future__ import annotations

import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from preprocess import TokenFile

FORMATS = ("megatron", "llmc", "datatrove", "mds", "litdata", "npy")
WITH_SHARDS = ("llmc", "mds", "litdata")


class Content(NamedTuple):
    """What an export has; None: the format has no place for it."""

    ids: list[int]
    documents: list[list[int]] | None
    mask: list[int] | None


def content_of(file: TokenFile) -> Content:
    mask = [*map(int, np.asarray(file.loss_mask))] if file.has_mask else None
    documents = [file.doc(i).tolist() for i in range(file.n_documents)]
    return Content(np.asarray(file.tokens).tolist(), documents, mask)


def read(to: str, out: Path, name: str = "train", wide: bool = False) -> Content:
    """Read an export; `wide`: ids have four bytes."""
    return READERS[to](out, name, np.dtype("<u4") if wide else np.dtype("<u2"))


def _cut(ids: np.ndarray, ends: Any) -> list[list[int]]:
    return [ids[start:stop].tolist() for start, stop in pairwise([0, *map(int, ends)])]


def _megatron(out: Path, name: str, dtype: np.dtype[Any]) -> Content:
    index = (out / f"{name}.idx").read_bytes()
    magic, version, code, n, n_bounds = struct.unpack("<9sQBQQ", index[:34])
    assert (magic, version) == (b"MMIDIDX\x00\x00", 1)
    own = {4: np.dtype("<i4"), 8: np.dtype("<u2")}[code]
    assert own.itemsize == dtype.itemsize
    lengths = np.frombuffer(index, "<i4", n, 34)
    pointers = np.frombuffer(index, "<i8", n, 34 + 4 * n)
    bounds = np.frombuffer(index, "<i8", n_bounds, 34 + 12 * n)
    assert len(index) == 34 + 12 * n + 8 * n_bounds
    assert bounds.tolist() == list(range(n + 1))
    content = (out / f"{name}.bin").read_bytes()
    documents = [
        np.frombuffer(content, own, length, place).tolist()
        for length, place in zip(lengths.tolist(), pointers.tolist(), strict=True)
    ]
    return Content(np.frombuffer(content, own).tolist(), documents, None)


def _llmc(out: Path, name: str, dtype: np.dtype[Any]) -> Content:
    ids: list[int] = []
    for number, path in enumerate(sorted(out.glob(f"{name}_*.bin"))):
        assert path.name == f"{name}_{number:06d}.bin"
        content = path.read_bytes()
        header = np.frombuffer(content, "<i4", 256)
        assert tuple(header[:2]) == ((20240520, 1) if dtype.itemsize == 2 else (20240801, 7))
        part = np.frombuffer(content, dtype, offset=1024)
        assert header[2] == len(part)
        assert not header[3:].any()
        ids += part.tolist()
    return Content(ids, None, None)


def _datatrove(out: Path, name: str, dtype: np.dtype[Any]) -> Content:
    ids = np.fromfile(out / f"{name}.ds", dtype)
    ends = np.fromfile(out / f"{name}.ds.index", "<u8")
    first, second, _ = (out / f"{name}.ds.metadata").read_text().split("\n")
    assert first == f"{'ab' * 32}|{dtype.itemsize}"
    assert second == str(len(ids))
    path = out / f"{name}.ds.loss"
    mask = np.fromfile(path, "?").astype(int).tolist() if path.exists() else None
    return Content(ids.tolist(), _cut(ids, ends), mask)


def _mds(out: Path, name: str, dtype: np.dtype[Any]) -> Content:
    index = json.loads((out / name / "index.json").read_text())
    assert index["version"] == 2
    columns: dict[str, list[list[int]]] = {}
    for number, shard in enumerate(index["shards"]):
        assert (shard["version"], shard["format"]) == (2, "mds")
        assert shard["raw_data"]["basename"] == f"shard.{number:05d}.mds"
        assert shard["column_names"] == sorted(shard["column_names"])
        content = (out / name / shard["raw_data"]["basename"]).read_bytes()
        assert len(content) == shard["raw_data"]["bytes"]
        (n,) = struct.unpack_from("<I", content)
        assert n == shard["samples"]
        offsets = np.frombuffer(content, "<u4", n + 1, 4).tolist()
        about = json.loads(content[8 + 4 * n : offsets[0]])
        assert about == {key: shard[key] for key in about}
        assert offsets[-1] == len(content)
        for start, stop in pairwise(offsets):
            sample = content[start:stop]
            sizes = struct.unpack_from(f"<{len(shard['column_names'])}I", sample)
            at = 4 * len(sizes)
            for column, encoding, size in zip(
                shard["column_names"], shard["column_encodings"], sizes, strict=True
            ):
                columns.setdefault(column, []).append(_array(sample[at : at + size], encoding))
                at += size
            assert at == len(sample)
    documents = columns["tokens"]
    mask = [each for part in columns["mask"] for each in part] if "mask" in columns else None
    return Content([each for part in documents for each in part], documents, mask)


def _array(content: bytes, encoding: str) -> list[int]:
    kind, dtype = encoding.split(":")
    assert kind == "ndarray"
    assert content[0] >> 2 == 1
    n = 1 << (content[0] & 3)
    found = np.frombuffer(content, dtype, offset=1 + n)
    assert int.from_bytes(content[1 : 1 + n], "little") == len(found)
    return found.tolist()


def _litdata(out: Path, name: str, dtype: np.dtype[Any]) -> Content:
    index = json.loads((out / name / "index.json").read_text())
    own = {"no_header_tensor:20": "<u2", "no_header_tensor:16": "<i4"}
    (data_format,) = index["config"]["data_format"]
    ids: list[int] = []
    for number, chunk in enumerate(index["chunks"]):
        assert chunk["filename"] == f"chunk-0-{number}.bin"
        content = (out / name / chunk["filename"]).read_bytes()
        head = np.frombuffer(content, "<u4", 3).tolist()
        assert head == [chunk["chunk_size"], 12, len(content)]
        assert chunk["chunk_bytes"] == len(content)
        part = np.frombuffer(content, own[data_format], offset=12)
        assert chunk["dim"] == len(part)
        ids += part.tolist()
    return Content(ids, None, None)


def _npy(out: Path, name: str, dtype: np.dtype[Any]) -> Content:
    ids = np.load(out / f"{name}.npy", mmap_mode="r")
    assert ids.dtype == dtype
    ends = np.load(out / f"{name}_document_ends.npy")
    assert ends.dtype == np.uint64
    path = out / f"{name}_loss_mask.npy"
    return Content(ids.tolist(), _cut(ids, ends), np.load(path).tolist() if path.exists() else None)


READERS = {
    "megatron": _megatron, "llmc": _llmc, "datatrove": _datatrove, "mds": _mds,
    "litdata": _litdata, "npy": _npy,
}  # fmt: skip
