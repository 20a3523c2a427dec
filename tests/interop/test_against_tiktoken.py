"""Against tiktoken: the same ranks give the same ids, for every code point and for nasty text."""

from __future__ import annotations

import random
from itertools import accumulate

import numpy as np
import pytest
import tiktoken
import trained
from hypothesis import given, settings
from hypothesis import strategies as st
from nasty import APOSTROPHES, LONE_MARKS, NEARLY_SPACES, SAMPLES, WHITE_SPACES, nasty_texts

from bpe import Tokenizer, load_tokenizer
from bpe.encode.encoder import Encoder, EncoderTables
from bpe.split.patterns import PATTERNS
from bpe.vocabulary import Vocabulary

SPECIAL = ["<|endoftext|>", "<|pad|>"]
TRAINED = Tokenizer.from_vocabulary(Vocabulary.from_merges(trained.merges(), SPECIAL))
# Built from the pattern as published and ranks counted off here, not by our own to_tiktoken.
ENCODING = tiktoken.Encoding(
    "oracle",
    pat_str=PATTERNS["gpt2"],
    mergeable_ranks={
        token: rank
        for rank, token in enumerate(
            [bytes([byte]) for byte in range(256)] + [a + b for a, b in trained.merges()]
        )
    },
    special_tokens={text: 856 + index for index, text in enumerate(SPECIAL)},
)
# As tiktoken ranks them: a whole pre-token first, pairs by the bytes that they make.
TAKEN_OVER = Tokenizer.from_tiktoken(ENCODING)
BOTH = (TRAINED, TAKEN_OVER)
CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]



@pytest.fixture(autouse=True, scope="module")
def long_text() -> None:
    """Encode more than the 1 MiB after which short tokens are looked up in a table of their own."""
    check(["the quick brown fox " * 2**16])


def check(texts: list[str]) -> None:
    expected = [ENCODING.encode_ordinary(text) for text in texts]
    flat = [token_id for ids in expected for token_id in ids]
    for tokenizer in BOTH:
        ids, offsets = tokenizer.encode_batch_to_numpy(texts, allowed_special=())
        if ids.tolist() != flat:
            # Say which text it is.
            assert tokenizer.encode_batch(texts, allowed_special=()) == expected
        assert offsets.tolist() == [0, *accumulate(map(len, expected))]
    assert TRAINED.decode(flat) == "".join(texts)


@settings(max_examples=300)
@given(nasty_texts())
def test_nasty_text(texts: list[str]) -> None:
    check(texts)


@pytest.mark.parametrize(("around", "n"), [("{0}", 1), ("a{0}b1{0}2 {0} ", 64)])
def test_every_code_point_alone_and_between_letters_digits_and_spaces(around: str, n: int) -> None:
    placed = [around.format(character) for character in CHARACTERS]
    texts = ["".join(placed[first : first + n]) for first in range(0, len(placed), n)]
    for first in range(0, len(texts), 1 << 16):
        check(texts[first : first + (1 << 16)])


@pytest.mark.parametrize("joint", ["", "'", " "])
def test_every_code_point_in_one_text(joint: str) -> None:
    text = joint.join(CHARACTERS)
    expected = ENCODING.encode_to_numpy(text)
    for tokenizer in BOTH:
        np.testing.assert_array_equal(tokenizer.encode_to_numpy(text), expected)


def test_all_pairs_of_strange_characters_in_all_surroundings() -> None:
    strange = [*WHITE_SPACES, *NEARLY_SPACES, *LONE_MARKS, *APOSTROPHES, *"aé1½!日"]
    check([f"{a}{b}{end}" for a in strange for b in strange for end in ("", "x", " x", "'s")])


def test_lengths_around_the_blocks_of_the_kernels() -> None:
    pieces = [*"a 1!é日\u0301\u3000😀\n", "'s", "a ", " a", "\r\n"]
    lengths = [*range(1, 20), *range(58, 70), *range(122, 134)]
    ends = [("", ""), ("x ", ""), ("", "y"), ("x ", " z")]
    check([a + piece * length + b for piece in pieces for length in lengths for a, b in ends])


