"""The default corpus: text that ships with Python, a few megabytes of English and Python.

The same Python gives the same bytes. Documents are the topics of `help()`, sorted by name, and the
sources of the standard library, sorted by path, without tests and installed packages. Sources in
other encodings are decoded as Python decodes them.
"""

from __future__ import annotations

import os
import platform
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import xxhash
from msgspec import structs

from bpe.errors import CorpusError
from bpe.text_file import new_array
from preprocess.documents.batch import Bytes, DocumentBatch, Offsets, ReadOptions, prepare
from preprocess.documents.kept import Kept
from preprocess.sources.base import Array, ResumePoint

_NAME = f"standard library of Python {platform.python_version()}"
# Directories of tests, of installed packages, and of the topics of `help()`.
_LEFT_OUT = {"test", "tests", "idle_test", "pydoc_data", "__pycache__"}
_LEFT_OUT |= {"site-packages", "dist-packages"}


def documents_of_standard_library() -> Iterator[bytes]:
    """Yield the documents, in order, as UTF-8; raise CorpusError if Python has no sources."""
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield topics[name].encode()
    root = Path(sysconfig.get_path("stdlib"))
    paths = []
    for directory, directories, files in os.walk(root):
        # Prune, for there may be a hundred thousand installed files.
        directories[:] = [name for name in directories if name not in _LEFT_OUT]
        paths += [Path(directory, name) for name in files if name.endswith(".py")]
    if not paths:
        raise CorpusError(
            f"{root}: this Python ships without the sources of its standard library, which are the"
            " default corpus; give text of your own (--train)"
        )
    for path in sorted(paths):
        with tokenize.open(path) as file:
            yield file.read().encode()


@cache
def _corpus() -> tuple[Bytes, Offsets]:
    """Read the documents once: (uint8[n_bytes], offsets int64[n_documents + 1])."""
    documents = list(documents_of_standard_library())
    offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
    return np.frombuffer(b"".join(documents), np.uint8), offsets


@dataclass(frozen=True)
class StandardLibraryUnit:
    """Documents [first, last) of the default corpus."""

    reading: ReadOptions
    first: int
    last: int

    @property
    def start(self) -> int:
        return int(_corpus()[1][self.first])

    @property
    def n_bytes(self) -> int:
        return len(self.content())

    @property
    def where(self) -> str:
        return f"{_NAME}, documents {self.first:,} to {self.last:,}"

    @property
    def after(self) -> ResumePoint | None:
        return None if self.last == len(_corpus()[1]) - 1 else [self.last]

    @property
    def is_rendered(self) -> bool:
        return False

    def content(self, array: Array = new_array) -> Bytes:
        buffer, offsets = _corpus()
        return buffer[offsets[self.first] : offsets[self.last]]

    def check_unchanged(self) -> None:
        pass  # the corpus is in memory

    def read(self, array: Array = new_array) -> DocumentBatch:
        offsets = _corpus()[1][self.first : self.last + 1]
        bounds = np.repeat(offsets - offsets[0], 2)[1:-1]
        content = self.content()
        # `str`: no message needs a position, for all documents are UTF-8.
        return prepare(DocumentBatch(content, bounds, content=content), self.reading, str)


class StandardLibrary:
    """The default corpus as a source; it is small, and in memory once per process."""

    separator, location, is_compressed, has_fields = b"", "", False, False
    has_spans = False
    kept: Kept | None = None

    def __init__(self, reading: ReadOptions) -> None:
        buffer, _ = _corpus()
        self.name = _NAME
        self.reading = reading
        self.n_bytes = len(buffer)
        self.stamp = f"xxh3_128 {xxhash.xxh3_128_hexdigest(buffer.data)}"

    def estimate_text(self) -> int:
        return self.n_bytes

    def content(self, before: ResumePoint | None = None) -> Iterator[tuple[int, Bytes]]:
        buffer, offsets = _corpus()
        yield 0, buffer[: offsets[before[0] if before else -1]]

    def units(self, after: ResumePoint | None = None) -> Iterator[StandardLibraryUnit]:
        _, offsets = _corpus()
        reading = structs.replace(self.reading, safe_cut=None, atomic=())
        first, n_documents = after[0] if after else 0, len(offsets) - 1
        while first < n_documents:
            fits = np.searchsorted(offsets, offsets[first] + reading.unit_size, side="right") - 1
            last = max(int(fits), first + 1)
            yield StandardLibraryUnit(reading, first, last)
            first = last
