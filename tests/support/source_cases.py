"""Text sources of given bytes, and the documents of their batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from preprocess.documents.batch import DocumentBatch, ReadOptions
from preprocess.sources.text import TextSource, TextUnit
from preprocess.sources.text_file import open_file


def source_of(path: Path, data: bytes, **choices: Any) -> TextSource:
    path.write_bytes(data)
    return TextSource(open_file(path), path.name, ReadOptions(**choices))


def units_of(path: Path, data: bytes, **choices: Any) -> list[TextUnit]:
    return list(source_of(path, data, **choices).units())


def parts_of(batch: DocumentBatch) -> list[bytes]:
    """Each document of a batch, or as much of it as the batch has."""
    return [batch.buffer[a:b].tobytes() for a, b in batch.bounds.reshape(-1, 2)]
