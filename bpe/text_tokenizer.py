"""The interface of a tokenizer, and the tokenizers that encode whole texts.

`AnyTokenizer` is all that the pipeline needs of a tokenizer: `Tokenizer`, whose kernels work on
bytes, has it, and so do the subclasses of `TextTokenizer`. Documents for these are never cut,
because no place is known where a cut changes no id.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bpe.errors import EncodingError
from bpe.special_tokens import allowed_subset, utf8
from bpe.vocabulary import unknown_id_message


class AnyEncoder(Protocol):
    """Encodes documents that are bytes; belongs to one thread at a time."""

    def encode(
        self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64], *,
        prefix_id: int = -1, suffix_id: int = -1,
        starts_mid_document: bool = False, ends_mid_document: bool = False, gaps: bool = False,
        memory: Callable[[int], NDArray[np.uint8]] | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """As `bpe.encode.Encoder.encode`."""


class AnyTokenizer(Protocol):
    """What the pipeline needs of a tokenizer; `bpe.tokenizer.Tokenizer` says what each means."""

    @property
    def vocab(self) -> dict[int, bytes]:
        """Id -> bytes of every token, special tokens included, in the order of ids; a copy."""

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text -> id of the special tokens, in the order of ids; a copy."""

    @property
    def eos_token(self) -> str | None:
        """The special token that ends a document, None if there is none."""

    @property
    def bos_token(self) -> str | None:
        """The special token that begins a document, None if there is none."""

    @property
    def pattern(self) -> str:
        """How text is split."""

    @property
    def unicode_version(self) -> str:
        """The version of Unicode that defines letters and white space."""

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers that give the same ids, in hexadecimal."""

    @property
    def uncut_tokens(self) -> tuple[str, ...]:
        """Texts that a document must not be cut through."""

    def safe_cut(self, buffer: NDArray[np.uint8], position: int, stop: int) -> int:
        """Return the first place from `position` on where a document can be cut, else `stop`."""

    def encode(self, text: str, allowed_special: str | Collection[str] = "all") -> list[int]:
        """Encode text; special tokens in it become their ids."""

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode text; what spells a special token is ordinary text."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens."""

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of tokens."""

    def new_encoder(self, dtype: np.dtype[Any] | None = None) -> AnyEncoder:
        """Return an encoder for a thread of its own, of ids of this type; uint32 if None."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokenizer.json and, in its directory, tokenizer_config.json."""