def test_long_runs() -> None:
    # tiktoken itself fails near a million spaces before a word.
    check([piece * 70_000 + "x" for piece in [*"a =1日\n", "ab", "a\u0301"]])
    # One piece each, without a place to cut, of which pairs are listed by rank.
    chosen = random.Random(2)
    for alphabet in ("0123456789", "abcdefghijklmnopqrstuvwxyz", "ab", "ἀбあ"):
        check(["".join(chosen.choices(alphabet, k=70_000))])
    check([sample * 300 for sample in SAMPLES])


@settings(max_examples=200)
@given(
    st.lists(
        st.binary(min_size=2, max_size=6).map(lambda b: bytes(97 + x % 3 for x in b)), unique=True
    ),
    st.lists(st.text("abc ", max_size=30), max_size=10),
)
def test_ranks_that_nobody_trained(tokens: list[bytes], texts: list[str]) -> None:
    ranks = {token: rank for rank, token in enumerate([*(bytes([b]) for b in range(256)), *tokens])}
    encoding = tiktoken.Encoding(
        "any", pat_str=PATTERNS["gpt2"], mergeable_ranks=ranks, special_tokens={}
    )
    tokenizer = Tokenizer.from_tiktoken(encoding)
    texts += ["".join(token.decode() for token in tokens)]
    texts += [token.decode() for token in tokens]
    expected = [encoding.encode_ordinary(text) for text in texts]
    assert tokenizer.encode_batch(texts) == expected
    # Of tables in which short tokens are looked up first, as they are after 1 MiB of text.
    tables = EncoderTables(tokenizer.vocabulary, "gpt2")
    tables.fill_tokens()
    buffer = np.frombuffer("".join(texts).encode(), np.uint8)
    offsets = np.cumsum([0, *(len(text.encode()) for text in texts)])
    ids, _ = Encoder(tables).encode(buffer, np.stack([offsets[:-1], offsets[1:]], axis=1))
    assert ids.tolist() == [token_id for document in expected for token_id in document]


@settings(max_examples=100)
@given(nasty_texts(5), st.sampled_from([*SPECIAL, "<|endof", "".join(SPECIAL)]))
def test_special_tokens(texts: list[str], special: str) -> None:
    text = special.join(texts)
    for tokenizer in BOTH:
        assert tokenizer.encode(text) == ENCODING.encode(text, allowed_special="all")
        assert tokenizer.encode(text, allowed_special=["<|pad|>"]) == ENCODING.encode(
            text, allowed_special={"<|pad|>"}, disallowed_special=()
        )


def test_to_tiktoken_and_back() -> None:
    encoding = TRAINED.to_tiktoken("ours")
    assert encoding.name == "ours"
    assert encoding.n_vocab == TRAINED.vocab_size
    assert encoding._mergeable_ranks == ENCODING._mergeable_ranks
    assert encoding._special_tokens == ENCODING._special_tokens
    assert encoding.eot_token == 856
    again = Tokenizer.from_tiktoken(encoding)
    assert again == TAKEN_OVER
    assert again.merges == TRAINED.merges
    assert again.pattern == "gpt2"
    assert again.eos_token == "<|endoftext|>"
    for text in trained.documents():
        assert encoding.encode(text, allowed_special="all") == TRAINED.encode(text)


@pytest.mark.parametrize("name", ["cl100k", "cl100k_base", "o200k", "gpt2"])
def test_names_of_encodings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of an encoding are on a server, so the name is all that is looked at."""
    asked = list[str]()
    monkeypatch.setattr(Tokenizer, "from_tiktoken", asked.append)
    load_tokenizer(name)
    assert asked == [f"{name.removesuffix('_base')}_base" if name != "gpt2" else name]
