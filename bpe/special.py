"""Find special and added tokens in UTF-8: leftmost first, the longest of those at one position.

`reference.split_special` defines what is found, and `SpecialTokenMatcher` is what finds it.
`Normalizer` is for tokenizers that change text before it is split: settings of added tokens,
Unicode normal forms, a space in front. Its steps are those of Hugging Face's tokenizers 0.23:

1. Added tokens with `normalized=False` are found in the original text: leftmost, then longest.
2. The text between them is normalized.
3. Added tokens with `normalized=True` are found there, their own text normalized, too.
4. With `add_prefix_space`, each piece of text that is left gets a space in front if it has none.

Special tokens that are not recognised (`encode_ordinary`) are ordinary text, but no other token is
found where they overlap it, as in Hugging Face's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from bpe.errors import EncodingError, VocabularyError, listed
from bpe.text.normalize import normalized
from bpe.text.search import find_all
from bpe.text.spans import iter_ranges
from bpe.unicode_classes import WHITE_SPACES, members_of, runs_of

if TYPE_CHECKING:
    from bpe.vocabulary import AddedToken

_LARGE = 1 << 16  # bytes of data from which on a kernel first finds which tokens occur
_PREFIX_BYTES = 4  # tokens are searched only if their prefix of this length occurs
_LOOK_BACK = 1 << 10  # bytes before the end of a text that are searched for a cut first
_PAD_TOKENS = ("<|pad|>", "<pad>", "[PAD]")
_END_TOKENS = ("</s>", "<eos>", "[EOS]", "<|eos|>", "<|end_of_text|>")


def pad_token_of(special_tokens: Collection[str]) -> str | None:
    """Return the special token whose name says that it is padding, None if there is none."""
    return next((token for token in _PAD_TOKENS if token in special_tokens), None)


def end_token_of(special_tokens: Collection[str]) -> str | None:
    """Return the special token whose name says that it ends a text; None if not exactly one is."""
    found = [token for token in _END_TOKENS if token in special_tokens]
    return found[0] if len(found) == 1 else None


def utf8(text: str) -> bytes:
    """Return the UTF-8 of text.

    Raises:
        EncodingError: The text has a lone surrogate.
        TypeError: `text` is not a str.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise EncodingError(
            f"character {error.start} of the text is {text[error.start]!r}, a lone surrogate: "
            "expected valid Unicode; decode with errors='replace' where the text comes from"
        ) from error
    except AttributeError:
        raise TypeError(f"expected text, found {type(text).__name__}") from None


def allowed_subset(
    allowed_special: str | Collection[str], special_tokens: Collection[str]
) -> frozenset[str] | None:
    """Return the special tokens in `allowed_special`, None for "all"; raise VocabularyError."""
    if allowed_special == "all":
        return None
    if isinstance(allowed_special, str):
        raise VocabularyError(
            f"allowed_special is {allowed_special!r}: expected 'all' or a collection of special"
            f" tokens, such as [{allowed_special!r}]"
        )
    allowed = frozenset(allowed_special)
    for text in allowed:
        if text not in special_tokens:
            raise VocabularyError(
                f"allowed_special names {text!r}, which is not a special token of this "
                f"tokenizer: expected some of {listed(special_tokens)}"
            )
    return allowed


