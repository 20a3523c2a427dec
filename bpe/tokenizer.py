"""The tokenizer: encodes text to ids, and decodes ids.

`decode(encode(text)) == text`, and all methods to encode (a text, a batch, a stream, on any number
of threads) give the same ids. A `Tokenizer` is immutable and thread-safe.

    >>> merges = [(b"l", b"o"), (b"lo", b"w")]
    >>> tokenizer = Tokenizer.from_vocabulary(Vocabulary.from_merges(merges, ["<|endoftext|>"]))
    >>> tokenizer.encode("low<|endoftext|>")
    [257, 258]
    >>> tokenizer.encode_ordinary("low<|end")
    [257, 60, 124, 101, 110, 100]
    >>> tokenizer.decode([257, 258])
    'low<|endoftext|>'
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Never

import numpy as np

from bpe.arguments import check, checked, tells_missing
from bpe.encode.parallel_encoder import ParallelEncoder, join_documents
from bpe.errors import ArgumentError, EncodingError, PatternError, VocabularyError
from bpe.files.atomic_write import write_atomically
from bpe.files.locations import path_to_write
from bpe.formats import hf_read, hf_write, rank_files
from bpe.formats.hf_write import TokenizerParts
from bpe.formats.hub import huggingface_files, huggingface_hub_file
from bpe.formats.rank_files import END_OF_TEXT
from bpe.parallel import cached_property
from bpe.reference import Pair
from bpe.runtime.arrays import check_array
from bpe.special import SpecialTokenMatcher, allowed_subset, matcher_of, utf8
from bpe.split.patterns import to_tiktoken
from bpe.unicode_classes import UNICODE_VERSION
from bpe.vocabulary import Vocabulary, decode_bytes, make_vocabulary

if TYPE_CHECKING:
    import mmap

    import tiktoken
    import tokenizers
    from numpy.typing import NDArray

    from bpe.encode.encoder import Encoder


@checked
class Tokenizer:
    """A byte-level BPE tokenizer.

    Args:
        vocab: Id -> bytes; may include special tokens.
        merges: Pairs of tokens in the order in which they were learnt.
        special_tokens: Text -> id, or texts, whose ids are in `vocab` or follow the largest.
        pattern: Split pattern, a name or a regex.
        tie_break: Ties in training: "greatest-bytes", "huggingface", or None if not known.
        eos_token: Special token that ends a document; `<|endoftext|>` by default, if it is special.
        bos_token: Special token that begins a document; None if not known.

    Raises:
        VocabularyError: Arguments are inconsistent.
        PatternError: The pattern is unknown.
    """

    def __init__(
        self, vocab: Mapping[int, bytes], merges: Iterable[Pair],
        special_tokens: Mapping[str, int] | Iterable[str] | None = None, *,
        pattern: str = "gpt2", tie_break: str | None = None, eos_token: str | None = None,
        bos_token: str | None = None,
    ) -> None:
        special = () if special_tokens is None else special_tokens
        vocabulary = make_vocabulary(vocab, merges, special)
        parts = TokenizerParts(vocabulary, pattern, tie_break, eos_token, bos_token=bos_token)
        self.__setstate__(hf_write.check_parts(parts))

    @classmethod
    def from_vocabulary(
        cls, vocabulary: Vocabulary, *,
        pattern: str = "gpt2", tie_break: str | None = None, eos_token: str | None = None,
        bos_token: str | None = None,
    ) -> Tokenizer:
        """Make a tokenizer from a vocabulary; the other arguments are those of `Tokenizer`."""
        parts = TokenizerParts(vocabulary, pattern, tie_break, eos_token, bos_token=bos_token)
        return cls._of(hf_write.check_parts(parts))

    @classmethod
    def _of(cls, parts: TokenizerParts) -> Tokenizer:
        tokenizer = cls.__new__(cls)
        tokenizer.__setstate__(parts)
        return tokenizer

    def __getstate__(self) -> TokenizerParts:
        return self._parts

    def __setstate__(self, parts: TokenizerParts) -> None:
        if parts.eos_token is None and END_OF_TEXT in parts.vocabulary.special_tokens:
            parts = replace(parts, eos_token=END_OF_TEXT)
        self._parts = parts
        self._encoder = ParallelEncoder(parts)
        self._matcher = SpecialTokenMatcher(parts.vocabulary.special_tokens)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read a byte-level BPE from tokenizer.json, and the tokenizer_config.json next to it.

        `encode` gives the ids of Hugging Face's `encode(text, add_special_tokens=False)`: without
        the post-processor. `save` keeps all settings.

        Raises:
            UnsupportedTokenizerError: It is no byte-level BPE, or has a setting not implemented.
            TokenizerFileError: A file is unreadable or damaged.
        """
        return cls.from_files(hf_read.TokenizerFiles.read(path))

    @classmethod
    def from_files(cls, files: hf_read.TokenizerFiles) -> Tokenizer:
        """Read a byte-level BPE from the text of its files; raises as `from_file`."""
        return cls._of(files.parts())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokenizer.json and, in its directory, tokenizer_config.json.

        `tokenizers` and `transformers` load them with the same ids. Bytes are reproducible. Each
        file is written under a temporary name and renamed.

        Raises:
            VocabularyError: The ranks of this tokenizer cannot be written as merges.
            OSError: A file cannot be written.
        """
        hf_write.write_tokenizer(path, self.to_json(), self.to_config_json())

    @classmethod
    def from_gpt2_files(
        cls, vocab_path: str | os.PathLike[str], merges_path: str | os.PathLike[str],
        special_tokens: Iterable[str] | None = None, *, eos_token: str | None = None,
    ) -> Tokenizer:
        """Read vocab.json and merges.txt, GPT-2's format.

        Args:
            vocab_path: File of tokens and ids.
            merges_path: File of merges, with or without a `#version` line.
            special_tokens: Entries that are special; by default `<|endoftext|>`, if present.
            eos_token: As in `Tokenizer`.

        Raises:
            TokenizerFileError: A file is unreadable or damaged, or the files do not match.
        """
        files = vocab_path, merges_path
        return cls._of(rank_files.read_gpt2_files(*files, special_tokens, eos_token))

    @classmethod
    def from_tiktoken(
        cls, source: tiktoken.Encoding | str | os.PathLike[str], *, pattern: str | None = None,
        special_tokens: Mapping[str, int] | Iterable[str] | None = None,
        eos_token: str | None = None,
    ) -> Tokenizer:
        """Convert a `tiktoken.Encoding`, or a .tiktoken file of ranks.

        Args:
            source: An encoding, the path of a file, or the name of an encoding, which tiktoken has
                in its cache or downloads.
            pattern: Split pattern, a name or a regex; required for a file.
            special_tokens: As in `Tokenizer`; by default those of the encoding, none for a file.
            eos_token: As in `Tokenizer`.

        Raises:
            TokenizerFileError: The file is unreadable, damaged, or does not match special tokens.
            VocabularyError: The encoding does not match special tokens, or one is repeated.
            PatternError: The pattern is unknown, or missing for a file.
        """
        return cls._of(rank_files.from_tiktoken(source, pattern, special_tokens, eos_token))

    @classmethod
    def from_huggingface(cls, source: Any) -> Tokenizer:
        """Convert a tokenizer of Hugging Face.

        Args:
            source: A `tokenizers.Tokenizer`, a fast tokenizer of `transformers`, a directory with a
                tokenizer.json, or a name on the hub, which `huggingface_hub` loads from its cache
                or the network; no code of the repository is run.

        Raises:
            UnsupportedTokenizerError: It is no byte-level BPE, or has a setting not implemented.
            TokenizerFileError: It is missing, unreadable or damaged.
        """
        if isinstance(source, str | os.PathLike):
            return cls.from_file(huggingface_hub_file(source))
        return cls.from_files(huggingface_files(source))

    def save_tiktoken(self, path: str | os.PathLike[str]) -> None:
        """Write a .tiktoken file of ranks, which has neither special tokens nor the split pattern.

        Raises:
            VocabularyError: No ranks give the same ids.
            OSError: The file cannot be written.
        """
        self._check_no_normalizer("a .tiktoken file")
        text = rank_files.tiktoken_ranks(self.vocabulary.ranks())
        write_atomically(path_to_write(path), text.encode())

    def save_gpt2_files(
        self, vocab_path: str | os.PathLike[str], merges_path: str | os.PathLike[str]
    ) -> None:
        """Write vocab.json and merges.txt, GPT-2's format; the split pattern must be gpt2.

        Raises:
            VocabularyError: The format cannot represent this tokenizer.
            OSError: A file cannot be written.
        """
        self._check_no_normalizer("vocab.json and merges.txt")
        if self.pattern != "gpt2":
            raise VocabularyError(
                f"vocab.json and merges.txt do not say how text is split, and {self.pattern!r} is"
                " not gpt2, which is taken for granted: use tokenizer.json"
            )
        vocab, merges = rank_files.gpt2_files(self.vocabulary)
        files = path_to_write(merges_path), path_to_write(vocab_path)
        for path, content in zip(files, (merges, vocab), strict=True):
            write_atomically(path, content.encode())

    def to_tiktoken(self, name: str = "tokenmill") -> tiktoken.Encoding:
        """Return a `tiktoken.Encoding` with the same ids.

        Raises:
            VocabularyError: No ranks give the same ids, or special tokens begin alike.
            PatternError: No equivalent regex for tiktoken is known.
        """
        import tiktoken

        self._check_no_normalizer("tiktoken")
        encoding = tiktoken.Encoding(
            name, pat_str=to_tiktoken(self.pattern), mergeable_ranks=self.vocabulary.ranks(),
            special_tokens=self.special_tokens,
        )
        return rank_files.check_longest_special(encoding)

    def to_huggingface(self) -> tokenizers.Tokenizer:
        """Return a `tokenizers.Tokenizer` with the same ids.

        Raises:
            VocabularyError: The ranks of this tokenizer cannot be written as merges.
        """
        import tokenizers

        return tokenizers.Tokenizer.from_str(self._parts.text)

    def to_json(self) -> str:
        """Return the text of tokenizer.json; raise VocabularyError if it cannot be written."""
        return self._parts.text

    def to_config_json(self) -> str:
        """Return the text of tokenizer_config.json."""
        return hf_write.config_json(self._parts)

    @property
    def config_json(self) -> str:
        """The text of a tokenizer_config.json that was read; "" if there was none."""
        return self._parts.config

    def _check_no_normalizer(self, kind: str) -> None:
        if self._encoder.normalizer is not None:
            raise VocabularyError(
                f"{kind} cannot represent changes of text before it is split (a normalizer,"
                " add_prefix_space, added tokens with lstrip, rstrip or single_word); use"
                " tokenizer.json"
            )

    @property
    def vocabulary(self) -> Vocabulary:
        """Tokens, merges and special tokens. Tokenizers of one file share it: do not modify it."""
        return self._parts.vocabulary

    @property
    def vocab(self) -> dict[int, bytes]:
        """Id -> bytes of every token, special tokens included, in the order of ids; a copy."""
        return dict(self.vocabulary.bytes_of_id)

    @property
    def merges(self) -> list[Pair]:
        """The merges in the order of their ranks; a copy."""
        return list(self.vocabulary.merges)

    @property
    def vocab_size(self) -> int:
        """The largest id plus one: the number of tokens, if no id is left out."""
        return self.vocabulary.size

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text -> id of the special tokens, in the order of ids; a copy."""
        return dict(self.vocabulary.special_tokens)

    @property
    def atomic_texts(self) -> tuple[str, ...]:
        """Texts that no cut of a document may divide: those of all added tokens."""
        return tuple(token.text for token in self.vocabulary.added_tokens)

    @property
    def eos_token(self) -> str | None:
        """End-of-document token, None if there is none."""
        return self._parts.eos_token

    @property
    def bos_token(self) -> str | None:
        """Begin-of-document token, None if there is none."""
        return self._parts.bos_token

    @property
    def pattern(self) -> str:
        """Split pattern, a name or a regex; see `bpe.split.patterns`."""
        return self._parts.pattern

    @property
    def normal_forms(self) -> tuple[str, ...]:
        """Unicode normal forms applied to text before it is split."""
        return self.vocabulary.normal_forms

    @property
    def tie_break(self) -> str | None:
        """How training decided ties, None if not known."""
        return self._parts.tie_break

    @property
    def unicode_version(self) -> str:
        """Unicode version of letters, numbers and white space."""
        return UNICODE_VERSION

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the text of tokenizer.json, in hexadecimal.

        If that cannot be written, of the ranks, special tokens, pattern and eos_token.
        """
        with suppress(VocabularyError, PatternError):
            return self._parts.fingerprint
        ranks = rank_files.tiktoken_ranks(self.vocabulary.ranks())
        text = json.dumps([ranks, self.vocabulary.special_tokens, self.pattern, self.eos_token])
        return hashlib.sha256(text.encode()).hexdigest()

    def has_fingerprint(self, expected: str) -> bool:
        """Return True if `fingerprint` is this; at once if the file that was read has it."""
        return expected == self._parts.file_digest or expected == self.fingerprint

    def __eq__(self, other: object) -> bool:
        return self._parts == other._parts if isinstance(other, Tokenizer) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.vocab_size, *self.vocabulary.special_tokens, self.pattern))

    def __repr__(self) -> str:
        names = list(self.vocabulary.special_tokens)
        size, pattern = self.vocab_size, self.pattern
        return f"Tokenizer(vocab_size={size}, pattern={pattern!r}, special_tokens={names!r})"

    @tells_missing
    def encode(
        self, text: str, allowed_special: str | Collection[str] = "all", **_unknown: Never
    ) -> list[int]:
        """Encode text; special tokens in it become their ids.

        Args:
            text: Any text.
            allowed_special: "all", or the special tokens to recognise; others are ordinary text. Of
                overlapping tokens the leftmost is taken, then the longest.

        Raises:
            EncodingError: The text has a lone surrogate.
            VocabularyError: A text in `allowed_special` is no special token.
        """
        if _unknown:
            check(Tokenizer.encode, (self, text, allowed_special), _unknown)
        try:
            matcher = self._matcher_of(allowed_special)
            return self._encoder.encode_text(utf8(text), matcher)
        except (AttributeError, TypeError, ValueError):
            check(Tokenizer.encode, (self, text, allowed_special), {})
            raise

    @tells_missing
    def encode_ordinary(self, text: str, **_unknown: Never) -> list[int]:
        """Encode text; special tokens in it are ordinary text.

        Raises:
            EncodingError: The text has a lone surrogate.
        """
        if _unknown:
            check(Tokenizer.encode_ordinary, (self, text), _unknown)
        try:
            return self._encoder.encode_text(utf8(text))
        except (AttributeError, TypeError):
            check(Tokenizer.encode_ordinary, (self, text), {})
            raise

    def encode_to_numpy(
        self, text: str, allowed_special: str | Collection[str] = "all"
    ) -> NDArray[np.uint32]:
        """Encode text as `encode` does; returns `uint32[n_tokens]`."""
        matcher = self._matcher_of(allowed_special)
        return self._encoder.encode(*join_documents([utf8(text)]), matcher)[0]

    def encode_batch(
        self, texts: Sequence[str], allowed_special: str | Collection[str] = "all"
    ) -> list[list[int]]:
        """Encode several texts, each as `encode` does, on all threads."""
        ids, offsets = self.encode_batch_to_numpy(texts, allowed_special)
        return [ids[start:stop].tolist() for start, stop in pairwise(offsets.tolist())]

    def encode_batch_to_numpy(
        self, texts: Sequence[str], allowed_special: str | Collection[str] = "all"
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode several texts, each as `encode` does, on all threads.

        Returns:
            `uint32[n_tokens]`, the concatenated ids, and `int64[n_texts + 1]`, offsets: the ids of
            text i are `ids[offsets[i] : offsets[i + 1]]`.

        Raises:
            TypeError: `texts` is a str, or an element is not a str.
            EncodingError: A text has a lone surrogate.
            VocabularyError: As in `encode`.
        """
        matcher = self._matcher_of(allowed_special)
        if isinstance(texts, str):
            raise TypeError("expected a list of texts, found one text: put it in a list")
        return self._encoder.encode_texts(list(texts), matcher)

    def encode_separated_to_numpy(
        self, data: bytes | bytearray | memoryview | mmap.mmap, separator: str = END_OF_TEXT
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode the documents of a file in memory or mapped, on all threads.

        Equals `encode_batch_to_numpy(text.split(separator), allowed_special=())` without a string:
        special tokens are ordinary text. Data is copied only if the tokenizer has a normalizer or a
        pattern without a scanner.

        Args:
            data: UTF-8, of any size.
            separator: Text between documents, which gets no ids.

        Returns:
            As `encode_batch_to_numpy`.

        Raises:
            EncodingError: The data is not UTF-8, the separator has a lone surrogate, or the pattern
                was written for tiktoken and does not match all text.
            ValueError: The separator is empty.
        """
        wanted = utf8(separator)
        if not wanted:
            raise ValueError("the separator is empty: expected at least one character")
        try:
            content = np.frombuffer(data, np.uint8)
        except (TypeError, ValueError, BufferError):
            raise ArgumentError(
                f"data: should be bytes in memory, contiguous; got {data!r:.100}"
            ) from None
        return self._encoder.encode_separated(content, wanted)

    def encode_iterable(
        self, chunks: str | Iterable[str], allowed_special: str | Collection[str] = "all"
    ) -> Iterator[int]:
        """Return an iterator over the ids of `encode("".join(chunks))`, which encodes lazily.

        Text is held back until a safe cut is found. Memory is bounded by the largest chunk and the
        longest text without a safe cut, which is all text for patterns without a scanner, and for
        tokenizers with a normalizer or with added tokens that are not special.

        Raises:
            EncodingError: A chunk has a lone surrogate.
            VocabularyError: As in `encode`.
        """
        matcher = self._matcher_of(allowed_special)
        return chain.from_iterable(self._encoder.encode_stream(chunks, matcher))

    def count_tokens(self, text: str, allowed_special: str | Collection[str] = "all") -> int:
        """Return `len(encode(text))` without making a list."""
        return len(self.encode_to_numpy(text, allowed_special))

    def new_encoder(self, dtype: np.dtype[Any] | None = None) -> Encoder:
        """Return an encoder for one thread; all encoders share tables and a cache.

        Args:
            dtype: Type of the ids, uint16 or uint32 (None).

        Raises:
            EncodingError: The dtype is another, or too small for the vocabulary.
        """
        return self._encoder.new_encoder(dtype)

    def safe_cut(self, buffer: NDArray[np.uint8], position: int, stop: int) -> int:
        """Return the first position from `position` on where a document can be cut, `stop` if none.

        Unless the cut divides one of `atomic_texts`, `encode_ordinary` of the document is the
        concatenation of that of the two parts.

        Args:
            buffer: uint8[>= stop], the document.
            position: Start of the search; 0 is never returned.
            stop: End of the search.

        Raises:
            EncodingError: `buffer` is no such array, or a position is not inside of it.
        """
        return self._encoder.safe_cut(buffer, *check_search(buffer, position, stop))

    def _matcher_of(self, allowed_special: str | Collection[str]) -> SpecialTokenMatcher:
        special_tokens = self.vocabulary.special_tokens
        allowed = allowed_subset(allowed_special, special_tokens)
        if allowed is None:
            return self._matcher
        return matcher_of(frozenset((text, special_tokens[text]) for text in allowed))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of tokens; ids may be a list, an array or a tensor of one dimension.

        Raises:
            EncodingError: An id has no token.
        """
        return decode_bytes(self.vocabulary, ids)

    @tells_missing
    def decode(self, ids: Iterable[int], errors: str = "replace", **_unknown: Never) -> str:
        """Return the text of tokens.

        Args:
            ids: As in `decode_bytes`.
            errors: As in `bytes.decode`, for bytes that are not UTF-8: a token may be a part of a
                character. "replace" gives U+FFFD, "strict" raises UnicodeDecodeError.

        Raises:
            EncodingError: An id has no token.
        """
        if _unknown:
            check(Tokenizer.decode, (self, ids, errors), _unknown)
        try:
            return decode_bytes(self.vocabulary, ids).decode("utf-8", errors)
        except (LookupError, TypeError, UnicodeEncodeError) as error:
            check(Tokenizer.decode, (self, ids, errors), {})
            raise ArgumentError(f"errors: {error}") from error


def check_search(buffer: NDArray[np.uint8], position: int, stop: int) -> tuple[int, int]:
    """Return (position, stop) of a search in a document as integers that kernels take.

    Raises:
        EncodingError: See `Tokenizer.safe_cut`.
    """
    check_array("buffer", buffer, np.uint8)
    first, last, n = max(0, operator.index(position)), operator.index(stop), len(buffer)
    if first <= n and 0 <= last <= n:
        return first, last
    name, place = ("position", first) if first > n else ("stop", last)
    raise EncodingError(f"{name} is {place:,}: expected 0 to {n:,}, the length of the text")
