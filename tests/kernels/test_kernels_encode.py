"""The kernels of encoding: ids are those of `bpe.reference.encode`, however they are merged."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from kernel_cases import as_spans, documents, filled_tables, trained
from numba import config

from bpe import reference
from bpe.encode import encoder as encode
from bpe.encode import merge as merging
from bpe.encode import model as merge_tables
from bpe.encode.encoder import Encoder, EncoderTables
from bpe.errors import VocabularyError
from bpe.vocabulary import Vocabulary


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
        ids, offsets = encoder.encode(*as_spans(texts))
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
    ids, _ = encoder.encode(*as_spans([text]))
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
def test_pretokens_are_merged_alike_in_both_ways(kind: str) -> None:
    """Also where a merge makes a pair that comes before it, as only ranks can have it."""
    chosen = random.Random(1)
    early = 0
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
        tables = filled_tables(vocabulary, "gpt2").model
        for length in (2, 3, 5, 16, 17, 30, 64, 65, 200, 300):
            text = bytes(chosen.choices(b"ab ", k=length))
            expected = [vocabulary.token_id(token) for token in reference.encode(text, rank)]
            scratch, ids = encode.new_work(), np.zeros(length + 3, np.uint32)
            buffer = np.frombuffer(b"x" + text + b"ab", np.uint8)
            merging.merge_heap(tables, scratch, buffer, 1, 1 + length)
            n = merging.read_links(scratch.links, length, ids)
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
