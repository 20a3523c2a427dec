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


def write(path: Path, documents: list[str]) -> None:
    """Write documents in the format of a suffix of `SUFFIXES`."""
    _, kind, *how = path.name.split(".")
    content = CONTENTS[kind](documents)
    path.write_bytes(COMPRESSIONS[how[0]](content) if how else content)
