"""The kernel that decodes strings of JSON: texts are those of `json.loads`."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config

from preprocess.sources.json_strings import ElementFinder, decode_strings, is_nested_deeper


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


leaves = st.text(st.sampled_from('"\\[]{},a'), max_size=150) | st.integers()
json_values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(leaves, inner))


def depth_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, list | dict) + max(map(depth_of, inner), default=0)


@settings(max_examples=10 if config.DISABLE_JIT else 40)
@given(st.lists(json_values, min_size=2), st.integers(0, 2**63))
def test_elements_and_their_depth(values: list[object], seed: int) -> None:
    elements = [json.dumps(value).encode() for value in values]
    text = np.frombuffer(b",".join(elements) + b"]", np.uint8)
    finder, parts = ElementFinder(), []
    # In parts, which are cut anywhere.
    cuts = sorted(random.Random(seed).choices(range(len(text)), k=3))
    for start, stop in pairwise([0, *cuts, len(text)]):
        while (end := finder.find_end(text[start:stop])) >= 0:
            parts.append(start + end)
            start, finder = start + end + 1, ElementFinder()
    assert parts == (np.cumsum([len(each) + 1 for each in elements]) - 1).tolist()
    depth = max(map(depth_of, values))
    for data in (text[:-1].tobytes(), text[:-1]):
        assert not is_nested_deeper(data, depth)
        assert is_nested_deeper(data, depth - 1)