class TextTokenizer(ABC):
    """A tokenizer that encodes and decodes whole texts.

    A subclass sets `_texts`, id -> text of every token, and `_special_tokens`, text -> id, both in
    the order of ids.
    """

    _texts: dict[int, str]
    _special_tokens: dict[str, int]

    @abstractmethod
    def _encode_texts(
        self, texts: list[str], allowed_special: frozenset[str] | None
    ) -> list[list[int]]:
        """Return the ids of each text; `allowed_special` are recognised, all if it is None."""

    @abstractmethod
    def _decode(self, ids: list[int]) -> str:
        """Return the text of ids that are all in the vocabulary."""

    @property
    def vocab(self) -> dict[int, bytes]:
        """Id -> UTF-8 of every token as its file spells it, in the order of ids; a copy."""
        return {token_id: text.encode() for token_id, text in self._texts.items()}

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return max(self._texts, default=-1) + 1

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text -> id of the special tokens, in the order of ids; a copy."""
        return dict(self._special_tokens)

    @property
    def uncut_tokens(self) -> tuple[str, ...]:
        """Texts that a document must not be cut through: none, as no document is cut."""
        return ()

    def safe_cut(self, buffer: NDArray[np.uint8], position: int, stop: int) -> int:
        """Return `stop`: there is no place where a document can be cut."""
        return stop

    def encode(self, text: str, allowed_special: str | Collection[str] = "all") -> list[int]:
        """Encode text; special tokens in it become their ids.

        Args:
            text: Any text.
            allowed_special: "all", or the special tokens that are recognised.

        Raises:
            EncodingError: The text has a lone surrogate, which UTF-8 cannot encode.
            VocabularyError: A name in `allowed_special` is no special token of this tokenizer.
        """
        return self.encode_batch([text], allowed_special)[0]

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode text; what spells a special token is ordinary text.

        Raises:
            EncodingError: The text has a lone surrogate.
        """
        return self.encode_batch([text], ())[0]

    def encode_batch(
        self, texts: Sequence[str], allowed_special: str | Collection[str] = "all"
    ) -> list[list[int]]:
        """Encode several texts, each as `encode` does.

        Raises:
            TypeError: `texts` is one text, or has an element that is not text.
            EncodingError, VocabularyError: As in `encode`.
        """
        if isinstance(texts, str):
            raise TypeError("expected a list of texts, found one text: put it in a list")
        allowed = allowed_subset(allowed_special, self._special_tokens)
        for text in texts:
            utf8(text)  # raises if it is no text
        return self._encode_texts(list(texts), allowed)

    def encode_to_numpy(
        self, text: str, allowed_special: str | Collection[str] = "all"
    ) -> NDArray[np.uint32]:
        """Encode text as `encode` does; returns `uint32[n_tokens]`."""
        return self.encode_batch_to_numpy([text], allowed_special)[0]

    def encode_batch_to_numpy(
        self, texts: Sequence[str], allowed_special: str | Collection[str] = "all"
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode several texts, each as `encode` does.

        Returns:
            `uint32[n_tokens]`, the ids of all texts one after the other, and `int64[n_texts + 1]`:
            text i has the ids from `offsets[i]` to `offsets[i + 1]`.
        """
        return _flat(self.encode_batch(texts, allowed_special))

    def encode_iterable(
        self, chunks: Iterable[str], allowed_special: str | Collection[str] = "all"
    ) -> Iterator[int]:
        """Yield the ids of `encode("".join(chunks))`; all of the text is held in memory."""
        yield from self.encode("".join(chunks), allowed_special)

    def count_tokens(self, text: str, allowed_special: str | Collection[str] = "all") -> int:
        """Return `len(encode(text))`."""
        return len(self.encode(text, allowed_special))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens; ids may be a list, an array or a tensor of one dimension.

        Raises:
            EncodingError: An id has no token.
        """
        listed: list[int] = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        for token_id in listed:
            if token_id not in self._texts:
                raise EncodingError(unknown_id_message(token_id, self.vocab_size))
        return self._decode(listed)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the UTF-8 of `decode(ids)`."""
        return self.decode(ids).encode()

    def new_encoder(self, dtype: np.dtype[Any] | None = None) -> TextEncoder:
        """Return an encoder for a thread of its own, of ids of this type; uint32 if None."""
        return TextEncoder(lambda texts: self._encode_texts(texts, frozenset()), dtype)


class TextEncoder:
    """Encodes documents that are bytes by a function that encodes texts.

    Args:
        encode_texts: Returns the ids of each text; what spells a special token is ordinary text.
        dtype: Of the ids; uint32 if None.
    """

    def __init__(
        self, encode_texts: Callable[[list[str]], list[list[int]]], dtype: np.dtype[Any] | None
    ) -> None:
        self._encode_texts, self._dtype = encode_texts, dtype

    def encode(
        self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64], *,
        prefix_id: int = -1, suffix_id: int = -1, gaps: bool = False, **unused: Any,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """As `bpe.encode.Encoder.encode`, of whole documents and without `memory`."""
        assert not unused.get("starts_mid_document"), "this tokenizer allows no cut in a document"
        assert not unused.get("ends_mid_document"), "this tokenizer allows no cut in a document"
        bounds = zip(offsets[::2], offsets[1::2], strict=True) if gaps else pairwise(offsets)
        texts = [buffer[start:stop].tobytes().decode() for start, stop in bounds]
        before = [prefix_id] if prefix_id >= 0 else []
        after = [suffix_id] if suffix_id >= 0 else []
        return _flat([[*before, *ids, *after] for ids in self._encode_texts(texts)], self._dtype)


def _flat(
    encoded: list[list[int]], dtype: np.dtype[Any] | None = None
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    wanted = np.dtype(np.uint32) if dtype is None else dtype
    try:
        return np.fromiter(chain.from_iterable(encoded), wanted, offsets[-1]), offsets
    except OverflowError as error:
        raise EncodingError(
            f"an id does not fit into {wanted}: {error}; take a larger type"
        ) from error
