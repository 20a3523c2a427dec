"""The kernels of splitting and searching: boundaries are those of `bpe.reference.split`."""

from __future__ import annotations

import random

import numpy as np
import pytest
from kernel_cases import LENGTHS_AROUND_A_BLOCK, as_batch, documents

from bpe import reference
from bpe.split.classes import sure_letters
from bpe.split.patterns import PATTERNS
from bpe.split.pretokenizer import Pretokenizer
from bpe.text.search import find_all
from bpe.unicode_classes import LETTER, class_table


@pytest.mark.parametrize("pattern", PATTERNS)
def test_boundaries_are_those_of_the_reference(pattern: str) -> None:
    texts = documents()
    buffer, offsets = as_batch(texts)
    expected, place = [], 0
    for text in texts:
        for pretoken in reference.split(text, pattern):
            expected.append(place)
            place += len(pretoken.encode())
    starts = Pretokenizer(pattern).boundaries(buffer, offsets)
    found = np.flatnonzero(np.unpackbits(starts.view(np.uint8), bitorder="little"))
    assert found.tolist() == [*expected, place]


def test_first_bytes_that_are_sure_to_begin_letters() -> None:
    classes = class_table()
    for first in range(0x80, 0x100):
        source = np.zeros(64, np.uint8)
        source[3] = source[62] = first
        if sure_letters(source, 0):
            assert sure_letters(source, 0) == 8
            begin = (first & 0x0F) << 12
            assert (classes[begin : begin + 0x1000] == LETTER).all()


@pytest.mark.parametrize("needle", [b"a", b"aa", b"ab", b"<|endoftext|>", b"\n\n", b"\xe3\x80\x80"])
def test_find_all_is_that_of_bytes(needle: bytes) -> None:
    random_source = random.Random(7)
    for length in LENGTHS_AROUND_A_BLOCK:
        alphabet = [*(bytes([byte]) for byte in needle), needle, b"x"]
        data = b"".join(random_source.choices(alphabet, k=length))
        expected = []
        place = data.find(needle)
        while place >= 0:
            expected.append(place)
            place = data.find(needle, place + len(needle))
        assert find_all(np.frombuffer(data, np.uint8), needle).tolist() == expected


def test_find_all_with_more_places_than_it_takes_at_once() -> None:
    data = np.full(9000, ord("a"), np.uint8)
    assert find_all(data, b"a").tolist() == list(range(9000))


def test_find_all_refuses_an_empty_needle() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        find_all(np.zeros(3, np.uint8), b"")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_safe_cuts_change_no_pretoken(pattern: str) -> None:
    pretokenizer = Pretokenizer(pattern)
    for text in documents():
        data = text.encode()
        buffer = np.frombuffer(data, np.uint8)
        place = 0
        whole = pretokenizer.split(data)
        while (place := pretokenizer.safe_cut(buffer, place + 1, len(data))) < len(data):
            assert pretokenizer.split(data[:place]) + pretokenizer.split(data[place:]) == whole
