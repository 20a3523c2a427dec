"""The tokenizer: text in, ids out, and back.

The law here: `decode(encode(text)) == text`, and every way to encode (one text, a batch, a stream
of pieces, one thread or all) gives the same ids.  A `Tokenizer` never changes; it may be used from
several threads at once.

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

import functools
import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from bpe import tokenizer_file
from bpe.added_tokens import Preparation
from bpe.errors import (
    EncodingError,
    PatternError,
    TokenizerFileError,
    UnsupportedTokenizerError,
    VocabularyError,
)
from bpe.files import write_atomically
from bpe.gathered import Gathered
from bpe.parallel import available_workers, for_each
from bpe.patterns import PATTERNS, TIKTOKEN, pattern_name, to_tiktoken
from bpe.reference import TIE_BREAKS, Pair
from bpe.special_tokens import SpecialTokenMatcher
from bpe.unicode_classes import UNICODE_VERSION
from bpe.vocabulary import AddedToken, Vocabulary, unknown_id_message

if TYPE_CHECKING:
    import mmap

    import tiktoken
    import tokenizers
    from numpy.typing import NDArray

    from bpe.encode import Encoder, EncoderTables
    from bpe.separated import SeparatedPart

END_OF_TEXT: Final = "<|endoftext|>"

# Text from this size on is cut into parts of this size, which all threads encode.  Below it a
# thread costs more than it saves: a hand-over between threads takes as long as 50 KB of text.
_PART_BYTES = 1 << 21

# encode_iterable gathers this much before it encodes, and looks back this far for a place to cut.
_STREAM_BYTES = 1 << 16
_STREAM_LOOK_BACK = 1 << 10

# decode takes so many ids of an array at a time, to bound what it needs beside the text.
_DECODE_IDS = 1 << 15


class Tokenizer:
    """A byte-level BPE tokenizer.

    Args:
        vocab: Id -> bytes.  Special tokens may stand in it, too.
        merges: Pairs of tokens in the order in which they were learnt.
        special_tokens: Text -> id, or texts: those take the id that `vocab` has for them, or else
            the next one after the largest.
        pattern: The split pattern, by name or exact text.
        tie_break: How training decided ties ("greatest-bytes" or "huggingface"), None if not known.
        eos_token: The special token that ends a document; `<|endoftext|>` if that is one.

    Raises:
        VocabularyError: The parts contradict one another.
        PatternError: The pattern is not known.
    """

    def __init__(
        self,
        vocab: Mapping[int, bytes],
        merges: Iterable[Pair],
        special_tokens: Mapping[str, int] | Iterable[str] = (),
        *,
        pattern: str = "gpt2",
        tie_break: str | None = None,
        eos_token: str | None = None,
    ) -> None:
        merges = list(merges)
        made = {left + right for left, right in merges}
        others = {
            token: token_id
            for token_id, token in vocab.items()
            if len(token) > 1 and token not in made
        }
        special = _numbered(special_tokens, others, max(vocab, default=-1) + 1)
        tokens = dict(vocab)
        for text, token_id in special.items():
            if tokens.get(token_id) == text.encode("utf-8", "surrogatepass"):
                del tokens[token_id]
        self._take(Vocabulary(tokens, merges, special), pattern, tie_break, eos_token)

    @classmethod
    def from_vocabulary(
        cls,
        vocabulary: Vocabulary,
        *,
        pattern: str = "gpt2",
        tie_break: str | None = None,
        eos_token: str | None = None,
    ) -> Tokenizer:
        """Make a tokenizer of a vocabulary; the other arguments are those of `Tokenizer`."""
        tokenizer = cls.__new__(cls)
        tokenizer._take(vocabulary, pattern, tie_break, eos_token)
        return tokenizer

    @classmethod
    def _of(cls, parts: tokenizer_file.TokenizerParts) -> Tokenizer:
        tokenizer = cls.__new__(cls)
        if parts.eos_token is None and END_OF_TEXT in parts.vocabulary.special_tokens:
            parts = replace(parts, eos_token=END_OF_TEXT)
        tokenizer.__setstate__(parts)
        return tokenizer

    def _take(
        self, vocabulary: Vocabulary, pattern: str, tie_break: str | None, eos_token: str | None
    ) -> None:
        if eos_token is None and END_OF_TEXT in vocabulary.special_tokens:
            eos_token = END_OF_TEXT
        if eos_token is not None and eos_token not in vocabulary.special_tokens:
            raise VocabularyError(
                f"eos_token {eos_token!r} is not a special token of this tokenizer: "
                f"expected one of {_listed(vocabulary.special_tokens)}"
            )
        if tie_break is not None and tie_break not in TIE_BREAKS:
            raise VocabularyError(
                f"unknown tie_break {tie_break!r}: expected None or one of {_listed(TIE_BREAKS)}"
            )
        self.__setstate__(
            tokenizer_file.TokenizerParts(vocabulary, pattern_name(pattern), tie_break, eos_token)
        )

    def __getstate__(self) -> tokenizer_file.TokenizerParts:
        # What was derived (tables, caches, locks) is made again where it is needed.
        return self._parts

    def __setstate__(self, parts: tokenizer_file.TokenizerParts) -> None:
        self._parts = parts
        self._lock = threading.Lock()
        self._tables: EncoderTables | None = None
        self._idle_encoders: list[Encoder] = []
        vocabulary = parts.vocabulary
        self._matcher = SpecialTokenMatcher(vocabulary.special_tokens)
        self._matchers: dict[frozenset[str], SpecialTokenMatcher] = {}
        plain = (
            all(
                token == AddedToken(token.text, token.id, normalized=token.normalized)
                for token in vocabulary.added_tokens
            )
            and len({token.normalized for token in vocabulary.added_tokens}) <= 1
        )
        self._preparation = (
            None
            if plain and not parts.normal_forms and not parts.add_prefix_space
            else Preparation(vocabulary.added_tokens, parts.normal_forms, parts.add_prefix_space)
        )

    # --- files and other libraries ---------------------------------------------------------------

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read a tokenizer.json of a byte-level BPE, and tokenizer_config.json beside it.

        What the file's post-processor adds around a text is not added by `encode`, which gives the
        ids of Hugging Face's `encode(text, add_special_tokens=False)`.  That and all else that the
        files say is written back by `save`.

        Raises:
            UnsupportedTokenizerError: The file is not a byte-level BPE, or has a setting that is
                not implemented.
            TokenizerFileError: The file cannot be read, or is damaged.
        """
        from bpe import tokenizer_cache

        files = tokenizer_file.TokenizerFiles.read(path)
        kept = tokenizer_cache.find(files)
        if kept is not None:
            parts, fingerprint = kept
            tokenizer = cls._of(parts)
            tokenizer.fingerprint = fingerprint
            return tokenizer
        tokenizer = cls._of(files.parts())
        if tokenizer_cache.is_kept(files, tokenizer._parts):
            tokenizer_cache.keep(files, tokenizer._parts, tokenizer.fingerprint)
        return tokenizer

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokenizer.json and, beside it, tokenizer_config.json.

        `tokenizers.Tokenizer.from_file` and `transformers` read them, with the same ids.  The same
        tokenizer gives the same bytes.  Each file takes its place in one step.

        Raises:
            VocabularyError: The ranks of this tokenizer cannot be written as merges.
            OSError: A file cannot be written.
        """
        tokenizer_file.save(path, self._parts)

    @classmethod
    def from_gpt2_files(
        cls,
        vocab_path: str | os.PathLike[str],
        merges_path: str | os.PathLike[str],
        special_tokens: Iterable[str] | None = None,
        *,
        eos_token: str | None = None,
    ) -> Tokenizer:
        """Read vocab.json and merges.txt, as GPT-2 was published.

        Args:
            vocab_path: The file of tokens and ids.
            merges_path: The file of merges, with or without a `#version` line.
            special_tokens: Which entries are special; `<|endoftext|>` if None and it is there.
            eos_token: As in `Tokenizer`.

        Raises:
            TokenizerFileError: A file cannot be read, is damaged, or does not fit the other.
        """
        tokens, merges, others = tokenizer_file.load_gpt2_files(vocab_path, merges_path)
        if special_tokens is None:
            there = END_OF_TEXT.encode() in tokens.values()
            special_tokens = [END_OF_TEXT, *others] if there else list(others)
        vocab = tokens | {token_id: text.encode() for text, token_id in others.items()}
        try:
            return cls(vocab, merges, special_tokens, eos_token=eos_token)
        except VocabularyError as error:
            raise TokenizerFileError(
                f"{os.fspath(vocab_path)} with {os.fspath(merges_path)}: {error}"
            ) from error

    @classmethod
    def from_tiktoken(
        cls,
        source: tiktoken.Encoding | str | os.PathLike[str],
        *,
        pattern: str | None = None,
        special_tokens: Mapping[str, int] | Iterable[str] | None = None,
        eos_token: str | None = None,
    ) -> Tokenizer:
        """Take over a `tiktoken.Encoding`, or a .tiktoken file of ranks.

        Args:
            source: The encoding, the path of the file, or the name of an encoding, which tiktoken
                takes from its cache or downloads.
            pattern: The split pattern, by name or exact text.  A file needs it; an encoding has
                one.
            special_tokens: As in `Tokenizer`; those of the encoding if None, none for a file.
            eos_token: As in `Tokenizer`.

        Raises:
            TokenizerFileError: The file cannot be read, is something else, or contradicts itself or
                the special tokens.
            VocabularyError: The encoding does, or a special token is named twice.
            PatternError: The pattern is not known, or not given for a file.
        """
        if isinstance(source, str) and not os.path.exists(source):
            source = _tiktoken_encoding(source)
        if isinstance(source, str | os.PathLike):
            ranks = tokenizer_file.load_tiktoken_ranks(source)
            if pattern is None:
                raise PatternError(
                    f"{os.fspath(source)}: a file of ranks does not say how text is split: "
                    "pass pattern=, for example pattern='gpt2'"
                )
        else:
            # tiktoken's own README takes these attributes to extend an encoding.
            ranks = source._mergeable_ranks
            pattern = TIKTOKEN + source._pat_str if pattern is None else pattern
            special_tokens = source._special_tokens if special_tokens is None else special_tokens
        special = _numbered(special_tokens or (), {}, max(ranks.values(), default=-1) + 1)
        try:
            vocabulary = Vocabulary.from_ranks(ranks, special)
        except VocabularyError as error:
            if not isinstance(source, str | os.PathLike):
                raise
            raise TokenizerFileError(f"{os.fspath(source)}: {error}") from error
        return cls.from_vocabulary(vocabulary, pattern=pattern, eos_token=eos_token)

    @classmethod
    def from_huggingface(cls, source: Any) -> Tokenizer:
        """Take over a tokenizer of Hugging Face's.

        Args:
            source: A `tokenizers.Tokenizer`, a fast tokenizer of `transformers`, a directory that
                holds tokenizer.json, or a name on the hub.  A name is looked for in the local
                cache and then on the network, by `huggingface_hub`; no code of the repository is
                run.

        Raises:
            UnsupportedTokenizerError: It is not a byte-level BPE, or has a setting that is not
                implemented.
            TokenizerFileError: It cannot be found or read, or is damaged.
        """
        if isinstance(source, str | os.PathLike):
            return cls.from_file(huggingface_hub_file(source))
        name = Path(type(source).__name__)
        if hasattr(source, "save_pretrained"):
            # It holds more than its backend: all special tokens, a template of chats.
            with tempfile.TemporaryDirectory() as directory:
                source.save_pretrained(directory)
                path = Path(directory, "tokenizer.json")
                if not path.exists():
                    raise UnsupportedTokenizerError(
                        f"{name}: expected a fast tokenizer of transformers, found one that saves"
                        " no tokenizer.json; load it with use_fast=True"
                    )
                document = tokenizer_file.parse_json(tokenizer_file.read_text(path), path)
                config_path = tokenizer_file.config_path(path)
                text = tokenizer_file.read_text(config_path)
                config = tokenizer_file.parse_json(text, config_path)
            # What the last call asked for is no setting of the tokenizer.
            document |= {"padding": None, "truncation": None}
            parts = tokenizer_file.parse_tokenizer_json(json.dumps(document), name)
            return cls._of(tokenizer_file.with_config(parts, config, name, name))
        try:
            text = source.to_str()
        except AttributeError:
            raise TokenizerFileError(
                f"{name}: expected a tokenizers.Tokenizer, a fast tokenizer of transformers, a"
                " directory or a name on the hub"
            ) from None
        return cls._of(tokenizer_file.parse_tokenizer_json(text, name))

    def save_tiktoken(self, path: str | os.PathLike[str]) -> None:
        """Write a .tiktoken file of ranks; it holds neither special tokens nor the split pattern.

        Raises:
            VocabularyError: No ranks give the same ids.
            OSError: The file cannot be written.
        """
        self._refuse_preparation("a .tiktoken file")
        ranks = self.vocabulary.ranks()
        write_atomically(Path(path), tokenizer_file.tiktoken_ranks(ranks).encode())

    def save_gpt2_files(
        self, vocab_path: str | os.PathLike[str], merges_path: str | os.PathLike[str]
    ) -> None:
        """Write vocab.json and merges.txt, as GPT-2 was published; the split pattern is gpt2's.

        Raises:
            VocabularyError: The files cannot say all that this tokenizer is.
            OSError: A file cannot be written.
        """
        self._refuse_preparation("vocab.json and merges.txt")
        if self.pattern != "gpt2":
            raise VocabularyError(
                f"vocab.json and merges.txt do not say how text is split, and {self.pattern!r} is"
                " not gpt2, which is taken for granted: use tokenizer.json"
            )
        vocab, merges = tokenizer_file.gpt2_files(self.vocabulary)
        write_atomically(Path(merges_path), merges.encode())
        write_atomically(Path(vocab_path), vocab.encode())

    def _refuse_preparation(self, kind: str) -> None:
        if self._preparation is not None:
            raise VocabularyError(
                f"{kind} cannot say what happens to text before it is split (added tokens with"
                " settings, a normalizer, a space in front): use tokenizer.json"
            )

    def to_tiktoken(self, name: str = "tokenbin") -> tiktoken.Encoding:
        """Return a `tiktoken.Encoding` that gives the same ids.

        Raises:
            VocabularyError: No ranks give the same ids.
            PatternError: tiktoken has no regex that splits alike.
        """
        import tiktoken

        self._refuse_preparation("tiktoken")

        return tiktoken.Encoding(
            name,
            pat_str=to_tiktoken(self.pattern),
            mergeable_ranks=self.vocabulary.ranks(),
            special_tokens=self.special_tokens,
        )

    def to_huggingface(self) -> tokenizers.Tokenizer:
        """Return a `tokenizers.Tokenizer` that gives the same ids.

        Raises:
            VocabularyError: The ranks of this tokenizer cannot be written as merges.
        """
        import tokenizers

        return tokenizers.Tokenizer.from_str(tokenizer_file.tokenizer_json(self._parts))

    # --- what it is ------------------------------------------------------------------------------

    @property
    def vocabulary(self) -> Vocabulary:
        """Tokens, merges and special tokens."""
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
    def eos_token(self) -> str | None:
        """The special token that ends a document, None if there is none."""
        return self._parts.eos_token

    @property
    def bos_token(self) -> str | None:
        """The special token that begins a document, as tokenizer_config.json says; else None."""
        if not self._parts.config:
            return None
        bos_token = json.loads(self._parts.config).get("bos_token")
        text = bos_token.get("content") if isinstance(bos_token, dict) else bos_token
        known = isinstance(text, str) and text in self.vocabulary.special_tokens
        return text if known else None

    @property
    def pattern(self) -> str:
        """The split pattern, as `bpe.patterns` writes it: a name, or a regex."""
        return self._parts.pattern

    @property
    def normal_forms(self) -> tuple[str, ...]:
        """The Unicode normal forms that text is brought into first."""
        return self._parts.normal_forms

    @property
    def tie_break(self) -> str | None:
        """How training decided ties, None if not known."""
        return self._parts.tie_break

    @property
    def unicode_version(self) -> str:
        """The version of Unicode that says what a letter, a number and white space is."""
        return UNICODE_VERSION

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the text of tokenizer.json, in hexadecimal.

        What cannot be written there has that of its ranks, special tokens and pattern.
        """
        try:
            text = tokenizer_file.tokenizer_json(self._parts)
        except (VocabularyError, PatternError):
            ranks = tokenizer_file.tiktoken_ranks(self.vocabulary.ranks())
            text = json.dumps([ranks, self.vocabulary.special_tokens, self.pattern, self.eos_token])
        return hashlib.sha256(text.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tokenizer):
            return NotImplemented
        return self._parts == other._parts

    def __hash__(self) -> int:
        return hash((self.vocab_size, *self.vocabulary.special_tokens, self.pattern))

    def __repr__(self) -> str:
        return (
            f"Tokenizer(vocab_size={self.vocab_size}, pattern={self.pattern!r}, "
            f"special_tokens={list(self.vocabulary.special_tokens)!r})"
        )

    # --- text -> ids -----------------------------------------------------------------------------

    def encode(self, text: str, allowed_special: str | Collection[str] = "all") -> list[int]:
        """Encode text; special tokens in it become their ids.

        Args:
            text: Any text.
            allowed_special: "all", or the special tokens that are recognised; the text of the
                others is ordinary text.  Where they overlap the leftmost is taken, the longest of
                those that start at one place.

        Raises:
            EncodingError: The text has a lone surrogate, which no UTF-8 can say.
            VocabularyError: A name in `allowed_special` is no special token of this tokenizer.
        """
        matcher = self._matcher_of(allowed_special)
        if self._preparation is None:
            data = _utf8(text)
            if not matcher.occurs_in(data):
                return self._encode_listed(data)
        ids: list[int] = self.encode_to_numpy(text, allowed_special).tolist()
        return ids

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode text; what spells a special token is ordinary text.

        Raises:
            EncodingError: The text has a lone surrogate.
        """
        data = _utf8(text)
        if self._preparation is not None:
            prepared: list[int] = self._prepared([data], frozenset())[0].tolist()
            return prepared
        return self._encode_listed(data)

    def encode_to_numpy(
        self, text: str, allowed_special: str | Collection[str] = "all"
    ) -> NDArray[np.uint32]:
        """Encode text as `encode` does; returns `uint32[n_tokens]`."""
        matcher = self._matcher_of(allowed_special)
        if self._preparation is not None:
            return self._prepared([_utf8(text)], _recognised(allowed_special))[0]
        return self._encode_data(_utf8(text), matcher)

    def encode_batch(
        self, texts: Sequence[str], allowed_special: str | Collection[str] = "all"
    ) -> list[list[int]]:
        """Encode several texts, each as `encode` does, on all threads."""
        ids, offsets = self.encode_batch_to_numpy(texts, allowed_special)
        flat, ends = ids.tolist(), offsets.tolist()
        return [flat[start:stop] for start, stop in pairwise(ends)]

    def encode_batch_to_numpy(
        self, texts: Sequence[str], allowed_special: str | Collection[str] = "all"
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode several texts, each as `encode` does, on all threads.

        Returns:
            `uint32[n_tokens]`, the ids of all texts one after the other, and `int64[n_texts + 1]`:
            text i has the ids from `offsets[i]` to `offsets[i + 1]`.

        Raises:
            TypeError: `texts` is one text, or holds something else than text.
            EncodingError: A text has a lone surrogate.
            VocabularyError: As in `encode`.
        """
        matcher = self._matcher_of(allowed_special)
        if isinstance(texts, str):
            raise TypeError("expected a list of texts, found one text: put it in a list")
        texts = texts if isinstance(texts, list) else list(texts)
        if self._preparation is not None:
            return self._prepared(list(map(_utf8, texts)), _recognised(allowed_special))
        groups = _groups(texts)
        # Also with one processor: what is encoded at once stays near it.
        if len(groups) > 1:
            return self._encode_groups(groups, matcher, available_workers())
        return self._encode_joined(*_joined(texts), matcher)

    def encode_separated_to_numpy(
        self, data: bytes | bytearray | memoryview | mmap.mmap, separator: str = END_OF_TEXT
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode the documents of a file that lies in memory or is mapped, on all threads.

        This is `encode_batch_to_numpy(text.split(separator), allowed_special=())` of its text, but
        makes no string of it: what spells a special token is ordinary text. It is copied only if
        the tokenizer has a normalizer, or a pattern without a scanner.

        Args:
            data: UTF-8, any number of bytes.
            separator: what stands between two documents; it belongs to none, and has no ids.

        Returns:
            `uint32[n_tokens]`, the ids of all documents one after the other, and
            `int64[n_documents + 1]`: document i has the ids from `offsets[i]` to `offsets[i + 1]`.

        Raises:
            EncodingError: The data is not UTF-8, the separator has a lone surrogate, or the pattern
                was written for tiktoken, which would lose some of the text.
            ValueError: The separator is empty.
        """
        from bpe.separated import check_utf8, separated_parts

        wanted = _utf8(separator)
        if not wanted:
            raise ValueError("the separator is empty: expected at least one character")
        buffer = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        if self._preparation is not None or self.pattern not in PATTERNS:
            # What stands between documents must not meet a normalizer, nor a regex that may refuse
            # it.
            check_utf8(buffer, 0)
            documents = buffer.tobytes().split(wanted)
            if self._preparation is not None:
                return self._prepared(documents, frozenset())
            offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
            joined = np.frombuffer(b"".join(documents), np.uint8)
            return self._encode_documents(joined, offsets)
        gathered = Gathered(len(buffer))
        n_threads = min(available_workers(), 1 + 2 * len(buffer) // _PART_BYTES)

        def part_size(n_left: int) -> int:
            # Each hand-over takes its time; towards the end none shall wait long for another.
            return max(_PART_BYTES // 2, min(4 * _PART_BYTES, n_left // (3 * n_threads)))

        def encode_part(number: int, part: SeparatedPart) -> None:
            text = buffer[part.start : part.stop]
            check_utf8(text, part.start)
            with self._lent_encoder() as encoder:
                ids, offsets = encoder.encode_view(text, part.bounds, gaps=True)
                if part.ends_mid_document:
                    offsets = offsets[:-1]
                gathered.put(number, ids, offsets, part.stop - part.start)

        safe_cut = self._encoder_tables().pretokenizer.safe_cut
        parts = separated_parts(buffer, wanted, part_size, safe_cut)
        for_each(parts, encode_part, n_threads)
        return gathered.result()

    def encode_iterable(
        self, chunks: Iterable[str], allowed_special: str | Collection[str] = "all"
    ) -> Iterator[int]:
        """Encode pieces of one text lazily: yields the ids of `encode("".join(chunks))`.

        Text is held back until a place is known where it can be cut whatever comes next.  Memory is
        that of the largest chunk, a little more text, and the longest stretch without such a place;
        which is all of the text for a pattern without a scanner, and for a tokenizer with a
        normalizer or with added tokens that are not special.

        Raises:
            EncodingError: A chunk has a lone surrogate.
            VocabularyError: As in `encode`.
        """
        matcher = self._matcher_of(allowed_special)
        if self._preparation is not None:
            # Where such text may be cut is not known while more of it can come.
            yield from self.encode("".join(chunks), allowed_special)
            return
        pending: list[bytes] = []
        n_pending = 0
        wanted = _STREAM_BYTES
        for chunk in chunks:
            if not chunk:
                continue
            pending.append(_utf8(chunk))
            n_pending += len(pending[-1])
            if n_pending < wanted:
                continue
            data = b"".join(pending)
            cut = self._stream_cut(data, matcher)
            if cut:
                yield from self._encode_data(data[:cut], matcher).tolist()
            pending = [data[cut:]]
            n_pending = len(pending[0])
            # A stretch without a place to cut is looked through again only when it has doubled.
            wanted = max(_STREAM_BYTES, 2 * n_pending)
        data = b"".join(pending)
        yield from self._encode_data(data, matcher).tolist()

    def _stream_cut(self, data: bytes, matcher: SpecialTokenMatcher) -> int:
        """Return a place where text that goes on after `data` can be cut, 0 if none is known."""
        found = list(matcher.find(data, 0, len(data))) if matcher.occurs_in(data) else []
        certain = matcher.open_from(data, found)
        # Special tokens cut the text; what follows the last certain one is ordinary up to
        # `certain`.
        start = max((stop for _, stop, _ in found if stop <= certain), default=0)
        buffer = np.frombuffer(data, dtype=np.uint8)[start:certain]
        safe_cut = self._encoder_tables().pretokenizer.safe_cut
        look_back = _STREAM_LOOK_BACK
        while True:
            first = max(0, len(buffer) - look_back)
            cut = safe_cut(buffer, first, len(buffer))
            if cut < len(buffer):
                return start + cut
            if first == 0:
                return start
            look_back *= 4

    def count_tokens(self, text: str, allowed_special: str | Collection[str] = "all") -> int:
        """Return `len(encode(text))` without making a list."""
        return len(self.encode_to_numpy(text, allowed_special))

    def new_encoder(self, dtype: np.dtype[Any] | None = None) -> Encoder:
        """Return an encoder for a thread of its own; all of them share one set of tables.

        Args:
            dtype: Of the ids that it gives, uint16 or uint32; uint32 if None.

        Raises:
            EncodingError: It is another, or the ids of the vocabulary do not fit into it.
        """
        from bpe.encode import Encoder

        return Encoder(self._encoder_tables(), self._preparation, dtype)

    def _prepared(
        self, documents: Sequence[bytes], recognised: frozenset[str] | None
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        assert self._preparation is not None
        offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        data = b"".join(documents)
        buffer = np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)
        return self._preparation.encode(self._encode_documents, buffer, offsets, recognised)

    @property
    def uncut_tokens(self) -> tuple[str, ...]:
        """Texts that a document must not be cut through: those of all added tokens."""
        return tuple(token.text for token in self.vocabulary.added_tokens)

    def safe_cut(self, buffer: NDArray[np.uint8], position: int, stop: int) -> int:
        """The first place from `position` on where a document can be cut; `stop` if there is none.

        `encode_ordinary` of what is before and of what is behind are together that of the whole, if
        the cut is not inside one of `uncut_tokens`.

        Args:
            buffer: uint8[>= stop], the document.
            position: where to begin; place 0 is never returned.
            stop: where to end.
        """
        safe_cut = self._encoder_tables().pretokenizer.safe_cut
        if self._preparation is None:
            return safe_cut(buffer, position, stop)
        if not self._preparation.allows_cuts:
            return stop
        # No normal form changes ASCII, nor anything across a place between two such characters.
        while (cut := safe_cut(buffer, position, stop)) < stop:
            if buffer[cut - 1] < 0x80 and buffer[cut] < 0x80:
                return cut
            position = cut + 1
        return stop

    def _encoder_tables(self) -> EncoderTables:
        if self._tables is None:
            from bpe.encode import EncoderTables

            with self._lock:
                if self._tables is None:
                    self._tables = EncoderTables(self.vocabulary, self.pattern)
        return self._tables

    def _matcher_of(self, allowed_special: str | Collection[str]) -> SpecialTokenMatcher:
        if isinstance(allowed_special, str):
            if allowed_special == "all":
                return self._matcher
            raise VocabularyError(
                f"allowed_special is {allowed_special!r}: expected 'all' or a collection of "
                f"special tokens, such as [{allowed_special!r}]"
            )
        allowed = frozenset(allowed_special)
        matcher = self._matchers.get(allowed)
        if matcher is None:
            special_tokens = self.vocabulary.special_tokens
            for text in allowed:
                if text not in special_tokens:
                    raise VocabularyError(
                        f"allowed_special names {text!r}, which is not a special token of this "
                        f"tokenizer: expected some of {_listed(special_tokens)}"
                    )
            matcher = SpecialTokenMatcher({text: special_tokens[text] for text in allowed})
            self._matchers[allowed] = matcher
        return matcher

    def _encode_listed(self, data: bytes) -> list[int]:
        """Encode one document without special tokens."""
        if len(data) >= 2 * _PART_BYTES:
            ids: list[int] = self._encode_data(data, None).tolist()
            return ids
        encoder = self._idle_encoder()
        listed = encoder.encode_text(data)
        self._idle_encoders.append(encoder)
        return listed

    def _encode_data(self, data: bytes, matcher: SpecialTokenMatcher | None) -> NDArray[np.uint32]:
        if matcher is not None and matcher.occurs_in(data):
            return self._encode_with_special(data, [0, len(data)], matcher)[0]
        buffer = np.frombuffer(data, dtype=np.uint8) if data else np.empty(0, dtype=np.uint8)
        return self._encode_documents(buffer, np.array([0, len(data)], dtype=np.int64))[0]

    def _encode_with_special(
        self,
        data: bytes | memoryview,
        offsets: Sequence[int] | NDArray[np.int64],
        matcher: SpecialTokenMatcher,
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode documents in which special tokens may occur.

        All ordinary text is put together and encoded in one go, cut where a document or a special
        token was; then the ids of the special tokens are put in between.
        """
        offsets = np.asarray(offsets, dtype=np.int64)
        found = matcher.find_in_documents(np.frombuffer(data, np.uint8), offsets)
        starts, stops, special_ids = found.T
        removed = np.concatenate([[0], np.cumsum(stops - starts)])
        view = memoryview(data)
        bounds = [0, *found[:, :2].ravel().tolist(), len(data)]
        ordinary = b"".join(
            [view[start:stop] for start, stop in zip(bounds[::2], bounds[1::2], strict=True)]
        )
        # No special token lies across the end of a document: those before it are wholly before it.
        n_before = np.searchsorted(starts, offsets)
        document_cuts = offsets - removed[n_before]
        special_cuts = starts - removed[:-1]
        # A place that stands there twice is an empty document, which has no ids.
        cuts = np.sort(np.concatenate([document_cuts, special_cuts]))
        buffer = np.frombuffer(ordinary, dtype=np.uint8) if ordinary else np.empty(0, np.uint8)
        ids, counts = self._encode_documents(buffer, cuts)
        special_places = counts[np.searchsorted(cuts, special_cuts)]
        token_offsets = counts[np.searchsorted(cuts, document_cuts)] + n_before
        return np.insert(ids, special_places, special_ids), token_offsets

    def _encode_documents(
        self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode documents without special tokens; on all threads if they are large."""
        if len(buffer) >= 2 * _PART_BYTES:
            return self._encode_on_threads(buffer, offsets, available_workers())
        with self._lent_encoder() as encoder:
            return encoder.encode(buffer, offsets)

    def _encode_groups(
        self, groups: Sequence[Sequence[str]], matcher: SpecialTokenMatcher, n_threads: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Encode groups of texts on threads."""
        gathered = Gathered(len(groups))

        def encode_group(_: int, number: int) -> None:
            buffer, offsets = _joined(groups[number])
            if matcher.occurs_in(buffer.data):
                gathered.put(number, *self._encode_with_special(buffer.data, offsets, matcher))
            else:
                with self._lent_encoder() as encoder:
                    gathered.put(number, *encoder.encode_view(buffer, offsets))

        # A very long text has parts of its own, which are encoded on threads.
        alone = [number for number, texts in enumerate(groups) if len(texts[0]) >= 2 * _PART_BYTES]
        for number in alone:
            gathered.put(number, *self._encode_joined(*_joined(groups[number]), matcher))
        together = sorted(set(range(len(groups))) - set(alone))
        for_each(together, encode_group, max(1, min(n_threads, len(together))))
        return gathered.result()

    def _encode_joined(
        self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64], matcher: SpecialTokenMatcher
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        if matcher.occurs_in(buffer.data):
            return self._encode_with_special(buffer.data, offsets, matcher)
        return self._encode_documents(buffer, offsets)

    @contextmanager
    def _lent_encoder(self) -> Iterator[Encoder]:
        """An encoder without preparation, for one thread, with what it has seen last.

        Encoders are lent, not bound to a thread: threads come and go, what was seen stays.
        """
        encoder = self._idle_encoder()
        yield encoder
        self._idle_encoders.append(encoder)

    def _idle_encoder(self) -> Encoder:
        try:
            return self._idle_encoders.pop()
        except IndexError:
            from bpe.encode import Encoder

            return Encoder(self._encoder_tables())

    def _encode_on_threads(
        self, buffer: NDArray[np.uint8], offsets: NDArray[np.int64], n_threads: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        # Every end of a document and every end of a part becomes a cut.  The number of tokens
        # before a cut is then a function of its place, which is all that is needed to join parts.
        safe_cut = self._encoder_tables().pretokenizer.safe_cut
        edges = [0]
        for target in range(_PART_BYTES, len(buffer), _PART_BYTES):
            if target > edges[-1]:
                end_of_document = int(offsets[np.searchsorted(offsets, target)])
                edges.append(safe_cut(buffer, target, end_of_document))
        if edges[-1] < len(buffer):
            edges.append(len(buffer))
        gathered = Gathered(len(edges) - 1)

        def encode_part(number: int, part: tuple[int, int]) -> None:
            start, stop = part
            first, last = np.searchsorted(offsets, [start, stop], side="right")
            ends = offsets[first:last] - start
            cuts = np.unique(np.concatenate([[0], ends, [stop - start]]))
            with self._lent_encoder() as encoder:
                ids, counts = encoder.encode_view(buffer[start:stop], cuts)
                counts_at_ends = counts[np.searchsorted(cuts, [0, *ends])]
                gathered.put(number, ids, counts_at_ends)

        for_each(pairwise(edges), encode_part, max(1, min(n_threads, len(edges) - 1)))
        ids, token_offsets = gathered.result()
        n_empty = int(np.searchsorted(offsets, 0, side="right")) - 1
        return ids, np.concatenate([np.zeros(n_empty, np.int64), token_offsets])

    # --- ids -> text -----------------------------------------------------------------------------

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of tokens; ids may be a list, an array or a tensor of one dimension.

        Raises:
            EncodingError: An id has no token.
        """
        if hasattr(ids, "__array__"):
            return self._decode_array(np.asarray(ids))
        try:
            return b"".join(map(self.vocabulary.bytes_of_id.__getitem__, ids))
        except KeyError as error:
            raise EncodingError(unknown_id_message(error.args[0], self.vocab_size)) from None

    def _decode_array(self, ids: NDArray[Any]) -> bytes:
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise EncodingError(
                f"ids have the shape {ids.shape} and the type {ids.dtype}: "
                "expected one dimension of whole numbers"
            )
        data, starts, lengths = self._flat_tokens
        pieces = []
        for first in range(0, len(ids), _DECODE_IDS):
            part = ids[first : first + _DECODE_IDS]
            inside = (part >= 0) & (part < len(lengths))
            taken = np.where(inside, part, 0).astype(np.int64)
            unknown = ~inside | (lengths[taken] == 0)
            if unknown.any():
                token_id = int(part[unknown.argmax()])
                raise EncodingError(unknown_id_message(token_id, self.vocab_size))
            # Twice as fast as joining the bytes of one token after the other.
            ends = np.cumsum(lengths[taken])
            places = np.repeat(starts[taken] - ends + lengths[taken], lengths[taken])
            pieces.append(data[places + np.arange(len(places))].tobytes())
        return b"".join(pieces)

    @functools.cached_property
    def _flat_tokens(self) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        """The bytes of all tokens; where each id's begin; how many they are (0: no token)."""
        tokens = self.vocabulary.bytes_of_id
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        lengths[list(tokens)] = [len(token) for token in tokens.values()]
        data = np.frombuffer(b"".join(tokens.values()), dtype=np.uint8)
        return data, np.cumsum(lengths) - lengths, lengths

    def decode(self, ids: Iterable[int], errors: str = "replace") -> str:
        """Return the text of tokens.

        Args:
            ids: As in `decode_bytes`.
            errors: What to do with bytes that are not UTF-8 (an id may be a part of a character),
                as in `bytes.decode`: "replace" puts U+FFFD, "strict" raises UnicodeDecodeError.

        Raises:
            EncodingError: An id has no token.
        """
        return self.decode_bytes(ids).decode("utf-8", errors)


def _numbered(
    special_tokens: Mapping[str, int] | Iterable[str], ids_there: Mapping[bytes, int], next_id: int
) -> dict[str, int]:
    """Return text -> id: the ids given, else those that are there, else new ones from `next_id`."""
    if isinstance(special_tokens, Mapping):
        return dict(special_tokens)
    if isinstance(special_tokens, str):
        raise VocabularyError(
            f"special_tokens is the text {special_tokens!r}: expected a list, [{special_tokens!r}]"
        )
    special: dict[str, int] = {}
    for text in special_tokens:
        if text in special:
            raise VocabularyError(f"special token {text!r} is named twice: name each one once")
        special[text] = ids_there.get(text.encode("utf-8", "surrogatepass"), next_id)
        next_id = max(next_id, special[text] + 1)
    return special


def _recognised(allowed_special: str | Collection[str]) -> frozenset[str] | None:
    """The special tokens that are recognised, None for all."""
    return None if allowed_special == "all" else frozenset(allowed_special)


def _tiktoken_encoding(name: str) -> tiktoken.Encoding:
    import tiktoken

    known = tiktoken.list_encoding_names()
    if name not in known:
        raise TokenizerFileError(
            f"{name}: No such file or directory, and no encoding of tiktoken's has this name:"
            f" expected a path, or one of {', '.join(known)}"
        )
    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:
        raise TokenizerFileError(
            f"{name}: tiktoken cannot load this encoding: {error}; it downloads the ranks once,"
            " and finds them again where TIKTOKEN_CACHE_DIR says"
        ) from error


def huggingface_hub_file(name: str | os.PathLike[str]) -> Path:
    """Return where the tokenizer.json of a directory or of a name on Hugging Face's hub is.

    The configuration beside it is fetched with it.

    Raises:
        TokenizerFileError: There is none, or it cannot be fetched.
    """
    path = Path(name)
    if path.is_dir():
        if not (path / "tokenizer.json").exists():
            raise TokenizerFileError(
                f"{path}: there is no tokenizer.json in this directory: expected one; a"
                " vocab.json and a merges.txt are read by Tokenizer.from_gpt2_files"
            )
        return path / "tokenizer.json"
    if path.exists():
        return path
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise TokenizerFileError(
            f"{name}: No such file or directory, and for a name on Hugging Face's hub"
            " huggingface_hub is missing: pip install 'tokenbin[hf]'"
        ) from error
    found: dict[str, Path] = {}
    for file in ("tokenizer.json", "tokenizer_config.json"):
        try:
            # A path, None if nothing is known of it, else a mark that there is none.
            place = huggingface_hub.try_to_load_from_cache(str(name), file)
            if place is None:
                place = huggingface_hub.hf_hub_download(str(name), file)
        except Exception as error:
            # Whatever the network, the hub or its library says.  That there is no configuration is
            # one thing, that nobody could look is another: it names the special tokens.
            if (
                file == "tokenizer_config.json"
                and isinstance(error, errors.EntryNotFoundError)
                and not isinstance(error, errors.LocalEntryNotFoundError)
            ):
                continue
            raise TokenizerFileError(
                f"{name}: No such file or directory, and Hugging Face's hub gave no"
                f" {file}: {type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
        if isinstance(place, str):
            found[file] = Path(place)
    if "tokenizer.json" not in found:
        raise TokenizerFileError(
            f"{name}: No such file or directory, and on Hugging Face's hub it has no tokenizer.json"
        )
    return found["tokenizer.json"]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "(none)"


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise EncodingError(
            f"character {error.start} of the text is {text[error.start]!r}, a lone surrogate: "
            "expected valid Unicode; decode with errors='replace' where the text comes from"
        ) from error
    except AttributeError:
        raise TypeError(f"expected text, found {type(text).__name__}") from None


def _groups(texts: list[str]) -> list[list[str]]:
    """Cut a list into lists of about as many bytes as a part has; a text of two is alone."""
    groups, first, size = [], 0, 0
    for number, text in enumerate(texts):
        if type(text) is not str:
            raise TypeError(f"expected text, found {type(text).__name__}")
        if len(text) >= 2 * _PART_BYTES and first < number:
            groups.append(texts[first:number])
            first, size = number, 0
        # Letters beyond ASCII have two bytes or three.
        size += len(text) if text.isascii() else 2 * len(text)
        if size >= _PART_BYTES:
            groups.append(texts[first : number + 1])
            first, size = number + 1, 0
    if first < len(texts):
        groups.append(texts[first:])
    return groups


def _joined(texts: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the UTF-8 of all texts, `uint8[n_bytes]`, and their offsets, `int64[n_texts + 1]`."""
    encoded = [_utf8(text) for text in texts]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, encoded), np.int64, len(encoded)), out=offsets[1:])
    data = b"".join(encoded)
    return np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8), offsets
