"""The kernel that finds elements of an array of JSON, and how deep they are nested."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config

from preprocess.sources.json_kernels import find_end, is_nested_deeper, new_state

leaves = st.text(st.sampled_from('"\\[]{},a'), max_size=150) | st.integers()
json_values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(leaves, inner))


def depth_of(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, list | dict) + max(map(depth_of, inner), default=0)


@settings(max_examples=5 if config.DISABLE_JIT else 40)
@given(st.lists(json_values, min_size=2), st.integers(0, 2**63))
def test_elements_and_their_depth(values: list[object], seed: int) -> None:
    elements = [json.dumps(value).encode() for value in values]
    text = np.frombuffer(b",".join(elements) + b"]", np.uint8)
    state, parts = new_state(), []
    # In parts, which are cut anywhere.
    cuts = sorted(random.Random(seed).choices(range(len(text)), k=3))
    for start, stop in pairwise([0, *cuts, len(text)]):
        while (end := find_end(text[start:stop], 0, state)) >= 0:
            parts.append(start + end)
            start, state = start + end + 1, new_state()
    assert parts == (np.cumsum([len(each) + 1 for each in elements]) - 1).tolist()
    depth = max(map(depth_of, values))
    for data in (text[:-1].tobytes(), text[:-1]):
        assert not is_nested_deeper(data, depth)
        assert is_nested_deeper(data, depth - 1)
