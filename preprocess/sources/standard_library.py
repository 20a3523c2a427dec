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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import xxhash

from bpe.errors import CorpusError
from preprocess.documents.batch import Bytes, DocumentBatch, ReadOptions, prepare
from preprocess.sources.base import Array, ResumePoint, Source, WorkUnit
from preprocess.sources.text_file import new_array

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


class _Corpus:
    """The documents in memory, once per process, as an `InputFile`.

    Attributes:
        offsets: int64[n_documents + 1], of the documents in the text.
    """

    path, modified = _NAME, 0

    def __init__(self) -> None:
        documents = list(documents_of_standard_library())
        self.offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        self.text = np.frombuffer(b"".join(documents), np.uint8)
        self.n_bytes = len(self.text)

    def __reduce__(self) -> tuple[Callable[[], _Corpus], tuple[()]]:
        return _corpus, ()  # another process has the same

    def clip(self, position: int) -> int:
        return min(position, self.n_bytes)

    def read(self, start: int, stop: int, array: Array = new_array) -> Bytes:
        return self.text[start:stop]

    def check_unchanged(self) -> None:
        pass  # it is in memory


@cache
def _corpus() -> _Corpus:
    return _Corpus()


@dataclass(frozen=True)
class StandardLibraryUnit(WorkUnit):
    """Documents [first, last) of the default corpus."""

    first: int
    last: int

    @property
    def where(self) -> str:
        return f"{_NAME}, documents {self.first:,} to {self.last:,}"

    @property
    def after(self) -> ResumePoint | None:
        return None if self.stop == self.file.n_bytes else [self.stop, self.last]

    def read(self, array: Array = new_array) -> DocumentBatch:
        offsets = _corpus().offsets[self.first : self.last + 1]
        bounds = np.repeat(offsets - offsets[0], 2)[1:-1]
        content = self.content()
        return prepare(DocumentBatch(content, bounds, content=content), self.reading, self.byte)


class StandardLibrary(Source):
    """The default corpus as a source."""

    has_fields = False

    def __init__(self, reading: ReadOptions) -> None:
        corpus = _corpus()
        super().__init__(corpus, _NAME, reading)
        self.stamp = f"xxh3_128 {xxhash.xxh3_128_hexdigest(corpus.text.data)}"
        self.location = ""

    def units(self, after: ResumePoint | None = None) -> Iterator[StandardLibraryUnit]:
        offsets, first = _corpus().offsets, after[1] if after else 0
        while first < len(offsets) - 1:
            limit = offsets[first] + self.reading.unit_size
            last = max(int(np.searchsorted(offsets, limit, side="right")) - 1, first + 1)
            bounds = int(offsets[first]), int(offsets[last])
            yield StandardLibraryUnit(self.file, self.reading_of_units, *bounds, first, last)
            first = last
