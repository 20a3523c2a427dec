"""Choose the fields of records that have the text, and make text of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bpe.errors import CorpusError, listed
from preprocess.documents.batch import ReadOptions

# One of these is taken without --content-field if it is the only one.
USUAL_FIELDS = ("text", "content", "code")


def choose_field(path: Path | str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the only usual field of records with fields `names`; raise CorpusError if unclear."""
    names = list(names)
    usual = [field for field in USUAL_FIELDS if field in names]
    if len(usual) == 1:
        return tuple(usual)
    which = f"several have a usual name ({listed(usual)})" if usual else "none is named text"
    raise CorpusError(
        f"{path}: the field with the text is not known, for {which}: choose it with"
        f" --content-field; the first record has {listed(names)}"
    )


class Preset(NamedTuple):
    """Fields, and a function that makes a text of their values; "" for no document.

    A value is None if a record has null there, or has no such field.
    """

    fields: tuple[str, ...]
    join: Callable[[Iterable[str | None]], str]


def _join_title_text(values: Iterable[str | None]) -> str:
    stripped = (value.strip() for value in values if value is not None)
    return "\n".join(x for x in stripped if x not in ("", "[deleted]", "[removed]"))


PRESETS = {"title-text": Preset(("title", "text"), _join_title_text)}


def given_fields(reading: ReadOptions) -> tuple[str, ...]:
    """Return the fields that the options name; () if they name none."""
    return PRESETS[reading.text_preset].fields if reading.text_preset else reading.content_field


def join_documents(texts: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return (uint8[n_bytes], read-only, offsets int64[n_texts + 1]) of texts in UTF-8.

    Surrogates of `surrogateescape` become the bytes that they stand for.
    """
    encoded = [text.encode(errors="surrogateescape") for text in texts]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([*map(len, encoded)], out=offsets[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets
