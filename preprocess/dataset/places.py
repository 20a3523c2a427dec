"""Where documents are from: the source of a document, and its number there."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Any

from preprocess.dataset.reader import TokenFile


def sources_in_order(file: TokenFile) -> tuple[list[str], list[int]] | None:
    """Return names of sources, and the document after the last of each; None if unknown.

    They are known if the documents are in the order of the sources, as those of a shuffled or
    imported dataset are not.
    """
    counts: list[Any] = [source.get("documents") for source in file.manifest.sources]
    if None in counts or sum(counts) != file.n_documents:
        return None
    return [str(source.get("name")) for source in file.manifest.sources], [*accumulate(counts)]


def source_of(file: TokenFile, number: int) -> dict[str, Any] | None:
    """Return the source of a document, and its number there; None if it is not known."""
    if (found := sources_in_order(file)) is None:
        return None
    names, stops = found
    place = bisect_right(stops, number)
    return {"name": names[place], "document": number - (stops[place - 1] if place else 0)}


def shown_source(source: dict[str, Any] | None) -> str:
    """Format what `source_of` returns, to follow the number of a document; "" for None."""
    return "" if source is None else f", document {source['document']:,} of {source['name']}"
