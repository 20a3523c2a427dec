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
from functools import cache
from pathlib import Path

import xxhash
from msgspec import structs

from bpe.errors import CorpusError
from preprocess.documents.batch import ReadOptions
from preprocess.sources.text import TextSource
from preprocess.sources.text_file import HeldFile

_NAME = f"standard library of Python {platform.python_version()}"
_SEPARATOR = b"\0"  # which no source of Python has
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


class _Corpus(HeldFile):
    """The documents in memory, once per process."""

    def __init__(self) -> None:
        text = _SEPARATOR.join(filter(None, documents_of_standard_library()))
        super().__init__(_NAME, content=text)
        self.stamp = f"xxh3_128 {xxhash.xxh3_128_hexdigest(text)}"

    def __reduce__(self) -> tuple[Callable[[], _Corpus], tuple[()]]:
        return _corpus, ()  # another process has the same


@cache
def _corpus() -> _Corpus:
    return _Corpus()


class StandardLibrary(TextSource):
    """The default corpus as a source."""

    def __init__(self, reading: ReadOptions) -> None:
        corpus = _corpus()
        super().__init__(corpus, _NAME, structs.replace(reading, separator=_SEPARATOR))
        self.stamp, self.location = corpus.stamp, ""
