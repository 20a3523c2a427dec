"""Text that breaks tokenizers: hypothesis strategies for tests that feed text to the kernels."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import strategies as st

from bpe.word_level import SPECIAL_TOKENS

# The 25 code points of White_Space, and those that are often taken for it.
WHITE_SPACES = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B)))
WHITE_SPACES += "\u2028\u2029\u202f\u205f\u3000"
NEARLY_SPACES = "\x1c\x1d\x1e\x1f\u180e\u200b\u200c\u200d\u2060\ufeff\x00"

APOSTROPHES = [
    "'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'VE", "'M", "'LL", "'D", "'Re",
    "'vE", "'lL", "'l", "'r", "'v", "'x", "'", "’", "’s", "''", " '", "' ", "'\n", "'é", "'1",
]  # fmt: skip

# Marks without a base, unassigned, private, noncharacters, the ends of the planes and of the UTF-8
# lengths.
LONE_MARKS = "\u0300\u0301\u0345\u0489\u0903\u20dd\u3099\ufe0f\U000e0100"
UNASSIGNED = "\u0378\u0379\u2fef\ufdd0\uffff\U0001fffe\U000e0000\U0010ffff"
PRIVATE = "\ue000\uf8ff\U000f0000\U0010fffd"
EDGES = "\x7f\x80\u07ff\u0800\ud7ff\ue000\ufffd\U00010000\U0010fffd"

# Letters, numbers and symbols, one script after another, of every length in UTF-8.
SAMPLES = [
    "the", "THE", "I'm", "don't", "naïve", "Straße", "ǅ", "ʰ", "ª", "ß", "ﬁ", "ĳ",
    "привет", "Ωμέγα", "שלום", "مرحبا", "नमस्ते", "ไทย", "한국어", "日本語", "ひらがな", "𝒜𝓫", "𐐷",
    "0", "42", "1234567", "٣٤", "४", "²", "½", "Ⅷ", "〇", "五", "𝟘", "🄀",
    "!", "...", "—", "€", "+", "_", "`", "^", "\\", "😀", "👩‍👩‍👧", "🇪🇺", "e\u0301", "a\u0300b",
]  # fmt: skip

_short = st.one_of(
    st.sampled_from(SAMPLES),
    st.sampled_from(APOSTROPHES),
    st.sampled_from(list(WHITE_SPACES)),
    st.sampled_from(list(NEARLY_SPACES + LONE_MARKS + UNASSIGNED + PRIVATE + EDGES)),
    st.sampled_from([" ", "  ", "\n", "\n\n", " \n", "\r\n", "\t", "a", "b", "aa", "ab", "1", "."]),
    st.characters(exclude_categories=["Cs"]),
)

# Kernels work in blocks of 64 bytes: runs that end just before, at and just after a block.
_lengths = st.one_of(
    st.integers(1, 12),
    st.sampled_from([14, 15, 16, 17, 31, 32, 33, 61, 62, 63, 64, 65, 66, 126, 127, 128, 129, 130]),
)
_run = st.builds(lambda piece, length: piece * length, _short, _lengths)

_pieces = st.one_of(_short, _short, _short, _run)


def nasty_text(max_pieces: int = 30) -> st.SearchStrategy[str]:
    """Return a strategy for text of up to so many nasty pieces, without surrogates."""
    return st.lists(_pieces, max_size=max_pieces).map("".join)


def nasty_texts(max_texts: int = 20, max_pieces: int = 15) -> st.SearchStrategy[list[str]]:
    """Return a strategy for lists of nasty text: many strings for the price of one example."""
    return st.lists(nasty_text(max_pieces), min_size=1, max_size=max_texts)


# What the patterns that descend from cl100k tell apart: contractions in both cases, runs of digits,
# mixed case, marks after letters, slashes and ends of lines after punctuation, white space with
# ends of lines anywhere, and characters whose case folds to something unexpected.
_FOLDING = ["\u0130", "\u0131", "\u017f", "'\u017f", "\u212a", "\u1e9e", "ǆ", "ǅ", "Ǆ", "\u0345"]
_pattern_piece = st.one_of(
    st.sampled_from([*APOSTROPHES, *_FOLDING]),
    st.integers(1, 20).map(lambda n: "12345678901234567890"[:n]),
    st.integers(1, 7).map(lambda n: "٣" * n),
    st.text("aZ", min_size=1, max_size=6),
    st.text("aZ中ʰ\u0301é", min_size=1, max_size=6),
    st.text("!/\n\r\u0301.", min_size=1, max_size=6),
    st.text(" \n\r\t\u3000\xa0", min_size=1, max_size=8),
    st.sampled_from([" " * 70, "\n" * 70, " \n" * 40, "\t" * 64, "\u3000" * 25, "/" * 66]),
    st.sampled_from(["A" * 64, "中" * 22 + "A" * 70, "aB" * 40, "1" * 65, "!" * 64]),
    _short,
)


def pattern_texts(max_texts: int = 20, max_pieces: int = 15) -> st.SearchStrategy[list[str]]:
    """Return a strategy for lists of text made of what split patterns tell apart."""
    text = st.lists(_pattern_piece, max_size=max_pieces).map("".join)
    return st.lists(text, min_size=1, max_size=max_texts)


# Regexes of what both owners' engines know.
_atom = st.sampled_from(
    ["a", "b", "'", "1", r"\s", r"\S", r"\d", r"\p{L}", r"\p{Lu}", r"\P{N}", r"\p{M}", r"\p{P}",
     r"\p{S}", r"\p{Zs}", "[a-c]", "[^a]", r"[^\s\p{L}]", r"[\r\n]", ".", "(?i:s)", "(?i:'ll|k)",
     r"\n", r"\x41", r"(?!a)b", r"(?=\S)\p{L}", "(?<=a)b", "(?<!b)a", "(?>a+)b"]
)  # fmt: skip
_quantified = st.builds(
    lambda atom, quantifier: f"(?:{atom}){quantifier}",
    _atom,
    st.sampled_from(
        ["", "+", "*", "?", "{2}", "{1,3}", "{2,}", "+?", "*?", "??", "++", "*+", "?+"]
    ),
)
regexes = st.lists(
    st.lists(_quantified, min_size=1, max_size=3).map("".join), min_size=1, max_size=3
).map("|".join)
regex_texts = st.lists(
    st.one_of(
        st.text("abAB'sSlL1 \n.", max_size=8),
        st.sampled_from(SAMPLES),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=8,
).map("".join)  # fmt: skip

MARKS = ",.:;?_!\"()'"
# What the splitting rule of word-level tokenizers tells apart, more often than nasty text has it.
word_texts = st.lists(
    st.one_of(
        st.sampled_from([*MARKS, "-", "--", "---", " ", "\n", "\u3000", "\x1c", "a", "b-", "Ab"]),
        st.sampled_from([*SPECIAL_TOKENS, "<|", "|>", "<|endof", "text|>"]),
        nasty_text(max_pieces=2),
    ),
    max_size=12,
).map("".join)


def hard_texts(inside: Sequence[str] = (), n: int = 250) -> list[str]:
    """Return the same `n` texts of nasty pieces at each call, a quarter with texts of `inside`."""
    chosen = random.Random(7)
    pieces = [*SAMPLES, *APOSTROPHES, *WHITE_SPACES, *NEARLY_SPACES, *LONE_MARKS, *UNASSIGNED]
    pieces += [*PRIVATE, *EDGES, *_FOLDING, *" \n\r\tab1./=_", " the", "12345678", " " * 30, "!!"]
    mixed = [*pieces, *(text for text in inside for _ in range(9))]
    return [
        "".join(chosen.choices(pieces if number % 4 else mixed, k=chosen.randrange(16)))
        for number in range(n)
    ]
