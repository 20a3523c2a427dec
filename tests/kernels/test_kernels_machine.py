"""Single instructions, and eight words at a time, equal their plain twins."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from kernel_cases import as_batch, filled_tables, share_count, trained

from bpe import reference
from bpe.encoding.encoder import Encoder
from bpe.kernels.encode import cache_rows as word_kernels
from bpe.kernels.runtime import machine, vectors
from bpe.kernels.runtime.jit import kernel
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
        at = np.uint64(i)
        key, plain_key = words[:9].copy(), words[:9].copy()
        _take_key(data, 3 * i, words, at, key, np.uint64(5))
        machine.take_key(data, 3 * i, words, at, plain_key, np.uint64(5))
        assert key.tolist() == plain_key.tolist()
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


def test_eight_words_equal_their_plain_twins() -> None:
    if not _has_eight():
        pytest.skip("this processor has no AVX-512 with VBMI2, of which the functions are made")
    random_source = np.random.default_rng(4)
    source = random_source.integers(0, 256, 300, np.uint8)
    numbers = np.array([0, 1, 7, 8, 9, 64, 2**31, 2**61 - 1], np.uint64)
    for i in range(0, 24, 5):
        words = random_source.integers(0, 2**64, 40, np.uint64)
        others = random_source.integers(0, 2**64, 40, np.uint64)
        others[i : i + 8 : 3] = words[i : i + 8 : 3]
        places = random_source.integers(0, vectors.WINDOW - 7, 8, np.uint64)
        halves = np.zeros(15 * 16, np.uint32)
        above = _eight(words, others, source, places, numbers, np.uint64(i), halves)
        a, b = words[i : i + 8], others[i : i + 8]
        assert vectors.load_eight(words, np.uint64(i)).tolist() == a.tolist()
        assert above == vectors.gt_mask(a, b) == sum(1 << j for j in range(8) if a[j] > b[j])
        differ = sum(1 << j for j in range(8) if a[j] != b[j])
        assert 0 < differ < 255
        assert _differ(words, others, np.uint64(i)) == vectors.ne_mask(a, b) == differ
        text = source.tobytes()[7:]
        at_places = [int.from_bytes(text[place:][:8], "little") for place in places.tolist()]
        padding = [-(1 << 8 * min(n, 8)) & (2**64 - 1) for n in numbers.tolist()]
        expected = [
            *(a + b, a - b, a * b, a & b, a | b, a ^ b),
            vectors.words_in_window(source, 7, places),
            vectors.gather_u64(source, 7, places),
            vectors.gather_eight(words, places & vectors.all_eight(31)),
            vectors.rotate_eight(a, 15),
            vectors.from_byte(numbers),
            vectors.maximum(a, b),
            vectors.select_gt(a, b, a - b, b),
            vectors.zero_lanes(a, 0b10110010),
        ]
        assert expected[6].tolist() == expected[7].tolist() == at_places
        assert expected[10].tolist() == padding
        assert expected[11].tolist() == [max(pair) for pair in zip(a, b, strict=True)]
        assert expected[12].tolist() == [
            int(x - y) if x > y else int(y) for x, y in zip(a, b, strict=True)
        ]
        assert expected[13].tolist() == [0 if j in (1, 4, 5, 7) else int(a[j]) for j in range(8)]
        expected.append(a)
        found = halves.reshape(-1, 2, 8).astype(np.uint64)
        found = found[:, 0] | found[:, 1] << np.uint64(32)
        assert found.tolist() == [each.tolist() for each in expected]


def test_lists_of_eight_equal_their_plain_twins() -> None:
    if not _has_eight():
        pytest.skip("this processor has no AVX-512 with VBMI2, of which the functions are made")
    random_source = np.random.default_rng(6)
    source = random_source.integers(0, 256, 400, np.uint8)
    positions = np.sort(random_source.integers(50, 434, 60)).astype(np.int64)
    numbers = random_source.integers(0, 59, 40, np.uint32)
    marked = random_source.random(40) < 0.3
    numbers[marked] |= np.uint32(1 << 31)
    table = random_source.integers(0, 2**64, 50, np.uint64)
    places = random_source.integers(0, 47, 40, np.uint64)
    for i in range(0, 32, 3):
        found = np.zeros((5, 8), np.uint64)
        _listed(source, 50, positions, numbers, table, places, np.uint64(i), found.reshape(-1))
        at = np.uint64(i)
        expected = [
            vectors.lengths_listed(positions, numbers, at),
            *vectors.words_listed(source, 50, positions, numbers, at),
            *vectors.pairs_listed(table, places, at, np.uint64(2)),
        ]
        assert found.tolist() == [each.tolist() for each in expected]
        for lane in range(8):
            number, place = int(numbers[i + lane]) & 0x7FFFFFFF, int(places[i + lane])
            length = int(positions[number + 1] - positions[number])
            assert found[0, lane] == (2**60 if marked[i + lane] else length)
            text = source[positions[number] - 50 :][:16].tobytes()
            assert found[1:3, lane].tolist() == [
                int.from_bytes(text[:8], "little"),
                int.from_bytes(text[8:], "little"),
            ]
            assert found[3:, lane].tolist() == table[place + 2 : place + 4].tolist()


def test_positions_of_eight_words_equal_their_plain_twins() -> None:
    if not _has_eight():
        pytest.skip("this processor has no AVX-512 with VBMI2, of which the functions are made")
    random_source = random.Random(5)
    words = [0, 1, 2**63, 2**64 - 1, 2**33 - 1, 2**32 - 1, 0x5555555555555555]
    words += [random_source.getrandbits(64) & random_source.getrandbits(64) for _ in range(20)]
    for word in words:
        for base, at in ((0, 0), (2**40, 3)):
            expected = [base + j for j in range(64) if word >> j & 1]
            array = np.zeros(70, np.int64)
            _store_positions(np.uint64(word), base, array, at)
            assert array[at : at + len(expected)].tolist() == expected
            chosen = word & 0xFF
            expected = [base % 2**31 + j for j in range(8) if chosen >> j & 1]
            numbers = np.zeros(20, np.uint32)
            _store_chosen(np.uint64(chosen), np.uint64(base % 2**31), numbers, np.uint64(at))
            assert numbers[at : at + len(expected)].tolist() == expected


def test_tokens_of_every_length_in_and_beyond_a_window() -> None:
    """Eight pre-tokens at a time are looked up from a window of the text, or one by one."""
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
        # It ends at several places of a window.
        for cut in range(len(text) - 5, len(text)):
            ids, _ = encoder.encode(*as_batch([text[:cut]]))
            got = [vocabulary.tokens[token_id] for token_id in ids]
            assert got == [
                token
                for pretoken in reference.split(text[:cut])
                for token in reference.encode(pretoken.encode(), rank)
            ]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_others_by_eight_and_one_by_one(dtype: type[np.unsignedinteger[Any]]) -> None:
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
            ids, _ = encoder.encode(*as_batch(texts))
            assert [vocabulary.tokens[token_id] for token_id in ids.tolist()] == expected


@pytest.mark.parametrize("span", range(124, 133))
def test_eight_tokens_that_end_where_a_window_ends(span: int) -> None:
    """A window has 128 bytes: with the last of eight pre-tokens in it, on its end, and beyond.

    What is read beyond is the beginning of the window, and makes " at" another token.
    """
    merges = [(b" ", b"a"), (b" a", b"b"), (b" a", b"t"), (b"b", b"b"), (b"bb", b"bb")]
    vocabulary = Vocabulary.from_merges(merges)
    encoder = Encoder(filled_tables(vocabulary, "gpt2"))
    rank = reference.rank_by_merges(merges)
    for n_before in range(9):
        eight = ["b" * (span - 21), *[" ab"] * 6, " at"]
        text = "1" + " a" * n_before + "." + "".join(eight) + " ab" * 80
        pretokens = reference.split(text)
        assert pretokens[n_before + 2 : n_before + 10] == eight
        ids, _ = encoder.encode(*as_batch([text]))
        assert [vocabulary.tokens[token_id] for token_id in ids] == [
            token for pretoken in pretokens for token in reference.encode(pretoken.encode(), rank)
        ]


def test_keys_of_different_words_differ() -> None:
    seen = {}
    for low, high in [(0, 1 << 56), (0, 2 << 56), (97, 1 << 56), (97, 2 << 56)]:
        seen[int(word_kernels.hash_key(np.uint64(low), np.uint64(high)))] = (low, high)
    assert len(seen) == 4


@kernel
def _has_eight():
    return vectors.has_eight()


@kernel
def _differ(words, others, i):
    return vectors.ne_mask(vectors.load_eight(words, i), vectors.load_eight(others, i))


@kernel
def _listed(source, start, positions, numbers, table, places, i, found):
    lengths = vectors.lengths_listed(positions, numbers, i)
    lows, highs = vectors.words_listed(source, start, positions, numbers, i)
    first, second = vectors.pairs_listed(table, places, i, np.uint64(2))
    vectors.store_eight(lengths, found, np.uint64(0))
    vectors.store_eight(lows, found, np.uint64(8))
    vectors.store_eight(highs, found, np.uint64(16))
    vectors.store_eight(first, found, np.uint64(24))
    vectors.store_eight(second, found, np.uint64(32))


@kernel
def _put_eight(words, halves, at):
    """Both halves of eight words."""
    vectors.store_halves(words, halves, at)
    vectors.store_halves(vectors.rotate_eight(words, np.uint64(32)), halves, at + np.uint64(8))


@kernel
def _eight(words, others, source, places, numbers, i, halves):
    a, b = vectors.load_eight(words, i), vectors.load_eight(others, i)
    of_source = vectors.load_eight(places, np.uint64(0))
    of_words = of_source & vectors.all_eight(np.uint64(31))
    padding = vectors.from_byte(vectors.load_eight(numbers, np.uint64(0)))
    _put_eight(a + b, halves, np.uint64(0))
    _put_eight(a - b, halves, np.uint64(16))
    _put_eight(a * b, halves, np.uint64(32))
    _put_eight(a & b, halves, np.uint64(48))
    _put_eight(a | b, halves, np.uint64(64))
    _put_eight(a ^ b, halves, np.uint64(80))
    _put_eight(vectors.words_in_window(source, 7, of_source), halves, np.uint64(96))
    _put_eight(vectors.gather_u64(source, 7, of_source), halves, np.uint64(112))
    _put_eight(vectors.gather_eight(words, of_words), halves, np.uint64(128))
    _put_eight(vectors.rotate_eight(a, np.uint64(15)), halves, np.uint64(144))
    _put_eight(padding, halves, np.uint64(160))
    _put_eight(vectors.maximum(a, b), halves, np.uint64(176))
    _put_eight(vectors.select_gt(a, b, a - b, b), halves, np.uint64(192))
    _put_eight(vectors.zero_lanes(a, np.uint64(0b10110010)), halves, np.uint64(208))
    _put_eight(a, halves, np.uint64(224))
    return vectors.gt_mask(a, b)


@kernel
def _store_positions(word, base, array, i):
    vectors.store_positions(word, base, array, i)


@kernel
def _store_chosen(chosen, first, array, i):
    vectors.compress_store(chosen, first, array, i)


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
def _take_key(source, i, parts, j, target, k):
    machine.take_key(source, i, parts, j, target, k)


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
