"""The same documents in files of every format, written by other libraries than ours."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

END = "<|endoftext|>"
DOCUMENTS = [
    f'document {i} "quoted" \\ back, naïve 日本語 🙂\t{"word " * (i % 40)}\n{i * i}'
    for i in range(300)
]


def records(documents: list[str]) -> list[dict[str, Any]]:
    return [{"id": i, "text": text, "meta": {"n": [i]}} for i, text in enumerate(documents)]


def text(documents: list[str]) -> bytes:
    return END.join(documents).encode()


def json_lines(documents: list[str]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records(documents)).encode()


def json_array(documents: list[str]) -> bytes:
    return json.dumps(records(documents), ensure_ascii=False, indent=1).encode()


def in_two(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Compress as two members, or frames, of which the first ends inside a document."""
    return lambda data: compress(data[: len(data) // 3]) + compress(data[len(data) // 3 :])


CONTENTS = {"txt": text, "jsonl": json_lines, "json": json_array}
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gz": in_two(gzip.compress),
    "zst": in_two(zstd.compress),
    "xz": in_two(lzma.compress),
    "bz2": in_two(bz2.compress),
}
SUFFIXES = [*CONTENTS, *(f"{name}.{how}" for name in CONTENTS for how in COMPRESSIONS)]


def table_of(documents: list[str]) -> Any:
    """The records as a table of Arrow."""
    import pyarrow as pa

    meta = pa.struct({"n": pa.list_(pa.int64())})
    schema = pa.schema({"id": pa.int64(), "text": pa.string(), "meta": meta})
    return pa.Table.from_pylist(records(documents), schema=schema)


def write_table(path: Path, table: Any) -> None:
    """Write a table, with few rows in each part, in the format of a suffix of `ARROW`."""
    import pyarrow as pa
    from pyarrow import feather, parquet

    kind = path.name.partition(".")[2]
    if kind == "parquet":
        parquet.write_table(table, path, row_group_size=40, data_page_size=2000)
    elif kind == "feather":
        feather.write_feather(table, str(path), compression="zstd", chunksize=30)
    else:  # a stream is what `datasets` of Hugging Face writes to its cache
        new = pa.ipc.new_stream if kind == "stream.arrow" else pa.ipc.new_file
        with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=30)


ARROW = ["parquet", "arrow", "stream.arrow", "feather"]


def write(path: Path, documents: list[str]) -> None:
    """Write documents in the format of a suffix of `SUFFIXES` or `ARROW`."""
    if path.name.partition(".")[2] in ARROW:
        pytest.importorskip("pyarrow", reason="needs the extra `formats`")
        return write_table(path, table_of(documents))
    _, kind, *how = path.name.split(".")
    content = CONTENTS[kind](documents)
    path.write_bytes(COMPRESSIONS[how[0]](content) if how else content)
    return None
