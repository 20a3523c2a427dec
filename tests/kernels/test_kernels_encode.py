"""The kernels of encoding: ids are those of the reference, however they are merged and cached."""

from __future__ import annotations

import itertools
import random
import re
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from kernel_cases import as_spans, documents, filled_tables, trained, with_small_tables
from numba import config
from numpy.typing import NDArray

from bpe import reference
from bpe.encode import cache_rows as word_kernels
from bpe.encode import encode_pretokens as encode_kernels
from bpe.encode import encoder as encode
from bpe.encode import merge as merging
from bpe.encode import model as merge_tables
from bpe.encode import pretoken_cache
from bpe.encode.encoder import Encoder, EncoderTables
from bpe.errors import EncodingError, VocabularyError
from bpe.split.patterns import PATTERNS
from bpe.vocabulary import Vocabulary


def expected_ids(texts: list[str], pattern: str = "gpt2") -> list[int]:
    """The ids of texts by the reference and `trained`."""
    pretokens = itertools.chain.from_iterable(reference.split(text, pattern) for text in texts)
    return [*itertools.chain.from_iterable(map(ids_of_trained, pretokens))]


@cache
def ids_of_trained(pretoken: str) -> list[int]:
    rank, vocabulary = reference.rank_by_merges(trained()), Vocabulary.from_merges(trained())
    return [vocabulary.token_id(token) for token in reference.encode(pretoken.encode(), rank)]


def trained_tables(pattern: str = "gpt2") -> EncoderTables:
    """Tables of `trained`, with short tokens in a table of their own."""
    return filled_tables(Vocabulary.from_merges(trained()), pattern)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_ids_are_those_of_the_reference(pattern: str) -> None:
    tables, texts = EncoderTables(Vocabulary.from_merges(trained()), pattern), documents()
    expected = expected_ids(texts, pattern)
    # The second time words come from the cache, then short tokens from the table of tokens.
    for number in range(3 if pattern == "gpt2" else 1):
        if number == 2:
            tables.fill_tokens()
        ids, offsets = Encoder(tables).encode(*as_spans(texts))
        assert ids.tolist() == expected
        for text, (start, stop) in zip(texts, pairwise(offsets), strict=True):
            assert ids[start:stop].tolist() == expected_ids([text], pattern)


def shuffled_ranks(seed: int) -> dict[bytes, int]:
    """Ranks of tokens over a few letters, whose parts are often there and often come later."""
    chosen = random.Random(seed)
    tokens = {bytes(chosen.choices(b"ab ", k=chosen.choice([2, 2, 3, 4, 5, 8]))) for _ in range(60)}
    ranks = list(range(256, 256 + len(tokens)))
    chosen.shuffle(ranks)
    return {bytes([byte]): byte for byte in range(256)} | dict(
        zip(sorted(tokens), ranks, strict=True)
    )


@pytest.mark.parametrize("kind", ["merges", "ranks"])
def test_pretokens_are_merged_alike_in_both_ways(kind: str) -> None:
    """Also where a merge makes a pair that comes before it, as only ranks can have it."""
    chosen = random.Random(1)
    early = 0
    for seed in range(2 if config.DISABLE_JIT else 5):
        if kind == "merges":
            merges = reference.train(["".join(chosen.choices("ab ", k=300))], 256 + 40)
            vocabulary, rank = Vocabulary.from_merges(merges), reference.rank_by_merges(merges)
        else:
            ranks = shuffled_ranks(seed)
            vocabulary, rank = Vocabulary.from_ranks(ranks, {}), reference.rank_by_bytes(ranks)
            early += sum(
                any(ranks.get(token[:k], 0) > ranks[token] for k in range(2, len(token)))
                for token in ranks
            )
        tables = filled_tables(vocabulary, "gpt2").model
        for length in (2, 3, 5, 16, 17, 30, 64, 65, 200, 256, 257, 300, 4097):
            if length > 300 and (seed or kind == "ranks" or config.DISABLE_JIT):
                continue
            text = bytes(chosen.choices(b"ab ", k=length))
            expected = [vocabulary.token_id(token) for token in reference.encode(text, rank)]
            scratch = encode.new_work()._replace(**encode._growing(length))
            ids = np.zeros(length + 3, np.uint32)
            buffer = np.frombuffer(b"x" + text + b"ab", np.uint8)
            n = merging.merge_by_tree(tables, scratch, buffer, 1, 1 + length, ids)
            assert ids[:n].tolist() == expected
            if length <= merging.MAX_SYMBOLS:
                n = merging.merge_short(tables, scratch, buffer, 1, 1 + length, ids)
                assert ids[:n].tolist() == expected
    assert (early > 10) == (kind == "ranks")


