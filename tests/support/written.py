"""Token files for tests: written, finished and put in place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from preprocess import TokenFile, open_tokens
from preprocess.dataset.writer import TokenFileWriter
from preprocess.storage import LocalStorage

FIELDS: dict[str, Any] = {
    "n_bytes": 12,
    "tokenizer_fingerprint": "ab" * 32,
    "pattern": "gpt2",
    "unicode_version": "16.0.0",
    "sources": [{"name": "train.txt", "bytes": 14, "digest": "00" * 16}],
}
GOLDEN_IDS = [5, 300, 0, 299, 299, 7, 299]
GOLDEN_ENDS = [4, 5, 7]


@contextmanager
def token_file(
    directory: Path, name: str, *, vocab_size: int, **more: Any
) -> Iterator[TokenFileWriter]:
    """A writer; what was finished inside the `with` has its final names behind it."""
    with LocalStorage(directory, name) as storage:
        writer = TokenFileWriter(storage, name, vocab_size=vocab_size, **more)
        try:
            yield writer
            data = [each for each in storage.names() if each != f"{name}.json"]
            storage.publish(data, [f"{name}.json"])
        finally:
            writer.close()
            storage.clear()


def write(
    directory: Path,
    ids: Any,
    ends: Any,
    *,
    vocab_size: int = 301,
    name: str = "train",
    end_of_text_id: int = 299,
) -> TokenFile:
    with token_file(directory, name, vocab_size=vocab_size) as writer:
        writer.append(np.array(ids, np.uint32), np.array(ends, np.int64))
        writer.finish(end_of_text_id=end_of_text_id, **FIELDS)
    return open_tokens(directory / f"{name}.bin")


def edit(manifest_path: Path, **changes: Any) -> None:
    data = json.loads(manifest_path.read_text())
    data.update(changes)
    manifest_path.write_text(json.dumps(data))
