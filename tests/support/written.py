"""Token files for tests: written, finished and put in place."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from preprocess import TokenFile, open_tokens
from preprocess.dataset.columns import DOCUMENT_ENDS, IDS, MASK
from preprocess.dataset.writer import TokenFileWriter
from preprocess.storage import LocalStorage

FIELDS: dict[str, Any] = {
    "n_bytes": 12,
    "tokenizer_fingerprint": "ab" * 32,
    "pattern": "gpt2",
    "unicode_version": "16.0.0",
    "sources": [{"name": "train.txt", "bytes": 14, "digest": "00" * 16}],
}
END = 299
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
    directory: Path, ids: Any, ends: Any, *, vocab_size: int = 301, name: str = "train",
    mask: Any = None, fields: dict[str, Any] | None = None, **more: Any,
) -> TokenFile:
    """Write ids and ends of documents; `fields` are of the manifest, `more` is of the writer."""
    columns = {} if mask is None else {MASK.name: np.array(mask, np.uint8)}
    more["columns"] = (IDS, DOCUMENT_ENDS, MASK)[: 2 + len(columns)]
    with token_file(directory, name, vocab_size=vocab_size, **more) as writer:
        writer.append(np.array(ids, np.uint32), np.array(ends, np.int64), **columns)
        writer.finish(**{"end_of_text_id": END} | FIELDS | (fields or {}))
    return open_tokens(directory / f"{name}.bin")


def dataset(
    directory: Path, sizes: Sequence[int], *, seed: int | None = 0, vocab_size: int = 301,
    mask: bool = False, **more: Any,
) -> TokenFile:
    """Write documents of so many tokens, the last of which is `END`.

    The others are random; without a seed they are numbered, so windows that begin at different
    places differ.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    if seed is None:
        ids = np.arange(sum(sizes)) % END
    else:
        ids = np.random.default_rng(seed).integers(0, vocab_size - 2, sum(sizes))
        ids += ids >= END
    ids[ends - 1] = END
    more["mask"] = ids % 3 > 0 if mask else None
    return write(directory, ids, ends, vocab_size=vocab_size, **more)


def edit(manifest_path: Path, **changes: Any) -> None:
    data = json.loads(manifest_path.read_text())
    data.update(changes)
    manifest_path.write_text(json.dumps(data))
