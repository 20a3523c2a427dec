"""Single instructions equal their plain twins."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from kernel_cases import as_spans, filled_tables, share_count, trained

from bpe import reference
from bpe.encode import cache_rows as word_kernels
from bpe.encode.encoder import Encoder
from bpe.runtime import machine
from bpe.runtime.jit import kernel
from bpe.vocabulary import Vocabulary


def test_what_threads_share_equals_its_plain_twin() -> None:
    words, counts = np.array([0, 5, 0], np.uint64), np.array([3, -2])
    plain_words, plain_counts = words.copy(), counts.copy()
    for i, value in ((0, 7), (0, 8), (1, 9), (2, 2**64 - 1)):
        expected = (
            machine.compare_exchange(plain_words, i, np.uint64(value)),
            machine.load_acquire(plain_words, i),
            machine.add_atomically(plain_counts, i & 1, i - 5),
        )
        assert share_count(words, counts, i, np.uint64(value)) == expected
        machine.store_release(plain_words, 1, np.uint64(value))
        assert words.tolist() == plain_words.tolist()
        assert counts.tolist() == plain_counts.tolist()
    assert words.tolist() == [7, 2**64 - 1, 2**64 - 1]


def test_machine_words_equal_their_plain_twins() -> None:
    random_source = np.random.default_rng(3)
    data = random_source.integers(0, 256, 200, np.uint8)
    for i in range(0, 120, 7):
        for low, high in [(97, 122), (0, 255), (128, 255), (32, 32)]:
            assert _range_mask(data, i, low, high) == machine.range_mask(data, i, low, high)
        assert _load_u64(data, i) == machine.load_u64(data, i)
        for members in (0, 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0):
            expected = machine.member_mask(data, i, members)
            assert _member_mask(data, i, np.uint64(members)) == expected
    assert _zeros(np.uint64(0))[0] == machine.trailing_zeros(np.uint64(0)) == 64
    for word in [1, 2**63, 12, *random_source.integers(1, 2**64, 20, np.uint64).tolist()]:
        word = np.uint64(word)
        assert _zeros(word) == (
            machine.trailing_zeros(word),
            machine.leading_zeros(word),
        )
        factor = np.uint64(0x9E3779B97F4A7C15)
        assert _multiply(word, factor) == machine.multiply(word, factor)
        assert _add(word, factor) == machine.add(word, factor)
        assert _fold(word, factor) == machine.multiply_and_fold(word, factor)
        assert _popcount(word) == machine.popcount(word)
        for bits in (1, 15, 32, 63):
            expected = int(f"{int(word):064b}"[bits:] + f"{int(word):064b}"[:bits], 2)
            assert _rotate(word, np.uint64(bits)) == expected
            assert machine.rotate(word, np.uint64(bits)) == expected
        for bits in range(16, 33):
            for dtype in (np.uint32, np.uint16)[: 1 + (bits == 16)]:
                compiled, plain = np.zeros(6, dtype), np.zeros(6, dtype)
                _store(compiled, 1, word, bits)
                machine.store_four_ids(plain, 1, word, bits)
                assert compiled.tolist() == plain.tolist()
    words = random_source.integers(0, 2**64, 40, np.uint64)
    for i in range(0, 37, 3):
        for dtype in (np.uint32, np.uint16):
            ids, plain_ids = np.zeros(60, dtype), np.zeros(60, dtype)
            _store_halves_of_two(words[i], words[i + 1], ids, i)
            machine.store_halves_of_two(words[i], words[i + 1], plain_ids, i)
            assert ids.tolist() == plain_ids.tolist()
            _copy_16_ids(words.view(np.uint32), i, ids, i + 3)
            machine.copy_16_ids(words.view(np.uint32), i, plain_ids, i + 3)
            assert ids.tolist() == plain_ids.tolist()
    for i in range(9):
        copied, plain = np.zeros((2, 80), np.uint8)
        _copy_64_bytes(words.view(np.uint8), i, copied, 9 - i)
        machine.copy_64_bytes(words.view(np.uint8), i, plain, 9 - i)
        assert copied.tolist() == plain.tolist()
    numbers = random_source.integers(0, 2**32, 40, np.uint32)
    for i in range(25):
        assert _minimum(numbers, i) == machine.minimum_of_16(numbers, i)
        a, b, c = (int(place) for place in random_source.integers(i - 3, i + 19, 3))
        least = machine.minimum_of_others(numbers, i, machine.ONE_PLACE, a, b, c)
        assert _minimum_of_others(numbers, i, a, b, c) == least
        others = {*range(i, i + 16)} - {a, b, c}
        assert least == min(int(numbers[place]) for place in others)


def test_tokens_of_every_length_up_to_the_end_of_the_text() -> None:
    merges = trained()
    vocabulary = Vocabulary.from_merges(merges)
    encoder = Encoder(filled_tables(vocabulary, "gpt2"))
    rank = reference.rank_by_merges(merges)
    random_source = random.Random(9)
    for longest in (3, 9, 17, 100):
        words = [
            "".join(random_source.choices("theantor", k=random_source.randint(1, longest)))
            for _ in range(40)
        ]
        text = " ".join(words)
        # Its last bytes are read from a copy.
        for cut in range(len(text) - 5, len(text)):
            ids, _ = encoder.encode(*as_spans([text[:cut]]))
            got = [vocabulary.tokens[token_id] for token_id in ids]
            assert got == [
                token
                for pretoken in reference.split(text[:cut])
                for token in reference.encode(pretoken.encode(), rank)
            ]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_what_is_no_token_of_the_table(dtype: type[np.unsignedinteger[Any]]) -> None:
    """What is no token of up to eight bytes, of every length, between ends of documents."""
    merges = trained()
    vocabulary = Vocabulary.from_merges(merges)
    encoder = Encoder(filled_tables(vocabulary, "gpt2"), None, np.dtype(dtype))
    rank = reference.rank_by_merges(merges)
    random_source = random.Random(11)
    for n in range(60):
        # Words of 1 to 40 bytes, some more than once; so many of one length that eight are.
        lengths = random_source.choices([*range(1, 20), 40], k=n)
        words = ["".join(random_source.choices("xqzj", k=length)) for length in lengths]
        # Keys that differ in their length alone; a space and a NUL do not come apart there.
        words = random_source.choices([*words, "z" * 15, "z" * 16, "!", "!\0", "!\0\0"], k=n)
        ends = random_source.choices([0.0, 0.2, 0.9])[0]
        texts = [""]
        for word in words:
            if random_source.random() < ends:
                texts.append("")
            else:
                texts[-1] += " "
            texts[-1] += word
        expected = [
            token
            for text in texts
            for pretoken in reference.split(text)
            for token in reference.encode(pretoken.encode(), rank)
        ]
        for _ in range(2):
            ids, _ = encoder.encode(*as_spans(texts))
            assert [vocabulary.tokens[token_id] for token_id in ids.tolist()] == expected


def test_keys_of_different_words_differ() -> None:
    seen = {}
    for low, high in [(0, 1 << 56), (0, 2 << 56), (97, 1 << 56), (97, 2 << 56)]:
        seen[int(word_kernels.hash_key(np.uint64(low), np.uint64(high)))] = (low, high)
    assert len(seen) == 4


@kernel
def _range_mask(array, i, low, high):
    return machine.range_mask(array, i, low, high)


@kernel
def _member_mask(array, i, members):
    return machine.member_mask(array, i, members)


@kernel
def _load_u64(array, i):
    return machine.load_u64(array, i)


@kernel
def _zeros(word):
    return machine.trailing_zeros(word), machine.leading_zeros(word)


@kernel
def _multiply(a, b):
    return machine.multiply(a, b)


@kernel
def _add(a, b):
    return machine.add(a, b)


@kernel
def _fold(a, b):
    return machine.multiply_and_fold(a, b)


@kernel
def _popcount(word):
    return machine.popcount(word)


@kernel
def _rotate(word, bits):
    return machine.rotate(word, bits)


@kernel
def _store_halves_of_two(first, second, target, j):
    machine.store_halves_of_two(first, second, target, j)


@kernel
def _copy_16_ids(source, i, target, j):
    machine.copy_16_ids(source, i, target, j)


@kernel
def _copy_64_bytes(source, i, target, j):
    machine.copy_64_bytes(source, i, target, j)


@kernel
def _store(array, i, word, bits):
    machine.store_four_ids(array, i, word, bits)


@kernel
def _minimum(array, i):
    return machine.minimum_of_16(array, i)


@kernel
def _minimum_of_others(array, i, a, b, c):
    return machine.minimum_of_others(array, i, machine.ONE_PLACE, a, b, c)
