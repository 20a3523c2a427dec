"""Short texts and the table of tokens."""

from __future__ import annotations

import itertools
import random
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from kernel_cases import as_spans, documents, filled_tables, trained, with_small_tables

from bpe import reference
from bpe.encode import encode_pretokens as encode_kernels
from bpe.encode import encoder as encode
from bpe.encode import merge as merging
from bpe.encode.encoder import Encoder, EncoderTables
from bpe.errors import VocabularyError
from bpe.split.patterns import PATTERNS
from bpe.vocabulary import Vocabulary


def test_idle_encoders_keep_no_words_that_were_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with_small_tables(monkeypatch, THREAD_CACHE=8, ROWS=64, LONG_ROWS=64, ARENA=256)
    tables = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    idle = Encoder(tables)
    idle.encode(*as_spans(["a few words"]))
    before = weakref.ref(tables.cache.current[1].rows)
    Encoder(tables).encode(*as_spans(documents()))
    assert tables.cache.current[0] > 1  # the first is that of the filled tables
    assert before() is None
    idle.encode(*as_spans(["a few words"]))


def test_a_word_is_merged_for_all_encoders_once() -> None:
    tables = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    first, second = Encoder(tables), Encoder(tables)
    expected, _ = first.encode(*as_spans(documents()))
    before = [array.copy() for array in tables.cache.current[1]]
    assert before[0].any()
    ids, _ = second.encode(*as_spans(documents()))
    assert (ids == expected).all()
    for array, other in zip(tables.cache.current[1], before, strict=True):
        assert (array == other).all()


def test_while_another_thread_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    # Full tables are gone on with; what finds no place in them is merged all the same.
    sizes = {"ROWS": 64, "MOST_ROWS": 2**12, "LONG_ROWS": 16, "ARENA": 128}
    with_small_tables(monkeypatch, THREAD_CACHE=8, **sizes)
    tables = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    encoder = Encoder(tables)
    expected, _ = Encoder(filled_tables(Vocabulary.from_merges(trained()), "gpt2")).encode(
        *as_spans(documents())
    )
    before = tables.cache.current
    with tables.cache._lock:
        for _ in range(2):
            ids, _ = encoder.encode(*as_spans(documents()))
            assert (ids == expected).all()
            assert tables.cache.current is before
    encoder.encode(*as_spans(documents()))
    assert tables.cache.current is not before


def test_threads_add_to_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small tables, so that they meet at the same rows, and replace what others use.
    with_small_tables(
        monkeypatch, THREAD_CACHE=64, ROWS=2**8, MOST_ROWS=2**11, LONG_ROWS=2**7, ARENA=2**11
    )
    monkeypatch.setattr("bpe.encode.encoder._GROUPS_PER_CALL", 1)
    texts = documents()[::3]
    tables = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    alone = Encoder(filled_tables(Vocabulary.from_merges(trained()), "gpt2"))
    expected = [alone.encode(*as_spans([text]))[0] for text in texts]

    def encode_all(seed: int) -> None:
        encoder, order = Encoder(tables), list(range(len(texts)))
        random.Random(seed).shuffle(order)
        for i in order:
            ids, _ = encoder.encode(*as_spans([texts[i]]))
            assert (ids == expected[i]).all()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(encode_all, range(3)))


@pytest.mark.parametrize("bits", range(15, 22))
def test_ids_of_every_width(bits: int) -> None:
    # A row of the cache holds seven ids of 16 bits, and fewer of more bits.
    merges = trained()
    plain = Vocabulary.from_merges(merges)
    spread = (2**bits - 2) // (plain.size - 1)
    tokens = {number * spread: token for number, token in plain.tokens.items()}
    wide = Vocabulary(tokens, merges, {})
    assert wide.size.bit_length() == bits
    texts = documents()[::3]
    expected, _ = Encoder(filled_tables(plain, "gpt2")).encode(*as_spans(texts))
    encoder = Encoder(filled_tables(wide, "gpt2"))
    for _ in range(2):
        ids, _ = encoder.encode(*as_spans(texts))
        assert (ids == expected * np.uint32(spread)).all()