def text_of(chosen: random.Random, characters: list[bytes], length: int, noise: float) -> bytes:
    """Characters, often behind a space; with noise, bytes that are no character among them."""
    text = chosen.choice([b"", b" "])
    while len(text) < length:
        if chosen.random() < noise:
            text += bytes([chosen.choice(b"\x80\xa4\xc3\xe0\xf0\xff")])
        else:
            text += chosen.choice(characters)
    return text[:length]


def merges_of_characters(
    chosen: random.Random, characters: list[bytes]
) -> list[tuple[bytes, bytes]]:
    """First those within characters, from either side; then any; sometimes in another order."""
    merges = []
    for character in characters:
        if len(character) == 2 or chosen.random() < 0.6:
            merges += [(character[:n], character[n : n + 1]) for n in range(1, len(character))]
        else:
            merges += [(character[1:2], character[2:]), (character[:1], character[1:])]
    tokens = [bytes([byte]) for byte in set(b" ".join(characters))]
    tokens += [left + right for left, right in merges]
    for _ in range(chosen.choice([2, 4, 10, 30])):
        left, right = chosen.choice(tokens), chosen.choice(tokens)
        if len(left + right) <= 8:
            tokens.append(left + right)
            merges.insert(
                chosen.choice([len(merges), chosen.randrange(len(merges))]), (left, right)
            )
    if chosen.random() < 0.3:
        chosen.shuffle(merges)
    return list(dict.fromkeys(merges))


def test_characters_that_are_merged_before_all_others() -> None:
    """Only those that come first in their place are one symbol, whatever stands around them."""
    chosen = random.Random(4)
    seconds = b"\x80\x81\xa4\xbf"
    pool = [bytes([first, second]) for first in b"\xc3\xd0\xd1" for second in seconds]
    pool += [bytes([a, *rest]) for a in b"\xe0\xe1" for rest in itertools.product(seconds, seconds)]
    n_bytes = n_symbols = some_places = 0
    for _ in range(4 if config.DISABLE_JIT else 150):
        characters = chosen.sample(pool, chosen.choice([2, 3, 5]))
        characters += chosen.choice([[], [b"a"], [b"a", b" "], [b"\xf0\x9f\x80\x80"]])
        noise = chosen.choice([0, 0, 0.05, 0.3])
        merges = merges_of_characters(chosen, [c for c in characters if 1 < len(c) < 4])
        made = dict.fromkeys(left + right for left, right in merges)
        tokens = [*(bytes([byte]) for byte in range(256)), *made]
        vocabulary = Vocabulary(dict(enumerate(tokens)), merges, {})
        rank = reference.rank_by_merges(merges)
        tables, scratch = filled_tables(vocabulary, "gpt2").model, encode.new_work()
        kinds = tables.characters >> merge_tables.FLAGS
        some_places += int(((kinds > 0) & (kinds < 2**merge_tables.KINDS - 1)).sum())
        for length in (1, 2, 3, 4, 9, 16, 17, 33, 64, 65, 150, 193):
            text = text_of(chosen, characters, length, noise)
            expected = [vocabulary.token_id(token) for token in reference.encode(text, rank)]
            # What is before it and behind it could be a part of a character.
            buffer = np.frombuffer(b"\xe0" + text + b"\xa4\xa4", np.uint8)
            ids = np.zeros(length + 3, np.uint32)
            if merging.begins_beyond_ascii(buffer, 1, 1 + length):
                n = merging.lay_out_characters(tables, scratch, buffer, 1, 1 + length)
                n_symbols, n_bytes = n_symbols + int(n), n_bytes + (length if n else 0)
            n = merging.merge_pretoken(tables, scratch, buffer, 1, 1 + length, ids)
            assert ids[:n].tolist() == expected
    assert n_symbols < 0.9 * n_bytes
    assert some_places > 5 or config.DISABLE_JIT


