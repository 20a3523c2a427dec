"""Every kernel against the reference, on cases small enough to run uncompiled as well.

`test_kernel_modes.py` runs this file again without compilation and with bounds checks.
"""

from __future__ import annotations

import itertools
import random
import re
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from nasty import APOSTROPHES, SAMPLES, WHITE_SPACES
from numba import config
from numpy.typing import NDArray

from bpe import reference
from bpe.encoding import encoder as encode
from bpe.encoding import pretoken_cache
from bpe.encoding.encoder import Encoder, EncoderTables
from bpe.errors import EncodingError, VocabularyError
from bpe.kernels.encode import apply_merges as merging
from bpe.kernels.encode import cache_rows as word_kernels
from bpe.kernels.encode import encode_pretokens as encode_kernels
from bpe.kernels.encode import merge_short, merge_tables
from bpe.kernels.runtime import machine, vectors
from bpe.kernels.runtime.jit import kernel
from bpe.kernels.split.classes import sure_letters
from bpe.pretokenize.patterns import PATTERNS
from bpe.pretokenize.pretokenizer import Pretokenizer, find_all
from bpe.training import trainer as train
from bpe.training.counts import FrozenCounts, PretokenCounts, sum_counts
from bpe.training.trainer import train_from_counts
from bpe.unicode_classes import LETTER, class_table
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


@pytest.mark.parametrize("pattern", PATTERNS)
def test_split_gives_each_text_back(pattern: str) -> None:
    pretokenizer = Pretokenizer(pattern)
    for text in documents():
        pieces = pretokenizer.split(text.encode())
        assert pieces == [piece.encode() for piece in reference.split(text, pattern)]


def test_first_bytes_that_are_sure_to_begin_letters() -> None:
    classes = class_table()
    for first in range(0x80, 0x100):
        source = np.zeros(64, np.uint8)
        source[3] = source[62] = first
        if sure_letters(source, 0):
            assert sure_letters(source, 0) == 8
            begin = (first & 0x0F) << 12
            assert (classes[begin : begin + 0x1000] == LETTER).all()


def filled_tables(vocabulary: Vocabulary, pattern: str) -> EncoderTables:
    tables = EncoderTables(vocabulary, pattern)
    tables.fill_tokens()
    return tables


def trained() -> list[reference.Pair]:
    return reference.train(documents(), 256 + 60)


def test_encoder_gives_the_ids_of_the_reference() -> None:
    merges = trained()
    vocabulary = Vocabulary.from_merges(merges)
    rank = reference.rank_by_merges(merges)
    texts = documents()
    tables = EncoderTables(vocabulary, "gpt2")
    encoder = Encoder(tables)
    # The second time words come from the cache, then short tokens from the table of tokens.
    for number in range(3):
        if number == 2:
            tables.fill_tokens()
            encoder = Encoder(tables)
        ids, offsets = encoder.encode(*as_batch(texts))
        for i, text in enumerate(texts):
            tokens = [
                token
                for pretoken in reference.split(text)
                for token in reference.encode(pretoken.encode(), rank)
            ]
            got = [vocabulary.tokens[token_id] for token_id in ids[offsets[i] : offsets[i + 1]]]
            assert got == tokens