def words_of_places(rows: list[int]) -> list[int]:
    """The 8 bytes that would be found equal to each row of the table of tokens."""
    bits, undo = encode_kernels.TOKEN_BITS, pow(0x9E3779B97F4A7C15, -1, 2**64)
    words = []
    for place, row in enumerate(rows):
        mixed = row >> bits << bits | place
        words.append((mixed >> bits | mixed << (64 - bits)) * undo % 2**64)
    return words


@pytest.mark.parametrize("where", ["_fill_tokens", "SharedPretokenCache.make_room"])
def test_an_interrupted_table_of_tokens_is_filled_later(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    tables = EncoderTables(Vocabulary.from_merges(trained()), "gpt2")
    before = tables.model.tokens.copy()
    with monkeypatch.context() as patch:
        patch.setattr(f"{encode.__name__}.{where}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tables.fill_tokens()
    tables.fill_tokens()
    assert (tables.model.tokens != before).any()


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_table_of_tokens_has_nothing_but_tokens(ignore_merges: bool) -> None:
    merges = reference.train(documents(), 256 + 300)
    vocabulary = Vocabulary.from_merges(merges)
    if ignore_merges:
        ranks = {token: rank for rank, token in vocabulary.tokens.items()}
        vocabulary = Vocabulary.from_ranks(ranks, {})
    rows = filled_tables(vocabulary, "gpt2").model.tokens.tolist()
    found = set()
    for place, (row, word) in enumerate(zip(rows, words_of_places(rows), strict=True)):
        if word & 0xFF != 0xFF:  # else it is free: no character begins so
            token = vocabulary.tokens[(row ^ place) % 2**encode_kernels.TOKEN_BITS]
            assert word.to_bytes(8, "little") == token.ljust(8, b"\xff")
            found.add(token)
    short = {token for token in vocabulary.tokens.values() if len(token) <= 8}
    # Few have the place of another, and what ends with 0xFF is left out.
    assert len(short) - 20 < len(found) < len(short)


def test_table_of_tokens_has_no_ids_that_are_too_wide() -> None:
    merges = trained()
    plain = Vocabulary.from_merges(merges)
    most = 2**encode_kernels.TOKEN_BITS - 1
    moved = {number + most - 299: token for number, token in plain.tokens.items()}
    rows = filled_tables(Vocabulary(moved, merges, {}), "gpt2").model.tokens.tolist()
    found = {
        (row ^ place) % (most + 1): word
        for place, (row, word) in enumerate(zip(rows, words_of_places(rows), strict=True))
        if word & 0xFF != 0xFF
    }
    assert most in found
    assert len(found) > 250
    for token_id, word in found.items():
        assert word.to_bytes(8, "little") == moved[token_id].ljust(8, b"\xff")


@cache
def ids_of_trained(pretoken: str) -> list[int]:
    """The ids of a pre-token by the reference and `trained`."""
    rank, vocabulary = reference.rank_by_merges(trained()), Vocabulary.from_merges(trained())
    return [vocabulary.token_id(token) for token in reference.encode(pretoken.encode(), rank)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_short_texts_have_the_ids_of_the_reference(pattern: str) -> None:
    encoder = Encoder(filled_tables(Vocabulary.from_merges(trained()), pattern))
    # Longer and shorter ones by turns: nothing is left of the one before.
    texts = sorted(documents(), key=len)
    for text in itertools.chain(*zip(texts, texts[::-1], strict=True), ["a" * 2048, "é" * 1024]):
        pretokens = reference.split(text, pattern)
        expected = itertools.chain.from_iterable(map(ids_of_trained, pretokens))
        assert encoder.encode_text(text.encode()) == list(expected)


def test_texts_around_the_length_from_which_on_they_are_not_short() -> None:
    tables = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    encoder = Encoder(tables)
    for length in (encode._BOUND_TEXT - 1, encode._BOUND_TEXT, encode._BOUND_TEXT + 1):
        text = ("x don't 12 été  \n" * 200)[:length]
        expected, _ = Encoder(tables).encode(*as_spans([text]))
        assert encoder.encode_text(text.encode()) == expected[: len(expected)].tolist()
    assert encoder.encode_text(b"") == []


@pytest.mark.parametrize("arena", [128, 2**14])
def test_tables_of_short_texts_grow_and_begin_anew(
    arena: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"ROWS": 64, "MOST_ROWS": 2**12, "LONG_ROWS": 16, "MOST_LONG_ROWS": 2**11}
    short = {"SMALL_THREAD_CACHE": 8, "SHORT_ROWS": 64, "SHORT_LONG_ROWS": 16}
    with_small_tables(monkeypatch, **sizes, **short, SHORT_ARENA=arena, ARENA=arena)
    encoder = Encoder(EncoderTables(Vocabulary.from_merges([]), "gpt2"))
    words = [chr(97 + i % 26) * (2 + i % 28) for i in range(200)]
    seen = []
    for first in range(0, 400, 10):
        text = " ".join((words * 2)[first : first + 10])
        assert bytes(encoder.encode_text(text.encode())) == text.encode()
        current = encoder._tables.cache.current
        seen.append((current[0], len(current[1].rows), len(current[1].long_rows)))
    number, rows, long_rows = seen[-1]
    if arena == 128:
        assert number > 0
    else:
        assert number == 0
        assert rows > 64
        assert long_rows > 16


def test_a_short_text_does_not_wait_for_tables_that_another_thread_enlarges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_small_tables(
        monkeypatch, SMALL_THREAD_CACHE=8, ROWS=64, LONG_ROWS=16, ARENA=128
    )
    tables = filled_tables(Vocabulary.from_merges([]), "gpt2")
    encoder = Encoder(tables)
    with tables.cache._lock:
        for i in range(200):
            text = (chr(97 + i % 26) * (2 + i % 28)).encode()
            assert bytes(encoder.encode_text(text)) == text


def test_longest_pretoken() -> None:
    chosen = random.Random(5)
    for _ in range(1000):
        n_bytes, at = chosen.randrange(1, 9000), 0
        bits = {0, n_bytes}
        while at < n_bytes:
            bits.add(at)
            at += chosen.choice(
                [1, 5, 64, 100, 2111, 2112, 2113, 2176, chosen.randrange(1900, 2600)]
            )
        starts = np.zeros(n_bytes // 64 + 1, np.uint64)
        for bit in bits:
            starts[bit >> 6] |= np.uint64(1 << (bit & 63))
        ordered = sorted(bits)
        longest = max(b - a for a, b in pairwise(ordered))
        expected = max(longest, merging.SCRATCH_BYTES)
        assert encode_kernels.longest_pretoken(starts) == expected


def test_a_token_that_merges_do_not_make_is_not_in_the_table() -> None:
    # ab comes first, so that nothing ever gives abc; bc is a token that stands alone.
    tokens = {**{i: bytes([i]) for i in range(256)}, 256: b"ab", 257: b"bc", 258: b"abc"}
    merges = [(b"a", b"b"), (b"b", b"c"), (b"a", b"bc")]
    vocabulary = Vocabulary(tokens, merges, {})
    encoder = Encoder(filled_tables(vocabulary, "gpt2"))
    ids, _ = encoder.encode(*as_spans(["abc", "bc", "ab"]))
    assert ids.tolist() == [256, ord("c"), 257, 256]


def test_what_fills_up_is_not_taken_for_a_byte() -> None:
    texts = ["a", "a\0", "a\0\0", "ab\0", " " * 9, "abababab", "ababababa", "\0", "\0" * 9]
    rank = reference.rank_by_merges(trained())
    vocabulary = Vocabulary.from_merges(trained())
    ids_of = {token: token_id for token_id, token in vocabulary.tokens.items()}
    encoder = Encoder(filled_tables(vocabulary, "gpt2"))
    expected = [
        ids_of[token]
        for text in texts
        for pretoken in reference.split(text)
        for token in reference.encode(pretoken.encode(), rank)
    ]
    for _ in range(2):
        # What is not UTF-8 has no particular ids, but changes nothing for what comes later.
        for malformed in (b"a\xff", b"\xff", b"\xffa", b"\xff" * 8, b"ab\xff\xff", b"a\xff\0"):
            encoder.encode(np.frombuffer(malformed, np.uint8), np.array([[0, len(malformed)]]))
        ids, _ = encoder.encode(*as_spans(texts))
        assert ids.tolist() == expected


def test_ids_that_are_too_wide_are_refused() -> None:
    tokens = {**{i: bytes([i]) for i in range(256)}, 2**21 - 1: b"ab"}
    with pytest.raises(VocabularyError, match=r"largest token id is 2,097,151; the encoder takes"):
        filled_tables(Vocabulary(tokens, [(b"a", b"b")], {}), "gpt2")