def _any_of(tokens: Iterable[bytes]) -> re.Pattern[bytes]:
    # Longest first, for `re` takes the first alternative that matches.
    return re.compile(b"|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))


class SpecialTokenMatcher:
    """Finds special tokens, given as text -> id, or what else `find` yields, in UTF-8."""

    def __init__(self, special_tokens: Mapping[str, Any]) -> None:
        self.special_tokens = special_tokens
        self.ids = {utf8(text): token_id for text, token_id in special_tokens.items()}
        self._longest = max(map(len, self.ids), default=0)
        self._pattern = _any_of(self.ids)
        # One regex for each first byte: `re` searches these at 1 to 3 GB/s, others at 80 MB/s.
        self._searches = [
            _any_of([token for token in self.ids if token[0] == first]).search
            for first in sorted({token[0] for token in self.ids})
        ]
        self._prefixes = {token[:stop] for token in self.ids for stop in range(1, len(token))}
        self._of_prefix: dict[bytes, list[bytes]] = {}
        for token in self.ids:
            self._of_prefix.setdefault(token[:_PREFIX_BYTES], []).append(token)

    def occurs_in(self, data: bytes | memoryview) -> bool:
        """Return True if any special token occurs in the data."""
        # Twice as fast as any(), which matters for short texts.
        for search in self._searches:  # noqa: SIM110 - see above
            if search(data):
                return True
        return False

    def find(
        self, data: bytes | memoryview, start: int, stop: int
    ) -> Iterator[tuple[int, int, Any]]:
        """Yield `(start, stop, id)` of each special token in `data[start:stop]`, in order."""
        if not self.ids:
            return
        for found in self._pattern.finditer(data, start, stop):
            yield found.start(), found.end(), self.ids[bytes(found.group())]

    def occurrences(self, buffer: NDArray[np.uint8]) -> dict[bytes, NDArray[np.int64]]:
        """Return token -> positions, int64[n > 0], of each token by itself, as in `bytes.split`."""
        found = {}
        for prefix, tokens in self._of_prefix.items():
            if len(find_all(buffer, prefix)):
                found.update({token: find_all(buffer, token) for token in tokens})
        return {token: begins for token, begins in found.items() if len(begins)}

    def find_in_documents(
        self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return (start, stop, id) of each special token in documents: int64[n, 3], ascending.

        Args:
            buffer: uint8[n_bytes], UTF-8.
            offsets: int64[n_documents + 1], ascending from 0 to n_bytes.
        """
        if len(buffer) >= _LARGE:
            found = self.occurrences(buffer)
            if not found:
                return np.empty((0, 3), np.int64)
            if len(found) == 1:
                ((token, begins),) = found.items()
                ends = begins + len(token)
                documents = np.searchsorted(offsets, begins, "right")
                if np.array_equal(documents, np.searchsorted(offsets, ends)):
                    ids = np.full(len(begins), self.ids[token])
                    return np.stack([begins, ends, ids], axis=1)
        # Several tokens may overlap, and an occurrence may cross the end of a document.
        data = buffer.data
        spans = (
            number
            for begin, end in iter_ranges(np.repeat(offsets, 2)[1:-1])
            for match in self.find(data, begin, end)
            for number in match
        )
        return np.fromiter(spans, np.int64).reshape(-1, 3)

    def open_from(self, data: bytes, found: Sequence[Sequence[int]]) -> int:
        """Return the first position from which on more data could change the result of `find`.

        From there on, data outside of all `found` is a proper prefix of a special token. Return
        `len(data)` if there is none. `found` is `find(data, 0, len(data))`.
        """
        first = max(0, len(data) - self._longest + 1)
        near = [(start, stop) for start, stop, _ in found if stop > first]
        for place in range(first, len(data)):
            if data[place:] in self._prefixes and not any(a < place < b for a, b in near):
                return place
        return len(data)

    def last_cut(
        self, data: bytes, safe_cut: Callable[[NDArray[np.uint8], int, int], int]
    ) -> int:
        """Return a late position where a text that begins with `data` can be cut; 0: none is known.

        `safe_cut` is `Pretokenizer.safe_cut` of the pattern.
        """
        buffer, found = np.frombuffer(data, np.uint8), list[list[int]]()
        if self.occurs_in(data):
            found = self.find_in_documents(buffer, np.array([0, len(data)])).tolist()
        certain = self.open_from(data, found)
        # Text from the last special token before `certain` to `certain` is ordinary.
        start = max((stop for _, stop, _ in found if stop <= certain), default=0)
        buffer = buffer[start:certain]
        first, look_back = len(buffer), _LOOK_BACK
        while first:
            first = max(0, len(buffer) - look_back)
            cut = safe_cut(buffer, first, len(buffer))
            if cut < len(buffer):
                return start + cut
            look_back *= 4
        return start


@functools.lru_cache(maxsize=64)
def matcher_of(special_tokens: frozenset[tuple[str, int]]) -> SpecialTokenMatcher:
    """Return the matcher of special tokens, `(text, id)`."""
    return SpecialTokenMatcher(dict(special_tokens))


# Word characters of Rust's `regex` besides letters, marks, decimal digits, letter numbers and
# connectors: joiners, and symbols that are alphabetic.
_OTHER_WORD_CHARACTERS: Final = (
    (0x200C, 0x200D), (0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189),
)  # fmt: skip

_EncodeDocuments = Callable[
    ["NDArray[np.uint8]", "NDArray[np.int64]"], tuple["NDArray[Any]", "NDArray[np.int64]"]
]


_WHITE_SPACE: Final = f"[{WHITE_SPACES}]"


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


def _has_other_spellings(text: bytes) -> bool:
    """Return True if other text may normalize to `text`: in ASCII, to three characters only."""
    return not text.isascii() or any(sign in text for sign in b"K;`")


def _split(
    data: bytes, matcher: SpecialTokenMatcher, recognised: Collection[str] | None
) -> Iterator[bytes | int]:
    """Yield pieces of text, and the ids of the tokens between them.

    Args:
        data: UTF-8.
        matcher: Finds added tokens: text -> `AddedToken`.
        recognised: The special tokens that are recognised, None for all.
    """
    place = 0
    for start, stop, token in matcher.find(data, 0, len(data)):
        if token.special and recognised is not None and token.text not in recognised:
            continue
        if token.single_word and (
            _is_word(_character_before(data, start)) or _is_word(_character_at(data, stop))
        ):
            continue
        if token.lstrip:
            while re.match(_WHITE_SPACE, character := _character_before(data, start)):
                start -= len(character.encode())
            # White space that an earlier token took is not available.
            start = max(start, place)
        if token.rstrip:
            while re.match(_WHITE_SPACE, character := _character_at(data, stop)):
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
        self._raw = SpecialTokenMatcher({t.text: t for t in added_tokens if not t.normalized})
        # `bpe.formats.hf_read` refuses files in which two have the same normalized text.
        late = {normalized(t.text.encode(), normal_forms): t for t in added_tokens if t.normalized}
        self._late = SpecialTokenMatcher({text.decode(): t for text, t in late.items()})
        # A cut changes ids if tokens depend on text around them, if a character becomes several, or
        # if it can fall inside another spelling of a token.
        self.allows_cuts = (
            not add_prefix_space
            and not {"NFKC", "NFKD"} & set(normal_forms)
            and not any(t.lstrip or t.rstrip or t.single_word for t in added_tokens)
            and not (normal_forms and any(map(_has_other_spellings, late)))
        )

    def pieces(self, data: bytes, recognised: Collection[str] | None) -> Iterator[bytes | int]:
        """Yield text to be split, and the ids of added tokens between; arguments as of `_split`."""
        for outer in _split(data, self._raw, recognised):
            if isinstance(outer, int):
                yield outer
                continue
            late = normalized(outer, self._normal_forms)
            for piece in _split(late, self._late, recognised):
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

        `encode_documents` encodes `uint8[n]` with the offsets `int64[k + 1]`; `recognised` is as of
        `_split`; the other arguments and the result are those of `Encoder.encode`.
        """
        pieces: list[bytes | int] = []
        ends, last = [0], len(offsets) - 2
        for index, (start, stop) in enumerate(pairwise(offsets)):
            if prefix_id >= 0 and not (starts_mid_document and index == 0):
                pieces.append(prefix_id)
            pieces += self.pieces(buffer[start:stop].tobytes(), recognised)
            if suffix_id >= 0 and not (ends_mid_document and index == last):
                pieces.append(suffix_id)
            ends.append(len(pieces))
        texts = [piece for piece in pieces if isinstance(piece, bytes)]
        ids = np.array([piece for piece in pieces if isinstance(piece, int)], np.uint32)
        bounds = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        encoded, counts = encode_documents(np.frombuffer(b"".join(texts), np.uint8), bounds)
        # Before each piece, and after the last: the texts, and their ids.
        n_texts = np.cumsum([0, *(isinstance(piece, bytes) for piece in pieces)], dtype=np.int64)
        n_ids = counts[n_texts]
        token_offsets = (n_ids + np.arange(len(n_ids)) - n_texts)[ends]
        return np.insert(encoded, n_ids[:-1][np.diff(n_texts) == 0], ids), token_offsets