@pytest.mark.parametrize(
    ("merges", "text"),
    [
        # What may be merged with the next is the last byte of a character.
        ([(b"\xc3", b"\x80"), (b"\xc3\x80", b"\xd0"), (b"\xd0", b"\x80")], b"\xc3\x80\xd0\x80"),
        # The lowest six bits of a byte do not make it the end of one.
        ([(b"\xe0", b"\x80"), (b"\xe0\x80", b"\x80")], b"\xe0\x80\x00"),
        ([(b"\xe0", b"\x80"), (b"\xe0\x80", b"\x80")], b"\xe0\x00\x80"),
    ],
)
def test_what_looks_like_a_character(merges: list[tuple[bytes, bytes]], text: bytes) -> None:
    vocabulary, rank = Vocabulary.from_merges(merges), reference.rank_by_merges(merges)
    tables, ids = filled_tables(vocabulary, "gpt2").model, np.zeros(8, np.uint32)
    buffer = np.frombuffer(text, np.uint8)
    n = merging.merge_pretoken(tables, encode.new_work(), buffer, 0, len(text), ids)
    expected = [vocabulary.token_id(token) for token in reference.encode(text, rank)]
    assert ids[:n].tolist() == expected


def test_too_many_merges_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Several merges may make one token, so there can be more of them than ids.
    parts = [b"a" * n for n in range(1, 40)]
    merges = [(left, right) for left in parts for right in parts if len(left + right) < 40]
    tokens = [bytes([byte]) for byte in range(256)] + parts[1:]
    vocabulary = Vocabulary(dict(enumerate(tokens)), merges, {})
    assert vocabulary.size < len(merges) == 741
    monkeypatch.setattr(encode, "MAX_ID", 740)
    filled_tables(vocabulary, "gpt2")
    monkeypatch.setattr(encode, "MAX_ID", 739)
    with pytest.raises(VocabularyError, match="there are 741 merges; the encoder takes up to 740"):
        filled_tables(vocabulary, "gpt2")


# --- documents, types, memory


def test_gaps_have_no_ids() -> None:
    encoder = Encoder(trained_tables())
    chosen, texts = random.Random(8), documents()
    for _ in range(5 if config.DISABLE_JIT else 30):
        # Also nothing between two, and documents of which nothing is left.
        some = chosen.choices([*texts, "", "a"], k=9)
        gaps = [*chosen.choices(["", "<|endoftext|>", " ", "the" * 700, "é"], k=8), ""]
        pieces = [piece for both in zip(some, gaps, strict=True) for piece in both][:-1]
        mid_document = {"starts_mid_document": True, "ends_mid_document": True}
        for around in ({}, {"prefix_id": 7, "suffix_id": 8, **mid_document}):
            expected, places = encoder.encode(*as_spans(some), **around)
            buffer, spans = as_spans(pieces)
            ids, found = encoder.encode(buffer, np.ascontiguousarray(spans[::2]), **around)
            assert ids.tolist() == expected.tolist()
            assert found.tolist() == places.tolist()
    ids, found = encoder.encode(np.zeros(0, np.uint8), np.zeros((0, 2), np.int64))
    assert (ids.tolist(), found.tolist()) == ([], [0])


