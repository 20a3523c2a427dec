r"""A word-level tokenizer, for teaching and comparison: every word is a token, or it is unknown.

`split` drops white space (that of our pinned Unicode table) and makes each punctuation mark a token
of its own. The case of letters is kept. A word outside the vocabulary becomes the unknown token, so
decoding does not restore the text: that is what byte-level BPE is for.

    >>> split("Hello, world -- is this-- a test?")
    ['Hello', ',', 'world', '--', 'is', 'this', '--', 'a', 'test', '?']
    >>> tokenizer = WordLevelTokenizer(create_vocabulary(["Hello, world!", "Hello there"]))
    >>> tokenizer.vocabulary
    ('!', ',', 'Hello', 'there', 'world')
    >>> tokenizer.encode("Hello, you<|endoftext|>")
    [2, 1, 5, 9]
    >>> tokenizer.decode([2, 1, 4, 0])
    'Hello, world!'

It is saved as a tokenizer.json of type WordLevel, which gives the same ids in Hugging Face's
`tokenizers`.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from bpe import json_file
from bpe.errors import TokenizerFileError, UnsupportedTokenizerError, VocabularyError
from bpe.files import write_atomically
from bpe.special_tokens import SpecialTokenMatcher
from bpe.text_tokenizer import TextTokenizer
from bpe.unicode_classes import UNICODE_VERSION, WHITE_SPACES

UNKNOWN: Final = "<|unk|>"
BEGIN: Final = "<|bos|>"
END: Final = "<|eos|>"
PAD: Final = "<|pad|>"
END_OF_TEXT: Final = "<|endoftext|>"
SPECIAL_TOKENS: Final = (UNKNOWN, BEGIN, END, PAD, END_OF_TEXT)

PATTERN: Final = "word-level"
_MARKS: Final = ",.:;?_!\"()'"
_PUNCTUATION: Final = rf"--|[{_MARKS}]"  # the same in Hugging Face's engine and in Python's
_WORD: Final = re.compile(rf"{_PUNCTUATION}|(?:(?!--)[^{WHITE_SPACES}{_MARKS}])+")
_MATCHER: Final = SpecialTokenMatcher({token: i for i, token in enumerate(SPECIAL_TOKENS)})


def split(text: str) -> list[str]:
    """Cut text into words and punctuation; white space is dropped."""
    return _WORD.findall(text)


def create_vocabulary(texts: Iterable[str], max_size: int | None = None) -> list[str]:
    """Return the distinct words of texts, sorted by code points; special tokens are no words.

    Args:
        texts: The texts.
        max_size: Maximum number of words: the most frequent, of equally frequent ones the first.

    Raises:
        TypeError: `texts` is one text.
        VocabularyError: `max_size` is negative.
    """
    if isinstance(texts, str):
        raise TypeError("expected several texts, found one text: put it in a list")
    if max_size is not None and max_size < 0:
        raise VocabularyError(f"max_size is {max_size}: expected 0 or more, or None for all words")
    counts: Counter[str] = Counter()
    for text in texts:
        for piece in _MATCHER.split(text)[::2]:
            counts.update(split(piece))
    by_count = sorted(counts, key=lambda word: (-counts[word], word))
    return sorted(by_count[:max_size])


class WordLevelTokenizer(TextTokenizer):
    """A tokenizer whose tokens are words and punctuation.

    The ids of the words come first, in their order, then the special tokens: `<|unk|>` for words
    that are not in the vocabulary, `<|bos|>`, `<|eos|>`, `<|pad|>` and `<|endoftext|>`.

    Args:
        vocabulary: Words in the order of their ids, such as `create_vocabulary` returns.

    Attributes:
        vocabulary: These words.
        eos_token: The end-of-document token.
        bos_token: The begin-of-sequence token.
        pattern: How text is split: "word-level".
        unicode_version: The version of Unicode that defines white space.

    Raises:
        VocabularyError: A word appears twice, or `split` never returns it.
    """

    def __init__(self, vocabulary: Iterable[str]) -> None:
        if isinstance(vocabulary, str):
            raise VocabularyError("vocabulary is one text: expected words in a list")
        self.vocabulary: tuple[str, ...] = tuple(vocabulary)
        self._ids: dict[str, int] = {}
        for word in self.vocabulary:
            if not isinstance(word, str) or split(word) != [word]:
                raise VocabularyError(
                    f"{word!r} in the vocabulary is no word: expected text that split() leaves as"
                    " it is, without white space, and punctuation only by itself"
                )
            if word in SPECIAL_TOKENS or not _is_unicode(word):
                raise VocabularyError(
                    f"{word!r} in the vocabulary is no word but"
                    f" {'a special token' if _is_unicode(word) else 'not valid Unicode'}:"
                    " leave it out"
                )
            if word in self._ids:
                raise VocabularyError(f"{word!r} is in the vocabulary twice: expected it once")
            self._ids[word] = len(self._ids)
        self._texts = dict(enumerate([*self.vocabulary, *SPECIAL_TOKENS]))
        first = len(self.vocabulary)
        self._special_tokens = {text: i for i, text in enumerate(SPECIAL_TOKENS, first)}

    eos_token = END_OF_TEXT
    bos_token = BEGIN
    pattern = PATTERN
    unicode_version = UNICODE_VERSION
    split = staticmethod(split)
    create_vocabulary = staticmethod(create_vocabulary)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> WordLevelTokenizer:
        """Read a tokenizer.json that `save` wrote.

        Raises:
            UnsupportedTokenizerError: The file has another type of tokenizer, or a WordLevel one
                that splits differently or has other special tokens.
            TokenizerFileError: The file cannot be read, or is damaged.
        """
        path = Path(path)
        top = json_file.parse_json(json_file.read_text(path), path)
        model = top.get("model")
        kind = model.get("type") if isinstance(model, dict) else None
        if not isinstance(model, dict) or kind != "WordLevel":
            raise UnsupportedTokenizerError(
                f"{path}: model.type is {kind!r}: expected 'WordLevel', as WordLevelTokenizer.save"
                " writes it; use bpe.load_tokenizer for a tokenizer of any kind"
            )
        vocab = model.get("vocab")
        if not isinstance(vocab, dict):
            raise TokenizerFileError(f"{path}: model has no 'vocab': expected an object")
        ids = [number for number in vocab.values() if type(number) is int]
        if sorted(ids) != list(range(len(vocab))):
            raise UnsupportedTokenizerError(
                f"{path}: the ids in model.vocab are not the numbers from 0 to {len(vocab) - 1}:"
                " expected a file that WordLevelTokenizer.save wrote"
            )
        try:
            tokenizer = cls(sorted(vocab.keys() - {UNKNOWN}, key=vocab.__getitem__))
        except VocabularyError as error:
            raise UnsupportedTokenizerError(f"{path}: {error}") from error
        for name, value in tokenizer._top_level().items():
            if top.get(name) != value:
                raise UnsupportedTokenizerError(
                    f"{path}: {name} is not what WordLevelTokenizer.save writes, so this is another"
                    " word-level tokenizer; use bpe.load_tokenizer, which has Hugging Face's"
                    " tokenizers run it"
                )
        for name, value in tokenizer._model().items():
            # A file that Hugging Face saved lacks the fields that it does not know.
            if model.get(name, value if name in ("pattern", "unicode_version") else None) != value:
                raise UnsupportedTokenizerError(
                    f"{path}: model.{name} is not what WordLevelTokenizer.save writes:"
                    f" {str(model.get(name))[:80]!r}"
                )
        return tokenizer

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokenizer.json and, in the same directory, tokenizer_config.json.

        Hugging Face's `tokenizers` and `transformers` load them with the same ids; their `decode`
        puts a space between all words. The same tokenizer gives the same bytes.

        Raises:
            OSError: A file cannot be written.
        """
        path = Path(path)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": END_OF_TEXT,  # `<|eos|>` is for sequences inside a document
            "unk_token": UNKNOWN,
            "pad_token": PAD,
            "extra_special_tokens": [END],
            "clean_up_tokenization_spaces": False,
        }
        config_text = json_file.layout(config) + "\n"
        write_atomically(json_file.config_path(path), config_text.encode())
        write_atomically(path, self._text.encode())

    def _top_level(self) -> dict[str, Any]:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            # Only the unknown token is in the model as well: where special tokens are not
            # recognised, text that spells another one is an unknown word.
            "added_tokens": [
                {"id": token_id, "content": text, **flags, "special": True}
                for text, token_id in self._special_tokens.items()
            ],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {
                        "type": "Split",
                        "pattern": {"Regex": _PUNCTUATION},
                        "behavior": "Isolated",
                        "invert": False,
                    },
                    {"type": "WhitespaceSplit"},
                ],
            },
            "post_processor": None,
            "decoder": None,
        }

    def _model(self) -> dict[str, Any]:
        return {
            "type": "WordLevel",
            "unk_token": UNKNOWN,
            "unicode_version": UNICODE_VERSION,
            "pattern": PATTERN,
            "vocab": self._ids | {UNKNOWN: self._special_tokens[UNKNOWN]},
        }

    @functools.cached_property
    def _text(self) -> str:
        top, model = self._top_level(), self._model()
        top["added_tokens"] = json_file.Lines(top["added_tokens"])
        model["vocab"] = json_file.Lines(model["vocab"])
        return json_file.layout({**top, "model": model}) + "\n"

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the text of tokenizer.json, in hexadecimal."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, WordLevelTokenizer):
            return self.vocabulary == other.vocabulary
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.vocabulary)

    def __repr__(self) -> str:
        return f"WordLevelTokenizer(vocab_size={self.vocab_size})"

    def _encode_texts(
        self, texts: list[str], allowed_special: frozenset[str] | None
    ) -> list[list[int]]:
        return [self._encode(text, allowed_special) for text in texts]

    def _encode(self, text: str, allowed_special: frozenset[str] | None) -> list[int]:
        special = self._special_tokens
        if allowed_special is not None:
            special = {token: special[token] for token in allowed_special}
        ids: list[int] = []
        ordinary = ""
        for piece in _MATCHER.split(text) if special else [text]:
            if piece in special:
                ids += [*self._ids_of_words(ordinary), special[piece]]
                ordinary = ""
            else:
                ordinary += piece
        return ids + self._ids_of_words(ordinary)

    def _ids_of_words(self, text: str) -> list[int]:
        unknown = self._special_tokens[UNKNOWN]
        return [self._ids.get(word, unknown) for word in split(text)]

    def _decode(self, ids: list[int]) -> str:
        r"""Join words with spaces, but none between a word and the mark that follows it.

        The original white space is not known: `"a ,b\n"` comes back as `"a, b"`.
        """
        parts: list[str] = []
        after_word = False
        for token_id in ids:
            word = self._texts[token_id]
            is_mark = word in _MARKS
            if parts and not (is_mark and after_word):
                parts.append(" ")
            parts.append(word)
            after_word = token_id < len(self.vocabulary) and not is_mark and word != "--"
        return "".join(parts)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
