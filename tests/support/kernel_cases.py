"""Documents and tables for the tests of kernels."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
from nasty import APOSTROPHES, SAMPLES, WHITE_SPACES

from bpe import reference
from bpe.encode.encoder import EncoderTables
from bpe.vocabulary import Vocabulary

LENGTHS_AROUND_A_BLOCK = [0, 1, 14, 15, 16, 17, 40, 41, 62, 63, 64, 65, 66, 67, 127, 128, 129]


# Of each there is a way for blocks that are full of it: contractions, indents, pages of characters.
DENSE = [
    ["'s", "a's", "'re", "x"],
    ["'s"],
    [" ", "\n"],
    "0123456789",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя",
    "АаБбВв ",
    "٠١٢٣٤٥٦٧٨٩",
    "かきくけこさしすせそ゛",
    "😀😁😂😃😄😅",
    "\u1680\u2000\u2001\u2002\u2003\u2028",
    "कखगािी\u0301ΆΈά",
]


def documents() -> list[str]:
    """Return documents of every kind, many of them near the length of a block."""
    random_source = random.Random(5)
    pieces = [*SAMPLES, *APOSTROPHES, *WHITE_SPACES, " ", "  ", "\n\n", "a", "1"]
    made = ["a" * length for length in LENGTHS_AROUND_A_BLOCK]
    made += [" " * length + "x" for length in LENGTHS_AROUND_A_BLOCK]
    made += ["x" * length + "'s don't" for length in LENGTHS_AROUND_A_BLOCK]
    made += ["x" * length + "\u3000\u00a0y" for length in LENGTHS_AROUND_A_BLOCK]
    made += [
        "x" * length + "!\n/\n/'LL \u0301日ABc\r\n  \n \t42" for length in LENGTHS_AROUND_A_BLOCK
    ]
    made += ["1" * length + "٣" * 5 for length in LENGTHS_AROUND_A_BLOCK]
    made += ["".join(random_source.choices(dense, k=200)) for dense in DENSE]
    made += ["".join(random_source.choices(pieces, k=k)) for k in (3, 10, 10, 20, 20, 40, 80)]
    return made


def as_batch(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), offsets


def as_spans(texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    buffer, offsets = as_batch(texts)
    return buffer, np.stack([offsets[:-1], offsets[1:]], axis=1)


def filled_tables(vocabulary: Vocabulary, pattern: str) -> EncoderTables:
    tables = EncoderTables(vocabulary, pattern)
    tables.fill_tokens()
    return tables


@cache
def _trained() -> tuple[reference.Pair, ...]:
    return tuple(reference.train(documents(), 256 + 60))


def trained() -> list[reference.Pair]:
    return list(_trained())


def with_small_tables(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Tables of so many words of 8 bytes; those with a limit do not grow unless that is given."""
    for name, n in sizes.items():
        module = "encoder" if name.endswith("THREAD_CACHE") else "pretoken_cache"
        monkeypatch.setattr(f"bpe.encode.{module}._{name}", n)
        if name in ("ROWS", "LONG_ROWS"):
            most = sizes.get(f"MOST_{name}", n)
            monkeypatch.setattr(f"bpe.encode.pretoken_cache._MOST_{name}", most)