@pytest.mark.parametrize("starts_mid_document", [False, True])
@pytest.mark.parametrize("ends_mid_document", [False, True])
def test_ids_around_documents(starts_mid_document: bool, ends_mid_document: bool) -> None:
    encoder = Encoder(filled_tables(Vocabulary.from_merges([]), "gpt2"))
    ids, offsets = encoder.encode(
        *as_spans(["a", "", "bc"]), prefix_id=1000, suffix_id=2000,
        starts_mid_document=starts_mid_document, ends_mid_document=ends_mid_document,
    )
    first = [97, 2000] if starts_mid_document else [1000, 97, 2000]
    last = [1000, 98, 99] if ends_mid_document else [1000, 98, 99, 2000]
    assert ids.tolist() == [*first, 1000, 2000, *last]
    assert offsets.tolist() == [0, len(first), len(first) + 2, len(ids)]


def test_ids_of_another_type() -> None:
    tables = trained_tables()
    # Long ones, too: those that are merged in windows, with lists, and recalled.
    n = 2000 if config.DISABLE_JIT else 70_000
    batch = as_spans([*documents(), "z" * 900, "x" * 300, "x" * 300, "e" * n])
    expected, places = Encoder(tables).encode(*batch, suffix_id=2**16 - 1)
    assert expected.dtype == np.uint32
    encoder = Encoder(tables, None, np.dtype(np.uint16))
    for _ in range(2):
        ids, found = encoder.encode(*batch, suffix_id=2**16 - 1)
        assert ids.dtype == np.uint16
        assert ids.tolist() == expected.tolist()
        assert found.tolist() == places.tolist()
    with pytest.raises(EncodingError, match="suffix_id is 65,536: expected an id up to 65,535, "):
        encoder.encode(*batch, suffix_id=2**16)
    for other in ("uint8", "int64", ">u2", "float32"):
        with pytest.raises(EncodingError, match=f"ids are uint16 or uint32, not {other}: take one"):
            Encoder(tables, None, np.dtype(other))
    plain = Vocabulary.from_merges(trained())
    wide = Vocabulary(plain.tokens, plain.merges, {"<|wide|>": 2**16})
    with pytest.raises(EncodingError, match=r"largest_id is 131,071: .* the largest of uint16"):
        Encoder(filled_tables(wide, "gpt2"), None, np.dtype(np.uint16))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_ids_in_memory_that_is_given(dtype: type[np.unsignedinteger[Any]]) -> None:
    tables = trained_tables()
    encoder = Encoder(tables, None, np.dtype(dtype))
    texts = documents()
    expected, places = encoder.encode(*as_spans(texts), prefix_id=1, suffix_id=2)
    given: list[NDArray[np.uint8]] = []

    def memory(n_bytes: int) -> NDArray[np.uint8]:
        # What it holds at first means nothing.
        given.append(np.full(n_bytes, 0xAB, np.uint8))
        return given[-1]

    ids, found = encoder.encode(*as_spans(texts), prefix_id=1, suffix_id=2, memory=memory)
    assert ids.dtype == dtype
    assert ids.tolist() == expected.tolist()
    assert found.tolist() == places.tolist()
    # Another call leaves them alone.
    encoder.encode(*as_spans(texts[::-1]), memory=memory)
    assert ids.tolist() == expected.tolist()
    assert len(given) == 2
    assert np.shares_memory(ids, given[0])
    # No document, no id, with and without.
    for each in (memory, None):
        ids, found = encoder.encode(np.empty(0, np.uint8), np.zeros((0, 2), np.int64), memory=each)
        assert (ids.dtype, len(ids), found.tolist()) == (dtype, 0, [0])


