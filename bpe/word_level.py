r"""A word-level tokenizer, for teaching and comparison: every word is a token, or it is unknown.

The law here: `split` cuts text at white space, which is dropped, and around punctuation, each mark
of which is a token of its own.  The case of letters is kept.  A word that is not in the vocabulary
becomes the unknown token, so text does not come back from its ids as it was: that is what
byte-level BPE is for.  White space is that of our pinned Unicode table, so no newer Python changes
a corpus.

    >>> split("Hello, world -- is this-- a test?")
    ['Hello', ',', 'world', '--', 'is', 'this', '--', 'a', 'test', '?']
    >>> tokenizer = WordLevelTokenizer(create_vocabulary(["Hello, world!", "Hello there"]))
    >>> tokenizer.vocabulary
    ('!', ',', 'Hello', 'there', 'world')
    >>> tokenizer.encode("Hello, you<|endoftext|>")
    [2, 1, 5, 9]
    >>> tokenizer.decode([2, 1, 4, 0])
    'Hello, world!'

It is saved as a tokenizer.json of the kind WordLevel, with which Hugging Face's `tokenizers` gives
the same ids.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final

from bpe import tokenizer_file
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
# As Hugging Face's engine and Python's read it.
_PUNCTUATION: Final = rf"--|[{_MARKS}]"
_WORD: Final = re.compile(rf"{_PUNCTUATION}|(?:(?!--)[^{WHITE_SPACES}{_MARKS}])+")
_MATCHER: Final = SpecialTokenMatcher({token: i for i, token in enumerate(SPECIAL_TOKENS)})


def split(text: str) -> list[str]:
    """Cut text into words and punctuation; white space is dropped."""
    return _WORD.findall(text)


def create_vocabulary(texts: Iterable[str], max_size: int | None = None) -> list[str]:
    """Return the distinct words of texts, sorted by code points.

    Args:
        texts: The texts; special tokens in them are no words.
        max_size: At most so many words: those that occur most often; of equally frequent ones
            those that sort first.

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

    Ids are those of the words in their order, then come the special tokens: `<|unk|>` for words
    that are not in the vocabulary, `<|bos|>`, `<|eos|>`, `<|pad|>` and `<|endoftext|>`.

    Args:
        vocabulary: Words in the order of their ids, such as `create_vocabulary` returns.

    Attributes:
        vocabulary: These words.
        eos_token: The special token that ends a document.
        bos_token: The special token that begins a sequence.
        pattern: How text is split: "word-level".
        unicode_version: The version of Unicode that says what white space is.

    Raises:
        VocabularyError: A word stands there twice, or `split` never gives it.
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
        self._words = [*self.vocabulary, *SPECIAL_TOKENS]
        self._special_ids = {
            text: len(self.vocabulary) + index for index, text in enumerate(SPECIAL_TOKENS)
        }

    eos_token = END_OF_TEXT
    bos_token = BEGIN
    pattern = PATTERN
    unicode_version = UNICODE_VERSION
    split = staticmethod(split)
    create_vocabulary = staticmethod(create_vocabulary)

    # --- files -----------------------------------------------------------------------------------

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> WordLevelTokenizer:
        """Read a tokenizer.json that `save` wrote.

        Raises:
            UnsupportedTokenizerError: It is another kind of tokenizer, or a WordLevel file that
                splits otherwise or has other special tokens.
            TokenizerFileError: The file cannot be read, or is damaged.
        """
        path = Path(path)
        top = tokenizer_file.parse_json(tokenizer_file.read_text(path), path)
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
        words = [word for word in vocab if word != UNKNOWN]
        numbers = [number for number in vocab.values() if type(number) is int]
        if sorted(numbers) != list(range(len(vocab))):
            raise UnsupportedTokenizerError(
                f"{path}: the ids in model.vocab are not the numbers from 0 to {len(vocab) - 1}:"
                " expected a file that WordLevelTokenizer.save wrote"
            )
        try:
            tokenizer = cls(sorted(words, key=vocab.__getitem__))
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
            # Hugging Face leaves out what it does not know when it saves a file anew.
            if model.get(name, value if name in ("pattern", "unicode_version") else None) != value:
                raise UnsupportedTokenizerError(
                    f"{path}: model.{name} is not what WordLevelTokenizer.save writes:"
                    f" {str(model.get(name))[:80]!r}"
                )
        return tokenizer

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write tokenizer.json and, beside it, tokenizer_config.json.

        Hugging Face's `tokenizers` and `transformers` read them, with the same ids; their `decode`
        puts a space between all words.  The same tokenizer gives the same bytes.

        Raises:
            OSError: A file cannot be written.
        """
        path = Path(path)
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            # What ends a document, as everywhere here; `<|eos|>` is for who marks sequences.
            "eos_token": END_OF_TEXT,
            "unk_token": UNKNOWN,
            "pad_token": PAD,
            "extra_special_tokens": [END],
            "clean_up_tokenization_spaces": False,
        }
        text = tokenizer_file.layout(config) + "\n"
        write_atomically(tokenizer_file.config_path(path), text.encode())
        write_atomically(path, self._text.encode())

    def _top_level(self) -> dict[str, Any]:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            # Only the unknown token is in the model as well: text that spells another one is an
            # unknown word where special tokens are not looked for.
            "added_tokens": [
                {"id": token_id, "content": text, **flags, "special": True}
                for text, token_id in self._special_ids.items()
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
            "vocab": self._ids | {UNKNOWN: self._special_ids[UNKNOWN]},
        }

    @functools.cached_property
    def _text(self) -> str:
        top = self._top_level()
        model = self._model()
        top["added_tokens"] = tokenizer_file.Lines(top["added_tokens"])
        model["vocab"] = tokenizer_file.Lines(model["vocab"])
        return tokenizer_file.layout({**top, "model": model}) + "\n"

    # --- what it is ------------------------------------------------------------------------------

    @property
    def vocab(self) -> dict[int, bytes]:
        """Id -> UTF-8 of every token, special tokens included, in the order of ids; a copy."""
        return {token_id: word.encode() for token_id, word in enumerate(self._words)}

    @property
    def vocab_size(self) -> int:
        """The number of words and special tokens."""
        return len(self._words)

    @property
    def special_tokens(self) -> dict[str, int]:
        """Text -> id of the special tokens, in the order of ids; a copy."""
        return dict(self._special_ids)

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the text of tokenizer.json, in hexadecimal."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WordLevelTokenizer):
            return NotImplemented
        return self.vocabulary == other.vocabulary

    def __hash__(self) -> int:
        return hash(self.vocabulary)

    def __repr__(self) -> str:
        return f"WordLevelTokenizer(vocab_size={self.vocab_size})"

    # --- text -> ids -> text ---------------------------------------------------------------------

    def _encode_texts(
        self, texts: list[str], allowed_special: frozenset[str] | None
    ) -> list[list[int]]:
        return [self._encode(text, allowed_special) for text in texts]

    def _encode(self, text: str, allowed_special: frozenset[str] | None) -> list[int]:
        special = self._special_ids
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
        unknown = self._special_ids[UNKNOWN]
        return [self._ids.get(word, unknown) for word in split(text)]

    def _decode(self, ids: list[int]) -> str:
        r"""Join words with spaces, without one between a word and the mark that follows it.

        What stood between the words is not known: `"a ,b\n"` comes back as `"a, b"`.
        """
        parts: list[str] = []
        after_word = False
        for token_id in ids:
            word = self._words[token_id]
            is_mark = word in _MARKS
            if parts and not (is_mark and after_word):
                parts.append(" ")
            parts.append(word)
            after_word = token_id < len(self.vocabulary) and not is_mark and word != "--"
        return "".join(parts)

    @property
    def _known_ids(self) -> Collection[int]:
        return range(len(self._words))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
