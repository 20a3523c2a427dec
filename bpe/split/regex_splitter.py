r"""Split text by a regex without a scanner, exactly as the engine it was written for.

Results do not depend on the Unicode version of the installed `regex` package:

- `bpe.split.regex_parser` accepts only syntax that has an exact equivalent;
- sets are computed from our own table (Unicode 16.0). Code points in the same sets of the regex are
  one letter of a small alphabet, to which text and regex are translated; the translated regex uses
  no Unicode properties;
- text is cut at documents only, as no other safe cut is known.

Splitting needs about 15 bytes of memory per byte of a document, and takes 100 times as long as by a
scanner.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import numpy as np
import regex as engine
from numpy.typing import NDArray

from bpe.errors import EncodingError, PatternError
from bpe.split.regex_parser import FIRST_SET, LONGEST, N_CODE_POINTS, Parser, Set
from bpe.text.bit_set import bits_between, set_bits
from bpe.unicode_classes import members_of, runs_of

DIALECTS: Final = ("huggingface", "tiktoken")
# Behavior -> kinds of neighbours that are joined, as (is a match, is a match).
BEHAVIORS: Final[dict[str, tuple[tuple[bool, bool], ...]]] = {
    "Isolated": (), "Contiguous": ((False, False), (True, True)),
    "MergedWithPrevious": ((False, True),), "MergedWithNext": ((True, False),),
}
_TIMEOUT = 10.0  # timeout of a match in seconds; usual matches take a second per 100 MB
_BYTES_AT_A_TIME = 1 << 22  # documents are translated together up to this size


def _alphabet(sets: list[Set]) -> tuple[NDArray[np.uint16], list[str]]:
    """Return the letter of each code point, uint16[0x110000], and the letters of each set."""
    # Code points between two edges of sets have the same letter.
    changes = np.zeros(N_CODE_POINTS, np.bool_)
    changes[0] = True
    for members in sets:
        changes[1:] |= members[1:] != members[:-1]
    firsts = np.flatnonzero(changes)
    in_sets = np.array([members[firsts] for members in sets]).reshape(len(sets), len(firsts))
    kinds, letters = np.unique(in_sets, axis=1, return_inverse=True)
    lengths = np.diff(firsts, append=N_CODE_POINTS)
    return (
        np.repeat(letters.ravel().astype(np.uint16), lengths),
        ["".join(rf"\u{number:04x}" for number in np.flatnonzero(kind)) for kind in kinds],
    )


class RegexSplitter:
    """Splits by a regex for the engine `dialect`, "huggingface" or "tiktoken".

    `behavior` is a key of `BEHAVIORS`, and `invert` swaps matches and the text between them, as in
    Hugging Face's `Split`.

    Attributes:
        covers_all: There is a match at each character of any text, so that none is between matches.

    Raises:
        PatternError: The regex has syntax not implemented; that of tiktoken can match nothing.
    """

    def __init__(
        self, regex: str, dialect: str = "huggingface", behavior: str = "Isolated",
        invert: bool = False,
    ) -> None:
        if dialect not in DIALECTS or behavior not in BEHAVIORS:
            raise PatternError(
                f"dialect {dialect!r}, behavior {behavior!r}: expected one of {', '.join(DIALECTS)}"
                f" and one of {', '.join(BEHAVIORS)}, which lose no text"
            )
        if len(regex) > LONGEST:
            found = f"a split pattern has {len(regex):,} characters"
            raise PatternError(f"{found}: expected {LONGEST:,} at most")
        parser = Parser(regex, dialect)
        tree = parser.parse()
        if tree.can_be_empty and dialect == "tiktoken":
            raise PatternError(
                f"the split pattern {regex[:100]!r} can match nothing at all: expected one that"
                " takes a character at least; write '+' for '*'"
            )
        letters, sets = _alphabet(parser.sets)
        self._letters = letters.astype(np.uint8) if letters.max() < 256 else letters
        written = {FIRST_SET + i: f"[{each}]" if each else "(?!)" for i, each in enumerate(sets)}
        compiled = engine.compile(tree.written.translate(written), engine.V0)
        self._find = partial(_find_empty, compiled) if tree.can_be_empty else compiled.finditer
        covered = (parser.sets[number] for number in tree.covers)
        self.covers_all = not tree.can_be_empty and bool(sum(covered, np.False_).all())
        self._dialect = dialect
        self._merged = BEHAVIORS[behavior]
        self._invert = invert

    def refine(self, buffer: NDArray[np.uint8], starts: NDArray[np.uint64]) -> None:
        """Split every piece further.

        Args:
            buffer: uint8[n_bytes], UTF-8.
            starts: uint64[n_bytes // 64 + 1], bit set of the starts of pieces and of n_bytes;
                modified in place.

        Raises:
            EncodingError: The regex of tiktoken does not match all text, or a match times out.
        """
        encoding = "latin-1" if self._letters.dtype == np.uint8 else "utf-16-le"
        for first, n_bytes, code_points, places in _texts(buffer, starts):
            text = self._letters[code_points].tobytes().decode(encoding)
            pieces = bits_between(starts, first, first + n_bytes + 1) - first
            bounds = np.searchsorted(places, pieces)
            cuts: list[int] = []
            for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                cuts += self._cuts(text[begin:end], begin, first, places)
            set_bits(starts, places[cuts] + first)

    def _matches(self, text: str, place: int) -> Iterator[engine.Match[str]]:
        """Yield the matches in one text, which begins at byte `place`."""
        timeout = _TIMEOUT + len(text) * 1e-6
        try:
            yield from self._find(text, timeout=timeout)
        except TimeoutError as error:
            raise EncodingError(
                f"the split pattern took more than {timeout:.0f} s for one match in the text of"
                f" {len(text):,} characters from byte {place} on, because of backtracking; rewrite"
                " it without nested quantifiers"
            ) from error

    def _cuts(self, text: str, begin: int, first: int, places: NDArray[np.int64]) -> Iterator[int]:
        """Yield the starts of pieces of one text, in characters, plus `begin`."""
        pieces: list[tuple[int, bool]] = []  # start, and whether it is a match
        place = 0
        for found in self._matches(text, first + int(places[begin])):
            if place < found.start():
                pieces.append((place, self._invert))
            pieces.append((found.start(), not self._invert))
            place = found.end()
        if place < len(text):
            pieces.append((place, self._invert))
        before: bool | None = None
        for start, is_match in pieces:
            if self._dialect == "tiktoken" and not is_match:
                raise EncodingError(
                    f"byte {first + int(places[begin + start])} of the text is in no match of"
                    " the split pattern: tiktoken would lose it; give a pattern that takes"
                    " every character"
                )
            if (before, is_match) not in self._merged:
                yield begin + start
            before = is_match


def _find_empty(
    compiled: engine.Pattern[str], text: str, timeout: float
) -> Iterator[engine.Match[str]]:
    """Yield matches as Oniguruma's `find_iter` of a regex that can match the empty string.

    An empty match where a match ends is dropped, and the search continues after a character.
    """
    place, end = 0, -1
    while place <= len(text) and (found := compiled.search(text, place, timeout=timeout)):
        if found.start() == found.end() == end:
            place += 1
            continue
        place = end = found.end()
        yield found


# Additional numbers in the tables of Rust (Unicode 17.0), which Hugging Face's `Digits` uses.
_NEWER_NUMBERS: Final = ((0x11DE0, 0x11DE9), (0x16FF4, 0x16FF6))


class DigitsSplitter:
    """Splits off numeric characters (General_Category N), as Hugging Face's `Digits`.

    With `individual` each of them is a piece, otherwise each run of them.
    """

    def __init__(self, individual: bool) -> None:
        self._individual = individual
        self._numbers = members_of(*runs_of("N"), *_NEWER_NUMBERS)

    def refine(self, buffer: NDArray[np.uint8], starts: NDArray[np.uint64]) -> None:
        """Split every piece further, see `RegexSplitter.refine`."""
        for first, _, code_points, places in _texts(buffer, starts):
            is_number = self._numbers[code_points]
            begins = is_number.copy() if self._individual else np.zeros(len(is_number), np.bool_)
            begins[1:] |= is_number[1:] != is_number[:-1]
            set_bits(starts, places[:-1][begins] + first)


def _texts(
    buffer: NDArray[np.uint8], starts: NDArray[np.uint64]
) -> Iterator[tuple[int, int, NDArray[np.uint32], NDArray[np.int64]]]:
    """Yield whole pieces, some megabytes at a time.

    Yields:
        (first byte, n_bytes, code points uint32[n], their offsets int64[n + 1] from first byte).
    """
    first = 0
    while first < len(buffer):
        stop = len(buffer)
        if first + _BYTES_AT_A_TIME < stop:
            at = first + _BYTES_AT_A_TIME  # a piece is not divided
            while not len(found := bits_between(starts, at, min(at + 65536, stop + 1))):
                at += 65536
            stop = int(found[0])
        part = buffer[first:stop]
        code_points = np.frombuffer(part.tobytes().decode().encode("utf-32-le"), np.uint32)
        places = np.append(np.flatnonzero(part & 0xC0 != 0x80), stop - first)
        yield first, stop - first, code_points, places
        first = stop
