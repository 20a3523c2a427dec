"""Tokenizers that encode whole texts, and the types of all tokenizers and encoders.

Documents are never cut for them: no safe cut is known.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bpe.arguments import checked
from bpe.errors import EncodingError
from bpe.formats.hf_write import write_tokenizer
from bpe.parallel import cached_property
from bpe.runtime.arrays import check_ids
from bpe.special import allowed_subset, utf8
from bpe.text.spans import check_spans
from bpe.tokenizer import check_search
from bpe.vocabulary import unknown_id_message

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from bpe.encode.encoder import Encoder
    from bpe.tokenizer import Tokenizer

AnyTokenizer: TypeAlias = "Tokenizer | TextTokenizer"
AnyEncoder: TypeAlias = "Encoder | TextEncoder"


@checked
class TextTokenizer:
    """A tokenizer that encodes whole texts.

    Attributes and methods are those of `bpe.tokenizer.Tokenizer` and raise the same errors.
    """

    eos_token: str | None  # end-of-document token
    bos_token: str | None  # begin-of-document token
    pattern: str  # split pattern
    unicode_version: str  # Unicode version of white space
    config_json: str  # text of tokenizer_config.json
    atomic_texts: tuple[str, ...] = ()  # no cut of a document may divide them: there are no cuts
    _text_of_id: Mapping[int, str]  # of every token, in the order of ids
    _special_ids: Mapping[str, int]

    def _encode_texts(
        self, texts: list[str], allowed_special: frozenset[str] | None
    ) -> list[list[int]]:
        """Return the ids of each text; `allowed_special=None` allows all special tokens."""
        raise NotImplementedError

    def _decode(self, ids: list[int]) -> str:
        """Return the text of ids that are all in the vocabulary."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Return the text of tokenizer.json."""
        raise NotImplementedError

    @property
    def vocab(self) -> dict[int, bytes]:
        """Id -> UTF-8 of every token as its file spells it, in the order of ids; a copy."""
        return {token_id: text.encode() for token_id, text in self._text_of_id.items()}

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return max(self._text_of_id, default=-1) + 1

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text -> id of the special tokens, in the order of ids; a copy."""
        return dict(self._special_ids)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the text of tokenizer.json, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def has_fingerprint(self, expected: str) -> bool:
        """Return True if `fingerprint` is this."""
        return expected == self.fingerprint

    def safe_cut(self, buffer: NDArray[np.uint8], position: int, stop: int) -> int:
        """Return `stop`: there is no safe cut."""
        return check_search(buffer, position, stop)[1]

    def encode_batch(
        self, texts: Sequence[str], allowed_special: str | Collection[str] = "all"
    ) -> list[list[int]]:
        """Encode several texts, each as `encode` does."""
        allowed = allowed_subset(allowed_special, self.special_tokens)
        for text in texts:
            utf8(text)  # raises on lone surrogates
        return self._encode_texts(list(texts), allowed)

    def encode(self, text: str, allowed_special: str | Collection[str] = "all") -> list[int]:
        """Encode text; special tokens in it become their ids."""
        return self.encode_batch([text], allowed_special)[0]

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode text; special tokens in it are ordinary text."""
        return self.encode(text, ())

    def encode_to_numpy(
        self, text: str, allowed_special: str | Collection[str] = "all"
    ) -> NDArray[np.uint32]:
        """Encode text as `encode` does; returns `uint32[n_tokens]`."""
        return np.array(self.encode(text, allowed_special), np.uint32)

    def encode_batch_to_numpy(
        self, texts: Sequence[str], allowed_special: str | Collection[str] = "all"
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode several texts; returns `uint32[n_tokens]` and `int64[n_texts + 1]`, offsets."""
        return _concatenate(self.encode_batch(texts, allowed_special))

    def encode_iterable(
        self, chunks: str | Iterable[str], allowed_special: str | Collection[str] = "all"
    ) -> Iterator[int]:
        """Yield the ids of `encode("".join(chunks))`; all of the text is held in memory."""
        yield from self.encode("".join(chunks), allowed_special)

    def count_tokens(self, text: str, allowed_special: str | Collection[str] = "all") -> int:
        """Return `len(encode(text))`."""
        return len(self.encode(text, allowed_special))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens; ids may be a list, an array or a tensor of one dimension."""
        listed: list[int] = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        for token_id in listed:
            if token_id not in self._text_of_id:
                raise EncodingError(unknown_id_message(token_id, self.vocab_size))
        return self._decode(listed)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the UTF-8 of `decode(ids)`."""
        return self.decode(ids).encode()

    def new_encoder(self, dtype: np.dtype[Any] | None = None) -> TextEncoder:
        """Return an encoder for one thread; ids have the type `dtype`, uint32 if None."""
        return TextEncoder(self, dtype)

    def to_config_json(self) -> str:
        """Return the text of tokenizer_config.json."""
        return self.config_json

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokenizer.json and, in its directory, tokenizer_config.json."""
        write_tokenizer(path, self.to_json(), self.config_json)


@checked
class TextEncoder:
    """Encodes documents in UTF-8, without special tokens, to ids of a type; uint32 if None."""

    def __init__(self, tokenizer: TextTokenizer, dtype: np.dtype[Any] | None) -> None:
        self._tokenizer = tokenizer
        self._dtype = np.dtype(dtype or np.uint32)
        check_ids(self._dtype, largest_id=tokenizer.vocab_size - 1)

    def encode(
        self, buffer: NDArray[np.uint8], spans: NDArray[np.int64], *,
        prefix_id: int = -1, suffix_id: int = -1,
        starts_mid_document: bool = False, ends_mid_document: bool = False,
        memory: Callable[[int], NDArray[np.uint8]] | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Encode documents, see `bpe.encode.encoder.Encoder.encode`; `memory` is not used.

        Raises:
            ArgumentError: An argument is of another type.
            EncodingError: The arrays or spans are others, a document is cut, or an id around
                documents is neither -1 nor of the encoder's type.
        """
        check_spans(buffer, spans)
        check_ids(self._dtype, prefix_id=prefix_id, suffix_id=suffix_id)
        if starts_mid_document or ends_mid_document:
            raise EncodingError("this tokenizer encodes whole documents only: expected no cut one")
        texts = [buffer[start:stop].tobytes().decode() for start, stop in spans]
        found = self._tokenizer._encode_texts(texts, frozenset())
        before, after = ([each] if each >= 0 else [] for each in (prefix_id, suffix_id))
        encoded = [[*before, *ids, *after] for ids in found]
        return _concatenate(encoded, self._dtype)


def _concatenate(
    encoded: list[list[int]], dtype: np.dtype[Any] | type[np.uint32] = np.uint32
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.fromiter((x for each in encoded for x in each), dtype, offsets[-1]), offsets
