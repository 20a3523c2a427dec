"""What happens to text before it is split: added tokens, the normalizer, the space in front.

The law here: text goes the way of Hugging Face's tokenizers 0.23, step by step.

1. Added tokens with `normalized=False` are looked for in the text as it is: from the left, the
   longest of those that start at one place.
2. What is left between them is normalized.
3. Added tokens with `normalized=True` are looked for there, their own text normalized too.
4. What is then left gets a space in front if it has none, for models with `add_prefix_space`.

Special tokens that are not recognised (`encode_ordinary`) are passed over, but where one stands no
other is looked for: that is what Hugging Face does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bpe.normalize import normalized
from bpe.special_tokens import SpecialTokenMatcher
from bpe.unicode_classes import WHITE_SPACE, class_table, members_of, runs_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bpe.vocabulary import AddedToken

# Characters of words to Rust's `regex` beside letters, marks, decimal digits, letter numbers and
# connectors: joiners, and symbols that are alphabetic.
_OTHER_WORD_CHARACTERS: Final = (
    (0x200C, 0x200D), (0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189),
)  # fmt: skip

_EncodeDocuments = Callable[
    ["NDArray[np.uint8]", "NDArray[np.int64]"], tuple["NDArray[Any]", "NDArray[np.int64]"]
]


@functools.cache
def _word_characters() -> NDArray[np.bool_]:
    r"""bool[0x110000]: what `\w` means to Rust's `regex`."""
    return members_of(*runs_of("L", "M", "Nd", "Nl", "Pc"), *_OTHER_WORD_CHARACTERS)


def _character_before(data: bytes, place: int) -> str:
    """The character that ends at a place; '' at the beginning."""
    # Four bytes hold it, and may begin in the middle of one before it.
    return data[max(place - 4, 0) : place].decode(errors="ignore")[-1:]


def _character_at(data: bytes, place: int) -> str:
    """The character that begins at a place; '' at the end."""
    return data[place : place + 4].decode(errors="ignore")[:1]


def _is_word(character: str) -> bool:
    return character != "" and bool(_word_characters()[ord(character)])


def _is_white_space(character: str) -> bool:
    return character != "" and bool(class_table()[ord(character)] & WHITE_SPACE)


def _has_other_spellings(text: bytes) -> bool:
    """Whether other text may have the canonical normal form `text`; of ASCII, three signs do."""
    return not text.isascii() or any(sign in text for sign in b"K;`")


class _Matcher:
    """Finds some of the added tokens."""

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
                # What an earlier token took is not there any more.
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


class Preparation:
    """What happens to text before it is split.

    Args:
        added_tokens: All added tokens.
        normal_forms: Some of `normalize.NORMAL_FORMS`, applied one after the other.
        add_prefix_space: A space is put in front of text that begins with none.
    """

    def __init__(
        self,
        added_tokens: Iterable[AddedToken],
        normal_forms: tuple[str, ...],
        add_prefix_space: bool,
    ) -> None:
        added_tokens = tuple(added_tokens)
        self._normal_forms = normal_forms
        self._add_prefix_space = add_prefix_space
        raw = {token.text.encode(): token for token in added_tokens if not token.normalized}
        # No two are normalized to the same text: `bpe.hf_read` refuses them.
        late = {
            normalized(token.text.encode(), normal_forms): token
            for token in added_tokens
            if token.normalized
        }
        self._raw, self._late = _Matcher(raw), _Matcher(late)
        # What is beside a cut can matter to the other side, or one character becomes several; or a
        # token is spelled otherwise before it is normalized, so that nobody sees the cut inside it.
        self.allows_cuts = (
            not add_prefix_space
            and not {"NFKC", "NFKD"} & set(normal_forms)
            and not any(t.lstrip or t.rstrip or t.single_word for t in added_tokens)
            and not (normal_forms and any(map(_has_other_spellings, late)))
        )

    def pieces(self, data: bytes, recognised: Collection[str] | None) -> Iterator[bytes | int]:
        """Yield what is to be split, and the ids of added tokens between.

        Args:
            data: A document, UTF-8.
            recognised: The special tokens that are recognised, None for all.
        """
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
        self,
        encode_documents: _EncodeDocuments,
        buffer: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        recognised: Collection[str] | None,
        *,
        prefix_id: int = -1,
        suffix_id: int = -1,
        starts_mid_document: bool = False,
        ends_mid_document: bool = False,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Prepare documents, encode what is to be split, and put the other ids in between.

        Args:
            encode_documents: Encodes `uint8[n]` cut at `int64[k + 1]`, as `Encoder.encode`.
            buffer: As in `Encoder.encode`.
            offsets: As there.
            recognised: As in `pieces`.
            prefix_id: As in `Encoder.encode`.
            suffix_id: As there.
            starts_mid_document: As there.
            ends_mid_document: As there.

        Returns:
            As `Encoder.encode`.
        """
        parts: list[bytes] = []
        cuts = [0]  # where the text to be split is cut
        ids: list[int] = []  # that go in between
        places: list[int] = []  # of these ids, in the text to be split
        ends: list[tuple[int, int]] = []  # of documents: in that text, and among these ids
        last = len(offsets) - 2
        for index in range(last + 1):
            if prefix_id >= 0 and not (starts_mid_document and index == 0):
                ids.append(prefix_id)
                places.append(cuts[-1])
            for piece in self.pieces(
                buffer[offsets[index] : offsets[index + 1]].tobytes(), recognised
            ):
                if isinstance(piece, int):
                    ids.append(piece)
                    places.append(cuts[-1])
                else:
                    parts.append(piece)
                    cuts.append(cuts[-1] + len(piece))
            if suffix_id >= 0 and not (ends_mid_document and index == last):
                ids.append(suffix_id)
                places.append(cuts[-1])
            ends.append((cuts[-1], len(ids)))
        data = b"".join(parts)
        text = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
        bounds = np.array(cuts, np.int64)
        encoded, counts = encode_documents(text, bounds)
        inserted = counts[np.searchsorted(bounds, np.array(places, np.int64))]
        token_offsets = np.zeros(len(offsets), np.int64)
        if ends:
            text_ends, id_ends = np.array(ends, np.int64).T
            token_offsets[1:] = counts[np.searchsorted(bounds, text_ends)] + id_ends
        return np.insert(encoded, inserted, np.array(ids, np.uint32)), token_offsets
