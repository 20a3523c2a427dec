"""Documents and tables for the tests of kernels."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest
from nasty import APOSTROPHES, SAMPLES, WHITE_SPACES
from numba import config

from bpe import reference
from bpe.encode.encoder import EncoderTables
from bpe.vocabulary import Vocabulary

LENGTHS_AROUND_A_BLOCK = [0, 1, 14, 15, 16, 17, 40, 41, 62, 63, 64, 65, 66, 67, 127, 128, 129]
if config.DISABLE_JIT:  # plain Python is slow
    LENGTHS_AROUND_A_BLOCK = [1, 15, 16, 41, 63, 64, 65, 128]

# Of each there is a way for blocks that are full of it: contractions, indents, pages of characters.
DENSE = [
    ["'s", "a's", "'re", "x"], ["'s"], [" ", "\n"], "0123456789",
    "абвгдежзийклмнопрстуфхцчшщъыьэюя", "АаБбВв ", "٠١٢٣٤٥٦٧٨٩", "かきくけこさしすせそ゛",
    "😀😁😂😃😄😅", "\u1680\u2000\u2001\u2002\u2003\u2028", "कखगािी\u0301ΆΈά",
]


def documents() -> list[str]:
    """Return documents of every kind, many of them near the length of a block."""
    random_source = random.Random(5)
    pieces = [*SAMPLES, *APOSTROPHES, *WHITE_SPACES, " ", "  ", "\n\n", "a", "1"]
    kinds = [("a", ""), (" ", "x"), ("x", "'s don't"), ("x", "\u3000\u00a0y"), ("1", "٣" * 5)]
    kinds.append(("x", "!\n/\n/'LL \u0301日ABc\r\n  \n \t42"))
    made = [letter * n + end for letter, end in kinds for n in LENGTHS_AROUND_A_BLOCK]
    n = 100 if config.DISABLE_JIT else 200
    made += ["".join(random_source.choices(dense, k=n)) for dense in DENSE]
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
def trained() -> list[reference.Pair]:
    return reference.train(documents(), 256 + 60)


def with_small_tables(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Tables of so many words of 8 bytes; those with a limit do not grow unless that is given."""
    for name, n in sizes.items():
        module = "encoder" if name.endswith("THREAD_CACHE") else "pretoken_cache"
        monkeypatch.setattr(f"bpe.encode.{module}._{name}", n)
        if name in ("ROWS", "LONG_ROWS"):
            most = sizes.get(f"MOST_{name}", n)
            monkeypatch.setattr(f"bpe.encode.pretoken_cache._MOST_{name}", most)
