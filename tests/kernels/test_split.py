"""Every pattern: the scanner against the reference, both against tiktoken's engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from engines import differs_in_tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from nasty import APOSTROPHES, SAMPLES, WHITE_SPACES, nasty_texts, pattern_texts

from bpe import reference
from bpe.split.patterns import PATTERNS, to_tiktoken
from bpe.split.pretokenizer import Pretokenizer
from bpe.split.sets import BLOCKS as GROUP

# That each code point has the class that the engines give it is tested in test_unicode_classes.py.
CHARACTERS = [chr(c) for c in [*range(0x3000), *range(0x3000, 0x110000, 97)] if c >> 11 != 0x1B]
STRANGE = ["'s", "'RE", "'\u017f", "\n  \n", "\n  x", "!\n/\n", "!\n/a", "12345", "٣٣٣٣", "aB",
           "中AB", "中Ab", "\u0301", "!!\u0301a", " \u0301!", "\u3000\u3000x", "\xa0x",
           "\r\n"]  # fmt: skip
PRETOKENIZERS = {pattern: Pretokenizer(pattern) for pattern in PATTERNS}
by_pattern = pytest.mark.parametrize("pattern", PATTERNS)


def places(texts: list[str], pattern: str) -> list[int]:
    """Return where the scanner begins pre-tokens in texts one after the other, and the end."""
    encoded = [text.encode() for text in texts]
    offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
    data = np.frombuffer(b"".join(encoded), np.uint8)
    starts = PRETOKENIZERS[pattern].boundaries(data, offsets)
    return np.flatnonzero(np.unpackbits(starts.view(np.uint8), bitorder="little")).tolist()


def expected_places(texts: list[str], pattern: str) -> list[int]:
    lengths = [len(p.encode()) for text in texts for p in reference.split(text, pattern)]
    return np.cumsum([0, *lengths]).tolist()


def scanned(pattern: str) -> Callable[[str], list[str]]:
    split = PRETOKENIZERS[pattern].split
    return lambda text: [piece.decode() for piece in split(text.encode())]


@settings(max_examples=300)
@given(st.one_of(pattern_texts(), nasty_texts()))
def test_the_scanner_is_the_reference(texts: list[str]) -> None:
    for pattern in PATTERNS:
        assert places(texts, pattern) == expected_places(texts, pattern), pattern


@settings(max_examples=80)
@given(st.one_of(pattern_texts(30), nasty_texts(30)))
def test_the_reference_is_tiktokens_engine(texts: list[str]) -> None:
    for pattern in PATTERNS:
        split = partial(reference.split, pattern=pattern)
        for regex in {to_tiktoken(pattern), PATTERNS[pattern]}:
            assert differs_in_tiktoken(regex, texts, split) is None, pattern


@by_pattern
@pytest.mark.parametrize(
    "around", ["{0}", "a{0}b1{0}2 {0} {0}\n", "'{0}'{0}s A{0}a", "!{0}\n{0}A", "中{0}A {0}/{0}"]
)
def test_code_points_in_all_surroundings(pattern: str, around: str) -> None:
    texts = [
        "\n".join(around.format(character) for character in CHARACTERS[first : first + 64])
        for first in range(0, len(CHARACTERS), 64)
    ]
    assert differs_in_tiktoken(to_tiktoken(pattern), texts, scanned(pattern)) is None


@by_pattern
def test_every_offset_in_a_block(pattern: str) -> None:
    for offset in range(64):
        texts = [
            filling * offset + piece + end
            for filling in ("x", " ", "\n")
            for piece in STRANGE
            for end in ("", "y", " ", "\n", "'s")
        ]
        # Alone, so that the offset is that in its block.
        for text in texts:
            assert places([text], pattern) == expected_places([text], pattern), text


@by_pattern
def test_the_edge_of_a_group_of_blocks(pattern: str) -> None:
    edge = 64 * GROUP
    for offset in range(edge - 6, edge + 2):
        texts = [
            filling * offset + piece + end
            for filling in ("x", " ")
            for piece in STRANGE
            for end in ("", "\n", "'s")
        ]
        for text in texts:
            assert places([text], pattern) == expected_places([text], pattern), text[edge - 6 :]


@by_pattern
def test_long_white_space_with_line_ends_anywhere(pattern: str) -> None:
    source = random.Random(3)
    texts = [
        before + "".join(source.choices(" \t\u3000", k=500)) + middle
        + "".join(source.choices(" \t\xa0", k=source.randint(0, 500))) + after
        for before in ("", "a", "!", "1", "\n")
        for middle in ("", "\n", "\r\n", "\n \n")
        for after in ("", "a", "!", "1", "\n")
    ]  # fmt: skip
    # So many ends that all are looked at together, and blocks of nothing but white space.
    texts += [("\n " * 60 + " " * n + after) * 3 for n in (130, 192, 250) for after in "\na"]
    assert differs_in_tiktoken(to_tiktoken(pattern), texts, scanned(pattern)) is None
    assert places(texts, pattern) == expected_places(texts, pattern)


@by_pattern
def test_runs_of_digits(pattern: str) -> None:
    texts = [
        b + d * n + a
        for b in ("", "a", " ", "!")
        for n in range(1, 140)
        for d in "1٣½"
        for a in ("", "a")
    ]
    assert differs_in_tiktoken(to_tiktoken(pattern), texts, scanned(pattern)) is None


@by_pattern
def test_blocks_full_of_one_thing(pattern: str) -> None:
    """Characters of few pages, contractions, indents: there are ways for them all at once."""
    source = random.Random(4)
    contractions = ["'s", "'S", "'re", "'LL", "'d", "'\u017f", "a", "'"]
    texts = []
    for _ in range(120):
        pages = source.sample([*range(2, 60), 0x30, 0xC0, 0x1F0, 0x1D4, 0x7D7], 3)
        characters = [chr(page << 6 | low) for page in pages[:2] for low in range(64)]
        third = [chr(pages[2] << 6 | low) for low in range(64)]
        for alphabet in (
            characters,
            [*third, "a", " ", "1", "'s"],
            source.sample(contractions, source.randint(1, 4)),
            [" ", "\n", source.choice(["\r", "\t", "a", "!", "\u3000"])],
            ["1", "2", source.choice(["3", "٣", "a"])],
            source.sample(["1", "٣", "½", "①", "𝟘", " ", "\u0301"], source.randint(2, 4)),
        ):
            # Some documents begin where such blocks are.
            texts.append("".join(source.choices(alphabet, k=source.choice([5, 70, 200]))))
    assert places(texts, pattern) == expected_places(texts, pattern)


@by_pattern
def test_groups_full_of_one_thing(pattern: str) -> None:
    """What a group of blocks has nothing of is passed over, but for what reaches into it."""
    source = random.Random(5)
    alphabets = ["ab", "AB", " ", " \n", " \n\r\t", "\n", "1", "٣", "𝟘", "½٣", "1٣𝟘", "!", "!/\n",
                 "'", "中", "\u0301", "\u3000", "\u3000\n", "é", "'s", "\x00"]  # fmt: skip
    stretches = []
    for _ in range(60):
        length = source.choice([1, 2, 3, 62, 130, 700, 64 * GROUP + 70])
        characters = source.choices(source.choice(alphabets), k=length)
        # A few others among them, so that not all groups are passed over.
        for _ in range(source.choice([0, 0, 1, 3])):
            characters[source.randrange(length)] = source.choice(
                ["\n", "a", "!", "'s", "7", "\u0301"]
            )
        stretches.append("".join(characters))
    text = "".join(stretches)
    cuts = sorted(source.sample(range(len(text)), 60))
    texts = [text[first:last] for first, last in pairwise([0, *cuts, len(text)])]
    assert places(texts, pattern) == expected_places(texts, pattern)


@settings(max_examples=100)
@given(st.one_of(pattern_texts(5), nasty_texts(5)))
def test_safe_cuts_change_no_pretoken(texts: list[str]) -> None:
    data = " ".join(texts).encode()
    buffer = np.frombuffer(data, np.uint8)
    for pretokenizer in PRETOKENIZERS.values():
        whole, cuts, place = pretokenizer.split(data), [0], 0
        while (place := pretokenizer.safe_cut(buffer, place + 1, len(data))) < len(data):
            assert pretokenizer.split(data[:place]) + pretokenizer.split(data[place:]) == whole
            cuts.append(place)
        pieces = [data[i:j] for i, j in pairwise([*cuts, len(data)])]
        assert [p for piece in pieces for p in pretokenizer.split(piece)] == whole


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("cl100k", "d\n  ", ["d", "\n  "]),
        ("llama3", "d\n  ", ["d", "\n", "  "]),
        ("cl100k", "!\n  ", ["!\n", "  "]),
        ("llama3", "I'LL x1234", ["I", "'LL", " x", "123", "4"]),
        ("qwen2", "x12", ["x", "1", "2"]),
        ("llama3", "a(b) (c ((d", ["a", "(b", ")", " (", "c", " ((", "d"]),
        ("llama3", "a\n  \n  b", ["a", "\n  \n", " ", " b"]),
        ("llama3", "\tx\t1 \u00a0é", ["\tx", "\t", "1", " ", "\u00a0é"]),
        ("o200k", "helloWorld HTTPServer", ["hello", "World", " HTTPServer"]),
        ("o200k", "a's't", ["a's", "'t"]),
        ("o200k", "日ABc日AB", ["日ABc日", "AB"]),
        ("o200k", "!\n/\n/x", ["!\n/\n/", "x"]),
        ("o200k", "!!\u0301a !\u0301a", ["!!\u0301", "a", " !\u0301", "a"]),
        ("o200k", " !a\u0301", [" !", "a\u0301"]),
        ("o200k", "\u0301AB", ["\u0301", "AB"]),
    ],
)  # fmt: skip
def test_examples(pattern: str, text: str, expected: list[str]) -> None:
    assert reference.split(text, pattern) == expected
    assert scanned(pattern)(text) == expected
    assert differs_in_tiktoken(to_tiktoken(pattern), [text], scanned(pattern)) is None


@by_pattern
def test_samples_in_every_order(pattern: str) -> None:
    pieces = [*SAMPLES, *APOSTROPHES, *WHITE_SPACES[:8]]
    texts = [f"{a}{b}" for a in pieces for b in pieces]
    assert differs_in_tiktoken(to_tiktoken(pattern), texts, scanned(pattern)) is None
