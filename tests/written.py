"""Token files for tests: written, finished and put in place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from preprocess.dataset.writer import TokenFileWriter
from preprocess.storage import LocalStorage


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
