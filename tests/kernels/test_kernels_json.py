"""The kernel that decodes strings of JSON: texts are those of `json.loads`."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpe.json_strings import decode_strings


def decoded(strings: list[bytes], n_joined: int = 1) -> list[str]:
    """The texts of JSON strings, in memory that held something else."""

    def memory(n: int) -> np.ndarray:
        return np.full(n, 0xAB, np.uint8)

    text, offsets = decode_strings(strings, n_joined, memory)
    return [text[start:stop].tobytes().decode() for start, stop in pairwise(offsets)]


characters = st.characters(exclude_categories=["Cs"])


@given(st.lists(st.text(characters, max_size=200), max_size=8), st.booleans(), st.integers(1, 3))
def test_strings_are_those_of_json(texts: list[str], ascii: bool, n_joined: int) -> None:
    texts = texts[: len(texts) // n_joined * n_joined]
    strings = [json.dumps(text, ensure_ascii=ascii).encode() for text in texts]
    groups = [texts[i : i + n_joined] for i in range(0, len(texts), n_joined)]
    assert decoded(strings, n_joined) == ["\n".join(group) for group in groups]


def test_every_escape_at_every_place_of_a_block() -> None:
    escapes = ["\\n", "\\r", "\\t", "\\b", "\\f", "\\/", '\\"', "\\\\", "\\u0000", "\\u00e9"]
    escapes += ["\\u007F", "\\u0080", "\\u07ff", "\\u0800", "\\uFfFf", "\\ud83d\\ude00"]
    for escape in escapes:
        for length in range(130):
            string = f'"{"x" * length}{escape}é{escape}"'
            assert decoded([string.encode()]) == [json.loads(string)]


def test_every_code_point_as_an_escape() -> None:
    chosen = random.Random(3)
    code_points = [*range(0x300), *chosen.sample(range(0x300, 0xD800), 800)]
    code_points += [*chosen.sample(range(0xE000, 0x110000), 800), 0xFFFF, 0x10000, 0x10FFFF]
    text = "".join(map(chr, code_points))
    assert decoded([json.dumps(text).encode()]) == [text]


@pytest.mark.parametrize("value", [b"1", b"null", b"[]", b"{}", b"true"])
def test_a_value_that_is_no_string_is_told(value: bytes) -> None:
    assert decoded([b'"a"', b'"b"', value, b'"c"']) == ["a", "b"]