def test_whole_pretokens_come_first_with_tiktoken_ranks() -> None:
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b"abcd": 257, b" abcd": 258}
    vocabulary = Vocabulary.from_ranks(ranks, {})
    encoder = Encoder(filled_tables(vocabulary, "gpt2"))
    text = "abcd abcd ab xabcd"
    rank = reference.rank_by_bytes(ranks)
    expected = [
        ranks[token]
        for pretoken in reference.split(text)
        for token in reference.encode(pretoken.encode(), rank, ranks)
    ]
    ids, _ = encoder.encode(*as_batch([text]))
    assert ids.tolist() == expected


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
def test_long_pretokens_are_merged_alike_in_every_way(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a merge makes a pair that comes before it, as only ranks can have it."""
    monkeypatch.setattr(merging, "MIN_BUCKETED", 2)
    chosen = random.Random(1)
    early = met = 0
    for seed in range(5):
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
        tables = filled_tables(vocabulary, "gpt2").tables
        for length in (2, 3, 5, 16, 17, 30, 64, 65, 200, 300):
            text = bytes(chosen.choices(b"ab ", k=length))
            expected = [vocabulary.token_id(token) for token in reference.encode(text, rank)]
            rows = encode._rows(length, len(tables.merged))
            scratch = encode.group_scratch()._replace(**rows)
            buffer = np.frombuffer(b"x" + text + b"ab", np.uint8)
            ids = np.zeros(length + 3, np.uint32)
            for merge in (merging.merge_heap, merging.merge_bucketed, merging.merge_blocks):
                merge(tables, scratch, buffer, 1, 1 + length)
                n = merging.read_rows(scratch.rows, length, ids, 2)
                assert ids[2:n].tolist() == expected
            if length <= merge_short.MAX_SHORT:
                n = merge_short.merge_short(tables, scratch, buffer, 1, 1 + length, ids, 2)
                assert ids[2:n].tolist() == expected
            for window, bucketed in itertools.product((2, 9, 16, 40), (False, True)):
                for overlap in (1, window // 2, window - 1):
                    n = merging.merge_windows(
                        tables, scratch, buffer, 1, 1 + length, ids, 2, window, overlap, bucketed
                    )
                    assert n == -1 or ids[2:n].tolist() == expected
                    met += n >= 0 and length > window
    assert met > 50
    assert (early > 10) == (kind == "ranks")


def shuffled_merges(chosen: random.Random, alphabet: bytes) -> list[tuple[bytes, bytes]]:
    """Merges in any order: a token may be merged before it is made, and made in several ways."""
    tokens = [bytes([byte]) for byte in alphabet]
    merges = []
    for _ in range(chosen.choice([4, 10, 30, 60])):
        left, right = chosen.choice(tokens), chosen.choice(tokens)
        if len(left + right) <= 8 and (left, right) not in merges:
            merges.append((left, right))
            tokens += [left + right] if left + right not in tokens else []
    chosen.shuffle(merges)
    return merges


def test_pairs_that_are_merged_before_all_others() -> None:
    """Those that can be are, in whatever order a vocabulary merges."""
    chosen = random.Random(3)
    marked = before_all = 0
    for _ in range(6 if config.DISABLE_JIT else 300):
        alphabet = chosen.choice([b"ab", b"ab ", b"abcdef"])
        if chosen.random() < 0.3:
            merges = reference.train(["".join(chosen.choices("ab ", k=300))], 256 + 40)
        else:
            merges = shuffled_merges(chosen, alphabet)
        made = dict.fromkeys(left + right for left, right in merges)
        tokens = [*(bytes([byte]) for byte in range(256)), *made]
        vocabulary = Vocabulary(dict(enumerate(tokens)), merges, {})
        rank = reference.rank_by_merges(merges)
        tables, scratch = filled_tables(vocabulary, "gpt2").tables, encode.group_scratch()
        marked += int((tables.byte_pairs >> np.uint64(63)).sum())
        for length in (1, 2, 3, 4, 9, 16, 17, 33, 64):
            text = bytes(chosen.choices(alphabet, k=length))
            expected = [vocabulary.token_id(token) for token in reference.encode(text, rank)]
            buffer = np.frombuffer(b"x" + text + b"ab", np.uint8)
            first = merge_short.lay_out_bytes(tables, scratch, buffer, 1, length)
            before_all += int(first).bit_count()
            ids = np.zeros(length + 3, np.uint32)
            n = merge_short.merge_short(tables, scratch, buffer, 1, 1 + length, ids, 2)
            assert ids[2:n].tolist() == expected
    assert marked > 0
    assert before_all > 50


def text_of(chosen: random.Random, characters: list[bytes], length: int, noise: float) -> bytes:
    """Characters, often behind a space; with noise, bytes that are no character among them."""
    text = chosen.choice([b"", b" "])
    while len(text) < length:
        if chosen.random() < noise:
            text += bytes([chosen.choice(b"\x80\xa4\xc3\xe0\xf0\xff")])
        else:
            text += chosen.choice(characters)
    return text[:length]


def trained_on_bytes(texts: list[bytes], n: int) -> list[tuple[bytes, bytes]]:
    """Merges as `reference.train` finds them, of texts that may be no UTF-8 and are not split."""
    symbols = [[bytes([byte]) for byte in text] for text in texts]
    merges = []
    for _ in range(n):
        counts = Counter(pair for word in symbols for pair in pairwise(word))
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        for word in symbols:
            for i in range(len(word) - 1):
                if tuple(word[i : i + 2]) == best:
                    word[i : i + 2] = [best[0] + best[1]]
    return merges


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
    for _ in range(4 if config.DISABLE_JIT else 250):
        characters = chosen.sample(pool, chosen.choice([2, 3, 5]))
        characters += chosen.choice([[], [b"a"], [b"a", b" "], [b"\xf0\x9f\x80\x80"]])
        noise = chosen.choice([0, 0, 0.05, 0.3])
        if chosen.random() < 0.3:
            texts = [text_of(chosen, characters, 30, noise) for _ in range(30)]
            merges = list(dict.fromkeys(trained_on_bytes(texts, chosen.choice([4, 10, 40]))))
        else:
            merges = merges_of_characters(chosen, [c for c in characters if 1 < len(c) < 4])
        made = dict.fromkeys(left + right for left, right in merges)
        tokens = [*(bytes([byte]) for byte in range(256)), *made]
        vocabulary = Vocabulary(dict(enumerate(tokens)), merges, {})
        rank = reference.rank_by_merges(merges)
        tables, scratch = filled_tables(vocabulary, "gpt2").tables, encode.group_scratch()
        kinds = tables.characters >> merge_tables.FLAGS
        some_places += int(((kinds > 0) & (kinds < 2**merge_tables.KINDS - 1)).sum())
        for length in (1, 2, 3, 4, 9, 16, 17, 33, 64, 65, 150, 193):
            text = text_of(chosen, characters, length, noise)
            expected = [vocabulary.token_id(token) for token in reference.encode(text, rank)]
            # What is before it and behind it could be a part of a character.
            buffer = np.frombuffer(b"\xe0" + text + b"\xa4\xa4", np.uint8)
            ids = np.zeros(length + 3, np.uint32)
            if merge_short.begins_beyond_ascii(buffer, 1, 1 + length):
                n = merge_short.lay_out_characters(tables, scratch, buffer, 1, 1 + length)
                n_symbols, n_bytes = n_symbols + int(n), n_bytes + (length if n else 0)
            n = merging.merge_pretoken(tables, scratch, buffer, 1, 1 + length, ids, 2)
            assert ids[2:n].tolist() == expected
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
    tables, ids = filled_tables(vocabulary, "gpt2").tables, np.zeros(8, np.uint32)
    buffer = np.frombuffer(text, np.uint8)
    n = merging.merge_pretoken(tables, encode.group_scratch(), buffer, 0, len(text), ids, 0)
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
    with pytest.raises(VocabularyError, match=r"there are 741 merges; .* takes up to 740"):
        filled_tables(vocabulary, "gpt2")


def test_windows_that_do_not_meet() -> None:
    """No token begins among the bytes that two windows share: all is merged at once."""
    merges = [(b"a" * 2**k, b"a" * 2**k) for k in range(12)]
    vocabulary = Vocabulary.from_merges(merges)
    tables = filled_tables(vocabulary, "gpt2").tables
    expected = [vocabulary.token_id(b"a" * n) for n in [4096] * 16 + [64, 32, 4]]
    length = 65536 + 100
    assert (merging.WINDOW, merging.OVERLAP) == (65536, 1024)
    assert merging.BLOCKED == 2048
    buffer = np.full(length + 2, ord("a"), np.uint8)
    scratch = encode.group_scratch()._replace(**encode._rows(length, len(merges)))
    ids = np.zeros(length + 3, np.uint32)
    for windows in ((65536, 1024, True), (2048, 512, False)):
        n = merging.merge_windows(tables, scratch, buffer, 0, length, ids, 0, *windows)
        assert n == -1
    n = merging.merge_pretoken(tables, scratch, buffer, 0, length, ids, 0)
    assert ids[:n].tolist() == expected


def test_gaps_have_no_ids() -> None:
    encoder = Encoder(filled_tables(Vocabulary.from_merges(trained()), "gpt2"))
    chosen, texts = random.Random(8), documents()
    for _ in range(30):
        # Also nothing between two, and documents of which nothing is left.
        some = chosen.choices([*texts, "", "a"], k=9)
        gaps = [*chosen.choices(["", "<|endoftext|>", " ", "the" * 700, "é"], k=8), ""]
        pieces = [piece for both in zip(some, gaps, strict=True) for piece in both][:-1]
        for around in (
            {},
            {
                "prefix_id": 7,
                "suffix_id": 8,
                "starts_mid_document": True,
                "ends_mid_document": True,
            },
        ):
            expected, places = encoder.encode(*as_batch(some), **around)
            ids, found = encoder.encode(*as_batch(pieces), gaps=True, **around)
            assert ids.tolist() == expected.tolist()
            assert found.tolist() == places.tolist()
    ids, found = encoder.encode(np.zeros(0, np.uint8), np.zeros(0, np.int64), gaps=True)
    assert (ids.tolist(), found.tolist()) == ([], [0])


@pytest.mark.parametrize("starts_mid_document", [False, True])
@pytest.mark.parametrize("ends_mid_document", [False, True])
def test_ids_around_documents(starts_mid_document: bool, ends_mid_document: bool) -> None:
    encoder = Encoder(filled_tables(Vocabulary.from_merges([]), "gpt2"))
    ids, offsets = encoder.encode(
        *as_batch(["a", "", "bc"]),
        prefix_id=1000,
        suffix_id=2000,
        starts_mid_document=starts_mid_document,
        ends_mid_document=ends_mid_document,
    )
    first = [97, 2000] if starts_mid_document else [1000, 97, 2000]
    last = [1000, 98, 99] if ends_mid_document else [1000, 98, 99, 2000]
    assert ids.tolist() == [*first, 1000, 2000, *last]
    assert offsets.tolist() == [0, len(first), len(first) + 2, len(ids)]


def test_ids_of_another_type() -> None:
    tables = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    # Long ones, too: those that are merged in windows, with lists, and recalled.
    batch = as_batch([*documents(), "z" * 9000, "x" * 300, "x" * 300, "e" * 70_000])
    expected, places = Encoder(tables).encode(*batch, suffix_id=2**16 - 1)
    assert expected.dtype == np.uint32
    encoder = Encoder(tables, None, np.dtype(np.uint16))
    for _ in range(2):
        ids, found = encoder.encode(*batch, suffix_id=2**16 - 1)
        assert ids.dtype == np.uint16
        assert ids.tolist() == expected.tolist()
        assert found.tolist() == places.tolist()
    fresh = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    ids, _ = Encoder(fresh, None, np.dtype(np.uint16)).encode(*batch, suffix_id=2**16 - 1)
    assert ids.tolist() == expected.tolist()
    with pytest.raises(EncodingError, match="ids up to 65,536 do not fit into uint16"):
        encoder.encode(*batch, suffix_id=2**16)
    for other in ("uint8", "int64", ">u2", "float32"):
        with pytest.raises(EncodingError, match=f"ids are uint16 or uint32, not {other}: take one"):
            Encoder(tables, None, np.dtype(other))
    plain = Vocabulary.from_merges(trained())
    wide = Vocabulary(plain.tokens, plain.merges, {"<|wide|>": 2**16})
    with pytest.raises(EncodingError, match="ids up to 131,071 do not fit into uint16"):
        Encoder(filled_tables(wide, "gpt2"), None, np.dtype(np.uint16))


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_ids_in_memory_that_is_given(dtype: type[np.unsignedinteger[Any]]) -> None:
    tables = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    encoder = Encoder(tables, None, np.dtype(dtype))
    texts = documents()
    expected, places = encoder.encode(*as_batch(texts), prefix_id=1, suffix_id=2)
    given: list[NDArray[np.uint8]] = []

    def memory(n_bytes: int) -> NDArray[np.uint8]:
        # What it holds at first means nothing.
        given.append(np.full(n_bytes, 0xAB, np.uint8))
        return given[-1]

    ids, found = encoder.encode(*as_batch(texts), prefix_id=1, suffix_id=2, memory=memory)
    assert ids.dtype == dtype
    assert ids.tolist() == expected.tolist()
    assert found.tolist() == places.tolist()
    # Another call leaves them alone.
    encoder.encode(*as_batch(texts[::-1]), memory=memory)
    assert ids.tolist() == expected.tolist()
    assert len(given) == 2
    assert np.shares_memory(ids, given[0])
    # No document, no id, with and without.
    for each in (memory, None):
        ids, found = encoder.encode(np.empty(0, np.uint8), np.zeros(1, np.int64), memory=each)
        assert (ids.dtype, len(ids), found.tolist()) == (dtype, 0, [0])


def test_no_documents() -> None:
    encoder = Encoder(filled_tables(Vocabulary.from_merges([]), "gpt2"))
    ids, offsets = encoder.encode(*as_batch([]), prefix_id=1, suffix_id=2)
    assert ids.tolist() == []
    assert offsets.tolist() == [0]


def with_small_tables(monkeypatch: pytest.MonkeyPatch, **sizes: int) -> None:
    """Tables of so many words of 8 bytes; those with a limit do not grow unless that is given."""
    for name, n in sizes.items():
        module = "encoder" if name.endswith("THREAD_CACHE") else "pretoken_cache"
        monkeypatch.setattr(f"bpe.encoding.{module}._{name}", n)
        if name in ("ROWS", "LONG_ROWS"):
            most = sizes.get(f"MOST_{name}", n)
            monkeypatch.setattr(f"bpe.encoding.pretoken_cache._MOST_{name}", most)


@pytest.mark.parametrize("small", ["ARENA", "LONG_ROWS", "ROWS"])
def test_full_tables_begin_anew(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of each kind more than there is room for: short ones, short ones of many ids, long ones.
    roomy = {"THREAD_CACHE": 8, "ROWS": 2**12, "LONG_ROWS": 2**10, "ARENA": 2**12}
    with_small_tables(monkeypatch, **(roomy | {small: 128}))
    encoder = Encoder(filled_tables(Vocabulary.from_merges([]), "gpt2"))
    words = [chr(97 + i % 26) * (2 + i % 28) for i in range(200)]
    seen = []
    for first in range(0, 400, 10):
        text = " ".join((words * 2)[first : first + 10])
        ids, _ = encoder.encode(*as_batch([text]))
        assert bytes(ids.astype(np.uint8)) == text.encode()
        _, current, _ = encoder._tables.cache.current
        if not any(current is words for words in seen):
            seen.append(current)
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
            ids, _ = encoder.encode(*as_batch([text]))
            assert ids.tolist() == [
                256 if byte == b"xy" else ord(byte) for byte in re.findall(b"xy|.", text.encode())
            ]
        _, current, _ = encoder._tables.cache.current
        taken.append(
            (
                np.count_nonzero(current.rows[1::4]),
                np.count_nonzero(current.long_rows[1::2]),
                int(current.used[word_kernels.ARENA_USED]),
            )
        )
    assert len(current.rows) >= 2**10
    assert len(current.long_rows) >= 2**7
    # Words were moved along: none is put in anew.
    assert min(taken[0]) >= 60
    assert taken[0] == taken[1]


def words_of(n_rows: int, n_long_rows: int) -> word_kernels.PretokenCache:
    """Empty tables."""
    arena = np.zeros(256, np.uint64)
    return word_kernels.PretokenCache(
        rows=np.zeros(4 * n_rows, np.uint64),
        long_rows=np.zeros(2 * n_long_rows, np.uint64),
        arena=arena,
        arena_bytes=arena.view(np.uint8),
        used=np.zeros(3, np.int64),
        limits=np.array([n_rows, n_long_rows, len(arena)]),
        own=np.zeros(4, np.int64),
    )


def key_of(number: int) -> tuple[np.uint64, np.uint64]:
    return np.uint64(number * 0x9E3779B97F4A7C15 % 2**64), np.uint64(8 << 56)


def find(words: word_kernels.PretokenCache, number: int) -> int:
    """Where `put` has put the row of a number, or -2 less where it would, or -1."""
    low, high = key_of(number)
    bucket = np.int64(word_kernels.row_bucket(low, high, words.rows))
    return int(word_kernels.find_row(words.rows, bucket, low, high))


def put(words: word_kernels.PretokenCache, number: int) -> int:
    """Add a row of its own for a number, unless it is there; its place is returned."""
    low, high = key_of(number)
    at = find(words, number)
    if at >= 0:
        return at
    return int(word_kernels.add_row(words, at, low, high, np.uint64(number), np.uint64(1)))


@pytest.mark.parametrize("n_rows", [4, 8, 32, 64])
def test_rows_are_found_until_there_is_no_room(n_rows: int) -> None:
    words = words_of(n_rows, 4)
    places: dict[int, int] = {}
    for number in range(1, 100):
        free = find(words, number)
        assert free < 0
        assert word_kernels.still_free(words.rows, free) or free == -1
        place = put(words, number)
        if place >= 0:
            assert free == -2 - place
            assert not word_kernels.still_free(words.rows, free)
            assert words.rows[place : place + 4].tolist() == [*key_of(number), number, 1]
            assert put(words, number) == place  # not a second time
            places[number] = place
        assert [find(words, known) for known in places] == list(places.values())
    # A row that finds room in none of its buckets is left out; of 8 buckets each finds any.
    assert n_rows * 3 // 4 <= len(places) == len(set(places.values())) <= n_rows
    assert len(places) == n_rows or n_rows > 32
    assert words.own[word_kernels.ROWS_ADDED] == len(places)


def test_a_row_that_somebody_fills_is_none_yet() -> None:
    words = words_of(4, 4)
    words.rows[1] = word_kernels._CLAIMED
    assert put(words, 5) == 4
    assert (find(words, 5), find(words, 6)) == (4, -2 - 8)
    larger = words_of(16, 4)
    word_kernels.move_rows(words.rows, larger, False)
    assert np.count_nonzero(larger.rows[1::4]) == 1
    assert larger.rows[find(larger, 5) + 2] == 5
    words.long_rows[1] = word_kernels._CLAIMED
    text = np.frombuffer(b"0123456789abcdefghi", np.uint8)
    text.flags.writeable = False
    hashed = word_kernels.hash_bytes(text, 0, len(text))
    free = word_kernels.find_long_row(words, hashed, text, 0, len(text))
    assert free == -2 - 2
    assert word_kernels.still_free(words.long_rows, free)
    ids = np.arange(3, dtype=np.uint32)
    place = word_kernels.remember(words, ids, 2, text, 0, len(text))
    entry = np.uint64(int(place) << 22 | 2 << 11 | len(text))
    assert word_kernels.add_long_row(words, free, hashed, entry) == 2
    assert word_kernels.find_long_row(words, hashed, text, 0, len(text)) == 2
    # The hash alone is not believed.
    other = np.frombuffer(b"0123456789abcdefghj", np.uint8)
    assert word_kernels.find_long_row(words, hashed, other, 0, len(other)) == -2 - 4
    assert not word_kernels.still_free(words.long_rows, free)
    larger = words_of(4, 16)._replace(arena=words.arena, arena_bytes=words.arena_bytes)
    word_kernels.move_rows(words.long_rows, larger, True)
    assert np.count_nonzero(larger.long_rows[1::2]) == 1
    at = int(word_kernels.find_long_row(larger, hashed, text, 0, len(text)))
    assert larger.long_rows[at + 1] == entry


def test_rows_that_move_are_all_there() -> None:
    # Some buckets are full and some are not; then a table of as many buckets, and one of more.
    words = words_of(4 * 64, 4)
    for number in range(1, 200):
        assert put(words, number) >= 0
    for times in (1, 4):
        larger = words_of(4 * 64 * times, 4)
        word_kernels.move_rows(words.rows, larger, False)
        assert sorted(larger.rows[2::4].tolist())[-199:] == list(range(1, 200))
        assert all(larger.rows[find(larger, number) + 2] == number for number in range(1, 200))


@kernel
def _add_and_check(words, n):
    """Add rows whose ids follow from the key. Returns how many are found with others."""
    wrong = 0
    for i in range(n):
        low, high = np.uint64(i * 40503), np.uint64(8 << 56)
        bucket = np.int64(word_kernels.row_bucket(low, high, words.rows))
        at = word_kernels.find_row(words.rows, bucket, low, high)
        if at < 0:
            at = word_kernels.add_row(words, at, low, high, np.uint64(i), low ^ high)
        if at >= 0 and (words.rows[at + 2] != np.uint64(i) or words.rows[at + 3] != low ^ high):
            wrong += 1
    return wrong


def test_who_finds_a_row_finds_all_of_it() -> None:
    n = 200 if config.DISABLE_JIT else 100_000
    for _ in range(2 if config.DISABLE_JIT else 20):
        words = words_of(2**18, 4)
        with ThreadPoolExecutor(4) as pool:
            # One after the other in the same rows, as closely as threads come.
            each = [words._replace(own=np.zeros(4, np.int64)) for _ in range(4)]
            assert list(pool.map(_add_and_check, each, [n] * 4)) == [0] * 4
        assert np.count_nonzero(words.rows[1::4] == np.uint64(8 << 56)) >= n


@pytest.mark.skipif(config.DISABLE_JIT, reason="uncompiled there are no instructions to look at")
def test_rows_are_published_in_order_on_every_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    # A processor that keeps the order of all stores would not notice if it were not asked for.
    from bpe.kernels.runtime import plain_numba

    # Numba shows nothing of code that comes from a cache.
    monkeypatch.setattr(plain_numba, "kept_code", lambda: SimpleNamespace(directory=None))
    share = plain_numba.dispatcher.__wrapped__(_share)
    share(np.zeros(3, np.uint64), np.zeros(2, np.int64), 0, np.uint64(1))
    (code,) = share.inspect_llvm().values()
    for expected in (
        r"load atomic i64, .* acquire",
        r"store atomic i64 .* release",
        r"cmpxchg .* acq_rel acquire",
        r"atomicrmw add .* monotonic",
    ):
        assert re.search(expected, code)


def test_idle_encoders_keep_no_words_that_were_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with_small_tables(monkeypatch, THREAD_CACHE=8, ROWS=64, LONG_ROWS=64, ARENA=256)
    tables = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    idle = Encoder(tables)
    idle.encode(*as_batch(["a few words"]))
    before = weakref.ref(tables.cache.current[1].rows)
    Encoder(tables).encode(*as_batch(documents()))
    assert tables.cache.current[0] > 1  # the first is that of the filled tables
    assert before() is None
    idle.encode(*as_batch(["a few words"]))


def test_a_word_is_merged_for_all_encoders_once() -> None:
    tables = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    first, second = Encoder(tables), Encoder(tables)
    expected, _ = first.encode(*as_batch(documents()))
    before = [array.copy() for array in tables.cache.current[1]]
    assert before[0].any()
    ids, _ = second.encode(*as_batch(documents()))
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
        *as_batch(documents())
    )
    before = tables.cache.current
    with tables.cache._lock:
        for _ in range(2):
            ids, _ = encoder.encode(*as_batch(documents()))
            assert (ids == expected).all()
            assert tables.cache.current is before
    encoder.encode(*as_batch(documents()))
    assert tables.cache.current is not before


def test_threads_add_to_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    # Small tables, so that they meet at the same rows, and replace what others use.
    with_small_tables(
        monkeypatch, THREAD_CACHE=64, ROWS=2**8, MOST_ROWS=2**11, LONG_ROWS=2**7, ARENA=2**11
    )
    monkeypatch.setattr("bpe.encoding.encoder._GROUPS_PER_CALL", 1)
    texts = documents()[::3]
    tables = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    alone = Encoder(filled_tables(Vocabulary.from_merges(trained()), "gpt2"))
    expected = [alone.encode(*as_batch([text]))[0] for text in texts]

    def encode_all(seed: int) -> None:
        encoder, order = Encoder(tables), list(range(len(texts)))
        random.Random(seed).shuffle(order)
        for i in order:
            ids, _ = encoder.encode(*as_batch([texts[i]]))
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
    expected, _ = Encoder(filled_tables(plain, "gpt2")).encode(*as_batch(texts))
    encoder = Encoder(filled_tables(wide, "gpt2"))
    for _ in range(2):
        ids, _ = encoder.encode(*as_batch(texts))
        assert (ids == expected * np.uint32(spread)).all()


def words_of_places(rows: list[int]) -> list[int]:
    """The 8 bytes that would be found equal to each row of the table of tokens."""
    bits, undo = encode_kernels.TOKEN_BITS, pow(0x9E3779B97F4A7C15, -1, 2**64)
    words = []
    for place, row in enumerate(rows):
        mixed = row >> bits << bits | place
        words.append((mixed >> bits | mixed << (64 - bits)) * undo % 2**64)
    return words


def test_an_interrupted_table_of_tokens_is_filled_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    tables = EncoderTables(Vocabulary.from_merges(trained()), "gpt2")
    before = tables.tables.tokens.copy()
    with monkeypatch.context() as patch:
        patch.setattr(encode, "_fill_tokens", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tables.fill_tokens()
    tables.fill_tokens()
    assert (tables.tables.tokens != before).any()


@pytest.mark.parametrize("ignore_merges", [False, True])
def test_table_of_tokens_has_nothing_but_tokens(ignore_merges: bool) -> None:
    merges = reference.train(documents(), 256 + 300)
    vocabulary = Vocabulary.from_merges(merges)
    if ignore_merges:
        ranks = {token: rank for rank, token in vocabulary.tokens.items()}
        vocabulary = Vocabulary.from_ranks(ranks, {})
    rows = filled_tables(vocabulary, "gpt2").tables.tokens.tolist()
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
    rows = filled_tables(Vocabulary(moved, merges, {}), "gpt2").tables.tokens.tolist()
    found = {
        (row ^ place) % (most + 1): word
        for place, (row, word) in enumerate(zip(rows, words_of_places(rows), strict=True))
        if word & 0xFF != 0xFF
    }
    assert most in found
    assert len(found) > 250
    for token_id, word in found.items():
        assert word.to_bytes(8, "little") == moved[token_id].ljust(8, b"\xff")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_short_texts_have_the_ids_of_the_reference(pattern: str) -> None:
    merges = trained()
    vocabulary, rank = Vocabulary.from_merges(merges), reference.rank_by_merges(merges)
    encoder = Encoder(filled_tables(vocabulary, pattern))
    # Longer and shorter ones by turns: nothing is left of the one before.
    texts = sorted(documents(), key=len)
    for text in itertools.chain(*zip(texts, texts[::-1], strict=True), ["a" * 2048, "é" * 1024]):
        expected = [
            vocabulary.token_id(token)
            for pretoken in reference.split(text, pattern)
            for token in reference.encode(pretoken.encode(), rank)
        ]
        assert encoder.encode_text(text.encode()) == expected


def test_texts_around_the_length_from_which_on_they_are_not_short() -> None:
    tables = filled_tables(Vocabulary.from_merges(trained()), "gpt2")
    encoder = Encoder(tables)
    for length in (encode._SHORT_TEXT - 1, encode._SHORT_TEXT, encode._SHORT_TEXT + 1):
        text = ("x don't 12 été  \n" * 200)[:length]
        expected, _ = Encoder(tables).encode(*as_batch([text]))
        assert encoder.encode_text(text.encode()) == expected[: len(expected)].tolist()
    assert encoder.encode_text(b"") == []


@pytest.mark.parametrize("arena", [128, 2**14])
def test_tables_of_short_texts_grow_and_begin_anew(
    arena: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"ROWS": 64, "MOST_ROWS": 2**12, "LONG_ROWS": 16, "MOST_LONG_ROWS": 2**11}
    short = {"SHORT_THREAD_CACHE": 8, "SHORT_ROWS": 64, "SHORT_LONG_ROWS": 16}
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
        monkeypatch, SHORT_THREAD_CACHE=8, ROWS=64, LONG_ROWS=16, ARENA=128
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
    ids, _ = encoder.encode(*as_batch(["abc", "bc", "ab"]))
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
            encoder.encode(np.frombuffer(malformed, np.uint8), np.array([0, len(malformed)]))
        ids, _ = encoder.encode(*as_batch(texts))
        assert ids.tolist() == expected


def test_ids_that_are_too_wide_are_refused() -> None:
    tokens = {**{i: bytes([i]) for i in range(256)}, 2**21 - 1: b"ab"}
    with pytest.raises(VocabularyError, match=r"largest token id is 2,097,151; the encoder takes"):
        filled_tables(Vocabulary(tokens, [(b"a", b"b")], {}), "gpt2")


def test_counts_are_those_of_the_reference() -> None:
    texts = documents()
    counts = PretokenCounts()
    for some in (texts[:5], texts[5:]):
        counts.add(*as_batch(some))
    assert dict(counts.items()) == dict(reference.count(texts))
    assert counts.total == sum(reference.count(texts).values())


def test_counts_of_two_threads_are_those_of_one() -> None:
    texts = documents()
    of_threads = [PretokenCounts(), PretokenCounts()]
    for counts, some in zip(of_threads, (texts[:5], texts[2:]), strict=True):
        counts.add(*as_batch(some))
    buffer, offsets, found = sum_counts(of_threads).arrays()
    words = [buffer[i:j].tobytes() for i, j in pairwise(offsets.tolist())]
    assert len(set(words)) == len(words)
    assert dict(zip(words, found.tolist(), strict=True)) == dict(
        reference.count(texts[:5] + texts[2:])
    )


def test_pretokens_that_begin_alike_stand_side_by_side() -> None:
    words = [b"a", b" a", b" ab", b"ab", b" abandon", b"abbreviations and more", b"b", b" ", b"  "]
    words += [b" \xe6\x97\xa5 a long one of these", b"\xe6\x97\xa5", b"\xe6\x97", b"\0", b" \0"]
    weights = np.arange(1, 1 + len(words))
    offsets = np.cumsum([0, *map(len, words)])
    counts = PretokenCounts()
    buffer = np.frombuffer(b"".join(words), np.uint8)
    counts.merge(FrozenCounts("gpt2", (), buffer, offsets, weights))
    assert len(counts) == len(words)
    buffer, offsets, found = counts.arrays()
    got = [buffer[i:j].tobytes() for i, j in pairwise(offsets.tolist())]
    assert dict(zip(got, found.tolist(), strict=True)) == dict(
        zip(words, weights.tolist(), strict=True)
    )
    letters = [word.removeprefix(b" ").ljust(2, b"\0")[:2] for word in got]
    assert letters == sorted(letters)


@pytest.mark.parametrize("tie_break", reference.TIE_BREAKS)
def test_merges_are_those_of_the_reference(tie_break: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "_PART_OF_ROWS", 2**12)
    texts = documents()
    counts = PretokenCounts()
    counts.add(*as_batch(texts))
    tokenizer = train_from_counts(counts, 256 + 40, tie_break=tie_break, workers=3)
    assert tokenizer.merges == reference.train(texts, 256 + 40, tie_break=tie_break)


@pytest.mark.parametrize("tie_break", reference.TIE_BREAKS)
def test_more_pairs_than_there_was_room_for(
    tie_break: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "_PAIRS", 1)
    # Few pairs of bytes, and many of what they make.
    chosen = random.Random(3)
    texts = ["".join(chosen.choices("abc", k=60)) for _ in range(30)]
    grown = []
    larger = train._grown
    monkeypatch.setattr(train, "_grown", lambda pairs: grown.append(1) or larger(pairs))
    counts = PretokenCounts()
    counts.add(*as_batch(texts))
    tokenizer = train_from_counts(counts, 256 + 200, tie_break=tie_break, min_frequency=1)
    assert tokenizer.vocabulary.merges == reference.train(
        texts, 256 + 200, tie_break=tie_break, min_frequency=1
    )
    assert len(grown) > 2


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


def test_what_threads_share_equals_its_plain_twin() -> None:
    words, counts = np.array([0, 5, 0], np.uint64), np.array([3, -2])
    plain_words, plain_counts = words.copy(), counts.copy()
    for i, value in ((0, 7), (0, 8), (1, 9), (2, 2**64 - 1)):
        expected = (
            machine.compare_exchange(plain_words, i, np.uint64(value)),
            machine.load_acquire(plain_words, i),
            machine.add_atomically(plain_counts, i & 1, i - 5),
        )
        assert _share(words, counts, i, np.uint64(value)) == expected
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
            vectors.without(a, 0b10110010),
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
    _put_eight(vectors.without(a, np.uint64(0b10110010)), halves, np.uint64(208))
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
def _share(words, counts, i, value):
    claimed = machine.compare_exchange(words, i, value)
    found = machine.load_acquire(words, i)
    before = machine.add_atomically(counts, i & 1, i - 5)
    machine.store_release(words, 1, value)
    return claimed, found, before


@kernel
def _store_halves_of_two(first, second, target, j):
    machine.store_halves_of_two(first, second, target, j)


@kernel
def _copy_16_ids(source, i, target, j):
    machine.copy_16_ids(source, i, target, j)


@kernel
def _store(array, i, word, bits):
    machine.store_four_ids(array, i, word, bits)


@kernel
def _minimum(array, i):
    return machine.minimum_of_16(array, i)


@kernel
def _minimum_of_others(array, i, a, b, c):
    return machine.minimum_of_others(array, i, machine.ONE_PLACE, a, b, c)
