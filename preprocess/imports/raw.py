"""A file of ids without a header, as nanoGPT's: a document ends after each end-of-text id."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from preprocess.dataset.columns import Values
from preprocess.imports.ids_file import IdsFile
from preprocess.settings import SettingsError
from preprocess.sources.text_file import TextFile


class RawIds:
    """A file of ids; as `Ids`, and as its documents."""

    def __init__(self, ids: IdsFile) -> None:
        self.ids, self.documents, self.beside = ids, self, tuple[TextFile, ...]()

    def ends(self, first: int, start: int, stop: int, is_end: NDArray[np.bool_]) -> Values:
        """Return the ends of documents, as `Documents.ends`; the last ends at the end of file."""
        found = start + 1 + np.flatnonzero(is_end)
        is_open = stop == self.ids.n_tokens and not is_end[-1]
        return np.append(found, stop) if is_open else found


def open_ids(path: Path, dtype: str | None) -> RawIds:
    """Open a file of ids."""
    if dtype is None:
        raise SettingsError(
            "dtype is required for raw ids, which do not say it; nanoGPT's files are uint16"
        )
    return RawIds(IdsFile(path, np.dtype(dtype).newbyteorder("<")))