WORDS = [chr(97 + i % 26) * (2 + i % 28) for i in range(200)]
TENS = [" ".join((WORDS * 2)[first : first + 10]) for first in range(0, 400, 10)]


@pytest.mark.parametrize("small", ["ARENA", "LONG_ROWS", "ROWS"])
def test_full_tables_begin_anew(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of each kind more than there is room for: short ones, short ones of many ids, long ones.
    roomy = {"THREAD_CACHE": 8, "ROWS": 2**12, "LONG_ROWS": 2**10, "ARENA": 2**12}
    with_small_tables(monkeypatch, **(roomy | {small: 128}))
    encoder = Encoder(filled_tables(Vocabulary.from_merges([]), "gpt2"))
    seen = []
    for text in TENS:
        ids, _ = encoder.encode(*as_spans([text]))
        assert bytes(ids.astype(np.uint8)) == text.encode()
        _, current, _ = encoder._tables.cache.current
        seen += [] if any(current is words for words in seen) else [current]
        assert len(current.rows) == pretoken_cache._ROWS
    assert len(seen) > 2


def test_tables_grow_and_take_along_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"ROWS": 2**8, "MOST_ROWS": 2**12, "LONG_ROWS": 2**5, "MOST_LONG_ROWS": 2**11}
    with_small_tables(monkeypatch, THREAD_CACHE=8, **sizes)
    encoder = Encoder(filled_tables(Vocabulary.from_merges([(b"x", b"y")]), "gpt2"))
    words = [f" {'xy' * (i % 3)}{chr(97 + i % 23) * n}" for i in range(200) for n in (3, 9, 17)]
    words = sorted(set(words), key=words.index)
    taken = []
    for _ in range(2):
        # A few at a time: all are in the tables before these grow.
        for first in range(0, len(words), 20):
            text = "".join(words[first : first + 20])
            ids, _ = encoder.encode(*as_spans([text]))
            assert ids.tolist() == [
                256 if byte == b"xy" else ord(byte) for byte in re.findall(b"xy|.", text.encode())
            ]
        _, current, _ = encoder._tables.cache.current
        sizes = np.count_nonzero(current.rows[1::4]), np.count_nonzero(current.long_rows[1::2])
        taken.append((*sizes, int(current.used[word_kernels.ARENA_USED])))
    assert len(current.rows) >= 2**10
    assert len(current.long_rows) >= 2**7
    # Words were moved along: none is put in anew.
    assert min(taken[0]) >= 60
    assert taken[0] == taken[1]


# --- caches and threads


def test_idle_encoders_keep_no_words_that_were_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with_small_tables(monkeypatch, THREAD_CACHE=8, ROWS=64, LONG_ROWS=64, ARENA=256)
    tables = trained_tables()
    idle = Encoder(tables)
    idle.encode(*as_spans(["a few words"]))
    before = weakref.ref(tables.cache.current[1].rows)
    for texts in (documents(), documents()[::-1]):
        Encoder(tables).encode(*as_spans(texts))
    assert tables.cache.current[0] > 1  # the first is that of the filled tables
    assert before() is None
    idle.encode(*as_spans(["a few words"]))


def test_a_word_is_merged_for_all_encoders_once() -> None:
    tables, texts = trained_tables(), documents()
    expected, _ = Encoder(tables).encode(*as_spans(texts))
    before = [array.copy() for array in tables.cache.current[1]]
    assert before[0].any()
    ids, _ = Encoder(tables).encode(*as_spans(texts))
    assert (ids == expected).all()
    for array, other in zip(tables.cache.current[1], before, strict=True):
        assert (array == other).all()


