"""Sources, their units, and the documents of their batches."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from preprocess.documents.batch import DocumentBatch, ReadOptions
from preprocess.sources import find_sources
from preprocess.sources.text import TextSource, TextUnit
from preprocess.sources.text_file import open_file


def source_of(path: Path, data: bytes, **choices: Any) -> TextSource:
    path.write_bytes(data)
    return TextSource(open_file(path), path.name, ReadOptions(**choices))


def units_of(path: Path, data: bytes, **choices: Any) -> list[TextUnit]:
    return list(source_of(path, data, **choices).units())


def names(paths: Any, **options: Any) -> list[str]:
    """The names of the sources in paths."""
    return [source.name for source in find_sources(paths, ReadOptions(**options))]


def parts_of(batch: DocumentBatch) -> list[bytes]:
    """Each document of a batch, or as much of it as the batch has."""
    return [batch.buffer[a:b].tobytes() for a, b in batch.bounds.reshape(-1, 2)]


def documents_of(*paths: Path, **options: Any) -> list[str]:
    """The documents in files, from units and batches that have been pickled."""
    found: list[str] = []
    for source in find_sources(paths, ReadOptions(**options)):
        for unit in source.units():
            batch = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(unit)).read()))
            assert batch.content is None  # another process sends no text but that of documents
            parts = [part.decode() for part in parts_of(batch)]
            if parts and batch.starts_mid_document:
                found[-1] += parts.pop(0)
            found += parts
    return found


def check_units(path: Path, unit_size: int, step: int = 1) -> int:
    """Check that units make up a file, and that it is resumed after each `step`-th of them."""
    (source,) = find_sources([path], ReadOptions(unit_size=unit_size))
    units, whole = list(source.units()), path.read_bytes()
    assert b"".join(unit.content().tobytes() for unit in units) == whole
    assert b"".join(piece.tobytes() for _, piece in source.content()) == whole
    assert sum(unit.n_bytes for unit in units) == len(whole)
    for number in range(0, len(units) - 1, step):
        after = units[number].after
        assert after is not None
        rest = list(source.units(after))
        assert [unit.after for unit in rest] == [unit.after for unit in units[number + 1 :]]
        assert rest[0].read().buffer.tobytes() == units[number + 1].read().buffer.tobytes()
        before = b"".join(unit.content().tobytes() for unit in units[: number + 1])
        assert b"".join(piece.tobytes() for _, piece in source.content(after)) == before
    return len(units)
