"""Split text into pre-tokens, by the scanner of a pattern or by a regex.

Pre-tokens are those of `bpe.reference`, for any length and alignment of the buffer. Kernels do not
read outside of the buffer: they read its last bytes from a copy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bpe.runtime.arrays import Bytes, Offsets, read_only
from bpe.runtime.jit import pack
from bpe.split import documents as split
from bpe.split import gpt2
from bpe.split.patterns import PATTERNS, TIKTOKEN, pattern_name, steps
from bpe.text.bit_set import bits_between, set_bits
from bpe.unicode_classes import class_pages, class_table

if TYPE_CHECKING:
    from bpe.split.steps import Step

Starts = NDArray[np.uint64]

# Pattern of the scanner `split_gpt2` -> whether words are joined to phrases.
_OF_GPT2 = {"gpt2": False, "superwords": True}
# Pattern -> flags (in `sets`) of `split_cl100k`. Another pattern of this
# family is a line here and one in `bpe.split.patterns` (docs/architecture.md).
_FLAGS = {
    "cl100k": ["WHOLE_END"],
    "o200k": ["CASED", "SUFFIXES", "SLASHES"],
    "llama3": [],
    "qwen2": ["SINGLE_DIGITS"],
}


class Pretokenizer:
    """Splits UTF-8 into pre-tokens by a pattern (see `bpe.split.patterns`).

    Raises:
        PatternError: The pattern is unknown or cannot be run exactly.

    >>> Pretokenizer("gpt2").split(b"Hello world's end")
    [b'Hello', b' world', b"'s", b' end']
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern_name(pattern)
        dialect = "tiktoken" if self.pattern.startswith(TIKTOKEN) else "huggingface"
        self._refine = [_splitter(step, dialect) for step in steps(self.pattern)]

    def boundaries(self, buffer: Bytes, offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the start positions of pre-tokens.

        Args:
            buffer: uint8[n_bytes], UTF-8.
            offsets: int64[n_documents + 1], offsets of documents, from 0 to n_bytes.

        Returns:
            uint64[n_bytes // 64 + 1], bit set (`bpe.text.bit_set`) of the starts, and of n_bytes.

        Raises:
            EncodingError: The pattern was written for tiktoken, and does not match all text.
        """
        starts = np.empty(len(buffer) // 64 + 1, np.uint64)
        for i, refine in enumerate(self._refine):
            refine(buffer, offsets, i > 0, starts)  # each step splits the pieces of the one before
        return starts

    def split(self, data: bytes) -> list[bytes]:
        """Return the pre-tokens of one document; their concatenation is the document."""
        starts = self.boundaries(np.frombuffer(data, np.uint8), np.array([0, len(data)]))
        places = bits_between(starts, 0, len(data) + 1)
        return [data[i:j] for i, j in pairwise(places)]

    def safe_cut(self, buffer: Bytes, position: int, stop: int) -> int:
        """Return the first position from `position` on where a cut changes no pre-token, never 0.

        Return `stop` if none is known, as without a scanner. The caller guarantees that `buffer` is
        uint8[>= stop], contiguous (see `bpe.tokenizer.check_search`).
        """
        if self.pattern not in PATTERNS:
            return stop
        # Only in these no alternative takes a part of the white space after it (`[\r\n]*`).
        after_letters_only, phrases = self.pattern not in _OF_GPT2, _OF_GPT2.get(self.pattern)
        cut = split.safe_cut(
            read_only(buffer), position, stop, class_table(), after_letters_only, bool(phrases)
        )
        return int(cut)


_Refine = Callable[[Bytes, Offsets, bool, Starts], None]


def _splitter(step: Step, dialect: str) -> _Refine:
    """Return a function that splits documents; if `is_marked`, pieces of the bit set `starts`."""
    if isinstance(step, str):
        return functools.partial(_scan, step)
    refine = step.splitter(dialect).refine

    def marked(buffer: Bytes, offsets: Offsets, is_marked: bool, starts: Starts) -> None:
        if not is_marked:
            starts[:] = 0
            set_bits(starts, offsets)
        refine(buffer, starts)

    return marked


def _scan(name: str, buffer: Bytes, offsets: Offsets, is_marked: bool, starts: Starts) -> None:
    split_documents, *memory = splitting(name)
    split_documents(*memory, read_only(buffer), read_only(offsets), is_marked, starts)


def splitting(name: str) -> tuple[Any, Any, split.Scratch]:
    """Return the kernel of a pattern, and its first two arguments with new scratch."""
    if name in _OF_GPT2:
        kernel, n_words = split.splitter(gpt2.scanner(_OF_GPT2[name]), 1), gpt2.STATE_WORDS
    else:
        from bpe.split import cl100k, sets

        flags = sum(getattr(sets, flag) for flag in _FLAGS[name])
        kernel, n_words = split.splitter(cl100k.scanner(flags), 0), sets.STATE_WORDS
    tail = np.empty(split.TAIL, np.uint8)
    scratch = split.Scratch(tail, read_only(tail), np.empty(n_words, np.uint64))
    return kernel, _characters(), scratch


@functools.cache
def _characters() -> Any:
    return pack(split.Characters(class_table(), class_pages()))