def test_while_another_thread_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    # Full tables are gone on with; what finds no place in them is merged all the same.
    sizes = {"ROWS": 64, "MOST_ROWS": 2**12, "LONG_ROWS": 16, "ARENA": 128}
    with_small_tables(monkeypatch, THREAD_CACHE=8, **sizes)
    tables = trained_tables()
    encoder, before = Encoder(tables), tables.cache.current
    with tables.cache._lock:
        for _ in range(2):
            ids, _ = encoder.encode(*as_spans(documents()))
            assert ids.tolist() == expected_ids(documents())
            assert tables.cache.current is before
    with tables.cache._lock:  # nor does a short text wait
        for text in WORDS[:: 5 if config.DISABLE_JIT else 1]:
            assert encoder.encode_text(text.encode()) == expected_ids([text])
    encoder.encode(*as_spans(documents()))
    assert tables.cache.current is not before


def test_threads_add_to_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small tables, so that they meet at the same rows, and replace what others use.
    with_small_tables(
        monkeypatch, THREAD_CACHE=64, ROWS=2**8, MOST_ROWS=2**11, LONG_ROWS=2**7, ARENA=2**11
    )
    monkeypatch.setattr("bpe.encode.encoder._GROUPS_PER_CALL", 1)
    texts, tables = documents()[::3], trained_tables()
    expected = [expected_ids([text]) for text in texts]

    def encode_all(seed: int) -> None:
        encoder, order = Encoder(tables), list(range(len(texts)))
        random.Random(seed).shuffle(order)
        for i in order:
            ids, _ = encoder.encode(*as_spans([texts[i]]))
            assert ids.tolist() == expected[i]

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(encode_all, range(3)))


@pytest.mark.parametrize("bits", [15, 16, 17, 21] if config.DISABLE_JIT else range(15, 22))
def test_ids_of_every_width(bits: int) -> None:
    # A row of the cache holds seven ids of 16 bits, and fewer of more bits.
    plain = Vocabulary.from_merges(trained())
    spread = (2**bits - 2) // (plain.size - 1)
    tokens = {number * spread: token for number, token in plain.tokens.items()}
    wide = Vocabulary(tokens, trained(), {})
    assert wide.size.bit_length() == bits
    texts = documents()[::3]
    encoder = Encoder(filled_tables(wide, "gpt2"))
    for _ in range(2):
        ids, _ = encoder.encode(*as_spans(texts))
        assert ids.tolist() == [number * spread for number in expected_ids(texts)]


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


@pytest.mark.parametrize("pattern", PATTERNS)
def test_short_texts_have_the_ids_of_the_reference(pattern: str) -> None:
    encoder = Encoder(trained_tables(pattern))
    # Longer and shorter ones by turns: nothing is left of the one before.
    texts = sorted(documents(), key=len)[:: 4 if config.DISABLE_JIT else 1]
    for text in itertools.chain(*zip(texts, texts[::-1], strict=True), ["a" * 2048, "é" * 1024]):
        assert encoder.encode_text(text.encode()) == expected_ids([text], pattern)


def test_texts_around_the_length_from_which_on_they_are_not_short() -> None:
    encoder = Encoder(trained_tables())
    for length in (encode._BOUND_TEXT - 1, encode._BOUND_TEXT, encode._BOUND_TEXT + 1):
        text = ("x don't 12 été  \n" * 200)[:length]
        assert encoder.encode_text(text.encode()) == expected_ids([text])
    assert encoder.encode_text(b"") == []


@pytest.mark.parametrize("arena", [128, 2**14])
def test_tables_of_short_texts_grow_and_begin_anew(
    arena: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"ROWS": 64, "MOST_ROWS": 2**12, "LONG_ROWS": 16, "MOST_LONG_ROWS": 2**11}
    short = {"SMALL_THREAD_CACHE": 8, "SHORT_ROWS": 64, "SHORT_LONG_ROWS": 16}
    with_small_tables(monkeypatch, **sizes, **short, SHORT_ARENA=arena, ARENA=arena)
    encoder = Encoder(EncoderTables(Vocabulary.from_merges([]), "gpt2"))
    seen = []
    for text in TENS:
        assert bytes(encoder.encode_text(text.encode())) == text.encode()
        current = encoder._tables.cache.current
        seen.append((current[0], len(current[1].rows), len(current[1].long_rows)))
    number, rows, long_rows = seen[-1]
    assert (number > 0) == (arena == 128)
    assert arena == 128 or (rows > 64 and long_rows > 16)


