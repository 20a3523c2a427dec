"""Normalize text before it is split: added tokens, Unicode normal forms, a space in front.

The steps are those of Hugging Face's tokenizers 0.23:

1. Added tokens with `normalized=False` are found in the original text: leftmost, then longest.
2. The text between them is normalized.
3. Added tokens with `normalized=True` are found there, their own text normalized, too.
4. With `add_prefix_space`, each piece of text that is left gets a space in front if it has none.

Special tokens that are not recognised (`encode_ordinary`) are ordinary text, but no other token is
found where they overlap it, as in Hugging Face's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bpe.normalize import normalized
from bpe.special_tokens import SpecialTokenMatcher
from bpe.unicode_classes import WHITE_SPACE, class_table, members_of, runs_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bpe.vocabulary import AddedToken

# Word characters of Rust's `regex` besides letters, marks, decimal digits, letter numbers and
# connectors: joiners, and symbols that are alphabetic.
_OTHER_WORD_CHARACTERS: Final = (
    (0x200C, 0x200D), (0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189),
)  # fmt: skip

_EncodeDocuments = Callable[
    ["NDArray[np.uint8]", "NDArray[np.int64]"], tuple["NDArray[Any]", "NDArray[np.int64]"]
]


@functools.cache
def _word_characters() -> NDArray[np.bool_]:
    r"""bool[0x110000]: the characters that `\w` matches in Rust's `regex`."""
    return members_of(*runs_of("L", "M", "Nd", "Nl", "Pc"), *_OTHER_WORD_CHARACTERS)


def _character_before(data: bytes, place: int) -> str:
    """Return the character that ends at a byte position; '' at the beginning."""
    # A character has up to four bytes; `errors` drops a part of the character before.
    return data[max(place - 4, 0) : place].decode(errors="ignore")[-1:]


def _character_at(data: bytes, place: int) -> str:
    """Return the character that begins at a byte position; '' at the end."""
    return data[place : place + 4].decode(errors="ignore")[:1]


def _is_word(character: str) -> bool:
    return character != "" and bool(_word_characters()[ord(character)])


def _is_white_space(character: str) -> bool:
    return character != "" and bool(class_table()[ord(character)] & WHITE_SPACE)


def _has_other_spellings(text: bytes) -> bool:
    """Return True if other text may normalize to `text`: in ASCII, to three characters only."""
    return not text.isascii() or any(sign in text for sign in b"K;`")


class _Matcher:
    """Finds added tokens, given as UTF-8 -> token."""

    def __init__(self, tokens: dict[bytes, AddedToken]) -> None:
        self._tokens = list(tokens.values())
        texts = map(bytes.decode, tokens)
        self._matcher = SpecialTokenMatcher(dict(zip(texts, range(len(tokens)), strict=True)))

    def split(self, data: bytes, recognised: Collection[str] | None) -> Iterator[bytes | int]:
        """Yield pieces of text, and the ids of the tokens between them.

        Args:
            data: UTF-8.
            recognised: The special tokens that are recognised, None for all.
        """
        place = 0
        for start, stop, number in self._matcher.find(data, 0, len(data)):
            token = self._tokens[number]
            if token.special and recognised is not None and token.text not in recognised:
                continue
            if token.single_word and (
                _is_word(_character_before(data, start)) or _is_word(_character_at(data, stop))
            ):
                continue
            if token.lstrip:
                while _is_white_space(character := _character_before(data, start)):
                    start -= len(character.encode())
                # White space that an earlier token took is not available.
                start = max(start, place)
            if token.rstrip:
                while _is_white_space(character := _character_at(data, stop)):
                    stop += len(character.encode())
            if place < start:
                yield data[place:start]
            yield token.id
            place = stop
        if place < len(data):
            yield data[place:]


