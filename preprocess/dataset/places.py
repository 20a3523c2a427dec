"""Where documents are from: the source of a document, and its number there."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from preprocess.dataset.columns import RECORD, SOURCE
from preprocess.dataset.reader import TokenFile, damaged

Numbers = NDArray[np.int64]


class Sources:
    """Sources of the documents of a dataset.

    Attributes:
        names: Of all sources; empty if those of documents are not known.
        in_order: True if documents are in the order of the sources, as those of a shuffled or
            imported dataset are not.
    """

    def __init__(self, file: TokenFile) -> None:
        self._file, self._has_column = file, SOURCE in file.manifest.columns
        counts: list[Any] = [source.get("documents") for source in file.manifest.sources]
        self.in_order = None not in counts and sum(counts) == file.n_documents
        self._stops = np.cumsum(counts if self.in_order else [0])
        self.names = list[str]()
        if self.in_order or self._has_column:
            self.names = [str(source.get("name")) for source in file.manifest.sources]

    def of(self, documents: Numbers) -> Numbers:
        """Return the index of the source of each document, where they are known.

        Raises:
            TokenFileError: There is no source of such an index, which only damage explains.
        """
        if not self._has_column:
            return np.searchsorted(self._stops, documents, "right")
        found = np.asarray(self._file.column(SOURCE.name)[documents]).astype(np.int64)
        n = len(self.names)
        if len(wrong := np.flatnonzero(found >= n)):
            number, index = int(documents[wrong[0]]), int(found[wrong[0]])
            raise damaged(
                self._file, f"document {number:,} should be of a source from 0 to {n - 1:,} and is"
                f" of {index:,}",
            )  # fmt: skip
        return found

    def describe(self, documents: Numbers) -> list[dict[str, Any] | None]:
        """Return the source of each document for JSON, None if it is not known.

        `document` is its number among those of the dataset that are of the source, `record` that of
        its record in the source; without either if it is not known.
        """
        if not self.names:
            return [None] * len(documents)
        found = [{"name": self.names[i]} for i in self.of(documents).tolist()]
        columns = dict[str, Any]()
        if self.in_order:
            place = np.searchsorted(self._stops, documents, "right")
            columns["document"] = documents - np.append(0, self._stops)[place]
        if self._has_column:
            columns["record"] = self._file.column(RECORD.name)[documents]
        for name, values in columns.items():
            for each, value in zip(found, values.tolist(), strict=True):
                each[name] = value
        return [*found]


def shown_source(source: dict[str, Any] | None) -> str:
    """Format what `Sources.describe` returns, to follow the number of a document; "" for None."""
    if source is None:
        return ""
    numbers = [f", {x} {source[x]:,}" for x in ("document", "record") if x in source]
    return f"{''.join(numbers)} of {source['name']}"