def test_longest_pretoken() -> None:
    chosen = random.Random(5)
    for _ in range(50 if config.DISABLE_JIT else 1000):
        n_bytes, at = chosen.randrange(1, 9000), 0
        bits = {0, n_bytes}
        while at < n_bytes:
            bits.add(at)
            steps = [1, 5, 64, 100, 2111, 2112, 2113, 2176, chosen.randrange(1900, 2600)]
            at += chosen.choice(steps)
        starts = np.zeros(n_bytes // 64 + 1, np.uint64)
        for bit in bits:
            starts[bit >> 6] |= np.uint64(1 << (bit & 63))
        longest = max(b - a for a, b in pairwise(sorted(bits)))
        assert encode_kernels.longest_pretoken(starts) == max(longest, merging.SCRATCH_BYTES)


def test_what_fills_up_is_not_taken_for_a_byte() -> None:
    texts = ["a", "a\0", "a\0\0", "ab\0", " " * 9, "abababab", "ababababa", "\0", "\0" * 9]
    encoder = Encoder(trained_tables())
    for _ in range(2):
        # What is not UTF-8 has no particular ids, but changes nothing for what comes later.
        for malformed in (b"a\xff", b"\xff", b"\xffa", b"\xff" * 8, b"ab\xff\xff", b"a\xff\0"):
            encoder.encode(np.frombuffer(malformed, np.uint8), np.array([[0, len(malformed)]]))
        ids, _ = encoder.encode(*as_spans(texts))
        assert ids.tolist() == expected_ids(texts)


def test_ids_that_are_too_wide_are_refused() -> None:
    tokens = {**{i: bytes([i]) for i in range(256)}, 2**21 - 1: b"ab"}
    with pytest.raises(VocabularyError, match=r"largest token id is 2,097,151; the encoder takes"):
        filled_tables(Vocabulary(tokens, [(b"a", b"b")], {}), "gpt2")


def test_tokens_of_every_length_up_to_the_end_of_the_text() -> None:
    encoder, chosen = Encoder(trained_tables()), random.Random(9)
    for longest in (3, 9, 17, 100):
        lengths = (chosen.randint(1, longest) for _ in range(40))
        text = " ".join("".join(chosen.choices("theantor", k=length)) for length in lengths)
        # Its last bytes are read from a copy.
        for cut in range(len(text) - 5, len(text)):
            ids, _ = encoder.encode(*as_spans([text[:cut]]))
            assert ids.tolist() == expected_ids([text[:cut]])


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_what_is_no_token_of_the_table(dtype: type[np.unsignedinteger[Any]]) -> None:
    """What is no token of up to eight bytes, of every length, between ends of documents."""
    encoder, chosen = Encoder(trained_tables(), None, np.dtype(dtype)), random.Random(11)
    for n in range(0, 60, 6 if config.DISABLE_JIT else 1):
        # Words of 1 to 40 bytes, some more than once; so many of one length that eight are.
        lengths = chosen.choices([*range(1, 20), 40], k=n)
        words = ["".join(chosen.choices("xqzj", k=length)) for length in lengths]
        # Keys that differ in their length alone; a space and a NUL do not come apart there.
        words = chosen.choices([*words, "z" * 15, "z" * 16, "!", "!\0", "!\0\0"], k=n)
        ends = chosen.choice([0.0, 0.2, 0.9])
        joined = "".join(("\n" if chosen.random() < ends else " ") + word for word in words)
        texts = joined.split("\n")
        for _ in range(2):
            ids, _ = encoder.encode(*as_spans(texts))
            assert ids.tolist() == expected_ids(texts)