class Normalizer:
    """Steps before the split: finds added tokens and normalizes the text between them.

    Args:
        added_tokens: All added tokens.
        normal_forms: Some of `normalize.NORMAL_FORMS`, applied one after the other.
        add_prefix_space: Whether a space is put in front of text that begins with none.

    Attributes:
        allows_cuts: Whether a document may be cut without a change of ids.
    """

    def __init__(
        self, added_tokens: tuple[AddedToken, ...], normal_forms: tuple[str, ...],
        add_prefix_space: bool,
    ) -> None:
        self._normal_forms = normal_forms
        self._add_prefix_space = add_prefix_space
        raw = {t.text.encode(): t for t in added_tokens if not t.normalized}
        # `bpe.formats.hf_read` refuses files in which two have the same normalized text.
        late = {normalized(t.text.encode(), normal_forms): t for t in added_tokens if t.normalized}
        self._raw, self._late = _Matcher(raw), _Matcher(late)
        # A cut changes ids if tokens depend on text around them, if a character becomes several, or
        # if it can fall inside another spelling of a token.
        self.allows_cuts = (
            not add_prefix_space
            and not {"NFKC", "NFKD"} & set(normal_forms)
            and not any(t.lstrip or t.rstrip or t.single_word for t in added_tokens)
            and not (normal_forms and any(map(_has_other_spellings, late)))
        )

    def pieces(self, data: bytes, recognised: Collection[str] | None) -> Iterator[bytes | int]:
        """Yield text to be split, and the ids of added tokens between; arguments as in `split`."""
        for outer in self._raw.split(data, recognised):
            if isinstance(outer, int):
                yield outer
                continue
            for piece in self._late.split(normalized(outer, self._normal_forms), recognised):
                if self._add_prefix_space and isinstance(piece, bytes) and piece[:1] != b" ":
                    yield b" " + piece
                else:
                    yield piece

    def encode(
        self, encode_documents: _EncodeDocuments,
        buffer: NDArray[np.uint8], offsets: NDArray[np.int64],
        recognised: Collection[str] | None, *, prefix_id: int = -1, suffix_id: int = -1,
        starts_mid_document: bool = False, ends_mid_document: bool = False,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Normalize documents, encode text between added tokens, and insert the other ids.

        `encode_documents` encodes `uint8[n]` with the offsets `int64[k + 1]`; `recognised` is as in
        `split`; the other arguments and the result are those of `Encoder.encode`.
        """
        parts: list[bytes] = []
        cuts = [0]  # offsets of `parts`
        ids: list[int] = []  # ids to insert
        places: list[int] = []  # their positions in the joined parts
        ends: list[tuple[int, int]] = []  # ends of documents, in the joined parts and in `ids`
        last = len(offsets) - 2
        for index, (start, stop) in enumerate(pairwise(offsets)):
            pieces: Iterable[bytes | int] = self.pieces(buffer[start:stop].tobytes(), recognised)
            if prefix_id >= 0 and not (starts_mid_document and index == 0):
                pieces = chain([prefix_id], pieces)
            if suffix_id >= 0 and not (ends_mid_document and index == last):
                pieces = chain(pieces, [suffix_id])
            for piece in pieces:
                if isinstance(piece, int):
                    ids.append(piece)
                    places.append(cuts[-1])
                else:
                    parts.append(piece)
                    cuts.append(cuts[-1] + len(piece))
            ends.append((cuts[-1], len(ids)))
        text = np.frombuffer(b"".join(parts), np.uint8)
        bounds = np.array(cuts, np.int64)
        encoded, counts = encode_documents(text, bounds)
        inserted = counts[np.searchsorted(bounds, np.array(places, np.int64))]
        token_offsets = np.zeros(len(offsets), np.int64)
        if ends:
            text_ends, id_ends = np.array(ends, np.int64).T
            token_offsets[1:] = counts[np.searchsorted(bounds, text_ends)] + id_ends
        return np.insert(encoded, inserted, np.array(ids, np.uint32)), token_offsets
