r"""A word-level tokenizer, for teaching and comparison: tokens are words and punctuation marks.

`split` drops white space (of the pinned Unicode table) and keeps case. A word outside the
vocabulary becomes the unknown token, so decoding does not restore the text.

    >>> split("Hello, world -- is this-- a test?")
    ['Hello', ',', 'world', '--', 'is', 'this', '--', 'a', 'test', '?']
    >>> tokenizer = WordLevelTokenizer(create_vocabulary(["Hello, world!", "Hello there"]))
    >>> tokenizer.vocabulary
    ('!', ',', 'Hello', 'there', 'world')
    >>> tokenizer.encode("Hello, you<|endoftext|>")
    [2, 1, 5, 9]
    >>> tokenizer.decode([2, 1, 4, 0])
    'Hello, world!'

It is saved as a tokenizer.json of type WordLevel, with the same ids in Hugging Face's `tokenizers`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bpe.arguments import checked
from bpe.errors import ArgumentError, UnsupportedTokenizerError, VocabularyError
from bpe.formats import json_file
from bpe.formats.hf_write import added_token_json
from bpe.reference import split_special
from bpe.text_tokenizer import TextTokenizer
from bpe.unicode_classes import UNICODE_VERSION, WHITE_SPACES
from bpe.vocabulary import AddedToken

UNKNOWN: Final = "<|unk|>"
BEGIN: Final = "<|bos|>"
END: Final = "<|eos|>"
PAD: Final = "<|pad|>"
END_OF_TEXT: Final = "<|endoftext|>"
SPECIAL_TOKENS: Final = (UNKNOWN, BEGIN, END, PAD, END_OF_TEXT)

PATTERN: Final = "word-level"
_MARKS: Final = ",.:;?_!\"()'"
_NO_SPACE: Final = frozenset(",.:;?!)'")  # before these
_PUNCTUATION: Final = rf"--|[{_MARKS}]"  # equivalent in Hugging Face's engine and Python's
_WORD: Final = re.compile(rf"{_PUNCTUATION}|(?:(?!--)[^{WHITE_SPACES}{_MARKS}])+")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_CONFIG: Final = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": BEGIN,
    "eos_token": END_OF_TEXT,  # `<|eos|>` is for sequences inside a document
    "unk_token": UNKNOWN,
    "pad_token": PAD,
    "extra_special_tokens": [END],
    "clean_up_tokenization_spaces": False,
}
_SPLIT: Final = {
    "type": "Split", "pattern": {"Regex": _PUNCTUATION}, "behavior": "Isolated", "invert": False,
}
_PRE_TOKENIZER: Final = {"type": "Sequence", "pretokenizers": [_SPLIT, {"type": "WhitespaceSplit"}]}


def split(text: str) -> list[str]:
    """Split text into words and punctuation, without white space."""
    return _WORD.findall(text)


def create_vocabulary(
    texts: Iterable[str] | Collection[str], max_size: int | None = None
) -> list[str]:
    """Return the distinct words of texts, without special tokens, sorted by code points.

    Args:
        texts: The texts, in any order.
        max_size: Maximum number of words; the most frequent are kept, ties in sorted order.

    Raises:
        TypeError: `texts` is a str.
        VocabularyError: `max_size` is negative.
    """
    if isinstance(texts, str):
        raise TypeError("expected several texts, found one text: put it in a list")
    if max_size is not None and max_size < 0:
        raise VocabularyError(f"max_size is {max_size}: expected 0 or more, or None for all words")
    counts: Counter[str] = Counter()
    for text in texts:
        for piece, is_special in split_special(text, SPECIAL_TOKENS):
            counts.update([] if is_special else split(piece))
    by_count = sorted(counts, key=lambda word: (-counts[word], word))
    return sorted(by_count[:max_size])


@checked
class WordLevelTokenizer(TextTokenizer):
    """A tokenizer whose tokens are words and punctuation.

    Ids are those of the vocabulary, then of the special tokens that it lacks: `<|unk|>` for words
    outside the vocabulary, `<|bos|>`, `<|eos|>`, `<|pad|>` and `<|endoftext|>`.

    Args:
        vocabulary: Words, and special tokens, in the order of their ids, as from
            `create_vocabulary`, word -> id, or a text that has the words.

    Attributes:
        vocabulary: As given, in the order of ids.

    Raises:
        VocabularyError: A word appears twice, or `split` never returns it; ids have gaps.
    """

    def __init__(self, vocabulary: Iterable[str] | Mapping[str, int] | str) -> None:
        if isinstance(vocabulary, str):
            vocabulary = create_vocabulary([vocabulary])
        elif isinstance(vocabulary, Mapping):
            if sorted(vocabulary.values()) != list(range(len(vocabulary))):
                raise VocabularyError(
                    f"the ids of the vocabulary are not the numbers from 0 to {len(vocabulary) - 1}"
                    ": number the words from 0 on"
                )
            vocabulary = sorted(vocabulary, key=vocabulary.__getitem__)
        self.vocabulary: tuple[str, ...] = tuple(vocabulary)
        ids: dict[str, int] = {}
        for word in self.vocabulary:
            if not isinstance(word, str) or split(word) != [word] or _SURROGATE.search(word):
                raise VocabularyError(
                    f"{word!r} in the vocabulary is no word: expected text that split() leaves as"
                    " it is, valid, without white space, and punctuation only by itself"
                )
            if word in ids:
                raise VocabularyError(f"{word!r} is in the vocabulary twice: expected it once")
            ids[word] = len(ids)
        for token in SPECIAL_TOKENS:
            ids.setdefault(token, len(ids))
        self._text_of_id = {token_id: text for text, token_id in ids.items()}
        self._special_ids = {text: i for text, i in ids.items() if text in SPECIAL_TOKENS}
        # Text that spells a special token is no special token.
        self._ids = {text: i for text, i in ids.items() if text not in SPECIAL_TOKENS}

    eos_token = END_OF_TEXT
    bos_token = BEGIN
    pattern = PATTERN
    unicode_version = UNICODE_VERSION
    split = staticmethod(split)
    create_vocabulary = staticmethod(create_vocabulary)
    config_json = json_file.layout(_CONFIG) + "\n"

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> WordLevelTokenizer:
        """Read a tokenizer.json that `save` wrote.

        Raises:
            UnsupportedTokenizerError: It is another type of tokenizer, splits differently, or has
                other special tokens.
            TokenizerFileError: The file is unreadable or damaged.
        """
        path = Path(path)
        top = json_file.parse_json(json_file.read_text(path), path)
        model = top.get("model")
        vocab = model.get("vocab") if isinstance(model, dict) else None
        if not isinstance(vocab, dict) or model.get("type") != "WordLevel":
            json_file.unsupported(
                path, "it is no word-level tokenizer",
                "expected 'WordLevel' with 'vocab'; use bpe.load_tokenizer for any type",
            )
        # The unknown token is there in any case, last if the vocabulary lacks it.
        if vocab.get(UNKNOWN) == len(vocab) - 1:
            vocab = {text: number for text, number in vocab.items() if text != UNKNOWN}
        try:
            tokenizer = cls(vocab)
        except (VocabularyError, ArgumentError) as error:
            raise UnsupportedTokenizerError(f"{path}: model.vocab: {error}") from error
        expected = tokenizer._content()
        top["model"] = expected["model"] | model  # Hugging Face drops fields that it does not know
        different = [name for name in expected | top if top.get(name) != expected.get(name)]
        if different:
            json_file.unsupported(
                path, f"{different[0]} is not what WordLevelTokenizer.save writes",
                "this is another word-level tokenizer: use bpe.load_tokenizer, which has Hugging"
                " Face's tokenizers run it",
            )
        return tokenizer

    def _content(self) -> dict[str, Any]:
        """Return the content of tokenizer.json.

        The model has no special token that the given vocabulary lacks, except the unknown token, so
        that their text in a document is an unknown word.
        """
        n, special = len(self.vocabulary), self._special_ids
        model = {
            "type": "WordLevel", "unk_token": UNKNOWN, "unicode_version": UNICODE_VERSION,
            "pattern": PATTERN,
            "vocab": {x: i for i, x in self._text_of_id.items() if i < n or x == UNKNOWN},
        }
        return {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [added_token_json(AddedToken(x, i)) for x, i in special.items()],
            "normalizer": None, "pre_tokenizer": _PRE_TOKENIZER, "post_processor": None,
            "decoder": None, "model": model,
        }

    def to_json(self) -> str:
        """Return the text of tokenizer.json."""
        top = self._content()
        top["added_tokens"] = json_file.Lines.of(top["added_tokens"])
        top["model"]["vocab"] = json_file.Lines.of(top["model"]["vocab"])
        return json_file.layout(top) + "\n"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, WordLevelTokenizer):
            return self._text_of_id == other._text_of_id
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._text_of_id.values()))

    def __repr__(self) -> str:
        return f"WordLevelTokenizer(vocab_size={self.vocab_size})"

    def _encode_texts(
        self, texts: list[str], allowed_special: frozenset[str] | None
    ) -> list[list[int]]:
        allowed = self._special_ids if allowed_special is None else allowed_special
        return [[*self._encode(text, allowed)] for text in texts]

    def _encode(self, text: str, allowed: Collection[str]) -> Iterator[int]:
        unknown = self._special_ids[UNKNOWN]
        for piece, is_special in split_special(text, allowed):
            if is_special:
                yield self._special_ids[piece]
            else:
                yield from (self._ids.get(word, unknown) for word in split(piece))

    def _decode(self, ids: list[int]) -> str:
        r"""Join words by spaces, except before the marks of `_NO_SPACE` and the end of a quotation.

        White space is not restored: `"a ,b\n"` becomes `"a, b"`.
        """
        parts: list[str] = []
        in_quotation = False
        for token_id in ids:
            word = self._text_of_id[int(token_id)]
            if parts and word not in _NO_SPACE and not (word == '"' and in_quotation):
                parts.append(" ")
            parts.append(word)
            if word == '"' or token_id >= len(self.vocabulary):  # documents have quotations
                in_quotation = word == '"' and not in_quotation
        return "".join(parts)
