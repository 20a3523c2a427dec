"""Where documents are from: the source of a document, and its number there."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from preprocess.dataset.columns import RECORD, SOURCE
from preprocess.dataset.reader import TokenFile, damaged

Numbers = NDArray[np.int64]
InOrder = tuple[list[str], list[int]]

_in_order: WeakKeyDictionary[TokenFile, InOrder | None] = WeakKeyDictionary()


def sources_of(file: TokenFile, documents: Numbers) -> tuple[list[str], Numbers] | None:
    """Return names of sources, and the index of that of each document; None if unknown.

    Raises:
        TokenFileError: There is no source of such an index, which only damage explains.
    """
    if SOURCE in file.manifest.columns:
        names = [str(source.get("name")) for source in file.manifest.sources]
        return names, _read_sources(file, documents)
    if (found := sources_in_order(file)) is None:
        return None
    return found[0], np.searchsorted(np.array(found[1]), documents, "right")


def _read_sources(file: TokenFile, documents: Numbers) -> Numbers:
    found = np.asarray(file.column(SOURCE.name)[documents]).astype(np.int64)
    n = len(file.manifest.sources)
    if len(wrong := np.flatnonzero(found >= n)):
        number, index = int(documents[wrong[0]]), int(found[wrong[0]])
        raise damaged(
            file,
            f"document {number:,} should be of a source from 0 to {n - 1:,} and is of {index:,}",
        )
    return found


def sources_in_order(file: TokenFile) -> InOrder | None:
    """Return names of sources, and the document after the last of each; None if unknown.

    They are known if the documents are in the order of the sources, as those of a shuffled or
    imported dataset are not.
    """
    if file not in _in_order:
        _in_order[file] = _read_in_order(file)
    return _in_order[file]


def _read_in_order(file: TokenFile) -> InOrder | None:
    counts: list[Any] = [source.get("documents") for source in file.manifest.sources]
    if None in counts or sum(counts) != file.n_documents:
        return None
    return [str(source.get("name")) for source in file.manifest.sources], [*accumulate(counts)]


def source_of(file: TokenFile, number: int) -> dict[str, Any] | None:
    """Return the source of a document, and its number there; None if it is not known.

    `document` is its number among those of the dataset that are of the source, `record` that of
    its record in the source; without either if it is not known.
    """
    source: dict[str, Any] = {}
    if (found := sources_in_order(file)) is not None:
        names, stops = found
        place = bisect_right(stops, number)
        first = stops[place - 1] if place else 0
        source = {"name": names[place], "document": number - first}
    if SOURCE in file.manifest.columns:
        index = int(_read_sources(file, np.array([number]))[0])
        source["name"] = str(file.manifest.sources[index].get("name"))
        source["record"] = int(file.column(RECORD.name)[number])
    return source or None


def shown_source(source: dict[str, Any] | None) -> str:
    """Format what `source_of` returns, to follow the number of a document; "" for None."""
    if source is None:
        return ""
    numbers = [f", {x} {source[x]:,}" for x in ("document", "record") if x in source]
    return f"{''.join(numbers)} of {source['name']}"
